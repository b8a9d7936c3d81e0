"""Offset options as numbers: earliest, latest, by timestamp, or one for each partition.

Law: every partition that is read gets an offset that its log holds, or an error says why not.
Cost: one round trip for earliest, latest and timestamps, two for offsets that must be checked, and
one more where a timestamp means latest or earliest.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kshare.cluster.cluster import TopicPolicy
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
    Topics,
)
from kshare.options.offset_json import partitions_fault

__all__ = ["ClusterLike", "PinnedView", "TopicView", "View", "is_certain_start", "resolve"]

_log = logging.getLogger(__name__)

# What timestamps mean to Kafka that are none.
_LATEST_MS, _EARLIEST_MS = -1, -2


class View(Protocol):
    """What of a cluster planning looks at."""

    def partitions(self, topics: Topics, /) -> tuple[TopicPartition, ...]:
        """The partitions of a subscription, sorted."""

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The first offset that each log holds."""

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The end of each log."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older than its partition's timestamp."""


class TopicView(View, Protocol):
    """A view that also knows what topics are configured for."""

    def policies(self, topics: Collection[str], /) -> dict[str, TopicPolicy]:
        """What topics are configured for."""


class ClusterLike(TopicView, Protocol):
    """A cluster that can be let go of: see :class:`~kshare.cluster.cluster.Cluster`."""

    def close(self) -> None:
        """Let go of it."""


class PinnedView:
    """A cluster whose partitions and ends stay as they were at one moment."""

    def __init__(self, cluster: View, ends: dict[TopicPartition, int]) -> None:
        self._cluster = cluster
        self._ends = ends

    def partitions(self, _: Topics, /) -> tuple[TopicPartition, ...]:
        """The partitions of that moment."""
        return tuple(sorted(self._ends))

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The first offset that each log holds now."""
        return self._cluster.earliest(partitions)

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        """The ends of that moment."""
        return {partition: self._ends[partition] for partition in partitions}

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        """The first offset that is not older, now.

        What lies between the end of that moment and a record that came since is older than the
        timestamp. It is not to be read, in this run or a later one: so the end moves up to there.
        """
        found = self._cluster.at_timestamps(timestamps_ms)
        for partition, offset in found.items():
            if offset is not None:
                self._ends[partition] = max(self._ends[partition], offset)
        return found


def resolve(
    options: SourceOptions,
    name: str,
    spec: OffsetSpec,
    partitions: Iterable[TopicPartition],
    view: View,
) -> dict[TopicPartition, int]:
    """The offset of each partition that an option means now.

    Args:
        options: the query's; ``failOnDataLoss`` counts here.
        name: ``startingOffsets`` or ``endingOffsets``, for errors.
        spec: the option's value.
        partitions: those that are read.
        view: the cluster.

    Raises:
        OptionsError: a value per partition names others than those that are read, or no record is
            as late as a timestamp.
        DataLossError: an offset is not in the log, and ``failOnDataLoss`` is true.
        KafkaError: the cluster did not answer.
    """
    places = tuple(partitions)
    match spec:
        case Earliest():
            return view.earliest(places)
        case Latest():
            return view.latest(places)
        case PerPartition():
            _require_all(name, spec, places)
            return _offsets(options, name, spec, places, view)
        case TimestampPerPartition():
            option = f"{name}ByTimestamp"
            _require_all(option, spec, places)
            wanted = {place: spec.timestamps[place] for place in places}
            return _at(option, wanted, view, is_error=spec.otherwise == "error")
        case AtTimestamp():
            option = name.replace("Offsets", "Timestamp")
            wanted = dict.fromkeys(places, spec.timestamp_ms)
            return _at(option, wanted, view, is_error=spec.otherwise == "error")


def is_certain_start(options: SourceOptions, partition: TopicPartition, offset: int) -> bool:
    """Whether a query that was started some time ago began at what its options mean now.

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
    name: str, spec: PerPartition | TimestampPerPartition, places: tuple[TopicPartition, ...]
) -> None:
    """Values per partition must be for those that are read, and for no others, as with Spark."""
    fault = partitions_fault(spec, places)
    if fault is not None:
        raise OptionsError([f"{name}: {fault}"])


def _offsets(
    options: SourceOptions,
    name: str,
    spec: PerPartition,
    places: tuple[TopicPartition, ...],
    view: View,
) -> dict[TopicPartition, int]:
    """An offset, earliest or latest for each partition."""
    given = {place: spec.offsets[place] for place in places}
    first = view.earliest([p for p, offset in given.items() if not isinstance(offset, Latest)])
    end = view.latest([p for p, offset in given.items() if not isinstance(offset, Earliest)])
    found = {}
    for place, offset in given.items():
        match offset:
            case Earliest():
                found[place] = first[place]
            case Latest():
                found[place] = end[place]
            case _:
                found[place] = min(max(offset, first[place]), end[place])
                if found[place] != offset:
                    _lost(options, name, place, offset, (first[place], end[place]))
    return found


def _lost(
    options: SourceOptions,
    name: str,
    place: TopicPartition,
    offset: int,
    available: tuple[int, int],
) -> None:
    """An offset that the user gave is not in the log."""
    text = (
        f"{name}: {place}: offset {offset} is not in the log, which holds {available[0]} to "
        f"{available[1]} (end not included)"
    )
    if not options.fail_on_data_loss:
        nearest = min(max(offset, available[0]), available[1])
        _log.warning("%s. Taking %d, since failOnDataLoss is false.", text, nearest)
        return
    raise DataLossError(
        f"{text}. Give an offset that it holds, or set failOnDataLoss to false to take the nearest "
        "one.",
        topic=place.topic,
        partition=place.partition,
        offset=offset,
        wanted=(offset, offset),
        available=available,
    )


def _at(
    name: str, timestamps: Mapping[TopicPartition, int], view: View, *, is_error: bool
) -> dict[TopicPartition, int]:
    """The first offset that is not older than each partition's timestamp."""
    real = {place: ms for place, ms in timestamps.items() if ms not in (_LATEST_MS, _EARLIEST_MS)}
    found = view.at_timestamps(real) if real else {}
    too_late = [place for place in real if found[place] is None]
    if too_late and is_error:
        raise OptionsError(
            [
                f"{name}: no record of {place} has timestamp {real[place]} or a later one; give an "
                "earlier timestamp, or set startingOffsetsByTimestampStrategy to latest"
                for place in too_late
            ]
        )
    first = [place for place, ms in timestamps.items() if ms == _EARLIEST_MS]
    last = [place for place, ms in timestamps.items() if ms == _LATEST_MS] + too_late
    resolved = {place: offset for place, offset in found.items() if offset is not None}
    if first:
        resolved |= view.earliest(first)
    if last:
        resolved |= view.latest(last)
    return {place: resolved[place] for place in timestamps}
