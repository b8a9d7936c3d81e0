"""Members that share one partition without key order on a real broker: killed, stopped, joining.

The verdict: each record is delivered, and none by two members that live.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.kafka import KafkaBroker
from integration.members import Group, Member, end_all, eventually, fill_until

RECORDS = 2_000
CHUNK = 100
CONFIG: dict[str, Any] = {
    "consumption.order": "none",
    "cooperative.chunk.records": CHUNK,
    # A busy machine may keep a member from its log for a while.
    "claim.timeout.ms": 10_000,
    "session.timeout.ms": 10_000,
}
# Where nobody dies, nobody is waited for: what others lease may not come again.
PATIENT = {**CONFIG, "claim.timeout.ms": 60_000, "session.timeout.ms": 60_000}


@pytest.fixture
def group(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Group]:
    with closing(Group(broker, topic, tmp_path)) as running:
        fill(running, 0, RECORDS)
        yield running


def fill(group: Group, first: int, last: int) -> None:
    group.broker.produce(group.topic, [(None, f"{i}") for i in range(first, last)], partition=0)


def keep_filled(holds: Callable[[], Any], group: Group, produced: int) -> int:
    """Wait until something holds, with chunks for all; how many records there are then."""
    return fill_until(holds, group, produced, least=15 * CHUNK, write=fill)


def offsets(member: Member) -> list[int]:
    return [offset for _, _, offset, _ in member.records()]


def check(group: Group, *dead: Member, end: int = RECORDS) -> None:
    """Nothing is lost, and what living members were given came once.

    But for what a handler had in hand when its member was ended.
    """
    assert group.delivered() == {(0, offset) for offset in range(end)}
    living = [member for member in group.members if member not in dead]
    counts = Counter(offset for member in living for offset in offsets(member)[:-1])
    assert [offset for offset, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("assign", [False, True])
def test_members_join_and_leave(group: Group, assign: bool) -> None:
    first = group.start(**PATIENT, assign=assign)
    eventually(lambda: len(first.records()) > 100)
    second, third = (group.start(**PATIENT, assign=assign) for _ in range(2))
    produced = keep_filled(
        lambda: all(len(each.records()) > 100 for each in (second, third)), group, RECORDS
    )
    first.end()
    left = len(group.delivered())
    produced = keep_filled(lambda: len(group.delivered()) > left + 500, group, produced)
    fourth = group.start(**PATIENT, assign=assign)
    produced = keep_filled(fourth.records, group, produced)
    eventually(lambda: group.is_done(produced))
    end_all(group)
    check(group, end=produced)
    assert group.committed() == produced


@pytest.mark.parametrize("assign", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_member_is_killed(group: Group, assign: bool) -> None:
    members = [group.start(**CONFIG, assign=assign, pause=0.003) for _ in range(4)]
    produced = keep_filled(
        lambda: all(len(each.records()) > 100 for each in members), group, RECORDS
    )
    victim = members[1]
    victim.signal(signal.SIGKILL)
    killed = time.monotonic()
    eventually(lambda: group.is_done(produced))
    print(f"all delivered {time.monotonic() - killed:.1f} s after the kill")
    for member in members:
        if member is not victim:
            member.end()
    check(group, victim, end=produced)
    again = set(offsets(victim)) & {o for m in members if m is not victim for o in offsets(m)}
    assert len(again) <= 2 * CHUNK  # that it had not committed
    assert group.committed() == produced


@pytest.mark.parametrize("assign", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_member_is_stopped_for_long_and_goes_on(group: Group, assign: bool) -> None:
    one, two = (group.start(**CONFIG, assign=assign, pause=0.003) for _ in range(2))
    produced = keep_filled(
        lambda: len(one.records()) > 150 and len(two.records()) > 150, group, RECORDS
    )
    one.signal(signal.SIGSTOP)
    before = len(offsets(one))
    eventually(lambda: len(group.delivered()) == produced)
    one.signal(signal.SIGCONT)
    produced = keep_filled(lambda: len(one.records()) > before + 50, group, produced)
    eventually(lambda: group.is_done(produced))
    end_all(group)
    late = offsets(one)[before:]
    # It goes on with what nobody had, but for the record that its handler had in hand.
    assert len(set(late) & set(offsets(two))) <= 1
    assert group.committed() == produced


def test_markers_of_transactions_do_not_stop_it(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"{topic}-producer"}
    )
    producer.init_transactions(30)
    for number in range(30):
        producer.begin_transaction()
        for i in range(9):
            producer.produce(topic, f"{i}", partition=0)
        producer.flush(30)  # else nothing of an aborted transaction is in the log
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    with closing(Group(broker, topic, tmp_path)) as group:
        for _ in range(2):
            group.start(
                **{**PATIENT, "cooperative.chunk.records": 10},
                **{"isolation.level": "read_committed"},
            )
        eventually(lambda: len(group.delivered()) == 180)
        eventually(lambda: group.committed() == 300)
        end_all(group)
        assert sum(len(member.records()) for member in group.members) == 180
