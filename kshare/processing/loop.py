"""The event loop, as an engine uses it: time, tasks, threads, and those who wait.

Plain functions run in threads of its own. Not ``concurrent.futures``: its threads are waited for
when the process ends, also one that hangs. Here one that hangs is left behind, and replaced.
"""

import asyncio
import logging
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

from kshare.core.waits import Wait
from kshare.kafka.protocol.retry import boot_time
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.processing.held import SAY_SECONDS

__all__ = ["EngineLoop", "new_event_loop"]

_log = logging.getLogger("kshare.processing")

_LOOK_SECONDS: Final = 0.05
_Work: TypeAlias = Callable[[], Callable[[], Any]]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop for handlers: uvloop's where that is installed, else asyncio's.

    Where a policy for event loops is set, it decides, before Python 3.14.
    """
    if sys.version_info < (3, 14):  # since then to ask for a policy is deprecated; 3.16 has none
        policy = asyncio.get_event_loop_policy()
        if type(policy) is not asyncio.DefaultEventLoopPolicy:
            return asyncio.new_event_loop()
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EngineLoop:
    """The event loop that runs, as an engine uses it. For the loop's thread.

    Args:
        ring: Called at the times that :meth:`ring_at` is given.
        seconds_left: As :meth:`.Edge.seconds_left`.

    Attributes:
        wall_minus_monotonic: Added to ``time.monotonic()`` it gives seconds since 1970, by a clock
            that is never set. The loop's own may stand still for milliseconds: uvloop's does.
        tasks: Those that are under way.
        threads: They run plain functions.
    """

    def __init__(
        self, ring: Callable[[], object], seconds_left: Callable[[], float] = lambda: math.inf
    ) -> None:
        self.wall_minus_monotonic = time.time() - time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.threads = Threads("kshare-handler")
        self._loop = asyncio.get_running_loop()
        self._alarm = _Alarm(self._loop, ring)
        self._changed = asyncio.Event()
        self._seconds_left = seconds_left
        self._may_begin_until = -math.inf  # on the clock that suspension counts on

    def now(self) -> float:
        """The time."""
        return self.wall_minus_monotonic + time.monotonic()

    def may_begin(self) -> bool:
        """True if a handler may be called now; if not, the alarm rings soon, to look again."""
        if boot_time() < self._may_begin_until or self.may_call():
            return True
        self.ring_at(self.now() + _LOOK_SECONDS)
        return False

    def may_call(self) -> bool:
        """True if a handler may be called right now; from any thread.

        The process may have been stopped since it was begun (:meth:`may_begin`).
        """
        now = boot_time()
        if now < self._may_begin_until:
            return True
        left = self._seconds_left()
        if left <= 0:
            return False
        self._may_begin_until = now + min(left, _LOOK_SECONDS)
        return True

    def ring_at(self, when: float) -> None:
        """Ring once, at the earliest of the times that were set since the last ring."""
        self._alarm.set(when - self.wall_minus_monotonic)

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function in the next turn."""
        self._loop.call_soon(call)

    def soon_from_thread(self, call: Callable[[], object]) -> None:
        """Call a function in the next turn, from any thread; not if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin a task."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def wait_for_in_thread(self, awaitable: Awaitable[Any]) -> Any:
        """Have something awaited in the loop, and return what comes of it; for any other thread.

        Raises:
            BaseException: What came of it.
            RuntimeError: The loop is closed.
        """

        async def work() -> Any:
            task = asyncio.current_task()
            assert task is not None
            self.tasks.add(task)  # so that it ends with the others
            task.add_done_callback(self.tasks.discard)
            return await awaitable

        waiting = work()
        try:
            return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()
        except RuntimeError:
            waiting.close()  # nothing, once it has run
            raise

    async def wait(
        self,
        until: Callable[[], bool],
        seconds: float | None = None,
        waits: Callable[[], Wait] | None = None,
    ) -> bool:
        """Wait until ``until()`` is true; return whether it is.

        Args:
            until: Looked at whenever something has :meth:`changed`.
            seconds: Maximum time to wait; None for no limit.
            waits: Says what is waited for: it is logged once that lasts. None: whoever keeps it
                from being true says so.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        # Not at once: what is held is counted for it.
        said, look_at = WaitLog(_log), time.monotonic() + SAY_SECONDS
        while not until():
            now = time.monotonic()
            if now >= deadline:
                return False
            if waits is not None and now >= look_at:
                said.wait(waits())
                look_at = now + SAY_SECONDS
            end = deadline if waits is None else min(deadline, look_at)
            self._changed.clear()
            with suppress(TimeoutError):
                left = None if end == math.inf else end - now
                await asyncio.wait_for(self._changed.wait(), left)
        said.over()
        return True

    def changed(self) -> None:
        """Have those who wait look again."""
        self._changed.set()

    async def close(self) -> None:
        """Cancel the tasks, end the threads, and ring no more."""
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=1.0)
        self._alarm.close()
        self.threads.close()


class _Alarm:
    """Calls a function at the earliest of the times that it was set to.

    Args:
        loop: The event loop.
        call: The function.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float) -> None:
        """Ring at a time, by the loop's clock."""
        if self._timer is not None:
            if self._when <= when:
                return
            self._timer.cancel()
        # The time is kept: uvloop's timer does not tell it once it is over.
        self._timer, self._when = self._loop.call_at(when, self._ring), when

    def _ring(self) -> None:
        self._timer = None
        self._call()

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()


class Threads:
    """Runs functions in threads, which are started as they are needed.

    Args:
        name: Of the threads.

    Attributes:
        lost: Number of threads whose call was given up and has not returned.
    """

    def __init__(self, name: str) -> None:
        self.lost = 0
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = 0
        self._free = 0
        self._lock = threading.Lock()

    def run(self, work: _Work) -> None:
        """Run a function in a thread, and then what it returns; neither raises.

        The thread counts as free between the two: its next work may begin at once.
        """
        with self._lock:
            needs_thread = self._free == 0
            if needs_thread:
                self._threads += 1
            else:
                self._free -= 1
        self._work.put(work)
        if needs_thread:
            name = f"{self._name}-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def give_up(self) -> None:
        """A function took too long: count its thread as lost until it returns."""
        with self._lock:
            self.lost += 1

    def returned_late(self) -> None:
        """One that was given up has returned."""
        with self._lock:
            self.lost -= 1

    def close(self) -> None:
        """End the threads that have nothing to do, and the others when they return."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            answer = work()
            with self._lock:
                self._free += 1
            answer()
