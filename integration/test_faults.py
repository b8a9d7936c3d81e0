"""Injected faults, each at a known moment: no record is lost, duplicated or out of order.

No test relies on a sleep. A fault is injected between two batches of the reader, or when the reader
logs that it retries.
"""

import logging
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa
import pytest

import kshare
from integration.chance import chance_of
from integration.cluster import KafkaCluster
from integration.kafka import KafkaBroker
from integration.runs import Driver, StreamingRun, was_killed
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.errors import CorruptRecordError, FetchTimeoutError, KafkaError
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol import broker_pool
from kshare.options import parse_options
from kshare.testing import Record, check_order
from tests.support.clock import until

COUNT = 3000
SMALL_FETCHES = {"kafka.max.partition.fetch.bytes": "65536", "kafka.fetch.max.wait.ms": "50"}
SMALL_BATCHES = {"batch.num.messages": 50}
Delivered = list[tuple[int, pa.RecordBatch]]


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaBroker]:
    """A broker to be killed, frozen and damaged."""
    with KafkaBroker() as running:
        yield running


def filled(where: KafkaBroker | KafkaCluster, replication: int = 1) -> str:
    """A topic of one partition with ``COUNT`` records, of 300 bytes each so that many fetches are
    needed."""
    topic = where.create_topic(replication=replication)
    chance = chance_of(1)
    records = [Record(b"key-%d" % (i % 97), chance.randbytes(300)) for i in range(COUNT)]
    where.produce(topic, records, config=SMALL_BATCHES)
    return topic


def slices(topic: str, parts: int = 1) -> list[kshare.Slice]:
    """The whole topic, in so many key ranges."""
    offsets = kshare.OffsetRange(0, COUNT)
    return [
        kshare.Slice(topic, 0, (kshare.Rectangle(offsets, hashes),))
        for hashes in split(WHOLE, parts)
    ]


def batches(
    wanted: list[kshare.Slice], servers: str, **options: str
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of the slices' readers in turn, with the number of the slice."""
    settings = {"kafka.bootstrap.servers": servers, **SMALL_FETCHES, **options}
    readers = dict(enumerate(iter(kshare.read_slice(slice_, settings)) for slice_ in wanted))
    while readers:
        for number, reader in list(readers.items()):
            batch = next(reader, None)
            if batch is None:
                del readers[number]
            else:
                yield number, batch


def collect(delivered: Delivered, source: Iterator[tuple[int, pa.RecordBatch]]) -> None:
    """Keep what comes, also if an error ends it."""
    delivered.extend(source)


def received(delivered: Delivered) -> pa.Table:
    """All rows, with the number of the slice as that of the task."""
    tables = [
        pa.Table.from_batches([batch]).append_column(
            "task", pa.array([number] * batch.num_rows, pa.int32())
        )
        for number, batch in delivered
    ]
    return pa.concat_tables(tables)


def assert_all(delivered: Delivered) -> None:
    table = received(delivered)
    table = table.append_column("batch", pa.array([0] * table.num_rows, pa.int64()))
    columns = ["topic", "partition", "offset", "key", "task", "batch"]
    report = check_order(table.select(columns), {0: (0, COUNT)})
    assert report.ok, str(report)


class Retries(logging.Handler):
    """Knows when the reader has said that it retries."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "retrying after" in record.getMessage():
            self.seen.set()

    def __enter__(self) -> Self:
        logger = logging.getLogger("kshare")
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("kshare")
        logger.removeHandler(self)
        logger.setLevel(self._level)


def test_a_leader_moves_while_slices_are_read(cluster: KafkaCluster) -> None:
    topic = filled(cluster, replication=2)
    source = batches(slices(topic, 3), cluster.bootstrap_servers)
    delivered = [next(source) for _ in range(3)]
    before = cluster.leader(topic).node_id
    cluster.move_leader(topic, 0, 3 - before)
    delivered += [next(source) for _ in range(3)]
    cluster.move_leader(topic, 0, before)
    collect(delivered, source)
    assert_all(delivered)


def test_a_leader_moves_between_two_questions_of_the_planner(cluster: KafkaCluster) -> None:
    topic = cluster.create_topic(partitions=2, replication=2)
    settings = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "kafka.default.api.timeout.ms": "15000",
        "fetchOffset.numRetries": "1",
    }
    view = Cluster(parse_options(settings, streaming=True).options.kafka)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for _ in range(2):
        assert view.latest(partitions) == dict.fromkeys(partitions, 0)
        for partition in range(2):
            cluster.move_leader(topic, partition, 3 - cluster.leader(topic, partition).node_id)
    assert view.latest(partitions) == dict.fromkeys(partitions, 0)
    view.close()


def test_a_broker_is_killed_and_comes_back(fragile: KafkaBroker) -> None:
    topic = filled(fragile)
    source = batches(slices(topic, 2), fragile.bootstrap_servers)
    delivered = [next(source) for _ in range(2)]
    fragile.kill9()
    with Retries() as retries:
        reading = threading.Thread(target=collect, args=(delivered, source))
        reading.start()
        assert retries.seen.wait(60)
        fragile.start()
        reading.join(60)
    assert not reading.is_alive()
    assert_all(delivered)


def test_a_broker_that_never_answers(fragile: KafkaBroker) -> None:
    """Planner and reader give up within their time, and say where."""
    topic = filled(fragile)
    servers = fragile.bootstrap_servers
    hasty = {"kafka.request.timeout.ms": "500", "kafka.default.api.timeout.ms": "2000"}
    broker_pool.close_idle()
    fragile.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(FetchTimeoutError, match=f"{topic}-0") as raised:
            list(batches(slices(topic), servers, **hasty))
        assert "kafka.default.api.timeout.ms" in str(raised.value)
        settings = {"kafka.bootstrap.servers": servers, "subscribe": topic, **hasty}
        options = parse_options(settings, streaming=True).options
        view = Cluster(options.kafka)
        with pytest.raises(KafkaError):
            view.latest([TopicPartition(topic, 0)])
        view.close()
        assert time.monotonic() - began < 55  # with the defaults each takes 60
    finally:
        fragile.thaw()


def log_batches(log: bytes) -> list[tuple[int, int, int]]:
    """Base offset, first byte and end of each record batch of a segment."""
    positions, at = [], 0
    while at < len(log):
        base, length = struct.unpack_from(">qi", log, at)
        positions.append((base, at, at + 12 + length))
        at += 12 + length
    return positions


def damage(broker: KafkaBroker, topic: str, number: int, where: Callable[[int, int], int]) -> int:
    """Flip all bits of a byte of a record batch on disk; return the batch's base offset."""
    segment = broker.data_dir / "log" / f"{topic}-0" / "00000000000000000000.log"
    log = bytearray(segment.read_bytes())
    base, start, end = log_batches(bytes(log))[number]
    log[where(start, end)] ^= 0xFF
    segment.write_bytes(log)
    return base


HEADER = 61  # bytes of a batch before its first record


def test_a_damaged_log(fragile: KafkaBroker) -> None:
    """A value's last byte but one, and the length of the first record; each in the 20th batch."""
    value, length = filled(fragile), filled(fragile)
    fragile.stop()
    in_value = damage(fragile, value, 20, lambda _, end: end - 2)
    in_length = damage(fragile, length, 20, lambda start, _: start + HEADER)
    fragile.start()
    servers = fragile.bootstrap_servers

    for topic, base, checked in (
        (value, in_value, "true"),
        (length, in_length, "true"),
        (length, in_length, "false"),
    ):
        source = batches(slices(topic), servers, **{"kafka.check.crcs": checked})
        delivered: Delivered = []
        with pytest.raises(CorruptRecordError) as raised:
            collect(delivered, source)
        error = raised.value
        assert (error.topic, error.partition) == (topic, 0)
        assert error.offset == base
        assert f"{topic}-0" in str(error)
        assert str(base) in str(error)
        # What came before it is whole, and not beyond it.
        reached = received(delivered)["offset"].to_pylist()
        assert reached == list(range(len(reached)))
        assert len(reached) <= base

    assert_all(list(batches(slices(value), servers, **{"kafka.check.crcs": "false"})))


# -- streaming queries ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A Spark that tries a task again, which the session of the other tests does not."""
    with Driver(tmp_path_factory.mktemp("queries"), "local[2,2]") as running:
        yield running


def wait_for(driver: Driver, text: str) -> None:
    """Return when the workers' output, which takes its own way, holds a text."""
    until(lambda: text in driver.log_file.read_text(errors="replace"), shown=driver.log)


def test_a_trimmed_log_in_a_stream(driver: Driver, broker: KafkaBroker, tmp_path: Path) -> None:
    topic = broker.create_topic()
    broker.produce(topic, [Record(b"k%d" % (i % 7), b"v") for i in range(100)])
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, keyRanges="2")
    run.start()
    broker.produce(topic, [Record(b"k%d" % (i % 7), b"v") for i in range(400)])
    broker.trim(topic, 0, 300)

    error = run.try_to_start("kshare", None)
    assert error
    assert "DataLossError" in error
    half = "|".join(re.escape(str(hashes)) for hashes in split(WHOLE, 2))
    wanted = rf"{topic}-0: offsets 100 to 500 of the key hashes ({half}) are wanted"
    assert re.search(wanted + ", the log holds 300 to 500 ", error), error
    assert "failOnDataLoss" in error
    report = run.judge({0: (0, 100)})
    assert report.ok, str(report)

    run.start(failOnDataLoss="false")
    report = run.judge({0: [(0, 100), (300, 500)]})
    assert report.ok, str(report)
    wait_for(driver, "Skipped, since failOnDataLoss is false: offsets 100 to 300")


def test_a_deleted_topic_in_a_stream(driver: Driver, broker: KafkaBroker, tmp_path: Path) -> None:
    kept, deleted = broker.create_topic(), broker.create_topic()
    for topic in (kept, deleted):
        broker.produce(topic, [Record(b"k%d" % (i % 7), b"v") for i in range(100)])
    pattern = {"subscribePattern": f"^({kept}|{deleted})$"}
    run = StreamingRun(broker.bootstrap_servers, kept, tmp_path, driver, **pattern)
    run.start()
    broker.delete_topic(deleted)
    broker.produce(kept, [Record(b"k%d" % (i % 7), b"v") for i in range(50)])

    error = run.try_to_start("kshare", None)
    assert error
    assert "DataLossError" in error
    assert f"{deleted}-0 is gone" in error
    assert "read up to offset 100" in error
    report = run.judge({(kept, 0): (0, 100), (deleted, 0): (0, 100)})
    assert report.ok, str(report)

    run.start(failOnDataLoss="false")
    report = run.judge({(kept, 0): (0, 150), (deleted, 0): (0, 100)})
    assert report.ok, str(report)
    assert f"{deleted}-0 is gone" in run.planner_log.read_text()


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param({}, id="a slice"),
        pytest.param({"maxTasks": "1"}, id="packed", marks=pytest.mark.long),
    ],
)
def test_a_worker_is_killed_in_a_task(
    driver: Driver, broker: KafkaBroker, tmp_path: Path, packed: dict[str, str]
) -> None:
    """Spark runs the task again: what the first try read does not come twice."""
    topic = filled(broker)
    small = {"keyRanges": "2", "maxOffsetsPerTrigger": "2000", **SMALL_FETCHES, **packed}
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, **small)
    kill = {"what": "worker", "where": "in-reader", "batch": 0}
    assert run.try_to_start("kshare", kill) is None
    assert was_killed(kill)
    report = run.judge({0: (0, COUNT)})
    assert report.ok, str(report)
    assert report.batches == 2
