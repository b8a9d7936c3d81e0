"""What is read of a consumer's partitions is decided without reader, threads and clock."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.progress import Progress
from kshare.group import message as message_module
from kshare.group.core import handed_out, key_limit
from kshare.group.core.handing_out import Call
from kshare.group.message import Message
from tests.group.core.driver import HIGH, LOW, MODULES, OF_DELIVERY, Driver, point
from tests.support.groups import LOWER, T0, T1, UPPER
from tests.support.interrupts import Interrupt, interrupt

MIXED = [LOW[0], HIGH[0], LOW[1], HIGH[1]] * 3
OF_LOW, OF_HIGH = [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]


def test_nothing_is_read_before_it_has_started_and_nothing_after_it_is_given_up() -> None:
    driver = Driver(MIXED, MIXED)
    driver.state.assign({T0: ALL_HASHES, T1: KeyRanges([LOWER])})
    driver.look()
    assert driver.reading == {}
    driver.started = {T0: Progress.at(3), T1: Progress.at(2)}
    driver.look()
    assert [(m.topic_partition, m.offset()) for m in driver.take()] == [
        *((T0, at) for at in range(3, 12)),
        *((T1, at) for at in (2, 4, 6, 8, 10)),
    ]
    driver.state.assign({T1: KeyRanges([LOWER])}, keeps=True)
    driver.read_anew()
    assert driver.reading.keys() == driver.state.by_partition.keys() == {T1}
    assert driver.state.stops == 1


def test_a_start_that_is_another_object_begins_again() -> None:
    """As after an abort, or offsets that were reset."""
    driver = Driver(MIXED)
    driver.start(WHOLE)
    assert driver.offsets(5) == [0, 1, 2, 3, 4]
    driver.started[T0] = Progress.at(0)
    driver.look()
    assert driver.offsets() == list(range(12))


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
    driver.started = {T0: Progress.at(0)}
    driver.look()
    assert driver.state.is_settled()
    assert driver.state.is_claimed(T0)
    assert driver.offsets() == [8, 10]


def test_amid_a_call_that_holds_records_a_provisional_delivery_goes_on() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    driver.state.keep({T0: KeyRanges([LOWER])})
    driver.look()
    before = driver.state.by_partition[T0]
    driver.started = {T0: Progress.at(0)}
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
    driver.started = {T0: Progress.at(0)}
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
    driver.started = {T0: Progress.at(0)}
    driver.look()
    assert driver.offsets() == [9, 10, 11]
    driver = Driver(MIXED)
    driver.state.assign({T0: KeyRanges([LOWER])})
    driver.state.seek(T0, 9, {})
    driver.state.assign({T0: KeyRanges([UPPER])}, keeps=True)
    driver.started = {T0: Progress.at(0)}
    driver.look()
    assert driver.offsets() == OF_HIGH


def test_a_seek_drops_what_is_in_hand_and_reads_anew_once() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    assert driver.offsets(1) == [0]
    driver.begun.clear()
    driver.state.seek(T0, 10, driver.started)
    driver.look()
    assert driver.begun == [T0]
    assert driver.offsets() == [10, 11]


def test_a_seek_leaves_what_is_parked_and_not_acknowledged_pending() -> None:
    """It is not handed out again by the seek; so its records count once they are acknowledged."""
    driver = Driver([LOW[0], HIGH[0]] * 3, explicit=True)
    driver.start(WHOLE)
    first, *_ = driver.take(4)
    driver.park(LOW[0])
    driver.look()
    driver.state.seek(T0, 0, driver.started)
    driver.look()
    for message in driver.take():
        driver.acknowledge(message)
    driver.acknowledge(first)
    processed = driver.state.by_partition[T0].processed(is_batch=True)
    pieces = processed.pending_of(6, (HashRange.of(point(LOW[0])),))
    assert [at for at in (0, 2, 4) if any(at in piece.offsets for piece in pieces)] == [2, 4]


def test_what_a_seek_hands_out_again_counts_for_nothing_once_its_key_is_parked() -> None:
    """Also of a delivery that has taken over from another one."""
    driver = Driver([LOW[0], HIGH[0]] * 3, explicit=True)
    driver.start(WHOLE)
    assert driver.offsets(4) == [0, 1, 2, 3]
    driver.park(HIGH[0])
    driver.look()
    driver.park()
    driver.look()
    driver.state.seek(T0, 0, driver.started)
    driver.look()
    driver.park(LOW[0])
    driver.look()
    processed = driver.state.by_partition[T0].processed(is_batch=True)
    pieces = processed.pending_of(6, (HashRange.of(point(LOW[0])),))
    assert all(any(at in piece.offsets for piece in pieces) for at in (0, 2, 4))


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
    assert list(driver.state.hand.anew) == [T0]
    assert driver.offsets() == list(range(1, 12))


def test_what_a_call_collected_and_does_not_return_comes_again() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    assert driver.offsets(1) == [0]
    assert driver.fetch()
    delivery = driver.out.delivery
    messages: list[Message] = []
    driver.out.collect(2, messages)
    driver.state.take_back(T0, messages)
    assert delivery.returned == 1
    assert driver.offsets() == list(range(1, 12))


def test_nothing_begins_before_it_is_known_which_keys_are_parked() -> None:
    driver = Driver(MIXED)
    driver.parked = None
    driver.start(WHOLE)
    assert driver.offsets() == []
    driver.park(LOW[0])
    driver.look()
    assert driver.offsets() == [at for at in range(12) if at % 4]


def test_a_key_that_is_parked_amid_a_chunk_comes_from_there_once_it_is_unparked() -> None:
    driver = Driver(MIXED)
    driver.start(WHOLE)
    assert driver.offsets(5) == [0, 1, 2, 3, 4]
    driver.park(LOW[0])
    driver.look()
    assert driver.offsets() == [5, 6, 7, 9, 10, 11]
    driver.begun.clear()
    driver.look()
    assert driver.begun == []  # nothing has changed
    driver.park()
    driver.look()
    assert driver.offsets() == [8]


def test_a_released_key_is_left_out_until_it_is_due() -> None:
    driver = Driver(MIXED, explicit=True)
    driver.start(WHOLE)
    first, *others = driver.take(6)
    assert driver.state.release(first, due=5.0)
    for message in others:
        if not message.is_released():
            driver.acknowledge(message)
    driver.look()
    assert driver.state.left_out.next_due() == 5.0
    assert driver.offsets() == [6, 7, 9, 10, 11]
    driver.now = 4.9
    driver.look()
    assert driver.offsets() == []
    driver.now = 5.0
    driver.look()
    assert driver.offsets() == [0, 4, 8]
    driver.acknowledge(others[0])
    assert not driver.state.release(others[0], due=9.0)


def test_of_a_key_that_is_released_and_due_at_once_nothing_stays_kept_back() -> None:
    driver = Driver([LOW[0]] * 3, explicit=True, most=1)
    driver.start(WHOLE)
    (first,) = driver.take()
    driver.now = 1.0
    assert driver.state.release(first, due=1.0)
    driver.look()
    for offset in range(3):
        (message,) = driver.take()
        assert (message.offset(), message.is_released()) == (offset, False)
        driver.acknowledge(message)


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


def test_what_is_acknowledged_never_comes_again_with_what_is_kept_back_before_it() -> None:
    driver = Driver([LOW[0]] * 4, explicit=True, most=3)
    driver.start(WHOLE)
    messages = driver.take(3)
    driver.acknowledge(messages[1])
    driver.state.release(messages[0], driver.now)
    driver.now += 1.0
    driver.look()
    assert driver.fetch()  # and before a call takes it, its key is parked for a while
    driver.park(LOW[0])
    driver.look()
    driver.park()
    driver.look()
    assert driver.offsets() == [0, 2, 3]


def test_no_interrupt_lets_a_record_out_whose_key_waits() -> None:
    number, raised = 0, ["begin"]
    while raised:
        driver = Driver(MIXED, explicit=True)
        driver.start(WHOLE)
        assert driver.state.release(driver.take(1)[0], due=None)
        with suppress(Interrupt), interrupt(number, *MODULES) as raised:
            driver.look()
        driver.look()
        assert driver.offsets() == [at for at in range(12) if at % 4], raised
        number += 1
    assert number > 2


def test_no_interrupt_leaves_records_kept_back_that_are_read_again() -> None:
    """Of a key that was released, waits no more, and that the delivery has still to follow."""
    number, raised = 0, ["begin"]
    while raised:
        driver = Driver([LOW[0]] * 3, explicit=True, most=1)
        driver.start(WHOLE)
        (first,) = driver.take()
        driver.now, found = 1.0, list[int]()
        assert driver.state.release(first, due=1.0)
        with suppress(Interrupt), interrupt(number, *MODULES) as raised:
            driver.look()
        for _ in range(6):
            driver.now += 1.0
            driver.look()
            for message in driver.take():
                assert not message.is_released(), raised
                driver.acknowledge(message)
                found.append(message.offset())
        assert found == [0, 1, 2], raised
        number += 1
    assert number > 2


def test_keys_are_put_aside_and_read_again_so_often_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_limit, "_HELD_MAX", 2)
    driver = Driver([LOW[0]] * 6 + [HIGH[0]], explicit=True, most=1)
    driver.start(WHOLE)
    taken = driver.take()
    assert [message.offset() for message in taken] == [0]
    assert driver.out.is_full
    assert driver.out.is_waiting
    driver.look()
    assert driver.state.by_partition[T0].left_out == (HashRange.of(point(LOW[0])),)
    taken += driver.take()
    assert [message.offset() for message in taken] == [0, 6]
    changes = driver.state.stops
    for message in taken:
        driver.acknowledge(message)
    driver.look()
    assert driver.state.stops == changes  # so soon, nothing more is read again
    while driver.now < 3.0:
        driver.now += 0.04
        driver.look()
        for message in driver.take():
            driver.acknowledge(message)
            taken.append(message)
    assert [message.offset() for message in taken] == [0, 6, 1, 2, 3, 4, 5]


def parks(driver: Driver) -> None:
    driver.park(LOW[0])
    driver.look()


def begins_again(driver: Driver) -> None:
    driver.started[T0] = Progress.at(0)
    driver.look()


CHANGES: dict[str, Callable[[Driver], None]] = {
    "keep": lambda driver: driver.state.keep({T0: KeyRanges([LOWER]), T1: ALL_HASHES}),
    "seek": lambda driver: driver.state.seek(T0, 0, driver.started),
    "parks": parks,
    "take back": lambda driver: driver.state.take_back(T0, []),
    "pause": lambda driver: driver.state.pause(T0),
    "begins again": begins_again,
}


@pytest.mark.parametrize("change", CHANGES)
def test_all_is_read_on_wherever_an_interrupt_comes(change: str) -> None:
    """At least once: all that was not taken before comes after it."""
    number, raised = 0, ["begin"]
    while raised:
        driver = Driver(MIXED, MIXED)
        driver.start(WHOLE)
        taken = {(m.topic_partition, m.offset()) for m in driver.take(3)}
        with suppress(Interrupt), interrupt(number, *MODULES) as raised:
            CHANGES[change](driver)
        driver.park()
        driver.state.resume(T0)
        driver.look()
        taken |= {(m.topic_partition, m.offset()) for m in driver.take()}
        of_t0 = OF_LOW if driver.state.by_partition[T0].owned == (LOWER,) else range(12)
        assert taken >= {*((T0, at) for at in of_t0), *((T1, at) for at in range(12))}, raised
        number += 1
    assert number > 2


def sought_amid_a_rebalance() -> Driver:
    """It has handed out 8 records, and goes on at offset 4 once its claim is in place."""
    driver = Driver(MIXED, explicit=True)
    driver.start(WHOLE)
    assert len(driver.take(8)) == 8
    driver.state.keep({T0: KeyRanges([LOWER])})
    driver.read_anew()
    driver.state.seek(T0, 4, driver.started)
    driver.started = {}
    driver.look()
    driver.started = {T0: Progress.at(0)}
    return driver


def counted(driver: Driver) -> set[int]:
    """The offsets of the lower half's keys that count as processed."""
    processed = driver.state.by_partition[T0].processed(is_batch=True)
    pending = {at: processed.pending_of(12, (HashRange.of(point(MIXED[at])),)) for at in OF_LOW}
    return {at for at, left in pending.items() if not any(at in each.offsets for each in left)}


def test_nothing_counts_as_processed_wherever_an_interrupt_comes_amid_a_start() -> None:
    number, raised = 0, ["begin"]
    while raised:
        driver = sought_amid_a_rebalance()
        with suppress(Interrupt), interrupt(number, *MODULES, handed_out, *OF_DELIVERY) as raised:
            driver.look()
        driver.look()
        assert counted(driver) == set(), raised
        assert driver.offsets(1) == [4], raised
        number += 1
    assert number > 2


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("collects_batch", [False, True])
def test_nothing_is_lost_wherever_an_interrupt_comes_as_a_call_collects(
    explicit: bool, collects_batch: bool
) -> None:
    number, raised = 0, ["begin"]
    while raised:
        driver, call = Driver(MIXED, explicit=explicit), Call()
        driver.start(WHOLE)
        if collects_batch:
            driver.fetch_batch()
        else:
            driver.fetch()
        with suppress(Interrupt), interrupt(number, *MODULES, handed_out, *OF_DELIVERY) as raised:
            call.took(driver.out.delivery)
            if collects_batch:
                driver.out.collect_batch(lambda _: None)
            else:
                driver.out.collect(2, call.messages)
        driver.pass_over()  # as a commit does
        assert driver.state.by_partition[T0].processed(is_batch=True) == Progress.at(0), raised
        for partition, messages in call.give_back(driver.state.by_partition):
            driver.state.take_back(partition, messages)
        assert driver.offsets() == list(range(12)), raised
        number += 1
    assert number > 2


def drained(driver: Driver, taken: list[Message]) -> dict[str, list[int]]:
    """What comes from now on, by key, as what was taken and what comes is acknowledged."""
    found: dict[str, list[int]] = {}
    while taken:
        for message in taken:
            driver.acknowledge(message)
        driver.now += 1.0
        driver.look()
        taken = driver.take()
        for message in taken:
            key = (message.key() or b"").decode()
            found.setdefault(key, []).append(message.offset())
    return found


KEYS = (LOW[0], HIGH[0])


def test_a_seek_with_limits_blocks_no_key_wherever_an_interrupt_comes() -> None:
    number, raised = 0, ["begin"]
    while raised:
        driver = Driver([*KEYS] * 3, explicit=True, most=1)
        driver.start(WHOLE)
        taken = driver.take()
        assert [message.offset() for message in taken] == [0, 1]
        with suppress(Interrupt), interrupt(number, *MODULES, *OF_DELIVERY, key_limit) as raised:
            driver.state.seek(T0, 0, driver.started)
        driver.look()
        found = drained(driver, driver.take() or taken)
        of_keys = [found.get(key, []) for key in KEYS]
        assert of_keys == [[2, 4], [3, 5]], raised
        number += 1
    assert number > 2


ALL_MODULES = (*MODULES, *OF_DELIVERY, handed_out, key_limit, message_module)


def give_back(driver: Driver, call: Call) -> None:
    """As :meth:`.Receiver.give_back`."""
    for partition, messages in call.give_back(driver.state.by_partition):
        driver.state.take_back(partition, messages)
    driver.read_anew()


@pytest.mark.parametrize("collects", ["some", "all"])
@pytest.mark.parametrize("step", ["fetch", "collect", "give back"])
def test_limits_lose_no_record_wherever_an_interrupt_comes(collects: str, step: str) -> None:
    number, raised = 0, ["begin"]
    while raised:
        driver, call, raised = Driver([*KEYS] * 3, explicit=True, most=1), Call(), []
        driver.start(WHOLE)
        first = driver.take()  # all is read, and kept back
        assert [message.offset() for message in first] == [0, 1]
        for message in first:
            driver.acknowledge(message)
        for each in ("fetch", "collect", "give back", "again"):
            moment = number if each == step else 1 << 40
            with suppress(Interrupt), interrupt(moment, *ALL_MODULES) as seen:
                if each == "fetch":
                    driver.fetch()
                elif each == "collect" and not raised:
                    call.took(driver.out.delivery)
                    if collects == "all":
                        driver.out.collect_all(call.messages)
                    else:
                        driver.out.collect(1, call.messages)
                elif each in {"give back", "again"}:
                    give_back(driver, call)
            raised += seen
        driver.state.read_anew()  # as a call does that follows an interrupted one
        found: dict[str, list[int]] = {}
        for message in (taken := driver.take()):
            found.setdefault((message.key() or b"").decode(), []).append(message.offset())
        for key, offsets in drained(driver, taken).items():
            found[key] += offsets
        assert [found.get(key, []) for key in KEYS] == [[2, 4], [3, 5]], raised
        number += 1
    assert number > 2


@pytest.mark.parametrize("explicit", [False, True])
def test_what_goes_back_is_no_gap_and_comes_again_wherever_an_interrupt_comes(
    explicit: bool,
) -> None:
    number, raised = 0, ["begin"]
    while raised:
        driver, call = Driver(MIXED, explicit=explicit), Call()
        driver.start(WHOLE)
        driver.fetch()
        call.took(driver.out.delivery)
        driver.out.collect(2, call.messages)
        with suppress(Interrupt), interrupt(number, *ALL_MODULES) as raised:
            give_back(driver, call)
        give_back(driver, call)
        assert driver.state.by_partition[T0].processed(is_batch=True) == Progress.at(0), raised
        taken = driver.take()
        assert [message.offset() for message in taken] == list(range(12)), raised
        for message in taken:
            driver.acknowledge(message)
        if explicit:
            done = driver.state.by_partition[T0].processed(is_batch=True)
            assert done == Progress.at(12), raised
        number += 1
    assert number > 2
