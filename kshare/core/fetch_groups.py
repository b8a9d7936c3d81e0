"""Which tasks of a batch read the same offsets of one partition.

Law: tasks are siblings if some offset lies in the slices of two of them; who reads alone has none.
Cost: linear in the tasks; what travels with a task does not grow with the number of its siblings
as long as they stand at the same offsets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

from kshare.core.offsets import OffsetRange

__all__ = ["FAMILY_MAX", "Run", "Siblings", "families"]

FAMILY_MAX = 256
"""Tasks of one partition that know of each other at most."""

Run = tuple[int, int, int]
"""An offset range, start and end, and how many siblings read it."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """What a task knows of its siblings.

    Attributes:
        query: a random name of the query run, which nobody else can know.
        batch: the batch's name within the query.
        family: which group of siblings of the partition this is.
        number: the task's own, from 0 on.
        runs: the offsets that each sibling reads, in the order of their numbers.
    """

    query: str
    batch: str
    family: int
    number: int
    runs: tuple[Run, ...]

    @property
    def count(self) -> int:
        """How many siblings there are, with this one."""
        return sum(count for _, _, count in self.runs)


def families(query: str, batch: str, offsets: Iterable[OffsetRange]) -> list[Siblings | None]:
    """The siblings of each task of one partition, None for a task that reads alone.

    Args:
        query: see :class:`Siblings`.
        batch: likewise.
        offsets: from the first offset to the last that each task reads.
    """
    ranges = [(part.start, part.end) for part in offsets]
    if not _overlap(ranges):
        return [None] * len(ranges)
    found: list[Siblings | None] = []
    for family, first in enumerate(range(0, len(ranges), FAMILY_MAX)):
        members = ranges[first : first + FAMILY_MAX]
        if len(members) == 1:
            found.append(None)
            continue
        runs = tuple((*part, len(list(same))) for part, same in groupby(members))
        found += [Siblings(query, batch, family, number, runs) for number in range(len(members))]
    return found


def _overlap(ranges: list[tuple[int, int]]) -> bool:
    """Whether any two of some ranges share an offset."""
    return any(end > start for (_, end), (start, _) in pairwise(sorted(ranges)))
