"""Parts of a partition: key hashes that are divided among members, and the arithmetic of them.

Law: the parts tile the hash space, and are equally wide but for one hash. Members keep what they
had, as far as that goes.

Parts meet on instances, as members of different partitions change places (:func:`let_meet`)::

    t-0: a1 b1          t-0: a1 a2
    t-1: a2 b2   --->   t-1: b1 b2

Law: instances and the partitions where they have a place are a forest afterwards. So ``n``
instances have places in at most ``n + p - 1`` pairs with ``p`` partitions. Each partition keeps the
number of its places, and each member has one. Nobody moves unless that makes fewer pairs, and of
two ways the one that moves fewer key hashes is taken; what is a forest stays as it is.

Cost: sorting of members, ranges, and pairs of them that overlap; for :func:`keeping_most` this much
for each round of changes. To meet: linear in instances and partitions for each circle, of which
there are fewer than members.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, Generic, TypeAlias, TypeVar

from kshare.core.hashing import (
    ALL_HASHES,
    HASH_SPACE,
    NO_HASHES,
    WHOLE,
    HashRange,
    KeyRanges,
    split,
)
from kshare.core.progress import TopicPartition

__all__ = [
    "Overlaps",
    "by_overlap",
    "divided",
    "keeping_most",
    "let_meet",
    "shared_width",
    "tiles",
]

_PIECES_MAX: Final = 16
"""Ranges of a part, above which a partition is divided from scratch."""

_What = TypeVar("_What")


def divided(members: Sequence[str], held: Mapping[str, KeyRanges]) -> tuple[KeyRanges, ...]:
    """The hash space in equal parts, so that members keep what they had."""
    fresh = split(WHOLE, len(members))
    if not any(member in held for member in members):
        return tuple(KeyRanges([part]) for part in fresh)
    had = [held.get(member, NO_HASHES) for member in members]
    goals = _goals([hashes.width for hashes in had])
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


def _trimmed(hashes: KeyRanges, most: int) -> KeyRanges:
    """Up to a number of hashes of some ranges; the smallest ranges go first."""
    over = hashes.width - most
    if over <= 0:
        return hashes
    kept = []
    for part in sorted(hashes, key=lambda part: (part.width, part.lo)):
        if part.width <= over:
            over -= part.width
        else:
            kept.append(HashRange(part.lo, part.hi - over))
            over = 0
    return KeyRanges(kept)


def _filled(kept: Sequence[KeyRanges], goals: Sequence[int]) -> tuple[KeyRanges, ...]:
    """Give the hashes that are free to those who have less than their goal."""
    parts = [list(hashes) for hashes in kept]
    needs = [goal - hashes.width for goal, hashes in zip(goals, kept, strict=True)]
    ends = {part.hi: i for i, hashes in enumerate(kept) for part in hashes}
    starts = {part.lo: i for i, hashes in enumerate(kept) for part in hashes}
    heap = [(-need, i) for i, need in enumerate(needs)]
    heapq.heapify(heap)
    for free in ALL_HASHES - [part for hashes in kept for part in hashes]:
        lo = free.lo
        while lo < free.hi:
            left = ends.get(lo)
            right = starts.get(free.hi)
            if left is not None and needs[left] > 0:
                i = left
            elif right is not None and needs[right] >= free.hi - lo:
                i = right
            else:
                i = _neediest(needs, heap)
            hi = min(free.hi, lo + needs[i])
            parts[i].append(HashRange(lo, hi))
            needs[i] -= hi - lo
            lo = hi
    return tuple(map(KeyRanges, parts))


def _neediest(needs: Sequence[int], heap: list[tuple[int, int]]) -> int:
    """Who needs most; the first of them.

    Args:
        needs: What each needs. It only becomes less.
        heap: What each has needed once, and who, as ``(-need, i)``.
    """
    while -heap[0][0] != needs[heap[0][1]]:
        i = heap[0][1]
        heapq.heapreplace(heap, (-needs[i], i))
    return heap[0][1]


def by_overlap(fresh: Sequence[HashRange], had: Sequence[KeyRanges]) -> tuple[KeyRanges, ...]:
    """Whole parts, each to the member that had most of it, as far as it is free."""
    return tuple(KeyRanges([fresh[j]]) for j in _by_overlap(_shares(fresh, had), len(fresh)))


def _by_overlap(shares: Sequence[Mapping[int, int]], parts: int) -> list[int]:
    """The number of the part that each member gets."""
    pairs = sorted(
        ((shared, i, j) for i, own in enumerate(shares) for j, shared in own.items()),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    chosen: dict[int, int] = {}
    free = dict.fromkeys(range(parts))
    for _, i, j in pairs:
        if i not in chosen and j in free:
            chosen[i] = j
            del free[j]
    left = iter(free)  # ascending
    return [chosen[i] if i in chosen else next(left) for i in range(len(shares))]


def _shares(parts: Sequence[HashRange], had: Sequence[KeyRanges]) -> list[dict[int, int]]:
    """How many hashes each member had of parts, by the part's number; of those that it had any."""
    index = Overlaps((part, j) for j, part in enumerate(parts))
    shares: list[dict[int, int]] = []
    for hashes in had:
        own: dict[int, int] = {}
        for mine in hashes:
            for part, j in index.of(mine):
                own[j] = own.get(j, 0) + min(part.hi, mine.hi) - max(part.lo, mine.lo)
        shares.append(own)
    return shares


def keeping_most(ranges: Sequence[HashRange], had: Sequence[KeyRanges]) -> list[KeyRanges]:
    """A range for each member, so that no two would keep more hashes by changing theirs.

    Args:
        ranges: As many as there are members, disjoint.
        had: What each member had.
    """
    shares = _shares(ranges, had)
    chosen = _by_overlap(shares, len(ranges))
    holders = {part: i for i, part in enumerate(chosen)}
    former: list[list[int]] = [[] for _ in ranges]  # members that had some of a range
    for i, own in enumerate(shares):
        for part in own:
            former[part].append(i)

    def rivals(i: int, above: int) -> Iterator[int]:
        """Lower members that may gain by a change with member i, or it by one with them."""
        among = {holders[part] for part in shares[i]}.union(former[chosen[i]])
        return iter(sorted(j for j in among if above < j < i))

    is_better = True
    while is_better:  # each change keeps more hashes, so it ends
        is_better = False
        for i in range(len(chosen)):
            lower = rivals(i, -1)
            while (j := next(lower, None)) is not None:
                mine, its = chosen[i], chosen[j]
                kept = shares[i].get(mine, 0) + shares[j].get(its, 0)
                if shares[i].get(its, 0) + shares[j].get(mine, 0) > kept:
                    chosen[i], chosen[j] = its, mine
                    holders[its], holders[mine] = i, j
                    is_better, lower = True, rivals(i, j)
    return [KeyRanges([ranges[part]]) for part in chosen]


class Overlaps(Generic[_What]):
    """Finds which of some hash ranges overlap another one. They may overlap each other.

    Args:
        ranges: The ranges, each with what it stands for.
    """

    def __init__(self, ranges: Iterable[tuple[HashRange, _What]]) -> None:
        self._ranges = sorted(ranges, key=lambda pair: pair[0].lo)
        self._starts = [part.lo for part, _ in self._ranges]
        # The highest end so far: ascending, and all ranges before one that is too low are.
        self._ends = list(accumulate((part.hi for part, _ in self._ranges), max))

    def of(self, part: HashRange) -> list[tuple[HashRange, _What]]:
        """Those that overlap a range, by their starts."""
        first, end = bisect_right(self._ends, part.lo), bisect_left(self._starts, part.hi)
        return [pair for pair in self._ranges[first:end] if pair[0].hi > part.lo]


def shared_width(part: HashRange, hashes: KeyRanges) -> int:
    """Number of key hashes that are in a range and in some others."""
    return sum(min(part.hi, own.hi) - max(part.lo, own.lo) for own in hashes.overlapping(part))


def tiles(parts: Iterable[KeyRanges]) -> bool:
    """True if disjoint parts leave no hash out."""
    return sum(part.width for part in parts) == HASH_SPACE


_Node: TypeAlias = str | TopicPartition
"""An instance or a partition."""
_Pair: TypeAlias = tuple[str, TopicPartition]


def let_meet(
    places: Mapping[TopicPartition, list[str]],
    instances: Mapping[str, str],
    width_of: Callable[[str, TopicPartition], int],
) -> None:
    """Exchange members until no circle is left.

    Args:
        places: The members of each partition; changed.
        instances: The instance of members that have one.
        width_of: How many key hashes a member had of a partition.
    """
    among: dict[_Pair, list[str]] = defaultdict(list)
    for partition, members in places.items():
        for member in members:
            if member in instances:
                among[instances[member], partition].append(member)
    moved = _Exchange(among, width_of).run()
    for partition, members in places.items():
        stay = [member for member in members if moved.get(member, partition) == partition]
        come = [m for m, to in moved.items() if to == partition and m not in members]
        members[:] = [*stay, *come]


class _Exchange:
    """Breaks circles of instances and partitions, one after the other."""

    def __init__(
        self, among: dict[_Pair, list[str]], width_of: Callable[[str, TopicPartition], int]
    ) -> None:
        self._among = among
        self._width_of = width_of
        self._forest: dict[_Node, dict[_Node, None]] = defaultdict(dict)
        self._moved: dict[str, TopicPartition] = {}

    def run(self) -> Mapping[str, TopicPartition]:
        """The partition of each member that has moved."""
        for pair in list(self._among):
            instance, partition = pair
            while self._among[pair]:
                path = self._path(partition, instance)
                if path is None:
                    self._forest[instance][partition] = self._forest[partition][instance] = None
                    break
                self._break([pair, *path])
        return self._moved

    def _path(self, first: TopicPartition, last: str) -> list[_Pair] | None:
        """The pairs from a partition to an instance; None if they are not connected."""
        before: dict[_Node, _Node | None] = {first: None}
        waiting: deque[_Node] = deque(before)
        while waiting and last not in before:
            node = waiting.popleft()
            for other in self._forest[node]:
                if other not in before:
                    before[other] = node
                    waiting.append(other)
        if last not in before:
            return None
        nodes: list[_Node] = [last]
        while (back := before[nodes[-1]]) is not None:
            nodes.append(back)
        return [_pair(*edge) for edge in pairwise(reversed(nodes))]

    def _break(self, circle: Sequence[_Pair]) -> None:
        """Empty a pair of a circle, or more: every other one gives members to its neighbour."""
        ways = [self._moves(circle, first) for first in (0, 1)]
        for member, origin, to in min(ways, key=self._cost):
            self._among[origin].remove(member)
            self._among[to].append(member)
            self._moved[member] = to[1]
        for instance, partition in circle:
            if not self._among[instance, partition]:
                self._forest[instance].pop(partition, None)
                self._forest[partition].pop(instance, None)

    def _moves(self, circle: Sequence[_Pair], first: int) -> list[tuple[str, _Pair, _Pair]]:
        """Who goes from where to where, if the pairs of even or of odd number give members."""
        givers = range(first, len(circle), 2)
        number = min(len(self._among[circle[i]]) for i in givers)
        moves = []
        for i in givers:
            origin = circle[i]
            near = (circle[i - 1], circle[(i + 1) % len(circle)])
            to = next(pair for pair in near if pair[0] == origin[0])
            ranked = sorted(self._among[origin], key=lambda m: self._width_of(m, origin[1]))
            moves += [(member, origin, to) for member in ranked[:number]]
        return moves

    def _cost(self, moves: Sequence[tuple[str, _Pair, _Pair]]) -> int:
        """How many key hashes would move."""
        return sum(self._width_of(member, origin[1]) for member, origin, _ in moves)


def _pair(one: _Node, other: _Node) -> _Pair:
    if isinstance(one, str):
        one, other = other, one
    assert isinstance(one, TopicPartition)
    assert isinstance(other, str)
    return other, one
