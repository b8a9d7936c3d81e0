"""Admission: how far a batch may read, by offsets, event time and bytes; and the wait for more.

- **Offsets** (``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``): the numbers are those of Spark's
  kafka source. No end is before its front or beyond its top, and a partition with something to read
  gets at least one offset.
- **Event time** (``maxTimeAhead``): Spark has one watermark for a query, so what one range or
  partition has read makes the records late that another one has not read yet. What counts is what a
  batch *leaves behind*: of each partition a record is known from which on all that is left is no
  older, and the batch reads nothing that is more than the option's time later than the oldest of
  these. The record that is due next in some partition is not later than the bound, so reading goes
  on whatever the timestamps are. A timestamp in the future counts as now; a record without a
  timestamp (-1) counts nowhere.
- **Bytes** (``maxBytesPerTrigger``): those of the log that tasks read, as Kafka stores them. Ranges
  of a partition that stand at one offset read the same bytes, which count once: so a batch reads
  *windows* of logs, from where some ranges stand to where the next ones do, or to the end. The
  windows of a batch hold no more bytes than the limit, unless one record batch of Kafka's is
  larger: then it is read alone. One window gets at least a record batch, and it is another one's
  turn the next time.

A function of the arguments, and of the log's record batches.
Cost: linear in partitions and windows, and a binary search for each window.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.progress import Progress, TopicPartition

__all__ = [
    "KnownSizes",
    "PartitionTimes",
    "Reach",
    "Sizes",
    "StampedOffset",
    "Window",
    "WindowEnds",
    "admit",
    "share_bytes",
    "should_wait",
    "surely_read",
    "time_bound",
    "windows_of",
]

_Partition = TypeVar("_Partition")


def admit(
    front: Mapping[_Partition, int], top: Mapping[_Partition, int], max_offsets: int | None
) -> dict[_Partition, int]:
    """The end of each partition in a batch with ``maxOffsetsPerTrigger``.

    ``KafkaMicroBatchStream.rateLimit`` of Apache Spark 4.2: the limit is shared in proportion to
    what each partition has, in floating point, rounded down; but up where it is less than one, so
    that small partitions do not starve. With more such partitions than offsets to share, the batch
    is larger than the limit.

    Args:
        front: The offset where each partition stands.
        top: The offset up to which each could be read.
        max_offsets: Maximum number of offsets of all partitions together; None for none.

    Returns:
        The ends, of the partitions of ``top`` and in their order. A partition whose top is not
        beyond its front ends there.
    """
    backlog = {tp: end - front[tp] for tp, end in top.items() if tp in front and end > front[tp]}
    total = float(sum(backlog.values()))
    if max_offsets is None or not backlog:
        return dict(top)
    ends = {}
    for tp, end in top.items():
        size = backlog.get(tp)
        if size is None:
            ends[tp] = end
            continue
        share = max_offsets * (size / total)
        ends[tp] = min(end, front[tp] + (math.ceil(share) if share < 1 else int(share)))
    return ends


def should_wait(
    positions: Mapping[_Partition, int],
    available: Mapping[_Partition, int],
    *,
    min_offsets: int,
    max_delay_seconds: float,
    seconds_since_batch: float | None,
) -> bool:
    """True if a trigger should wait until there is more to read (``minOffsetsPerTrigger``).

    ``KafkaMicroBatchStream.delayBatch`` of Apache Spark 4.2.

    Args:
        positions: Where each partition stands; one that is not in it stands at 0.
        available: The end of each partition.
        min_offsets: Number of offsets to wait for, in all partitions together.
        max_delay_seconds: Maximum time to wait (``maxTriggerDelay``).
        seconds_since_batch: Time since the last trigger that did not wait; None if there was none,
            and then this one does not wait.
    """
    if seconds_since_batch is None or seconds_since_batch >= max_delay_seconds:
        return False
    return sum(end - positions.get(tp, 0) for tp, end in available.items()) < min_offsets


class Window(NamedTuple):
    """Offsets of a partition that some tasks read; there is at least one."""

    partition: TopicPartition
    start: int
    end: int


class Reach(NamedTuple):
    """A stretch of a log that some bytes are enough for.

    Attributes:
        end: The offset below which it ends; where it starts, if the first record batch is larger.
        size: Its size, in bytes.
        following: The size of the record batch that comes next; None if nothing does.
    """

    end: int
    size: int
    following: int | None


class Sizes(Protocol):
    """The sizes of the record batches of logs."""

    def prepare(self, shares: Mapping[Window, int], /) -> None:
        """Look at the first bytes of windows, of all at once."""

    def reach(self, window: Window, most: int, /) -> Reach:
        """The stretch of a window that ``most`` bytes hold, in whole record batches."""

    def per_offset(self, partition: TopicPartition, /) -> float | None:
        """Bytes per offset of a partition; None if that is not known."""


@dataclass(frozen=True, slots=True)
class WindowEnds:
    """Below which offset the ranges of a partition are read, by where they stand.

    Attributes:
        starts: The starts of the windows, ascending.
        ends: Their ends, or those of the last one that is read without a gap.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def end(self, position: int) -> int:
        """Below which offset a range is read that stands at an offset: at ``position`` at least."""
        at = bisect_right(self.starts, position) - 1
        return position if at < 0 else max(self.ends[at], position)


def windows_of(partition: TopicPartition, positions: Iterable[int], end: int) -> list[Window]:
    """The windows of ranges that stand at some offsets and are read up to an end."""
    starts = sorted({at for at in positions if at < end})
    return [Window(partition, *at) for at in pairwise([*starts, end])]


def share_bytes(
    windows: Sequence[Window], most: int, sizes: Sizes, *, turn: int = 0
) -> dict[TopicPartition, WindowEnds]:
    """Cut the windows of a batch where its bytes end.

    Partitions get bytes in proportion to what they have, as with ``maxOffsetsPerTrigger``. Windows
    of one partition get the same, or else a range that lags would hold the others back.

    Args:
        windows: The windows, by partition, ascending.
        most: Maximum number of bytes of all together; at least 1.
        sizes: What the logs hold.
        turn: Whose turn it is to get a record batch, if that is more than its share.

    Returns:
        The ends of each partition that has a window.
    """
    ends = {window: window.start for window in windows}
    left = most
    shares = _shares(windows, most, sizes)
    sizes.prepare(shares)
    first = turn % len(windows) if windows else 0
    order = [*windows[first:], *windows[:first]]
    for number, window in enumerate(order):
        found = sizes.reach(window, max(min(shares[window], left), 0))
        if number == 0 and found.following is not None and found.end == window.start:
            found = sizes.reach(window, found.following)
        ends[window], left = found.end, left - found.size
    for window in order:  # what the shares have left
        rest = window._replace(start=ends[window])
        if left > 0 and rest.start < rest.end:
            found = sizes.reach(rest, left)
            ends[window], left = found.end, left - found.size
    by_partition: dict[TopicPartition, list[Window]] = {}
    for window in windows:
        by_partition.setdefault(window.partition, []).append(window)
    return {tp: _joined(of, ends) for tp, of in by_partition.items()}


def _shares(windows: Sequence[Window], most: int, sizes: Sizes) -> dict[Window, int]:
    known = {window.partition: sizes.per_offset(window.partition) for window in windows}
    found = [each for each in known.values() if each is not None]
    usual = sum(found) / len(found) if found else 1.0
    weights = {
        window: (window.end - window.start) * max(known[window.partition] or usual, 1e-9)
        for window in windows
    }
    scale = most / sum(weights.values()) if windows else 1.0
    if scale >= 1:
        return {window: int(weight * scale) for window, weight in weights.items()}
    by_partition: dict[TopicPartition, list[Window]] = {}
    for window in sorted(windows, key=weights.__getitem__):
        by_partition.setdefault(window.partition, []).append(window)
    shares: dict[Window, int] = {}
    for inside in by_partition.values():
        left = scale * sum(weights[window] for window in inside)
        for number, window in enumerate(inside):  # the small ones leave something to the others
            share = min(weights[window], left / (len(inside) - number))
            shares[window] = int(share)
            left -= share
    return shares


def _joined(windows: Sequence[Window], ends: Mapping[Window, int]) -> WindowEnds:
    reached = [ends[window] for window in windows]
    for at in range(len(windows) - 2, -1, -1):
        if reached[at] == windows[at].end:  # the next one begins there
            reached[at] = reached[at + 1]
    return WindowEnds(tuple(window.start for window in windows), tuple(reached))


@dataclass(slots=True)
class _Run:
    """Record batches that follow each other: bounds, and the bytes from the first one on."""

    bounds: list[int]
    sums: list[int]


@dataclass(slots=True)
class KnownSizes:
    """The sizes of one log's record batches, as far as it was looked at.

    Attributes:
        runs: Stretches of the log, ascending, disjoint.
        per_offset: Bytes per offset, where the log was looked at last; None before.
        floor: What is below it was forgotten.
    """

    runs: list[_Run] = field(default_factory=list)
    per_offset: float | None = None
    floor: int = 0

    def add(self, start: int, batches: Iterable[tuple[int, int]]) -> None:
        """Add record batches.

        Args:
            start: The offset from which on they were looked for.
            batches: The offset after each, and its size in bytes; ascending.
        """
        at = bisect_left(self.runs, start, key=lambda run: run.bounds[-1])
        if at == len(self.runs) or self.runs[at].bounds[0] > start:
            self.runs.insert(at, _Run([start], [0]))
        run = self.runs[at]
        last, size = run.bounds[-1], run.sums[-1]
        for end, more in batches:
            if end > run.bounds[-1]:
                run.bounds.append(end)
                run.sums.append(run.sums[-1] + more)
        if run.sums[-1] > size:
            self.per_offset = (run.sums[-1] - size) / (run.bounds[-1] - last)
        while at + 1 < len(self.runs) and self.runs[at + 1].bounds[0] <= run.bounds[-1]:
            self._join(run, self.runs.pop(at + 1))

    def _join(self, run: _Run, following: _Run) -> None:
        """Add what comes after a run, unless its record batches are others by now."""
        at = bisect_left(following.bounds, run.bounds[-1])
        if at < len(following.bounds) and following.bounds[at] == run.bounds[-1]:
            more = run.sums[-1] - following.sums[at]
            run.bounds += following.bounds[at + 1 :]
            run.sums += [each + more for each in following.sums[at + 1 :]]

    def forget(self, below: int) -> None:
        """Forget what is below an offset; all, if that goes back: then it is another log."""
        if below < self.floor:
            self.runs = []
        self.floor = below
        self.runs = [run for run in self.runs if run.bounds[-1] > below]
        if self.runs and self.runs[0].bounds[0] < below:
            run = self.runs[0]
            at = bisect_right(run.bounds, below) - 1
            run.bounds, run.sums = run.bounds[at:], run.sums[at:]

    def known_from(self, start: int) -> tuple[int, int]:
        """Up to which offset all is known from another one on, and how many bytes that are."""
        run = self._run(start)
        if run is None:
            return start, 0
        return run.bounds[-1], run.sums[-1] - run.sums[bisect_right(run.bounds, start) - 1]

    def reach(self, start: int, end: int, most: int) -> Reach | None:
        """The stretch that some bytes hold, in whole record batches.

        A record batch that begins before ``start`` counts whole, as it is fetched whole.

        Returns:
            None if not enough is known.
        """
        run = self._run(start)
        if run is None:
            return None
        bounds, sums = run.bounds, run.sums
        first = bisect_right(bounds, start) - 1
        at = bisect_right(sums, sums[first] + most) - 1
        if bounds[at] >= end:
            at = bisect_left(bounds, end)
            return Reach(end, sums[at] - sums[first], None)
        if at == len(bounds) - 1:
            return None
        return Reach(max(bounds[at], start), sums[at] - sums[first], sums[at + 1] - sums[at])

    def _run(self, start: int) -> _Run | None:
        at = bisect_right(self.runs, start, key=lambda run: run.bounds[-1])
        return self.runs[at] if at < len(self.runs) and self.runs[at].bounds[0] <= start else None


_STEPS = 4


@dataclass(frozen=True, slots=True)
class StampedOffset:
    """A record's place and time.

    Attributes:
        offset: Its offset.
        timestamp_ms: Its timestamp, milliseconds since 1970; below 0 if it has none.
    """

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """Two pending records of a partition.

    Attributes:
        next: The first one; None if there is none.
        left: The first one that a batch may leave pending; None if it leaves none.
    """

    next: StampedOffset | None
    left: StampedOffset | None

    @property
    def left_since_ms(self) -> int | None:
        """The time from which on records are left behind; None if none with a time is.

        Records that come after a later one are late whatever is done: so times only rise.
        """
        if self.left is None:
            return None
        known = [at.timestamp_ms for at in (self.next, self.left) if at is not None]
        return max((ms for ms in known if ms >= 0), default=None)


def time_bound(
    times: Mapping[TopicPartition, PartitionTimes], *, max_ahead_ms: int, now_ms: int
) -> int | None:
    """The latest timestamp that a batch may read.

    It moves in steps of a quarter of ``max_ahead_ms``, so that ranges which wait at the bound get
    batches that are worth a task, and not the few records by which the slowest one went on.

    Args:
        times: The records that are due in each partition, and that it may leave behind.
        max_ahead_ms: Maximum distance from the oldest record that is left; at least 1.
        now_ms: The time, milliseconds since 1970.

    Returns:
        Milliseconds since 1970; None if there is no bound.
    """
    levels = [each.left_since_ms for each in times.values() if each.left_since_ms is not None]
    if not levels:
        return None
    bound = min(levels) + max_ahead_ms
    return None if bound >= now_ms else bound - bound % max(max_ahead_ms // _STEPS, 1)


def surely_read(
    reached: Progress,
    end: int,
    limits: Iterable[tuple[HashRange, int]],
    parked: KeyRanges,
    ends: WindowEnds | None = None,
) -> int:
    """The offset below which a batch with record limits reads all that it may read.

    No offset has two records: so a range with a limit of ``n`` comes to ``n`` offsets beyond its
    position at least.

    Args:
        reached: How far the partition is.
        end: Below which offset it is read.
        limits: Its ranges, and the number of records that each may read.
        parked: The hashes of parked keys.
        ends: Below which offset each range is read, if not ``end``.
    """
    sure = end
    for hashes, records in limits:
        parts = KeyRanges([hashes]) - parked
        if parts:
            at = reached.position_of(parts)
            sure = min(sure, at + records, end if ends is None else ends.end(at))
    return max(sure, reached.stable)
