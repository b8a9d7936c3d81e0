"""``minOffsetsPerTrigger``: a trigger waits until there is enough to read, or for long enough."""

import time
from collections.abc import Callable, Mapping

from kshare.core.admission import should_wait
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import common
from kshare.core.progress import Progress, TopicPartition
from kshare.options import SourceOptions
from kshare.planner.key_selection import KeySelection

__all__ = ["TriggerGate"]


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
            reached[tp].pending_of(
                self._ends.get(tp, limit.end), common(keys.readable(tp), limit.hashes)
            )
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
