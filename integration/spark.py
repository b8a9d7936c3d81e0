"""A local Spark with kshare beside Spark's own kafka source.

A process has one at a time. With the defaults of :func:`start_spark` a short job takes 11 s instead
of 25 s on 2 cores; the class archive for it is made once, in about 40 s.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from integration.jars import CACHE, ROOT, java, locked, module, peer
from integration.spark_versions import PACKAGES
from spark_plugin.interpreter import worker_python

# For few rows: interpreting a query takes less time than compiling it.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
QUERY_S = 600
"""How long to wait for a query that hangs; none is expected to take so long."""
NO_PLANNER = "Python worker failed to connect back"
"""What a query ends with when its planner's process takes 10 s to start: Spark waits no longer."""
START_TRIES = 5
BARE = "KSHARE_TEST_BARE"  # Spark runs the first python3 on the PATH
_ARCHIVE_MAKER = "KSHARE_MAKES_CLASS_ARCHIVE"


def start_spark(
    *,
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    quick: bool = True,
    keep_home: bool = False,
    python: str | None = None,
) -> SparkSession:
    """Start a Spark session, with Spark's own kafka source and from_avro on its class path.

    Args:
        master: As Spark's.
        config: More settings; they win.
        quick: For short jobs: a JVM with an archive of classes and its first compiler only.
            False: as a user would start it.
        keep_home: Leave SPARK_HOME as it is, which ``local-cluster`` needs.
        python: What Spark's processes run; None: ``kshare-python``.
    """
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = python or worker_python()
        if BARE in os.environ:
            del os.environ[name]
    os.environ["PYTHONPATH"] = _python_path()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not keep_home:
        os.environ.pop("SPARK_HOME", None)  # this environment's pyspark, not the machine's
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, (*peer(), *module("avro")))),
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if quick:
        settings["spark.driver.extraJavaOptions"] = " ".join([*QUICK_JVM, archive_option()])
    builder = SparkSession.builder.master(master).appName("kshare-integration")
    return builder.config(map={**settings, **(config or {})}).getOrCreate()


class NoRows(DataSource):
    """A stream in which nothing ever is."""

    @classmethod
    def name(cls) -> str:
        return "no-rows"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return NoRowsReader()


class NoRowsReader(DataSourceStreamReader):
    """The reader of :class:`NoRows`."""

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:
        return {"n": 0}

    def partitions(self, *_: object) -> list[Any]:
        return []

    def read(self, _: object) -> Iterator[tuple[int]]:
        return iter(())


def start_a_planner(spark: SparkSession) -> None:
    """Start the first planner of a session, again and again if a busy machine keeps it for 10 s.

    It is the slow one: later ones are forked from what the first has imported.
    """
    spark.dataSource.register(NoRows)
    for tries_left in reversed(range(START_TRIES)):
        query = spark.readStream.format("no-rows").load().writeStream.format("noop").start()
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            if NO_PLANNER not in str(error) or not tries_left:
                raise
        else:
            return
        finally:
            query.stop()


def _python_path() -> str:
    """Return what the Python workers get, so that they find kshare in a bare checkout too."""
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.pathsep.join(dict.fromkeys([str(Path(ROOT)), *known]))


def archive_option() -> str:
    """Return the JVM's option to load classes from an archive, which is made if it is missing."""
    if making := os.environ.get(_ARCHIVE_MAKER):
        return f"-XX:ArchiveClassesAtExit={making}"
    if PACKAGES in os.environ:  # of another version of Spark: too few starts to pay for one
        return "-Xshare:auto"
    jars = Path(sys.modules["pyspark"].__path__[0]) / "jars"
    what = f"{Path(java()).resolve()}{jars}{peer()}"
    archive = CACHE / f"spark-{hashlib.sha256(what.encode()).hexdigest()[:12]}.jsa"
    with locked(CACHE / "spark-archive.lock"):
        if not archive.exists():
            _make_archive(archive)
    return f"-XX:SharedArchiveFile={archive}"


def _make_archive(archive: Path) -> None:
    """Run a small streaming job on a mock cluster in a JVM that notes which classes it loads."""
    new = archive.with_name(f"{archive.name}.{os.getpid()}")
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(
            [sys.executable, "-m", "integration.spark"],
            check=False,
            cwd=ROOT,
            env={**os.environ, _ARCHIVE_MAKER: str(new)},
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=1200,
        )
        log.seek(0)
        if done.returncode or not new.exists():
            raise RuntimeError(f"cannot make the archive of classes:\n{log.read()[-4000:]}")
    new.replace(archive)


def _run_a_job() -> None:
    from integration import streaming_job
    from kshare.testing import FakeCluster, Record

    with FakeCluster() as cluster, tempfile.TemporaryDirectory() as folder:
        topic = cluster.create_topic("warm")
        cluster.produce(topic, [Record(b"k", b"v")] * 100)
        job: dict[str, Any] = {
            "servers": cluster.bootstrap_servers,
            "topic": topic,
            "checkpoint": f"{folder}/checkpoint",
            "out": f"{folder}/out",
            "options": {"keyRanges": "2", "maxOffsetsPerTrigger": "60"},
        }
        streaming_job.run(job)
    # The JVM writes the archive when it ends, and it ends when its standard input does.
    gateway = SparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    jvm.stdin.close()
    jvm.wait(QUERY_S)


if __name__ == "__main__":
    _run_a_job()
