"""Offset options as numbers: earliest, latest, by timestamp, or one for each partition.

Guarantees: every partition that is read gets an offset that its log holds, or an error says why
not.
Cost: one round trip for earliest, latest and timestamps, two for offsets that must be checked, and
one more where a timestamp means latest or earliest.
"""

import logging
from collections.abc import Iterable, Mapping

from kshare.core.progress import TopicPartition
from kshare.errors import DataLossError, OptionsError
from kshare.options import (
    AtTimestamp,
    Earliest,
    Latest,
    OffsetSpec,
    PerPartition,
    SourceOptions,
    TimestampPerPartition,
)
from kshare.options.offset_specs import partitions_fault
from kshare.query.planner.cluster_view import View

__all__ = ["is_certain_start", "resolve"]

_log = logging.getLogger(__name__)

# Kafka takes these timestamps for offsets.
_LATEST_MS, _EARLIEST_MS = -1, -2


def resolve(
    options: SourceOptions,
    name: str,
    spec: OffsetSpec,
    partitions: Iterable[TopicPartition],
    view: View,
) -> dict[TopicPartition, int]:
    """The offset of each partition that an option means now.

    Args:
        options: The query's options; ``failOnDataLoss`` counts here.
        name: ``startingOffsets`` or ``endingOffsets``, for errors.
        spec: The option's value.
        partitions: The partitions that are read.
        view: The cluster.

    Raises:
        OptionsError: A value per partition names other partitions than those that are read, or no
            record is as late as a timestamp.
        DataLossError: An offset is not in the log, and ``failOnDataLoss`` is true.
        KafkaError: The cluster did not answer.
    """
    partitions = tuple(partitions)
    match spec:
        case Earliest():
            return view.earliest(partitions)
        case Latest():
            return view.latest(partitions)
        case PerPartition():
            _require_all(name, spec, partitions)
            return _offsets(options, name, spec, partitions, view)
        case TimestampPerPartition():
            option = f"{name}ByTimestamp"
            _require_all(option, spec, partitions)
            wanted = {tp: spec.timestamps[tp] for tp in partitions}
            return _at_timestamps(option, wanted, view, is_error=spec.otherwise == "error")
        case AtTimestamp():
            option = name.replace("Offsets", "Timestamp")
            wanted = dict.fromkeys(partitions, spec.timestamp_ms)
            return _at_timestamps(option, wanted, view, is_error=spec.otherwise == "error")


def is_certain_start(options: SourceOptions, partition: TopicPartition, offset: int) -> bool:
    """True if a query that was started some time ago began at what its options mean now.

    Args:
        options: The query's options.
        partition: A partition.
        offset: Where it would start now.
    """
    starting = options.starting
    if isinstance(starting, PerPartition):
        return isinstance(starting.offsets.get(partition), int)
    return isinstance(starting, Earliest) and offset == 0  # nothing was trimmed


def _require_all(
    name: str, spec: PerPartition | TimestampPerPartition, partitions: tuple[TopicPartition, ...]
) -> None:
    """Values per partition must name exactly the partitions that are read, as with Spark."""
    fault = partitions_fault(spec, partitions)
    if fault is not None:
        raise OptionsError([f"{name}: {fault}"])


def _offsets(
    options: SourceOptions,
    name: str,
    spec: PerPartition,
    partitions: tuple[TopicPartition, ...],
    view: View,
) -> dict[TopicPartition, int]:
    """An offset, earliest or latest for each partition."""
    wanted = {tp: spec.offsets[tp] for tp in partitions}
    first = view.earliest([tp for tp, offset in wanted.items() if not isinstance(offset, Latest)])
    end = view.latest([tp for tp, offset in wanted.items() if not isinstance(offset, Earliest)])
    resolved = {}
    for tp, offset in wanted.items():
        match offset:
            case Earliest():
                resolved[tp] = first[tp]
            case Latest():
                resolved[tp] = end[tp]
            case _:
                resolved[tp] = min(max(offset, first[tp]), end[tp])
                if resolved[tp] != offset:
                    _not_in_log(options, name, tp, offset, (first[tp], end[tp]))
    return resolved


def _not_in_log(
    options: SourceOptions,
    name: str,
    tp: TopicPartition,
    offset: int,
    available: tuple[int, int],
) -> None:
    """Raise or warn: an offset in the options is not in the log."""
    text = (
        f"{name}: {tp}: offset {offset} is not in the log, which holds {available[0]} to "
        f"{available[1]} (end not included)"
    )
    if not options.fail_on_data_loss:
        nearest = min(max(offset, available[0]), available[1])
        _log.warning("%s. Taking %d, since failOnDataLoss is false.", text, nearest)
        return
    raise DataLossError(
        f"{text}. Give an offset that it holds, or set failOnDataLoss to false to take the nearest "
        "one.",
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        wanted=(offset, offset),
        available=available,
    )


def _at_timestamps(
    name: str, timestamps: Mapping[TopicPartition, int], view: View, *, is_error: bool
) -> dict[TopicPartition, int]:
    """The first offset of each partition that is not older than its timestamp."""
    real = {tp: ms for tp, ms in timestamps.items() if ms not in (_LATEST_MS, _EARLIEST_MS)}
    offsets = view.at_timestamps(real) if real else {}
    too_late = [tp for tp in real if offsets[tp] is None]
    if too_late and is_error:
        raise OptionsError(
            [
                f"{name}: no record of {tp} has timestamp {real[tp]} or a later one; give an "
                "earlier timestamp, or set startingOffsetsByTimestampStrategy to latest"
                for tp in too_late
            ]
        )
    first = [tp for tp, ms in timestamps.items() if ms == _EARLIEST_MS]
    last = [tp for tp, ms in timestamps.items() if ms == _LATEST_MS] + too_late
    resolved = {tp: offset for tp, offset in offsets.items() if offset is not None}
    if first:
        resolved |= view.earliest(first)
    if last:
        resolved |= view.latest(last)
    return {tp: resolved[tp] for tp in timestamps}
