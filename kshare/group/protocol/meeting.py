"""Lets the parts of a partition meet on instances: members of different partitions change places.

::

    t-0: a1 b1          t-0: a1 a2
    t-1: a2 b2   --->   t-1: b1 b2

Law: instances and the partitions where they have a place are a forest afterwards. So ``n``
instances have places in at most ``n + p - 1`` pairs with ``p`` partitions. Each partition keeps the
number of its places, and each member has one. Nobody moves unless that makes fewer pairs, and of
two ways the one that moves fewer key hashes is taken; what is a forest stays as it is.

Cost: linear in instances and partitions for each circle, of which there are fewer than members.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from kshare.core.progress import TopicPartition

__all__ = ["let_meet"]

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
