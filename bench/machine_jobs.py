"""A fresh machine: first batches of Python processes and first queries of Spark sessions.

``python -m bench.machine_jobs HOST:PORT [SOURCE]``: one process, alone or with a session.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from bench import data
from bench.rows import Row, own_row, shown_seconds

AT_ONCE = 4
"""Workers that start at once."""
FIRST_LATER_MAX = 0.7
"""Seconds that a session's first query may end after that of ``format("kafka")``."""
LATER_MAX = 0.4
"""The same of its third query."""
QUERIES = 3


def first_batch(servers: str) -> None:
    """Import kshare and read one batch; print seconds and CPU seconds as JSON."""
    started = time.perf_counter()
    import kshare
    from bench.wire_jobs import slice_of

    whole = slice_of(servers, data.MAIN, 1)
    next(iter(kshare.read_slice(whole, {"kafka.bootstrap.servers": servers})))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "cpu": time.process_time(), "mib": memory}))


def first_queries(servers: str, source: str) -> None:
    """Start a session and run a streaming query some times; print the seconds of each as JSON."""
    from integration.spark import start_spark

    spark = start_spark(quick=False)
    spark.range(1).collect()
    seconds = []
    for _ in range(QUERIES):
        started = time.perf_counter()
        reader = spark.readStream.format(source).option("kafka.bootstrap.servers", servers)
        options = {"subscribe": data.MAIN, "startingOffsets": "latest"}
        frame = reader.options(**options).load()
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        with tempfile.TemporaryDirectory() as checkpoint:
            writer.option("checkpointLocation", checkpoint).start().awaitTermination()
        seconds.append(time.perf_counter() - started)
    print(json.dumps(seconds))
    spark.stop()


def _started(folder: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process of this module that finds nothing in its user's cache."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.machine_jobs", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def workers(servers: str, count: int) -> list[dict[str, float]]:
    """Start some processes at once, and return what each has measured."""
    with tempfile.TemporaryDirectory() as folder:
        running = [_started(folder, servers) for _ in range(count)]
        return [json.loads(process.communicate()[0]) for process in running]


def queries(servers: str, source: str) -> list[float]:
    """Return the seconds of a new session's first queries."""
    with tempfile.TemporaryDirectory() as folder:
        output = _started(folder, servers, source).communicate()[0]
    seconds: list[float] = json.loads(output.splitlines()[-1])
    return seconds


def measure(servers: str, runs: int) -> list[Row]:
    """Rows: one worker and several; a session's first query, against ``format("kafka")``."""
    times: dict[str, list[float]] = {}
    for _ in range(runs):
        _keep(times, "1 worker", workers(servers, 1))
        _keep(times, f"{AT_ONCE} workers at once", workers(servers, AT_ONCE))
    rows = [
        own_row(f"fresh machine, first batch: {name}", shown_seconds(seconds), "-", met=True)
        for name, seconds in times.items()
    ]
    sessions = {"kafka": list[list[float]](), "kshare": list[list[float]]()}
    for _ in range(runs):
        for source, measured in sessions.items():
            measured.append(queries(servers, source))
    for name, which, target in (("first", 0, FIRST_LATER_MAX), ("third", -1, LATER_MAX)):
        peer, ours = ([each[which] for each in measured] for measured in sessions.values())
        later = min(ours) - min(peer)
        rows.append(
            Row(
                f"a session's {name} query, empty",
                shown_seconds(peer),
                shown_seconds(ours),
                f"{later:+.2f} s",
                f"<= {target} s",
                later <= target,
            )
        )
    return rows


def _keep(
    times: dict[str, list[float]], name: str, measured: Sequence[Mapping[str, float]]
) -> None:
    times.setdefault(name, []).append(max(each["seconds"] for each in measured))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        first_queries(*sys.argv[1:])
    else:
        first_batch(sys.argv[1])
