"""Ranges in equal number for each partition.

Law: the numbers of ranges of any two partitions differ by one at most, and a partition's ranges
have the same width, but for one hash.
Cost: linear in the ranges.
"""

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeRequest

__all__ = ["round_robin"]


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
