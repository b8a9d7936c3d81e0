"""The tasks of a batch that share what they fetch on a host.

A fetch group is made of tasks, not of slices: a task reads the slices of a partition in one pass,
and only another task can use what it has fetched.
Tasks of an open batch share what was there when it was planned: what comes later is there for all
of them at once, in small responses, which cost less than the looks into a host's index.
Cost: linear in the slices.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kshare.core.offsets import Bounds, length, union, within
from kshare.core.progress import TopicPartition
from kshare.core.tasks import FetchGroup, OpenTask, Task, fetch_groups
from kshare.options import SourceOptions

__all__ = ["open_with_fetch_groups", "with_fetch_groups"]

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
    read = (
        (number, planned.slice.topic_partition, planned.slice.bounds)
        for number, task in enumerate(tasks)
        for planned in task.slices
    )
    groups = _groups(query, batch, read)
    return tuple(_knowing(number, task, groups) for number, task in enumerate(tasks))


def open_with_fetch_groups(
    options: SourceOptions,
    query: str,
    batch: str,
    tasks: Sequence[OpenTask],
    available: Mapping[TopicPartition, int],
) -> tuple[OpenTask, ...]:
    """The same for an open batch.

    Args:
        options: The query's options.
        query: A random name of the query run.
        batch: The batch's name within it.
        tasks: The tasks of the batch.
        available: Where the logs of its partitions ended when it was planned. Those of which that
            is not known have no group.
    """
    if not options.max_bytes_key_range_results:
        return tuple(tasks)
    read = (
        (number, each.id.partition, unread)
        for number, task in enumerate(tasks)
        for each in task.ranges
        if (unread := within(each.slice.bounds, 0, available.get(each.id.partition, 0)))
    )
    groups = _groups(query, batch, read)
    return tuple(
        replace(
            task,
            fetch_groups={
                tp: group
                for tp in sorted({each.id.partition for each in task.ranges})
                if (group := groups.get((number, tp))) is not None
            },
        )
        for number, task in enumerate(tasks)
    )


def _groups(
    query: str, batch: str, read: Iterable[tuple[int, TopicPartition, Bounds]]
) -> dict[tuple[int, TopicPartition], FetchGroup]:
    """The fetch groups where sharing is worth its looks, by number of the task and partition.

    Args:
        query: A random name of the query run.
        batch: The batch's name within it.
        read: The offsets that are read: number of the task, partition, and offsets.
    """
    found: defaultdict[TopicPartition, dict[int, list[Bounds]]] = defaultdict(dict)
    for number, tp, offsets in read:
        found[tp].setdefault(number, []).append(offsets)
    groups: dict[tuple[int, TopicPartition], FetchGroup] = {}
    for tp, readers in found.items():
        sets = [union(offsets) for offsets in readers.values()]
        if len(sets) == 1 or max(map(length, sets)) < _SHARED_OFFSETS_MIN:
            continue
        for number, group in zip(readers, fetch_groups(query, batch, sets), strict=True):
            if group is not None:
                groups[number, tp] = group
    return groups


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
