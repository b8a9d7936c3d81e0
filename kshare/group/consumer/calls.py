"""The calls that return records: what each collects, and its last look before it returns.

::

    wait (:class:`.Receiver`) --> rows --> collected --enough, or no more in time--> may it still?
      ^                                       |                                       |      |
      +---------------------------------------+          it goes back <------no-------+      v
                                                                                      returned

A message that is there is taken and returned in one step, for ``poll`` and iterations.
"""

import logging
import time
from collections.abc import Iterator
from itertools import filterfalse
from typing import TYPE_CHECKING

import pyarrow as pa

from kshare.core.showing import error_text
from kshare.errors import ConsumerClosedError, FencedError, KshareError, PolicyError
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.receiver import Receiver, Take, wall_time
from kshare.group.core.handing_out import Call
from kshare.group.delivery.dispatcher import Dispatcher
from kshare.group.message import Message

if TYPE_CHECKING:
    from kshare.group.consumer.typed_calls import TypedCalls

__all__ = ["Calls", "deadline_of"]

_log = logging.getLogger("kshare.group")


def deadline_of(timeout: float | None) -> float:
    """When a call has to return, by the monotonic clock; None or below 0 is never."""
    return float("inf") if timeout is None or timeout < 0 else time.monotonic() + timeout


class Calls:
    """Collects records for calls, and returns them. Deadlines are of the monotonic clock.

    For the thread that polls. With asyncio, the event loop's takes and returns what that has got.

    Args:
        receiver: Waits for records, and knows which call is under way.
        dispatcher: Hands records out.
        state: What the consumer's threads share.

    Attributes:
        typed: Collects batches with typed columns; None if keys and values are bytes.
    """

    def __init__(self, receiver: Receiver, dispatcher: Dispatcher, state: CallState) -> None:
        self.typed: TypedCalls | None = None
        self._receiver = receiver
        self._fresh = receiver.fresh
        self._dispatcher = dispatcher
        self._state = state
        self._unsaid: KshareError | None = None  # what went wrong amid a call that had records

    # -- one message after another -------------------------------------------------------------

    def next_rows(self, deadline: float, *, continues: bool = False) -> bool:
        """Wait for messages in :attr:`.Fresh.rows`; whether there are any.

        Args:
            deadline: When to end.
            continues: Whether the same call has collected records already.

        Raises:
            ConsumerClosedError: The consumer is closed.
            KshareError: What a call before this one has met when it had records to return.
            RuntimeError: Nothing was assigned or subscribed; or there is no open transaction, and
                has to be.
        """

        def take(seconds: float) -> bool:
            if not self._dispatcher.rows.left:
                self._dispatcher.next_rows(seconds)
            self._fresh.rows = self._rows()
            return self._dispatcher.rows.left > 0

        return self._wait(take, deadline, continues=continues)

    def await_rows(self, call: Call, deadline: float) -> bool:
        """Wait until there is something for :meth:`take`; whether there is."""
        self._receiver.begin(call)
        return self.next_rows(deadline)

    def take(self) -> Message | None:
        """Return the message that is there, if it may be returned now; else None.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        with self._state.lock:
            dispatcher, call = self._dispatcher, Call()
            if not dispatcher.rows.left:
                return None
            call.took(dispatcher.out.delivery)
            if not self._receiver.may_return(call):
                return None
            self._receiver.refresh()
            # Another thread may have changed what is read.
            self._fresh.rows = self._rows()
            message = next(dispatcher.rows.messages)
            return None if self._comes_again(message) else message

    def _rows(self) -> Iterator[Message]:
        """The messages that are there, but for those that come again."""
        rows = self._dispatcher.rows.messages
        return filterfalse(Message.is_released, rows) if self._dispatcher.released.has_new else rows

    def _comes_again(self, message: Message) -> bool:
        """True if an earlier record of its key was released, which its delivery will follow."""
        return self._dispatcher.released.is_new(message.topic_partition) and message.is_released()

    # -- what a call collects ------------------------------------------------------------------

    def messages(self, most: int, deadline: float) -> list[Message]:
        """The next messages, at most ``most``; they count as returned by one call.

        Raises:
            KshareError: As of :meth:`next_rows`, with nothing to return.
        """
        call = Call()
        while self.gather(call, most, deadline):
            messages = self.return_gathered(call)
            if messages or self._state.is_closed or time.monotonic() >= deadline:
                return messages
        return []

    def gather(self, call: Call, most: int, deadline: float) -> bool:
        """Collect messages, at most ``most``; whether there are any to return.

        Raises:
            KshareError: As of :meth:`next_rows`, with nothing collected.
        """
        self._receiver.begin(call)
        call.is_gathered = False
        try:
            while len(call.messages) < most and not call.is_cancelled:
                continues = not call.is_empty
                if not (
                    self._goes_on(continues=continues)
                    or self.next_rows(deadline, continues=continues)
                ):
                    break
                with self._state.lock:
                    if self._dispatcher.rows.left and not call.is_cancelled:
                        out = self._dispatcher.out
                        call.took(out.delivery)
                        out.collect(most - len(call.messages), call.messages)
        except (KshareError, ConsumerClosedError) as error:
            if call.is_empty:
                raise
            # These two are said again for as long as they hold. Others may be said only once.
            if isinstance(error, KshareError) and not isinstance(error, FencedError | PolicyError):
                self._unsaid = error
        except BaseException:
            self._receiver.give_back()
            raise
        with self._state.lock:
            call.is_gathered = True
            if call.is_cancelled:
                self._receiver.give_back()
        return not call.is_empty

    def _goes_on(self, *, continues: bool) -> bool:
        """True if messages are there, and need no other look at the session.

        Args:
            continues: Whether the same call has collected records already.
        """
        if self._unsaid is not None or not self._dispatcher.rows.left or not self._is_fresh():
            return False
        if not continues:
            self._settle()
        return True

    def return_gathered(self, call: Call) -> list[Message]:
        """Return what was gathered, if it may be returned now; if not, it goes back.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        with self._state.lock:
            messages = [] if call.is_empty else self._confirmed(call) or []
            if not self._dispatcher.released.has_new:
                return messages
            return [each for each in messages if not self._comes_again(each)]

    def batch(self, deadline: float) -> pa.RecordBatch | None:
        """The next record batch of one partition; None if none came in time."""
        call = Call()
        while self.await_batch(call, deadline):
            batch = self.return_batch(call)
            if batch is not None or time.monotonic() >= deadline:
                return batch
        return None

    def await_batch(self, call: Call, deadline: float) -> bool:
        """Wait until there is something for :meth:`return_batch`; whether there is."""
        if self.typed is not None:
            return self.typed.gather(call, deadline, self._await_batch, self._await_rows)
        return self._await_batch(call, deadline)

    def _await_batch(self, call: Call, deadline: float) -> bool:
        self._begin_batch(call)
        return self._wait(self._dispatcher.fetch_batch, deadline)

    def _await_rows(self, call: Call, deadline: float) -> bool:
        self._begin_batch(call)
        return self.next_rows(deadline)

    def _begin_batch(self, call: Call) -> None:
        self._receiver.begin(call)
        self._fresh.rows = iter(())
        with self._state.lock:
            if self._dispatcher.released.has_new:
                self._dispatcher.state.left_out.follow_at_once()

    def return_batch(self, call: Call) -> pa.RecordBatch | None:
        """Return the batch that is there, if it may be returned now; else None.

        Raises:
            FencedError: Another consumer has claimed some of the key hashes.
        """
        if self.typed is not None:
            return self.typed.returned(call, self._confirmed)
        with self._state.lock:
            if call.is_cancelled or not self._dispatcher.has_batch:
                return None
            if self._dispatcher.released.is_new(self._dispatcher.out.current):
                return None  # a record before it was released meanwhile: the next look obeys
            call.took(self._dispatcher.out.delivery)
            batch = self._dispatcher.collect_batch()
            self._fresh.rows = iter(())
            return None if self._confirmed(call) is None else batch

    def _confirmed(self, call: Call) -> list[Message] | None:
        """Return its messages, if what it collected may be returned now; None: it goes back.

        A look that is fresh is enough, as whatever changes ends it.
        """
        may = False
        try:
            may = self._is_fresh() or self._receiver.may_return(call)
        finally:
            if not may:
                self._receiver.give_back()
        if not may:
            return None
        self._state.is_batch = True
        self._fresh.settle_first()
        return call.confirm()

    def _is_fresh(self) -> bool:
        fresh = self._fresh
        return fresh.since <= wall_time() < fresh.holds_until

    def cancel(self, call: Call) -> None:
        """Nobody waits for a call any more: it ends, and has returned nothing. For any thread."""
        with self._state.lock:
            call.is_cancelled = True
            # Amid its fetch, another thread must not change what is read: that thread gives back.
            if call is self._receiver.call and call.is_gathered:
                self._receiver.give_back()
        self._fresh.interrupt()

    # -- what all have in common -----------------------------------------------------------------

    def _wait(self, take: Take, deadline: float, *, continues: bool = False) -> bool:
        with self._state.call():
            if self._state.is_closed:
                raise ConsumerClosedError
            if not self._state.has_begun:
                raise RuntimeError("nothing to receive: call subscribe() or assign() before")
            transactions = self._receiver.transactions
            if transactions is not None and not transactions.may_take:
                raise RuntimeError("transactional.id is set: receive within consumer.transaction()")
            if not continues and self._unsaid is not None:
                error, self._unsaid = self._unsaid, None
                raise error
            meter = self._dispatcher.meter
            if meter is not None:
                meter.called(continues=continues)
            if not continues:
                self._settle()
            has_some = self._receiver.wait(take, deadline, continues=continues)
            if meter is not None and not has_some:
                meter.returned(None)
            return has_some

    def _settle(self) -> None:
        """What the calls before this one have returned is processed."""
        with self._state.lock:
            self._dispatcher.state.settle()
            self._state.is_batch = False

    def close(self) -> None:
        """Log what no call will raise any more, and write no more dead letters."""
        if self.typed is not None:
            self.typed.close()
        if self._unsaid is not None:
            _log.error(
                "before the consumer was closed: %s",
                error_text(self._unsaid),
                exc_info=self._unsaid,
            )
