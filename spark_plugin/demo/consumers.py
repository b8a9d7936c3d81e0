"""``kshare demo --consumer`` and ``--group``: processes share one partition, and key order holds.

::

    --consumer   start 1 2, half of the key hashes each --> kill 1 --> start 3 for its hashes
    --group      start 1 2 3 4 --> kill 2 --> start 5 --> kill 1, start 6, while records come
                 all is read --> verdict

With ``--group``, who has which key hashes is read from the group's log, as ``kshare owners`` does.
No Spark, no Java: without a real cluster the broker is embedded. Nothing is left behind there.
"""

import os
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group.protocol.owners.range_owners import RangeOwner, owner_of
from kshare.group.tools.owners import GroupOwners
from kshare.start_folder import python_module
from kshare.testing import OrderReport, produce, skewed_records
from spark_plugin.demo.topic import Say, temporary_topic
from spark_plugin.demo.verdict import order_of, say_verdict

__all__ = ["judge_deliveries", "ownership_bar", "run_consumers", "run_group"]

_KEYS: Final = 200
_RECORDS: Final = 8_000
_RECORDS_OF_GROUP: Final = 10_000
_PROCESSES: Final = 4
_STOP_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.1
_FEED_SECONDS: Final = 0.25
_FEEDS: Final = 150
"""Number of parts of the records; all at once when the last process has its hashes."""
_SHOW_SECONDS: Final = 0.3
_SOME_RECORDS: Final = 100
"""Minimum number of rows that a process has read before it is killed: something can be lost."""
_CELLS: Final = 48
_LESSONS: Final = (
    "In a plain consumer group, one process has a partition, and others wait.",
    "\nNext: `kshare broker` starts a broker with a topic; see docs/groups.md.",
)

Delivery: TypeAlias = tuple[int, int, str]
"""Time, offset and key of a record that a process was given."""


# -- scenarios -------------------------------------------------------------------------------------


def run_consumers(servers: str | None, records: int | None, seconds_max: float, say: Say) -> int:
    """Run ``--consumer``.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        records: Number of records to produce; None for 8,000, or 10,000 for a group.
        seconds_max: Maximum time until all of them are read.
        say: Prints a line.

    Returns:
        The exit code: 0 if every key was in order and nothing was lost.

    Raises:
        KshareError: The processes did not read everything in time, or one has failed.
    """
    wanted = _RECORDS if records is None else records
    with ExitStack() as stack:
        broker, topic = stack.enter_context(temporary_topic(servers))
        say(f"Producing {wanted:,} records of {_KEYS:,} keys into one partition ...")
        produce(broker, topic, skewed_records(wanted, _KEYS), partition=0)
        processes = _Processes(broker, topic, seconds_max, say, stack)
        first, second = split(WHOLE, 2)
        victim, _ = processes.start(first), processes.start(second)
        say("Two processes share the partition, half of the key hashes each.")
        processes.kill(victim, lambda: len(victim.rows()) >= wanted // 8)
        heir = processes.start(first)
        say(f"Started process {heir.number} for its key hashes;")
        say("it waits until the dead one's claim is over.")
        return processes.finish(wanted)


def run_group(servers: str | None, records: int | None, seconds_max: float, say: Say) -> int:
    """Run ``--group``; arguments, answer and errors are those of :func:`run_consumers`."""
    wanted = _RECORDS_OF_GROUP if records is None else records
    with ExitStack() as stack:
        broker, topic = stack.enter_context(temporary_topic(servers))
        processes = _Processes(broker, topic, seconds_max, say, stack)
        view = _View(broker, topic, processes, say, stack)
        feed = _Feed(broker, topic, wanted)
        say(f"Four processes join a group and share one partition; {wanted:,} records of {_KEYS}")
        say("keys are produced meanwhile. Each column is a part of the key hashes, and shows the")
        say("process that has it: . is nobody, x is a process that was killed.")
        feed.start()

        def kill(number: int) -> None:
            """Kill a process once it has read some records, or no more will come."""
            victim = processes.members[number - 1]
            before = len(victim.rows())
            processes.kill(
                victim,
                lambda: len(victim.rows()) - before >= _SOME_RECORDS or feed.is_done,
                view.show,
            )

        for _ in range(_PROCESSES):
            processes.start()
        view.wait_for_shares()
        kill(2)
        view.wait_for_shares()
        processes.start()
        say("Started process 5.")
        view.wait_for_shares()
        kill(1)
        processes.start()
        say("Started process 6.")
        view.wait_for_shares()
        feed.finish()
        return processes.finish(wanted, view.show)


# -- processes -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
    """A process, and the files that it writes to."""

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

    def stop(self) -> None:
        """End it: it is asked to, and killed if it does not."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class _Processes:
    """The processes that share the partition.

    Args:
        servers: Bootstrap servers.
        topic: Name of the topic.
        seconds_max: When to give up.
        say: Prints a line.
        stack: Ends the processes.

    Attributes:
        group: Id of their group.
        members: The processes, in the order of their numbers.
    """

    def __init__(
        self, servers: str, topic: str, seconds_max: float, say: Say, stack: ExitStack
    ) -> None:
        self.group = f"kshare-demo-{uuid.uuid4().hex[:8]}"
        self.members: list[_Member] = []
        self._command = [*python_module("spark_plugin.demo.member"), servers, topic]
        self._command += [self.group, str(os.getpid())]
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kshare-demo-")))
        self._deadline = time.monotonic() + seconds_max
        self._say = say
        self._stack = stack

    def start(self, hashes: HashRange | None = None) -> _Member:
        """Start a process: a reader of some key hashes, or a member of the group."""
        command = [*self._command, *([] if hashes is None else [str(hashes.lo), str(hashes.hi)])]
        number = len(self.members) + 1
        output = self._folder / f"process-{number}.out"
        with output.open("wb") as file, output.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(command, stdout=file, stderr=errors)  # noqa: S603
        member = _Member(number, process, output)
        self._stack.callback(member.stop)
        self.members.append(member)
        return member

    def kill(
        self,
        victim: _Member,
        has_some: Callable[[], bool],
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """Kill a process with SIGKILL, once it has something to lose."""
        self.wait(has_some, "read some records", meanwhile)
        victim.is_killed = True
        victim.process.kill()
        victim.process.wait()
        self._say(f"Killed process {victim.number} (kill -9) after {len(victim.rows()):,} records.")

    def finish(self, count: int, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Wait until all records have been read, and judge; return the exit code."""

        def are_read() -> bool:
            return len({offset for _, offset, _ in self.rows()}) >= count

        self.wait(are_read, "read all records", meanwhile)
        for member in self.members:
            member.stop()
            self._say(f"process {member.number}: {len(member.rows()):,} records")
        report, again = judge_deliveries(self.rows(), count)
        self._say(f"Delivered again, because they had not been committed: {again:,}")
        return say_verdict(report, self._say, *_LESSONS)

    def rows(self) -> list[Delivery]:
        """The records that all processes were given so far."""
        return [row for member in self.members for row in member.rows()]

    def wait(
        self,
        is_done: Callable[[], bool],
        what: str,
        meanwhile: Callable[[], object] = lambda: None,
        seconds: float = _LOOK_SECONDS,
    ) -> None:
        """Wait until something is done.

        Args:
            is_done: Whether it is.
            what: What the processes have to do, for the error: such as "read all records".
            meanwhile: Called before each look.
            seconds: Time between looks.

        Raises:
            KshareError: They did not do it in time, or one has failed.
        """
        while True:
            for member in self.members:
                member.check()
            meanwhile()
            if is_done():
                return
            if time.monotonic() > self._deadline:
                raise KshareError(f"the processes did not {what} in time; --seconds gives more")
            time.sleep(seconds)


class _Feed:
    """Produces records, little by little, in a thread of its own."""

    def __init__(self, servers: str, topic: str, records: int) -> None:
        self._servers = servers
        self._topic = topic
        self._records = list(skewed_records(records, _KEYS))
        self._hurries = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kshare demo produces", daemon=True)
        self._fault: Exception | None = None

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
        if self._fault is not None:
            raise KshareError(f"cannot produce: {self._fault}") from self._fault

    def _run(self) -> None:
        size = max(len(self._records) // _FEEDS, 1)
        try:
            while self._records:
                size = len(self._records) if self._hurries.is_set() else size
                part, self._records = self._records[:size], self._records[size:]
                produce(self._servers, self._topic, part, partition=0)
                self._hurries.wait(_FEED_SECONDS)
        except Exception as error:  # raised by `finish`
            self._fault = error


class _View:
    """The owners of key hashes, as text."""

    def __init__(
        self, servers: str, topic: str, processes: _Processes, say: Say, stack: ExitStack
    ) -> None:
        self._owners = GroupOwners(processes.group, {"bootstrap.servers": servers})
        self._partition = TopicPartition(topic, 0)
        self._processes = processes
        self._say = say
        self._begun = time.monotonic()
        self._shown = ""
        stack.callback(self._owners.close)

    def wait_for_shares(self) -> None:
        """Show who has which key hashes, until all living processes share all of them."""
        living = {each.number for each in self._processes.members if not each.is_killed}
        self._processes.wait(
            lambda: self.show() == living, "share the key hashes", seconds=_SHOW_SECONDS
        )

    def show(self) -> set[int]:
        """Print who has which key hashes, if that has changed; the processes that have some."""
        members = self._processes.members
        numbers = {str(member.process.pid): member.number for member in members}
        killed = {str(member.number) for member in members if member.is_killed}
        shown = [
            RangeOwner(each.partition, each.hashes, str(numbers[each.member.split("-")[-2]]))
            for each in self._owners.read().owners
            if each.partition == self._partition
        ]
        bar = ownership_bar(shown, killed)
        if bar != self._shown:
            self._shown = bar
            count = len(self._processes.rows())
            seconds = time.monotonic() - self._begun
            self._say(f"{seconds:5.1f} s  |{bar}|  {count:6,} records read")
        return set() if "." in bar or "x" in bar else {int(each.member) for each in shown}


# -- what is shown and judged ----------------------------------------------------------------------


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
    reports = [
        order_of([(at, bytes.fromhex(key)) for _, at, key in sorted(each.values())], 0, records)
        for each in (last, first)
    ]
    worst = next((report for report in reports if not report.ok), reports[0])
    return worst, len(ordered) - len(first)
