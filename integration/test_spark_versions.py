"""A query whose checkpoint moves between versions of Spark, while its ranges stand apart."""

import os
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from integration.kafka import KafkaBroker
from integration.members import eventually
from integration.runs import Driver, StreamingRun
from integration.spark_versions import OLDEST, WANTED
from kshare.cli.query import observed_status
from kshare.core.checkpoint import EXTRA_KEY
from kshare.options import parse_options
from kshare.testing import Record
from kshare.worker_connection import SentToTasks, worker_output
from spark_plugin import KshareListener
from spark_plugin.spark_api import TELLS_START

TRIGGERS: dict[str, dict[str, Any]] = {
    "now": {"availableNow": True},
    "waiting": {"processingTime": "600 seconds"},
}
KEYS = [b"key-%d" % number for number in range(8)]


@pytest.mark.long
def test_a_checkpoint_moves_to_and_fro(broker: KafkaBroker, tmp_path: Path) -> None:
    """Each time amid a batch that has not ended: killed in its tasks, or when it is written."""
    topic, produced = broker.create_topic(), 0

    def produce() -> int:
        records = [Record(KEYS[i % 8] if i % 4 == 0 else KEYS[0], b"%d" % i) for i in range(240)]
        broker.produce(topic, records)
        return produced + len(records)

    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    produced = produce()
    with Driver(folders[0], version=OLDEST) as old, Driver(folders[1]) as new:
        run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, old)
        options = {"keyRanges": "3", "maxRecordsPerTask": "25"}
        run.start_and_kill("driver", "in-tasks", 2, **options)
        assert "limits" in newest(run)[EXTRA_KEY]
        assert "ic" in newest(run)[EXTRA_KEY]
        run.driver = new
        run.start_and_kill("driver", "before-commit-log", 1, **options)
        assert "ic" in newest(run)[EXTRA_KEY]
        run.driver = old
        run.start(**{**options, "maxRecordsPerTask": "80"})
        produced = produce()
        run.driver = new
        run.start(**options)
    report = run.judge({0: (0, produced)})
    assert report.ok, report


def newest(run: StreamingRun) -> dict[str, Any]:
    """The newest dict in the offset log."""
    offsets = run.offsets()
    return offsets[max(offsets)]


def test_the_spark_is_of_the_wanted_version(spark: SparkSession) -> None:
    """A matrix that runs one version four times proves nothing."""
    wanted = os.environ.get(WANTED, version("pyspark"))
    assert (pyspark.__version__, spark.version) == (wanted, wanted)


class _Connections(DataSource):
    """Each task tells whether its connection to Spark keeps small messages back."""

    @classmethod
    def name(cls) -> str:
        return "connections"

    def schema(self) -> str:
        return "at_once int, descriptors int"

    def reader(self, schema: object) -> "_ConnectionReader":
        return _ConnectionReader()


class _ConnectionReader(SentToTasks, DataSourceReader):
    def __init__(self) -> None:
        self._tasks = 2  # without a state, nothing would be told that it is unpickled

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, _: InputPartition) -> Iterator[tuple[int, int]]:
        output = worker_output()
        assert output is not None
        with socket.socket(fileno=os.dup(output.fileno())) as connection:
            at_once = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        yield at_once, len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_task_finds_its_connection_to_spark(spark: SparkSession) -> None:
    """With any Python of Spark's, a worker's first task or a later one; none is left open."""
    spark.dataSource.register(_Connections)
    frame = spark.read.format("connections").load()
    told = [row for _ in range(4) for row in frame.collect()]
    assert [row.at_once for row in told] == [1] * 8
    assert len({row.descriptors for row in told[2:]}) == 1


class _Ended(StreamingQueryListener):
    """Notes the queries whose end all listeners before it have seen."""

    def __init__(self) -> None:
        self.runs: set[str] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.runs.add(str(event.runId))


def test_what_one_batch_leaves(
    broker: KafkaBroker, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Said of the triggers that Spark before 4.2 ends after one batch, and of no other."""
    topic = broker.create_topic()
    broker.produce(topic, [Record(b"k", b"v")] * 100)
    frame = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 30)
        .load()
    )
    listener, ended = KshareListener(), _Ended()
    caplog.clear()
    spark.streams.addListener(listener)
    spark.streams.addListener(ended)
    said, left = {}, {}
    try:
        for name, trigger in TRIGGERS.items():
            folder = str(tmp_path / name)
            writer = frame.writeStream.format("noop").queryName(name)
            query = writer.option("checkpointLocation", folder).trigger(**trigger).start()
            if name == "waiting":  # for its second trigger, with records unread
                eventually(lambda: query.lastProgress is not None)  # noqa: B023
                query.stop()
            query.awaitTermination()
            eventually(lambda: query.runId in ended.runs)  # noqa: B023
            texts = [each.getMessage() for each in caplog.records if "unread" in each.getMessage()]
            said[name] = texts
            caplog.clear()
            kafka = parse_options(
                {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic},
                streaming=True,
            ).options.kafka
            left[name] = observed_status(folder, kafka).left
    finally:
        spark.streams.removeListener(listener)
        spark.streams.removeListener(ended)
    assert said["waiting"] == []
    assert left["waiting"] == {topic: 70}, "what is true of a query that runs or has ended"
    if TELLS_START:
        assert said == {"now": [], "waiting": []}
        assert left["now"] == {}
    else:
        (text,) = said["now"]
        assert text.startswith(f"now ended after one batch with 70 records unread: {topic} 70.")
        assert left["now"] == {topic: 70}
    broker.delete_topic(topic)
