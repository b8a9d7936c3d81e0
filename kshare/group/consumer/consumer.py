"""A consumer that shares partitions with others by key range: :class:`KeySharedConsumer`."""

import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Self

import pyarrow as pa

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.assignments import (
    as_assigned,
    offset_to_start,
    offsets_to_commit,
    parse_partition,
    partition_and_offset,
)
from kshare.group.config.consumer_config import NOBODY_AWAITS, consumer_config, is_async
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.calls import Calls, deadline_of
from kshare.group.consumer.consumer_parts import ConsumerParts
from kshare.group.consumer.health import health_of
from kshare.group.consumer.processed import Releases, check_releases
from kshare.group.consumer.receiver import Receiver, wall_time
from kshare.group.consumer.subscriber import Callbacks, Listener
from kshare.group.consumer.transaction import Transaction
from kshare.group.core.work import CommitRequest
from kshare.group.log.primary import OffsetAndMetadata
from kshare.group.message import ACKNOWLEDGED, Message
from kshare.group.metrics import ConsumerHealth, ConsumerMetrics, Latencies
from kshare.group.session.session import GroupSession
from kshare.kafka.parked_keys import ParkWatch
from kshare.kafka.parking import ParkView
from kshare.kafka.policies import PolicyWatch
from kshare.options import KafkaConfig

__all__ = ["KeySharedConsumer", "check_number"]


def check_number(num_messages: int) -> None:
    """Check the number of records that a call asks for.

    Raises:
        ValueError: It is below 0.
    """
    if num_messages < 0:
        raise ValueError(f"num_messages is {num_messages}; wanted 0 or more")


def _check_message(message: Message) -> None:
    if not isinstance(message, Message):
        what = type(message).__name__  # type: ignore[unreachable]
        raise TypeError(f"wanted a message that this consumer returned, not a {what}")


class KeySharedConsumer:
    """Consumes key ranges of partitions, and commits what is processed record by record.

    Method names and their meaning are those of ``confluent_kafka.Consumer``; docs/consumer.md says
    what differs. One thread polls; all other methods may be called from any thread.

    Args:
        config: Values by name, as for ``confluent_kafka.Consumer``: names of librdkafka or of
            Kafka's Java client, and those of docs/consumer.md.
        session: Makes the session with the group's log.
        policies: Makes what reads the policies of operators.
        parked: Makes what reads the keys that operators have parked.

    Raises:
        OptionsError: The configuration cannot be used; every fault is listed.
        TypeError: It is none.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | ConsumerConfig,
        *,
        session: Callable[..., GroupSession] = GroupSession,
        policies: Callable[[KafkaConfig], PolicyWatch] = PolicyWatch,
        parked: Callable[[KafkaConfig], ParkView] = ParkWatch,
    ) -> None:
        if not isinstance(config, ConsumerConfig | Mapping):
            what = type(config).__name__  # type: ignore[unreachable]
            raise TypeError(f"expected configuration dict, not {what}")
        if not isinstance(config, ConsumerConfig):
            config = consumer_config(config)
        self._config = config
        parts = ConsumerParts(config, session, policies, parked)
        self._session, self._dispatcher = parts.session, parts.dispatcher
        self._state, self._processed, self._commits = parts.state, parts.processed, parts.commits
        self._receiver, self._calls, self._reading = parts.receiver, parts.calls, parts.reading
        self._fresh = parts.receiver.fresh
        weakref.finalize(self, parts.abandon).atexit = False

    # -- receiving --------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next record.

        Args:
            timeout: Maximum time to wait, in seconds; None or -1 for no limit.

        Returns:
            None if none came in time, or the consumer was closed meanwhile.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
            PolicyError: A policy that was set meanwhile does not accept what would be committed
                by itself (``enable.auto.commit``).
            KshareError: A partition or the group's log cannot be read; the next call tries again.
                Or a fault has ended the session, which is logged as an error: each call raises
                it, and the member has left its group. Close the consumer, and make another one.
            RuntimeError: The consumer is closed.
        """
        fresh = self._fresh
        # No lock; what needs a look at the session: `take`, below. As `poll_fresh`, whose call
        # would be a tenth of what this takes.
        if fresh.since <= wall_time() < fresh.until:
            for message in fresh.rows:
                return message
        deadline = deadline_of(timeout)
        while self._calls.next_rows(deadline):
            found = self.poll_fresh() or self._calls.take()
            if found is not None or time.monotonic() >= deadline or self.is_closed:
                return found
        return None

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """The next records, as many as come in time.

        It returns those that it has when the group changes what it owns, and when keys are parked
        or released, or are due.

        Args:
            num_messages: Maximum number of records.
            timeout: Maximum time to wait for all of them, in seconds; None or -1 for no limit.

        Raises:
            KshareError, RuntimeError: As for :meth:`poll`; if it has records to return, the next
                call raises it.
        """
        check_number(num_messages)
        if self._state.is_closed:  # with 0, nothing else looks
            raise ConsumerClosedError
        with self._state.call():
            messages = self._calls.messages(num_messages, deadline_of(timeout))
        # By a signal handler, when it had got them: others may have them by now.
        return [] if self._state.is_closed else messages

    def consume_batch(self, timeout: float | None = None) -> pa.RecordBatch | None:
        """The next records of one partition, as Arrow: the columns of kshare's source.

        With ``value.format`` or ``key.format``, values or keys are decoded.

        Args:
            timeout: Maximum time to wait, in seconds; None or -1 for no limit.

        Returns:
            At most 65,536 rows and about 8 MiB; None if none came in time.

        Raises:
            BadRecordError: The next record cannot be decoded, with ``bad.records=fail``.
            SchemaRegistryError: The registry does not answer, or refuses.
            OptionsError: A reader schema of the registry cannot be used.
            KshareError, RuntimeError: As for :meth:`poll`.
        """
        with self._state.call():
            batch = self._calls.batch(deadline_of(timeout))
        return None if self._state.is_closed else batch

    def __iter__(self) -> Iterator[Message]:
        """The records, until the consumer is closed."""
        fresh = self._fresh
        while self._continues():
            if not fresh.since <= wall_time() < fresh.until:
                continue
            for message in fresh.rows:
                yield message
                if not fresh.since <= wall_time() < fresh.until:
                    break

    def _continues(self) -> bool:
        """Wait for the next messages of an iteration; False if the consumer was closed."""
        try:
            return self._calls.next_rows(float("inf"))
        except ConsumerClosedError:
            return False

    def poll_fresh(self) -> Message | None:
        """The next record if it is there and needs no look at the session; else None."""
        fresh = self._fresh
        if fresh.since <= wall_time() < fresh.until:
            # Unlike after a call of next(), no other thread runs between taking and returning it.
            for message in fresh.rows:
                return message
        return None

    # -- acknowledging and committing -------------------------------------------------------

    def acknowledge(self, message: Message) -> None:
        """A record is processed (``acknowledgement.mode=explicit``). From any thread, in any order.

        A record that is not acknowledged comes again after a restart, with all later ones of its
        key that are not acknowledged either.

        Raises:
            TypeError: It is no message.
        """
        try:  # for each record: a check ahead would cost as much as the rest
            message.chunk.acknowledged[message.row] = ACKNOWLEDGED
        except (AttributeError, TypeError):
            _check_message(message)
            raise

    def acknowledge_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """All records of a batch are processed. From any thread, in any order.

        Rows whose partition or key hashes have gone to others meanwhile change nothing.

        Args:
            batch: What :meth:`consume_batch` returned, or some of its rows, with the column
                ``offset``. A table, or a batch without the metadata of the schema that
                ``consume_batch`` sets, also needs ``topic`` and ``partition``.

        Raises:
            TypeError: It is no batch.
            ValueError: The columns are missing.
        """
        self._processed.acknowledge(batch)

    def release(self, message: Message, delay: float = 0.0) -> None:
        """A record cannot be processed now: it comes again, and those of its key behind it.

        As KIP-932's RELEASE, but in order: until the delay is over no record of its key is
        returned, all other keys go on, and then this one comes before the later ones. Those that
        were returned already and are not acknowledged come again, too: skip them
        (:meth:`.Message.is_released`). :meth:`.Message.delivery_count` counts, also through
        kill -9. After a restart, and if its key hashes go to another member, it comes at once. A
        record that is acknowledged, or has gone to others meanwhile, stays as it is. One that a
        seek has passed over, before or after, is counted, and stays pending: it comes after a
        restart. For ``acknowledgement.mode=explicit``; from any thread.

        Args:
            message: The record; the earlier ones of its key are to be acknowledged or released.
            delay: Seconds until it comes again.

        Raises:
            KafkaError: The group's log cannot be read.
            OptionsError: The consumer is configured in another way.
            TypeError: It is no message.
            ValueError: The delay is below 0, or keys are not read (``columns``).
        """
        _check_message(message)
        if not 0 <= delay < float("inf"):
            raise ValueError(f"delay is {delay}; wanted seconds from 0 up")
        check_releases(self._config)
        self._state.check_open()
        with self._state.call():
            self.releases.release(message, delay)

    def commit(
        self,
        message: Message | None = None,
        offsets: Iterable[Any] | Mapping[Any, int] | None = None,
        asynchronous: bool = False,
    ) -> dict[TopicPartition, int] | None:
        """Commit what is processed; in implicit mode, all that was returned so far.

        After a rebalance it waits until what was gained is claimed in the group's log.

        Args:
            message: Before that, all that was returned of its partition up to this record counts as
                processed; only that partition is committed.
            offsets: The same up to these offsets (exclusive): ``TopicPartition``s with an offset,
                or offsets by partition. If there are none in it, nothing is committed.
            asynchronous: Return None at once; ``on_commit`` is called by a later poll, or by
                :meth:`close`. What is asked for while one waits for another is done with it.

        Returns:
            The stable offset of each partition, below which all of the group is processed.

        Raises:
            CommitFailedError: Some of what was processed is not committed, and may come again: the
                offsets were reset, or its partition or key hashes have gone. All else is committed.
            FencedError: Another consumer has claimed some of the key hashes, or a group without
                individual commits goes on without this one: what was not committed of them before
                is delivered again. All else is committed.
            FetchTimeoutError: It was not done within ``default.api.timeout.ms``.
            RuntimeError: ``transactional.id`` is set: each transaction commits. Or the consumer is
                closed, maybe meanwhile; callbacks amid ``close()`` may commit.
            TypeError: An offset is no integer, or the message is none.
            ValueError: Both or wrong offsets were given, or one beyond what was returned.
        """
        if self._receiver.transactions is not None:
            raise RuntimeError("transactional.id is set: the end of consumer.transaction() commits")
        self._state.check_open()
        if message is not None:
            _check_message(message)
            if offsets is not None:
                raise ValueError("give a message or offsets, not both")
        limits = offsets_to_commit(message, offsets)
        is_nothing = offsets is not None and not limits
        nothing = CommitRequest({}, {})
        work = nothing if is_nothing else self._processed.work_up_to(limits, message)
        if asynchronous:
            with self._state.call():
                self._commits.begin(work)
            return None
        stable = self._commits.commit(work)
        if not limits or work.late:
            self._session.check()  # of hashes that others have claimed there may be no delivery
        return stable

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction (``transactional.id``): outputs and what is processed, all or nothing.

        At the end of the ``with`` block it commits all that was returned within it, once the
        members before it have (``purgatory``). An exception in the block aborts it: nothing of it
        is visible, and its records are returned again.

        Raises:
            TransactionAbortedError: It was aborted, as key hashes or the transactional id were
                taken over, or it was not done in time. The next one goes on with its records.
            PolicyError: A policy accepts no key ranges any more, or no individual commits, and not
                all that was returned before what is acknowledged is so, too. It was aborted.
            OptionsError: Likewise with ``allow.individual.commit=false``.
            KafkaError: The transaction coordinator did not answer in time, or refused.
            RuntimeError: ``transactional.id`` is not set, a transaction is open, or the consumer is
                closed.
        """
        if self.is_closed:
            raise ConsumerClosedError
        if self._receiver.transactions is None:
            raise RuntimeError("transactions need transactional.id in the configuration")
        try:
            if not self._receiver.transactions.is_open:
                with self._state.call():
                    self._receiver.follow_group(continues=False)
            with self._receiver.transactions.run() as transaction:
                yield transaction
        finally:
            self._fresh.look_again()

    # -- partitions -------------------------------------------------------------------------

    def assign(self, partitions: Mapping[Any, Sequence[Any]] | Sequence[Any]) -> None:
        """Claim key ranges of partitions, in place of what was claimed before.

        Of two consumers that claim the same hashes, the later one gets them, and the other one a
        :class:`~kshare.errors.FencedError`. Records come once former owners have given them up, or
        ``claim.timeout.ms`` is over.

        Args:
            partitions: Key ranges ``[(lo, hi), ...]``, half-open, by ``(topic, partition)``; ``[]``
                is the whole partition. Or ``TopicPartition``s, whole; those with an offset start
                there, also with ``OFFSET_BEGINNING`` or ``OFFSET_END``.

        Raises:
            UnknownTopicError: A partition does not exist.
            PolicyError: A policy of operators does not accept key ranges of a topic.
            KafkaError: The policies cannot be read; asked for if there are key ranges.
            RuntimeError: The consumer is closed, or a transaction is open.
            ValueError: A range or partition is wrong, or two ranges overlap.
        """
        self._reading.assign(partitions)

    def unassign(self) -> None:
        """Give up all partitions."""
        self.assign({})

    def subscribe(
        self,
        topics: Iterable[str | re.Pattern[str]] | re.Pattern[str],
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        on_started: Listener | None = None,
    ) -> None:
        """Join the group, and read what its leader assigns: key ranges of partitions.

        The callbacks are called by poll (:meth:`close` and :meth:`unsubscribe` call ``on_revoked``
        or ``on_lost``), with the key hashes of each partition that have changed; an empty tuple is
        the whole partition. See also :func:`kshare.group.partitions_only`.

        Args:
            topics: The topics, in place of those that were subscribed before. A text that begins
                with ``^``, and a compiled regular expression, are searched for in the names of
                all topics, again each ``metadata.max.age.ms``.
            on_assigned: Called with what is gained; its records come after that.
            on_revoked: Called with what others shall get, before it is committed and given up.
            on_lost: Called with what others may have already; until they have claimed it, it may
                still be committed. Without it, ``on_revoked`` is called.
            on_started: Called when what was gained is claimed in the group's log: no former owner
                commits any more, and no transaction of one is open. Restore state here.

        Raises:
            TypeError: A callback is a coroutine function: nobody would await it.
            ValueError: A topic is wrong, or partitions were assigned by :meth:`assign`.
        """
        callbacks = Callbacks(on_assigned, on_revoked, on_lost, on_started)
        for each in fields(callbacks):
            callback = getattr(callbacks, each.name)
            if is_async(getattr(callback, "listener", callback)):  # that of partitions_only
                raise TypeError(f"{each.name} is a coroutine function: {NOBODY_AWAITS}")
        self._reading.subscribe(topics, callbacks)

    def unsubscribe(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all partitions, and leave the group.

        Raises:
            RuntimeError: The consumer is closed, or this is a callback of :meth:`subscribe`.
        """
        self._reading.unsubscribe()

    def assignment(self) -> dict[TopicPartition, tuple[HashRange, ...]]:
        """The key ranges that are claimed, by partition; ``()`` is the whole partition.

        Raises:
            RuntimeError: The consumer is closed.
        """
        self._state.check_open()
        return as_assigned(self._dispatcher.assignment)

    def pause(self, partitions: Iterable[Any]) -> None:
        """Return no more records of some partitions, until they are resumed."""
        self._reading.pause(partitions)

    def resume(self, partitions: Iterable[Any]) -> None:
        """Return records of paused partitions again."""
        self._reading.resume(partitions)

    def seek(self, partition: Any, offset: int | None = None) -> None:
        """Go on at an offset, with all records of the own key ranges from there on.

        What is passed over is not processed, and comes again after a restart. What was processed
        stays so, though it is returned again. In implicit mode, the next call counts what the last
        one returned below the offset; what the offset hands out again counts when it is returned
        again. So a handler that fails seeks back to its record.

        Args:
            partition: ``TopicPartition`` with an offset, or ``(topic, partition)``.
            offset: The offset, if ``partition`` has none; ``OFFSET_BEGINNING`` and ``OFFSET_END``
                are those of the log.

        Raises:
            TypeError: The offset is no integer.
            RuntimeError: The consumer is closed.
            ValueError: It is none that there can be, or the partition is not assigned.
        """
        topic_partition, own = partition_and_offset(partition)
        wanted = offset_to_start(topic_partition, own if offset is None else offset)
        if wanted is None:
            raise ValueError(f"{topic_partition}: no offset to seek to")
        self._reading.seek(topic_partition, wanted)

    def position(self, partitions: Iterable[Any] | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record that was returned, of partitions that have started.

        Raises:
            RuntimeError: The consumer is closed.
        """
        self._state.check_open()
        wanted = (
            self._dispatcher.assignment
            if partitions is None
            else self._reading.assigned(partitions)
        )
        with self._state.lock:
            started = ((tp, self._dispatcher.deliveries.get(tp)) for tp in wanted)
            return {tp: delivery.returned for tp, delivery in started if delivery is not None}

    def committed(
        self, partitions: Iterable[Any] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of the assigned partitions, or of some.

        Raises:
            FetchTimeoutError: It was not known in time.
            KafkaError: The cluster did not answer, or refused.
            RuntimeError: The consumer is closed.
        """
        wanted = (
            self._dispatcher.assignment if partitions is None else map(parse_partition, partitions)
        )
        seconds = self._commits.seconds if timeout is None or timeout < 0 else timeout
        return self._reading.committed(list(wanted), seconds)

    def memberid(self) -> str:
        """The consumer's id in the group.

        Raises:
            RuntimeError: The consumer is closed.
        """
        self._state.check_open()
        return self._session.session_id

    def metrics(self) -> ConsumerMetrics:
        """Key ranges, positions, commits and rebalances of the consumer. From any thread.

        See also :func:`kshare.group.register_metrics`, which shows it to Prometheus.
        """
        with self._state.lock:
            partitions = self._dispatcher.metrics(is_batch=self._state.is_batch)
        transactions, subscriber = self._receiver.transactions, self._receiver.subscriber
        member = None if subscriber is None else subscriber.member
        counts = {} if self._dispatcher.parking is None else self._dispatcher.parking.counts
        topics = {tp.topic for tp in partitions}
        return ConsumerMetrics(
            group=self._config.group,
            member=self._session.session_id,
            partitions=partitions,
            commits=self._commits.latency.latencies(),
            commit_failures=self._commits.latency.failures,
            rebalances=self._reading.rebalances,
            fenced_seconds=self._receiver.delivery_pause.seconds,
            transactions=transactions.latency.latencies() if transactions else Latencies(),
            aborted_transactions=transactions.aborts if transactions else 0,
            is_member=member.is_member if member else None,
            leads=member.leads if member else None,
            parked={topic: counts[topic] for topic in counts if topic in topics},
            log=self._session.log_metrics(),
        )

    def health(self) -> ConsumerHealth:
        """Return whether the consumer works; for probes. From any thread.

        See also :func:`kshare.group.serve_metrics`, which shows it over HTTP.
        """
        subscriber = self._receiver.subscriber
        with self._state.lock:
            waits = self._dispatcher.out.waits()
        return health_of(
            self._session,
            None if subscriber is None else subscriber.member,
            frozenset(self._dispatcher.assignment),
            waits,
            is_closed=self._state.is_closed,
        )

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all claims, and end iterations.

        What the last call returned counts as processed only if it was acknowledged or committed;
        an open transaction is aborted. Waits for the last commit for 30 s at most, and for the
        counts of released records as long, or 5 s more.
        Idempotent and safe in a signal handler. If a call is in progress, that call returns
        immediately and then the consumer closes. A call in another thread returns before that is
        over: wait for the thread that closes before the process ends. In a process that was forked
        since, it closes nothing.
        """
        if self._state.is_closed or self._state.is_inherited:
            return
        self._state.is_closed = True
        try:
            self._fresh.interrupt()
        finally:
            self._state.shut_down()

    @property
    def calls(self) -> Calls:
        """What returns records, for :class:`.AsyncKeySharedConsumer`."""
        return self._calls

    @property
    def receiver(self) -> Receiver:
        """What waits for records, for asyncio and :class:`~kshare.processing.Processor`."""
        return self._receiver

    @property
    def releases(self) -> Releases:
        """What gives records back, for :class:`~kshare.processing.Processor`."""
        return self._processed.releases

    def take_turns(self) -> None:
        """Return some hundred records of each partition in turn, from now on.

        For :class:`~kshare.processing.Processor`: so it has as many keys as possible at work. It
        takes more memory, and more time a record.
        """
        with self._receiver.stopped():
            self._dispatcher.take_turns()

    @property
    def config(self) -> ConsumerConfig:
        """The configuration, as it was understood."""
        return self._config

    @property
    def is_closed(self) -> bool:
        """True if the consumer is closed."""
        return self._state.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
