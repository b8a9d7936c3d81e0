"""Who leads a partition, who else is read, and idle connections: one small memory a process.

Law: a connection belongs to one reader at a time, whatever partition it reads; several tasks may
read the same partition at once. A broker whose connection failed is left alone for a while, by all
readers of the process. Nothing is opened at import, and a forked child starts empty.
Cost: a reader whose process has read the partition before needs no round trip before its first
Fetch request.
"""

import atexit
import hashlib
import logging
import os
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kafka.protocol.metadata import MetadataRequest

from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaError,
    Location,
    UnknownTopicError,
)
from kshare.options import KafkaConfig
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.error_codes import ErrorCode
from kshare.wire.protocol.retry import Backoff

__all__ = ["LeaderUnknownError", "Leaders", "Preference", "close_idle"]

_log = logging.getLogger(__name__)

_METADATA_LOWEST, _METADATA_HIGHEST = 4, 9
_IDLE_SECONDS_MAX = 240.0
"""Well below a broker's connections.max.idle.ms (10 minutes)."""
_IDLE_CONNECTIONS_MAX = 4

Address = tuple[str, int]


class LeaderUnknownError(OSError):
    """No broker could say who leads the partition now; a retry may mend it."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Which replica of a partition is read, for a while.

    Attributes:
        node_id: a follower's; None: the leader's own records and nobody else's.
        until: as of ``time.monotonic()``.
    """

    node_id: int | None
    until: float


@dataclass(slots=True)
class _Outage:
    """A broker whose connections failed, and none succeeded since.

    Attributes:
        backoff: its pauses.
        over: when it may be tried again, as of ``time.monotonic()``.
    """

    backoff: Backoff
    over: float = 0.0


@dataclass
class _Memory:
    """What one process remembers; replaced in a forked child."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    leaders: dict[tuple[bytes, str, int], Address] = field(default_factory=dict)
    brokers: dict[bytes, dict[int, Address]] = field(default_factory=dict)
    preferences: dict[tuple[bytes, str, int], Preference] = field(default_factory=dict)
    outages: dict[tuple[bytes, Address], _Outage] = field(default_factory=dict)
    idle: dict[tuple[bytes, Address], list[tuple[float, Connection]]] = field(default_factory=dict)


_memory = _Memory()


@atexit.register
def close_idle() -> None:
    """Close the connections that wait for a next reader."""
    memory = _remembered()
    with memory.lock:
        kept = [connection for held in memory.idle.values() for _, connection in held]
        memory.idle.clear()
    for connection in kept:
        connection.close()


def _remembered() -> _Memory:
    global _memory  # noqa: PLW0603
    if _memory.pid != os.getpid():
        _memory = _Memory()
    return _memory


class Leaders:
    """The leaders of a cluster and its other brokers, as seen with one configuration."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        # A digest: the memory of the process holds no second copy of a secret.
        self._cluster = hashlib.sha256(pickle.dumps(kafka)).digest()
        idle_ms = kafka.connections_max_idle_ms  # -1: for ever
        self._idle_seconds = min(
            _IDLE_SECONDS_MAX, _IDLE_SECONDS_MAX if idle_ms < 0 else idle_ms / 1000
        )

    @contextmanager
    def connection(
        self, topic: str, partition: int, node_id: int | None = None
    ) -> Iterator[Connection]:
        """A connection to the leader, kept for the next reader if it is left in order.

        Args:
            topic: the partition's topic.
            partition: its number.
            node_id: of the broker to connect to instead of the leader.

        Raises:
            AuthenticationError, AuthorizationError, KafkaError: not to be mended by a retry.
            OSError: a retry may mend it.
        """
        address = self._leader(topic, partition) if node_id is None else self._broker(node_id)
        connection = self._idle(address)
        if connection is None:
            try:
                connection = self._connect(address)
            except OSError:
                self.forget(topic, partition)
                raise
        try:
            yield connection
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                self._failed(address)
            raise
        self._keep(address, connection)

    def forget(self, topic: str, partition: int) -> None:
        """The leader that is remembered is not the leader any more."""
        memory = _remembered()
        with memory.lock:
            memory.leaders.pop((self._cluster, topic, partition), None)

    def preference(self, topic: str, partition: int) -> Preference | None:
        """What :meth:`prefer` said last, until that is over."""
        memory, key = _remembered(), (self._cluster, topic, partition)
        with memory.lock:
            kept = memory.preferences.get(key)
            if kept is not None and time.monotonic() >= kept.until:
                del memory.preferences[key]
                return None
            return kept

    def prefer(self, topic: str, partition: int, node_id: int | None, seconds: float) -> None:
        """Let all readers of this process read one follower, or the leader alone, for a while."""
        memory = _remembered()
        with memory.lock:
            kept = Preference(node_id, time.monotonic() + seconds)
            memory.preferences[self._cluster, topic, partition] = kept

    # -- connections ------------------------------------------------------------------------

    def _connect(self, address: Address) -> Connection:
        """A new connection; first the rest of the pause that the last failure asks for."""
        memory, key = _remembered(), (self._cluster, address)
        pause = self._outage_over(address) - time.monotonic()
        if pause > 0:
            time.sleep(min(pause, self._kafka.read_timeout_ms / 1000))
        try:
            connection = Connection(*address, self._kafka)
        except OSError:
            self._failed(address)
            raise
        with memory.lock:
            memory.outages.pop(key, None)
        return connection

    def _failed(self, address: Address) -> None:
        """Leave a broker alone, as ``reconnect.backoff.*`` have it."""
        memory, now = _remembered(), time.monotonic()
        first, longest = self._kafka.reconnect_backoff_ms, self._kafka.reconnect_backoff_max_ms
        with memory.lock:
            outage = memory.outages.setdefault(
                (self._cluster, address), _Outage(Backoff(first, longest))
            )
            if now >= outage.over:  # or another reader has told of the same failure
                outage.over = now + outage.backoff.pause()

    def _outage_over(self, address: Address) -> float:
        memory = _remembered()
        with memory.lock:
            outage = memory.outages.get((self._cluster, address))
            return 0.0 if outage is None else outage.over

    def _idle(self, address: Address) -> Connection | None:
        memory = _remembered()
        with memory.lock:
            kept = memory.idle.get((self._cluster, address), [])
            while kept and time.monotonic() - kept[0][0] >= self._idle_seconds:
                kept.pop(0)[1].close()  # the oldest
            while kept:
                _, connection = kept.pop()
                if connection.idle:
                    return connection
                connection.close()
        return None

    def _keep(self, address: Address, connection: Connection) -> None:
        memory = _remembered()
        with memory.lock:
            kept = memory.idle.setdefault((self._cluster, address), [])
            if connection.idle and len(kept) < _IDLE_CONNECTIONS_MAX:
                kept.append((time.monotonic(), connection))
                return
        connection.close()

    # -- metadata ---------------------------------------------------------------------------

    def _broker(self, node_id: int) -> Address:
        memory = _remembered()
        with memory.lock:
            known = memory.brokers.get(self._cluster, {}).get(node_id)
        if known is None:
            raise OSError(f"broker {node_id} is not in the cluster's metadata")
        return known

    def _leader(self, topic: str, partition: int) -> Address:
        memory = _remembered()
        with memory.lock:
            known = memory.leaders.get((self._cluster, topic, partition))
        if known is not None:
            return known
        faults = []
        now = time.monotonic()
        # Those that may be tried at once come first; the others in the order of their pauses' ends.
        for host, port in sorted(
            self._kafka.bootstrap_servers, key=lambda server: max(self._outage_over(server), now)
        ):
            try:
                connection = self._idle((host, port)) or self._connect((host, port))
            except (AuthenticationError, AuthorizationError):
                raise
            except (OSError, KafkaError) as error:
                faults.append(f"{host}:{port}: {error or type(error).__name__}")
                continue
            try:
                address, brokers = _ask(connection, topic, partition)
            except (LeaderUnknownError, UnknownTopicError, AuthorizationError):
                self._keep((host, port), connection)
                raise
            except OSError as error:
                connection.close()
                self._failed((host, port))
                faults.append(f"{host}:{port}: {error or type(error).__name__}")
                continue
            except BaseException:
                connection.close()
                raise
            self._keep((host, port), connection)
            with memory.lock:
                memory.leaders[self._cluster, topic, partition] = address
                memory.brokers[self._cluster] = brokers
            return address
        raise LeaderUnknownError("no bootstrap server answered: " + "; ".join(faults))


def _ask(connection: Connection, topic: str, partition: int) -> tuple[Address, dict[int, Address]]:
    """The leader of a partition, and all brokers by their ids."""
    version = connection.version(MetadataRequest, _METADATA_LOWEST, _METADATA_HIGHEST)
    request = MetadataRequest(
        version=version,
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
        allow_auto_topic_creation=False,
    )
    response = connection.call(request)
    brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    found = [entry for entry in response.topics if entry.name == topic]
    if not found:
        raise LeaderUnknownError(f"broker {connection.broker} said nothing about topic {topic}")
    place: Location = {"broker": connection.broker, "topic": topic, "partition": partition}
    code = found[0].error_code
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise AuthorizationError(
            f"not authorized to describe and read topic {topic}: grant the principal Describe and "
            "Read on it",
            **place,
        )
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicError(f"topic {topic} does not exist", **place)
    if code:
        raise LeaderUnknownError(f"topic {topic}: {error_codes.name(code)}")
    partitions = {entry.partition_index: entry for entry in found[0].partitions}
    if partition not in partitions:
        raise UnknownTopicError(
            f"topic {topic} has no partition {partition}, only {len(partitions)} partitions",
            **place,
        )
    leader = brokers.get(partitions[partition].leader_id)
    if leader is None:
        raise LeaderUnknownError(f"{topic}-{partition} has no leader at the moment")
    return leader, brokers
