"""Where the time of a batch read with ``columns=key,value`` goes, in the JVM and beside it.

``python -m bench.jvm_profile``: CPU seconds of the JVM's task thread and of the Python worker for
each second of the read, and what the task thread does, by Java Flight Recorder's samples.
"""

import os
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from bench import data
from integration.kafka import KafkaBroker
from spark_plugin import KshareDataSource

_RUNS = 10
_PARTS = (
    ("task metrics, updated each 100 rows", ("CustomMetrics",)),
    ("Arrow values to byte arrays", ("ArrowColumnVector", "VarBinaryVector", "ByteBuffer.putArr")),
    ("byte arrays into a row (the source's projection)", ("SpecificUnsafeProjection",)),
    ("the row's values to byte arrays again (ProjectExec)", ("UnsafeRow.getBinary",)),
    ("byte arrays into rows, either of the two", ("UnsafeWriter.write", "UnsafeRowWriter.")),
    ("receiving from Python", ("ArrowStreamReader", "SocketDispatcher", "FileInputStream")),
)
"""What the task thread does, by the frames of its stack; the first that fits counts."""


def main() -> None:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder, KafkaBroker() as broker:
        data.make_topics(broker.bootstrap_servers)
        recording = Path(folder, "tasks.jfr")
        spark = _session(recording)
        frame = spark.read.format("kshare").options(
            **{"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": data.MAIN},
            columns="key,value",
        )
        jvm = _jvm()

        def read() -> None:
            frame.load().write.format("noop").mode("overwrite").save()

        read()
        before, began = _cpu(jvm), time.perf_counter()
        for _ in range(_RUNS):
            read()
        wall = time.perf_counter() - began
        used = _cpu(jvm)
        _run("jcmd", str(jvm.pid), "JFR.stop", "name=1", f"filename={recording}")
        spark.stop()
        print(f"a read of 3 M records: {wall / _RUNS:.2f} s")
        for name, seconds in used.items():
            share = (seconds - before.get(name, 0.0)) / wall
            print(f"{name}: {share:.0%} of a core")
        samples = _samples(recording)
        for name, count in samples.most_common():
            print(f"{count / samples.total():6.1%}  {name}")


def _session(recording: Path) -> SparkSession:
    flight = f"-XX:StartFlightRecording=filename={recording},settings=profile"
    spark: SparkSession = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", flight)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KshareDataSource)
    return spark


def _jvm() -> psutil.Process:
    children = psutil.Process().children(recursive=True)
    running = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
    (jvm,) = [each for each in running if "SparkSubmit" in " ".join(each.cmdline())]
    return jvm


def _cpu(jvm: psutil.Process) -> dict[str, float]:
    """CPU seconds so far of the threads that run tasks, and of the Python workers."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds = defaultdict[str, float](float)
    for stat in Path(f"/proc/{jvm.pid}/task").glob("*/stat"):
        name, _, rest = stat.read_text().rpartition(")")
        fields = rest.split()
        kind = "the JVM's task thread" if "Executor task" in name else "other threads of the JVM"
        seconds[kind] += (int(fields[11]) + int(fields[12])) / tick
    for worker in jvm.children(recursive=True):
        times = worker.cpu_times()
        seconds["the Python worker"] += times.user + times.system
    return seconds


def _samples(recording: Path) -> Counter[str]:
    """Number of samples of each part of the task thread's work."""
    command = ("jfr", "print", "--stack-depth", "40", "--events", "jdk.ExecutionSample")
    counts = Counter[str]()
    for event in _run(*command, str(recording)).split("jdk.ExecutionSample"):
        if '"Executor task' in event:
            stack = event.partition("stackTrace")[2]
            fits = (part for part, marks in _PARTS if any(mark in stack for mark in marks))
            counts[next(fits, "iterators between these, and the rest")] += 1
    return counts


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
