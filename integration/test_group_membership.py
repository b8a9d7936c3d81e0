"""Members of one group on a real broker: they join, leave, are killed and stopped.

The verdict is :func:`kshare.testing.check_order` over all that was delivered, in the order of time;
it excuses nothing during rebalances.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration.jars import java
from integration.kafka import KafkaBroker, class_path
from kshare.testing import check_order

SECONDS = 120.0


@dataclass
class Member:
    """A process of the group, and what it has written."""

    process: subprocess.Popen[bytes]
    file: Path
    resumed: list[int] = field(default_factory=list)

    def lines(self) -> list[list[str]]:
        text = self.file.read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

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
        self.process.send_signal(number)

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        try:
            assert self.process.wait(30) == 0
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # it prints where each thread is
            raise


@dataclass
class Group:
    """The processes of a group, those that ended too."""

    broker: KafkaBroker
    topic: str
    folder: Path
    members: list[Member] = field(default_factory=list)

    def start(self, **config: Any) -> Member:
        file = self.folder / f"{len(self.members):03}"
        file.touch()
        command = [sys.executable, "-X", "faulthandler", "-m", "integration.member_process"]
        command += [self.broker.bootstrap_servers, self.topic, self.topic, str(file)]
        with file.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen([*command, json.dumps(config)], stderr=errors)
        self.members.append(Member(process, file))
        return self.members[-1]

    def delivered(self) -> set[tuple[int, int]]:
        return {(each[1], each[2]) for member in self.members for each in member.records()}

    def check(self, produced: dict[int, int]) -> None:
        """Nothing is lost, and each key was delivered in order, whoever delivered it.

        A record that came twice counts where it came first, and then where it came last.
        """
        rows = sorted(row for member in self.members for row in self._rows(member))
        first: dict[tuple[int, int], tuple[int, int, int, str]] = {}
        last: dict[tuple[int, int], tuple[int, int, int, str]] = {}
        for row in rows:
            first.setdefault((row[1], row[2]), row)
            last[row[1], row[2]] = row
        for partition, end in produced.items():
            for deliveries in (first, last):
                kept = sorted(row for row in deliveries.values() if row[1] == partition)
                columns = {
                    "offset": pa.array([row[2] for row in kept], pa.int64()),
                    "key": pa.array([bytes.fromhex(row[3]) for row in kept], pa.binary()),
                    "batch": pa.array(range(len(kept)), pa.int64()),
                }
                report = check_order(pa.table(columns), {0: (0, end)})
                assert report.ok, str(report)

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


@pytest.fixture
def group(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Group]:
    running = Group(broker, topic, tmp_path)
    yield running
    for member in running.members:
        member.process.kill()
        member.process.wait()


def fill(group: Group, first: int, last: int) -> None:
    rows = [(f"key-{i * i % 331}", f"{i}") for i in range(first, last)]
    group.broker.produce(group.topic, rows)


def eventually(holds: Callable[[], Any], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def end_all(group: Group) -> None:
    for member in group.members:
        if member.process.poll() is None:
            member.end()


def test_members_join_and_leave(group: Group) -> None:
    fill(group, 0, 3_000)
    first = group.start()
    eventually(lambda: len(first.records()) > 100)
    second, third = group.start(), group.start()
    eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in group.members))
    fill(group, 3_000, 6_000)
    eventually(lambda: len(second.records()) > 100 and len(third.records()) > 100)
    check_tools(group)
    first.end()
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in (second, third)))
    eventually(lambda: len(group.delivered()) == 6_000)
    end_all(group)
    group.check({0: 6_000})
    total = sum(len(member.records()) for member in group.members)
    assert total == 6_000  # nobody was killed, so nothing comes twice


def check_tools(group: Group) -> None:
    """Kafka's own tool shows the members."""
    tool = [java(), "-Xmx128m", "-cp", class_path()]
    tool += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    tool += ["--bootstrap-server", group.broker.bootstrap_servers, "--group", group.topic]
    tool += ["--describe", "--members", "--verbose"]
    shown = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.count(f"{group.topic}(0)") + shown.count(f"{group.topic}:0") == 3, shown


def test_a_killed_member_is_replaced(group: Group) -> None:
    fill(group, 0, 4_000)
    one, two = group.start(), group.start()
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in group.members))
    fill(group, 4_000, 8_000)
    eventually(lambda: len(one.records()) > 300 and len(two.records()) > 300)
    one.signal(signal.SIGKILL)
    killed = time.monotonic()
    eventually(lambda: abs(two.share() - 1) < 0.01)
    assert time.monotonic() - killed < 7.5
    eventually(lambda: len(group.delivered()) == 8_000)
    end_all_but(group, one)
    group.check({0: 8_000})


def end_all_but(group: Group, *dead: Member) -> None:
    for member in group.members:
        if member not in dead:
            member.end()


def test_a_member_is_stopped_past_its_session_and_goes_on(group: Group) -> None:
    fill(group, 0, 3_000)
    one, two = group.start(), group.start()
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in group.members))
    fill(group, 3_000, 6_000)
    eventually(lambda: len(one.records()) > 200)
    one.signal(signal.SIGSTOP)
    eventually(lambda: abs(two.share() - 1) < 0.01)
    written = len(two.records())
    eventually(lambda: len(two.records()) > written + 100)
    one.signal(signal.SIGCONT)
    eventually(lambda: any(line[0] == "lost" for line in one.lines()))
    fill(group, 6_000, 9_000)
    eventually(lambda: abs(one.share() - 1 / 2) < 0.01)
    eventually(lambda: len(group.delivered()) == 9_000)
    end_all(group)
    group.check({0: 9_000})


@pytest.mark.parametrize("seed", [1, 2])
def test_members_come_and_go_at_random(group: Group, seed: int) -> None:
    chance = random.Random(seed)
    living = [group.start(), group.start()]
    fill(group, 0, 500)
    total = 500
    eventually(lambda: all(member.lines() for member in living))
    for _ in range(12):
        fill(group, total, total + 500)
        total += 500
        time.sleep(chance.uniform(0.2, 2.0))
        what = chance.choice(["start", "kill", "end", "stop"])
        if what == "start" and len(living) < 4:
            living.append(group.start())
            eventually(living[-1].lines)
        elif len(living) > 1:
            victim = living.pop(chance.randrange(len(living)))
            if what == "kill":
                victim.signal(signal.SIGKILL)
            elif what == "end":
                victim.end()
            else:
                victim.signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0, 8))
                victim.signal(signal.SIGCONT)
                living.append(victim)
    eventually(lambda: len(group.delivered()) == total)
    for member in living:
        member.end()
    group.check({0: total})
