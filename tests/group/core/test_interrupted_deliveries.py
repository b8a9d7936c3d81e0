"""An interrupt at any line of what is read: nothing is lost, and no key is left waiting."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.progress import Progress
from kshare.group import message as message_module
from kshare.group.core import handed_out
from kshare.group.core.handing_out import Call
from kshare.group.delivery_start import DeliveryStart
from tests.group.core.driver import LOW, MIXED, MODULES, OF_DELIVERY, OF_LOW, Driver, point
from tests.support.groups import LOWER, T0, T1
from tests.support.interrupts import Interrupt, interrupt


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


def parks(driver: Driver) -> None:
    driver.park(LOW[0])
    driver.look()


def begins_again(driver: Driver) -> None:
    driver.started[T0] = DeliveryStart.new(Progress.at(0))
    driver.look()


CHANGES: dict[str, Callable[[Driver], None]] = {
    "keep": lambda driver: driver.state.keep({T0: KeyRanges([LOWER]), T1: ALL_HASHES}),
    "seek": lambda driver: driver.state.seek(T0, 0, driver.started),
    "parks": parks,
    "take back": lambda driver: driver.state.take_back(T0),
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
    driver.started = {T0: DeliveryStart.new(Progress.at(0))}
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
        for partition in call.give_back(driver.state.by_partition):
            driver.state.take_back(partition)
        assert driver.offsets() == list(range(12)), raised
        number += 1
    assert number > 2


ALL_MODULES = (*MODULES, *OF_DELIVERY, handed_out, message_module)


def give_back(driver: Driver, call: Call) -> None:
    """As :meth:`.Receiver.give_back`."""
    for partition in call.give_back(driver.state.by_partition):
        driver.state.take_back(partition)
    driver.read_anew()


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
