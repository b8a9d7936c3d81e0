"""``maxTimeAhead``: no batch reads far ahead of what it leaves behind, in event time.

Guarantees: a batch reads no record whose timestamp is more than the option's time after that of the
oldest pending one which it may leave. The end of a partition is the offset of its first pending
record that is too late: as the broker's index of timestamps says, and found in the log where the
index stops at a record that is processed already. Parked keys and records without a timestamp do
not count. Where timestamps rise within each partition, that is exact; where they are out of order,
records behind a later one count as late as that one.
Cost: nothing where a batch leaves nothing behind; else one read of two records of each partition
with pending work, and one request for offsets. Where the index does not help, one pass over the
timestamps of the partition's pending records, which goes on with the bound: not one a batch.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kshare.core.admission import PartitionTimes, StampedOffset, open_milliseconds, time_bound
from kshare.core.hashing import KeyRanges
from kshare.core.listing import join_names
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.errors import UnknownTopicError
from kshare.options import SourceOptions
from kshare.query.planner.cluster_view import ClusterView
from kshare.query.planner.key_selection import KeySelection

__all__ = ["LogTimes", "OpenTime", "TimeAlignment"]

_log = logging.getLogger("kshare.planner")

_UNALIGNED: Final = (
    "maxRecordsPerTask and targetTaskDuration let ranges and partitions stand at different event "
    "times. Behind a watermark (withWatermark), Spark drops the rows of those that are behind, in "
    "silence. Set maxTimeAhead to the watermark's delay, for example "
    '.option("maxTimeAhead", "10m"), or to off if nothing downstream has a watermark.'
)


class LogTimes:
    """The timestamps in Kafka's log."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def first(self, slices: Sequence[Slice], /) -> Sequence[StampedOffset | None]:
        """The first record of each slice; None if there is none, or the topic is gone."""
        from kshare.read.reader.read_slice import find_first  # noqa: PLC0415 - kernels: 0.3 s

        try:
            return find_first(slices, self._options)
        except UnknownTopicError:  # reported when partitions are compared
            if len(slices) == 1:
                return [None]
        return [at for slice_ in slices for at in self.first([slice_])]

    def later(self, slice_: Slice, than_ms: int, /) -> int | None:
        """The offset of the first record of a slice with a later timestamp."""
        from kshare.read.reader.read_slice import find_later  # noqa: PLC0415 - as above

        return find_later(slice_, than_ms, self._options)


class OpenTime(NamedTuple):
    """How long a batch of ``realTime`` reads.

    Attributes:
        milliseconds: From the begin of a task on.
        until_ms: When it ends at the latest, milliseconds since 1970; None without a bound.
    """

    milliseconds: int
    until_ms: int | None = None


class _Looked(NamedTuple):
    """The part of a partition's log that was scanned."""

    start: int  # the stable offset, then
    hashes: KeyRanges
    bound: int
    end: int  # what is pending below it is not later than the bound


class TimeAlignment:
    """Cuts the batches of one query.

    Args:
        options: The query's options.
        view: The query's topics.
        times: Timestamps in the log; None for Kafka's.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self,
        options: SourceOptions,
        view: ClusterView,
        times: LogTimes | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._ahead_ms = options.max_time_ahead_ms
        self._real_time_seconds = options.real_time_seconds
        self._view = view
        self._times = times or LogTimes(options)
        self._wall_clock = wall_clock
        self._parked: list[tuple[str, bytes]] = []
        self._looked: dict[TopicPartition, _Looked] = {}
        self._has_cut = False
        if options.limits_records and options.max_time_ahead_seconds is None:
            _log.warning(_UNALIGNED)

    @property
    def is_on(self) -> bool:
        """True if batches are cut at all."""
        return self._ahead_ms is not None

    def take_cut(self) -> bool:
        """Return whether a batch was cut since this was called last."""
        has_cut, self._has_cut = self._has_cut, False
        return has_cut

    def cut(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        sure: Mapping[TopicPartition, int],
        keys: KeySelection,
    ) -> Mapping[TopicPartition, int]:
        """The ends of a batch, none beyond the bound.

        Args:
            progress: How far each partition is.
            available: The ends of their logs.
            ends: Below which offset each is read, if time does not matter; some may be missing.
            sure: Below which offset the batch certainly reads all; see
                :func:`~kshare.core.admission.surely_read`. A partition that is not in it is not
                read.
            keys: What the query reads.

        Raises:
            KafkaError: The cluster did not answer.
            DataLossError: Pending records are gone, and ``failOnDataLoss`` is true.
        """
        if self._ahead_ms is None:
            return ends
        self._looked = {tp: known for tp, known in self._looked.items() if tp in progress}
        reached = {tp: sure.get(tp, at.stable) for tp, at in progress.items()}
        if all(reached[tp] >= available[tp] for tp in progress):
            return ends  # nothing is left behind
        times = self._pending_times(progress, available, reached, keys)
        now_ms = int(self._wall_clock() * 1000)
        bound = time_bound(times, max_ahead_ms=self._ahead_ms, now_ms=now_ms)
        if bound is None:
            return ends
        asked = [tp for tp, end in ends.items() if tp in times and end > progress[tp].stable]
        later = self._view.now.at_timestamps(dict.fromkeys(asked, bound + 1)) if asked else {}
        cut = dict(ends)
        for tp in asked:
            end = self._end(tp, times[tp], progress[tp], later[tp], bound, ends[tp], keys)
            cut[tp] = max(min(ends[tp], end), progress[tp].stable)
        waiting = [tp for tp in asked if cut[tp] < ends[tp]]
        if waiting:
            self._has_cut = True
            _log.info(
                "maxTimeAhead: nothing after timestamp %d is read; cut: %s",
                bound,
                join_names(waiting),
            )
        return cut

    def open_time(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        keys: KeySelection,
    ) -> OpenTime | None:
        """How long a batch may read whatever comes.

        Args:
            progress: Where it begins.
            available: Where the logs of these partitions end.
            keys: What the query reads.

        Returns:
            None if it has to end where logs end now: the options do not say ``realTime``, or what
            is pending is almost as old as ``maxTimeAhead``.

        Raises:
            KafkaError: The cluster did not answer.
        """
        if self._real_time_seconds is None:
            return None
        wanted = round(self._real_time_seconds * 1000)
        if self._ahead_ms is None:
            return OpenTime(wanted)
        slices = [
            Slice(*tp, stripes=stripes)
            for tp, at in progress.items()
            if (stripes := at.pending_stripes(available[tp], keys.readable(tp)))
        ]
        first = self._times.first(slices) if slices else []
        now_ms = int(self._wall_clock() * 1000)
        milliseconds = open_milliseconds(
            first, wanted_ms=wanted, max_ahead_ms=self._ahead_ms, now_ms=now_ms
        )
        if milliseconds:
            return OpenTime(milliseconds, now_ms + milliseconds)
        _log.info("maxTimeAhead: what is pending is that old; a batch reads it, and ends")
        return None

    def _pending_times(
        self,
        progress: Mapping[TopicPartition, Progress],
        available: Mapping[TopicPartition, int],
        reached: Mapping[TopicPartition, int],
        keys: KeySelection,
    ) -> dict[TopicPartition, PartitionTimes]:
        """The first pending records of partitions, and those that may be left; one pass for all."""
        slices: list[Slice] = []
        places: list[tuple[TopicPartition, bool]] = []
        for tp, at in progress.items():
            hashes, sure = keys.readable(tp), reached[tp]
            for left, stripes in (
                (False, at.pending_stripes(min(sure, available[tp]), hashes)),
                (True, at.advance(sure).pending_stripes(available[tp], hashes)),
            ):
                if stripes:
                    slices.append(Slice(*tp, stripes=stripes))
                    places.append((tp, left))
        found = dict(zip(places, self._times.first(slices), strict=True)) if slices else {}
        times = {}
        for tp in {tp for tp, _ in places}:
            later = found.get((tp, True))
            times[tp] = PartitionTimes(found.get((tp, False)) or later, later)
        return times

    def _end(
        self,
        partition: TopicPartition,
        times: PartitionTimes,
        progress: Progress,
        later: int | None,
        bound: int,
        end: int,
        keys: KeySelection,
    ) -> int:
        """The offset of a partition's first pending record that is later than the bound.

        Args:
            partition: The partition.
            times: Its pending records.
            progress: How far it is.
            later: The first offset of its log with a later record, by the broker's index.
            bound: The bound.
            end: Where the batch ends otherwise.
            keys: What the query reads.
        """
        first = times.next
        if later is None or later >= end or first is None:
            return end
        if later > first.offset:
            return later
        if first.timestamp_ms > bound:
            return first.offset
        # The index stops at a record that is processed: what follows it is to be looked at.
        return self._look(partition, progress, keys.readable(partition), bound, end)

    def _look(
        self,
        partition: TopicPartition,
        progress: Progress,
        hashes: KeyRanges,
        bound: int,
        end: int,
    ) -> int:
        """The same, found in the log, from where the last look for no later bound has ended."""
        start, last = progress.stable, self._looked.get(partition)
        # What is unparked was not looked at; a partition that goes back is another one.
        if last and last.hashes == hashes and last.bound <= bound and last.start <= start:
            progress = progress.advance(last.end)
        pending = progress.pending_stripes(end, hashes)
        found = self._times.later(Slice(*partition, stripes=pending), bound) if pending else None
        cut = end if found is None else found
        self._looked[partition] = _Looked(start, hashes, bound, max(cut, progress.stable))
        return cut

    def name_parked(self, keys: Iterable[tuple[str, bytes]]) -> None:
        """Name parked keys in the log, as nothing waits for them; a set of them once.

        Args:
            keys: The parked keys, each as (topic, key).
        """
        parked = sorted(keys)
        if self.is_on and parked != self._parked:
            self._parked = parked
            if parked:
                _log.warning(
                    "maxTimeAhead does not wait for parked keys: behind a watermark, their records "
                    "will be late when they are unparked: %s",
                    join_names(f"{topic} {key!r}" for topic, key in parked),
                )
