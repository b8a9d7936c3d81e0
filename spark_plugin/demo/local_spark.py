"""The demo's query, on a local Spark that uses this process's Python and its kshare."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users do

from kshare.errors import KshareError
from spark_plugin.demo.topic import DemoTopic
from spark_plugin.interpreter import worker_python

__all__ = ["AddBatch", "Engine", "LocalSpark", "Query", "python_path"]

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

        self._session = _start_spark(key_ranges, folder)
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
