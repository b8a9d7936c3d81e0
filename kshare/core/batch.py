"""The begin and end of a micro-batch.

A partition takes part in a batch in one of two ways (see :mod:`kshare.core.checkpoint`)::

    without limits   its dict holds the progress after the batch, which reads the difference:
                     progress.minus(start_of(...))
    with limits      its dict holds the progress at the begin of the batch, and for each range
                     RangeLimit(hashes, end, records): the range reads what is pending below
                     ``end``, in offset order, and stops after ``records`` records. Where that was
                     is found when the batch is done (``progress_after``).

Three values have a ``progress``: of :class:`.BatchOffsets` it is what the dict says (the begin of
a limited partition, the end of another one), of :class:`BatchStart` the begin, and of
:class:`~kshare.query.planner.batch_history.RecentBatch` what is reached when the batch is done.

Where partitions start is said in several places::

    startingOffsets        started   of the dict of batch 0, as Spark has it: an offset each
    a partition comes up   started   of the dict of its first batch, unless it is offset 0
    ranges with gaps       progress  of the first dict, which reads nothing (``start_with_gaps``)
    the batch itself       start_of  the end of the batch before, or one of these; of a partition
                                     that is new and has none of these, its earliest offset

Guarantees: a function of the arguments. No batch ends before it begins or beyond the end of a log;
no record of a parked key or of a key hash that the query does not read is in a batch; what is
planned again from the dict is what was planned.
Cost: linear in the partitions, and in the gaps of those whose ranges stand at different offsets.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kshare.core.admission import admit
from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import ALL_HASHES, HashRange, KeyRanges
from kshare.core.losses import (
    Loss,
    new_partitions,
    recreated_topics,
    without_deleted,
    without_trimmed,
)
from kshare.core.offsets import OffsetRange, length
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.tasks import PlannedSlice
from kshare.errors import CheckpointError

__all__ = [
    "BatchStart",
    "SelectedHashes",
    "advanced",
    "batch_ends",
    "begin",
    "implied_starts",
    "is_idle",
    "limit_ranges",
    "limited_slices",
    "needs_earliest",
    "progress_after",
    "slices_below",
    "start_of",
    "start_with_gaps",
    "surely_read_whole",
    "unwritten_starts",
    "with_gaps",
    "written_starts",
]


class SelectedHashes(Protocol):
    """The key hashes of each partition that a query reads."""

    def readable(self, partition: TopicPartition, /) -> KeyRanges:
        """The hashes that it reads now."""

    def parked(self, partition: TopicPartition, /) -> KeyRanges:
        """The hashes of parked keys, which it will read later."""

    def unassigned(self, partition: TopicPartition, /) -> KeyRanges:
        """The hashes that it never reads."""


@dataclass(frozen=True, slots=True)
class BatchStart:
    """The begin of a batch.

    Attributes:
        progress: How far each partition is.
        started: The offsets of the partitions that begin with this batch.
        new: The offsets of those that came up since the last batch.
        losses: What can no longer be read.
    """

    progress: Mapping[TopicPartition, Progress]
    started: Mapping[TopicPartition, int]
    new: Mapping[TopicPartition, int]
    losses: tuple[Loss, ...]


# -- where it begins -----------------------------------------------------------------------------


def needs_earliest(
    before: BatchOffsets,
    reached: Mapping[TopicPartition, Progress],
    available: Iterable[TopicPartition],
) -> list[TopicPartition]:
    """The partitions whose earliest offsets :func:`begin` needs: new and uneven ones, ascending."""
    known = reached or before.started
    return sorted(
        tp for tp in available if tp not in known or (tp in reached and not reached[tp].is_level)
    )


def start_with_gaps(starts: Mapping[TopicPartition, Progress]) -> BatchOffsets:
    """The dict of a query's start, whose ranges may stand at different offsets.

    A dict's ``start`` is one offset a partition. So with gaps the first batch reads nothing: it
    only writes down, as the progress at which a batch with limits begins, where the ranges stand.

    Args:
        starts: Where each partition starts.
    """
    offsets = BatchOffsets({}, started={tp: progress.stable for tp, progress in starts.items()})
    is_level = all(progress.is_level for progress in starts.values())
    return offsets if is_level else with_gaps(offsets, starts)


def unwritten_starts(
    before: BatchOffsets, reached: Mapping[TopicPartition, Progress]
) -> dict[TopicPartition, Progress]:
    """The state of partitions that start beside gaps, before a batch's dict holds it.

    Args:
        before: What the dict of the batch before says, or that of the query's start.
        reached: How far partitions are.
    """
    # No batch has a start and limits for one partition: see start_with_gaps().
    tps = before.started.keys() & before.limits.keys() & reached.keys()
    return {tp: reached[tp] for tp in tps}


def with_gaps(offsets: BatchOffsets, starts: Mapping[TopicPartition, Progress]) -> BatchOffsets:
    """A dict that also says where partitions start, and reads nothing of these."""
    return replace(
        offsets,
        progress={**offsets.progress, **starts},
        limits={**offsets.limits, **{tp: (_nothing(at),) for tp, at in starts.items()}},
    )


def _nothing(progress: Progress) -> RangeLimit:
    """A limit below which nothing is pending."""
    return RangeLimit(ALL_HASHES, progress.stable, 1)


def begin(
    before: BatchOffsets,
    reached: Mapping[TopicPartition, Progress],
    available: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    recreated: Collection[str] = (),
) -> BatchStart:
    """The begin of a batch.

    Args:
        before: What the dict of the batch before says, or that of the query's start.
        reached: How far each partition is when that batch is done; empty before the first batch.
        available: The end of the log of each partition that exists.
        earliest: The first offsets of the logs of :func:`needs_earliest`.
        recreated: Topics that were deleted and made again since the last batch.
    """
    started = {} if reached else dict(before.started)  # the first dict must carry its start
    new = {tp: earliest[tp] for tp in available if tp not in reached and tp not in started}
    started |= new
    losses = new_partitions(new)
    progress = {**reached, **{tp: Progress.at(offset) for tp, offset in started.items()}}
    progress, deleted = without_deleted(progress, available)
    shorter = {loss.partition for loss in deleted}
    whole = {tp: at for tp, at in progress.items() if tp in reached and tp not in shorter}
    losses += recreated_topics(whole, available, recreated)
    uneven = [tp for tp, at in progress.items() if not at.is_level]
    progress, trimmed = without_trimmed(progress, {tp: earliest[tp] for tp in uneven})
    return BatchStart(
        progress=progress,
        started={tp: offset for tp, offset in started.items() if tp in progress},
        new=new,
        losses=(*losses, *deleted, *trimmed),
    )


def written_starts(
    started: Mapping[TopicPartition, int],
    reached: Mapping[TopicPartition, Progress],
    after: Mapping[TopicPartition, Progress],
) -> dict[TopicPartition, int]:
    """The starts that a batch's dict has to say: all of batch 0, and others that may change.

    A partition that comes up later starts at its earliest offset. If that is 0, it is what another
    planner finds, or says to be lost. So the dict is as Spark's source writes it.

    Args:
        started: Where partitions start that begin with the batch.
        reached: How far each partition was before it; empty before batch 0.
        after: How far each partition is after it.
    """
    return {
        tp: offset
        for tp, offset in started.items()
        if offset or not reached or not after[tp].is_level
    }


def implied_starts(
    before: BatchOffsets, reached: Mapping[TopicPartition, Progress], after: BatchOffsets
) -> list[TopicPartition]:
    """The partitions that are new in a batch, and whose start its dict does not say; ascending.

    Spark's source never writes it down: it takes the earliest offset, also when a batch runs
    again. In batch 0, partitions start where the options say.

    Args:
        before: What the dict of the batch before says.
        reached: How far each partition is when that batch is done.
        after: What the dict of the batch says.
    """
    said = {*after.started, *after.limits, *reached, *before.started}
    return sorted(after.progress.keys() - said) if reached else []


def start_of(
    partition: TopicPartition,
    before: BatchOffsets,
    reached: Mapping[TopicPartition, Progress],
    after: BatchOffsets,
    earliest: Mapping[TopicPartition, int],
    *,
    is_certain: Callable[[TopicPartition, int], bool],
) -> Progress:
    """The state of a partition at the begin of a batch without limits, by its two dicts.

    Args:
        partition: The partition; it is in ``after``.
        before: What the dict of the batch before says.
        reached: How far each partition is when that batch is done.
        after: What the dict of the batch says.
        earliest: The first offsets of the logs of :func:`implied_starts`.
        is_certain: Whether a batch 0 that another source has planned began at an offset of today.

    Raises:
        CheckpointError: It is not known where the partition starts.
    """
    if partition in after.started:
        return Progress.at(after.started[partition])
    if partition in reached:
        return reached[partition]
    if partition in earliest:
        return Progress.at(earliest[partition])
    # Batch 0 was planned by Spark's source, which kept its start elsewhere.
    offset = before.started.get(partition)
    if offset is None or not is_certain(partition, offset):
        raise CheckpointError(
            f"batch 0 of this checkpoint was planned by another source and not finished, so where "
            f"{partition} started is not known here. Let format('kafka') finish that batch (start "
            "it once, then stop it), and switch then."
        )
    return Progress.at(offset)


# -- where it ends -------------------------------------------------------------------------------


def is_idle(
    reached: Mapping[TopicPartition, Progress],
    limited: Collection[PlannedSlice],
    after: BatchOffsets,
) -> bool:
    """True if the next batch would read nothing, and there is nothing to write down.

    Spark runs a batch whenever a dict differs from the one before, and calls ``foreachBatch`` for
    it; in complete mode with all rows again. So what the dict of the last batch says only for that
    batch (where partitions start) leaves with the next records. What has changed without a record
    to read is written: partitions that came or went, what is lost, and the ends of a batch whose
    limits may have left something. Those are found in the log, which may not hold them for long.
    An open batch may read something that is not there yet.

    Args:
        reached: How far each partition is.
        limited: The slices of the last batch that had limits.
        after: What the dict of the next batch would say.
    """
    is_open = after.open is not None
    return not is_open and not limited and not after.limits and after.progress == reached


def batch_ends(
    progress: Mapping[TopicPartition, Progress],
    available: Mapping[TopicPartition, int],
    selected: SelectedHashes,
    *,
    max_offsets: int | None,
    max_ahead: int | None,
    max_gaps: int,
) -> dict[TopicPartition, int]:
    """Below which offset each partition is read; its ranges may end before it.

    Args:
        progress: How far each partition is.
        available: The ends of their logs.
        selected: What the query reads.
        max_offsets: Maximum number of offsets of the batch (``maxOffsetsPerTrigger``); counted from
            the front of each partition, where its fastest range stands. None for none.
        max_ahead: Maximum distance between the slowest range and the end (``maxOffsetsAhead``);
            None for none.
        max_gaps: From this number of individual commits on (``maxRangesInCheckpoint``), ranges that
            lag go first, if reading them can make these fewer.
    """
    fronts, tops = {}, {}
    for tp, reached in progress.items():
        top = available[tp]
        if _has_too_many_gaps(tp, reached, selected, max_gaps):
            top = min(top, reached.front)
        if max_ahead is not None:
            top = min(top, _slowest(tp, reached, selected) + max_ahead)
        tops[tp] = max(top, reached.stable)
        fronts[tp] = min(reached.front, tops[tp])
    return admit(fronts, tops, max_offsets)


def _has_too_many_gaps(
    partition: TopicPartition, reached: Progress, selected: SelectedHashes, max_gaps: int
) -> bool:
    """True if individual commits are at their limit, and reading can make them fewer."""
    if reached.is_level or reached.gaps < max_gaps:
        return False
    return bool(reached.pending_of(reached.front, selected.readable(partition)))


def _slowest(partition: TopicPartition, reached: Progress, selected: SelectedHashes) -> int:
    """The position of the slowest range. Parked keys do not count: they would stop all others."""
    if reached.is_level:
        return reached.stable
    hashes = selected.readable(partition)
    return reached.position_of(hashes) if hashes else reached.stable


def advanced(
    progress: Mapping[TopicPartition, Progress],
    ends: Mapping[TopicPartition, int],
    selected: SelectedHashes,
) -> dict[TopicPartition, Progress]:
    """Progress of partitions after a batch without limits: all but parked keys are read."""
    after = {}
    for tp, end in ends.items():
        reached = progress[tp]
        if selected.parked(tp):
            read = reached.pending_of(end, selected.readable(tp))
            after[tp] = reached.commit([*read, *reached.pending_of(end, selected.unassigned(tp))])
        else:
            after[tp] = reached.advance(end)
    return after


def limit_ranges(
    partition: TopicPartition,
    reached: Progress,
    end: int,
    ranges: Iterable[tuple[HashRange, int]],
    parked: KeyRanges,
) -> list[tuple[RangeLimit, PlannedSlice]]:
    """The limits of a partition's ranges, and what is read up to each.

    There is none for a range without pending work.

    Args:
        partition: The partition.
        reached: How far it is.
        end: Below which offset it is read.
        ranges: Its ranges, ascending, and the number of records that each may read.
        parked: The hashes of parked keys.
    """
    limited = []
    for hashes, records in ranges:
        parts = KeyRanges([hashes]) - parked
        if parts:
            limit = RangeLimit(parts, end, records)
            planned = _planned(partition, reached, limit)
            if planned is not None:
                limited.append((limit, planned))
    return limited


def surely_read_whole(planned: PlannedSlice) -> bool:
    """True if a slice has no more offsets than it may read records: no offset has two."""
    return planned.max_records is None or length(planned.slice.bounds) <= planned.max_records


def limited_slices(offsets: BatchOffsets) -> list[PlannedSlice]:
    """The slices that are read up to a dict's limits, ascending by partition, then by range."""
    return [
        planned
        for tp, limits in sorted(offsets.limits.items())
        for limit in limits
        if (planned := _planned(tp, offsets.progress[tp], limit)) is not None
    ]


def _planned(
    partition: TopicPartition, reached: Progress, limit: RangeLimit
) -> PlannedSlice | None:
    pending = reached.pending_stripes(limit.end, limit.hashes)
    return PlannedSlice(Slice(*partition, stripes=pending), limit.records) if pending else None


def slices_below(limited: Iterable[PlannedSlice], ends: Mapping[Slice, int]) -> list[PlannedSlice]:
    """The parts of slices below an offset of each, without a limit; none of one that begins there.

    Args:
        limited: The slices.
        ends: The offset of each.
    """
    return [
        PlannedSlice(Slice(planned.slice.topic, planned.slice.partition, pieces))
        for planned in limited
        if (pieces := _below(planned.slice, ends[planned.slice]))
    ]


def _below(slice_: Slice, end: int) -> list[Rectangle]:
    return [
        Rectangle(OffsetRange(piece.offsets.start, min(piece.offsets.end, end)), piece.hashes)
        for piece in slice_.rectangles
        if piece.offsets.start < end
    ]


def progress_after(
    progress: Mapping[TopicPartition, Progress],
    read: Sequence[tuple[Slice, int]],
    unassigned: Callable[[TopicPartition], KeyRanges],
) -> dict[TopicPartition, Progress]:
    """Progress of the partitions of some slices once these are read.

    Args:
        progress: How far each partition was.
        read: Slices, and the offset where the reading of each ended.
        unassigned: The key hashes of a partition that the query does not read. They hold nothing
            for it, and go along.
    """
    done: dict[TopicPartition, list[Rectangle]] = defaultdict(list)
    planned_to: dict[TopicPartition, int] = defaultdict(int)
    for slice_, end in read:
        tp = slice_.topic_partition
        planned_to[tp] = max(planned_to[tp], slice_.offsets.end)
        done[tp] += _below(slice_, end)
    return {
        tp: progress[tp].commit([*done[tp], *progress[tp].pending_of(end, unassigned(tp))])
        for tp, end in planned_to.items()
    }
