"""Rows that stay open: what is kept of their chunks, and what it costs to add and to count them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.group.core import kept_rows, open_chunks
from kshare.group.core.handing_out import HandingOut
from kshare.group.core.kept_rows import KeptRows
from kshare.group.core.open_chunks import OpenChunks
from kshare.group.message import ACKNOWLEDGED, CHUNK_ROWS, Chunk
from tests.group.core.driver import Driver
from tests.support.effort import calls_below
from tests.support.groups import T0
from tests.support.interrupts import Interrupt, interrupt

STEPS = ("acknowledge", "acknowledge_kept", "release", "release_kept", "replace", "close")


def chunk_of(first: int, rows: int, key: bytes = b"k") -> Chunk:
    columns = [
        pa.array([key] * rows, pa.binary()),
        pa.array([b"v" * 100] * rows, pa.binary()),
        pa.array(range(first, first + rows), pa.int64()),
        pa.array(range(rows), pa.timestamp("us", "UTC")),
    ]
    return Chunk(T0, pa.record_batch(columns, ["key", "value", "offset", "timestamp"]))


def acknowledge_all_but(chunk: Chunk, *rows: int) -> None:
    chunk.acknowledged[:] = bytes([ACKNOWLEDGED]) * len(chunk.offsets)
    for row in rows:
        chunk.acknowledged[row] = 0


@contextmanager
def gap(rows: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_rows, "_GAP", rows)
        yield


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 19)), max_size=20),
    st.lists(st.integers(0, 20), max_size=3),
    st.sampled_from([1, 3, 16]),
)
def test_rows_that_are_kept_are_those_of_the_chunk(
    steps: list[tuple[str, int]], kept_at: list[int], distance: int
) -> None:
    """Whoever changes one of both changes the other."""
    chunk = chunk_of(100, 20)
    kept: Chunk | None = chunk
    for number, (step, row) in enumerate(steps):
        if number in kept_at and kept is not None:
            with gap(distance):
                kept = KeptRows.of(kept)
        if kept is None:
            assert not chunk.open_rows().any()
            break
        own = np.flatnonzero(kept.offsets == 100 + row)
        match step:
            case "acknowledge":
                chunk.acknowledged[row] = ACKNOWLEDGED
            case "release":
                chunk.release(row)
            case "acknowledge_kept":
                kept.acknowledge(own[kept.waiting_rows()[own]])
            case "replace" if row not in chunk.released_rows():
                pass
            case _:
                for each in own.tolist():
                    getattr(kept, step.removesuffix("_kept"))(each)
        open_rows = np.flatnonzero(chunk.open_rows())
        assert kept.offsets[kept.open_rows()].tolist() == (100 + open_rows).tolist()
        assert kept.records == chunk.records == len(open_rows)
        first = kept.first_open()
        assert (first < 0) == (chunk.first_open() < 0)
        assert first < 0 or kept.offsets[first] == chunk.offsets[chunk.first_open()]
        marked = [int(kept.offsets[each]) for each in kept.released_rows()]
        assert marked == [100 + each for each in chunk.released_rows()]
        times = dict(zip(chunk.column("offset"), chunk.column("timestamp"), strict=True))
        assert kept.column("timestamp") == [times[at] for at in kept.column("offset")]
        assert len(kept.column("key")) == len(kept.offsets)


def test_one_open_row_keeps_no_other_one() -> None:
    opened = OpenChunks()
    for number in range(20):
        opened.add(chunk := chunk_of(number * CHUNK_ROWS, CHUNK_ROWS), 0)
        acknowledge_all_but(chunk, 7, 300 + number)
    chunks = opened.chunks()
    assert [len(each.offsets) for each in chunks[:-1]] == [2] * 19
    assert max(each.batch.nbytes for each in chunks[:-1]) < 200
    assert opened.records == 40
    assert opened.offsets().tolist() == [
        number * CHUNK_ROWS + row for number in range(20) for row in (7, 300 + number)
    ]


def test_rows_that_are_acknowledged_later_are_not_kept_for_ever() -> None:
    opened, chunks = OpenChunks(), [chunk_of(number * 100, 100) for number in range(4)]
    for chunk in chunks:
        opened.add(chunk, 0)
    assert [len(each.offsets) for each in opened.chunks()] == [100] * 4
    acknowledge_all_but(chunks[0], 3, 90)
    acknowledge_all_but(chunks[1])
    assert [len(each.offsets) for each in opened.chunks()] == [2, 100, 100]
    opened.slim()
    assert ["value" in each.batch.schema.names for each in opened.chunks()] == [False] * 3


def test_what_is_acknowledged_between_rows_that_are_kept_does_not_come_again() -> None:
    opened = OpenChunks()
    with gap(0):
        opened.add(chunk := chunk_of(0, 6), 0)
        chunk.acknowledged[2] = ACKNOWLEDGED
        opened.add(chunk_of(6, 1, b"other"), 0)
        opened.chunks()
        opened.release(b"k", 1)
        assert opened.come_again() == [(b"k", 1, (1, 2, 3, 6))]
    assert opened.offsets().tolist() == [0, 6]


def test_what_adding_and_counting_cost_does_not_grow_with_what_is_open() -> None:
    driver = Driver([], explicit=True)
    driver.start()
    delivery = driver.state.by_partition[T0]
    out = HandingOut(driver.state, explicit=True)
    chunks = [chunk_of(number * 2, 2) for number in range(1_000)]
    for chunk in chunks[:900]:
        delivery.hand_out(chunk, int(chunk.offsets[-1]) + 1)
        chunk.acknowledged[1] = ACKNOWLEDGED
    for chunk in chunks[900:]:  # a look at each that is open would be 1,800 calls each time
        with calls_below(400):
            delivery.hand_out(chunk, int(chunk.offsets[-1]) + 1)
            assert out.waits() == {}
            assert delivery.has_unacknowledged
    assert delivery.unacknowledged == 900 + 200


def test_what_is_open_is_counted_once_it_may_be_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kshare.group.core.handing_out._UNACKNOWLEDGED_MAX", 10)
    driver = Driver(["k"] * 30, explicit=True)
    driver.start()
    delivery = driver.state.by_partition[T0]
    messages = driver.take(8)
    for message in messages[:6]:
        driver.acknowledge(message)
    messages += driver.take(2)
    assert delivery.unacknowledged_at_most >= 10
    assert driver.out.waits() == {}
    assert delivery.unacknowledged_at_most == delivery.unacknowledged == 4
    while not driver.out.waits():
        messages += driver.take(1)
    assert 10 <= delivery.unacknowledged < 16
    for message in messages:
        driver.acknowledge(message)
    assert driver.out.waits() == {}
    assert not delivery.has_unacknowledged


@contextmanager
def looking(opened: OpenChunks, seen: list[list[int]]) -> Iterator[None]:
    """Another thread looks between any two steps."""
    files = {open_chunks.__file__, kept_rows.__file__}

    def look(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in files:
            sys.setprofile(None)
            seen.append(opened.offsets().tolist())
            sys.setprofile(look)

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def opened_some() -> OpenChunks:
    """Two chunks are kept, one of them has nothing open any more; two are whole."""
    opened, chunks = OpenChunks(), [chunk_of(10 * number, 10) for number in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_chunks, "_WHOLE", 2)
        for chunk in chunks:
            opened.add(chunk, 0)
            acknowledge_all_but(chunk, 4, 5)
        acknowledge_all_but(chunks[0])
    return opened


OPEN = [14, 15, 24, 25, 34, 35]


@pytest.mark.parametrize("change", ["add", "chunks", "slim"])
def test_who_looks_meanwhile_misses_no_open_row(change: str) -> None:
    opened, seen = opened_some(), list[list[int]]()
    assert opened.offsets().tolist() == OPEN
    with looking(opened, seen):
        if change == "add":
            opened.add(chunk_of(40, 2), 0)
        else:
            getattr(opened, change)()
    assert len(seen) > 10
    assert all(each[:6] == OPEN for each in seen)


@pytest.mark.parametrize("change", ["add", "chunks", "slim"])
def test_no_interrupt_loses_an_open_row_or_has_it_twice(change: str) -> None:
    number, raised = 0, ["begin"]
    while raised:
        opened, more = opened_some(), chunk_of(40, 2)
        with suppress(Interrupt), interrupt(number, open_chunks, kept_rows) as raised:
            if change == "add":
                opened.add(more, 0)
            else:
                getattr(opened, change)()
        assert opened.offsets().tolist()[:6] == OPEN, raised
        for _ in range(2):
            opened.add(chunk_of(50, 1), 0)
        numbers = [chunk.number for chunk in opened.chunks()]
        assert len(numbers) == len(set(numbers)), raised
        number += 1
    assert number > 10


def test_a_delivery_that_goes_on_has_kept_and_whole_chunks() -> None:
    opened = opened_some()
    again = OpenChunks(opened.chunks())
    assert again.offsets().tolist() == OPEN
    assert again.records_at_most >= again.records == again.records_at_most == 6
