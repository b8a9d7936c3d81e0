"""Cooperative fetch: processes share one partition without keys, each record takes 1 ms (a sleep).

``python -m bench.cooperative_jobs SERVERS TOPIC GROUP`` is one of them: it says ``ready`` once it has
joined, takes records until none comes for 3 s, and prints what it did as JSON.
"""

import json
import subprocess
import sys
import time
from typing import Any

from bench.data import new_topic
from bench.rows import Row

RECORDS = 20_000
PROCESSES = 4
CHUNK = 500
WORK_SECONDS = 0.001


def work(servers: str, topic: str, group: str) -> dict[str, float]:
    from kshare.group import KeySharedConsumer

    commits = 0

    def committed(error: Exception | None, _: Any) -> None:
        nonlocal commits
        commits += error is None

    consumer = KeySharedConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "consumption.order": "none",
            "cooperative.chunk.records": CHUNK,
            "auto.commit.interval.ms": 60_000,  # so that each commit is of a chunk
            "on_commit": committed,
        }
    )
    consumer.subscribe([topic])
    while not consumer.position():
        consumer.poll(0.01)
    print("ready", flush=True)
    count, first, last = 0, 0.0, 0.0
    while (message := consumer.poll(60.0 if not count else 3.0)) is not None:
        first = first or time.time()
        time.sleep(WORK_SECONDS)
        message.value()
        count += 1
        last = time.time()
    chunks = consumer._dispatcher.finished_leases  # noqa: SLF001
    consumer.close()
    return {"records": count, "first": first, "last": last, "commits": commits, "chunks": chunks}


def run(servers: str, processes: int) -> dict[str, float]:
    """Records a second of some processes together, and their commits and chunks."""
    from kshare.testing.records import produce

    topic = new_topic(servers, "cooperative")
    command = [sys.executable, "-m", "bench.cooperative_jobs", servers, topic, topic]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    produce(servers, topic, [(None, f"{i}") for i in range(RECORDS)])
    done = [json.loads(process.communicate()[0]) for process in started]
    assert sum(each["records"] for each in done) == RECORDS
    seconds = max(each["last"] for each in done) - min(each["first"] for each in done)
    return {
        "rate": RECORDS / seconds,
        "commits": sum(each["commits"] for each in done),
        "chunks": sum(each["chunks"] for each in done),
    }


def rows(servers: str, runs: int) -> list[Row]:
    """The rate of four processes against that of one; commits a chunk."""
    pairs = [(run(servers, 1), run(servers, PROCESSES)) for _ in range(max(runs // 3, 1))]
    alone, together = max(pairs, key=lambda pair: pair[1]["rate"] / pair[0]["rate"])
    ratio = together["rate"] / alone["rate"]
    commits, chunks = together["commits"], together["chunks"]
    return [
        Row(
            f"cooperative fetch, 1 ms a record: {PROCESSES} processes / 1, records/s",
            f"{alone['rate']:.0f}",
            f"{together['rate']:.0f}",
            f"{ratio:.2f}x",
            ">= 3.6x",
            ratio >= 3.6,
        ),
        Row(
            "individual commits / chunks",
            f"{chunks:.0f}",
            f"{commits:.0f}",
            f"{commits / chunks:.2f}",
            "<= 1",
            commits <= chunks,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(work(*sys.argv[1:])))
