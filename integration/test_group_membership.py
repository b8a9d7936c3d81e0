"""Members of one group on a real broker: they join, leave, are killed and stopped.

The verdict is over all that was delivered, in the order of time: it is that of
:func:`kshare.testing.check_order`, and that a key had one living owner at a time
(:mod:`integration.history`). It excuses nothing during rebalances.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.chance import chance_of
from integration.group_log import consumer_groups
from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually, fill, fill_until
from tests.support import shown


@pytest.fixture
def group(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Group]:
    with closing(Group(broker, topic, tmp_path)) as running:
        yield running


def test_members_join_and_leave(group: Group) -> None:
    fill(group, 0, 1_000)
    config = {"session.timeout.ms": 45_000}  # nobody is to be dropped
    first = group.start(**config)
    eventually(lambda: len(first.records()) > 100)
    second, third = group.start(**config), group.start(**config, pattern=True)
    eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in group.members))
    produced = fill_until(
        lambda: len(second.records()) > 100 and len(third.records()) > 100, group, 1_000
    )
    eventually(lambda: are_shown(group, 3))
    first.end()
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in (second, third)))
    eventually(lambda: group.is_done(produced))
    end_all(group)
    group.check({0: produced})
    times = Counter(offset for member in group.members for _, _, offset, _ in member.records())
    again = {offset for offset, count in times.items() if count > 1}
    assert again <= {first.records()[-1][2]}  # at most what it had in hand: nobody was killed


def are_shown(group: Group, count: int) -> bool:
    """Whether Kafka's own tool shows so many members."""
    shown = consumer_groups(group.broker, group.topic, "--describe", "--members", "--verbose")
    print(shown)
    return shown.count(f"{group.topic}(0)") + shown.count(f"{group.topic}:0") == count


def test_a_killed_member_is_replaced(group: Group) -> None:
    fill(group, 0, 1_000)
    one, *others = (group.start() for _ in range(3))
    eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in group.members))
    produced = fill_until(lambda: all(len(m.records()) > 300 for m in group.members), group, 1_000)
    one.signal(signal.SIGKILL)
    shown.killed("member of a group")
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in others))
    eventually(lambda: group.is_done(produced))
    end_all_but(group, one)
    group.check({0: produced})


def end_all_but(group: Group, *dead: Member) -> None:
    for member in group.members:
        if member not in dead:
            member.end()


def test_a_member_is_stopped_past_its_session_and_goes_on(group: Group) -> None:
    fill(group, 0, 1_000)
    one, *others = (group.start() for _ in range(3))
    eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in group.members))
    produced = fill_until(lambda: len(one.records()) > 200, group, 1_000)
    assert os.getpgid(one.process.pid) == one.process.pid  # else pytest might get SIGHUP
    one.signal(signal.SIGSTOP)
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in others))
    written = len(others[0].records())
    produced = fill_until(lambda: len(others[0].records()) > written + 100, group, produced)
    one.signal(signal.SIGCONT)
    eventually(lambda: any(line[0] == "lost" for line in one.lines()))
    fill(group, produced, produced + 1_000)
    produced += 1_000
    eventually(lambda: all(abs(m.share() - 1 / 3) < 0.01 for m in group.members))
    eventually(lambda: group.is_done(produced))
    end_all(group)
    group.check({0: produced})


@pytest.mark.parametrize("is_late", [False, True], ids=["afterwards", "meanwhile"])
def test_a_static_leader_is_started_again_and_leads_on(group: Group, is_late: bool) -> None:
    """Nothing is assigned again, and it still sees that the topic gets partitions.

    These come while it is down, or once it is there again.
    """
    config = {"metadata.max.age.ms": 1_000, "session.timeout.ms": 60_000}
    fill(group, 0, 2_000)
    leader = group.start(**{**config, "group.instance.id": "a"})
    eventually(lambda: abs(leader.share() - 1) < 0.01)
    other = group.start(**{**config, "group.instance.id": "b"})
    eventually(lambda: all(abs(m.share() - 1 / 2) < 0.01 for m in group.members))
    leader.signal(signal.SIGKILL)
    leader.process.wait()
    if is_late:
        group.broker.add_partitions(group.topic, 2)
    changes = len(changes_of(other))
    again = group.start(**{**config, "group.instance.id": "a"})
    if not is_late:
        eventually(lambda: abs(again.share() - 1 / 2) < 0.01)
        fill(group, 2_000, 4_000)
        eventually(lambda: group.is_done(4_000))
        assert len(changes_of(other)) == changes  # there was no rebalance
        assert len(changes_of(again)) == 1
        group.broker.add_partitions(group.topic, 2)
    eventually(lambda: abs(again.share() + other.share() - 2) < 0.01)
    end_all(group)


def changes_of(member: Member) -> list[list[str]]:
    """What its callbacks were told."""
    return [line for line in member.lines() if line[0] != "record"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_members_come_and_go_at_random(group: Group, seed: int) -> None:
    chance = chance_of(seed)
    living = [group.start(), group.start()]
    fill(group, 0, 500)
    total = 500
    eventually(lambda: all(member.lines() for member in living))
    for _ in range(12):
        fill(group, total, total + 500)
        total += 500
        time.sleep(chance.uniform(0.2, 2.0))
        what = chance.choice(["start", "kill", "end", "stop"])
        if what == "start" and len(living) < 4:
            living.append(group.start())
            eventually(living[-1].lines)
        elif len(living) > 1:
            victim = living.pop(chance.randrange(len(living)))
            if what == "kill":
                victim.signal(signal.SIGKILL)
            elif what == "end":
                victim.end()
            else:
                victim.signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0, 8))
                victim.signal(signal.SIGCONT)
                living.append(victim)
    eventually(lambda: group.is_done(total))
    for member in living:
        member.end()
    group.check({0: total})
