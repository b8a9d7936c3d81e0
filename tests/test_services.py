"""Source, sink, groups and handlers on brokers that offer what a service offers."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as Partition

import kshare
from kshare.core.hashing import WHOLE
from kshare.errors import KafkaError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.options.sink import parse_sink_options
from kshare.processing import Processor
from kshare.query.produce import write_rows
from kshare.testing import FakeCluster
from spark_plugin.source import KshareDataSource
from tests.processing.running import run
from tests.support.groups import LOG, receive_and_commit
from tests.support.services import SERVICES

RECORDS = 100
ROWS = [(f"k{at % 10}", str(at)) for at in range(RECORDS)]
VALUES = sorted(value.encode() for _, value in ROWS)


_NOT_OF_THE_MOCK = {"DescribeProducers", "ListTransactions"}  # none of its brokers has them


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Iterator[FakeCluster]:
    with FakeCluster(topics={LOG: 1, "orders": 1, "out": 1}) as cluster:
        for api, (lowest, highest) in SERVICES[request.param].items():
            if api not in _NOT_OF_THE_MOCK:
                cluster.limit_api_version(api, lowest, highest)
        cluster.produce("orders", ROWS, partition=0)
        yield cluster


def config_of(cluster: FakeCluster) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "group",
        "auto.offset.reset": "earliest",
    }


def test_slices_are_read(service: FakeCluster) -> None:
    options = {"kafka.bootstrap.servers": service.bootstrap_servers}
    everything = kshare.Rectangle(kshare.OffsetRange(0, RECORDS), WHOLE)
    batches = kshare.read_slice(kshare.Slice("orders", 0, (everything,)), options)
    table = pa.Table.from_batches(list(batches))
    assert table["value"].to_pylist() == [value.encode() for _, value in ROWS]


def values(reader: Any, tasks: Any) -> list[bytes]:
    return [
        value
        for task in tasks
        for batch in reader.read(task)
        for value in batch["value"].to_pylist()
    ]


def source_of(cluster: FakeCluster, **given: str) -> KshareDataSource:
    where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
    return KshareDataSource({**where, "startingOffsets": "earliest", "keyRanges": "2", **given})


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_batch_query_reads_every_record_once(service: FakeCluster, isolation: str) -> None:
    source = source_of(service, **{"kafka.isolation.level": isolation})
    reader: Any = source.reader(source.schema())
    assert sorted(values(reader, reader.partitions())) == VALUES


def test_a_streaming_query_reads_every_record_once(service: FakeCluster) -> None:
    group = {"commitOffsets": "true", "kafka.group.id": "g"}
    source = source_of(service, maxOffsetsPerTrigger="30", **group)
    made: Any = source.streamReader(source.schema())
    reader = getattr(made, "reader", made)
    try:
        start, limit, found = reader.initialOffset(), reader.getDefaultReadLimit(), list[bytes]()
        while len(found) < RECORDS:
            end = reader.latestOffset(start, limit)
            read = values(reader, reader.partitions(start, end))
            assert read
            found += read
            reader.commit(end)
            start = end
    finally:
        reader.stop()
    assert sorted(found) == VALUES


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_a_group_receives_and_commits(service: FakeCluster, way: str) -> None:
    found = receive_and_commit(config_of(service), "orders", RECORDS, way)
    assert sorted(message.value() for message in found) == VALUES


def test_handlers_are_called(service: FakeCluster) -> None:
    seen: list[bytes | None] = []

    def handler(message: Any) -> None:
        seen.append(message.value)

    config = {**config_of(service), "acknowledgement.mode": "explicit"}
    with KeySharedConsumer(config) as consumer:
        consumer.assign([Partition("orders", 0)])
        run(Processor(handler), consumer, lambda: len(seen) == RECORDS)
    assert sorted(value or b"" for value in seen) == VALUES


def test_rows_are_written(service: FakeCluster, request: pytest.FixtureRequest) -> None:
    given = {"kafka.bootstrap.servers": service.bootstrap_servers, "topic": "out"}
    rows = pa.RecordBatch.from_pydict({"key": [k for k, _ in ROWS], "value": [v for _, v in ROWS]})
    if "Oracle" in request.node.name:
        options = parse_sink_options(given, streaming=True).options
        with pytest.raises(KafkaError, match=r"InitProducerId \(.*enable\.idempotence=false"):
            write_rows([rows], options)
        given["kafka.enable.idempotence"] = "false"
    options = parse_sink_options(given, streaming=True).options
    assert write_rows([rows], options) == RECORDS
