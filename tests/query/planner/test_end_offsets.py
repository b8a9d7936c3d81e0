"""Where limited slices ended: what tasks report saves a look into the log, and changes nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.batch import limit_ranges, progress_after
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import NO_HASHES, WHOLE, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.errors import DataLossError, UnknownTopicError
from kshare.options import SourceOptions, parse_options
from kshare.query.planner.end_offsets import EndOffsetResolver
from kshare.query.planner.key_selection import KeySelection
from tests.support.planner import KEYS, T0, Log, Query, grown

REACHED = Progress(10)


def options(**given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t", "maxRecordsPerTask": "5"}
    return parse_options({**base, **given}, streaming=True).options


class Scans:
    """Looks into a log, and remembers for what."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.slices: list[Slice] = []
        self.passes = 0
        self.levels: set[bool] = set()

    def __call__(
        self, limited: Sequence[PlannedSlice], options: SourceOptions
    ) -> Sequence[SliceEnd]:
        assert options.fail_on_data_loss  # or it would count records that no task had
        self.passes += 1
        self.slices += [each.slice for each in limited]
        self.levels.add(options.kafka.read_committed)
        if self.log.subscribed:
            found = [self.log.read(each.slice, each.max_records) for each in limited]
            return [SliceEnd(end, len(offsets)) for offsets, end in found]
        raise UnknownTopicError("t-0: there is no such topic or partition")


def resolver(scans: Scans, **given: str) -> EndOffsetResolver:
    return EndOffsetResolver(options(**given), KeySelection(), scans)


def alone(log: Log, slice_: Slice, max_records: int) -> int:
    """Where a slice ends, by the log; what may be lost comes again."""
    try:
        return log.read(slice_, max_records)[1]
    except DataLossError:
        return min(max(log.first[T0], slice_.offsets.start), slice_.offsets.end)


LIMITS = limit_ranges(T0, REACHED, 90, [(part, 5) for part in split(WHOLE, 4)], NO_HASHES)
LIMITED = [planned for _, planned in LIMITS]
OFFSETS = BatchOffsets({T0: REACHED}, limits={T0: tuple(limit for limit, _ in LIMITS)})


def ends(log: Log) -> dict[Slice, SliceEnd]:
    """What honest tasks report."""
    found = {}
    for planned in LIMITED:
        read, end = log.read(planned.slice, planned.max_records)
        found[planned.slice] = SliceEnd(end, len(read))
    return found


@given(
    st.sets(st.integers(0, 3)),
    st.lists(st.sampled_from([10, 3, 91, 1000]), min_size=4, max_size=4),
    st.sets(st.integers(0, 3)),
    st.booleans(),
)
def test_whatever_is_reported_the_answer_is_that_of_the_log(
    silent: set[int], lies: list[int], liars: set[int], committed: bool
) -> None:
    log = grown(100)
    offsets = replace(OFFSETS, read_committed=committed)
    reported = {}
    for number, (slice_, end) in enumerate(ends(log).items()):
        if number in liars:
            reported[slice_] = replace(end, end=lies[number])
        elif number not in silent:
            reported[slice_] = end
    scans, truth = Scans(log), Scans(log)
    found = resolver(scans).resolve("b", offsets, LIMITED, reported)
    assert found == resolver(truth).resolve("b", offsets, LIMITED, {})
    assert scans.slices == [LIMITED[n].slice for n in range(4) if n in silent | liars]
    assert scans.levels <= {committed}
    # Found ahead of the batch it is the same.
    ahead = resolver(Scans(log)).resolve_ahead({T0: REACHED}, LIMITED)
    assert ahead == found


def test_reports_are_joined_by_the_slice_and_not_by_its_number() -> None:
    log = grown(100)
    reported = dict(reversed(ends(log).items()))
    other = limit_ranges(T0, REACHED, 91, [(WHOLE, 7)], NO_HASHES)[0][1].slice
    scans = Scans(log)
    found = resolver(scans).resolve("b", OFFSETS, LIMITED, {other: SliceEnd(11, 1), **reported})
    assert scans.slices == []
    assert found == resolver(scans).resolve("b", OFFSETS, LIMITED, {})


def test_what_the_log_has_lost_comes_a_second_time(caplog: pytest.LogCaptureFixture) -> None:
    log = grown(100)
    log.first[T0] = 40
    with pytest.raises(DataLossError):
        resolver(Scans(log)).resolve("b", OFFSETS, LIMITED, {})
    lenient = resolver(Scans(log), failOnDataLoss="false")
    found = lenient.resolve("b", OFFSETS, LIMITED, {})
    assert found == {T0: Progress(40)}
    assert caplog.text.count("Going on at offset 40") == 4


@given(st.lists(st.integers(10, 89), min_size=8, max_size=8), st.integers(0, 100))
def test_each_range_has_its_own_answer_if_the_log_has_lost_some(
    fronts: list[int], first: int
) -> None:
    """One that has lost nothing keeps its end; the error is that of the first that has.

    One with no more offsets than it may read records is not looked for: its end is known.
    """
    log = grown(100)
    log.first[T0] = first
    ranges = split(WHOLE, 8)
    reached = Progress.of(
        10,
        [
            Rectangle(OffsetRange(10, front), hashes)
            for front, hashes in zip(fronts, ranges, strict=True)
            if front > 10
        ],
    )
    limits = limit_ranges(T0, reached, 90, [(hashes, 5) for hashes in ranges], NO_HASHES)
    limited = [planned for _, planned in limits]
    slices = [planned.slice for planned in limited]
    scans = Scans(log)
    found = resolver(scans, failOnDataLoss="false").resolve_ahead({T0: reached}, limited)
    unsure = [slice_ for slice_ in slices if len(slice_.offsets) > 5]
    ends = [
        (slice_, alone(log, slice_, 5) if slice_ in unsure else slice_.offsets.end)
        for slice_ in slices
    ]
    assert found == {T0: reached, **progress_after({T0: reached}, ends, KeySelection().unassigned)}
    lost = [slice_ for slice_ in unsure if slice_.offsets.start < first]
    assert scans.passes == bool(unsure) + (len(unsure) if lost and len(unsure) > 1 else 0)
    if lost:
        with pytest.raises(DataLossError) as raised:
            resolver(Scans(log)).resolve_ahead({T0: reached}, limited)
        assert raised.value.wanted == (lost[0].offsets.start, lost[0].offsets.end)


def test_a_slice_that_was_trimmed_does_not_hide_that_another_was_compacted() -> None:
    """The n-th record that is left is a later one than the n-th that the other's task has read."""
    log = grown(100)
    low, high = split(WHOLE, 2)
    reached = Progress.of(10, [Rectangle(OffsetRange(10, 20), high)])
    limits = limit_ranges(T0, reached, 90, [(low, 5), (high, 5)], NO_HASHES)
    limited = [planned for _, planned in limits]
    offsets = BatchOffsets({T0: reached}, limits={T0: tuple(limit for limit, _ in limits)})
    log.first[T0], log.vanished = 15, set(range(25, 60))
    found = EndOffsetResolver(
        options(failOnDataLoss="false"), KeySelection(), Scans(log), lambda topics: topics
    ).resolve("b", offsets, limited, {})
    assert found == {T0: reached}


def test_the_ends_of_a_topic_that_is_gone_are_their_starts() -> None:
    log = grown(100)
    log.subscribed.clear()
    scans = Scans(log)
    found = resolver(scans).resolve("b", OFFSETS, LIMITED, {})
    assert found == {T0: REACHED}
    assert scans.passes == 1


@pytest.mark.parametrize("compacted", [False, True])
def test_a_batch_that_no_limit_can_end_is_one_batch_without_limits(compacted: bool) -> None:
    """No offset has two records. So no empty batch has to say where its tasks ended."""
    log = grown(30, partitions=2)
    log.compacted = compacted
    query = Query(log, keyRanges="3", maxRecordsPerTask="15")
    for _ in range(3):
        tasks = query.trigger()
        assert [task.max_records for task in tasks] == [None] * 6
        assert "limits" not in query.at.get("@kshare", {})
        assert query.trigger() == ()
        log.grow(KEYS)
    query.drain()
    query.check_all()
    assert query.scans == 0  # also of the compacted topic


def test_an_empty_batch_says_where_limited_tasks_ended() -> None:
    """Later the log may not hold what would have to be looked at."""
    query = Query(grown(40), keyRanges="2", maxRecordsPerTask="30")
    assert query.trigger()
    limited = query.at
    assert not query.trigger()
    assert (query.at == limited, query.at) == (False, {"t": {"0": 40}})
    query.log.first[T0] = 40
    query.restart()
    assert not query.trigger()
    query.check_all()
