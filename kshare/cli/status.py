"""``kshare status``: how far a query is, from its checkpoint and the broker.

Guarantees: nothing is changed.
Cost: with ``--slowest``, the keys of at most :data:`RECORDS_MAX` records are read, from
:data:`OFFSETS_MAX` offsets.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from kshare.cli.connection import is_given, kafka_config, source_options
from kshare.cli.output import counted, print_json, text_table
from kshare.cli.show import as_json, as_text, range_hashes_text
from kshare.cluster.cluster import Cluster
from kshare.cluster.examination import log_bounds
from kshare.cluster.parked_keys import ParkedInfo, ParkedKeys
from kshare.core.hashing import KeyRanges
from kshare.core.listing import key_json, show_key
from kshare.core.offsets import since
from kshare.core.progress import Slice, TopicPartition
from kshare.core.region import Stripe
from kshare.core.slice_end import SliceEnd
from kshare.monitor.plot import draw
from kshare.monitor.status import (
    Checkpoint,
    PartitionStatus,
    RangeStatus,
    Status,
    describe,
    read_checkpoint,
)
from kshare.options import SourceOptions
from kshare.wire.reader.read_slice import read_slice

__all__ = [
    "SlowestRange",
    "run",
]

RECORDS_MAX: Final = 1_000
"""Maximum number of records that are looked at."""
OFFSETS_MAX: Final = 200_000
"""Maximum number of offsets that they come from."""
_KEYS_MAX: Final = 5
_KEY_SHOWN_MAX: Final = 128  # characters


@dataclass(frozen=True, slots=True)
class SlowestRange:
    """The keys of the next pending records of a range.

    Attributes:
        partition: The partition.
        range: The range.
        end: Records below this offset were looked at.
        records: Number of records that were looked at.
        keys: The keys of most of them with their number of records, most first; None for no key.
    """

    partition: PartitionStatus
    range: RangeStatus
    end: int
    records: int
    keys: tuple[tuple[bytes | None, int], ...]


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit code.

    Raises:
        SystemExit: ``--slowest`` is given without a broker (code 2).
    """
    if arguments.slowest and not is_given(arguments):
        parser.error("--slowest reads the waiting records: give --bootstrap-servers")
    checkpoint = read_checkpoint(arguments.checkpoint)
    logs, parked = _ask(checkpoint, arguments) if is_given(arguments) else (None, None)
    status = describe(checkpoint, logs, parked)
    slowest = _slowest(status, arguments) if arguments.slowest else None
    if arguments.plot is not None:
        draw(status, arguments.plot)
    if arguments.json:
        fields = as_json(status)
        if arguments.slowest:
            fields["slowest"] = None if slowest is None else _slowest_json(slowest)
        print_json(fields)
    else:
        sys.stdout.write(as_text(status))
        if arguments.slowest:
            sys.stdout.write("\n" + _slowest_text(slowest))
    return 0


def _ask(
    checkpoint: Checkpoint, arguments: argparse.Namespace
) -> tuple[Mapping[TopicPartition, tuple[int, int]], Mapping[tuple[str, bytes], ParkedInfo]]:
    """The logs and the parked keys, as the broker has them."""
    kafka = kafka_config(arguments)
    wanted = {partition for source in checkpoint.sources for partition in source.done}
    with closing(Cluster(kafka)) as cluster:
        logs = log_bounds(cluster, wanted, lambda error: sys.stderr.write(f"warning: {error}\n"))
    with closing(ParkedKeys(kafka)) as parked:
        return logs, parked.parked()


def _slowest(status: Status, arguments: argparse.Namespace) -> SlowestRange | None:
    """The keys of the range that is furthest behind; None if no range is behind others."""
    found = _slowest_range(status)
    if found is None:
        return None
    # What is gone meanwhile is no fault of who looks.
    return _waiting_keys(*found, source_options(arguments, columns="key", failondataloss="false"))


def _slowest_range(status: Status) -> tuple[PartitionStatus, RangeStatus] | None:
    """The range that is furthest behind the others of its partition; None if all are level.

    A hash that stays behind alone is one, too, unless it is known to be that of a parked key.
    """
    behind = [
        (partition.done.front - range_.position, partition, range_)
        for partition in status.partitions
        if partition.log is not None
        for range_ in (*partition.ranges, *_alone(status, partition))
        if partition.done.front > range_.position
    ]
    if not behind:
        return None
    _, partition, range_ = max(behind, key=lambda one: one[0])
    return partition, range_


def _alone(status: Status, partition: PartitionStatus) -> Iterator[RangeStatus]:
    tp = partition.topic_partition
    for key in status.parked:
        if key.topic == tp.topic and key.key is None and tp.partition in key.positions:
            hashes = KeyRanges.of_hashes([key.hash])
            yield RangeStatus(hashes, key.positions[tp.partition], lag=None, limit=None)


def _waiting_keys(
    partition: PartitionStatus, range_: RangeStatus, options: SourceOptions
) -> SlowestRange:
    """Read the next pending records of a range, and count their keys.

    Args:
        partition: The partition; its log is known.
        range_: The range.
        options: How Kafka is reached; ``columns`` holds ``key``.

    Raises:
        KafkaError: The broker did not answer.
    """
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
        return SlowestRange(partition, range_, start, 0, ())
    ends: list[SliceEnd] = []
    slice_ = Slice(*partition.topic_partition, stripes=pending)
    batches = read_slice(slice_, options, max_records=RECORDS_MAX, on_end=ends.append)
    counts = Counter(key for batch in batches for key in batch.column("key").to_pylist())
    keys = tuple(counts.most_common(_KEYS_MAX))
    return SlowestRange(partition, range_, ends[0].end, counts.total(), keys)


def _slowest_json(slowest: SlowestRange) -> dict[str, Any]:
    """The keys of a slow range for programs; no key is null."""
    return {
        "topic": slowest.partition.topic_partition.topic,
        "partition": slowest.partition.topic_partition.partition,
        "h": slowest.range.hashes.pairs,
        "position": slowest.range.position,
        "looked_at": {"records": slowest.records, "end": slowest.end},
        "keys": [
            {"key": None if key is None else key_json(key), "records": records}
            for key, records in slowest.keys
        ],
    }


def _slowest_text(slowest: SlowestRange | None) -> str:
    """The keys of a slow range for people."""
    if slowest is None:
        return "no range is behind the others\n"
    tp, range_ = slowest.partition.topic_partition, slowest.range
    text = (
        f"furthest behind: {tp}, {range_hashes_text(range_.hashes)}, "
        f"at offset {range_.position:,}; "
        f"the keys of its next {counted(slowest.records, 'record')}, "
        f"below offset {slowest.end:,}:\n"
    )
    rows: list[tuple[str, ...]] = [("  key", "records", "share")]
    rows += [
        (
            f"  {'(no key)' if key is None else _shortened(show_key(key))}",
            f"{records:,}",
            f"{100 * records / slowest.records:.1f} %",
        )
        for key, records in slowest.keys
    ]
    return text + text_table(rows, right=(1, 2))


def _shortened(text: str) -> str:
    return text if len(text) <= _KEY_SHOWN_MAX else f"{text[:_KEY_SHOWN_MAX]}..."
