"""Deliveries beside plain sets: modes, seeks, releases, parked keys, rebalances, interrupts."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Stripe, TopicPartition
from kshare.group.core.deliveries import Deliveries
from kshare.group.core.delivery import Delivery
from kshare.group.core.handed_out import HandedOut
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import Message
from tests.group.core.driver import (
    END,
    HIGH,
    LOW,
    MODULES,
    OF_DELIVERY,
    Driver,
    chunk_of,
    owns,
    point,
)
from tests.group.core.position_sets import PositionSets
from tests.group.core.test_random_deliveries import (
    a_seek_counts_what_is_parked,
    hands_out_what_is_parked,
    reads_on_what_is_released,
    what_was_acknowledged_after_a_seek_is_forgotten,
    what_was_in_hand_at_a_seek_counts,
)
from tests.group.protocol.interleavings import seeds
from tests.support.effort import walks
from tests.support.groups import LOWER, T0, UPPER
from tests.support.interrupts import Interrupt, interrupt
from tests.support.shown import is_found, no_law_is_broken

KEYS = [*LOW, *HIGH]
OWNED = [ALL_HASHES, KeyRanges([LOWER]), KeyRanges([UPPER])]


def keys_of(hashes: KeyRanges) -> frozenset[str]:
    return frozenset(key for key in KEYS if owns(hashes, key))


@dataclass
class Beside:
    """A consumer of one partition, and the sets that say what it is to do."""

    driver: Driver
    log: list[str]
    sets: PositionSets
    owned: KeyRanges = ALL_HASHES
    claimed: KeyRanges = ALL_HASHES
    held: dict[int, Message] = field(default_factory=dict)
    is_batch: bool = True
    moment: int | None = None  # at which the next change is interrupted
    was_interrupted: bool = False

    @property
    def delivery(self) -> Delivery | None:
        return self.driver.state.by_partition.get(T0)

    # -- what is done ------------------------------------------------------------------------

    def change(self, change: Callable[[], None]) -> None:
        """Do something, after an interrupt again, as the next call does."""
        moment, self.moment = self.moment, None
        if moment is not None:
            with suppress(Interrupt), interrupt(moment, *MODULES, *OF_DELIVERY) as raised:
                change()
            self.was_interrupted = bool(raised)
        change()
        self.driver.state.left_out.follow_at_once()  # else the sets do so first
        self.driver.look()
        self.follow()

    def follow(self) -> None:
        """The sets leave out what the deliveries are to leave out."""
        left_out = self.driver.state.left_out.hashes(T0, self.owned)
        self.sets.left_out = keys_of(left_out)

    def begin_call(self) -> None:
        """The next call begins: what was returned is processed in implicit mode."""
        self.driver.state.settle()
        self.sets.settle()

    def append(self, number: int) -> None:
        self.log += [KEYS[(number + i) % 4] for i in range(1 + number % 3)]

    def take(self, number: int) -> None:
        """``consume``: what comes is wanted, in the order of the log, and nothing is left out."""
        self.begin_call()
        self.driver.look()
        self.returned(self.driver.take(1 + number % 5))
        self.is_batch = True

    def poll(self, number: int) -> None:
        """Polls one by one, which settle nothing: all but the last record is processed."""
        if self.is_batch:
            self.begin_call()
        self.is_batch = False
        for _ in range(1 + number % 3):
            self.returned(self.driver.take(1))

    def batch(self, _: int) -> None:
        """``consume_batch``: a chunk as a whole."""
        self.begin_call()
        state, driver = self.driver.state, self.driver
        state.read_anew()
        driver.look()
        stripes, first = driver.reading.get(T0, ((), 0))
        offsets = sorted(at for at in listed(stripes, self.log) if at >= first)[:4]
        if offsets:
            driver.reading[T0] = stripes, offsets[-1] + 1
            state.fetched.batch = chunk_of(T0, offsets, self.log), offsets[-1] + 1
            chunk = driver.out.collect_batch(lambda _: None)
            state.by_partition[T0].confirm()
            self.returned([*chunk.messages().messages])
        self.is_batch = True

    def goes_back(self, number: int) -> None:
        """A call has collected something, and does not return it."""
        self.begin_call()
        self.driver.look()
        if self.driver.fetch():
            self.driver.out.collect(1 + number % 3, [])
            self.driver.state.settle()  # what is collected is not returned
            self.check_processed()
            self.driver.state.take_back(T0)
            self.driver.read_anew()

    def returned(self, messages: list[Message]) -> None:
        offsets = [message.offset() for message in messages]
        assert offsets == sorted(self.sets.wanted)[: len(offsets)], "not what comes next"
        self.sets.hand_out(offsets)
        if self.sets.explicit:
            self.held |= dict(zip(offsets, messages, strict=True))

    def pass_over(self, _: int) -> None:
        self.driver.pass_over()

    def acknowledge(self, number: int) -> None:
        if self.held:
            offset = sorted(self.held)[number % len(self.held)]
            self.driver.acknowledge(self.held.pop(offset))
            self.sets.acknowledge([offset])

    def acknowledge_batch(self, number: int) -> None:
        """Rows of batches, some of which may be acknowledged already, or come again."""
        offsets = [at for at in self.sets.out if at % 3 == number % 3]
        if self.sets.explicit:
            self.driver.state.acknowledge_rows(T0, np.array(offsets, np.int64), ())
            self.sets.acknowledge(offsets)
            self.held = {at: m for at, m in self.held.items() if at not in offsets}

    def acknowledge_below(self, number: int) -> None:
        delivery = self.delivery
        if delivery is None:
            return
        offset = min(number % (len(self.log) + 1), delivery.returned)
        self.driver.state.acknowledge_below(T0, offset)
        self.sets.acknowledge_below(offset)
        self.held = {at: m for at, m in self.held.items() if at >= offset}

    def release(self, number: int) -> None:
        if self.held and self.delivery is not None:
            offset = sorted(self.held)[number % len(self.held)]
            released = self.driver.state.release(self.held[offset], self.driver.now + number % 3)
            if released:
                self.sets.release(offset)
                self.held = {at: m for at, m in self.held.items() if not m.is_released()}
            self.change(lambda: None)

    def tick(self, number: int) -> None:
        self.begin_call()
        self.driver.now += number % 4 / 2
        self.change(lambda: None)

    def park(self, number: int) -> None:
        self.begin_call()
        self.driver.park(*([] if self.driver.parked else KEYS[number % 4 :]))
        self.change(lambda: None)

    def seek(self, number: int) -> None:
        state, offset = self.driver.state, number % (len(self.log) + 1)
        state.left_out.released.keep(T0, KeyRanges())
        self.follow()
        self.sets.seek(offset, is_batch=self.is_batch)
        self.change(lambda: state.seek(T0, offset, self.driver.started, is_batch=self.is_batch))
        self.held = {at: m for at, m in self.held.items() if at in self.sets.open}
        self.is_batch = True

    def keep(self, number: int) -> None:
        """Some hashes are given up; others process something of theirs."""
        self.begin_call()
        owned = self.owned if self.owned != ALL_HASHES else OWNED[number % 3]
        self.claimed = self.claimed if owned == self.owned else KeyRanges()
        self.owned = owned
        self.sets.narrow(keys_of(owned))
        self.forget()
        self.change(lambda: self.driver.state.keep({T0: owned}))

    def claim(self, number: int) -> None:
        """What is processed is committed; then some hashes are claimed."""
        self.begin_call()
        hashes = OWNED[number % 3]
        is_new = self.claimed != hashes
        if is_new:
            self.driver.started = {}
        start = self.sets.processed(is_batch=True) if is_new else self.sets.start
        if is_new:
            others = self.sets.of(frozenset(KEYS) - self.sets.owned)
            start |= {at for at in others if at % 4 < number % 4}
        self.owned = self.claimed = hashes
        self.sets.claim(keys_of(hashes), start)
        self.forget()

        def assigned() -> None:
            self.driver.state.assign({T0: hashes}, keeps=True)

        self.change(assigned)
        if is_new:
            self.driver.started = {T0: DeliveryStart.new(self.progress(start))}
        self.change(lambda: None)

    def forget(self) -> None:
        self.held = {at: m for at, m in self.held.items() if at in self.sets.open}

    def progress(self, offsets: set[int]) -> Progress:
        return Progress.at(0).commit(
            Rectangle(OffsetRange(at, at + 1), HashRange.of(point(self.log[at]))) for at in offsets
        )

    # -- the laws ----------------------------------------------------------------------------

    def wanted(self, delivery: Delivery) -> set[int]:
        return listed(delivery.wanted(END), self.log)

    def check(self) -> None:
        """What is wanted, what is processed, and what is open is what the sets say."""
        delivery = self.delivery
        if delivery is None:
            return
        sets, log = self.sets, self.log
        assert self.wanted(delivery) == sets.wanted, "wanted"
        self.check_processed()
        owned = sets.of(sets.owned)
        records = {at: point(log[at]) for at in owned}
        if sets.explicit:
            said = set(delivery.those_committed(records, delivery.processed(is_batch=True)))
            assert said == sets.committed_again(is_batch=True) & owned, "committed"
            assert delivery.in_flight(is_batch=True) == len(sets.open), "open"

    def check_processed(self) -> None:
        """What counts is what the sets say, of all hashes."""
        for is_batch in {True, self.is_batch}:
            assert self.counted(is_batch=is_batch) == self.sets.processed(is_batch=is_batch)

    def check_interrupted(self) -> None:
        """After an interrupt records may come again; none is lost, or counts before it is done."""
        delivery, sets = self.delivery, self.sets
        if delivery is None:
            return
        counted, wanted = self.counted(is_batch=True), self.wanted(delivery)
        assert counted <= sets.processed(is_batch=True), "it counts as processed"
        # A seek may come undone: then what was processed does not come again.
        assert sets.wanted - sets.start <= wanted, "it does not come"
        read = sets.of(sets.owned - sets.left_out)
        assert read - wanted - counted <= sets.skipped | sets.open, "it is lost"

    def counted(self, *, is_batch: bool) -> set[int]:
        """The offsets of the log that are processed, with what was so at the start."""
        delivery, log = self.delivery, self.log
        assert delivery is not None
        done = delivery.start.done.union(delivery.processed(is_batch=is_batch))
        return set(range(len(log))) - listed(done.pending_stripes(len(log), ALL_HASHES), log)


def listed(stripes: tuple[Stripe, ...], log: list[str]) -> set[int]:
    """The offsets of a log that are in some stripes."""
    return {
        at
        for at, key in enumerate(log)
        for each in stripes
        if point(key) in each.hashes
        and any(a <= at < b for a, b in zip(each.bounds[::2], each.bounds[1::2], strict=True))
    }


STEPS = [
    *["take", "poll", "batch", "acknowledge", "acknowledge_batch"] * 2,
    *["append", "goes_back", "pass_over", "acknowledge_below", "release", "tick", "tick"],
    *["park", "seek", "keep", "claim"],
]


def broken_law(
    steps: list[tuple[str, int, int]], *, explicit: bool, interrupts: bool
) -> AssertionError | None:
    """The law that does not hold on a way; None if all do."""
    log = [KEYS[at * at % 7 % 4] for at in range(9)]
    driver = Driver(log, explicit=explicit)
    walk = Beside(driver, log, PositionSets(log, explicit, frozenset(KEYS)))
    driver.start()
    try:
        for step, number, moment in steps:
            walk.moment = moment if interrupts else None
            getattr(walk, step)(number)
            if walk.was_interrupted:
                walk.check_interrupted()
                break
            walk.check()
    except AssertionError as error:
        return error
    return None


@given(
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 40), st.integers(0, 60)), max_size=40
    ),
    st.booleans(),
    st.booleans(),
)
def test_deliveries_do_what_the_sets_say(
    steps: list[tuple[str, int, int]], explicit: bool, interrupts: bool
) -> None:
    broken = broken_law(steps, explicit=explicit, interrupts=interrupts)
    assert broken is None, broken


@pytest.mark.parametrize("last", [("seek", 0), ("goes_back", 0)], ids=["seek", "goes back"])
def test_what_was_handed_out_before_of_other_keys_counts_amid_a_call(last: tuple[str, int]) -> None:
    """Implicit mode: the call reads what was parked, which is behind what came before."""
    steps = [("park", 1), ("poll", 0), ("park", 0), ("take", 0), last]
    ways = [(step, number, 0) for step, number in steps]
    assert broken_law(ways, explicit=False, interrupts=False) is None


def walk(seed: int) -> AssertionError | None:
    """The law that does not hold on a random way; None if all do."""
    draw = Random(seed)
    steps = [(draw.choice(STEPS), draw.randrange(41), draw.randrange(61)) for _ in range(40)]
    return broken_law(steps, explicit=seed % 4 < 2, interrupts=seed % 2 == 1)


def test_random_walks_break_no_law() -> None:
    no_law_is_broken(walk, walks(200))


# -- faults that must be found ---------------------------------------------------------------------


def an_open_call_counts(patch: pytest.MonkeyPatch) -> None:
    """Implicit mode: what a call has collected and not returned is processed."""
    patch.setattr(HandedOut, "returned", HandedOut.position)


def the_last_record_counts(patch: pytest.MonkeyPatch) -> None:
    """Implicit mode: before the next call."""
    patch.setattr(HandedOut, "before_last", HandedOut.position)


def a_seek_settles(patch: pytest.MonkeyPatch) -> None:
    """What the last call has returned counts as its position moves."""
    real = Delivery.seek

    def seek(self: Delivery, offset: int, *, is_batch: bool = True) -> None:
        self.settle()
        real(self, offset, is_batch=is_batch)

    patch.setattr(Delivery, "seek", seek)


def others_keys_count(patch: pytest.MonkeyPatch) -> None:
    """Hashes that are given up count as far as the ones that stay."""
    patch.setattr(Deliveries, "_new_delivery", _of_all_hashes)


def _of_all_hashes(
    self: Deliveries, partition: TopicPartition, start: DeliveryStart, _: KeyRanges, before: Any
) -> Delivery:
    explicit = self._explicit
    return Delivery(partition, start, ALL_HASHES, explicit=explicit, before=before)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    an_open_call_counts: 0,
    the_last_record_counts: 0,
    a_seek_settles: 0,
    others_keys_count: 0,
    hands_out_what_is_parked: 0,
    a_seek_counts_what_is_parked: 0,
    what_was_acknowledged_after_a_seek_is_forgotten: 0,
    what_was_in_hand_at_a_seek_counts: 0,
    reads_on_what_is_released: 0,
}
"""Faults that random walks find, with the first seed that does."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert walk(FAULTS[fault]) is None
    fault(monkeypatch)
    assert is_found(any(walk(seed) for seed in seeds(500, FAULTS[fault])))
