"""Placing tasks at least cost: assignment problems, solved exactly by scipy.

Guarantees: the cost is the least there is, and each process gets as many tasks as it has places.
:class:`Costs` says how ties are decided. Equal inputs get equal answers. Numpy and scipy only
compute here, so this module is as pure as the rest.
Cost: a few ms for 500 tasks as a matrix (cubic at worst); above some size as a network of what is
alike, with tasks x racks edges at most, never tasks x processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import csr_array

__all__ = ["DENSE_MAX", "Costs", "place", "place_capped", "place_on_two", "place_tasks"]

DENSE_MAX: Final = 1500
"""Maximum number of places for a dense matrix (18 MB); above it, a network is solved."""

_EXACT_MAX: Final = 2**53
"""Floats hold integers up to here."""

_Ints: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """The cost of a task on a process.

    Attributes:
        traffic: Cost of each task (row) in each rack (column).
        rack: Column of each process's rack.
        move: Cost of a task that is not where it starts.
        prefers_near: Whether less traffic decides between placements of the same cost.
        wishes: For each task (row) on each process (column), what decides next: the least sum is
            best. None: the fewest moves are. Networks know no wishes.
    """

    traffic: NDArray[np.int64]
    rack: _Ints
    move: int = 0
    prefers_near: bool = False
    wishes: NDArray[np.int64] | None = None

    def scaled(self) -> "Costs":
        """Add what decides between equal costs as the smallest parts, as far as floats hold them.

        What does not fit is dropped: wishes first, then near racks, then few moves.
        """
        without = replace(self, wishes=None)
        for costs in (self, without, replace(without, prefers_near=False)):
            if (scaled := _scaled(costs)) is not None:
                return scaled
        return Costs(self.traffic, self.rack, self.move)

    def matrix(self, start: _Ints) -> NDArray[np.float64]:
        """Return the cost of each task (row) on each process (column)."""
        costs = (self.traffic[:, self.rack] + self.move).astype(np.float64)
        if self.wishes is not None:
            costs += self.wishes
        costs[np.arange(len(start)), start] -= self.move
        return costs


def _scaled(costs: Costs) -> Costs | None:
    """The costs with all that decides between equals; None if floats do not hold them exactly."""
    tasks = len(costs.traffic)
    farthest = int(np.abs(costs.traffic).max(initial=0))
    wish = tasks + 1
    near = wish
    if costs.wishes is not None:
        near *= 2 * tasks * int(np.abs(costs.wishes).max(initial=0)) + 1
    scale = near
    if costs.prefers_near:
        scale *= tasks * farthest + 1
    else:
        near = 0
    if (farthest + abs(costs.move) + 1) * (scale + near) * tasks >= _EXACT_MAX:
        return None
    wishes = None if costs.wishes is None else costs.wishes * wish
    return Costs(costs.traffic * (scale + near), costs.rack, costs.move * scale + 1, False, wishes)


def place(costs: Costs, start: _Ints) -> _Ints:
    """Move tasks so that the sum of costs is least; among such placements, few tasks move.

    Args:
        costs: The cost of each task on each process.
        start: Process of each task; each process keeps its number of tasks.

    Returns:
        The process of each task.
    """
    if len(start) > DENSE_MAX:
        return _network(costs.scaled(), start, np.zeros_like(start), None)
    processes = len(costs.rack)
    places = np.repeat(np.arange(processes), np.bincount(start, minlength=processes))
    _, chosen = linear_sum_assignment(costs.scaled().matrix(start)[:, places])
    placed: _Ints = places[chosen]
    return placed


def place_capped(costs: Costs, start: _Ints, group: _Ints) -> _Ints:
    """Place tasks as :func:`place` does, and spread each group of tasks over the processes.

    A process that has a share of the tasks gets no more than that share of each group, rounded up.
    Such a placement always exists.

    Args:
        costs: The cost of each task on each process.
        start: Process of each task; each process keeps its number of tasks.
        group: Number of each task's group, from 0.

    Returns:
        The process of each task.
    """
    processes = len(costs.rack)
    own = np.bincount(start, minlength=processes)
    width = np.bincount(group)
    caps = -(-np.outer(own, width) // len(start))
    free = place(costs, start)
    if _fits(free, group, caps):
        return free
    caps = np.minimum(caps, np.minimum(own[:, None], width[None, :]))
    if int(caps.sum()) > DENSE_MAX:
        return _network(costs.scaled(), start, group, caps)
    return _dense(costs.scaled().matrix(start), own, group, caps)


def place_tasks(
    traffic: Sequence[Sequence[int]],
    racks: Sequence[int],
    start: Sequence[int],
    *,
    move: int,
    groups: Sequence[int] | None = None,
    wishes: Mapping[tuple[int, int], int] | None = None,
) -> list[int]:
    """Place tasks at least cost: :func:`place`, or :func:`place_capped` where there are groups.

    Args:
        traffic: Cost of each task (row) in each rack (column).
        racks: Column of each process's rack.
        start: Number of each task's process; each process keeps its number of tasks.
        move: Cost of a task that is not where it starts.
        groups: The group of each task; with groups, near racks come before few moves.
        wishes: For (task, process), what decides between placements of the same cost.

    Returns:
        The number of each task's process.
    """
    wished = None
    # Networks know no wishes, and the matrix would be large.
    if wishes and len(start) <= DENSE_MAX:
        wished = np.zeros((len(start), len(racks)), dtype=np.int64)
        for cell, wish in wishes.items():
            wished[cell] = wish
    costs = Costs(
        np.array(traffic, dtype=np.int64),
        np.array(racks, dtype=np.intp),
        move,
        groups is not None,
        wished,
    )
    before = np.array(start, dtype=np.intp)
    if groups is None:
        placed = place(costs, before)
    else:
        _, group = np.unique(np.array(groups), return_inverse=True)
        placed = place_capped(costs, before, group)
    after: list[int] = placed.tolist()
    return after


def place_on_two(
    traffic: Sequence[Sequence[int]],
    first: int,
    groups: Sequence[int],
    move: int = 0,
    *,
    prefers_near: bool = False,
) -> list[int]:
    """Place tasks as :func:`place_capped` does, on two processes in racks of their own.

    Args:
        traffic: Cost of each task on each of the two.
        first: Number of tasks that start on the first process; they come first.
        groups: The group of each task.
        move: Cost of a task that is not where it starts.
        prefers_near: Whether less traffic decides between placements of the same cost.

    Returns:
        0 or 1 for each task.
    """
    start = np.repeat(np.arange(2), [first, len(traffic) - first])
    _, group = np.unique(np.array(groups), return_inverse=True)
    costs = Costs(np.array(traffic, dtype=np.int64), np.arange(2), move, prefers_near)
    placed: list[int] = place_capped(costs, start, group).tolist()
    return placed


def _fits(placed: _Ints, group: _Ints, caps: _Ints) -> bool:
    """True if no process has more tasks of a group than it may."""
    counts = np.zeros_like(caps)
    np.add.at(counts, (placed, group), 1)
    return bool((counts <= caps).all())


def _dense(costs: NDArray[np.float64], own: _Ints, group: _Ints, caps: _Ints) -> _Ints:
    """Solve as a matrix, with a place for each task of a group that a process may have.

    There are more places than tasks, so each process is filled up with tasks of no group and cost.
    """
    tasks = len(group)
    processes, groups = caps.shape
    places = np.repeat(np.repeat(np.arange(processes), groups), caps.ravel())
    kinds = np.repeat(np.tile(np.arange(groups), processes), caps.ravel())
    fillers = np.repeat(np.arange(processes), caps.sum(axis=1) - own)
    matrix = np.full((len(places), len(places)), np.inf)
    matrix[:tasks] = np.where(group[:, None] == kinds[None, :], costs[:, places], np.inf)
    matrix[tasks:][fillers[:, None] == places[None, :]] = 0.0
    _, chosen = linear_sum_assignment(matrix)
    placed: _Ints = places[chosen[:tasks]]
    return placed


def _network(costs: Costs, start: _Ints, group: _Ints, caps: _Ints | None) -> _Ints:
    """Solve as a flow: from kinds of tasks to racks, or straight to where they start.

    Tasks of one group that start on one process with the same traffic are of one kind. From a rack
    and group the flow goes on to the processes of the rack. All corners of such a problem are
    whole numbers, and the simplex method ends in a corner.
    """
    tasks = np.column_stack([group, start, costs.traffic])
    kinds, kind, count = np.unique(tasks, axis=0, return_inverse=True, return_counts=True)
    many, racks = kinds[:, 2:].shape
    processes, groups = len(costs.rack), int(group.max()) + 1
    cells = processes * groups
    home = kinds[:, 1]
    edges = _edges(kinds[:, 0], home, costs.rack, groups, racks)
    solved = linprog(
        np.concatenate(
            [
                (kinds[:, 2:] + costs.move).ravel(),
                kinds[np.arange(many), 2 + costs.rack[home]],
                np.zeros(cells),
            ]
        ),
        A_eq=edges,
        b_eq=np.concatenate(
            [count, np.zeros(racks * groups), np.bincount(start, minlength=processes)]
        ),
        A_ub=None if caps is None else _into_cells(home * groups + kinds[:, 0], cells, racks),
        b_ub=None if caps is None else caps.ravel(),
        bounds=(0, None),
        method="highs-ds",
    )
    to_rack, stays, to_process = np.split(
        np.rint(solved.x).astype(np.intp), [many * racks, many * (racks + 1)]
    )
    return _follow(
        to_rack.reshape(many, racks),
        stays,
        to_process,
        kind.ravel(),
        start,
        group,
        costs.rack,
    )


def _edges(kind_group: _Ints, home: _Ints, rack: _Ints, groups: int, racks: int) -> csr_array:
    """The edges of each node: kinds, racks by group, processes.

    Edges lead from a kind to each rack, from a kind to its home, from a rack to its processes by
    group.
    """
    many, cells = len(home), len(rack) * groups
    to_rack = np.arange(many * racks)
    process, cell_group = np.divmod(np.arange(cells), groups)
    pools = many + np.concatenate(
        [
            (to_rack % racks) * groups + kind_group[to_rack // racks],
            rack[process] * groups + cell_group,
        ]
    )
    nodes = np.concatenate(
        [
            to_rack // racks,
            np.arange(many),
            pools,
            many + racks * groups + np.concatenate([home, process]),
        ]
    )
    to_process = many * (racks + 1) + np.arange(cells)
    stay = many * racks + np.arange(many)
    columns = np.concatenate([to_rack, stay, to_rack, to_process, stay, to_process])
    signs = np.ones(len(columns))
    signs[many * (2 * racks + 1) :][:cells] = -1
    shape = (many + racks * groups + len(rack), many * (racks + 1) + cells)
    return csr_array((signs, (nodes, columns)), shape=shape)


def _into_cells(home_cell: _Ints, cells: int, racks: int) -> csr_array:
    """The flow to each process of each group."""
    rows = np.concatenate([home_cell, np.arange(cells)])
    first = len(home_cell) * racks
    columns = first + np.arange(len(rows))
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(cells, first + len(rows)))


def _follow(
    to_rack: _Ints,
    stays: _Ints,
    to_process: _Ints,
    kind: _Ints,
    start: _Ints,
    group: _Ints,
    rack: _Ints,
) -> _Ints:
    """Send tasks where the flow goes: of each kind the first ones stay."""
    placed = start.copy()
    order = np.argsort(kind, kind="stable")
    rank = np.empty_like(order)
    firsts = np.concatenate([[0], np.cumsum(np.bincount(kind))[:-1]])
    rank[order] = np.arange(len(kind)) - firsts[kind[order]]
    movers = order[rank[order] >= stays[kind[order]]]
    # Movers come kind by kind, and each kind's flow is given rack by rack.
    many, racks = to_rack.shape
    target = np.repeat(np.tile(np.arange(racks), many), to_rack.ravel())
    groups = len(to_process) // len(rack)
    by_pool = np.lexsort((movers, target * groups + group[movers]))
    cells = np.lexsort((np.arange(len(rack) * groups) // groups, _pools(rack, groups)))
    placed[movers[by_pool]] = np.repeat(cells // groups, to_process[cells])
    return placed


def _pools(rack: _Ints, groups: int) -> _Ints:
    """The number of rack and group of each process and group."""
    pools: _Ints = np.repeat(rack, groups) * groups + np.tile(np.arange(groups), len(rack))
    return pools
