"""The ends of a limited batch's slices, and the progress of its partitions.

Guarantees: a function of the offset dict and of the log. What tasks report saves looking, and
changes nothing; a report that cannot be true is ignored. If the log has lost what would have to be
looked at, records that may have been delivered are read again: at least once.
Cost: nothing for slices whose tasks have reported, or that have no more offsets than they may read
records; for the others of a partition, one pass over their records' keys.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from kshare.core.batch import progress_after, surely_read_whole
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import WHOLE, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import SourceOptions
from kshare.query.planner.key_selection import KeySelection

__all__ = ["EndOffsetResolver", "Scan", "scan_log"]

_log = logging.getLogger("kshare.planner")

_PARKED_OFFSETS_MAX = 500_000
"""The offsets in which a trigger looks for records of parked keys: some seconds at most."""

Scan: TypeAlias = Callable[[Sequence[PlannedSlice], SourceOptions], Sequence[SliceEnd]]
"""Finds in the log, in one pass, where the reading of limited slices of a partition ends."""


def scan_log(limited: Sequence[PlannedSlice], options: SourceOptions) -> list[SliceEnd]:
    """Find the ends of limited slices in Kafka's log: as their readers do, but of keys only.

    Raises:
        KafkaError: The cluster did not answer.
        DataLossError: The log no longer holds a slice, and ``failOnDataLoss`` is true.
    """
    from kshare.read.reader.read_slice import find_ends  # noqa: PLC0415 - kernels: 0.3 s

    return find_ends(limited, options)


class EndOffsetResolver:
    """Finds how far partitions are when a batch is done.

    Args:
        options: The query's options.
        keys: Which key hashes the query reads.
        scan: Looks into the log.
        compacted: Returns the topics that are compacted now, or whose configuration cannot be
            read. Limits are never planned for such topics, so ``cleanup.policy`` has changed since,
            or may have.
    """

    def __init__(
        self,
        options: SourceOptions,
        keys: KeySelection,
        scan: Scan = scan_log,
        compacted: Callable[[Collection[str]], Collection[str]] = lambda _: (),
    ) -> None:
        self._options = options
        # A reader that passes over what is lost would count on, with records that no task had.
        self._strict = replace(options, fail_on_data_loss=True)
        self._keys = keys
        self._scan = scan
        self._compacted = compacted
        self._first_parked: dict[TopicPartition, tuple[int, KeyRanges]] = {}
        self._moved: set[TopicPartition] = set()  # by the last look for parked keys

    def resolve(
        self,
        name: str,
        offsets: BatchOffsets,
        limited: Sequence[PlannedSlice],
        reported: Mapping[Slice, SliceEnd],
        counted: Mapping[Slice, int] | None = None,
    ) -> dict[TopicPartition, Progress]:
        """Progress of each partition once the batch of a dict is done.

        Args:
            name: The name of the batch, for the log.
            offsets: What the dict says.
            limited: The slices of its limits.
            reported: Where tasks ended, by their slices; may hold more or fewer.
            counted: What :meth:`count` has answered, if tasks read up to there.

        Raises:
            DataLossError: An end can no longer be found, and ``failOnDataLoss`` is true.
        """
        ends: dict[Slice, int] = {}
        for planned in limited:
            end = reported.get(planned.slice)
            if end is not None and _can_be(planned, end):
                ends[planned.slice] = end.end
        missing = [planned for planned in limited if planned.slice not in ends]
        if missing:
            committed = offsets.read_committed
            if counted is None:
                _log_look(name, missing, limited)
                counted = self._look_for(missing, read_committed=committed)
            found = {planned.slice: counted[planned.slice] for planned in missing}
            ends |= self._sure(found, read_committed=committed)
        return self._after(offsets.progress, ends)

    def count(
        self, name: str, offsets: BatchOffsets, limited: Sequence[PlannedSlice]
    ) -> dict[Slice, int]:
        """The ends for tasks that read limited slices again, but count records otherwise.

        No end is before that of those that read them first; where records have vanished since, it
        may be after it.

        Args:
            name: The name of the batch, for the log.
            offsets: What its dict says.
            limited: The slices of its limits.

        Raises:
            DataLossError: An end can no longer be found, and ``failOnDataLoss`` is true.
            UnknownTopicError: The log is not there: so no task may be left out as done.
        """
        _log_look(name, limited, limited)
        return self._look_for(limited, read_committed=offsets.read_committed, missing_ok=False)

    def _sure(self, found: Mapping[Slice, int], *, read_committed: bool) -> dict[Slice, int]:
        """The offsets to go on at, if a topic may have become compacted since.

        A task's last record is the n-th that was there; if some have vanished since, the n-th that
        is left is a later one.
        """
        compacted = self._compacted({slice_.topic for slice_ in found})
        sure = dict(found)
        by_partition: defaultdict[TopicPartition, list[Slice]] = defaultdict(list)
        for slice_ in found:
            if slice_.topic in compacted:
                by_partition[slice_.topic_partition].append(slice_)
        for partition, slices in by_partition.items():
            offsets = OffsetRange(
                min(slice_.offsets.start for slice_ in slices), max(found[each] for each in slices)
            )
            if self._is_whole(partition, offsets, read_committed=read_committed):
                continue
            sure |= {slice_: slice_.offsets.start for slice_ in slices}
            _log.warning(
                "%s: cleanup.policy has become compact, or is not told any more (DescribeConfigs), "
                "and not every offset in %s has a record. Some may have vanished, so how far tasks "
                "came there is not known any more: the last batch of the partition comes again.",
                partition,
                offsets,
            )
        return sure

    def _is_whole(
        self, partition: TopicPartition, offsets: OffsetRange, *, read_committed: bool
    ) -> bool:
        """True if the log holds a record at each offset."""
        count = offsets.end - offsets.start
        if count < 1:
            return True
        options = self._at_level(read_committed=read_committed)
        whole = Slice(*partition, (Rectangle(offsets, WHOLE),))
        try:
            (found,) = self._scan([PlannedSlice(whole, count)], options)
        except UnknownTopicError:  # that is said elsewhere
            return True
        except DataLossError:  # of one slice; others' ends may have been found by what is left
            return False
        return found.records == count

    def resolve_ahead(
        self, progress: Mapping[TopicPartition, Progress], limited: Iterable[PlannedSlice]
    ) -> dict[TopicPartition, Progress]:
        """Progress of each partition once limited slices are read, found in advance.

        Args:
            progress: How far each partition is.
            limited: The slices.

        Raises:
            DataLossError: The log does not hold what is to be read, and ``failOnDataLoss`` is true.
        """
        committed = self._strict.kafka.read_committed
        return self._after(progress, self._look_for(limited, read_committed=committed))

    def past_vacant(
        self,
        progress: Mapping[TopicPartition, Progress],
        at_risk: Collection[TopicPartition],
        keys: KeySelection,
    ) -> dict[TopicPartition, Progress]:
        """Progress of partitions whose parked hashes go on to their first record.

        A parked hash is pending from where it was parked on, also in the partitions that have no
        record of its key: most of them. If retention passes that place, nobody can know whether
        a record is lost there.

        Args:
            progress: How far each partition is.
            at_risk: The partitions of which retention is about to take pending records. One that
                the last call has moved stays this time: its batch reads records again.
            keys: Which hashes are parked.

        Returns:
            The partitions that are moved.
        """
        moved: dict[TopicPartition, Progress] = {}
        candidates = sorted((set(at_risk) & progress.keys()) - self._moved)
        options = self._at_level(read_committed=self._strict.kafka.read_committed)
        left = _PARKED_OFFSETS_MAX
        for tp in candidates:
            parked, reached = keys.parked(tp), progress[tp]
            start = reached.position_of(parked) if parked else reached.front
            stripes = reached.pending_stripes(min(reached.front, start + left), parked)
            if not stripes or self._first_parked.get(tp) == (start, parked):
                continue
            slice_ = Slice(*tp, stripes=stripes)
            left -= slice_.offsets.end - start
            try:
                (found,) = self._scan([PlannedSlice(slice_, 1)], options)
            except (UnknownTopicError, DataLossError):  # reported when partitions are compared
                continue
            first = found.end - 1 if found.records else slice_.offsets.end
            if found.records:
                self._first_parked[tp] = first, parked
            if first > start:
                _log.info("%s: no record of a parked key in [%d,%d)", tp, start, first)
                moved[tp] = reached.commit(reached.pending_of(first, parked))
        self._moved = set(moved)
        return moved

    def _after(
        self, progress: Mapping[TopicPartition, Progress], ends: Mapping[Slice, int]
    ) -> dict[TopicPartition, Progress]:
        moved = progress_after(progress, list(ends.items()), self._keys.unassigned)
        return {**progress, **moved}

    def _look_for(
        self, limited: Iterable[PlannedSlice], *, read_committed: bool, missing_ok: bool = True
    ) -> dict[Slice, int]:
        options = self._at_level(read_committed=read_committed)
        by_partition: defaultdict[TopicPartition, list[PlannedSlice]] = defaultdict(list)
        ends: dict[Slice, int] = {}
        for planned in limited:
            if surely_read_whole(planned):
                ends[planned.slice] = planned.slice.offsets.end
            else:
                by_partition[planned.slice.topic_partition].append(planned)
        for slices in by_partition.values():
            ends |= self._find(slices, options, missing_ok=missing_ok)
        return ends

    def _at_level(self, *, read_committed: bool) -> SourceOptions:
        """The options of a scan at an isolation level. Records of all keys count in limits."""
        kafka = replace(self._strict.kafka, read_committed=read_committed)
        return replace(self._strict, kafka=kafka, keys=None)

    def _find(
        self, limited: Sequence[PlannedSlice], options: SourceOptions, *, missing_ok: bool
    ) -> dict[Slice, int]:
        """The ends of slices of one partition, by the log."""
        slices = [planned.slice for planned in limited]
        try:
            found = self._scan(limited, options)
            return {each: end.end for each, end in zip(slices, found, strict=True)}
        except UnknownTopicError:  # reported when partitions are compared
            if not missing_ok:
                raise
            return {slice_: slice_.offsets.start for slice_ in slices}
        except DataLossError as error:
            if len(limited) == 1:
                return {slices[0]: self._end_after_loss(slices[0], error)}
        # Some of the slices are lost, others may not be.
        return {
            slice_: end
            for each in limited
            for slice_, end in self._find([each], options, missing_ok=missing_ok).items()
        }

    def _end_after_loss(self, slice_: Slice, error: DataLossError) -> int:
        """From where to go on with a slice whose end is lost.

        Raises:
            DataLossError: ``failOnDataLoss`` is true.
        """
        if self._options.fail_on_data_loss:
            raise error
        offsets = slice_.offsets
        first = error.available[0] if error.available else offsets.start
        end = min(max(first, offsets.start), offsets.end)
        _log.warning(
            "%s: the log no longer holds the offsets %s, and how far their task came for the "
            "key hashes %s is not known. Going on at offset %d, since failOnDataLoss is false: "
            "what is there may come a second time.",
            slice_.topic_partition,
            offsets,
            slice_.hashes,
            end,
        )
        return end


def _log_look(name: str, missing: Sequence[PlannedSlice], limited: Sequence[PlannedSlice]) -> None:
    _log.info(
        "looking for the ends of %d of %d tasks of batch %s", len(missing), len(limited), name
    )


def _can_be(planned: PlannedSlice, reported: SliceEnd) -> bool:
    """True if a task can have ended there: at its limit, or else at its slice's end."""
    offsets, end = planned.slice.offsets, reported.end
    return offsets.start < end <= offsets.end and (
        end == offsets.end or reported.records == planned.max_records
    )
