"""The end of a batch: what ``maxOffsetsPerTrigger``, bytes and event time allow, together.

Guarantees: no bound is passed, and a batch that could read something reads something. The bounds
are in the plan of the batch, as end offsets: a batch that runs again reads the same.
Cost: with ``maxBytesPerTrigger``, what a batch may read is fetched by the planner first, once;
nothing is decompressed. Kafka does not tell the size of records in another way, and a guess is
wrong when they change.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kshare.core.admission import (
    KnownSizes,
    Reach,
    Window,
    WindowEnds,
    share_bytes,
    should_wait,
    surely_read,
    windows_of,
)
from kshare.core.batch import BatchStart, batch_ends
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import SourceOptions
from kshare.planner.key_selection import KeySelection
from kshare.planner.time_alignment import TimeAlignment

__all__ = [
    "BatchBounds",
    "BatchEnd",
    "ByteLimit",
    "Look",
    "MostRead",
    "TriggerGate",
    "look_into_log",
]


@dataclass(frozen=True, slots=True)
class MostRead:
    """The maximum of a batch; None for none.

    Attributes:
        offsets: Number of offsets of all partitions together.
        size: Number of bytes of all partitions together, as Kafka stores them.
    """

    offsets: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a batch.

    Attributes:
        ends: Below which offset each partition is read.
        limits: The record limits of its ranges.
        windows: With ``maxBytesPerTrigger``: for each partition that has something to read, the
            end offset of its ranges, by their position, where that is less than in ``ends``. Empty
            without it. Without record limits a partition has one window.
    """

    ends: Mapping[TopicPartition, int]
    limits: PlannedLimits = field(default_factory=PlannedLimits)
    windows: Mapping[TopicPartition, WindowEnds] = field(default_factory=dict)


class BatchBounds:
    """Bounds the batches of one query.

    Args:
        options: The query's options.
        alignment: ``maxTimeAhead``.
        byte_limit: ``maxBytesPerTrigger``.
        gate: ``minOffsetsPerTrigger``.
    """

    def __init__(
        self,
        options: SourceOptions,
        alignment: TimeAlignment,
        byte_limit: "ByteLimit",
        gate: "TriggerGate",
    ) -> None:
        self._options = options
        self._alignment = alignment
        self._byte_limit = byte_limit
        self._gate = gate

    def name_parked(self, keys: Iterable[tuple[str, bytes]]) -> None:
        """Name parked keys in a warning, as no bound waits for them."""
        self._alignment.name_parked(keys)

    def waits(
        self,
        before: BatchOffsets,
        reached: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        keys: KeySelection,
    ) -> bool:
        """True if there is not enough to read yet; it never waits while something is left behind.

        Args:
            before: What the dict of the batch before says.
            reached: How far it came.
            available: The ends of the partitions' logs.
            keys: What the query reads.
        """
        if self._alignment.take_cut() or self._gate.has_left(before, reached, keys):
            return False
        positions = {
            tp: progress.position_of(keys.readable(tp) or ALL_HASHES)
            for tp, progress in reached.items()
        }
        return self._gate.is_shut(positions or before.started, available)

    def of(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        starting: Collection[TopicPartition],
        keys: KeySelection,
        most: MostRead,
        plan_limits: Callable[[Mapping[TopicPartition, int]], PlannedLimits],
    ) -> BatchEnd:
        """Decide where a batch ends.

        A batch that is cut by ``maxTimeAhead`` leaves room, which the other partitions get in a
        second round; what that leaves behind is looked at again. For example, 100 offsets are 50 of
        each of two partitions; if event time cuts one of them to 10, the other one gets 90.

        Args:
            batch: Where it begins.
            available: The ends of the partitions' logs.
            starting: Partitions that read nothing in this batch.
            keys: What the query reads.
            most: Its maximum.
            plan_limits: The record limits of ranges that are read up to some ends.
        """
        self._gate.planned(available)
        tops, cut = dict(available), False
        while True:
            ends = batch_ends(
                {tp: at for tp, at in batch.progress.items() if tp not in starting},
                tops,
                keys,
                max_offsets=most.offsets,
                max_ahead=self._options.max_offsets_ahead,
                max_gaps=self._options.max_ranges_in_checkpoint,
            )
            by_size = self._by_size(batch, BatchEnd(ends, plan_limits(ends)), keys, most)
            if not self._alignment.is_on:
                return by_size
            found = self._aligned(batch, available, by_size, keys)
            if most.size is not None and not _reads(found):
                # Each waits for the other: so first comes what event time allows in any case.
                nothing = {tp: batch.progress[tp].stable for tp in ends}
                late = self._alignment.cut(batch.progress, available, ends, nothing, keys)
                return self._by_size(batch, BatchEnd(late, plan_limits(late)), keys, most)
            if cut or most.offsets is None or found.ends == by_size.ends:
                return found
            tops |= {tp: end for tp, end in found.ends.items() if end < by_size.ends[tp]}
            cut = True

    def _by_size(
        self, batch: BatchStart, batch_end: BatchEnd, keys: KeySelection, most: MostRead
    ) -> BatchEnd:
        if most.size is None:
            return batch_end
        windows = self._byte_limit.cut(
            batch.progress, batch_end.ends, batch_end.limits, keys, most.size
        )
        if self._options.limits_records:
            return replace(batch_end, windows=windows)
        # All ranges end together: the slowest one's window is the partition's.
        cut = {tp: each.ends[0] for tp, each in windows.items()}
        return replace(batch_end, ends={**batch_end.ends, **cut}, windows=windows)

    def _aligned(
        self,
        batch: BatchStart,
        available: Mapping[TopicPartition, int],
        batch_end: BatchEnd,
        keys: KeySelection,
    ) -> BatchEnd:
        sure = {
            tp: surely_read(
                batch.progress[tp],
                end,
                batch_end.limits.by_range(tp),
                keys.parked(tp),
                batch_end.windows.get(tp),
            )
            for tp, end in batch_end.ends.items()
        }
        ends = self._alignment.cut(batch.progress, available, batch_end.ends, sure, keys)
        return replace(batch_end, ends=ends)


def _reads(batch_end: BatchEnd) -> bool:
    """True if a batch with a limit of bytes may read something."""
    return any(
        min(end, batch_end.ends[tp]) > start
        for tp, windows in batch_end.windows.items()
        for start, end in zip(windows.starts, windows.ends, strict=True)
    )


Look: TypeAlias = Callable[
    [Sequence[tuple[Slice, int]], SourceOptions], Sequence[Sequence[tuple[int, int]]]
]
"""Finds record batches: see :func:`kshare.wire.reader.read_slice.find_sizes`."""


def look_into_log(
    wanted: Sequence[tuple[Slice, int]], options: SourceOptions
) -> Sequence[Sequence[tuple[int, int]]]:
    """Find the sizes of record batches in Kafka's log."""
    from kshare.wire.reader.read_slice import find_sizes  # noqa: PLC0415 - kernels: 0.3 s

    return find_sizes(wanted, options)


class ByteLimit:
    """Cuts the batches of one query.

    Args:
        options: The query's options.
        look: Looks into the log.
    """

    def __init__(self, options: SourceOptions, look: Look = look_into_log) -> None:
        self._sizes = _LogSizes(options, look)
        self._turn = 0

    def cut(
        self,
        progress: Mapping[TopicPartition, Progress],
        ends: Mapping[TopicPartition, int],
        limits: PlannedLimits,
        keys: KeySelection,
        most: int,
    ) -> dict[TopicPartition, WindowEnds]:
        """Below which offset the ranges of partitions are read; of those with something to read.

        Args:
            progress: How far each partition is.
            ends: Below which offset each is read otherwise.
            limits: The ranges with record limits; without them a partition has one end.
            keys: What the query reads.
            most: Maximum number of bytes.

        Raises:
            KafkaError: The cluster did not answer.
            DataLossError: Pending records are gone, and ``failOnDataLoss`` is true.
        """
        windows: list[Window] = []
        self._sizes.retain(progress)
        for tp in sorted(ends):
            positions = _positions(tp, progress[tp], limits, keys)
            windows += windows_of(tp, positions, ends[tp])
            if positions:
                self._sizes.forget(tp, min(positions))
        if not windows:
            return {}
        self._turn += 1
        return share_bytes(windows, most, self._sizes, turn=self._turn)


def _positions(
    partition: TopicPartition, reached: Progress, limits: PlannedLimits, keys: KeySelection
) -> list[int]:
    """The positions of a partition's ranges; without limits, that of the slowest one alone."""
    ranges = limits.by_range(partition)
    if not ranges:
        readable = keys.readable(partition)
        return [reached.position_of(readable)] if readable else []
    parked = keys.parked(partition)
    parts = (KeyRanges([hashes]) - parked for hashes, _ in ranges)
    return [reached.position_of(each) for each in parts if each]


class _LogSizes:
    """The sizes of record batches of logs, each looked at once."""

    def __init__(self, options: SourceOptions, look: Look) -> None:
        self._options = replace(options, keys=None)
        self._look = look
        self._known: dict[TopicPartition, KnownSizes] = {}

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        """Forget all other partitions."""
        self._known = {tp: sizes for tp, sizes in self._known.items() if tp in partitions}

    def forget(self, partition: TopicPartition, below: int) -> None:
        """Forget what no range will read any more."""
        if partition in self._known:
            self._known[partition].forget(below)

    def prepare(self, shares: Mapping[Window, int], /) -> None:
        """Look at the first bytes of windows, of all at once."""
        unknown = [
            (window, most)
            for window, most in shares.items()
            if self._of(window).reach(window.start, window.end, most) is None
        ]
        if unknown:
            self._look_at(unknown)

    def reach(self, window: Window, most: int, /) -> Reach:
        """The stretch of a window that ``most`` bytes hold; see :class:`.Sizes`."""
        while True:
            found = self._of(window).reach(window.start, window.end, most)
            if found is not None:
                return found
            self._look_at([(window, most)])

    def per_offset(self, partition: TopicPartition, /) -> float | None:
        """Bytes per offset of a partition; None if that is not known."""
        known = self._known.get(partition)
        return None if known is None else known.per_offset

    def _of(self, window: Window) -> KnownSizes:
        return self._known.setdefault(window.partition, KnownSizes())

    def _look_at(self, wanted: Sequence[tuple[Window, int]]) -> None:
        """Look at what is not known of windows."""
        slices, starts = [], []
        for window, most in wanted:
            start, size = self._of(window).known_from(window.start)
            piece = Rectangle(OffsetRange(start, window.end), WHOLE)
            slices.append((Slice(*window.partition, (piece,)), max(most - size, 0)))
            starts.append(start)
        for (window, _), start, batches in zip(wanted, starts, self._found(slices), strict=True):
            self._of(window).add(start, batches)

    def _found(self, slices: Sequence[tuple[Slice, int]]) -> Sequence[Sequence[tuple[int, int]]]:
        try:
            return self._look(slices, self._options)
        except (UnknownTopicError, DataLossError):  # reported when partitions are compared, or read
            if len(slices) == 1:
                return [[(slices[0][0].offsets.end, 0)]]
        return [found for slice_ in slices for found in self._found([slice_])]


class TriggerGate:
    """Decides whether a trigger waits.

    Args:
        options: The query's options.
        clock: Seconds.
    """

    def __init__(
        self, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._min_offsets = options.min_offsets_per_trigger
        self._max_delay_seconds = options.max_trigger_delay_seconds
        self._clock = clock
        self._ends: dict[TopicPartition, int] = {}
        self._opened: float | None = None  # when a trigger last did not wait

    def planned(self, available: Mapping[TopicPartition, int]) -> None:
        """A batch was planned when logs ended there."""
        self._ends = dict(available)

    def has_left(
        self,
        before: BatchOffsets,
        reached: Mapping[TopicPartition, Progress],
        keys: KeySelection,
    ) -> bool:
        """True if record limits left records behind that were there when the batch was planned.

        Args:
            before: What the dict of that batch says.
            reached: How far it came.
            keys: What the query reads.
        """
        return any(
            reached[tp].pending_of(self._ends.get(tp, limit.end), keys.readable(tp) & limit.hashes)
            for tp, limits in before.limits.items()
            if tp in reached
            for limit in limits
        )

    def is_shut(
        self, positions: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int]
    ) -> bool:
        """True if this trigger waits.

        Args:
            positions: Where each partition stands.
            available: The end of each partition.
        """
        if self._min_offsets is None:
            return False
        now = self._clock()
        if should_wait(
            positions,
            available,
            min_offsets=self._min_offsets,
            max_delay_seconds=self._max_delay_seconds,
            seconds_since_batch=None if self._opened is None else now - self._opened,
        ):
            return True
        self._opened = now
        return False
