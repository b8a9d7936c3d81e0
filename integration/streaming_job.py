"""Streaming queries in a process of its own, with an idempotent sink, that can be killed anywhere.

``python -m integration.streaming_job FD MASTER`` starts a Spark, runs a query for each line of JSON
on its standard input until all that was there is read, or for some ``batches``, and answers each
with a line on FD (:class:`integration.runs.Driver` is the other end).

The sink writes each batch to ``OUT/batch=ID`` and overwrites what an earlier try of that batch
left. A job's ``kill`` says what is killed (kill -9; at most once), where, and in which batch,
counted from 0 in this start:

``driver``   JVM and Python driver, all of them
``planner``  the process of ``pyspark.sql.streaming.python_streaming_source_runner``
``worker``   a Python worker, in a task

``before-offset-log``  in planning, before Spark writes the batch's offsets
``after-offset-log``   in planning, when they are written and no task has started
``in-reader``          in a task, when its reader has handed out some records
``in-handler``         in a task, amid a call of a handler
``in-tasks``           in a task, when what follows the reader has seen some rows
``before-commit-log``  when the sink has written the batch, before Spark notes that it is done
``any-time``           some seconds after the query was started

Besides, a job may have ``record_seconds``: how long a task works on each record; and
``feedback_port``: where tasks are told to report to, instead of where the planner listens. A query
ends as soon as there is a file ``stop_file``. With ``trigger``, a time, it runs until then. With
``history``, a file, it writes no batches but lines, with the time (CLOCK_MONOTONIC, ns)::

    planning TIME
    batch TIME ID
    record TIME PARTITION OFFSET KEY
    done TIME ID

With ``handlers``, a file, rows go through ``process_by_key``. Handlers fail and take long now and
then, and write lines there, in the order in which things happen::

    begun TIME PARTITION OFFSET
    handled TIME PARTITION OFFSET
"""

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.lines import append_lines
from integration.spark import INTERPRETED, start_spark
from kshare.core.tasks import Ticket
from kshare.processing import Processor, Record, Retry, process_by_key
from kshare.query.feedback.server import FeedbackServer
from spark_plugin.readers import StreamReader
from spark_plugin.source import KshareDataSource
from spark_plugin.spark_api import TELLS_START

DRIVER = "integration.streaming_job"
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
WATCHED = "kshare-watched"
Kill = dict[str, Any]


class SinkDiesError(Exception):
    """Ends a query whose planner was killed after this batch last needed it."""


def strike(kill: Kill) -> None:
    """Kill what should be killed, once."""
    try:
        os.close(os.open(kill["marker"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if kill["what"] == "driver":
        kill_driver()
    elif kill["what"] == "planner":
        for process in planners(driver_above()):
            process.kill()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def arm(kill: Kill) -> None:
    """From now on, tasks kill what should be killed."""
    Path(kill["marker"] + ".armed").touch()


def is_armed(kill: Kill) -> bool:
    """True if it is time to."""
    return Path(kill["marker"] + ".armed").exists()


def driver_above() -> psutil.Process:
    """The Python driver: this process, or the parent of its parent JVM."""
    this = psutil.Process()
    return next(p for p in [this, *this.parents()] if p.cmdline()[1:3] == ["-m", DRIVER])


def planners(driver: psutil.Process) -> list[psutil.Process]:
    """The planners' processes of a driver's queries."""
    return [p for p in driver.children(recursive=True) if _plans(p)]


def _plans(process: psutil.Process) -> bool:
    command = _command(process)
    if not any(word.endswith("kshare-start.py") for word in command) and PLANNER in command:
        return True
    try:
        return process.name() == "kshare-planner"  # the fork server's, which the other waits for
    except psutil.Error:
        return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended in this moment
        return []


def kill_driver() -> NoReturn:
    """Kill -9 the JVM, and the Python driver above it."""
    driver = driver_above()
    for process in [*driver.children(), driver]:
        process.kill()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Reader(StreamReader):
    """The kshare reader, with a log of its planner, and a kill in planning or in a task."""

    kill: Kill
    log: str | None
    feedback_port: int | None
    history: str | None
    planned = 0

    def __getstate__(self) -> dict[str, Any]:
        own = {"kill": self.kill, "log": self.log, "feedback_port": self.feedback_port}
        return {**super().__getstate__(), **own, "history": self.history}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        if self.history is not None:
            append_lines(self.history, f"planning {time.monotonic_ns()}")
        self._strike_in("before-offset-log")
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        self._strike_in("after-offset-log")
        if self.kill.get("where") == "in-reader" and self.planned >= self.kill["batch"]:
            arm(self.kill)
        self.planned += 1
        return super().partitions(start, end)

    def read(self, partition: Any) -> Iterator[Any]:
        batches = super().read(partition)
        if self.kill.get("where") != "in-reader":
            return batches
        return self._read_and_strike(batches)

    def _read_and_strike(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if is_armed(self.kill):
                strike(self.kill)

    def _strike_in(self, where: str) -> None:
        if self.log is not None:
            keep_log(self.log)
            self.log = None
        if self.feedback_port is not None:
            send_reports_to(self.feedback_port)
            self.feedback_port = None
        if self.kill.get("where") == where and self.planned >= self.kill["batch"]:
            strike(self.kill)


def send_reports_to(port: int) -> None:
    """Let tasks report to another port than the one that this planner listens at."""
    ticket = FeedbackServer.ticket

    def elsewhere(server: FeedbackServer, batch: str, task: int, *, hold: bool) -> Ticket:
        return replace(ticket(server, batch, task, hold=hold), port=port)

    setattr(FeedbackServer, "ticket", elsewhere)  # noqa: B010 - mypy lets no method be assigned


def keep_log(file: str) -> None:
    """Append kshare's log to a file."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(process)d %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("kshare")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def source_of(job: Mapping[str, Any]) -> type[KshareDataSource]:
    """Make ``format("kshare")`` with :class:`Reader`."""
    kill, log, feedback_port = job.get("kill") or {}, job.get("log"), job.get("feedback_port")

    class Source(KshareDataSource):
        @classmethod
        def name(cls) -> str:
            return WATCHED  # Spark 4.0 lets no other source take the name of one that it has found

        def streamReader(self, schema: Any) -> Any:
            made: Any = super().streamReader(schema)
            reader = getattr(made, "reader", made)  # Spark before 4.2 has one around it
            reader.__class__ = Reader
            reader.kill, reader.log, reader.feedback_port = kill, log, feedback_port
            reader.history = job.get("history")
            return made

    return Source


@dataclass
class Handler:
    """Notes its calls; some fail once, and some take longer than a micro-batch waits for them."""

    file: str
    kill: Kill

    async def __call__(self, record: Record) -> None:
        place = f"{record.partition} {record.offset}"
        append_lines(self.file, f"begun {time.monotonic_ns()} {place}")
        await asyncio.sleep(0.5 if record.offset % 7 == 3 else 0.01)
        if self.kill.get("where") == "in-handler" and is_armed(self.kill):
            strike(self.kill)
        if record.offset % 11 == 5 and record.attempt == 1:
            raise ConnectionError("once")
        append_lines(self.file, f"handled {time.monotonic_ns()} {place}")


def handled(frame: DataFrame, file: str, kill: Kill) -> DataFrame:
    """The rows that handlers are done with."""
    processor = Processor(
        Handler(file, kill), retry=Retry(2, first="5ms", most="10ms"), drain_timeout="50ms"
    )
    results: DataFrame = process_by_key(frame, processor)
    return results.where("status = 'done'")


def run_query(spark: SparkSession, job: dict[str, Any]) -> None:
    """Run a query until it has read all that is there, or fails, or kills this process."""
    kill: Kill = job.get("kill") or {}
    where, enough = kill.get("where"), threading.Event()
    ran: list[int] = []
    spark.dataSource.register(source_of(job))
    source, handlers = job.get("source", "kshare"), job.get("handlers")
    is_watched = source == "kshare" and not handlers  # what has handlers is loaded by its own name
    reader = (
        spark.readStream.format(WATCHED if is_watched else source)
        .option("kafka.bootstrap.servers", job["servers"])
        .option("startingOffsets", "earliest")
    )
    if not {"assign", "subscribePattern"} & job.get("options", {}).keys():
        reader = reader.option("subscribe", job["topic"])
    frame = reader.options(**job.get("options", {})).load()
    if handlers:
        frame = handled(frame, handlers, kill)

    def sink(rows: DataFrame, batch: int) -> None:
        number = len(ran)
        ran.append(batch)
        is_time = number >= kill.get("batch", 0)
        if where == "in-handler" and is_time:
            arm(kill)
        if number >= job.get("batches", number + 1) or Path(job.get("stop_file", "/")).is_file():
            enough.set()
        if history := job.get("history"):
            note_batch(history, rows, batch)
        else:
            write_batch(job, rows, batch, kills=where == "in-tasks" and is_time)
        if where == "before-commit-log" and is_time:
            strike(kill)
            raise SinkDiesError(f"batch {batch} is written, and not noted as done")

    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", job["checkpoint"])
    timer = threading.Timer(kill.get("seconds", 0), strike, [kill])
    timer.daemon = True
    try:
        if where == "any-time":
            timer.start()
        if trigger := job.get("trigger"):
            _run_on(writer.trigger(processingTime=trigger), Path(job["stop_file"]))
        else:
            _read_all(writer, ran, enough)
    finally:
        timer.cancel()


def write_batch(job: Mapping[str, Any], rows: DataFrame, batch: int, *, kills: bool) -> None:
    """Process a batch: write its rows over what an earlier try has left.

    Args:
        job: The job.
        rows: Its rows.
        batch: Its id.
        kills: Whether the job's kill is due when a task has seen some rows.
    """
    columns = rows.select("topic", "partition", "offset", "key", "value")
    placed = columns.withColumn("task", F.spark_partition_id())
    if kills:
        kill: Kill = job["kill"]
        seen: list[int] = []  # a copy for each task

        def pass_some_rows(_: int) -> bool:
            seen.append(1)
            if len(seen) >= kill["rows"]:
                strike(kill)
            return True

        placed = placed.where(F.udf(pass_some_rows, "boolean")("offset"))
    if seconds := job.get("record_seconds"):
        placed = worked_on(placed, seconds)
    placed.write.mode("overwrite").parquet(f"{job['out']}/batch={batch}")


def worked_on(rows: DataFrame, seconds: float) -> DataFrame:
    """Rows of which each takes so long in its task."""

    def work(_: int) -> bool:
        time.sleep(seconds)
        return True

    return rows.where(F.udf(work, "boolean")("offset"))


def note_batch(file: str, rows: DataFrame, batch: int) -> None:
    """Process a batch: write what it has."""
    append_lines(file, f"batch {time.monotonic_ns()} {batch}")
    lines = [
        f"record {time.monotonic_ns()} {row.partition} {row.offset} {bytes(row.key).hex()}"
        for row in rows.select("partition", "offset", "key").collect()
    ]
    append_lines(file, *lines, f"done {time.monotonic_ns()} {batch}")


def _run_on(writer: DataStreamWriter, stop_file: Path) -> None:
    """Run a query until there is a file, or it fails."""
    query = writer.start()
    try:
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]
            if stop_file.exists():
                return
    finally:
        query.stop()


def _read_all(writer: DataStreamWriter, ran: list[int], enough: threading.Event) -> None:
    """Start a query until it has read all there is, or ``enough``; ``ran`` grows by its batches."""
    while not enough.is_set():
        before = len(ran)
        query = writer.trigger(availableNow=True).start()
        try:
            while not query.awaitTermination(0.1):  # type: ignore[arg-type]
                if enough.is_set():
                    query.stop()
        finally:
            query.stop()
        # Before Spark 4.2, AvailableNow is one batch.
        if TELLS_START or len(ran) == before:
            return


def run(job: dict[str, Any]) -> None:
    """Run one query on a Spark of its own, and stop that."""
    spark = start_spark()
    run_query(spark, job)
    spark.stop()


def serve(answers: int, master: str, config: Mapping[str, str]) -> None:
    """Run the queries that standard input names."""
    os.set_inheritable(answers, False)
    spark = start_spark(master=master, config={**INTERPRETED, **config})
    with os.fdopen(answers, "w", buffering=1) as out:
        for line in sys.stdin:
            error = None
            try:
                run_query(spark, json.loads(line))
            except Exception as fault:
                error = f"{type(fault).__name__}: {fault}"
            out.write(json.dumps(error) + "\n")
    spark.stop()


if __name__ == "__main__":
    # By its own name: what workers and planners need of __main__ would be sent to them by value.
    importlib.import_module(DRIVER).serve(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
