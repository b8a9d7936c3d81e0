"""Fetch groups: tasks of a batch that read the same offsets of one partition.

Guarantees: the tasks of a partition form groups as soon as the offsets of any two of them overlap,
and then each of them is in a group, also one that shares no offset with another. Without an overlap
there are none.
Cost: linear in the tasks; what travels with a task does not grow with its group as long as the
members read the same offsets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

from kshare.core.offsets import OffsetRange

__all__ = ["GROUP_MAX", "FetchGroup", "SharedRange", "fetch_groups"]

GROUP_MAX = 256
"""Maximum number of members of a group."""

SharedRange = tuple[int, int, int]
"""An offset range, start and end, and how many members read it."""


@dataclass(frozen=True, slots=True)
class FetchGroup:
    """A group, as one of its members knows it.

    Attributes:
        query: a random name of the query run, which no other query can know.
        batch: the batch's name within the query.
        number: the number of the group within the partition.
        member: the task's own number within the group, from 0 on.
        ranges: the offsets that each member reads, in the order of the members.
    """

    query: str
    batch: str
    number: int
    member: int
    ranges: tuple[SharedRange, ...]

    @property
    def size(self) -> int:
        """The number of members."""
        return sum(count for _, _, count in self.ranges)


def fetch_groups(query: str, batch: str, offsets: Iterable[OffsetRange]) -> list[FetchGroup | None]:
    """The fetch group of each task of one partition.

    Args:
        query: a random name of the query run.
        batch: the batch's name within the query.
        offsets: for each task, from the first offset that it reads to the last.

    Returns:
        In the order of the tasks. None for all if no two of them overlap, and for a task that is
        left over when the others have filled their groups.
    """
    ranges = [(part.start, part.end) for part in offsets]
    if not _overlap(ranges):
        return [None] * len(ranges)
    groups: list[FetchGroup | None] = []
    for number, first in enumerate(range(0, len(ranges), GROUP_MAX)):
        members = ranges[first : first + GROUP_MAX]
        if len(members) == 1:
            groups.append(None)
            continue
        shared = tuple((*part, len(list(same))) for part, same in groupby(members))
        groups += [
            FetchGroup(query, batch, number, member, shared) for member in range(len(members))
        ]
    return groups


def _overlap(ranges: list[tuple[int, int]]) -> bool:
    """True if any two of some ranges share an offset."""
    return any(end > start for (_, end), (start, _) in pairwise(sorted(ranges)))
