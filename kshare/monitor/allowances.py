"""The records that a query allows its ranges in a batch, as a measure of how slow each of them is.

With ``targetTaskDuration``, a range may read as many records as it has processed in that time. So
the limits in the checkpoint say which ranges are slow, but not how many seconds a record takes.
They say nothing where all limits are alike (``maxRecordsPerTask``, a start), or where the query has
no times of its tasks: there, all limits change by the same factor from batch to batch.

Guarantees: a range is called measured only if the batch before read it, too.
Cost: linear in the limits.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final, TypeAlias

from kshare.core.checkpoint import RangeLimit
from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import CheckpointError
from kshare.monitor.offset_log import OffsetLog

__all__ = ["BATCHES", "Allowances", "Limits", "measured_allowances", "read_limits"]

BATCHES: Final = 12
"""How many of the newest batches are looked at: a query measures all ranges every tenth."""

_EXACT: Final = 1 + 1e-6  # quotients are rounded, too

Limits: TypeAlias = Mapping[TopicPartition, Sequence[RangeLimit]]
"""The limits of a source's batch."""

Allowances: TypeAlias = Mapping[tuple[TopicPartition, HashRange], int]
"""Numbers of records by partition and range (from the first hash to the last)."""


def read_limits(directory: str, source: int) -> list[Limits]:
    """The limits of a source's newest batches, newest first.

    Args:
        directory: The query's ``checkpointLocation``.
        source: Number of the source.

    Raises:
        CheckpointError: There is no checkpoint.
    """
    log = OffsetLog.open(directory)
    found: list[Limits] = []
    for batch in range(log.planned, log.planned - BATCHES, -1):
        try:
            offsets = log.offsets(batch).get(source) if log.has(batch) else None
        except CheckpointError:  # of an older query, or deleted meanwhile
            offsets = None
        if offsets is None:
            break
        found.append(offsets.limits)
    return found


def measured_allowances(batches: Sequence[Limits]) -> Allowances:
    """The records that ranges may read by what the query has measured; empty if it has not.

    Args:
        batches: The limits of a source's batches, newest first.
    """
    by_range = [
        {(tp, each.hashes.span): each.records for tp, limits in batch.items() for each in limits}
        for batch in batches
    ]
    if len(by_range) < 2 or not any(
        _shows_times(older, newer) for newer, older in pairwise(by_range)
    ):
        return {}
    newest, before = by_range[:2]
    if len(set(newest.values())) < 2:  # as after a start
        return {}
    return {where: records for where, records in newest.items() if where in before}


def _shows_times(older: Allowances, newer: Allowances) -> bool:
    """True if limits have changed as they do only where times of tasks are known.

    Else all are multiplied by one factor and rounded down, to 1 at least, and to a common maximum
    at most.
    """
    most = max(newer.values(), default=0)
    steps = [(older[where], records) for where, records in newer.items() if where in older]
    least = max((after / before for before, after in steps if after > 1), default=0.0)
    below = min(((after + 1) / before for before, after in steps if after < most), default=inf)
    return least > _EXACT * below
