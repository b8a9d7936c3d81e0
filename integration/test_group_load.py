"""Members that share a partition by load on a real broker: a hot key, and members that leave.

The verdict is :func:`kshare.testing.check_order` over all that was delivered, in the order of time.
"""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.members import Group, end_all, eventually, fill_until

HOT = "hot"


@pytest.fixture
def group(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Group]:
    with closing(Group(broker, topic, tmp_path)) as running:
        yield running


def fill(group: Group, first: int, last: int) -> None:
    """A third of the records are of the hot key."""
    rows = [(f"key-{i * i % 331}" if i % 3 else HOT, f"{i}") for i in range(first, last)]
    group.broker.produce(group.topic, rows)


def fill_partition(group: Group, partition: int, first: int, last: int) -> None:
    rows = [(f"key-{i * i % 331}", f"{i}") for i in range(first, last)]
    group.broker.produce(group.topic, rows, partition=partition)


def have_had_shares(group: Group, *wanted: float) -> bool:
    """Whether the members had these parts of the partition at any time."""
    lines = [
        (int(line[1]), number, float(line[2]) * (1 if line[0] == "assigned" else -1))
        for number, member in enumerate(group.members)
        for line in member.lines()
        if line[0] in {"assigned", "revoked", "lost"}
    ]
    shares = [0.0] * len(wanted)
    for _, number, change in sorted(lines):
        shares[number] += change
        if all(abs(share - part) < 0.01 for share, part in zip(shares, wanted, strict=True)):
            return True
    return False


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
    for _ in range(3):
        group.start(**config)

    def has_a_narrow_range() -> bool:
        shares = [member.share() for member in group.members]
        have_begun = all(member.records() for member in group.members)
        if not (have_begun and min(shares) < 0.001 and sum(shares) > 0.999):
            return False  # something is on its way
        hot = min(group.members, key=lambda member: member.share())
        return HOT.encode().hex() in {row[3] for row in hot.records()[-50:]}

    produced = fill_until(has_a_narrow_range, group, 0, least=1_500, write=fill)
    hot = min(group.members, key=lambda member: member.share())
    hot.signal(signal.SIGKILL)
    others = [member for member in group.members if member is not hot]
    eventually(lambda: sum(member.share() for member in others) > 0.999)
    fill(group, produced, produced + 500)
    produced += 500
    eventually(lambda: group.is_done(produced))
    end_all(group)
    group.check({0: produced})


@pytest.mark.long
def test_a_hot_partition_among_enough_is_shared(broker: KafkaBroker, tmp_path: Path) -> None:
    """Four members, four partitions, one with ten times the records: each comes once, in order."""
    config = {
        "rangeAssignor": "adaptive",
        "probing.rebalance.interval.ms": 4_000,
        "session.timeout.ms": 45_000,  # nobody is to be dropped
        "pause": 0.003,
    }
    sizes = {0: 4_000, 1: 400, 2: 400, 3: 400}
    with closing(Group(broker, broker.create_topic(partitions=4), tmp_path)) as group:
        for partition, size in sizes.items():
            fill_partition(group, partition, 0, size)
        for _ in range(4):
            group.start(**config)

        def is_shared() -> bool:
            left = sizes[0] - sum(at[0] == 0 for at in group.delivered())
            if left < 1_000:
                fill_partition(group, 0, sizes[0], sizes[0] + 500)
                sizes[0] += 500
            of_hot = [sum(row[1] == 0 for row in member.records()) for member in group.members]
            return min(of_hot) > 100

        eventually(is_shared)
        eventually(lambda: group.is_done(sum(sizes.values())))
        end_all(group)
        group.check(sizes)
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
        eventually(lambda: have_shares(group, 1 / 3, 1 / 3, 1 / 3))
        assert have_had_shares(group, 1 / 2, 1 / 2, 0)
        produced = fill_until(far.records, group, 2_000, write=fill)
        eventually(lambda: group.is_done(produced))
        end_all(group)
        group.check({0: produced})


@pytest.mark.long
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
    produced = fill_until(
        lambda: have_shares(group, 1 / 3, 1 / 3, 1 / 3) and spare.records(),
        group,
        200,
        least=3_000,
        write=fill,
    )
    eventually(lambda: group.is_done(produced))
    eventually(lambda: have_shares(group, 1 / 2, 1 / 2, 0))
    end_all(group)
    group.check({0: produced})


@pytest.mark.long
def test_a_static_leader_that_is_started_again_asks_its_assignor_again(group: Group) -> None:
    """At the deadline that it had set before: the spare member helps, though nobody has joined."""
    config = {
        "taskAssignor": "integration.lag_assignor:SpareAssignor",
        "minPartitions": 6,
        "pause": 0.003,
        "probing.rebalance.interval.ms": 3_600_000,
        "session.timeout.ms": 60_000,
    }
    static = {**config, "group.instance.id": "a", "client.tag.role": "worker"}
    fill(group, 0, 200)
    leader = group.start(**static)
    eventually(lambda: abs(leader.share() - 1) < 0.01)
    worker, spare = (group.start(**config, **{"client.tag.role": r}) for r in ("worker", "spare"))

    def have(*wanted: float) -> bool:
        members = zip((leader, worker, spare), wanted, strict=True)
        return all(abs(member.share() - share) < 0.01 for member, share in members)

    eventually(lambda: have(1 / 2, 1 / 2, 0))
    leader.signal(signal.SIGKILL)
    leader.process.wait()
    leader = group.start(**static)
    eventually(lambda: have(1 / 2, 1 / 2, 0))
    produced = fill_until(
        lambda: have(1 / 3, 1 / 3, 1 / 3) and spare.records(), group, 200, least=3_000, write=fill
    )
    eventually(lambda: group.is_done(produced))
    end_all(group)
