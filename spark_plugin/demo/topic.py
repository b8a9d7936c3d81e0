"""The topics of the demos: an embedded one, one created on a real cluster, or the user's.

A topic that a demo created on a real cluster is deleted again.
"""

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.kafka.cluster import Cluster
from kshare.kafka.examination import ExaminedCluster
from kshare.kafka.parked_keys import ParkedKeys
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC
from kshare.options import KafkaConfig, Subscribe, parse_options
from kshare.testing import FakeCluster, produce, skewed_records

__all__ = [
    "DemoTopic",
    "Say",
    "open_topic",
    "produce_records",
    "read_log_bounds",
    "temporary_topic",
]

_RECORDS: Final = 200_000
_KEYS: Final = 1_000
_TIMEOUT_SECONDS: Final = 30.0

Say: TypeAlias = Callable[[str], object]
"""Prints a line."""
_PRODUCER_CONFIG: Final = {"compression.type": "lz4", "linger.ms": 50}


@dataclass(frozen=True, slots=True)
class DemoTopic:
    """A topic as it was before the query started.

    Attributes:
        servers: Bootstrap servers of its cluster.
        name: The topic's name.
        log_bounds: First offset and end of each partition.
        is_dense: Whether every offset within the bounds is a record. True for the demo's own topic.
        parked_keys: Keys of the topic that are parked; their records are not read.
    """

    servers: str
    name: str
    log_bounds: Mapping[TopicPartition, tuple[int, int]]
    is_dense: bool
    parked_keys: frozenset[bytes] = frozenset()

    @property
    def offset_count(self) -> int:
        """The number of offsets; the topic has at most that number of records."""
        return sum(end - start for start, end in self.log_bounds.values())


@contextmanager
def open_topic(
    servers: str | None, name: str | None, records: int | None, say: Say
) -> Iterator[DemoTopic]:
    """Open the topic to read, filled with records unless it is the user's.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        name: An existing topic on it; None to create one.
        records: Number of records to produce; None for 200,000.
        say: Prints a line.

    Raises:
        KafkaError: The topic cannot be created or read.
    """
    count = _RECORDS if records is None else records
    if servers is None or name is None:
        with temporary_topic(servers) as (brokers, topic):
            yield produce_records(brokers, topic, count, say)
    else:
        bounds, parked = read_log_bounds(servers, name), _parked_keys(servers, name)
        if parked:
            say(f"{len(parked)} parked keys of {name}: their records wait.")
        yield DemoTopic(servers, name, bounds, is_dense=False, parked_keys=parked)


def produce_records(servers: str, name: str, count: int, say: Say) -> DemoTopic:
    """Fill the only partition of a topic with records of which a few keys are hot."""
    say(f"Producing {count:,} records of {_KEYS:,} keys, a few of them hot ...")
    produce(servers, name, skewed_records(count, _KEYS), partition=0, config=_PRODUCER_CONFIG)
    topic = DemoTopic(servers, name, read_log_bounds(servers, name), is_dense=True)
    if topic.offset_count < count:
        say(f"The embedded broker keeps the last {topic.offset_count:,} of them.")
    return topic


def read_log_bounds(servers: str, name: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first offset and the end of each partition of a topic."""
    with closing(Cluster(_kafka(servers))) as cluster:
        partitions = cluster.partitions(Subscribe((name,)))
        first, end = cluster.earliest(partitions), cluster.latest(partitions)
        return {partition: (first[partition], end[partition]) for partition in partitions}


def _parked_keys(servers: str, name: str) -> frozenset[bytes]:
    with closing(ParkedKeys(_kafka(servers))) as keys:
        return frozenset(key for topic, key in keys.parked() if topic == name)


def _connect(servers: str) -> None:
    """Ask who is there.

    Raises:
        KafkaError: No broker answers within 5 s; the text says why.
    """
    seconds = {f"kafka.{name}.timeout.ms": "5000" for name in ("default.api", "request")}
    with closing(ExaminedCluster(_kafka(servers, seconds))) as cluster:
        cluster.brokers()


def _kafka(servers: str, more: Mapping[str, str] = MappingProxyType({})) -> KafkaConfig:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "none", **more}
    return parse_options(options, streaming=False).options.kafka


@contextmanager
def temporary_topic(servers: str | None, also: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """A topic of one partition, which is deleted at the end.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        also: Endings of more topics: each is named as the first one, with that ending.

    Yields:
        Bootstrap servers, and the topic's name.

    Raises:
        KafkaError: The topics cannot be created.
    """
    if servers is None:
        name = "kshare-demo"
        names = [name, *(f"{name}{ending}" for ending in also), INDIVIDUAL_COMMITS_TOPIC]
        with FakeCluster(topics=dict.fromkeys(names, 1)) as cluster:
            yield cluster.bootstrap_servers, name
        return
    _connect(servers)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    name = f"kshare-demo-{uuid.uuid4().hex[:12]}"
    names = [name, *(f"{name}{ending}" for ending in also)]
    try:
        new = [NewTopic(each, 1) for each in names]
        _wait_for(admin.create_topics(new, request_timeout=_TIMEOUT_SECONDS))
    except (KafkaException, TimeoutError) as error:
        raise KafkaError(f"cannot create topic {name} on {servers}: {error}") from error
    try:
        yield servers, name
    finally:
        try:
            _wait_for(admin.delete_topics(names, request_timeout=_TIMEOUT_SECONDS))
        except (KafkaException, TimeoutError) as error:
            sys.stderr.write(f"warning: topic {name} on {servers} was not deleted: {error}\n")


def _wait_for(futures: Mapping[str, "Future[None]"]) -> None:
    for future in futures.values():
        future.result(_TIMEOUT_SECONDS)
