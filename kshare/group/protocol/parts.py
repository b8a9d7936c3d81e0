"""Parts of a partition: key hashes that are divided among members, and the arithmetic of them.

Law: the parts tile the hash space, and are equally wide but for one hash. Members keep what they
had, as far as that goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, complement, merged, split

__all__ = [
    "Hashes",
    "by_overlap",
    "divided",
    "keeping_most",
    "shared_width",
    "tiles",
    "width",
]

_PIECES_MAX: Final = 16
"""Ranges of a part, above which a partition is divided from scratch."""

Hashes: TypeAlias = tuple[HashRange, ...]
"""Key hashes: ascending and disjoint."""


def divided(members: Sequence[str], held: Mapping[str, Hashes]) -> tuple[Hashes, ...]:
    """The hash space in equal parts, so that members keep what they had."""
    fresh = split(WHOLE, len(members))
    if not any(member in held for member in members):
        return tuple((part,) for part in fresh)
    had = [held.get(member, ()) for member in members]
    goals = _goals([width(hashes) for hashes in had])
    kept = [_trimmed(hashes, goal) for hashes, goal in zip(had, goals, strict=True)]
    parts = _filled(kept, goals)
    if max(map(len, parts)) <= _PIECES_MAX:
        return parts
    return by_overlap(fresh, had)


def _goals(widths: Sequence[int]) -> list[int]:
    """How wide each part shall be; the widest may be one hash wider than others."""
    least, extra = divmod(HASH_SPACE, len(widths))
    ranked = sorted(range(len(widths)), key=lambda i: (-min(widths[i], least + 1), i))
    wider = set(ranked[:extra])
    return [least + (i in wider) for i in range(len(widths))]


def _trimmed(hashes: Hashes, most: int) -> Hashes:
    """So many hashes of some ranges at most; the smallest ranges go first."""
    over = width(hashes) - most
    if over <= 0:
        return hashes
    kept = []
    for part in sorted(hashes, key=lambda part: (part.width, part.lo)):
        if part.width <= over:
            over -= part.width
        else:
            kept.append(HashRange(part.lo, part.hi - over))
            over = 0
    return tuple(sorted(kept))


def _filled(kept: Sequence[Hashes], goals: Sequence[int]) -> tuple[Hashes, ...]:
    """Give the hashes that are free to those who have less than their goal."""
    parts = [list(hashes) for hashes in kept]
    needs = [goal - width(hashes) for goal, hashes in zip(goals, kept, strict=True)]
    ends = {part.hi: i for i, hashes in enumerate(kept) for part in hashes}
    starts = {part.lo: i for i, hashes in enumerate(kept) for part in hashes}
    for free in complement([part for hashes in kept for part in hashes]):
        lo = free.lo
        while lo < free.hi:
            left = ends.get(lo)
            right = starts.get(free.hi)
            if left is not None and needs[left] > 0:
                i = left
            elif right is not None and needs[right] >= free.hi - lo:
                i = right
            else:
                i = max(range(len(needs)), key=lambda i: (needs[i], -i))
            hi = min(free.hi, lo + needs[i])
            parts[i].append(HashRange(lo, hi))
            needs[i] -= hi - lo
            lo = hi
    return tuple(merged(hashes) for hashes in parts)


def by_overlap(fresh: Sequence[HashRange], had: Sequence[Hashes]) -> tuple[Hashes, ...]:
    """Whole parts, each to the member that had most of it, as far as it is free."""
    pairs = sorted(
        ((shared_width(part, hashes), i, j) for i, hashes in enumerate(had) for j, part in
         enumerate(fresh)),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )  # fmt: skip
    chosen: dict[int, int] = {}
    free = set(range(len(fresh)))
    for _, i, j in pairs:
        if i not in chosen and j in free:
            chosen[i] = j
            free.discard(j)
    return tuple((fresh[chosen[i]],) for i in range(len(had)))


def keeping_most(ranges: Sequence[HashRange], had: Sequence[Hashes]) -> list[Hashes]:
    """A range for each member, so that no two would keep more hashes by changing theirs.

    Args:
        ranges: As many as there are members.
        had: What each member had.
    """
    chosen = [part for (part,) in by_overlap(ranges, had)]
    shared = {(i, part): shared_width(part, had[i]) for i in range(len(had)) for part in ranges}
    is_better = True
    while is_better:  # each change keeps more hashes, so it ends
        is_better = False
        for i in range(len(chosen)):
            for j in range(i):
                mine, its = chosen[i], chosen[j]
                if shared[i, its] + shared[j, mine] > shared[i, mine] + shared[j, its]:
                    chosen[i], chosen[j] = its, mine
                    is_better = True
    return [(part,) for part in chosen]


def width(hashes: Iterable[HashRange]) -> int:
    """Number of key hashes of disjoint ranges."""
    return sum(part.width for part in hashes)


def shared_width(part: HashRange, hashes: Hashes) -> int:
    """Number of key hashes that are in a range and in some disjoint ones."""
    return width(both for own in hashes if (both := part.intersect(own)) is not None)


def tiles(parts: Iterable[Hashes]) -> bool:
    """Whether disjoint parts leave no hash out."""
    return sum(map(width, parts)) == HASH_SPACE
