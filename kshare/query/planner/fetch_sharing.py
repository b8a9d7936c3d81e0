"""The tasks of a batch that share what they fetch on a host.

A fetch group is made of tasks, not of slices: a task reads the slices of a partition in one pass,
and only another task can use what it has fetched.
Cost: linear in the slices.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kshare.core.offsets import Bounds, length, union
from kshare.core.progress import TopicPartition
from kshare.core.tasks import FetchGroup, Task, fetch_groups
from kshare.options import SourceOptions

__all__ = ["with_fetch_groups"]

_SHARED_OFFSETS_MIN: Final = 500
"""Of a partition, in a task: to fetch fewer takes no longer than the looks into a host's index."""


def with_fetch_groups(
    options: SourceOptions, query: str, batch: str, tasks: Sequence[Task]
) -> tuple[Task, ...]:
    """Tasks that know their fetch groups, unless ``max.bytes.key.range.results`` is 0.

    Args:
        options: The query's options.
        query: A random name of the query run.
        batch: The batch's name within it.
        tasks: The tasks of one batch.
    """
    if not options.max_bytes_key_range_results:
        return tuple(tasks)
    groups: dict[tuple[int, TopicPartition], FetchGroup] = {}
    for tp, readers in _readers(tasks).items():
        sets = [union(offsets) for offsets in readers.values()]
        if len(sets) == 1 or max(map(length, sets)) < _SHARED_OFFSETS_MIN:
            continue
        for number, group in zip(readers, fetch_groups(query, batch, sets), strict=True):
            if group is not None:
                groups[number, tp] = group
    return tuple(_knowing(number, task, groups) for number, task in enumerate(tasks))


def _readers(tasks: Sequence[Task]) -> dict[TopicPartition, dict[int, list[Bounds]]]:
    """For each partition, the offsets of the slices of each task that reads it, by its number."""
    readers: defaultdict[TopicPartition, dict[int, list[Bounds]]] = defaultdict(dict)
    for number, task in enumerate(tasks):
        for planned in task.slices:
            offsets = readers[planned.slice.topic_partition].setdefault(number, [])
            offsets.append(planned.slice.bounds)
    return readers


def _knowing(number: int, task: Task, groups: dict[tuple[int, TopicPartition], FetchGroup]) -> Task:
    found = [groups.get((number, planned.slice.topic_partition)) for planned in task.slices]
    if not any(found):
        return task
    return Task(
        tuple(
            replace(planned, fetch_group=group)
            for planned, group in zip(task.slices, found, strict=True)
        )
    )
