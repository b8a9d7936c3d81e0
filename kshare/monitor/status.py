"""The progress of a query, from its checkpoint and, if one is given, from the broker.

Guarantees: reading changes nothing, and needs no query to run. What a table says was processed was:
of a batch that is not committed, or whose tasks have record limits, only what stood when it began.
So of one that reads for a while (``realTime``), unless it is known where its ranges ended, or where
they are: what is handed over and not committed is said to be live.
All hashes of a range stand at the same offsets (:mod:`kshare.monitor.stretches`), so tables and
pictures show the same ranges.

Cost: two files of the checkpoint, and the times of three; the arithmetic is linear in the gaps.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import ALL_HASHES, NO_HASHES, KeyRanges, key_hash
from kshare.core.listing import duration, show_key
from kshare.core.live import NO_LATENCY, Latency
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import CheckpointError
from kshare.kafka.parked_keys import ParkedInfo, ParkedKey
from kshare.monitor.offset_log import OffsetLog
from kshare.monitor.report import entry_bytes, lag
from kshare.monitor.stretches import batch_ranges, waiting

__all__ = [
    "Checkpoint",
    "ParkedStatus",
    "PartitionStatus",
    "RangeStatus",
    "Source",
    "Status",
    "describe",
    "partition_status",
    "read_checkpoint",
    "unchanged_text",
]

_STILL_SECONDS: Final = 120.0
_STILL_BATCHES: Final = 5


@dataclass(frozen=True, slots=True)
class Source:
    """One Kafka source of a query.

    Attributes:
        number: which of the query's sources it is, from 0.
        planned: the offset dict of the newest planned batch.
        done: what is processed for sure.
        name: what the user calls it (``readStream.name``); None if it has no name.
        live: what is handed over of a batch that reads for a while (``realTime``), and not
            committed; None if that is not known.
        latency: of the records of that batch: of the last seconds, and of all.
    """

    number: int
    planned: BatchOffsets
    done: Mapping[TopicPartition, Progress]
    name: str | None = None
    live: Mapping[TopicPartition, Progress] | None = None
    latency: tuple[Latency, Latency] = (NO_LATENCY, NO_LATENCY)

    @property
    def shown(self) -> Mapping[TopicPartition, Progress]:
        """What is processed; with what is handed over, where that is known."""
        return self.done if self.live is None else {**self.done, **self.live}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint directory.

    Attributes:
        directory: where it is.
        planned: number of the newest planned batch.
        committed: number of the newest committed batch; None before the first.
        sources: the query's Kafka sources, of kshare or of Spark.
        watermark_ms: The watermark of the newest planned batch, in milliseconds since 1970; 0 if
            the query has none, or none yet.
        written_at: When the query last wrote it, in seconds since 1970; 0 if that is not known.
        batch_seconds: From one planned batch to the next; 0 if that is not known.
        planned_ms: When the newest batch was planned, in milliseconds since 1970; 0 if that is not
            known.
    """

    directory: str
    planned: int
    committed: int | None
    sources: tuple[Source, ...]
    watermark_ms: int = 0
    written_at: float = 0.0
    batch_seconds: float = 0.0
    planned_ms: int = 0

    @property
    def is_done(self) -> bool:
        """True if the newest planned batch is committed."""
        return self.committed is not None and self.committed >= self.planned

    @property
    def can_drop_late_rows(self) -> bool:
        """True if a source has record limits, and the query a watermark."""
        return self.watermark_ms > 0 and any(source.planned.limits for source in self.sources)


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """A range of key hashes, all of which stand at the same offsets.

    Attributes:
        hashes: its hashes.
        position: the first offset that is not processed for all of them.
        lag: Number of pending offsets, an upper bound on pending records; None if the log's end is
            unknown.
        limit: what the planned batch reads, if that has record limits. One task may read ranges
            that stand at different offsets: these have the same limit.
    """

    hashes: KeyRanges
    position: int
    lag: int | None
    limit: RangeLimit | None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition.

    Attributes:
        source: the number of its source.
        topic_partition: the partition.
        done: what is processed for sure; with ``committed``, what was handed over.
        planned_to: up to where the planned batch may read.
        log: the broker's first offset and end; None if not known, or if the partition is gone.
        lag: as in :class:`RangeStatus`, for all hashes; None also if the log ends below what is
            processed.
        entry_bytes: how long its entry under ``"@kshare"`` is.
        ranges: ascending by first hash.
        late: Number of pending offsets whose records are older than the query's watermark, without
            those of parked keys; None if that is not known.
        left: Number of offsets that the newest batch has left unread although their records are
            older than it, without those of parked keys. None if that is not known, or if the batch
            is not done. A lower bound where the batch has record limits.
        committed: Below which offset all is processed for sure, where ``done`` is live; else None.
    """

    source: int
    topic_partition: TopicPartition
    done: Progress
    planned_to: int
    log: tuple[int, int] | None
    lag: int | None
    entry_bytes: int
    ranges: tuple[RangeStatus, ...]
    late: int | None = None
    left: int | None = None
    committed: int | None = None

    @property
    def lost(self) -> int:
        """Offsets that are pending and not in the log any more."""
        if self.log is None or self.log[0] <= self.done.stable:
            return 0
        return lag(self.done, self.log[0], ALL_HASHES)

    @property
    def beyond_end(self) -> int:
        """Offsets by which the stable offset is above the end of the log; 0 if it is not."""
        return 0 if self.log is None else max(self.done.stable - self.log[1], 0)


@dataclass(frozen=True, slots=True)
class ParkedStatus:
    """A parked key.

    Attributes:
        topic: the topic.
        hash: the key's hash.
        key: the key; None if only the checkpoint tells, by a single hash that stays behind.
        info: who parked it and why; None like ``key``.
        positions: partition number to offset: where the key stays behind others, and is not read
            by the planned batch. Empty until the query has seen that the key is parked.
    """

    topic: str
    hash: int
    key: bytes | None
    info: ParkedInfo | None
    positions: Mapping[int, int]

    @property
    def name(self) -> str:
        """The key for people."""
        return f"? (hash {self.hash})" if self.key is None else show_key(self.key)


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

    @property
    def left(self) -> Counter[str]:
        """Number of offsets that the newest batch left unread, by topic; only topics with some."""
        counts: Counter[str] = Counter()
        for each in self.partitions:
            if each.left:
                counts[each.topic_partition.topic] += each.left
        return counts

    def unchanged_seconds(self, now: float) -> float | None:
        """How long the query has written nothing, if it may have stopped; else None.

        It may have if that is longer than five batches take and two minutes, unless there is
        nothing to read.

        Args:
            now: Seconds since 1970.
        """
        checkpoint = self.checkpoint
        if not checkpoint.written_at:
            return None
        if (
            checkpoint.is_done
            and self.partitions
            and all(each.lag == 0 for each in self.partitions)
        ):
            return None
        seconds = now - checkpoint.written_at
        usual = max(_STILL_SECONDS, _STILL_BATCHES * checkpoint.batch_seconds)
        return seconds if seconds > usual else None


def read_checkpoint(directory: str) -> Checkpoint:
    """Read how far a query is; it may be running.

    Args:
        directory: its ``checkpointLocation``: a path, or a URI such as ``file:/...`` or ``s3://...``.

    Raises:
        CheckpointError: There is no checkpoint, no batch was planned yet, or none of its sources is
            Kafka's.
        CheckpointVersionError: A later kshare wrote it, or a later Spark.
    """
    log = OffsetLog.open(directory)
    written = log.offsets(log.planned)
    begun: Mapping[int, BatchOffsets] = {}
    if log.is_committed:
        begun = written
    elif log.has(log.planned - 1):
        begun = log.offsets(log.planned - 1)
    if not written:
        raise CheckpointError(f"{directory}: the query has no Kafka source, or no offsets of one")
    return Checkpoint(
        directory=directory,
        planned=log.planned,
        committed=log.committed,
        sources=tuple(
            Source(
                number,
                offsets,
                _done(offsets, begun.get(number, BatchOffsets({}))),
                log.source_name(number),
            )
            for number, offsets in sorted(written.items())
        ),
        watermark_ms=log.watermark_ms,
        written_at=log.written_at,
        batch_seconds=log.batch_seconds,
        planned_ms=log.planned_ms,
    )


def unchanged_text(seconds: float) -> str:
    """The text for a query without a change: it may have stopped."""
    return f"no change for {duration(seconds)}: stopped?"


def describe(
    checkpoint: Checkpoint,
    logs: Mapping[TopicPartition, tuple[int, int]] | None = None,
    parked: Mapping[ParkedKey, ParkedInfo] | None = None,
    watermark_at: Mapping[TopicPartition, int] | None = None,
    planned_at: Mapping[TopicPartition, int] | None = None,
) -> Status:
    """Compare what a checkpoint says with what the broker has.

    Args:
        checkpoint: from :func:`read_checkpoint`.
        logs: first offset and end offset of each partition; None if the broker was not asked.
        parked: the parked keys; None if the broker was not asked.
        watermark_at: Offsets below which all records are older than the query's watermark; None if
            the broker was not asked.
        planned_at: Offsets below which all records are older than the newest batch; None if the
            broker was not asked, or if the batch is not done.
    """
    topics = {tp.topic for source in checkpoint.sources for tp in source.done}
    keys: dict[tuple[str, int], bytes | None] = {
        (topic, key_hash(key, 0)): key for topic, key in parked or {} if topic in topics
    }
    positions: dict[tuple[str, int], dict[int, int]] = {}
    for source in checkpoint.sources:
        for tp, done in source.shown.items():
            known = [hash_ for topic, hash_ in keys if topic == tp.topic]
            for hash_, position in waiting(done, source.planned.limits.get(tp, ()), known):
                keys.setdefault((tp.topic, hash_), None)
                of_key = positions.setdefault((tp.topic, hash_), {})
                of_key[tp.partition] = min(position, of_key.get(tp.partition, position))
    hashes = {
        topic: KeyRanges.of_hashes(hash_ for at, hash_ in keys if at == topic) for topic in topics
    }
    partitions = tuple(
        _partition(
            source,
            tp,
            (logs or {}).get(tp),
            hashes[tp.topic],
            (watermark_at or {}).get(tp),
            (planned_at or {}).get(tp),
        )
        for source in checkpoint.sources
        for tp in sorted(source.done)
    )
    parked_keys = [
        ParkedStatus(
            topic=topic,
            hash=hash_,
            key=key,
            info=None if key is None or parked is None else parked[topic, key],
            positions=positions.get((topic, hash_), {}),
        )
        for (topic, hash_), key in keys.items()
    ]
    parked_keys.sort(key=lambda one: (one.key is None, one.topic, one.key or b"", one.hash))
    return Status(checkpoint, partitions, tuple(parked_keys))


def _done(planned: BatchOffsets, begun: BatchOffsets) -> dict[TopicPartition, Progress]:
    """The part that is certainly processed.

    Args:
        planned: the newest dict.
        begun: the one before it, or ``planned`` if the newest batch is committed. Of a source with
            nothing to read, they are the same: then where it starts is said of an earlier batch.
    """
    done = {}
    for tp, reached in planned.progress.items():
        if planned.open or tp in planned.limits or begun == planned:
            done[tp] = reached
        elif tp in planned.started:
            done[tp] = Progress.at(planned.started[tp])
        elif tp in begun.progress:
            done[tp] = begun.progress[tp]
        elif begun.progress:
            done[tp] = Progress.at(0)  # it came up: it is read from its earliest offset on
        # Else Spark's own source has planned batch 0: where it started is not known here.
    return done


# -- ranges ----------------------------------------------------------------------------------------


def _partition(
    source: Source,
    tp: TopicPartition,
    log: tuple[int, int] | None,
    parked: KeyRanges,
    watermark_at: int | None,
    planned_at: int | None,
) -> PartitionStatus:
    limits = source.planned.limits.get(tp, ())
    done = source.shown[tp]
    planned_to = max([source.planned.progress[tp].front, *(limit.end for limit in limits)])
    if source.planned.open is not None and log is not None:
        planned_to = max(planned_to, log[1])  # it reads what there is
    status = partition_status(
        tp,
        done,
        log,
        source=source.number,
        planned_to=planned_to,
        limits=limits,
        parked=parked,
    )
    if source.live is not None:
        status = replace(status, committed=source.done[tp].stable)
    if planned_at is not None:
        status = replace(status, left=_left(status, planned_at, parked))
    if not limits or watermark_at is None:
        return status
    return replace(status, late=lag(source.done[tp], watermark_at, ALL_HASHES - parked))


def _left(status: PartitionStatus, planned_at: int, parked: KeyRanges) -> int:
    """The offsets that a batch that is done has left unread: see :class:`PartitionStatus`."""
    if any(range_.limit for range_ in status.ranges):
        # How far its tasks came is not in its dict, but they did not pass their ends.
        return max(planned_at - status.planned_to, 0)
    first = 0 if status.log is None else min(status.log[0], planned_at)
    hashes = ALL_HASHES - parked
    # What is below the log's first offset is lost, which is said elsewhere.
    return lag(status.done, planned_at, hashes) - lag(status.done, first, hashes)


def partition_status(
    tp: TopicPartition,
    done: Progress,
    log: tuple[int, int] | None,
    *,
    source: int = 0,
    planned_to: int = 0,
    limits: Sequence[RangeLimit] = (),
    parked: KeyRanges = NO_HASHES,
) -> PartitionStatus:
    """The status of a partition, from what is processed of it.

    Args:
        tp: The partition.
        done: What is processed for sure.
        log: The broker's first offset and end; None if not known.
        source: Number of the query's source.
        planned_to: Up to where the planned batch may read.
        limits: The record limits of the planned batch.
        parked: Hashes of parked keys.
    """
    level = done.is_level and not limits
    end = None if log is None or done.stable > log[1] else log[1]
    return PartitionStatus(
        source=source,
        topic_partition=tp,
        done=done,
        planned_to=planned_to,
        log=log,
        lag=None if end is None else lag(done, end, ALL_HASHES),
        entry_bytes=0 if level else entry_bytes(done, limits),
        ranges=tuple(
            RangeStatus(
                hashes=hashes,
                position=done.position_of(hashes),
                lag=None if end is None else lag(done, end, hashes),
                limit=limit,
            )
            for hashes, limit in batch_ranges(done, limits, parked)
        ),
    )
