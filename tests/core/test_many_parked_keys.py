"""Open batches of which many keys are parked: each parked key cuts a range once more.

What is read is what a plain rule says, which looks at each pair of stretches. That rule takes
minutes for as many keys as an end may have; what is done with a range is linear in them.
"""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges
from kshare.core.offsets import OFFSET_MAX, OffsetRange, within
from kshare.core.open_batch import (
    RangeReader,
    Step,
    done_slices,
    no_ends,
    open_ranges,
    reached,
)
from kshare.core.open_entry import LogPosition, OpenBatch, OpenRange
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, RangeEnds, decode_end, encode_end
from kshare.core.region import Rectangle, Stripe
from kshare.core.slicing import PartitionLoad, plan_by_key
from tests.support.effort import calls_below

T0 = TopicPartition("t", 0)
SPACE = 16
"""Laws are looked at where hashes are few; the space goes on behind them."""

offsets = st.integers(0, 9)
hash_ranges = st.tuples(st.integers(0, SPACE - 1), st.integers(1, 6)).map(
    lambda pair: HashRange(pair[0], pair[0] + pair[1])
)


# -- the plain rules -----------------------------------------------------------------------------


def plain_between(each: OpenRange, begin: RangeEnd, end: RangeEnd) -> list[Slice]:
    """Each part of an end beside each of the other, and beside each stripe."""
    stripes = [
        Stripe(part, bounds)
        for ours, low in begin.parts
        for theirs, high in end.parts
        for stripe in each.slice.stripes
        if (bounds := within(stripe.bounds, low, high))
        for part in ours & theirs & (stripe.hashes,)
    ]
    return [Slice(*T0, stripes=stripes)] if stripes else []


def plain_beside(one: RangeEnd, two: RangeEnd) -> list[tuple[KeyRanges, int, int]]:
    """Each part of an end beside each of the other."""
    return [
        (both, low, high)
        for ours, low in one.parts
        for theirs, high in two.parts
        if (both := ours & theirs)
    ]


@st.composite
def open_range(draw: st.DrawFn) -> OpenRange:
    """A range that may have holes, of a partition whose hashes stand at different offsets."""
    pieces = [
        Rectangle(OffsetRange(at, at + 2), draw(hash_ranges))
        for at in draw(st.lists(offsets, max_size=4))
    ]
    hashes = KeyRanges([draw(hash_ranges), *draw(st.lists(hash_ranges, max_size=4))])
    batch = OpenBatch("b", 1, "ends", LogPosition(0, 0), {T0: (hashes,)})
    (each,) = open_ranges(batch, {T0: Progress.of(draw(offsets), pieces)})
    return each


@st.composite
def some_end(draw: st.DrawFn, hashes: KeyRanges) -> RangeEnd:
    """An end of some hashes, each with an offset of its own at worst."""
    points = [point for part in hashes for point in range(part.lo, part.hi)]
    ends = draw(st.lists(offsets, min_size=len(points), max_size=len(points)))
    pairs = zip(points, ends, strict=True)
    return RangeEnd(tuple((KeyRanges.of_hashes([point]), end) for point, end in pairs))


@given(st.data())
def test_ranges_are_read_as_the_plain_rule_says(data: st.DataObject) -> None:
    each = data.draw(open_range())
    begin, end = (data.draw(some_end(each.hashes)) for _ in range(2))
    assert done_slices(each, end) == plain_between(each, RangeEnd.at(each.hashes, 0), end)
    held = KeyRanges(data.draw(st.lists(hash_ranges, max_size=4)))
    reader = RangeReader(each, begin, held)
    assert RangeReader(each, begin, held, end).rest == plain_between(each, begin, end)
    following = each.hashes - held
    assert reader.rest == (
        plain_between(each, begin, RangeEnd.at(following, OFFSET_MAX)) if following else []
    )


@given(st.data())
def test_ends_are_compared_as_the_plain_rule_says(data: st.DataObject) -> None:
    each = data.draw(open_range())
    one, two = (data.draw(some_end(each.hashes)) for _ in range(2))
    beside = plain_beside(one, two)
    assert one.cut(two) == RangeEnd(tuple((both, min(low, high)) for both, low, high in beside))
    assert one.is_within(two) == all(low <= high for _, low, high in beside)


@given(st.data())
def test_what_handlers_hold_is_not_handed_over(data: st.DataObject) -> None:
    each = data.draw(open_range())
    delivered = data.draw(some_end(each.hashes))
    firsts = data.draw(st.dictionaries(st.integers(0, SPACE + 6), offsets, max_size=6))
    after = RangeReader(each, delivered).hold(firsts).delivered
    before = dict(delivered.by_hash)
    assert after.hashes == each.hashes
    for part, offset in after.by_hash:
        for point in range(part.lo, part.hi):
            at = next(end for cut, end in before.items() if point in cut)
            assert offset == min(at, firsts.get(point, OFFSET_MAX))


# -- the cost ------------------------------------------------------------------------------------

MANY = 10_000
PARKED = KeyRanges.of_hashes(number * 100_003 for number in range(MANY))
BATCH = OpenBatch("b", 1, "ends", LogPosition(0, 0), {T0: (ALL_HASHES,)})
BEGIN = {T0: Progress.at(0)}
CALLS = 500 * MANY
"""Calls of a step, at most; it has some hundreds for each key. Of pairs there are 400,000,000."""


def ends_of(each: OpenRange, end: RangeEnd) -> RangeEnds:
    return no_ends([each]).read([(EndKey(each.id, "a"), end)])


@cache
def parked_batch() -> tuple[Progress, OpenRange, RangeEnd]:
    """A batch after one amid which many keys were parked; they still are.

    Returns:
        Where it begins: at 5 of these keys, at 9 of all others; its range; where it has read to 12.
    """
    (each,) = open_ranges(BATCH, BEGIN)
    end = RangeReader.of(each).deliver_to(5).park(PARKED).deliver_to(9).delivered
    after = reached([each], BEGIN, ends_of(each, end), lambda _: NO_HASHES)
    (each,) = open_ranges(BATCH, after)
    return after[T0], each, RangeReader.of(each).park(PARKED).deliver_to(12).delivered


def reads() -> None:
    """A task that has just begun, and one that parks once more."""
    reader = RangeReader.of(parked_batch()[1]).park(PARKED)
    assert reader.rest
    assert reader.deliver_to(12).rest


def reads_again() -> None:
    """Another attempt has ended."""
    _, each, end = parked_batch()
    reader = RangeReader.of(each).look(ends_of(each, end))
    assert reader.rest
    assert reader.deliver_to(OFFSET_MAX).step is Step.END


def goes_on() -> None:
    """The next batch is planned."""
    before, each, end = parked_batch()
    after = reached([each], {T0: before}, ends_of(each, end), lambda _: NO_HASHES)
    assert after[T0].position_of(PARKED) == 5
    assert after[T0].front == 12


def plans() -> None:
    """A batch that has an end, cut into as many ranges."""
    load = PartitionLoad(*T0, parked_batch()[0].pending(20))
    others = KeyRanges.of_hashes(range(2, 10 * MANY, 10))
    tiling = sorted([*others, *(ALL_HASHES - others)])
    assert plan_by_key([load], lambda _: {T0: tiling}, min_tasks=None, key_ranges=1)


@pytest.mark.parametrize("step", [reads, reads_again, goes_on, plans])
def test_a_step_is_linear_in_parked_keys(step: Callable[[], None]) -> None:
    parked_batch()
    with calls_below(CALLS):
        step()


def test_ends_of_many_parts_are_compared_in_one_pass() -> None:
    """Handlers that wait hold a key each, at an offset of its own."""
    (each,), held = open_ranges(BATCH, BEGIN), [*PARKED][:900]
    firsts = {part.lo: number for number, part in enumerate(held)}
    with calls_below(CALLS // 10):
        reader = RangeReader.of(each).deliver_to(MANY).hold(firsts)
        assert len(reader.delivered.parts) == 901
        bound = decode_end(encode_end(reader.delivered))
        assert reader.delivered.is_within(bound)
        assert reader.delivered.cut(bound) == bound
