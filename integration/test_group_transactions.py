"""Transactions of a group on a real broker: killed, stopped and swapped processes.

The verdict is of a reader of committed records: the output of each input exactly once, and those of
a key in order.
"""

import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from integration.chance import chance_of
from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.members import SECONDS, eventually
from integration.processes import let_go
from integration.transactions import (
    RECORDS,
    Processes,
    all_more,
    commits,
    is_amid,
    key_of,
    outputs,
)
from kshare.core.hashing import WHOLE, split
from kshare.errors import TransactionAbortedError
from kshare.group import KeySharedConsumer
from tests.support import shown

LOWER, UPPER = split(WHOLE, 2)


def test_processes_that_are_killed_amid_transactions(processes: Processes) -> None:
    chance = chance_of(3)
    halves = [LOWER, UPPER]
    last = [processes.start(half, f"p{n}") for n, half in enumerate(halves)]
    for number in range(6):
        side = chance.randrange(2)
        process, file = last[side]
        word = "ready" if number % 2 else "offset"  # waits for its turn, or commits
        processes.fill_until(lambda f=file, w=word: is_amid(f, w, 3))  # type: ignore[misc]
        process.kill()
        process.wait()
        shown.killed("process amid a transaction")
        last[side] = processes.start(halves[side], f"p{side}" if number % 3 else f"q{number}")
    processes.check()


@pytest.mark.long
def test_a_stopped_process_that_goes_on_after_another_has_taken_over(processes: Processes) -> None:
    for number, word in enumerate(["offset", "ready"]):
        old, file = processes.start(WHOLE, f"old-{number}")
        processes.fill_until(lambda f=file, w=word: is_amid(f, w, 3))  # type: ignore[misc]
        old.send_signal(signal.SIGSTOP)
        new, its_file = processes.start(WHOLE, f"new-{number}")
        eventually(lambda f=its_file: whole_lines(f).count("commit") >= 3)  # type: ignore[misc]
        old.send_signal(signal.SIGCONT)
        assert old.wait(SECONDS) == 0
        assert whole_lines(file)[-1].startswith("fenced")
        if number == 0:
            new.kill()
            new.wait()
    processes.check()


@pytest.mark.parametrize("name", ["same", pytest.param("another", marks=pytest.mark.long)])
def test_a_hot_swap(processes: Processes, name: str) -> None:
    old, file = processes.start(WHOLE, "same")
    eventually(lambda: whole_lines(file).count("commit") >= 5)
    processes.start(WHOLE, name)
    processes.fill_until(lambda: old.poll() is not None)
    assert old.wait() == 0
    assert whole_lines(file)[-1].startswith("fenced")
    processes.check()


@pytest.mark.long
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
        "transaction.timeout.ms": 5_000,
    }
    with KeySharedConsumer(config) as consumer:
        consumer.assign({(topic, 0): [(UPPER.lo, UPPER.hi)]})
        seen: list[list[int]] = []
        for _ in range(2):
            error = gives_up(consumer, output, seen)
            assert "purgatory=stable" in str(error)
            assert f"{topic}-0" in str(error)
        assert seen[-1] == seen[-2]  # its records come again
    eventually(lambda: len(outputs(broker, output)) >= len(seen) - 2)
    assert len(outputs(broker, output)) == len(seen) - 2


def gives_up(
    consumer: KeySharedConsumer, output: str, seen: list[list[int]]
) -> TransactionAbortedError:
    """Run transactions until one gives up waiting."""
    while True:
        try:
            with consumer.transaction() as transaction:
                seen.append([message.offset() for message in consumer.consume(10, 60.0)])
                began = time.monotonic()
                transaction.produce(output, "0", b"k")
        except TransactionAbortedError as error:
            assert 4.4 < time.monotonic() - began < 50.0
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
                    messages = consumer.consume(20, 60.0)
                    for message in messages:
                        transaction.produce(output, str(message.offset()), message.key())
                    if not is_good:
                        done += 1
                        raise ZeroDivisionError
                done = messages[-1].offset() + 1 if messages else done
            except ZeroDivisionError:
                done -= 1
                with consumer.transaction() as transaction:
                    again = consumer.consume(20, 60.0)
                    assert [m.offset() for m in again] == [m.offset() for m in messages]
                    for message in again:
                        transaction.produce(output, str(message.offset()), message.key())
                done = again[-1].offset() + 1
    # The marker that ends a transaction is written after its commit is answered.
    eventually(lambda: len(outputs(broker, output)) >= 300)
    assert [offset for offset, _ in outputs(broker, output)] == list(range(300))


def test_members_that_are_killed_amid_transactions(processes: Processes) -> None:
    chance = chance_of(5)
    members = [processes.start(None, f"m{number}") for number in range(3)]
    for number in range(4):
        process, file = members.pop(chance.randrange(3))
        word = "ready" if number % 2 else "offset"
        processes.fill_until(lambda f=file, w=word: is_amid(f, w, 3))  # type: ignore[misc]
        process.kill()
        process.wait()
        shown.killed("process amid a transaction")
        members.append(processes.start(None, file.name[4:] if number % 2 else f"n{number}"))
        eventually(lambda f=members[-1][1]: commits(f) >= 2)  # type: ignore[misc]
    processes.check()


@pytest.mark.long
def test_a_member_that_is_killed_before_its_facts_are_decided(processes: Processes) -> None:
    """What it leaves open hides the next epoch, which all others wait for.

    They fence its id: the coordinator would wait for ten minutes.
    """
    config: dict[str, Any] = {"transaction.timeout.ms": 600_000}
    dying, file = processes.start(None, "dies", dies=4, **config)
    processes.fill_until(lambda: commits(file) >= 1)
    others = [processes.start(None, f"other-{number}", **config)[1] for number in range(2)]
    processes.fill_until(lambda: dying.poll() == -signal.SIGKILL)
    before = [commits(each) for each in others]
    processes.fill_until(lambda: all_more(others, before, 1))
    processes.check()


def test_a_member_that_is_stopped_amid_a_transaction_and_goes_on(processes: Processes) -> None:
    config: dict[str, Any] = {"client.id": "old"}
    old, file = processes.start(None, "old", **config)
    others = [processes.start(None, f"new-{number}")[1] for number in range(2)]
    for word in ("offset", "ready"):
        processes.fill_until(lambda w=word: is_amid(file, w, 3))  # type: ignore[misc]
        old.send_signal(signal.SIGSTOP)
        eventually(lambda: "old" not in clients(processes))  # its session is over
        before = [commits(each) for each in others]
        processes.fill_until(lambda b=before: all_more(others, b, 3))  # type: ignore[misc]
        old.send_signal(signal.SIGCONT)
        before = [commits(file)]
        eventually(lambda b=before: all_more([file], b, 3))  # type: ignore[misc]
    processes.check()


def test_members_join_and_leave_amid_transactions(processes: Processes) -> None:
    members = [processes.start(None, "m0")]
    for number in range(1, 4):
        processes.fill_until(lambda: all(commits(file) >= 3 for _, file in members))
        members.append(processes.start(None, f"m{number}"))
    for _ in range(3):
        processes.fill_until(lambda: all(commits(file) >= 3 for _, file in members))
        process, _ = members.pop(0)
        process.terminate()
        assert process.wait(SECONDS) == 0
    processes.check()


@pytest.mark.long
def test_a_handler_that_hangs_amid_a_transaction(processes: Processes) -> None:
    """It is dropped after ``max.poll.interval.ms``, and its transaction is aborted."""
    # No broker aborts it.
    config: dict[str, Any] = {"client.id": "hangs", "transaction.timeout.ms": 600_000}
    hanging, file = processes.start(None, "hangs", hangs=3, **config)
    others = [processes.start(None, f"other-{number}")[1] for number in range(2)]
    processes.fill_until(lambda: "hangs" in whole_lines(file))
    eventually(lambda: "hangs" not in clients(processes))
    before = [commits(each) for each in others]
    processes.fill_until(lambda: all_more(others, before, 3))
    let_go(file)
    eventually(lambda: any(line.startswith("abort") for line in whole_lines(file)))
    before = [commits(file)]
    processes.fill_until(lambda: all_more([file], before, 0))
    assert hanging.poll() is None
    processes.check()


def clients(processes: Processes) -> set[str]:
    """The ``client.id`` of each member of a group, as its coordinator knows it."""
    name = processes.group
    described = processes.broker.admin.describe_consumer_groups([name])[name].result(30)
    return {member.client_id for member in described.members}


@pytest.mark.long
def test_what_a_killed_process_has_left_open_is_ended_by_another_group(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """Groups share the log's partition. Nobody takes over the dead one's key hashes."""
    log = broker.create_topic(f"{topic}-log", config={"cleanup.policy": "compact"})
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": f"{topic}-neighbour",
        "auto.offset.reset": "earliest",
        "individual.commit.topic": log,
    }
    with (
        closing(Processes(broker, topic, tmp_path, log=log)) as group,
        KeySharedConsumer(config) as neighbour,
    ):
        group.fill(RECORDS)
        neighbour.assign({(topic, 0): []})
        assert neighbour.consume(10, SECONDS)
        neighbour.commit()
        dead, _ = group.start(WHOLE, "dead", dies=3, **{"transaction.timeout.ms": 600_000})
        assert dead.wait(SECONDS) == -signal.SIGKILL
        began = time.monotonic()
        assert neighbour.consume(10, SECONDS)
        neighbour.commit()
        assert time.monotonic() - began < SECONDS
        group.start(WHOLE, "next")
        group.check()
