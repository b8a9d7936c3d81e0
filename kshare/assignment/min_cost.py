"""Placing tasks at least cost: assignment problems, solved exactly by scipy.

Law: the answer's cost is the least there is, and as many tasks are on each process as it has
places; equal inputs get equal answers. This computes and nothing else: numpy and scipy, which it
uses for that, are pure here, too.
Cost: in practice a few ms for 500 tasks (cubic at worst); memory is quadratic in the places.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import csr_array, vstack

__all__ = ["place", "place_capped"]

_DENSE_MAX: Final = 4000
"""Places up to which a dense matrix is used: 128 MB."""

_EXACT_MAX: Final = 2**53
"""Floats hold integers up to here."""


def place(costs: NDArray[np.int64], start: NDArray[np.intp]) -> NDArray[np.intp]:
    """Move tasks so that the sum of costs is least; among such placements, few tasks move.

    Args:
        costs: of each task (row) on each process (column).
        start: the process of each task. Each process keeps as many tasks as it has there.

    Returns:
        The process of each task.
    """
    processes = costs.shape[1]
    places = np.repeat(np.arange(processes), np.bincount(start, minlength=processes))
    _, chosen = linear_sum_assignment(_with_moves(costs, start)[:, places])
    placed: NDArray[np.intp] = places[chosen]
    return placed


def _with_moves(costs: NDArray[np.int64], start: NDArray[np.intp]) -> NDArray[np.float64]:
    """The costs with a move as the smallest part of all, if floats still hold that exactly."""
    tasks, _ = costs.shape
    if int(np.abs(costs).max(initial=0)) * (tasks + 1) * (tasks + 1) >= _EXACT_MAX:
        return costs.astype(np.float64)
    scaled = costs * (tasks + 1) + 1
    scaled[np.arange(tasks), start] -= 1
    exact: NDArray[np.float64] = scaled.astype(np.float64)
    return exact


def place_capped(
    costs: NDArray[np.int64],
    start: NDArray[np.intp],
    group: NDArray[np.intp],
) -> NDArray[np.intp]:
    """As :func:`place`, and each group of tasks is spread over the processes.

    A process that has a share of the tasks gets no more than that share of each group, rounded up.
    There always is such a placement.

    Args:
        costs: of each task (row) on each process (column).
        start: the process of each task.
        group: the number of each task's group, from 0.

    Returns:
        The process of each task.
    """
    tasks, processes = costs.shape
    groups = int(group.max(initial=0)) + 1
    own = np.bincount(start, minlength=processes)
    width = np.bincount(group, minlength=groups)
    caps = -(-np.outer(own, width) // tasks)
    free = place(costs, start)
    if _fits(free, group, caps):
        return free
    caps = np.minimum(caps, np.minimum(own[:, None], width[None, :]))
    scaled = _with_moves(costs, start)
    if int(caps.sum()) > _DENSE_MAX:
        return _sparse(scaled, own, group, caps)
    return _dense(scaled, own, group, caps)


def _fits(placed: NDArray[np.intp], group: NDArray[np.intp], caps: NDArray[np.intp]) -> bool:
    """Whether no process has more tasks of a group than it may."""
    counts = np.zeros_like(caps)
    np.add.at(counts, (placed, group), 1)
    return bool((counts <= caps).all())


def _dense(
    costs: NDArray[np.float64],
    own: NDArray[np.intp],
    group: NDArray[np.intp],
    caps: NDArray[np.intp],
) -> NDArray[np.intp]:
    """A place for each task that a process may have of a group.

    These are more than there are tasks, so each process fills up with tasks of no group and cost.
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
    placed: NDArray[np.intp] = places[chosen[:tasks]]
    return placed


def _sparse(
    costs: NDArray[np.float64],
    own: NDArray[np.intp],
    group: NDArray[np.intp],
    caps: NDArray[np.intp],
) -> NDArray[np.intp]:
    """The same as a linear program: a corner of it is whole, since the constraints are nested."""
    tasks, processes = costs.shape
    groups = caps.shape[1]
    ones = np.ones(tasks * processes)
    columns = np.arange(tasks * processes)
    task, process = np.divmod(columns, processes)
    per_task = csr_array((ones, (task, columns)))
    per_process = csr_array((ones, (process, columns)), shape=(processes, len(columns)))
    cells = process * groups + group[task]
    per_cell = csr_array((ones, (cells, columns)), shape=(processes * groups, len(columns)))
    solved = linprog(
        costs.ravel(),
        A_ub=per_cell,
        b_ub=caps.ravel(),
        A_eq=vstack([per_task, per_process]),
        b_eq=np.concatenate([np.ones(tasks), own]),
        bounds=(0, 1),
        method="highs-ds",
    )
    placed: NDArray[np.intp] = solved.x.reshape(tasks, processes).argmax(axis=1)
    return placed
