"""A member of a standalone key-shared group: its claims, its starts and its commits.

A background thread reads the group's individual commit log by long polls and runs an
:class:`~kshare.group.protocol.owner.Owner` for each partition. Nothing is opened before
:meth:`GroupSession.claim`. All methods may be called from any thread.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from kshare.core.hashing import HashRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.options import KafkaConfig
from kshare.wire.protocol.retry import Clock

__all__ = ["GroupSession", "OffsetAndMetadata", "Processed", "SessionConfig"]

Processed: TypeAlias = Progress | Sequence[Rectangle]
"""What has been processed of a partition: the rectangles may overlap, and repeat what is known."""


class SessionConfig(Protocol):
    """What a session needs of a consumer's configuration."""

    @property
    def kafka(self) -> KafkaConfig:
        """How to reach the cluster."""

    @property
    def group(self) -> str:
        """Id of the group."""

    @property
    def log_topic(self) -> str:
        """Name of the individual commit log's topic."""

    @property
    def log_segment_bytes(self) -> int:
        """``segment.bytes`` of that topic, when it is made."""

    @property
    def claim_timeout_ms(self) -> int:
        """Time after which a member that cannot read the log hands out nothing more."""

    @property
    def offset_reset(self) -> Literal["earliest", "latest", "error"]:
        """Where a group without offsets starts: ``auto.offset.reset``."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """What a group has committed of a partition.

    Attributes:
        offset: The stable offset: all below it has been processed.
        range_offsets: Offset ranges ``(start, end)`` above it that have been processed for all key
            hashes, ascending.
        individual_commits: All that has been processed above it, as rectangles.
        metadata: What the committer gave as metadata.
        leader_epoch: Leader epoch of the last processed record; None if it is not known.
    """

    offset: int
    range_offsets: tuple[tuple[int, int], ...] = ()
    individual_commits: tuple[Rectangle, ...] = ()
    metadata: str = ""
    leader_epoch: int | None = None


class GroupSession:
    """A member of a standalone group.

    Args:
        config: The consumer's configuration.
        on_change: Called from the session's thread when :meth:`started`, :meth:`check` or
            :meth:`may_deliver` may answer differently. It must not block.
        clock: Source of time.

    Attributes:
        member: Its id, such as ``host-1234-5f0c2a9e``.
    """

    member: str

    def __init__(
        self,
        config: SessionConfig,
        *,
        on_change: Callable[[], None] | None = None,
        clock: Clock = time,
    ) -> None:
        raise NotImplementedError

    def claim(self, assignment: Mapping[TopicPartition, Sequence[HashRange]]) -> None:
        """Own these key hashes from now on, and no others; an empty sequence is all hashes.

        Returns at once; :meth:`started` says when delivery may begin. Partitions whose hashes do
        not change go on undisturbed. Hashes that are given up are free at once, so commit before.

        Raises:
            ValueError: Hash ranges of a partition overlap.
        """
        raise NotImplementedError

    def started(self) -> Mapping[TopicPartition, Progress]:
        """From where to deliver: the progress of each partition whose claims are in place.

        The object of a partition stays the same while it goes on. Another object, or none, means
        that what is buffered or in flight counts no more: offsets were reset, or the log was lost.
        Then deliver again from the new one.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Raise the fault of the session, if there is one.

        Raises:
            FencedError: Another member has claimed some of the hashes; the error names partition,
                hashes and member. It is raised until the partition is claimed again or given up.
            KshareError: The session cannot go on: no right to use the log, a record of a later
                version in it, no offset to start from.
        """
        raise NotImplementedError

    def may_deliver(self) -> bool:
        """Whether records may be handed out: whether the log has been read lately.

        Ask before each hand-out; it costs a look at the clock.
        """
        raise NotImplementedError

    def commit(
        self,
        processed: Mapping[TopicPartition, Processed],
        timeout: float,
        *,
        since: Mapping[TopicPartition, Progress] | None = None,
    ) -> dict[TopicPartition, int]:
        """Commit what has been processed, and wait until the log says so.

        Args:
            processed: What has been processed of each partition, in total or since the last commit.
            timeout: Maximum time to wait, in seconds; 0 asks for the commit and does not wait.
            since: The starts from which it was delivered, as :meth:`started` has answered. What
                belongs to another start (offsets were reset meanwhile) is passed over.

        Returns:
            The stable offset of each partition: true at the log position that was read. With
            timeout 0, those that are known.

        Raises:
            FencedError: As for :meth:`check`; other partitions are committed.
            FetchTimeoutError: It was not done in time. It goes on in the background.
            KshareError: As for :meth:`check`.
        """
        raise NotImplementedError

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed of some partitions; nothing of one without commits.

        Raises:
            FetchTimeoutError: It was not known in time.
            KshareError: As for :meth:`check`.
        """
        raise NotImplementedError

    def close(self, timeout: float) -> None:
        """Give up all claims, and stop. May be called again.

        Returns within 0.1 s if nothing is under way: what was to be committed is not waited for.
        """
        raise NotImplementedError
