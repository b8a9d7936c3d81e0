"""The demo: one partition read by several Spark tasks, watched as they go, judged at the end.

Law: the verdict is about every row that Spark handed over, against what the broker holds; nothing
is left behind, on a real cluster neither. Cost: all rows (without their values) are kept in memory,
about 50 bytes each, and Spark takes a few seconds to start.
"""

import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.live import Live

from kshare.cluster.cluster import Cluster
from kshare.cluster.parked_keys import ParkedKeys
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, KshareError
from kshare.options import Subscribe, parse_options
from kshare.testing import FakeCluster, OrderReport, check_order, produce, skewed_records
from spark_plugin.demo.view import SCHEMA, Watch, line, view
from spark_plugin.interpreter import worker_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["DemoOptions", "Feed", "Watch", "line", "run", "verdict", "view"]

_RECORDS: Final = 200_000
_KEYS: Final = 1_000
_BATCHES: Final = 8  # about so many, were the keys spread evenly; the hot range needs more
_WAIT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_START_SECONDS: Final = 300.0  # Spark, interpreters, and kernels that are compiled once
_PRODUCER: Final = {"compression.type": "lz4", "linger.ms": 50}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the demo shall do.

    Attributes:
        bootstrap_servers: of a real cluster; None: an embedded one.
        topic: an existing topic, which is only read; None: one that is made, and deleted again.
        records: how many to produce, or of ``topic`` to read; None: 200,000, or all.
        key_ranges: tasks for each partition.
        seconds_max: reading stops that long after the first batch.
    """

    bootstrap_servers: str | None = None
    topic: str | None = None
    records: int | None = None
    key_ranges: int = 4
    seconds_max: float = 120.0


@dataclass(frozen=True, slots=True)
class Feed:
    """What there is to read.

    Attributes:
        servers: the cluster.
        topic: the topic.
        logs: the first offset and the end of each partition.
        dense: whether every offset between the two is a record, as the demo's own topic has it.
        parked: keys of the topic that are parked: their records are not read.
    """

    servers: str
    topic: str
    logs: Mapping[TopicPartition, tuple[int, int]]
    dense: bool
    parked: frozenset[bytes] = frozenset()

    @property
    def offsets(self) -> int:
        """How many there are: at most so many records."""
        return sum(end - start for start, end in self.logs.values())


def run(options: DemoOptions, console: Console | None = None) -> int:
    """Run the demo.

    Args:
        options: what to do.
        console: where to show it; None: standard output.

    Returns:
        The exit code: 0 if all is in order.

    Raises:
        KshareError: it cannot be done; the text says why.
    """
    console = console or Console()
    _need_java()
    with ExitStack() as stack:
        feed = stack.enter_context(_feed(options, console))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kshare-demo-"))
        wanted = feed.offsets
        if options.topic and options.records is not None:
            wanted = min(wanted, options.records)
        if not wanted:
            raise KshareError(f"topic {feed.topic} on {feed.servers} is empty: nothing to read")
        console.print("Starting Spark ...")
        spark = _start_spark(options.key_ranges, folder)
        stack.callback(spark.stop)
        watch = Watch(wanted)
        query = _start_query(spark, feed, watch, options.key_ranges, folder)
        stack.callback(query.stop)
        all_read = _follow(query, feed, watch, console, options.seconds_max)
        query.stop()
        if not watch.records:
            raise KshareError(f"Spark read nothing within {_START_SECONDS:g} s of its start")
        if watch.records < wanted:
            console.print(
                f"Stopped after {watch.records:,} of {wanted:,} records: what was read is judged."
            )
        report = verdict(feed, watch, all_read=all_read)
        colour = "bold green" if report.ok else "bold red"
        console.print(str(report), style=colour, markup=False, highlight=False, soft_wrap=True)
        return 0 if report.ok else 1


# -- what is read ----------------------------------------------------------------------------------


@contextmanager
def _feed(options: DemoOptions, console: Console) -> Iterator[Feed]:
    """A topic with records in it: an embedded one, one that is made, or the user's."""
    count = _RECORDS if options.records is None else options.records
    if options.bootstrap_servers is None:
        with FakeCluster() as cluster:
            topic = cluster.create_topic("kshare-demo")
            yield _filled(cluster.bootstrap_servers, topic, count, console)
    elif options.topic is None:
        with _new_topic(options.bootstrap_servers) as topic:
            yield _filled(options.bootstrap_servers, topic, count, console)
    else:
        logs = _logs(options.bootstrap_servers, options.topic)
        parked = _parked(options.bootstrap_servers, options.topic)
        if parked:
            console.print(f"{len(parked)} parked keys of {options.topic}: their records wait.")
        yield Feed(options.bootstrap_servers, options.topic, logs, dense=False, parked=parked)


def _parked(servers: str, topic: str) -> frozenset[bytes]:
    given = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    kafka = parse_options(given, streaming=True).options.kafka
    with closing(ParkedKeys(kafka)) as keys:
        return frozenset(key for at, key in keys.parked() if at == topic)


def _filled(servers: str, topic: str, count: int, console: Console) -> Feed:
    console.print(f"Producing {count:,} records of {_KEYS:,} keys, a few of them hot ...")
    produce(servers, topic, skewed_records(count, _KEYS), partition=0, config=_PRODUCER)
    feed = Feed(servers, topic, _logs(servers, topic), dense=True)
    if feed.offsets < count:
        console.print(f"The embedded broker keeps the last {feed.offsets:,} of them.")
    return feed


@contextmanager
def _new_topic(servers: str) -> Iterator[str]:
    """A topic of one partition on a real cluster, which is deleted in the end."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    topic = f"kshare-demo-{uuid.uuid4().hex[:12]}"
    try:
        made = admin.create_topics([NewTopic(topic, 1)], request_timeout=_WAIT_SECONDS)
        made[topic].result(_WAIT_SECONDS)
    except (KafkaException, TimeoutError) as error:
        raise KafkaError(f"cannot create topic {topic} on {servers}: {error}") from error
    try:
        yield topic
    finally:
        deleted = admin.delete_topics([topic], request_timeout=_WAIT_SECONDS)
        try:
            deleted[topic].result(_WAIT_SECONDS)
        except (KafkaException, TimeoutError) as error:
            sys.stderr.write(f"warning: topic {topic} on {servers} was not deleted: {error}\n")


def _logs(servers: str, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    kafka = parse_options(options, streaming=False).options.kafka
    with closing(Cluster(kafka)) as cluster:
        places = cluster.partitions(Subscribe((topic,)))
        first, end = cluster.earliest(places), cluster.latest(places)
    return {place: (first[place], end[place]) for place in places}


# -- Spark -----------------------------------------------------------------------------------------


def _need_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and not shutil.which("java"):
        raise KshareError("Spark needs Java >= 17: put java on the PATH, or set JAVA_HOME")


def _start_spark(slots: int, folder: str) -> "SparkSession":
    """A local Spark with this interpreter, quiet, that finds kshare where this process did."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a while, and help needs none

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = worker_python()
    root = str(Path(__file__).resolve().parent.parent)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([root, *known]))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.pop("SPARK_HOME", None)  # the pyspark of this environment
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{slots}]").appName("kshare-demo")
    return builder.config(map=settings).getOrCreate()


def _start_query(
    spark: "SparkSession", feed: Feed, watch: Watch, key_ranges: int, folder: str
) -> "StreamingQuery":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    def keep(rows: "DataFrame", batch: int) -> None:
        watch.keep(batch, rows.toArrow())

    per_task = max(watch.wanted // (max(len(feed.logs), 1) * key_ranges * _BATCHES), 1)
    rows = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", feed.servers)
        .option("subscribe", feed.topic)
        .option("startingOffsets", "earliest")
        .option("keyRanges", key_ranges)
        .option("maxRecordsPerTask", per_task)
        .load()
        .select("topic", "partition", "offset", "key", F.spark_partition_id().alias("task"))
    )
    return (
        rows.writeStream.foreachBatch(keep)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def _follow(
    query: "StreamingQuery", feed: Feed, watch: Watch, console: Console, seconds_max: float
) -> bool:
    """Show how the query goes on, until it has read all or should stop.

    Returns:
        Whether it has read all that there was.
    """
    deadline, reading = time.monotonic() + _START_SECONDS, False
    with ExitStack() as stack:
        live = None
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, auto_refresh=False))
        shown = 0
        while True:
            ended = _ended(query)
            if watch.rows and not reading:
                deadline, reading = time.monotonic() + seconds_max, True
            if query.lastProgress is not None:
                watch.told(json.loads(query.lastProgress.json))
            if live is not None:
                live.update(view(watch), refresh=True)
            elif len(watch.rows) > shown:
                shown = len(watch.rows)
                console.print(line(watch), markup=False, highlight=False, soft_wrap=True)
            if ended:
                return True
            enough = watch.records >= watch.wanted < feed.offsets
            if enough or time.monotonic() >= deadline:
                return False


def _ended(query: "StreamingQuery") -> bool:
    """Wait a moment, and say whether the query has read all. KshareError: it has failed."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415

    try:
        # Spark's annotation says int; it takes parts of a second.
        return bool(query.awaitTermination(_LOOK_SECONDS))  # type: ignore[arg-type]
    except StreamingQueryException as error:
        raise KshareError(f"the query failed: {error}") from error


# -- the verdict -----------------------------------------------------------------------------------


def verdict(feed: Feed, watch: Watch, *, all_read: bool) -> OrderReport:
    """Judge what was read: nothing lost, nothing twice, each key in order.

    Args:
        feed: what there was when reading began.
        watch: what was read.
        all_read: whether all of it should have been; else only what lies below the stable offsets,
            and the order of everything.
    """
    received = watch.received()
    bounds = {
        place: (start, end if all_read else max(min(end, watch.stable(place)), start))
        for place, (start, end) in feed.logs.items()
    }
    wanted = _every_offset(bounds) if feed.dense else _consumed(feed.servers, bounds)
    if feed.parked:
        waits = pc.is_in(wanted["key"], pa.array(sorted(feed.parked), pa.binary()))
        wanted = wanted.filter(pc.invert(waits))
    # Beyond the bounds it is not known what should be there: what came is taken as it is.
    more = [
        received.filter(
            (pc.field("partition") == place.partition) & (pc.field("offset") >= end)
        ).select(wanted.column_names)
        for place, (_, end) in bounds.items()
    ]
    return check_order(received, pa.concat_tables([wanted, *more]))


def _every_offset(bounds: Mapping[TopicPartition, tuple[int, int]]) -> pa.Table:
    tables = [
        pa.table(
            {
                "topic": pa.repeat(pa.scalar(place.topic, pa.string()), end - start),
                "partition": pa.repeat(pa.scalar(place.partition, pa.int32()), end - start),
                "offset": pa.array(range(start, end), pa.int64()),
            }
        )
        for place, (start, end) in bounds.items()
    ]
    return pa.concat_tables(tables)


def _consumed(servers: str, bounds: Mapping[TopicPartition, tuple[int, int]]) -> pa.Table:
    """What a consumer of librdkafka finds in the same place: another reader, for comparison."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "kshare-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "log_level": 2,
        }
    )
    left = {place: end for place, (start, end) in bounds.items() if start < end}
    columns: dict[str, list[Any]] = {"topic": [], "partition": [], "offset": [], "key": []}
    deadline = time.monotonic() + _WAIT_SECONDS
    try:
        consumer.assign([Place(*place, bounds[place][0]) for place in left])
        while left:
            messages = consumer.consume(10_000, _LOOK_SECONDS)
            if messages:
                deadline = time.monotonic() + _WAIT_SECONDS
            elif time.monotonic() > deadline:
                raise KafkaError(f"no answer from {servers} while comparing: {sorted(left)}")
            _take(messages, left, columns)
    finally:
        consumer.close()
    return pa.table(columns, schema=pa.schema(list(SCHEMA)[:4]))


def _take(
    messages: list[Any], left: dict[TopicPartition, int], columns: dict[str, list[Any]]
) -> None:
    """Add records below the ends, and forget partitions of which the end is reached."""
    for message in messages:
        place = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if error is not None and error.code() != RdKafkaError._PARTITION_EOF:  # noqa: SLF001
            raise KafkaError(f"cannot read {place} while comparing: {error.str()}")
        if place not in left:
            continue
        end = left[place]
        if error is not None or message.offset() >= end - 1:
            del left[place]
        if error is not None or message.offset() >= end:
            continue
        columns["topic"].append(place.topic)
        columns["partition"].append(place.partition)
        columns["offset"].append(message.offset())
        columns["key"].append(message.key())
