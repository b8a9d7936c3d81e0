"""The status of queries and groups: tables for people, JSON for programs.

Guarantees: the two say the same.

Cost: linear in the ranges.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kshare.cli.output import counted, duration, printable, text_table
from kshare.core.hashing import KeyRanges
from kshare.core.listing import join_names, key_json, show_key
from kshare.core.live import QUANTILES, Latency, latency_text, quantile_name
from kshare.kafka.parked_keys import ParkedInfo
from kshare.monitor.status import (
    Checkpoint,
    ParkedStatus,
    PartitionStatus,
    RangeStatus,
    Status,
    unchanged_text,
)

__all__ = [
    "CHUNKS_TEXT",
    "Note",
    "ago_text",
    "alarms",
    "as_json",
    "as_text",
    "batches_text",
    "late_rows",
    "parked_json",
    "parked_status_json",
    "parked_status_text",
    "parked_text",
    "partition_text",
    "range_hashes_text",
    "records_left",
    "waits_text",
    "warning_text",
]

CHUNKS_TEXT: Final = "cooperative: chunks"
"""Instead of key hashes: a partition without key order (``consumption.order=none``)."""
_SAME_TASK: Final = "with the above"
_ENDED_SECONDS: Final = 60.0
_JOB_SECONDS: Final = 3_600.0
_LEFT_REMEDY: Final = (
    "a query that runs reads them in its next batches. One that Trigger.AvailableNow or Once has "
    "ended on Spark 4.0 or 4.1 reads all by spark_plugin.available_now(writer): "
    "docs/spark-versions.md"
)
_MAX_TIME_AHEAD: Final = '.option("maxTimeAhead", "10m"), with the delay of the watermark'


def as_json(status: Status, now: float | None = None) -> dict[str, Any]:
    """The status for programs. Hash ranges are ``[lo, hi)``; a key is text, or ``{"hex": ...}``.

    Args:
        status: The status.
        now: Seconds since 1970; None to say nothing of a query that may have stopped.
    """
    return {
        "checkpoint": status.checkpoint.directory,
        "planned": status.checkpoint.planned,
        "committed": status.checkpoint.committed,
        "unchanged_seconds": None if now is None else status.unchanged_seconds(now),
        "watermark_ms": status.checkpoint.watermark_ms or None,
        "sources": [
            {
                "source": source.number,
                "name": source.name,
                "is_live": source.live is not None,
                "latency_seconds": {
                    "recent": _quantiles(source.latency[0]),
                    "batch": _quantiles(source.latency[1]),
                },
            }
            for source in status.checkpoint.sources
        ],
        "partitions": [_partition_json(partition) for partition in status.partitions],
        "parked": [parked_status_json(key) for key in status.parked],
    }


def parked_status_json(key: ParkedStatus) -> dict[str, Any]:
    """A parked key of a query or a group for programs."""
    return {
        "topic": key.topic,
        "key": None if key.key is None else key_json(key.key),
        "hash": key.hash,
        "since": key.info.since if key.info else None,
        "by": key.info.by if key.info else None,
        "why": key.info.why if key.info else None,
        "positions": {str(number): offset for number, offset in sorted(key.positions.items())},
    }


def _partition_json(partition: PartitionStatus) -> dict[str, Any]:
    return {
        "source": partition.source,
        "topic": partition.topic_partition.topic,
        "partition": partition.topic_partition.partition,
        "stable": partition.done.stable,
        "committed": partition.committed,
        "front": partition.done.front,
        "planned_to": partition.planned_to,
        "first": partition.log[0] if partition.log else None,
        "end": partition.log[1] if partition.log else None,
        "lag": partition.lag,
        "lost": partition.lost,
        "late": partition.late,
        "left": partition.left,
        "gaps": partition.done.gaps,
        "bytes": partition.entry_bytes,
        "ranges": [
            {
                "h": range_.hashes.pairs,
                "position": range_.position,
                "lag": range_.lag,
                "reading_to": range_.limit.end if range_.limit else None,
                "limit": range_.limit.records if range_.limit else None,
            }
            for range_ in partition.ranges
        ],
    }


def parked_json(parked: Mapping[tuple[str, bytes], ParkedInfo]) -> list[dict[str, Any]]:
    """Parked keys for programs."""
    return [
        {
            "topic": topic,
            "key": key_json(key),
            "since": info.since,
            "by": info.by,
            "why": info.why,
        }
        for (topic, key), info in parked.items()
    ]


def parked_text(parked: Mapping[tuple[str, bytes], ParkedInfo], now: float | None = None) -> str:
    """Parked keys for people, as a table.

    Args:
        parked: The keys.
        now: Seconds since 1970; None to show when they were parked as it was written down.
    """
    if not parked:
        return "no key is parked\n"
    rows: list[tuple[str, ...]] = [("topic", "key", "since", "by", "why")]
    rows += [
        (topic, show_key(key), ago_text(info.since, now), info.by, info.why)
        for (topic, key), info in sorted(parked.items())
    ]
    return text_table(rows)


def ago_text(time: str, now: float | None) -> str:
    """How long ago a time was that is written as in ISO 8601; as it is if it is not, or no now."""
    try:
        seconds = None if now is None else now - datetime.fromisoformat(time).timestamp()
    except ValueError:
        seconds = None
    return time if seconds is None else f"{duration(seconds)} ago"


def as_text(status: Status, now: float | None = None) -> str:
    """The status for people: a line of the query's batches, and a table of the ranges.

    Args:
        status: The status.
        now: Seconds since 1970; None for times as they were written down, and nothing of a query
            that may have stopped.
    """
    checkpoint = status.checkpoint
    still = None if now is None else status.unchanged_seconds(now)
    facts = [batches_text(checkpoint), *([] if still is None else [unchanged_text(still)])]
    blocks = [f"{checkpoint.directory}: {', '.join(facts)}\n"]
    names = {source.number: source.name for source in checkpoint.sources if source.name}
    if names:
        said = ", ".join(f"{number} is {name}" for number, name in names.items())
        blocks.append(f"sources by name: {said}\n")
    found = (late_rows(status), None if now is None else records_left(status, now))
    notes = [note for note in found if note is not None]
    blocks += [warning_text(note) for note in notes]
    several = len(checkpoint.sources) > 1
    blocks += [
        partition_text(partition, several=several, is_running=still is None)
        for partition in status.partitions
    ]
    if not status.partitions:
        blocks.append("no partition yet: where the first batch began is known when it is done\n")
    if status.parked:
        blocks.append(parked_status_text(status.parked, now))
    return "\n".join(blocks)


@dataclass(frozen=True, slots=True)
class Note:
    """A warning about a query.

    Attributes:
        text: What is wrong, or may be.
        remedy: What to do.
        is_sure: Whether it is so; else it may be.
    """

    text: str
    remedy: str
    is_sure: bool


def late_rows(status: Status) -> Note | None:
    """Rows that Spark drops because their range is behind the watermark; None if it drops none.

    The checkpoint does not tell whether ``maxTimeAhead`` is set. So without the broker, which tells
    what is older than the watermark, it is only a warning.
    """
    if not status.checkpoint.can_drop_late_rows:
        return None
    late = {each.topic_partition: each.late for each in status.partitions if each.late}
    if late:
        text = (
            "a watermark, limits, and rows that are dropped: up to "
            f"{counted(sum(late.values()), 'pending offset')} of {join_names(late)} "
            f"{'is' if sum(late.values()) == 1 else 'are'} older than the watermark"
        )
        return Note(text, f"if maxTimeAhead is not set: {_MAX_TIME_AHEAD}", is_sure=True)
    text = (
        "a watermark and limits: without maxTimeAhead, rows of ranges that are behind are dropped"
    )
    return Note(text, f"if it is not set: {_MAX_TIME_AHEAD}", is_sure=False)


def records_left(status: Status, now: float) -> Note | None:
    """Records that the last batch left unread, if no batch came after it; None if it left none.

    A checkpoint does not say whether its query has ended, nor what triggered it. So what is said is
    true of a query that has ended, and of one that waits for its next trigger. It is sure once
    nothing was written for a minute, and for twice as long as the last batches were apart.

    Args:
        status: The status.
        now: Seconds since 1970.
    """
    left = status.left
    if not left:
        return None
    checkpoint = status.checkpoint
    is_bound = any(source.planned.limits for source in checkpoint.sources)
    topics = ", ".join(f"{printable(topic)} {count:,}" for topic, count in sorted(left.items()))
    text = (
        f"batch {checkpoint.planned} ended with {'at least ' if is_bound else ''}"
        f"{counted(left.total(), 'record')} unread with timestamps before it, and no other batch "
        f"was planned: {topics}"
    )
    apart = checkpoint.batch_seconds
    # Batches that are hours apart are those of a job that ends, not of a long trigger.
    long = max(_ENDED_SECONDS, 2 * apart if apart < _JOB_SECONDS else 0.0)
    return Note(text, _LEFT_REMEDY, is_sure=now - checkpoint.written_at > long)


def warning_text(note: Note) -> str:
    """A note for people, with what to do; a warning, red in a terminal, if it is sure."""
    text = f"{'warning' if note.is_sure else 'note'}: {note.text}\n"
    return f"{_red(text) if note.is_sure else text}  -> {note.remedy}\n"


def _red(text: str) -> str:
    """A text in red if the output is a terminal."""
    return f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text


def batches_text(checkpoint: Checkpoint) -> str:
    """The batch that a query is at, as text, and how late the records of one that runs are."""
    committed = "none" if checkpoint.committed is None else str(checkpoint.committed)
    text = f"batch {checkpoint.planned} planned, {committed} committed"
    live = [source for source in checkpoint.sources if source.live is not None]
    if not live:
        return text
    recent, whole = (Latency.total(source.latency[at] for source in live) for at in (0, 1))
    return f"{text}, live{latency_text(recent, whole)}"


def _quantiles(latency: Latency) -> dict[str, float | None]:
    """Seconds within which shares of the records were handed over; null if there are none."""
    return {quantile_name(share): latency.quantile(share) for share in QUANTILES}


def partition_text(
    partition: PartitionStatus, *, several: bool = False, is_running: bool = True
) -> str:
    """A partition for people: a line of facts, and a table of its ranges.

    Args:
        partition: The partition.
        several: Whether the query has several sources.
        is_running: Whether its planned batch may be running.
    """
    done = partition.done
    reading = "in progress up to" if is_running else "planned up to"
    source = f" (source {partition.source})" if several else ""
    facts = [f"stable {done.stable:,}"]
    if partition.committed is not None:
        facts = [f"live {done.stable:,}", f"committed {partition.committed:,}"]
    if done.front > done.stable:
        facts.append(f"front {done.front:,}")
    if partition.planned_to > done.front:
        facts.append(f"{reading} {partition.planned_to:,}")
    if partition.log is not None:
        facts.append(f"log {partition.log[0]:,} to {partition.log[1]:,}")
    if partition.lag is not None:
        facts.append(f"lag {partition.lag:,}")
    if done.gaps:
        facts.append(f"{counted(done.gaps, 'gap')} in {counted(partition.entry_bytes, 'byte')}")
    name = printable(str(partition.topic_partition))
    text = f"{name}{source}: {', '.join(facts)}\n"
    text += "".join(_red(f"  {alarm}\n") for alarm in alarms(partition))
    if len(partition.ranges) == 1 and partition.ranges[0].limit is None and done.is_level:
        return text
    rows: list[tuple[str, ...]] = [
        ("  key hashes", "position", "lag", reading, "at most in this batch")
    ]
    before = [None, *(range_.limit for range_ in partition.ranges)]
    rows += [
        _range_row(range_, is_same=range_.limit is last)
        for range_, last in zip(partition.ranges, before, strict=False)
    ]
    return text + text_table(rows, right=(1, 2, 3, 4))


def _range_row(range_: RangeStatus, *, is_same: bool) -> tuple[str, ...]:
    """A row of the table; ``is_same``: one task reads it and the one above."""
    limit = range_.limit
    most = counted(limit.records, "record") if limit else ""
    return (
        f"  {range_hashes_text(range_.hashes)}",
        f"{range_.position:,}",
        "" if range_.lag is None else f"{range_.lag:,}",
        f"{limit.end:,}" if limit else "",
        _SAME_TASK if limit and is_same else most,
    )


def alarms(partition: PartitionStatus) -> list[str]:
    """Warnings about a partition, as text."""
    texts = []
    if partition.lost:
        texts.append(f"LOST: {partition.lost:,} pending offsets are below the first one of the log")
    if partition.beyond_end:
        texts.append(
            f"BEYOND THE END: the stable offset is {counted(partition.beyond_end, 'offset')} "
            "above the end of the log, and reading it fails"
        )
    return texts


def range_hashes_text(hashes: KeyRanges) -> str:
    """A range's key hashes, and how many parked keys are not among them."""
    without = len(hashes) - 1
    holes = f" but {counted(without, 'parked key')}" if without else ""
    return f"{hashes.span.as_percent()}{holes}"


def parked_status_text(
    parked: Sequence[ParkedStatus], now: float | None = None, kind: str = "query"
) -> str:
    """Parked keys of a query or a group for people, as a table.

    Args:
        parked: The keys.
        now: As for :func:`parked_text`.
        kind: ``query`` or ``group``.
    """
    rows: list[tuple[str, ...]] = [("parked", "key", "waits at", "since", "by", "why")]
    for key in parked:
        info = ("", "", "")
        if key.info is not None:
            info = (ago_text(key.info.since, now), key.info.by, key.info.why)
        rows.append((key.topic, key.name, waits_text(key, kind), *info))
    return text_table(rows)


def waits_text(key: ParkedStatus, kind: str = "query") -> str:
    """Where a parked key waits: its offset in each partition where it is behind others."""
    waits = [f"{number}: {offset:,}" for number, offset in sorted(key.positions.items())]
    return ", ".join(waits) or f"not seen by the {kind} yet"
