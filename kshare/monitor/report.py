"""The report of the last batch, as JSON inside Spark's progress events, and back.

Guarantees: ``decode_report(encode_report(x)) == x``, also through JSON text. Nothing depends on a
report. Its reader may be older or newer than its writer, so a version or a field that is not known
is no fault.
Cost: linear in the ranges; ``lag`` and ``entry_bytes`` are linear in the gaps.

The dict is the answer of ``reportLatestOffset()``, so Spark shows it as ``latestOffset``::

    {"topic": {"0": 123},              the end of each partition's log
     "@kshare": {"v": 1, "report": {"topic": {"0": {
       "stable": 100, "gaps": 2, "gaps_max": 10000, "bytes": 40,
       "retention_at_risk": true, "at_risk_from": 100,
       "ranges": [{"h": [[lo, hi], ...], "position": 100, "lag": 23,
                   "records": 256, "seconds": 1.5, "limit": 256,
                   "keys": [{"key": "customer-7", "share": 0.75}]}]}}}}}

Only where retention is a risk there is ``at_risk_from``, ``keys`` where keys stand out, and where
keys of the topic are parked ``parked``: ``{"keys": 3, "since": 1700000000.0}``, or ``true`` of a
range. A partition that is not in the report is as the batch's offsets say. Without any, this is the
answer of Spark's own source.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kshare.core.checkpoint import EXTRA_KEY, VERSION, BatchOffsets, RangeLimit, by_topic, encode
from kshare.core.hashing import NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.listing import ParkedCount, key_json
from kshare.core.offsets import length, union
from kshare.core.progress import Progress, TopicPartition
from kshare.core.slice_end import HotKey
from kshare.core.slicing import RangeObservation

__all__ = [
    "PartitionReport",
    "RangeReport",
    "are_measured",
    "decode_report",
    "encode_report",
    "entry_bytes",
    "hottest",
    "lag",
    "partition_report",
    "slowest",
]


@dataclass(frozen=True, slots=True)
class RangeReport:
    """One range of key hashes, after the last batch.

    Attributes:
        hashes: The range, not empty; several if parked keys lie in it.
        position: The first offset that is not processed for all of ``hashes``.
        lag: Number of pending offsets up to the partition's end: no fewer than the records.
        records: Number of records that the last batch delivered; None if that is not known.
        seconds: How long its task took for them; None if that was not measured.
        limit: Maximum number of records that a batch may deliver; None if there is no limit.
        hot_keys: The keys of most of those records, most frequent first, as far as some stand out:
            at most ``HOT_KEYS_MAX``, from a sample, none of more than ``KEY_BYTES_MAX`` bytes.
        is_parked: Whether it holds parked keys alone, so that nothing of it is read.
    """

    hashes: tuple[HashRange, ...]
    position: int
    lag: int
    records: int | None = None
    seconds: float | None = None
    limit: int | None = None
    hot_keys: tuple[HotKey, ...] = ()
    is_parked: bool = False

    @property
    def span(self) -> HashRange:
        """From the first of its hashes to the last."""
        return HashRange(self.hashes[0].lo, self.hashes[-1].hi)

    @property
    def seconds_per_record(self) -> float | None:
        """The time per record; None if it was not measured or nothing was delivered."""
        if self.seconds is None or not self.records:
            return None
        return self.seconds / self.records

    def behind(self, end: int) -> int:
        """Offsets behind latest: from the range's position to the end of the log."""
        return max(end - self.position, 0)


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition.

    Attributes:
        end: The end of its log, as last seen.
        stable: Everything below this offset is processed when the batch is done, or of a batch with
            limits, when it begins.
        gaps: Number of individual commits that the checkpoint holds for it.
        entry_bytes: Length of its entry under ``"@kshare"``, as JSON.
        retention_at_risk: Whether retention is about to take what is pending.
        ranges: The ranges, ascending by first hash.
        at_risk_from: The first offset that was pending when the batch began, if retention is about
            to take it; None if it is not, or an older kshare wrote the report.
        gaps_max: The most individual commits that the checkpoint may hold for it
            (``maxRangesInCheckpoint``); None if that is not known.
        parked: The parked keys of its topic; None if there are none.
    """

    end: int
    stable: int
    gaps: int = 0
    entry_bytes: int = 0
    retention_at_risk: bool = False
    ranges: tuple[RangeReport, ...] = ()
    at_risk_from: int | None = None
    gaps_max: int | None = None
    parked: ParkedCount | None = None


def partition_report(
    end: int,
    reached: Progress,
    limits: Sequence[RangeLimit] = (),
    observed: Sequence[RangeObservation] = (),
    *,
    at_risk_from: int | None = None,
    gaps_max: int | None = None,
    parked: ParkedCount | None = None,
    parked_hashes: KeyRanges = NO_HASHES,
) -> PartitionReport:
    """Make the report of one partition.

    Its ranges are those that have limits, and those that had a task before. If there are none, they
    are the stripes of its progress.

    Args:
        end: The end of its log.
        reached: How far it is.
        limits: What its ranges may read in the batch that begins.
        observed: What its ranges did in the batches before.
        at_risk_from: The first pending offset, if retention is about to take it.
        gaps_max: The most individual commits that the checkpoint may hold for it.
        parked: The parked keys of its topic.
        parked_hashes: The hashes of parked keys.
    """
    known = {seen.hashes: seen for seen in observed}
    limit_of = {limit.hashes.span: limit for limit in limits}
    idle = {h for h in known if all(h.intersect(busy) is None for busy in limit_of)}
    ranges = []
    shown = limit_of.keys() | idle or {stripe.hashes for stripe in reached.stripes} or {WHOLE}
    for hashes in sorted(shown):
        seen, limit = known.get(hashes), limit_of.get(hashes)
        parts = limit.hashes if limit else KeyRanges([hashes])
        ranges.append(
            RangeReport(
                hashes=tuple(parts),
                position=reached.position_of(parts),
                lag=lag(reached, end, parts),
                records=seen.records if seen else None,
                seconds=seen.seconds if seen else None,
                limit=limit.records if limit else None,
                hot_keys=seen.hot_keys if seen else (),
                is_parked=not parts - parked_hashes,
            )
        )
    return PartitionReport(
        end=end,
        stable=reached.stable,
        gaps=reached.gaps,
        entry_bytes=entry_bytes(reached, limits) if limits or not reached.is_level else 0,
        retention_at_risk=at_risk_from is not None,
        ranges=tuple(ranges),
        at_risk_from=at_risk_from,
        gaps_max=gaps_max,
        parked=parked,
    )


def encode_report(
    reports: Mapping[TopicPartition, PartitionReport],
    ends: Mapping[TopicPartition, int] | None = None,
) -> dict[str, Any]:
    """Make the dict for ``reportLatestOffset()``.

    Args:
        reports: The reports, by partition.
        ends: The ends of partitions that have no report.
    """
    known = {**(ends or {}), **{tp: report.end for tp, report in reports.items()}}
    encoded: dict[str, Any] = by_topic(known)
    if reports:
        entries = by_topic({tp: _encode_partition(report) for tp, report in reports.items()})
        encoded[EXTRA_KEY] = {"v": VERSION, "report": entries}
    return encoded


def decode_report(value: dict[str, Any]) -> dict[TopicPartition, PartitionReport]:
    """Read the dict.

    Args:
        value: The dict, parsed.

    Returns:
        The reports by partition; empty if there is none, as with an older kshare.

    Raises:
        ValueError: It has another shape; the text names the field.
    """
    from kshare.monitor.report_schema import parse_latest  # noqa: PLC0415 - pydantic: 0.15 s

    latest = parse_latest(value)
    decoded = {}
    for topic, partitions in latest.extra.report.items():
        ends = latest.__pydantic_extra__.get(topic, {})
        for number, entry in partitions.items():
            if number not in ends:
                raise ValueError(f"{EXTRA_KEY}.report.{topic}.{number}: there is no end beside it")
            ranges = tuple(RangeReport(**dict(range_)) for range_ in entry.ranges)
            fields = {**dict(entry), "end": ends[number], "ranges": ranges}
            decoded[TopicPartition(topic, int(number))] = PartitionReport(**fields)
    return decoded


def are_measured(ranges: Iterable[RangeReport]) -> bool:
    """True if the time per record is known of every range that has records.

    Else the slowest of the measured ones may not be the slowest.
    """
    return all(
        range_.is_parked
        or range_.seconds_per_record is not None
        or (range_.lag == 0 if range_.records is None else range_.records == 0)
        for range_ in ranges
    )


def slowest(ranges: Iterable[RangeReport]) -> RangeReport | None:
    """The range with the most time per record, of those that were measured; None if none was."""
    timed = [(range_.seconds_per_record, range_) for range_ in ranges]
    return max(
        ((each, range_) for each, range_ in timed if each is not None),
        key=lambda pair: pair[0],
        default=(None, None),
    )[1]


def hottest(ranges: Iterable[RangeReport]) -> RangeReport | None:
    """The range that delivered the most records; None if none delivered any."""
    counted = [(range_.records, range_) for range_ in ranges]
    return max(
        ((records, range_) for records, range_ in counted if records),
        key=lambda pair: pair[0],
        default=(None, None),
    )[1]


def lag(progress: Progress, end: int, hashes: KeyRanges) -> int:
    """Number of offsets below ``end`` with something pending: no fewer than the pending records.

    Args:
        progress: What is processed.
        end: The end of the log.
        hashes: The key hashes that count.
    """
    return length(union(stripe.bounds for stripe in progress.pending_stripes(end, hashes)))


def entry_bytes(progress: Progress, limits: Sequence[RangeLimit] = ()) -> int:
    """Length of a partition's entry under ``"@kshare"``, as JSON; 0 if it has none."""
    alone = TopicPartition("", 0)
    encoded = encode(
        BatchOffsets({alone: progress}, limits={alone: tuple(limits)} if limits else {})
    )
    if EXTRA_KEY not in encoded:
        return 0
    return len(json.dumps(encoded[EXTRA_KEY], separators=(",", ":")))


def _encode_partition(report: PartitionReport) -> dict[str, Any]:
    known: dict[str, Any] = {"gaps_max": report.gaps_max, "at_risk_from": report.at_risk_from}
    if report.parked is not None:
        known["parked"] = {"keys": report.parked.keys, "since": report.parked.since}
    return {
        "stable": report.stable,
        "gaps": report.gaps,
        "bytes": report.entry_bytes,
        "retention_at_risk": report.retention_at_risk,
        **{name: value for name, value in known.items() if value is not None},
        "ranges": [
            {
                "h": KeyRanges(range_.hashes).pairs,
                "position": range_.position,
                "lag": range_.lag,
                "records": range_.records,
                "seconds": range_.seconds,
                "limit": range_.limit,
                **({"parked": True} if range_.is_parked else {}),
                **({"keys": list(map(_encode_key, range_.hot_keys))} if range_.hot_keys else {}),
            }
            for range_ in report.ranges
        ],
    }


def _encode_key(hot: HotKey) -> dict[str, Any]:
    return {"key": key_json(hot.key), "share": hot.share}
