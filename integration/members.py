"""Processes that are members of a group, what they have delivered, and the verdict over it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from integration.topics import Topics
from kshare.core.hashing import HashRange
from kshare.testing import check_order

SECONDS = 120.0


@dataclass
class Member:
    """A process of the group, and what it has written."""

    process: subprocess.Popen[bytes]
    file: Path
    resumed: list[int] = field(default_factory=list)
    signals: list[signal.Signals] = field(default_factory=list)

    def lines(self) -> list[list[str]]:
        text = self.file.read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def errors(self) -> str:
        """What it has logged."""
        return self.file.with_suffix(".err").read_text(errors="replace")

    def records(self) -> list[tuple[int, int, int, str]]:
        """Time, partition, offset and key."""
        return [
            (int(line[1]), int(line[2]), int(line[3]), line[4] if len(line) > 4 else "")
            for line in self.lines()
            if line[0] == "record"
        ]

    def share(self) -> float:
        """How many partitions it has now, by its callbacks."""
        signs = {"assigned": 1, "revoked": -1, "lost": -1}
        return sum(signs[line[0]] * float(line[2]) for line in self.lines() if line[0] in signs)

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGCONT:
            self.resumed.append(time.monotonic_ns())
        self.signals.append(number)
        self.process.send_signal(number)

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
            assert code == 0 or (code == -signal.SIGTERM and not self.lines())  # not begun yet
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # it prints where each thread is
            raise


@dataclass
class Group:
    """The processes of a group, those that ended too.

    Attributes:
        broker: Where the topic is.
        topic: The topic that they subscribe to.
        folder: Where they write what they deliver.
        name: Id of the group; empty for the topic's name.
        members: The processes.
    """

    broker: Topics
    topic: str
    folder: Path
    name: str = ""
    members: list[Member] = field(default_factory=list)

    def start(self, **config: Any) -> Member:
        return self._start("integration.member_process", config)

    def start_range(self, hashes: HashRange, **config: Any) -> Member:
        """Start a member of a standalone group, with some key hashes of partition 0."""
        return self.start(assign=[[hashes.lo, hashes.hi]], **config)

    def start_plain(self, **config: Any) -> Member:
        """Start a plain consumer."""
        return self._start("integration.plain_process", config)

    def _start(self, module: str, config: dict[str, Any]) -> Member:
        file = self.folder / f"{self.name}-{len(self.members):03}"
        file.touch()
        command = [sys.executable, "-X", "faulthandler", "-m", module]
        name = self.name or self.topic
        command += [self.broker.bootstrap_servers, self.topic, name, str(file)]
        with file.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen([*command, json.dumps(config)], stderr=errors)
        self.members.append(Member(process, file))
        return self.members[-1]

    def close(self) -> None:
        """Kill all that are left, and print what they have logged: it is shown if a test fails."""
        for member in self.members:
            member.process.kill()
            member.process.wait()
            print(f"-- {member.file.name}:\n{member.errors()[-4000:]}")

    def delivered(self) -> set[tuple[int, int]]:
        return {(each[1], each[2]) for member in self.members for each in member.records()}

    def check(self, produced: Mapping[int, int | list[tuple[int, int]]]) -> None:
        """Nothing is lost, and each key was delivered in order, whoever delivered it.

        A record that came twice counts where it came first, and then where it came last.

        Args:
            produced: The end of each partition, or the offset ranges that had to be delivered.
        """
        print(self.history())
        rows = sorted(row for member in self.members for row in self._rows(member))
        first: dict[tuple[int, int], tuple[int, int, int, str]] = {}
        last: dict[tuple[int, int], tuple[int, int, int, str]] = {}
        for row in rows:
            first.setdefault((row[1], row[2]), row)
            last[row[1], row[2]] = row
        for partition, end in produced.items():
            expected = [(0, end)] if isinstance(end, int) else end
            for deliveries in (first, last):
                kept = sorted(row for row in deliveries.values() if row[1] == partition)
                columns = {
                    "offset": pa.array([row[2] for row in kept], pa.int64()),
                    "key": pa.array([bytes.fromhex(row[3]) for row in kept], pa.binary()),
                    "batch": pa.array(range(len(kept)), pa.int64()),
                }
                report = check_order(pa.table(columns), {0: expected})
                assert report.ok, str(report)

    def history(self) -> str:
        """What has happened, in numbers."""
        lines = [line[0] for member in self.members for line in member.lines()]
        counts = {name: lines.count(name) for name in ("record", "assigned", "revoked", "lost")}
        signals = [number for member in self.members for number in member.signals]
        return (
            f"{counts['record']} records delivered, {len(self.delivered())} of them different; "
            f"{len(self.members)} processes, {signals.count(signal.SIGKILL)} killed, "
            f"{signals.count(signal.SIGSTOP)} stopped; callbacks: {counts['assigned']} assigned, "
            f"{counts['revoked']} revoked, {counts['lost']} lost"
        )

    def _rows(self, member: Member) -> list[tuple[int, int, int, str]]:
        """What a member delivered, without what its handler had in hand when it was stopped."""
        rows = member.records()
        others = {
            row[1:3] for other in self.members if other is not member for row in other.records()
        }
        for resumed in member.resumed:
            late = [row for row in rows if row[0] > resumed][:1]
            rows = [row for row in rows if row not in late or row[1:3] not in others]
        return rows


def fill(group: Group, first: int, last: int) -> None:
    rows = [(f"key-{i * i % 331}", f"{i}") for i in range(first, last)]
    group.broker.produce(group.topic, rows)


def eventually(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found


def end_all(group: Group) -> None:
    for member in group.members:
        if member.process.poll() is None:
            member.end()
