"""One look at a query or a group, in one form for both; as JSON for programs and for the page.

It holds what ``kshare status`` and ``kshare groups`` work out. Nothing is computed here but shares,
and which ranges are far behind the others.

Cost: linear in the ranges.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median_high, median_low
from typing import Any, Final

from kshare.cli.groups import facts_text, member_json
from kshare.cli.show import (
    CHUNKS_TEXT,
    alarms,
    batches_text,
    late_rows,
    parked_status_json,
    range_hashes_text,
    waits_text,
)
from kshare.core.checkpoint import RangeLimit
from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges, key_hash
from kshare.core.progress import TopicPartition
from kshare.group.tools.status import GroupStatus, MemberLoad, MemberStatus, RangeLag
from kshare.kafka.parked_keys import ParkedInfo, ParkedKey
from kshare.monitor.plot import Panel, chosen, panel, window
from kshare.monitor.report import lag
from kshare.monitor.status import (
    ParkedStatus,
    PartitionStatus,
    Status,
    partition_status,
    unchanged_text,
)
from kshare.monitor.stretches import stretches

__all__ = [
    "Behind",
    "RangeLine",
    "Snapshot",
    "as_json",
    "bar_of",
    "behind_of",
    "of_group",
    "of_query",
]

_FEW_OFFSETS: Final = 100  # no range that is less far behind is an outlier
_OUTLIER_SHARE: Final = 0.2  # nor one whose lag is that of the others, almost
_OUTLIER_SPREADS: Final = 3
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
        warnings: What is missing or may be wrong, such as a topic that does not exist.
        read_at: When its progress was read, in seconds of ``time.monotonic()``; None if not known.
        is_still: Whether a query has changed nothing for long, so that it may have stopped.
        faults: What is wrong with it, as text.
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
    is_still: bool = False
    faults: tuple[str, ...] = ()

    @property
    def alarms(self) -> list[str]:
        """What is wrong with the query, the group or partitions, as text."""
        of_partitions = [
            f"{p.topic_partition}: {text}" for p in self.partitions for text in alarms(p)
        ]
        return [*self.faults, *of_partitions]

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


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a range is behind the front of its partition.

    Attributes:
        offsets: Offsets from its position to the front; None if one of them is not known.
        share: The same as a part of the offsets from the stable one to the end, from 0 to 1.
        is_outlier: Whether it is much further behind than the other ranges of the partition.
    """

    offsets: int | None
    share: float = 0.0
    is_outlier: bool = False


def behind_of(snapshot: Snapshot) -> list[Behind]:
    """How far each range is behind, in the order of ``snapshot.ranges``.

    An outlier is behind the middle one of its partition by more than three times what ranges
    mostly differ from that, and by a fifth of its own lag.
    """
    partitions = snapshot.by_partition
    positions: defaultdict[tuple[int, TopicPartition], list[int]] = defaultdict(list)
    for each in snapshot.ranges:
        if each.position is not None:
            positions[each.source, each.partition].append(each.position)
    middles = {where: median_high(of) for where, of in positions.items()}
    spreads = {
        where: median_low([abs(position - middles[where]) for position in of])
        for where, of in positions.items()
    }
    found = []
    for each in snapshot.ranges:
        where = (each.source, each.partition)
        partition = partitions.get(where)
        if partition is None or each.position is None:
            found.append(Behind(None))
            continue
        done, end = partition.done, window(partition)[1]
        offsets, below = max(done.front - each.position, 0), middles[where] - each.position
        least = max(
            _FEW_OFFSETS,
            _OUTLIER_SPREADS * spreads[where],
            _OUTLIER_SHARE * (end - each.position),
        )
        share = offsets / max(end - done.stable, 1)
        found.append(Behind(offsets, min(share, 1.0), below > least))
    return found


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
    still, note = status.unchanged_seconds(at), late_rows(status)
    faults: list[str] = []
    more = [*([] if still is None else [unchanged_text(still)]), *warnings]
    if note is not None and note.is_sure:
        faults.append(f"{note.text}; {note.remedy}")
    elif note is not None and any(not each.done.is_level for each in status.partitions):
        more.append(f"{note.text}; {note.remedy}")
    return Snapshot(
        kind="query",
        name=status.checkpoint.directory,
        facts=batches_text(status.checkpoint),
        at=at,
        partitions=status.partitions,
        ranges=ranges,
        parked=status.parked,
        warnings=tuple(more),
        is_still=still is not None,
        faults=tuple(faults),
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
        ranges=tuple(line for each in status.ranges for line in _lines_of(status, each)),
        parked=tuple(
            _parked_of_group(status, topic, key, info)
            for (topic, key), info in sorted(parked.items())
            if topic in topics
        ),
        members=tuple(status.loads()),
        warnings=tuple(warnings),
        read_at=status.read_at,
    )


def _lines_of(status: GroupStatus, owned: RangeLag) -> Iterator[RangeLine]:
    """A member's key hashes, cut where they stand at different offsets."""
    tp, done = owned.partition, status.progress.get(owned.partition)
    line = RangeLine(
        source=0,
        partition=tp,
        hashes=KeyRanges([owned.hashes]),
        position=owned.position,
        lag=owned.lag,
        member=owned.member,
        is_chunks=tp in status.chunks,
    )
    if done is None or line.is_chunks:
        yield line
        return
    for hashes in stretches(done, line.hashes):
        pending = None if owned.lag is None else lag(done, status.logs[tp][1], hashes)
        yield replace(line, hashes=hashes, position=done.position_of(hashes), lag=pending)


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
    names = {key.hash: key.name for key in snapshot.parked}
    drawn = {id(each) for each in chosen(snapshot.partitions)} if has_picture else set()
    return {
        "kind": snapshot.kind,
        "name": snapshot.name,
        "facts": snapshot.facts,
        "at": datetime.fromtimestamp(snapshot.at, UTC).isoformat(timespec="milliseconds"),
        "lag": snapshot.lag,
        "speed": snapshot.speed,
        "is_still": snapshot.is_still,
        "fault": fault,
        "alarms": snapshot.alarms,
        "warnings": list(snapshot.warnings),
        "partitions": [
            {
                "source": each.source,
                **each.topic_partition._asdict(),
                "stable": each.done.stable,
                "committed": each.committed,
                "front": each.done.front,
                "end": each.log[1] if each.log else None,
                "lag": each.lag,
                "gaps": each.done.gaps,
                **(
                    {"picture": _picture_json(panel(each, snapshot.parked, _DOTS), names)}
                    if id(each) in drawn
                    else {}
                ),
            }
            for each in snapshot.partitions
        ],
        "ranges": [
            _range_json(each, partitions.get((each.source, each.partition)), behind)
            for each, behind in zip(snapshot.ranges, behind_of(snapshot), strict=True)
        ],
        "parked": [
            {
                **parked_status_json(each),
                "name": each.name,
                "waits": waits_text(each, snapshot.kind),
            }
            for each in snapshot.parked
        ],
        "members": [{**member_json(member), **asdict(load)} for member, load in snapshot.members],
    }


def _range_json(
    each: RangeLine, partition: PartitionStatus | None, behind: Behind
) -> dict[str, Any]:
    return {
        "source": each.source,
        **each.partition._asdict(),
        "h": each.hashes.pairs,
        "hashes": each.hashes_text,
        "bar": bar_of(each, partition),
        "position": each.position,
        "lag": each.lag,
        "behind": behind.offsets,
        "behind_share": behind.share,
        "is_outlier": behind.is_outlier,
        "speed": each.speed,
        "member": each.member,
        "reading_to": each.limit.end if each.limit else None,
        "limit": each.limit.records if each.limit else None,
    }


def _picture_json(drawn: Panel, names: Mapping[int, str]) -> dict[str, Any]:
    """A panel with names of parked keys; hashes as shares, as JavaScript's numbers have 53 bits."""
    return {
        "start": drawn.start,
        "end": drawn.end,
        "planned_to": drawn.planned_to,
        "stripes": [
            {"lo": hashes.lo / HASH_SPACE, "hi": hashes.hi / HASH_SPACE, "bars": bars}
            for hashes, bars in drawn.stripes
        ],
        "thin": [[hash_ / HASH_SPACE, offset] for hash_, offset in drawn.thin.items()],
        "parked": [
            [hash_ / HASH_SPACE, offset, names[hash_]] for hash_, offset in drawn.parked.items()
        ],
    }
