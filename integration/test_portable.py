"""Streams, groups and kernels where the system has less than Linux, or Spark starts each worker.

All that only Linux has is taken away by ``KSHARE_PORTABLE=1``, so this is how kshare runs on a Mac.
tests/test_operating_system.py has each absence.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.portable import RANGES

COUNT, KEYS = 6_000, 97


@pytest.mark.parametrize(
    ("portable", "use_daemon"),
    [
        ("1", "false"),  # Spark's way on Windows: it forks nothing
        pytest.param("1", "true", marks=pytest.mark.long),
        pytest.param("0", "false", marks=pytest.mark.long),
    ],
)
def test_a_stream_and_a_group_do_without(
    broker: KafkaBroker, topic: str, tmp_path: Path, portable: str, use_daemon: str
) -> None:
    broker.produce(topic, [(f"key-{i * i % KEYS}", "x" * 100) for i in range(COUNT)])
    command = [sys.executable, "-m", "integration.portable", broker.bootstrap_servers, topic]
    variables = {"KSHARE_PORTABLE": portable, "KSHARE_LOG_LEVEL": "INFO"}
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [*command, str(tmp_path / "checkpoint"), use_daemon],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
        )
    said = (tmp_path / "log").read_text()
    assert done.returncode == 0, said[-5_000:]
    found = json.loads(done.stdout.splitlines()[-1])  # a JVM may have warned in a line before
    rows = [(f"key-{i * i % KEYS}", i) for i in range(COUNT)]
    assert sorted(((key, offset) for _, key, offset in found["stream"]), key=by_offset) == rows
    assert sorted(map(tuple, found["consumer"]), key=by_offset) == rows
    tasks: dict[int, list[tuple[str, int]]] = {}
    for task, key, offset in found["stream"]:
        tasks.setdefault(task, []).append((key, offset))
    assert len(tasks) == RANGES
    assert sum(len({key for key, _ in each}) for each in tasks.values()) == len({*dict(rows)})
    assert all(each == sorted(each, key=by_offset) for each in tasks.values())
    # Once, where the user looks; and no task warns of it.
    assert said.count("each fetch it for themselves") == (portable == "1")
    assert "cache of fetched chunks is not used" not in said


def by_offset(row: tuple[str, int]) -> int:
    return row[1]
