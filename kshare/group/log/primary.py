"""A group's offsets in ``__consumer_offsets``: primary offsets, with anchors in their metadata.

Guarantees: the bounds of the log that are returned beside primary offsets were asked for after
these, so the log up to its end says all that was said when they were written. Both together say
what the group has committed (:func:`committed_offset`).
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from kshare.core.listing import join_names
from kshare.core.offsets import Bounds, intersect
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import FetchTimeoutError, KafkaError, NoOffsetError, UnknownTopicError
from kshare.group.config.table import OffsetReset
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.start import Anchor, Primary, resolve_start
from kshare.kafka.client import kafka_error
from kshare.kafka.cluster import Cluster
from kshare.kafka.committed import CommittedOffset, CommittedOffsets
from kshare.kafka.coordinator import OffsetWriter, fetch_offsets
from kshare.options import KafkaConfig

__all__ = [
    "OffsetAndMetadata",
    "PrimaryOffsets",
    "StoredOffset",
    "committed_offset",
    "committed_within",
]


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """What a group has committed of a partition.

    Attributes:
        offset: The stable offset: all below it has been processed.
        range_offsets: Offset ranges ``(start, end)`` above it that have been processed for all key
            hashes, ascending.
        individual_commits: All that has been processed above it, as rectangles.
        metadata: What another consumer than kshare's has committed beside the offset, such as
            confluent-kafka's; empty once a consumer of kshare's has had the partition.
        leader_epoch: Leader epoch of the last processed record; None if it is not known.
    """

    offset: int
    range_offsets: tuple[tuple[int, int], ...] = ()
    individual_commits: tuple[Rectangle, ...] = ()
    metadata: str = ""
    leader_epoch: int | None = None

    @property
    def progress(self) -> Progress:
        """The processed part."""
        return Progress.of(self.offset, self.individual_commits)


def committed_offset(
    primary: Primary | None,
    log: PartitionLog,
    bounds: tuple[int, int],
    topic_id: str,
    metadata: str = "",
) -> OffsetAndMetadata | None:
    """What a group has committed of a partition; None if nothing.

    Args:
        primary: The primary offset; None if there is none.
        log: What the log says, read to its end.
        bounds: The log's first offset and its end.
        topic_id: Id of the log's topic; empty if it is not known.
        metadata: The metadata of the primary offset.
    """
    if primary is None:  # it has expired, or was deleted: individual commits are void
        return None
    first, end = bounds
    start = resolve_start(primary, log, log_end=end, log_start=first, topic_id=topic_id)
    progress, said = start.progress, log.stable
    if primary.anchor is None:  # a plain consumer's, or a tool's: what the log says is void
        return OffsetAndMetadata(
            progress.stable, metadata=metadata, leader_epoch=start.leader_epoch
        )
    whole = _common(progress)
    return OffsetAndMetadata(
        progress.stable,
        tuple(zip(whole[::2], whole[1::2], strict=True)),
        progress.individual_commits,
        said.metadata if said else "",
        start.leader_epoch,
    )


@contextmanager
def committed_within(
    kafka: KafkaConfig, group: str, seconds: float
) -> Iterator[Callable[[], KafkaConfig]]:
    """Limit what is asked of brokers to a caller's time, for :func:`committed_offset`.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
        seconds: The caller's time.

    Yields:
        Makes the configuration of the next request, with the time that is left for it.

    Raises:
        FetchTimeoutError: The time is over, and brokers have not answered.
    """
    deadline = time.monotonic() + seconds

    def left() -> KafkaConfig:
        return kafka.within(max(math.ceil((deadline - time.monotonic()) * 1000), 1))

    try:
        yield left
    except KafkaError as error:
        if type(error) is not KafkaError or time.monotonic() < deadline:
            raise
        raise FetchTimeoutError(
            f"group {group}: cannot fetch committed offsets within {seconds:g} s: {error}"
        ) from error


def _common(progress: Progress) -> Bounds:
    """The offsets that have been processed for all key hashes."""
    if not progress.stripes:
        return ()
    return reduce(intersect, (stripe.bounds for stripe in progress.stripes))


class StoredOffset(CommittedOffset):
    """A committed offset of a key-shared group."""

    __slots__ = ()

    @property
    def primary(self) -> Primary:
        """The offset with its anchor, if the metadata hold one."""
        return Primary(self.offset, Anchor.decode(self.metadata), self.leader_epoch)

    @classmethod
    def of(cls, primary: Primary) -> "StoredOffset":
        """A primary offset as it is stored."""
        metadata = primary.anchor.encode() if primary.anchor else ""
        return cls(primary.offset, metadata, primary.leader_epoch)


class PrimaryOffsets:
    """The committed offsets of one group.

    Args:
        kafka: How to reach the cluster.
        group: Id of the group.
    """

    def __init__(self, kafka: KafkaConfig, group: str) -> None:
        self._kafka = kafka
        self._group = group
        self._seconds = kafka.api_timeout_ms / 1000
        self._writer = OffsetWriter(kafka, group)
        self._cluster = Cluster(kafka)
        self._log = Cluster(replace(kafka, read_committed=False))

    def fetch(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, StoredOffset]:
        """The offsets of some partitions, or of all; partitions without one are left out.

        Raises:
            KafkaError: The cluster did not answer, or refused.
        """
        fetched = fetch_offsets(self._kafka, self._group, partitions)
        return {tp: StoredOffset(*each) for tp, each in fetched.items()}

    def log_bounds(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset of the log, and its end: its high watermark.

        What was decided before an open transaction ends lies behind the last stable offset, and has
        to be read, too.

        Raises:
            KafkaError: The cluster did not answer, or refused.
        """
        start = self._log.earliest([partition])[partition]
        return start, self._log.latest([partition])[partition]

    def initial(
        self, partitions: Collection[TopicPartition], reset: OffsetReset
    ) -> dict[TopicPartition, int | KafkaError]:
        """Offsets by ``auto.offset.reset`` for some partitions; an error for those of no topic.

        Raises:
            NoOffsetError: The reset is ``error``.
            KafkaError: The cluster did not answer, or refused.
        """
        if reset == "error":
            raise NoOffsetError(
                f"group {self._group} has no committed offset for {join_names(partitions)}, "
                "and auto.offset.reset is error: set it to earliest or latest, or set the offsets "
                "with kshare offsets reset"
            )
        answers: dict[TopicPartition, int | KafkaError] = {}
        if callable(reset):
            chosen = {tp: reset(tp) for tp in partitions}
            answers |= {tp: offset for tp, offset in chosen.items() if offset is not None}
        ask = self._cluster.latest if reset == "latest" else self._cluster.earliest
        while left := [tp for tp in partitions if tp not in answers]:
            try:
                answers |= ask(left)
            except UnknownTopicError as error:  # the others start all the same
                gone = [tp for tp in left if tp.topic == error.topic]
                answers |= dict.fromkeys(gone or left, error)
        return answers

    def store(
        self,
        offsets: Mapping[TopicPartition, Primary],
        as_member: Callable[[CommittedOffsets], "Future[Any]"] | None = None,
    ) -> "Future[Any]":
        """Begin to commit offsets with their anchors; :func:`stored` reads the answer.

        Args:
            offsets: The offsets.
            as_member: Commits as a member of the group; None while the group has no members.
        """
        committed = {tp: StoredOffset.of(primary) for tp, primary in offsets.items()}
        return (as_member or self._writer.commit)(committed)

    def stored(self, answer: "Future[Any]") -> dict[TopicPartition, KafkaError | None]:
        """The error of each partition of a commit, once it is answered; None if it is stored.

        Without the partitions that the member may not commit, as it is out of the group.

        Raises:
            KafkaError: The whole commit was refused, or not answered.
        """
        try:
            outcome: dict[TopicPartition, KafkaError | None] = answer.result(self._seconds + 1)
        except TimeoutError as error:
            action = f"commit offsets of group {self._group}"
            raise kafka_error(error, action) from error
        return outcome

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()
        self._cluster.close()
        self._log.close()
