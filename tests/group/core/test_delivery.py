"""What a delivery hands out and counts as processed: laws over random histories."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, Stripe, TopicPartition
from kshare.core.region import Region
from kshare.core.slice_end import Cursor
from kshare.group.core.delivery import Delivery
from kshare.group.core.kept_rows import KeptRows
from kshare.group.delivery_start import DeliveryStart
from kshare.group.message import ACKNOWLEDGED, Chunk, Message
from kshare.read.decode.wanted import WantedRecords

ORDERS = TopicPartition("orders", 0)
HALF = HashRange(0, HASH_SPACE // 2)
END = 60


def chunk_of(offsets: list[int]) -> Chunk:
    keys = [b"k%d" % (offset % 3) for offset in offsets]
    columns = [pa.array(keys, pa.binary()), pa.array(keys, pa.binary()), pa.array(offsets)]
    return Chunk(ORDERS, pa.record_batch(columns, ["key", "value", "offset"]))


def test_what_holds_no_wanted_record_is_passed_to() -> None:
    delivery = Delivery(
        ORDERS, DeliveryStart.new(Progress.at(3)), KeyRanges([HALF]), explicit=False
    )
    delivery.pass_to(0)
    assert delivery.position == 3
    delivery.hand_out(chunk_of([4, 7]), 9)
    delivery.pass_to(20)
    delivery.settle()
    assert delivery.position == 20
    assert delivery.processed(is_batch=True).position(HALF) == 20


def test_what_was_committed_ahead_is_passed_to_once_all_before_it_is_handed_out() -> None:
    ahead = Rectangle(OffsetRange(1, 7), WHOLE)
    delivery = Delivery(
        ORDERS, DeliveryStart.new(Progress.at(0).commit([ahead])), KeyRanges([HALF]), explicit=False
    )
    delivery.pass_to(0)
    assert delivery.position == 0
    delivery.hand_out(chunk_of([0]), 1)
    delivery.pass_to(3)  # the end of a batch that it was fetched with
    assert delivery.position == 7


def test_rows_that_stay_open_keep_no_values_and_are_acknowledged_as_before() -> None:
    chunks = [chunk_of([at, at + 1]) for at in range(0, 10, 2)]
    delivery = Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=True)
    for chunk in chunks:
        delivery.hand_out(chunk, int(chunk.offsets[-1]) + 1)
        chunk.acknowledged[1] = ACKNOWLEDGED  # as a user does, who has the messages
    kept = delivery.kept(ALL_HASHES)
    assert kept is not None
    assert ["value" in each.batch.schema.names for each in kept.chunks] == [*[False] * 4, True]
    slim = kept.chunks[0]
    assert isinstance(slim, KeptRows)
    assert (slim.column("key"), slim.column("offset")) == ([b"k0"], [0])
    assert slim.batch.nbytes < 100
    chunks[0].acknowledged[0] = ACKNOWLEDGED
    delivery.acknowledge(np.array([4]), {chunks[2].number})
    assert delivery.processed(is_batch=True).position(WHOLE) == 2
    assert chunks[2].acknowledged[0] == ACKNOWLEDGED
    assert delivery.in_flight(is_batch=True) == 3


@dataclass
class Model:
    """A consumer's user, and what is processed by what the user has seen and done."""

    delivery: Delivery
    log: list[int]
    chunk_rows: int
    rows: Iterator[Message] = field(default_factory=lambda: iter(()))
    messages: dict[int, Message] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    is_batch: bool = False

    def poll(self, _: int) -> None:
        self._receive(1)

    def consume(self, number: int) -> None:
        self._receive(number % 10)
        self.is_batch = True

    def goes_back(self, number: int) -> None:
        """A call collects some, of several chunks, and others commit meanwhile; it returns none."""
        self.delivery.settle()
        self.settled |= self.last
        self.last, self.is_batch = set(), True
        returned, position = dict(self.messages), self.delivery.position
        self.delivery.collect()
        self._collect(number % 10)
        self.delivery.settle()
        assert self.processed() == (self.acknowledged if self.delivery.explicit else self.settled)
        assert self.delivery.returned == position
        self.delivery.take_back()
        assert self.delivery.position == position
        self.rows, self.messages, self.last = iter(()), returned, set()

    def confirmed(self, number: int) -> None:
        """A call collects some, and returns them."""
        self.delivery.settle()
        self.settled |= self.last
        self.last, self.is_batch = set(), True
        self.delivery.collect()
        self._collect(number % 10)
        self.delivery.confirm()

    def batch(self, _: int) -> None:
        self.stop(0)
        self._receive(0)
        offsets = self._rest()
        if offsets:
            chunk = chunk_of(offsets)
            self.delivery.hand_out(chunk, offsets[-1] + 1)
            for message in chunk.messages().messages:
                self._returned(message)
        self.is_batch = True

    def acknowledge(self, number: int) -> None:
        if self.messages:
            offset = sorted(self.messages)[number % len(self.messages)]
            message = self.messages[offset]
            message.chunk.acknowledged[message.row] = 1
            self.acknowledged.add(offset)

    def acknowledge_batch(self, number: int) -> None:
        offsets = [offset for offset in self.messages if offset % 3 == number % 3]
        self.delivery.acknowledge(np.array([*offsets, END + 5], np.int64))
        self.acknowledged |= set(offsets)

    def stop(self, _: int) -> None:
        self.delivery.stop()
        self.rows = iter(())

    def seek(self, offset: int) -> None:
        """What is returned from there on comes again; what is below it does not, and may count."""
        self.delivery.seek(offset, is_batch=self.is_batch)
        self.rows = iter(())
        self.last = {each for each in self.last if each < offset}
        self.messages = {each: m for each, m in self.messages.items() if each < offset}

    def processed(self) -> set[int]:
        """The offsets of the log that count as processed."""
        progress = self.delivery.processed(is_batch=self.is_batch)
        pending = [piece.offsets for piece in progress.pending_of(END, (HALF,))]
        return {o for o in self.log if not any(o in offsets for offsets in pending)}

    def _rest(self) -> list[int]:
        position = self.delivery.position
        return [offset for offset in self.log if offset >= position][: self.chunk_rows]

    def _receive(self, most: int) -> None:
        self.delivery.settle()
        self.settled |= self.last
        self.last, self.is_batch = set(), False
        self._collect(most)

    def _collect(self, most: int) -> None:
        while len(self.last) < most:
            message = next(self.rows, None)
            if message is not None:
                self._returned(message)
                continue
            offsets = self._rest()
            if not offsets:
                return
            self.rows = self.delivery.begin(chunk_of(offsets), offsets[-1] + 1).messages

    def _returned(self, message: Message) -> None:
        assert message.offset() not in self.messages
        self.last.add(message.offset())
        self.messages[message.offset()] = message


STEPS = [
    "poll",
    "poll",
    "consume",
    "batch",
    "goes_back",
    "confirmed",
    "acknowledge",
    "acknowledge_batch",
    "stop",
    "seek",
]


@given(
    st.sets(st.integers(0, END - 1), min_size=1, max_size=30),
    st.integers(0, 20),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, END - 1)), max_size=40),
    st.booleans(),
    st.integers(1, 7),
)
def test_processed_is_what_was_returned_and_is_acknowledged(
    log: set[int],
    start: int,
    steps: list[tuple[str, int]],
    explicit: bool,
    chunk_rows: int,
) -> None:
    delivery = Delivery(
        ORDERS, DeliveryStart.new(Progress.at(start)), KeyRanges([HALF]), explicit=explicit
    )
    model = Model(delivery, sorted(offset for offset in log if offset >= start), chunk_rows)
    for step, number in steps:
        getattr(model, step)(number)
        assert model.processed() == (model.acknowledged if explicit else model.settled)
    if "seek" not in dict(steps):
        assert list(model.messages) == model.log[: len(model.messages)]
    if explicit:
        waiting = delivery.unacknowledged_ranges
        assert waiting <= delivery.unacknowledged
        assert len(delivery.ranges) in {waiting, max(waiting - 1, 0)}


def test_a_gap_is_no_object_on_its_way_from_the_log_to_the_scan() -> None:
    """A million gaps are arrays; as rectangles they took half a minute."""
    bounds = tuple(range(1, 400_001))
    start = Progress.of_stripes(0, [Stripe(WHOLE, bounds)])
    gc.collect()
    before = len(gc.get_objects())
    delivery = Delivery(ORDERS, DeliveryStart.new(start), ALL_HASHES, explicit=True)
    slice_ = Slice(*ORDERS, stripes=delivery.wanted(1 << 62))
    cursor, wanted = Cursor(slice_.bounds), WantedRecords(slice_.stripes)
    delivery.hand_out(chunk_of([0, 2, 4]), 6)
    done = start.union(delivery.processed(is_batch=True))
    assert len(gc.get_objects()) - before < 1_000
    assert (cursor.next_offset, len(wanted.bands.starts)) == (0, 200_001)
    assert (done.stable, done.gaps) == (0, 200_000)


def test_what_is_processed_before_the_start_is_not_wanted() -> None:
    start = Progress.at(5).commit(Progress.at(20).minus(Progress.at(10)))
    delivery = Delivery(ORDERS, DeliveryStart.new(start), KeyRanges([HALF]), explicit=False)
    assert [stripe.bounds for stripe in delivery.wanted(30)] == [(5, 10, 20, 30)]
    rows = delivery.begin(chunk_of([5, 22]), 23).messages
    assert next(rows).offset() == 5
    assert delivery.position == 22
    assert delivery.processed(is_batch=False) == Progress.at(5)
    delivery.settle()
    assert delivery.processed(is_batch=False).position_of((HALF,)) == 22


def test_only_returned_offsets_can_be_committed() -> None:
    delivery = Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=True)
    list(delivery.begin(chunk_of([0, 1, 5]), 6).messages)
    delivery.acknowledge_below(2)
    assert delivery.processed(is_batch=False) == Progress.at(5)
    with pytest.raises(ValueError, match="beyond the position 6"):
        delivery.acknowledge_below(7)
    assert (delivery.unacknowledged, delivery.unacknowledged_ranges) == (1, 1)


def test_what_many_seeks_have_passed_is_one_set() -> None:
    """A handler that seeks back after each failure does not make commits slow."""
    delivery = Delivery(ORDERS, DeliveryStart.new(Progress.at(0)), ALL_HASHES, explicit=False)
    for offset in range(0, 2_000, 2):
        delivery.hand_out(chunk_of([offset, offset + 1]), offset + 2)
        delivery.settle()
        delivery.seek(offset + 1)
    assert delivery._before.passed == Region.product(ALL_HASHES, (0, 2_000))
    assert delivery.processed(is_batch=True) == Progress.of_stripes(0, [Stripe(WHOLE, (0, 2_000))])
