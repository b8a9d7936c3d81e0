"""How far a query is, from its checkpoint and, if one is given, from the broker.

Law: reading changes nothing, and needs no query to run. What a table says was processed was: of a
batch that is not committed, or whose tasks have record limits, only what stood when it began.
Cost: two files of the checkpoint; the arithmetic is linear in the gaps.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from kshare.cluster.parked_keys import ParkedInfo
from kshare.core.checkpoint import EXTRA_KEY, Offsets, RangeLimit, decode
from kshare.core.hashing import WHOLE, HashRange, complement, key_hash, span, without
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.errors import CheckpointError, CheckpointVersionError
from kshare.monitor.report import entry_bytes, lag

__all__ = [
    "Checkpoint",
    "ParkedStatus",
    "PartitionStatus",
    "RangeStatus",
    "Source",
    "Status",
    "describe",
    "read_checkpoint",
]

_REMOTE: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):/")
_NO_OFFSET: Final = "-"
_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class Source:
    """One Kafka source of a query.

    Attributes:
        number: which of the query's sources it is, from 0.
        planned: the offset dict of the newest planned batch.
        done: what is processed for sure.
    """

    number: int
    planned: Offsets
    done: Mapping[TopicPartition, Progress]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint directory says.

    Attributes:
        directory: where it is.
        planned: number of the newest planned batch.
        committed: number of the newest committed batch; None before the first.
        sources: the query's Kafka sources, of kshare or of Spark.
    """

    directory: str
    planned: int
    committed: int | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """A range of key hashes.

    Attributes:
        hashes: ascending, disjoint.
        position: the first offset that is not processed for all of them.
        lag: offsets below the end that are pending: at most so many records; None without an end.
        limit: what the planned batch reads of it, if that has record limits.
    """

    hashes: tuple[HashRange, ...]
    position: int
    lag: int | None
    limit: RangeLimit | None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition.

    Attributes:
        source: the number of its source.
        place: topic and partition.
        done: what is processed for sure.
        planned_to: up to where the planned batch may read.
        log: the broker's first offset and end; None if not known, or if the partition is gone.
        lag: as in :class:`RangeStatus`, for all hashes.
        entry_bytes: how long its entry under ``"@kshare"`` is.
        ranges: ascending by first hash.
    """

    source: int
    place: TopicPartition
    done: Progress
    planned_to: int
    log: tuple[int, int] | None
    lag: int | None
    entry_bytes: int
    ranges: tuple[RangeStatus, ...]

    @property
    def lost(self) -> int:
        """Offsets that are pending and not in the log any more."""
        if self.log is None or self.log[0] <= self.done.stable:
            return 0
        return lag(self.done, self.log[0], (WHOLE,))


@dataclass(frozen=True, slots=True)
class ParkedStatus:
    """A parked key.

    Attributes:
        topic: the topic.
        hash: the key's hash.
        key: the key; None if only the checkpoint tells, by a single hash that stays behind.
        info: who parked it and why; None like ``key``.
        positions: partition number to offset: where the key stays behind others.
    """

    topic: str
    hash: int
    key: bytes | None
    info: ParkedInfo | None
    positions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Status:
    """A query's status: what ``kshare status`` shows.

    Attributes:
        checkpoint: what the checkpoint says.
        partitions: by source, then by topic and partition.
        parked: the keys that wait, by topic and key; last those that only the checkpoint tells.
    """

    checkpoint: Checkpoint
    partitions: tuple[PartitionStatus, ...]
    parked: tuple[ParkedStatus, ...]


def read_checkpoint(directory: str) -> Checkpoint:
    """Read how far a query is; it may be running.

    Args:
        directory: its ``checkpointLocation``: a path, or a URI ``file:/...``.

    Raises:
        CheckpointError: there is no checkpoint, no batch was planned yet, or none of its sources is
            Kafka's.
        CheckpointVersionError: a later kshare wrote it, or a later Spark.
    """
    root = _local(directory)
    planned = _newest(root / "offsets")
    if planned is None:
        what = "no batch is planned yet" if root.is_dir() else "there is no such directory"
        raise CheckpointError(
            f"{directory}: {what}; wanted the checkpointLocation of a query that was started"
        )
    committed = _newest(root / "commits")
    written = _sources(root / "offsets" / str(planned))
    begun: Mapping[int, Offsets] = {}
    if committed is None or committed < planned:
        before = root / "offsets" / str(planned - 1)
        begun = _sources(before) if planned > 0 and before.exists() else {}
    if not written:
        raise CheckpointError(f"{directory}: the query has no Kafka source, or no offsets of one")
    return Checkpoint(
        directory=directory,
        planned=planned,
        committed=committed,
        sources=tuple(
            Source(
                number,
                offsets,
                _done(offsets, None if committed == planned else begun.get(number, Offsets({}))),
            )
            for number, offsets in sorted(written.items())
        ),
    )


def describe(
    checkpoint: Checkpoint,
    logs: Mapping[TopicPartition, tuple[int, int]] | None = None,
    parked: Mapping[tuple[str, bytes], ParkedInfo] | None = None,
) -> Status:
    """Compare what a checkpoint says with what the broker has.

    Args:
        checkpoint: from :func:`read_checkpoint`.
        logs: the first offset and the end of each partition; None if the broker was not asked.
        parked: the parked keys by topic and key; likewise.
    """
    topics = {place.topic for source in checkpoint.sources for place in source.done}
    waiting: dict[tuple[str, int], bytes | None] = {
        (topic, key_hash(key, 0)): key for topic, key in parked or {} if topic in topics
    }
    behind: dict[tuple[str, int], dict[int, int]] = {}
    for source in checkpoint.sources:
        for place, done in source.done.items():
            limits = source.planned.limits.get(place, ())
            for hash_ in _single_hashes(done, limits):
                positions = behind.setdefault((place.topic, hash_), {})
                at = done.position(HashRange(hash_, hash_ + 1))
                positions[place.partition] = min(at, positions.get(place.partition, at))
                waiting.setdefault((place.topic, hash_), None)
    partitions = []
    for source in checkpoint.sources:
        for place in sorted(source.done):
            points = {hash_ for topic, hash_ in waiting if topic == place.topic}
            partitions.append(_partition(source, place, (logs or {}).get(place), points))
    found = [
        ParkedStatus(
            topic=topic,
            hash=hash_,
            key=key,
            info=None if key is None or parked is None else parked[topic, key],
            positions=behind.get((topic, hash_), {}),
        )
        for (topic, hash_), key in waiting.items()
    ]
    found.sort(key=lambda one: (one.key is None, one.topic, one.key or b"", one.hash))
    return Status(checkpoint, tuple(partitions), tuple(found))


# -- the checkpoint's files ------------------------------------------------------------------------


def _local(directory: str) -> Path:
    remote = _REMOTE.match(directory)
    if remote is None:
        return Path(directory)
    if remote[1].lower() != "file":
        raise CheckpointError(
            f"{directory}: only local checkpoints are read; copy the folders offsets and commits "
            "of this one to a local directory, and name that"
        )
    return Path(unquote(urlsplit(directory).path))


def _newest(folder: Path) -> int | None:
    """The highest batch number of a log of Spark's."""
    try:
        names = [file.name for file in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{folder}: {error.strerror}") from error
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _sources(file: Path) -> dict[int, Offsets]:
    """The offset dicts of the Kafka sources in a file of the offset log, by source number."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: not a file of Spark's offset log") from error
    if lines[0] != _VERSION:
        raise CheckpointVersionError(
            f"{file}: wanted {_VERSION} of Spark's offset log, found {lines[0][:40]!r}",
            version=lines[0][:40],
        )
    found = {}
    for number, line in enumerate(lines[2:]):  # the second one is the batch's metadata
        if line in {_NO_OFFSET, ""}:
            continue
        try:
            found[number] = decode(line)
        except CheckpointVersionError:
            raise
        except CheckpointError:
            if EXTRA_KEY in line:
                raise
            # Another source's offsets: files, rates, Delta.
    return found


def _done(planned: Offsets, begun: Offsets | None) -> dict[TopicPartition, Progress]:
    """What is processed for sure.

    Args:
        planned: the newest dict.
        begun: the one before it; None if the newest batch is committed.
    """
    done = {}
    for place, reached in planned.progress.items():
        if place in planned.limits or begun is None:
            done[place] = reached
        elif place in planned.started:
            done[place] = Progress.at(planned.started[place])
        elif place in begun.progress:
            done[place] = begun.progress[place]
        elif place in begun.started:
            done[place] = Progress.at(begun.started[place])
        # Else Spark's own source has planned batch 0: where it started is not known here.
    return done


# -- ranges ----------------------------------------------------------------------------------------


def _partition(
    source: Source, place: TopicPartition, log: tuple[int, int] | None, parked: set[int]
) -> PartitionStatus:
    done = source.done[place]
    limits = source.planned.limits.get(place, ())
    level = done.is_level and not limits
    end = None if log is None else log[1]
    return PartitionStatus(
        source=source.number,
        place=place,
        done=done,
        planned_to=max([source.planned.progress[place].front, *(limit.end for limit in limits)]),
        log=log,
        lag=None if end is None else lag(done, end, (WHOLE,)),
        entry_bytes=0 if level else entry_bytes(done, limits),
        ranges=tuple(
            RangeStatus(
                hashes=hashes,
                position=done.position_of(hashes),
                lag=None if end is None else lag(done, end, hashes),
                limit=limit,
            )
            for hashes, limit in _ranges(done, limits, parked)
        ),
    )


def _ranges(
    done: Progress, limits: Sequence[RangeLimit], parked: set[int]
) -> list[tuple[tuple[HashRange, ...], RangeLimit | None]]:
    """The ranges of a batch, and of the other hashes those that stand alike; none is parked."""
    busy = [(limit.hashes, limit) for limit in limits]
    idle: list[tuple[tuple[HashRange, ...], Stripe]] = []
    others = without(complement([span(hashes) for hashes, _ in busy]), parked)
    for stripe in done.stripes or (Stripe(WHOLE, ()),):
        for part in others:
            shared = stripe.hashes.intersect(part)
            if shared is None:
                continue
            if idle and idle[-1][1].bounds == stripe.bounds and _near(idle[-1][0], shared, parked):
                idle[-1] = (_extended(idle[-1][0], shared), stripe)
            else:
                idle.append(((shared,), stripe))
    found = [*busy, *((hashes, None) for hashes, _ in idle)]
    return sorted(found, key=lambda pair: pair[0][0].lo)


def _near(hashes: tuple[HashRange, ...], other: HashRange, parked: set[int]) -> bool:
    """Whether nothing but a parked hash, if that, is between a range and the next one."""
    last = hashes[-1].hi
    return last == other.lo or (last + 1 == other.lo and last in parked)


def _extended(hashes: tuple[HashRange, ...], other: HashRange) -> tuple[HashRange, ...]:
    if hashes[-1].hi == other.lo:
        return (*hashes[:-1], HashRange(hashes[-1].lo, other.hi))
    return (*hashes, other)


def _single_hashes(done: Progress, limits: Sequence[RangeLimit]) -> Iterator[int]:
    """Hashes that stay behind their neighbours, and that the planned batch does not read."""
    stripes = done.stripes
    for i, stripe in enumerate(stripes):
        if stripe.hashes.width > 1 or any(
            part.intersect(stripe.hashes) for limit in limits for part in limit.hashes
        ):
            continue
        at = done.position(stripe.hashes)
        neighbours = [*stripes[max(i - 1, 0) : i], *stripes[i + 1 : i + 2]]
        if all(done.position(other.hashes) > at for other in neighbours):
            yield stripe.hashes.lo
