"""A consumer that shares partitions with others by key range: :class:`KeySharedConsumer`."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from kshare.cluster.policies import PolicyWatch
from kshare.core.hashing import HashRange
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import FencedError, KshareError
from kshare.group.assignments import (
    check_whole,
    parse_assignment,
    parse_partition,
    partition_and_offset,
)
from kshare.group.call_state import CallState
from kshare.group.commits import Commits, Work
from kshare.group.config import ConsumerConfig, consumer_config
from kshare.group.message import Message
from kshare.group.metrics import ConsumerMetrics, Counters
from kshare.group.model import ConsumerClosedError, OffsetAndMetadata
from kshare.group.restrictions import PolicyView, Restrictions
from kshare.group.session import GroupSession
from kshare.group.shared_tail import SharedTail
from kshare.group.subscriber import Callbacks, Listener, Subscriber, topics_to_subscribe
from kshare.group.tail import Session, Tail
from kshare.group.transaction import Transaction, Transactions, TransactionWork
from kshare.options import KafkaConfig
from kshare.wire.protocol.waker import Waker

__all__ = ["KeySharedConsumer"]

_log = logging.getLogger("kshare.group")

_FRESH_SECONDS: Final = 0.01
"""For so long, records are handed out after one look at the session."""
_TICK_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 5.0
_FOR_EVER: Final = float("inf")

_wall = time.time  # unlike the monotonic clock, it goes on while the machine is suspended


class KeySharedConsumer:
    """Consumes key ranges of partitions, and commits what is processed record by record.

    Method names and their meaning are those of ``confluent_kafka.Consumer``; docs/consumer.md says
    what differs. One thread polls; all other methods may be called from any thread.

    Args:
        config: Values by name, as for ``confluent_kafka.Consumer``: names of librdkafka or of
            Kafka's Java client, and those of docs/consumer.md.
        session: Makes the session with the group's log.
        policies: Makes what reads the policies of operators.

    Raises:
        OptionsError: The configuration cannot be used; every fault is listed.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ConsumerConfig,
        *,
        session: Callable[..., Session] = GroupSession,
        policies: Callable[[KafkaConfig], PolicyView] = PolicyWatch,
    ) -> None:
        if not isinstance(config, ConsumerConfig):
            config = consumer_config(config)
        self._config = config
        self._waker = Waker().open()
        self._session = session(config, on_change=self._interrupt)
        self._tail = self._new_tail(config)
        self._rows: Iterator[Message] = iter(())
        self._until = 0.0  # until when records may be handed out without a look at the session
        self._state = CallState(self._shut_down)
        self._restrictions = Restrictions(policies(config.kafka), config.group)
        self._commits = Commits(config, self._session, self._allowed)
        self._transactions: Transactions | None = None
        if config.transactional_id is not None:
            assert isinstance(self._session, GroupSession)
            self._transactions = Transactions(
                config,
                self._session.transaction_log,
                TransactionWork(self._tail, self._state.lock, self._work),
            )
        self._subscriber: Subscriber | None = None
        self._counters = Counters()

    def _new_tail(self, config: ConsumerConfig) -> Tail:
        if config.order == "key":
            return Tail(config, self._session, self._waker)
        assert isinstance(self._session, GroupSession)
        return SharedTail(config, self._session, self._waker)

    # -- receiving --------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next record.

        Args:
            timeout: Maximum time to wait, in seconds; None or -1 for no limit.

        Returns:
            None if none came in time, or the consumer was closed meanwhile.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
            KshareError: A partition or the group's log cannot be read; the next call tries again.
            RuntimeError: The consumer is closed.
        """
        message = self.poll_fresh()
        if message is None and self._next_rows(timeout):
            return next(self._rows)
        return message

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """The next records, as many as come in time.

        Args:
            num_messages: Maximum number of records.
            timeout: Maximum time to wait for all of them, in seconds; None or -1 for no limit.

        Raises:
            KshareError, RuntimeError: As for :meth:`poll`; with nothing to return.
        """
        if num_messages < 0:
            raise ValueError(f"num_messages is {num_messages}; wanted 0 or more")
        deadline = _deadline(timeout)
        messages: list[Message] = []
        while len(messages) < num_messages:
            try:
                left = max(_left(deadline), 0.0)  # below 0 would be without a limit
                if not self._next_rows(left, continues=bool(messages)):
                    break
            except KshareError:
                if messages:  # the next call says it again
                    break
                raise
            self._state.is_batch = True
            self._until = 0.0
            messages += islice(self._rows, num_messages - len(messages))
        return messages

    def consume_batch(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next records of one partition, as Arrow: the columns of kshare's source.

        Args:
            timeout: Maximum time to wait, in seconds; None or -1 for no limit.

        Returns:
            At most 65,536 rows and about 8 MiB; None if none came in time.

        Raises:
            KshareError, RuntimeError: As for :meth:`poll`.
        """
        self._rows = iter(())
        if self._config.in_flight_per_key is not None:
            return self._consume_ready(timeout)
        if not self._await(self._tail.fetch_batch, timeout, continues=False):
            return None
        with self._state.lock:
            self._state.is_batch = True
            self._until = 0.0
            return self._tail.take_batch()

    def _consume_ready(self, timeout: float | None) -> pa.RecordBatch | None:
        """A batch of records of which no key has too many in flight (``max.in.flight.per.key``)."""
        if not self._next_rows(timeout):
            return None
        with self._state.lock:
            self._state.is_batch = True
            self._until = 0.0
            batch = self._tail.take_ready()
            self._rows = iter(())
            return batch

    def __iter__(self) -> Iterator[Message]:
        """The records, until the consumer is closed."""
        while self._continues():
            for message in self._rows:
                yield message
                if _wall() >= self._until:
                    break

    def _continues(self) -> bool:
        """Wait for the next messages of an iteration; False if the consumer was closed."""
        try:
            return self._next_rows(None)
        except ConsumerClosedError:
            return False

    def poll_fresh(self) -> Message | None:
        """The next record if it is there and needs no look at the session; else None."""
        return next(self._rows, None) if _wall() < self._until else None

    def _next_rows(self, timeout: float | None, *, continues: bool = False) -> bool:
        """Wait for messages in ``_rows``; whether there are any."""

        def take(seconds: float) -> bool:
            if not self._tail.rows.left:
                self._tail.next_rows(seconds)
            self._rows = self._tail.rows.messages
            return self._tail.rows.left > 0

        return self._await(take, timeout, continues=continues)

    def _await(
        self, take: Callable[[float], bool], timeout: float | None, *, continues: bool
    ) -> bool:
        """Wait until there is something to hand out.

        Args:
            take: Gets it, waiting so many seconds at most; whether it got something.
            timeout: Maximum time to wait.
            continues: Whether the same call has returned records already.
        """
        if self.is_closed:
            raise ConsumerClosedError
        if self._transactions is not None and self._transactions.current is None:
            raise RuntimeError("transactional.id is set: receive within consumer.transaction()")
        with self._state.call():
            return self._awaited(take, _deadline(timeout), continues=continues)

    def _awaited(self, take: Callable[[float], bool], deadline: float, *, continues: bool) -> bool:
        if not continues:
            self._settle()
        while not self.is_closed:
            if not self._follow_group(continues=continues):
                return False
            with self._state.gate:
                pass  # one who changes what is read comes first
            with self._state.polling:
                if self._state.is_closed:
                    return False
                seconds = min(_left(deadline), _TICK_SECONDS)
                if self._has_some(take, seconds, continues=continues):
                    return True
            if _left(deadline) <= 0:
                return False
        return False

    def _has_some(self, take: Callable[[float], bool], seconds: float, *, continues: bool) -> bool:
        """Look at everything once; whether there is something that may be handed out."""
        self._state.is_changed = False
        self._commits.serve(self._work, self._ranges, self._chunks)
        with self._state.lock:
            self._tail.refresh(continues=continues)
            self._tail.pass_over()
        self._check_session()
        if self._session.seconds_to_deliver() < 0:
            with self._counters.fenced(has_started=bool(self._tail.deliveries)):
                self._waker.wait(seconds)
            return False
        return self._took(take, min(seconds, self._commits.seconds_left)) and self._may_hand_out()

    def _follow_group(self, *, continues: bool) -> bool:
        """Do what the group wants; whether to go on: not amid a call's records or a transaction."""
        subscriber = self._subscriber
        if subscriber is None:
            return True
        if subscriber.is_rebalancing:
            raise RuntimeError("poll in a callback of subscribe: return from it first")
        subscriber.member.polled()
        if not subscriber.has_work:
            subscriber.member.check()
            return True
        if continues or (self._transactions is not None and self._transactions.current is not None):
            return False  # what is handed out already comes first
        if self._transactions is not None:
            self._transactions.resolve()
        with self._state.polling:
            subscriber.follow()
        return True

    def _check_session(self) -> None:
        try:
            self._session.check()
        except FencedError as error:
            if self._subscriber is None:
                raise
            _log.warning("%s; the member joins its group again", error)
            self._subscriber.member.fenced()

    def _took(self, take: Callable[[float], bool], seconds: float) -> bool:
        try:
            return take(0.0 if self._state.is_changed else seconds)
        except Exception:
            if self._state.is_closed:  # by a signal handler, amid all this
                return False
            raise

    def _may_hand_out(self) -> bool:
        """Whether what was got after waiting may still be handed out; for how long without a look.

        What may not stays where it is.
        """
        seconds = min(self._session.seconds_to_deliver(), _FRESH_SECONDS)
        self._until = _wall() + seconds
        if self._state.is_changed:
            self._until = 0.0
            return False
        return seconds >= 0

    def _settle(self) -> None:
        """What the calls before this one returned is processed, in implicit mode."""
        with self._state.lock:
            for delivery in self._tail.deliveries.values():
                delivery.settle()
            self._state.is_batch = False

    def _interrupt(self) -> None:
        """Something has changed: look again before the next record."""
        self._state.is_changed = True
        self._until = 0.0
        self._waker.wake()

    # -- acknowledging and committing -------------------------------------------------------

    def acknowledge(self, message: Message) -> None:
        """A record is processed (``acknowledgement.mode=explicit``). From any thread, in any order.

        A record that is not acknowledged comes again after a restart, with all later ones of its
        key that are not acknowledged either.
        """
        chunk = message[0]
        chunk.acknowledged[message[1]] = 1
        if self._config.in_flight_per_key is not None:
            with self._state.lock:
                self._tail.acknowledge(message.topic_partition, [message.offset()])
            self._waker.wake()

    def acknowledge_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """All records of a batch are processed. From any thread, in any order.

        Args:
            batch: What :meth:`consume_batch` returned, or some of its rows; with the column
                ``offset``, and ``topic`` and ``partition`` if several partitions are assigned.

        Raises:
            ValueError: The columns are missing.
        """
        with self._state.lock:
            for topic_partition, rows in self._by_partition(batch):
                delivery = self._tail.deliveries.get(topic_partition)
                if delivery is not None:
                    offsets = rows.column("offset").to_numpy()
                    delivery.acknowledge(offsets)
                    self._tail.acknowledge(topic_partition, offsets.tolist())
        if self._config.in_flight_per_key is not None:
            self._waker.wake()

    def commit(
        self,
        message: Message | None = None,
        offsets: Iterable[Any] | Mapping[Any, int] | None = None,
        asynchronous: bool = False,
    ) -> dict[TopicPartition, int] | None:
        """Commit what is processed; in implicit mode, all that was returned so far.

        Args:
            message: Before that, all that was returned of its partition up to this record counts as
                processed; only that partition is committed.
            offsets: The same up to these offsets (exclusive): ``TopicPartition``s with an offset,
                or offsets by partition.
            asynchronous: Return None at once; ``on_commit`` is called by a later poll.

        Returns:
            The stable offset of each partition, below which all of the group is processed.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
            FetchTimeoutError: It was not done within ``default.api.timeout.ms``.
            RuntimeError: ``transactional.id`` is set: each transaction commits.
            ValueError: Both or wrong offsets were given.
        """
        if self._transactions is not None:
            raise RuntimeError("transactional.id is set: the end of consumer.transaction() commits")
        if message is not None and offsets is not None:
            raise ValueError("give a message or offsets, not both")
        with self._state.lock:
            limits = _offsets_of(message, offsets)
            for topic_partition, offset in limits.items():
                if topic_partition not in self._tail.deliveries:
                    raise ValueError(f"{topic_partition} is not assigned, or has not started")
                self._tail.deliveries[topic_partition].acknowledge_below(offset)
            if not limits:
                for delivery in self._tail.deliveries.values():
                    delivery.settle()
            work = self._work(limits.keys() or None)
        if asynchronous:
            with self._state.call():
                self._commits.begin(work)
            return None
        return self._commits.commit(work)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction (``transactional.id``): outputs and what is processed, all or nothing.

        At the end of the ``with`` block it commits all that was returned within it, once the
        members before it have (``purgatory``). An exception in the block aborts it: nothing of it
        is visible, and its records are returned again.

        Raises:
            TransactionAbortedError: It was aborted, as key hashes or the transactional id were
                taken over, or it was not done in time. The next one goes on with its records.
            KafkaError: The transaction coordinator did not answer in time, or refused.
            RuntimeError: ``transactional.id`` is not set, a transaction is open, or the consumer is
                closed.
        """
        if self.is_closed:
            raise RuntimeError("Consumer closed")
        if self._transactions is None:
            raise RuntimeError("transactions need transactional.id in the configuration")
        try:
            if self._transactions.current is None:
                self._follow_group(continues=False)
            with self._transactions.run() as transaction:
                yield transaction
        finally:
            self._until = 0.0

    def _work(self, partitions: Iterable[TopicPartition] | None = None) -> Work:
        """What is processed of partitions that have started."""
        with self._state.lock:
            deliveries = self._tail.deliveries
            wanted = deliveries.keys() if partitions is None else partitions
            processed = {}
            for topic_partition in wanted:
                delivery = deliveries[topic_partition]
                progress = delivery.processed(is_batch=self._state.is_batch)
                if not self._config.individual:
                    progress = Progress.at(progress.position_of(delivery.owned))
                processed[topic_partition] = progress
            return Work(processed, {tp: deliveries[tp].start for tp in processed})

    def _allowed(
        self, processed: Mapping[TopicPartition, Progress]
    ) -> Mapping[TopicPartition, Progress]:
        """What policies let be committed."""
        if self._config.order == "none":
            self._restrictions.check_shared()
            return processed
        if not self._config.individual:  # one offset of each whole partition, which always may be
            return processed
        return self._restrictions.allowed(
            processed, self._tail.assignment, is_subscribed=self._subscriber is not None
        )

    def _ranges(self) -> int:
        """Number of processed ranges: as many as there are gaps."""
        with self._state.lock:
            return sum(delivery.gaps for delivery in self._tail.deliveries.values())

    def _chunks(self) -> int:
        """Number of leased chunks that have been processed."""
        with self._state.lock:
            return self._tail.finished_chunks

    def _by_partition(self, batch: Any) -> Iterator[tuple[TopicPartition, Any]]:
        names = batch.schema.names
        if "offset" not in names or not (
            {"topic", "partition"} <= set(names) or len(self._tail.assignment) == 1
        ):
            raise ValueError(
                "acknowledge_batch needs the column offset, and topic and partition where several "
                f"partitions are assigned; the batch has {', '.join(names)}"
            )
        if len(self._tail.assignment) == 1:
            yield next(iter(self._tail.assignment)), batch
            return
        columns = [batch.column("topic"), batch.column("partition")]
        pairs = pa.table(columns, ["topic", "partition"]).group_by(["topic", "partition"])
        for pair in pairs.aggregate([]).to_pylist():
            is_of = pc.and_(
                pc.equal(columns[0], pair["topic"]), pc.equal(columns[1], pair["partition"])
            )
            yield TopicPartition(pair["topic"], pair["partition"]), batch.filter(is_of)

    # -- partitions -------------------------------------------------------------------------

    def assign(self, partitions: Mapping[Any, Sequence[Any]] | Sequence[Any]) -> None:
        """Claim key ranges of partitions, in place of what was claimed before.

        Of two consumers that claim the same hashes, the later one gets them, and the other one a
        :class:`~kshare.errors.FencedError`. Records come once former owners have given them up, or
        ``claim.timeout.ms`` is over.

        Args:
            partitions: Key ranges ``[(lo, hi), ...]``, half-open, by ``(topic, partition)``; ``[]``
                is the whole partition. Or ``TopicPartition``s, whole; those with an offset start
                there.

        Raises:
            PolicyError: A policy of operators does not accept key ranges of a topic.
            KafkaError: The policies cannot be read; asked for if there are key ranges.
            RuntimeError: The consumer is closed, or a transaction is open.
            ValueError: A range or partition is wrong, or two ranges overlap.
        """
        if self._subscriber is not None:
            raise ValueError("subscribed: call unsubscribe() before assign()")
        assignment, offsets = parse_assignment(partitions, individual=self._config.individual)
        self._restrictions.check(assignment)
        if self._config.order == "none":
            check_whole(assignment, offsets)
            self._restrictions.check_shared()
        if self._transactions is not None:
            if self._transactions.current is not None:
                raise RuntimeError("a transaction is open: assign when it has ended")
            self._transactions.resolve()
        if self._config.auto_commit:
            self._commits.flush(self._work())
        with self._stopped():
            self._tail.assign(assignment)
            self._session.claim(assignment)
            for topic_partition, offset in offsets.items():
                self._tail.seek(topic_partition, offset)

    def unassign(self) -> None:
        """Give up all partitions."""
        self.assign({})

    def subscribe(
        self,
        topics: Iterable[str],
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Join the group, and read what its leader assigns: key ranges of partitions.

        The callbacks are called by poll (:meth:`close` calls ``on_revoked``), with the key hashes
        of each partition that have changed; an empty tuple is the whole partition. See also
        :func:`kshare.group.partitions_only`.

        Args:
            topics: The topics, in place of those that were subscribed before.
            on_assigned: Called with what is gained; its records come after that.
            on_revoked: Called with what others shall get, before it is committed and given up.
            on_lost: Called with what others may have already; it may still be committed.

        Raises:
            ValueError: A topic is wrong, or partitions were assigned by :meth:`assign`.
        """
        names = topics_to_subscribe(topics)
        if self._state.is_closed:
            raise ConsumerClosedError
        if self._subscriber is None:
            if self._tail.assignment:
                raise ValueError("partitions are assigned: call unassign() before subscribe()")
            if self._config.order == "none":
                self._restrictions.check_shared()
            whole_topics = self._restrictions.whole_topics
            member = self._session.join(self._config, self._interrupt, whole_topics)
            self._subscriber = Subscriber(member, _Group(self))
            if self._transactions is not None:
                self._transactions.is_disturbed = lambda: member.has_change
        with self._state.call():
            self._subscriber.subscribe(names, Callbacks(on_assigned, on_revoked, on_lost))

    def unsubscribe(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all partitions, and leave the group."""
        subscriber = self._subscriber
        if subscriber is None:
            return
        if self._transactions is not None:
            if self._transactions.current is not None:
                raise RuntimeError("a transaction is open: unsubscribe when it has ended")
            self._transactions.resolve()
        with self._state.gate:
            self._interrupt()
            with self._state.polling:
                try:
                    subscriber.revoke_all()
                finally:
                    self._commit_before_revocation()
                    self._subscriber = None
                    self._take_over({}, None)
                    self._session.leave(_CLOSE_SECONDS)

    def _commits_before_revocation(self) -> "Future[Any] | None":
        if self._transactions is not None:
            return None
        return self._commits.begin_last(self._work())

    def _commit_before_revocation(self) -> None:
        if self._config.auto_commit:
            self._commits.flush(self._work())
        self._commits.finish()

    def _keep(self, assignment: Mapping[TopicPartition, tuple[HashRange, ...]]) -> None:
        with self._stopped():
            self._tail.refresh()
            self._tail.assign(assignment, keeps=True)

    def _take_over(
        self,
        assignment: Mapping[TopicPartition, tuple[HashRange, ...]],
        epoch: tuple[int, str] | None,
    ) -> None:
        self._counters.rebalances += epoch is not None
        with self._stopped():
            self._tail.refresh()  # what was handed out before an abort or a reset counts no more
            self._tail.assign(assignment, keeps=True)
            self._session.claim(assignment, epoch=epoch)

    def assignment(self) -> dict[TopicPartition, tuple[HashRange, ...]]:
        """The key ranges that are claimed, by partition; ``()`` is the whole partition."""
        return dict(self._tail.assignment)

    def pause(self, partitions: Iterable[Any]) -> None:
        """Return no more records of some partitions, until they are resumed."""
        with self._stopped():
            for topic_partition in self._assigned(partitions):
                self._tail.pause(topic_partition)

    def resume(self, partitions: Iterable[Any]) -> None:
        """Return records of paused partitions again."""
        with self._stopped():
            for topic_partition in self._assigned(partitions):
                self._tail.resume(topic_partition)

    def seek(self, partition: Any, offset: int | None = None) -> None:
        """Go on at an offset, with all records of the own key ranges from there on.

        What is passed over is not processed, and comes again after a restart. What was processed
        stays so, though it is returned again.

        Args:
            partition: ``TopicPartition`` with an offset, or ``(topic, partition)``.
            offset: The offset, if ``partition`` has none.
        """
        topic_partition, own = partition_and_offset(partition)
        offset = own if offset is None else offset
        if offset is None or offset < 0:
            raise ValueError(f"cannot seek to {offset}: wanted an offset, 0 or more")
        with self._stopped():
            (topic_partition,) = self._assigned([topic_partition])
            self._tail.seek(topic_partition, offset)

    def position(self, partitions: Iterable[Any] | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record that was returned, of partitions that have started."""
        wanted = self._tail.assignment if partitions is None else self._assigned(partitions)
        deliveries = self._tail.deliveries
        return {tp: deliveries[tp].position for tp in wanted if tp in deliveries}

    def committed(
        self, partitions: Iterable[Any] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, of the assigned partitions or of some.

        Raises:
            FetchTimeoutError: It was not known in time.
        """
        wanted = self._tail.assignment if partitions is None else map(parse_partition, partitions)
        seconds = self._commits.seconds if timeout is None or timeout < 0 else timeout
        return self._session.committed(list(wanted), seconds)

    def memberid(self) -> str:
        """The consumer's id in the group."""
        return self._session.member

    def metrics(self) -> ConsumerMetrics:
        """What the consumer owns, how far it is, its commits and rebalances. From any thread.

        See also :func:`kshare.group.register_metrics`, which shows it to Prometheus.
        """
        with self._state.lock:
            partitions = self._tail.metrics(is_batch=self._state.is_batch)
        return ConsumerMetrics(
            group=self._config.group,
            member=self._session.member,
            partitions=partitions,
            commits=self._commits.latency.latencies(),
            commit_failures=self._commits.latency.failures,
            rebalances=self._counters.rebalances,
            fenced_seconds=self._counters.fenced_seconds,
        )

    def _assigned(self, partitions: Iterable[Any]) -> list[TopicPartition]:
        wanted = [parse_partition(partition) for partition in partitions]
        for topic_partition in wanted:
            if topic_partition not in self._tail.assignment:
                raise ValueError(f"{topic_partition} is not assigned")
        return wanted

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """Change what is read: records that were not returned yet are looked at again."""
        if self._state.is_closed:
            raise ConsumerClosedError
        with self._state.gate:
            self._interrupt()
            with self._state.polling, self._state.lock:
                yield
                self._rows = iter(())
            self._interrupt()

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all claims, and end iterations.

        What the last call returned counts as processed only if it was acknowledged or committed;
        an open transaction is aborted.
        May be called again, and from a signal handler: amid a call of the consumer, it is closed
        when that call returns, which is at once.
        """
        if self._state.is_closed:
            return
        self._state.is_closed = True
        self._interrupt()
        self._state.shut_down()

    def _shut_down(self) -> None:
        try:
            if self._subscriber is not None:
                self._subscriber.revoke_all()
            self._commits.close(self._work)
            if self._transactions is not None:
                self._transactions.close()
        finally:
            self._session.close(_CLOSE_SECONDS)
            self._tail.close()
            self._restrictions.close()
            self._waker.close()

    @property
    def is_closed(self) -> bool:
        """Whether the consumer is closed."""
        return self._state.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Group:
    """What a subscriber may do with its consumer."""

    def __init__(self, consumer: KeySharedConsumer) -> None:
        self.commit_before_revocation = consumer._commits_before_revocation  # noqa: SLF001
        self.keep = consumer._keep  # noqa: SLF001
        self.is_settled = consumer._tail.is_settled  # noqa: SLF001
        self.wake = consumer._interrupt  # noqa: SLF001
        self.take_over = consumer._take_over  # noqa: SLF001


def _deadline(timeout: float | None) -> float:
    return _FOR_EVER if timeout is None or timeout < 0 else time.monotonic() + timeout


def _left(deadline: float) -> float:
    return deadline - time.monotonic()


def _offsets_of(
    message: Message | None, offsets: Iterable[Any] | Mapping[Any, int] | None
) -> dict[TopicPartition, int]:
    """The offsets that are to be committed; empty for the positions."""
    if message is not None:
        return {message.topic_partition: message.offset() + 1}
    if isinstance(offsets, Mapping):
        return {parse_partition(partition): offset for partition, offset in offsets.items()}
    limits = {}
    for partition in offsets or ():
        topic_partition, offset = partition_and_offset(partition)
        if offset is None or offset < 0:
            raise ValueError(f"no offset to commit in {partition!r}")
        limits[topic_partition] = offset
    return limits
