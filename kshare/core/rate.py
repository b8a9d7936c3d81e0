"""The rate of batches: how many records each range may read, so that a task takes the target time.

What is known after a batch is one value, and nothing is learned in between::

    LastBatch --plan_limits--> PlannedLimits --the batch runs--> observations
        ^                                                             |
        +-------------------------- learn_from -----------------------+

:mod:`kshare.core.range_speed` has the rules for the ranges of one partition.
Cost: linear in the ranges.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.core.range_speed import (
    MEASURE_ALL_EVERY,
    SLOW,
    RangeSpeed,
    learn,
    next_limits,
    ranges_to_measure,
)
from kshare.core.slicing import RangeObservation

__all__ = ["LastBatch", "PlannedLimits", "learn_from", "plan_limits"]

_TRY_OTHER = 2  # halves limits, or doubles one of 1


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The ranges and task times of a batch that has run.

    Attributes:
        seconds: How long its tasks took together; None before the first batch.
        overhead: Seconds of a batch beside its slowest task, such as a trigger's interval or what
            the driver does: no limit makes that shorter. Known once each task was measured; where
            tasks tell no times, once other limits have shown it.
        limit: The largest limit of it; 0 if it had none.
        is_split: Whether a smaller limit has shown how much of the time is overhead.
        slowest: How long the slowest task took that was measured; 0 if none was.
        unmeasured: Number of batches since one with a measured task.
        since_all: Number of batches since one of which each task was measured.
        speeds: The speeds of each partition's ranges, ascending.
        observed: What tasks have reported of each partition's ranges, ascending.
        full: The ranges whose tasks a limit ended.
    """

    seconds: float | None = None
    overhead: float = 0.0
    limit: int = 0
    is_split: bool = False
    slowest: float = 0.0
    unmeasured: int = 0
    since_all: int = 0
    speeds: Mapping[TopicPartition, tuple[RangeSpeed, ...]] = field(default_factory=dict)
    observed: Mapping[TopicPartition, tuple[RangeObservation, ...]] = field(default_factory=dict)
    full: Mapping[TopicPartition, frozenset[HashRange]] = field(default_factory=dict)

    def of(self, partitions: Collection[TopicPartition]) -> "LastBatch":
        """The same, of some partitions alone."""
        return replace(
            self,
            speeds={tp: known for tp, known in self.speeds.items() if tp in partitions},
            observed={tp: known for tp, known in self.observed.items() if tp in partitions},
            full={tp: known for tp, known in self.full.items() if tp in partitions},
        )


@dataclass(frozen=True, slots=True)
class PlannedLimits:
    """The limits of a batch.

    Attributes:
        speeds: The ranges of each partition with their limits, in the order they were asked for.
        measured: The ranges whose tasks should be measured.
    """

    speeds: Mapping[TopicPartition, tuple[RangeSpeed, ...]] = field(default_factory=dict)
    measured: Mapping[TopicPartition, frozenset[HashRange]] = field(default_factory=dict)

    def by_range(self, partition: TopicPartition) -> tuple[tuple[HashRange, int], ...]:
        """A partition's ranges with their limits, ascending; empty if it has none."""
        return tuple((speed.hashes, speed.limit) for speed in self.speeds.get(partition, ()))


def plan_limits(
    last: LastBatch,
    ranges: Mapping[TopicPartition, Sequence[HashRange]],
    *,
    target_seconds: float | None,
    max_records: int | None,
) -> PlannedLimits:
    """The limits of the next batch.

    Args:
        last: What is known.
        ranges: The ranges of the next batch by partition, ascending, disjoint.
        target_seconds: How long a task should take (``targetTaskDuration``); None: every limit is
            ``max_records``.
        max_records: Maximum of any limit (``maxRecordsPerTask``); None for none, and then
            ``target_seconds`` is not None.
    """
    if target_seconds is None:
        assert max_records is not None
        limits = {
            tp: tuple(RangeSpeed(hashes, max_records) for hashes in parts)
            for tp, parts in ranges.items()
        }
        return PlannedLimits(limits)
    # How long the batch took, unless a task that was measured is why.
    unexplained = last.seconds
    if not last.unmeasured and last.slowest * SLOW >= (unexplained or 0.0):
        unexplained = None
    elif _may_have_waited(last, target_seconds):
        tried = _TRY_OTHER if last.limit > 1 else 1 / _TRY_OTHER
        unexplained = tried * target_seconds
    coming = {
        tp: next_limits(
            parts,
            last.speeds.get(tp, ()),
            target_seconds=target_seconds,
            batch_seconds=unexplained,
            max_records=max_records,
        )
        for tp, parts in ranges.items()
    }
    measured = {
        tp: ranges_to_measure(
            speeds,
            last.speeds.get(tp, ()),
            target_seconds=target_seconds,
            batch_seconds=last.seconds,
            full=last.full.get(tp, ()),
            batches_unmeasured=last.unmeasured,
            batches_since_all=last.since_all,
        )
        for tp, speeds in coming.items()
    }
    return PlannedLimits(coming, measured)


def learn_from(
    last: LastBatch,
    limits: PlannedLimits,
    observed: Mapping[TopicPartition, Sequence[RangeObservation]],
    *,
    tasks: int,
    seconds: float,
    target_seconds: float | None,
) -> LastBatch:
    """Take in what the tasks of a batch have reported.

    Args:
        last: What was known before it.
        limits: Its limits; empty if they are not known, or there were none.
        observed: What its tasks have reported, by partition.
        tasks: Number of tasks of the batch.
        seconds: How long it took, until the next one is planned.
        target_seconds: How long a task should take; None if that is not wanted.
    """
    times = {
        tp: [seen for seen in ranges if seen.seconds is not None] for tp, ranges in observed.items()
    }
    times = {tp: measured for tp, measured in times.items() if measured}
    speeds = {**last.speeds, **limits.speeds}
    for tp, measured in times.items():
        known = speeds.get(tp, ())
        speeds[tp] = learn(known, measured, target_seconds=target_seconds)
    slowest = max((s.seconds or 0.0 for ranges in times.values() for s in ranges), default=0.0)
    is_whole = sum(map(len, times.values())) == tasks
    limit = max((s.limit for ranges in limits.speeds.values() for s in ranges), default=0)
    shown = None
    if times and is_whole:
        overhead = max(seconds - slowest, 0.0)
    elif times or _have_estimates(limits.speeds):
        overhead = last.overhead
    else:
        shown = _overhead_by_limits(last, limit, seconds)
        overhead = min(last.overhead, seconds) if shown is None else shown
    merged = {tp: _merged(last.observed.get(tp, ()), ranges) for tp, ranges in observed.items()}
    full = {
        tp: frozenset(seen.hashes for seen in ranges if seen.is_full)
        for tp, ranges in observed.items()
    }
    return LastBatch(
        seconds=max(seconds - overhead, slowest),
        overhead=overhead,
        limit=limit,
        is_split=last.is_split or (shown is not None and limit < last.limit),
        slowest=slowest,
        unmeasured=0 if times else last.unmeasured + 1,
        since_all=0 if is_whole else last.since_all + 1,
        speeds=speeds,
        observed={**last.observed, **merged},
        full=full,
    )


def _have_estimates(ranges: Mapping[TopicPartition, tuple[RangeSpeed, ...]]) -> bool:
    """True if the speed of any range is known."""
    return any(s.seconds_per_record is not None for speeds in ranges.values() for s in speeds)


def _may_have_waited(last: LastBatch, target_seconds: float) -> bool:
    """True if a batch took its target, and nothing has shown that this was the time of its tasks.

    A trigger's interval may be as long as the target. Then limits would stay as they are for ever.
    What was shown once is looked at again now and then: what a smaller limit saves, records may
    have saved that became faster, or a batch before that was late by chance.
    """
    return (
        last.seconds is not None
        and target_seconds <= last.seconds * SLOW <= SLOW * SLOW * target_seconds
        and last.limit > 0
        and not (last.is_split and last.unmeasured % MEASURE_ALL_EVERY)
        and not _have_estimates(last.speeds)
    )


def _overhead_by_limits(last: LastBatch, limit: int, seconds: float) -> float | None:
    """The time that a batch takes whatever its limits are, where tasks tell no times.

    When limits have become smaller, the time that this has saved tells what a record takes. What is
    left is no time of records. Each such batch tells it anew, as the last ones may have been wrong:
    records may have become slower at the same time. When limits have become larger, what this has
    cost tells that less is overhead than was believed: a trigger hides the time of small batches.

    Args:
        last: The batch before.
        limit: The largest limit of this one.
        seconds: How long it took.

    Returns:
        Seconds; None if limits have not changed, or larger ones have cost nothing.
    """
    if last.seconds is None or not limit or not last.limit:
        return None
    more = seconds - last.seconds - last.overhead
    if limit * SLOW <= last.limit:
        return max(seconds - max(-more, 0.0) / (last.limit - limit) * limit, 0.0)
    if last.limit * SLOW <= limit and more > 0:
        return min(last.overhead, max(seconds - more / (limit - last.limit) * limit, 0.0))
    return None


def _merged(
    before: Sequence[RangeObservation], new: Sequence[RangeObservation]
) -> tuple[RangeObservation, ...]:
    """New observations, with the speed of the last measured batch where they have none.

    Ranges that had no task in this batch keep what was known of them.
    """
    known = {seen.hashes: seen for seen in before}
    merged = []
    for seen in new:
        old = known.get(seen.hashes)
        if seen.seconds is None and old is not None and old.seconds is not None and old.records:
            seconds = old.seconds / old.records * seen.records
            seen = replace(seen, seconds=seconds)  # noqa: PLW2901
        merged.append(seen)
    now = KeyRanges(seen.hashes for seen in merged)
    kept = [old for old in before if not now.overlapping(old.hashes)]
    return tuple(sorted([*merged, *kept], key=lambda seen: seen.hashes.lo))
