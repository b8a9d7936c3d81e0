"""Admission: the ends of a batch, and the wait for more records.

Guarantees: no end is before its front or beyond its top, and a partition with something to read
gets at least one offset. The numbers are those of Spark's kafka source.
Cost: linear in the partitions.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["admit", "should_wait"]

_Partition = TypeVar("_Partition")


def admit(
    front: Mapping[_Partition, int], top: Mapping[_Partition, int], max_offsets: int | None
) -> dict[_Partition, int]:
    """The end of each partition in a batch with ``maxOffsetsPerTrigger``.

    ``KafkaMicroBatchStream.rateLimit`` of Apache Spark 4.2: the limit is shared in proportion to
    what each partition has, in floating point, rounded down; but up where it is less than one, so
    that small partitions do not starve. With more such partitions than offsets to share, the batch
    is larger than the limit.

    Args:
        front: The offset where each partition stands.
        top: The offset up to which each could be read.
        max_offsets: Maximum number of offsets of all partitions together; None for none.

    Returns:
        The ends, of the partitions of ``top`` and in their order. A partition whose top is not
        beyond its front ends there.
    """
    backlog = {tp: end - front[tp] for tp, end in top.items() if tp in front and end > front[tp]}
    total = float(sum(backlog.values()))
    if max_offsets is None or not backlog:
        return dict(top)
    ends = {}
    for tp, end in top.items():
        size = backlog.get(tp)
        if size is None:
            ends[tp] = end
            continue
        share = max_offsets * (size / total)
        ends[tp] = min(end, front[tp] + (math.ceil(share) if share < 1 else int(share)))
    return ends


def should_wait(
    positions: Mapping[_Partition, int],
    available: Mapping[_Partition, int],
    *,
    min_offsets: int,
    max_delay_seconds: float,
    seconds_since_batch: float | None,
) -> bool:
    """True if a trigger should wait until there is more to read (``minOffsetsPerTrigger``).

    ``KafkaMicroBatchStream.delayBatch`` of Apache Spark 4.2.

    Args:
        positions: Where each partition stands; one that is not in it stands at 0.
        available: The end of each partition.
        min_offsets: Number of offsets to wait for, in all partitions together.
        max_delay_seconds: Maximum time to wait (``maxTriggerDelay``).
        seconds_since_batch: Time since the last trigger that did not wait; None if there was none,
            and then this one does not wait.
    """
    if seconds_since_batch is None or seconds_since_batch >= max_delay_seconds:
        return False
    return sum(end - positions.get(tp, 0) for tp, end in available.items()) < min_offsets
