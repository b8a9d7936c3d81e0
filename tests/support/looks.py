"""Snapshots for tests: of a query whose checkpoint was recorded, and of made-up progress."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from kshare.cli.live.snapshot import RangeLine, Snapshot, of_query
from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KshareError
from kshare.kafka.parked_keys import ParkedInfo, ParkedKey
from kshare.monitor.status import Status, describe, partition_status, read_checkpoint
from tests.support.documents import ROOT

ORDERS = TopicPartition("orders", 0)
AT = 1_790_000_000.0
WHY = "bad JSON, ticket 4711"


class ScriptedLooker:
    """Sees what a list says, in order; its last entry again and again. An error is raised."""

    def __init__(self, *sights: Snapshot | KshareError) -> None:
        self.sights = list(sights)
        self.is_closed = False

    def look(self) -> Snapshot:
        sight = self.sights.pop(0) if len(self.sights) > 1 else self.sights[0]
        if isinstance(sight, KshareError):
            raise sight
        return sight

    def close(self) -> None:
        self.is_closed = True


def made_up(
    done: Progress,
    end: int | None = None,
    at: float = AT,
    partition: TopicPartition = ORDERS,
    ranges: Iterable[HashRange] | None = None,
) -> Snapshot:
    """A snapshot of one partition of a query."""
    status = partition_status(partition, done, None if end is None else (0, end))
    lines = [RangeLine(0, partition, r.hashes, r.position, r.lag) for r in status.ranges]
    if ranges is not None:
        lines = [RangeLine(0, partition, KeyRanges([h]), done.position(h), None) for h in ranges]
    facts = "batch 6 planned, 5 committed"
    return Snapshot("query", "made-up", facts, at, (status,), tuple(lines))


def recorded_statuses(checkpoint: Path, parked: Mapping[ParkedKey, ParkedInfo]) -> Iterator[Status]:
    """Two states of a query with a slow key, of which ``docs/pictures`` holds a record.

    Args:
        checkpoint: Where its checkpoint is written, as it was after each of two batches.
        parked: The parked keys.
    """
    record = json.loads((ROOT / "docs" / "pictures" / "slow-key.json").read_text())
    for kind in ("offsets", "commits"):
        (checkpoint / kind).mkdir(parents=True)
    for batch in sorted(map(int, record["offsets"])):
        (checkpoint / "offsets" / str(batch)).write_text(record["offsets"][str(batch)])
        if batch <= record["committed"]:
            (checkpoint / "commits" / str(batch)).write_text("v1\n{}\n")
        start, end = record["log"]
        yield describe(read_checkpoint(str(checkpoint)), {ORDERS: (start, end)}, parked)


def recorded(
    folder: Path, key: bytes = b"customer-39", why: str = WHY, name: str = "orders-checkpoint"
) -> tuple[Snapshot, Snapshot]:
    """Two looks at that query, ten seconds apart."""
    parked = {("orders", key): ParkedInfo("2026-03-01T06:00:00+00:00", "ann", why)}
    first, second = recorded_statuses(folder / "checkpoint", parked)
    looks = (of_query(first, AT), of_query(second, AT + 10))
    return replace(looks[0], name=name), replace(looks[1], name=name)
