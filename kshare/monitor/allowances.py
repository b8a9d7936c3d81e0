"""The records that a query allows its ranges in a batch, as a measure of how slow each of them is.

With ``targetTaskDuration``, a range may read as many records as it has processed in that time. So
the limits in the checkpoint say which ranges are slow, but not how many seconds a record takes.
They say nothing where all limits are alike (``maxRecordsPerTask``, a start), or where the query has
no times of its tasks: there, all limits change by the same factor from batch to batch.

Guarantees: a range is called measured only if the batch before read it, too, and its limit has not
risen much since.
Cost: linear in the limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final, TypeAlias

from kshare.core.checkpoint import RangeLimit
from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.core.range_speed import FIRST_LIMIT
from kshare.errors import CheckpointError
from kshare.monitor.offset_log import OffsetLog

__all__ = ["BATCHES", "Allowances", "Limits", "measured_allowances", "read_limits"]

BATCHES: Final = 12
"""How many of the newest batches are looked at: a query measures all ranges every tenth."""

_EXACT: Final = 1 + 1e-6  # quotients are rounded, too
_RISING: Final = 2

Limits: TypeAlias = Mapping[TopicPartition, Sequence[RangeLimit]]
"""The limits of a source's batch."""

_Records: TypeAlias = Mapping[tuple[TopicPartition, HashRange], int]


@dataclass(frozen=True, slots=True)
class Allowances:
    """The records that a source's ranges may read in the same time.

    Attributes:
        measured: By partition and range (from the first hash to the last): the records of ranges
            that were measured. A range whose limit still rises is none: it may be faster.
        most: The most that any range was allowed since the query has started; 0 if nothing was
            measured.
    """

    measured: _Records = field(default_factory=dict)
    most: int = 0


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
    """The records that ranges may read, by what the query has measured.

    Args:
        batches: The limits of a source's batches, newest first.
    """
    known: list[_Records] = []
    for batch in batches:
        known.append({(tp, r.hashes.span): r.records for tp, each in batch.items() for r in each})
        if _is_start(known[-1]):
            break
    steps = [(older, newer) for newer, older in pairwise(known)]
    if not any(_shows_times(older, newer) for older, newer in steps):
        return Allowances()
    before, newest = steps[0]
    measured = {
        where: records
        for where, records in newest.items()
        if where in before and records != FIRST_LIMIT and records <= _RISING * before[where]
    }
    return Allowances(measured, max(max(each.values(), default=0) for each in known))


def _is_start(limits: _Records) -> bool:
    """True if nothing was known of the ranges, or limits are those of the user."""
    return set(limits.values()) == {FIRST_LIMIT} or len(limits) > len(set(limits.values())) == 1


def _shows_times(older: _Records, newer: _Records) -> bool:
    """True if limits have changed as they do only where times of tasks are known.

    Else all are multiplied by one factor and rounded down, to 1 at least, and to a common maximum
    at most.
    """
    most = max(newer.values(), default=0)
    steps = [(older[where], records) for where, records in newer.items() if where in older]
    least = max((after / before for before, after in steps if after > 1), default=0.0)
    below = min(((after + 1) / before for before, after in steps if after < most), default=inf)
    return least > _EXACT * below
