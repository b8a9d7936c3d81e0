"""More ranges where more is pending.

Law: as many ranges in all as :func:`~kshare.ranges.round_robin.round_robin` gives; a partition
with more pending work never has fewer ranges than one with less.
Cost: linear in the ranges, and a sort of the partitions.
"""

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeRequest

__all__ = ["lag_weighted"]


def lag_weighted(request: RangeRequest) -> dict[TopicPartition, tuple[HashRange, ...]]:
    """Share ranges out by pending work, with the method of largest remainders.

    Each partition has ``request.key_ranges`` (at least one) to begin with. The rest is shared out
    in proportion to what is pending, in whole numbers; what then is left goes one each to the
    largest remainders, on a tie to the partition that comes first. All in integers, so exact.

    Returns:
        Each partition's ranges, ascending.
    """
    loads = request.loads
    least = max(request.key_ranges, 1)
    rest = max(request.min_tasks - least * len(loads), 0)
    areas = [load.area for load in loads]
    total = sum(areas)
    shares = [divmod(rest * area, total) for area in areas]
    left = rest - sum(share for share, _ in shares)
    by_remainder = sorted(range(len(loads)), key=lambda i: -shares[i][1])
    favoured = set(by_remainder[:left])
    return {
        load.topic_partition: split(WHOLE, least + shares[i][0] + (i in favoured))
        for i, load in enumerate(loads)
    }
