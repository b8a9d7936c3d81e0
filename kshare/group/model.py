"""The values of the group's public face."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from kshare.core.offsets import Bounds, intersect
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.protocol.log import PartitionLog
from kshare.group.protocol.start import Primary, Reason, resolve_start
from kshare.wire.reader.tail_reader import NamedReset

__all__ = [
    "LOG_SEGMENT_BYTES",
    "OffsetAndMetadata",
    "OffsetReset",
    "committed_offset",
]

LOG_SEGMENT_BYTES: Final = 10 << 20
"""``segment.bytes`` of the log's topic, unless it is configured."""

OffsetReset = NamedReset | Callable[[TopicPartition], int | None]
"""Where a partition without an offset starts: by name, or its offset; None is earliest."""


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
    if start.reason in {Reason.ADOPTED, Reason.RESET}:
        return OffsetAndMetadata(
            progress.stable,
            metadata="" if primary.anchor else metadata,
            leader_epoch=start.leader_epoch,
        )
    whole = _common(progress)
    return OffsetAndMetadata(
        progress.stable,
        tuple(zip(whole[::2], whole[1::2], strict=True)),
        progress.individual_commits,
        said.metadata if said else "",
        start.leader_epoch,
    )


def _common(progress: Progress) -> Bounds:
    """The offsets that have been processed for all key hashes."""
    if not progress.stripes:
        return ()
    return reduce(intersect, (stripe.bounds for stripe in progress.stripes))
