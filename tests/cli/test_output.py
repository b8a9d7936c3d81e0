"""Standard output that is closed early, as by ``| head``: every command ends quietly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kshare.core.checkpoint import BatchOffsets
from kshare.core.progress import Progress, TopicPartition
from tests.support.checkpoints import write_checkpoint

CASE = {
    "op": "assign",
    "assignor": "StickyTaskAssignor",
    "tasks": [{"id": "0_0", "inputs": ["t-0"]}],
    "processes": [{"id": "1", "threads": 1}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It holds a checkpoint, and a file with more cases than fit into a pipe."""
    write_checkpoint(tmp_path, [BatchOffsets({TopicPartition("t", 0): Progress.at(5)})], 0)
    (tmp_path / "cases").write_text((json.dumps(CASE) + "\n") * 2_000)
    return tmp_path


def kshare(*arguments: str, cwd: Path, stdout: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONUNBUFFERED", None)  # what is written is sent when main() flushes it
    return subprocess.Popen(
        [sys.executable, "-m", "kshare.cli", *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["status", "--help"],
        ["--version"],
        ["status", "--checkpoint", "."],
        ["status", "--checkpoint", ".", "--json"],
        ["assign", "cases"],
        ["assign", "--explain", "cases"],
    ],
    ids=" ".join,
)
def test_nobody_reads(folder: Path, arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with kshare(*arguments, cwd=folder, stdout=writing) as running:
        os.close(writing)
        _, error = running.communicate(timeout=60)
    assert (running.returncode, error) == (141, "")


def test_the_first_line_is_enough(folder: Path) -> None:
    with kshare("assign", "cases", cwd=folder, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["assignment"]
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == ""
        assert running.wait(timeout=60) == 141
