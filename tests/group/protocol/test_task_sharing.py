"""The leader's plan by a task assignor: it tiles, comes to an end, and sees members as they are."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    AssignmentError,
    FallbackPriorTaskAssignor,
    GroupAssignment,
    GroupSubscription,
    HighAvailabilityTaskAssignor,
    HostInfo,
    KafkaStreamsAssignment,
    ProcessId,
    StickyTaskAssignor,
    TaskAssignment,
    TaskAssignor,
    TaskId,
)
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, NO_HASHES, WHOLE, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.errors import TaskAssignmentException
from kshare.group.protocol.membership.report import MemberReport
from kshare.group.protocol.membership.subscription import Assigned, Subscription, in_order
from kshare.group.protocol.plan.group_plan import GroupPlan, plan_group
from kshare.group.protocol.plan.task_sharing import TaskPlanning, TaskSharing, dealt_to_threads
from kshare.ranges import adaptive, round_robin
from tests.group.protocol.test_group_plan import (
    LOWER,
    UPPER,
    Group,
    both,
    check_no_overlap,
    check_tiles,
    given_up,
    group_of,
    joined,
    on_host,
    tp,
    width,
)
from tests.group.protocol.test_group_plan import stores as stores_of_instances
from tests.group.protocol.test_load_sharing import ADAPTIVE, POINTS, Load

STICKY = TaskPlanning(StickyTaskAssignor(), "StickyTaskAssignor", round_robin)


def plan(
    group: Group, partitions: Mapping[str, int], planning: TaskPlanning = STICKY, **given: Any
) -> tuple[GroupPlan, TaskSharing]:
    sharing = TaskSharing(group, planning)
    planned = plan_group(group, partitions, deal_shared=sharing.deal, **given)
    sharing.notify(planned)
    return planned, sharing


def settled(group: Group, planned: GroupPlan, epoch: int) -> Group:
    return {
        member: replace(
            said,
            owned=in_order(planned.target[member]),
            target=in_order(planned.target[member]),
            epoch=epoch,
        )
        for member, said in group.items()
    }


def stores(target: Mapping[str, Assigned]) -> int:
    """How many pairs of member and partition there are."""
    return sum(map(len, target.values()))


class Recorder(TaskAssignor):
    """Answers as it is told, and keeps what it was asked and told."""

    def __init__(self, answer: Callable[[ApplicationState], TaskAssignment]) -> None:
        self.answer = answer
        self.states: list[ApplicationState] = []
        self.told: list[AssignmentError] = []
        self.outcomes: list[tuple[GroupAssignment, GroupSubscription]] = []

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        self.states.append(application_state)
        return self.answer(application_state)

    def on_assignment_computed(
        self,
        assignment: GroupAssignment,
        subscription: GroupSubscription,
        error: AssignmentError,
    ) -> None:
        self.told.append(error)
        self.outcomes.append((assignment, subscription))


def to_the_first(state: ApplicationState) -> TaskAssignment:
    first, *others = state.states
    tasks = frozenset(state.all_tasks)
    return TaskAssignment(
        (KafkaStreamsAssignment(first, tasks), *map(KafkaStreamsAssignment, others))
    )


def in_turn(
    *answers: Callable[[ApplicationState], TaskAssignment],
) -> Callable[[ApplicationState], TaskAssignment]:
    """One answer after the other."""
    left = list(answers)

    def answer(state: ApplicationState) -> TaskAssignment:
        return left.pop(0)(state)

    return answer


def hashes_told(recorder: Recorder, *topics: str) -> dict[str, Assigned]:
    """What the assignor was told last that members get, by its tasks."""
    assignment, _ = recorder.outcomes[-1]
    got: dict[str, Assigned] = {}
    for member, each in assignment.assignments.items():
        parts: dict[TopicPartition, KeyRanges] = {}
        for task in each.active_tasks:
            partition = tp(task.partition, topics[task.subtopology])
            parts[partition] = parts.get(partition, NO_HASHES) | [task.key_range or WHOLE]
        assert each.partitions == tuple(sorted(parts))
        assert list(each.active_tasks) == sorted(set(each.active_tasks))
        got[member] = parts
    return got


assignors = st.sampled_from(
    [StickyTaskAssignor, HighAvailabilityTaskAssignor, FallbackPriorTaskAssignor]
)


@given(
    assignors,
    st.integers(1, 3),
    st.none() | st.integers(1, 12),
    st.booleans(),
    st.lists(st.sets(st.sampled_from("abcdefg"), min_size=1), min_size=1, max_size=5),
)
def test_laws_while_members_come_and_go(
    assignor: Callable[[], TaskAssignor],
    number: int,
    min_ranges: int | None,
    stateful: bool,
    generations: list[set[str]],
) -> None:
    planning = TaskPlanning(
        assignor(), "an assignor", round_robin, min_ranges=min_ranges, stateful=stateful
    )
    partitions = {"t": number}
    said: Group = {}
    for epoch, names in enumerate(generations):
        group = {name: said.get(name, group_of([name])[name]) for name in sorted(names)}
        planned, sharing = plan(group, partitions, planning)
        assert sharing.faults == []
        # The fallback stands in while lags are not known, and so asks to be asked again at once.
        assert sharing.followup_ms == (0 if assignor is FallbackPriorTaskAssignor else None)
        check_tiles(planned.target, partitions)
        check_no_overlap(group, planned)
        assert plan(dict(reversed(group.items())), partitions, planning)[0] == planned
        second = given_up(joined(group, planned, 2 * epoch), planned)
        after, _ = plan(second, partitions, planning)
        assert after.target == after.now == planned.target
        said = settled(group, planned, 2 * epoch + 1)
        again, sharing = plan(said, partitions, planning)
        assert not sharing.is_unfinished
        assert again.target == planned.target  # a plan that is made again from its target


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_shared_tasks_of_a_partition_are_together_as_far_as_loads_are_even(
    members: int, number: int, each: int
) -> None:
    group = group_of([f"m{i}" for i in range(members)])
    planning = replace(STICKY, min_ranges=members * number * each, stateful=True)
    planned, _ = plan(group, {"t": number}, planning)
    assert stores(planned.target) <= number + members - 1
    tasks = {m: round(width(a) * members * each / HASH_SPACE) for m, a in planned.target.items()}
    assert set(tasks.values()) == {number * each}


def test_without_more_members_than_partitions_they_get_whole_ones_and_keep_them() -> None:
    group = group_of(["a", "b", "c"])
    first, _ = plan(group, {"t": 4})
    assert all(hashes.is_all for assigned in first.target.values() for hashes in assigned.values())
    said = settled(group, first, 1)
    del said["a"]
    after, _ = plan(said, {"t": 4})
    for member in ("b", "c"):
        assert both(first.target[member], after.target[member]) == width(first.target[member])


def test_each_topic_is_shared_by_itself() -> None:
    """Whatever others there are, and if a minimum of ranges is wanted in all."""
    group = group_of("abcd", "orders", "audit")
    for least, audit in ((None, 8), (18, 16)):
        recorder = Recorder(to_the_first)
        planning = replace(STICKY, assignor=recorder, min_ranges=least)
        plan(group, {"orders": 1, "audit": 8}, planning)
        (state,) = recorder.states
        assert Counter(task.subtopology for task in state.all_tasks) == {0: audit, 1: 4}
        assert [task.key_range for task in state.all_tasks][-4:] == list(split(WHOLE, 4))


def test_a_member_that_stays_keeps_most_though_ranges_are_cut_otherwise() -> None:
    group = group_of(["a", "b"])
    first, _ = plan(group, {"t": 1})
    grown, _ = plan({**settled(group, first, 1), **group_of(["c"])}, {"t": 1})
    for member in group:
        assert both(first.target[member], grown.target[member]) >= HASH_SPACE // 3 - 1


def test_members_that_opt_out_and_whole_topics_make_partitions_whole() -> None:
    group = group_of(["a", "b", "c"], whole=["b"])
    planned, _ = plan(group, {"t": 2})
    check_tiles(planned.target, {"t": 2})
    assert sorted(map(len, planned.target.values())) == [0, 1, 1]
    whole, _ = plan(group_of(["a", "b", "c"]), {"t": 1}, whole_topics=["t"])
    assert sorted(map(len, whole.target.values())) == [0, 0, 1]


def test_what_an_assignor_sees_of_members() -> None:
    thirds = split(WHOLE, 3)
    group = {
        "id-a": Subscription(
            "a", ("t", "u"), owned=((tp(0), KeyRanges([thirds[0]])),), epoch=3,
            host="pod-1:8080", rack="r1",
            report=MemberReport(tags=(("zone", "z1"),), lags=((tp(0), 70),)),
        ),
        "id-b": Subscription(
            "b", ("t", "u"), owned=((tp(0), KeyRanges([thirds[2]])),), epoch=3, host="pod-2"
        ),
        "id-c": Subscription("c", ("t", "u"), host="[::1]:9"),
    }  # fmt: skip
    recorder = Recorder(to_the_first)
    racks = {tp(0): ("r1", None, "r2")}
    planning = TaskPlanning(
        recorder, "mine", round_robin, stateful=True, racks=racks, now_ms=123, min_ranges=4,
        configs={"rack.aware.assignment.tags": "zone"}, probing_ms=5_000,
    )  # fmt: skip
    planned, sharing = plan(group, {"t": 1, "u": 1}, planning)
    assert sharing.faults == []
    assert recorder.told == [AssignmentError.NONE]
    (state,) = recorder.states
    assert list(state.all_tasks) == [TaskId(n, 0, part) for n in (0, 1) for part in thirds]
    low, high = TaskId(0, 0, thirds[0]), TaskId(0, 0, thirds[2])
    assert all(info.is_stateful and not info.has_changelog for info in state.all_tasks.values())
    assert state.all_tasks[low].partition_to_rack_ids == {tp(0): {"r1", "r2"}}
    assert state.now_ms == 123
    assert state.assignment_configs.rack_aware_assignment_tags == ("zone",)
    assert state.assignment_configs.probing_rebalance_interval_ms == 60_000
    one, two, three = (state.states[ProcessId(name)] for name in "abc")
    assert one.previous_active_tasks == {low}
    assert two.previous_active_tasks == {high}
    assert three.previous_active_tasks == frozenset()
    assert (one.num_processing_threads, one.consumer_client_ids) == (1, ("id-a",))
    assert (one.client_tags, one.rack_id) == ({"zone": "z1"}, "r1")
    assert [each.host_info for each in (one, two, three)] == [
        HostInfo("pod-1", 8080),
        None,
        HostInfo("::1", 9),
    ]
    assert one.lag_for(low) == 70
    with pytest.raises(LookupError, match="no member of the process had it before"):
        one.lag_for(high)
    assert planned.target["id-a"] == {tp(0): ALL_HASHES, tp(0, "u"): ALL_HASHES}


@pytest.mark.parametrize(
    ("answer", "text", "told"),
    [
        ("raises", "failed: LookupError('no idea')", [AssignmentError.NONE]),
        (
            "misses",
            "gave an invalid answer: no member gets task 0_0-[0,",
            [AssignmentError.UNKNOWN_TASK_ID] * 2,
        ),
        (
            "unknown process",
            "gave an invalid answer: UNKNOWN_PROCESS_ID",
            [AssignmentError.UNKNOWN_PROCESS_ID] * 2,
        ),
        (
            "missing process",
            "gave an invalid answer: MISSING_PROCESS_ID",
            [AssignmentError.MISSING_PROCESS_ID] * 2,
        ),
        (
            "twice",
            "gave an invalid answer: ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES",
            [AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES] * 2,
        ),
        (
            "twice, then unknown",
            "gave an invalid answer: ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES",
            [AssignmentError.ACTIVE_TASK_ASSIGNED_MULTIPLE_TIMES] * 2,
        ),
    ],
)
def test_a_wrong_answer_is_told_and_the_plan_is_that_of_always(
    answer: str, text: str, told: list[AssignmentError]
) -> None:
    def wrong(state: ApplicationState) -> TaskAssignment:
        right = to_the_first(state).assignment
        tasks = frozenset(state.all_tasks)
        more = tasks | {TaskId(0, 99)}
        wrong: dict[str, Sequence[KafkaStreamsAssignment]] = {
            "misses": [replace(right[0], active=tasks - {min(tasks)}), *right[1:]],
            "unknown process": [*right, KafkaStreamsAssignment(ProcessId("nobody"))],
            "missing process": right[:-1],
            "twice": [right[0], *(replace(each, active=tasks) for each in right[1:])],
            "twice, then unknown": [right[0], *(replace(each, active=more) for each in right[1:])],
        }
        if answer == "raises":
            raise LookupError("no idea")
        return TaskAssignment(tuple(wrong[answer]))

    group = group_of(["a", "b", "c"])
    recorder = Recorder(wrong)
    planned, sharing = plan(group, {"t": 1}, TaskPlanning(recorder, "mine", round_robin))
    assert planned == plan_group(group, {"t": 1})
    assert recorder.told == told  # of each answer; who gives none hears what is sent
    assert hashes_told(recorder, "t") == planned.now
    assert set(sharing.faults) == {sharing.faults[0]}
    assert sharing.faults[0].startswith(f"taskAssignor mine {text}")
    assert sharing.has_failed


def in_two_entries(state: ApplicationState) -> TaskAssignment:
    """All tasks to the first process, one by one, the last of them first."""
    first, *others = state.states
    entries = [
        KafkaStreamsAssignment(first, frozenset([task])).with_followup_rebalance(1_000 + number)
        for number, task in enumerate(reversed(list(state.all_tasks)))
    ]
    return TaskAssignment((*entries, *map(KafkaStreamsAssignment, others)))


def test_entries_of_one_process_count_together() -> None:
    recorder = Recorder(in_two_entries)
    group = group_of(["a", "b", "c"])
    planned, sharing = plan(group, {"t": 1}, replace(STICKY, assignor=recorder))
    assert sharing.faults == []
    assert recorder.told == [AssignmentError.NONE]
    assert sharing.followup_ms == 1_000
    assert planned.target == {"a": {tp(0): ALL_HASHES}, "b": {}, "c": {}}
    assert hashes_told(recorder, "t") == planned.now
    tasks = recorder.outcomes[0][0].assignments["a"].active_tasks
    assert tasks == tuple(recorder.states[0].all_tasks)


def test_of_two_answers_each_is_told() -> None:
    """The wrong one at once, so that the assignor may give another one."""
    recorder = Recorder(in_turn(leaves_out, to_the_first))
    planned, sharing = plan(group_of(["a", "b"]), {"t": 1}, replace(STICKY, assignor=recorder))
    assert recorder.told == [AssignmentError.UNKNOWN_TASK_ID, AssignmentError.NONE]
    assert recorder.outcomes[0][0].assignments == {}
    assert hashes_told(recorder, "t") == planned.now
    assert not sharing.has_failed
    assert len(sharing.faults) == 1


def test_an_assignor_is_told_what_is_sent_in_each_round() -> None:
    """First what nobody else has, then, without another question, the rest."""
    recorder = Recorder(StickyTaskAssignor().assign)
    planning = replace(STICKY, assignor=recorder, min_ranges=8)
    first, sharing = plan(group_of(["a"]), {"t": 1}, planning)
    said = settled(group_of(["a"]), first, 1)
    group = {**said, **group_of(["b"])}
    first, sharing = plan(group, {"t": 1}, planning)
    assert first.now != first.target
    assert hashes_told(recorder, "t") == first.now
    _, subscription = recorder.outcomes[-1]
    assert subscription.subscriptions["a"].owned_partitions == (tp(0),)
    assert subscription.subscriptions["b"].owned_partitions == ()
    assert subscription.subscriptions["b"].topics == ("t",)
    group = given_up(joined(group, first, 2), first)
    second, sharing = plan(group, {"t": 1}, replace(planning, cuts=sharing.cuts))
    assert sharing.is_unfinished
    assert (len(recorder.states), len(recorder.told)) == (2, 3)
    assert hashes_told(recorder, "t") == second.now == first.target
    tasks = recorder.outcomes[-1][0].assignments["b"].active_tasks
    assert set(tasks) < set(recorder.states[-1].all_tasks)
    another, _ = plan(group, {"t": 1}, planning)  # a leader that has not cut the partition
    assert hashes_told(recorder, "t") == another.now


def test_an_assignor_is_told_once_of_all_topics() -> None:
    """Whatever members have subscribed to, and though it is asked for each such set of topics."""
    group = {"a": Subscription("a", ("t", "u")), "b": Subscription("b", ("u",))}
    recorder = Recorder(in_turn(to_the_first, leaves_out, leaves_out))
    planned, _ = plan(group, {"t": 2, "u": 1}, TaskPlanning(recorder, "mine", round_robin))
    assert recorder.told == [AssignmentError.UNKNOWN_TASK_ID] * 2
    assert hashes_told(recorder, "t", "u") == planned.now
    assert recorder.outcomes[-1][1].subscriptions.keys() == {"a", "b"}


def test_who_is_not_asked_is_told_nothing() -> None:
    recorder = Recorder(to_the_first)
    plan(group_of(["a"]), {}, replace(STICKY, assignor=recorder))
    assert recorder.told == []


@given(
    st.sampled_from(["sticky", "first", "wrong"]),
    st.integers(1, 3),
    st.none() | st.integers(1, 12),
    st.lists(st.sets(st.sampled_from("abcdefg"), min_size=1), min_size=1, max_size=5),
)
def test_what_is_told_is_what_is_sent(
    how: str, number: int, min_ranges: int | None, generations: list[set[str]]
) -> None:
    answers = {"sticky": StickyTaskAssignor().assign, "first": to_the_first, "wrong": leaves_out}
    recorder = Recorder(answers[how])
    planning = replace(STICKY, assignor=recorder, min_ranges=min_ranges)
    said: Group = {}
    for epoch, names in enumerate(generations):
        group = {name: said.get(name, group_of([name])[name]) for name in sorted(names)}
        planned, sharing = plan(group, {"t": number}, planning)
        assert hashes_told(recorder, "t") == planned.now
        second = given_up(joined(group, planned, 2 * epoch), planned)
        after, _ = plan(second, {"t": number}, replace(planning, cuts=sharing.cuts))
        assert hashes_told(recorder, "t") == after.now
        said = settled(group, after, 2 * epoch + 1)


def fails(_: ApplicationState) -> TaskAssignment:
    raise TaskAssignmentException("not now")


def breaks(_: ApplicationState) -> TaskAssignment:
    raise LookupError("no idea")


def leaves_out(state: ApplicationState) -> TaskAssignment:
    """No member gets the first task."""
    first, *others = to_the_first(state).assignment
    return TaskAssignment((replace(first, active=first.active - {min(first.active)}), *others))


def gives_away(state: ApplicationState) -> TaskAssignment:
    """Tasks of a process that there is not."""
    return TaskAssignment((KafkaStreamsAssignment(ProcessId("x"), frozenset(state.all_tasks)),))


FAILING = TaskPlanning(Recorder(fails), "mine", round_robin)


@given(
    st.sampled_from([fails, breaks, leaves_out, gives_away]),
    st.integers(1, 4),
    st.sets(st.sampled_from("abcdef"), min_size=1),
    st.sets(st.sampled_from("abcdef"), min_size=1),
)
def test_what_members_have_stays_while_the_assignor_fails(
    wrong: Callable[[ApplicationState], TaskAssignment],
    number: int,
    before: set[str],
    after: set[str],
) -> None:
    """What the dead had goes to others, and who has joined waits, if the others have anything."""
    partitions = {"t": number}
    group = group_of(sorted(before))
    had, _ = plan(group, partitions)
    said = settled(group, had, 1)
    later = {name: said.get(name, group_of([name])[name]) for name in sorted(after)}
    planned, sharing = plan(later, partitions, replace(FAILING, assignor=Recorder(wrong)))
    assert sharing.has_failed
    check_tiles(planned.target, partitions)
    check_no_overlap(later, planned)
    for member in before & after:
        assert both(had.target[member], planned.target[member]) == width(had.target[member])
    if any(had.target[member] for member in before & after) and before <= after:
        assert {m: a for m, a in planned.target.items() if a} == {
            m: a for m, a in had.target.items() if a
        }


def test_who_may_not_share_keeps_no_part_while_the_assignor_fails() -> None:
    group = group_of(["a", "b"])
    had, _ = plan(group, {"t": 1})
    planned, _ = plan(settled(group, had, 1), {"t": 1}, FAILING, whole_topics=["t"])
    assert sorted(map(width, planned.target.values())) == [0, HASH_SPACE]


def test_wrong_ranges_are_told_and_partitions_stay_whole() -> None:
    planning = replace(STICKY, assign_ranges=lambda request: {})
    planned, sharing = plan(group_of(["a", "b"]), {"t": 1}, planning)
    check_tiles(planned.target, {"t": 1})
    assert "the range assignor gave it no ranges" in sharing.faults[0]


def test_the_earliest_deadline_is_when_it_is_asked_again() -> None:
    def answer(state: ApplicationState) -> TaskAssignment:
        first, *others = to_the_first(state).assignment
        late = [each.with_followup_rebalance(9_000 + i) for i, each in enumerate(others)]
        return TaskAssignment((first, *late))

    group = group_of(["a", "b", "c"])
    planning = TaskPlanning(Recorder(answer), "mine", round_robin)
    planned, sharing = plan(group, {"t": 1}, planning)
    assert sharing.followup_ms == 9_000
    other = plan_group(group, {"t": 1})
    moving = joined(
        settled(group, other, 1), plan(settled(group, other, 1), {"t": 1}, planning)[0], 2
    )
    _, sharing = plan(given_up(moving, planned), {"t": 1}, planning)
    assert sharing.is_unfinished


def test_ranges_by_load_and_members_by_an_assignor() -> None:
    planning = replace(STICKY, assign_ranges=adaptive)
    group = group_of(["a", "b"])
    first, _ = plan(group, {"t": 1}, planning)
    load = Load({point: 9.0 if point < HASH_SPACE // 2 else 1.0 for point in POINTS})
    said = {
        member: replace(each, report=load.seen(first.target[member]))
        for member, each in settled(group, first, 1).items()
    }
    planned, _ = plan(said, {"t": 1}, planning)
    works = [load.of(assigned[tp(0)]) for assigned in planned.target.values()]
    assert max(works) <= 1.3 * min(works)
    quiet = {
        member: replace(each, report=ADAPTIVE)
        for member, each in settled(group, planned, 3).items()
    }
    assert plan(quiet, {"t": 1}, planning)[0].target == planned.target


# -- members of an instance ------------------------------------------------------------------------


def test_members_of_an_instance_are_a_process_with_a_thread_for_each() -> None:
    """Unless they have other tags or racks, or neither state nor a name in common."""
    group = {
        "id-a": replace(on_host("a", "x:80"), owned=((tp(0), KeyRanges([LOWER])),), epoch=1),
        "id-b": replace(on_host("b", "x:81"), owned=((tp(0), KeyRanges([UPPER])),), epoch=1),
        "id-c": replace(on_host("c", "pod-c"), instance="x"),
        "id-d": replace(on_host("d", "x"), rack="r"),
        "id-e": Subscription("e", ("t",)),
        "id-f": Subscription("f", ("t",), instance="x"),
    }
    group["id-b"] = replace(group["id-b"], report=MemberReport(lags=((tp(0), 7),)))
    recorder = Recorder(to_the_first)
    planning = replace(STICKY, assignor=recorder, stateful=True)
    planned, sharing = plan(group, {"t": 1}, planning)
    assert sharing.faults == []
    (state,) = recorder.states
    threads = {str(at): one.num_processing_threads for at, one in state.states.items()}
    assert threads == {"a": 4, "d": 1, "e": 1}
    process = state.states[ProcessId("a")]
    assert process.consumer_client_ids == ("id-a", "id-b", "id-c", "id-f")
    assert len(process.previous_active_tasks) == 6
    assert set(process.stateful_tasks_to_lag_sums().values()) == {7}
    assert [len(process.tasks_by_consumer[f"id-{m}"]) for m in "abcf"] == [3, 3, 0, 0]
    shares = [round(width(planned.target[f"id-{m}"]) * 6 / HASH_SPACE) for m in "abcdef"]
    assert shares == [2, 2, 1, 0, 0, 1]
    assert hashes_told(recorder, "t") == planned.now
    plan(group, {"t": 1}, replace(planning, stateful=False))
    stateless = recorder.states[-1].states
    assert {str(at): one.num_processing_threads for at, one in stateless.items()} == {
        "a": 1, "b": 1, "c": 2, "d": 1, "e": 1,
    }  # fmt: skip


def test_members_of_one_name_are_a_fault_and_keep_what_they_have() -> None:
    """A process would hide the other one."""
    group = {"id-a": Subscription("a", ("t",)), "id-b": Subscription("a", ("t",))}
    planned, sharing = plan(group, {"t": 1}, STICKY)
    assert sharing.has_failed
    assert "the same session's id" in sharing.faults[0]
    check_tiles(planned.target, {"t": 1})


OF_STATE = st.sampled_from([StickyTaskAssignor, HighAvailabilityTaskAssignor])


@pytest.mark.parametrize("assignor", [StickyTaskAssignor, HighAvailabilityTaskAssignor])
@pytest.mark.parametrize("names", list(permutations(["a1", "a2", "b1", "b2"])))
def test_parts_of_a_partition_meet_on_an_instance(
    assignor: Callable[[], TaskAssignor], names: tuple[str, ...]
) -> None:
    """The proposal's example, whoever joins first, and whatever the names: two stores, not four."""
    for least in (None, 2, 4, 7, 8, 12):
        planning = replace(STICKY, assignor=assignor(), stateful=True, min_ranges=least)
        group: Group = {}
        for epoch, (host, name) in enumerate(zip(names, sorted(names), strict=True)):
            group[name] = group.get(name, on_host(name, host[0]))
            planned, sharing = plan(group, {"t": 2}, planning)
            assert sharing.faults == []
            group = settled(group, planned, epoch)
        # An odd number of ranges cannot be even and meet.
        assert len(stores_of_instances(group, planned)) <= 2 + (least == 7)


@given(
    OF_STATE,
    st.integers(1, 5),
    st.none() | st.integers(1, 24),
    st.dictionaries(st.sampled_from("abcdefghi"), st.sampled_from("wxyz"), min_size=1),
)
def test_instances_and_partitions_are_a_forest(
    assignor: Callable[[], TaskAssignor],
    number: int,
    min_ranges: int | None,
    hosts: dict[str, str],
) -> None:
    group = {name: on_host(name, host) for name, host in hosts.items()}
    planning = replace(STICKY, assignor=assignor(), stateful=True, min_ranges=min_ranges)
    planned, _ = plan(group, {"t": number}, planning)
    check_tiles(planned.target, {"t": number})
    assert len(stores_of_instances(group, planned)) <= len(set(hosts.values())) + number - 1


@given(
    assignors,
    st.booleans(),
    st.integers(1, 3),
    st.none() | st.integers(1, 12),
    st.lists(
        st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from(["x", "y", ""]), min_size=1),
        min_size=1,
        max_size=4,
    ),
)
def test_laws_of_instances_while_members_come_and_go(
    assignor: Callable[[], TaskAssignor],
    is_named: bool,
    number: int,
    min_ranges: int | None,
    generations: list[dict[str, str]],
) -> None:
    planning = TaskPlanning(
        assignor(), "an assignor", round_robin, min_ranges=min_ranges, stateful=not is_named
    )
    partitions = {"t": number}
    said: Group = {}
    for epoch, hosts in enumerate(generations):
        group = {
            name: replace(said.get(name, on_host(name, host)), host=host, instance=is_named * host)
            for name, host in sorted(hosts.items())
        }
        planned, sharing = plan(group, partitions, planning)
        assert sharing.faults == []
        check_tiles(planned.target, partitions)
        check_no_overlap(group, planned)
        said = settled(group, planned, epoch)
        assert plan(said, partitions, planning)[0].target == planned.target


@given(st.sets(st.integers(0, 20)), st.lists(st.sets(st.integers(0, 20)), min_size=1, max_size=5))
def test_members_of_a_process_have_evenly_many_tasks_and_what_they_had(
    numbers: set[int], before: list[set[int]]
) -> None:
    tasks = {TaskId(0, number) for number in numbers}
    names = [f"m{i}" for i in range(len(before))]
    previous = {
        name: [TaskId(0, n) for n in sorted(own - set[int]().union(*before[:i]))]
        for i, (name, own) in enumerate(zip(names, before, strict=True))
    }
    dealt = dealt_to_threads(tasks, previous)
    assert sorted(task for own in dealt.values() for task in own) == sorted(tasks)
    least = len(tasks) // len(names)
    for name, own in dealt.items():
        assert least <= len(own) <= least + (len(tasks) % len(names) > 0)
        had = tasks & set(previous[name])
        assert len(had & set(own)) >= min(len(had), least)


def test_topics_with_other_subscribers_are_another_application() -> None:
    group = {
        "a": Subscription("a", ("t", "u")),
        "b": Subscription("b", ("u",)),
        "c": Subscription("c", ("u", "gone")),
    }
    recorder = Recorder(StickyTaskAssignor().assign)
    planned, _ = plan(group, {"t": 2, "u": 1}, TaskPlanning(recorder, "mine", round_robin))
    check_tiles(planned.target, {"t": 2, "u": 1})
    assert [len(state.states) for state in recorder.states] == [1, 3]
    assert TopicPartition("t", 0) in planned.target["a"]
