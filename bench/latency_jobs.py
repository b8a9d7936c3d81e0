"""Kafka to Kafka through Spark, 1,000 records a second: how long after one came in it goes out.

The query is that of Spark's RTMKafkaKafkaBenchmark: five partitions to five, the value in base64,
the record's timestamp in a header; without its observe(), which Python has no function for. Each
way runs for some time, in turn with the others, in one session of Spark. Latency is the timestamp
that the broker gives a record of the output (LogAppendTime), less the producer's of the input; the
first seconds of each run do not count.

``python -m bench.latency_jobs [--seconds N] [--runs N] [--conf NAME=VALUE] [WAY ...]``;
``--produce`` is the process that writes.
"""

import argparse
import asyncio
import base64
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench import data
from bench.rows import Row
from integration.kafka import KafkaBroker
from integration.spark import start_spark
from kshare.processing import Processor, Record, process_by_key
from kshare.testing.records import watermarks

PARTITIONS = 5
RANGES = 4
RATE = 1_000
KEYS = 500
SECONDS = 60.0
"""How long a run counts."""
WARM_SECONDS = 10.0
"""How long it does not, once its first record has come."""
START_SECONDS = 120.0
SLOTS = PARTITIONS * RANGES + 2
BATCH = "5 minutes"
"""As in Spark's benchmark: between two micro-batches records wait."""
HEADER = "source-timestamp"


@dataclass(frozen=True)
class Way:
    """A way from topic to topic.

    Attributes:
        source: Name of the source.
        sink: Name of the sink.
        options: Options of the source.
        trigger: The trigger.
        conf: Settings of the session.
        p50: Target of the median, in ms; None if it is a peer.
        p99: Target of the 99th percentile; None for none.
        handles: Whether records go through ``process_by_key``, with a handler that waits 5 ms.
    """

    source: str
    sink: str = "kafka"
    options: Mapping[str, str] = field(default_factory=dict)
    trigger: Mapping[str, Any] = field(default_factory=lambda: {"processingTime": "0 seconds"})
    conf: Mapping[str, str] = field(default_factory=dict)
    p50: float | None = None
    p99: float | None = None
    handles: bool = False


_NO_CONF: Mapping[str, str] = MappingProxyType({})
_PEER = {"kafka.fetch.max.wait.ms": "10", "kafka.max.partition.fetch.bytes": "10485760"}
_OURS = {"realTime": "5min"}
_SMALL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "64",
}
"""Spark collects rows for a sink in Python until there are so many, and so many bytes."""
WAYS = {
    "micro-batches": Way("kafka", options=_PEER),
    "real-time mode": Way("kafka", options=_PEER, trigger={"realTime": BATCH}),
    "realTime": Way("kshare", options=_OURS, p50=10, p99=85),
    "realTime, 2 tasks": Way("kshare", options=_OURS | {"maxTasks": "2"}, p50=10, p99=85),
    "realTime, 4 key ranges": Way("kshare", options=_OURS | {"keyRanges": f"{RANGES}"}, p99=100),
    "realTime, handlers of 5 ms": Way("kshare", options=_OURS, handles=True, p50=20),
    "realTime, kshare's sink": Way("kshare", "kshare", _OURS, conf=_SMALL, p50=15),
    "realTime, kshare's sink, 1 task": Way(
        "kshare", "kshare", _OURS | {"maxTasks": "1"}, conf=_SMALL, p50=15
    ),
}


class Latencies(NamedTuple):
    """What was seen of some runs of a way, in ms."""

    times: Sequence[int]
    is_ordered: bool
    cores: float

    def at(self, share: float) -> int:
        """A percentile."""
        return self.times[min(int(len(self.times) * share), len(self.times) - 1)]

    def __str__(self) -> str:
        if not self.times:
            return "nothing"
        order = "" if self.is_ordered else ", keys OUT OF ORDER"
        shown = f"p50 {self.at(0.5)}, p90 {self.at(0.9)}, p99 {self.at(0.99)} ms{order}"
        return f"{shown}, {self.cores:.2f} cores"


# -- what writes ---------------------------------------------------------------------------------


def produce(servers: str, topic: str) -> None:
    """Write records at an even pace until this process is ended."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    began = time.monotonic()
    number = 0
    while True:
        due = int((time.monotonic() - began) * RATE)
        while number < due:
            producer.produce(topic, f"{number}".encode(), f"key-{number % KEYS}".encode())
            number += 1
        producer.poll(0)
        time.sleep(0.001)


@contextmanager
def produced(servers: str, topic: str) -> Iterator[None]:
    """A process that writes to a topic."""
    command = [sys.executable, "-m", "bench.latency_jobs", "--produce", servers, topic]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


# -- a run ---------------------------------------------------------------------------------------


def transformed(frame: DataFrame) -> DataFrame:
    """The rows as the benchmark writes them."""
    at = F.unix_millis("timestamp").cast("string").cast("binary")
    header = F.struct(F.lit(HEADER).alias("key"), at.alias("value"))
    return frame.select(
        "key", F.base64("value").cast("binary").alias("value"), F.array(header).alias("headers")
    )


async def handle(_: Record) -> None:
    """Wait, as for an answer."""
    await asyncio.sleep(0.005)


@contextmanager
def running(
    spark: SparkSession, way: Way, servers: str, topics: tuple[str, str], folder: str
) -> Iterator[StreamingQuery]:
    """The query of a way."""
    source, out = topics
    reader = spark.readStream.format(way.source).option("kafka.bootstrap.servers", servers)
    frame = reader.option("subscribe", source).options(**way.options).load()
    if way.handles:
        frame = process_by_key(frame, Processor(handle, concurrency=256))
    mode = "update" if "realTime" in way.trigger else "append"
    writer = transformed(frame).writeStream.format(way.sink).outputMode(mode)
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", out)
    writer = writer.option("kafka.linger.ms", "0").option("checkpointLocation", folder)
    for name, value in way.conf.items():
        spark.conf.set(name, value)
    query = writer.trigger(**way.trigger).start()
    try:
        yield query
    finally:
        query.stop()
        for name in way.conf:
            spark.conf.unset(name)


def run(
    spark: SparkSession, way: Way, servers: str, seconds: float
) -> tuple[list[int], bool, float]:
    """The latencies of one run; whether each key's records came out in order; cores in use."""
    source = data.new_topic(servers, "latency-in", PARTITIONS)
    out = f"{source}-out"
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic(out, PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    admin.create_topics([topic])[out].result(30)
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kshare-bench-", ignore_cleanup_errors=True)
        )
        query = stack.enter_context(running(spark, way, servers, (source, out), folder))
        stack.enter_context(produced(servers, source))
        until = time.monotonic() + START_SECONDS
        while not any(watermarks(servers, out, number)[1] for number in range(PARTITIONS)):
            if query.exception() is not None or time.monotonic() > until:
                raise SystemExit(f"nothing came out: {query.exception()}")
            time.sleep(0.2)
        time.sleep(WARM_SECONDS)
        before = _cpu_seconds()
        time.sleep(seconds)
        cores = (_cpu_seconds() - before) / seconds
    # The topics stay: Spark keeps its producer, which would ask for what it still has of a deleted
    # one some hundred times a second, in the next runs.
    return (*_read(servers, out), cores)


def _cpu_seconds() -> float:
    """What Spark has used so far: its JVM, and the Python processes that run now."""
    used = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "--produce" not in process.cmdline():
                times = process.cpu_times()
                used += times.user + times.system
    return used


def _read(servers: str, topic: str) -> tuple[list[int], bool]:
    """The latencies in an output topic, without those of the first seconds."""
    ends = {number: watermarks(servers, topic, number)[1] for number in range(PARTITIONS)}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    left = sum(ends.values())
    seen: list[tuple[int, int]] = []
    values: defaultdict[bytes, list[bytes]] = defaultdict(list)
    while left > 0:
        for message in consumer.consume(min(left, 5_000), 5):
            headers = dict(message.headers() or ())
            seen.append((int(headers[HEADER] or 0), message.timestamp()[1]))
            values[message.key() or b""].append(message.value() or b"")
            left -= 1
    consumer.close()
    first = min(at for _, at in seen) + WARM_SECONDS * 1000
    return [out - at for at, out in seen if at >= first], all(
        numbers == sorted(numbers, key=_number) for numbers in values.values()
    )


def _number(value: bytes) -> int:
    return int(base64.b64decode(value))


# -- all ways ------------------------------------------------------------------------------------


def measure(
    servers: str, runs: int, seconds: float, ways: Sequence[str], conf: Mapping[str, str]
) -> dict[str, Latencies]:
    """What was seen of each way, in turn."""
    spark = start_spark(
        master=f"local[{SLOTS}]",
        quick=False,
        config={"spark.sql.streaming.pollingDelay": "10ms", **conf},
    )
    found: dict[str, list[int]] = {name: [] for name in ways}
    ordered = dict.fromkeys(ways, True)
    cores: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for turn in range(runs):
            for name in ways:
                times, is_ordered, used = run(spark, WAYS[name], servers, seconds)
                found[name] += times
                ordered[name] &= is_ordered
                cores[name].append(used)
                shown = Latencies(sorted(times), is_ordered, used)
                print(f"run {turn + 1}, {name}: {shown}, {len(times):,} records", flush=True)
    finally:
        spark.stop()
    return {
        name: Latencies(sorted(times), ordered[name], statistics.median(cores[name]))
        for name, times in found.items()
    }


def rows(
    servers: str,
    runs: int,
    seconds: float = SECONDS,
    ways: Sequence[str] = tuple(WAYS),
    conf: Mapping[str, str] = _NO_CONF,
) -> list[Row]:
    """The table: a way of ours against real-time mode and micro-batches."""
    measured = measure(servers, runs, seconds, ways, conf)
    peers = [f"{name}: {measured[name]}" for name in ways if WAYS[name].source == "kafka"]
    return [_row(name, measured, "; ".join(peers)) for name in ways if WAYS[name].source != "kafka"]


def _row(name: str, measured: Mapping[str, Latencies], peers: str) -> Row:
    way, seen = WAYS[name], measured[name]
    wanted = [(way.p50, 0.5, "p50"), (way.p99, 0.99, "p99")]
    target = ", ".join(f"{shown} <= {at:g} ms" for at, _, shown in wanted if at is not None)
    met = seen.is_ordered and all(seen.at(part) <= at for at, part, _ in wanted if at is not None)
    peer = measured.get("real-time mode")
    ratio = "-" if peer is None else f"{seen.at(0.5) / max(peer.at(0.5), 1):.2f}x"
    return Row(f"Kafka to Kafka, {name}", peers or "-", str(seen), ratio, target, met)


def main() -> int:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.latency_jobs", description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--bootstrap-servers", help="a running broker, instead of one made here")
    parser.add_argument("--produce", nargs=2, metavar=("SERVERS", "TOPIC"))
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="Spark's")
    arguments = parser.parse_args()
    if arguments.produce:
        produce(*arguments.produce)
    with ExitStack() as stack:
        servers = arguments.bootstrap_servers
        if servers is None:
            servers = stack.enter_context(KafkaBroker(quick=False)).bootstrap_servers
        ways = arguments.ways or tuple(WAYS)
        conf = dict(each.split("=", 1) for each in arguments.conf)
        table = rows(servers, arguments.runs, arguments.seconds, ways, conf)
    for row in table:
        print(row)
    return 0 if all(row.met for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
