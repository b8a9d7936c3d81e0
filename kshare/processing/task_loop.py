"""The event loop in which a process of Spark's calls handlers, for one task after the other.

::

    Python worker:  task 1 --begin .. close--> task 2 --begin .. close--> ...
                      |                           |
                    its own calls               its own calls
                    one loop, in one thread, as long as the process lives

A client that handlers keep, such as an HTTP session in a module, belongs to the loop in which it
was made. Spark gives a worker many tasks, so the loop is not a task's.

Guarantees: there is no loop and no thread before the first task, so a process may be forked until
then; a forked child makes its own. What a task leaves in the loop does not end it. A task waits for
a loop that something blocks, says where, and fails after a minute: Spark ends a worker whose task
has failed, and another one has another loop.
"""

import asyncio
import logging
import sys
import threading
from typing import Any, Final

from kshare.errors import KshareError
from kshare.process_local import ProcessLocal
from kshare.processing.loop import new_event_loop
from kshare.processing.measures import innermost_call

__all__ = ["TaskLoop", "in_loop", "task_loop"]

_log = logging.getLogger("kshare.processing")
_SAY_SECONDS: Final = 5.0
_MOST_SECONDS: Final = 60.0


class TaskLoop:
    """The event loop of a process, once it is asked for. From any thread.

    Attributes:
        quiet_until: As of :class:`.LoopWatch`: tasks may be short, and each has a watch.
    """

    def __init__(self) -> None:
        self.quiet_until: dict[str, float] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def ready(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs in a thread of its own, and answers.

        Raises:
            KshareError: Something has blocked it for a minute.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._loop = new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="kshare-handlers", daemon=True
                )
                self._thread.start()
        assert self._loop is not None
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        if answered.wait(_SAY_SECONDS):
            return self._loop
        _log.warning(
            "the event loop of handlers does not go on for %g s already, in %s: what an earlier "
            "task has left there blocks it, and the next task waits, for %g s at most",
            _SAY_SECONDS,
            self._where(),
            _MOST_SECONDS,
        )
        if not answered.wait(_MOST_SECONDS - _SAY_SECONDS):
            raise KshareError(
                f"the event loop of handlers has not gone on for {_MOST_SECONDS:g} s, in "
                f"{self._where()}: what an earlier task has left there blocks it. Await what takes "
                "long, or call it with asyncio.to_thread"
            )
        return self._loop

    def _where(self) -> str:
        assert self._thread is not None
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - as LoopWatch
        return "?" if frame is None else innermost_call(frame)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop for ever: a task that a handler has begun may raise SystemExit, or stop it."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # asyncio lets only these through
            _log.exception("what a handler has begun would end the event loop, which goes on")


def in_loop(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    """Run a coroutine in a loop of another thread, and return what comes of it."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


task_loop: Final = ProcessLocal(TaskLoop, keeps_copy=True)
"""The loop of this process. A child keeps the copy: to end that would touch the parent's files."""
