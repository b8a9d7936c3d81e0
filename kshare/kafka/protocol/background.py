"""For threads that must not wait for brokers: calls in the background, and the end of a wait.

::

    begin --> a thread calls --> done --> the waker wakes the one thread, which looks again

There are two ways. :func:`begin` returns a future, and the thread asks it with each of its steps
whether it is done. With :class:`Beside`, what is done is an event, and :meth:`Beside.take` calls
what takes it; a session does that with its lock held.

:class:`BackgroundBrokers` looks up leaders and connects so: one broker that is frozen would stop
all others. Cost: a thread for each search, and for each connection that is not idle in the pool::

    asked for --> a thread of its own searches, or connects --> the waker wakes
        |                                                            |
        +--> NotYetError, until it is done <--- asked for again -----+--> the answer, or its error
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from kshare.core.progress import TopicPartition
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.brokers import Leader
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.messages import Address
from kshare.options import KafkaConfig

__all__ = ["BackgroundBrokers", "Beside", "NotYetError", "OneCall", "Waker", "abandon", "begin"]

_T = TypeVar("_T")
_CLOSED = -1
_NONE: Final[Mapping[int, int]] = MappingProxyType({})
_POLL_MS_MAX = 2**31 - 1  # a C int


def begin(call: Callable[[], _T], name: str, wake: Callable[[], None]) -> "Future[_T]":
    """Begin a call.

    Args:
        call: The call.
        name: Name of its thread.
        wake: Called, by that thread, once the future is done.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        wake()

    # A daemon: a broker that does not answer delays no exit.
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, and begins no thread: nothing else is to be done
        run()
    return future


def abandon(future: "Future[_T]", close: Callable[[_T], None]) -> None:
    """Wait for a call no longer; what it returns, once it does, is closed."""

    def done(ended: "Future[_T]") -> None:
        if ended.exception() is None:
            close(ended.result())

    future.add_done_callback(done)


class OneCall:
    """A call in a thread of its own, one at a time: it lasts as long as slow brokers take.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Future[None] | None = None

    def begin(self, call: Callable[[], None]) -> bool:
        """Begin a call, unless the last one is under way; return whether it has begun."""
        if self._last is not None and not self._last.done():
            return False
        self._last = begin(call, self._name, lambda: None)
        self._last.add_done_callback(lambda ended: ended.result())  # what it raises is logged
        return True


class Beside:
    """Calls in threads beside one thread, and their outcomes as events for it.

    Args:
        wake: Wakes that thread; called from any thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._events: deque[Callable[[], None]] = deque()

    @property
    def has_events(self) -> bool:
        """True if there is something to take."""
        return bool(self._events)

    def begin(
        self,
        call: Callable[[], _T],
        name: str,
        done: Callable[[_T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Begin a call.

        Args:
            call: The call.
            name: Name of its thread.
            done: Takes what it returns, as an event.
            failed: Takes what it raises, as an event.
        """

        def end() -> None:
            error = future.exception()
            if error is None:
                done(future.result())
            elif isinstance(error, Exception):
                failed(error)
            else:
                raise error

        future = begin(call, name, lambda: None)
        future.add_done_callback(lambda _: self.post(end))

    def post(self, event: Callable[[], None]) -> None:
        """Have something done by the one thread. From any thread."""
        self._events.append(event)
        self._wake()

    def take(self) -> None:
        """Do what has been posted."""
        while self._events:
            self._events.popleft()()


class Waker:
    """Ends waiting before its time.

    A call of :meth:`wake` ends the wait under way, or else the next one. Before :meth:`open` and
    after :meth:`close` it wakes nobody, and :meth:`wait` returns at once. One thread waits; wake
    and close may be called from any thread, and from a signal handler.

    No method waits for another one: a signal handler may keep the one that it runs amid from going
    on. Whoever finds the lock taken leaves what is to be done to the thread that has it.

    Attributes:
        has_woken: Whether the last wait was ended by :meth:`wake`.
    """

    def __init__(self) -> None:
        self.has_woken = False
        self._reading = self._writing = _CLOSED
        self._is_woken = False  # there is something to read: to write again would take time
        self._is_closing = False
        self._lock = threading.RLock()  # a closed descriptor may soon be another file's

    def open(self) -> Self:
        """Open it."""
        self._is_woken = self._is_closing = False
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        return self

    def wake(self) -> None:
        """End the wait under way, or else the next one."""
        if not self._lock.acquire(blocking=False):
            return  # who has it wakes, or is about to return from its wait
        try:
            if self._writing != _CLOSED and not self._is_woken:
                # Full, so that it is readable; or closed by a signal handler amid this.
                with suppress(OSError):
                    os.write(self._writing, b"w")
                self._is_woken = True
        finally:
            self._leave()

    def wait(self, seconds: float, sockets: Mapping[int, int] = _NONE) -> list[int]:
        """Wait until a socket is ready, or :meth:`wake` is called, or time is over.

        Args:
            seconds: Maximum time to wait; below 0 is 0, and more than three weeks is as much.
            sockets: What each is to be ready for (``select.POLLIN``, ...), by its descriptor.

        Returns:
            The sockets that are ready, or closed.
        """
        reading = self._reading
        if reading == _CLOSED:
            return []
        poll = select.poll()
        for descriptor, events in {reading: select.POLLIN, **sockets}.items():
            poll.register(descriptor, events)
        ready = {
            descriptor
            for descriptor, _ in poll.poll(min(max(seconds, 0.0) * 1000 + 0.5, _POLL_MS_MAX))
        }
        self.has_woken = reading in ready
        if self.has_woken:
            self._clear()
        return [socket for socket in sockets if socket in ready]

    def _clear(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # so the next wait ends at once, too
        try:
            if self._reading != _CLOSED:
                with suppress(OSError):
                    os.read(self._reading, 1 << 16)
                self._is_woken = False  # last: a signal handler may wake amid this
        finally:
            self._leave()

    def close(self) -> None:
        """Close it; may be called again."""
        self._is_closing = True
        self._close()

    def __del__(self) -> None:
        self.close()  # or the descriptors would stay open for ever

    def _leave(self) -> None:
        self._lock.release()
        if self._is_closing:
            self._close()

    def _close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # who has it closes when it leaves
        try:
            descriptors = self._reading, self._writing
            self._reading = self._writing = _CLOSED
            if _CLOSED not in descriptors:
                for descriptor in descriptors:
                    os.close(descriptor)
        finally:
            self._lock.release()


class NotYetError(OSError):
    """A leader is being looked up, or a connection made: ask again when woken."""


class BackgroundBrokers(BrokerPool):
    """A pool's brokers, without waiting. For one thread at a time.

    Args:
        kafka: How to reach the cluster.
        wake: Called, by another thread, when something is there that was asked for.
        pool: As of :class:`~kshare.kafka.protocol.broker_pool.BrokerPool`.
    """

    def __init__(self, kafka: KafkaConfig, wake: Callable[[], None], **pool: Any) -> None:
        super().__init__(kafka, **pool)
        self._wake = wake
        self._searches: dict[TopicPartition, Future[dict[TopicPartition, Leader]]] = {}
        self._connecting: dict[Address, Future[BrokerConnection]] = {}

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        """The leader of each partition; :class:`NotYetError` for those that are being looked up.

        Raises:
            AuthenticationError, AuthorizationError: A bootstrap server refuses the login.
        """
        wanted = list(partitions)
        leaders: dict[TopicPartition, Leader] = {**self.known_leaders(wanted)}
        for partition in leaders:
            self._searches.pop(partition, None)
        missing = [each for each in wanted if each not in leaders]
        new = [each for each in missing if each not in self._searches]
        if new:
            search = super().leaders
            self._searches |= dict.fromkeys(new, self._begin(lambda: search(new)))
        for partition in missing:
            if self._searches[partition].done():
                leaders[partition] = self._result(self._searches.pop(partition))[partition]
            else:
                leaders[partition] = NotYetError(f"{partition}: its leader is being looked up")
        return leaders

    def _result(self, search: Future[dict[TopicPartition, Leader]]) -> dict[TopicPartition, Leader]:
        try:
            return search.result()
        except BaseException:  # it is the same for all whose search it was
            self._searches = {
                p: other for p, other in self._searches.items() if other is not search
            }
            raise

    def lease(self, address: Address) -> BrokerConnection:
        """Take a connection to a broker.

        Raises:
            NotYetError: It is being made.
            AuthenticationError, AuthorizationError, KafkaError: No retry helps.
            OSError: A retry may help.
        """
        made = self._connecting.pop(address, None)
        if made is not None and made.done():
            connection = made.result()
            if connection.idle:
                return connection
            connection.close()  # by the broker, as it was not taken for long
            made = None
        if made is None:
            idle = self.idle(address)
            if idle is not None:
                return idle
            made = self._begin(lambda: self.connect(address))
        self._connecting[address] = made
        raise NotYetError(f"{address[0]}:{address[1]} is being connected to")

    def forget(self, topic_partition: TopicPartition, *, keeps_search: bool = False) -> None:
        """Find the leader of a partition again when it is asked for next.

        Args:
            topic_partition: The partition.
            keeps_search: Whether what is being looked up of it, or was and is not taken yet, is
                good enough for that once. Else one who asks now and then would never be answered.
        """
        if not keeps_search:
            self._searches.pop(topic_partition, None)
        super().forget(topic_partition)

    def close(self) -> None:
        """Give back connections that nobody has taken, as soon as they are made."""
        connecting, self._connecting = self._connecting, {}
        for address, made in connecting.items():
            abandon(made, partial(self._give_back, address))

    def _give_back(self, address: Address, connection: BrokerConnection) -> None:
        with suppress(OSError):
            self.release(address, connection)

    def _is_silent(self, address: Address, /) -> bool:
        made = self._connecting.get(address)
        return made is not None and not made.done()

    def _begin(self, call: Callable[[], _T]) -> Future[_T]:
        return begin(call, "kshare connects", self._wake)
