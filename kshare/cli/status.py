"""``kshare status``: how far a query is, from its checkpoint and the broker.

Guarantees: nothing is changed.
Cost: with ``--slowest``, the limits of 12 batches are read, and of at most :data:`RANGES_MAX`
ranges the keys of :data:`RECORDS_MAX` records each, from :data:`OFFSETS_MAX` offsets.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kshare.cli.connection import is_given, kafka_config, source_options
from kshare.cli.output import Answer, complain, counted, text_table
from kshare.cli.query import observed_status
from kshare.cli.show import as_json, as_text, range_hashes_text
from kshare.core.hashing import KeyRanges
from kshare.core.listing import key_json, show_key
from kshare.core.offsets import since
from kshare.core.progress import Slice
from kshare.core.region import Stripe
from kshare.core.slice_end import SliceEnd
from kshare.monitor.allowances import Allowances, measured_allowances, read_limits
from kshare.monitor.plot import draw
from kshare.monitor.status import PartitionStatus, RangeStatus, Status
from kshare.options import SourceOptions
from kshare.read.reader.read_slice import read_slice

__all__ = ["Behind", "RangeBehind", "ranges_behind", "run"]

RANGES_MAX: Final = 5
"""Maximum number of ranges whose keys are shown."""
RECORDS_MAX: Final = 1_000
"""Maximum number of records of a range that are looked at."""
OFFSETS_MAX: Final = 200_000
"""Maximum number of offsets that they come from."""
_KEYS_MAX: Final = 5
_SLOWER: Final = (
    2  # a range that is so many times slower is named, though others are further behind
)
_KEY_SHOWN_MAX: Final = 128  # characters


@dataclass(frozen=True, slots=True)
class RangeBehind:
    """A range that is behind the others of its partition, and the keys of its next records.

    Attributes:
        partition: The partition.
        range: The range.
        allowed: Number of records that it may read in a batch, as the query has measured how long
            they take; None if that is not known.
        end: Records below this offset were looked at.
        records: Number of records that were looked at.
        keys: The keys of most of them with their number of records, most first; None for no key.
    """

    partition: PartitionStatus
    range: RangeStatus
    allowed: int | None = None
    end: int = 0
    records: int = 0
    keys: tuple[tuple[bytes | None, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Behind:
    """The ranges that may hold the others up.

    Attributes:
        ranges: Those that are furthest behind, all at one offset, and the one that is measured to
            be the slowest; that one first. At most :data:`RANGES_MAX`.
        left_out: Number of other ranges at that offset.
        most_allowed: The most records that a range of the same source may read in a batch; None if
            the time per record is not known of any range that is behind.
    """

    ranges: tuple[RangeBehind, ...] = ()
    left_out: int = 0
    most_allowed: int | None = None


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Answer:
    """Run the command.

    Raises:
        SystemExit: ``--slowest`` is given without a broker (code 2).
    """
    if arguments.slowest and not is_given(arguments):
        parser.error("--slowest reads the waiting records: give --bootstrap-servers")
    now = time.time()
    kafka = kafka_config(arguments) if is_given(arguments) else None
    status = observed_status(arguments.checkpoint, kafka, lambda text: complain(f"warning: {text}"))
    behind = _behind(status, arguments) if arguments.slowest else None
    if arguments.plot is not None:
        draw(status, arguments.plot, now)
    fields, text = as_json(status, now), as_text(status, now)
    if behind is not None:
        fields["slowest"] = _behind_json(behind)
        text += f"\n{_behind_text(behind)}"
    return Answer(fields, text)


def _behind(status: Status, arguments: argparse.Namespace) -> Behind:
    """The ranges that are furthest behind, and their keys; none if no range is behind others."""
    sources = {each.source for each in status.partitions}
    allowances = {
        source: measured_allowances(read_limits(arguments.checkpoint, source)) for source in sources
    }
    found = ranges_behind(status, allowances)
    # What is gone meanwhile is no fault of who looks.
    options = source_options(arguments, columns="key", failondataloss="false")
    return replace(found, ranges=tuple(_with_keys(each, options) for each in found.ranges))


def ranges_behind(status: Status, allowances: Mapping[int, Allowances]) -> Behind:
    """The ranges that may hold the others of their partitions up, without their keys.

    A hash that stays behind alone is one, too, unless it is known to be that of a parked key.

    Args:
        status: The query; partitions without a known log are left out.
        allowances: The records that ranges may read, by the number of the source.
    """
    behind = [
        RangeBehind(partition, range_, _allowed(partition, range_, allowances))
        for partition in status.partitions
        if partition.log is not None
        for range_ in (*partition.ranges, *_alone(status, partition))
        if partition.done.front > range_.position
    ]
    if not behind:
        return Behind()
    furthest = max(behind, key=lambda each: each.partition.done.front - each.range.position)
    tied = [
        each
        for each in behind
        if each.partition is furthest.partition and each.range.position == furthest.range.position
    ]
    source = furthest.partition.source
    most = allowances[source].most
    slow = [
        each
        for each in behind
        if each.partition.source == source
        and each.allowed is not None
        and _SLOWER * each.allowed <= most
    ]
    if slow and (slowest := min(slow, key=_slowness)) not in tied:
        tied.append(slowest)
    tied.sort(key=_slowness)
    known = None if tied[0].allowed is None else most
    return Behind(tuple(tied[:RANGES_MAX]), max(len(tied) - RANGES_MAX, 0), known)


def _slowness(each: RangeBehind) -> tuple[bool, int, int]:
    """Measured ranges first, by the time per record; then the narrowest."""
    return each.allowed is None, each.allowed or 0, each.range.hashes.width


def _allowed(
    partition: PartitionStatus, range_: RangeStatus, allowances: Mapping[int, Allowances]
) -> int | None:
    if range_.limit is None:
        return None
    measured = allowances[partition.source].measured
    return measured.get((partition.topic_partition, range_.limit.hashes.span))


def _alone(status: Status, partition: PartitionStatus) -> Iterator[RangeStatus]:
    tp = partition.topic_partition
    for key in status.parked:
        if key.topic == tp.topic and key.key is None and tp.partition in key.positions:
            hashes = KeyRanges.of_hashes([key.hash])
            yield RangeStatus(hashes, key.positions[tp.partition], lag=None, limit=None)


def _with_keys(behind: RangeBehind, options: SourceOptions) -> RangeBehind:
    """Read the next pending records of a range, and count their keys.

    Args:
        behind: The range; the log of its partition is known.
        options: How Kafka is reached; ``columns`` holds ``key``.

    Raises:
        KafkaError: The broker did not answer.
    """
    partition, range_ = behind.partition, behind.range
    assert partition.log is not None
    first, log_end = partition.log
    start = max(range_.position, first)
    end = min(start + OFFSETS_MAX, log_end)
    pending = [
        Stripe(stripe.hashes, bounds)
        for stripe in partition.done.pending_stripes(end, range_.hashes)
        if (bounds := since(stripe.bounds, start))
    ]
    if not pending:
        return replace(behind, end=start)
    ends: list[SliceEnd] = []
    slice_ = Slice(*partition.topic_partition, stripes=pending)
    batches = read_slice(slice_, options, max_records=RECORDS_MAX, on_end=ends.append)
    counts = Counter(key for batch in batches for key in batch.column("key").to_pylist())
    keys = tuple(counts.most_common(_KEYS_MAX))
    return replace(behind, end=ends[0].end, records=counts.total(), keys=keys)


def _behind_json(behind: Behind) -> list[dict[str, Any]]:
    """The ranges that are behind, and their keys, for programs; no key is null."""
    return [
        {
            "topic": each.partition.topic_partition.topic,
            "partition": each.partition.topic_partition.partition,
            "h": each.range.hashes.pairs,
            "position": each.range.position,
            "limit": each.range.limit.records if each.range.limit else None,
            "is_measured": each.allowed is not None,
            "looked_at": {"records": each.records, "end": each.end},
            "keys": [
                {"key": None if key is None else key_json(key), "records": records}
                for key, records in each.keys
            ],
        }
        for each in behind.ranges
    ]


def _behind_text(behind: Behind) -> str:
    """The ranges that are behind, and their keys, for people."""
    if not behind.ranges:
        return "no range is behind the others\n"
    if behind.most_allowed is None:
        text = "behind, not necessarily slow: the time of a record is not known\n"
    else:
        text = (
            "slowest first: where records take longer, a batch may read fewer of them (of the "
            f"fastest range {behind.most_allowed:,})\n"
        )
    text += "".join(_range_text(each, behind.most_allowed) for each in behind.ranges)
    if behind.left_out:
        text += f"\n{counted(behind.left_out, 'range')} more at the same offset\n"
    return text


def _range_text(each: RangeBehind, most: int | None) -> str:
    tp, range_ = each.partition.topic_partition, each.range
    text = (
        f"\n{tp}, {range_hashes_text(range_.hashes)}: at offset {range_.position:,}, "
        f"{each.partition.done.front - range_.position:,} behind"
        f"{'' if most is None else _speed_text(each, most)}\n"
    )
    if not each.records:
        return f"{text}  none of its records waits below offset {each.end:,}\n"
    rows: list[tuple[str, ...]] = [
        (f"  keys of its next {counted(each.records, 'record')}", "records", "share")
    ]
    rows += [
        (
            f"  {'(no key)' if key is None else _shortened(show_key(key))}",
            f"{records:,}",
            f"{100 * records / each.records:.1f} %",
        )
        for key, records in each.keys
    ]
    return text + text_table(rows, right=(1, 2))


def _speed_text(each: RangeBehind, most: int) -> str:
    if each.allowed is None:
        limit = each.range.limit
        known = f"; {counted(limit.records, 'record')}" if limit else ""
        return f"{known}; not measured, so not necessarily slow"
    said = f"; {counted(each.allowed, 'record')}"
    return said if each.allowed >= most else f"{said}, {_times(most / each.allowed)} as long each"


def _times(factor: float) -> str:
    return f"{factor:.1f} times" if factor < 10 else f"{factor:,.0f} times"


def _shortened(text: str) -> str:
    return text if len(text) <= _KEY_SHOWN_MAX else f"{text[:_KEY_SHOWN_MAX]}..."
