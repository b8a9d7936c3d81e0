"""The batches before: what their dicts say, and how far each partition is when they are done.

The last two are remembered. A batch is known by its name, a digest of its offset dict, so that it
is found again when Spark asks about it with the dict. What is not here, after a restart or when it
is older, is read from the dict and from the log. So nothing that a batch reads depends on this
memory: it saves reading a dict of megabytes again, and looking for ends that tasks have reported.

What is lost is an error or a warning with the same words, by ``failOnDataLoss``, and never silence.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kshare.core.batch import limited_slices, slices_below
from kshare.core.checkpoint import BatchOffsets, decode
from kshare.core.losses import Loss, no_longer_assigned
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.errors import DataLossError
from kshare.options import SourceOptions
from kshare.query.planner.end_offsets import EndOffsetResolver
from kshare.query.planner.key_selection import KeySelection

__all__ = ["BatchHistory", "RecentBatch", "RecentBatches", "Run", "batch_name", "raise_or_warn"]

_log = logging.getLogger("kshare.planner")

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
        limited: What is read up to its limits.
        limits: The limits as they were planned; empty if another planner has planned them.
        run: None unless this planner has started the batch.
        counted: Where tasks end that count records otherwise than the limits do; None unless this
            planner has looked for it.
        reported: The ends of the slices that reported; None until their reports are waited for.
        reached: How far each partition is when the batch is done; None until that is known.
        available: Where the logs of partitions ended when the batch was planned; empty if another
            planner has planned it, and for one that is not open.
    """

    name: str
    offsets: BatchOffsets
    limited: list[PlannedSlice]
    limits: PlannedLimits = field(default_factory=PlannedLimits)
    run: Run | None = None
    counted: Mapping[Slice, int] | None = None
    reported: Mapping[Slice, SliceEnd] | None = None
    reached: Mapping[TopicPartition, Progress] | None = None
    available: Mapping[TopicPartition, int] = field(default_factory=dict)

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


class BatchHistory:
    """The batches of one query.

    Args:
        options: The query's options.
        keys: Which key hashes the query reads.
        ends: Finds how far partitions are when a batch is done.
        reports: Waits for the reports of a batch's tasks, and learns from them; returns the ends
            of the slices that reported. Called once for a batch.
        finish_open: Finds how far partitions are when an open batch is done.

    Attributes:
        ends: As above.
        recent: The last two batches.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        ends: EndOffsetResolver,
        reports: Callable[[RecentBatch], Mapping[Slice, SliceEnd]],
        finish_open: Callable[[BatchOffsets], Mapping[TopicPartition, Progress]],
    ) -> None:
        self._options = options
        self._keys = keys
        self._reports = reports
        self._finish_open = finish_open
        self.ends = ends
        self.recent = RecentBatches()

    def batch(self, value: Mapping[str, Any]) -> RecentBatch:
        """The batch of a dict.

        Raises:
            CheckpointError: The dict cannot be read.
            DataLossError: The last run has left hashes unread that this one does not read, and
                ``failOnDataLoss`` is true.
        """
        name = batch_name(value)
        known = self.recent.get(name)
        if known is not None:
            return known
        # Only dicts of a run before this one are read: a planner knows its own.
        offsets = decode(value)
        # That of an open batch says where it began: where it ended is asked when it is finished.
        if offsets.open is None:
            self._check_read(offsets)
        return self.recent.add(RecentBatch(name, offsets, limited_slices(offsets)))

    def _check_read(self, offsets: BatchOffsets) -> None:
        """Say what the last run has left unread that this one does not read.

        Hashes that no query reads go along with the fastest range. Where they are behind, the last
        run has read them, and this one does not.
        """
        for tp, progress in offsets.progress.items():
            if not progress.is_level:
                pending = progress.pending_of(progress.front, self._keys.unassigned(tp))
                if pending:
                    losses = [no_longer_assigned(tp, pending)]
                    raise_or_warn(losses, fail=self._options.fail_on_data_loss)

    def finished(self, value: Mapping[str, Any]) -> RecentBatch:
        """The batch of a dict, when it is known how far it came.

        Its tasks' reports are waited for once; what they do not say is looked for in the log.

        Raises:
            CheckpointError, DataLossError: As for :meth:`batch`.
            DataLossError: An end can no longer be found, and ``failOnDataLoss`` is true.
        """
        batch = self.batch(value)
        if batch.reached is None and batch.offsets.open is not None:
            batch.reached = self._finish_open(batch.offsets)
        elif batch.reached is None:
            if batch.reported is None:  # once, also if the log does not answer at first
                batch.reported = self._reports(batch)
            batch.reached = self.ends.resolve(
                batch.name, batch.offsets, batch.limited, batch.reported, batch.counted
            )
        return batch

    def limited_tasks(self, batch: RecentBatch) -> list[PlannedSlice]:
        """The slices that tasks read of a batch's limited ones.

        Tasks count records to their limits. Where the run that planned the batch has counted
        others (another ``isolation.level``, or no ``keys``), they read up to where that one's end.

        Raises:
            DataLossError: An end can no longer be found, and ``failOnDataLoss`` is true.
            UnknownTopicError: A topic is gone, or the brokers do not know it yet.
        """
        offsets, options = batch.offsets, self._options
        is_other = options.keys is not None or (
            offsets.read_committed != options.kafka.read_committed
        )
        if not (offsets.limits and is_other):
            return batch.limited
        # Kept: if the log answered otherwise later, what lies between would count as read.
        if batch.counted is None:
            batch.counted = self.ends.count(batch.name, offsets, batch.limited)
        return slices_below(batch.limited, batch.counted)


def raise_or_warn(losses: Iterable[Loss], *, fail: bool) -> None:
    """Log losses, or raise the first.

    Args:
        losses: What is lost.
        fail: ``failOnDataLoss``.

    Raises:
        DataLossError: There is a loss, and ``fail`` is true.
    """
    for loss in losses:
        if fail:
            raise DataLossError(
                f"{loss.text}. If losing records is acceptable, set failOnDataLoss to false.",
                topic=loss.partition.topic,
                partition=loss.partition.partition,
                wanted=loss.wanted,
                available=loss.available,
            )
        _log.warning("%s. Going on, since failOnDataLoss is false.", loss.text)
