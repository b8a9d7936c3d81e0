"""What a member tells its leader beside what it owns: its assignors, load, lag and tags.

It is part of the user data of a subscription, and what is not set is left out: a member that sets
nothing says the same bytes as members of a version without reports, which pass over it.

``report_of(report_value(report)) == report``.
"""

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kshare.core.bounded_json import count_of, text_of
from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeObservation

__all__ = ["NO_REPORT", "ROUND_ROBIN", "Loads", "MemberReport", "bounded", "by_range",
           "report_of", "report_value"]  # fmt: skip

ROUND_ROBIN: Final = "round-robin"
"""The range assignor that divides partitions evenly, and needs no load."""

Loads: TypeAlias = tuple[tuple[TopicPartition, tuple[RangeObservation, ...]], ...]
"""What was observed of the key ranges of each partition, ascending."""

RANGES_MAX: Final = 16
_SAMPLE_MAX: Final = 64
_SAMPLES_MAX: Final = 128
"""Of a member: ranges with a load, key hashes of a sample, and of all samples: at most 3 KB. The
coordinator keeps what all members say in one record."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a member tells its leader beside what it owns.

    Attributes:
        range_assignor: What would cut partitions if it led the group (``rangeAssignor``).
        task_assignor: What would assign ranges if it led the group (``taskAssignor``); None for
            none.
        tags: Names and values of its client tags (``client.tag.NAME``), by name.
        loads: What it has observed of the ranges that it owns.
        lags: Number of offsets from where it is to the end of each partition, ascending.
        spans: Seconds in which each of the loads was observed; empty: not known.
    """

    range_assignor: str = ROUND_ROBIN
    task_assignor: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    loads: Loads = ()
    lags: tuple[tuple[TopicPartition, int], ...] = ()
    spans: tuple[float, ...] = ()


NO_REPORT: Final = MemberReport()


def by_range(
    hashes: KeyRanges,
    records: int,
    offsets: int,
    seconds: float | None,
    sample: Sequence[int],
) -> tuple[RangeObservation, ...]:
    """What was observed of some ranges together, as observations of each.

    Each range has the part of it that it has of the sample, or of the hashes if there is no sample.

    Args:
        hashes: The ranges.
        records: Number of records of all of them.
        offsets: Number of offsets that they came from.
        seconds: How long they took; None if that was not measured.
        sample: Key hashes of some of them, in any order.
    """
    found = []
    samples = [tuple(sorted(hashed for hashed in sample if hashed in part)) for part in hashes]
    sampled = sum(map(len, samples))
    for part, inside in zip(hashes, samples, strict=True):
        share = len(inside) / sampled if sampled else part.width / hashes.width
        part_seconds = None if seconds is None else round(seconds * share, 3)
        found.append(RangeObservation(part, round(records * share), offsets, part_seconds, inside))
    return tuple(found)


def bounded(loads: Loads) -> Loads:
    """Loads that are no more than a member may say: those of the ranges with the most work."""
    ranked = sorted(
        ((seen.seconds or 0.0, seen.records, partition, i, seen)
         for partition, observed in loads for i, seen in enumerate(observed)),
        key=lambda entry: (-entry[0], -entry[1], entry[2], entry[3]),
    )[:RANGES_MAX]  # fmt: skip
    most = min(_SAMPLE_MAX, _SAMPLES_MAX // max(len(ranked), 1))
    kept: dict[TopicPartition, list[RangeObservation]] = {}
    for _, _, partition, _, seen in ranked:
        sample = _thinned(seen.sample, most)
        observation = RangeObservation(
            seen.hashes, seen.records, seen.offsets, seen.seconds, sample, seen.limit
        )
        kept.setdefault(partition, []).append(observation)
    return tuple(
        (partition, tuple(sorted(observed, key=lambda seen: seen.hashes)))
        for partition, observed in sorted(kept.items())
    )


def _thinned(sample: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Up to a number of a sample, evenly spaced: a key keeps its part of it."""
    if len(sample) <= most:
        return sample
    return tuple(sample[(2 * i + 1) * len(sample) // (2 * most)] for i in range(most))


# -- the user data ---------------------------------------------------------------------------------


def report_value(report: MemberReport) -> dict[str, Any]:
    """The fields of the user data that say a report; none for one that says nothing."""
    fields: dict[str, Any] = {}
    if report.range_assignor != ROUND_ROBIN:
        fields["range_assignor"] = report.range_assignor
    if report.task_assignor is not None:
        fields["task_assignor"] = report.task_assignor
    if report.tags:
        fields["tags"] = dict(report.tags)
    if report.loads:
        fields["loads"] = [
            [*partition, [_observation_value(seen) for seen in observed]]
            for partition, observed in report.loads
        ]
    if report.spans:
        fields["spans"] = report.spans
    if report.lags:
        fields["lags"] = [[*partition, lag] for partition, lag in report.lags]
    return fields


def report_of(fields: Mapping[str, Any]) -> MemberReport:
    """The report that the fields of user data say.

    Raises:
        TypeError, ValueError: They say something else.
    """
    task_assignor = fields.get("task_assignor")
    return MemberReport(
        text_of(fields.get("range_assignor", ROUND_ROBIN)),
        None if task_assignor is None else text_of(task_assignor),
        tuple(sorted((text_of(k), text_of(v)) for k, v in dict(fields.get("tags", {})).items())),
        tuple(
            (_partition(topic, number), tuple(map(_observation_of, observed)))
            for topic, number, observed in fields.get("loads", ())
        ),
        tuple(
            (_partition(topic, number), count_of(lag))
            for topic, number, lag in fields.get("lags", ())
        ),
        tuple(map(_seconds_of, fields.get("spans", ()))),
    )


def _observation_value(seen: RangeObservation) -> list[Any]:
    sample = b64encode(struct.pack(f">{len(seen.sample)}q", *seen.sample)).decode()
    return [seen.hashes.lo, seen.hashes.hi, seen.records, seen.offsets, seen.seconds, sample]


def _observation_of(value: Iterable[Any]) -> RangeObservation:
    lo, hi, records, offsets, seconds, text = value
    packed = b64decode(text_of(text), validate=True)
    if len(packed) % 8:
        raise ValueError(f"a sample of {len(packed)} bytes")
    sample = struct.unpack(f">{len(packed) // 8}q", packed)
    if any(not 0 <= hashed < HASH_SPACE for hashed in sample) or list(sample) != sorted(sample):
        raise ValueError("a sample holds what is no key hash, or is not ascending")
    return RangeObservation(
        HashRange(count_of(lo), count_of(hi, HASH_SPACE)),
        count_of(records),
        count_of(offsets),
        None if seconds is None else _seconds_of(seconds),
        sample,
    )


def _seconds_of(value: Any) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"found {value} seconds")
    return float(value)


def _partition(topic: Any, number: Any) -> TopicPartition:
    return TopicPartition(text_of(topic), count_of(number))
