"""Runs a scheduler in an asyncio event loop: calls handlers, keeps time, carries out effects.

One coroutine for each slot that is in use, not one a record: when its call is over it asks the
scheduler for the next. Plain functions run in threads, and answer into the loop.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kshare.core.showing import shown
from kshare.core.waits import Wait
from kshare.dead_letters.record import FILTERED, Record, Status
from kshare.errors import ProcessingError
from kshare.processing.core.effects import (
    Abandon,
    Cancel,
    Edge,
    Effect,
    Forget,
    GiveBack,
    Halt,
    ParkKey,
    Remember,
    TakeAgain,
    WriteLetter,
)
from kshare.processing.core.lane import Call, Lane, Phase
from kshare.processing.core.scheduler import Scheduler
from kshare.processing.core.settings import AdaptiveLimit
from kshare.processing.handler import Handler, answer_of, seconds_until_next, unawaited
from kshare.processing.held import held
from kshare.processing.loop import EngineLoop
from kshare.processing.measures import Measures
from kshare.processing.policy import RetryAfter

__all__ = ["Engine"]


_log = logging.getLogger("kshare.processing")

_TURN_SECONDS = 0.05
"""After so long without a turn of the loop, coroutine functions that never wait let it go on."""


class _Exit(Halt):
    """A handler or callback ends the process. An event loop would close nothing before."""

    __slots__ = ()


class Engine:
    """Handles records, in one event loop's thread.

    Args:
        scheduler: Decides; nobody else uses it.
        handler: What is called.
        edge: What is outside.
        limit: Adapts the number of calls; None: it stays.

    Attributes:
        scheduler: As given.
        measures: What it has done.
        failure: Why it has halted; None if it has not.
        loop: The event loop that runs.
    """

    def __init__(
        self, scheduler: Scheduler, handler: Handler, edge: Edge, limit: AdaptiveLimit | None
    ) -> None:
        self.scheduler = scheduler
        self.measures = Measures()
        self.failure: Halt | None = None
        self.loop = EngineLoop(self._tick, edge.seconds_left)
        self._handler = handler
        self._edge = edge
        self._limit = limit
        self._offered: deque[Record] = deque()
        self._settle_due_since: float | None = None

    @property
    def handler_name(self) -> str:
        """Name of the handler, for people."""
        return self._handler.name

    @property
    def exit_error(self) -> BaseException | None:
        """The error with which a handler or callback ends the process; None if none does."""
        return self.failure.error if isinstance(self.failure, _Exit) else None

    def raise_failure(self) -> None:
        """Raise why it has halted, if it has.

        Raises:
            ProcessingError: A record has failed for good, with its place.
        """
        if self.failure is None:
            return
        record, error = self.failure.record, self.failure.error
        attempts = max(record.failures, 1)  # a failure that is not the record's own counts as none
        tried = f"{attempts} attempt" + "s" * (attempts != 1)
        raise ProcessingError(
            f"{self.handler_name} has failed for good with {record.topic_partition} "
            f"offset {record.offset} ({tried}): {shown(error)}. The record is pending.",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            attempts=attempts,
        ) from error

    # -- records ----------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Number of records that may be offered now."""
        return 0 if self._offered else self.scheduler.room

    def offer(self, records: Iterable[Record]) -> None:
        """Take the next records; what does not fit waits, and then there is no room."""
        self._offered.extend(records)
        self._admit()
        self.pump()

    def _admit(self) -> None:
        if self._offered:
            # Not a copy: of a large batch, each settling would copy all that is left.
            taken = self.scheduler.add(self._offered, self.loop.now())
            for _ in range(taken):
                self._offered.popleft()

    def revoke(
        self,
        is_gone: Callable[[Record], bool],
        *,
        in_order: bool = False,
        comes_again: bool = False,
    ) -> None:
        """Drop some records, except those that a handler has now.

        Args:
            is_gone: Whether others get a record.
            in_order: Whether they get it only after what is under way has ended.
            comes_again: Whether this process gets these records again.
        """
        self._offered = deque(record for record in self._offered if not is_gone(record))
        self.scheduler.revoke(is_gone, in_order=in_order, comes_again=comes_again)
        self.settle_soon()

    def _give_back(self, firsts: Sequence[Record]) -> None:
        """Records and the later ones of their lanes are pending, and come when taken again."""
        lanes = {record.lane for record in firsts}
        self._offered = deque(each for each in self._offered if each.lane not in lanes)
        self._edge.give_back(firsts)

    def park(self, keys: Iterable[Hashable]) -> None:
        """Operators have parked these keys of lanes: nothing more is begun of them."""
        self.scheduler.park(keys)
        self.settle_soon()

    def unparked(self, key: Hashable) -> None:
        """The key of a lane is parked no more."""
        self.scheduler.unparked(key)
        self.settle_soon()

    @property
    def is_idle(self) -> bool:
        """True if no held record can go on by itself now."""
        return not (self._offered and self.scheduler.room) and self.scheduler.is_idle

    def waits(self, state: str, until: str) -> Wait:
        """The wait of who waits for what is held.

        Args:
            state: What is waited for.
            until: What ends that.
        """
        detail = held(self.scheduler.figures(), self.scheduler.firsts())
        return Wait(state, until, self.handler_name, detail)

    async def drain(self, seconds: float) -> None:
        """End what is held, but what has to wait for another attempt.

        After a failure, only what is under way: calls, and dead letters.

        Args:
            seconds: Maximum time.
        """
        self.scheduler.close(Phase.CLOSING if self.failure else Phase.DRAINING)
        self._offered.clear()
        self.pump()
        until = f"handlers return and dead letters are written, for {seconds:g} s at most"
        drains = partial(self.waits, "records that were read are not processed yet", until)
        if not await self.loop.wait(lambda: self.is_idle, seconds, drains):
            _log.warning("%d records are not processed in time", self.scheduler.figures().records)

    async def close(self) -> None:
        """Leave over what is held; nothing is begun any more, and no answer counts."""
        self._offered.clear()
        self.scheduler.close(Phase.CLOSING)
        self.scheduler.leave_all()
        self.settle()
        await self.loop.close()

    # -- calls ------------------------------------------------------------------------------

    def pump(self) -> None:
        """Begin as many calls as may run."""
        now, scheduler = self.loop.now(), self.scheduler
        while self.loop.may_begin() and (call := scheduler.next_call(now)):
            if self._handler.is_async:
                call.handle = task = self.loop.spawn(self._begun(call))
                task.add_done_callback(partial(self._cancelled_unbegun, call))
            else:
                self._begin_in_thread(call)
        self.settle_soon()

    async def _begun(self, call: Call) -> None:
        """Work, unless the process was stopped between the call's beginning and this first step."""
        if self.loop.may_call():
            await self._work(call)
        else:
            self._not_called(call)

    async def _work(self, call: Call | None) -> None:
        """Handle a call, and then the next one, as long as there are any."""
        handler, scheduler = self._handler, self.scheduler
        offset, clock = self.loop.wall_minus_monotonic, time.monotonic
        task = asyncio.current_task()
        while call is not None:
            call.handle = task
            try:
                result = await handler.call(call.records)
            except asyncio.CancelledError as error:
                if call.is_over:  # too late, or the end
                    break
                self._failed(call, error)
            except (SystemExit, KeyboardInterrupt) as error:
                scheduler.abandoned(call)
                self._halt(_Exit(call.records[0], error))
            except GeneratorExit as error:
                if not _is_running(task):  # the task itself is thrown away
                    raise
                self._failed(call, error)
            except BaseException as error:  # a panic of PyO3 is no Exception
                self._failed(call, error)
            else:
                self._succeeded(call, result, offset + clock())
            if call.is_over and self._limit is not None:
                self._adapt(call)
            if call.is_cancelled:  # and so is the task, for good
                self.loop.soon(self.pump)
                break
            now, since = offset + clock(), self._settle_due_since
            if since is not None and now - since > _TURN_SECONDS:  # each turn settles
                await asyncio.sleep(0)
                now = offset + clock()
            call = scheduler.next_call(now) if self.loop.may_begin() else None
        self.settle_soon()

    def _cancelled_unbegun(self, call: Call, task: "asyncio.Task[None]") -> None:
        """End a call of which the task was cancelled before its first step, as uvloop may do."""
        if task.cancelled() and not call.is_over:
            self._failed(call, TimeoutError())
            self.pump()

    def _begin_in_thread(self, call: Call) -> None:
        def work() -> Callable[[], None]:
            if not self.loop.may_call():
                return partial(self.loop.soon_from_thread, partial(self._not_called, call))
            error, result = None, None
            try:
                result = self._handler.call_in_thread(call.records, self.loop.wait_for_in_thread)
            except BaseException as fault:
                error = fault
            answer = partial(self._ended_in_thread, call, result, error)
            return partial(self.loop.soon_from_thread, answer)

        self.loop.threads.run(work)

    def _not_called(self, call: Call) -> None:
        """A call goes back to its lanes: others may have its records by now."""
        self.scheduler.not_called(call, self.loop.now())
        self.pump()

    def _ended_in_thread(self, call: Call, result: Any, error: BaseException | None) -> None:
        if call.is_over:
            self.loop.threads.returned_late()
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self.scheduler.abandoned(call)
            self._halt(_Exit(call.records[0], error))
        if call.is_over:
            return
        if error is not None:
            self._failed(call, error)
        else:
            self._succeeded(call, result, self.loop.now())
        self._adapt(call)
        self.pump()

    def _succeeded(self, call: Call, result: Any, now: float) -> None:
        if call.is_over:  # too late, and counted already
            return
        if call.is_cancelled:
            self._failed(call, TimeoutError())
            return
        if result is None:  # as most are: nothing of what follows can be
            self.measures.called(now - call.started)
            self.scheduler.done(call, now)
            self.settle_soon()
            return
        no_result = unawaited(result, in_list=self._handler.takes_batches)
        if no_result is not None:
            self.measures.called(now - call.started, is_failure=True)
            self.scheduler.abandoned(call)
            self._halt(Halt(call.records[0], no_result))
            return
        if isinstance(result, BaseException):
            self._failed(call, result)
            return
        if self._handler.takes_batches and isinstance(result, list | tuple):
            self._list_succeeded(call, result, now)
            return
        self.measures.called(now - call.started)
        if result is FILTERED:
            self.scheduler.done(call, now, status=Status.FILTERED)
        else:
            self.scheduler.done(call, now, [result] * len(call.records))
        self.settle_soon()

    def _list_succeeded(self, call: Call, results: Sequence[Any], now: float) -> None:
        if len(results) != len(call.records):
            error = TypeError(
                f"the handler returned a list of {len(results)} results for {len(call.records)} "
                "records; wanted one for each, or None"
            )
            self._failed(call, error)
            return
        self.measures.called(now - call.started)
        answers = [answer_of(each) for each in results]
        self._obey_throttling(results)
        self.scheduler.partly_done(
            call, answers, now, is_final=self._handler.is_final, after=seconds_until_next
        )
        self.settle_soon()

    def _failed(self, call: Call, error: BaseException) -> None:
        if call.is_over:
            return
        now = self.loop.now()
        self.measures.called(now - call.started, is_failure=True)
        self._obey_throttling([error])
        after = seconds_until_next(error)
        is_final = after is None and self._handler.is_final(error)
        self.scheduler.failed(call, error, now, is_final=is_final, after=after)
        self.settle_soon()

    def _obey_throttling(self, results: Iterable[Any]) -> None:
        if self._limit is not None and any(isinstance(each, RetryAfter) for each in results):
            self._limit.throttled()

    def _halt(self, halt: Halt) -> None:
        """End: nothing more is begun, and what has no outcome is pending."""
        if self.failure is None or (isinstance(halt, _Exit) and self.exit_error is None):
            self.failure = halt
        self.scheduler.close(Phase.CLOSING)
        self.settle_soon()

    def _adapt(self, call: Call) -> None:
        if self._limit is None:
            return
        running = len(self.loop.tasks) if self._handler.is_async else self.scheduler.concurrency
        self._limit.ended(self.loop.now() - call.started, running)
        if self.scheduler.concurrency != self._limit.limit:
            self.scheduler.concurrency = self._limit.limit
            self.loop.soon(self.pump)

    # -- time -------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.scheduler.tick(self.loop.now())
        self.settle()
        self.pump()

    # -- effects ----------------------------------------------------------------------------

    def settle_soon(self) -> None:
        """Carry out effects and hand out outcomes, once in a turn of the loop."""
        if self._settle_due_since is None:
            self._settle_due_since = self.loop.now()
            self.loop.soon(self.settle)

    def settle(self) -> None:
        """Hand out outcomes and carry out effects at once."""
        self._settle_due_since = None
        scheduler = self.scheduler
        outcomes, scheduler.outcomes = scheduler.outcomes, []
        if outcomes:
            self.measures.count(outcomes)
            try:
                self._edge.settle(outcomes)
            except (SystemExit, KeyboardInterrupt) as error:
                self._halt(_Exit(outcomes[0].record, error))
        effects, scheduler.effects = scheduler.effects, []
        for effect in effects:
            self._act(effect)
        if self._offered:
            self._admit()
            self.pump()
        due = scheduler.next_tick()
        if due is not None:
            self.loop.ring_at(due)
        self.loop.changed()

    def _act(self, effect: Effect) -> None:
        match effect:
            case Cancel(call):
                self._cancel(call)
            case Abandon(call):
                self._abandon(call)
            case Remember(record):
                self._edge.remember(record)
            case Forget(record, is_parked):
                self._edge.forget(record, is_parked=is_parked)
            case WriteLetter() | ParkKey():
                self.loop.spawn(self._end(effect))
            case GiveBack(firsts):
                self._give_back(firsts)
            case TakeAgain(record):
                self._edge.take_again(record)
            case Halt():
                self.failure = self.failure or effect

    def _cancel(self, call: Call) -> None:
        if self._limit is not None:
            self._limit.throttled()
        if self._handler.is_async and not call.is_over:
            call.handle.cancel()

    def _abandon(self, call: Call) -> None:
        self.measures.called(self.loop.now() - call.started, is_failure=True)
        self._adapt(call)
        if self._handler.is_async:
            _log.warning(
                "%s goes on although it was cancelled, with %r: another attempt may run beside it",
                self._handler.name,
                call.records[0],
            )
            return
        self.loop.threads.give_up()
        _log.warning(
            "%s took longer than its timeout, with %r: a function in a thread cannot be ended, so "
            "another attempt may run beside it",
            self._handler.name,
            call.records[0],
        )
        # The limit falls when calls hang, and is no measure of them.
        most = self.scheduler.concurrency if self._limit is None else self._limit.most
        if self.loop.threads.lost > most:
            error = TimeoutError(f"{self.loop.threads.lost} calls of {self._handler.name} hang")
            self._halt(Halt(call.records[0], error))

    async def _end(self, effect: WriteLetter | ParkKey) -> None:
        """Write a dead letter or park a key, and tell the scheduler."""
        lane, record, error = effect.lane, effect.record, effect.error
        await self.loop.wait(self.loop.may_begin)
        # Others may have it already; or they get it once this has ended, and would call its handler
        # once more for the letter.
        if not lane.revoked.get(record, True):
            self.scheduler.ending_failed(lane, self.loop.now())
            self.pump()
            return
        try:
            if isinstance(effect, ParkKey):
                await self._edge.park(record, error)
            else:
                if effect.begins_sequence:
                    await self._edge.begin_sequence(record, error)
                await self._edge.write_letter(record, error)
        except Exception as fault:
            self._ending_failed(lane, record, fault)
            return
        if isinstance(effect, ParkKey):
            self.scheduler.parked(lane)
        else:
            self.scheduler.letter_written(lane, self.loop.now())
        self.pump()

    def _ending_failed(self, lane: Lane, record: Record, fault: Exception) -> None:
        self.measures.failed_endings += 1
        _log.warning("%r stays pending, and its key waits: it has failed, and %s", record, fault)
        self.scheduler.ending_failed(lane, self.loop.now())
        self.pump()  # others may have got the record, and what is behind it goes on


def _is_running(task: "asyncio.Task[Any] | None") -> bool:
    """True if it is this task that runs now."""
    with suppress(RuntimeError):  # no loop runs
        return asyncio.current_task() is task
    return False
