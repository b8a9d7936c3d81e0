"""Range assignors: load -> the hash ranges of each partition.

A range assignor is a pure function of one frozen :class:`~kshare.core.slicing.RangeRequest`: equal
input gets equal answers, so a batch that is planned again is the same.
"""

from typing import Final, cast

from kshare.core.dotted_path import find
from kshare.core.slicing import RangeAssignor
from kshare.ranges.adaptive import adaptive
from kshare.ranges.pending import lag_weighted, round_robin

__all__ = [
    "BY_PENDING",
    "RANGE_ASSIGNORS",
    "adaptive",
    "lag_weighted",
    "load_range_assignor",
    "round_robin",
]

RANGE_ASSIGNORS: Final[dict[str, RangeAssignor]] = {
    "round-robin": round_robin,
    "lag-weighted": lag_weighted,
    "adaptive": adaptive,
}
"""The built-in range assignors by the name that the option ``rangeAssignor`` gives them."""
BY_PENDING: Final = frozenset({"round-robin", "lag-weighted"})
"""They go by what is pending, need no reports of tasks, and cut a partition only if another option
asks for it. An assignor of the user's may look at reports, too."""


def load_range_assignor(name: str) -> RangeAssignor:
    """Find a range assignor.

    Args:
        name: A built-in one, or the dotted path of a callable: ``package.module.function`` or
            ``package.module:function``.

    Raises:
        ValueError: There is none of that name; the text says why, and names the built-in ones.
    """
    known = RANGE_ASSIGNORS.get(name)
    if known is not None:
        return known
    return cast("RangeAssignor", find(name, "range assignor", RANGE_ASSIGNORS))
