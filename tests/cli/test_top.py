"""``kshare top``: a query by its checkpoint, a group on a mock cluster; in pipes and terminals."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kshare.cli import main
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import HASH_SPACE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.kafka.parked_keys import ParkedKeys
from kshare.testing import FakeCluster
from tests.support.checkpoints import write_checkpoint
from tests.support.clock import WAIT_S, until
from tests.support.groups import GROUP, LOG, LOWER, UPPER, commit, group_config, member, rectangle

T0 = TopicPartition("orders", 0)
AHEAD = Progress.of(10, [Rectangle(OffsetRange(10, 60), LOWER)])


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 3, "__kshare_parked_keys": 1}) as running:
        running.produce("orders", [(b"k", b"v")] * 100, partition=0)
        yield running


def looked_at(*arguments: str, capsys: Any) -> Any:
    assert main(["top", *arguments, "--once", "--interval", "0.1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_a_query(cluster: FakeCluster, tmp_path: Path, capsys: Any) -> None:
    checkpoint = write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})], 0)
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    shown = looked_at("--checkpoint", checkpoint, *servers, capsys=capsys)
    assert (shown["kind"], shown["facts"]) == ("query", "batch 0 planned, 0 committed")
    assert [(each["h"], each["position"], each["lag"]) for each in shown["ranges"]] == [
        ([[0, LOWER.hi]], 60, 40),
        ([[UPPER.lo, HASH_SPACE]], 10, 90),
    ]
    assert [each["speed"] for each in shown["ranges"]] == [0, 0]
    assert (shown["lag"], shown["fault"], shown["members"]) == (90, None, [])
    # What `kshare status` says of the same.
    main(["status", "--checkpoint", checkpoint, *servers, "--json"])
    status = json.loads(capsys.readouterr().out)
    for one, other in zip(shown["ranges"], status["partitions"][0]["ranges"], strict=True):
        assert {name: one[name] for name in other} == other


def test_a_group(cluster: FakeCluster, capsys: Any) -> None:
    servers = cluster.bootstrap_servers
    parked = ParkedKeys(group_config(servers).kafka)
    parked.park("orders", [b"customer-2"], why="slow")
    parked.close()
    with member(servers, LOWER, application_server="pod-3:8080") as lower:
        commit(lower, rectangle(0, 10, LOWER))
        shown = looked_at("--group", GROUP, "--bootstrap-servers", servers, capsys=capsys)
        main(["groups", "--group", GROUP, "--bootstrap-servers", servers, "--json"])
        groups = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "group"
    (one,) = shown["members"]
    assert {name: one[name] for name in groups["members"][0]} == groups["members"][0]
    assert (one["ranges"], one["lag"], one["leased"]) == (1, 90, None)
    owners = [(each["member"], each["position"], each["lag"]) for each in shown["ranges"]]
    assert owners == [(each["member"], each["position"], each["lag"]) for each in groups["ranges"]]
    assert [each["key"] for each in shown["parked"]] == ["customer-2"]


def test_faults(tmp_path: Path, capsys: Any) -> None:
    assert main(["top", "--checkpoint", str(tmp_path / "none"), "--once"]) == 1
    assert "there is no such directory" in capsys.readouterr().err
    for arguments, fault in (
        (["top"], "one of the arguments --checkpoint --group is required"),
        (["top", "--group", "g"], "which cluster? Give --bootstrap-servers"),
        (["top", "--checkpoint", "a", "--group", "g"], "not allowed with argument"),
        (["top", "--group", "g", "--interval", "0"], "'0': wanted seconds, from 0.1 to 3600"),
        (["ui", "--group", "g"], "which cluster? Give --bootstrap-servers"),
        (["ui", "--group", "g", "--port", "70000"], "--port 70000: wanted 0 to 65535"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert fault in capsys.readouterr().err


# -- as a process ----------------------------------------------------------------------------------


def command(checkpoint: str, *arguments: str) -> list[str]:
    what = ("--checkpoint", checkpoint, "--interval", "0.1")
    return [sys.executable, "-m", "kshare", "top", *what, *arguments]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})], 0)


@pytest.mark.parametrize("is_json", [False, True])
def test_piped_it_prints_one_look_below_the_other(checkpoint: str, is_json: bool) -> None:
    with subprocess.Popen(
        command(checkpoint, *(["--json"] if is_json else [])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines = [running.stdout.readline() for _ in range(3 if is_json else 20)]
        running.stdout.close()  # as `| head` does
        assert running.wait(WAIT_S) == 141
        assert running.stderr.read() == ""
    if is_json:
        assert [json.loads(line)["ranges"][0]["position"] for line in lines] == [60, 60, 60]
    else:
        assert sum(line.startswith("query ") for line in lines) >= 2
        assert not any("\x1b" in line for line in lines)


class Terminal:
    """A process in a terminal of 80 x 24."""

    def __init__(self, arguments: list[str], term: str) -> None:
        self.seen = b""
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=term, LINES="24", COLUMNS="80")
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
            os.execv(arguments[0], arguments)

    def wait_for(self, text: bytes) -> None:
        def is_there() -> bool:
            if select.select([self._file], [], [], 0.1)[0]:
                self.seen += os.read(self._file, 1 << 16)
            return text in self.seen

        until(is_there, shown=lambda: self.seen)

    def type(self, keys: bytes) -> None:
        self.seen = b""
        os.write(self._file, keys)

    def end(self) -> int:
        try:
            while os.read(self._file, 1 << 16):
                pass
        except OSError:  # so a terminal says that nobody has it open
            pass
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_in_a_terminal_keys_sort_and_end_it(checkpoint: str) -> None:
    terminal = Terminal(command(checkpoint), "xterm-256color")
    terminal.wait_for(b"q quit")
    assert b"\x1b[?1049h" in terminal.seen, "another screen, so that the first one comes back"
    terminal.type(b"p")
    terminal.wait_for(b"position")
    terminal.type(b"q")
    assert terminal.end() == 0


def test_a_terminal_that_can_do_nothing(checkpoint: str) -> None:
    terminal = Terminal(command(checkpoint), "dumb")
    terminal.wait_for(b"query ")
    terminal.seen = b""
    terminal.wait_for(b"query ")
    assert b"\x1b" not in terminal.seen
    terminal.type(b"\x03")
    assert terminal.end() == 130
