"""Ranges that stand at different offsets, in real queries: parked, told lies, made slow."""

import contextlib
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration.kafka import KafkaBroker
from integration.runs import StreamingRun
from integration.spark import QUERY_S
from integration.streaming_job import planners, source_of
from kshare.cli import main as kshare_command
from kshare.core.checkpoint import EXTRA_KEY
from kshare.core.hashing import key_hash
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import Ticket
from kshare.query.feedback.messages import TaskReport
from kshare.query.planner.batch_history import batch_name
from kshare.testing import Record


class Query:
    """A query of the session's Spark, which writes where a :class:`StreamingRun` looks.

    Args:
        spark: the session.
        run: the topic, the checkpoint and the sink.
        trigger: as Spark's.
        slowly: a column that takes its time, given the key; it is part of what is written.
        after: called for each batch, when it is written and not yet noted as done.
        options: the source's.
    """

    def __init__(
        self,
        spark: SparkSession,
        run: StreamingRun,
        trigger: dict[str, Any],
        *,
        slowly: Any = None,
        after: Callable[[int], object] = lambda _: None,
        **options: str,
    ) -> None:
        kept = source_of({"log": str(run.planner_log)})

        class Source(kept):  # type: ignore[misc, valid-type]
            @classmethod
            def name(cls) -> str:
                return "kshare-kept"

        spark.dataSource.register(Source)
        reading = {"kafka.bootstrap.servers": run.servers, "subscribe": run.topic}
        reading |= {"startingOffsets": "earliest"}
        frame = spark.readStream.format("kshare-kept").options(**{**reading, **options}).load()

        def sink(rows: DataFrame, batch: int) -> None:
            columns = rows.select("topic", "partition", "offset", "key")
            placed = columns.withColumn("task", F.spark_partition_id())
            if slowly is not None:
                placed = placed.withColumn("slow", slowly("key"))
            placed.write.mode("overwrite").parquet(f"{run.out}/batch={batch}")
            after(batch)

        writer = frame.writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(run.checkpoint))
        self._run = run
        self.running = writer.trigger(**trigger).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.stop()

    def end(self) -> None:
        """Wait until it has read all there is."""
        assert self.running.awaitTermination(QUERY_S), self.running.lastProgress

    def until(self, is_so: Callable[[Counter[bytes]], bool]) -> None:
        """Return between two batches, when the counts of the sink's keys are as they should be."""
        deadline = time.monotonic() + QUERY_S
        self.running.processAllAvailable()
        while not is_so(self.received()):
            assert time.monotonic() < deadline, self.received()
            self.running.processAllAvailable()

    def received(self) -> Counter[bytes]:
        """How many records of each key there are in the sink."""
        if not self._run.out.exists():
            return Counter()
        return Counter(self._run.received()["key"].to_pylist())


KEYS = [b"key-%d" % number for number in range(8)]
AVAILABLE_NOW = {"availableNow": True}


def of_all_keys(each: int) -> list[Record]:
    return [Record(key, b"v") for _ in range(each) for key in KEYS]


@pytest.mark.long
def test_parked_and_unparked_while_the_query_runs(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """The others do not wait; what waited comes when it may, in order, and once."""
    topic, parked = broker.create_topic(), KEYS[3]
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path)
    where = ["--bootstrap-servers", run.servers, "--topic", topic]
    often = {"processingTime": "100 milliseconds"}
    broker.produce(topic, of_all_keys(40))
    produced = 40 * len(KEYS)
    with Query(spark, run, often, keyRanges="3", maxRecordsPerTask="60") as query:
        query.until(lambda received: received == dict.fromkeys(KEYS, 40))
        assert kshare_command(["park", *where, parked.decode()]) == 0
        # The planner hears of it some time: from the first record on that does not come.
        came = 40
        while query.received()[parked] == came:
            broker.produce(topic, [Record(parked, b"v"), Record(KEYS[0], b"v")])
            produced += 2
            others = query.received()[KEYS[0]] + 1
            query.until(lambda received: received[KEYS[0]] == others)  # noqa: B023
            came += 1
        broker.produce(topic, of_all_keys(60))
        produced += 60 * len(KEYS)
        query.until(lambda received: all(received[k] == 100 for k in KEYS[1:] if k != parked))
        assert query.received()[parked] == came - 1
        batch = max(run.offsets())
        stable = run.offsets()[batch][topic]["0"]
        assert stable < produced - 60 * len(KEYS)  # held by the first record that waits
        assert kshare_command(["unpark", *where, parked.decode()]) == 0
        query.until(lambda received: sum(received.values()) == produced)
    report = run.judge({0: (0, produced)})
    assert report.ok, str(report)
    rows = run.received().to_pylist()
    late = [row for row in rows if row["batch"] > batch]
    assert {row["key"] for row in late} == {parked}
    assert len(late) == 60 + 1


def test_parked_by_an_option_at_a_restart(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    topic, parked = broker.create_topic(), KEYS[5]
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path)
    broker.produce(topic, of_all_keys(30))
    options: dict[str, Any] = {"keyRanges": "2", "parkedKeys": json.dumps([parked.decode()])}
    with Query(spark, run, AVAILABLE_NOW, **options) as query:
        query.end()
        assert query.received() == {key: 30 for key in KEYS if key != parked}
    # Which records wait is in the log, not in the plan: its hash is pending from the first offset.
    assert run.offsets()[max(run.offsets())][topic]["0"] == 0
    broker.produce(topic, of_all_keys(10))
    with Query(spark, run, AVAILABLE_NOW, keyRanges="3") as query:
        query.end()
        assert query.received() == dict.fromkeys(KEYS, 40)
    report = run.judge({0: (0, 40 * len(KEYS))})
    assert report.ok, str(report)


def _listening_ports() -> list[int]:
    """Of the planners of this process's queries."""
    ports = []
    for planner in planners(psutil.Process()):
        with contextlib.suppress(psutil.Error):  # of an earlier query, and it ends
            connections = planner.net_connections("tcp")
            ports += [one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN]
    return ports


def test_strangers_at_the_planner(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    """Garbage, half a message, and a message with another key: nothing changes."""
    topic = broker.create_topic()
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path)
    broker.produce(topic, of_all_keys(50))
    heard: list[int] = []

    def lie(batch: int) -> None:
        forged = Ticket("127.0.0.1", 0, b"another key", batch_name(run.offsets()[batch]), 0)
        for port in _listening_ports():
            for noise in (b"\0" * 5_000, b"GET / HTTP/1.1\r\n\r\n", b"a" * 64):
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port)) as s,
                ):
                    s.sendall(noise)
            report = TaskReport(replace(forged, port=port))
            report.begin()
            report.done(forged, SliceEnd(1, 1), held=False)
            heard.append(port)

    options = {"keyRanges": "2", "maxRecordsPerTask": "25"}
    with Query(spark, run, AVAILABLE_NOW, after=lie, **options) as query:
        query.end()
    assert heard
    report = run.judge({0: (0, 50 * len(KEYS))})
    assert report.ok, str(report)


SLOW = b"slow"


def _ranges_shown(shown: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    """The ranges of partition 0 in a progress report; none where there is nothing to tell."""
    reports = shown.get(EXTRA_KEY, {}).get("report", {})
    ranges: list[dict[str, Any]] = reports.get(topic, {}).get("0", {}).get("ranges", [])
    return ranges


def slowly() -> Any:
    """A function of columns that takes 0.1 s for a record of one key."""

    # Not annotated: with annotations Spark asks for pandas.
    def wait(key):  # type: ignore[no-untyped-def]
        if bytes(key) == SLOW:
            time.sleep(0.1)
        return len(key)

    return F.udf(wait, "int", useArrow=False)


@pytest.mark.timeout(1800)  # where it has to start again
def test_a_slow_key_gets_a_range_of_its_own(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    """With times of tasks instead of counts of records, and ranges that follow them."""
    topic = broker.create_topic()
    chance = random.Random(2)
    keys = [
        SLOW if chance.random() < 0.02 else b"key-%d" % chance.randrange(400) for _ in range(3_000)
    ]
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path)
    options: dict[str, Any] = {
        "keyRanges": "4",
        "rangeAssignor": "adaptive",
        "targetTaskDuration": "1s",
    }
    slow = key_hash(SLOW, 0)
    ranges: list[tuple[tuple[int, int], ...]] = []
    # Tasks whose reports are late count as unmeasured: on a busy machine, too many may.
    for starts in range(1, 4):
        broker.produce(topic, [Record(key, b"v") for key in keys])
        with Query(spark, run, AVAILABLE_NOW, slowly=slowly(), **options) as query:
            query.end()
            shown = [json.loads(p.sources[0].latestOffset) for p in query.running.recentProgress]
        report = run.judge({0: (0, starts * len(keys))})
        assert report.ok, str(report)
        ranges += [
            tuple(map(tuple, one["h"])) for each in shown for one in _ranges_shown(each, topic)
        ]
        if ((slow, slow + 1),) in ranges:
            return
    pytest.fail(f"no range of the slow key alone: {ranges}")
