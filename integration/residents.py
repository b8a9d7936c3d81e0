"""What nothing is done to: a stream, a consumer and a processor, for hours, and what they use.

``python -m integration.residents [--minutes 85] [--rate 200] [--folder DIR]``

They read one topic; the stream by key ranges, a batch a second, with ``exactlyOnce``. Of 500
records one is bad, and becomes a dead letter. Anonymous memory, descriptors and threads of their
processes are measured every few seconds: the median of the last quarter is to be that of the second
one (:data:`GROWTH` says how nearly). In the end all that came out is counted. The exit code is 1 if
a record or a letter is lost or there twice, or if anything has grown.

A soak (:mod:`integration.soak`) has them beside its rounds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

import psutil

from integration.handler_histories import read_letters
from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually
from integration.runs import ROOT
from integration.streaming_job import planners
from integration.transactions import faults_of_outputs, outputs

__all__ = ["GROWTH", "Measure", "Residents", "grown", "residents"]

_BAD_EVERY: Final = 500
_KEYS: Final = 331
_END_SECONDS: Final = 300.0
_WARM_MINUTES: Final = 10.0
_MIB: Final = 1 << 20
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Measure:
    """What processes of one role use: the most that one of them does, as Spark's come and go.

    Attributes:
        anonymous: Anonymous memory, in bytes.
        descriptors: Open file descriptors.
        threads: Threads.
        processes: How many processes there are.
    """

    anonymous: int = 0
    descriptors: int = 0
    threads: int = 0
    processes: int = 0

    def __str__(self) -> str:
        memory = f"{self.anonymous / _MIB:.1f} MiB"
        count = f" ({self.processes} processes)" if self.processes != 1 else ""
        return f"{memory}, {self.descriptors} descriptors, {self.threads} threads{count}"


_Sample: TypeAlias = Mapping[str, Measure]

GROWTH: Final[Mapping[str, Measure]] = {
    "consumer": Measure(4 * _MIB, 4, 2),
    "processor": Measure(4 * _MIB, 16, 16),  # each client that librdkafka opens has some of both
    "planner": Measure(4 * _MIB, 4, 2),
    "workers": Measure(8 * _MIB, 4, 4, 6),
    "driver": Measure(8 * _MIB, 4, 2),
    "jvm": Measure(1024 * _MIB, 64, 128),  # it takes memory until its heap is full
}
"""By how much each may grow from the second quarter to the last, by role."""


def grown(samples: Sequence[_Sample]) -> list[str]:
    """What has grown by more than :data:`GROWTH`, from the second quarter of samples to the last.

    Args:
        samples: Measures by role, in the order of time; four or more.
    """
    before, after = (_medians(part) for part in _quarters(samples))
    return [
        f"{role}: {name} was {getattr(before[role], name):,}, and is {getattr(after[role], name):,}"
        for role, bound in GROWTH.items()
        for name, most in asdict(bound).items()
        if getattr(after[role], name) > getattr(before[role], name) + most
    ]


def _quarters(samples: Sequence[_Sample]) -> tuple[Sequence[_Sample], Sequence[_Sample]]:
    """The second and the last one."""
    quarter = len(samples) // 4
    return samples[quarter : 2 * quarter], samples[-quarter:]


def _medians(samples: Sequence[_Sample]) -> _Sample:
    """The median of each number."""
    return {
        role: Measure(
            *(
                int(median(getattr(each[role], part.name) for each in samples))
                for part in fields(Measure)
            )
        )
        for role in GROWTH
    }


@dataclass
class Residents:
    """A query, a consumer and a processor on one broker.

    Attributes:
        broker: Where they are.
        folder: Where they write.
        group: The consumer's group, of one member.
        handlers: The processor's group.
        query: The query's process.
        produced: Number of records in the topic.
    """

    broker: KafkaBroker
    folder: Path
    group: Group
    handlers: Group
    query: subprocess.Popen[bytes]
    output: str
    letters: str
    produced: int = 0

    def feed(self, count: int) -> None:
        """Write some records."""
        numbers = range(self.produced, self.produced + count)
        rows = [(f"key-{i * i % _KEYS}", "ok" if _is_well(i) else "bad") for i in numbers]
        self.broker.produce(self.group.topic, rows)
        self.produced += count

    def measure(self) -> _Sample:
        """What the processes use now, by role."""
        driver = psutil.Process(self.query.pid)
        below = driver.children(recursive=True)
        plans = {process.pid for process in planners(driver)}
        workers = [each for each in below if each.pid not in plans and _is_python(each)]
        return {
            "consumer": _measure([psutil.Process(self.member.process.pid)]),
            "processor": _measure([psutil.Process(self.processor.process.pid)]),
            "planner": _measure([each for each in below if each.pid in plans]),
            "workers": _measure(workers),
            "driver": _measure([driver]),
            "jvm": _measure([each for each in below if not _is_python(each)]),
        }

    @property
    def member(self) -> Member:
        """The consumer."""
        return self.group.members[0]

    @property
    def processor(self) -> Member:
        """The processor."""
        return self.handlers.members[0]

    def has_begun(self) -> bool:
        """Whether all three have received something."""
        with suppress(psutil.Error):
            is_planned = bool(planners(psutil.Process(self.query.pid)))
            has_written = self.broker.latest(self.output) > 0
            return is_planned and has_written and bool(_rows(self.processor, "handled"))
        return False

    def end(self) -> list[str]:
        """Let all be read, end all, and name what is wrong."""
        (self.folder / "stop").touch()
        code = self.query.wait(_END_SECONDS)
        faults = [] if code == 0 else [f"the query has ended with {code}"]
        eventually(lambda: self.group.committed() == self.produced, _END_SECONDS)
        eventually(lambda: self.handlers.committed() == self.produced, _END_SECONDS)
        end_all(self.group)
        end_all(self.handlers)
        everything, letters = range(self.produced), read_letters(self.broker, self.letters)
        well = {offset for offset in everything if _is_well(offset)}
        found: dict[str, tuple[Sequence[tuple[int, bytes]], Collection[int]]] = {
            "query": (outputs(self.broker, self.output), everything),
            "consumer": (_rows(self.member, "record"), everything),
            "processor": (_rows(self.processor, "handled"), well),
            "letters": ([(each.offset, each.key) for each in letters], everything[::_BAD_EVERY]),
        }
        for role, (rows, wanted) in found.items():
            print(f"  {role}: {len(rows):,} of {len(wanted):,}", flush=True)
            faults += [f"{role}: {fault}" for fault in faults_of_outputs(rows, wanted)]
        return faults


def _is_well(offset: int) -> bool:
    return offset % _BAD_EVERY != 0


def _rows(member: Member, word: str) -> list[tuple[int, bytes]]:
    """Offset and key of each line of a process that begins with a word."""
    with member.file.open() as file:  # of millions of lines
        lines = (line.split() for line in file if line.startswith(f"{word} "))
        return [(int(line[3]), bytes.fromhex(line[4])) for line in lines]


@contextmanager
def residents(folder: Path) -> Iterator[Residents]:
    """Start them on a broker of their own; they have begun."""
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        broker.is_calm = True
        topic, output, letters = (broker.create_topic() for _ in range(3))
        command = [sys.executable, "-m", "integration.resident_query"]
        command += [broker.bootstrap_servers, topic, output, str(folder)]
        with (folder / "spark.log").open("ab") as log:
            query = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(_kill, query)
        group = stack.enter_context(closing(Group(broker, topic, folder, "consumer")))
        handlers = stack.enter_context(closing(Group(broker, topic, folder, "processor")))
        here = Residents(broker, folder, group, handlers, query, output, letters)
        here.feed(_BAD_EVERY)
        (folder / "healed").touch()
        group.start(pause=0.0)
        config = {"policy": "dead letters", "letters": letters, "healed": str(folder / "healed")}
        handlers.start_handlers(**config)
        eventually(here.has_begun, _END_SECONDS)
        yield here


def _kill(query: subprocess.Popen[bytes]) -> None:
    if query.poll() is None:
        for process in psutil.Process(query.pid).children(recursive=True):
            with suppress(psutil.Error):
                process.kill()
        query.kill()
        query.wait()


def _is_python(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended in this moment
        return not process.name().startswith("java")
    return False


def _measure(processes: Iterable[psutil.Process]) -> Measure:
    found: list[tuple[int, int, int]] = []
    for process in processes:
        with suppress(psutil.Error, OSError):  # a worker may end at any time
            used = _anonymous(process.pid), process.num_fds(), process.num_threads()
            found.append(used)
    if not found:
        return Measure()
    anonymous, descriptors, threads = (max(numbers) for numbers in zip(*found, strict=True))
    return Measure(anonymous, descriptors, threads, len(found))


def _anonymous(pid: int) -> int:
    """Anonymous memory of a process in bytes; what a fork shares with its parent counts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("Anonymous:"))
    return int(found.split()[1]) * 1024


def live(minutes: float, rate: int, folder: Path) -> list[str]:
    """Let them live, and name what is wrong.

    Args:
        minutes: For how long.
        rate: So many records are written a second.
        folder: Where they write.
    """
    samples: list[_Sample] = []
    with residents(folder) as here, (folder / "samples").open("w", buffering=1) as file:
        began = time.monotonic()
        start, every = here.produced, min(10.0, 0.6 * minutes)
        while (seconds := time.monotonic() - began) < 60 * minutes:
            here.feed(max(0, start + int(rate * seconds) - here.produced))
            if seconds >= every * len(samples):
                samples.append(here.measure())
                rows = {role: asdict(each) for role, each in samples[-1].items()}
                file.write(json.dumps({"seconds": seconds, **rows}) + "\n")
            time.sleep(1.0)
        faults = here.end()
    for when, part in zip(("second quarter", "last quarter"), _quarters(samples), strict=True):
        print(f"{when}:")
        for role, measure in _medians(part).items():
            print(f"  {role}: {measure}")
    if minutes < 4 * _WARM_MINUTES:
        print(f"the second quarter begins before minute {_WARM_MINUTES:.0f}: growth is no fault")
        return faults
    return faults + grown(samples)


def main(arguments: list[str]) -> int:
    """Run, and return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="integration.residents")
    parser.add_argument("--minutes", type=float, default=85)
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--folder", type=Path, help="a new one; else a temporary one, removed")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        if given.folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = given.folder.resolve()
            folder.mkdir(parents=True)
        faults = live(given.minutes, given.rate, folder)
    for fault in faults[:_SHOWN]:
        print(f"FAILED {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
