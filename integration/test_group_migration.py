"""Plain consumers of a group are replaced by kshare consumers one by one, and come back.

The verdict is as in :mod:`integration.test_group_membership`: over all that was delivered, by both
kinds, in the order of time.
"""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kafka import KafkaConsumer
from kafka.coordinator.assignors.range import RangePartitionAssignor

from integration.chance import chance_of
from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually, fill
from kshare.cli import main
from kshare.kafka.protocol.error_codes import is_retriable

BOTH = {"partition.assignment.strategy": "kshare-range-v1,range"}
CALM = {"session.timeout.ms": 45_000}  # where nobody is killed, nobody is to be dropped
KIP_848 = {
    "group.protocol": "consumer",
    "session.timeout.ms": None,
    "heartbeat.interval.ms": None,
}
PARTITIONS = 3


@pytest.fixture
def group(broker: KafkaBroker, tmp_path: Path) -> Iterator[Group]:
    topic = broker.create_topic(partitions=PARTITIONS)
    with closing(Group(broker, topic, tmp_path)) as running:
        yield running


def shares(members: list[Member]) -> list[float]:
    return [round(member.share(), 2) for member in members]


def warnings(member: Member) -> list[str]:
    lines = member.file.with_suffix(".err").read_text().splitlines()
    return [line for line in lines if "no kshare consumer" in line]


def ends(group: Group) -> dict[int, int]:
    return {number: group.broker.latest(group.topic, number) for number in range(PARTITIONS)}


def check(group: Group) -> None:
    eventually(lambda: group.is_done(sum(ends(group).values())))
    end_all(group)
    group.check(ends(group))


def is_shown(group: Group, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a plain consumer is shown as the owner of its partition."""
    command = ["groups", "--group", group.topic]
    assert main([*command, "--bootstrap-servers", group.broker.bootstrap_servers]) == 0
    out, err = capsys.readouterr()
    assert not err
    return (
        "whole partitions (a member is no kshare consumer), 7 members" in out
        and out.count(f"  {group.topic}-") == PARTITIONS
        and "first-" in out
    )


def test_plain_consumers_are_replaced_one_by_one(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    total = 0

    def more() -> None:
        nonlocal total
        fill(group, total, total + 1_500)
        total += 1_500

    more()
    living = [group.start_plain(**CALM) for _ in range(3)]
    eventually(lambda: shares(living) == [1, 1, 1])
    for number in range(3):
        more()
        living.append(group.start(**BOTH, **CALM))
        eventually(lambda: sum(shares(living)) == PARTITIONS and len(group.delivered()) > total / 2)
        living.pop(0).end()
        more()
        eventually(lambda: sorted(shares(living)) == [1, 1, 1])
        # The last one may have joined before the last plain consumer has left, or after.
        assert warnings(living[-1]) or number == 2
    living += [group.start(**BOTH, **CALM) for _ in range(3)]
    more()
    eventually(lambda: shares(living) == [0.5] * 6)
    # The first of the members, by their ids.
    living.append(group.start_plain(**{"client.id": "first"}, **CALM))
    more()
    eventually(lambda: sorted(shares(living)) == [0, 0, 0, 0, 1, 1, 1])
    more()  # what was there may be processed already
    eventually(lambda: shares(living)[-1] == 1 and len(living[-1].records()) > 100)
    eventually(lambda: is_shown(group, capsys))
    eventually(lambda: all(len(warnings(member)) >= 1 for member in living[:-1]))
    more()
    eventually(lambda: len(group.delivered()) > total - 1_000)
    living.pop().end()
    eventually(lambda: shares(living) == [0.5] * 6)
    living.append(group.start(**CALM))  # the second bounce: without range
    living.pop(0).end()
    more()
    eventually(lambda: shares(living) == [0.5] * 6)
    check(group)


def described(group: Group) -> Any:
    """The group as its coordinator sees it; None while nobody knows it, or answers."""
    future = group.broker.admin.describe_consumer_groups([group.name])[group.name]
    try:
        return future.result(30)
    except (KafkaException, TimeoutError) as fault:
        if isinstance(fault, KafkaException) and not is_retriable(fault.args[0].code()):
            raise
        return None


def assigned(group: Group) -> dict[str, list[int]]:
    """The partitions of each member, by its client.id, as the coordinator says."""
    found: dict[str, list[int]] = {}
    for member in eventually(lambda: described(group)).members:
        listed = member.assignment.topic_partitions if member.assignment else []
        found[member.client_id] = sorted(each.partition for each in listed)
    return found


def test_whoever_leads_the_same_is_assigned(broker: KafkaBroker, tmp_path: Path) -> None:
    """Members rank by their ids, which begin with their client.id; the first one leads."""
    topic = broker.create_topic(partitions=5)
    answers = []
    for name, kinds in (("plain", "ppp"), ("kshare", "kpp"), ("both", "pkp")):
        with closing(Group(broker, topic, tmp_path, f"{topic}-{name}")) as group:
            for kind, client in zip(kinds, "bac", strict=True):
                if kind == "p":
                    group.start_plain(**{"client.id": client})
                else:
                    group.start(**{"client.id": client, **BOTH})
                eventually(lambda: sum(len(each) for each in assigned(group).values()) == 5)
            eventually(lambda: sorted(map(len, assigned(group).values())) == [1, 2, 2])
            answers.append(assigned(group))
            end_all(group)
    assert answers == [{"a": [0, 1], "b": [2, 3], "c": [4]}] * 3


def test_a_group_that_brokers_convert_and_convert_back(group: Group) -> None:
    """A leader that sends no user data lets consumers of KIP-848 join: whole partitions."""
    stop = Event()

    def lead() -> None:
        consumer = KafkaConsumer(
            group.topic,
            bootstrap_servers=group.broker.bootstrap_servers,
            group_id=group.topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        while not stop.is_set():
            consumer.poll(timeout_ms=1000)  # shorter ones interrupt its joining
        consumer.close()

    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(lead)
        try:
            group.name = group.topic
            eventually(lambda: sum(map(len, assigned(group).values())) == PARTITIONS)
            member = group.start(**BOTH)
            eventually(lambda: member.share() > 0)
            new = group.start_plain(**KIP_848)
            eventually(lambda: new.share() == member.share() == 1)
        finally:
            stop.set()  # a failure would wait for the leader, for ever
        leader.result(60)
    eventually(lambda: new.share() + member.share() == PARTITIONS)
    fill(group, 0, 1_000)
    eventually(lambda: group.is_done(1_000))
    assert warnings(member)
    new.end()
    eventually(lambda: member.share() == PARTITIONS)
    others = [group.start(**BOTH) for _ in range(3)]
    fill(group, 1_000, 2_000)
    eventually(lambda: sorted(shares([member, *others])) == [0.5, 0.5, 1, 1])
    check(group)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_both_kinds_come_and_go_at_random(group: Group, seed: int) -> None:
    chance = chance_of(seed)
    group.name = group.topic
    living = [group.start_plain(), group.start(**BOTH)]
    total = 500
    fill(group, 0, total)
    eventually(lambda: all(member.lines() for member in living))
    for step in range(10):
        fill(group, total, total + 500)
        total += 500
        time.sleep(chance.uniform(0.2, 2.0))
        if len(living) < 2 or (len(living) < 5 and chance.random() < 0.5):
            start = group.start_plain if step % 2 else partial(group.start, **BOTH)
            living.append(start())
            eventually(living[-1].lines)
            continue
        victim = living.pop(chance.randrange(len(living)))
        if chance.random() < 0.5:
            victim.signal(signal.SIGKILL)
        else:
            victim.end()
    living.append(group.start(**BOTH))
    eventually(lambda: group.is_done(total))
    for member in living:
        member.end()
    group.check(ends(group))
