"""Random events of a consumer: what it reads of a key comes in order, once, and in the end all."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.core.region import EMPTY, Region
from kshare.group.core.deliveries import Deliveries
from kshare.group.core.left_out import ParkedHashes, Released
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.core.position import ALL_OFFSETS, Position
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import RELEASED, Chunk, Message
from tests.group.core.driver import END, HIGH, LOW, MODULES, Driver, owns, point
from tests.group.protocol.interleavings import seeds
from tests.support.effort import walks
from tests.support.groups import LOWER, T0, T1, UPPER
from tests.support.interrupts import Interrupt, interrupt
from tests.support.shown import is_found, no_law_is_broken

KEYS = [*LOW, *HIGH]
OWNED = [ALL_HASHES, KeyRanges([LOWER]), KeyRanges([UPPER])]


PARTITIONS = (T0, T1)
At = tuple[TopicPartition, int]
"""A record: its partition and offset."""


@dataclass
class Walk:
    """A user of two partitions in explicit mode, and what has to come next of each key.

    Laws: of each key, the next record that comes is the first one that is neither acknowledged nor
    in the user's hands, or passed over by a seek; an earlier one comes only after an interrupt.
    Nothing comes of what is parked or paused, and what is acknowledged is processed, no more.
    """

    driver: Driver
    logs: dict[TopicPartition, list[str]]
    owned: KeyRanges = ALL_HASHES
    claimed: KeyRanges = ALL_HASHES
    done: set[At] = field(default_factory=set)
    passed: set[At] = field(default_factory=set)  # what does not come, as far as it was
    held: dict[At, Message] = field(default_factory=dict)
    released: list[Message] = field(default_factory=list)  # and still in the user's hands
    waits: dict[tuple[TopicPartition, str], float] = field(default_factory=dict)  # released keys
    sought: set[TopicPartition] = field(default_factory=set)  # ever
    sought_at: dict[tuple[TopicPartition, str], int] = field(default_factory=dict)
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

    def key(self, at: At) -> str:
        return self.logs[at[0]][at[1]]

    def of_key(self, partition: TopicPartition, key: str) -> list[At]:
        return [(partition, at) for at, other in enumerate(self.logs[partition]) if other == key]

    def append(self, number: int) -> None:
        log = self.logs[PARTITIONS[number % 2]]
        log += [KEYS[(number + i) % 4] for i in range(1 + number % 3)]

    def take(self, number: int) -> None:
        for message in self.driver.take(1 + number % 5):
            partition, offset = message.topic_partition, message.offset()
            at, key = (partition, offset), self.logs[partition][offset]
            assert owns(self.owned, key)
            assert key not in self.parked()
            assert partition not in self.driver.state.paused
            assert not message.is_released()
            due = self.waits.get((partition, key), 0.0)
            assert due <= self.driver.now, "it was released, and is not due"
            left = (each for each in self.of_key(partition, key) if each not in self.passed)
            _, expected = next(left, (partition, END))  # none is left: it may only repeat
            assert offset <= expected, "a record of its key is left out"
            assert offset == expected or self.may_repeat, "it comes again"
            self.held[at] = message
            self.passed.add(at)

    def acknowledge(self, number: int) -> None:
        if self.held:
            at = sorted(self.held)[number % len(self.held)]
            self.driver.acknowledge(self.held.pop(at))
            self.done.add(at)

    def release(self, number: int) -> None:
        if self.held:
            message = self.held[sorted(self.held)[number % len(self.held)]]
            at = message.topic_partition, message.offset()
            due, key = self.driver.now + number % 3, (at[0], self.key(at))
            if self.driver.state.release(message, due):
                self.waits[key] = max(due, self.waits.get(key, 0.0))
                first = self.sought_at.get(key, 0)  # before it, nothing comes until a restart
                released = {each for each, m in self.held.items() if m.is_released()}
                # What an interrupt has repeated counts already, and comes no more after a claim.
                repeated = self.done if self.may_repeat else set()
                self.passed -= {each for each in released - repeated if each[1] >= first}
                self.released += [m for m in self.held.values() if m.is_released()]
                self.held = {each: m for each, m in self.held.items() if not m.is_released()}

    def acknowledge_released(self, number: int) -> None:
        """A thread is done with a record that another one has released: it comes all the same."""
        if self.released:
            self.driver.acknowledge(self.released.pop(number % len(self.released)))

    def park(self, number: int) -> None:
        self.driver.park(*([] if self.parked() else KEYS[number % 4 :]))
        self.change(self.driver.look)

    def parked(self) -> list[str]:
        parked = (self.driver.parked or {}).get("orders", ())
        return [key for key in KEYS if any(point(key) in part for part in parked)]

    def pause(self, number: int) -> None:
        state, partition = self.driver.state, PARTITIONS[number // 2 % 2]
        self.change(lambda: (state.pause if number % 2 else state.resume)(partition))

    def seek(self, number: int) -> None:
        """What is parked stays where it is; all else of the partition goes on at the offset."""
        partition = PARTITIONS[number % 2]
        log, state = self.logs[partition], self.driver.state
        offset = number // 2 % (len(log) + 1)
        self.change(lambda: state.seek(partition, offset, self.driver.started))
        self.change(self.driver.look)
        self.sought.add(partition)
        keys = [key for key in KEYS if owns(self.owned, key) and key not in self.parked()]
        self.sought_at |= {(partition, key): offset for key in keys}
        self.waits = {each: due for each, due in self.waits.items() if each[0] != partition}
        for at in [each for key in keys for each in self.of_key(partition, key)]:
            self.passed -= {at}
            if at[1] < offset:
                self.passed.add(at)
            else:
                self.held.pop(at, None)

    def goes_back(self, number: int) -> None:
        """A call has collected something, and does not return it."""
        if self.driver.fetch():
            partition = self.driver.out.current
            self.driver.out.collect(1 + number % 3, [])
            self.driver.state.take_back(partition)

    def keep(self, number: int) -> None:
        """Some hashes are given up, and their owner claims the others."""
        owned = self.owned if self.owned != ALL_HASHES else OWNED[number % 3]
        self.claimed = self.claimed if owned == self.owned else NO_HASHES
        self.owned = owned
        self.change(lambda: self.driver.state.keep(dict.fromkeys(PARTITIONS, owned)))
        self.forget()

    def claim(self, number: int) -> None:
        """What is acknowledged is committed; then some hashes are claimed."""
        before, self.owned = self.owned, OWNED[number % 3]
        assignment = dict.fromkeys(PARTITIONS, self.owned)
        if self.claimed != self.owned:
            self.driver.started = {}
        self.change(lambda: self.driver.state.assign(assignment, keeps=True))
        self.forget()
        for at in [each for each in self.done if not owns(before, self.key(each))]:
            self.passed.add(at)  # what is gained begins from what is committed
        if self.claimed != self.owned:
            self.driver.started = {partition: self.start(partition) for partition in PARTITIONS}
        self.claimed = self.owned
        self.change(self.driver.look)

    def forget(self) -> None:
        """What is of others' hashes is not the user's business any more."""
        self.held = {at: m for at, m in self.held.items() if owns(self.owned, self.key(at))}
        self.passed = {at for at in self.passed if owns(self.owned, self.key(at))}
        self.waits = {each: due for each, due in self.waits.items() if owns(self.owned, each[1])}
        self.sought_at = {at: to for at, to in self.sought_at.items() if owns(self.owned, at[1])}

    def start(self, partition: TopicPartition) -> DeliveryStart:
        done = Progress.at(0).commit(
            Rectangle(OffsetRange(at[1], at[1] + 1), HashRange.of(point(self.key(at))))
            for at in self.done
            if at[0] == partition
        )
        return DeliveryStart.new(done)

    def tick(self, number: int) -> None:
        self.driver.now += number % 4 / 2
        self.change(self.driver.look)

    def check(self) -> None:
        """What is acknowledged is processed, and nothing else."""
        for partition, delivery in self.driver.state.by_partition.items():
            log = self.logs[partition]
            progress = delivery.start.done.union(delivery.processed(is_batch=True))
            for at, key in enumerate(log):
                pieces = progress.pending_of(len(log), (HashRange.of(point(key)),))
                if owns(self.owned, key):
                    is_pending = any(at in piece.offsets for piece in pieces)
                    is_done = (partition, at) in self.done
                    assert is_pending or is_done, "it counts as processed"
                    assert not (is_pending and is_done) or self.may_repeat, "it does not count"

    def finish(self) -> None:
        """Nothing is lost: all comes in the end, but for what a seek has passed over."""
        self.number = None
        self.driver.park()
        self.claim(0)
        for number, partition in enumerate(PARTITIONS):
            if partition in self.sought:
                self.seek(number)
            self.driver.state.resume(partition)
        for _ in range(4 * sum(map(len, self.logs.values()))):
            self.tick(3)
            self.take(4)
            while self.held:
                self.acknowledge(0)
        assert self.done == {(tp, at) for tp, log in self.logs.items() for at in range(len(log))}


WALK_STEPS = [
    *["take", "acknowledge"] * 3,
    *["append", "release", "park", "pause", "goes_back", "keep", "claim", "tick", "tick", "seek"],
    "acknowledge_released",
]


@given(
    st.lists(
        st.tuples(st.sampled_from(WALK_STEPS), st.integers(0, 40), st.integers(0, 60)),
        max_size=40,
    ),
    st.booleans(),
)
def test_all_comes_once_in_order_of_each_key(
    steps: list[tuple[str, int, int]], interrupts: bool
) -> None:
    broken = broken_law(steps, interrupts=interrupts)
    assert broken is None, broken


def test_all_comes_wherever_an_interrupt_comes_as_hashes_are_given_up() -> None:
    for moment in range(50):
        steps = [*[("take", 0, 0)] * 5, ("keep", 1, moment)]
        assert broken_law(steps, interrupts=True) is None, f"moment {moment}"


@pytest.mark.parametrize(
    "before",
    [
        [("park", 39), ("take", 27), ("park", 28), ("seek", 14)],
        [("park", 35), ("take", 21), ("park", 32), ("seek", 2), ("take", 0), ("take", 20)],
        [("take", 37), ("keep", 13), ("release", 34), ("seek", 22), ("take", 14)],
    ],
    ids=["unparked", "sought and read on", "released before the next claim"],
)
def test_what_came_before_a_delivery_and_a_seek_counts_once_it_is_acknowledged(
    before: list[tuple[str, int]],
) -> None:
    steps = [(step, number, 0) for step, number in before]
    assert broken_law([*steps, *[("acknowledge", 0, 0)] * 9]) is None


def test_random_walks_break_no_law() -> None:
    no_law_is_broken(walk, walks(100))


def broken_law(
    steps: Iterable[tuple[str, int, int]], *, interrupts: bool = False
) -> AssertionError | None:
    """The law that does not hold on a way; None if all do."""
    logs = {tp: [KEYS[(at * at + n) % 7 % 4] for at in range(9)] for n, tp in enumerate(PARTITIONS)}
    walk = Walk(Driver(*logs.values(), explicit=True), logs)
    walk.driver.start(WHOLE)
    try:
        for step, number, moment in steps:
            walk.number = moment if interrupts else None
            getattr(walk, step)(number)
            walk.check()
        walk.finish()
    except AssertionError as error:
        return error
    return None


# -- faults that must be found ---------------------------------------------------------------------


def hands_out_what_is_parked(patch: pytest.MonkeyPatch) -> None:
    """Until its partition is read anew for another reason."""

    def obey(self: Deliveries, parked: ParkedHashes | None) -> None:
        self.left_out.parked = self.left_out.obeyed = parked

    patch.setattr(Deliveries, "_obey_parking", obey)


def a_seek_counts_what_is_parked(patch: pytest.MonkeyPatch) -> None:
    """What is in hand of parked keys is not handed out again, and counts as processed."""
    real = OpenChunks.acknowledge_between
    patch.setattr(OpenChunks, "acknowledge_between", lambda self, *of, **_: real(self, *of[:2]))


def what_was_acknowledged_after_a_seek_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What was in hand below its offset never counts."""
    real = Position.seek

    def seek(self: Position, offset: int, read: KeyRanges, waiting: Region) -> Position:
        mine = Region.product(read, ALL_OFFSETS)
        sought = real(self, offset, read, waiting)
        return replace(sought, out=sought.out - mine)

    patch.setattr(Position, "seek", seek)


def what_was_in_hand_at_a_seek_counts(patch: pytest.MonkeyPatch) -> None:
    """Also before it is acknowledged."""
    real = Position.seek
    patch.setattr(Position, "seek", lambda self, at, read, _: real(self, at, read, EMPTY))


def a_seek_leaves_out_what_was_released(patch: pytest.MonkeyPatch) -> None:
    real = Released.keep
    patch.setattr(Released, "keep", lambda *given: real(*given) if given[2] else None)


def reads_on_what_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deliveries, "_follow_released", lambda _: None)


def an_acknowledgement_wins_over_a_release(patch: pytest.MonkeyPatch) -> None:
    """A record is marked as released, and counts once it is acknowledged all the same."""
    patch.setattr(Chunk, "open_rows", Chunk.waiting_rows)
    patch.setattr(Chunk, "first_open", lambda chunk: chunk.acknowledged.find(0))
    patch.setattr(Chunk, "release", lambda chunk, row: chunk.released.__setitem__(row, RELEASED))


def reads_one_partition_anew(patch: pytest.MonkeyPatch) -> None:
    """The list misses all that comes after the first one."""
    real = Deliveries._begin_again

    def begin_again(self: Deliveries, at: TopicPartition) -> None:
        before = dict(self.fetched.anew)
        real(self, at)
        self.fetched.anew = before or self.fetched.anew

    patch.setattr(Deliveries, "_begin_again", begin_again)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    hands_out_what_is_parked: 0,
    a_seek_counts_what_is_parked: 0,
    what_was_acknowledged_after_a_seek_is_forgotten: 0,
    what_was_in_hand_at_a_seek_counts: 0,
    a_seek_leaves_out_what_was_released: 8,
    reads_on_what_is_released: 0,
    an_acknowledgement_wins_over_a_release: 0,
    reads_one_partition_anew: 0,
}
"""Faults that random walks find, with the first seed that does."""


def walk(seed: int) -> AssertionError | None:
    """The law that does not hold on a random way; None if all do."""
    draw = Random(seed)
    steps = [(draw.choice(WALK_STEPS), draw.randrange(41), 0) for _ in range(40)]
    return broken_law(steps)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert walk(FAULTS[fault]) is None
    fault(monkeypatch)
    assert is_found(any(walk(seed) for seed in seeds(500, FAULTS[fault])))
