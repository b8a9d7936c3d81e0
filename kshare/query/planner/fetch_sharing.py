"""The tasks of a batch that share what they fetch on a host.

A fetch group is made of tasks, not of slices: a task reads the slices of a partition in one pass,
and only another task can use what it has fetched.
Tasks of an open batch share what was there when it was planned: what comes later is there for all
of them at once, in small responses, which cost less than the looks into a host's index.
Cost: linear in the slices.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    readers = _Readers()
    for number, task in enumerate(tasks):
        for planned in task.slices:
            readers.add(number, planned.slice.topic_partition, planned.slice.bounds)
    groups = readers.groups(query, batch)
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
    readers = _Readers()
    for number, task in enumerate(tasks):
        for each in task.ranges:
            tp = each.id.partition
            start = each.slice.offsets.start
            if unread := within(each.slice.bounds, start, available.get(tp, start)):
                readers.add(number, tp, unread)
    groups = readers.groups(query, batch)
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


class _Readers:
    """For each partition, the offsets that each task reads of it, by its number."""

    def __init__(self) -> None:
        self._found: defaultdict[TopicPartition, dict[int, list[Bounds]]] = defaultdict(dict)

    def add(self, number: int, tp: TopicPartition, offsets: Bounds) -> None:
        """A task reads offsets of a partition."""
        self._found[tp].setdefault(number, []).append(offsets)

    def groups(self, query: str, batch: str) -> dict[tuple[int, TopicPartition], FetchGroup]:
        """The groups of tasks, by number and partition, where sharing is worth its looks."""
        groups: dict[tuple[int, TopicPartition], FetchGroup] = {}
        for tp, readers in self._found.items():
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
