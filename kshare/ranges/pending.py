"""Range assignors that go by what is pending: in equal number, or more where more is pending.

Laws: a partition's ranges have the same width, but for one hash. In equal number (round robin), the
numbers of ranges of any two partitions differ by one at most; by lag, there are as many in all, and
a partition with more pending work never has fewer than one with less.
Cost: linear in the ranges, and a sort of the partitions.
"""

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeRequest

__all__ = ["lag_weighted", "round_robin"]


def round_robin(request: RangeRequest) -> dict[TopicPartition, tuple[HashRange, ...]]:
    """Deal tasks to partitions in turn.

    The rule of the key-shared consumption proposal ("Abstract Assignor"): with ``m`` tasks and
    ``n`` partitions, ``m > n``, task ``i`` goes to partition ``i % n``. 5 tasks on 3 partitions:
    two partitions in halves, one whole.

    Returns:
        Each partition's ranges, ascending; at least ``request.key_ranges`` of them.
    """
    partitions = len(request.loads)
    tasks = max(request.min_tasks, partitions)
    return {
        load.topic_partition: split(
            WHOLE, max(tasks // partitions + (i < tasks % partitions), request.key_ranges)
        )
        for i, load in enumerate(request.loads)
    }


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
