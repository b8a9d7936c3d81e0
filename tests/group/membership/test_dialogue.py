"""What a member says to a coordinator that answers late, or not at all: it leaves all the same."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KshareError
from kshare.group.core.member import GroupMember, Level
from kshare.group.core.right import Liveness
from kshare.group.membership.dialogue import MemberDialogue
from kshare.group.membership.handle import schedule_of
from kshare.group.protocol.membership.membership_state import Membership, Standing, State
from kshare.group.protocol.membership.subscription import (
    MemberAssignment,
    Subscription,
    encode_assignment,
)
from tests.support.clock import Clock, until
from tests.support.groups import group_config
from tests.support.silent import SilentConnection, silent_connections

ASSIGNED = MemberAssignment(((TopicPartition("t", 0), ALL_HASHES),), 7, None, "log")
FINE = SimpleNamespace(error_code=0)
MOVED = SimpleNamespace(error_code=16)
GONE = ConnectionResetError("one:1 is gone")


class Talk:
    """A member of generation 1, and what it says to whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = silent_connections(monkeypatch)
        self.clock = Clock()
        config = group_config("one:1", session_timeout_ms=30_000, heartbeat_interval_ms=3_000)
        standing = Standing("id-1", 1)
        said = Subscription("me", ("t",))
        core = Membership("g", said, state=State.SYNCING, standing=standing)
        core.synced(encode_assignment(ASSIGNED))
        core.take()
        core.applied()
        liveness = Liveness(30.0, 300.0, polled_at=self.clock.now)
        self.member = GroupMember(core, liveness, schedule_of(config))
        leader: Any = SimpleNamespace(look=lambda _: None, close=lambda: None)
        now = self.clock.monotonic
        self.dialogue = MemberDialogue(config, self.member, leader, lambda: None, now)

    def has_ended(self) -> bool:
        return self.dialogue.has_ended

    def step(self) -> None:
        """All that can be read is said to be there."""
        self.dialogue.step(self.dialogue.sockets)

    def until(self, is_so: Callable[[], object]) -> None:
        """Serve the member until something is so; connections are made by threads."""

        def served() -> object:
            self.step()
            return is_so()

        until(served, 10.0)

    @property
    def said(self) -> list[list[str]]:
        """Requests on each connection."""
        return [[name.removesuffix("Request") for name in each.names] for each in self.made]

    def beat(self) -> SilentConnection:
        """Let it send a heartbeat, which is not answered."""
        self.until(lambda: self.said == [["Heartbeat"]])
        return self.made[0]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Talk:
    return Talk(monkeypatch)


@pytest.mark.parametrize("answer", [GONE, MOVED])
def test_who_leaves_amid_a_heartbeat_to_a_coordinator_that_is_gone_leaves_at_the_next(
    talk: Talk, answer: Any
) -> None:
    connection = talk.beat()
    talk.dialogue.leave()
    connection.answers.append(answer)
    talk.until(lambda: talk.said == [["Heartbeat"], ["LeaveGroup"]])
    assert not talk.has_ended()
    talk.made[1].answers.append(MOVED)  # it is no use to wait
    talk.step()
    assert talk.has_ended()
    assert talk.said == [["Heartbeat"], ["LeaveGroup"]]


def test_who_leaves_has_no_fault_if_it_is_not_authorized_any_more(talk: Talk) -> None:
    connection = talk.beat()
    talk.dialogue.leave()
    connection.answers.append(AuthorizationError("not authorized"))
    talk.until(lambda: talk.said == [["Heartbeat"], ["LeaveGroup"]])
    talk.made[1].answers.append(AuthorizationError("not authorized"))
    talk.step()
    assert talk.has_ended()
    assert talk.member.membership.fault is None
    assert max(level for level, _, _ in talk.member.notices) == Level.WARNING


def test_an_answer_about_a_generation_before_it_joined_again_is_not_taken(talk: Talk) -> None:
    connection, core = talk.beat(), talk.member.membership
    connection.answers.append(FINE)
    talk.step()
    core.rebalance()
    talk.until(lambda: ["JoinGroup"] in talk.said)
    talk.made[1].answers.append(
        SimpleNamespace(
            error_code=0, skip_assignment=True, member_id="id-1", generation_id=2, leader="id-1",
            members=[], protocol_name="kshare-range-v1",
        )
    )  # fmt: skip
    talk.until(lambda: talk.said[0][-1] == "DescribeGroups")
    talk.member.fenced()
    core.take()
    core.applied()
    talk.until(lambda: talk.said[1] == ["JoinGroup"] * 2)
    connection.answers.append(SimpleNamespace(groups=[SimpleNamespace(members=[])]))
    talk.step()
    assert core.state is State.JOINING
    assert core.generation == -1


def test_a_leave_that_was_sent_in_vain_is_not_sent_again(talk: Talk) -> None:
    talk.dialogue.leave()
    talk.until(lambda: talk.said == [["LeaveGroup"]])
    talk.made[0].answers.append(GONE)
    talk.step()
    assert talk.has_ended()


@pytest.mark.parametrize("answer", [FINE, GONE])
def test_a_leave_that_was_decided_before_the_end_is_sent_before_the_end(
    talk: Talk, answer: Any
) -> None:
    """Its session has ended, then its user closes it, and only then a heartbeat is answered."""
    connection = talk.beat()
    talk.member.end(KshareError("the log is damaged"))
    talk.step()
    talk.dialogue.leave()
    talk.step()
    assert not talk.has_ended()
    connection.answers.append(answer)
    talk.until(lambda: ["LeaveGroup"] in [each[-1:] for each in talk.said])
    assert not talk.has_ended()
    talk.made[-1].answers.append(FINE)
    talk.step()
    assert talk.has_ended()


def test_a_leave_that_was_decided_outlives_a_heartbeat_that_fails(talk: Talk) -> None:
    connection = talk.beat()
    talk.clock.now += 301.0  # nobody polls
    talk.step()
    connection.answers.append(GONE)
    talk.step()
    talk.clock.now = talk.member.schedule.retry_at - 0.001
    for _ in range(3):
        talk.step()
    assert talk.said == [["Heartbeat"]]
    talk.clock.now = talk.member.schedule.retry_at
    talk.until(lambda: talk.said == [["Heartbeat"], ["LeaveGroup"]])


def test_who_leaves_while_it_connects_does_not_join(talk: Talk) -> None:
    core = talk.member.membership
    core.rebalance()
    core.standing = Standing()
    talk.member.schedule.heartbeat_at = float("inf")
    talk.step()
    assert talk.member.awaits  # JoinGroup: the connection is made by a thread
    talk.dialogue.leave()
    talk.until(lambda: talk.made)
    talk.step()
    assert talk.has_ended()
    assert talk.said == [[]]


def test_who_is_to_say_nothing_more_waits_for_no_heartbeat(talk: Talk) -> None:
    talk.member.membership.is_static = True
    talk.beat()
    talk.dialogue.leave()
    talk.step()
    assert talk.has_ended()
