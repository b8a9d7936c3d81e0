"""What is read of a consumer's partitions is decided without reader, threads and clock."""

import math

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.delivery_start import DeliveryStart
from tests.group.core.driver import HIGH, LOW, MIXED, OF_HIGH, Driver, owns, point
from tests.support.groups import LOWER, T0, T1, UPPER, rectangle


def test_nothing_is_read_before_it_has_started_and_nothing_after_it_is_given_up() -> None:
    driver = Driver(MIXED, MIXED)
    driver.state.assign({T0: ALL_HASHES, T1: KeyRanges([LOWER])})
    driver.look()
    assert driver.reading == {}
    driver.started = {T0: DeliveryStart.new(Progress.at(3)), T1: DeliveryStart.new(Progress.at(2))}
    driver.look()
    assert [(m.topic_partition, m.offset()) for m in driver.take()] == [
        *((T0, at) for at in range(3, 12)),
        *((T1, at) for at in (2, 4, 6, 8, 10)),
    ]
    driver.state.assign({T1: KeyRanges([LOWER])}, keeps=True)
    driver.read_anew()
    assert driver.reading.keys() == driver.state.by_partition.keys() == {T1}
    assert driver.state.ended.stops == 1


def test_hashes_that_stay_are_read_on_and_what_is_in_hand_of_the_others_is_not_handed_out() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    assert driver.offsets(3) == [0, 1, 2]
    driver.state.keep({T0: KeyRanges([LOWER])})
    assert not driver.state.is_settled()
    assert driver.offsets(1) == [4]
    driver.started = {}  # its next claim is not in place
    driver.state.assign({T0: KeyRanges([LOWER])}, keeps=True)
    driver.look()
    assert driver.offsets(1) == [6]
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look()
    assert driver.state.is_settled()
    assert driver.state.is_claimed(T0)
    assert driver.offsets() == [8, 10]


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_what_was_handed_out_and_counts_no_more_comes_again_though_its_delivery_was_to_go_on(
    is_transactional: bool, waits: bool
) -> None:
    """Others may have had the hashes before the next claim was in place: all is claimed anew."""
    driver = Driver(MIXED, explicit=True, is_transactional=is_transactional)
    driver.start(WHOLE)
    held = driver.take(5)
    assert [each.offset() for each in held] == [0, 1, 2, 3, 4]
    before = driver.started[T0]
    driver.state.keep({T0: KeyRanges([LOWER])})
    driver.void.add(before)
    if waits:
        driver.started = {}
        driver.look()
        assert driver.offsets() == []
        assert T0 not in driver.state.by_partition
    driver.started = {T0: DeliveryStart.new(Progress.at(2))}  # two are committed
    driver.look()
    again = driver.take()
    assert [each.offset() for each in again] == [2, 4, 6, 8, 10]
    assert {each.chunk.start for each in again} == {driver.started[T0]}
    for each in held:
        driver.acknowledge(each)  # too late
    assert driver.state.by_partition[T0].processed(is_batch=False).stable == 2


def test_what_is_kept_belongs_to_the_next_start() -> None:
    driver = Driver(MIXED, explicit=True)
    driver.start(WHOLE)
    held = driver.take(3)
    assert {each.chunk.slim.start for each in held} == {driver.started[T0]}
    driver.state.keep({T0: KeyRanges([LOWER])})
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look()
    kept = [each.chunk for each in held if each.chunk.is_open(each.row)]
    assert len(kept) == 2
    assert {chunk.start for chunk in kept} == {driver.started[T0]}
    assert {chunk.slim.start for chunk in kept} == {driver.started[T0]}


def test_amid_a_call_that_holds_records_a_provisional_delivery_goes_on() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    driver.state.keep({T0: KeyRanges([LOWER])})
    driver.look()
    before = driver.state.by_partition[T0]
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look(continues=True)
    assert driver.state.by_partition[T0] is before
    driver.look()
    assert driver.state.by_partition[T0] is not before


def test_with_transactions_nothing_is_read_that_is_not_claimed() -> None:
    driver = Driver(MIXED, is_transactional=True)
    driver.start(WHOLE)
    assert driver.offsets(2) == [0, 1]
    driver.state.keep({T0: KeyRanges([LOWER])})
    driver.read_anew()
    assert driver.offsets() == []
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look()
    assert driver.offsets() == [2, 4, 6, 8, 10]
    driver.park(LOW[0])
    driver.look()
    assert driver.state.by_partition[T0].left_out == ()  # amid a transaction, no key is parked
    driver.look(begins=True)
    assert driver.state.by_partition[T0].left_out == driver.parked["orders"]  # type: ignore[index]


def test_a_seek_before_the_start_holds_and_one_for_other_hashes_does_not() -> None:
    driver = Driver(MIXED)
    driver.state.assign({T0: ALL_HASHES})
    driver.state.seek(T0, 9, {})
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look()
    assert driver.offsets() == [9, 10, 11]
    driver = Driver(MIXED)
    driver.state.assign({T0: KeyRanges([LOWER])})
    driver.state.seek(T0, 9, {})
    driver.state.assign({T0: KeyRanges([UPPER])}, keeps=True)
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look()
    assert driver.offsets() == OF_HIGH


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(("before", "after"), [(LOWER, WHOLE), (WHOLE, LOWER), (UPPER, LOWER)])
def test_a_seek_after_other_hashes_were_assigned_holds(
    before: HashRange, after: HashRange, explicit: bool
) -> None:
    driver = Driver(MIXED, explicit=explicit)
    driver.start(before)
    driver.take()
    driver.state.assign({T0: KeyRanges([after])})
    driver.state.seek(T0, 4, driver.started)
    driver.started = {}
    driver.look()
    driver.started = {T0: DeliveryStart.new(Progress.at(9))}
    driver.look()
    assert driver.offsets() == [at for at in range(4, 12) if owns(KeyRanges([after]), MIXED[at])]


def test_a_seek_before_the_start_goes_on_undisturbed_if_another_partition_is_assigned() -> None:
    driver = Driver(MIXED, MIXED)
    driver.state.assign({T0: ALL_HASHES})
    driver.state.seek(T0, 9, {})
    driver.state.assign({T0: ALL_HASHES, T1: ALL_HASHES})
    starts = {T0: DeliveryStart.new(Progress.at(0)), T1: DeliveryStart.new(Progress.at(11))}
    driver.started = starts
    driver.look()
    taken = [(m.topic_partition, m.offset()) for m in driver.take()]
    assert taken == [(T0, 9), (T0, 10), (T0, 11), (T1, 11)]
    driver = Driver(MIXED)
    driver.state.assign({T0: ALL_HASHES})
    driver.state.seek(T0, 9, {})
    driver.state.assign({})
    driver.state.assign({T0: ALL_HASHES})
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
    driver.look()
    assert driver.offsets() == list(range(12))


@pytest.mark.parametrize("is_over", [False, True])
def test_a_seek_holds_though_the_session_has_begun_anew(is_over: bool) -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    driver.take(3)
    driver.started = {} if is_over else {T0: DeliveryStart.new(Progress.at(2))}
    driver.state.seek(T0, 9, driver.started)
    driver.started = {T0: DeliveryStart.new(Progress.at(2))}
    driver.look()
    assert driver.offsets() == [9, 10, 11]


def test_a_paused_partition_is_given_up_and_read_on() -> None:
    driver = Driver(MIXED, MIXED)
    driver.start(WHOLE)
    assert driver.offsets(1) == [0]
    driver.state.pause(T0)
    driver.read_anew()
    assert driver.state.read_on == {T1}
    assert driver.offsets() == list(range(12))
    driver.state.resume(T0)
    driver.state.resume(T1)  # it was not paused
    assert list(driver.state.fetched.anew) == [T0]
    assert driver.offsets() == list(range(1, 12))


def test_a_commit_up_to_what_was_returned_before_it_has_gone_says_what_that_is() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    assert driver.offsets(6) == [0, 1, 2, 3, 4, 5]
    assert driver.state.acknowledge_below(T0, 6, point(HIGH[0])) is None
    driver.state.assign({})
    late = driver.state.acknowledge_below(T0, 4)
    assert late is not None
    assert late.processed == Progress.at(4)
    assert driver.state.acknowledge_below(T0, 0) is None
    driver.state.assign({T0: KeyRanges([LOWER])})
    driver.started = {T0: DeliveryStart.new(Progress.at(2))}
    driver.look()
    assert driver.offsets(1) == [2]
    late = driver.state.acknowledge_below(T0, 6)
    assert late is not None
    assert late.processed == Progress.of(0, [rectangle(4, 6, LOWER), rectangle(0, 6, UPPER)])
    assert driver.state.acknowledge_below(T0, 2, point(LOW[0])) is None
    late = driver.state.acknowledge_below(T0, 2, point(HIGH[0]))
    assert late is not None
    assert late.processed.individual_commits == (
        Rectangle(OffsetRange(1, 2), HashRange.of(point(HIGH[0]))),
    )
    with pytest.raises(ValueError, match="cannot commit offset 7"):
        driver.state.acknowledge_below(T0, 7)


def test_nothing_begins_before_it_is_known_which_keys_are_parked() -> None:
    driver = Driver(MIXED)
    driver.parked = None
    driver.start(WHOLE)
    assert driver.offsets() == []
    driver.park(LOW[0])
    driver.look()
    assert driver.offsets() == [at for at in range(12) if at % 4]


def test_a_released_key_is_left_out_until_it_is_due() -> None:
    driver = Driver(MIXED, explicit=True)
    driver.start(WHOLE)
    first, *others = driver.take(6)
    assert driver.state.release(first, due=5.0)
    for message in others:
        if not message.is_released():
            driver.acknowledge(message)
    driver.look()
    assert driver.state.next_due() == 5.0
    assert driver.offsets() == [6, 7, 9, 10, 11]
    driver.now = 4.9
    driver.look()
    assert driver.offsets() == []
    driver.now = 5.0
    driver.look()
    assert driver.offsets() == [0, 4, 8]
    driver.acknowledge(others[0])
    assert not driver.state.release(others[0], due=9.0)


def test_releases_are_followed_together_and_nothing_of_their_keys_comes_before() -> None:
    keys = [f"k{i}" for i in range(200)]
    driver = Driver([*keys, *keys], explicit=True)
    driver.start(WHOLE)
    found, stops = list[int](), driver.state.ended.stops
    while messages := driver.take(1):
        found += [message.offset() for message in messages]
        driver.state.release(messages[0], due=60.0)
        driver.look()
    assert found == list(range(200))
    assert driver.state.ended.stops - stops == 1
    assert driver.state.next_due() == 0.1
    driver.now = 0.1
    driver.look()
    assert driver.state.ended.stops - stops == 2
    assert driver.state.next_due() == 60.0
    driver.now = 60.0
    driver.look()
    assert driver.offsets(400) == list(range(400))


def test_the_more_keys_wait_the_fewer_are_the_changes() -> None:
    """Each takes as long as there are keys that wait."""
    driver = Driver([f"k{i}" for i in range(1_000)], explicit=True)
    driver.start(WHOLE)
    for message in driver.take(800):
        driver.state.release(message, due=60.0)
    driver.look()
    (message,) = driver.take(1)
    driver.state.release(message, due=60.0)
    assert driver.state.next_due() == pytest.approx(0.2)


@pytest.mark.parametrize("due", [None, 0.0, 0.05])
def test_a_key_that_is_let_go_waits_no_longer_than_a_pause(due: float | None) -> None:
    driver = Driver(MIXED, explicit=True)
    driver.start(WHOLE)
    first, second, *_ = driver.take(8)
    driver.state.release(first, due=9.0)
    driver.look()
    driver.state.release(second, due=due)
    if due is None:
        driver.state.left_out.released.let_go(T0, point(HIGH[0]))
    driver.now = 0.06
    driver.look()
    assert driver.offsets() == [10, 11]  # behind the others of its key nothing comes
    driver.now = 0.1
    driver.look()
    assert driver.offsets() == [1, 5, 9]


@pytest.mark.parametrize("is_transactional", [False, True])
def test_amid_a_call_it_is_known_what_waits_for_its_end(is_transactional: bool) -> None:
    driver = Driver(MIXED, explicit=True, is_transactional=is_transactional)
    driver.start(WHOLE)
    (message,) = driver.take(1)
    assert not driver.state.awaits_call(driver.now, driver.parked)
    driver.state.release(message, due=5.0)
    assert driver.state.awaits_call(driver.now, driver.parked)
    driver.look()
    assert not driver.state.awaits_call(4.9, driver.parked)
    assert driver.state.awaits_call(5.0, driver.parked)
    driver.park(LOW[1])
    assert driver.state.awaits_call(4.9, driver.parked) != is_transactional


def test_a_record_that_is_released_before_its_partition_begins_again_is_waited_for_by_nobody() -> (
    None
):
    driver = Driver(MIXED, explicit=True)
    driver.start(WHOLE)
    (message,) = driver.take(1)
    driver.state.assign({T0: KeyRanges([LOWER])})
    driver.started = {}
    driver.state.release(message, due=0.0)
    assert driver.state.next_due() == 0.0
    driver.look()
    assert driver.state.next_due() == math.inf


def test_a_key_that_is_released_and_due_at_once_comes_again_in_order() -> None:
    driver = Driver([LOW[0]] * 3, explicit=True)
    driver.start(WHOLE)
    first, *_ = driver.take()
    driver.now = 1.0
    assert driver.state.release(first, due=1.0)
    driver.look()
    again = driver.take()
    assert [(each.offset(), each.is_released()) for each in again] == [
        (0, False),
        (1, False),
        (2, False),
    ]


@pytest.mark.parametrize("is_sought", [False, True])
def test_what_is_acknowledged_between_released_records_never_comes_again(is_sought: bool) -> None:
    """Not even when they are released again: it lies between two rows of one chunk then."""
    driver = Driver([LOW[0]] * 6, explicit=True)
    driver.start(WHOLE)
    if is_sought:
        driver.take()
        driver.state.seek(T0, 2, driver.started)
    first = 2 if is_sought else 0
    messages = driver.take(3)
    driver.acknowledge(messages[1])
    for _ in range(3):
        driver.state.release(messages[0], driver.now)
        driver.now += 1.0
        driver.look()
        messages = driver.take()
        offsets = [each.offset() for each in messages]
        assert offsets == [first, *range(first + 2, 6)]
    for message in messages:
        driver.acknowledge(message)
    driver.park("another")
    driver.look()
    progress = driver.state.by_partition[T0].processed(is_batch=True)
    assert progress.position_of([HashRange.of(point(LOW[0]))]) == (0 if is_sought else 6)
