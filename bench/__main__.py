"""``make bench``: every figure of docs/design/benchmarks.md, both sides in one run, interleaved.

``python -m bench [--runs N] [--only GROUP[,GROUP ...]] [--bootstrap-servers HOST:PORT]``
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench import (
    arrow_jobs,
    assign_jobs,
    chunk_jobs,
    cooperative_jobs,
    core_jobs,
    data,
    elastic_jobs,
    fifty_jobs,
    latency_jobs,
    log_jobs,
    machine_jobs,
    membership_jobs,
    processing_jobs,
    range_jobs,
    receive_jobs,
    sink_jobs,
    slow_key,
    time_jobs,
    transaction_jobs,
    typed_jobs,
)
from bench.ready_made import read_ready_made
from bench.rows import Row, interleaved, own_row, shown_seconds, speed_row
from bench.spark_jobs import (
    a_checkpoint,
    arrival_times,
    available_later,
    available_now,
    batch_keys,
    batch_one_task,
    batch_read,
    batch_two_ranges,
    one_record_each,
    trigger_floor,
    trigger_times,
    worker_rss_mib,
)
from integration.kafka import KafkaBroker
from integration.spark import start_spark


def wire_job(servers: str, job: str, topic: str, *more: int) -> dict[str, float]:
    """Run a job of :mod:`bench.wire_jobs` in a process of its own."""
    command = [sys.executable, "-m", "bench.wire_jobs", job, servers, topic, *map(str, more)]
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    process = time.perf_counter() - started
    return {**json.loads(done.stdout), "process": process}


def wire_rows(servers: str, runs: int) -> list[Row]:
    """The wire reader alone, without Spark."""
    data.make_topics(servers)
    rows = []
    peer, ours = interleaved(
        lambda: wire_job(servers, "confluent", data.MAIN)["seconds"],
        lambda: wire_job(servers, "kshare", data.MAIN, 1)["seconds"],
        runs,
    )
    rows.append(
        speed_row("wire reader against confluent-kafka", data.MAIN_RECORDS, (peer, ours), 6)
    )
    whole, eighth = interleaved(
        lambda: wire_job(servers, "kshare", data.MAIN, 1)["cpu"],
        lambda: wire_job(servers, "kshare", data.MAIN, 8)["cpu"],
        runs,
    )
    share = statistics.median(eighth) / statistics.median(whole)
    best = min(eighth) / min(whole)
    rows.append(
        Row(
            "CPU for one eighth of the hash space / for all of it",
            f"{statistics.median(whole):.2f} s",
            f"{statistics.median(eighth):.2f} s",
            f"{best:.2f} ({share:.2f})",
            "<= 0.75",
            share <= 0.75,
        )
    )
    drained, decoded = interleaved(
        lambda: wire_job(servers, "drain", data.PLAIN)["seconds"],
        lambda: wire_job(servers, "kshare", data.PLAIN, 1)["seconds"],
        runs,
    )
    rows.append(
        speed_row(
            "1 KB, uncompressed, against draining", data.PLAIN_RECORDS, (drained, decoded), 0.6
        )
    )
    fresh = [wire_job(servers, "first-batch", data.MAIN)["process"] for _ in range(runs + 1)][1:]
    median = statistics.median(fresh)
    rows.append(
        Row(
            "fresh process: import and first batch",
            "-",
            f"{min(fresh):.2f} ({median:.2f}) s",
            "-",
            "<= 1.5 s",
            median <= 1.5,
        )
    )
    return rows


def spark_rows(servers: str, runs: int) -> list[Row]:
    """Through Spark, against Spark's own source."""
    data.make_topics(servers)
    spark = start_spark(quick=False)
    rows = []
    try:
        for name, job, target in (
            ("batch to noop, one task", batch_one_task, 3.5),
            ("two key ranges / minPartitions=2 + repartition(2, key)", batch_two_ranges, 3.5),
            ("streaming, AvailableNow, one task", available_now, 3.0),
        ):
            times = interleaved(
                partial(job, spark, "kafka", servers, data.MAIN),
                partial(job, spark, "kshare", servers, data.MAIN),
                runs,
            )
            rows.append(speed_row(name, data.MAIN_RECORDS, times, target))
            print(rows[-1], flush=True)
        rows.append(later_row(spark, servers, runs))
        print(rows[-1], flush=True)
        for row in trigger_rows(spark, servers, runs):
            rows.append(row)
            print(row, flush=True)
        peak = worker_rss_mib(spark, servers, data.MAIN)
        rows.append(
            Row(
                "peak memory of a Python worker, 3 M records",
                "-",
                f"{peak:.0f} MiB",
                "-",
                "<= 350 MB",
                peak * 1.048576 <= 350,
            )
        )
    finally:
        spark.stop()
    return rows


def later_row(spark: SparkSession, servers: str, runs: int) -> Row:
    """AvailableNow once more, on a checkpoint that a first run has left."""
    with tempfile.TemporaryDirectory(prefix="kshare-bench-") as folder:
        checkpoint = a_checkpoint(spark, servers, data.MAIN, Path(folder))
        times = interleaved(
            partial(available_later, spark, "kafka", servers, data.MAIN, checkpoint),
            partial(available_later, spark, "kshare", servers, data.MAIN, checkpoint),
            runs,
        )
    return speed_row("AvailableNow, one task, a later run", data.MAIN_RECORDS, times, 3.0)


def column_rows(servers: str, runs: int) -> list[Row]:
    """Some columns only, against ``select`` of the same columns from Spark's own source.

    Record batches that need not be read, measured in the same runs, show what Spark leaves room for.
    """
    data.make_topics(servers)
    spark = start_spark(quick=False)
    rows = []
    try:
        for name, job, columns, tasks, target in (
            ("key+value, one task", batch_one_task, "key,value", 1, 5.5),
            ("key+value, two key ranges", batch_two_ranges, "key,value", 2, 5.0),
            ("value, one task", batch_one_task, "value", 1, 6.5),
        ):
            ceiling: list[float] = []
            ready = partial(read_ready_made, spark, columns, tasks, data.MAIN_RECORDS)
            ours = partial(job, spark, "kshare", servers, data.MAIN, columns)
            peer = partial(job, spark, "kafka", servers, data.MAIN, columns)
            times = interleaved(peer, partial(_after, ready, ceiling, ours), runs)
            row = speed_row(name, data.MAIN_RECORDS, times, target, in_the_median=False)
            best, median = min(ceiling[1:]), statistics.median(ceiling[1:])
            rates = (data.MAIN_RECORDS / seconds / 1e6 for seconds in (best, median))
            row.ours += " of {:.2f} ({:.2f}) with ready-made batches".format(*rates)
            rows.append(row)
            print(rows[-1], flush=True)
    finally:
        spark.stop()
    return rows


def key_rows(servers: str, runs: int) -> list[Row]:
    """One key of 100,000, against all of them."""
    data.make_topics(servers)
    spark = start_spark(quick=False)
    rows = []
    try:
        for name, columns in (("all columns", ""), ("key+value", "key,value")):
            everything = partial(batch_keys, spark, servers, data.MAIN, columns)
            one = partial(batch_keys, spark, servers, data.MAIN, columns, '["key-00000007"]')
            times = interleaved(everything, one, runs)
            what = f"keys: one key of {data.MAIN_KEYS:,} / all, {name}"
            rows.append(speed_row(what, data.MAIN_RECORDS, times, 1.5))
            print(rows[-1], flush=True)
    finally:
        spark.stop()
    return rows


def machine_rows(servers: str, runs: int) -> list[Row]:
    """The first batch of a process, and the first queries of a session."""
    data.make_topics(servers)
    return machine_jobs.measure(servers, max(3, runs // 2))


def elastic_rows(_: str, runs: int) -> list[Row]:
    """``minPartitions=auto`` while an executor is added."""
    phases = list(elastic_jobs.measure(max(5, runs)).values())
    few, many = (
        sum(batch.rows for batch in phase) / sum(batch.seconds for batch in phase)
        for phase in (phases[0], phases[-1])
    )
    return [
        Row(
            "minPartitions=auto: 2 executors / 1, no restart",
            f"{few:,.0f} records/s",
            f"{many:,.0f} records/s",
            f"{many / few:.2f}x",
            ">= 1.5x",
            many / few >= 1.5,
        )
    ]


def _after(ready: Callable[[], float], times: list[float], ours: Callable[[], float]) -> float:
    """Measure one thing, keep its seconds, and then another."""
    times.append(ready())
    return ours()


def task_rows(servers: str, runs: int) -> list[Row]:
    """Many small partitions, which ``maxTasks=auto`` puts together."""
    data.make_wide_topics(servers)
    runs = max(1, runs // 2)
    spark = start_spark(quick=False)
    rows = []
    try:
        jobs: tuple[tuple[str, Callable[..., float], str, float], ...] = (
            ("200 partitions, a record each: trigger", one_record_each, data.EACH, 0.4),
            ("1,000 partitions, 20 records each: batch", batch_read, data.MANY, 3.0),
        )
        for name, job, topic, at_most in jobs:
            peer, ours = interleaved(
                partial(job, spark, "kafka", servers, topic),
                partial(job, spark, "kshare", servers, topic),
                runs,
            )
            theirs, shown = map(shown_seconds, (peer, ours))
            best, median = min(peer) / min(ours), statistics.median(peer) / statistics.median(ours)
            met = statistics.median(ours) <= at_most
            ratio = f"{best:.1f}x ({median:.1f}x)"
            rows.append(Row(name, theirs, shown, ratio, f"<= {at_most} s", met))
            print(rows[-1], flush=True)
    finally:
        spark.stop()
    return rows


def trigger_rows(spark: SparkSession, servers: str, runs: int) -> Iterator[Row]:
    """Median trigger times of 100 rows; for a Python source without Kafka, too."""
    floor = trigger_floor(spark)
    for name, job, most in (
        ("streaming, 100-row batches", partial(trigger_times, topic=data.SMALL), 1.1),
        ("the same, one task", partial(trigger_times, topic=data.SMALL, tasks=1), 1.1),
        ("100 rows between arrivals", arrival_times, 0.8),
    ):
        peer, ours = interleaved(
            partial(job, spark, "kafka", servers),
            partial(job, spark, "kshare", servers),
            max(3, runs // 2),
        )
        ratio, best = statistics.median(ours) / statistics.median(peer), min(ours) / min(peer)
        yield Row(
            f"{name}: median trigger time",
            _milliseconds(peer),
            f"{_milliseconds(ours)} (made-up rows, two tasks: {floor * 1000:.0f} ms)",
            f"{best:.2f}x ({ratio:.2f}x)",
            f"<= {most}x",
            best <= most,
        )


def _milliseconds(times: Sequence[float]) -> str:
    return f"{min(times) * 1000:.0f} ({statistics.median(times) * 1000:.0f}) ms"


def chunk_rows(servers: str, runs: int) -> list[Row]:
    """Ranges of one partition on one host."""
    data.make_topics(servers)
    spark = start_spark(master="local[4]", quick=False)
    try:
        rows = [Row(*chunk_jobs.measure_bytes(spark))]
        rows.append(speed_row(*chunk_jobs.measure_speed(spark, servers, runs, interleaved)))
    finally:
        spark.stop()
    for row in rows:
        print(row, flush=True)
    return rows


def group_rows(servers: str, runs: int) -> list[Row]:
    """The consumer of a key-shared group, without Spark, against confluent-kafka's."""
    data.make_topics(servers)

    def job(name: str, module: str = "bench.group_jobs") -> dict[str, float]:
        command = [sys.executable, "-m", module, name, servers, data.MAIN]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured: dict[str, float] = json.loads(done.stdout)
        return measured

    def seconds(name: str, module: str = "bench.group_jobs") -> Callable[[], float]:
        return lambda: job(name, module)["seconds"]

    rows = []
    loop = seconds("confluent-loop")
    for name, peer, ours, target in (
        (
            "consume_batch / consume(10000) into Arrow",
            seconds("confluent", "bench.wire_jobs"),
            "batches",
            8.0,
        ),
        ("consume_batch / a loop over consume(500)", loop, "batches", 3.5),
        ("for message in consumer / the same loop", loop, "loop", 1.2),
        ("with acknowledge(message) / the same loop", loop, "explicit", 0.7),
    ):
        times = interleaved(peer, seconds(ours), runs)
        rows.append(speed_row(name, data.MAIN_RECORDS, times, target))
        print(rows[-1], flush=True)
    pairs = [(job("confluent-commits")["seconds"], job("commits")["seconds"]) for _ in range(runs)]
    plain, median = (statistics.median(each) * 1000 for each in zip(*pairs, strict=True))
    rows.append(
        Row(
            "commit() to its answer / confluent-kafka's synchronous commit",
            f"{plain:.1f} ms",
            f"{median:.1f} ms",
            f"{median / plain:.2f}x",
            "< 20 ms",
            median < 20,
        )
    )
    cost = job("acknowledge")
    share = cost["cpu"] / cost["seconds"]
    name = "100,000 acknowledgements/s: of a core"
    rows.append(own_row(name, f"{share:.2f}", "< 0.25", share < 0.25))
    read = [job("batches"), job("loop")]
    above, whole = (max(each[what] for each in read) for what in ("above", "peak"))
    shown = f"{above:.0f} MiB"
    rows.append(own_row("peak memory above imports", shown, "<= 100 MiB", above <= 100))
    rows.append(own_row("peak memory", f"{whole:.0f} MiB", "<= 152 MiB", whole <= 152))
    rows += [own_row(*measured) for measured in log_jobs.measure(runs)]
    restored = min(job("restore")["seconds"] for _ in range(max(runs // 2, 1)))
    name = "a group with a million gaps: its next consumer's first batch"
    rows.append(own_row(name, f"{restored:.2f} s", "< 1 s", restored < 1))
    return [*rows, *range_jobs.rows(servers, runs)]


def slow_rows(servers: str, runs: int) -> list[Row]:
    """A slow key among a thousand."""
    runs = max(1, runs // 3)
    slow_key.make_topics(servers, slow_key.RECORDS)
    return [
        Row(f"{name}, records/s", "-", rate, ratio, target, met)
        for name, rate, ratio, target, met in slow_key.measure(servers, runs, slow_key.RECORDS)
    ]


def core_rows(_: str, runs: int) -> list[Row]:
    """Planning, without a broker."""
    return [
        Row(name, "-", shown, "-", target, met)
        for name, _, shown, target, met in core_jobs.measure(runs)
    ]


def assign_rows(_: str, runs: int) -> list[Row]:
    """Task assignors, without a broker."""
    return [Row(*row) for row in assign_jobs.measure(runs)]


def sink_rows(servers: str, runs: int) -> list[Row]:
    """The sink, against Spark's own."""
    rows = []
    for measured in sink_jobs.measure(servers, max(1, runs // 2), interleaved):
        rows.append(speed_row(*measured))
        print(rows[-1], flush=True)
    return rows


GROUPS: dict[str, Callable[[str, int], list[Row]]] = {
    "core": core_rows,
    "assign": assign_rows,
    "wire": wire_rows,
    "arrow": arrow_jobs.rows,
    "spark": spark_rows,
    "columns": column_rows,
    "tasks": task_rows,
    "keys": key_rows,
    "machine": machine_rows,
    "elastic": elastic_rows,
    "chunks": chunk_rows,
    "membership": lambda servers, runs: [
        *membership_jobs.rows(servers, runs),
        *fifty_jobs.rows(servers, runs),
    ],
    "cooperative": cooperative_jobs.rows,
    "transactions": transaction_jobs.rows,
    "groups": group_rows,
    "receive": receive_jobs.rows,
    "processing": processing_jobs.rows,
    "ceiling": processing_jobs.ceiling_rows,
    "sink": sink_rows,
    "slow": slow_rows,
    "time": time_jobs.rows,
    "typed": typed_jobs.rows,
    "latency": latency_jobs.rows,
}
WITHOUT_BROKER = {"core", "assign", "elastic"}


def _groups(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - GROUPS.keys()):
        raise argparse.ArgumentTypeError(f"no such group of rows: {', '.join(unknown)}")
    return names


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", type=_groups, default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--bootstrap-servers", help="a running broker, instead of one made here")
    arguments = parser.parse_args()
    groups: list[str] = arguments.only
    rows: list[Row] = []
    with ExitStack() as stack:
        servers = arguments.bootstrap_servers or ""
        if not servers and not WITHOUT_BROKER.issuperset(groups):
            servers = stack.enter_context(KafkaBroker(quick=False)).bootstrap_servers
        for group in groups:
            rows += GROUPS[group](servers, arguments.runs)
    print("\nbest (median) of", arguments.runs, "interleaved runs after a warm-up\n")
    print("| what | peer | kshare | ratio | target | met |\n|---|---|---|---|---|---|")
    for row in rows:
        print(row)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
