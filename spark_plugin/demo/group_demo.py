"""``kshare demo --group``: processes of a group come, go and are killed; the order of keys holds.

::

    start 1 2 3 4 --> kill 2 --> start 5 --> kill 1, start 6 --> all is read --> verdict

Records are produced all the time. Who has which key hashes is read from the group's log, as
``kshare owners`` does. No Spark, no Java: without a real cluster the broker is embedded.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group.owners import GroupOwners
from kshare.group.protocol.range_owners import RangeOwner, owner_of
from kshare.testing import OrderReport, check_order, produce, skewed_records
from spark_plugin.demo.processes import stop_process, temporary_topic, wait_until

__all__ = ["judge_deliveries", "ownership_bar", "run_group"]

_RECORDS: Final = 10_000
_KEYS: Final = 200
_PROCESSES: Final = 4
_FEED_SECONDS: Final = 0.25
_FEEDS: Final = 150
"""Number of parts of the records; all at once when the last process has its hashes."""
_SHOW_SECONDS: Final = 0.3
_SOME_RECORDS: Final = 100
"""Minimum number of rows that a process has read before it is killed: something can be lost."""
_CELLS: Final = 48

Delivery = tuple[int, int, str]
"""Time, offset and key of a record that a process was given."""


@dataclass(slots=True)
class _Member:
    """A process of the group, and the files that it writes to."""

    number: int
    process: subprocess.Popen[bytes]
    output: Path
    is_killed: bool = False
    _read: int = 0
    _rows: list[Delivery] = field(default_factory=list)

    def rows(self) -> list[Delivery]:
        """The rows that it received so far; a line that is cut off was not processed."""
        with self.output.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            when, offset, key = line.split(" ")
            self._rows.append((int(when), int(offset), key))
        return self._rows

    def check(self) -> None:
        """Raise what has ended it, if nobody has killed it."""
        if not self.is_killed and self.process.poll() is not None:
            errors = self.output.with_suffix(".err").read_text().strip().splitlines()
            why = errors[-1] if errors else f"exit code {self.process.returncode}"
            raise KshareError(f"process {self.number} has ended: {why}")


class _Feed:
    """Produces records, little by little, in a thread of its own."""

    def __init__(self, servers: str, topic: str, records: int) -> None:
        self._servers = servers
        self._topic = topic
        self._records = list(skewed_records(records, _KEYS))
        self._hurries = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kshare demo produces", daemon=True)
        self.fault: Exception | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """True if all records were produced."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Produce what is left at once."""
        self._hurries.set()
        self._thread.join()
        if self.fault is not None:
            raise KshareError(f"cannot produce: {self.fault}") from self.fault

    def _run(self) -> None:
        size = max(len(self._records) // _FEEDS, 1)
        try:
            while self._records:
                size = len(self._records) if self._hurries.is_set() else size
                part, self._records = self._records[:size], self._records[size:]
                produce(self._servers, self._topic, part, partition=0)
                self._hurries.wait(_FEED_SECONDS)
        except Exception as error:  # raised by `finish`
            self.fault = error


class _Demo:
    """The group while it runs.

    Args:
        servers: Bootstrap servers.
        topic: Name of the topic.
        folder: Where the processes write.
        say: Prints a line.
        deadline: When to give up, as of the monotonic clock.
        stack: Ends the processes.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        folder: Path,
        say: Callable[[str], object],
        deadline: float,
        stack: ExitStack,
    ) -> None:
        self.members: list[_Member] = []
        self._command = [sys.executable, "-m", "spark_plugin.demo.group_member", servers, topic]
        group = f"kshare-demo-{uuid.uuid4().hex[:8]}"
        self._command += [group, str(os.getpid())]
        self._folder = folder
        self._say = say
        self._deadline = deadline
        self._stack = stack
        self._owners = GroupOwners(group, {"bootstrap.servers": servers})
        self._partition = TopicPartition(topic, 0)
        self._begun = time.monotonic()
        self._shown = ""
        stack.callback(self._owners.close)

    def start(self) -> None:
        """Start a process."""
        number = len(self.members) + 1
        output = self._folder / f"process-{number}.out"
        with output.open("wb") as file, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(self._command, stdout=file, stderr=errors)  # noqa: S603
        self._stack.callback(stop_process, process)
        self.members.append(_Member(number, process, output))

    def kill(self, number: int, feed: _Feed) -> None:
        """Kill a process with SIGKILL, once it has read some records or no more will come."""
        member = self.members[number - 1]
        before = len(member.rows())

        def has_some() -> bool:
            self._show()
            return len(member.rows()) - before >= _SOME_RECORDS or feed.is_done

        wait_until(has_some, self._deadline, "read some records")
        member.is_killed = True
        member.process.kill()
        member.process.wait()
        self._say(f"Killed process {number} (kill -9) after {len(member.rows()):,} records.")

    def wait_for_shares(self) -> None:
        """Show who has which key hashes, until all living processes share all of them."""
        living = {member.number for member in self.members if not member.is_killed}

        def is_shared() -> bool:
            time.sleep(_SHOW_SECONDS)
            return self._show() == living

        wait_until(is_shared, self._deadline, "share the key hashes")

    def wait_for_records(self, count: int) -> None:
        """Wait until all records have been read."""

        def are_read() -> bool:
            self._show()
            rows = (row for member in self.members for row in member.rows())
            return len({offset for _, offset, _ in rows}) >= count

        wait_until(are_read, self._deadline, "read all records")

    def _show(self) -> set[int]:
        """Print who has which key hashes, if that has changed; the processes that have some."""
        numbers = {str(member.process.pid): member.number for member in self.members}
        killed = {member.number for member in self.members if member.is_killed}
        for member in self.members:
            member.check()
        shown = [
            RangeOwner(each.partition, each.hashes, str(numbers[each.member.split("-")[-2]]))
            for each in self._owners.read().owners
            if each.partition == self._partition
        ]
        bar = ownership_bar(shown, {str(number) for number in killed})
        if bar != self._shown:
            self._shown = bar
            count = sum(len(member.rows()) for member in self.members)
            seconds = time.monotonic() - self._begun
            self._say(f"{seconds:5.1f} s  |{bar}|  {count:6,} records read")
        return set() if "." in bar or "x" in bar else {int(each.member) for each in shown}


def run_group(
    servers: str | None, records: int | None, seconds_max: float, say: Callable[[str], object]
) -> int:
    """Run the demo.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        records: Number of records to produce; None for 10,000.
        seconds_max: Maximum time until all of them are read.
        say: Prints a line.

    Returns:
        The exit code: 0 if every key was in order and nothing was lost.

    Raises:
        KshareError: The processes did not read everything in time, or one has failed.
    """
    wanted = _RECORDS if records is None else records
    deadline = time.monotonic() + seconds_max
    with ExitStack() as stack:
        broker, topic = stack.enter_context(temporary_topic(servers))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kshare-demo-")))
        demo = _Demo(broker, topic, folder, say, deadline, stack)
        feed = _Feed(broker, topic, wanted)
        say(f"Four processes join a group and share one partition; {wanted:,} records of {_KEYS}")
        say("keys are produced meanwhile. Each column is a part of the key hashes, and shows the")
        say("process that has it: . is nobody, x is a process that was killed.")
        feed.start()
        for _ in range(_PROCESSES):
            demo.start()
        demo.wait_for_shares()
        demo.kill(2, feed)
        demo.wait_for_shares()
        demo.start()
        say("Started process 5.")
        demo.wait_for_shares()
        demo.kill(1, feed)
        demo.start()
        say("Started process 6.")
        demo.wait_for_shares()
        feed.finish()
        demo.wait_for_records(wanted)
        for member in demo.members:
            stop_process(member.process)
            say(f"process {member.number}: {len(member.rows()):,} records")
        rows = [row for member in demo.members for row in member.rows()]
        report, again = judge_deliveries(rows, wanted)
    say(f"Delivered again, because they had not been committed: {again:,}")
    say(str(report))
    return 0 if report.ok else 1


def ownership_bar(
    owners: Collection[RangeOwner], killed: Collection[str], cells: int = _CELLS
) -> str:
    """The owners of a partition's key hashes, as text.

    Args:
        owners: The owners; the members are names of one letter.
        killed: Those that were killed.
        cells: Number of letters.

    Returns:
        For each part of the key hashes, the member that has the one in its middle: ``x`` if it was
        killed, ``.`` for nobody.
    """
    partitions = {owner.partition for owner in owners}
    shown = []
    for part in split(WHOLE, cells):
        middle = (part.lo + part.hi) // 2
        found = (owner_of(owners, partition, middle) for partition in partitions)
        name = next((owner.member for owner in found if owner is not None), ".")
        shown.append("x" if name in killed else name)
    return "".join(shown)


def judge_deliveries(rows: Iterable[Delivery], records: int) -> tuple[OrderReport, int]:
    """Check that nothing was lost, and that each key was in order, whoever delivered it.

    A killed process has not committed its last records: others get them again. The order has to
    hold both where such records count as delivered the first time, and the last time.

    Args:
        rows: What all processes were given.
        records: Number of records that the partition holds, from offset 0 on.

    Returns:
        The report, and how many records came again.
    """
    ordered = sorted(rows)
    first: dict[int, Delivery] = {}
    last: dict[int, Delivery] = {}
    for row in ordered:
        first.setdefault(row[1], row)
        last[row[1]] = row
    reports = [_report(sorted(each.values()), records) for each in (last, first)]
    worst = next((report for report in reports if not report.ok), reports[0])
    return worst, len(ordered) - len(first)


def _report(rows: Sequence[Delivery], records: int) -> OrderReport:
    offsets = pa.array([offset for _, offset, _ in rows], pa.int64())
    keys = pa.array([bytes.fromhex(key) for _, _, key in rows], pa.binary())
    return check_order(pa.table({"offset": offsets, "key": keys}), {0: (0, records)})
