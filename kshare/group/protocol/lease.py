"""What the leases of a partition say: who processes which offsets, of partitions without key order.

A lease counts while its author's claim is in the log. Of leases that count, the earlier one has the
offsets that are in both: the order of the log decides. So a claim's tombstone is what sets the
leases of a dead member free, and what ignores those that it writes later.

Who has an offset is a function of the leases that name it and of their authors' claims. A lease is
deleted only when the log says that all it has is processed, or by its author, or when it counts no
more. So compaction changes nobody's offsets.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Final

from kshare.core.offsets import Bounds, OffsetRange, intersect, length, since, subtract, union
from kshare.core.progress import Progress
from kshare.group.protocol.log import LeaseKey, PartitionLog
from kshare.group.protocol.takeover import session_of

__all__ = ["ChunkShare", "chunk_shares", "counts", "holdings", "next_chunk", "processed_offsets"]

_SMALLEST: Final = 16
"""A chunk has at least this part of the wanted size, if as much is there."""


@dataclass(frozen=True, slots=True)
class ChunkShare:
    """What a member has of a partition that is shared by chunks of offsets.

    Attributes:
        leased: Number of offsets that it has leased and not committed.
        done: Number of offsets above the stable offset that it has committed.
    """

    leased: int
    done: int


def chunk_shares(log: PartitionLog) -> dict[str, ChunkShare]:
    """What each member has that shares a partition, by the name of its session."""
    sessions = {session_of(name) for name, each in log.claims.items() if each.claim.shared}
    processed = processed_offsets(log.progress())
    stable = log.progress().stable
    held: dict[str, list[Bounds]] = {session: [] for session in sessions}
    done: dict[str, list[Bounds]] = {session: [] for session in sessions}
    for (member, _), bounds in holdings(log).items():
        held[session_of(member)].append(subtract(bounds, processed))
    for (member, _, _), bounds in log.blocks.items():
        if session_of(member) in sessions:
            done[session_of(member)].append(since(bounds, stable))
    return {
        session: ChunkShare(length(union(held[session])), length(union(done[session])))
        for session in sorted(sessions)
    }


def counts(log: PartitionLog, member: str) -> bool:
    """True if the leases of a member count."""
    placed = log.claims.get(member)
    return placed is not None and placed.claim.shared


def holdings(log: PartitionLog) -> dict[LeaseKey, Bounds]:
    """The offsets that each lease has, of those that count, in the order of the log."""
    taken: Bounds = ()
    held = {}
    for key, (_, offsets) in sorted(log.leases.items(), key=lambda item: item[1].position):
        if counts(log, key[0]):
            bounds = (offsets.start, offsets.end)
            held[key] = subtract(bounds, taken)
            taken = union([taken, bounds])
    return held


def processed_offsets(progress: Progress) -> Bounds:
    """The offsets that are processed for all key hashes."""
    below = (0, progress.stable) if progress.stable else ()
    if not progress.stripes:
        return below
    return union([below, reduce(intersect, (stripe.bounds for stripe in progress.stripes))])


def next_chunk(free: Bounds, first: int, size: int, members: int) -> OffsetRange | None:
    """The offsets to lease next: the lowest ones that are free.

    If few are left, every member shall get some, so the chunk is smaller.

    Args:
        free: Offsets that are there and that nobody has.
        first: First offset of the partition's log: there are no records below.
        size: Number of offsets that is wanted.
        members: Number of members that share the partition.

    Returns:
        None if nothing is free.
    """
    if not free:
        return None
    available = length(since(free, first))
    part = -(-available // (2 * members))  # as each may have a chunk ahead
    wanted = min(size, max(part, size // _SMALLEST, 1))
    end = max(free[0], first) + wanted
    return OffsetRange(free[0], intersect(free, (free[0], end))[-1])
