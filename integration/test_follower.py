"""Follower fetching (KIP-392) from a real cluster: the replica in the reader's rack is read.

Which replica is read changes no row. Faults are injected between two batches.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, PartitionMetadata

import kshare
import kshare.errors
from integration.cluster import KafkaCluster
from kshare.core.hashing import WHOLE
from kshare.kafka.protocol import broker_pool
from kshare.kafka.protocol.connection import Connection
from kshare.testing import Record
from tests.support.clock import until

COUNT = 3000
LEADER, FOLLOWER = 1, 2
SMALL_FETCHES = {"kafka.max.partition.fetch.bytes": "65536", "kafka.fetch.max.wait.ms": "50"}


@pytest.fixture(scope="module")
def racks() -> Iterator[KafkaCluster]:
    """The controller, which leads all topics, in rack ``far``, and a broker in rack ``near``."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    # A broker that is not heard of for so long is read no more: also if the machine is just busy.
    config = {"replica.selector.class": selector, "broker.session.timeout.ms": "6000"}
    with KafkaCluster(2, config=config, racks=("far", "near")) as running:
        yield running


@pytest.fixture
def topic(racks: KafkaCluster) -> str:
    """A topic of ``COUNT`` records of 300 bytes each, led from rack ``far``."""
    name = racks.create_topic(replication=2)
    in_sync(racks, name)
    if racks.leader(name).node_id != LEADER:
        racks.move_leader(name, 0, LEADER)
    chance = random.Random(1)
    records = [Record(b"key-%d" % (i % 97), chance.randbytes(300)) for i in range(COUNT)]
    racks.produce(name, records, config={"batch.num.messages": 50})
    in_sync(racks, name)
    broker_pool.close_idle()
    return name


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many bytes each broker answered to Fetch requests, by ``host:port``."""
    counted: Counter[str] = Counter()
    receive = Connection.receive

    def counting(connection: Connection) -> memoryview:
        body = receive(connection)
        counted[connection.broker] += len(body)
        return body

    monkeypatch.setattr(Connection, "receive", counting)
    return counted


def reading(
    racks: KafkaCluster,
    topic: str,
    start: int = 0,
    end: int = COUNT,
    options: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches of a reader in rack ``near``."""
    slice_ = kshare.Slice(topic, 0, (kshare.Rectangle(kshare.OffsetRange(start, end), WHOLE),))
    servers = {"kafka.bootstrap.servers": racks.bootstrap_servers, "kafka.client.rack": "near"}
    return kshare.read_slice(slice_, {**servers, **SMALL_FETCHES, **(options or {})})


def in_sync(racks: KafkaCluster, topic: str) -> None:
    """Return when both replicas of the topic are in sync, and all brokers have heard of it."""

    def replicas() -> list[dict[int, PartitionMetadata]]:
        return [
            AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
            .list_topics(topic, timeout=30)
            .topics[topic]
            .partitions
            for broker in racks.brokers.values()
        ]

    def are_in_sync() -> bool:
        return all(len(parts) == 1 and len(parts[0].isrs) == 2 for parts in replicas())

    until(are_in_sync, shown=lambda: f"{topic} is not in sync on all brokers: {replicas()}")


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def share(racks: KafkaCluster, answered: Mapping[str, int], node_id: int) -> float:
    """The part of all bytes that came from one broker."""
    return answered[racks.brokers[node_id].bootstrap_servers] / sum(answered.values())


def test_all_rows_come_from_the_follower(
    racks: KafkaCluster, topic: str, answered: Counter[str]
) -> None:
    # A follower hears that records may be read with the next ones: else the last are the leader's.
    racks.produce(topic, [Record(b"k", b"one more")])
    in_sync(racks, topic)
    assert offsets(reading(racks, topic)) == list(range(COUNT))
    assert share(racks, answered, FOLLOWER) > 0.99
    answered.clear()
    assert offsets(reading(racks, topic)) == list(range(COUNT))
    assert share(racks, answered, FOLLOWER) == 1.0  # no other broker is asked any more


def test_another_rack_reads_the_leader(
    racks: KafkaCluster, topic: str, answered: Counter[str]
) -> None:
    for rack in ("far", "elsewhere", ""):
        answered.clear()
        assert offsets(reading(racks, topic, options={"kafka.client.rack": rack})) == list(
            range(COUNT)
        )
        assert share(racks, answered, LEADER) > 0.99, rack


def test_records_that_were_just_produced(
    racks: KafkaCluster, topic: str, answered: Counter[str]
) -> None:
    """The follower hears of them, and that they may be read, a little later than the leader."""
    read = COUNT
    for turn in range(20):
        racks.produce(topic, [Record(b"k", b"%d" % turn)] * 50)
        end = racks.latest(topic)
        assert offsets(reading(racks, topic, read, end)) == list(range(read, end))
        read = end
    assert read == COUNT + 20 * 50
    assert share(racks, answered, FOLLOWER) > 0


def test_trimmed_records_are_told_by_the_leader(racks: KafkaCluster, topic: str) -> None:
    assert offsets(reading(racks, topic, 0, 10)) == list(range(10))  # the follower is known now
    racks.trim(topic, 0, 500)
    with pytest.raises(kshare.errors.DataLossError, match="holds 500 to 3000") as lost:
        offsets(reading(racks, topic))
    assert lost.value.broker == racks.brokers[LEADER].bootstrap_servers
    kept = offsets(reading(racks, topic, options={"failOnDataLoss": "false"}))
    assert kept == list(range(500, COUNT))


@pytest.mark.parametrize("how", [pytest.param("freeze", marks=pytest.mark.long), "kill9"])
def test_the_follower_goes_away_in_the_middle(
    racks: KafkaCluster, topic: str, answered: Counter[str], how: str
) -> None:
    follower = racks.brokers[FOLLOWER]
    batches = reading(racks, topic, options={"kafka.request.timeout.ms": "2000"})
    begun = next(batches)["offset"].to_pylist()
    assert share(racks, answered, FOLLOWER) > 0.9
    try:
        getattr(follower, how)()
        answered.clear()
        assert begun + offsets(batches) == list(range(COUNT))
        assert share(racks, answered, LEADER) > 0.5
    finally:
        if how == "freeze":
            follower.thaw()
        else:
            follower.start()
        in_sync(racks, topic)
