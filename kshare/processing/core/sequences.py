"""Keys whose records go to the dead-letter topic, unhandled, from some record on.

::

    a record of the key has failed for good --> its mark is kept --> its letter is written
    a record below the mark     was handled before, and not committed: it is handled again
    the record of the mark      its letter is written again, with the reason that was kept
    a record above the mark     follows it, unhandled
    one that ends the sequence  is handled, and so are those behind it

Guarantees: a mark moves to a later record only where operators have released the key in between.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from kshare.dead_letters.record import Mark, Record

__all__ = ["Sequences"]


@dataclass(slots=True)
class Sequences:
    """The marks that are known.

    Attributes:
        marks: The begin of each sequence, by lane.
    """

    marks: dict[Hashable, Mark] = field(default_factory=dict)

    def follows(self, record: Record) -> bool:
        """True if a record is that of a mark, or behind it."""
        mark = self.marks.get(record.lane)
        return mark is not None and record.offset >= mark.offset

    def reason_of(self, record: Record) -> BaseException | None:
        """Tell a record that began a sequence how it failed; return why.

        Returns:
            None for a record behind it, and if the reason was not kept.
        """
        mark = self.marks[record.lane]
        if record.offset != mark.offset:
            return None
        record.failures = max(record.failures, mark.failures)
        record.since = mark.since if record.since is None else record.since
        return mark.error

    def begin(self, record: Record) -> None:
        """A record has failed for good, and its mark is kept."""
        if record.raw_key is not None and not self.follows(record):
            self.marks[record.lane] = Mark(record.offset)

    def end(self, lane: Hashable, offset: int) -> None:
        """Operators have released a key: from a record on its records are handled again.

        Args:
            lane: The key's lane.
            offset: Offset of that record; a sequence that began behind it goes on.
        """
        mark = self.marks.get(lane)
        if mark is not None and mark.offset < offset:
            del self.marks[lane]

    def learn(self, had: Mapping[Hashable, Mark], kept: Mapping[Hashable, Mark]) -> None:
        """Take the marks that are kept; one that was set since the look began is later.

        Args:
            had: The marks before the look.
            kept: The marks that were found.
        """
        for lane in had.keys() | kept.keys():
            if self.marks.get(lane) != had.get(lane):
                continue
            if lane in kept:
                self.marks[lane] = kept[lane]
            else:
                del self.marks[lane]
