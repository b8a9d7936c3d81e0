"""Many slices read together from real brokers: rows, requests, faults."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

import kshare
from integration.cluster import KafkaCluster
from integration.kafka import KafkaBroker
from kshare.core.hashing import WHOLE, key_hash, split
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.kafka.protocol.broker_pool import BrokerPool, PoolMemory
from kshare.kafka.protocol.connection import Connection
from kshare.read.reader.read_slice import (
    SliceReader,
    read_slice,
    read_slices,
    reader_options,
)
from kshare.testing import Record

PARTITIONS, COUNT = 12, 400
Rows = list[dict[str, Any]]


def records(count: int = COUNT) -> list[Record]:
    """As many for each partition, of sizes from 1 byte to 2 KiB."""
    chance = random.Random(5)
    return [
        Record(b"k%d" % (i % 31), chance.randbytes(chance.choice([1, 100, 2000])), partition=part)
        for i in range(count)
        for part in range(PARTITIONS)
    ]


def slices(topic: str, start: int = 0, end: int = COUNT) -> list[kshare.Slice]:
    """Two key ranges of every partition."""
    offsets = kshare.OffsetRange(start, end)
    return [
        kshare.Slice(topic, part, (kshare.Rectangle(offsets, hashes),))
        for part in range(PARTITIONS)
        for hashes in split(WHOLE, 2)
    ]


def rows_of(source: Iterator[pa.RecordBatch]) -> Rows:
    return [row for batch in source for row in batch.to_pylist()]


def of(slice_: kshare.Slice, rows: Rows) -> Rows:
    """The rows that belong to a slice."""
    (rectangle,) = slice_.rectangles
    return [
        row
        for row in rows
        if row["partition"] == slice_.partition
        and key_hash(row["key"], row["offset"]) in rectangle.hashes
    ]


class Ends(dict[kshare.Slice, SliceEnd]):
    """Where slices ended."""

    def of(self, slice_: kshare.Slice) -> Callable[[SliceEnd], None]:
        return partial(self.__setitem__, slice_)


def test_the_rows_and_ends_of_each_slice_are_those_of_a_reader_of_its_own(
    broker: KafkaBroker,
) -> None:
    topic = broker.create_topic(partitions=PARTITIONS)
    broker.produce(topic, records(), config={"batch.num.messages": 20})
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    for more in ({}, {"kafka.max.partition.fetch.bytes": "20000", "kafka.fetch.max.bytes": "9000"}):
        for limit in (None, 33):
            ends, alone = Ends(), Ends()
            wanted = [PlannedSlice(each, limit) for each in slices(topic)]
            on_end = {each: ends.of(each) for each in slices(topic)}
            rows = rows_of(read_slices(wanted, servers | more, on_end))
            for each in slices(topic):
                source = read_slice(each, servers, max_records=limit, on_end=alone.of(each))
                assert of(each, rows) == rows_of(source)
            assert ends == alone


class Counting(Connection):
    """Counts what is received."""

    fetches = 0
    largest = 0

    def receive_ready(self) -> memoryview | None:
        return self.receive()

    def receive(self) -> memoryview:
        body = super().receive()
        if len(body) > 1000:
            Counting.fetches += 1
            Counting.largest = max(Counting.largest, len(body))
        return body


def test_one_request_brings_all_and_large_batches_have_their_turn(broker: KafkaBroker) -> None:
    topic = broker.create_topic(partitions=PARTITIONS)
    broker.produce(topic, records(20))
    wanted = [PlannedSlice(each) for each in slices(topic, 0, 20)]
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers}

    def read(**more: str) -> Rows:
        options, memory = reader_options(given | more, topic), PoolMemory()
        pool = BrokerPool(options.kafka, connect=Counting, memory=lambda: memory)
        Counting.fetches = Counting.largest = 0
        rows = rows_of(SliceReader(wanted, options, brokers=pool).batches())
        memory.close_idle()
        assert len(rows) == 20 * PARTITIONS
        return rows

    read()
    assert Counting.fetches == 1
    # Each batch is larger than what is asked for: the broker gives one at a time.
    read(**{"kafka.max.partition.fetch.bytes": "100", "kafka.fetch.max.bytes": "100"})
    assert Counting.fetches >= PARTITIONS
    assert Counting.largest < 40_000


def test_leaders_that_move_and_records_that_are_trimmed(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(partitions=PARTITIONS, replication=2)
    cluster.produce(topic, records(), config={"batch.num.messages": 20})
    for part in (2, 7):
        cluster.trim(topic, part, 100)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.max.partition.fetch.bytes": "65536",
        "kafka.fetch.max.wait.ms": "50",
        "failOnDataLoss": "false",
    }
    source = read_slices([PlannedSlice(each) for each in slices(topic)], options)
    rows = rows_of(iter([next(source)]))
    for part in range(0, PARTITIONS, 3):
        leader = cluster.leader(topic, part).node_id
        cluster.move_leader(topic, part, 3 - leader)
    rows += rows_of(source)
    for part in range(PARTITIONS):
        offsets = [row["offset"] for row in rows if row["partition"] == part]
        assert sorted(offsets) == list(range(100 if part in (2, 7) else 0, COUNT))
    for each in slices(topic):
        offsets = [row["offset"] for row in of(each, rows)]
        assert offsets == sorted(offsets)


def test_read_committed(broker: KafkaBroker) -> None:
    topic = broker.create_topic(partitions=PARTITIONS)
    broker.produce_transaction(topic, records(5), commit=False)
    broker.produce_transaction(topic, records(5), commit=True)
    end = broker.latest(topic)
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    wanted = [PlannedSlice(each) for each in slices(topic, 0, end)]
    for level, count in (("read_committed", 5), ("read_uncommitted", 10)):
        rows = rows_of(read_slices(wanted, given | {"kafka.isolation.level": level}))
        for part in range(PARTITIONS):
            assert len([row for row in rows if row["partition"] == part]) == count


def test_the_end_of_a_log_counts_an_open_transaction(broker: KafkaBroker, topic: str) -> None:
    producer = broker.transaction()
    producer.produce(topic, b"open")
    assert producer.flush(60) == 0
    assert broker.latest(topic) == 1
    producer.abort_transaction(60)
