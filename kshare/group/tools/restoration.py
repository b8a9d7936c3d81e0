"""A store's state from its changelog, for key ranges that a process has gained: :func:`restore`.

The changelog is not divided: one partition holds the state of all key ranges of its task. What is
read is what is pending of the gained ranges, up to the high watermark: with ``read_committed``, the
end of transactions that are open is waited for, as a later one may be committed already.

Cost: one pass over the pending offsets, with the reader of the source: no Python per record.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa

from kshare.core.hashing import KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.errors import DataLossError
from kshare.group.assignments import parse_assignment
from kshare.group.config.consumer_config import consumer_config
from kshare.group.config.table import ConsumerConfig
from kshare.kafka.cluster import Cluster
from kshare.options import EARLIEST, KafkaConfig, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign
from kshare.read.reader.read_slice import read_slice

__all__ = ["Restoration", "StoreProgress", "restore"]

_log = logging.getLogger("kshare.group")

_AFTER_TIMEOUT_MS: Final = 30_000
"""For so long after its time-out, a transaction may still be open."""


@dataclass(frozen=True, slots=True)
class StoreProgress:
    """What a store has of one partition of a changelog.

    Attributes:
        partition: The changelog's partition.
        processed: The offsets and key hashes that the store has.
    """

    partition: TopicPartition
    processed: Progress


class Restoration(Iterator[pa.RecordBatch]):
    """The record batches of a restoration, to be taken one after the other.

    Args:
        batches: The batches, in offset order.
        progress: What the store has already.
        end: The end of the changelog.
        ranges: The key ranges that are restored.

    Attributes:
        progress: What the store has of this partition once it has applied the batches that were
            returned; to be given as ``done`` next time.
        end: The end of the changelog, up to which is read.
    """

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        progress: StoreProgress,
        end: int,
        ranges: KeyRanges,
    ) -> None:
        self.progress = progress
        self.end = end
        self._batches = batches
        self._ranges = ranges

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches, None)
        if batch is None:
            self._reach(self.end)
            raise StopIteration
        self._reach(batch.column("offset")[-1].as_py() + 1)
        return batch

    def _reach(self, offset: int) -> None:
        processed = self.progress.processed
        if offset > processed.stable:
            offsets = OffsetRange(processed.stable, offset)
            processed = processed.commit(Rectangle(offsets, part) for part in self._ranges)
            self.progress = replace(self.progress, processed=processed)


def restore(
    changelog: str,
    partition: int,
    ranges: Sequence[Any],
    done: StoreProgress | None,
    config: Mapping[str, Any] | ConsumerConfig | KafkaConfig,
) -> Restoration:
    """Read what a store lacks of some key ranges, from its changelog.

    Args:
        changelog: Topic of the changelog.
        partition: Number of its partition.
        ranges: The key ranges that were gained: ``(lo, hi)``, half-open; none for all.
        done: What the store has of this partition, as :attr:`Restoration.progress` says; None for
            nothing.
        config: The configuration of a consumer, as :class:`.KeySharedConsumer` takes it. With
            ``transactional.id``, ``isolation.level`` is ``read_committed`` unless it is set.

    Returns:
        An iterator of ``pyarrow.RecordBatch`` with the columns of :meth:`.consume_batch`, in offset
        order, up to the high watermark that the changelog has now; a value that is null is a
        tombstone. With ``read_committed`` aborted records are left out, and it waits until what is
        open below that is decided.

    Raises:
        OptionsError: The configuration cannot be used.
        UnknownTopicError: The partition does not exist.
        DataLossError: ``done`` is beyond the end of the changelog, which is another one by now.
        KafkaError: The cluster did not answer in time, or refused; also while batches are taken, as
            when a transaction stays open for ``transaction.timeout.ms`` and 30 s.
        ValueError: A range is wrong, or two overlap; or ``done`` is that of another partition.
    """
    kafka = _kafka_config(config)
    assignment, _ = parse_assignment({(changelog, partition): ranges}, individual=True)
    ((topic_partition, hashes),) = assignment.items()
    if done is not None and done.partition != topic_partition:
        raise ValueError(
            f"done is what the store has of {done.partition}, and {topic_partition} is restored: "
            "keep what Restoration.progress says for each partition"
        )
    first, end = _bounds(kafka, topic_partition)
    if done is not None:
        _check_done(topic_partition, done.processed, hashes, (first, end))
    # What was deleted or compacted away below the first offset is not there for anybody.
    progress = (Progress.at(first) if done is None else done.processed).advance(first)
    pending = progress.pending_stripes(end, hashes)
    batches: Iterator[pa.RecordBatch] = iter(())
    if pending:
        options = SourceOptions(topics=Assign(FrozenMapping({})), kafka=kafka, starting=EARLIEST)
        batches = read_slice(Slice(*topic_partition, stripes=pending), options)
    return Restoration(batches, StoreProgress(topic_partition, progress), end, hashes)


def _check_done(
    partition: TopicPartition,
    done: Progress,
    hashes: KeyRanges,
    bounds: tuple[int, int],
) -> None:
    """Compare what a store has with the first offset and the end of the changelog.

    Raises:
        DataLossError: It has more than there is.
    """
    first, end = bounds
    highest = max([done.stable, *(piece.offsets.end for piece in done.individual_commits)])
    if highest > end:
        raise DataLossError(
            f"{partition}: the store has offsets up to {highest}, and the changelog ends at {end}: "
            "it was made again or truncated. Empty the store, and restore with done=None",
            wanted=(end, highest),
            available=bounds,
            topic=partition.topic,
            partition=partition.partition,
        )
    position = done.position_of(hashes)
    if position < first:
        _log.warning(
            "%s: the store has offsets up to %d, and the changelog begins at %d: keys that were "
            "deleted between them stay in the store, unless it is emptied and restored with "
            "done=None",
            partition,
            position,
            first,
        )


def _bounds(kafka: KafkaConfig, partition: TopicPartition) -> tuple[int, int]:
    """The first offset and the high watermark.

    The last stable offset would be too low: what was committed after an open transaction began
    lies beyond it.
    """
    with closing(Cluster(replace(kafka, read_committed=False))) as cluster:
        return cluster.earliest([partition])[partition], cluster.latest([partition])[partition]


def _kafka_config(config: Mapping[str, Any] | ConsumerConfig | KafkaConfig) -> KafkaConfig:
    if isinstance(config, KafkaConfig):
        return config
    if not isinstance(config, ConsumerConfig):
        config = consumer_config({"group.id": "kshare-restore", **config})
    kafka = config.kafka
    if config.transactional_id is not None and "isolation.level" not in kafka.properties:
        kafka = replace(kafka, read_committed=True)
    if kafka.read_committed:
        patience = config.transaction_timeout_ms + _AFTER_TIMEOUT_MS
        kafka = replace(kafka, poll_timeout_ms=max(kafka.read_timeout_ms, patience))
    return kafka
