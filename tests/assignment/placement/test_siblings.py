"""Shared tasks with state: siblings stand together, so that a partition needs few state stores."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    AssignmentConfigs,
    HighAvailabilityTaskAssignor,
    KafkaStreamsState,
    ProcessId,
    StickyTaskAssignor,
    TaskAssignment,
    TaskAssignor,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
)
from kshare.assignment.placement.indexed_state import IndexedState
from kshare.assignment.placement.placement import Placement
from kshare.assignment.placement.siblings import group_standbys
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from tests.support.effort import examples

Held = Mapping[str, tuple[Iterable[TaskId], Iterable[TaskId]]]

quick = examples(60)
threads_of = st.lists(st.sampled_from([1, 1, 2, 4]), min_size=2, max_size=6)


def siblings(partition: int, ranges: int) -> list[TaskId]:
    return [TaskId(0, partition, part) for part in split(WHOLE, ranges)]


def application(
    partitions: int,
    ranges: int,
    threads: Iterable[int],
    *,
    standbys: int = 0,
    held: Held | None = None,
    zones: str = "",
    warmups: int = 2,
) -> ApplicationState:
    """Stateful ranges of partitions; processes ``0``, ``1``, ..., which are caught up on all held.

    Args:
        partitions: How many, of one topic.
        ranges: Key ranges of each partition.
        threads: Of each process.
        standbys: Of each task.
        held: Active and standby tasks that a process had.
        zones: The tag ``zone`` of each process, a letter each.
        warmups: How many copies may warm up at once.
    """
    infos = [
        TaskInfo(
            task,
            True,
            (
                TaskTopicPartition(TopicPartition("t", partition)),
                TaskTopicPartition(TopicPartition("store", partition), False, True),
            ),
        )
        for partition in range(partitions)
        for task in siblings(partition, ranges)
    ]
    states = []
    for number, count in enumerate(threads):
        active, standby = (frozenset(kind) for kind in (held or {}).get(str(number), ((), ())))
        states.append(
            KafkaStreamsState(
                ProcessId(str(number)),
                count,
                previous_active_tasks=active,
                previous_standby_tasks=standby,
                client_tags={"zone": zones[number]} if zones else {},
                task_lags={
                    info.id: 0 if info.id in active | standby else 100_000 for info in infos
                },
            )
        )
    configs = AssignmentConfigs(
        num_standby_replicas=standbys,
        max_warmup_replicas=warmups,
        rack_aware_assignment_tags=("zone",) if zones else (),
    )
    return ApplicationState.of(infos, states, configs)


def held_by(answer: TaskAssignment) -> dict[str, tuple[frozenset[TaskId], frozenset[TaskId]]]:
    return {str(entry.process_id): (entry.active, entry.standby) for entry in answer.assignment}


def stores(tasks: Iterable[Iterable[TaskId]]) -> int:
    """How many pairs of process and partition there are."""
    return sum(len({task.partition for task in on}) for on in tasks)


both = pytest.mark.parametrize("assignor", [HighAvailabilityTaskAssignor(), StickyTaskAssignor()])


@both
def test_the_proposals_example_needs_two_state_stores(assignor: TaskAssignor) -> None:
    """2 partitions in 2 ranges on 2 instances of 2 threads."""
    answer = assignor.assign(application(2, 2, [2, 2]))
    assert [sorted(entry.active) for entry in answer.assignment] == [siblings(0, 2), siblings(1, 2)]


@both
def test_standbys_of_siblings_are_together_too(assignor: TaskAssignor) -> None:
    answer = assignor.assign(application(3, 4, [4, 4, 4], standbys=1))
    held = held_by(answer)
    assert stores(active for active, _ in held.values()) == 3
    assert stores(standby for _, standby in held.values()) == 3


@both
@given(st.integers(1, 8), st.integers(2, 6), threads_of, st.integers(0, 2))
@quick
def test_fresh_placements_need_few_stores(
    assignor: TaskAssignor, partitions: int, ranges: int, threads: list[int], standbys: int
) -> None:
    answer = assignor.assign(application(partitions, ranges, threads, standbys=standbys))
    held, processes = held_by(answer), len(threads)
    replicas = min(standbys, processes - 1)
    assert stores(active for active, _ in held.values()) <= partitions + processes - 1
    most = partitions * replicas + 3 * processes
    assert stores(standby for _, standby in held.values()) <= most
    copies = Counter(task for _, standby in held.values() for task in standby)
    assert all(count == replicas for count in copies.values())
    assert len(copies) == (partitions * ranges if replicas else 0)


@both
@given(st.integers(1, 6), st.integers(2, 5), threads_of, st.integers(0, 1), st.integers(0, 999))
@example(3, 2, [1, 2, 1], 1, 1)  # standbys get more even
@quick
def test_a_good_placement_stays_wherever_it_is(
    assignor: TaskAssignor,
    partitions: int,
    ranges: int,
    threads: list[int],
    standbys: int,
    seed: int,
) -> None:
    """No warm-up takes it apart, though another process would get these tasks in a fresh start.

    Standbys move only if they need many stores, or loads get more even by it.
    """
    made = partial(application, partitions, ranges, threads, standbys=standbys)
    held = held_by(assignor.assign(made()))
    to = {str(n): str(n) for n in range(len(threads))}
    for count in set(threads):
        alike = [name for name in to if threads[int(name)] == count]
        shuffled = Random(seed).sample(alike, len(alike))
        to.update(zip(alike, shuffled, strict=True))
    moved = {to[name]: tasks for name, tasks in held.items()}
    after = held_by(rounds(assignor, lambda held: made(held=held), moved)[-1])
    assert {name: active for name, (active, _) in after.items()} == {
        name: active for name, (active, _) in moved.items()
    }
    before = stores(standby for _, standby in moved.values())
    if before <= partitions * standbys + 2 * len(threads) and after != moved:
        assert spread(after, threads) < spread(moved, threads)


def spread(held: Held, threads: list[int]) -> float:
    loads = [len({*held[str(n)][0], *held[str(n)][1]}) / own for n, own in enumerate(threads)]
    return max(loads) - min(loads)


def rounds(
    assignor: TaskAssignor, made: Callable[[Held], ApplicationState], held: Held
) -> list[TaskAssignment]:
    """The answers of each rebalance until no follow-up is asked for; copies catch up meanwhile."""
    answers = [assignor.assign(made(held))]
    while answers[-1].wants_followup:
        assert len(answers) < 200
        answers.append(assignor.assign(made(held_by(answers[-1]))))
    return answers


def test_scattered_ranges_are_brought_together_by_warmups() -> None:
    zero, one = siblings(0, 2), siblings(1, 2)
    scattered: Held = {"0": ([zero[0], one[0]], []), "1": ([zero[1], one[1]], [])}
    answers = rounds(
        HighAvailabilityTaskAssignor(),
        lambda held: application(2, 2, [2, 2], held=held),
        scattered,
    )
    assert len(answers) > 1
    assert stores(active for active, _ in held_by(answers[-1]).values()) == 2


@given(st.integers(1, 5), st.integers(2, 4), threads_of, st.integers(0, 1))
@quick
def test_a_process_that_comes_or_goes_leaves_siblings_together_in_the_end(
    partitions: int, ranges: int, threads: list[int], standbys: int
) -> None:
    assignor = HighAvailabilityTaskAssignor()
    held = held_by(assignor.assign(application(partitions, ranges, threads, standbys=standbys)))
    for now in ([*threads, 1], threads[:-1]):
        made = partial(application, partitions, ranges, now, standbys=standbys)
        answers = rounds(assignor, lambda held: made(held=held), held)  # noqa: B023
        end = held_by(answers[-1])
        assert stores(active for active, _ in end.values()) <= partitions + len(now) - 1


def test_while_copies_warm_up_siblings_run_on_one_process() -> None:
    """All are wanted on a new process; two others have all state and are equally loaded."""
    zero = siblings(0, 2)
    app = application(1, 2, [2, 1, 1], held={"1": (zero, []), "2": ([], zero)}, warmups=1)
    answer = HighAvailabilityTaskAssignor().assign(app)
    assert answer.wants_followup
    assert stores(active for active, _ in held_by(answer).values()) == 1


def test_tags_come_before_siblings() -> None:
    """Standbys of siblings are together as far as zones allow."""
    app = application(4, 3, [3, 3, 3, 3], standbys=1, zones="aabb")
    held = held_by(HighAvailabilityTaskAssignor().assign(app))
    zone = dict(zip("0123", "aabb", strict=True))
    for task in app.all_tasks:
        copies = {zone[name] for name, kinds in held.items() if task in kinds[0] | kinds[1]}
        assert copies == {"a", "b"}
    assert stores(standby for _, standby in held.values()) == 4


@pytest.mark.parametrize("members", [3, 4])
def test_sticky_promotes_the_standbys_of_siblings_on_one_process(members: int) -> None:
    """The process that ran them has left; two others hold standbys."""
    zero = siblings(0, 4)
    names = [str(n) for n in range(members)]
    held: dict[str, tuple[list[TaskId], list[TaskId]]] = {name: ([], zero) for name in names[:2]}
    app = application(1, 4, [4] * members, standbys=2, held=held)
    answer = held_by(StickyTaskAssignor().assign(app))
    assert stores(active for active, _ in answer.values()) == 1


def test_sticky_lets_go_of_whole_partitions() -> None:
    """A process joins: what leaves the old one is a partition, not a range of each topic's."""
    old = [TaskId(topic, 0, part) for topic in range(2) for part in split(WHOLE, 2)]
    infos = [TaskInfo(task) for task in old]
    states = [
        KafkaStreamsState(ProcessId("0"), 2, previous_active_tasks=frozenset(old)),
        KafkaStreamsState(ProcessId("1"), 2),
    ]
    answer = StickyTaskAssignor().assign(ApplicationState.of(infos, states))
    assert [{task.subtopology for task in entry.active} for entry in answer.assignment] == [
        {0},
        {1},
    ]


# -- regrouping by itself ------------------------------------------------------------------------


@st.composite
def placements(draw: st.DrawFn) -> tuple[IndexedState, Placement, list[set[int]], list[int]]:
    """Any placement of shared tasks with standbys; which may move, and kinds of processes."""
    partitions, ranges = draw(st.integers(1, 5)), draw(st.integers(2, 4))
    processes = draw(st.integers(2, 6))
    situation = IndexedState(application(partitions, ranges, [1] * processes))
    placement = situation.empty_placement()
    rng = draw(st.randoms(use_true_random=False))
    standbys = draw(st.integers(1, processes - 1))
    for task in range(len(situation.tasks)):
        owner, *others = rng.sample(range(processes), 1 + standbys)
        placement.add_active(owner, task)
        for other in others:
            placement.add_standby(other, task)
    movable = [{task for task in on if rng.random() < 0.8} for on in placement.standby]
    kinds = [rng.randrange(2) for _ in range(processes)]
    return situation, placement, movable, kinds


@given(placements())
@examples(200)
def test_regrouping_keeps_counts_copies_and_kinds_and_needs_no_more_stores(
    case: tuple[IndexedState, Placement, list[set[int]], list[int]],
) -> None:
    situation, placement, movable, kinds = case
    before = [set(on) for on in placement.standby]
    loads = list(placement.load)

    def ids(tasks: Iterable[set[int]]) -> list[list[TaskId]]:
        return [[situation.tasks[task] for task in on] for on in tasks]

    def copies(standby: list[set[int]]) -> Counter[tuple[int, int]]:
        return Counter((task, kind) for on, kind in zip(standby, kinds, strict=True) for task in on)

    group_standbys(situation, placement, movable, kinds)
    after = placement.standby
    assert placement.load == loads
    assert [len(on) for on in after] == [len(on) for on in before]
    assert copies(after) == copies(before)
    assert all(on.isdisjoint(act) for on, act in zip(after, placement.active, strict=True))
    assert all(on >= was - may for on, was, may in zip(after, before, movable, strict=True))
    mixed = [on | act for on, act in zip(after, placement.active, strict=True)]
    was_mixed = [on | act for on, act in zip(before, placement.active, strict=True)]
    assert stores(ids(mixed)) <= stores(ids(was_mixed))


@given(st.integers(2, 6), st.integers(2, 5))
def test_a_scattered_placement_is_grouped_completely_where_there_is_a_way(
    processes: int, ranges: int
) -> None:
    """As many partitions as processes, each active on one; their standbys are dealt round."""
    situation = IndexedState(application(processes, ranges, [ranges] * processes))
    placement = situation.empty_placement()
    for task in range(processes * ranges):
        placement.add_active(task // ranges, task)
    free = dict.fromkeys(range(processes), ranges)
    for task in range(processes * ranges):
        options = [n for n in free if free[n] and n != task // ranges]
        assume(options)
        target = max(options, key=lambda n: (free[n], (n + task) % processes))
        free[target] -= 1
        placement.add_standby(target, task)
    group_standbys(situation, placement, [set(on) for on in placement.standby])
    ids = [[situation.tasks[task] for task in on] for on in placement.standby]
    assert stores(ids) == processes


def test_neighbours_of_a_partition_are_siblings() -> None:
    tasks = IndexedState(application(3, 2, [1])).tasks
    together = [one[:2] == other[:2] for one, other in pairwise(tasks)]
    assert together == [True, False, True, False, True]
