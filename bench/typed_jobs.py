"""Typed rows: whole queries, against ``format("kafka")`` with ``from_json`` or ``from_avro``.

``python -m bench --only typed``. Both sides read the value alone. spark-protobuf could not be had
from Maven: Protobuf is compared with what it does at least, to parse the message, and with a
function in Java that makes a row of it (``ParseOrder.java``).
"""

import json
import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from bench import typed_data as data
from bench.rows import Row, all_interleaved, shown_seconds, speed_row
from integration.jars import compiled, fetched, module, of_spark, peer
from integration.spark import start_spark
from kshare.testing import FakeRegistry

_VARIANT_TARGET = 2.0
_TARGETS = {"json": (5.0, 8.0), "avro": (3.0, 5.0), "protobuf": (2.5, 2.5)}
_BAD_TARGET, _IDS_TARGET = 1.1, 1.3
_PARSING = "parsing alone, in Java"


class _Job:
    """A query into the noop sink.

    Attributes:
        cpu: CPU seconds of Spark and its Python processes, of each run but the first.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._cpu: list[float] = []

    def __call__(self) -> float:
        before, began = _cpu_seconds(), time.perf_counter()
        self._frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - began
        self._cpu.append(_cpu_seconds() - before)
        return seconds

    @property
    def cpu(self) -> list[float]:
        return self._cpu[1:]


def _cpu_seconds() -> float:
    """CPU seconds of Spark's JVM and all processes below it, those that have ended included."""
    gateway = SparkContext._gateway  # noqa: SLF001 - nothing else knows the JVM's process
    assert gateway is not None
    spark = psutil.Process(gateway.proc.pid)
    seconds = 0.0
    for process in (spark, *spark.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


class _Queries:
    """Queries of one number of tasks.

    Args:
        spark: The session.
        servers: The broker.
        tasks: 1 or 2, a partition each.

    Attributes:
        name: That number in words.
        records: How many records they read.
    """

    def __init__(self, spark: SparkSession, servers: str, tasks: int) -> None:
        self._spark, self._servers, self._tasks = spark, servers, tasks
        self.name = "one task" if tasks == 1 else f"{tasks} tasks"
        self.records = data.RECORDS // data.PARTITIONS * tasks

    def _read(self, source: str, topic: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(source).option("kafka.bootstrap.servers", self._servers)
        partitions = json.dumps({topic: list(range(self._tasks))})
        return reader.option("assign", partitions).options(**options).load()

    def ours(self, topic: str, options: dict[str, str], fields: tuple[str, ...] = ()) -> _Job:
        """Typed rows; of some fields, each as a column."""
        options = {**options, "columns": "value", "badRecords": "null"}
        if fields:
            options["valueFields"] = ",".join(fields)
        frame = self._read("kshare", topic, **options)
        return _Job(frame.select(*(f"value.{name}" for name in fields)) if fields else frame)

    def theirs(self, topic: str, decoded: Any, fields: tuple[str, ...] = ()) -> _Job:
        """The same of Spark's own source, with a column that decodes."""
        frame = self._read("kafka", topic).select(decoded.alias("value"))
        return _Job(frame.select(*(f"value.{name}" for name in fields)) if fields else frame)


def _options(kind: str) -> dict[str, str]:
    schemas = {"json": data.DDL, "avro": data.AVRO, "protobuf": f"shop.Order {data.DESCRIPTORS}"}
    return {"valueFormat": kind, "valueSchema": schemas[kind]}


def _peers(kind: str) -> dict[str, Any]:
    """Spark's own ways to decode, and the name of each."""
    if kind == "json":
        return {"from_json": F.from_json(F.col("value").cast("string"), data.DDL)}
    if kind == "avro":
        return {"from_avro": from_avro("value", data.AVRO, {"mode": "PERMISSIVE"})}
    return {
        _PARSING: F.call_function("parse_alone", "value"),
        "a function in Java": F.call_function("parse_to_row", "value"),
    }


def _with_cpu(row: Row, jobs: tuple[_Job, _Job], records: int) -> Row:
    """The row, with the CPU time that a record takes."""
    theirs, ours = (statistics.median(job.cpu) / records * 1e6 for job in jobs)
    row.peer += f", {theirs:.2f} us CPU"
    row.ours += f", {ours:.2f} us CPU"
    return row


def _time_row(name: str, peer: list[float], ours: list[float], at_most: float) -> Row:
    """How much longer something takes than the same without."""
    best, median = min(ours) / min(peer), statistics.median(ours) / statistics.median(peer)
    shown = f"{best:.2f}x ({median:.2f}x)"
    times = shown_seconds(peer), shown_seconds(ours)
    return Row(name, *times, shown, f"<= {at_most}x", best <= at_most)


def _format_rows(queries: _Queries, kind: str, topics: tuple[str, str], runs: int) -> list[Row]:
    good, bad = topics
    options, records = _options(kind), queries.records
    ours = {
        "8 fields": queries.ours(good, options),
        "2 of 8 fields": queries.ours(good, options, data.FEW),
        "1 % bad": queries.ours(bad, options),
    }
    jobs: dict[str, _Job] = dict(ours)
    pairs = []
    for way, column in _peers(kind).items():
        for what, fields in (("8 fields", ()), ("2 of 8 fields", data.FEW)):
            if fields and way == _PARSING:
                continue  # it makes no fields
            name = f"{way}: {what}"
            jobs[name] = queries.theirs(good, column, fields)
            pairs.append((f"{kind}, {what}, {queries.name}, against {way}", name, what))
    times = all_interleaved(jobs, runs)
    rows = []
    for name, theirs, what in pairs:
        target = _TARGETS[kind][what != "8 fields"]
        both = times[theirs], times[what]
        row = speed_row(name, records, both, target, in_the_median=False)
        rows.append(_with_cpu(row, (jobs[theirs], jobs[what]), records))
    name = f"{kind}, {queries.name}, 1 % bad records / none: time"
    rows.append(_time_row(name, times["8 fields"], times["1 % bad"], _BAD_TARGET))
    return rows


def _variant_row(queries: _Queries, topic: str, runs: int) -> Row:
    """JSON without a schema, beside ``parse_json``."""
    parsed = F.parse_json(F.col("value").cast("string"))
    jobs = {
        "theirs": queries.theirs(topic, parsed),
        "ours": queries.ours(topic, {"valueFormat": "json"}),
    }
    times = all_interleaved(jobs, runs)
    name = f"json to variants, 8 fields, {queries.name}, against parse_json"
    both = times["theirs"], times["ours"]
    row = speed_row(name, queries.records, both, _VARIANT_TARGET, in_the_median=False)
    return _with_cpu(row, (jobs["theirs"], jobs["ours"]), queries.records)


def _id_rows(queries: _Queries, servers: str, runs: int) -> list[Row]:
    with FakeRegistry(first_id=100_001) as registry:
        *topics, subject = data.topics_of_ids(servers, registry)
        options = {
            "valueFormat": "avro",
            "schemaRegistry.url": registry.url,
            "valueSubject": subject,
        }
        jobs = {topic: queries.ours(topic, options) for topic in topics}
        one, two = all_interleaved(jobs, runs).values()
    name = f"avro, {queries.name}, two schemas in turn / one: time"
    return [_time_row(name, one, two, _IDS_TARGET)]


def _start(folder: Path) -> SparkSession:
    jars = (*peer(), *module("avro"), *fetched("protobuf"))
    compiled(Path(__file__).with_name("ParseOrder.java"), folder, (*of_spark(), *jars))
    path = os.pathsep.join(map(str, (folder, *jars)))
    spark = start_spark(quick=False, config={"spark.driver.extraClassPath": path})
    context: Any = spark.sparkContext
    context._jvm.ParseOrder.describe(data.DESCRIPTORS)  # noqa: SLF001 - as Spark's own functions do
    kinds = ", ".join(
        f"{name} {'BIGINT' if kind == 'TIMESTAMP' else kind}" for name, kind, *_ in data.FIELDS
    )
    spark.udf.registerJavaFunction("parse_alone", "ParseOrder$Alone", "int")
    spark.udf.registerJavaFunction("parse_to_row", "ParseOrder$ToRow", f"struct<{kinds}>")
    return spark


def rows(servers: str, runs: int) -> list[Row]:
    """Rows of each format, with one task and with two; printed one after another."""
    found: list[Row] = []
    topics = {kind: data.plain_topics(servers, kind) for kind in _TARGETS}
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
        spark = _start(Path(folder))
        try:
            for tasks in (1, 2):
                queries = _Queries(spark, servers, tasks)
                for kind in _TARGETS:
                    found += _shown(_format_rows(queries, kind, topics[kind], runs))
                found += _shown([_variant_row(queries, topics["json"][0], runs)])
                found += _shown(_id_rows(queries, servers, runs))
        finally:
            spark.stop()
    return found


def _shown(made: list[Row]) -> list[Row]:
    print(*made, sep="\n", flush=True)
    return made
