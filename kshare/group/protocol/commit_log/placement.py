"""Where in the log a record is that was written, so that its writer notices if it never comes.

::

    wanted --> brokers have taken it, at an offset --> the log is read past that offset
                                                         |                   |
                                                         it is there         it was deleted: missed

A record may be deleted before its writer reads it: another member deletes what is of no use, an
operator what is damaged, and compaction drops both at once, the tombstone too after a while. So
only its offset says that it does not come any more.
"""

from dataclasses import dataclass, replace
from typing import Final

__all__ = ["UNPLACED", "Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a record is that is to be read back.

    Attributes:
        since: How far the log was read when it was wanted.
        offset: Its offset in the log; None while that is not known.
    """

    since: int
    offset: int | None = None

    def at(self, offset: int) -> "Placement":
        """Brokers have taken it.

        Args:
            offset: Where they say it is. In front of what was read then, it is in another log, as
                the one that is read was deleted meanwhile: that says nothing of this one.
        """
        return replace(self, offset=offset) if offset >= self.since else self

    def is_passed(self, log_end: int) -> bool:
        """True if the log was read past it.

        Args:
            log_end: How far the log was read.
        """
        return self.offset is not None and self.offset < log_end


UNPLACED: Final = Placement(0)
"""Of what was not written."""
