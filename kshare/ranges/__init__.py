"""Range assignors: load -> the hash ranges of each partition.

A range assignor is a pure function of one frozen :class:`~kshare.core.slicing.RangeRequest`: equal
input gets equal answers, so a batch that is planned again is the same.
"""

from kshare.ranges.adaptive import adaptive
from kshare.ranges.lag_weighted import lag_weighted
from kshare.ranges.loading import BY_PENDING, RANGE_ASSIGNORS, load_range_assignor
from kshare.ranges.round_robin import round_robin

__all__ = [
    "BY_PENDING",
    "RANGE_ASSIGNORS",
    "adaptive",
    "lag_weighted",
    "load_range_assignor",
    "round_robin",
]
