"""The same jobs on several versions of Spark, in turn, against the newest one.

A session of each version stays open. ``format("kafka")`` runs beside, as versions of Spark differ
by themselves.

``python -m bench.version_jobs [--runs N] [VERSION ...]`` measures; with ``--plain`` all processes of
Spark run the environment's ``python``, as where users cannot choose ``kshare-python``. ``--only
WORDS`` leaves out the jobs whose name has none of these words.
``--session HOST:PORT`` is one of its sessions, which runs a job for each line of its input.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from bench import data
from bench.rows import Row, shown_seconds
from bench.spark_jobs import (
    arrival_times,
    available_now,
    batch_one_task,
    batch_two_ranges,
    trigger_times,
)
from integration.jars import ROOT
from integration.kafka import KafkaBroker
from integration.spark import start_spark
from integration.spark_versions import VERSIONS, environment, variables
from spark_plugin.interpreter import worker_python


def small_triggers(spark: SparkSession, source: str, servers: str, _: str) -> float:
    """As :func:`.trigger_times` measures them."""
    return trigger_times(spark, source, servers, data.SMALL)


def one_task_triggers(spark: SparkSession, source: str, servers: str, _: str) -> float:
    """The same with one task."""
    return trigger_times(spark, source, servers, data.SMALL, tasks=1)


def arrivals(spark: SparkSession, source: str, servers: str, _: str) -> float:
    """As :func:`.arrival_times` measures them."""
    return arrival_times(spark, source, servers)


JOBS: dict[str, Callable[[SparkSession, str, str, str], float]] = {
    "batch to noop, one task": batch_one_task,
    "two key ranges": batch_two_ranges,
    "streaming, AvailableNow, one task": available_now,
    "streaming, 100-row batches: median trigger time": small_triggers,
    "the same, one task": one_task_triggers,
    "100 rows between arrivals: median trigger time": arrivals,
}
SLOWER_MAX = 1.1
"""The time of an older version, by that of the newest."""


def session(servers: str, *, plain: bool) -> None:
    """Run the jobs that the lines of standard input name; print the seconds of each."""
    spark = start_spark(quick=False, python=sys.executable if plain else worker_python())
    for line in sys.stdin:
        name, source = json.loads(line)
        print(f"seconds {JOBS[name](spark, source, servers, data.MAIN)}", flush=True)
    spark.stop()


@contextmanager
def running(version: str, servers: str, *, plain: bool) -> Iterator[Callable[[str, str], float]]:
    """A session of a version; what it gives runs a job with a source, and returns its seconds."""
    python = environment(version)
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
    process = subprocess.Popen(
        [
            *(str(python), "-m", "bench.version_jobs", "--session", servers),
            *(["--plain"] if plain else []),
        ],
        cwd=ROOT,
        env=variables(python),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ask, answers = process.stdin, process.stdout

    def run(name: str, source: str) -> float:
        ask.write(json.dumps([name, source]) + "\n")
        ask.flush()
        for line in answers:
            if line.startswith("seconds "):
                return float(line.split()[1])
        log.seek(0)
        raise AssertionError(f"the session of Spark {version} has ended:\n{log.read()[-4000:]}")

    try:
        yield run
    finally:
        ask.close()
        process.wait(60)
        log.close()


def rows(
    servers: str, runs: int, versions: Sequence[str], only: Sequence[str], *, plain: bool
) -> list[Row]:
    """A row for each job and version; the peer is the last version."""
    data.make_topics(servers)
    found = []
    with ExitStack() as stack:
        sessions = {
            each: stack.enter_context(running(each, servers, plain=plain)) for each in versions
        }
        for name in JOBS:
            if only and not any(word in name for word in only):
                continue
            times: dict[tuple[str, str], list[float]] = {}
            for turn in range(runs + 1):
                for version, run in sessions.items():
                    for source in ("kafka", "kshare"):
                        seconds = run(name, source)
                        if turn:  # the first one loads classes
                            times.setdefault((version, source), []).append(seconds)
            newest = times[versions[-1], "kshare"]
            for version in versions:
                kafka, ours = times[version, "kafka"], times[version, "kshare"]
                ratio = statistics.median(ours) / statistics.median(newest)
                best = min(ours) / min(newest)
                faster = statistics.median(kafka) / statistics.median(ours)
                label = f"Spark {version}, {name} ({faster:.2f}x format('kafka'))"
                shown = f"{best:.2f}x ({ratio:.2f}x)"
                row = Row(
                    label,
                    shown_seconds(newest),
                    shown_seconds(ours),
                    shown,
                    f"<= {SLOWER_MAX}x",
                    best <= SLOWER_MAX,
                )
                print(row, flush=True)
                found.append(row)
    return found


def main() -> int:
    """Run, and print the table as it grows."""
    parser = argparse.ArgumentParser(prog="python -m bench.version_jobs", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="Spark runs python, not kshare-python")
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD")
    parser.add_argument("--session", metavar="HOST:PORT", help="run jobs of standard input")
    arguments = parser.parse_args()
    if arguments.session:
        session(arguments.session, plain=arguments.plain)
        return 0
    with KafkaBroker() as broker:
        servers = broker.bootstrap_servers
        given = arguments.runs, arguments.versions, arguments.only
        found = rows(servers, *given, plain=arguments.plain)
    return 0 if all(row.met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
