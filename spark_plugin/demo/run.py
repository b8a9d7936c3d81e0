"""Run the demo: fill a topic, read it with several Spark tasks, show their progress, judge them.

The query runs on a local Spark that uses this process's Python and its kshare. Nothing is left
behind, on a real cluster either. Spark takes a few seconds to start.
"""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users do

from kshare.errors import KshareError
from spark_plugin.demo.state import QueryState, judge_order
from spark_plugin.demo.topic import DemoTopic, open_topic
from spark_plugin.demo.verdict import say_verdict
from spark_plugin.demo.view import LEGEND, NEXT, Screen, as_lines, lesson
from spark_plugin.interpreter import worker_python

__all__ = [
    "AddBatch",
    "DemoOptions",
    "Engine",
    "LocalSpark",
    "Query",
    "follow",
    "python_path",
    "run",
]

_REFRESH_SECONDS: Final = 0.2
_STDERR: Final = 2
_LOG: Final = "spark.log"
_LOG_LINES: Final = 10
_OWN_WARNING: Final = re.compile(r"(WARNING|ERROR) kshare\.")
_START_SECONDS: Final = 300.0
"""Time that the first batch may take: Spark and interpreters start, and kernels may be compiled."""

_BATCHES: Final = 8
"""Number of batches for an even spread of keys. The hot range takes more."""

AddBatch = Callable[[int, pa.Table], None]
"""Takes the number of a batch and its rows."""


class Query(Protocol):
    """The part of Spark's StreamingQuery that the demo uses."""

    @property
    def lastProgress(self) -> Any: ...  # noqa: D102, N802
    def awaitTermination(self, timeout: Any) -> bool | None: ...  # noqa: D102, N802
    def stop(self) -> None: ...  # noqa: D102


class Engine(Protocol):
    """The engine of the demo's query: :class:`LocalSpark`, or a stand-in in tests."""

    def start_query(  # noqa: D102
        self, topic: DemoTopic, target: int, key_ranges: int, folder: str, add_batch: AddBatch
    ) -> Query: ...
    def stop(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the demo.

    Attributes:
        bootstrap_servers: Bootstrap servers of a real cluster; None for an embedded one.
        topic: An existing topic, which is only read; None for one that is created and deleted.
        records: Number of records to produce, or of ``topic`` to read; None for 200,000, or all.
        key_ranges: Number of tasks for each partition.
        seconds_max: Reading stops this long after the first batch.
    """

    bootstrap_servers: str | None = None
    topic: str | None = None
    records: int | None = None
    key_ranges: int = 4
    seconds_max: float = 120.0


def run(
    options: DemoOptions,
    screen: Screen | None = None,
    engine: Engine | None = None,
    start_seconds: float = _START_SECONDS,
) -> int:
    """Run the demo.

    Args:
        options: What to run.
        screen: Where to show it; None for standard output.
        engine: What runs the query; None for :class:`LocalSpark`.
        start_seconds: How long the first batch may take.

    Returns:
        The exit code: 0 if everything is in order, else 1.

    Raises:
        KshareError: The demo cannot run; the text says why.
    """
    if screen is None:
        size = shutil.get_terminal_size()
        screen = Screen(sys.stdout, size, is_terminal=sys.stdout.isatty())
    engine = engine or LocalSpark()
    with ExitStack() as stack:
        topic = stack.enter_context(
            open_topic(options.bootstrap_servers, options.topic, options.records, screen.say)
        )
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kshare-demo-"))
        target = topic.offset_count
        if options.topic and options.records is not None:
            target = min(target, options.records)
        if not target:
            raise KshareError(f"topic {topic.name} on {topic.servers} is empty: nothing to read")
        screen.say("Starting Spark ...\n\n" + LEGEND)
        stack.callback(engine.stop)
        state = QueryState(target)
        query = engine.start_query(topic, target, options.key_ranges, folder, state.add_batch)
        stack.callback(query.stop)
        all_read = follow(query, topic, state, screen, start_seconds, options.seconds_max)
        query.stop()
        for line in _warnings(Path(folder) / _LOG):
            screen.say(line)
        if not state.records:
            raise KshareError(f"Spark read nothing within {start_seconds:g} s of its start")
        return _print_verdict(topic, state, screen, all_read=all_read)


def follow(
    query: Query,
    topic: DemoTopic,
    state: QueryState,
    screen: Screen,
    start_seconds: float,
    seconds_max: float,
) -> bool:
    """Show the query's progress until it has read everything or has to stop.

    Args:
        query: The query.
        topic: What it reads.
        state: Takes the query's progress.
        screen: Where to show it.
        start_seconds: How long the first batch may take.
        seconds_max: How long to go on after it.

    Returns:
        Whether the query has read everything.
    """
    deadline, has_started, shown = time.monotonic() + start_seconds, False, 0
    while True:
        has_ended = _wait(query)
        if state.batches and not has_started:
            deadline, has_started = time.monotonic() + seconds_max, True
        if query.lastProgress is not None:
            state.add_progress(json.loads(query.lastProgress.json))
        if state.batches and (screen.is_terminal or len(state.batches) > shown):
            shown = len(state.batches)
            screen.show(as_lines(state))
        if has_ended:
            return True
        is_enough = state.records >= state.target < topic.offset_count
        if is_enough or time.monotonic() >= deadline:
            return False


def _wait(query: Query) -> bool:
    """Wait a moment; return whether the query has ended. KshareError: it has failed."""
    try:
        return bool(query.awaitTermination(_REFRESH_SECONDS))
    except StreamingQueryException as error:
        raise KshareError(f"the query failed: {error}") from error


def _print_verdict(topic: DemoTopic, state: QueryState, screen: Screen, *, all_read: bool) -> int:
    if state.records < state.target:
        screen.say(
            f"Stopped after {state.records:,} of {state.target:,} records: what was read is judged."
        )
    report = judge_order(topic, state, all_read=all_read)
    return say_verdict(report, screen.say, lesson(state), NEXT)


@contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    """Let what this process, and a JVM that it starts, prints to standard error go to a file."""
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    try:
        with file.open("ab") as log:
            os.dup2(log.fileno(), _STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, _STDERR)
        os.close(kept)


def _warnings(log: Path) -> list[str]:
    """The lines of Spark's log that kshare has written, each once."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return list(dict.fromkeys(line for line in text.splitlines() if _OWN_WARNING.search(line)))


class LocalSpark:
    """Spark in local mode. KshareError: there is no Java."""

    def __init__(self) -> None:
        home = os.environ.get("JAVA_HOME")
        if not (home and (Path(home) / "bin" / "java").exists()) and not shutil.which("java"):
            raise KshareError("Spark needs Java >= 17: put java on the PATH, or set JAVA_HOME")
        self._session: SparkSession | None = None

    def start_query(
        self, topic: DemoTopic, target: int, key_ranges: int, folder: str, add_batch: AddBatch
    ) -> Query:
        """Start Spark, and a streaming query that hands each batch to ``add_batch``.

        Args:
            topic: The topic to read.
            target: Number of records to read in about eight batches.
            key_ranges: Number of task slots, and of tasks for each partition.
            folder: For temporary files.
            add_batch: Takes the number of a batch and its rows.
        """

        def write(rows: DataFrame, batch: int) -> None:
            add_batch(batch, rows.toArrow())

        log = Path(folder) / _LOG
        try:
            # Its first lines are about log4j and the JVM, and would tear the bars later.
            with _stderr_to(log):
                self._session = _start_spark(key_ranges, folder)
        except PySparkException as error:
            said = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
            raise KshareError(f"Spark did not start: {error}\n{said}") from error
        per_task = max(target // (max(len(topic.log_bounds), 1) * key_ranges * _BATCHES), 1)
        rows = (
            self._session.readStream.format("kshare")
            .option("kafka.bootstrap.servers", topic.servers)
            .option("subscribe", topic.name)
            .option("startingOffsets", "earliest")
            .option("keyRanges", key_ranges)
            .option("maxRecordsPerTask", per_task)
            .option("maxTimeAhead", "off")
            .load()
            .select("topic", "partition", "offset", "key", F.spark_partition_id().alias("task"))
        )
        return (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )

    def stop(self) -> None:
        """Stop Spark."""
        if self._session is not None:
            self._session.stop()


def python_path(current: str) -> str:
    """Return a PYTHONPATH with which Spark's workers import the kshare of this process."""
    root = str(Path(__file__).resolve().parents[2])
    folders = [folder for folder in current.split(os.pathsep) if folder]
    return os.pathsep.join(dict.fromkeys([root, *folders]))


def _start_spark(slots: int, folder: str) -> SparkSession:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = worker_python()
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.pop("SPARK_HOME", None)  # use the pyspark of this environment
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
