"""Where a batch ends: what ``maxOffsetsPerTrigger``, bytes and event time allow, together.

Guarantees: no bound is passed, and a batch that could read something reads something.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kshare.core.batch import BatchStart, batch_ends
from kshare.core.byte_bound import WindowEnds
from kshare.core.progress import TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.core.time_bound import surely_read
from kshare.options import SourceOptions
from kshare.planner.byte_limit import ByteLimit
from kshare.planner.key_selection import KeySelection
from kshare.planner.time_alignment import TimeAlignment

__all__ = ["BatchBounds", "BatchEnd", "MostRead"]


@dataclass(frozen=True, slots=True)
class MostRead:
    """The maximum of a batch; None for none.

    Attributes:
        offsets: Number of offsets of all partitions together.
        size: Number of bytes of all partitions together, as Kafka stores them.
    """

    offsets: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """Where a batch ends.

    Attributes:
        ends: Below which offset each partition is read.
        limits: The record limits of its ranges.
        windows: Below which offset ranges are read, by where they stand, if that is less than
            ``ends``: of all partitions with something to read where bytes are limited, else of
            none. Without record limits a partition has one window.
    """

    ends: Mapping[TopicPartition, int]
    limits: PlannedLimits = field(default_factory=PlannedLimits)
    windows: Mapping[TopicPartition, WindowEnds] = field(default_factory=dict)


class BatchBounds:
    """Bounds the batches of one query.

    Args:
        options: The query's options.
        alignment: ``maxTimeAhead``.
        byte_limit: ``maxBytesPerTrigger``.
    """

    def __init__(
        self, options: SourceOptions, alignment: TimeAlignment, byte_limit: ByteLimit
    ) -> None:
        self._options = options
        self._alignment = alignment
        self._byte_limit = byte_limit

    def name_parked(self, keys: Iterable[tuple[str, bytes]]) -> None:
        """Name parked keys in a warning, as no bound waits for them."""
        self._alignment.name_parked(keys)

    def take_cut(self) -> bool:
        """Return whether event time has cut a batch since this was called last."""
        return self._alignment.take_cut()

    def of(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        starting: Collection[TopicPartition],
        keys: KeySelection,
        most: MostRead,
        plan_limits: Callable[[Mapping[TopicPartition, int]], PlannedLimits],
    ) -> BatchEnd:
        """Where a batch ends.

        A batch that is cut by ``maxTimeAhead`` leaves room, which the other partitions get in a
        second round; what that leaves behind is looked at again.

        Args:
            batch: Where it begins.
            available: The ends of the partitions' logs.
            starting: Partitions that are not read yet.
            keys: What the query reads.
            most: Its maximum.
            plan_limits: The record limits of ranges that are read up to some ends.
        """
        tops, cut = dict(available), False
        while True:
            ends = batch_ends(
                {tp: at for tp, at in batch.progress.items() if tp not in starting},
                tops,
                keys,
                max_offsets=most.offsets,
                max_ahead=self._options.max_offsets_ahead,
                max_gaps=self._options.max_ranges_in_checkpoint,
            )
            by_size = self._by_size(batch, BatchEnd(ends, plan_limits(ends)), keys, most)
            if not self._alignment.is_on:
                return by_size
            found = self._aligned(batch, available, by_size, keys)
            if most.size is not None and not _reads(found):
                # Each waits for the other: so first comes what event time allows in any case.
                nothing = {tp: batch.progress[tp].stable for tp in ends}
                late = self._alignment.cut(batch.progress, available, ends, nothing, keys)
                return self._by_size(batch, BatchEnd(late, plan_limits(late)), keys, most)
            if cut or most.offsets is None or found.ends == by_size.ends:
                return found
            tops |= {tp: end for tp, end in found.ends.items() if end < by_size.ends[tp]}
            cut = True

    def _by_size(
        self, batch: BatchStart, bounds: BatchEnd, keys: KeySelection, most: MostRead
    ) -> BatchEnd:
        if most.size is None:
            return bounds
        windows = self._byte_limit.cut(batch.progress, bounds.ends, bounds.limits, keys, most.size)
        if self._options.limits_records:
            return replace(bounds, windows=windows)
        # All ranges end together: the slowest one's window is the partition's.
        cut = {tp: each.ends[0] for tp, each in windows.items()}
        return replace(bounds, ends={**bounds.ends, **cut}, windows=windows)

    def _aligned(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        bounds: BatchEnd,
        keys: KeySelection,
    ) -> BatchEnd:
        sure = {
            tp: surely_read(
                batch.progress[tp],
                end,
                bounds.limits.by_range(tp),
                keys.parked(tp),
                bounds.windows.get(tp),
            )
            for tp, end in bounds.ends.items()
        }
        ends = self._alignment.cut(batch.progress, available, bounds.ends, sure, keys)
        return replace(bounds, ends=ends)


def _reads(bounds: BatchEnd) -> bool:
    """True if a batch with a limit of bytes may read something."""
    return any(
        min(end, bounds.ends[tp]) > start
        for tp, windows in bounds.windows.items()
        for start, end in zip(windows.starts, windows.ends, strict=True)
    )
