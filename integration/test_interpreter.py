"""Which Python Spark starts its processes with when ``kshare-python`` is set."""

from contextlib import suppress

import psutil
from pyspark.sql import SparkSession

from integration.kafka import KafkaBroker
from integration.streaming_job import planners
from kshare.testing import Record, produce


def python_paths(parent: int) -> dict[str, str]:
    """PYTHONPATH, by their commands, of the Python processes that Spark has started."""
    paths = {}
    for process in psutil.Process(parent).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # some end meanwhile
            command = process.cmdline()
            if "-m" in command:
                paths[" ".join(command[command.index("-m") :])] = process.environ().get(
                    "PYTHONPATH", ""
                )
    return paths


def test_all_of_them_import_what_is_compiled(
    spark: SparkSession, broker: KafkaBroker, topic: str, tmp_path: object
) -> None:
    produce(broker.bootstrap_servers, topic, [Record(b"k", b"v")] * 10)
    rows = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = rows.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/checkpoint")
    before = {planner.pid for planner in planners(psutil.Process())}  # of queries that are ending
    query = writer.start()
    query.processAllAvailable()
    assert spark._jvm is not None
    paths = python_paths(spark._jvm.java.lang.ProcessHandle.current().pid())
    (planner,) = (p for p in planners(psutil.Process()) if p.pid not in before)
    assert planner.name() == "kshare-planner"  # the fork server's
    query.stop()
    psutil.wait_procs([planner], 120)
    assert not planner.is_running()
    assert "-m pyspark.sql.streaming.python_streaming_source_runner" in paths
    assert "-m spark_plugin.daemon pyspark.worker" in paths
    for command, path in paths.items():
        assert "pyspark.zip" not in path, command
        assert ".jar" not in path, command
