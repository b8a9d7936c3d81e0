"""Transactional processes of a group, what they have written, and the verdict over it."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from integration.lines import whole_lines
from integration.members import SECONDS, eventually, keep_filled
from integration.processes import PythonProcess
from integration.topics import Topics
from kshare.core.hashing import HashRange
from kshare.group.tools.offsets import list_offsets
from tests.support import shown

RECORDS, KEYS = 2_000, 97


def key_of(offset: int) -> bytes:
    return f"key-{offset * offset % KEYS}".encode()


class Process(PythonProcess):
    """A transactional process, what it has written, and the signals that it was sent."""

    def __init__(self, file: Path, arguments: list[str]) -> None:
        super().__init__("integration.transaction_process", arguments)
        self.file = file
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self.signals.append(number)
        super().send_signal(number)

    @property
    def own_end(self) -> int | None:
        """The exit code, if it ended by itself: nobody killed it or asked it to end."""
        is_killed = signal.SIGKILL in self.signals and self.returncode == -signal.SIGKILL
        return None if is_killed or signal.SIGTERM in self.signals else self.returncode


class Processes:
    """Transactional processes of one group, and what they have written.

    Args:
        broker: Where the topics are.
        topic: What they read.
        folder: Where they write what they do.
        replication: Number of copies of what they write.
        group: Id of the group; empty for one that is named after the topic.
        log: The group's log; empty for the default one.

    Attributes:
        broker: Where the topics are.
        running: The processes, those that ended too.
        faults: What was done to brokers, policies or the log, in words.
    """

    def __init__(
        self,
        broker: Topics,
        topic: str,
        folder: Path,
        *,
        replication: int = 1,
        group: str = "",
        log: str = "",
    ) -> None:
        self.topic, self.group = topic, group or f"{topic}-group"
        self.output = broker.create_topic(replication=replication)
        self.broker = broker
        self._folder = folder
        self._log = {"individual.commit.topic": log} if log else {}
        self.servers = broker.bootstrap_servers
        self.running: list[Process] = []
        self.faults: list[str] = []
        self.produced = 0

    def fill(self, count: int) -> None:
        """Write records for the processes to read."""
        rows = [(key_of(i), f"{i}") for i in range(self.produced, self.produced + count)]
        self.broker.produce(self.topic, rows, partition=0)
        self.produced += count

    def fill_until(self, holds: Callable[[], Any], least: int = 500) -> None:
        """Wait until something holds, while records keep coming, as :func:`.keep_filled`."""
        keep_filled(holds, lambda: self.produced - len(self._given()), self.fill, least)

    def _given(self) -> set[str]:
        """The lines of the offsets that any process was given."""
        written = {line for process in self.running for line in whole_lines(process.file)}
        return {line for line in written if line.startswith("offset")}

    def start(
        self, hashes: HashRange | None, name: str, *, hangs: int = 0, dies: int = 0, **config: Any
    ) -> tuple[Process, Path]:
        """Start a process that has some key hashes, or is a member of the group.

        Args:
            hashes: The key hashes; None for a member.
            name: Its transactional id.
            hangs: From which of its transactions with records on a handler hangs, in one of them,
                until :func:`.let_go`; 0 for none.
            dies: From which of them on it kills itself amid a commit; 0 for none.
            config: More configurations.
        """
        file = self._folder / f"{len(self.running):03}-{name}"
        file.touch()
        arguments = [self.broker.bootstrap_servers, self.topic, self.output, self.group]
        arguments += ["-", "-"] if hashes is None else [str(hashes.lo), str(hashes.hi)]
        settings = {**self._log, **config, "dies": dies}
        arguments += [name, str(file), str(hangs), json.dumps(settings)]
        self.running.append(Process(file, arguments))
        if dies:
            self.running[-1].signals.append(signal.SIGKILL)  # its own
        return self.running[-1], file

    def outputs(self) -> list[tuple[int, bytes]]:
        """Input offset and key of each output that a reader of committed records sees."""
        return outputs(self.broker, self.output)

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def check(
        self, *, has_lost_log: bool = False, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """The output of each input exactly once, those of a key in order; no process has failed.

        Args:
            has_lost_log: Whether what was committed individually may have been lost: then outputs
                may come again, and those of a key are in order where each came first or last.
            meanwhile: Called while the outputs are awaited.
        """
        inputs = set(range(self.produced))

        def are_there() -> bool:
            meanwhile()
            return inputs <= {offset for offset, _ in self.outputs()}

        eventually(are_there)
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(SECONDS)
        found = self.outputs()
        anomalies = [*self._failures(), *self._faults_of(found, has_lost_log=has_lost_log)]
        outputs_of = Counter(offset for offset, _ in found)
        again = [] if has_lost_log else [offset for offset, n in outputs_of.items() if n > 1]
        disorder = [fault for fault in anomalies if "out of order" in fault]
        shown.outputs(len(found), inputs - outputs_of.keys(), again, disorder)
        print(f"{self.history(len(found))}; {len(anomalies)} anomalies")
        assert not anomalies, "\n".join(anomalies[:20])

    def _failures(self) -> list[str]:
        """The processes that ended by themselves, and neither well nor by librdkafka's abort."""
        ends = [(process.pid, process.own_end) for process in self.running]
        return [
            f"process {pid} ended with exit code {code}"
            for pid, code in ends
            if code not in {None, 0, -signal.SIGABRT}
        ]

    def _faults_of(self, found: list[tuple[int, bytes]], *, has_lost_log: bool) -> list[str]:
        """What is wrong with the outputs, and with what is committed."""
        times = Counter(offset for offset, _ in found)
        faults = [f"{offset} has no output" for offset in range(self.produced) if not times[offset]]
        faults += [f"{offset} was never written" for offset in times if offset >= self.produced]
        if not has_lost_log:
            faults += [f"{offset} has {n} outputs" for offset, n in times.items() if n > 1]
        faults += [f"{offset} has key {key!r}" for offset, key in found if key != key_of(offset)]
        first = list(dict.fromkeys(found))
        last = list(dict.fromkeys(found[::-1]))[::-1]
        for rows in (first, last):
            for key in {key for _, key in found}:
                of_key = [offset for offset, other in rows if other == key]
                if of_key != sorted(of_key):
                    faults.append(f"{key!r} is out of order: {of_key}")
        config = {"bootstrap.servers": self.broker.bootstrap_servers, **self._log}
        (said,) = list_offsets(self.group, config).values()
        if (said.offset, said.individual_commits) != (self.produced, ()):
            faults.append(f"committed is {said.offset} and {said.individual_commits}")
        return faults

    def history(self, found: int) -> str:
        """What has happened, in numbers."""
        written = [line for file in sorted(self._folder.iterdir()) for line in whole_lines(file)]
        words = [line.split()[0] for line in written if line]
        names = ("offset", "commit", "abort", "fenced", "error")
        counts = ", ".join(f"{words.count(name)} {name}" for name in names)
        signals = [number for process in self.running for number in process.signals]
        kills, stops = signals.count(signal.SIGKILL), signals.count(signal.SIGSTOP)
        faults = "".join(f", {fault}" for fault in self.faults)
        ends = [process.own_end for process in self.running if process.own_end is not None]
        return (
            f"{self.produced} records, {found} outputs; {len(self.running)} processes, {len(ends)} "
            f"ended by themselves ({ends.count(-signal.SIGABRT)} by SIGABRT); "
            f"{kills + stops + len(self.faults)} faults ({kills} killed, {stops} stopped{faults}); "
            f"lines: {counts}"
        )


def faults_of_outputs(found: Sequence[tuple[int, bytes]], wanted: Collection[int]) -> list[str]:
    """What is wrong with what came out of records: once of each, and those of a key in order.

    Args:
        found: Input offset and key of each output, in order.
        wanted: The offsets of the inputs that have one.
    """
    times = Counter(offset for offset, _ in found)
    faults = [f"offset {offset} has {n} outputs" for offset, n in times.items() if n > 1]
    faults += [f"offset {offset} has no output" for offset in wanted if not times[offset]]
    faults += [f"offset {offset} is to have none" for offset in times if offset not in wanted]
    last: dict[bytes, int] = {}
    for offset, key in found:
        if offset < last.get(key, -1):
            faults.append(f"{key!r}: offset {offset} comes after {last[key]}")
        last[key] = offset
    return faults


def outputs(broker: Topics, topic: str) -> list[tuple[int, bytes]]:
    """Input offset and key of each output that a reader of committed records sees."""
    with closing(reader_of(broker, topic)) as reader:
        return [(int(row.value() or b""), row.key() or b"") for row in read_to_end(reader)]


def reader_of(broker: Topics, topic: str) -> Consumer:
    """A consumer of a topic of one partition, for :func:`read_to_end`."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "verdict",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    return reader


def read_to_end(reader: Consumer) -> Iterator[Message]:
    """The records of the one partition that a reader with ``enable.partition.eof`` was assigned."""
    deadline = time.monotonic() + SECONDS
    while True:
        message = reader.poll(1)
        assert time.monotonic() < deadline, "the end of the partition was not reached"
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return
        if message is not None and error is None:
            yield message


def is_amid(file: Path, word: str, count: int = 1) -> bool:
    """Whether a process stands after such a line of its transaction."""
    written = whole_lines(file)
    return written.count("begin") >= count and bool(written) and written[-1].startswith(word)


def commits(file: Path) -> int:
    return whole_lines(file).count("commit")


def all_more(files: list[Path], before: list[int], count: int) -> bool:
    """Whether each process has committed more than so many transactions since."""
    return all(commits(each) > then + count for each, then in zip(files, before, strict=True))
