"""The batches before: what their dicts say, and how far each partition is when they are done."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kshare.core.batch import LimitedSlice, limited_slices
from kshare.core.checkpoint import RangeLimit, decode
from kshare.core.losses import no_longer_assigned
from kshare.core.progress import Progress, TopicPartition
from kshare.core.tasks import PlannedSlice
from kshare.options import SourceOptions
from kshare.planner.data_loss import report_losses
from kshare.planner.end_offsets import EndOffsetResolver, Scan
from kshare.planner.key_selection import KeySelection
from kshare.planner.rate_controller import RateController
from kshare.planner.recent_batches import RecentBatch, RecentBatches, batch_name

__all__ = ["BatchHistory"]


class BatchHistory:
    """The batches of one query.

    Args:
        options: The query's options.
        keys: Which key hashes the query reads.
        rates: Gets the reports of tasks.
        scan: Finds the ends of limited slices of a partition in the log.
        compacted: Those of some topics that are compacted now.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        rates: RateController,
        scan: Scan,
        compacted: Callable[[Collection[str]], Collection[str]],
    ) -> None:
        self._options = options
        self._keys = keys
        self._rates = rates
        self._ends = EndOffsetResolver(options, keys, scan, compacted)
        self._recent = RecentBatches()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the batches that are remembered."""
        return self._recent.names

    def add(self, batch: RecentBatch) -> None:
        """Remember a batch that is planned."""
        self._recent.add(batch)

    def batch(self, value: Mapping[str, Any]) -> RecentBatch:
        """The batch of a dict.

        Raises:
            CheckpointError: The dict cannot be read.
            DataLossError: The last run has left hashes unread that this one does not read, and
                ``failOnDataLoss`` is true.
        """
        name = batch_name(value)
        known = self._recent.get(name)
        if known is not None:
            return known
        # Only dicts of a run before this one are read: a planner knows its own.
        offsets = decode(value)
        for tp, progress in offsets.progress.items():
            # Hashes that no query reads go along with the fastest range. Where they are behind,
            # the last run has read them, and this one does not.
            if not progress.is_level:
                pending = progress.pending_of(progress.front, self._keys.unassigned(tp))
                if pending:
                    losses = [no_longer_assigned(tp, pending)]
                    report_losses(losses, fail=self._options.fail_on_data_loss)
        return self._recent.add(RecentBatch(name, offsets, limited_slices(offsets)))

    def finished(self, value: Mapping[str, Any]) -> RecentBatch:
        """The batch of a dict, when it is known how far it came.

        Its tasks' reports are waited for once; what they do not say is looked for in the log.

        Raises:
            CheckpointError, DataLossError: As for :meth:`batch`.
            DataLossError: An end can no longer be found, and ``failOnDataLoss`` is true.
        """
        batch = self.batch(value)
        if batch.reached is None:
            reported = self._rates.finish_batch(batch)
            batch.reached = self._ends.resolve(
                batch.name, batch.offsets, batch.limited, reported, batch.counted
            )
        return batch

    def limited_tasks(self, batch: RecentBatch) -> list[PlannedSlice]:
        """What is read of a batch's limited slices.

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
            return [PlannedSlice(slice_, limit.records) for limit, slice_ in batch.limited]
        # Kept: if the log answered otherwise later, what lies between would count as read.
        if batch.counted is None:
            batch.counted = self._ends.count(batch.name, offsets, batch.limited)
        below: defaultdict[TopicPartition, tuple[RangeLimit, ...]] = defaultdict(tuple)
        for limit, slice_ in batch.limited:
            below[slice_.topic_partition] += (replace(limit, end=batch.counted[slice_]),)
        cut = limited_slices(replace(offsets, limits=below))
        return [PlannedSlice(slice_) for _, slice_ in cut]

    def resolve_ahead(
        self, progress: Mapping[TopicPartition, Progress], limited: Iterable[LimitedSlice]
    ) -> dict[TopicPartition, Progress]:
        """See :meth:`EndOffsetResolver.resolve_ahead`."""
        return self._ends.resolve_ahead(progress, limited)
