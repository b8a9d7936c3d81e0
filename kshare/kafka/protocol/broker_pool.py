"""Leaders and replicas of partitions, and idle connections: one small memory a process.

A connection belongs to one reader at a time, whichever partitions it reads; several tasks may read
the same partition at once. A broker whose connection failed is left alone for a while, by all
readers of the process. Nothing is opened at import, and a forked child starts empty.
Any broker is asked who leads, not only the bootstrap servers: one of them may be down for long.
Cost: a reader whose process has read its partitions before needs no round trip before its first
Fetch request.
"""

import atexit
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from kshare.core.backoff import Backoff
from kshare.core.progress import TopicPartition
from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.kafka.protocol.brokers import BrokerSearch, Leader, Preference
from kshare.kafka.protocol.connection import BrokerConnection, Connection
from kshare.kafka.protocol.messages import Address, LeaderUnknownError, Metadata, fetch_metadata
from kshare.kafka.protocol.retry import CHANCE, Clock
from kshare.options import KafkaConfig
from kshare.options.frozen import digest_of
from kshare.process_local import ProcessLocal

__all__ = [
    "BrokerPool",
    "PoolMemory",
    "close_idle",
    "process_memory",
    "search_brokers",
]

_IDLE_SECONDS_MAX = 240.0
"""Well below a broker's connections.max.idle.ms (10 minutes)."""
_IDLE_CONNECTIONS_MAX = 4
_SILENT_LAST = 10.0
"""One that may be frozen is asked for metadata after all that have not failed just now."""
_FAILED_SECONDS = 300.0
"""After its pause, how long a broker that failed is asked for metadata after all others."""


@dataclass(frozen=True, slots=True)
class _KnownLeader:
    """A leader, as metadata named it.

    Attributes:
        address: Its address.
        until: When it is to be looked up again, as of ``time.monotonic()``.
    """

    address: Address
    until: float


@dataclass(slots=True)
class _Outage:
    """A broker whose connections failed, and none succeeded since.

    Attributes:
        backoff: Pauses before attempts.
        over: When it may be tried again, as of ``time.monotonic()``.
    """

    backoff: Backoff
    over: float = 0.0


@dataclass
class PoolMemory:
    """A process's memory of its clusters.

    The first part of each key is a digest of the configuration, but for ``seen``: any
    configuration may use the brokers that another one has seen at the same listener.

    Attributes:
        idle: Connections that wait for a next reader, each after the time until which it may.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    leaders: dict[tuple[bytes, TopicPartition], _KnownLeader] = field(default_factory=dict)
    brokers: dict[bytes, dict[int, Address]] = field(default_factory=dict)
    topic_ids: dict[tuple[bytes, str], str] = field(default_factory=dict)
    preferences: dict[tuple[bytes, TopicPartition], Preference] = field(default_factory=dict)
    outages: dict[tuple[bytes, Address], _Outage] = field(default_factory=dict)
    idle: dict[tuple[bytes, Address], list[tuple[float, BrokerConnection]]] = field(
        default_factory=dict
    )
    seen: dict[tuple[tuple[Address, ...], str], tuple[Address, ...]] = field(default_factory=dict)

    def see(self, kafka: KafkaConfig, brokers: Iterable[Address]) -> None:
        """Remember all brokers of a cluster, as its metadata name them."""
        addresses = tuple(brokers)
        if addresses:  # a broker that just starts may know none
            with self.lock:
                self.seen[kafka.bootstrap_servers, kafka.security_protocol] = addresses

    def others(self, kafka: KafkaConfig) -> list[Address]:
        """The brokers of a cluster that are no bootstrap servers; none without metadata."""
        with self.lock:
            seen = self.seen.get((kafka.bootstrap_servers, kafka.security_protocol), ())
        return [address for address in seen if address not in kafka.bootstrap_servers]

    def close_old(self, now: float) -> None:
        """Close the connections that have waited for too long. With the lock held."""
        for key, kept in list(self.idle.items()):
            while kept and now >= kept[0][0]:
                kept.pop(0)[1].close()  # the oldest
            if not kept:
                del self.idle[key]

    def close_idle(self) -> None:
        """Close the connections that wait for a next reader."""
        with self.lock:
            kept = [connection for idle in self.idle.values() for _, connection in idle]
            self.idle.clear()
        for connection in kept:
            connection.close()


_memory = ProcessLocal(PoolMemory, keeps_copy=False)


def process_memory() -> PoolMemory:
    """The memory of this process."""
    return _memory()


def search_brokers(kafka: KafkaConfig) -> BrokerSearch:
    """Any broker: bootstrap servers, then some that this process has seen; chance says which."""
    others = process_memory().others(kafka)
    return BrokerSearch(kafka.bootstrap_servers, CHANCE.sample(others, len(others)))


@atexit.register
def close_idle() -> None:
    """Close the connections of this process that wait for a next reader."""
    process_memory().close_idle()


class BrokerPool:
    """The brokers of a cluster, as seen with one configuration.

    Args:
        kafka: How to reach the cluster.
        connect: Opens a connection.
        memory: Where to remember leaders and connections.
        clock: Source of time.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        *,
        connect: Callable[[str, int, KafkaConfig], BrokerConnection] = Connection,
        memory: Callable[[], PoolMemory] = process_memory,
        clock: Clock = time,
    ) -> None:
        self._kafka = kafka
        self._new_connection = connect
        self._memory = memory
        self._clock = clock
        self._cluster = digest_of(kafka)
        # At least a second: a reader asks the one that it has just found.
        self._leader_seconds = max(kafka.metadata_max_age_seconds, 1.0)
        idle_ms = kafka.connections_max_idle_ms  # -1: for ever
        self._idle_seconds = min(
            _IDLE_SECONDS_MAX, _IDLE_SECONDS_MAX if idle_ms < 0 else idle_ms / 1000
        )

    # -- connections ------------------------------------------------------------------------

    def lease(self, address: Address) -> BrokerConnection:
        """Take a connection to a broker: an idle one, or a new one.

        Raises:
            AuthenticationError, AuthorizationError, KafkaError: No retry helps.
            OSError: A retry may help.
        """
        return self.idle(address) or self.connect(address)

    def release(self, address: Address, connection: BrokerConnection) -> None:
        """Give back a connection. It is kept for the next reader if nothing is under way on it."""
        memory, now = self._memory(), self._clock.monotonic()
        with memory.lock:
            memory.close_old(now)
            kept = memory.idle.setdefault((self._cluster, address), [])
            if connection.idle and len(kept) < _IDLE_CONNECTIONS_MAX:
                connection.free_buffer()
                kept.append((now + self._idle_seconds, connection))
                return
        connection.close()

    def discard(self, address: Address, connection: BrokerConnection) -> None:
        """Close a connection that failed, and leave its broker alone for a while."""
        connection.close()
        self._failed(address)

    def connect(self, address: Address) -> BrokerConnection:
        """A new connection; first the rest of the pause that the last failure asks for.

        Raises:
            AuthenticationError, AuthorizationError, KafkaError: No retry helps.
            OSError: A retry may help.
        """
        pause = self._outage_over(address) - self._clock.monotonic()
        if pause > 0:
            self._clock.sleep(min(pause, self._kafka.read_timeout_ms / 1000))
        try:
            connection = self._new_connection(*address, self._kafka)
        except OSError:
            self._failed(address)
            raise
        memory = self._memory()
        with memory.lock:
            memory.outages.pop((self._cluster, address), None)
        return connection

    def _failed(self, address: Address) -> None:
        """Leave a broker alone for as long as ``reconnect.backoff.*`` say."""
        memory, now = self._memory(), self._clock.monotonic()
        first, longest = self._kafka.reconnect_backoff_ms, self._kafka.reconnect_backoff_max_ms
        with memory.lock:
            outage = memory.outages.setdefault(
                (self._cluster, address), _Outage(Backoff(first, longest, CHANCE.uniform))
            )
            if now >= outage.over:  # or another reader has reported the same failure
                outage.over = now + outage.backoff.pause()

    def _outage_over(self, address: Address) -> float:
        memory = self._memory()
        with memory.lock:
            outage = memory.outages.get((self._cluster, address))
            return 0.0 if outage is None else outage.over

    def idle(self, address: Address) -> BrokerConnection | None:
        """A connection that waits for a next reader; None if there is none."""
        memory = self._memory()
        with memory.lock:
            memory.close_old(self._clock.monotonic())
            kept = memory.idle.get((self._cluster, address), [])
            while kept:
                _, connection = kept.pop()
                if connection.idle:
                    return connection
                connection.close()
        return None

    # -- replicas ---------------------------------------------------------------------------

    def address(self, node_id: int) -> Address:
        """The address of a broker.

        Raises:
            OSError: The metadata that was seen last does not hold it.
        """
        memory = self._memory()
        with memory.lock:
            known = memory.brokers.get(self._cluster, {}).get(node_id)
        if known is None:
            raise OSError(f"broker {node_id} is not in the cluster's metadata")
        return known

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic, as of the last look-up of a leader; None if brokers give none."""
        memory = self._memory()
        with memory.lock:
            return memory.topic_ids.get((self._cluster, topic))

    def forget(self, topic_partition: TopicPartition) -> None:
        """Find the leader of a partition again when it is asked for next."""
        memory, key = self._memory(), (self._cluster, topic_partition)
        with memory.lock:
            if key in memory.leaders:  # who it was stays known: it is asked last who it is now
                memory.leaders[key] = replace(memory.leaders[key], until=-math.inf)

    def is_outdated(self, topic_partition: TopicPartition, leader: Address) -> bool:
        """True if the leader of a partition is to be found again, or is another one by now."""
        return self.known_leaders([topic_partition]).get(topic_partition) != leader

    def preference(self, topic_partition: TopicPartition) -> Preference | None:
        """The last choice of :meth:`prefer`, until it expires."""
        memory, key = self._memory(), (self._cluster, topic_partition)
        with memory.lock:
            kept = memory.preferences.get(key)
            if kept is not None and self._clock.monotonic() >= kept.until:
                del memory.preferences[key]
                return None
            return kept

    def prefer(self, topic_partition: TopicPartition, node_id: int | None, seconds: float) -> None:
        """Let all readers of this process read one follower, or the leader alone, for a while."""
        memory = self._memory()
        with memory.lock:
            kept = Preference(node_id, self._clock.monotonic() + seconds)
            memory.preferences[self._cluster, topic_partition] = kept

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leader]:
        """Find the leader of each partition: one Metadata request for all that are not known.

        Those that led before are asked last: one that is cut off from the controller would go on
        naming itself.

        Raises:
            AuthenticationError, AuthorizationError: A bootstrap server refuses the login.
        """
        memory, wanted = self._memory(), list(partitions)
        leaders: dict[TopicPartition, Leader] = {**self.known_leaders(wanted)}
        missing = [partition for partition in wanted if partition not in leaders]
        if not missing:
            return leaders
        with memory.lock:
            former = {
                known.address
                for partition in missing
                if (known := memory.leaders.get((self._cluster, partition))) is not None
            }
        metadata = self._metadata({partition.topic for partition in missing}, former)
        until = self._clock.monotonic() + self._leader_seconds
        if isinstance(metadata, Metadata):
            memory.see(self._kafka, metadata.brokers.values())
        with memory.lock:
            if isinstance(metadata, Metadata):
                memory.brokers[self._cluster] = metadata.brokers
                for topic, id_ in metadata.topic_ids.items():
                    memory.topic_ids[self._cluster, topic] = id_
            for partition in missing:
                leader = metadata.leader(partition) if isinstance(metadata, Metadata) else metadata
                leaders[partition] = leader
                if isinstance(leader, tuple):
                    memory.leaders[self._cluster, partition] = _KnownLeader(leader, until)
        return leaders

    def known_leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Address]:
        """The leaders of some partitions that this process knows, for ``metadata.max.age.ms``."""
        memory, now = self._memory(), self._clock.monotonic()
        with memory.lock:
            known = {each: memory.leaders.get((self._cluster, each)) for each in partitions}
        return {
            partition: leader.address
            for partition, leader in known.items()
            if leader is not None and now < leader.until
        }

    def _is_silent(self, _: Address, /) -> bool:
        """True if a broker has not answered yet to somebody who waits for it."""
        return False

    def _metadata(
        self, topics: Iterable[str], former: Collection[Address]
    ) -> Metadata | LeaderUnknownError:
        """Metadata of some topics, from the first broker that answers; former leaders come last."""

        def paused_until(address: Address) -> float:
            over = self._outage_over(address)
            if over and now >= over + _FAILED_SECONDS:
                over = 0.5  # it may be well by now: after others, but before former leaders
            # In any order: if all are former leaders, another one is asked first next time.
            over += 1.0 + CHANCE.random() if address in former else 0.0
            return over + (_SILENT_LAST if self._is_silent(address) else 0.0)

        now = self._clock.monotonic()
        others = self._memory().others(self._kafka)
        search = BrokerSearch(self._kafka.bootstrap_servers, others, paused_until=paused_until)
        for address in search:
            try:
                connection = self.idle(address) or self.connect(address)
            except (AuthenticationError, AuthorizationError) as error:
                search.failed(address, error)
                self._failed(address)
                continue
            except (OSError, KafkaError) as error:
                search.failed(address, error)
                continue
            try:
                metadata = fetch_metadata(connection, topics)
            except OSError as error:
                self.discard(address, connection)
                search.failed(address, error)
                continue
            except BaseException:
                connection.close()
                raise
            self.release(address, connection)
            return metadata
        asked = "broker" if search.is_beyond_bootstrap else "bootstrap server"
        return LeaderUnknownError(f"no {asked} answered: {search}")
