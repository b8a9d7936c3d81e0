"""The last two batches: the only memory that a planner has of them.

A batch is known by its name, a digest of its offset dict, so that it is found again when Spark asks
about it with the dict. What is not here, after a restart or when it is older, is read from the dict
and from the log. So nothing that a batch reads depends on this memory: it saves reading a dict of
megabytes again, and looking for ends that tasks have reported.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kshare.core.batch import LimitedSlice
from kshare.core.checkpoint import BatchOffsets
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.core.tasks import PlannedSlice

__all__ = ["RecentBatch", "RecentBatches", "Run", "batch_name"]

REMEMBERED: Final = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A batch that this planner has started.

    Attributes:
        slices: What its tasks read.
        started: When, in seconds of the planner's clock.
        locates_only: Whether tasks report for nothing but where they run.
    """

    slices: tuple[PlannedSlice, ...]
    started: float
    locates_only: bool = False


@dataclass(slots=True)
class RecentBatch:
    """A batch.

    Attributes:
        name: The digest of its offset dict.
        offsets: What the dict says.
        limited: The slices of its limits.
        limits: The limits as they were planned; empty if another planner has planned them.
        run: None unless this planner has started the batch.
        counted: Where tasks end that count records otherwise than the limits do; None unless this
            planner has looked for it.
        reached: How far each partition is when the batch is done; None until that is known.
    """

    name: str
    offsets: BatchOffsets
    limited: list[LimitedSlice]
    limits: PlannedLimits = field(default_factory=PlannedLimits)
    run: Run | None = None
    counted: Mapping[Slice, int] | None = None
    reached: Mapping[TopicPartition, Progress] | None = None

    @property
    def progress(self) -> Mapping[TopicPartition, Progress]:
        """Progress of each partition; valid once the batch is done."""
        assert self.reached is not None
        return self.reached


class RecentBatches:
    """The batches that were used last, by name."""

    def __init__(self) -> None:
        self._batches: dict[str, RecentBatch] = {}  # the one used last comes last

    def get(self, name: str) -> RecentBatch | None:
        """A batch; None if it is not known, or no longer."""
        batch = self._batches.pop(name, None)
        if batch is not None:
            self._batches[name] = batch
        return batch

    def add(self, batch: RecentBatch) -> RecentBatch:
        """Remember a batch, and forget the one that was not used for longest.

        Returns:
            The batch: the known one if it is known.
        """
        known = self.get(batch.name)
        if known is not None:
            return known
        self._batches[batch.name] = batch
        while len(self._batches) > REMEMBERED:
            del self._batches[next(iter(self._batches))]
        return batch

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the batches that are remembered."""
        return tuple(self._batches)


def batch_name(end: Mapping[str, Any]) -> str:
    """The name of a batch: equal for equal offset dicts, also after a restart."""
    text = json.dumps(end, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
