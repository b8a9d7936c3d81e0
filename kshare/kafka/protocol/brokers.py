"""The choice of a broker: for what any of them can say, and for the records of a partition.

**For what any can say**, bootstrap servers come first, then a few brokers that metadata have named:
bootstrap servers may be down for long. A login that a bootstrap server refuses is wrong, and no
other broker is asked. One that another broker refuses is that broker's fault: it may be its
listener alone that is set up otherwise, while nothing needs that broker.

**For records**, the leader, or a follower in the reader's rack (KIP-392). A follower is read only
on the leader's word, as by Java's consumer. What a follower does not answer is asked of the leader
before anything is called lost: a follower may lag behind its leader, or be gone. Cost: one answer
without records for each partition, process and ``metadata.max.age.ms``.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.messages import Address
from kshare.options import KafkaConfig

__all__ = ["BrokerSearch", "Brokers", "Leader", "Preference", "ReadReplica"]

_log = logging.getLogger(__name__)

LEADER_ALONE_SECONDS = 30.0
"""Time for which a follower that failed is left alone: by then its leader knows too
(``replica.lag.time.max.ms``), while at once it might name the same one again, and again.
"""

_OTHERS_MAX = 2
"""Brokers asked beside the bootstrap servers at a time: an outage of all shows nearly as soon."""

Leader = Address | KafkaError | OSError
"""The address of a partition's leader, or the reason why it is unknown."""


@dataclass(frozen=True, slots=True)
class Preference:
    """The replica of a partition to read, for a while.

    Attributes:
        node_id: Node id of a follower; None for the leader and no one else.
        until: End of that while, as of ``time.monotonic()``.
    """

    node_id: int | None
    until: float


class Brokers(Protocol):
    """The part of :class:`BrokerPool` that readers use."""

    def leaders(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Leader]:
        """Find the leader of each partition."""

    def address(self, node_id: int) -> Address:
        """The address of a broker."""

    def lease(self, address: Address) -> BrokerConnection:
        """Take a connection to a broker."""

    def release(self, address: Address, connection: BrokerConnection) -> None:
        """Give back a connection that is in order."""

    def discard(self, address: Address, connection: BrokerConnection) -> None:
        """Give back a connection that failed."""

    def forget(self, topic_partition: TopicPartition) -> None:
        """Find the leader of a partition again when it is asked for next."""

    def is_outdated(self, topic_partition: TopicPartition, leader: Address) -> bool:
        """True if the leader of a partition is to be found again, or is another one by now."""

    def preference(self, topic_partition: TopicPartition) -> Preference | None:
        """The replica of a partition to read."""

    def prefer(self, topic_partition: TopicPartition, node_id: int | None, seconds: float) -> None:
        """Choose which replica of a partition is read."""


class BrokerSearch:
    """Brokers to ask, one by one, until one answers.

    ::

        for address in search:
            try:
                return ask(address)
            except (AuthenticationError, OSError) as error:
                search.failed(address, error)
        raise ConnectionError(f"no broker answered: {search}")

    ``str()`` of it says what was wrong with each broker.

    Args:
        bootstrap: The bootstrap servers.
        others: Brokers that metadata have named, in the order in which they are preferred.
        paused_until: Until when a broker is left alone: those with the lowest answer are asked
            first. Without it, none is left alone.

    Attributes:
        faults: What was wrong with each broker that was asked. A refused login is a
            ``ConnectionError`` here, as another attempt may find other brokers.
    """

    def __init__(
        self,
        bootstrap: Iterable[Address],
        others: Iterable[Address],
        *,
        paused_until: Callable[[Address], float] = lambda _: 0.0,
    ) -> None:
        self.faults: list[tuple[Address, Exception]] = []
        self._bootstrap = tuple(bootstrap)
        self._others = tuple(sorted(others, key=paused_until)[:_OTHERS_MAX])
        self._paused_until = paused_until

    @property
    def is_beyond_bootstrap(self) -> bool:
        """True if other brokers are asked, too."""
        return bool(self._others)

    def __iter__(self) -> Iterator[Address]:
        return iter(sorted((*self._bootstrap, *self._others), key=self._paused_until))

    def failed(self, address: Address, error: Exception) -> None:
        """A broker did not answer: ask the next one.

        Raises:
            AuthenticationError, AuthorizationError: The error, if a bootstrap server has refused
                the login.
        """
        if isinstance(error, AuthenticationError | AuthorizationError):
            if address in self._bootstrap:
                raise error
            error = ConnectionError(str(error))
        self.faults.append((address, error))

    def __str__(self) -> str:
        return "; ".join(
            f"{host}:{port}: {str(error) or type(error).__name__}"
            for (host, port), error in self.faults
        )


class ReadReplica:
    """The replica that one reader of one partition asks.

    That is the leader, until it names a follower, as it may when it gets ``client.rack``. The
    follower is read until ``metadata.max.age.ms`` is over or it fails, by all readers of the
    process.

    Args:
        brokers: Where the choice is remembered.
        kafka: Rack, and maximum age of the metadata.
        topic_partition: The partition.

    Attributes:
        follower: Node id of the follower that is asked; None for the leader.
    """

    def __init__(
        self, brokers: Brokers, kafka: KafkaConfig, topic_partition: TopicPartition
    ) -> None:
        self._brokers = brokers
        self._topic_partition = topic_partition
        self._rack = kafka.client_rack or ""
        # At least a second: a follower that is named is asked at least once.
        self._seconds = max(kafka.metadata_max_age_seconds, 1.0)
        self.follower: int | None = None

    def choose(self) -> int | None:
        """Choose the replica to ask from now on; return :attr:`follower`."""
        self.follower = self._preferred()
        return self.follower

    def forget_leader(self) -> None:
        """Find the partition's leader again when it is asked for next."""
        self._brokers.forget(self._topic_partition)

    @property
    def rack(self) -> str:
        """The rack to tell a broker; empty while it shall not name a follower."""
        if not self._rack:
            return ""
        kept = self._brokers.preference(self._topic_partition)
        return "" if kept is not None and kept.node_id is None else self._rack

    @property
    def is_over(self) -> bool:
        """True if the follower's time is over, so that another replica is to be asked."""
        return self.follower is not None and self._preferred() != self.follower

    def follow(self, node_id: int | None) -> bool:
        """Take note of the replica that an answer names.

        Args:
            node_id: Node to ask instead; None if the answer names none.

        Returns:
            Whether another replica is to be asked now.
        """
        if node_id is None:
            return False
        if self.follower is not None:  # a follower cannot know: back to the leader
            return self.leave(f"it names broker {node_id} instead")
        self._brokers.prefer(self._topic_partition, node_id, self._seconds)
        _log.info(
            "%s: the leader names broker %d to be read (client.rack: %s)",
            self._topic_partition,
            node_id,
            self._rack or "none",
        )
        return True

    def leave(self, why: object) -> bool:
        """Ask the leader from now on, for a while.

        Returns:
            False if it is the leader that is asked already.
        """
        if self.follower is None:
            return False
        _log.info(
            "%s: back from follower %d to the leader: %s", self._topic_partition, self.follower, why
        )
        self._brokers.prefer(self._topic_partition, None, LEADER_ALONE_SECONDS)
        return True

    def _preferred(self) -> int | None:
        kept = self._brokers.preference(self._topic_partition)
        return None if kept is None else kept.node_id
