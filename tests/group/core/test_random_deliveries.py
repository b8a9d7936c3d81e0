"""Random events of a consumer: what it reads of a key comes in order, once, and in the end all."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.message import Message
from tests.group.core.driver import HIGH, LOW, MODULES, Driver, owns, point
from tests.support.groups import LOWER, T0, UPPER
from tests.support.interrupts import Interrupt, interrupt

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
    waits: dict[str, float] = field(default_factory=dict)  # keys that are released, until then
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
            assert not message.is_released()
            assert self.waits.get(key, 0.0) <= self.driver.now, "it was released, and is not due"
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
            due, key = self.driver.now + number % 3, self.log[message.offset()]
            if self.driver.state.release(message, due):
                self.waits[key] = max(due, self.waits.get(key, 0.0))
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
            self.driver.state.take_back(T0, self.driver.out.collect(1 + number % 3))

    def keep(self, number: int) -> None:
        """Some hashes are given up, and their owner claims the others."""
        owned = self.owned if self.owned != (WHOLE,) else OWNED[number % 3]
        self.owned, self.claimed = owned, self.claimed if owned == self.owned else ()
        self.change(lambda: self.driver.state.keep({T0: owned}))
        self.forget()

    def claim(self, number: int) -> None:
        """What is acknowledged is committed; then some hashes are claimed."""
        self.owned = OWNED[number % 3]
        assignment = {T0: self.owned}
        if self.claimed != self.owned:
            self.driver.started = {}
        self.change(lambda: self.driver.state.assign(assignment, keeps=True))
        self.forget()
        if self.claimed != self.owned:
            self.driver.started = {T0: self.start()}
        self.claimed = self.owned
        self.change(self.driver.look)

    def forget(self) -> None:
        """What is of others' hashes is not the user's business any more."""
        self.held = {at: m for at, m in self.held.items() if owns(self.owned, self.log[at])}
        self.waits = {key: due for key, due in self.waits.items() if owns(self.owned, key)}

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
