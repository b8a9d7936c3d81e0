"""Processes that are members of a group, what they have delivered, and the verdict over it."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer

from integration.history import (
    Committed,
    Delivery,
    Events,
    History,
    OwnerChange,
    Sent,
    check_history,
)
from integration.lines import whole_lines
from integration.processes import PythonProcess, let_go
from integration.topics import Topics
from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.group.tools.offsets import list_offsets
from kshare.testing import check_order
from tests.support import shown

SECONDS = 120.0
_CHANGES = ("assigned", "revoked", "lost")


@dataclass
class Member:
    """A process of the group, and what it has written."""

    process: PythonProcess
    file: Path
    has_callbacks: bool = True
    is_plain: bool = False
    resumed: list[int] = field(default_factory=list)
    signals: list[signal.Signals] = field(default_factory=list)
    interrupted: list[int] = field(default_factory=list)
    is_over: bool = False  # its end was looked at

    def lines(self) -> list[list[str]]:
        return [line.split() for line in whole_lines(self.file)]

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

    def events(self, topic: str, *, is_strict: bool = False) -> Events:
        """What it has delivered, what its callbacks were told, and what it knew of commits.

        Args:
            topic: The topic.
            is_strict: Excuse no record that was in hand, but where it has claimed anew.
        """
        closing = [int(line[1]) for line in self.lines() if line[0] == "closing"]
        anew = [int(line[1]) for line in self.lines() if line[0] == "anew"]
        known = (_event(topic, line) for line in self.lines())
        lines = [event for event in known if event is not None]
        if is_strict:
            # A signal handler that closes the consumer writes amid the records of the last call.
            lines.sort(key=lambda line: line.time)
            return Events(lines, anew, (), self.has_callbacks, self.is_plain, anew)
        resumed = sorted([*self.resumed, *anew])
        return Events(lines, resumed, closing, self.has_callbacks, self.is_plain, anew)

    def share(self) -> float:
        """How many partitions it has now, by its callbacks."""
        signs = {"assigned": 1, "revoked": -1, "lost": -1}
        return sum(signs[line[0]] * float(line[2]) for line in self.lines() if line[0] in signs)

    def failed_with(self, text: str) -> bool:
        """Wait for its end; whether it has failed as it should."""
        self.is_over = True
        return self.process.wait(int(SECONDS)) == 1 and text in self.errors()

    def let_go(self) -> None:
        """Let its handler that hangs go on."""
        let_go(self.file)

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGCONT:
            self.resumed.append(time.monotonic_ns())
        if number in {signal.SIGKILL, signal.SIGSTOP}:
            self.interrupted.append(time.monotonic_ns())
        self.signals.append(number)
        self.process.send_signal(number)

    def end(self) -> None:
        """End it with SIGTERM if it still runs; an error if it has failed."""
        if self.is_over:
            return
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # it prints where each thread is
            raise
        self.is_over = True
        is_early = code == -signal.SIGTERM and not self.lines()  # it had not begun yet
        is_well = code in {0, -signal.SIGKILL} or is_early
        assert is_well, f"{self.file.name} ended with {code}:\n{self.errors()[-4000:]}"


@dataclass
class Group:
    """The processes of a group, those that ended too.

    Attributes:
        broker: Where the topic is.
        topic: The topic that they subscribe to.
        folder: Where they write what they deliver.
        name: Id of the group; empty for the topic's name.
        output: Where transactional members write.
        members: The processes.
        faults: What was done to brokers, policies or the log, in words.
        log_losses: When the group's log was lost.
    """

    broker: Topics
    topic: str
    folder: Path
    name: str = ""
    output: str = ""
    members: list[Member] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    log_losses: list[int] = field(default_factory=list)

    def start(self, **config: Any) -> Member:
        has_callbacks = config.get("assign") in (None, False)
        return self._start("integration.member_process", config, has_callbacks)

    def start_range(self, hashes: HashRange, **config: Any) -> Member:
        """Start a member of a standalone group, with some key hashes of partition 0."""
        return self.start(assign=[[hashes.lo, hashes.hi]], **config)

    def start_plain(self, **config: Any) -> Member:
        """Start a plain consumer."""
        member = self._start("integration.plain_process", config)
        member.is_plain = True
        return member

    def start_handlers(self, **config: Any) -> Member:
        """Start a processor (:mod:`integration.handler_process`)."""
        return self._start("integration.handler_process", config)

    def wake(self) -> None:
        """Let all that are suspended go on."""
        for member in self.members:
            member.signal(signal.SIGCONT)

    def _start(self, module: str, config: dict[str, Any], has_callbacks: bool = True) -> Member:
        file = self.folder / f"{self.name}-{len(self.members):03}"
        file.touch()
        name = self.name or self.topic
        arguments = [self.broker.bootstrap_servers, self.topic, name, str(file), json.dumps(config)]
        errors = file.with_suffix(".err")
        errors.touch()
        process = PythonProcess(module, arguments, stderr=errors)
        self.members.append(Member(process, file, has_callbacks))
        return self.members[-1]

    def close(self) -> None:
        """Kill all that are left, and print what they have logged: it is shown if a test fails."""
        for member in self.members:
            member.process.kill()
            member.process.wait()
            print(f"-- {member.file.name}:\n{member.errors()[-10_000:]}")

    def delivered(self) -> set[tuple[int, int]]:
        return {(each[1], each[2]) for member in self.members for each in member.records()}

    def is_done(self, produced: int) -> bool:
        """Whether so many records are delivered and committed: none of them comes again.

        All may be delivered while what a dead member had not committed has yet to come again. Who
        is ended amid that leaves a key's last records where the dead member had them.
        """
        return len(self.delivered()) == produced == self.committed()

    def committed(self) -> int:
        """The stable offsets that are committed, of all partitions together."""
        config = {"bootstrap.servers": self.broker.bootstrap_servers}
        known = list_offsets(self.name or self.topic, config)
        return sum(each.offset for at, each in known.items() if at.topic == self.topic)

    def note_log_loss(self, what: str) -> None:
        """The group's log is about to be deleted or truncated."""
        self.faults.append(what)
        self.log_losses.append(time.monotonic_ns())

    def check(self, produced: Mapping[int, int | list[tuple[int, int]]]) -> None:
        """Nothing is lost, and each key was delivered in order, by one living owner at a time.

        How a record may come twice is judged by :mod:`integration.history`. Where each came
        last, keys are in order, too: what comes again is all that was not committed.

        Args:
            produced: The end of each partition, or the offset ranges that had to be delivered.
        """
        expected = {p: [(0, end)] if isinstance(end, int) else end for p, end in produced.items()}
        anomalies = self.anomalies(expected)
        print(f"{self.history()}; {len(anomalies)} anomalies")
        assert not anomalies, "\n".join(anomalies[:20])
        rows = sorted(row for member in self.members for row in self._rows(member))
        last = {row[1:3]: row for row in rows}
        for partition, ranges in expected.items():
            kept = sorted(row for row in last.values() if row[1] == partition)
            columns = {
                "offset": pa.array([row[2] for row in kept], pa.int64()),
                "key": pa.array([bytes.fromhex(row[3]) for row in kept], pa.binary()),
                "batch": pa.array(range(len(kept)), pa.int64()),
            }
            report = check_order(pa.table(columns), {0: ranges})
            shown.judged(report)
            assert report.ok, str(report)

    def anomalies(
        self,
        produced: Mapping[int, list[tuple[int, int]]] | None = None,
        *,
        is_strict: bool = False,
        has_order: bool = True,
        lease_ms: int | None = None,
        more: Mapping[str, Events] | None = None,
    ) -> list[str]:
        """What is wrong with all that was delivered.

        Args:
            produced: The offset ranges of each partition that had to be delivered.
            is_strict: Excuse no record that was in hand.
            has_order: Whether members have key order.
            lease_ms: For how long a record is a member's, without an order.
            more: The events of others, who know what is committed.
        """
        sent = None
        if produced is not None:
            sent = [
                Sent(TopicPartition(self.topic, partition), offset, None)
                for partition, ranges in produced.items()
                for start, end in ranges
                for offset in range(start, end)
            ]
        events = {
            each.file.name: each.events(self.topic, is_strict=is_strict) for each in self.members
        }
        resets = self.log_losses
        events |= more or {}
        history = History(
            processes=events,
            sent=sent,
            resets=resets,
            has_order=has_order,
            lease_ns=None if lease_ms is None else lease_ms * 1_000_000,
        )
        return [str(each) for each in check_history(history)]

    def history(self) -> str:
        """What has happened, in numbers."""
        lines = [line for member in self.members for line in member.lines()]
        words = [line[0] for line in lines]
        signals = [number for member in self.members for number in member.signals]
        kills, stops = signals.count(signal.SIGKILL), signals.count(signal.SIGSTOP)
        faults = "".join(f", {fault}" for fault in self.faults)
        epochs = {line[4] for line in lines if line[0] in _CHANGES and len(line) > 4}
        changes = ", ".join(f"{words.count(name)} {name}" for name in _CHANGES)
        records = words.count("record")
        return (
            f"{records} records delivered, {len(self.delivered())} of them different; "
            f"{len(self.members)} processes; {kills + stops + len(self.faults)} faults ({kills} "
            f"killed, {stops} stopped{faults}); {len(epochs)} rebalances (callbacks: {changes})"
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


def _event(topic: str, line: list[str]) -> Delivery | OwnerChange | Committed | None:
    """A line of a process; None for one that is about no record and no key hashes."""
    if line[0] == "record":
        key = bytes.fromhex(line[4]) if len(line) > 4 else b""
        return Delivery(int(line[1]), TopicPartition(topic, int(line[2])), int(line[3]), key)
    if line[0] == "committed":
        return Committed(int(line[1]), TopicPartition(topic, int(line[2])), int(line[3]))
    if line[0] not in _CHANGES:
        return None
    hashes: dict[TopicPartition, tuple[HashRange, ...]] = {}
    for text in line[3].split(",") if len(line) > 3 else ():
        partition, *rest = text.split(":")
        at = TopicPartition(topic, int(partition))
        parts = (HashRange(*map(int, part.split("-"))) for part in rest)
        hashes[at] = (*hashes.get(at, ()), *parts)
    return OwnerChange(int(line[1]), line[0] == "assigned", hashes, line[0] == "lost")


def key_at(offset: int) -> bytes:
    """The key of each record that :func:`fill` writes."""
    return b"key-%d" % (offset * offset % 331)


def fill(group: Group, first: int, last: int) -> None:
    rows = [(key_at(i), f"{i}") for i in range(first, last)]
    group.broker.produce(group.topic, rows)


def wait_for_refusal(servers: str, group: str, topic: str) -> None:
    """Let a plain consumer subscribe, and wait until the group has refused it."""
    plain = Consumer({"bootstrap.servers": servers, "group.id": group})
    plain.subscribe([topic])

    def is_refused() -> bool:
        message = plain.poll(0.1)
        error = None if message is None else message.error()
        return error is not None and error.name() == "INCONSISTENT_GROUP_PROTOCOL"

    eventually(is_refused)
    plain.close()


def eventually(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until something holds, and return it; most of the time is left to what it waits for."""
    began = time.monotonic()
    deadline = began + seconds
    while not (found := holds()):
        looked = time.monotonic()
        assert looked < deadline, "it did not come to pass"
        time.sleep(min(0.5, max(0.02, 4 * (looked - began))))
        began = time.monotonic()
    return found


def keep_filled(
    holds: Callable[[], Any],
    left: Callable[[], int],
    write: Callable[[int], None],
    least: int = 500,
) -> None:
    """Wait until something holds, while records keep coming: who is late finds some, too.

    Args:
        holds: What is waited for.
        left: Number of records that nobody was given yet.
        write: Writes so many more.
        least: So many more are written whenever fewer are left.
    """

    def look() -> bool:
        if holds():
            return True
        if left() < least:
            write(least)
        return False

    eventually(look)


def fill_until(
    holds: Callable[[], Any],
    group: Group,
    produced: int,
    *,
    least: int = 500,
    write: Callable[[Group, int, int], None] = fill,
) -> int:
    """Wait until something holds, while a group's records keep coming, as :func:`keep_filled`.

    Args:
        holds: What is waited for.
        group: Who gets the records.
        produced: How many there are already.
        least: As for :func:`keep_filled`.
        write: Writes them, as :func:`fill`.

    Returns:
        How many there are then.
    """

    def write_more(count: int) -> None:
        nonlocal produced
        write(group, produced, produced + count)
        produced += count

    keep_filled(holds, lambda: produced - len(group.delivered()), write_more, least)
    return produced


def end_all(group: Group) -> None:
    for member in group.members:
        member.end()
