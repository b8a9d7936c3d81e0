"""How a consumer waits for records, and what it looks at before it hands them out.

::

    follow the group --> commit if it is time --> follow the session --> may it hand out?
           ^                                                                |       |
           |                                              no: wait <--------+       v
           +---- woken, or time to look again ------------------------- fetch --> rows

Guarantees: no record is handed out that was got before something changed, and none once the session
may be over. The caller holds :meth:`.CallState.call`.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from kshare.errors import FencedError
from kshare.group.call_state import CallState
from kshare.group.commits import Commits
from kshare.group.consumer_session import Session
from kshare.group.load_meter import LoadMeter
from kshare.group.message import Message
from kshare.group.metrics import Counters
from kshare.group.model import ConsumerClosedError
from kshare.group.processing import Processing
from kshare.group.subscriber import Subscriber
from kshare.group.tail import Tail
from kshare.group.transaction import Transactions
from kshare.wire.protocol.waker import Waker

__all__ = ["Receiver", "Take", "deadline_of", "wall_time"]

_log = logging.getLogger("kshare.group")

_FRESH_SECONDS: Final = 0.01
"""For so long, records are handed out after one look at the session."""
_TICK_SECONDS: Final = 1.0
_HELD_SECONDS = 10.0
"""After this time without the right to hand records out, there is a warning."""

Take = Callable[[float], bool]
"""Gets records, waiting so many seconds at most; whether it got some."""

wall_time = time.time  # unlike the monotonic clock, it goes on while the machine is suspended


def deadline_of(timeout: float | None) -> float:
    """When a call has to return, by the monotonic clock; None or below 0 is never."""
    return float("inf") if timeout is None or timeout < 0 else time.monotonic() + timeout


class Receiver:
    """Waits for records. For the thread that polls, but for :meth:`interrupt`.

    Args:
        tail: Hands records out.
        session: Says whether it may.
        state: What the consumer's threads share.
        commits: Commits from time to time.
        processing: What is to be committed.
        waker: Ends waiting.

    Attributes:
        rows: Messages that may be handed out.
        since: From when they may be without a look at the session, by :data:`wall_time`: before
            that, the clock was set back.
        until: Until when they may be.
        subscriber: The consumer's membership; None if it has none.
        transactions: The consumer's transactions; None if it has none.
        counters: What metrics count.
        meter: Measures the load of what the consumer owns; None if nobody looks at it.
    """

    def __init__(
        self,
        tail: Tail,
        session: Session,
        state: CallState,
        commits: Commits,
        processing: Processing,
        waker: Waker,
    ) -> None:
        self.rows: Iterator[Message] = iter(())
        self.since = self.until = 0.0
        self.subscriber: Subscriber | None = None
        self.transactions: Transactions | None = None
        self.counters = Counters()
        self.meter: LoadMeter | None = None
        self._tail = tail
        self._session = session
        self._state = state
        self._commits = commits
        self._processing = processing
        self._waker = waker
        self._held_since: float | None = None  # no records may be handed out; inf once it was said

    def next_rows(self, timeout: float | None, *, continues: bool = False) -> bool:
        """Wait for messages in :attr:`rows`; whether there are any."""

        def take(seconds: float) -> bool:
            if not self._tail.rows.left:
                self._tail.next_rows(seconds)
            self.rows = self._tail.rows.messages
            return self._tail.rows.left > 0

        return self.wait(take, timeout, continues=continues)

    def wait(self, take: Take, timeout: float | None, *, continues: bool) -> bool:
        """Wait until there is something to hand out.

        Args:
            take: Gets it.
            timeout: Maximum time to wait; None or below 0 for no limit.
            continues: Whether the same call has returned records already.

        Raises:
            ConsumerClosedError: The consumer is closed.
            RuntimeError: There is no open transaction, though there has to be.
        """
        if self._state.is_closed:
            raise ConsumerClosedError
        if self.transactions is not None and self.transactions.current is None:
            raise RuntimeError("transactional.id is set: receive within consumer.transaction()")
        deadline = deadline_of(timeout)
        with self._state.call():
            if self.meter is not None:
                self.meter.called(continues=continues)
            if not continues:
                self._processing.settle()
            has_some = self._wait(take, deadline, continues=continues)
            if self.meter is not None:
                self.meter.returned(self._tail.current if has_some else None)
            return has_some

    def _wait(self, take: Take, deadline: float, *, continues: bool) -> bool:
        while self.follow_group(continues=continues):
            with self._state.gate:
                pass  # one who changes what is read comes first
            with self._state.polling:
                if self._state.is_closed:
                    return False
                seconds = min(deadline - time.monotonic(), _TICK_SECONDS)
                if self._has_some(take, seconds, continues=continues):
                    return True
            if deadline <= time.monotonic():
                return False
        return False

    def _has_some(self, take: Take, seconds: float, *, continues: bool) -> bool:
        """Look at everything once; whether there is something that may be handed out."""
        self._state.is_changed = False
        processing = self._processing
        self._commits.serve(processing.work, processing.ranges, processing.chunks)
        with self._state.lock:
            self._tail.refresh(continues=continues)
            self._tail.pass_over()
            if self.meter is not None:
                self.meter.look(self._tail)
        self._check_session()
        if self._session.seconds_to_deliver() < 0:
            self._warn_if_held()
            with self.counters.fenced(has_started=bool(self._tail.deliveries)):
                self._waker.wait(seconds)
            return False
        self._held_since = None
        return self._took(take, min(seconds, self._commits.seconds_left)) and self._may_hand_out()

    def _warn_if_held(self) -> None:
        if not self._tail.deliveries:
            return
        now = time.monotonic()
        self._held_since = self._held_since or now
        if now - self._held_since >= _HELD_SECONDS:
            self._held_since = float("inf")
            _log.warning(
                "%s has handed out nothing for %g s: the brokers of the group's log or its "
                "coordinator do not answer, so others may have its key hashes",
                self._session.member,
                _HELD_SECONDS,
            )

    def follow_group(self, *, continues: bool) -> bool:
        """Do what the group wants; whether to go on: not amid a call's records or a transaction."""
        subscriber = self.subscriber
        if subscriber is None or self._state.is_closed:
            return True
        if subscriber.is_rebalancing:
            raise RuntimeError("poll in a callback of subscribe: return from it first")
        subscriber.member.polled()
        if not subscriber.has_work:
            subscriber.member.check()
            return True
        transactions = self.transactions
        if continues or (transactions is not None and transactions.current is not None):
            return False  # what is handed out already comes first
        if transactions is not None:
            transactions.resolve()
        with self._state.polling:
            subscriber.follow()
        return True

    def _check_session(self) -> None:
        try:
            self._session.check()
        except FencedError as error:
            if self.subscriber is None:
                raise
            _log.warning("%s; the member joins its group again", error)
            self.subscriber.member.fenced()

    def _took(self, take: Take, seconds: float) -> bool:
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
        self.since = wall_time()
        self.until = self.since + seconds
        if self._state.is_changed:
            self.until = 0.0
            return False
        return seconds >= 0

    def interrupt(self) -> None:
        """Something has changed: look again before the next record."""
        self._state.is_changed = True
        self.until = 0.0
        self._waker.wake()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Change what is read: records that were not returned yet are looked at again.

        Raises:
            ConsumerClosedError: The consumer is closed.
        """
        if self._state.is_closed:
            raise ConsumerClosedError
        with self._state.gate:
            self.interrupt()
            with self._state.polling, self._state.lock:
                yield
                self.rows = iter(())
            self.interrupt()
