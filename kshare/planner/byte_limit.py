"""``maxBytesPerTrigger``: no batch reads more bytes of the log than that.

Guarantees: those of :mod:`kshare.core.byte_bound`. The bound is in the plan of the batch, as end
offsets: a batch that runs again reads the same.
Cost: what a batch may read is fetched by the planner first, once; nothing is decompressed. Kafka
does not tell the size of records in another way, and a guess is wrong when they change.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from kshare.core.byte_bound import KnownSizes, Reach, Window, WindowEnds, share_bytes, windows_of
from kshare.core.hashing import WHOLE, without
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.rate import PlannedLimits
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import SourceOptions
from kshare.planner.key_selection import KeySelection

__all__ = ["ByteLimit", "Look", "look_into_log"]

Look: TypeAlias = Callable[
    [Sequence[tuple[Slice, int]], SourceOptions], Sequence[Sequence[tuple[int, int]]]
]
"""Finds record batches: see :func:`kshare.wire.reader.find_sizes.find_sizes`."""


def look_into_log(
    wanted: Sequence[tuple[Slice, int]], options: SourceOptions
) -> Sequence[Sequence[tuple[int, int]]]:
    """Find the sizes of record batches in Kafka's log."""
    from kshare.wire.reader.find_sizes import find_sizes  # noqa: PLC0415 - kernels: 0.3 s

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
    """Where the ranges of a partition stand; the slowest one alone, if they have no limits."""
    ranges = limits.by_range(partition)
    if not ranges:
        readable = keys.readable(partition)
        return [reached.position_of(readable)] if readable else []
    parked = keys.parked(partition)
    parts = (without((hashes,), parked) for hashes, _ in ranges)
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
        """How far some bytes go."""
        while True:
            found = self._of(window).reach(window.start, window.end, most)
            if found is not None:
                return found
            self._look_at([(window, most)])

    def per_offset(self, partition: TopicPartition, /) -> float | None:
        """What an offset of a partition takes, bytes; None if that is not known."""
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
