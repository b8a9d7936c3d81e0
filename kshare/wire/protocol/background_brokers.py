"""Brokers for a thread that must not wait for them: one that is frozen would stop all others.

::

    asked for --> a thread of its own searches, or connects --> the waker wakes
        |                                                            |
        +--> NotYetError, until it is done <--- asked for again -----+--> the answer, or its error

Cost: a thread for each search, and for each connection that is not idle in the pool.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from kshare.core.progress import TopicPartition
from kshare.wire.protocol.background import abandon, begin
from kshare.wire.protocol.broker_pool import BrokerPool, Leader, Preference
from kshare.wire.protocol.connection import BrokerConnection
from kshare.wire.protocol.messages import Address

__all__ = ["BackgroundBrokers", "NotYetError"]

_T = TypeVar("_T")


class NotYetError(OSError):
    """A leader is being looked up, or a connection made: ask again when woken."""


class BackgroundBrokers:
    """A pool's brokers, without waiting; see :class:`~kshare.wire.protocol.broker_pool.Brokers`.

    For one thread at a time.

    Args:
        pool: The pool.
        wake: Called, by another thread, when something is there that was asked for.
    """

    def __init__(self, pool: BrokerPool, wake: Callable[[], None]) -> None:
        self._pool = pool
        self._wake = wake
        self._searches: dict[TopicPartition, Future[dict[TopicPartition, Leader]]] = {}
        self._connecting: dict[Address, Future[BrokerConnection]] = {}

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        """The leader of each partition; :class:`NotYetError` for those that are being looked up.

        Raises:
            AuthenticationError, AuthorizationError: A bootstrap server refuses the login.
        """
        wanted = list(partitions)
        leaders: dict[TopicPartition, Leader] = {**self._pool.known_leaders(wanted)}
        for partition in leaders:
            self._searches.pop(partition, None)
        missing = [each for each in wanted if each not in leaders]
        new = [each for each in missing if each not in self._searches]
        if new:
            self._searches |= dict.fromkeys(new, self._begin(lambda: self._pool.leaders(new)))
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
            idle = self._pool.idle(address)
            if idle is not None:
                return idle
            made = self._begin(lambda: self._pool.connect(address))
        self._connecting[address] = made
        raise NotYetError(f"{address[0]}:{address[1]} is being connected to")

    def close(self) -> None:
        """Give back connections that nobody has taken, as soon as they are made."""
        connecting, self._connecting = self._connecting, {}
        for address, made in connecting.items():
            abandon(made, partial(self._give_back, address))

    def _give_back(self, address: Address, connection: BrokerConnection) -> None:
        with suppress(OSError):
            self._pool.release(address, connection)

    def _begin(self, call: Callable[[], _T]) -> Future[_T]:
        return begin(call, "kshare connects", self._wake)

    # -- what does not wait -----------------------------------------------------------------

    def address(self, node_id: int) -> Address:
        """The address of a broker."""
        return self._pool.address(node_id)

    def release(self, address: Address, connection: BrokerConnection) -> None:
        """Give back a connection that is in order."""
        self._pool.release(address, connection)

    def discard(self, address: Address, connection: BrokerConnection) -> None:
        """Give back a connection that failed."""
        self._pool.discard(address, connection)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Find the leader of a partition again when it is asked for next."""
        self._searches.pop(topic_partition, None)
        self._pool.forget(topic_partition)

    def is_outdated(self, topic_partition: TopicPartition, leader: Address) -> bool:
        """True if the leader of a partition is to be found again, or is another one by now."""
        return self._pool.is_outdated(topic_partition, leader)

    def preference(self, topic_partition: TopicPartition) -> Preference | None:
        """The replica of a partition to read."""
        return self._pool.preference(topic_partition)

    def prefer(self, topic_partition: TopicPartition, node_id: int | None, seconds: float) -> None:
        """Choose which replica of a partition is read."""
        self._pool.prefer(topic_partition, node_id, seconds)
