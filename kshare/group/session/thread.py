"""The one thread of a session: reads the log, does what owners want, and speaks for the member.

::

    find the log --> ask, wait for answers | a wake-up | time --> apply --> owners' actions
         ^                                                                        |
         +---- after a fault: is it the same log? <-- the member's dialogue <-----+

Nothing in the loop waits for brokers: reads lie at the broker, librdkafka writes, connections are
made and all else is asked by short-lived threads, and comes as events. So a coordinator that does
not answer stops no reading of the log, and a leader of the log that does not stops no heartbeat.
"""

import logging
import select
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from kshare.core.progress import TopicPartition
from kshare.core.showing import shown
from kshare.errors import ForeignMemberError, KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Right
from kshare.group.log.log_link import EpochWriter, LogLink
from kshare.group.log.tail import LogTail
from kshare.group.metrics import LogMetrics
from kshare.group.protocol.cooperator import Share
from kshare.group.session.broker_actions import BrokerActions
from kshare.group.session.log_follower import ANSWER_MS, LogFollower
from kshare.group.session.presence import Presence, beat_key
from kshare.group.session.shared import Shared
from kshare.wire.protocol.background import Beside, Waker
from kshare.wire.protocol.retry import CHANCE, boot_time

__all__ = ["SessionThread"]

_log = logging.getLogger("kshare.group")

_LONGEST_WAIT_SECONDS: Final = 1.0


class _Announcer:
    """Tells callers what has changed.

    Args:
        shared: What the session owns.
        right: The right to deliver; ended with the session.
        on_change: Called when there is something new.
    """

    def __init__(
        self,
        shared: Shared,
        right: Right,
        on_change: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._right = right
        self._on_change = on_change
        self._said: tuple[Any, ...] = ()

    def look(self, *, is_back: bool) -> None:
        """Say what has changed since the last look, if anything has.

        Args:
            is_back: Whether the right to deliver has come back since then.
        """
        with self._shared.changed:
            ownerships = self._shared.ownerships
            starts = tuple(
                (tp, each.start, each.owner.phase, _offered(ownerships.share(tp)))
                for tp, each in ownerships.by_partition.items()
            )
        said = (self._right.is_proven, starts)
        if is_back or said != self._said:
            self._said = said
            self._on_change()

    def fail(self, error: KshareError) -> None:
        """The session cannot go on: nothing is delivered any more."""
        with self._shared.changed:
            self._shared.fault = error
            for each in self._shared.ownerships.by_partition.values():
                each.start = None
            self._right.ended()
            self._shared.changed.notify_all()
        self._on_change()


class SessionThread:
    """The thread, and what it uses.

    Args:
        config: The consumer's configuration.
        session_id: Id of the session.
        on_change: Called when what the session says has changed.
        now: Source of time; suspension counts.

    Attributes:
        shared: What callers may use, under its condition.
        actions: Does what owners want of brokers.
        presence: Says that the member is alive.
        beside: Does what waits for brokers.
        epochs: Writes epochs of the group.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        session_id: str,
        on_change: Callable[[], None],
        now: Callable[[], float] = boot_time,
    ) -> None:
        kafka, seconds = config.kafka, config.claim_timeout_ms / 1000
        brief = replace(kafka, api_timeout_ms=min(kafka.api_timeout_ms, ANSWER_MS))
        ids = config.transactional_id, config.lease_records, config.lease_seconds
        ownerships = Ownerships(
            session_id,
            config.group,
            seconds,
            *ids,
            individual=config.individual,
            uniform=CHANCE.uniform,
        )
        self.shared = Shared(ownerships)
        self._now = now
        self._waker = Waker()
        self.beside = Beside(self._waker.wake)
        self._follower = LogFollower(config, brief, self.shared, now, self._waker.wake)
        self.actions = BrokerActions(config, brief, self.shared, self._follower, now, self.beside)
        self.presence = Presence(config, session_id, self.shared, self.actions, now)
        self._announcer = _Announcer(self.shared, self.presence.right, on_change)
        self.epochs = EpochWriter(config.group, self.actions.unblock)

    def start(self) -> None:
        """Start the thread."""
        self._waker.open()
        name = self.presence.session_id
        threading.Thread(target=self._run, name=f"kshare {name}", daemon=True).start()

    @property
    def read_at(self) -> float:
        """When the log was last known to be read to its end."""
        return self.presence.right.read_at

    def log_partition(self) -> TopicPartition | None:
        """The partition of the group's log; None if it was not found yet."""
        link = self._follower.link
        return None if link is None else link.partition

    def log_metrics(self) -> LogMetrics | None:
        """The size of the group's log; None if it was not found yet. From any thread."""
        link = self._follower.link
        return None if link is None else link.load.metrics()

    def wake(self) -> None:
        """Let the thread look at what was asked of it."""
        self._waker.wake()

    # -- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.shared.is_closing:
                self._step()
            self._leave()
            self._warn()
        except ForeignMemberError as error:
            self._fail(error)
            with suppress(KshareError):
                self._withdraw()
        except KshareError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(KshareError(f"the session's thread has ended: {shown(error)}"))
            raise
        finally:
            with self.shared.changed:
                self.shared.is_closed = True
                self.shared.changed.notify_all()  # a commit that is waited for will not be done
            self._close()

    def _step(self) -> None:
        self._follower.ask()
        ready = self._wait()
        if self._follower.fileno in ready:
            self._follower.receive()
        link = self._follower.sound_link
        if link is not None:
            link.writer.serve()
        with self.shared.changed:
            self.beside.take()
        self.presence.look(link)
        if link is not None:
            if link.denied is not None:  # then do without, or end
                with self.shared.changed:
                    self.shared.ownerships.deny(link.denied)
            self.presence.beat(link)
            self.presence.look_at_signs(link)
            if self.presence.may_act(link):
                self.actions.act(link)
            self._serve_epochs(link)
        self._serve_members(ready)
        # Last: by now owners have acted upon what was read.
        is_back = link is not None and self._renew_right(link.tail)
        self._announcer.look(is_back=is_back)
        self._warn()

    def _renew_right(self, tail: LogTail) -> bool:
        """Renew the right to deliver if the log was read to its end; whether it had lapsed."""
        right = self.presence.right
        was_late = right.reads_late(self._now())
        if tail.last.caught_up:
            right.log_read(tail.last.read_at)
        return was_late and not right.reads_late(self._now())

    def _serve_epochs(self, link: LogLink) -> None:
        with self.shared.changed:
            log = self.shared.ownerships.log
            if self.epochs.is_lost(log) and self.shared.member is not None:
                self.shared.member.rebalance()
            self.epochs.serve(link, log, self._now())

    def _serve_members(self, ready: Collection[int]) -> None:
        for member in tuple(self.shared.served):
            member.step(ready)
            if member.is_closed:
                with self.shared.changed:
                    self.shared.served.remove(member)

    def _warn(self) -> None:
        """Log what there is to be said."""
        with self.shared.changed:
            warnings, self.shared.ownerships.warnings = self.shared.ownerships.warnings, []
            notices, self.shared.notices = self.shared.notices, []
        for text in notices:
            _log.info("%s", text)
        for text in warnings:
            _log.warning("%s", text)

    def _wait(self) -> list[int]:
        """Wait for something to do; return the sockets that are ready."""
        until = self._follower.next_time
        link = self._follower.sound_link
        if link is not None:
            if self.presence.may_act(link):
                with self.shared.changed:
                    until = min(until, self.shared.ownerships.next_time())
            until = min(until, self.presence.next_time, self.epochs.retry_at)
        seconds = 0.0 if self.beside.has_events else until - self._now()
        answer = self._follower.fileno
        return self._wait_for(seconds, {} if answer is None else {answer: select.POLLIN})

    def _wait_for(self, seconds: float, sockets: dict[int, int]) -> list[int]:
        """Wait, and for what members wait for, too."""
        for member in tuple(self.shared.served):
            seconds = min(seconds, member.seconds_until_due)
            sockets = sockets | member.sockets
        return self._waker.wait(min(seconds, _LONGEST_WAIT_SECONDS), sockets)

    def _leave(self) -> None:
        """Give up all claims, as far as the time goes."""
        link = self._follower.link
        if link is None:
            return
        with self.shared.changed:
            keys = [*self.shared.ownerships.give_up(), *self.shared.ownerships.claims()]
            seconds = self.shared.close_by - time.monotonic()
        keys = [] if self.shared.keeps_claims else keys
        for key in (*keys, beat_key(self.presence.session_id)):
            self.actions.delete(link, key)
        link.writer.flush(max(min(seconds, ANSWER_MS / 1000), 0.0))

    def _withdraw(self) -> None:
        """Delete the own beat: it must not keep those from starting who have the right settings."""
        link = self._follower.link
        if link is not None:
            self.actions.delete(link, beat_key(self.presence.session_id))
            link.writer.flush(ANSWER_MS / 1000)

    def _fail(self, error: KshareError) -> None:
        with self.shared.changed:
            group = self.shared.ownerships.log.group
            if self.shared.member is not None:
                self.shared.member.session_ended(error)
        self._warn()
        _log.error("group %s, member %s: %s", group, self.presence.session_id, error)
        self._announcer.fail(error)

    def _close(self) -> None:
        """Serve members until they have ended, and close the log; each, whatever others raise."""
        with ExitStack() as stack:
            stack.callback(self._end)
            stack.callback(self._serve_until_ended)
            stack.callback(self.actions.close)
            stack.callback(self._follower.close)
            self._serve_members([])  # LeaveGroup waits for no client that is to be closed
            if self.shared.fault is None:  # else it may be long until the user closes
                self._serve_until_ended()

    def _serve_until_ended(self) -> None:
        ready: list[int] = []
        while self.shared.served:
            self._serve_members(ready)
            ready = self._wait_for(_LONGEST_WAIT_SECONDS, {})

    def _end(self) -> None:
        self._waker.close()
        with self.shared.changed:
            for member in self.shared.served:  # serving it has failed
                member.end()
            self.shared.has_ended = True
            self.shared.changed.notify_all()


def _offered(share: Share | None) -> object:
    """What callers wait for of a share."""
    return None if share is None else (share.held, share.free, share.is_asking)
