"""Transactions of a group on a real broker: killed, stopped and swapped processes.

The verdict is of a reader of committed records: the output of each input exactly once, and those of
a key in order.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from integration.cluster import KafkaCluster
from integration.kafka import KafkaBroker
from integration.members import eventually
from integration.proxy import CountingProxy
from integration.topics import Topics
from kshare.core.hashing import WHOLE, HashRange, split
from kshare.errors import TransactionAbortedError
from kshare.group import KeySharedConsumer
from kshare.group.log_topic import log_partition
from kshare.group.offsets import list_offsets

RECORDS, KEYS = 4_000, 97
SECONDS = 120.0
LOWER, UPPER = split(WHOLE, 2)


def key_of(offset: int) -> bytes:
    return f"key-{offset * offset % KEYS}".encode()


class Processes:
    """Transactional processes of one group, and what they have written."""

    def __init__(self, broker: Topics, topic: str, folder: Path, *, replication: int = 1) -> None:
        self.topic, self.group = topic, f"{topic}-group"
        self.output = broker.create_topic(replication=replication)
        self._broker = broker
        self._folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        self.produced = 0

    def fill(self, count: int) -> None:
        """Write records for the processes to read."""
        rows = [(key_of(i), f"{i}") for i in range(self.produced, self.produced + count)]
        self._broker.produce(self.topic, rows, partition=0)
        self.produced += count

    def start(
        self, hashes: HashRange | None, name: str, *, hangs: int = 0
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a process that has some key hashes, or is a member of the group.

        Args:
            hashes: The key hashes; None for a member.
            name: Its transactional id.
            hangs: The number of the transaction whose handler hangs; 0 for none.
        """
        file = self._folder / f"{len(self.running):03}-{name}"
        file.touch()
        command = [sys.executable, "-m", "integration.transaction_process"]
        command += [self._broker.bootstrap_servers, self.topic, self.output, self.group]
        command += ["-", "-"] if hashes is None else [str(hashes.lo), str(hashes.hi)]
        command += [name, str(file), str(hangs)]
        self.running.append(subprocess.Popen(command))
        return self.running[-1], file

    def outputs(self) -> list[tuple[int, bytes]]:
        """Input offset and key of each output that a reader of committed records sees."""
        return outputs(self._broker, self.output)

    def count(self) -> int:
        return len(self.outputs())

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def check(self) -> None:
        """The output of each input exactly once, those of a key in order."""
        eventually(lambda: self.count() >= self.produced)
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        found = self.outputs()
        print(self.history(len(found)))
        assert sorted(offset for offset, _ in found) == list(range(self.produced))
        assert all(key == key_of(offset) for offset, key in found)
        for key in {key for _, key in found}:
            of_key = [offset for offset, other in found if other == key]
            assert of_key == sorted(of_key)
        config = {"bootstrap.servers": self._broker.bootstrap_servers}
        (said,) = list_offsets(self.group, config).values()
        assert (said.offset, said.individual_commits) == (self.produced, ())

    def history(self, found: int) -> str:
        """What has happened, in numbers."""
        written = [line for file in sorted(self._folder.iterdir()) for line in lines(file)]
        words = [line.split()[0] for line in written if line]
        names = ("offset", "commit", "abort", "fenced", "error")
        counts = ", ".join(f"{words.count(name)} {name}" for name in names)
        killed = sum(process.returncode == -signal.SIGKILL for process in self.running)
        return (
            f"{self.produced} records, {found} outputs; {len(self.running)} processes, {killed} "
            f"killed; lines: {counts}"
        )


def outputs(broker: Topics, topic: str) -> list[tuple[int, bytes]]:
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
    found = []
    while (message := reader.poll(10)) is not None and message.error() is None:
        found.append((int(message.value() or b""), message.key() or b""))
    reader.close()
    return found


@pytest.fixture
def processes(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Processes]:
    with closing(Processes(broker, topic, tmp_path)) as group:
        group.fill(RECORDS)
        yield group


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def is_amid(file: Path, word: str, count: int = 1) -> bool:
    """Whether a process stands after such a line of its transaction."""
    written = lines(file)
    return written.count("begin") >= count and bool(written) and written[-1].startswith(word)


def test_processes_that_are_killed_amid_transactions(processes: Processes) -> None:
    chance = random.Random(3)
    halves = [LOWER, UPPER]
    last = [processes.start(half, f"p{n}") for n, half in enumerate(halves)]
    for number in range(6):
        side = chance.randrange(2)
        process, file = last[side]
        word = "ready" if number % 2 else "offset"  # waits for its turn, or commits
        eventually(lambda f=file, w=word: is_amid(f, w, 3))  # type: ignore[misc]
        process.kill()
        process.wait()
        last[side] = processes.start(halves[side], f"p{side}" if number % 3 else f"q{number}")
    processes.check()


def test_a_stopped_process_that_goes_on_after_another_has_taken_over(processes: Processes) -> None:
    for number, word in enumerate(["offset", "ready"]):
        old, file = processes.start(WHOLE, f"old-{number}")
        eventually(lambda f=file, w=word: is_amid(f, w, 3))  # type: ignore[misc]
        os.kill(old.pid, signal.SIGSTOP)
        new, its_file = processes.start(WHOLE, f"new-{number}")
        eventually(lambda f=its_file: lines(f).count("commit") >= 3)  # type: ignore[misc]
        os.kill(old.pid, signal.SIGCONT)
        assert old.wait(60) == 0
        assert lines(file)[-1].startswith("fenced")
        if number == 0:
            new.kill()
            new.wait()
    processes.check()


def test_a_broker_that_is_killed_and_frozen_amid_transactions(tmp_path: Path) -> None:
    """Answers of commits are lost, and what became of them has to be found out.

    librdkafka 2.16 may end a process whose coordinator goes away; such a process is started again.
    """
    chance = random.Random(11)
    halves = [LOWER, UPPER]
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        group = stack.enter_context(closing(Processes(broker, broker.create_topic(), tmp_path)))
        group.fill(RECORDS)
        members = [group.start(half, f"p{n}") for n, half in enumerate(halves)]

        def have_committed(counts: list[int]) -> bool:
            for number, (process, _) in enumerate(members):
                if process.poll() is not None:
                    members[number] = group.start(halves[number], f"p{number}")
                    counts[number] = 0
            written = [lines(file).count("commit") for _, file in members]
            return all(now > before for now, before in zip(written, counts, strict=True))

        for word in ("ready", "offset", "ready"):
            _, file = chance.choice(members)
            eventually(lambda f=file, w=word: is_amid(f, w, 4))  # type: ignore[misc]
            broker.freeze()
            time.sleep(2)
            broker.kill9()
            broker.start()
            counts = [lines(file).count("commit") for _, file in members]
            eventually(lambda c=counts: have_committed(c))  # type: ignore[misc]
        group.check()


@pytest.mark.parametrize("name", ["same", "another"])
def test_a_hot_swap(processes: Processes, name: str) -> None:
    old, file = processes.start(WHOLE, "same")
    eventually(lambda: lines(file).count("commit") >= 5)
    processes.start(WHOLE, name)
    assert old.wait(60) == 0
    assert lines(file)[-1].startswith("fenced")
    processes.check()


def test_one_that_waits_gives_up_in_time(broker: KafkaBroker, topic: str) -> None:
    """Nobody reads the lower half, so the upper one never gets beyond its first record there."""
    broker.produce(topic, [(key_of(i), f"{i}") for i in range(200)], partition=0)
    output = broker.create_topic()
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"{topic}-waits",
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
        "transactional.id": f"{topic}-waits",
        "transaction.timeout.ms": 3_000,
    }
    with KeySharedConsumer(config) as consumer:
        consumer.assign({(topic, 0): [(UPPER.lo, UPPER.hi)]})
        seen: list[list[int]] = []
        for _ in range(2):
            error = gives_up(consumer, output, seen)
            assert "purgatory=stable" in str(error)
            assert f"{topic}-0" in str(error)
        assert seen[-1] == seen[-2]  # its records come again
    assert len(outputs(broker, output)) == len(seen) - 2


def gives_up(
    consumer: KeySharedConsumer, output: str, seen: list[list[int]]
) -> TransactionAbortedError:
    """Run transactions until one gives up waiting."""
    while True:
        began = time.monotonic()
        try:
            with consumer.transaction() as transaction:
                seen.append([message.offset() for message in consumer.consume(10, 5.0)])
                transaction.produce(output, "0", b"k")
        except TransactionAbortedError as error:
            assert 2.6 < time.monotonic() - began < 4.0
            return error


def test_an_exception_takes_everything_back(broker: KafkaBroker, topic: str) -> None:
    broker.produce(topic, [(key_of(i), f"{i}") for i in range(300)], partition=0)
    output = broker.create_topic()
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"{topic}-fails",
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
        "transactional.id": f"{topic}-fails",
    }
    with KeySharedConsumer(config) as consumer:
        consumer.assign({(topic, 0): []})
        done = 0
        while done < 300:
            is_good = done % 40 == 0 or done % 7 == 1
            try:
                with consumer.transaction() as transaction:
                    messages = consumer.consume(20, 5.0)
                    for message in messages:
                        transaction.produce(output, str(message.offset()), message.key())
                    if not is_good:
                        done += 1
                        raise ZeroDivisionError
                done = messages[-1].offset() + 1 if messages else done
            except ZeroDivisionError:
                done -= 1
                with consumer.transaction() as transaction:
                    again = consumer.consume(20, 5.0)
                    assert [m.offset() for m in again] == [m.offset() for m in messages]
                    for message in again:
                        transaction.produce(output, str(message.offset()), message.key())
                done = again[-1].offset() + 1
    assert [offset for offset, _ in outputs(broker, output)] == list(range(300))


def commits(file: Path) -> int:
    return lines(file).count("commit")


def test_members_that_are_killed_amid_transactions(processes: Processes) -> None:
    chance = random.Random(5)
    members = [processes.start(None, f"m{number}") for number in range(3)]
    for number in range(4):
        processes.fill(RECORDS)
        process, file = members.pop(chance.randrange(3))
        word = "ready" if number % 2 else "offset"
        eventually(lambda f=file, w=word: is_amid(f, w, 3))  # type: ignore[misc]
        process.kill()
        process.wait()
        members.append(processes.start(None, file.name[4:] if number % 2 else f"n{number}"))
        eventually(lambda f=members[-1][1]: commits(f) >= 2)  # type: ignore[misc]
    processes.check()


def test_a_member_that_is_stopped_amid_a_transaction_and_goes_on(processes: Processes) -> None:
    (old, file), (_, its_file) = processes.start(None, "old"), processes.start(None, "new")
    for word in ("offset", "ready"):
        processes.fill(2 * RECORDS)
        eventually(lambda w=word: is_amid(file, w, 3))  # type: ignore[misc]
        os.kill(old.pid, signal.SIGSTOP)
        before = commits(its_file)
        time.sleep(7)  # longer than its session
        eventually(lambda b=before: commits(its_file) > b + 3)  # type: ignore[misc]
        os.kill(old.pid, signal.SIGCONT)
        before = commits(file)
        eventually(lambda b=before: commits(file) > b + 3)  # type: ignore[misc]
    processes.check()


def test_members_join_and_leave_amid_transactions(processes: Processes) -> None:
    members = [processes.start(None, "m0")]
    for number in range(1, 4):
        eventually(lambda: all(commits(file) >= 3 for _, file in members))
        members.append(processes.start(None, f"m{number}"))
    for _ in range(3):
        eventually(lambda: all(commits(file) >= 3 for _, file in members))
        process, _ = members.pop(0)
        process.terminate()
        assert process.wait(60) == 0
    processes.check()


def test_a_handler_that_hangs_amid_a_transaction(processes: Processes) -> None:
    """It is dropped after ``max.poll.interval.ms``, and its transaction is aborted."""
    hanging, file = processes.start(None, "hangs", hangs=8)
    _, its_file = processes.start(None, "other")
    eventually(lambda: lines(file).count("begin") == 8)
    processes.fill(RECORDS)
    before = commits(its_file)
    eventually(lambda: any(line.startswith("abort") for line in lines(file)))
    assert commits(its_file) > before
    processes.fill(RECORDS)
    before = commits(file)
    eventually(lambda: commits(file) > before)
    assert hanging.poll() is None
    processes.check()


def test_answers_that_come_late_amid_transactions(
    proxied: tuple[KafkaBroker, CountingProxy], tmp_path: Path
) -> None:
    """Some tenths of a second, then by more than a session's requests wait."""
    broker, proxy = proxied
    with closing(Processes(broker, broker.create_topic(), tmp_path)) as group:
        group.fill(RECORDS)
        members = [group.start(None, f"m{number}") for number in range(3)]
        eventually(lambda: all(commits(file) >= 2 for _, file in members))
        group.fill(RECORDS)
        for delay, seconds in ((0.1, 3), (0.0, 1), (3.0, 8)):
            proxy.delay = delay
            time.sleep(seconds)
        proxy.delay = 0.0
        group.fill(RECORDS)
        group.check()


def test_coordinators_die_and_move_amid_transactions(tmp_path: Path) -> None:
    """The broker dies that coordinates the group and all transactions, and leads the group's log.

    librdkafka 2.16 may end a process whose coordinator goes away; such a process is started again.
    """
    config = {
        "offsets.topic.num.partitions": "8",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "2",
    }
    with KafkaCluster(2, config=config) as brokers, ExitStack() as stack:
        topic = brokers.create_topic(replication=2)
        group = stack.enter_context(closing(Processes(brokers, topic, tmp_path, replication=2)))
        group.fill(RECORDS)
        members = [group.start(None, "m0")]

        def have_committed(more: int, counts: dict[str, int]) -> bool:
            for number, (process, file) in enumerate(members):
                if process.poll() is not None:
                    members[number] = group.start(None, file.name[4:])
            return all(commits(f) >= more + counts.get(f.name, 0) for _, f in members)

        eventually(lambda: have_committed(2, {}))
        members += [group.start(None, f"m{number}") for number in (1, 2)]
        log = log_partition(group.group, 8)
        moving = [("__consumer_offsets", log), ("__individual_commit_offsets", log)]
        moving += [("__transaction_state", number) for number in range(2)]
        for word in ("ready", "offset"):
            group.fill(2 * RECORDS)
            for name, partition in moving:
                brokers.move_leader(name, partition, 2)
            eventually(lambda: have_committed(3, {}))
            eventually(lambda w=word: any(is_amid(file, w, 3) for _, file in members))  # type: ignore[misc]
            brokers.brokers[2].kill9()
            counts = {file.name: commits(file) for _, file in members}
            eventually(lambda c=counts: have_committed(2, c))  # type: ignore[misc]
            brokers.brokers[2].start()
        group.check()
