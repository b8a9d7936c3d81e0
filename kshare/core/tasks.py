"""Tasks: what is sent to the executors, who shares what is fetched, and which slices go together.

Plain data, which pickles; equal input gets equal answers.

- **Fetch groups** are tasks of a batch that read the same offsets of one partition. The tasks of a
  partition form groups as soon as any two of them read one offset, and then each of them is
  in a group, also one that shares no offset with another. A task is one member, however many slices
  of the partition it has: it reads them in one pass. What travels with a task does not grow
  with its group as long as the members read the same offsets.
- **Packing** (``maxTasks``): a task costs a task slot about 20 ms, however little it reads, so
  small slices are better read by few tasks. A slice is in one task as a whole. The longest are
  placed first, each into the task with the least work (LPT: R. L. Graham, Bounds on Multiprocessing
  Timing Anomalies, 1969: at most 4/3 of the best time). Slices of one partition stay together where
  they are no more than a task's equal share, since a task reads them in one pass.

Cost: linear in the tasks; packing sorts the slices.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import groupby
from math import ceil
from typing import Final, NamedTuple

from kshare.core.hashing import HASH_SPACE
from kshare.core.offsets import Bounds, length, union
from kshare.core.open_entry import LogPosition, OpenRange
from kshare.core.progress import Slice, TopicPartition

__all__ = [
    "GROUP_MAX",
    "SMALL_SECONDS",
    "FetchGroup",
    "OpenTask",
    "PlannedSlice",
    "SharedRange",
    "Task",
    "Ticket",
    "TicketId",
    "fetch_groups",
    "pack",
    "pack_small",
    "records_of",
]


class TicketId(NamedTuple):
    """A ticket of a batch."""

    batch: str
    number: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """The data that a task needs to report on a slice.

    Attributes:
        host: The address that the planner listens on.
        port: The port; 0 if it does not listen, and the task then reports nothing.
        key: The planner's secret.
        batch: The name of the batch.
        number: The ticket's number within the batch.
        hold: Whether the connection should stay open as long as the task's process lives, so that
            the planner sees when the task has ended, and not only its reader.
    """

    host: str
    port: int
    key: bytes = field(repr=False)
    batch: str
    number: int
    hold: bool = False

    @property
    def id(self) -> TicketId:
        """The batch and the number."""
        return TicketId(self.batch, self.number)


GROUP_MAX = 256
"""Maximum number of members of a group."""

SharedRange = tuple[int, int, int]
"""An offset range, start and end, and how many members read it."""


@dataclass(frozen=True, slots=True)
class FetchGroup:
    """A group, as one of its members knows it.

    Attributes:
        query: a random name of the query run, which no other query can know.
        batch: the batch's name within the query.
        number: the number of the group within the partition.
        member: the task's own number within the group, from 0 on.
        ranges: the offsets that each member reads, in the order of the members.
    """

    query: str
    batch: str
    number: int
    member: int
    ranges: tuple[SharedRange, ...]

    @property
    def size(self) -> int:
        """The number of members."""
        return sum(count for _, _, count in self.ranges)

    @property
    def end(self) -> int:
        """The end of the offsets that the member reads with the others."""
        first = 0
        for _, end, count in self.ranges:
            first += count
            if self.member < first:
                return end
        raise ValueError(f"a group of {self.size} has no member {self.member}")


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A slice, and how it is read.

    Attributes:
        slice: What is read.
        max_records: Maximum number of records to read; None for none.
        ticket: How its task reports where reading ended; None if the planner need not know.
        fetch_group: The tasks that read the same offsets, with which its task shares what it
            fetches; None if there are none. All slices of a partition in a task have the same.
    """

    slice: Slice
    max_records: int | None = None
    ticket: Ticket | None = None
    fetch_group: FetchGroup | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a batch.

    Attributes:
        slices: What it reads; at least one.
    """

    slices: tuple[PlannedSlice, ...]


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task of an open batch: it reads for a while, and then agrees on where its ranges ended.

    Attributes:
        ranges: What it reads, of one or several partitions; at least one.
        milliseconds: How long it reads.
        topic: The topic of the log of ends.
        log: Where in it the ends of the batch are.
        until_ms: When it ends reading at the latest, milliseconds since 1970; None: no such time.
        ticket: How it says where it is; None if nobody wants to know.
        fetch_groups: The tasks with which it shares what it fetches, for partitions of which much
            was unread when the batch was planned. Their offsets end where the log ended then.
    """

    ranges: tuple[OpenRange, ...]
    milliseconds: int
    topic: str
    log: LogPosition
    until_ms: int | None = None
    ticket: Ticket | None = None
    fetch_groups: Mapping[TopicPartition, FetchGroup] = field(default_factory=dict)


def fetch_groups(query: str, batch: str, offsets: Iterable[Bounds]) -> list[FetchGroup | None]:
    """The fetch group of each task of one partition.

    Args:
        query: a random name of the query run.
        batch: the batch's name within the query.
        offsets: for each task, the offsets that it reads; at least one.

    Returns:
        In the order of the tasks. None for all if no two of them read one offset, and for a task
        that is left over when the others have filled their groups.
    """
    sets = list(offsets)
    if length(union(sets)) == sum(map(length, sets)):
        return [None] * len(sets)
    ranges = [(bounds[0], bounds[-1]) for bounds in sets]
    groups: list[FetchGroup | None] = []
    for number, first in enumerate(range(0, len(ranges), GROUP_MAX)):
        members = ranges[first : first + GROUP_MAX]
        if len(members) == 1:
            groups.append(None)
            continue
        shared = tuple((*part, len(list(same))) for part, same in groupby(members))
        groups += [
            FetchGroup(query, batch, number, member, shared) for member in range(len(members))
        ]
    return groups


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
