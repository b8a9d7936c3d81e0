"""Members that share a partition by load on a real broker: a hot key, and members that leave.

The verdict is :func:`kshare.testing.check_order` over all that was delivered, in the order of time.
"""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.members import Group, end_all, eventually

HOT = "hot"


@pytest.fixture
def group(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Group]:
    with closing(Group(broker, topic, tmp_path)) as running:
        yield running


def fill(group: Group, first: int, last: int) -> None:
    """A third of the records are of the hot key."""
    rows = [(f"key-{i * i % 331}" if i % 3 else HOT, f"{i}") for i in range(first, last)]
    group.broker.produce(group.topic, rows)


def have_shares(group: Group, *wanted: float) -> bool:
    """Whether the members have these parts of the partition, in the order of their starts."""
    members = zip(group.members, wanted, strict=True)
    return all(abs(member.share() - share) < 0.01 for member, share in members)


def test_a_hot_key_gets_a_range_of_its_own_and_a_killed_member_is_replaced(group: Group) -> None:
    config = {
        "rangeAssignor": "adaptive",
        "probing.rebalance.interval.ms": 4_000,
        "hot": (HOT, 0.006),
        "pause": 0.0002,
    }
    produced = 2_000
    fill(group, 0, produced)
    for _ in range(3):
        group.start(**config)

    def has_a_narrow_range() -> bool:
        nonlocal produced
        if len(group.delivered()) > produced - 1_500:
            fill(group, produced, produced + 500)
            produced += 500
        shares = [member.share() for member in group.members]
        have_begun = all(member.records() for member in group.members)
        return have_begun and min(shares) < 0.001 and sum(shares) > 0.999  # nothing is on its way

    eventually(has_a_narrow_range)
    hot = min(group.members, key=lambda member: member.share())
    keys = {row[3] for row in hot.records()[-50:]}
    assert HOT.encode().hex() in keys
    hot.signal(signal.SIGKILL)
    others = [member for member in group.members if member is not hot]
    eventually(lambda: sum(member.share() for member in others) > 0.999)
    fill(group, produced, produced + 500)
    produced += 500
    eventually(lambda: len(group.delivered()) == produced)
    end_all(group)
    group.check({0: produced})


def test_a_hot_partition_among_enough_is_shared(broker: KafkaBroker, tmp_path: Path) -> None:
    """Four members, four partitions, one with ten times the records: each comes once, in order."""
    config = {"rangeAssignor": "adaptive", "probing.rebalance.interval.ms": 4_000, "pause": 0.003}
    sizes = {0: 4_000, 1: 400, 2: 400, 3: 400}
    with closing(Group(broker, broker.create_topic(partitions=4), tmp_path)) as group:
        for partition, size in sizes.items():
            rows = [(f"key-{i * i % 331}", f"{i}") for i in range(size)]
            broker.produce(group.topic, rows, partition=partition)
        for _ in range(4):
            group.start(**config)
        eventually(lambda: len(group.delivered()) == sum(sizes.values()))
        end_all(group)
        group.check(sizes)
        of_hot = [sum(row[1] == 0 for row in member.records()) for member in group.members]
        assert min(of_hot) > 100, of_hot
        assert sum(len(member.records()) for member in group.members) == sum(sizes.values())


def test_tasks_go_to_members_in_the_rack_of_their_replicas_until_a_deadline(
    tmp_path: Path,
) -> None:
    """Racks are the brokers' and the members'; nothing but the deadline is over at the end."""
    config = {"taskAssignor": "integration.rack_assignor:RackAssignor", "minPartitions": 6}
    racks = ("near", "near", "far")
    with (
        KafkaBroker(config={"broker.rack": "near"}) as broker,
        closing(Group(broker, broker.create_topic(), tmp_path)) as group,
    ):
        fill(group, 0, 2_000)
        *_, far = (group.start(**config, **{"client.rack": each}) for each in racks)
        eventually(lambda: have_shares(group, 1 / 2, 1 / 2, 0))
        fill(group, 2_000, 3_000)
        eventually(lambda: have_shares(group, 1 / 3, 1 / 3, 1 / 3))
        fill(group, 3_000, 4_000)
        eventually(lambda: len(group.delivered()) == 4_000)
        end_all(group)
        group.check({0: 4_000})
        assert far.records()


def test_spare_members_help_while_others_are_behind(group: Group) -> None:
    """The assignor decides by tags and lags, and is asked again though no member comes or goes."""
    config = {
        "taskAssignor": "integration.lag_assignor:SpareAssignor",
        "minPartitions": 6,
        "pause": 0.003,
    }
    fill(group, 0, 200)
    roles = ("worker", "worker", "spare")
    *_, spare = (group.start(**config, **{"client.tag.role": each}) for each in roles)
    eventually(lambda: have_shares(group, 1 / 2, 1 / 2, 0))
    fill(group, 200, 6_000)
    eventually(lambda: have_shares(group, 1 / 3, 1 / 3, 1 / 3))
    eventually(lambda: len(group.delivered()) == 6_000)
    eventually(lambda: have_shares(group, 1 / 2, 1 / 2, 0))
    end_all(group)
    group.check({0: 6_000})
    assert spare.records()
