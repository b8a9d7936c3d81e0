"""Spark's progress events as reports on kshare's queries.

Law: a query of an older kshare, or a partition of which the events hold no report, shows what its
offsets tell and nothing else. Cost: one parse of two offset dicts a source and event.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kshare.core.checkpoint import EXTRA_KEY, decode
from kshare.core.checkpoint import Offsets as OffsetDict
from kshare.core.progress import TopicPartition
from kshare.errors import CheckpointError
from kshare.monitor.report import (
    PartitionReport,
    RangeReport,
    decode_report,
    hottest,
    partition_report,
    slowest,
)

__all__ = ["QueryReport", "SourceReport", "report_of"]

_log = logging.getLogger("kshare")

_OTHERS: Final = ("KafkaV2", "KafkaSource", "KafkaV1")


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What is known of one source of a query after a batch.

    Attributes:
        number: which of the query's sources it is, from 0.
        partitions: by topic and partition.
        offsets_behind_latest: by topic and partition: the end of the log when the batch was
            planned, minus the offset below which all is read with the batch. Of a partition with
            record limits, what the batch itself reads is not counted as read. Only partitions whose
            end is known.
    """

    number: int
    partitions: Mapping[TopicPartition, PartitionReport]
    offsets_behind_latest: Mapping[TopicPartition, int]

    @property
    def metrics(self) -> dict[str, str]:
        """What Spark's kafka source shows in ``sources[number].metrics``; empty if not known."""
        behind = self.offsets_behind_latest.values()
        if not behind:
            return {}
        return {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        }


@dataclass(frozen=True, slots=True)
class QueryReport:
    """What is known of a query after a batch.

    Attributes:
        query: the query's id, which it keeps over restarts.
        name: the query's name; None if it has none.
        batch: number of the batch.
        seconds: how long it took.
        sources: the query's kshare sources, at least one.
    """

    query: str
    name: str | None
    batch: int
    seconds: float
    sources: tuple[SourceReport, ...]

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionReport]:
        """By topic and partition; of one that several sources read, the one that is behind."""
        merged: dict[TopicPartition, PartitionReport] = {}
        for source in self.sources:
            for place, partition in source.partitions.items():
                if place not in merged or partition.stable < merged[place].stable:
                    merged[place] = partition
        return MappingProxyType(merged)

    @property
    def ranges(self) -> tuple[tuple[TopicPartition, RangeReport], ...]:
        """All ranges of all partitions."""
        return tuple(
            (place, range_)
            for place, partition in sorted(self.partitions.items())
            for range_ in partition.ranges
        )

    @property
    def slowest(self) -> tuple[TopicPartition, RangeReport] | None:
        """The range with the most time per record; None if none was measured."""
        ranges = self.ranges
        return _place_of(slowest(range_ for _, range_ in ranges), ranges)

    @property
    def hottest(self) -> tuple[TopicPartition, RangeReport] | None:
        """The range with the most records/s; None if none delivered any."""
        ranges = self.ranges
        return _place_of(hottest(range_ for _, range_ in ranges), ranges)

    @property
    def gaps(self) -> int:
        """Individual commits in the checkpoint, over all partitions."""
        return sum(partition.gaps for partition in self.partitions.values())

    @property
    def entry_bytes(self) -> int:
        """Bytes of the checkpoint's ``"@kshare"`` entry, over all partitions."""
        return sum(partition.entry_bytes for partition in self.partitions.values())

    def records_per_second(self, range_: RangeReport) -> float | None:
        """Records of a range by the time of the batch; None if that is not known."""
        if range_.records is None or self.seconds <= 0:
            return None
        return range_.records / self.seconds


def report_of(progress: Any) -> QueryReport | None:
    """A ``StreamingQueryProgress`` as a report; None if none of its sources is ours."""
    sources = [
        _source(number, source.endOffset, source.latestOffset)
        for number, source in enumerate(progress.sources)
        if not source.description.startswith(_OTHERS)
    ]
    known = tuple(source for source in sources if source is not None)
    if not known:
        return None
    taken_ms = progress.durationMs.get("triggerExecution", progress.batchDuration)
    return QueryReport(
        query=str(progress.id),
        name=progress.name,
        batch=progress.batchId,
        seconds=taken_ms / 1000,
        sources=known,
    )


def _source(number: int, end: str | None, latest: str | None) -> SourceReport | None:
    """What a source says: its report, and of partitions without one what the offsets tell."""
    reached = _decoded(end)
    if reached is None:
        return None
    partitions: dict[TopicPartition, PartitionReport] = {}
    ends: dict[TopicPartition, int] = {}
    try:
        newest = json.loads(latest or "null")
        if isinstance(newest, dict):
            partitions = decode_report(newest)
            plain = _decoded({name: part for name, part in newest.items() if name != EXTRA_KEY})
            ends = {place: at.stable for place, at in plain.progress.items()} if plain else {}
    except ValueError as error:
        _log.debug("a report that cannot be read: %s", error)
    for place, progress in reached.progress.items():
        if place not in partitions:
            seen = max(progress.front, ends.get(place, 0))
            partitions[place] = partition_report(seen, progress, reached.limits.get(place, ()))
    behind = {
        place: max(ends[place] - partition.stable, 0)
        for place, partition in partitions.items()
        if place in ends
    }
    return SourceReport(number, MappingProxyType(partitions), MappingProxyType(behind))


def _decoded(offsets: str | dict[str, Any] | None) -> OffsetDict | None:
    """An offset dict of ours; None if it is something else."""
    if not offsets or offsets == "None":
        return None
    try:
        found = decode(offsets)
    except CheckpointError:
        return None
    return found if found.progress else None


def _place_of(
    found: RangeReport | None, ranges: tuple[tuple[TopicPartition, RangeReport], ...]
) -> tuple[TopicPartition, RangeReport] | None:
    return next((pair for pair in ranges if pair[1] is found), None)
