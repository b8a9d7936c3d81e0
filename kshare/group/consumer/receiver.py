"""Waits for records, and checks the session before it hands them out.

::

    follow the group --> commit if it is time --> follow the session --> may it hand out?
           ^                                                                |       |
           |                                              no: wait <--------+       v
           +---- woken, or time to look again ------------------------- fetch --> rows

Guarantees: records fetched before a rebalance are not returned after it; nothing is returned once
the session may have expired.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from kshare.errors import ConsumerClosedError, FencedError
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.subscriber import Subscriber
from kshare.group.consumer.transaction import Transactions
from kshare.group.core.handing_out import Call
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.message import Chunk, Message
from kshare.group.metrics import DeliveryPause
from kshare.group.session.session import GroupSession
from kshare.kafka.protocol.background import Waker

__all__ = ["Fresh", "Receiver", "Take", "wall_time"]

_log = logging.getLogger("kshare.group")

_FRESH_SECONDS: Final = 0.01
"""For so long, records are handed out after one look at the session."""
_TICK_SECONDS: Final = 1.0

Take = Callable[[float], bool]
"""Gets records, waiting for a number of seconds at most; returns True if it got some."""

wall_time = time.time  # unlike the monotonic clock, it goes on while the machine is suspended


@dataclass(slots=True)
class Fresh:
    """Messages that may be handed out without another look at the session.

    Attributes:
        waker: Ends waiting.
        rows: The messages.
        since: From when they may be, by :data:`wall_time`: before that, the clock was set back.
        until: Until when they may be.
        holds_until: Until when that look holds: `until`, or later if what one call has returned is
            to be settled before the next record.
        is_changed: Whether the session may answer differently since it was looked at.
    """

    waker: Waker
    rows: Iterator[Message] = field(default_factory=lambda: iter(()))
    since: float = 0.0
    until: float = 0.0
    holds_until: float = 0.0
    is_changed: bool = False

    def look_again(self) -> None:
        """Hand out no record without another look at the session."""
        self.until = self.holds_until = 0.0

    def settle_first(self) -> None:
        """Hand out no record before what was returned is settled, which needs no look."""
        self.until = 0.0

    def interrupt(self) -> None:
        """Something has changed: look again before the next record. For any thread."""
        self.is_changed = True
        self.look_again()
        self.waker.wake()


class Receiver:
    """Waits for records, and takes back what a call has not returned. For the thread that polls.

    Args:
        dispatcher: Hands records out.
        session: Says whether it may.
        state: What the consumer's threads share.
        commits: Commits from time to time.
        fresh: What may be handed out.
        transactions: The consumer's transactions; None if it has none.

    Attributes:
        fresh: As given.
        transactions: As given.
        subscriber: The consumer's membership; None if it has none.
        delivery_pause: Time in which nothing may be handed out.
        call: What the call that is under way has collected.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: GroupSession,
        state: CallState,
        commits: Commits,
        fresh: Fresh,
        transactions: Transactions | None,
    ) -> None:
        self.fresh = fresh
        self.transactions = transactions
        self.subscriber: Subscriber | None = None
        self.delivery_pause = DeliveryPause()
        self.call = Call()
        self._dispatcher = dispatcher
        self._session = session
        self._state = state
        self._commits = commits

    # -- the call that is under way --------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """A call begins, or goes on; what another one has not returned comes again."""
        with self._state.lock:
            if call is not self.call:
                self.give_back()
                self.call = call

    def give_back(self) -> None:
        """What is collected and not returned comes again."""
        with self._state.lock:
            if not self.call.is_empty and not self._state.is_closed:
                for partition in self.call.give_back(self._dispatcher.deliveries):
                    self._dispatcher.take_back(partition)
                self.fresh.rows = iter(())
                self.fresh.look_again()

    def may_return(self, call: Call) -> bool:
        """Look at the session: True if what a call has taken may be returned at this moment.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        return self._is_unfenced() and call.may_return(
            self._session.seconds_to_deliver(),
            self._dispatcher.deliveries,
            self._session.started(),
            self._session.may_count,
        )

    def counts(self, chunk: Chunk) -> bool:
        """True if what was returned of a chunk may still be committed, so that it comes once."""
        return chunk.start is None or self._session.may_count(chunk.topic_partition, chunk.start)

    # -- waiting ---------------------------------------------------------------------------------

    def wait(self, take: Take, deadline: float, *, continues: bool) -> bool:
        """Wait until there is something that may be handed out; whether there is.

        It ends if what the same call has collected has to come first: the group changes, keys are
        parked, or released, or are due.

        Args:
            take: Gets it.
            deadline: When to end, by the monotonic clock.
            continues: Whether the same call has collected records already.
        """
        while True:
            continues = continues and not self.call.is_empty  # it may have gone back
            if not self.follow_group(continues=continues):
                return False
            with self._state.gate:
                pass  # one who changes what is read comes first
            with self._state.polling:
                if self._state.is_closed or self.call.is_cancelled:
                    return False
                seconds = min(max(deadline - time.monotonic(), 0.0), _TICK_SECONDS)
                has_some = self._serve(take, seconds, continues=continues)
                if has_some and self._dispatcher.meter is not None:
                    self._dispatcher.meter.returned(self._dispatcher.out.current)
                if has_some is not None:
                    return has_some
            if deadline <= time.monotonic():
                return False

    def _serve(self, take: Take, seconds: float, *, continues: bool) -> bool | None:
        """Do all that is due, once; whether there is something that may be handed out.

        None is not yet. False is no more: what the call has collected has to come first.

        1. Commit, if an automatic commit is due.
        2. Follow the session and the parked keys, pass over what is of others, and measure.
        3. Give back what was collected, if it is not to be delivered now or the member is fenced.
        4. Without the right to deliver, wait for it, and return None.
        5. Call ``on_started`` for claims that are in place.
        6. Take records that are read, or wait for some.
        """
        self.fresh.look_again()  # the former one is over, also for callbacks
        self.fresh.is_changed = False
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
            if self.call.was_stopped(self._dispatcher.deliveries):
                self.give_back()
            elif continues and self._dispatcher.awaits_call:
                return False
        if not self._is_unfenced():
            self.give_back()
        if self._session.seconds_to_deliver() < 0:
            # Before the first start, nobody counts it.
            is_counted = bool(self._dispatcher.deliveries)
            with self.delivery_pause.waiting() if is_counted else nullcontext():
                self.fresh.waker.wait(seconds)
            return None
        if self.subscriber is not None:
            self.subscriber.started(self._dispatcher.state.is_claimed)
        seconds = min(seconds, self._commits.seconds_until_due, self._dispatcher.seconds_until_due)
        return (self._took(take, seconds) and self._may_hand_out()) or None

    def seconds_to_deliver(self) -> float:
        """For how long records that were returned are surely this member's; below 0: not now.

        For any thread. A loss ends it until the callback for it has returned.
        """
        left = self._session.seconds_to_deliver()
        subscriber = self.subscriber
        return -1.0 if subscriber is not None and subscriber.member.is_lost else left

    @property
    def times_anew(self) -> int:
        """The number of new beginnings: others may have come and gone unseen.

        What was returned before comes again, unless others have committed it.
        """
        return self._session.times_anew

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
            return take(0.0 if self.fresh.is_changed else seconds)
        except Exception:
            if self._state.is_closed:  # by a signal handler, amid all this
                return False
            raise

    def _may_hand_out(self) -> bool:
        """True if what was got after waiting may still be handed out; for how long without a look.

        What may not stays where it is.
        """
        return self.refresh() >= 0 and not self.fresh.is_changed and not self._state.is_closed

    def refresh(self) -> float:
        """Look at the session; return for how many seconds records need no other look."""
        since = wall_time()  # first: the process may be stopped before the session answers
        seconds = min(self._session.seconds_to_deliver(), _FRESH_SECONDS)
        self.fresh.since = since
        self.fresh.until = self.fresh.holds_until = since + seconds
        if self.fresh.is_changed or self._state.is_closed:
            self.fresh.look_again()
        return seconds

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Change what is read: records that were not returned yet are looked at again.

        Raises:
            ConsumerClosedError: The consumer is closed.
        """
        if self._state.is_closed:
            raise ConsumerClosedError
        with self._state.changing(self.fresh.interrupt):
            with self._state.lock:
                self.give_back()
                yield
                self.fresh.rows = iter(())
            self.fresh.interrupt()
