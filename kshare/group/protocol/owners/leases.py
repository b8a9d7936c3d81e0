"""Leases of offsets: whose offsets they are, by the group's log, and which to lease next.

Pure functions of the log. A lease counts while its author's claim is in the log. Of leases that
count, the earlier one has the offsets that are in both: the order of the log decides.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Final

from kshare.core.offsets import Bounds, OffsetRange, intersect, length, since, subtract, union
from kshare.core.progress import Progress
from kshare.group.protocol.commit_log.log import LeaseKey, PartitionLog
from kshare.group.protocol.owners.takeover import session_of

__all__ = [
    "LeaseShare",
    "Share",
    "counts",
    "holdings",
    "lease_shares",
    "next_lease",
    "processed_offsets",
]

_SMALLEST: Final = 16
"""A lease has at least this part of the wanted size, if as much is there."""


@dataclass(frozen=True, slots=True)
class LeaseShare:
    """What a member has of a partition that is shared by leases of offsets.

    Attributes:
        leased: Number of offsets that it has leased and not committed.
        done: Number of offsets above the stable offset that it has committed.
    """

    leased: int
    done: int


def lease_shares(log: PartitionLog) -> dict[str, LeaseShare]:
    """What each member has that shares a partition, by the id of its session."""
    sessions = {session_of(name) for name, each in log.claims.items() if each.claim.shared}
    processed = processed_offsets(log.progress())
    stable = log.progress().stable
    held: dict[str, list[Bounds]] = {session: [] for session in sessions}
    done: dict[str, list[Bounds]] = {session: [] for session in sessions}
    for (author, _), bounds in holdings(log).items():
        held[session_of(author)].append(subtract(bounds, processed))
    for (author, _, _), bounds in log.blocks.items():
        if session_of(author) in sessions:
            done[session_of(author)].append(since(bounds, stable))
    return {
        session: LeaseShare(length(union(held[session])), length(union(done[session])))
        for session in sorted(sessions)
    }


def counts(log: PartitionLog, author: str) -> bool:
    """True if the leases of an author count, by the name of its claim."""
    placed = log.claims.get(author)
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


def next_lease(free: Bounds, first: int, size: int, members: int) -> OffsetRange | None:
    """The offsets to lease next: the lowest ones that are free.

    If few are left, every member shall get some, so the lease is smaller.

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
    part = -(-available // (2 * members))  # as each may have a lease ahead
    wanted = min(size, max(part, size // _SMALLEST, 1))
    end = max(free[0], first) + wanted
    return OffsetRange(free[0], intersect(free, (free[0], end))[-1])


@dataclass(frozen=True, slots=True)
class Share:
    """What a member may deliver.

    Attributes:
        held: Offsets that it has and that are not processed.
        done: What is processed by all members; what it has must not be delivered of it.
        free: The lowest offset that nobody has and that is not processed.
        is_asking: Whether a lease is under way.
    """

    held: Bounds
    done: Progress
    free: int
    is_asking: bool = False
