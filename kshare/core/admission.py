"""How far a batch goes, if it goes.

Law: no end is before its front or beyond its top, and a partition with something to read is given
at least one offset. The numbers are those of Spark's kafka source.
Cost: linear in the partitions.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["admit", "should_wait"]

_Place = TypeVar("_Place")


def admit(
    front: Mapping[_Place, int], top: Mapping[_Place, int], max_offsets: int | None
) -> dict[_Place, int]:
    """Where each partition ends, if a batch takes so many offsets at most (maxOffsetsPerTrigger).

    ``KafkaMicroBatchStream.rateLimit`` of Apache Spark 4.2: the limit is shared in proportion to
    what each partition has, in floating point, rounded down; but up where it is less than one, so
    that small partitions do not starve. With more such partitions than offsets to share, the batch
    is larger than the limit.

    Args:
        front: the offset where each partition stands.
        top: the offset up to which each could be read.
        max_offsets: offsets of all partitions together; None is no limit.

    Returns:
        The ends, of the partitions of ``top`` and in their order. One whose top is not beyond its
        front ends there.
    """
    backlog = {
        place: end - front[place]
        for place, end in top.items()
        if place in front and end > front[place]
    }
    total = float(sum(backlog.values()))
    if max_offsets is None or not backlog:
        return dict(top)
    ends = {}
    for place, end in top.items():
        size = backlog.get(place)
        if size is None:
            ends[place] = end
            continue
        share = max_offsets * (size / total)
        ends[place] = min(end, front[place] + (math.ceil(share) if share < 1 else int(share)))
    return ends


def should_wait(
    positions: Mapping[_Place, int],
    available: Mapping[_Place, int],
    *,
    min_offsets: int,
    max_delay_seconds: float,
    seconds_since_batch: float | None,
) -> bool:
    """Whether a trigger should wait until there is more to read (minOffsetsPerTrigger).

    ``KafkaMicroBatchStream.delayBatch`` of Apache Spark 4.2.

    Args:
        positions: where each partition stands; one that is not named stands at 0.
        available: the end of each partition.
        min_offsets: it waits for so many, in all partitions together.
        max_delay_seconds: but not for longer than this (maxTriggerDelay).
        seconds_since_batch: since the last trigger that did not wait; None if there was none, and
            then it does not wait.
    """
    if seconds_since_batch is None or seconds_since_batch >= max_delay_seconds:
        return False
    return sum(end - positions.get(place, 0) for place, end in available.items()) < min_offsets
