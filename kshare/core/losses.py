"""Records that are gone before they were read: what is lost, and how far a partition is without it.

Guarantees: every offset that was pending and is not in the log any more is in a :class:`Loss`,
which names topic, partition, offsets and key hashes.
Cost: linear in the partitions, and in the gaps of those whose ranges stand at different offsets.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kshare.core.hashing import HASH_SPACE
from kshare.core.listing import join_names
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition

__all__ = [
    "Loss",
    "new_partitions",
    "no_longer_assigned",
    "recreated_topics",
    "without_deleted",
    "without_trimmed",
]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that will not be read.

    Attributes:
        text: What is lost, and why: a sentence without its full stop.
        partition: The partition.
        wanted: The wanted offsets, as (start, end), half-open; None if it is gone altogether.
        available: The offsets that the log holds, as (start, end), half-open; None if not known.
    """

    text: str
    partition: TopicPartition
    wanted: tuple[int, int] | None = None
    available: tuple[int, int] | None = None


def new_partitions(earliest: Mapping[TopicPartition, int]) -> list[Loss]:
    """Of partitions that came up while the query runs: those without their first records.

    Args:
        earliest: The first offset of each one's log.
    """
    return [
        Loss(
            f"{tp} is new to this query and starts at offset {first}, not 0: records before it "
            "may have been missed",
            tp,
            wanted=(0, first),
        )
        for tp, first in sorted(earliest.items())
        if first > 0
    ]


def no_longer_assigned(partition: TopicPartition, pending: Sequence[Rectangle]) -> Loss:
    """Key hashes that ``assign`` had before a restart, and that were behind the others."""
    return Loss(
        f"{partition}: {_shown(pending)} were pending when the query stopped, and assign no longer "
        "has these hashes: they will not be read (to have them read first, start the query with "
        "the assign that it had, until kshare status shows no gaps)",
        partition,
        wanted=(pending[0].offsets.start, max(piece.offsets.end for piece in pending)),
    )


def recreated_topics(
    progress: Mapping[TopicPartition, Progress],
    available: Mapping[TopicPartition, int],
    topics: Collection[str],
) -> list[Loss]:
    """Losses of topics that were deleted and made again: offsets counted as read, never read.

    Args:
        progress: How far each partition is; none further than its log goes.
        available: The end of the log of each partition.
        topics: The topics.
    """
    return [
        Loss(
            f"topic {tp.topic} was deleted and made again while the query ran: {tp} was read up to "
            f"offset {reached.front} before, and what it holds below that now counts as read, also "
            "after a restart",
            tp,
            wanted=(0, reached.front),
            available=(0, available[tp]),
        )
        for tp, reached in sorted(progress.items())
        if tp.topic in topics and reached.front
    ]


def without_deleted(
    progress: Mapping[TopicPartition, Progress], available: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, Progress], list[Loss]]:
    """Leave out partitions that are gone, and what was read beyond the end of a log.

    Args:
        progress: How far each partition is.
        available: The end of the log of each partition that exists.

    Returns:
        The progress of the partitions that are left, each within its log; and the losses.
    """
    kept, losses = {}, []
    for tp, reached in progress.items():
        end = available.get(tp)
        if end is None:
            text = (
                f"{tp} is gone (deleted, or no longer subscribed); it was read up to offset "
                f"{reached.front}"
            )
            losses.append(Loss(text, tp))
        elif end < reached.front:
            text = (
                f"{tp} ends at offset {end}, but was read up to {reached.front}: it was truncated, "
                "or the topic was made anew; or isolation.level is read_committed now, was not "
                "before, and a transaction is open there (then start the query again when that has "
                "ended); what it holds now counts as read"
            )
            losses.append(Loss(text, tp, (reached.front, reached.front), (0, end)))
            kept[tp] = _within(reached, end)
        else:
            kept[tp] = reached
    return kept, losses


def without_trimmed(
    progress: Mapping[TopicPartition, Progress], earliest: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, Progress], list[Loss]]:
    """Pass over what was pending below the first offset that a log still holds.

    Args:
        progress: How far each partition is.
        earliest: The first offset of the log of some of them.

    Returns:
        How far each partition is then; and the losses.
    """
    kept, losses = {}, []
    for tp, reached in progress.items():
        first = earliest.get(tp, 0)
        lost = reached.pending(first)
        if lost:
            text = (
                f"{tp}: {_shown(lost)} were pending and are gone{_if_any(lost)}; the log begins at "
                f"offset {first} (deleted by retention or by an operator)"
            )
            wanted = (lost[0].offsets.start, max(piece.offsets.end for piece in lost))
            losses.append(Loss(text, tp, wanted, (first, max(first, reached.front))))
        kept[tp] = reached.advance(first) if lost else reached
    return kept, losses


def _within(reached: Progress, end: int) -> Progress:
    """A progress without what lies beyond the end of a log."""
    kept = (
        Rectangle(OffsetRange(piece.offsets.start, min(piece.offsets.end, end)), piece.hashes)
        for piece in reached.individual_commits
        if piece.offsets.start < end
    )
    return Progress.of(min(reached.stable, end), kept)


def _if_any(pieces: Iterable[Rectangle]) -> str:
    """A text for key hashes that may never have had a record there, as parked keys often have."""
    is_whole = any(piece.hashes.width == HASH_SPACE for piece in pieces)
    return (
        "" if is_whole else " (if these hashes had records there, which nobody can know any more)"
    )


def _shown(pieces: Iterable[Rectangle]) -> str:
    listed = [
        f"offsets {piece.offsets}"
        if piece.hashes.width == HASH_SPACE
        else f"offsets {piece.offsets} of the key hashes {piece.hashes}"
        for piece in pieces
    ]
    return join_names(listed, _SHOWN)
