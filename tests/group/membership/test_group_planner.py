"""How a leader plans: whose configuration counts, what is told, and when it plans again."""

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kshare.assignment import (
    ApplicationState,
    KafkaStreamsAssignment,
    StickyTaskAssignor,
    TaskAssignment,
    TaskAssignor,
)
from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeObservation, RangeRequest
from kshare.errors import TaskAssignmentException
from kshare.group.membership.group_planner import GroupPlanner, SeenTopics
from kshare.group.protocol.membership.report import MemberReport
from kshare.group.protocol.membership.requests import PlanRequest
from kshare.group.protocol.membership.subscription import (
    Subscription,
    decode_assignment,
    encode_subscription,
    in_order,
)
from kshare.group.protocol.plan.generation import Generation, followup_of
from tests.support.clock import Clock
from tests.support.groups import group_config

T0 = TopicPartition("t", 0)
DEADLINES: Iterator[int | None] = iter(())


class Asking(TaskAssignor):
    """Kafka's sticky assignor, which asks for follow-ups."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        first, *others = StickyTaskAssignor().assign(application_state).assignment
        deadline = next(DEADLINES)
        if deadline is not None:
            deadline = deadline and application_state.now_ms + deadline
            first = KafkaStreamsAssignment(first.process_id, first.active).with_followup_rebalance(
                deadline
            )
        return TaskAssignment((first, *others))


class Failing(StickyTaskAssignor):
    """Kafka's sticky assignor, which cannot answer now and then."""

    is_down = False

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        if self.is_down:
            raise TaskAssignmentException("not now")
        return super().assign(application_state)


class Counting(StickyTaskAssignor):
    """It fails otherwise each time."""

    asked = 0

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        Counting.asked += 1
        raise LookupError(f"attempt {Counting.asked}")


class Dating(StickyTaskAssignor):
    """Kafka's sticky assignor, which wants to be asked again in five minutes."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        first, *others = super().assign(application_state).assignment
        now = datetime.fromtimestamp(application_state.now_ms / 1000, UTC)
        return TaskAssignment((first.with_followup_rebalance(now + timedelta(minutes=5)), *others))


def no_ranges(request: RangeRequest) -> dict[TopicPartition, Any]:
    """A range assignor without an answer."""
    raise LookupError("no idea")


class Leader:
    """A leader, and the members of its group."""

    def __init__(
        self, *names: str, report: MemberReport | None = None, partitions: int = 1, **config: Any
    ) -> None:
        self.clock = Clock()
        self.config = group_config("localhost:1", **config)
        self.planner = GroupPlanner(self.config, "a", wall_clock=self.clock.monotonic)
        self.members = {
            name: Subscription(name, ("t",), report=report or self.config.report) for name in names
        }
        self.asked: list[list[str]] = []
        self._topics = {"t": partitions}
        self.generation = 0

    def racks(self, topics: Collection[str]) -> dict[TopicPartition, tuple[str | None, ...]]:
        self.asked.append(list(topics))
        return {T0: ("r1",)}

    def plan(self) -> Generation:
        self.generation += 1
        said = {name: encode_subscription(each) for name, each in self.members.items()}
        seen = SeenTopics(self._topics, {})
        planned = self.planner.plan(PlanRequest(self.generation, said), seen, self.racks)
        assert planned is not None
        return planned

    def give(self, planned: Generation) -> None:
        """The members have what was planned."""
        for name, each in self.members.items():
            target = in_order(planned.plan.target[name])
            self.members[name] = Subscription(
                name, ("t",), owned=target, target=target, epoch=self.generation, report=each.report
            )


def test_with_the_plan_of_always_nothing_is_asked_for_again() -> None:
    leader = Leader("a", "b")
    leader.plan()
    assert leader.planner.followup_seconds is None
    assert leader.asked == []


@pytest.mark.parametrize(("names", "seconds"), [("ab", 7.0), ("a", None)])
def test_loads_are_looked_at_again_while_members_share(names: str, seconds: float | None) -> None:
    leader = Leader(*names, rangeAssignor="adaptive", probing_rebalance_interval_ms=7_000)
    leader.plan()
    assert leader.planner.followup_seconds == seconds


def test_the_deadline_of_an_assignor_is_honoured_and_at_once_is_not_for_ever() -> None:
    global DEADLINES  # noqa: PLW0603 - the assignor is found by its path
    DEADLINES = iter([5_000, None, 0, 0, 0])
    leader = Leader(
        "a", "b", taskAssignor=f"{__name__}:Asking", probing_rebalance_interval_ms=9_000
    )
    seconds = []
    for _ in range(4):
        leader.give(leader.plan())
        seconds.append(leader.planner.followup_seconds)
    assert seconds == [5.0, None, 9.0, 9.0]
    leader.members["c"] = Subscription("c", ("t",), report=leader.config.report)
    leader.plan()
    assert leader.planner.followup_seconds == 0.0
    assert leader.asked == [["t"]] * 5


def test_a_round_that_is_finished_keeps_the_deadline() -> None:
    global DEADLINES  # noqa: PLW0603 - the assignor is found by its path
    DEADLINES = iter([5_000])
    leader = Leader("a", "b", taskAssignor=f"{__name__}:Asking")
    planned = leader.plan()
    leader.give(planned)
    leader.members["b"] = Subscription(
        "b", ("t",), target=in_order(planned.plan.target["b"]), epoch=1,
        report=leader.config.report,
    )  # fmt: skip
    leader.clock.sleep(2.0)
    assert leader.plan().plan.target == planned.plan.target
    assert leader.planner.followup_seconds == 3.0


def test_an_assignor_that_fails_is_asked_again_at_once_and_then_from_time_to_time() -> None:
    leader = Leader("a", "b", taskAssignor=Failing, probing_rebalance_interval_ms=9_000)
    seconds = []
    for Failing.is_down in (False, True, True, True, False, True):
        leader.give(leader.plan())
        seconds.append(leader.planner.followup_seconds)
    assert seconds == [None, 0.0, 9.0, 9.0, None, 0.0]


def test_the_deadline_may_be_a_datetime() -> None:
    leader = Leader("a", "b", taskAssignor=Dating)
    leader.plan()
    assert leader.planner.followup_seconds == 300.0


def test_the_deadline_survives_a_change_of_the_leader_between_two_rounds() -> None:
    """The members say it: the next leader has not planned the first round."""
    global DEADLINES  # noqa: PLW0603 - the assignor is found by its path
    DEADLINES = iter([5_000])
    first = Leader("a", "b", taskAssignor=f"{__name__}:Asking")
    first.members["b"] = replace(first.members["b"], owned=((T0, ALL_HASHES),), epoch=0)
    planned = first.plan()
    assert planned.plan.now != planned.plan.target
    second = Leader("a", "b", taskAssignor=f"{__name__}:Asking")
    for name, sent in planned.assignments(7, "log").items():
        received = decode_assignment(sent)
        second.members[name] = replace(
            first.members[name], owned=received.assigned, target=received.target, epoch=7,
            followup_ms=received.followup_ms,
        )  # fmt: skip
    second.clock.sleep(2.0)
    assert second.plan().plan.target == planned.plan.target
    assert second.planner.followup_seconds == 3.0


def test_the_deadline_is_said_in_every_round() -> None:
    """The broker keeps what members were sent: a static leader that is started again reads it."""
    global DEADLINES  # noqa: PLW0603 - the assignor is found by its path
    DEADLINES = iter([5_000])
    leader = Leader("a", "b", taskAssignor=f"{__name__}:Asking")
    sent = leader.plan().assignments(7, "log")
    again = Leader("a", "b", taskAssignor=f"{__name__}:Asking")
    again.planner.lead_on(followup_of(sent.values()))
    again.clock.sleep(2.0)
    assert again.planner.followup_seconds == 3.0
    leader = Leader("a", "b", taskAssignor=Failing)
    for Failing.is_down in (False, True):
        sent = leader.plan().assignments(7, "log")
    again.planner.lead_on(followup_of(sent.values()))
    assert again.planner.followup_seconds == 0.0
    again.planner.lead_on(followup_of([]))
    assert again.planner.followup_seconds is None


def test_a_leader_with_adaptive_looks_again_at_whole_partitions_by_its_interval() -> None:
    """What waits weighs less, the more comes until the leader looks again."""
    for minutes, is_cut in ((1, True), (1000, False)):
        config: dict[str, Any] = {
            "rangeAssignor": "adaptive", "probing.rebalance.interval.ms": 60_000 * minutes,
        }  # fmt: skip
        leader = Leader("a", "b", "c", partitions=3, **config)
        leader.give(leader.plan())
        assert leader.planner.followup_seconds == 60.0 * minutes
        for name, said in leader.members.items():
            ((at, _),) = said.owned
            seen = RangeObservation(WHOLE, 6_000, 6_000, 5.0, tuple(range(0, 10**18, 10**16)))
            lags = ((at, 144_000 if at == T0 else 0),)
            report = replace(said.report, loads=((at, (seen,)),), lags=lags, spans=(60.0,))
            leader.members[name] = replace(said, report=report)
        target = leader.plan().plan.target
        assert all(assigned.get(T0) != ALL_HASHES for assigned in target.values()) is is_cut


def test_what_is_told_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Members come and go under other names, and texts of faults differ each time."""
    leader = Leader(taskAssignor=Counting)
    with caplog.at_level(logging.WARNING, "kshare.group"):
        for number in range(20):
            said = Subscription(f"m{number}", ("t",), report=MemberReport("adaptive"))
            leader.members = {f"m{number}": said}
            leader.plan()
    assert len(leader.planner._logged) == 2
    assert sum("failed: " in message for message in caplog.messages) == 1
    assert sum("m7 has rangeAssignor" in message for message in caplog.messages) == 1


def test_what_is_wrong_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    name = f"{__name__}:no_ranges"
    seen = RangeObservation(WHOLE, 100, 100, 1.0)
    leader = Leader("a", "b", rangeAssignor=name, report=MemberReport(name, loads=((T0, (seen,)),)))
    with caplog.at_level(logging.WARNING, "kshare.group"):
        for _ in range(3):
            leader.give(leader.plan())
    (message,) = caplog.messages
    assert f"rangeAssignor {name}: LookupError('no idea')" in message


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (MemberReport("adaptive"), ("has rangeAssignor=adaptive, and the leader, whose counts, "
         "round-robin")),
        (MemberReport(task_assignor="x.y"), ("has taskAssignor=x.y, and the leader, whose counts, "
         "none")),
    ],
)  # fmt: skip
def test_members_that_would_plan_otherwise_are_named_once(
    report: MemberReport, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Leader("a", "b", report=report)
    with caplog.at_level(logging.WARNING, "kshare.group"):
        for _ in range(2):
            leader.give(leader.plan())
    assert [message.split(": ")[1].split(" ")[1] for message in caplog.messages] == ["a", "b"]
    assert all(text in message for message in caplog.messages)
