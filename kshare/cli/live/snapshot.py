"""One look at a query or a group, in one form for both; as JSON for programs and for the page.

It holds what ``kshare status`` and ``kshare groups`` work out. Nothing is computed here but shares.

Cost: linear in the ranges.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kshare.cli.groups import facts_text, member_json
from kshare.cli.show import (
    CHUNKS_TEXT,
    alarms,
    batches_text,
    parked_name,
    parked_status_json,
    range_hashes_text,
)
from kshare.cluster.parked_keys import ParkedInfo, ParkedKey
from kshare.core.checkpoint import RangeLimit
from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges, key_hash
from kshare.core.progress import TopicPartition
from kshare.group.status import GroupStatus, MemberLoad, MemberStatus
from kshare.monitor.plot import Panel, chosen, panel, window
from kshare.monitor.status import ParkedStatus, PartitionStatus, Status, partition_status

__all__ = ["RangeLine", "Snapshot", "as_json", "bar_of", "of_group", "of_query"]

_DOTS: Final = 600  # the page's picture is about as wide


@dataclass(frozen=True, slots=True)
class RangeLine:
    """A range of key hashes of a partition.

    Attributes:
        source: Number of the query's source; 0 of a group.
        partition: The partition.
        hashes: Its key hashes.
        position: The first offset that is not processed for all of them; None if not known.
        lag: Number of offsets with something pending of it; None if not known.
        member: Who owns it, in a group; None if nobody does, and in a query.
        limit: What the planned batch reads of it, if that has record limits.
        is_chunks: Whether members lease chunks of the partition, without key order.
        speed: Offsets that were processed per second; None while it is not measured.
    """

    source: int
    partition: TopicPartition
    hashes: KeyRanges
    position: int | None
    lag: int | None
    member: str | None = None
    limit: RangeLimit | None = None
    is_chunks: bool = False
    speed: float | None = None

    @property
    def share(self) -> float:
        """Its share of the hash space."""
        return self.hashes.width / HASH_SPACE

    @property
    def hashes_text(self) -> str:
        """Its key hashes for people."""
        return CHUNKS_TEXT if self.is_chunks else range_hashes_text(self.hashes)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A query or a group at one time.

    Attributes:
        kind: ``query`` or ``group``.
        name: The checkpoint's directory, or the group's id.
        facts: Where it stands, in one line.
        at: When that was, in seconds since 1970.
        partitions: By source, topic and partition.
        ranges: By source, topic, partition and first hash.
        parked: The parked keys of its topics.
        members: The members of a group, and what each has.
        warnings: What is missing, such as a topic that does not exist.
        read_at: When its progress was read, in seconds of ``time.monotonic()``; None if not known.
    """

    kind: str
    name: str
    facts: str
    at: float
    partitions: tuple[PartitionStatus, ...]
    ranges: tuple[RangeLine, ...]
    parked: tuple[ParkedStatus, ...] = ()
    members: tuple[tuple[MemberStatus, MemberLoad], ...] = ()
    warnings: tuple[str, ...] = ()
    read_at: float | None = None

    @property
    def alarms(self) -> list[str]:
        """Warnings about partitions, as text."""
        return [f"{p.topic_partition}: {text}" for p in self.partitions for text in alarms(p)]

    @property
    def by_partition(self) -> dict[tuple[int, TopicPartition], PartitionStatus]:
        """The partitions by source and name."""
        return {(each.source, each.topic_partition): each for each in self.partitions}

    @property
    def lag(self) -> int | None:
        """The lag of all partitions; None if it is not known of any."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    @property
    def speed(self) -> float | None:
        """Records per second: a range with a tenth of the hashes has a tenth of the records.

        None if the speed of no range is known.
        """
        known = [each.speed * each.share for each in self.ranges if each.speed is not None]
        return sum(known) if known else None


def bar_of(range_: RangeLine, partition: PartitionStatus | None) -> tuple[float, float] | None:
    """The processed part of a range and that of the running batch, in the partition's picture.

    Args:
        range_: The range.
        partition: Its partition; None if nothing of it has been committed.

    Returns:
        Two shares of the picture's width, the second no less than the first.
    """
    if partition is None or range_.position is None:
        return None
    start, end = window(partition)
    done = min(max(range_.position - start, 0) / (end - start), 1.0)
    read = (range_.limit.end - start) / (end - start) if range_.limit else 0.0
    return done, min(max(read, done), 1.0)


def of_query(status: Status, at: float, warnings: Iterable[str] = ()) -> Snapshot:
    """A query's status as a snapshot."""
    ranges = tuple(
        RangeLine(
            source=each.source,
            partition=each.topic_partition,
            hashes=range_.hashes,
            position=range_.position,
            lag=range_.lag,
            limit=range_.limit,
        )
        for each in status.partitions
        for range_ in each.ranges
    )
    return Snapshot(
        kind="query",
        name=status.checkpoint.directory,
        facts=batches_text(status.checkpoint),
        at=at,
        partitions=status.partitions,
        ranges=ranges,
        parked=status.parked,
        warnings=tuple(warnings),
    )


def of_group(
    status: GroupStatus,
    parked: Mapping[ParkedKey, ParkedInfo],
    at: float,
    warnings: Iterable[str] = (),
) -> Snapshot:
    """A group's status as a snapshot."""
    topics = {each.partition.topic for each in status.ranges}
    return Snapshot(
        kind="group",
        name=status.group,
        facts=facts_text(status),
        at=at,
        partitions=tuple(
            partition_status(tp, done, status.logs.get(tp))
            for tp, done in sorted(status.progress.items())
        ),
        ranges=tuple(
            RangeLine(
                source=0,
                partition=each.partition,
                hashes=KeyRanges([each.hashes]),
                position=each.position,
                lag=each.lag,
                member=each.member,
                is_chunks=each.partition in status.chunks,
            )
            for each in status.ranges
        ),
        parked=tuple(
            _parked_of_group(status, topic, key, info)
            for (topic, key), info in sorted(parked.items())
            if topic in topics
        ),
        members=tuple((each, status.load_of(each)) for each in status.members),
        warnings=tuple(warnings),
        read_at=status.read_at,
    )


def _parked_of_group(status: GroupStatus, topic: str, key: bytes, info: ParkedInfo) -> ParkedStatus:
    """A parked key, and where it stays behind others."""
    hash_ = key_hash(key, 0)
    positions = {
        tp.partition: position
        for tp, done in status.progress.items()
        if tp.topic == topic and (position := done.position(HashRange.of(hash_))) < done.front
    }
    return ParkedStatus(topic, hash_, key, info, positions)


# -- JSON ------------------------------------------------------------------------------------------


def as_json(
    snapshot: Snapshot, *, fault: str | None = None, has_picture: bool = False
) -> dict[str, Any]:
    """The snapshot for programs. Fields have the names that ``status --json`` gives them.

    Args:
        snapshot: The snapshot.
        fault: Why there is no newer one; None if there was no fault.
        has_picture: Whether to add what the picture of offsets x key hashes is drawn from.
    """
    partitions = snapshot.by_partition
    drawn = {id(each) for each in chosen(snapshot.partitions)} if has_picture else set()
    return {
        "kind": snapshot.kind,
        "name": snapshot.name,
        "facts": snapshot.facts,
        "at": datetime.fromtimestamp(snapshot.at, UTC).isoformat(timespec="milliseconds"),
        "lag": snapshot.lag,
        "speed": snapshot.speed,
        "fault": fault,
        "alarms": snapshot.alarms,
        "warnings": list(snapshot.warnings),
        "partitions": [
            {
                "source": each.source,
                **each.topic_partition._asdict(),
                "stable": each.done.stable,
                "front": each.done.front,
                "end": each.log[1] if each.log else None,
                "lag": each.lag,
                "gaps": each.done.gaps,
                **(
                    {"picture": _picture_json(panel(each, snapshot.parked, _DOTS))}
                    if id(each) in drawn
                    else {}
                ),
            }
            for each in snapshot.partitions
        ],
        "ranges": [
            _range_json(each, partitions.get((each.source, each.partition)))
            for each in snapshot.ranges
        ],
        "parked": [
            {**parked_status_json(each), "name": parked_name(each)} for each in snapshot.parked
        ],
        "members": [{**member_json(member), **asdict(load)} for member, load in snapshot.members],
    }


def _range_json(each: RangeLine, partition: PartitionStatus | None) -> dict[str, Any]:
    return {
        "source": each.source,
        **each.partition._asdict(),
        "h": each.hashes.pairs,
        "hashes": each.hashes_text,
        "bar": bar_of(each, partition),
        "position": each.position,
        "lag": each.lag,
        "speed": each.speed,
        "member": each.member,
        "reading_to": each.limit.end if each.limit else None,
        "limit": each.limit.records if each.limit else None,
    }


def _picture_json(drawn: Panel) -> dict[str, Any]:
    """A panel with hashes as shares of the hash space, since JavaScript's numbers have 53 bits."""
    return {
        "start": drawn.start,
        "end": drawn.end,
        "planned_to": drawn.planned_to,
        "stripes": [
            {"lo": hashes.lo / HASH_SPACE, "hi": hashes.hi / HASH_SPACE, "bars": bars}
            for hashes, bars in drawn.stripes
        ],
        "thin": [[hash_ / HASH_SPACE, offset] for hash_, offset in drawn.thin.items()],
        "parked": [[hash_ / HASH_SPACE, offset] for hash_, offset in drawn.parked.items()],
    }
