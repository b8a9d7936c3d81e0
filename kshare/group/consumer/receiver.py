"""How a consumer waits for records, and what it looks at before it hands them out.

::

    follow the group --> commit if it is time --> follow the session --> may it hand out?
           ^                                                                |       |
           |                                              no: wait <--------+       v
           +---- woken, or time to look again ------------------------- fetch --> rows
                                                                                   |
    returned <-- may it still? <-- enough, or no more in time <-- collected <-----+
                   no: back

Guarantees: records fetched before a rebalance are not returned after it; nothing is returned once
the session may have expired. What a call has collected is looked at when the call returns: without
the right to it by then, it goes back.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from kshare.errors import ConsumerClosedError, FencedError, KshareError, PolicyError
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.subscriber import Subscriber
from kshare.group.consumer.transaction import Transactions
from kshare.group.core.handing_out import Call, are_in_place
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.message import Message
from kshare.group.metrics import Hold
from kshare.group.session.session import GroupSession
from kshare.wire.protocol.background import Waker

__all__ = ["Fresh", "Receiver", "Take", "deadline_of", "wall_time"]

_log = logging.getLogger("kshare.group")

_FRESH_SECONDS: Final = 0.01
"""For so long, records are handed out after one look at the session."""
_TICK_SECONDS: Final = 1.0

Take = Callable[[float], bool]
"""Gets records, waiting for a number of seconds at most; returns True if it got some."""

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
        dispatcher: Hands records out.
        session: Says whether it may.
        state: What the consumer's threads share.
        commits: Commits from time to time.
        waker: Ends waiting.

    Attributes:
        fresh: Messages that may be handed out.
        subscriber: The consumer's membership; None if it has none.
        transactions: The consumer's transactions; None if it has none.
        hold: Time in which nothing may be handed out.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: GroupSession,
        state: CallState,
        commits: Commits,
        waker: Waker,
    ) -> None:
        self.fresh = Fresh()
        self.subscriber: Subscriber | None = None
        self.transactions: Transactions | None = None
        self.hold = Hold()
        self._dispatcher = dispatcher
        self._session = session
        self._state = state
        self._commits = commits
        self._waker = waker
        self._collected = Call()  # by the call that is under way
        self._unsaid: KshareError | None = None  # what went wrong amid a call that had records

    def next_rows(self, timeout: float | None, *, continues: bool = False) -> bool:
        """Wait for messages in :attr:`fresh`; whether there are any."""

        def take(seconds: float) -> bool:
            if not self._dispatcher.rows.left:
                self._dispatcher.next_rows(seconds)
            self.fresh.rows = self._dispatcher.rows.messages
            return self._dispatcher.rows.left > 0

        return self.wait(take, timeout, continues=continues)

    # -- what a call collects ----------------------------------------------------------------

    def messages(self, most: int, timeout: float | None) -> list[Message]:
        """The next messages, as many as come in time; they count as returned by one call.

        Args:
            most: Maximum number of messages.
            timeout: Maximum time to wait; None or below 0 for no limit.

        Raises:
            KshareError: As of :meth:`wait`, with nothing to return.
        """
        deadline, call = deadline_of(timeout), Call()
        while True:
            has_some = self.gather(call, most, deadline)
            messages = self.return_gathered(call)
            is_over = self._state.is_closed or time.monotonic() >= deadline
            if messages or not has_some or is_over:
                return messages

    def gather(self, call: Call, most: int, deadline: float) -> bool:
        """Collect messages, as many as come in time; whether there are any to return.

        Args:
            call: Where to collect them.
            most: Maximum number of messages.
            deadline: When to end, by the monotonic clock.

        Raises:
            KshareError: As of :meth:`wait`, with nothing collected.
        """
        self._begin(call)
        call.is_gathered = False
        try:
            while len(call.messages) < most and not call.is_cancelled:
                left = max(deadline - time.monotonic(), 0.0)  # below 0 would be without a limit
                if not self.next_rows(left, continues=not call.is_empty):
                    break
                with self._state.lock:
                    if self._dispatcher.rows.left and not call.is_cancelled:
                        out = self._dispatcher.out
                        call.took(out.delivery)
                        out.collect(most - len(call.messages), call.messages)
        except (KshareError, ConsumerClosedError) as error:
            if call.is_empty:
                raise
            self._keep(error)
        except BaseException:
            self._give_back()
            raise
        with self._state.lock:
            call.is_gathered = True
            if call.is_cancelled:
                self._give_back()
        return not call.is_empty

    def return_gathered(self, call: Call) -> list[Message]:
        """Return what was gathered, if it may be returned now; if not, it goes back.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        with self._state.lock:
            if call.is_empty or not self._may_return(call):
                return []
            self._state.is_batch = True
            self.look_again()
            messages = call.confirm()
            if not self._dispatcher.released.has_new:
                return messages
            return [each for each in messages if not self._comes_again(each)]

    def await_rows(self, call: Call, deadline: float) -> bool:
        """Wait until there is something for :meth:`take`; whether there is.

        Args:
            call: What may be cancelled.
            deadline: When to end, by the monotonic clock.
        """
        self._begin(call)
        return self.next_rows(max(deadline - time.monotonic(), 0.0))

    def take(self) -> Message | None:
        """Return the message that is there, if it may be returned now; else None.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        with self._state.lock:
            dispatcher = self._dispatcher
            if not dispatcher.rows.left:
                return None
            current = {dispatcher.out.current: dispatcher.deliveries[dispatcher.out.current]}
            if not self._is_unfenced() or self._session.seconds_to_deliver() < 0:
                return None
            if not are_in_place(current, dispatcher.deliveries, self._session.started()):
                return None
            self._refresh()
            # Another thread may have changed what is read.
            self.fresh.rows = dispatcher.rows.messages
            message = next(self.fresh.rows)
            return None if self._comes_again(message) else message

    def _comes_again(self, message: Message) -> bool:
        """True if another thread has released an earlier record of its key meanwhile."""
        return self._dispatcher.released.is_new(message.topic_partition) and message.is_released()

    def batch(self, timeout: float | None) -> pa.RecordBatch | None:
        """The next record batch of one partition; None if none came in time.

        With ``max.in.flight.per.key``, of records that may go out now.

        Args:
            timeout: Maximum time to wait; None or below 0 for no limit.
        """
        deadline, call = deadline_of(timeout), Call()
        while self.await_batch(call, deadline):
            batch = self.return_batch(call)
            if batch is not None or time.monotonic() >= deadline:
                return batch
        return None

    def await_batch(self, call: Call, deadline: float) -> bool:
        """Wait until there is something for :meth:`return_batch`; whether there is.

        Args:
            call: Where to collect it.
            deadline: When to end, by the monotonic clock.
        """
        self._begin(call)
        left = max(deadline - time.monotonic(), 0.0)
        self.fresh.rows = iter(())
        if self._dispatcher.limits_keys:
            return self.next_rows(left)
        return self.wait(self._dispatcher.fetch_batch, left, continues=False)

    def return_batch(self, call: Call) -> pa.RecordBatch | None:
        """Return the batch that is there, if it may be returned now; else None.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        with self._state.lock:
            if call.is_cancelled or not self._dispatcher.has_batch:
                return None
            if self._dispatcher.released.is_new(self._dispatcher.out.current):
                return None  # a record before it was released meanwhile: the next look obeys
            call.took(self._dispatcher.out.delivery)
            batch = self._dispatcher.collect_batch(call.messages)
            self.fresh.rows = iter(())
            if not self._may_return(call):
                return None
            self._state.is_batch = True
            self.look_again()
            call.confirm()
            return batch

    def cancel(self, call: Call) -> None:
        """Nobody waits for a call any more: it ends, and has returned nothing. For any thread."""
        with self._state.lock:
            call.is_cancelled = True
            # Amid its fetch, another thread must not change what is read: that thread gives back.
            if call is self._collected and call.is_gathered:
                self._give_back()
        self.interrupt()

    def _begin(self, call: Call) -> None:
        with self._state.lock:
            if call is not self._collected:
                self._give_back()
                self._collected = call

    def _may_return(self, call: Call) -> bool:
        """True if what was collected may be returned at this moment; if not, it goes back.

        A look that is fresh is enough, as whatever changes ends it.
        """
        fresh = self.fresh
        if fresh.since <= wall_time() < fresh.until:
            return True
        try:
            may = self._is_unfenced() and call.may_return(
                self._session.seconds_to_deliver(),
                self._dispatcher.deliveries,
                self._session.started(),
            )
        except BaseException:
            self._give_back()
            raise
        if not may:
            self._give_back()
        return may

    def _give_back(self) -> None:
        """What is collected and not returned comes again."""
        with self._state.lock:
            if not self._collected.is_empty and not self._state.is_closed:
                for partition, messages in self._collected.give_back(self._dispatcher.deliveries):
                    self._dispatcher.take_back(partition, messages)
                self.fresh.rows = iter(())
                self.look_again()

    # -- waiting -----------------------------------------------------------------------------

    def wait(self, take: Take, timeout: float | None, *, continues: bool) -> bool:
        """Wait until there is something to hand out.

        Args:
            take: Gets it.
            timeout: Maximum time to wait; None or below 0 for no limit.
            continues: Whether the same call has returned records already.

        Raises:
            ConsumerClosedError: The consumer is closed.
            KshareError: What a call before this one has met when it had records to return.
            RuntimeError: Nothing was assigned or subscribed; or there is no open transaction, and
                has to be.
        """
        deadline = deadline_of(timeout)
        with self._state.call():
            self._check_may_receive()
            if not continues:
                self._raise_kept()
            meter = self._dispatcher.meter
            if meter is not None:
                meter.called(continues=continues)
            if not continues:  # what the calls before this one returned is processed
                with self._state.lock:
                    self._dispatcher.state.settle()
                    self._state.is_batch = False
            has_some = self._wait(take, deadline, continues=continues)
            if meter is not None and not has_some:
                meter.returned(None)
            return has_some

    def _keep(self, error: KshareError | ConsumerClosedError) -> None:
        """Raise an error in the next call, as it may be said only once: by a callback, say."""
        # These two are said again for as long as they hold.
        if isinstance(error, KshareError) and not isinstance(error, FencedError | PolicyError):
            self._unsaid = error

    def _raise_kept(self) -> None:
        error, self._unsaid = self._unsaid, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Log what no call will raise any more."""
        try:
            self._raise_kept()
        except KshareError as error:
            _log.error("before the consumer was closed: %s", error, exc_info=error)

    def _check_may_receive(self) -> None:
        if self._state.is_closed:
            raise ConsumerClosedError
        if not self._state.has_begun:
            raise RuntimeError("nothing to receive: call subscribe() or assign() before")
        if self.transactions is not None and not self.transactions.may_take:
            raise RuntimeError("transactional.id is set: receive within consumer.transaction()")

    def _wait(self, take: Take, deadline: float, *, continues: bool) -> bool:
        while self.follow_group(continues=continues):
            with self._state.gate:
                pass  # one who changes what is read comes first
            with self._state.polling:
                if self._state.is_closed or self._collected.is_cancelled:
                    return False
                seconds = min(deadline - time.monotonic(), _TICK_SECONDS)
                if self._serve(take, seconds, continues=continues):
                    if self._dispatcher.meter is not None:
                        self._dispatcher.meter.returned(self._dispatcher.out.current)
                    return True
            # A call that holds records waits for none that come only once these are acknowledged.
            if deadline <= time.monotonic() or (continues and self._dispatcher.is_blocked()):
                return False
        return False

    def _serve(self, take: Take, seconds: float, *, continues: bool) -> bool:
        """Do all that is due, once; whether there is something that may be handed out.

        1. Commit, if an automatic commit is due.
        2. Follow the session and the parked keys, pass over what is of others, and measure.
        3. Give back what was collected, if it is not to be delivered now or the member is fenced.
        4. Without the right to deliver, wait for it, and return False.
        5. Call ``on_started`` for claims that are in place.
        6. Take records that are read, or wait for some.
        """
        self._state.is_changed = False
        self._commits.serve()
        with self._state.lock:
            self._dispatcher.refresh(continues=continues)
            self._dispatcher.pass_over()
            if self._dispatcher.meter is not None:
                self._dispatcher.meter.look(self._dispatcher.deliveries, self._dispatcher.end)
            is_batch = self._state.is_batch
            looks = self._dispatcher.looks
            looks.paused_logs.look(self._dispatcher.state.paused)
            looks.retention.look(lambda: self._dispatcher.metrics(is_batch=is_batch))
            if self._collected.was_stopped(self._dispatcher.deliveries):
                self._give_back()
        if not self._is_unfenced():
            self._give_back()
        if self._session.seconds_to_deliver() < 0:
            # Before the first start, nobody counts it.
            session_id = self._session.session_id
            with self.hold.waiting(session_id) if self._dispatcher.deliveries else nullcontext():
                self._waker.wait(seconds)
            return False
        self.hold.over()
        if self.subscriber is not None:
            self.subscriber.started(self._dispatcher.state.is_claimed)
        if continues and self._dispatcher.is_blocked():
            seconds = 0.0
        seconds = min(seconds, self._commits.seconds_until_due, self._dispatcher.seconds_until_due)
        return self._took(take, seconds) and self._may_hand_out()

    def seconds_to_deliver(self) -> float:
        """For how long records that were returned are surely this member's; below 0: not now.

        For any thread. A loss ends it until the callback for it has returned.
        """
        left = self._session.seconds_to_deliver()
        subscriber = self.subscriber
        return -1.0 if subscriber is not None and subscriber.member.is_lost else left

    def follow_group(self, *, continues: bool) -> bool:
        """Apply a rebalance; False if it has to wait for a call's records, or a transaction."""
        subscriber = self.subscriber
        if subscriber is None or self._state.is_closed:
            return True
        if subscriber.is_in_callback:
            raise RuntimeError("poll in a callback of subscribe: return from it first")
        subscriber.member.polled()
        if not subscriber.has_work:
            subscriber.member.check()
            return True
        transactions = self.transactions
        if continues or (transactions is not None and transactions.is_open):
            return False  # what is handed out already comes first
        if transactions is not None:
            transactions.resolve()
        with self._state.polling:
            if not self._state.is_closed:  # by another thread meanwhile
                try:
                    subscriber.follow()
                except ConsumerClosedError:
                    if not self._state.is_closed:  # by a callback, or a signal handler
                        raise
        return True

    def _is_unfenced(self) -> bool:
        """True if nobody else has claimed the key hashes; if somebody has, a member joins again.

        Nobody may return anything of a consumer that is closed.
        """
        if self._state.is_closed:
            return False
        try:
            self._session.check()
        except FencedError as error:
            if self.subscriber is None:
                raise
            _log.warning("%s; the member joins its group again", error)
            self.subscriber.member.fenced()
            return False
        return True

    def _took(self, take: Take, seconds: float) -> bool:
        try:
            return take(0.0 if self._state.is_changed else seconds)
        except Exception:
            if self._state.is_closed:  # by a signal handler, amid all this
                return False
            raise

    def _may_hand_out(self) -> bool:
        """True if what was got after waiting may still be handed out; for how long without a look.

        What may not stays where it is.
        """
        return self._refresh() >= 0 and not self._state.is_changed and not self._state.is_closed

    def _refresh(self) -> float:
        """Look at the session; return for how many seconds records need no other look."""
        since = wall_time()  # first: the process may be stopped before the session answers
        seconds = min(self._session.seconds_to_deliver(), _FRESH_SECONDS)
        self.fresh.since, self.fresh.until = since, since + seconds
        if self._state.is_changed or self._state.is_closed:
            self.look_again()
        return seconds

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
        with self._state.changing(self.interrupt):
            with self._state.lock:
                self._give_back()
                yield
                self.fresh.rows = iter(())
            self.interrupt()
