"""The speed of each key range of a partition: what is known of it, and what follows from that.

Guarantees: limits are integers of at least 1, and a function of the arguments alone. A limit grows
32-fold at most from one batch to the next, and shrinks at once.
Cost: linear in the ranges (a range that was not there before looks at those that it overlaps).

Time per record is learned from tasks whose end was seen. That costs a new worker, so it is done
only when there is something to learn; in between, the time of whole batches says whether the
estimates still hold.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kshare.core.hashing import HashRange
from kshare.core.slicing import RangeObservation

__all__ = [
    "FIRST_LIMIT",
    "MEASURE_ALL_EVERY",
    "SLOW",
    "RangeSpeed",
    "learn",
    "next_limits",
    "ranges_to_measure",
]

FIRST_LIMIT: Final = 256
"""The limit of a range of which nothing is known."""

GROWTH: Final = 32
"""Maximum factor between a limit and the last one."""

SLOW: Final = 1.5
"""A batch that took more than this many times its target has estimates that do not hold."""

MEASURE_EVERY: Final = 2
"""In batches: how often a range is measured that its estimate holds back. That one range of several
has become faster shows in nothing else."""

MEASURE_ALL_EVERY: Final = 10
"""In batches: how often all ranges are measured while nothing changes."""

_BLIND_GROWTH: Final = 2  # of ranges whose tasks tell no times
_BLIND_LIMIT_MAX: Final = 1 << 20
_LIMIT_MAX: Final = 2**63 - 1
_CHANGED: Final = 1.5  # a limit that moved so far rests on an estimate worth another look
_MEASURING_SECONDS: Final = 0.75  # a new worker
_MEASURING_SHARE: Final = 0.05  # of the target, at most
_SHORT: Final = 0.05  # of the target: mostly the start of a task, not its records
_SHORT_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class RangeSpeed:
    """The estimated speed of a range.

    Attributes:
        hashes: The range.
        limit: Number of records that it may read in a batch; at least 1.
        seconds_per_record: The estimate, by the last measurement, or as whole batches have
            corrected it since; None if there was none.
        sample: Key hashes of the records that were measured, ascending; may be empty.
        is_guess: Whether the estimate is that of other ranges; this one was never measured.
    """

    hashes: HashRange
    limit: int
    seconds_per_record: float | None = None
    sample: tuple[int, ...] = ()
    is_guess: bool = False


def learn(
    speeds: Sequence[RangeSpeed],
    measured: Sequence[RangeObservation],
    *,
    target_seconds: float | None,
) -> tuple[RangeSpeed, ...]:
    """Take in how long the tasks of one partition took.

    The last measurement counts, and no average of several: keys change their speed for good. But a
    short task may slow its range down 4-fold at most, since most of its time was that of its start.

    Args:
        speeds: What was known, by range.
        measured: Measured tasks. Those without a record are ignored, and so are ranges that are not
            in ``speeds``.
        target_seconds: How long a task should take; None if that is not wanted.

    Returns:
        What is known now, in the order of ``speeds``.
    """
    by_range = {seen.hashes: seen for seen in measured}
    learned = []
    for speed in speeds:
        seen = by_range.get(speed.hashes)
        if seen is None or seen.seconds is None or not seen.records:
            learned.append(speed)
            continue
        each, before = seen.seconds / seen.records, speed.seconds_per_record
        is_short = target_seconds is not None and seen.seconds < _SHORT * target_seconds
        if before is not None and is_short:
            each = min(each, _SHORT_GROWTH * before)
        learned.append(replace(speed, seconds_per_record=each, sample=seen.sample, is_guess=False))
    return tuple(learned)


def next_limits(
    parts: Sequence[HashRange],
    speeds: Sequence[RangeSpeed],
    *,
    target_seconds: float,
    batch_seconds: float | None,
    max_records: int | None,
) -> tuple[RangeSpeed, ...]:
    """The number of records that each range of a partition may read in the next batch.

    As many as fit into the target by the last estimate; at most 32 times the last limit, at least
    1; 256 of a range of which nothing is known. If the last batch took more than 1.5 times the
    target, all limits are scaled down by the same factor.

    A range that is merged from others starts from the slowest of them. A range that is cut out of
    another may hold its slow key: it starts as if all the time of that range had been spent on it,
    by its part of the sample, and from 256 at most if there is no sample.

    Args:
        parts: The ranges of the next batch, ascending, disjoint.
        speeds: What is known of the ranges of the last one, ascending, disjoint.
        target_seconds: How long a task should take.
        batch_seconds: How long the last batch took; None if a task that was measured is why.
        max_records: Maximum of any limit (``maxRecordsPerTask``); None for none.

    Returns:
        The limits, in the order of ``parts``.
    """
    known = {speed.hashes: speed for speed in speeds}
    firsts = [speed.hashes.lo for speed in speeds]
    coming = []
    for hashes in parts:
        most = _LIMIT_MAX if max_records is None else max_records
        before = known.get(hashes)
        if before is None:
            before, is_blind = _inherited(hashes, speeds, firsts)
            most = min(most, FIRST_LIMIT) if is_blind else most
        if before is None:
            speed = RangeSpeed(hashes, FIRST_LIMIT)
        elif before.seconds_per_record is None:
            speed = _by_batches(before, target_seconds, batch_seconds)
        else:
            speed = _by_estimate(before, before.seconds_per_record, target_seconds, batch_seconds)
        coming.append(replace(speed, limit=max(min(speed.limit, most), 1)))
    return tuple(coming)


def ranges_to_measure(
    speeds: Sequence[RangeSpeed],
    before: Sequence[RangeSpeed],
    *,
    target_seconds: float,
    batch_seconds: float | None,
    full: Collection[HashRange],
    batches_unmeasured: int,
    batches_since_all: int,
) -> frozenset[HashRange]:
    """The ranges of a partition whose tasks should be measured in the next batch.

    All of them, if the last batch took more than 1.5 times the target. As long as limits are what
    ends tasks, also if it was that much faster than each of its ranges should have been, and ten
    batches after all were measured. Otherwise: those that are new, those whose limits have moved
    (an estimate from few records is not worth much for many), those that a guess holds back, and
    every other one of those that their estimate holds back, in turn (fewer if the target is below
    7.5 s: a measured task costs a new worker).

    Args:
        speeds: The limits of the next batch.
        before: The limits of the last one.
        target_seconds: How long a task should take.
        batch_seconds: How long the last batch took; None if there was none.
        full: The ranges whose tasks a limit ended.
        batches_unmeasured: Number of batches since one with a measured task.
        batches_since_all: Number of batches since one of which each task was measured. It says
            whose turn it is, so that a range that is measured again and again does not keep the
            others waiting.
    """
    every = frozenset(speed.hashes for speed in speeds)
    if batch_seconds is not None and batch_seconds > SLOW * target_seconds:
        return every
    if full and (_was_fast(before, batch_seconds) or _is_time(batches_since_all)):
        return every
    known = {speed.hashes: speed for speed in before}
    turns = _turns(target_seconds)
    return frozenset(
        speed.hashes
        for number, speed in enumerate(speeds)
        if _is_unsure(speed, known.get(speed.hashes), were_measured=not batches_unmeasured)
        or (speed.is_guess and speed.hashes in full)
        or (
            (number - batches_since_all) % turns == 1
            and speed.hashes in full
            and _is_held_back(speed, target_seconds)
        )
    )


def _was_fast(before: Sequence[RangeSpeed], batch_seconds: float | None) -> bool:
    """True if a batch was faster than any of its ranges that read up to its limit should be."""
    if batch_seconds is None:
        return False
    times = [s.limit * s.seconds_per_record for s in before if s.seconds_per_record is not None]
    return SLOW * batch_seconds < min(times, default=0.0)


def _is_time(batches: int) -> bool:
    return batches % MEASURE_ALL_EVERY == MEASURE_ALL_EVERY - 1


def _turns(target_seconds: float) -> int:
    """After how many batches it is a range's turn again."""
    affordable = _MEASURING_SECONDS / (_MEASURING_SHARE * target_seconds)
    return round(min(max(affordable, MEASURE_EVERY), MEASURE_ALL_EVERY))


def _is_held_back(speed: RangeSpeed, target_seconds: float) -> bool:
    """True if its estimate limits a range, and not the user or how fast limits may grow."""
    each = speed.seconds_per_record
    return each is not None and SLOW * speed.limit * each >= target_seconds


def _is_unsure(speed: RangeSpeed, before: RangeSpeed | None, *, were_measured: bool) -> bool:
    """True if a range's speed is worth a measurement.

    Args:
        speed: The range.
        before: The same in the last batch; None if it is new.
        were_measured: Whether any task of the last batch was measured.
    """
    if before is None:
        return True
    if speed.seconds_per_record is None:
        # If none was, this one should have been, and its task did not report: do not ask each time.
        return were_measured
    return not 1 / _CHANGED <= speed.limit / before.limit <= _CHANGED


def _by_estimate(
    before: RangeSpeed, each: float, target_seconds: float, batch_seconds: float | None
) -> RangeSpeed:
    """The records that fit into the target."""
    if batch_seconds is not None and batch_seconds > SLOW * target_seconds:
        # Kept in the estimate, or the batch after the next would be as slow as this one.
        each = max(each, target_seconds / before.limit) * batch_seconds / target_seconds
    fitting = target_seconds / each if each > 0 else float(_LIMIT_MAX)
    limit = min(int(min(fitting, float(_LIMIT_MAX))), GROWTH * before.limit)
    return replace(before, limit=limit, seconds_per_record=each)


def _by_batches(
    before: RangeSpeed, target_seconds: float, batch_seconds: float | None
) -> RangeSpeed:
    """The limit that whole batches suggest, where tasks report no times.

    It grows slowly: a batch may also be short because there was little to read.
    """
    limit = before.limit
    if batch_seconds is None:
        return before
    if batch_seconds > SLOW * target_seconds:
        limit = int(limit * target_seconds / batch_seconds)
    elif batch_seconds * SLOW < target_seconds and limit < _BLIND_LIMIT_MAX:
        growth = min(target_seconds / max(batch_seconds, 1e-9), _BLIND_GROWTH)
        limit = min(int(limit * growth), _BLIND_LIMIT_MAX)
    return RangeSpeed(before.hashes, limit)


def _inherited(
    hashes: HashRange, speeds: Sequence[RangeSpeed], firsts: Sequence[int]
) -> tuple[RangeSpeed | None, bool]:
    """The speed that a new range may have, by the slowest of the ranges that it overlaps.

    Returns:
        The speed, None if it overlaps none; and whether it has a part of one of them that has no
        sample, so that its share of the records is not known.
    """
    first = max(bisect_right(firsts, hashes.lo) - 1, 0)
    last = bisect_right(firsts, hashes.hi - 1)
    parents = [s for s in speeds[first:last] if s.hashes.intersect(hashes) is not None]
    if not parents:
        return None, False
    is_blind = any(not s.sample and s.hashes.intersect(hashes) != s.hashes for s in parents)
    times = [each for s in parents if (each := _worst(s, hashes)) is not None]
    limit = min(parent.limit for parent in parents)
    guess = max(times, default=None)
    return RangeSpeed(hashes, limit, guess, is_guess=guess is not None), is_blind


def _worst(parent: RangeSpeed, hashes: HashRange) -> float | None:
    """Seconds per record of the part of another range that a range takes, in the worst case.

    The worst case is that all the time was spent on that part.
    """
    each, shared = parent.seconds_per_record, parent.hashes.intersect(hashes)
    if each is None or not parent.sample or shared is None or shared == parent.hashes:
        return each
    seen = bisect_left(parent.sample, shared.hi) - bisect_left(parent.sample, shared.lo)
    return each * len(parent.sample) / max(seen, 1)
