"""The status of queries and groups: tables for people, JSON for programs.

Guarantees: the two say the same.

Cost: linear in the ranges.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kshare.cli.output import counted, text_table
from kshare.cluster.parked_keys import ParkedInfo
from kshare.core.hashing import KeyRanges
from kshare.core.listing import key_json, show_key
from kshare.monitor.status import Checkpoint, ParkedStatus, PartitionStatus, RangeStatus, Status

__all__ = [
    "CHUNKS_TEXT",
    "alarms",
    "as_json",
    "as_text",
    "batches_text",
    "parked_json",
    "parked_name",
    "parked_status_json",
    "parked_status_text",
    "parked_text",
    "partition_text",
    "range_hashes_text",
]

CHUNKS_TEXT: Final = "cooperative: chunks"
"""Instead of key hashes: a partition without key order (``consumption.order=none``)."""


def as_json(status: Status) -> dict[str, Any]:
    """The status for programs. Hash ranges are ``[lo, hi)``; a key is text, or ``{"hex": ...}``."""
    return {
        "checkpoint": status.checkpoint.directory,
        "planned": status.checkpoint.planned,
        "committed": status.checkpoint.committed,
        "sources": [
            {"source": source.number, "name": source.name} for source in status.checkpoint.sources
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
        "front": partition.done.front,
        "planned_to": partition.planned_to,
        "first": partition.log[0] if partition.log else None,
        "end": partition.log[1] if partition.log else None,
        "lag": partition.lag,
        "lost": partition.lost,
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


def parked_text(parked: Mapping[tuple[str, bytes], ParkedInfo]) -> str:
    """Parked keys for people, as a table."""
    if not parked:
        return "no key is parked\n"
    rows: list[tuple[str, ...]] = [("topic", "key", "since", "by", "why")]
    rows += [
        (topic, show_key(key), info.since, info.by, info.why)
        for (topic, key), info in sorted(parked.items())
    ]
    return text_table(rows)


def as_text(status: Status) -> str:
    """The status for people: a line of the query's batches, and a table of the ranges."""
    checkpoint = status.checkpoint
    lines = [f"{checkpoint.directory}: {batches_text(checkpoint)}\n\n"]
    names = {source.number: source.name for source in checkpoint.sources if source.name}
    if names:
        said = ", ".join(f"{number} is {name}" for number, name in names.items())
        lines.append(f"sources by name: {said}\n\n")
    several = len(checkpoint.sources) > 1
    lines += [partition_text(partition, several=several) + "\n" for partition in status.partitions]
    if not status.partitions:
        lines.append("no partition yet: where the first batch began is known when it is done\n")
    if status.parked:
        lines.append(parked_status_text(status.parked))
    return "".join(lines)


def batches_text(checkpoint: Checkpoint) -> str:
    """The batch that a query is at, as text."""
    committed = "none" if checkpoint.committed is None else str(checkpoint.committed)
    return f"batch {checkpoint.planned} planned, {committed} committed"


def partition_text(partition: PartitionStatus, *, several: bool = False) -> str:
    """A partition for people: a line of facts, and a table of its ranges."""
    done = partition.done
    source = f" (source {partition.source})" if several else ""
    facts = [f"stable {done.stable:,}"]
    if done.front > done.stable:
        facts.append(f"front {done.front:,}")
    if partition.planned_to > done.front:
        facts.append(f"in progress up to {partition.planned_to:,}")
    if partition.log is not None:
        facts.append(f"log {partition.log[0]:,} to {partition.log[1]:,}")
    if partition.lag is not None:
        facts.append(f"lag {partition.lag:,}")
    if done.gaps:
        facts.append(f"{counted(done.gaps, 'gap')} in {counted(partition.entry_bytes, 'byte')}")
    text = f"{partition.topic_partition}{source}: {', '.join(facts)}\n"
    text += "".join(f"  {alarm}\n" for alarm in alarms(partition))
    if len(partition.ranges) == 1 and partition.ranges[0].limit is None and done.is_level:
        return text
    rows: list[tuple[str, ...]] = [
        ("  key hashes", "position", "lag", "in progress up to", "at most")
    ]
    rows += [_range_row(range_) for range_ in partition.ranges]
    return text + text_table(rows, right=(1, 2, 3, 4))


def _range_row(range_: RangeStatus) -> tuple[str, ...]:
    limit = range_.limit
    return (
        f"  {range_hashes_text(range_.hashes)}",
        f"{range_.position:,}",
        "" if range_.lag is None else f"{range_.lag:,}",
        f"{limit.end:,}" if limit else "",
        counted(limit.records, "record") if limit else "",
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


def parked_status_text(parked: Sequence[ParkedStatus]) -> str:
    """Parked keys of a query or a group for people, as a table."""
    rows: list[tuple[str, ...]] = [("parked", "key", "waits at", "since", "by", "why")]
    for key in parked:
        waits = ", ".join(
            f"{number}: {offset:,}" for number, offset in sorted(key.positions.items())
        )
        info = ("", "", "") if key.info is None else (key.info.since, key.info.by, key.info.why)
        rows.append((key.topic, parked_name(key), waits, *info))
    return text_table(rows)


def parked_name(key: ParkedStatus) -> str:
    """A parked key for people."""
    return f"? (hash {key.hash})" if key.key is None else show_key(key.key)
