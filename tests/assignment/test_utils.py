"""The helpers for those who write assignors: least cost, standbys, tags."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import (
    ApplicationState,
    AssignedTask,
    AssignmentConfigs,
    KafkaStreamsAssignment,
    KafkaStreamsState,
    ProcessId,
    RackAwareOptimizationParams,
    TaskId,
    TaskInfo,
    TaskTopicPartition,
    TaskType,
    default_standby_task_assignment,
    identity_assignment,
    optimize_rack_aware_active_tasks,
    optimize_rack_aware_standby_tasks,
)
from kshare.assignment.racks import min_cost
from kshare.assignment.racks.costs import RackCosts, optimize_active
from kshare.assignment.racks.standby import optimize_standby
from kshare.core.progress import TopicPartition
from tests.support.effort import examples

Ints = np.ndarray[Any, np.dtype[np.intp]]
Problem = tuple[min_cost.Costs, Ints, Ints]


@st.composite
def problems(draw: st.DrawFn, tasks: int = 25, processes: int = 6) -> Problem:
    """Costs, start and groups of a placement."""
    n, p, r = draw(st.integers(1, tasks)), draw(st.integers(1, processes)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    costs = min_cost.Costs(
        draw(st.sampled_from([0, 1, 10])) * rng.integers(0, 3, (n, r)),
        rng.integers(0, r, p),
        draw(st.sampled_from([0, 1, 10])),
        draw(st.booleans()),
    )
    group = np.unique(rng.integers(0, 4, n), return_inverse=True)[1]
    return costs, rng.integers(0, p, n), group


def total(costs: min_cost.Costs, start: Ints, placed: Ints) -> tuple[int, ...]:
    """The cost; traffic and wishes, if they play a part; how many tasks moved."""
    rows = np.arange(len(start))
    price = replace(costs, wishes=None).matrix(start)[rows, placed].sum()
    traffic = costs.traffic[rows, costs.rack[placed]].sum() if costs.prefers_near else 0
    wished = 0 if costs.wishes is None else costs.wishes[rows, placed].sum()
    return int(price), int(traffic), int(wished), int((placed != start).sum())


def cheapest(costs: min_cost.Costs, start: Ints, group: Ints | None = None) -> tuple[int, ...]:
    """All placements there are."""
    own = Counter(start.tolist())
    found = []
    for placed in set(itertools.permutations(start.tolist())):
        if group is not None:
            cells = Counter(zip(placed, group.tolist(), strict=True))
            width = Counter(group.tolist())
            if any(n > -(-own[p] * width[g] // len(start)) for (p, g), n in cells.items()):
                continue
        found.append(total(costs, start, np.array(placed)))
    return min(found)


@pytest.fixture(params=["matrix", "network"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "network":
        monkeypatch.setattr(min_cost, "DENSE_MAX", 0)
    return str(request.param)


NO_WISHES: dict[str, Any] = {"wishes": None}
ONLY_FEW_MOVES = {**NO_WISHES, "prefers_near": False}


class TestLeastCost:
    @given(problems(tasks=6, processes=3))
    @examples(60)
    def test_is_the_least_of_all_placements_with_the_fewest_moves(self, problem: Problem) -> None:
        costs, start, group = problem
        assert total(costs, start, min_cost.place(costs, start)) == cheapest(costs, start)
        capped = min_cost.place_capped(costs, start, group)
        assert total(costs, start, capped) == cheapest(costs, start, group)

    @given(problems(tasks=6, processes=3), st.integers(0, 2**32))
    @examples(60)
    def test_of_equally_cheap_ones_the_most_wanted_is_taken(
        self, problem: Problem, seed: int
    ) -> None:
        costs, start, group = problem
        wishes = np.random.default_rng(seed).integers(-2, 2, (len(start), len(costs.rack)))
        costs = replace(costs, wishes=wishes)
        assert total(costs, start, min_cost.place(costs, start)) == cheapest(costs, start)
        capped = min_cost.place_capped(costs, start, group)
        assert total(costs, start, capped) == cheapest(costs, start, group)

    @pytest.mark.parametrize(
        ("farthest", "given_up"),
        [(10**5, {}), (2 * 10**6, NO_WISHES), (10**7, ONLY_FEW_MOVES)],
    )
    @given(st.integers(0, 2**32), st.booleans())
    @examples(20)
    def test_of_what_floats_cannot_hold_the_least_important_goes_first(
        self, farthest: int, given_up: dict[str, Any], seed: int, moves_cost: bool
    ) -> None:
        rng = np.random.default_rng(seed)
        traffic, wishes = rng.integers(0, 2, (6, 2)) * farthest, rng.integers(-2, 2, (6, 3))
        traffic[0, 0], wishes[0, 0] = farthest, -2
        move = farthest // 2 if moves_cost else 0
        costs = min_cost.Costs(traffic, np.array([0, 0, 1]), move, True, wishes)
        start = rng.integers(0, 3, 6)
        left = replace(costs, **given_up)
        assert total(left, start, min_cost.place(costs, start)) == cheapest(left, start)

    def test_of_costs_that_fill_a_float_the_sum_alone_counts(self) -> None:
        traffic = np.array([[1, 0], [0, 1]]) * 10**15
        costs = min_cost.Costs(traffic, np.array([0, 1]), 0, True, np.eye(2, dtype=np.int64))
        assert min_cost.place(costs, np.array([0, 1])).tolist() == [1, 0]

    @given(problems())
    @examples(60)
    def test_matrix_and_network_agree(self, problem: Problem) -> None:
        costs, start, group = problem
        by_matrix = [min_cost.place(costs, start), min_cost.place_capped(costs, start, group)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(min_cost, "DENSE_MAX", 0)
            by_network = [min_cost.place(costs, start), min_cost.place_capped(costs, start, group)]
        for one, other in zip(by_matrix, by_network, strict=True):
            assert total(costs, start, one) == total(costs, start, other)
            assert Counter(other.tolist()) == Counter(start.tolist())

    @pytest.mark.usefixtures("solver")
    def test_groups_are_spread(self) -> None:
        # All wants to the first rack; each process may have half of each group.
        costs = min_cost.Costs(np.array([[0, 5]] * 4 + [[5, 0]] * 4), np.array([0, 1]))
        start = np.array([0, 1] * 4)
        group = np.array([0] * 4 + [1] * 4)
        placed = min_cost.place_capped(costs, start, group)
        assert Counter(zip(placed.tolist(), group.tolist(), strict=True)) == {
            (0, 0): 2, (0, 1): 2, (1, 0): 2, (1, 1): 2,
        }  # fmt: skip

    @pytest.mark.usefixtures("solver")
    def test_a_thousand_tasks_need_no_matrix_of_processes(self) -> None:
        rng = np.random.default_rng(3)
        costs = min_cost.Costs(rng.integers(0, 3, (1600, 3)), rng.integers(0, 3, 160), 1)
        start = np.arange(1600) % 160
        placed = min_cost.place(costs, start)
        assert np.bincount(placed).tolist() == [10] * 160
        assert total(costs, start, placed)[0] < total(costs, start, start)[0]


def application(
    racks: Mapping[str, str | None],
    task_racks: Mapping[str, Sequence[str | None] | None],
    *,
    standbys: int = 0,
    tags: Mapping[str, Mapping[str, str]] | None = None,
    **configs: Any,
) -> ApplicationState:
    """Processes in racks; tasks whose partitions are in racks."""
    given: dict[str, Any] = {
        "traffic_cost": 10,
        "non_overlap_cost": 1,
        "assignment_strategy": "min_traffic",
    }
    tasks = [
        TaskInfo(
            TaskId.parse(task),
            True,
            (
                TaskTopicPartition(
                    TopicPartition("t", n), True, True, None if known is None else tuple(known)
                ),
            ),
        )
        for n, (task, known) in enumerate(task_racks.items())
    ]
    states = [
        KafkaStreamsState(ProcessId(name), rack_id=rack, client_tags=(tags or {}).get(name, {}))
        for name, rack in racks.items()
    ]
    return ApplicationState.of(
        tasks,
        states,
        AssignmentConfigs(
            num_standby_replicas=standbys,
            rack_aware_assignment_tags=("zone",) if tags else (),
            **{f"rack_aware_{name}": value for name, value in {**given, **configs}.items()},
        ),
    )


def placed(kind: str, **held: str) -> dict[ProcessId, KafkaStreamsAssignment]:
    """``p1="0_0 0_1"``: the tasks of process 1."""
    type_ = TaskType[kind.upper()]
    return {
        ProcessId(name[1:]): KafkaStreamsAssignment.of(
            ProcessId(name[1:]),
            [AssignedTask(TaskId.parse(task), type_) for task in tasks.split()],
        )
        for name, tasks in held.items()
    }


CROSSED = {"0_0": ["b"], "0_1": ["a"]}
TWO = {"1": "a", "2": "b"}


class TestActives:
    def test_go_to_their_racks(self) -> None:
        app = application(TWO, CROSSED)
        after = optimize_rack_aware_active_tasks(
            RackAwareOptimizationParams.of(app), placed("active", p1="0_0", p2="0_1")
        )
        assert after == placed("active", p1="0_1", p2="0_0")

    @pytest.mark.parametrize(
        "app",
        [
            application(TWO, CROSSED, assignment_strategy="none"),
            application(TWO, CROSSED, traffic_cost=None),
            application(TWO, CROSSED, non_overlap_cost=None),
            application({"1": "a", "2": None}, CROSSED),
            application(TWO, {**CROSSED, "0_2": None}),
            application(TWO, {**CROSSED, "0_2": [None]}),
        ],
        ids=["no strategy", "no cost", "no other cost", "no rack", "no racks", "brokers without"],
    )
    def test_stay_where_anything_is_missing_whatever_the_overrides(
        self, app: ApplicationState
    ) -> None:
        start = placed("active", p1="0_0", p2="0_1")
        params = RackAwareOptimizationParams.of(app).with_traffic_cost_override(5)
        after = optimize_rack_aware_active_tasks(params.with_non_overlap_cost_override(0), start)
        assert {process: entry.active for process, entry in after.items()} == {
            process: entry.active for process, entry in start.items()
        }

    def test_stay_where_a_move_costs_more_than_the_traffic(self) -> None:
        start = placed("active", p1="0_0", p2="0_1")
        params = RackAwareOptimizationParams.of(application(TWO, CROSSED))
        assert (
            optimize_rack_aware_active_tasks(params.with_non_overlap_cost_override(10), start)
            == start
        )

    def test_stay_if_they_are_not_among_those_to_optimize(self) -> None:
        start = placed("active", p1="0_0", p2="0_1")
        app = application(TWO, CROSSED)
        params = RackAwareOptimizationParams.of(app)
        # The KIP's three arguments.
        both = [TaskId(0, 0), TaskId(0, 1)]
        assert optimize_rack_aware_active_tasks(app, start, both[:1]) == start
        moved = optimize_rack_aware_active_tasks(app, start, both)
        assert moved == optimize_rack_aware_active_tasks(app, start) != start
        assert optimize_rack_aware_active_tasks(params, start, both[1:]) == start
        assert optimize_rack_aware_active_tasks(params.for_stateless_tasks(), start) == start
        assert optimize_rack_aware_active_tasks(params.for_tasks([TaskId(0, 0)]), start) == start
        assert optimize_rack_aware_active_tasks(params.for_stateful_tasks(), start) != start

    @pytest.mark.parametrize(("dense_max", "knows"), [(2, True), (1, False)])
    def test_wishes_are_a_matrix_only_where_one_is_solved(
        self, monkeypatch: pytest.MonkeyPatch, dense_max: int, knows: bool
    ) -> None:
        seen: list[Any] = []

        def place(costs: min_cost.Costs, start: Ints) -> Ints:
            seen.append(costs.wishes)
            return start

        monkeypatch.setattr(min_cost, "DENSE_MAX", dense_max)
        monkeypatch.setattr(min_cost, "place", place)
        one, two, task = ProcessId("1"), ProcessId("2"), TaskId(0, 0)
        costs = RackCosts({one: "a", two: "b"}, {task: (), TaskId(0, 1): ()}, 10, 1)
        active = {one: [task], two: [TaskId(0, 1)]}
        optimize_active(active, costs.partition_racks, costs, "min_traffic", {(task, two): -2})
        assert [wishes is not None for wishes in seen] == [knows]

    def test_leave_standbys_where_they_are_if_that_costs_no_more(self) -> None:
        racks = {"1": "a", "2": "b", "3": "b"}
        app = application(racks, {"0_0": ["b"], "0_1": ["a"], "0_2": ["a"]})
        start = placed("active", p1="0_0", p2="0_1", p3="0_2")
        for other, wanted in (("2", "0_2"), ("3", "0_1")):
            held = ProcessId(other)
            start_with = {
                **start, held: replace(start[held], standby=frozenset([TaskId(0, 0)])),
            }  # fmt: skip
            after = optimize_rack_aware_active_tasks(
                RackAwareOptimizationParams.of(app), start_with
            )
            assert after[ProcessId("1")].active == {TaskId.parse(wanted)}
            assert after[held].standby == {TaskId(0, 0)}


class TestStandbys:
    @pytest.mark.parametrize("spreads", [False, True])
    def test_are_spread_over_subtopologies_only_if_asked_for(self, spreads: bool) -> None:
        tasks = {sub: {TaskId(sub, n) for n in range(4)} for sub in range(2)}
        here = {task: (frozenset("ab"),) for held in tasks.values() for task in held}
        one, two = ProcessId("1"), ProcessId("2")
        costs = RackCosts({one: "a", two: "b"}, here, 1, 10)
        start = {one: tasks[0], two: tasks[1]}
        after = optimize_standby({}, start, here, costs, "balance_subtopology", spreads=spreads)
        assert [Counter(task[0] for task in after[process]) for process in (one, two)] == (
            [{0: 2, 1: 2}] * 2 if spreads else [{0: 4}, {1: 4}]
        )
        again = optimize_standby({}, after, here, costs, "balance_subtopology", spreads=spreads)
        assert again == after

    @given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0, 1, 3]))
    def test_a_rule_that_allows_all_changes_nothing(
        self, seed: int, spreads: bool, move: int
    ) -> None:
        # Without a rule, pairs are not asked again before one of them has changed.
        rng = np.random.default_rng(seed)
        tasks = [TaskId(n % 3, n) for n in range(20)]
        names = [ProcessId(str(n)) for n in range(7)]
        racks = {task: (frozenset("abc"[at] for at in rng.integers(0, 3, 2)),) for task in tasks}
        costs = RackCosts({name: "abc"[n % 3] for n, name in enumerate(names)}, racks, 2, move)
        held = rng.permuted(np.tile(np.arange(7), (20, 1)), axis=1)
        start = {
            name: {task for task, on in zip(tasks, held, strict=True) if n in on[:2]}
            for n, name in enumerate(names)
        }
        strategy = "balance_subtopology" if spreads else "min_traffic"
        asked, unasked = (
            optimize_standby({}, start, tasks, costs, strategy, rule, spreads=spreads)
            for rule in (lambda *_: True, None)
        )
        assert asked == unasked

    def test_swap_once_the_rule_allows_it_since_other_copies_have_moved(self) -> None:
        tags = {name: {"zone": zone} for name, zone in zip("12345", "yxxxy", strict=True)}
        app = application(
            dict(zip("12345", "accaa", strict=True)),
            {"0_0": ["c"], "0_1": ["c"], "0_2": ["b"], "0_3": ["a"]},
            tags=tags,
            non_overlap_cost=0,
        )
        standby = placed("standby", p1="0_0 0_2", p2="0_1 0_3", p3="0_2", p4="0_3", p5="0_0 0_1")
        active = placed("active", p1="0_1", p2="0_0", p3="0_3", p4="0_2", p5="")
        start = {name: replace(one, active=active[name].active) for name, one in standby.items()}
        params = RackAwareOptimizationParams(app, keep_client_tags=True)
        after = optimize_rack_aware_standby_tasks(params, start)
        assert after[ProcessId("1")].standby == {TaskId(0, 0), TaskId(0, 3)}

    def test_swap_between_racks(self) -> None:
        app = application(TWO, CROSSED)
        after = optimize_rack_aware_standby_tasks(
            RackAwareOptimizationParams.of(app), placed("standby", p1="0_0", p2="0_1")
        )
        assert after == placed("standby", p1="0_1", p2="0_0")

    def test_take_the_kips_arguments(self) -> None:
        app, start = application(TWO, CROSSED), placed("standby", p1="0_0", p2="0_1")
        swapped = placed("standby", p1="0_1", p2="0_0")
        assert optimize_rack_aware_standby_tasks(app, start) == swapped
        assert optimize_rack_aware_standby_tasks(app, start, [TaskId(0, 0)]) == start
        assert optimize_rack_aware_standby_tasks(app, start, [TaskId(0, 0), TaskId(0, 1)]) == (
            swapped
        )

    def test_do_not_come_beside_their_active_task(self) -> None:
        app = application(TWO, CROSSED)
        start = placed("standby", p1="0_0", p2="0_1")
        start[ProcessId("2")] = KafkaStreamsAssignment(
            ProcessId("2"), frozenset([TaskId(0, 0)]), frozenset([TaskId(0, 1)])
        )
        after = optimize_rack_aware_standby_tasks(RackAwareOptimizationParams.of(app), start)
        assert after == start

    def test_keep_their_tags_only_if_asked_to(self) -> None:
        tags = {"1": {"zone": "x"}, "2": {"zone": "y"}, "3": {"zone": "y"}}
        app = application({**TWO, "3": "b"}, CROSSED, standbys=1, tags=tags)
        start = placed("standby", p1="0_0", p2="0_1") | placed("active", p3="0_0 0_1")
        params = RackAwareOptimizationParams.of(app)
        assert optimize_rack_aware_standby_tasks(params, start) != start
        careful = RackAwareOptimizationParams(app, keep_client_tags=True)
        assert optimize_rack_aware_standby_tasks(careful, start) == start

    @given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 12))
    def test_each_task_has_as_many_as_there_can_be(
        self, many: int, standbys: int, tasks: int
    ) -> None:
        names = {str(n): None for n in range(many)}
        app = application(names, {f"0_{n}": None for n in range(tasks)}, standbys=standbys)
        start = placed("active", p0=" ".join(f"0_{n}" for n in range(tasks)))
        after = default_standby_task_assignment(app, start)
        copies = Counter(task for entry in after.values() for task in entry.standby)
        assert set(copies.values()) <= {min(standbys, many - 1)}
        loads = [len(entry.standby) for name, entry in after.items() if name != ProcessId("0")]
        assert max(loads, default=0) - min(loads, default=0) <= 1

    def test_go_where_no_copy_has_the_tag(self) -> None:
        tags = {name: {"zone": zone} for name, zone in zip("1234", "xxyz", strict=True)}
        app = application(dict.fromkeys("1234"), {"0_0": None}, standbys=2, tags=tags)
        after = default_standby_task_assignment(app, placed("active", p1="0_0"))
        assert {str(name) for name, entry in after.items() if entry.standby} == {"3", "4"}


def test_identity_is_what_there_was() -> None:
    held = frozenset([TaskId(7, 7)])
    app = ApplicationState.of([], [KafkaStreamsState(ProcessId("1"), previous_active_tasks=held)])
    assert identity_assignment(app)[ProcessId("1")].active == held


def test_nothing_that_is_passed_in_is_changed_and_all_processes_have_an_entry() -> None:
    app = application(TWO, CROSSED, standbys=1)
    after = default_standby_task_assignment(app, {})
    assert list(after) == [ProcessId("1"), ProcessId("2")]
    with pytest.raises(ValueError, match="is under 2"):
        default_standby_task_assignment(
            app, {ProcessId("2"): placed("active", p1="")[ProcessId("1")]}
        )
