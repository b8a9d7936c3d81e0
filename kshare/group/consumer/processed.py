"""What a consumer has processed of what it was handed out, as far as it may be committed."""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from kshare.core.progress import Progress, TopicPartition
from kshare.group.assignments import rows_by_partition
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.releases import Releases
from kshare.group.consumer.restrictions import Restrictions
from kshare.group.core.handed_out import Offsets
from kshare.group.core.work import Work
from kshare.group.delivery.dispatcher import Dispatcher

__all__ = ["Processed"]


class Processed:
    """What a consumer has processed. For any thread.

    Args:
        config: The consumer's configuration.
        dispatcher: Hands records out.
        state: What the consumer's threads share.
        restrictions: What policies accept.
        is_subscribed: Whether the group assigns the partitions.
        releases: Counts what was released.

    Attributes:
        releases: As given.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        dispatcher: Dispatcher,
        state: CallState,
        restrictions: Restrictions,
        is_subscribed: Callable[[], bool],
        releases: Releases,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._state = state
        self._restrictions = restrictions
        self._is_subscribed = is_subscribed
        self.releases = releases

    def settle(self) -> None:
        """In implicit mode, what the calls before this one returned is processed."""
        with self._state.lock:
            for delivery in self._dispatcher.deliveries.values():
                delivery.settle()
            self._state.is_batch = False

    def work(self, partitions: Iterable[TopicPartition] | None = None) -> Work:
        """What is processed of partitions that have started; of all, if none are given."""
        with self._state.lock:
            deliveries = self._dispatcher.deliveries
            wanted = deliveries.keys() if partitions is None else partitions
            processed = {}
            for topic_partition in wanted:
                delivery = deliveries[topic_partition]
                progress = delivery.processed(is_batch=self._state.is_batch)
                if not self._config.individual:
                    progress = Progress.at(progress.position_of(delivery.owned))
                processed[topic_partition] = progress
            self.releases.forget()
            return Work(processed, {tp: deliveries[tp].start for tp in processed})

    def work_up_to(self, limits: Mapping[TopicPartition, int]) -> Work:
        """What is processed of some partitions, if all that was handed out up to offsets is.

        Args:
            limits: The offsets; none: all that was handed out, of all partitions.

        Raises:
            ValueError: A partition has not started, or nothing was handed out there; or records
                before it may be kept back for their keys.
        """
        if limits and self._dispatcher.limits_keys:
            raise ValueError(
                "cannot commit up to an offset with max.in.flight.per.key, as records before it "
                "may be kept back for their keys: call acknowledge() or acknowledge_batch(), then "
                "commit() without arguments"
            )
        with self._state.lock:
            deliveries = self._dispatcher.deliveries
            for topic_partition, offset in limits.items():
                if topic_partition not in deliveries:
                    raise ValueError(f"{topic_partition} is not assigned, or has not started")
                deliveries[topic_partition].acknowledge_below(offset)
            if not limits:
                for delivery in deliveries.values():
                    delivery.settle()
            return self.work(limits.keys() or None)

    def acknowledge(self, batch: pa.RecordBatch | pa.Table) -> None:
        """All records of a batch are processed.

        Raises:
            ValueError: Columns are missing that say which records they are.
        """
        rows = list(rows_by_partition(batch))
        with self._state.lock:
            for topic_partition, offsets, chunks in rows:
                self._dispatcher.state.acknowledge_rows(topic_partition, offsets, chunks)

    def allowed(
        self, processed: Mapping[TopicPartition, Progress]
    ) -> Mapping[TopicPartition, Progress]:
        """What policies let be committed.

        Raises:
            PolicyError: A policy does not accept what is assigned.
            KafkaError: The policies cannot be read.
        """
        if self._config.order == "none":
            self._restrictions.check_shared(tp.topic for tp in processed)
            return processed
        if not self._config.individual:  # one offset of each whole partition, which always may be
            return processed
        return self._restrictions.allowed(
            processed, self._dispatcher.assignment, is_subscribed=self._is_subscribed()
        )

    def check(self) -> None:
        """Ask the policies about what is assigned. What the group assigns, its leader asks about.

        Raises:
            PolicyError, KafkaError: As of :meth:`allowed`.
        """
        if not self._is_subscribed():
            self._restrictions.check(self._dispatcher.assignment)

    def ranges(self) -> dict[TopicPartition, Offsets]:
        """The processed ranges of each partition, as :attr:`.Delivery.ranges`."""
        with self._state.lock:
            return {tp: each.ranges for tp, each in self._dispatcher.deliveries.items()}

    def chunks(self) -> int:
        """Number of leased chunks that have been processed."""
        with self._state.lock:
            return self._dispatcher.finished_chunks
