"""Records after they were handed out: acknowledged, released, and ready to be committed."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from kshare.core.hashing import NO_HASHES, key_hash
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import OptionsError, PolicyError
from kshare.group.assignments import rows_by_partition
from kshare.group.config.rules import facts_of, needs_explicit
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.restrictions import Restrictions
from kshare.group.core.deliveries import MayCount, Starts
from kshare.group.core.delivery import Delivery
from kshare.group.core.handed_out import Offsets
from kshare.group.core.left_out import ParkedHashes
from kshare.group.core.work import CommitRequest
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.log.retry_log import Attempted, RetryLog
from kshare.group.log.topic import LogTopic, log_table
from kshare.group.message import Message
from kshare.group.session.transaction_log import Gap
from kshare.kafka.policies import INDIVIDUAL_COMMIT
from kshare.options.raw import Faults
from kshare.options.rules import Rule

__all__ = ["Processed", "Releases", "check_releases"]


@dataclass(slots=True)
class _Attempt:
    """A released record, as the group's log has it."""

    topic_partition: TopicPartition
    offset: int
    failures: int
    since: float | None
    due: float
    point: int | None = None  # its key hash, if it is known


class Releases:
    """Records that users and processors give back: how often, in memory and in the group's log.

    For any thread.

    Args:
        config: The consumer's configuration.
        dispatcher: Hands records out.
        state: What the consumer's threads share.
        interrupt: Makes the thread that polls look again.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        dispatcher: Dispatcher,
        state: CallState,
        interrupt: Callable[[], None],
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._state = state
        self._interrupt = interrupt
        self._retry_log: RetryLog | None = None
        self._attempts: dict[TopicPartition, dict[int, _Attempt]] = {}
        self._starts: dict[TopicPartition, Any] = {}  # as of the last look at the log

    @property
    def parked(self) -> ParkedHashes:
        """The key hashes that nobody reads, by topic, as the consumer saw them last."""
        parking = self._dispatcher.parking
        return {} if parking is None or parking.hashes is None else parking.hashes

    def defer(self, messages: Iterable[Message]) -> None:
        """Records come again, and all of their keys behind them, once :meth:`let_go` is called."""
        with self._state.lock:
            self._dispatcher.state.release_all(messages)
        self._interrupt()

    def let_go(self, partition: TopicPartition, key: bytes | None, offset: int) -> None:
        """The records come of the key that the one at an offset has."""
        with self._state.lock:
            self._dispatcher.released.let_go(partition, key_hash(key, offset))
        self._interrupt()

    def release(self, message: Message, delay: float) -> None:
        """A record comes again after some seconds, and all of its key behind it.

        Raises:
            KafkaError: The group's log cannot be read.
        """
        partition, offset = message.topic_partition, message.offset()
        known = self.count(partition, offset)
        with self._state.lock:
            if not self._dispatcher.state.release(message, time.monotonic() + delay):
                return
            now = time.time()
            attempt = self._attempts.setdefault(partition, {}).get(offset)
            since = now if attempt is None else attempt.since
            point = key_hash(message.key(), offset)
            attempt = _Attempt(partition, offset, known + 1, since, now + delay, point)
            self._attempts[partition][offset] = attempt
            # Here: without the lock, it might come again, be committed and be forgotten first.
            self.retry_log().remember(attempt, point)
        self._interrupt()

    def count(self, partition: TopicPartition, offset: int) -> int:
        """How often a record was released, before a restart too.

        Raises:
            KafkaError: The group's log cannot be read.
        """
        with self._state.lock:
            delivery = self._dispatcher.deliveries.get(partition)
            start = delivery and delivery.start
            is_known = start is None or self._starts.get(partition) == start
        if not is_known:
            self._look(partition, start)
        attempt = self._attempts.get(partition, {}).get(offset)
        return 0 if attempt is None else attempt.failures

    def _look(self, partition: TopicPartition, start: Any) -> None:
        """Key hashes have come: look at what others have written of them."""
        attempts = self.retry_log().read().attempts
        with self._state.lock:
            own = self._attempts.setdefault(partition, {})
            for (at, offset), known in attempts.items():
                if at == partition and (offset not in own or own[offset].failures < known.failures):
                    own[offset] = _Attempt(at, offset, *known)
            self._starts[partition] = start

    def ended(self, record: Attempted, point: int) -> None:
        """Keep the attempts of a record that has its outcome until it is committed.

        Args:
            record: The record.
            point: Its key hash.
        """
        partition, offset = record.topic_partition, record.offset
        attempt = _Attempt(partition, offset, record.failures, record.since, record.due, point)
        with self._state.lock:
            self._attempts.setdefault(partition, {})[offset] = attempt

    def forget(self, work: CommitRequest, started: Callable[[], Starts]) -> None:
        """Keep nothing of records whose commit was answered: they come no more.

        Not before, as a process that is killed until then is given them again.

        Args:
            work: What was to be committed.
            started: What the session has started: a commit passes over what is of another start.
        """
        if not self._attempts:
            return
        starts = started()
        with self._state.lock:
            for partition, committed in work.processed.items():
                attempts = self._attempts.get(partition, {})
                start = work.starts[partition]
                # After a commit before a revocation, these hashes are not delivered any more.
                delivery = self._dispatcher.deliveries.get(partition) or Delivery(
                    partition, start, NO_HASHES, explicit=True
                )
                if not attempts or not starts.get(partition) == start == delivery.start:
                    continue
                # Of a hash that is not known, the record may be another member's.
                points = {at: each.point for at, each in attempts.items() if each.point is not None}
                for offset in delivery.those_committed(points, committed):
                    self.retry_log().forget(attempts.pop(offset))

    def close(self, seconds: float) -> None:
        """Write what is still to be written, for so long at most."""
        if self._retry_log is not None:
            self._retry_log.close(seconds)

    def retry_log(self) -> RetryLog:
        """The attempts that the group's log keeps; open until the consumer is closed."""
        with self._state.lock:  # or threads that release at once would make one each
            if self._retry_log is None:
                self._retry_log = _retry_log(self._config)
            return self._retry_log


def _retry_log(config: ConsumerConfig) -> RetryLog:
    table = log_table(config.kafka, config.log_topic, config.group)
    return RetryLog(table, config.group, partial(_make_log, config))


def _make_log(config: ConsumerConfig) -> None:
    """Make the log's topic, which nobody else does for a group that keeps no log."""
    segment_bytes = config.log_segment_bytes
    with closing(LogTopic(config.kafka, config.log_topic, segment_bytes, config.group)) as topic:
        topic.make()


_RELEASE_RULES: Final = (
    needs_explicit("or a record counts as processed without being acknowledged"),
    Rule("consumption.order=none", "", "is none", "records are released in key order"),
    Rule("transactional.id", "", "is set", "an aborted transaction returns its records"),
)


def check_releases(config: ConsumerConfig) -> None:
    """Check that a consumer may release records.

    Raises:
        OptionsError: It may not; every fault is listed.
    """
    faults = Faults()
    faults.check(_RELEASE_RULES, facts_of(config))
    faults.raise_if_any("KeySharedConsumer.release")


class Processed:
    """The processed records of a consumer that a commit may include. For any thread.

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

    def work(
        self, partitions: Collection[TopicPartition] | None = None, *, with_given_up: bool = False
    ) -> CommitRequest:
        """The processed records of some partitions, to be committed.

        Args:
            partitions: The partitions; None: all that are assigned.
            with_given_up: Whether those are among all that were assigned before, and of which
                something was processed since: it can be committed only if they come back.
        """
        with self._state.lock:
            wanted = set(self._dispatcher.assignment if partitions is None else partitions)
            if with_given_up:
                wanted |= self._dispatcher.state.late_partitions
            return self._work(wanted, individual=self._config.individual)

    def _work(self, wanted: Collection[TopicPartition], *, individual: bool) -> CommitRequest:
        deliveries, is_batch = self._dispatcher.deliveries, self._state.is_batch
        processed = {}
        for topic_partition in [tp for tp in deliveries if tp in wanted]:
            delivery = deliveries[topic_partition]
            progress = delivery.processed(is_batch=is_batch)
            if not individual:
                progress = Progress.at(progress.position_of(delivery.owned))
            processed[topic_partition] = progress
        late = self._dispatcher.state.late_work(wanted, is_batch=is_batch)
        return CommitRequest(processed, {tp: deliveries[tp].start for tp in processed}, late)

    def work_up_to(
        self, limits: Mapping[TopicPartition, int], message: Message | None = None
    ) -> CommitRequest:
        """As :meth:`work`, after acknowledging all that was handed out below some offsets.

        What of that has gone with its partition or key hashes is late work, which is refused.

        Args:
            limits: The offsets; none: all that was handed out, of all partitions.
            message: The record that the only one of them is behind; None if it is of none.

        Raises:
            ValueError: A partition has not started, or nothing was handed out there.
        """
        point = None
        if message is not None and message.chunk.has_keys:
            point = key_hash(message.key(), message.offset())
        with self._state.lock:
            gone = [
                self._dispatcher.state.acknowledge_below(topic_partition, offset, point)
                for topic_partition, offset in limits.items()
            ]
            if not limits:
                self._dispatcher.state.settle()
            work = self.work(limits.keys() or None, with_given_up=not limits)
        return replace(work, late=(*work.late, *(each for each in gone if each is not None)))

    def forget(self, may_count: MayCount) -> None:
        """A commit has said what it did not take: say it once, of what will never be committed.

        Args:
            may_count: Tells what may still be.
        """
        with self._state.lock:
            self._dispatcher.state.keep_late(may_count)

    def acknowledge(self, batch: pa.RecordBatch | pa.Table) -> None:
        """All records of a batch are processed.

        Raises:
            TypeError: It is no batch.
            ValueError: Columns are missing that say which records they are.
        """
        rows = list(rows_by_partition(batch))
        with self._state.lock:
            for topic_partition, offsets, chunks in rows:
                self._dispatcher.state.acknowledge_rows(topic_partition, offsets, chunks)

    def allowed(self, work: CommitRequest) -> CommitRequest:
        """The part of a request that policies accept.

        Raises:
            PolicyError: A policy does not accept what is assigned.
            KafkaError: The policies cannot be read.
        """
        if self._config.order == "none":
            self._restrictions.check_shared(tp.topic for tp in work.partitions)
            return work
        if not self._config.individual:  # one offset of each whole partition, which always may be
            return work
        processed = self._restrictions.allowed(
            work.processed, self._dispatcher.assignment, is_subscribed=self._is_subscribed()
        )
        return replace(work, processed=processed)

    def ranges(self) -> dict[TopicPartition, Offsets]:
        """The processed ranges of each partition, as :attr:`.Delivery.ranges`."""
        with self._state.lock:
            return {tp: each.ranges for tp, each in self._dispatcher.deliveries.items()}

    def finished_leases(self) -> int:
        """Number of leases that have been processed."""
        with self._state.lock:
            return self._dispatcher.finished_leases

    # -- transactions: of all that is handed out from the beginning to the end -----------------

    def begin_transaction(self) -> int:
        """A transaction begins; how often delivery was stopped before.

        Raises:
            PolicyError: A policy does not accept its key ranges any more.
            KafkaError: The policies cannot be read.
        """
        if not self._is_subscribed():  # what the group assigns, its leader asks about
            self._restrictions.check(self._dispatcher.assignment)
        with self._state.lock:
            self._dispatcher.refresh(begins=True)
            return self._dispatcher.state.ended.stops

    def follow_abort(self) -> None:
        """All that was handed out in the transaction comes again."""
        with self._state.lock:
            self._dispatcher.refresh(begins=True)

    def end_transaction(self) -> tuple[int, CommitRequest]:
        """All that was handed out is processed, by the transaction if no delivery was stopped.

        Returns:
            How often delivery was stopped by now, and what is processed: all of it, whether or not
            individual offsets may be committed. Its outputs are in the transaction.
        """
        with self._state.lock:
            stops = self._dispatcher.state.ended.stops
            self._dispatcher.pass_over()
            self._dispatcher.state.settle()
            return stops, self._work(set(self._dispatcher.assignment), individual=True)

    def check_gap(self, first_gap: Callable[[], Gap | None]) -> None:
        """Refuse a transaction whose records one offset of a partition cannot say.

        To commit a lower offset would be no way out: its outputs would be visible, and their
        records would come again.

        Args:
            first_gap: Finds what one offset cannot say; asked if only that may be committed.

        Raises:
            PolicyError: A policy accepts no individual commits.
            OptionsError: ``allow.individual.commit`` is false.
            KafkaError: The policies cannot be read.
        """
        is_own = not self._config.individual
        if not is_own and self._restrictions.accepts_individual():
            return
        gap = first_gap()
        if gap is None:
            return
        text = (
            f"{gap.partition}: offset {gap.stable} is not acknowledged, and offset {gap.first} "
            "behind it is. One offset of each whole partition is committed, as "
        )
        more = "acknowledge all that a transaction returns"
        if is_own:
            raise OptionsError(
                [f"{text}allow.individual.commit is false: {more}, or set it to true"],
                of="KeySharedConsumer.transaction",
            )
        raise PolicyError(
            f"group {self._config.group}, {text}the policy {INDIVIDUAL_COMMIT} is false: {more}, "
            "or have kshare policy set it to true",
            policy=INDIVIDUAL_COMMIT,
        )
