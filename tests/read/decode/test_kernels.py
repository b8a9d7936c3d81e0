"""The kernels against their twins in plain Python, with guard pages around the bytes."""

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.read.decode import compiled, status
from kshare.read.decode.layout import BATCH, BatchCount, ScanState
from tests.support.batches import (
    DamagedError,
    Rec,
    batch_of,
    decode_records,
    encode_record,
    java_headers,
    split_batches,
    varint,
)
from tests.support.guards import Fence, guarded_columns
from tests.support.kernel_calls import Scan, murmur

FENCE = Fence(1 << 16)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BLOBS = st.binary(max_size=40) | st.integers(0, 400).map(bytes)
RECORDS = st.builds(
    Rec,
    key=st.none() | BLOBS,
    value=st.none() | BLOBS,
    delta=st.integers(1, 5),  # to the record before
    time_delta=st.integers(-(1 << 40), 1 << 40),
    headers=st.lists(st.tuples(BLOBS, st.none() | BLOBS), max_size=3).map(tuple),
)


def spaced(records: list[Rec]) -> list[Rec]:
    """Records with ascending offset deltas, from the gaps between them."""
    found, delta = [], -1
    for record in records:
        delta += record.delta
        found.append(Rec(record.key, record.value, delta, record.time_delta, record.headers))
    return found


LISTS = st.lists(RECORDS, max_size=12).map(spaced)


# -- numbers ------------------------------------------------------------------------------------


@given(st.binary(max_size=70), st.booleans())
def test_the_key_hash_is_that_of_the_core(key: bytes, first: bool) -> None:
    assert murmur(FENCE.put(key, first=first), -1) == key_hash(key, 0)


@pytest.mark.parametrize("size", range(65))
def test_the_key_hash_of_every_length(size: int) -> None:
    key = bytes(range(100, 100 + size))
    assert murmur(FENCE.put(key), -1) == key_hash(key, 0)


@given(st.integers(0, (1 << 63) - 1))
def test_a_record_without_a_key_hashes_its_offset(offset: int) -> None:
    assert murmur(FENCE.put(b""), offset) == key_hash(None, offset)


@given(INT64)
@example(-(1 << 63))
@example((1 << 63) - 1)
def test_varints_of_all_sizes(number: int) -> None:
    """By way of the timestamp, the only field of 64 bits."""
    scan = Scan(rows=1, first_timestamp=0)
    raw = encode_record(Rec(b"k", b"v", 0, number))
    result = scan.run(FENCE.put(raw), 1, 0)
    if -(2**63) // 1000 <= number <= (2**63 - 1) // 1000:
        assert result == status.DONE
        assert scan.rows() == [(0, number * 1000, 0, b"k", b"v", ())]
    else:
        assert "timestamp" in status.FAULTS[result]


@pytest.mark.parametrize("bad", [b"\xff" * 10 + b"\x01", b"\x80" * 11, b"\xff" * 3])
def test_varints_without_an_end(bad: bytes) -> None:
    body = b"\0" + bad
    raw = varint(len(body)) + body
    assert Scan(rows=1).run(FENCE.put(raw), 1, 0) > 0


# -- the heads of batches -----------------------------------------------------------------------


def indexed(data: bytes, rows: int = 64) -> tuple[int, Any, list[int]]:
    batches = np.full(10 * rows, -7).view(BATCH)
    found = BatchCount()
    result = compiled.index(FENCE.put(data), batches, found)
    return result, batches, [found.batches, found.end, found.next_offset]


@given(st.lists(LISTS, max_size=5), st.integers(0, 200))
def test_the_index_is_that_of_the_twin(lists: list[list[Rec]], cut: int) -> None:
    data, base = b"", 5
    for records in lists:
        batch = batch_of(records, base=base, producer=base, attributes=8 * (base & 1))
        data += batch.encode()
        base += batch.last_delta + 1
    data = data[: max(0, len(data) - cut)]
    result, table, (count, end, next_offset) = indexed(data)
    batches, tail = split_batches(data)
    assert result == status.DONE
    assert (count, end) == (len(batches), len(data) - len(tail))
    assert next_offset == (batches[-1].base + batches[-1].last_delta + 1 if batches else 0)
    for row, batch in zip(table[:count], batches, strict=True):
        assert data[row["start"] : row["end"]] == batch.payload
        expected = {
            "base_offset": batch.base,
            "last_delta": batch.last_delta,
            "records": batch.count,
            "attributes": batch.attributes,
            "producer_id": batch.producer,
            "checksum": batch.checksum,
        }
        assert {field: row[field] for field in expected} == expected


def test_an_index_of_more_batches_than_fit_counts_them_all() -> None:
    data = b"".join(batch_of([Rec(b"k", b"v")], base=base).encode() for base in range(9))
    result, table, found = indexed(data, rows=4)
    assert (result, found) == (status.DONE, [9, len(data), 9])
    assert table["base_offset"][3] == 3
    assert indexed(data, rows=9)[1]["base_offset"][8] == 8


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"magic": 0}, "v0 or v1"),
        ({"magic": 1}, "v0 or v1"),
        ({"magic": 3}, "later than v2"),
        ({"length": 48}, "length"),
        ({"length": -1}, "length"),
        ({"base": 6}, "not above"),
        ({"base": -1}, "offsets"),
        ({"base": (1 << 63) - 1}, "offsets"),
        ({"last_delta": -1}, "offsets"),
        ({"count": -1}, "number of records"),
    ],
)
def test_impossible_heads(fields: dict[str, int], says: str) -> None:
    good = batch_of([Rec(b"k", b"v")], base=6)
    values = {"base": 7, "payload": good.payload, "count": 1, "last_delta": 0, **fields}
    bad = type(good)(**values)  # type: ignore[arg-type]
    result, _, found = indexed(good.encode() + bad.encode())
    assert says in status.FAULTS[result]
    assert found == [0, 0, bad.base]
    with pytest.raises(DamagedError):
        split_batches(good.encode() + bad.encode())


# -- records ------------------------------------------------------------------------------------


@given(LISTS, st.booleans(), st.integers(1, 5))
def test_a_scan_finds_what_the_twin_finds(records: list[Rec], headers: bool, rows: int) -> None:
    raw = b"".join(map(encode_record, records))
    last = records[-1].delta if records else 0
    assert decode_records(raw, len(records), last) == records
    with guarded_columns():
        # With room for few rows, it is interrupted and goes on.
        scan = Scan(rows=rows, with_headers=headers, base=1000, first_timestamp=50)
        result = scan.run(FENCE.put(raw), len(records), last)
        found = scan.rows()
    assert result == status.DONE
    assert found == [
        (
            1000 + record.delta,
            (50 + record.time_delta) * 1000,
            0,
            record.key,
            record.value,
            java_headers(record.headers) if headers else (),
        )
        for record in records
    ]


@given(LISTS, st.data())
def test_what_the_twin_refuses_the_scan_refuses(records: list[Rec], data: st.DataObject) -> None:
    raw = bytearray(b"".join(map(encode_record, records)))
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    count = len(records) + data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    last = records[-1].delta if records else 0
    if count < 0:
        return
    try:
        expected = decode_records(bytes(raw), count, last)
    except DamagedError:
        expected = None
    with guarded_columns():
        scan = Scan(rows=100, with_headers=True)
        result = scan.run(FENCE.put(bytes(raw)), count, last)
        rows = scan.rows()
    if expected is None:
        assert result > 0
    elif result != status.DONE:
        assert "timestamp" in status.FAULTS[result]
    else:
        assert [(r[0], r[3], r[4], r[5]) for r in rows] == [
            (r.delta, r.key, r.value, java_headers(r.headers)) for r in expected
        ]


CUTS = st.lists(st.integers(0, HASH_SPACE), min_size=2, max_size=8, unique=True).map(sorted)


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    pieces = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, 40))
        cuts = draw(CUTS)
        lo, hi = draw(st.sampled_from([(0, HASH_SPACE), *pairwise(cuts)]))
        end = start + draw(st.integers(1, 20))
        pieces.append(Rectangle(OffsetRange(start, end), HashRange(lo, hi)))
    return Slice("t", 0, tuple(pieces))


@given(LISTS, slices(), st.integers(0, 45), st.integers(1, 4))
def test_a_scan_keeps_what_the_rectangles_hold(
    records: list[Rec], slice_: Slice, floor: int, limit: int
) -> None:
    raw = b"".join(map(encode_record, records))
    last = records[-1].delta if records else 0
    expected = [
        record.delta
        for record in records
        if record.delta >= floor
        and any(
            piece.offsets.start <= record.delta < piece.offsets.end
            and key_hash(record.key, record.delta) in piece.hashes
            for piece in slice_.rectangles
        )
    ]
    scan = Scan(rows=2, slice_=slice_, floor=floor)
    assert scan.run(FENCE.put(raw), len(records), last) == status.DONE
    assert [row[0] for row in scan.rows()] == expected
    counted = Scan(rows=limit, slice_=slice_, floor=floor, counting=True)
    result = counted.run(FENCE.put(raw), len(records), last)
    assert counted.state.rows == min(limit, len(expected))
    assert result == (status.FULL if limit <= len(expected) else status.DONE)
    reached = expected[:limit]
    assert counted.state.end_offset == (reached[-1] + 1 if reached else 0)


def test_nothing_of_a_record_is_read_behind_the_key_of_another_slice() -> None:
    """What follows here would be refused."""
    key = b"some key"
    body = b"\0\0\0" + varint(len(key)) + key + b"\xff" * 20
    raw = varint(len(body)) + body
    hash_ = key_hash(key, 0)
    others = tuple(
        Rectangle(OffsetRange(0, 9), part)
        for part in (HashRange(0, hash_), HashRange(hash_ + 1, HASH_SPACE))
    )
    scan = Scan(rows=1, slice_=Slice("t", 0, others))
    assert (scan.run(FENCE.put(raw), 1, 0), scan.rows()) == (status.DONE, [])
    own = Slice("t", 0, (Rectangle(OffsetRange(0, 9), HashRange.of(hash_)),))
    assert Scan(rows=1, slice_=own).run(FENCE.put(raw), 1, 0) > 0


def test_records_of_a_batch_that_does_not_lie_in_the_buffer() -> None:
    raw = encode_record(Rec(b"k", b"v"))
    source = FENCE.put(raw)
    for start, end in ((-1, 3), (0, len(raw) + 1), (3, 2), (1 << 62, 1 << 62)):
        scan = Scan(rows=1)
        table = scan.batch(1, 0, len(raw))
        table["start"], table["end"] = start, end
        compiled.begin_scan(scan.state, source, table)
        assert "length" in status.FAULTS[compiled.scan(scan.state)]


# -- how they are called ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", [np.zeros(3, np.int8), np.zeros(3, np.int64), np.zeros(8, np.uint8)[::2]]
)
def test_arguments_of_another_type_are_errors(source: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        compiled.index(source, np.zeros(1, BATCH), BatchCount())
    with pytest.raises((TypeError, ValueError)):
        compiled.begin_scan(ScanState(), source, np.zeros(1, BATCH))
    right = np.zeros(3, np.uint8)
    with pytest.raises(TypeError):
        compiled.index(right, np.zeros((1, 10), np.int64), BatchCount())
    with pytest.raises(ctypes.ArgumentError):
        compiled.index(right, np.zeros(1, BATCH), np.zeros(3, np.int64))  # type: ignore[arg-type]
    with pytest.raises(ctypes.ArgumentError):
        compiled.scan(BatchCount())  # type: ignore[arg-type]
