"""The state that the threads of a consumer share: locks, calls under way, and whether it is closed.

::

    open --close()--> closed --no call of this thread is under way--> shut down
                         |                                               ^
                         +-- a call is (a signal handler, a callback) ---+ when that call ends

A signal handler runs amid whatever its thread does, also while that holds a lock that cannot be
taken twice. So a consumer is not shut down amid its own calls; and amid a change of what is
delivered, for which another thread that polls may wait, another thread shuts it down.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from kshare.core.showing import shown
from kshare.errors import ConsumerClosedError

__all__ = ["CallState", "raise_first"]

_log = logging.getLogger("kshare.group")


def raise_first(faults: Sequence[Exception]) -> None:
    """Raise the first of what callbacks have raised, if any has; the others are logged."""
    for fault in faults[1:]:
        _log.error("a callback has failed, too: %s", shown(fault), exc_info=fault)
    if faults:
        raise faults[0]


class CallState:
    """Locks of a consumer, its calls under way, and whether it is closed.

    Args:
        shut_down: Ends the consumer; called once, with ``polling`` held.

    Attributes:
        gate: Held while a call waits for ``polling``, to change what is read.
        polling: Held while a call waits for records, or changes what is read.
        lock: Held for a moment, while deliveries are looked at or changed.
        has_begun: Whether anything was ever assigned or subscribed.
        is_closed: Whether the consumer is closed, or about to be.
        has_ended: Whether it has given up everything since then.
        is_batch: Whether all that was returned since the last call came from one call.
    """

    def __init__(self, shut_down: Callable[[], None]) -> None:
        self.gate = threading.RLock()
        self.polling = threading.RLock()
        self.lock = threading.RLock()
        self._asks = threading.Condition(self.lock)
        self.has_begun = self.has_ended = False
        self.is_closed = self.is_batch = False
        self._shut_down: Callable[[], None] | None = shut_down
        self._process = os.getpid()
        self._calling: set[int] = set()  # threads
        self._ending: set[int] = set()  # those that have closed the consumer amid their call

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the consumer: what closes it amid the call waits until the call ends.

        Raises:
            RuntimeError: It is another process's.
        """
        self._check_process()
        thread = threading.get_ident()
        if thread in self._calling:
            yield
            return
        try:
            self._calling.add(thread)
            yield
        finally:
            self._calling.discard(thread)
            # Only then: a callback of the thread that ends it may wait for this one.
            if thread in self._ending:
                self.shut_down()

    @contextmanager
    def changing(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Change what is read, with ``polling`` held.

        Who holds it already, as a callback of poll does, does not wait at the gate: behind it may
        be one who waits for ``polling``.

        Args:
            interrupt: Ends what a call waits for.

        Raises:
            RuntimeError: It is another process's.
        """
        self._check_process()
        with ExitStack() as stack:
            if not self.polling.acquire(blocking=False):
                stack.enter_context(self.gate)
                interrupt()
                self.polling.acquire()
            stack.callback(self.polling.release)
            interrupt()
            yield

    def check_open(self) -> None:
        """Refuse a call after the end; callbacks amid ``close()`` may still ask.

        Raises:
            ConsumerClosedError: It has ended.
            RuntimeError: It is another process's.
        """
        if self.has_ended:
            raise ConsumerClosedError
        self._check_process()

    @property
    def is_inherited(self) -> bool:
        """True in a process that was forked since: there it has no threads, and no connections."""
        return os.getpid() != self._process

    def _check_process(self) -> None:
        if self.is_inherited:
            raise RuntimeError(
                "the consumer is that of the process that this one was forked from: make one here, "
                "after the fork"
            )

    def shut_down(self) -> None:
        """End the consumer, now or when the call ends that is under way in this thread."""
        self.is_closed = True
        thread = threading.get_ident()
        if thread in self._calling:
            self._ending.add(thread)
            return
        if self._holds_lock():
            self._end_elsewhere()
            return
        try:
            self._end()
        except BaseException:
            if self._shut_down is not None:  # interrupted while it waited for another thread's call
                self._end_elsewhere()
            raise

    def _holds_lock(self) -> bool:
        """True if a signal handler runs amid a change of what is delivered, by its own thread."""
        try:
            self._asks.notify()  # nobody waits: it only looks who holds the lock
        except RuntimeError:
            return False
        return True

    def _end_elsewhere(self) -> None:
        threading.Thread(target=self._end, name="kshare close").start()

    def _end(self) -> None:
        with self.polling:
            shut_down, self._shut_down = self._shut_down, None
            if shut_down is not None:
                try:
                    shut_down()
                finally:
                    self.has_ended = True
