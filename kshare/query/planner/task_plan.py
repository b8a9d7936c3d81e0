"""From the pending work of a batch to its tasks: cut, packed, grouped for fetching, ordered.

Guarantees: the slices tile the pending work. With ``maxRecordsPerPartition``, cut by offset, no
slice spans more offsets than that, exactly as in Spark's kafka source. Cut by key hash, ranges are
made narrower until a slice's share of the partition's offsets is no more than that: keys do not
spread evenly, a key is never cut, and every such slice scans the whole offset range.
Cost: linear in the slices.

``minPartitions=auto``: Spark does not tell a source how many task slots there are, but tasks report
which executor they run on, and how many it runs at once. Each change of the number moves boundaries
of key ranges, and each moved boundary costs entries in the checkpoint. So a change counts when it
has lasted some batches. A lost executor sends nothing, so its absence tells: Spark gives a task to
each executor before any gets a second one. If a batch has at least as many tasks as there are
slots, an executor that gets none is gone or busy.
"""

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Final, TypeAlias

from kshare.core.hashing import HashRange, KeyRanges, split
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.core.region import Rectangle, hull
from kshare.core.slicing import (
    PartitionLoad,
    check_plan,
    clip_offsets,
    divided,
    plan_by_key,
    plan_by_offset,
    plan_ranges,
)
from kshare.core.tasks import OpenTask, PlannedSlice, Task, pack, pack_small, records_of
from kshare.options import SourceOptions
from kshare.query.planner.batch_history import RecentBatch
from kshare.query.planner.fetch_sharing import open_with_fetch_groups, with_fetch_groups
from kshare.query.planner.key_selection import KeySelection
from kshare.query.planner.rate_controller import RateController
from kshare.query.planner.task_order import TaskOrder
from kshare.ranges import load_range_assignor

__all__ = ["SlotCount", "TaskPlan", "TaskSlots", "packed", "slice_pending"]

_RANGES_MAX: Final = 1 << 16
_SECONDS_PER_RECORD: Final = 1e-4
"""Where it is not known: slower than any reading, faster than a call."""
_BATCHES: Final = 3
_ABSENCES_MAX: Final = 3

Pending: TypeAlias = Mapping[TopicPartition, tuple[Rectangle, ...]]
"""The pending work of partitions."""

Speed: TypeAlias = Callable[[PlannedSlice], float | None]


class TaskPlan:
    """Makes the tasks of each batch of a query run.

    Args:
        options: The query's options.
        keys: The key hashes that the query reads.
        rates: What tasks have reported, and who they report to.
        clock: Seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        rates: RateController,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._keys = keys
        self._rates = rates
        self._order = TaskOrder(options, clock=clock)
        self._query = token_hex(8)  # by which tasks on a host know their fetch group
        self._has_fetch_groups = False
        self._slots = TaskSlots()

    def observe(self, last: RecentBatch) -> None:
        """Take note of where the tasks of a batch ran, if this planner has started it."""
        if last.run is not None:
            executors = self._rates.executors(last)
            self._slots.observe(executor.name for executor in executors.values())
            self._order.observe(last.run.slices, executors)

    def limits(self, pending: Pending) -> PlannedLimits:
        """The ranges of a batch with record limits, and what each may read; changes nothing."""
        ranges = plan_ranges(
            self._loads(pending),
            load_range_assignor(self._options.range_assignor),
            min_tasks=self._now.min_partitions,
            key_ranges=self._options.key_ranges,
        )
        return self._rates.limits(ranges)

    def cut(
        self,
        read: Mapping[TopicPartition, KeyRanges],
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, Sequence[HashRange]]:
        """The ranges of partitions that are read for a while, also where nothing is pending.

        Args:
            read: The key hashes that are read of each.
            progress: How far each is.
            available: Where their logs end now. What is pending there is what assignors go by; to a
                partition that is read to its end, the next record is that.
        """
        pending = {
            tp: progress[tp].pending_of(max(available[tp], progress[tp].front) + 1, hashes)
            for tp, hashes in read.items()
        }
        return plan_ranges(
            self._loads(pending),
            load_range_assignor(self._options.range_assignor),
            min_tasks=self._options.min_partitions,
            key_ranges=self._options.key_ranges,
        )

    def tasks(
        self,
        batch: RecentBatch,
        limited: Sequence[PlannedSlice],
        pending: Pending,
        recent: Collection[str],
    ) -> tuple[Task, ...]:
        """The tasks of a batch, which is about to run.

        Args:
            batch: The batch.
            limited: What is read of its partitions with record limits.
            pending: What it reads of the others.
            recent: The batches whose reports are still wanted; this one is in any case.
        """
        cut = slice_pending(self._now, self._loads(pending))
        slices = [*limited, *map(PlannedSlice, cut)]
        locate = self._options.min_partitions_auto or self._order.should_locate(slices)
        run = batch.run = self._rates.start_batch(batch, slices, recent, locate=locate)
        self._slots.finish_batch(self._order.executors)
        tasks = packed(self._options, run.slices, self._rates.speed_in(batch))
        self._slots.start_batch(len(tasks))
        tasks = with_fetch_groups(self._options, self._query, batch.name, tasks)
        self._has_fetch_groups |= any(
            planned.fetch_group is not None for task in tasks for planned in task.slices
        )
        if run.locates_only:
            tasks = tuple(map(_reporting_once, tasks))
        return self._order.order(tasks)

    def shared(self, batch: RecentBatch, tasks: Sequence[OpenTask]) -> tuple[OpenTask, ...]:
        """The tasks of an open batch, which know with whom they share what they fetch."""
        grouped = open_with_fetch_groups(
            self._options, self._query, batch.name, tasks, batch.available
        )
        self._has_fetch_groups |= any(task.fetch_groups for task in grouped)
        return grouped

    def close(self) -> None:
        """Hear no more of tasks, and release what they have fetched for each other on this host."""
        if self._has_fetch_groups:
            from kshare.read.sharing.chunks import forget_query  # noqa: PLC0415 - the protocol: 0.14 s

            forget_query(self._query)
        self._rates.close()

    @property
    def _now(self) -> SourceOptions:
        """The query's options, with the number of slots for ``minPartitions=auto``."""
        if not self._options.min_partitions_auto:
            return self._options
        return replace(self._options, min_partitions=self._slots.slots)

    def _loads(self, pending: Pending) -> list[PartitionLoad]:
        """The pending work of partitions, as planning wants it."""
        return [
            PartitionLoad(
                topic=tp.topic,
                partition=tp.partition,
                pending=self._keys.within(tp, pieces),
                fixed_ranges=self._keys.chosen(tp),
                observed=self._rates.observed(tp),
            )
            for tp, pieces in pending.items()
            if pieces
        ]


# -- pending work -> slices ------------------------------------------------------------------------


def slice_pending(options: SourceOptions, loads: Sequence[PartitionLoad]) -> tuple[Slice, ...]:
    """Cut pending work into slices.

    Raises:
        PlanError: The slices do not tile the work; only a range assignor of the user's can do that.
    """
    most = options.max_records_per_partition
    work = [load for load in loads if load.pending]
    if most is None or not work:
        return _cut(options, loads)
    if options.split_by == "offset":
        slices = _by_offset(work, most, options.min_partitions)
        check_plan(loads, slices)
        return slices
    ranges = plan_ranges(
        work,
        load_range_assignor(options.range_assignor),
        min_tasks=options.min_partitions,
        key_ranges=options.key_ranges,
    )
    narrowed = []
    for load in work:
        parts = ranges[load.topic_partition]
        wanted = min(math.ceil(load.size / most), _RANGES_MAX)
        if load.fixed_ranges is None and wanted > len(parts):
            pieces = math.ceil(wanted / len(parts))
            parts = tuple(piece for part in parts for piece in split(part, min(pieces, part.width)))
        narrowed.append(replace(load, fixed_ranges=parts))
    return _cut(options, narrowed)


def _cut(options: SourceOptions, loads: Sequence[PartitionLoad]) -> tuple[Slice, ...]:
    """Cut pending work without ``maxRecordsPerPartition``."""
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


def _by_offset(
    loads: Sequence[PartitionLoad], most: int, min_tasks: int | None
) -> tuple[Slice, ...]:
    """``KafkaOffsetRangeCalculator.getRanges`` of Apache Spark 4.2.

    Each range is divided into parts of no more than ``most`` offsets. ``minPartitions`` divides
    these parts further; each is numbered as a partition of its own.
    """
    whole: list[PartitionLoad] = []
    parts: list[PartitionLoad] = []
    for load in sorted(loads, key=lambda load: load.topic_partition):
        offsets = hull(load.pending)
        for part in divided(offsets, math.ceil(len(offsets) / most)):
            pending = clip_offsets(load.pending, part)
            if pending:
                parts.append(PartitionLoad("", len(parts), pending))
                whole.append(load)
    return tuple(
        Slice(whole[piece.partition].topic, whole[piece.partition].partition, piece.rectangles)
        for piece in plan_by_offset(parts, min_tasks=min_tasks)
    )


# -- slices -> tasks -------------------------------------------------------------------------------


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


# -- task slots ------------------------------------------------------------------------------------


class TaskSlots:
    """Counts the slots of the executors that tasks have reported from lately."""

    def __init__(self) -> None:
        self._count = SlotCount()
        self._absences: dict[str, int] = {}  # of each executor: batches in a row without a task
        self._ran: set[str] = set()  # the executors of this batch
        self._is_full = False  # whether this batch has a task for each slot

    @property
    def slots(self) -> int | None:
        """The number of slots that ranges are made for; None if no task has reported yet."""
        return self._count.slots

    def observe(self, executors: Iterable[str]) -> None:
        """Take note of executors that tasks of this batch have reported from."""
        self._ran.update(executors)

    def finish_batch(self, executors: Mapping[str, int]) -> None:
        """Count the slots after a batch.

        Args:
            executors: The number of slots of each executor that is known. Of these, the ones that
                the last batches with reports had no task on do not count.
        """
        if self._ran:
            for name in self._absences:
                self._absences[name] += self._is_full
            self._absences |= dict.fromkeys(self._ran, 0)
            self._ran.clear()
        self._absences = {
            name: absences
            for name, absences in self._absences.items()
            if name in executors and absences < _ABSENCES_MAX
        }
        self._count = self._count.see(sum(executors[name] for name in self._absences))

    def start_batch(self, tasks: int) -> None:
        """Take note of how many tasks the next batch has."""
        self._is_full = tasks >= (self.slots or 1)


@dataclass(frozen=True, slots=True)
class SlotCount:
    """The number of task slots that ranges are made for.

    Attributes:
        slots: The number; None if no task has reported yet.
        next_slots: A number that was seen instead in the last batches; None if there is none.
        batches: In how many batches it was seen.
    """

    slots: int | None = None
    next_slots: int | None = None
    batches: int = 0

    def see(self, slots: int) -> "SlotCount":
        """Learn from another batch.

        Args:
            slots: The slots of the executors that tasks have reported from; 0 if none has.
        """
        if slots == 0:
            return self
        if self.slots is None or slots == self.slots:
            return SlotCount(slots)
        batches = self.batches + 1 if slots == self.next_slots else 1
        if batches == _BATCHES:
            return SlotCount(slots)
        return SlotCount(self.slots, slots, batches)
