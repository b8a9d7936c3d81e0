"""Swapping standbys to bring them to the racks of their changelogs.

Guarantees: each process keeps its number of standbys, and the total cost is not higher, except
where standbys are spread over subtopologies. As in Kafka the result is a local optimum, as far as
four passes go: no two processes can swap standbys with a gain.
Cost: a pass over all pairs of processes in different racks, then at most three over those that
changed.

Source: KIP-925 and Kafka 4.1.1; the algorithms are others.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import chain, combinations
from typing import Final, TypeAlias

from kshare.assignment.interface.application import ApplicationState
from kshare.assignment.interface.task_id import ProcessId, TaskId
from kshare.assignment.racks.costs import RackCosts, TasksByProcess, load_solver

__all__ = ["MayMove", "keeps_tags", "optimize_standby"]

MayMove: TypeAlias = Callable[[TaskId, ProcessId, ProcessId, Collection[ProcessId]], bool]
"""True if a task's standby may go from a process to another one, given all holders of a copy."""

_PASSES_MAX: Final = 4


def keeps_tags(state: ApplicationState) -> MayMove | None:
    """Return the rule for client tags: the copies of a task keep their variety of tags.

    The different names with values are counted, over all processes with a copy.

    Returns:
        None if no tags are configured.
    """
    if not state.assignment_configs.rack_aware_assignment_tags:
        return None
    entries = {process: frozenset(one.client_tags.items()) for process, one in state.states.items()}
    nothing: frozenset[tuple[str, str]] = frozenset()

    def may_move(
        _task: TaskId,
        source: ProcessId,
        destination: ProcessId,
        holders: Collection[ProcessId],
    ) -> bool:
        others = nothing.union(*(entries[one] for one in holders if one != source))
        return len(others | entries[destination]) >= len(others | entries[source])

    return may_move


def optimize_standby(
    active: TasksByProcess,
    standby: TasksByProcess,
    tasks: Collection[TaskId],
    costs: RackCosts,
    strategy: str,
    may_move: MayMove | None = None,
    *,
    spreads: bool = False,
) -> dict[ProcessId, set[TaskId]]:
    """Swap standbys between processes in different racks, as long as that lowers the cost.

    Args:
        active: The active tasks of each process.
        standby: The standby tasks of each process.
        tasks: The tasks whose standbys may move.
        costs: The cost of each task on each process.
        strategy: ``min_traffic``; or ``balance_subtopology``, where two processes that swap get no
            more than their share of each subtopology, rounded up.
        may_move: A further condition for each move.
        spreads: Whether, with ``balance_subtopology``, processes swap until they keep to their
            shares, even at a higher cost. Kafka does that: less traffic, and more moves.

    Returns:
        The standby tasks of each process.

    Raises:
        ValueError: A standby is of a task that is not in the topology.
    """
    kind = _Spreading if spreads and strategy == "balance_subtopology" else _Swaps
    swaps = kind(active, standby, tasks, costs, strategy, may_move)
    racks = costs.process_racks
    pairs = [
        (one, two)
        for one, two in combinations(sorted(swaps.standby), 2)
        if one in racks and two in racks and racks[one] != racks[two]
    ]
    swaps.improve_all(pairs)
    return swaps.standby


class _Swaps:
    """Standbys while they are swapped."""

    def __init__(
        self,
        active: TasksByProcess,
        standby: TasksByProcess,
        tasks: Collection[TaskId],
        costs: RackCosts,
        strategy: str,
        may_move: MayMove | None,
    ) -> None:
        self.standby = {process: set(held) for process, held in standby.items()}
        self._start = {process: frozenset(held) for process, held in standby.items()}
        self._copies = {
            process: held.union(active.get(process, ())) for process, held in self.standby.items()
        }
        self._costs = costs
        self._capped = strategy == "balance_subtopology"
        self._may_move = may_move
        self._moves: Counter[ProcessId] = Counter()
        self._traffic = {
            task: {rack: costs.traffic(task, rack) for rack in set(costs.process_racks.values())}
            for task in set(tasks).intersection(chain(*self.standby.values()))
        }
        self._holders: dict[TaskId, set[ProcessId]] = {task: set() for task in self._traffic}
        for process, held in self._copies.items():
            for task in held.intersection(self._traffic):
                self._holders[task].add(process)

    def improve_all(self, pairs: Sequence[tuple[ProcessId, ProcessId]]) -> None:
        """Let each pair swap in turn, pass after pass, until none does.

        A pair with nothing to swap is skipped until one of the two changes; but not if there is a
        rule for moves, which depends on other copies, too.
        """
        in_vain: dict[tuple[ProcessId, ProcessId], tuple[int, int]] = {}
        for _ in range(_PASSES_MAX):
            improved = False
            for pair in pairs:
                state = self._moves[pair[0]], self._moves[pair[1]]
                if self._may_move is None and in_vain.get(pair) == state:
                    continue
                if self.improve(*pair):
                    improved = True
                else:
                    in_vain[pair] = state
            if not improved:
                break

    def improve(self, one: ProcessId, two: ProcessId) -> bool:
        """Swap standbys of two processes as long as there is a gain; return whether any moved."""
        give, take = self._movable(one, two), self._movable(two, one)
        # Most pairs have nothing to gain: sorting can wait.
        if not give or not take or max(give)[0] + max(take)[0] <= 0:
            return False
        give, take = _best_first(give), _best_first(take)
        swapped = []
        for (gain, task), (gain_back, task_back) in zip(give, take, strict=False):
            if gain + gain_back <= 0:
                break
            swapped.append((task, task_back))
        if not swapped:
            return False
        if self._capped:
            swapped = self._within_caps(give, take)
        for task, task_back in swapped:
            self._move(task, one, two)
            self._move(task_back, two, one)
        return bool(swapped)

    def _movable(self, source: ProcessId, destination: ProcessId) -> list[tuple[int, TaskId]]:
        """The standbys that may move, with the gain of each."""
        may_move = self._may_move
        return [
            (self._gain(task, source, destination), task)
            for task in (self.standby[source] & self._traffic.keys()) - self._copies[destination]
            if may_move is None or may_move(task, source, destination, self._holders[task])
        ]

    def _gain(self, task: TaskId, source: ProcessId, destination: ProcessId) -> int:
        traffic, racks = self._traffic[task], self._costs.process_racks
        # Measured from the start, so that a standby that comes back costs nothing.
        moves = (task not in self._start[source]) - (task not in self._start[destination])
        saved = traffic[racks[source]] - traffic[racks[destination]]
        return saved + moves * self._costs.non_overlap_cost

    def _move(self, task: TaskId, source: ProcessId, destination: ProcessId) -> None:
        self._moves[source] += 1  # the other one's with the task that comes back
        for held in (self.standby, self._copies):
            held[source].remove(task)
            held[destination].add(task)
        self._holders[task] ^= {source, destination}

    @staticmethod
    def _within_caps(
        give: Sequence[tuple[int, TaskId]], take: Sequence[tuple[int, TaskId]]
    ) -> list[tuple[TaskId, TaskId]]:
        """The best swaps within the shares; none if there is no gain."""
        tasks = [task for _, task in (*give, *take)]
        costs = [[0, -gain] for gain, _ in give] + [[-gain, 0] for gain, _ in take]
        after = load_solver().place_on_two(costs, len(give), [task[0] for task in tasks])
        if sum(cost[to] for cost, to in zip(costs, after, strict=True)) >= 0:
            return []
        return _crossing(tasks, len(give), after)


def _best_first(movable: list[tuple[int, TaskId]]) -> list[tuple[int, TaskId]]:
    """The largest gain first."""
    return sorted(movable, key=lambda entry: (-entry[0], entry[1]))


def _crossing(
    tasks: Sequence[TaskId], first: int, after: Sequence[int]
) -> list[tuple[TaskId, TaskId]]:
    """Pairs of tasks that change places; the first ones were on 0, the others on 1."""
    given = [task for task, to in zip(tasks[:first], after[:first], strict=True) if to == 1]
    taken = [task for task, to in zip(tasks[first:], after[first:], strict=True) if to == 0]
    return list(zip(given, taken, strict=True))


class _Spreading(_Swaps):
    """Standbys while they are spread within the shares, as in Kafka."""

    def improve(self, one: ProcessId, two: ProcessId) -> bool:
        """Place the movable standbys of two processes at the least cost within their shares."""
        give, take = self._movable(one, two), self._movable(two, one)
        if not give or not take:
            return False
        give, take = _best_first(give), _best_first(take)
        if give[0][0] + take[0][0] < 0 and self._keep_to_shares(give, take):
            return False
        swapped = self._within_shares(one, two, [task for _, task in (*give, *take)], len(give))
        for task, task_back in swapped:
            self._move(task, one, two)
            self._move(task_back, two, one)
        return bool(swapped)

    def _gain(self, task: TaskId, source: ProcessId, destination: ProcessId) -> int:
        """The gain of a move; a standby that comes back costs as much as any other."""
        traffic, racks = self._traffic[task], self._costs.process_racks
        return traffic[racks[source]] - traffic[racks[destination]] - self._costs.non_overlap_cost

    @staticmethod
    def _keep_to_shares(
        give: Sequence[tuple[int, TaskId]], take: Sequence[tuple[int, TaskId]]
    ) -> bool:
        widths = Counter(task[0] for _, task in (*give, *take))
        return all(
            count <= -(-len(held) * widths[subtopology] // (len(give) + len(take)))
            for held in (give, take)
            for subtopology, count in Counter(task[0] for _, task in held).items()
        )

    def _within_shares(
        self, one: ProcessId, two: ProcessId, tasks: Sequence[TaskId], first: int
    ) -> list[tuple[TaskId, TaskId]]:
        """Pairs of tasks that change places; the first tasks are on the first process."""
        racks = [self._costs.process_racks[process] for process in (one, two)]
        after = load_solver().place_on_two(
            [[self._traffic[task][rack] for rack in racks] for task in tasks],
            first,
            [task[0] for task in tasks],
            self._costs.non_overlap_cost,
            prefers_near=True,
        )
        return _crossing(tasks, first, after)
