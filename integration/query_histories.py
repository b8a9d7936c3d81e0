"""Histories of a query that publishes what it has processed, among processes of its group.

A query with ``commitOffsets=individual`` has the lower key hashes, members of the standalone group
the upper ones. The query is killed, stopped, and suspended with its planner and its workers, for
longer than every time-out; meanwhile others take over what it has, all of it or a part, process
some, commit and leave. Then it has to be fenced. :mod:`integration.histories` runs them.
"""

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from integration.conditions import (
    CLIENT,
    TIMEOUTS,
    Look,
    Verdict,
    set_back,
    while_it_goes_on,
)
from integration.lines import whole_lines
from integration.members import Group, Member, key_at
from integration.rounds import Round, group_round
from integration.runs import Driver, DriverKilledError
from integration.spark import NO_PLANNER, archive_option
from kshare.core.hashing import WHOLE, HashRange, split

__all__ = ["Batch", "batches_of", "begun_batches", "faults_of_batches", "query_round"]

_RECORDS: Final = 60
_BYTES: Final = 300
_SUSPENDED_SECONDS: Final = 12.0
_WAIT_SECONDS: Final = 240.0
LOWER, UPPER = split(WHOLE, 2)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that a query has processed, or has begun to.

    Attributes:
        number: Its id.
        planned: When the planner last began to look for it; None: it only runs again.
        began: When it began (ns).
        records: Offset and key of each record, in order.
    """

    number: int
    planned: int | None
    began: int
    records: tuple[tuple[int, bytes], ...]


def batches_of(lines: Sequence[Sequence[str]]) -> list[Batch]:
    """The batches of a query, from what :mod:`integration.streaming_job` has written."""
    found: list[Batch] = []
    planned: int | None = None
    began: tuple[int, int] = 0, 0
    rows: list[tuple[int, bytes]] = []
    for line in lines:
        match line[0]:
            case "planning":
                planned = int(line[1])
            case "batch":
                began, rows = (int(line[1]), int(line[2])), []
            case "record":
                rows.append((int(line[3]), bytes.fromhex(line[4]) if len(line) > 4 else b""))
            case "done":
                found.append(Batch(began[1], planned, began[0], tuple(rows)))
                planned = None
    return found


def begun_batches(file: Path) -> int:
    """How many batches have begun, of a history that may not be there yet."""
    if not file.exists():
        return 0
    return sum(line.startswith("batch ") for line in whole_lines(file))


def faults_of_batches(batches: Sequence[Batch], looks: Sequence[Look]) -> list[str]:
    """What is wrong with the batches of one query, from its first start to its last.

    Args:
        batches: In the order of time.
        looks: What its group had committed; a batch has nothing that was when it was planned.
    """
    faults = []
    by_number: dict[int, Batch] = {}
    last: dict[bytes, int] = {}
    for batch in batches:
        before = by_number.setdefault(batch.number, batch)
        if sorted(before.records) != sorted(batch.records):
            faults.append(f"batch {batch.number} has run again with other records")
        if before is not batch:
            continue
        for offset, key in batch.records:
            if offset <= last.get(key, -1):
                faults.append(f"batch {batch.number}: offset {offset} after {last[key]} of {key!r}")
            last[key] = max(offset, last.get(key, -1))
        known = [look for look in looks if batch.planned and look.time < batch.planned]
        if known:
            now = known[-1]
            again = [at for at, _ in batch.records if at < now.stable or at in now.above]
            faults += [
                f"batch {batch.number}: offset {at} was known to be committed "
                f"{((batch.planned or 0) - now.time) / 1e9:.1f} s before it was planned"
                for at in again
            ]
    for first, second in pairwise(by_number):
        if second < first:
            faults.append(f"batch {second} came after batch {first}")
    return faults


@dataclass
class Query:
    """A query that is started again whenever it ends; anew if others had its place.

    Attributes:
        number: Of the checkpoint.
        ends: How each run has ended.
        begun: The history of the run, and how many batches it had when the run began.
    """

    group: Group
    folder: Path
    number: int = 0
    ends: list[str] = field(default_factory=list)
    is_over: bool = False
    begun: tuple[Path, int] | None = None

    def __post_init__(self) -> None:
        self._driver = Driver(self.folder)
        self._stop = self.folder / "stop"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start it, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End its run as operators do; it is started again."""
        self._stop.touch()

    def close(self) -> None:
        """End it, and Spark."""
        self.is_over = True
        self.signal(signal.SIGCONT)
        self.stop()
        self._thread.join(_WAIT_SECONDS)
        if self._thread.is_alive():  # else its answer would be waited for
            self.signal(signal.SIGKILL)
            self._thread.join(_WAIT_SECONDS)
        self._driver.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes: driver, JVM, planner and workers."""
        driver = self._driver.process
        if driver is None:
            return
        with suppress(psutil.Error):
            top = psutil.Process(driver.pid)
            for process in [*top.children(recursive=True), top]:
                with suppress(psutil.Error):
                    process.send_signal(number)

    def file(self, number: int) -> Path:
        """The history of a checkpoint."""
        return self.folder / f"query-{number:03}"

    def is_starting(self) -> bool:
        """Whether no batch has begun since the query was started last: Spark starts, or plans."""
        if self.begun is None:
            return True
        file, before = self.begun
        return begun_batches(file) == before

    def batches(self) -> list[list[Batch]]:
        """What was processed, by checkpoint."""
        files = [file for n in range(self.number + 1) if (file := self.file(n)).exists()]
        return [batches_of([line.split() for line in whole_lines(each)]) for each in files]

    def _run(self) -> None:
        while not self.is_over:
            number = self.number
            self._stop.unlink(missing_ok=True)
            self.begun = self.file(number), begun_batches(self.file(number))
            try:
                error = self._driver.run(self._job(number))
            except DriverKilledError:
                error = "killed"
            self.ends.append(_kind_of(error))
            if self.ends[-1] == "fenced":
                self.number = max(self.number, number + 1)

    def _job(self, number: int) -> dict[str, Any]:
        topic, servers = self.group.topic, self.group.broker.bootstrap_servers
        options = {
            "assign": json.dumps({topic: {"0": [[part.lo, part.hi] for part in split(LOWER, 2)]}}),
            "kafka.group.id": topic,
            "kafka.client.id": CLIENT,
            "startingOffsets": "group",
            "commitOffsets": "individual",
            "maxRecordsPerTask": "100",  # its ranges stand at different offsets
        }
        return {
            "servers": servers,
            "topic": topic,
            "checkpoint": str(self.folder / f"checkpoint-{number:03}"),
            "out": str(self.folder / "out"),
            "options": options,
            "stop_file": str(self._stop),
            "trigger": "1 second",
            "history": str(self.file(number)),
            "log": str(self.folder / "planner.log"),
        }


def _kind_of(error: str | None) -> str:
    if error is None:
        return "stopped"
    known = {"FencedError": "fenced", NO_PLANNER: "no planner", "killed": "killed"}
    return next((kind for text, kind in known.items() if text in error), error)


@dataclass
class QueryAmongMembers(Round):
    """A query and members of one group."""

    member_chance = 0.2
    broker_chance = 0.04

    query: Query
    owners: dict[HashRange, Member] = field(default_factory=dict)
    produced: int = 0
    seen: int = 0

    def has_gone_on(self) -> bool:
        """Whether the query has processed a batch since something was done to it."""
        return sum(map(len, self.query.batches())) > self.seen

    def keep(self) -> None:
        for hashes in split(UPPER, 2):
            owner = self.owners.get(hashes)
            if owner is None or owner.process.poll() is not None:
                self.owners[hashes] = self._start(hashes)

    def write(self) -> None:
        numbers = range(self.produced, self.produced + _RECORDS)
        self.group.broker.produce(
            self.group.topic, [(key_at(i), f"{i}".ljust(_BYTES)) for i in numbers]
        )
        self.produced += _RECORDS

    def disturb(self) -> None:
        """Do something to the query, now and then, once it has gone on since the last time."""
        if self.chance.random() >= 0.12 or not self.has_gone_on():
            return
        what = self.chance.choice(["kill", "stop", "suspend", "take over", "take over"])
        self.group.faults.append(f"the query: {what}")
        if what == "kill":
            self.query.signal(signal.SIGKILL)
        elif what == "stop":
            self.query.stop()
        elif what == "suspend":
            self.query.signal(signal.SIGSTOP)
            self._go_on_for(_SUSPENDED_SECONDS)
            self.query.signal(signal.SIGCONT)
        else:
            self._take_over()
        self.seen = sum(map(len, self.query.batches()))

    def _take_over(self) -> None:
        """Suspend the query; another process processes some of what it has, and leaves."""
        self.query.signal(signal.SIGSTOP)
        middle = LOWER.lo + int(LOWER.width * self.chance.uniform(0.3, 0.9))
        whole = self.chance.random() < 0.3
        other = self._start(LOWER if whole else HashRange(LOWER.lo, middle))
        self._go_on_for(_SUSPENDED_SECONDS)
        if other.process.poll() is None:
            other.signal(signal.SIGTERM)
            other.process.wait(60)
        self._go_on_for(_SUSPENDED_SECONDS)  # its claim is compacted away
        # What others have processed is not in its checkpoint: who starts it again makes a new one.
        self.query.number += 1
        self.query.signal(signal.SIGCONT)

    def _go_on_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.write()
            self.keep()
            time.sleep(1.0)

    def _start(self, hashes: HashRange) -> Member:
        config = {"ways": self.chance.randrange(1_000_000), "pause": 0.002, "client.id": CLIENT}
        return self.group.start_range(hashes, **config, **TIMEOUTS)

    def delivered(self) -> set[int]:
        """What anybody has processed."""
        batches = (batch for each in self.query.batches() for batch in each)
        by_query = {offset for batch in batches for offset, _ in batch.records}
        return by_query | {offset for _, offset in self.group.delivered()}


def query_round(
    where: Any, cluster: Any, seconds: float, chance: random.Random, folder: Path
) -> Verdict:
    """Let a query and members process the records of a new topic.

    Args:
        where: Makes topics.
        cluster: Whose brokers are killed and frozen, too; None for none.
        seconds: For how long.
        chance: What happens.
        folder: Where they write what they process.
    """
    archive_option()  # it is made where it is missing, which takes minutes on a busy machine
    with (
        group_round(where, cluster, folder, key_at) as (group, observer),
        closing(Query(group, folder)) as query,
    ):
        run = QueryAmongMembers(group, chance, query)
        run.write()
        run.keep()
        query.start()
        if while_it_goes_on(lambda: int(not query.batches()), query.is_starting):
            raise AssertionError(f"the query has processed no batch: {query.ends}")
        run.chaos(seconds, cluster)
        group.wake()

        def missing() -> int:
            run.keep()
            return len(set(range(run.produced)) - run.delivered())

        while_it_goes_on(missing, query.is_starting)
        query.close()
        for member in group.members:
            member.is_over = member.process.poll() == 1 and "FencedError" in member.errors()
            member.end()
        left = sorted(set(range(run.produced)) - run.delivered())
        found = [f"lost: offset {offset} was not processed" for offset in left]
        found += [end for end in query.ends if len(end) > len("no planner")]
        for number, batches in enumerate(query.batches()):
            faults = faults_of_batches(batches, observer.looks)
            found += [f"query {number}: {fault}" for fault in faults]
        found += group.anomalies(is_strict=True, more={"observer": observer.events()})
        found += set_back(observer.looks)
        ends = Counter(end[:20] for end in query.ends)
        text = f"{run.produced} records; {query.number + 1} checkpoints; runs {dict(ends)}; "
    return Verdict(f"{text}{group.history()}; {len(observer.looks)} looks", found)
