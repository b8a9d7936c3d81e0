"""Damaged bytes: more than 100,000 seeded inputs give rows or a clear error, and never more.

The bytes end at a guard page, or begin at one, so a read out of bounds ends the test run.
"""

import random
import struct
from collections.abc import Callable

import numpy as np
import pytest

from kshare.core.hashing import HASH_SPACE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.errors import CorruptRecordError, RecordError
from kshare.read.decode import compiled, status
from kshare.read.decode.columns import COLUMNS
from kshare.read.decode.layout import BATCH, BatchCount
from kshare.read.decode.records import Decoder, index_batches
from tests.support.batches import (
    ABORT,
    CODECS,
    HEAD,
    TRANSACTIONAL,
    DamagedError,
    Rec,
    batch_of,
    control_batch,
    decode_records,
    encode_record,
    java_headers,
    split_batches,
    varint,
)
from tests.support.decoding import record_batches
from tests.support.guards import Fence, guarded_columns
from tests.support.kernel_calls import EVERYTHING, Scan

FENCE = Fence(1 << 16)
Damage = Callable[[random.Random, bytearray], None]
HALF = Slice(
    "t", 0, (Rectangle(OffsetRange(1, 500), HashRange(HASH_SPACE // 4, HASH_SPACE // 4 * 3)),)
)


def is_wanted(slice_: Slice, offset: int, key: bytes | None) -> bool:
    return any(
        piece.offsets.start <= offset < piece.offsets.end and key_hash(key, offset) in piece.hashes
        for piece in slice_.rectangles
    )


# -- damage -------------------------------------------------------------------------------------


def flip(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)


def replace(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF])


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def drop(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 9)]


def insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randint(1, 9))


def plant(rng: random.Random, data: bytearray) -> None:
    """A number that lengths are likely to be tested with, over what is there."""
    number = rng.choice([-1, -2, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63)])
    coded = rng.choice([varint(number), struct.pack(">i", max(-(1 << 31), min(number, 2**31 - 1)))])
    at = rng.randrange(len(data))
    data[at : at + len(coded)] = coded


def repeat(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.randint(1, 60))
    at = rng.randrange(len(data))
    data[at : at + rng.choice([0, end - start])] = data[start:end]


DAMAGES: list[Damage] = [flip, flip, replace, replace, cut, drop, insert, plant, plant, repeat]


def damaged(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if found:
            rng.choice(DAMAGES)(rng, found)
    return bytes(found)


def some_records(rng: random.Random, most: int) -> list[Rec]:
    found, delta = [], -1
    for _ in range(rng.randint(0, most)):
        delta += rng.choice([1, 1, 1, 2, 70])
        key, value = (
            None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 1, 7, 16, 33, 130]))
            for _ in range(2)
        )
        headers = tuple(
            (rng.randbytes(rng.randint(0, 5)), rng.choice([None, b"", b"header"]))
            for _ in range(rng.choice([0, 0, 0, 1, 3]))
        )
        found.append(Rec(key, value, delta, rng.randint(-300, 300), headers))
    return found


# -- the kernels, against the twin --------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 8))]
)
def test_damaged_records(seed: int) -> None:
    """8 x 8,000 inputs: a scan finds what the twin finds, and refuses what it refuses."""
    rng = random.Random(seed)
    refused = 0
    with guarded_columns():
        scan = Scan(rows=12, with_headers=True)
        count_half = Scan(rows=1 << 30, slice_=HALF, counting=True)
        for number in range(8_000):
            if number % 8 == 0:
                records = some_records(rng, 5)
                good = b"".join(map(encode_record, records))
            raw = damaged(rng, good)
            count = max(0, len(records) + rng.choice([0, 0, 0, 0, 0, -1, 1, 1 << 30]))
            last = records[-1].delta if records else 0
            source = FENCE.put(raw, first=rng.random() < 0.5)
            result = scan.again(source, count, last)
            assert count_half.again(source, count, last) in {status.DONE, *status.FAULTS}
            try:
                expected = decode_records(raw, count, last)
            except DamagedError:
                assert result in status.FAULTS
                refused += 1
                continue
            if result != status.DONE:
                assert "timestamp" in status.FAULTS[result]
                continue
            wanted = sum(is_wanted(HALF, record.delta, record.key) for record in expected)
            assert count_half.state.rows == wanted
            assert [(row[0], row[3], row[4], row[5]) for row in scan.rows()] == [
                (r.delta, r.key, r.value, java_headers(r.headers)) for r in expected
            ]
    assert 4_000 < refused < 8_000


@pytest.mark.parametrize("seed", range(4))
def test_damaged_heads(seed: int) -> None:
    """4 x 5,000 inputs: the index is that of the twin, or both refuse."""
    rng = random.Random(seed)
    table = np.zeros(3, BATCH)
    found = BatchCount()
    refused = 0
    for number in range(5_000):
        if number % 8 == 0:
            good, base = b"", 0
            for _ in range(rng.randint(1, 4)):
                batch = batch_of(some_records(rng, 1), base=base)
                good, base = good + batch.encode(), base + batch.last_delta + 1
        at = rng.choice([0, HEAD.size, len(good)])  # mostly a head
        raw = damaged(rng, good[:at] or good) + good[at:]
        result = compiled.index(FENCE.put(raw), table, found)
        try:
            batches, tail = split_batches(raw)
        except DamagedError:
            assert result in status.FAULTS
            refused += 1
            continue
        assert result == status.DONE
        assert (found.batches, found.end) == (len(batches), len(raw) - len(tail))
        for row, batch in zip(table, batches, strict=False):
            assert (row["base_offset"], row["records"]) == (batch.base, batch.count)
            assert raw[row["start"] : row["end"]] == batch.payload
    assert 500 < refused < 4_500


# -- the decoder --------------------------------------------------------------------------------


def response(rng: random.Random, codec: str) -> bytes:
    """A few batches, some of them of transactions."""
    found, base = b"", 0
    for _ in range(rng.randint(1, 3)):
        fields = {"producer": 7, "attributes": TRANSACTIONAL} if rng.random() < 0.3 else {}
        xerial = rng.random() < 0.5
        batch = batch_of(some_records(rng, 6), base=base, codec=codec, xerial=xerial, **fields)
        found, base = found + batch.encode(), base + batch.last_delta + 1
    return found + control_batch(base, 7, ABORT).encode()


def decoded(decoder: Decoder, raw: bytes, slice_: Slice) -> int:
    """Decode a response, look at what comes, and count it."""
    rows, last = 0, -1
    index = index_batches(FENCE.put(raw), topic="t", partition=0, fetch_offset=0)
    for batch in record_batches(decoder, index, [(7, 0)]):
        batch.validate(full=True)
        rows += batch.num_rows
        columns = (batch[name].to_pylist() for name in ("offset", "key"))
        for offset, key in zip(*columns, strict=True):
            assert offset > last
            assert is_wanted(slice_, offset, key)
            last = offset
    return rows


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "slice_",
    [pytest.param(EVERYTHING, id="whole", marks=pytest.mark.long), pytest.param(HALF, id="half")],
)
def test_damaged_responses(codec: str, slice_: Slice) -> None:
    """5 x 2 x 2,000 inputs without checksums: rows that the slice holds, or a RecordError."""
    rng = random.Random(CODECS.index(codec))
    decoders = [
        Decoder(slice_, columns=tuple(COLUMNS), read_committed=committed, check_crcs=False)
        for committed in (False, True)
    ]
    delivered = 0
    faults: list[RecordError] = []
    for number in range(2_000):
        if number % 8 == 0:
            good = response(rng, codec)
        try:
            delivered += decoded(rng.choice(decoders), damaged(rng, good), slice_)
        except RecordError as error:
            faults.append(error)
    assert delivered > 300
    assert len(faults) > 500
    for fault in faults:
        assert (fault.topic, fault.partition) == ("t", 0)
        assert f"at offset {fault.offset}" in str(fault)


def test_with_checksums_no_damage_to_a_batch_passes() -> None:
    """3,000 inputs: whatever happens behind the checksum is refused, whatever it is."""
    rng = random.Random(5)
    decoder = Decoder(EVERYTHING, columns=tuple(COLUMNS))
    for number in range(3_000):
        if number % 8 == 0:
            records = some_records(rng, 5) or [Rec(b"k", b"v")]
            good = batch_of(records, codec=rng.choice(CODECS)).encode()
        head, body = good[:21], good[21:]
        tail = bytearray(body)
        while tail == body:
            rng.choice([flip, replace])(rng, tail)
        with pytest.raises(CorruptRecordError):
            decoded(decoder, head + bytes(tail), EVERYTHING)
