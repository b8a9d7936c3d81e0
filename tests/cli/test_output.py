"""Standard output that is closed early, as by ``| head``: every command ends quietly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kshare.cli.output import complain, say, say_block
from kshare.cli.replay import _line
from kshare.core.checkpoint import BatchOffsets
from kshare.core.progress import Progress, TopicPartition
from kshare.processing.replay import Letter
from tests.support.checkpoints import write_checkpoint
from tests.support.documents import ROOT

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


HOSTILE = "orders\x1b[2K\rinvoices\nforged: 3 put back\u202e"


def test_what_others_have_named_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{HOSTILE}: 1 put back")
    say_block(f"\x1b[31m  late\x1b[0m\x1b[8mhidden\n{HOSTILE}\n")
    complain(f"kshare replay: {HOSTILE}")
    shown = capsys.readouterr()
    assert shown.out.split("\n") == [
        "orders?[2K?invoices?forged: 3 put back?: 1 put back",
        "\x1b[31m  late\x1b[0m?[8mhidden",
        "orders?[2K?invoices",
        "forged: 3 put back?",
        "",
    ]
    assert shown.err.split("\n") == [
        "kshare replay: orders?[2K?invoices",
        "  forged: 3 put back?",
        "",
    ]


def test_a_letter_that_is_listed_forges_no_column() -> None:
    """An operator decides by this line whether letters are put back."""
    listed = _line(Letter(b"k\x1b[2J", (HOSTILE, 0, 7), HOSTILE, -1, "no\t-> payments\tfine"))
    assert listed.count("\t") == 3
    assert listed.replace("\t", "").isprintable()


def test_commands_print_through_what_cleans_it() -> None:
    """JSON escapes by itself, and so may those who print it; the others print their own texts."""
    allowed = {
        "__main__.py",  # its only line is ours
        "output.py",
        "top.py",
        "broker.py",
        "probe.py",
        "assign.py",
    }
    printing = {
        file.name
        for file in (ROOT / "kshare/cli").rglob("*.py")
        if any(
            f"{stream}.write" in file.read_text(encoding="utf-8")
            for stream in ("stdout", "stderr", "print(")
        )
    }
    assert printing <= allowed
