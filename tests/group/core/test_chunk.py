"""A chunk's rows, acknowledged by any thread and released by another, beside a plain twin."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.errors import ConsumerClosedError
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.message import ACKNOWLEDGED, RELEASED, Chunk, Message
from tests.group.core.driver import chunk_of

ROWS = 4
STEPS = ("acknowledge", "release", "replace", "close", "close_rows")


def made() -> Chunk:
    return chunk_of(TopicPartition("t", 0), list(range(ROWS)), ["k"] * ROWS)


class Twin:
    """Each row: open, done (acknowledged), released, or replaced by another row."""

    def __init__(self) -> None:
        self.rows = ["open"] * ROWS

    def acknowledge(self, row: int) -> None:
        if self.rows[row] == "open":
            self.rows[row] = "done"

    def release(self, row: int) -> None:
        if self.rows[row] == "open":
            self.rows[row] = "released"

    def replace(self, row: int) -> None:
        self.rows[row] = "replaced"

    def close(self, row: int) -> None:
        self.rows[row] = "done" if self.rows[row] in ("open", "done") else "replaced"

    def close_rows(self, row: int) -> None:
        self.rows[row:] = ["done"] * (ROWS - row)


@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, ROWS - 1)), max_size=12))
def test_a_release_has_the_last_word_until_the_row_comes_again(
    steps: list[tuple[str, int]],
) -> None:
    chunk, twin = made(), Twin()
    messages = list(chunk.messages().messages)
    slim = chunk.slim
    for step, row in steps:
        if step == "replace" and twin.rows[row] != "released":
            continue
        getattr(twin, step)(row)
        if step == "acknowledge":
            messages[row].chunk.acknowledged[row] = ACKNOWLEDGED  # as consumers do
        else:
            getattr(chunk, step)(row)
        for each in (chunk, slim):
            is_open = [state in ("open", "released") for state in twin.rows]
            assert [each.is_open(row) for row in range(ROWS)] == is_open
            assert each.open_rows().tolist() == is_open
            assert each.first_open() == (is_open.index(True) if True in is_open else -1)
            assert each.records == sum(is_open)
        comes = [state in ("released", "replaced") for state in twin.rows]
        assert [message.is_released() for message in messages] == comes


def test_a_release_that_is_interrupted_leaves_the_row_open() -> None:
    chunk = made()
    chunk.released[1] = RELEASED  # and no more
    assert chunk.is_open(1)
    assert chunk.open_rows().all()
    chunk.acknowledged[1] = ACKNOWLEDGED  # meanwhile, by another thread
    assert chunk.is_open(1)
    chunk.release(1)
    assert chunk.is_open(1)
    chunk.replace(1)
    assert not chunk.is_open(1)


@given(
    keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    released=st.sets(st.integers(0, 11)),
    acknowledged=st.sets(st.integers(0, 11)),
)
def test_releases_of_many_at_once_are_those_of_each(
    keys: list[bytes | None], cut: int, released: set[int], acknowledged: set[int]
) -> None:
    def chunks() -> tuple[Chunk, ...]:
        bounds = [(0, min(cut, len(keys))), (min(cut, len(keys)), len(keys))]
        made = [
            Chunk(
                TopicPartition("t", 0),
                pa.record_batch(
                    [pa.array(keys[lo:hi], pa.binary()), pa.array(range(lo, hi), pa.int64())],
                    ["key", "offset"],
                ),
            )
            for lo, hi in bounds
            if lo < hi
        ]
        for each in made:
            for row, offset in enumerate(each.offsets.tolist()):
                each.acknowledged[row] = offset in acknowledged
        return tuple(made)

    one_by_one, at_once = chunks(), chunks()
    firsts, alone = dict[bytes, int](), set[int]()
    for offset in sorted(each for each in released if each < len(keys)):
        key = keys[offset]
        OpenChunks(one_by_one).release(key, offset)
        if key is None:
            alone.add(offset)
        else:
            firsts.setdefault(key, offset)
    if firsts or alone:
        OpenChunks(at_once).release_all(firsts, alone)
    assert [each.released for each in at_once] == [each.released for each in one_by_one]


def test_a_release_without_a_key_is_of_that_record_alone() -> None:
    """Not of the first ones of later chunks, which are another's, or have no key either."""
    place = TopicPartition("t", 0)
    columns = ["key", "offset"]

    def chunk(offsets: list[int]) -> Chunk:
        keys = pa.nulls(len(offsets), pa.binary())
        return Chunk(place, pa.record_batch([keys, pa.array(offsets, pa.int64())], columns))

    first, others = chunk([0, 1, 4]), [chunk([2, 3]), chunk([5, 6])]
    OpenChunks((first, *others)).release(None, 1)
    assert first.released_rows() == [1]
    assert [each.released_rows() for each in others] == [[], []]


def test_a_column_is_converted_once_and_one_that_is_not_read_is_named() -> None:
    columns = [pa.array([b"k", None], pa.binary()), pa.array([7, 8], pa.int64())]
    chunk = Chunk(TopicPartition("t", 0), pa.record_batch(columns, ["key", "offset"]))
    assert (chunk.column("key"), chunk.column("offset")) == ([b"k", None], [7, 8])
    assert chunk.column("key") is chunk.key
    with pytest.raises(ValueError, match=r"headers is not read: add it to .* 'columns'"):
        chunk.column("headers")
    with pytest.raises(ValueError, match="partition is no column"):
        chunk.column("partition")


def test_a_message_keeps_no_consumer_alive() -> None:
    """The garbage collector does not know messages: a cycle through one would never end."""

    class Consumer:
        def count(self, partition: TopicPartition, offset: int) -> int:
            return offset + 1

    consumer, chunk = Consumer(), made()
    chunk.release_count = WeakMethod(consumer.count)
    message = next(chunk.messages().messages)
    assert message.delivery_count() == 2 + message.offset()
    assert not gc.is_tracked(message)
    del consumer
    with pytest.raises(ConsumerClosedError):
        message.delivery_count()


def test_a_message_is_one_value_and_cannot_be_changed_or_copied() -> None:
    chunk = made()
    one, again = next(chunk.messages().messages), next(chunk.messages().messages)
    assert one != again
    assert len({one, again, one}) == 2
    for name in ("row", "mark"):
        with pytest.raises(AttributeError):
            setattr(one, name, 2)
    uses: list[Callable[[Any], object]] = [
        *(copy.copy, copy.deepcopy, pickle.dumps, list),
        *(lambda message: message.__replace__(row=0), lambda message: message < message),
    ]
    for use in uses:
        with pytest.raises(TypeError):
            use(one)


def test_only_its_value_shows_a_value() -> None:
    """``rich`` prints local variables of a traceback by what a struct says of itself."""
    columns = [pa.array([b"secret"], pa.binary()), pa.array([7], pa.int64())]
    chunk = Chunk(TopicPartition("t", 0), pa.record_batch(columns, ["value", "offset"]))
    message = next(chunk.messages().messages)
    assert message.value() == b"secret"
    assert len(message) == len(b"secret")
    assert repr(message) == str(message) == f"{message}" == "<Message t-0 offset 7>"
    assert message.__rich_repr__() == [("partition", "t-0"), ("offset", 7)]


def test_a_subclass_is_a_message_that_nobody_collects() -> None:
    class Billing(Message, frozen=True):
        def amount(self) -> int:
            return len(self)

    chunk = made()
    message = Billing(chunk, 1, b"1234")
    assert isinstance(message, Message)
    assert (message.amount(), message.offset(), message.key()) == (4, 1, b"k")
    assert not gc.is_tracked(message)
    assert message != Billing(chunk, 1, b"1234")
    with pytest.raises(AttributeError):
        message.row = 2  # type: ignore[misc]
