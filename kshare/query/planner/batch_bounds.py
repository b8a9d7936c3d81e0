"""The end of a batch: what ``maxOffsetsPerTrigger`` and event time allow, together.

Guarantees: no bound is passed, and a batch that could read something reads something. The bounds
are in the plan of the batch, as end offsets: a batch that runs again reads the same.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kshare.core.admission import should_wait, surely_read
from kshare.core.batch import BatchStart, batch_ends
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import Progress, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.options import SourceOptions
from kshare.query.planner.key_selection import KeySelection
from kshare.query.planner.time_alignment import OpenTime, TimeAlignment

__all__ = ["BatchBounds", "BatchEnd", "TriggerGate"]


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a batch.

    Attributes:
        ends: Below which offset each partition is read.
        limits: The record limits of its ranges.
    """

    ends: Mapping[TopicPartition, int]
    limits: PlannedLimits = field(default_factory=PlannedLimits)


class BatchBounds:
    """Bounds the batches of one query.

    Args:
        options: The query's options.
        alignment: ``maxTimeAhead``.
        gate: ``minOffsetsPerTrigger``.
    """

    def __init__(
        self,
        options: SourceOptions,
        alignment: TimeAlignment,
        gate: "TriggerGate",
    ) -> None:
        self._options = options
        self._alignment = alignment
        self._gate = gate

    def name_parked(self, keys: Iterable[tuple[str, bytes]]) -> None:
        """Name parked keys in a warning, as no bound waits for them."""
        self._alignment.name_parked(keys)

    def open_time(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        keys: KeySelection,
    ) -> OpenTime | None:
        """How long a batch may read whatever comes; None if it has to have an end."""
        return self._alignment.open_time(batch.progress, available, keys)

    def waits(
        self,
        before: BatchOffsets,
        reached: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        keys: KeySelection,
    ) -> bool:
        """True if there is not enough to read yet; it never waits while something is left behind.

        Args:
            before: What the dict of the batch before says.
            reached: How far it came.
            available: The ends of the partitions' logs.
            keys: What the query reads.
        """
        if self._alignment.take_cut() or self._gate.has_left(before, reached, keys):
            return False
        positions = {
            tp: progress.position_of(keys.readable(tp) or ALL_HASHES)
            for tp, progress in reached.items()
        }
        return self._gate.is_shut(positions or before.started, available)

    def of(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        starting: Collection[TopicPartition],
        keys: KeySelection,
        max_offsets: int | None,
        plan_limits: Callable[[Mapping[TopicPartition, int]], PlannedLimits],
    ) -> BatchEnd:
        """Decide where a batch ends.

        A batch that is cut by ``maxTimeAhead`` leaves room, which the other partitions get in a
        second round; what that leaves behind is looked at again. For example, 100 offsets are 50 of
        each of two partitions; if event time cuts one of them to 10, the other one gets 90.

        Args:
            batch: Where it begins.
            available: The ends of the partitions' logs.
            starting: Partitions that read nothing in this batch.
            keys: What the query reads.
            max_offsets: Its maximum number of offsets, of all partitions together; None for none.
            plan_limits: The record limits of ranges that are read up to some ends.
        """
        self._gate.planned(available)
        tops, cut = dict(available), False
        while True:
            ends = batch_ends(
                {tp: at for tp, at in batch.progress.items() if tp not in starting},
                tops,
                keys,
                max_offsets=max_offsets,
                max_ahead=self._options.max_offsets_ahead,
                max_gaps=self._options.max_ranges_in_checkpoint,
            )
            planned = BatchEnd(ends, plan_limits(ends))
            if not self._alignment.is_on:
                return planned
            found = self._aligned(batch, available, planned, keys)
            if cut or max_offsets is None or found.ends == planned.ends:
                return found
            tops |= {tp: end for tp, end in found.ends.items() if end < planned.ends[tp]}
            cut = True

    def _aligned(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        batch_end: BatchEnd,
        keys: KeySelection,
    ) -> BatchEnd:
        sure = {
            tp: surely_read(batch.progress[tp], end, batch_end.limits.by_range(tp), keys.parked(tp))
            for tp, end in batch_end.ends.items()
        }
        ends = self._alignment.cut(batch.progress, available, batch_end.ends, sure, keys)
        return replace(batch_end, ends=ends)


class TriggerGate:
    """Decides whether a trigger waits.

    Args:
        options: The query's options.
        clock: Seconds.
    """

    def __init__(
        self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_offsets = options.min_offsets_per_trigger
        self._max_delay_seconds = options.max_trigger_delay_seconds
        self._clock = clock
        self._ends: dict[TopicPartition, int] = {}
        self._opened: float | None = None  # when a trigger last did not wait

    def planned(self, available: Mapping[TopicPartition, int]) -> None:
        """A batch was planned when logs ended there."""
        self._ends = dict(available)

    def has_left(
        self,
        before: BatchOffsets,
        reached: Mapping[TopicPartition, Progress],
        keys: KeySelection,
    ) -> bool:
        """True if record limits left records behind that were there when the batch was planned.

        Args:
            before: What the dict of that batch says.
            reached: How far it came.
            keys: What the query reads.
        """
        return any(
            reached[tp].pending_of(self._ends.get(tp, limit.end), keys.readable(tp) & limit.hashes)
            for tp, limits in before.limits.items()
            if tp in reached
            for limit in limits
        )

    def is_shut(
        self, positions: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int]
    ) -> bool:
        """True if this trigger waits.

        Args:
            positions: Where each partition stands.
            available: The end of each partition.
        """
        if self._min_offsets is None:
            return False
        now = self._clock()
        if should_wait(
            positions,
            available,
            min_offsets=self._min_offsets,
            max_delay_seconds=self._max_delay_seconds,
            seconds_since_batch=None if self._opened is None else now - self._opened,
        ):
            return True
        self._opened = now
        return False
