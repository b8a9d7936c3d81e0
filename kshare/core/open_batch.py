"""A micro-batch that reads for a while: it has no end when it is planned.

Its dict says "from here, for so long": where each partition begins, and which ranges are read.
Where each range ended is in a log of its own (:mod:`kshare.core.range_end`), written before the
range's task ends. So the batch is said completely by its dict and that log::

    planned     the dict is in Spark's offset log; no range has an end
    running     tasks hand rows over; each range gets its end, one after the other
    committed   Spark has committed the batch: each task has ended, so each range has an end, but
                for those that a sink did not read to the end; the planner seals these

Three rules make that hold, and :class:`RangeReader` and :func:`seals` are the rules:

1. A task looks into the log before it hands anything over. A range that has an end is read up to
   exactly this.
2. A task ends only when the log, read back, has an end for its ranges, and this is what it has
   handed over. If it has handed over more, it fails: Spark runs it again, and it finds the end.
3. A planner never takes a range without an end for read, or for unread, by itself: it proposes that
   the range ends where it begins, and reads back what counts. A task that everybody has forgotten
   may have proposed something before it, or may do so afterwards.

So nobody waits for anybody: whoever finds no end proposes one.

Guarantees: a function of the arguments. Ranges of one batch may overlap in no hash, and are cut
anew in each batch; what is read of them is a :class:`~kshare.core.progress.Progress` again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from kshare.core.batch import progress_after
from kshare.core.hashing import NO_HASHES, KeyRanges, in_both
from kshare.core.offsets import OFFSET_MAX, within
from kshare.core.open_entry import OpenBatch, OpenRange
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, RangeEnds, RangeId
from kshare.core.region import Stripe

__all__ = [
    "RangeReader",
    "Step",
    "done_slices",
    "missing",
    "no_ends",
    "open_ranges",
    "reached",
    "read_so_far",
    "seals",
]


def open_ranges(batch: OpenBatch, progress: Mapping[TopicPartition, Progress]) -> list[OpenRange]:
    """The ranges of a batch, ascending by partition, then by number.

    Args:
        batch: The batch.
        progress: Where its partitions begin, by the same dict.
    """
    return [
        OpenRange(RangeId(batch.name, tp, number), Slice(*tp, stripes=pending))
        for tp, ranges in sorted(batch.ranges.items())
        for number, hashes in enumerate(ranges)
        if (pending := progress[tp].pending_stripes(OFFSET_MAX, hashes))
    ]


# -- what the planner does -----------------------------------------------------------------------


def no_ends(ranges: Sequence[OpenRange]) -> RangeEnds:
    """The ends of some ranges before anything of their log is read."""
    return RangeEnds({each.id: each.hashes for each in ranges})


def missing(ranges: Sequence[OpenRange], ends: RangeEnds) -> list[OpenRange]:
    """The ranges without an end. A batch that runs again reads these freely."""
    return [each for each in ranges if each.id not in ends.ends]


def seals(ranges: Sequence[OpenRange], ends: RangeEnds) -> dict[RangeId, RangeEnd]:
    """The proposals for a committed batch: that ranges without an end were not read.

    Their tasks were never run, or ended before they had read to their end: a sink has asked for a
    few rows only. The records come again in the next batch.
    """
    return {each.id: each.begin for each in missing(ranges, ends)}


def done_slices(each: OpenRange, end: RangeEnd) -> list[Slice]:
    """The records of a range that has an end, as slices; nothing where it ends before it begins."""
    return _between(each, RangeEnd.at(each.hashes, 0), end)


def _between(each: OpenRange, begin: RangeEnd, end: RangeEnd) -> list[Slice]:
    """The records of a range from one end to another; of hashes that both have."""
    read = [
        (part, (low, high)) for part, low, high in in_both(begin.by_hash, end.by_hash) if low < high
    ]
    stripes = [
        Stripe(part, bounds)
        for part, (low, high), pending in in_both(read, each.pending)
        if (bounds := within(pending, low, high))
    ]
    return [Slice(*each.id.partition, stripes=stripes)] if stripes else []


def reached(
    ranges: Sequence[OpenRange],
    progress: Mapping[TopicPartition, Progress],
    ends: RangeEnds,
    unassigned: Callable[[TopicPartition], KeyRanges],
) -> dict[TopicPartition, Progress]:
    """The progress of partitions when a committed batch is done, with which the next one begins.

    Args:
        ranges: The ranges of the batch.
        progress: Where its partitions begin.
        ends: The ends; none is missing.
        unassigned: The key hashes of a partition that the query does not read, which go along.

    Raises:
        ValueError: A range has no end.
    """
    if without := missing(ranges, ends):
        raise ValueError(f"no end of {without[0].id}, and of {len(without) - 1} more")
    read = [
        (slice_, slice_.offsets.end)
        for each in ranges
        for slice_ in done_slices(each, ends.ends[each.id])
    ]
    return {**progress, **progress_after(progress, read, unassigned)}


def read_so_far(
    batch: OpenBatch,
    progress: Mapping[TopicPartition, Progress],
    ends: RangeEnds,
    positions: Mapping[RangeId, int] | None = None,
) -> dict[TopicPartition, Progress]:
    """The progress of partitions as far as ends say it, for those who only look.

    Args:
        batch: The batch.
        progress: Where its partitions begin.
        ends: The ends of its ranges; a range without one counts as unread.
        positions: How far ranges without an end are, as their tasks say.
    """
    ranges = open_ranges(batch, progress)
    said = {
        each.id: each.begin.raised(positions[each.id], but=NO_HASHES)
        for each in ranges
        if positions and each.id in positions
    }
    known = RangeEnds(ends.wanted, {**seals(ranges, ends), **said, **ends.ends})
    return reached(ranges, progress, known, lambda _: NO_HASHES)


# -- what a task does ----------------------------------------------------------------------------


class Step(Enum):
    """The next thing that a reader does."""

    LOOK = auto()
    """Read the log of ends, from where the batch begins in it to its end."""
    READ = auto()
    """Hand over what comes next: below ``bound``, if there is one."""
    PROPOSE = auto()
    """Append ``delivered`` to the log under a new name, then look. An answer is not needed."""
    END = auto()
    """End: the range is read, and whoever reads it again reads the same."""
    FAIL = auto()
    """Fail: more was handed over than counts."""


@dataclass(frozen=True, slots=True)
class RangeReader:
    """One attempt at a range. A task that has several ranges ends when all of them do.

    Attributes:
        range: What it reads.
        delivered: What it has handed over.
        parked: Key hashes that operators have parked since it began: their rows end there.
        bound: The end that counts; None if there is none yet.
        is_over: Whether its time is over.
        has_looked: Whether it has looked into the log since it began, or since it has proposed.
        proposals: How often it has proposed an end.
    """

    range: OpenRange
    delivered: RangeEnd
    parked: KeyRanges = NO_HASHES
    bound: RangeEnd | None = None
    is_over: bool = False
    has_looked: bool = False
    proposals: int = 0

    @classmethod
    def of(cls, each: OpenRange) -> "RangeReader":
        """An attempt that has just begun."""
        return cls(each, each.begin)

    @property
    def step(self) -> Step:
        """The next thing to do."""
        if not self.has_looked:
            return Step.LOOK
        if self.bound is None:
            return Step.PROPOSE if self.is_over else Step.READ
        if not self.delivered.is_within(self.bound):
            return Step.FAIL
        return Step.END if self.bound.is_within(self.delivered) else Step.READ

    @property
    def rest(self) -> list[Slice]:
        """What is still to be handed over: up to the bound; without one, of keys not parked."""
        if self.bound is not None:
            return _between(self.range, self.delivered, self.bound)
        hashes = self.range.hashes - self.parked
        goes_on = RangeEnd.at(hashes, OFFSET_MAX) if hashes else None
        return [] if goes_on is None else _between(self.range, self.delivered, goes_on)

    def look(self, ends: RangeEnds) -> "RangeReader":
        """The log of ends was read, to its end."""
        return replace(self, bound=ends.ends.get(self.range.id), has_looked=True)

    def deliver_to(self, offset: int) -> "RangeReader":
        """Everything below an offset is handed over, but for what is parked or beyond the bound."""
        if self.bound is None:
            return replace(self, delivered=self.delivered.raised(offset, but=self.parked))
        raised = self.delivered.raised(offset, but=NO_HASHES)
        return replace(self, delivered=raised.cut(self.bound))

    def park(self, hashes: KeyRanges) -> "RangeReader":
        """Operators park keys: no more of their rows, unless the end says so already."""
        return replace(self, parked=self.parked | (hashes & self.range.hashes))

    def hold(self, firsts: Mapping[int, int]) -> "RangeReader":
        """Of some key hashes, what was read from an offset on is not handed over.

        Args:
            firsts: That offset by key hash, also hashes of other ranges of the partition.
        """
        hashes = self.range.hashes
        held = {hash_: offset for hash_, offset in firsts.items() if hashes.holds(hash_)}
        parts = [(KeyRanges.of_hashes([hash_]), offset) for hash_, offset in held.items()]
        if others := hashes - KeyRanges.of_hashes(held):
            parts.append((others, OFFSET_MAX))
        return replace(self, delivered=self.delivered.cut(RangeEnd(tuple(parts))))

    def time_over(self) -> "RangeReader":
        """The batch's time is over."""
        return replace(self, is_over=True)

    def key(self, attempt: str) -> EndKey:
        """The key of its next proposal: no other append has it, not even a repetition.

        Args:
            attempt: A name that no other attempt has.
        """
        return EndKey(self.range.id, f"{attempt}-{self.proposals}")

    def proposed(self) -> "RangeReader":
        """An end was appended, or perhaps not: the log knows."""
        return replace(self, has_looked=False, proposals=self.proposals + 1)
