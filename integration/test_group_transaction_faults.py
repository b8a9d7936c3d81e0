"""Transactions of a group on real brokers: brokers, the log, policies and other consumers.

The verdict is of a reader of committed records, as in :mod:`integration.test_group_transactions`.
"""

import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from integration.chance import chance_of
from integration.cluster import KafkaCluster
from integration.group_log import lose_log
from integration.kafka import KafkaBroker
from integration.lines import whole_lines
from integration.members import eventually, wait_for_refusal
from integration.proxy import CountingProxy
from integration.transactions import RECORDS, Processes, all_more, commits, is_amid
from kshare.cli import main as kshare
from kshare.core.hashing import WHOLE, split
from kshare.group.log.topic import log_partition

LOWER, UPPER = split(WHOLE, 2)


def test_a_broker_that_is_killed_and_frozen_amid_transactions(tmp_path: Path) -> None:
    """Answers of commits are lost, and what became of them has to be found out.

    librdkafka 2.16 may abort a process whose coordinator goes away; such a one is started again.
    """
    chance = chance_of(11)
    halves = [LOWER, UPPER]
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        group = stack.enter_context(closing(Processes(broker, broker.create_topic(), tmp_path)))
        group.fill(RECORDS)
        members = [group.start(half, f"p{n}") for n, half in enumerate(halves)]

        def start_again() -> None:
            for number, (process, _) in enumerate(members):
                if process.poll() is not None:
                    members[number] = group.start(halves[number], f"p{number}")

        def have_committed(counts: dict[Path, int]) -> bool:
            start_again()
            return all(commits(file) > counts.get(file, 0) for _, file in members)

        def is_one_amid(number: int, word: str) -> bool:
            start_again()
            return is_amid(members[number][1], word, 4)

        for word in ("ready", "offset", "ready"):
            number = chance.randrange(len(members))
            group.fill_until(lambda n=number, w=word: is_one_amid(n, w))  # type: ignore[misc]
            broker.freeze()
            time.sleep(2)
            broker.kill9()
            group.faults += ["the broker frozen", "the broker killed"]
            broker.start()
            counts = {file: commits(file) for _, file in members}
            group.fill_until(lambda c=counts: have_committed(c))  # type: ignore[misc]
        group.check(meanwhile=start_again)


@pytest.mark.long
def test_answers_that_come_late_amid_transactions(
    proxied: tuple[KafkaBroker, CountingProxy], tmp_path: Path
) -> None:
    """Some tenths of a second, then by more than a session's requests wait."""
    broker, proxy = proxied
    with closing(Processes(broker, broker.create_topic(), tmp_path)) as group:
        group.fill(RECORDS)
        members = [group.start(None, f"m{number}") for number in range(3)]
        eventually(lambda: all(commits(file) >= 2 for _, file in members))
        group.fill(2 * RECORDS)  # for as long as answers are late
        for delay, seconds in ((0.1, 3), (0.0, 1), (3.0, 8)):
            proxy.delay = delay
            if delay:
                group.faults.append(f"answers {delay:g} s late")
            time.sleep(seconds)
        proxy.delay = 0.0
        group.fill(RECORDS)
        group.check()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_coordinators_die_and_move_amid_transactions(tmp_path: Path) -> None:
    """The broker dies that coordinates the group and all transactions, and leads the group's log.

    librdkafka 2.16 may abort a process whose coordinator goes away; such a one is started again.
    """
    config = {
        "offsets.topic.num.partitions": "8",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "2",
        # A busy machine must not make the broker seem dead that lives, nor its copies seem too old
        # to lead: nobody would lead anything.
        "broker.session.timeout.ms": "6000",
        "replica.lag.time.max.ms": "30000",
    }
    with KafkaCluster(2, config=config) as brokers, ExitStack() as stack:
        topic = brokers.create_topic(replication=2)
        group = stack.enter_context(closing(Processes(brokers, topic, tmp_path, replication=2)))
        group.fill(RECORDS)
        members = [group.start(None, "m0")]

        def start_again() -> None:
            for number, (process, file) in enumerate(members):
                if process.poll() is not None:
                    members[number] = group.start(None, file.name[4:])

        def have_committed(more: int, counts: dict[str, int]) -> bool:
            start_again()
            return all(commits(f) >= more + counts.get(f.name, 0) for _, f in members)

        def is_one_amid(word: str) -> bool:
            start_again()
            return any(is_amid(file, word, 3) for _, file in members)

        eventually(lambda: have_committed(2, {}))
        members += [group.start(None, f"m{number}") for number in (1, 2)]
        log = log_partition(group.group, 8)
        moving = [("__consumer_offsets", log), ("__individual_commit_offsets", log)]
        moving += [("__transaction_state", number) for number in range(2)]
        for word in ("ready", "offset"):
            for name, partition in moving:
                brokers.move_leader(name, partition, 2)
            group.faults.append("the coordinators moved")
            group.fill_until(lambda: have_committed(3, {}))
            # Else nobody leads what only the broker has that dies.
            replicated = [*moving, (topic, 0), (group.output, 0)]
            group.fill_until(lambda: brokers.are_in_sync(replicated))  # noqa: B023
            group.fill_until(lambda w=word: is_one_amid(w))  # type: ignore[misc]
            brokers.brokers[2].kill9()
            group.faults.append("a broker killed")
            counts = {file.name: commits(file) for _, file in members}
            group.fill_until(lambda c=counts: have_committed(2, c))  # type: ignore[misc]
            brokers.brokers[2].start()
        group.check(meanwhile=start_again)


@pytest.mark.long
@pytest.mark.parametrize("how", ["deleted", "truncated"])
def test_the_log_is_lost_amid_transactions(
    broker: KafkaBroker, topic: str, tmp_path: Path, how: str
) -> None:
    """What was committed is known to nobody any more but in the primary offset: outputs repeat."""
    log = broker.create_topic(f"{topic}-log", config={"cleanup.policy": "compact"})
    with closing(Processes(broker, topic, tmp_path, log=log)) as group:
        group.fill(RECORDS)
        files = [group.start(None, f"m{number}")[1] for number in range(3)]
        eventually(lambda: all(commits(file) >= 3 for file in files))
        group.faults.append(f"the log {how}")
        lose_log(broker, log, how)
        before = [commits(file) for file in files]
        group.fill_until(lambda: all_more(files, before, 3))
        group.check(has_lost_log=True)


@pytest.mark.long
def test_a_policy_is_switched_amid_transactions(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--topic", topic]
    with closing(Processes(broker, topic, tmp_path)) as group:
        group.fill(RECORDS)
        files = [group.start(None, f"m{number}")[1] for number in range(3)]
        group.fill_until(lambda: reads(files) == 3)
        for value, count in (("false", 1), ("true", 3), ("false", 1)):
            assert kshare(["policy", "set", "accept.range.fetch", value, *where]) == 0
            group.faults.append(f"accept.range.fetch={value}")
            group.fill_until(lambda wanted=count: reads(files) == wanted)  # type: ignore[misc]
        group.check()


def has_records(file: Path) -> bool:
    """Whether one of the last two transactions that were committed has records."""
    written = whole_lines(file)
    ends = [number for number, line in enumerate(written) if line == "commit"]
    recent = written[ends[-3] : ends[-1]] if len(ends) > 2 else []
    return any(line.startswith("offset") for line in recent)


def reads(files: list[Path]) -> int:
    """How many processes get records."""
    return sum(has_records(file) for file in files)


def test_a_plain_consumer_joins_amid_transactions(processes: Processes, topic: str) -> None:
    """It is refused, and the members go on."""
    files = [processes.start(None, f"m{number}")[1] for number in range(3)]
    eventually(lambda: all(commits(file) >= 3 for file in files))
    wait_for_refusal(processes.servers, processes.group, topic)
    processes.faults.append("a plain consumer joined")
    processes.fill(RECORDS)
    processes.check()


@pytest.mark.long
def test_two_groups_with_transactions_on_one_topic(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        groups = []
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            group = Processes(broker, topic, folder, group=f"{topic}-{name}")
            groups.append(stack.enter_context(closing(group)))
        for number in range(3):
            for group, name in zip(groups, "ab", strict=True):
                group.start(None, f"{name}{number}")
        groups[0].fill(2 * RECORDS)
        groups[1].produced = groups[0].produced
        for group in groups:
            group.check()


@pytest.mark.long
@pytest.mark.timeout(600)  # two minutes without a word, and then what is awaited
def test_members_join_and_leave_every_second_amid_transactions(processes: Processes) -> None:
    """For two minutes; at most five live at a time, and one in three is killed."""
    chance = chance_of(7)
    living = [processes.start(None, f"m{number}")[0] for number in range(2)]
    until = time.monotonic() + 120
    while time.monotonic() < until:
        processes.fill(50)
        time.sleep(1)
        if len(living) < 3 or (len(living) < 5 and chance.random() < 0.5):
            living.append(processes.start(None, f"n{len(processes.running)}")[0])
        else:
            leaving = living.pop(chance.randrange(len(living)))
            leaving.send_signal(chance.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]))
    processes.check()
