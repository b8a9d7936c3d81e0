"""What lives as long as a soak: a query and a group that nothing is done to, and what they use."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from integration.kafka import KafkaBroker
from integration.members import Group, end_all, eventually
from integration.runs import ROOT, StreamingRun
from integration.streaming_job import planners

__all__ = ["Measure", "Residents", "residents"]

_MEMBERS = 2
_END_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Measure:
    """What processes of one role use.

    Attributes:
        processes: How many there are.
        kbytes: Their resident memory, in KiB.
        descriptors: Their open file descriptors.
    """

    processes: int
    kbytes: int
    descriptors: int

    def __str__(self) -> str:
        return f"{self.kbytes / 1024:.0f} MiB, {self.descriptors} fds ({self.processes} processes)"


@dataclass
class Residents:
    """A query and a group on one broker.

    Attributes:
        query: The query's process.
        run: Its checkpoint and its sink.
        group: The group, of members that share the topic's partition.
        produced: Number of records in the topic.
    """

    broker: KafkaBroker
    query: subprocess.Popen[bytes]
    run: StreamingRun
    group: Group
    produced: int = 0

    def feed(self, count: int) -> None:
        """Write some records."""
        rows = [(f"key-{i * i % 331}", f"{i}") for i in range(self.produced, self.produced + count)]
        self.broker.produce(self.group.topic, rows)
        self.produced += count

    def measure(self) -> Mapping[str, Measure]:
        """What planner, workers and consumers use now, by role."""
        driver = psutil.Process(self.query.pid)
        workers = [p for p in driver.children(recursive=True) if _is_worker(p)]
        members = [psutil.Process(member.process.pid) for member in self.group.members]
        return {
            "planner": _measure(planners(driver)),
            "workers": _measure(workers),
            "consumers": _measure(members),
        }

    def has_begun(self) -> bool:
        """Whether the query and each member have received something."""
        return self.run.out.exists() and all(each.records() for each in self.group.members)

    def end(self) -> list[str]:
        """Let all be read, end all, and name what is wrong."""
        (self.run.folder / "stop").touch()
        code = self.query.wait(_END_SECONDS)
        faults = [] if code == 0 else [f"the query has ended with {code}"]
        eventually(lambda: len(self.group.delivered()) == self.produced, _END_SECONDS)
        end_all(self.group)
        report = self.run.judge({0: (0, self.produced)})
        print(f"  query: {report}\n  group: {self.group.history()}", flush=True)
        faults += [] if report.ok else [str(report)]
        return faults + self.group.anomalies({0: [(0, self.produced)]})


@contextmanager
def residents(folder: Path) -> Iterator[Residents]:
    """Start them on a broker of their own; they have begun."""
    with KafkaBroker() as broker:
        topic = broker.create_topic()
        run = StreamingRun(broker.bootstrap_servers, topic, folder)
        command = [sys.executable, "-m", "integration.resident_query"]
        command += [broker.bootstrap_servers, topic, str(folder)]
        with (folder / "spark.log").open("ab") as log:
            query = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        group = Group(broker, topic, folder, name="resident")
        here = Residents(broker, query, run, group)
        try:
            here.feed(500)
            for _ in range(_MEMBERS):
                group.start()
            eventually(here.has_begun, _END_SECONDS)
            yield here
        finally:
            if query.poll() is None:
                for process in [*psutil.Process(query.pid).children(recursive=True)]:
                    process.kill()
                query.kill()
                query.wait()
            for member in group.members:
                member.process.kill()


def _is_worker(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:  # it has ended in this moment
        return False
    return ".daemon pyspark.worker" in command


def _measure(processes: list[psutil.Process]) -> Measure:
    kbytes = descriptors = count = 0
    for process in processes:
        try:
            with process.oneshot():
                used, fds = process.memory_info().rss, process.num_fds()
        except psutil.Error:  # a worker may end at any time
            continue
        kbytes, descriptors, count = kbytes + used // 1024, descriptors + fds, count + 1
    return Measure(count, kbytes, descriptors)
