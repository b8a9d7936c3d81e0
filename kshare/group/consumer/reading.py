"""Which partitions a consumer reads: those that its user assigns, or its group."""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from typing import Any, Final

from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError, KshareError
from kshare.group.assignments import check_whole, parse_assignment, parse_partition
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.receiver import Receiver
from kshare.group.consumer.restrictions import Restrictions
from kshare.group.consumer.subscriber import Callbacks, Subscriber
from kshare.group.consumer.topic_lookup import SubscribedTopics, check_existence, log_offsets
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.log.primary import OffsetAndMetadata, committed_within
from kshare.group.protocol.membership.subscription import Assigned
from kshare.group.session.session import GroupSession
from kshare.group.tools.offsets import GroupOffsets

__all__ = ["Reading"]

_LEAVE_SECONDS: Final = 5.0


class Reading:
    """``assign``, ``subscribe`` and ``unsubscribe`` of a consumer. For any thread.

    Args:
        config: The consumer's configuration.
        dispatcher: Hands records out.
        session: Claims.
        state: What the consumer's threads share.
        restrictions: What policies accept.
        receiver: Waits for records.
        commits: Commits.

    Attributes:
        rebalances: How often the group has changed what the consumer owns.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        dispatcher: Dispatcher,
        session: GroupSession,
        state: CallState,
        restrictions: Restrictions,
        receiver: Receiver,
        commits: Commits,
    ) -> None:
        self.rebalances = 0
        self._config = config
        self._dispatcher = dispatcher
        self._session = session
        self._state = state
        self._restrictions = restrictions
        self._receiver = receiver
        self._commits = commits

    # -- assigned by the user ----------------------------------------------------------------

    def assign(self, partitions: Mapping[Any, Sequence[Any]] | Sequence[Any]) -> None:
        """Claim key ranges of partitions, in place of what was claimed before.

        Raises:
            PolicyError, KafkaError: As of :class:`.Restrictions`.
            UnknownTopicError: A partition does not exist.
            RuntimeError: The consumer is closed, or a transaction is open.
            ValueError: A range or partition is wrong, or the consumer has subscribed.
        """
        if self._state.is_closed:  # before policies are read over a new connection
            raise ConsumerClosedError
        if self._receiver.subscriber is not None:
            raise ValueError("subscribed: call unsubscribe() before assign()")
        assignment, offsets = parse_assignment(partitions, individual=self._config.individual)
        self._restrictions.check(assignment)
        if self._config.order == "none":
            check_whole(assignment, offsets)
            self._restrictions.check_shared(tp.topic for tp in assignment)
        check_existence(self._config.kafka, assignment.keys() - self._dispatcher.assignment.keys())
        offsets = log_offsets(self._config.kafka, offsets)
        self._end_transactions("assign")
        self._commits.flush()
        with self._receiver.stopped():
            self._dispatcher.assign(assignment)
            self._session.claim(assignment)
            for topic_partition, offset in offsets.items():
                self._dispatcher.seek(topic_partition, offset, is_batch=self._state.is_batch)
            self._begin()

    def _begin(self) -> None:
        self._state.has_begun = True
        if self._dispatcher.parking is not None:
            self._dispatcher.parking.start()

    def _end_transactions(self, what: str) -> None:
        """Wait until it is known what became of the last transaction.

        Raises:
            RuntimeError: A transaction is open.
        """
        transactions = self._receiver.transactions
        if transactions is None:
            return
        if transactions.is_open:
            raise RuntimeError(f"a transaction is open: {what} when it has ended")
        transactions.resolve()

    # -- assigned by the group ---------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str | re.Pattern[str]] | re.Pattern[str], callbacks: Callbacks
    ) -> None:
        """Join the group, and read what its leader assigns; or do so with other topics.

        Raises:
            ConsumerClosedError: The consumer is closed.
            PolicyError, KafkaError: As of :meth:`.Restrictions.check_shared`.
            ValueError: A topic is wrong, or partitions were assigned by the user.
        """
        wanted = SubscribedTopics.of(topics)
        if self._state.is_closed:
            raise ConsumerClosedError
        subscriber = self._receiver.subscriber
        if subscriber is None and self._dispatcher.assignment:
            raise ValueError("partitions are assigned: call unassign() before subscribe()")
        # Here by name, as far as it is known. What patterns match later is the leader's concern.
        if self._config.order == "none":
            self._restrictions.check_shared(wanted.names)
        if subscriber is None:
            subscriber = self._receiver.subscriber = self._join()
        self._begin()
        with self._state.call():
            subscriber.subscribe(wanted, callbacks, self._config.kafka)

    def _join(self) -> Subscriber:
        interrupt = self._receiver.fresh.interrupt
        member = self._session.join(self._config, interrupt, self._restrictions.whole_topics)
        if self._dispatcher.meter is not None:
            member.report(self._dispatcher.meter.report)
        return Subscriber(member, self, self._config.group)

    def unsubscribe(self) -> None:
        """Commit (with ``enable.auto.commit``), give up all partitions, and leave the group.

        Raises:
            ConsumerClosedError: The consumer is closed.
            RuntimeError: Amid a callback of ``subscribe``.
        """
        self._state.check_open()
        subscriber = self._receiver.subscriber
        if subscriber is None:
            return
        self._end_transactions("unsubscribe")
        with self._state.call(), self._state.changing(self._receiver.fresh.interrupt):
            if subscriber.is_in_callback:  # as a change is half done
                raise RuntimeError("unsubscribe in a callback of subscribe: return from it first")
            subscriber.stop_looking()
            with ExitStack() as ends:  # the last one first, whatever a callback raises
                ends.callback(self._session.leave, _LEAVE_SECONDS)
                ends.callback(self._leave)
                ends.callback(self._commits.finish)
                ends.callback(self._commits.flush)
                subscriber.revoke_all()

    def _leave(self) -> None:
        self._receiver.subscriber = None
        self.take_over({}, None)

    # -- what a membership does with its consumer ----------------------------------------------

    def commit_before_revocation(self) -> "Future[Any] | None":
        """Begin to commit what is processed, with ``enable.auto.commit``; None if that is done."""
        if self._receiver.transactions is not None:  # none is open now, and only they commit
            return None
        return self._commits.begin_last()

    def is_fenced(self) -> bool:
        """True if others may have what it owns, though its member does not know it yet."""
        try:
            self._session.check()
        except KshareError:
            return True
        return False

    def is_settled(self) -> bool:
        """True if what it reads is claimed, so that what it processes can be committed."""
        return self._dispatcher.state.is_settled()

    def wake(self) -> None:
        """Look at the subscriber again."""
        self._receiver.fresh.interrupt()

    def keep(self, assignment: Assigned) -> None:
        """Read on these key hashes, which stay, and no others."""
        with self._receiver.stopped():
            self._dispatcher.refresh()
            self._dispatcher.keep(assignment)

    def take_over(self, assignment: Assigned, epoch: tuple[int, str] | None) -> None:
        """Claim these key hashes and no others, and read them."""
        self.rebalances += bool(assignment) or epoch is not None
        with self._receiver.stopped():
            # What was handed out before an abort or a reset counts no more.
            self._dispatcher.refresh()
            self._dispatcher.assign(assignment, keeps=True)
            self._session.claim(assignment, epoch=epoch)

    # -- where it goes on --------------------------------------------------------------------

    def pause(self, partitions: Iterable[Any]) -> None:
        """Read some partitions no more, until they are resumed."""
        with self._receiver.stopped():
            for topic_partition in self.assigned(partitions):
                self._dispatcher.pause(topic_partition)

    def resume(self, partitions: Iterable[Any]) -> None:
        """Read paused partitions again."""
        with self._receiver.stopped():
            for topic_partition in self.assigned(partitions):
                self._dispatcher.resume(topic_partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at an offset, ``OFFSET_BEGINNING`` or ``OFFSET_END``."""
        self._state.check_open()
        offset = log_offsets(self._config.kafka, {partition: offset})[partition]
        with self._receiver.stopped():
            (topic_partition,) = self.assigned([partition])
            self._dispatcher.seek(topic_partition, offset, is_batch=self._state.is_batch)

    def assigned(self, partitions: Iterable[Any]) -> list[TopicPartition]:
        """Partitions as users write them.

        Raises:
            ConsumerClosedError: The consumer is closed.
            ValueError: One is none, or is not assigned.
        """
        self._state.check_open()
        wanted = [parse_partition(partition) for partition in partitions]
        for topic_partition in wanted:
            if topic_partition not in self._dispatcher.assignment:
                raise ValueError(f"{topic_partition} is not assigned")
        return wanted

    def committed(
        self, partitions: Sequence[TopicPartition], seconds: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed of some partitions.

        Raises:
            ConsumerClosedError: The consumer is closed.
            FetchTimeoutError, KafkaError: It was not known in time.
        """
        if self._state.is_closed:
            raise ConsumerClosedError
        if self._state.has_begun or not self._config.keeps_log:
            return self._session.committed(partitions, seconds)
        # Without a session, as one would say in the group's log that it is alive.
        config = self._config
        with (
            committed_within(config.kafka, config.group, seconds) as kafka,
            closing(GroupOffsets(config.group, kafka(), config.log_topic)) as offsets,
        ):
            return offsets.committed(partitions)

    def close(self) -> None:
        """Read no policies any more."""
        self._restrictions.close()
