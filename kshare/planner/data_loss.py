"""Records that are gone before they were read: found, told, and passed over if the user said so.

Law: what the log no longer holds is either an error that names topic, partition, offsets and key
hashes, or (``failOnDataLoss`` false) a warning with the same words; never silence.
Cost: no round trip; the offsets are given.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from kshare.core.hashing import HASH_SPACE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import DataLossError

__all__ = ["LossGuard"]

_log = logging.getLogger("kshare.planner")
_SHOWN = 5


class LossGuard:
    """Decides what becomes of lost records, as ``failOnDataLoss`` has it."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail

    def new(self, partition: TopicPartition, first: int) -> None:
        """A partition that came up while the query runs no longer has its first records."""
        self._lost(
            f"{partition} is new to this query and starts at offset {first}, not 0: records before "
            "it may have been missed",
            partition,
            wanted=(0, first),
        )

    def without_deleted(
        self, progress: Mapping[TopicPartition, Progress], available: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Progress]:
        """Partitions that are gone, and logs that end before what was read, are told of.

        Args:
            progress: how far each partition is.
            available: the end of the log of each partition that there is.

        Returns:
            The progress of the partitions that are left, each within its log.
        """
        kept = {}
        for partition, reached in progress.items():
            end = available.get(partition)
            if end is None:
                self._lost(
                    f"{partition} is gone (deleted, or no longer subscribed); it was read up to "
                    f"offset {reached.front}",
                    partition,
                )
            elif end < reached.front:
                self._lost(
                    f"{partition} ends at offset {end}, but was read up to {reached.front}: it was "
                    "truncated, or the topic was made anew; what it holds now counts as read",
                    partition,
                    wanted=(reached.front, reached.front),
                    available=(0, end),
                )
                kept[partition] = _within(reached, end)
            else:
                kept[partition] = reached
        return kept

    def no_longer_assigned(self, partition: TopicPartition, pending: Sequence[Rectangle]) -> None:
        """Key hashes that ``assign`` had before a restart, and that were behind the others."""
        self._lost(
            f"{partition}: {_shown(pending)} were pending when the query stopped, and assign no "
            "longer has these hashes: they will not be read (to have them read first, start the "
            "query with the assign that it had, until kshare status shows no gaps)",
            partition,
            wanted=(pending[0].offsets.start, max(piece.offsets.end for piece in pending)),
        )

    def without_trimmed(
        self, progress: Mapping[TopicPartition, Progress], earliest: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Progress]:
        """What was pending below the first offset that a log still holds is told of."""
        kept = {}
        for partition, reached in progress.items():
            first = earliest.get(partition, 0)
            lost = reached.pending(first)
            if lost:
                self._lost(
                    f"{partition}: {_shown(lost)} were pending and are gone; the log begins at "
                    f"offset {first} (deleted by retention or by an operator)",
                    partition,
                    wanted=(lost[0].offsets.start, max(piece.offsets.end for piece in lost)),
                    available=(first, max(first, reached.front)),
                )
            kept[partition] = reached.advance(first) if lost else reached
        return kept

    def _lost(
        self,
        text: str,
        partition: TopicPartition,
        wanted: tuple[int, int] | None = None,
        available: tuple[int, int] | None = None,
    ) -> None:
        if not self._fail:
            _log.warning("%s. Going on, since failOnDataLoss is false.", text)
            return
        raise DataLossError(
            f"{text}. If losing records is acceptable, set failOnDataLoss to false.",
            topic=partition.topic,
            partition=partition.partition,
            wanted=wanted,
            available=available,
        )


def _within(reached: Progress, end: int) -> Progress:
    """A progress without what lies beyond the end of a log."""
    kept = (
        Rectangle(OffsetRange(piece.offsets.start, min(piece.offsets.end, end)), piece.hashes)
        for piece in reached.individual_commits
        if piece.offsets.start < end
    )
    return Progress.of(min(reached.stable, end), kept)


def _shown(pieces: Iterable[Rectangle]) -> str:
    listed = [
        f"offsets {piece.offsets}"
        if piece.hashes.width == HASH_SPACE
        else f"offsets {piece.offsets} of the key hashes {piece.hashes}"
        for piece in pieces
    ]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
