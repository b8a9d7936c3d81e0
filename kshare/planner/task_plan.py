"""From the slices of a batch to its tasks: grouped for fetching, packed, and ordered."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import TypeAlias

from kshare.core.fetch_groups import fetch_groups
from kshare.core.packing import pack, pack_small, records_of
from kshare.core.progress import Slice, TopicPartition
from kshare.core.tasks import PlannedSlice, Task
from kshare.feedback.messages import Executor
from kshare.options import SourceOptions
from kshare.planner.recent_batches import Run
from kshare.planner.slot_count import TaskSlots
from kshare.planner.task_order import TaskOrder

__all__ = ["TaskPlan", "packed", "with_fetch_groups"]

_SHARED_OFFSETS_MIN = 500
_SECONDS_PER_RECORD = 1e-4  # where it is not known: slower than any reading, faster than a call

Speed: TypeAlias = Callable[[PlannedSlice], float | None]


class TaskPlan:
    """Makes the tasks of each batch of a query run.

    Args:
        options: The query's options.
        clock: Seconds.
    """

    def __init__(
        self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._order = TaskOrder(options, clock=clock)
        self._query = token_hex(8)  # by which tasks on a host know their fetch group
        self._has_fetch_groups = False
        self._slots = TaskSlots()

    @property
    def options(self) -> SourceOptions:
        """The query's options, with the number of slots for ``minPartitions=auto``."""
        if not self._options.min_partitions_auto:
            return self._options
        return replace(self._options, min_partitions=self._slots.slots)

    def should_locate(self, slices: Sequence[PlannedSlice]) -> bool:
        """True if the tasks that read some slices shall report where they run."""
        return self._options.min_partitions_auto or self._order.should_locate(slices)

    def observe(self, slices: Sequence[PlannedSlice], executors: Mapping[Slice, Executor]) -> None:
        """Take note of where the tasks of a batch ran."""
        self._slots.observe(executor.name for executor in executors.values())
        self._order.observe(slices, executors)

    def tasks(self, batch: str, run: Run, speed: Speed | None = None) -> tuple[Task, ...]:
        """The tasks of a batch.

        Args:
            batch: The batch's name.
            run: What they read.
            speed: Seconds per record of a slice, None if not known; None if no speed is known.
        """
        self._slots.finish_batch(self._order.executors)
        grouped = with_fetch_groups(self._options, self._query, batch, run.slices)
        self._has_fetch_groups |= any(planned.fetch_group is not None for planned in grouped)
        tasks = packed(self._options, grouped, speed)
        self._slots.start_batch(len(tasks))
        if run.locates_only:
            tasks = tuple(map(_reporting_once, tasks))
        return self._order.order(tasks)

    def close(self) -> None:
        """Release what tasks have fetched for each other on this host."""
        if self._has_fetch_groups:
            from kshare.wire.sharing.chunks import forget_query  # noqa: PLC0415 - our wire: 0.14 s

            forget_query(self._query)


def packed(
    options: SourceOptions, slices: Sequence[PlannedSlice], speed: Speed | None = None
) -> tuple[Task, ...]:
    """The tasks that read some slices: one for each, or fewer with ``maxTasks``.

    A slice whose task is measured has a task of its own: its time would be that of others, too.
    Where ``maxTasks`` is a number and there are more slices than that, no more slices than half
    of it are measured.

    Args:
        options: The query's options.
        slices: What they read.
        speed: Seconds per record of a slice, None if not known; None if no speed is known.
    """
    if isinstance(options.max_tasks, int) and len(slices) > options.max_tasks:
        slices = _measured_in_turn(slices, options.max_tasks // 2, speed)
    together = [planned for planned in slices if not _is_measured(planned)]
    if options.max_tasks is None or len(together) < 2:
        return tuple(Task((planned,)) for planned in slices)
    parts = [planned.slice for planned in together]
    records = [records_of(planned.slice, planned.max_records) for planned in together]
    if options.max_tasks == "auto":
        speeds = [None if speed is None else speed(planned) for planned in together]
        times = [
            count * (_SECONDS_PER_RECORD if each is None else each)
            for count, each in zip(records, speeds, strict=True)
        ]
        numbers = pack_small(parts, times)
    else:
        measured = len(slices) - len(together)
        # Always one or more: all slices fit, or half of the tasks are for these.
        numbers = pack(parts, records, options.max_tasks - measured)
    tasks = [Task((planned,)) for planned in slices if _is_measured(planned)]
    return (*tasks, *(Task(tuple(together[number] for number in each)) for each in numbers))


def _measured_in_turn(
    slices: Sequence[PlannedSlice], most: int, speed: Speed | None
) -> tuple[PlannedSlice, ...]:
    """Slices of which only some are measured; the tickets of the others do not hold.

    Slices of unknown speed come first; the rest are drawn pseudo-randomly, by the batch's name and
    the number of the slice: a batch that is planned again measures the same slices, and over many
    batches each that is due has the same chance.

    Args:
        slices: What a batch reads.
        most: Maximum number of measured slices.
        speed: Seconds per record of a slice, None if not known; None if no speed is known.
    """
    due = [number for number, planned in enumerate(slices) if _is_measured(planned)]

    def turn(number: int) -> tuple[bool, bytes]:
        planned = slices[number]
        assert planned.ticket is not None
        is_known = speed is not None and speed(planned) is not None
        return is_known, hashlib.sha256(repr(planned.ticket.id).encode()).digest()

    turned = list(slices)
    for number in sorted(due, key=turn)[most:]:
        planned = slices[number]
        assert planned.ticket is not None
        turned[number] = replace(planned, ticket=replace(planned.ticket, hold=False))
    return tuple(turned)


def _reporting_once(task: Task) -> Task:
    """A task that reports for its first slice alone: a report is a connection to the planner."""
    first, *others = task.slices
    return Task((first, *(replace(planned, ticket=None) for planned in others)))


def _is_measured(planned: PlannedSlice) -> bool:
    return planned.ticket is not None and planned.ticket.hold


def with_fetch_groups(
    options: SourceOptions, query: str, batch: str, slices: Sequence[PlannedSlice]
) -> tuple[PlannedSlice, ...]:
    """Slices that know their fetch groups, unless ``max.bytes.key.range.results`` is 0.

    In small batches they have none: a look into the host's index takes as long as such a fetch.

    Args:
        options: The query's options.
        query: A random name of the query run.
        batch: The batch's name within it.
        slices: The slices of one batch.
    """
    if not options.max_bytes_key_range_results:
        return tuple(slices)
    by_partition: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    for number, planned in enumerate(slices):
        by_partition[planned.slice.topic_partition].append(number)
    grouped = list(slices)
    for numbers in by_partition.values():
        offsets = [slices[number].slice.offsets for number in numbers]
        if len(numbers) > 1 and max(map(len, offsets)) >= _SHARED_OFFSETS_MIN:
            groups = fetch_groups(query, batch, offsets)
            for number, group in zip(numbers, groups, strict=True):
                if group is not None:
                    grouped[number] = replace(slices[number], fetch_group=group)
    return tuple(grouped)
