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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import pyarrow as pa

from kshare.errors import FencedError, KshareError
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.hold import Hold
from kshare.group.consumer.processing import Processing
from kshare.group.consumer.subscriber import Subscriber
from kshare.group.consumer.transaction import Transactions
from kshare.group.delivery.tail import Tail
from kshare.group.message import Message
from kshare.group.model import ConsumerClosedError
from kshare.group.session.interface import Session
from kshare.wire.protocol.waker import Waker

__all__ = ["Fresh", "Receiver", "Take", "deadline_of", "wall_time"]

_log = logging.getLogger("kshare.group")

_FRESH_SECONDS: Final = 0.01
"""For so long, records are handed out after one look at the session."""
_TICK_SECONDS: Final = 1.0

Take = Callable[[float], bool]
"""Gets records, waiting so many seconds at most; whether it got some."""

wall_time = time.time  # unlike the monotonic clock, it goes on while the machine is suspended


def deadline_of(timeout: float | None) -> float:
    """When a call has to return, by the monotonic clock; None or below 0 is never."""
    return float("inf") if timeout is None or timeout < 0 else time.monotonic() + timeout


@dataclass(slots=True)
class Fresh:
    """Messages that may be handed out without another look at the session.

    Attributes:
        rows: The messages.
        since: From when they may be, by :data:`wall_time`: before that, the clock was set back.
        until: Until when they may be.
    """

    rows: Iterator[Message] = field(default_factory=lambda: iter(()))
    since: float = 0.0
    until: float = 0.0


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
        fresh: Messages that may be handed out.
        subscriber: The consumer's membership; None if it has none.
        transactions: The consumer's transactions; None if it has none.
        hold: Time in which nothing may be handed out.
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
        self.fresh = Fresh()
        self.subscriber: Subscriber | None = None
        self.transactions: Transactions | None = None
        self.hold = Hold()
        self._tail = tail
        self._session = session
        self._state = state
        self._commits = commits
        self._processing = processing
        self._waker = waker

    def next_rows(self, timeout: float | None, *, continues: bool = False) -> bool:
        """Wait for messages in :attr:`fresh`; whether there are any."""

        def take(seconds: float) -> bool:
            if not self._tail.rows.left:
                self._tail.next_rows(seconds)
            self.fresh.rows = self._tail.rows.messages
            return self._tail.rows.left > 0

        return self.wait(take, timeout, continues=continues)

    def messages(self, most: int, timeout: float | None) -> list[Message]:
        """The next messages, as many as come in time; they count as returned by one call.

        Args:
            most: Maximum number of messages.
            timeout: Maximum time to wait; None or below 0 for no limit.

        Raises:
            KshareError: As of :meth:`wait`, with nothing to return.
        """
        deadline = deadline_of(timeout)
        messages: list[Message] = []
        while len(messages) < most:
            try:
                left = max(deadline - time.monotonic(), 0.0)  # below 0 would be without a limit
                if not self.next_rows(left, continues=bool(messages)):
                    break
            except KshareError:
                if messages:  # the next call says it again
                    break
                raise
            self._state.is_batch = True
            self.look_again()
            messages += islice(self.fresh.rows, most - len(messages))
        return messages

    def batch(self, timeout: float | None) -> pa.RecordBatch | None:
        """The next record batch of one partition; None if none came in time.

        With ``max.in.flight.per.key``, of records that may go out now.

        Args:
            timeout: Maximum time to wait; None or below 0 for no limit.
        """
        tail = self._tail
        self.fresh.rows = iter(())
        if tail.limits_keys:
            has_some = self.next_rows(timeout)
        else:
            has_some = self.wait(tail.fetch_batch, timeout, continues=False)
        if not has_some:
            return None
        with self._state.lock:
            self._state.is_batch = True
            self.look_again()
            if not tail.limits_keys:
                return tail.take_batch()
            batch = tail.take_ready()
            self.fresh.rows = iter(())
            return batch

    def wait(self, take: Take, timeout: float | None, *, continues: bool) -> bool:
        """Wait until there is something to hand out.

        Args:
            take: Gets it.
            timeout: Maximum time to wait; None or below 0 for no limit.
            continues: Whether the same call has returned records already.

        Raises:
            ConsumerClosedError: The consumer is closed.
            RuntimeError: Nothing was assigned or subscribed; or there is no open transaction, and
                has to be.
        """
        if self._state.is_closed:
            raise ConsumerClosedError
        if not self._state.has_begun:
            raise RuntimeError("nothing to receive: call subscribe() or assign() before")
        if self.transactions is not None and self.transactions.current is None:
            raise RuntimeError("transactional.id is set: receive within consumer.transaction()")
        deadline = deadline_of(timeout)
        with self._state.call():
            meter = self._tail.meter
            if meter is not None:
                meter.called(continues=continues)
            if not continues:
                self._processing.settle()
            has_some = self._wait(take, deadline, continues=continues)
            if meter is not None:
                meter.returned(self._tail.current if has_some else None)
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
            if self._tail.meter is not None:
                self._tail.meter.look(self._tail)
        self._check_session()
        if self._session.seconds_to_deliver() < 0:
            # Before the first start, nobody counts it.
            member = self._session.member
            with self.hold.waiting(member) if self._tail.deliveries else nullcontext():
                self._waker.wait(seconds)
            return False
        self.hold.over()
        return self._took(take, min(seconds, self._commits.seconds_left)) and self._may_hand_out()

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
        self.fresh.since = wall_time()
        self.fresh.until = self.fresh.since + seconds
        if self._state.is_changed:
            self.look_again()
            return False
        return seconds >= 0

    def look_again(self) -> None:
        """Hand out no record without another look at the session."""
        self.fresh.until = 0.0

    def interrupt(self) -> None:
        """Something has changed: look again before the next record."""
        self._state.is_changed = True
        self.look_again()
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
                self.fresh.rows = iter(())
            self.interrupt()
