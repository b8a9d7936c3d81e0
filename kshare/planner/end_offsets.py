"""Where the slices of a limited batch ended, and how far its partitions are then.

Guarantees: a function of the offset dict and of the log. What tasks report saves looking, and
changes nothing; a report that cannot be true is ignored. If the log has lost what would have to be
looked at, records that may have been delivered are read again: rather twice than never.
Cost: nothing for a slice whose task has reported; for another one, the keys of its records are read
again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from kshare.core.batch import LimitedSlice, end_of_batch
from kshare.core.checkpoint import Offsets
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import SourceOptions
from kshare.planner.key_selection import KeySelection

__all__ = ["EndOffsetResolver", "Scan", "scan_log"]

_log = logging.getLogger("kshare.planner")

Scan: TypeAlias = Callable[[Slice, SourceOptions, int], int]
"""Finds in the log where the reading of a slice ends that stops after a number of records."""


def scan_log(slice_: Slice, options: SourceOptions, max_records: int) -> int:
    """Find the end of a limited slice in Kafka's log: as its reader does, but of keys only.

    Raises:
        KafkaError: The cluster did not answer.
        DataLossError: The log no longer holds the slice, and ``failOnDataLoss`` is true.
    """
    from kshare.wire.reader.find_end import find_end  # noqa: PLC0415 - brings the compiled kernels

    return find_end(slice_, options, max_records)


class EndOffsetResolver:
    """Finds how far partitions are when a batch is done.

    Args:
        options: The query's options.
        keys: Which key hashes the query reads.
        scan: Looks into the log.
    """

    def __init__(self, options: SourceOptions, keys: KeySelection, scan: Scan = scan_log) -> None:
        self._options = options
        # A reader that passes over what is lost would count on, with records that no task had.
        self._strict = replace(options, fail_on_data_loss=True)
        self._keys = keys
        self._scan = scan

    def resolve(
        self,
        name: str,
        offsets: Offsets,
        limited: Sequence[LimitedSlice],
        reported: Mapping[Slice, SliceEnd],
        *,
        read_committed: bool,
    ) -> dict[TopicPartition, Progress]:
        """How far each partition is when the batch of a dict is done.

        Args:
            name: The name of the batch, for the log.
            offsets: What the dict says.
            limited: The slices of its limits.
            reported: Where tasks ended, by their slices; may hold more or fewer.
            read_committed: The isolation level of its tasks.

        Raises:
            DataLossError: An end can no longer be found, and ``failOnDataLoss`` is true.
        """
        ends: dict[Slice, int] = {}
        for limit, slice_ in limited:
            end = reported.get(slice_)
            if end is not None and _can_be(slice_, limit.records, end):
                ends[slice_] = end.end
        missing = [entry for entry in limited if entry[1] not in ends]
        if missing:
            _log.info(
                "looking for the ends of %d of %d tasks of batch %s",
                len(missing),
                len(limited),
                name,
            )
            ends |= self._look_for(missing, read_committed=read_committed)
        return self._after(offsets.progress, ends)

    def resolve_ahead(
        self, progress: Mapping[TopicPartition, Progress], limited: Iterable[LimitedSlice]
    ) -> dict[TopicPartition, Progress]:
        """How far each partition will be when limited slices are read, found before they are.

        Args:
            progress: How far each partition is.
            limited: The slices.

        Raises:
            DataLossError: The log does not hold what is to be read, and ``failOnDataLoss`` is true.
        """
        level = self._strict.kafka.read_committed
        return self._after(progress, self._look_for(limited, read_committed=level))

    def _after(
        self, progress: Mapping[TopicPartition, Progress], ends: Mapping[Slice, int]
    ) -> dict[TopicPartition, Progress]:
        moved = end_of_batch(progress, list(ends.items()), self._keys.unassigned)
        return {**progress, **moved}

    def _look_for(
        self, limited: Iterable[LimitedSlice], *, read_committed: bool
    ) -> dict[Slice, int]:
        kafka = replace(self._strict.kafka, read_committed=read_committed)
        options = replace(self._strict, kafka=kafka)
        return {slice_: self._find(slice_, limit.records, options) for limit, slice_ in limited}

    def _find(self, slice_: Slice, max_records: int, options: SourceOptions) -> int:
        """Where the reading of a slice ends or ended, by the log."""
        offsets = slice_.offsets
        try:
            return self._scan(slice_, options, max_records)
        except UnknownTopicError:
            return offsets.start  # reported when partitions are compared
        except DataLossError as error:
            if self._options.fail_on_data_loss:
                raise
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


def _can_be(slice_: Slice, max_records: int, reported: SliceEnd) -> bool:
    """Whether a task can have ended there: at its limit, or else at its slice's end."""
    offsets, end = slice_.offsets, reported.end
    return offsets.start < end <= offsets.end and (
        end == offsets.end or reported.records == max_records
    )
