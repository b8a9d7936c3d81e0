"""Stretches of a partition: neighbouring key hashes with the same progress, a row of status each.

Hashes of parked keys within a stretch do not part it. Pure; linear in the stripes of the progress.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kshare.core.checkpoint import RangeLimit
from kshare.core.hashing import ALL_HASHES, NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import Bounds
from kshare.core.progress import Progress, Stripe

__all__ = ["batch_ranges", "stretches", "waiting"]


def batch_ranges(
    done: Progress, limits: Sequence[RangeLimit], parked: KeyRanges
) -> list[tuple[KeyRanges, RangeLimit | None]]:
    """The stretches of a batch's ranges, each with its limit, and of all other hashes, without one.

    Hashes of parked keys are in none.

    Args:
        done: What is processed.
        limits: The ranges of the batch, and how many records it reads of each.
        parked: Hashes of parked keys.
    """
    others = ALL_HASHES - [limit.hashes.span for limit in limits] - parked
    ranges: list[tuple[KeyRanges, RangeLimit | None]]
    ranges = [(hashes, None) for hashes in stretches(done, others, parked)]
    for limit in limits:
        holes = KeyRanges([limit.hashes.span]) - limit.hashes
        ranges += [(hashes, limit) for hashes in stretches(done, limit.hashes, holes)]
    return sorted(ranges, key=lambda pair: pair[0][0].lo)


def stretches(
    done: Progress, hashes: KeyRanges, holes: KeyRanges = NO_HASHES
) -> Iterator[KeyRanges]:
    """The stretches of some key hashes.

    Args:
        done: What is processed.
        hashes: The hashes.
        holes: What lies between hashes and does not part them: hashes of parked keys.

    Yields:
        Hashes that are processed at the same offsets, ascending by the first of them.
    """
    tiling = done.stripes or (Stripe(WHOLE, ()),)
    parts: list[HashRange] = []
    bounds: Bounds = ()
    for whole in hashes:
        number = bisect_right(tiling, whole.lo, key=lambda stripe: stripe.hashes.lo) - 1
        while number < len(tiling) and tiling[number].hashes.lo < whole.hi:
            stripe = tiling[number]
            part = HashRange(max(whole.lo, stripe.hashes.lo), min(whole.hi, stripe.hashes.hi))
            if parts and bounds == stripe.bounds and _adjoin(parts[-1], part, holes):
                parts.append(part)
            else:
                if parts:
                    yield KeyRanges(parts)
                parts, bounds = [part], stripe.bounds
            number += 1
    if parts:
        yield KeyRanges(parts)


def _adjoin(one: HashRange, other: HashRange, holes: KeyRanges) -> bool:
    """True if nothing is between two ranges, or a hole."""
    return one.hi == other.lo or any(
        hole.lo <= one.hi and other.lo <= hole.hi
        for hole in holes.overlapping(HashRange.of(one.hi))
    )


def waiting(
    done: Progress, limits: Sequence[RangeLimit], parked: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Hashes that wait and that the planned batch does not read, each with its position.

    Args:
        done: What is processed.
        limits: The record limits of the planned batch.
        parked: Hashes of keys that are known to be parked. Others wait if they stay behind their
            neighbours.
    """
    planned = KeyRanges(part for limit in limits for part in limit.hashes)
    front = done.front
    for hash_ in parked:
        position = done.position(HashRange.of(hash_))
        if position < front and not planned.holds(hash_):
            yield hash_, position
    stripes = done.stripes
    for i, stripe in enumerate(stripes):
        hash_ = stripe.hashes.lo
        if stripe.hashes.width > 1 or planned.holds(hash_):
            continue
        position = done.position(stripe.hashes)
        neighbours = [*stripes[max(i - 1, 0) : i], *stripes[i + 1 : i + 2]]
        if all(done.position(other.hashes) > position for other in neighbours):
            yield hash_, position
