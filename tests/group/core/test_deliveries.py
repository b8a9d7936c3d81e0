"""What is read of a consumer's partitions is decided without reader, threads and clock."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Stripe, TopicPartition
from kshare.group.core import deliveries, handing_out, in_hand, key_limit, left_out
from kshare.group.core.deliveries import Deliveries
from kshare.group.core.handing_out import HandingOut
from kshare.group.core.left_out import LeftOut
from kshare.group.message import ACKNOWLEDGED, NO_ROWS, Chunk, Message, Rows
from tests.support.groups import LOWER, T0, T1, UPPER
from tests.support.interrupts import Interrupt, interrupt

END = 1 << 40
MODULES = (deliveries, handing_out, in_hand, left_out)
LOW = [f"k{i}" for i in range(99) if key_hash(f"k{i}".encode(), 0) in LOWER][:2]
HIGH = [f"k{i}" for i in range(99) if key_hash(f"k{i}".encode(), 0) in UPPER][:2]


def point(key: str) -> int:
    return key_hash(key.encode(), 0)


def owns(hashes: Sequence[HashRange], key: str) -> bool:
    return any(point(key) in part for part in hashes or (WHOLE,))


def chunk_of(partition: TopicPartition, offsets: list[int], log: list[str]) -> Chunk:
    keys = pa.array([log[offset].encode() for offset in offsets], pa.binary())
    columns = [keys, pa.array(offsets, pa.int64())]
    return Chunk(partition, pa.record_batch(columns, ["key", "offset"]))


class Driver:
    """What a dispatcher does, with logs in memory: each partition's keys by offset."""

    def __init__(
        self,
        *logs: list[str],
        explicit: bool = False,
        is_transactional: bool = False,
        most: int | None = None,
    ) -> None:
        self.logs = dict(zip((T0, T1), logs, strict=False))
        self.started: dict[TopicPartition, Progress] = {}
        self.parked: left_out.ParkedHashes | None = {}
        self.now = 0.0
        self.reading: dict[TopicPartition, tuple[tuple[Stripe, ...], int]] = {}
        self.begun: list[TopicPartition] = []  # whose reading began anew, in order
        self.state = Deliveries(LeftOut(most), explicit=explicit, is_transactional=is_transactional)
        self.out = HandingOut(self.state, explicit=explicit)

    def start(self, *hashes: HashRange) -> None:
        """Claim some hashes of all partitions, and have it in place."""
        self.state.assign(dict.fromkeys(self.logs, hashes))
        self.started = {partition: Progress.at(0) for partition in self.logs}
        self.look()

    def look(self, *, continues: bool = False, begins: bool = False) -> None:
        self.state.refresh(self.started, self.now, self.parked, continues=continues, begins=begins)
        self.read_anew()

    def read_anew(self) -> None:
        for partition in list(self.state.hand.anew):
            wanted = self.state.to_read(partition, END)
            self.reading.pop(partition, None)
            if wanted:
                self.reading[partition] = wanted, 0
            self.begun.append(partition)
            del self.state.hand.anew[partition]

    def fetch(self) -> bool:
        """As :meth:`.Dispatcher.next_rows`."""
        self.read_anew()
        hand, out = self.state.hand, self.out
        if not hand.rows.left:
            hand.rows = out.let_out() or out.begun(lambda _: None) or self._fetched() or NO_ROWS
        return hand.rows.left > 0

    def _fetched(self) -> Rows | None:
        self.state.hand.partition = None
        if self.out.is_full or self.state.hand.has_rest:
            return None
        for partition, (wanted, first) in self.reading.items():
            log = self.logs[partition]
            found = [at for at in range(first, len(log)) if _is_wanted(wanted, at, log[at])][:4]
            if found:
                self.reading[partition] = wanted, found[-1] + 1
                cut = [chunk_of(partition, part, log) for part in (found[:2], found[2:]) if part]
                self.state.hand.begin(cut, found[-1] + 1)
                return self.out.begun(lambda _: None)
        return None

    def take(self, most: int = 99) -> list[Message]:
        """What comes next, of all partitions; what is released is skipped."""
        found: list[Message] = []
        while len(found) < most and self.fetch():
            rows = self.state.hand.rows.messages
            found += [m for m in islice(rows, most - len(found)) if not m.is_released()]
        return found

    def offsets(self, most: int = 99) -> list[int]:
        return [message.offset() for message in self.take(most)]

    def acknowledge(self, message: Message) -> None:
        message[0].acknowledged[message[1]] = ACKNOWLEDGED
        limits = self.state.left_out.limits
        limits.acknowledge(message.topic_partition, [message.offset()], message[0].number)

    def park(self, *keys: str) -> None:
        self.parked = {"orders": HashRange.each({point(key) for key in keys})} if keys else {}


def _is_wanted(stripes: Sequence[Stripe], offset: int, key: str) -> bool:
    return any(
        point(key) in stripe.hashes
        and any(
            first <= offset < end
            for first, end in zip(stripe.bounds[::2], stripe.bounds[1::2], strict=True)
        )
        for stripe in stripes
    )


MIXED = [LOW[0], HIGH[0], LOW[1], HIGH[1]] * 3
OF_LOW, OF_HIGH = [0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]


def test_nothing_is_read_before_it_has_started_and_nothing_after_it_is_given_up() -> None:
    driver = Driver(MIXED, MIXED)
    driver.state.assign({T0: (), T1: (LOWER,)})
    driver.look()
    assert driver.reading == {}
    driver.started = {T0: Progress.at(3), T1: Progress.at(2)}
    driver.look()
    assert [(m.topic_partition, m.offset()) for m in driver.take()] == [
        *((T0, at) for at in range(3, 12)),
        *((T1, at) for at in (2, 4, 6, 8, 10)),
    ]
    driver.state.assign({T1: (LOWER,)}, keeps=True)
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
    driver.state.keep({T0: (LOWER,)})
    assert not driver.state.is_settled()
    assert driver.offsets(1) == [4]
    driver.started = {}  # its next claim is not in place
    driver.state.assign({T0: (LOWER,)}, keeps=True)
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
    driver.state.keep({T0: (LOWER,)})
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
    driver.state.keep({T0: (LOWER,)})
    driver.read_anew()
    assert driver.offsets() == []
    driver.started = {T0: Progress.at(0)}
    driver.look()
    assert driver.offsets() == [2, 4, 6, 8, 10]
    driver.park(LOW[0])
    driver.look()
    assert driver.state.by_partition[T0].parked == ()  # amid a transaction, no key is parked
    driver.look(begins=True)
    assert driver.state.by_partition[T0].parked == driver.parked["orders"]  # type: ignore[index]


def test_a_seek_before_the_start_holds_and_one_for_other_hashes_does_not() -> None:
    driver = Driver(MIXED)
    driver.state.assign({T0: (WHOLE,)})
    driver.state.seek(T0, 9, {})
    driver.started = {T0: Progress.at(0)}
    driver.look()
    assert driver.offsets() == [9, 10, 11]
    driver = Driver(MIXED)
    driver.state.assign({T0: (LOWER,)})
    driver.state.seek(T0, 9, {})
    driver.state.assign({T0: (UPPER,)}, keeps=True)
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
    delivery, messages = driver.out.collect(2)
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
    assert driver.state.by_partition[T0].parked == (HashRange.of(point(LOW[0])),)
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
    "keep": lambda driver: driver.state.keep({T0: (LOWER,), T1: (WHOLE,)}),
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


KEYS = [*LOW, *HIGH]
OWNED = [(WHOLE,), (LOWER,), (UPPER,)]


@dataclass
class Walk:
    """A user of one partition in explicit mode, and what has to come next of each key.

    Laws: of each key, the next record that comes is the first one that is neither acknowledged nor
    in the user's hands; an earlier one comes only after an interrupt. Nothing else is processed.
    """

    driver: Driver
    log: list[str]
    owned: tuple[HashRange, ...] = (WHOLE,)
    claimed: tuple[HashRange, ...] = (WHOLE,)
    done: set[int] = field(default_factory=set)
    held: dict[int, Message] = field(default_factory=dict)
    number: int | None = None  # of the moment at which the next change is interrupted
    may_repeat: bool = False

    def change(self, *changes: Callable[[], None]) -> None:
        """What changes is called again after an interrupt, as by the next call."""
        number, self.number = self.number, None
        if number is not None:
            with suppress(Interrupt), interrupt(number, *MODULES) as raised:
                for change in changes:
                    change()
            self.may_repeat |= bool(raised)
        for change in changes:
            change()

    def append(self, number: int) -> None:
        self.log += [KEYS[(number + i) % 4] for i in range(1 + number % 3)]

    def take(self, number: int) -> None:
        for message in self.driver.take(1 + number % 5):
            offset, key = message.offset(), self.log[message.offset()]
            assert owns(self.owned, key)
            assert key not in self.parked()
            of_key = [at for at, other in enumerate(self.log) if other == key]
            expected = next(at for at in of_key if at not in self.done and at not in self.held)
            assert offset <= expected, "a record of its key is left out"
            assert offset == expected or self.may_repeat, "it comes again"
            self.held[offset] = message

    def acknowledge(self, number: int) -> None:
        if self.held:
            offset = sorted(self.held)[number % len(self.held)]
            self.driver.acknowledge(self.held.pop(offset))
            self.done.add(offset)

    def release(self, number: int) -> None:
        if self.held:
            message = self.held[sorted(self.held)[number % len(self.held)]]
            if self.driver.state.release(message, self.driver.now + number % 3):
                self.held = {at: m for at, m in self.held.items() if not m.is_released()}

    def park(self, number: int) -> None:
        self.driver.park(*([] if self.parked() else KEYS[number % 4 :]))
        self.change(self.driver.look)

    def parked(self) -> list[str]:
        parked = (self.driver.parked or {}).get("orders", ())
        return [key for key in KEYS if any(point(key) in part for part in parked)]

    def pause(self, number: int) -> None:
        state = self.driver.state
        self.change(lambda: (state.pause if number % 2 else state.resume)(T0))

    def goes_back(self, number: int) -> None:
        """A call has collected something, and does not return it."""
        if self.driver.fetch():
            _, messages = self.driver.out.collect(1 + number % 3)
            self.driver.state.take_back(T0, messages)

    def keep(self, number: int) -> None:
        """Some hashes are given up, and their owner claims the others."""
        owned = self.owned if self.owned != (WHOLE,) else OWNED[number % 3]
        self.owned, self.claimed = owned, self.claimed if owned == self.owned else ()
        self.change(lambda: self.driver.state.keep({T0: owned}))
        self.held = {at: m for at, m in self.held.items() if owns(owned, self.log[at])}

    def claim(self, number: int) -> None:
        """What is acknowledged is committed; then some hashes are claimed."""
        self.owned = OWNED[number % 3]
        assignment = {T0: self.owned}
        if self.claimed != self.owned:
            self.driver.started = {}
        self.change(lambda: self.driver.state.assign(assignment, keeps=True))
        self.held = {at: m for at, m in self.held.items() if owns(self.owned, self.log[at])}
        if self.claimed != self.owned:
            self.driver.started = {T0: self.start()}
        self.claimed = self.owned
        self.change(self.driver.look)

    def start(self) -> Progress:
        return Progress.at(0).commit(
            Rectangle(OffsetRange(at, at + 1), HashRange.of(point(self.log[at])))
            for at in self.done
        )

    def tick(self, number: int) -> None:
        self.driver.now += number % 4 / 2
        self.change(self.driver.look)

    def check(self) -> None:
        """Only what is acknowledged is processed."""
        delivery = self.driver.state.by_partition.get(T0)
        if delivery is None:
            return
        end = len(self.log)
        progress = delivery.start.union(delivery.processed(is_batch=True))
        for at, key in enumerate(self.log):
            pieces = progress.pending_of(end, (HashRange.of(point(key)),))
            if owns(self.owned, key) and at not in self.done:
                assert any(at in piece.offsets for piece in pieces), "it counts as processed"

    def finish(self) -> None:
        """Nothing is lost: all comes in the end."""
        self.number = None
        self.driver.park()
        self.driver.state.resume(T0)
        self.claim(0)
        for _ in range(4 * len(self.log)):
            self.tick(3)
            self.take(4)
            while self.held:
                self.acknowledge(0)
        assert self.done == set(range(len(self.log)))


WALK_STEPS = [
    *["take", "acknowledge"] * 3,
    *["append", "release", "park", "pause", "goes_back", "keep", "claim", "tick", "tick"],
]


@given(
    st.lists(
        st.tuples(st.sampled_from(WALK_STEPS), st.integers(0, 40), st.integers(0, 60)),
        max_size=40,
    ),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
def test_all_comes_once_in_order_of_each_key(
    steps: list[tuple[str, int, int]], most: int | None, interrupts: bool
) -> None:
    log = [KEYS[(at * at) % 7 % 4] for at in range(12)]
    walk = Walk(Driver(log, explicit=True, most=most), log)
    walk.driver.start(WHOLE)
    for step, number, moment in steps:
        walk.number = moment if interrupts else None
        getattr(walk, step)(number)
        walk.check()
    walk.finish()
