"""What is handed out of leased chunks, and what of it is processed."""

from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.offsets import Bounds, length, subtract, union
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.group.core import delivery as core_delivery
from kshare.group.core import handed_out, kept_rows, open_chunks, shared_deliveries, shared_delivery
from kshare.group.core.left_out import LeftOut
from kshare.group.core.shared_deliveries import SharedDeliveries
from kshare.group.core.shared_delivery import SharedDelivery
from kshare.group.delivery.dispatcher import delivery_metrics
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Chunk
from kshare.group.protocol.owners.leases import Share
from tests.support.interrupts import Interrupt, interrupt

T0 = TopicPartition("orders", 0)
MODULES = (shared_delivery, core_delivery, handed_out, open_chunks, kept_rows)


def all_count(_: TopicPartition, __: DeliveryStart) -> bool:
    """What was handed out counts, whatever start it is of."""
    return True


def chunk(*offsets: int, at_ms: int = 0) -> Chunk:
    columns = {
        "key": pa.nulls(len(offsets), pa.binary()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([at_ms * 1_000] * len(offsets), pa.timestamp("us", "UTC")),
    }
    return Chunk(T0, pa.RecordBatch.from_pydict(columns))


def share(*held: int, done: int = 0) -> Share:
    return Share(held, Progress.at(done), 1_000)


def is_handed_out(each: SharedDelivery) -> bool:
    return each.is_handed_out


def delivery(*, explicit: bool = False) -> SharedDelivery:
    return SharedDelivery(T0, DeliveryStart.new(Progress.at(0)), explicit=explicit)


def processed(each: SharedDelivery) -> Bounds:
    return each.processed_offsets(is_batch=False)


def test_parts_are_read_one_after_the_other() -> None:
    each = delivery()
    assert is_handed_out(each)
    each.update(share(0, 10))
    assert each.has_new
    each.next_part()
    assert each.wanted(1 << 62) == (Stripe(WHOLE, (0, 10)),)
    each.update(share(0, 10, 40, 50))
    assert each.has_new
    assert not is_handed_out(each)
    each.hand_out(chunk(*range(10)), 10)
    assert is_handed_out(each)
    each.next_part()
    assert each.wanted(1 << 62) == (Stripe(WHOLE, (40, 50)),)
    assert not each.has_new


def test_what_others_have_is_not_processed() -> None:
    each = delivery()
    each.update(share(0, 10, 40, 50))
    each.next_part()
    assert [stripe.bounds for stripe in each.wanted(1 << 62)] == [(0, 10, 40, 50)]
    each.hand_out(chunk(*range(10), *range(40, 50)), 50)
    assert processed(each) == ()  # the call that returned it is the last one
    assert each.finished == 0
    each.settle()
    assert processed(each) == (0, 10, 40, 50)
    assert each.finished == 1


def test_a_part_is_forgotten_when_the_log_says_that_it_is_processed() -> None:
    each = delivery()
    each.update(share(0, 10))
    each.next_part()
    each.hand_out(chunk(*range(10)), 10)
    each.update(share())  # somebody else has processed it, and it is in hand
    assert not each.has_new
    each.settle()
    assert processed(each) == (0, 10)
    each.update(share(done=10))
    assert processed(each) == ()
    assert each.finished == 1


def test_what_others_have_processed_counts_as_done() -> None:
    each = delivery()
    each.update(share(0, 10))
    each.next_part()
    each.hand_out(chunk(*range(10)), 10)
    each.settle()
    metrics = partial(delivery_metrics, each, ALL_HASHES, (0, 40), is_batch=True)
    assert metrics().lag == 30
    each.update(share(done=25))
    assert metrics().lag == 15


def test_offsets_without_records_are_processed_at_once() -> None:
    each = delivery()
    each.update(share(0, 10))
    each.next_part()
    each.pass_to(10)
    assert processed(each) == (0, 10)
    each.update(share(0, 10, 40, 50))
    each.next_part()
    each.hand_out(chunk(*range(40, 48)), 48)
    each.pass_to(50)
    assert processed(each) == (0, 10)  # 40 to 47 were returned by the last call
    each.settle()
    assert processed(each) == (0, 10, 40, 50)


def test_records_are_acknowledged_one_by_one() -> None:
    each = delivery(explicit=True)
    first, second = chunk(*range(10)), chunk(*range(40, 50))
    each.update(share(0, 10, 40, 50))
    each.next_part()
    each.hand_out(first, 40)
    each.hand_out(second, 50)
    each.settle()
    first.acknowledged[:] = b"\1" * 10
    second.acknowledged[3:] = b"\1" * 7
    assert processed(each) == (0, 10, 43, 50)
    assert (each.finished, each.unacknowledged, each.unacknowledged_ranges) == (0, 3, 1)
    assert each.ranges.tolist() == [[43, 50]]
    second.acknowledged[:3] = b"\1" * 3
    each.count()
    assert (each.finished, each.unacknowledged) == (1, 0)


@pytest.mark.parametrize("explicit", [False, True])
def test_what_is_in_flight_is_what_its_parts_have_in_flight(explicit: bool) -> None:
    each = delivery(explicit=explicit)
    each.update(share(5_000, 5_010))
    each.next_part()
    first = chunk(*range(5_000, 5_010), at_ms=7)
    each.hand_out(first, 5_010)
    assert each.in_flight(is_batch=True) == 10
    each.settle()
    first.acknowledged[:9] = b"\1" * 9
    each.update(share(5_000, 5_010, 9_000, 9_010))
    each.next_part()
    each.begin(chunk(*range(9_000, 9_010), at_ms=8), 9_010)
    assert each.in_flight(is_batch=True) == explicit
    assert each.oldest_unacknowledged_ms == (7 if explicit else None)


def test_a_commit_up_to_an_offset() -> None:
    each = delivery()
    each.update(share(0, 10))
    each.next_part()
    each.hand_out(chunk(*range(10)), 10)
    each.update(share(0, 10, 40, 50))
    each.next_part()
    each.hand_out(chunk(40, 41, 42), 43)
    with pytest.raises(ValueError, match="cannot commit offset 44"):
        each.acknowledge_below(44)
    each.acknowledge_below(42)
    assert processed(each) == (0, 10, 40, 42)


def test_a_commit_up_to_an_offset_of_a_part_that_is_forgotten() -> None:
    """Records of a lease are committed one by one, and the last one first."""
    each = delivery()
    each.update(share(0, 10))
    each.next_part()
    each.hand_out(chunk(*range(10)), 10)
    each.acknowledge_below(10)
    each.count()
    each.update(share(done=10))
    each.acknowledge_below(3)
    with pytest.raises(ValueError, match="cannot commit offset 11"):
        each.acknowledge_below(11)


@pytest.mark.parametrize("explicit", [False, True])
def test_what_a_call_has_collected_of_several_parts_is_begun_again(explicit: bool) -> None:
    each = delivery(explicit=explicit)
    each.update(share(0, 10, 40, 50))
    each.next_part()
    each.hand_out(returned := chunk(*range(5)), 5)
    each.settle()
    each.collect()
    each.hand_out(chunk(*range(5, 10), *range(40, 50)), 50)
    each.update(share(0, 10, 40, 50, 70, 90))
    each.next_part()
    each.collect()
    each.hand_out(chunk(70, 71), 72)
    assert each.returned == 70
    each.settle()
    returned.acknowledged[:] = b"\1" * 5
    assert processed(each) == (0, 5)
    each.take_back()
    assert each.position == each.returned == 5
    assert [stripe.bounds for stripe in each.wanted(1 << 62)] == [(5, 10, 40, 50)]
    assert (each.unacknowledged, processed(each)) == (0, (0, 5))
    assert each.has_new
    each.hand_out(chunk(*range(5, 10), *range(40, 50)), 50)
    each.next_part()
    assert [stripe.bounds for stripe in each.wanted(1 << 62)] == [(70, 90)]


@pytest.mark.parametrize("explicit", [False, True])
def test_what_was_collected_goes_back_wherever_an_interrupt_comes(explicit: bool) -> None:
    number, is_over = 0, False
    while not is_over:
        each = delivery(explicit=explicit)
        each.update(share(0, 10))
        each.next_part()
        each.collect()
        each.hand_out(chunk(*range(10)), 10)
        each.update(share(0, 10, 70, 80))
        each.next_part()
        each.collect()
        each.hand_out(chunk(70, 71), 80)
        each.finished = 2
        each._parts[1].is_counted = True
        with (
            suppress(Interrupt),
            interrupt(number, *MODULES) as at,
        ):
            each.take_back()
        each.take_back()
        assert (each.position, each.finished, each.unacknowledged) == (0, 1, 0), at
        assert [stripe.bounds for stripe in each.wanted(1 << 62)] == [(0, 10)], at
        each.hand_out(chunk(*range(10)), 10)
        assert each.has_new, at
        each.next_part()
        assert [stripe.bounds for stripe in each.wanted(1 << 62)] == [(70, 80)], at
        number, is_over = number + 1, not at
    assert number > 2


def deliveries(*, explicit: bool = False) -> SharedDeliveries:
    made = SharedDeliveries(LeftOut(), explicit=explicit, is_transactional=False)
    made.assign({T0: ALL_HASHES})
    return made


def begin(made: SharedDeliveries, *held: int) -> DeliveryStart:
    """A lease is read from a new start."""
    start = DeliveryStart.new(Progress.at(0))
    made.refresh({T0: start}, 0.0, {}, all_count)
    made.update(T0, share(*held))
    made.shared[T0].next_part()
    return start


def work(made: SharedDeliveries) -> list[Bounds]:
    return [
        union(
            (piece.offsets.start, piece.offsets.end)
            for piece in late.processed.minus(late.start.done)
        )
        for late in made.late_work({T0}, is_batch=True)
    ]


@pytest.mark.parametrize("explicit", [False, True])
def test_what_was_returned_counts_once_its_delivery_has_ended(explicit: bool) -> None:
    made = deliveries(explicit=explicit)
    first = begin(made, 0, 10)
    made.shared[T0].hand_out(returned := chunk(*range(4)), 4)
    made.settle()
    made.shared[T0].collect()
    made.shared[T0].hand_out(chunk(*range(4, 10)), 10)  # and the call has not returned it
    made.refresh({}, 0.0, {}, all_count)
    assert not made.shared
    if explicit:
        assert work(made) == []
        returned.acknowledged[1:3] = b"\1" * 2
        assert work(made) == [(1, 3)]
        made.acknowledge_rows(T0, np.array([0, 3, 7]), ())
    assert work(made) == [(0, 4)]
    begin(made, 0, 10)
    assert made.shared[T0].offsets == (4, 10)  # the others are done
    assert [late.start == first for late in made.late_work({T0}, is_batch=True)] == [True]
    assert made.late_work((), is_batch=True) == ()
    assert made.late_partitions == {T0}
    assert made.finished == 1
    made.update(T0, share(4, 10, done=4))
    assert not made.late_partitions
    assert made.finished == 1


def test_a_commit_up_to_an_offset_that_was_returned_before() -> None:
    made = deliveries()
    with pytest.raises(ValueError, match="orders-0 is not assigned, or has not started"):
        made.acknowledge_below(T0, 1)
    begin(made, 0, 10)
    made.shared[T0].hand_out(chunk(*range(10)), 10)
    made.refresh({}, 0.0, {}, all_count)
    made.acknowledge_below(T0, 3)
    assert work(made) == [(0, 3)]
    begin(made, 0, 10, 20, 30)
    made.shared[T0].hand_out(chunk(*range(3, 10), *range(20, 25)), 25)
    made.acknowledge_below(T0, 9)
    assert work(made) == [(0, 9)]
    assert processed(made.shared[T0])[-1] == 9
    made.acknowledge_below(T0, 22)
    assert (work(made), processed(made.shared[T0])[-1]) == ([(0, 10)], 22)
    with pytest.raises(ValueError, match="cannot commit offset 26: what was returned ends at 25"):
        made.acknowledge_below(T0, 26)


def test_a_commit_up_to_an_offset_of_a_delivery_that_is_forgotten() -> None:
    """The log may have it; else it is refused."""
    made = deliveries()
    begin(made, 0, 10, 20, 30)
    made.shared[T0].hand_out(chunk(*range(10)), 10)
    made.refresh({}, 0.0, {}, all_count)
    made.keep_late(lambda *_: False)
    late = made.acknowledge_below(T0, 4)
    assert late is not None
    assert late.processed == Progress.at(4)
    with pytest.raises(ValueError, match="cannot commit offset 11: what was returned ends at 10"):
        made.acknowledge_below(T0, 11)


def test_deliveries_that_have_ended_are_bounded_and_the_oldest_one_is_named() -> None:
    made = deliveries(explicit=True)
    for number in range(20):
        begin(made, 10 * number, 10 * number + 10)
        made.shared[T0].hand_out(chunk(10 * number), 10 * number + 10)
        made.refresh({}, 0.0, {}, all_count)
    assert len(made.late.of(T0)) == 16
    assert len(made.late.warnings) == 4
    assert "orders-0: of offsets 30 to 39, what was returned" in made.late.warnings[-1]
    last = made.late.of(T0)[-1].start
    made.keep_late(lambda _, start: start is last)
    assert [each.start for each in made.late] == [last]


def test_a_refusal_is_said_once_of_each_delivery_that_has_ended() -> None:
    made = deliveries(explicit=True)
    for number in range(2):
        begin(made, 10 * number, 10 * number + 10)
        each = chunk(*range(10 * number, 10 * number + 10))
        made.shared[T0].hand_out(each, 10 * number + 10)
        made.refresh({}, 0.0, {}, all_count)
        assert made.late_partitions == {T0}
        made.keep_late(lambda *_: True)  # it may come back
        assert made.late_partitions == frozenset()
        assert len(made.late.of(T0)) == number + 1


def test_records_that_are_late_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_deliveries, "_MOST_RECORDS", 15)
    made = deliveries(explicit=True)
    for number in range(2):
        begin(made, 10 * number, 10 * number + 10)
        each = chunk(*range(10 * number, 10 * number + 10))
        made.shared[T0].hand_out(each, 10 * number + 10)
        made.refresh({}, 0.0, {}, all_count)
    assert [each.offsets for each in made.late] == [(10, 20)]
    assert made.late.of(T0)[0].unacknowledged == 10


@pytest.mark.parametrize("explicit", [False, True])
def test_a_delivery_ends_once_wherever_an_interrupt_comes(explicit: bool) -> None:
    number, is_over = 0, False
    while not is_over:
        made = deliveries(explicit=explicit)
        begin(made, 0, 10)
        made.shared[T0].hand_out(chunk(*range(4)), 4)
        made.settle()
        modules = (shared_deliveries, *MODULES)
        with suppress(Interrupt), interrupt(number, *modules) as at:
            made.refresh({}, 0.0, {}, all_count)
        made.refresh({}, 0.0, {}, all_count)
        assert not made.shared, at
        assert [each.offsets for each in made.late] == [(0, 4)], at
        number, is_over = number + 1, not at
    assert number > 2


bounds = st.sets(st.integers(0, 40)).map(lambda some: union((i, i + 1) for i in some))


@given(st.lists(bounds, min_size=1, max_size=6), st.integers(0, 20))
def test_each_offset_is_begun_once(shares: list[Bounds], done: int) -> None:
    """As long as what was begun stays held until it is processed."""
    each = delivery()
    begun: Bounds = ()
    for held in shares:
        all_held = union([begun, subtract(held, (0, done) if done else ())])
        each.update(Share(all_held, Progress.at(done), 1_000))
        if not each.has_new:
            continue
        each.next_part()
        wanted = [stripe.bounds for stripe in each.wanted(1 << 62)]
        assert length(union(wanted)) + length(begun) == length(all_held)
        begun = all_held
        each.hand_out(chunk(all_held[-1] - 1), each.end)
        each.settle()
        assert each.processed_offsets(is_batch=True) == begun
