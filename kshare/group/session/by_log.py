"""The group's log as a session uses it: followed, with beats, claims and epochs.

::

    find the log --> ask --> an answer --> apply --> settings, lapses --> owners' actions --> epochs
         ^                                                                      |
         +---- after a fault: is it the same log? <-----------------------------+

For the session's thread, which never waits for brokers. What there is in its place in a group that
keeps no log: :mod:`.by_coordinator`.
"""

import select
import time
from collections.abc import Callable, Collection, Iterator

from kshare.core.progress import TopicPartition
from kshare.group.config.table import ConsumerConfig
from kshare.group.log.log_link import EpochWriter, LogLink, Written
from kshare.group.metrics import LogMetrics
from kshare.group.protocol.commit_log.records import Epoch
from kshare.group.session.broker_actions import BrokerActions
from kshare.group.session.log_follower import ANSWER_MS, LogFollower
from kshare.group.session.presence import Presence, beat_key
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.background import Beside
from kshare.options import KafkaConfig

__all__ = ["ByLog"]


class ByLog:
    """A session that goes by its group's log.

    Args:
        config: The consumer's configuration.
        brief: How to reach the cluster, with a short time for an answer.
        session_id: Id of the session.
        shared: What the session owns.
        now: The session's source of time.
        beside: Does what waits for brokers.
        wake: Wakes the session's thread; called from any thread.

    Attributes:
        actions: Does what owners want of brokers.
        presence: Says that the member is alive.
        right: The right of the member to deliver.
        follower: Follows the log.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        brief: KafkaConfig,
        session_id: str,
        shared: Shared,
        now: Callable[[], float],
        beside: Beside,
        wake: Callable[[], None],
    ) -> None:
        self.follower = LogFollower(config, brief, shared, now, wake)
        self.actions = BrokerActions(config, brief, shared, now, beside)
        self.presence = Presence(config, session_id, shared, self.actions, now)
        self.right = self.presence.right
        self._epochs = EpochWriter(config.group, self.actions.unblock)
        self._shared = shared
        self._now = now

    # -- from any thread -----------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition | None:
        """The partition of the group's log; None if it was not found yet."""
        link = self.follower.link
        return None if link is None else link.partition

    def metrics(self) -> LogMetrics | None:
        """The size of the group's log; None if it was not found yet."""
        link = self.follower.link
        return None if link is None else link.load.metrics()

    def found(self, wait: Callable[[], None]) -> TopicPartition:
        """The partition of the group's log, once it was found.

        Args:
            wait: Waits until something may have changed; called until the log was found.
        """
        with self._shared.changed:
            while (partition := self.partition) is None:
                wait()
        return partition

    # -- the loop ------------------------------------------------------------------------------

    @property
    def sockets(self) -> dict[int, int]:
        """The sockets that become readable when there is an answer; see :class:`.Waker`."""
        answer = self.follower.fileno
        return {} if answer is None else {answer: select.POLLIN}

    @property
    def next_time(self) -> float:
        """The time of the next step, if nothing happens before. Takes the lock."""
        until, link = self.follower.next_time, self.follower.sound_link
        if link is None:
            return until
        if self.presence.may_act(link):
            with self._shared.changed:
                until = min(until, self._shared.ownerships.next_time())
        return min(until, self.presence.next_time, self._epochs.retry_at)

    def ask(self) -> None:
        """Ask for what is new, unless that is under way."""
        self.follower.ask()

    def receive(self, ready: Collection[int]) -> None:
        """Take what has come.

        Args:
            ready: Which of :attr:`sockets` are ready.
        """
        if self.follower.fileno in ready:
            self.follower.receive()
        link = self.follower.sound_link
        if link is not None:
            link.writer.serve()

    def step(self) -> None:
        """Do what follows from what was taken."""
        link = self.follower.sound_link
        self.presence.look(link)
        if link is None:
            return
        if link.denied is not None:  # then do without, or end
            with self._shared.changed:
                self._shared.ownerships.deny(link.denied)
        self.presence.beat(link)
        self.presence.look_at_signs(link)
        if self.presence.may_act(link):
            self.actions.act(link)
        self._serve_epochs(link)

    def renew_right(self) -> bool:
        """Renew the right to deliver if the log was read to its end; whether it had lapsed.

        Once owners have acted upon what was read.
        """
        link, right = self.follower.sound_link, self.right
        was_late = link is not None and right.reads_late(self._now())
        if link is not None and link.tail.last.caught_up:
            right.log_read(link.tail.last.read_at)
        return was_late and not right.reads_late(self._now())

    def write_epoch(self, epoch: Epoch, written: Written, is_wanted: Callable[[], bool]) -> None:
        """Write an epoch; see :meth:`.EpochWriter.write`."""
        self._epochs.write(epoch, written, is_wanted)

    def _serve_epochs(self, link: LogLink) -> None:
        with self._shared.changed:
            log = self._shared.ownerships.log
            if self._epochs.is_lost(log) and self._shared.member is not None:
                self._shared.member.rebalance()
            self._epochs.serve(link, log, self._now())

    # -- the end -------------------------------------------------------------------------------

    def leave(self) -> None:
        """Give up all claims, as far as the time goes."""
        link = self.follower.link
        if link is None:
            return
        with self._shared.changed:
            keys = [*self._shared.ownerships.give_up(), *self._shared.ownerships.claims()]
            seconds = self._shared.close_by - time.monotonic()
        keys = [] if self._shared.keeps_claims else keys
        for key in (*keys, beat_key(self.presence.session_id)):
            self.actions.delete(link, key)
        link.writer.flush(max(min(seconds, ANSWER_MS / 1000), 0.0))

    def withdraw(self) -> None:
        """Delete the own beat: it must not keep those from starting who have the right settings."""
        link = self.follower.link
        if link is not None:
            self.actions.delete(link, beat_key(self.presence.session_id))
            link.writer.flush(ANSWER_MS / 1000)

    def closers(self) -> Iterator[Callable[[], None]]:
        """Calls for the end, the last one first, each whatever others raise."""
        yield self.actions.close
        yield self.follower.close
