"""What the planner tells of its last batch, as JSON inside Spark's progress events, and back.

Law: ``decode_report(encode_report(x)) == x``, also through JSON text. It tells and decides nothing:
whoever reads it may be older or newer, so a version or a field that is not known is no fault.
Cost: linear in the ranges; ``lag`` and ``entry_bytes`` are linear in the gaps.

The dict is what ``reportLatestOffset()`` answers, so Spark shows it as ``latestOffset``::

    {"topic": {"0": 123},              the end of each partition's log
     "@kshare": {"v": 1, "report": {"topic": {"0": {
       "stable": 100, "gaps": 2, "bytes": 40, "retention_at_risk": false,
       "ranges": [{"h": [[lo, hi], ...], "position": 100, "lag": 23,
                   "records": 256, "seconds": 1.5, "limit": 256}]}}}}}

Both may be absent: of a partition that is not in the report no more is known than the batch's
offsets say. If none is, this is what Spark's own source answers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kshare.core.checkpoint import EXTRA_KEY, VERSION, Offsets, RangeLimit, encode
from kshare.core.hashing import WHOLE, HashRange, span
from kshare.core.offsets import from_pairs, length
from kshare.core.progress import Progress, TopicPartition
from kshare.core.slicing import RangeObservation

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = [
    "PartitionReport",
    "RangeReport",
    "decode_report",
    "encode_report",
    "entry_bytes",
    "hottest",
    "lag",
    "partition_report",
    "slowest",
]

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RangeReport:
    """One range of key hashes, after the last batch that is known of.

    Attributes:
        hashes: ascending, disjoint, not empty; several if parked keys lie in it.
        position: the first offset that is not processed for all of ``hashes``.
        lag: offsets from there to the partition's end that are pending: at most so many records.
        records: what the last batch delivered; None if that is not known.
        seconds: how long its task took for them; None if that was not measured.
        limit: the most records that a batch may deliver; None if there is no limit.
    """

    hashes: tuple[HashRange, ...]
    position: int
    lag: int
    records: int | None = None
    seconds: float | None = None
    limit: int | None = None

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
        end: the end of its log, as last seen.
        stable: everything below this offset is processed.
        gaps: how many individual commits the checkpoint holds for it.
        entry_bytes: how long its entry under ``"@kshare"`` is, as JSON.
        retention_at_risk: whether retention is about to take what is pending.
        ranges: ascending by first hash.
    """

    end: int
    stable: int
    gaps: int = 0
    entry_bytes: int = 0
    retention_at_risk: bool = False
    ranges: tuple[RangeReport, ...] = ()


def partition_report(
    end: int,
    reached: Progress,
    limits: Sequence[RangeLimit] = (),
    observed: Sequence[RangeObservation] = (),
    *,
    at_risk: bool = False,
) -> PartitionReport:
    """The report of one partition.

    Its ranges are those that have limits, and those that had a task before; of a partition without
    either they are the stripes of its progress.

    Args:
        end: the end of its log.
        reached: how far it is.
        limits: what its ranges may read in the batch that begins.
        observed: what its ranges did in the batches before.
        at_risk: whether retention is about to take what is pending.
    """
    known = {seen.hashes: seen for seen in observed}
    limit_of = {span(limit.hashes): limit for limit in limits}
    idle = {h for h in known if all(h.intersect(busy) is None for busy in limit_of)}
    ranges = []
    shown = limit_of.keys() | idle or {stripe.hashes for stripe in reached.stripes} or {WHOLE}
    for hashes in sorted(shown):
        seen, limit = known.get(hashes), limit_of.get(hashes)
        parts = limit.hashes if limit else (hashes,)
        ranges.append(
            RangeReport(
                hashes=parts,
                position=reached.position_of(parts),
                lag=lag(reached, end, parts),
                records=seen.records if seen else None,
                seconds=seen.seconds if seen else None,
                limit=limit.records if limit else None,
            )
        )
    return PartitionReport(
        end=end,
        stable=reached.stable,
        gaps=reached.gaps,
        entry_bytes=entry_bytes(reached, limits) if limits or not reached.is_level else 0,
        retention_at_risk=at_risk,
        ranges=tuple(ranges),
    )


def encode_report(
    reports: Mapping[TopicPartition, PartitionReport],
    ends: Mapping[TopicPartition, int] | None = None,
) -> dict[str, Any]:
    """The dict for ``reportLatestOffset()``.

    Args:
        reports: what is known, by partition.
        ends: the ends of partitions of which nothing else is known.
    """
    known = {**(ends or {}), **{place: report.end for place, report in reports.items()}}
    encoded: dict[str, Any] = _nested(known)
    if reports:
        told = _nested({place: _encode_partition(report) for place, report in reports.items()})
        encoded[EXTRA_KEY] = {"v": VERSION, "report": told}
    return encoded


def decode_report(value: dict[str, Any]) -> dict[TopicPartition, PartitionReport]:
    """Read the dict again.

    Args:
        value: the dict, parsed.

    Returns:
        The reports by partition; empty if there is none, as with an older kshare.

    Raises:
        ValueError: it has another shape; the text names the place.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - not where reports are only written

    from kshare.monitor.report_schema import Latest  # noqa: PLC0415 - likewise

    try:
        latest = Latest.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_fault(error)) from None
    decoded = {}
    for topic, partitions in latest.told.report.items():
        ends = latest.__pydantic_extra__.get(topic, {})
        for number, told in partitions.items():
            if number not in ends:
                raise ValueError(f"{EXTRA_KEY}.report.{topic}.{number}: there is no end beside it")
            ranges = tuple(RangeReport(**dict(range_)) for range_ in told.ranges)
            fields = {**dict(told), "end": ends[number], "ranges": ranges}
            decoded[TopicPartition(topic, int(number))] = PartitionReport(**fields)
    return decoded


def _first_fault(error: "ValidationError") -> str:
    """Where it is, what is wrong, and a little of what was found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the report"
    found = "" if first["type"] == "missing" else f", found {repr(first['input'])[:100]}"
    return f"{where}: {first['msg']}{found}"


def slowest(ranges: Iterable[RangeReport]) -> RangeReport | None:
    """The range with the most time per record; None if none was measured."""
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


def lag(progress: Progress, end: int, hashes: Sequence[HashRange]) -> int:
    """The offsets below ``end`` of which something is pending: at most so many records.

    Args:
        progress: what is processed.
        end: the end of the log.
        hashes: for these key hashes: ascending, disjoint.
    """
    pending = [piece.offsets for piece in progress.pending_of(end, hashes)]
    return length(from_pairs([piece.start for piece in pending], [piece.end for piece in pending]))


def entry_bytes(progress: Progress, limits: Sequence[RangeLimit] = ()) -> int:
    """How long a partition's entry under ``"@kshare"`` is, as JSON; 0 if it has none."""
    alone = TopicPartition("", 0)
    told = encode(Offsets({alone: progress}, limits={alone: tuple(limits)} if limits else {}))
    return len(json.dumps(told[EXTRA_KEY], separators=(",", ":"))) if EXTRA_KEY in told else 0


def _nested(entries: Mapping[TopicPartition, _Value]) -> dict[str, dict[str, _Value]]:
    topics: dict[str, dict[str, _Value]] = {}
    for (topic, partition), entry in sorted(entries.items(), key=lambda item: item[0]):
        topics.setdefault(topic, {})[str(partition)] = entry
    return topics


def _encode_partition(report: PartitionReport) -> dict[str, Any]:
    return {
        "stable": report.stable,
        "gaps": report.gaps,
        "bytes": report.entry_bytes,
        "retention_at_risk": report.retention_at_risk,
        "ranges": [
            {
                "h": [[part.lo, part.hi] for part in range_.hashes],
                "position": range_.position,
                "lag": range_.lag,
                "records": range_.records,
                "seconds": range_.seconds,
                "limit": range_.limit,
            }
            for range_ in report.ranges
        ],
    }
