"""Tasks: what is sent to the executors, and how pending work is cut into them."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kshare.core.fetch_groups import FetchGroup, fetch_groups
from kshare.core.hashing import WHOLE, HashRange
from kshare.core.progress import Slice, TopicPartition
from kshare.core.slicing import PartitionLoad, check_plan, plan_by_key, plan_by_offset
from kshare.feedback.messages import Ticket
from kshare.options import Assign, SourceOptions
from kshare.ranges import load_range_assignor

__all__ = ["Task", "allowed_hashes", "batch_name", "cut", "with_fetch_groups"]

_SHARED_OFFSETS_MIN = 500


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a batch.

    Attributes:
        slice: what it reads.
        max_records: it ends after so many records; None is no limit.
        ticket: how it tells the planner where it ended; None if the planner need not know.
        fetch_group: the tasks that read the same offsets, with which it shares what it fetches;
            None if there are none.
    """

    slice: Slice
    max_records: int | None = None
    ticket: Ticket | None = None
    fetch_group: FetchGroup | None = None


def allowed_hashes(options: SourceOptions, partition: TopicPartition) -> tuple[HashRange, ...]:
    """The key hashes of a partition that the query reads: all, unless ``assign`` says otherwise."""
    topics = options.topics
    chosen = topics.partitions[partition] if isinstance(topics, Assign) else ()
    return tuple(chosen) or (WHOLE,)


def chosen_ranges(
    options: SourceOptions, partition: TopicPartition
) -> tuple[HashRange, ...] | None:
    """The hash ranges that the user cut a partition by; None if the planner may choose."""
    topics = options.topics
    return (topics.partitions[partition] or None) if isinstance(topics, Assign) else None


def cut(options: SourceOptions, loads: Sequence[PartitionLoad]) -> tuple[Slice, ...]:
    """Pending work as slices, as ``splitBy`` and the range assignor have it.

    Raises:
        PlanError: the slices do not tile the work; only a range assignor of the user's can do that.
    """
    if options.split_by == "offset":
        slices = plan_by_offset(loads, min_tasks=options.min_partitions)
    else:
        slices = plan_by_key(
            loads,
            load_range_assignor(options.range_assignor),
            min_tasks=options.min_partitions,
            key_ranges=options.key_ranges,
        )
    check_plan(loads, slices)
    return slices


def with_fetch_groups(
    options: SourceOptions, query: str, batch: str, tasks: Sequence[Task]
) -> tuple[Task, ...]:
    """Tasks that know their fetch groups, unless ``max.bytes.key.range.results`` is 0.

    In small batches they need none: a look into the host's index takes as long as such a fetch.

    Args:
        options: the query's.
        query: a random name of the query run.
        batch: the batch's name within it.
        tasks: of one batch.
    """
    if not options.max_bytes_key_range_results:
        return tuple(tasks)
    places: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, task in enumerate(tasks):
        places[task.slice.topic, task.slice.partition].append(number)
    known = list(tasks)
    for numbers in places.values():
        if len(numbers) > 1 and _longest(tasks, numbers) >= _SHARED_OFFSETS_MIN:
            groups = fetch_groups(query, batch, [tasks[number].slice.offsets for number in numbers])
            for number, group in zip(numbers, groups, strict=True):
                if group is not None:
                    task = tasks[number]
                    known[number] = Task(task.slice, task.max_records, task.ticket, group)
    return tuple(known)


def _longest(tasks: Sequence[Task], numbers: Sequence[int]) -> int:
    """The offsets that the task with the longest way has to go."""
    return max(len(tasks[number].slice.offsets) for number in numbers)


def batch_name(end: Mapping[str, Any]) -> str:
    """A name for a batch: equal for equal offset dicts, also after a restart."""
    text = json.dumps(end, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
