"""Packing slices into tasks: ``maxTasks``.

A task costs a task slot about 20 ms, however little it reads. Small slices are therefore better
read by few tasks. The task that reads a slice changes no row: a slice is in one task as a whole.

The longest slices are placed first, each into the task with the least work (LPT: R. L. Graham,
Bounds on Multiprocessing Timing Anomalies, 1969: at most 4/3 of the best time). Slices of one
partition stay together where they are no more than a task's equal share, since a task reads them in
one pass. Equal input gets equal answers. Cost: a sort of the slices.
"""

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import ceil
from typing import Final

from kshare.core.hashing import HASH_SPACE
from kshare.core.offsets import length
from kshare.core.progress import Slice

__all__ = ["SMALL_SECONDS", "pack", "pack_small", "records_of"]

SMALL_SECONDS: Final = 0.1
"""A slice that takes no longer than this is small; so is a task into which such slices are put."""


def records_of(slice_: Slice, max_records: int | None = None) -> float:
    """About how many records a slice holds, if keys spread evenly; at least 1.

    Args:
        slice_: The slice.
        max_records: Maximum number of records to read; None for none.
    """
    cells = sum(length(each.bounds) * each.hashes.width for each in slice_.stripes)
    records = cells / HASH_SPACE
    if max_records is not None:
        records = min(records, max_records)
    return max(records, 1.0)


def pack(
    slices: Sequence[Slice], weights: Sequence[float], tasks: int
) -> tuple[tuple[int, ...], ...]:
    """Put slices into tasks of about equal weight.

    Args:
        slices: The slices.
        weights: How much work each is, more than 0; records or seconds.
        tasks: Maximum number of tasks, at least 1.

    Returns:
        For each task the numbers of its slices, ascending; the tasks in the order of their first
        slice. No task is empty.
    """
    if len(slices) <= tasks:
        return tuple((number,) for number in range(len(slices)))
    share = sum(weights) / tasks
    items = sorted(
        (-sum(weights[number] for number in numbers), numbers)
        for numbers in _together(slices, weights, share)
    )
    packed: list[list[int]] = [[] for _ in range(tasks)]
    loads = [(0.0, task) for task in range(tasks)]
    heapify(loads)
    for minus_weight, numbers in items:
        load, task = loads[0]
        packed[task] += numbers
        heapreplace(loads, (load - minus_weight, task))
    return tuple(sorted(tuple(sorted(numbers)) for numbers in packed if numbers))


def pack_small(slices: Sequence[Slice], seconds: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """Put small slices together, and leave a task of its own to each that is not.

    Args:
        slices: The slices.
        seconds: How long each takes by itself, more than 0.

    Returns:
        As of :func:`pack`.
    """
    small = [number for number, each in enumerate(seconds) if each <= SMALL_SECONDS]
    times = [seconds[number] for number in small]
    tasks = max(1, ceil(sum(times) / SMALL_SECONDS))
    packed = pack([slices[number] for number in small], times, tasks) if small else ()
    together = [tuple(small[number] for number in numbers) for numbers in packed]
    alone = [number for number, each in enumerate(seconds) if each > SMALL_SECONDS]
    return tuple(sorted([*together, *((number,) for number in alone)]))


def _together(
    slices: Sequence[Slice], weights: Sequence[float], share: float
) -> list[tuple[int, ...]]:
    """The slices of each partition as one item, or as one each where they are too much for that."""
    partitions: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, slice_ in enumerate(slices):
        partitions[slice_.topic, slice_.partition].append(number)
    items: list[tuple[int, ...]] = []
    for numbers in partitions.values():
        if sum(weights[number] for number in numbers) <= share:
            items.append(tuple(numbers))
        else:
            items += [(number,) for number in numbers]
    return items
