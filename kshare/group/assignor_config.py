"""The configurations of a consumer that concern assignors: their kinds and defaults."""

from typing import Final

from kshare.options.kinds import BadValueError, Kind
from kshare.options.table import OPTIONS

__all__ = ["PROBING_MS", "RANGE_ASSIGNOR"]

PROBING_MS: Final = 60_000
"""Default of ``probing.rebalance.interval.ms``. Kafka Streams has ten minutes, as its follow-up
rebalances wait for state that warms up. Here loads are looked at: hashes that stay are delivered
meanwhile, so a rebalance costs a request of each member, and a hot range is relieved in a minute.
It is also the lowest value that Kafka's own assignors allow."""

_SOURCE_KIND: Final = OPTIONS["rangeAssignor"].kind
assert _SOURCE_KIND is not None


def _parse_range_assignor(text: str) -> str:
    assert _SOURCE_KIND is not None
    name: str = _SOURCE_KIND.parse(text)
    if name == "lag-weighted":
        raise BadValueError(
            "cannot cut what members share: lags change all the time, and each change would move "
            "key ranges",
            "allowed: round-robin (default), adaptive, or the dotted path of a callable",
        )
    return name


RANGE_ASSIGNOR: Final = Kind(_SOURCE_KIND.values, _parse_range_assignor)
