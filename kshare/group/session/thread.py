"""The one thread of a session: reads the log, does what owners want, and speaks for the member.

::

    ask the log --> wait for answers | a wake-up | time --> apply --> owners' actions
         ^                                                                 |
         +------------------------ the member's dialogue <-----------------+

What it does with the log is :mod:`.by_log`; in a group that keeps none, :mod:`.by_coordinator`.
Nothing in the loop waits for brokers: reads lie at the broker, librdkafka writes, connections are
made and all else is asked by short-lived threads, and comes as events. So a coordinator that does
not answer stops no reading of the log, and a leader of the log that does not stops no heartbeat.
"""

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from typing import Any, Final

from kshare.core.showing import shown
from kshare.errors import ForeignMemberError, KshareError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownerships import LeaderEpochsOf, Ownerships
from kshare.group.core.right import Right
from kshare.group.protocol.owners.leases import Share
from kshare.group.session.by_coordinator import ByCoordinator
from kshare.group.session.by_log import ByLog
from kshare.group.session.log_follower import ANSWER_MS
from kshare.group.session.shared import Shared
from kshare.kafka.protocol.background import Beside, Waker
from kshare.kafka.protocol.retry import CHANCE, boot_time

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
        leader_epochs: Which leaders wrote what was read of a partition.
        now: Source of time; suspension counts.

    Attributes:
        shared: What callers may use, under its condition.
        ground: What the session goes by: the group's log, or its coordinator alone.
        beside: Does what waits for brokers.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        session_id: str,
        on_change: Callable[[], None],
        leader_epochs: LeaderEpochsOf,
        now: Callable[[], float] = boot_time,
    ) -> None:
        kafka, seconds = config.kafka, config.claim_timeout_ms / 1000
        brief = kafka.within(min(kafka.api_timeout_ms, ANSWER_MS))
        ids = config.transactional_id, config.lease_records, config.lease_seconds
        ownerships = Ownerships(
            session_id,
            config.group,
            seconds,
            *ids,
            keeps_log=config.keeps_log,
            leader_epochs=leader_epochs,
            uniform=CHANCE.uniform,
        )
        self.shared = Shared(ownerships)
        self._now = now
        self._waker = Waker()
        self.beside = Beside(self._waker.wake)
        given = config, brief, session_id, self.shared, now, self.beside
        self.ground: ByLog | ByCoordinator = (
            ByLog(*given, self._waker.wake) if config.keeps_log else ByCoordinator(*given)
        )
        self._session_id = session_id
        self._announcer = _Announcer(self.shared, self.ground.right, on_change)

    def start(self) -> None:
        """Start the thread."""
        self._waker.open()
        name = f"kshare {self._session_id}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def read_at(self) -> float:
        """When the log was last known to be read to its end."""
        return self.ground.right.read_at

    def wake(self) -> None:
        """Let the thread look at what was asked of it."""
        self._waker.wake()

    # -- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.shared.is_closing:
                self._step()
            self.ground.leave()
            self._warn()
        except ForeignMemberError as error:
            self._fail(error)
            with suppress(KshareError):
                self.ground.withdraw()
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
        ground = self.ground
        ground.ask()
        ready = self._wait()
        ground.receive(ready)
        with self.shared.changed:
            self.beside.take()
        ground.step()
        self._serve_members(ready)
        # Last: by now owners have acted upon what was read.
        self._announcer.look(is_back=ground.renew_right())
        self._warn()

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
        seconds = 0.0 if self.beside.has_events else self.ground.next_time - self._now()
        return self._wait_for(seconds, self.ground.sockets)

    def _wait_for(self, seconds: float, sockets: dict[int, int]) -> list[int]:
        """Wait, and for what members wait for, too."""
        for member in tuple(self.shared.served):
            seconds = min(seconds, member.seconds_until_due)
            sockets = sockets | member.sockets
        return self._waker.wait(min(seconds, _LONGEST_WAIT_SECONDS), sockets)

    def _fail(self, error: KshareError) -> None:
        with self.shared.changed:
            group = self.shared.ownerships.log.group
            if self.shared.member is not None:
                self.shared.member.session_ended(error)
        self._warn()
        _log.error("group %s, member %s: %s", group, self._session_id, error)
        self._announcer.fail(error)

    def _close(self) -> None:
        """Serve members until they have ended, and close the log; each, whatever others raise."""
        with ExitStack() as stack:
            stack.callback(self._end)
            stack.callback(self._serve_until_ended)
            for close in self.ground.closers():
                stack.callback(close)
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
