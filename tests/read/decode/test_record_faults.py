"""Responses to record batches: clear errors, and bounded memory."""

import pickle
import struct
from dataclasses import replace
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from kshare.core.hashing import HashRange, key_hash
from kshare.errors import (
    CorruptRecordError,
    RecordError,
    RecordTooLargeError,
    UnsupportedFormatError,
)
from kshare.read.decode import codecs
from kshare.read.decode.records import Decoder
from tests.support.batches import TRANSACTIONAL, Rec, batch_of, compress, encode_record, numbered
from tests.support.decoding import FEW, decode, indexed, record_batches, simple, slice_of

# -- faults -------------------------------------------------------------------------------------


def fault(raised: pytest.ExceptionInfo[RecordError]) -> tuple[Any, ...]:
    """The facts of an error, after a pickle."""
    error = pickle.loads(pickle.dumps(raised.value))
    assert str(error) == str(raised.value)
    return type(error), error.topic, error.partition, error.offset


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic: int) -> None:
    with pytest.raises(UnsupportedFormatError, match="message format v0 or v1") as raised:
        indexed([simple(0, 3), replace(simple(3, 1), magic=magic)])
    assert fault(raised) == (UnsupportedFormatError, "t", 3, 3)


def test_a_later_format_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="later than v2"):
        indexed([replace(simple(0, 1), magic=3)])


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused_by_number(codec: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"codec {codec} is not known") as raised:
        decode(simple(9, 1, attributes=codec))
    assert fault(raised) == (UnsupportedFormatError, "t", 3, 9)


def test_a_checksum_that_does_not_fit() -> None:
    bad = replace(simple(5, 2), checksum=1)
    with pytest.raises(CorruptRecordError, match=r"t-3, batch at offset 5 .*CRC-32C") as raised:
        decode(simple(0, 5), bad)
    assert fault(raised) == (CorruptRecordError, "t", 3, 5)
    assert len(decode(simple(0, 5), bad, check_crcs=False)) == 7


@pytest.mark.parametrize(
    "damage",
    [
        {"attributes": 0x20},  # a control batch, all at once
        {"count": 0},
        {"last_delta": 1 << 30},
        {"producer": 1, "attributes": TRANSACTIONAL},  # aborted
    ],
)
def test_a_damaged_head_hides_no_records(damage: dict[str, int]) -> None:
    batch = simple(5, 2)
    (checksum,) = struct.unpack_from(">I", batch.encode(), 17)
    bad = replace(batch, checksum=checksum, **damage)  # type: ignore[arg-type]
    with pytest.raises(CorruptRecordError, match="CRC-32C"):
        decode(bad, aborted=[(1, 0)], read_committed=True)


def test_what_comes_before_a_fault_may_be_all_that_is_wanted() -> None:
    bad = replace(simple(4, 2), checksum=1)
    index = indexed([simple(0, 4), bad])
    decoder = Decoder(slice_of(), max_rows=4)
    rows = record_batches(decoder, index)
    assert next(rows)["offset"].to_pylist() == [0, 1, 2, 3]
    with pytest.raises(CorruptRecordError):
        next(rows)
    assert decoder.count(index, (), 4) == (4, 4)
    with pytest.raises(CorruptRecordError):
        decoder.count(index, (), 5)


@pytest.mark.parametrize(
    ("codec", "damage"),
    [
        *product(["gzip", "snappy", "lz4", "zstd"], ["cut", "none", "noise"]),
        # What is behind a gzip member or an lz4 frame, Java's client does not look at:
        # test_streams.py.
        *product(["snappy", "zstd"], ["appended"]),
    ],
)
def test_compressed_bytes_that_are_damaged(codec: str, damage: str) -> None:
    batch = batch_of(FEW, base=2, codec=codec)
    payload = {
        "cut": batch.payload[:-5],
        "none": b"",
        "noise": bytes(range(1, 200)),
        "appended": batch.payload + b"\1\2\3\4\5\6\7\x08",
    }[damage]
    with pytest.raises(CorruptRecordError, match=r"batch at offset 2 is corrupt") as raised:
        decode(replace(batch, payload=payload))
    assert fault(raised)[1:] == ("t", 3, 2)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_small_batches_are_decompressed_together(
    monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    decoder = Decoder(slice_of())
    monkeypatch.setattr(decoder._arena, "inflate", None)
    found = record_batches(
        decoder, indexed(simple(base, 10, codec=codec) for base in range(0, 200, 10))
    )
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(200))


@pytest.mark.parametrize(
    ("codec", "damage"),
    [
        *product(["gzip", "lz4", "zstd"], ["cut", "none", "count", "more"]),
        *product(["gzip", "zstd"], ["marked"]),  # in lz4, Java reads the first frame alone
    ],
)
def test_one_bad_batch_of_those_that_are_decompressed_together(codec: str, damage: str) -> None:
    batches = [simple(base, 10, codec=codec) for base in range(0, 50, 10)]
    raw = b"".join(map(encode_record, numbered([Rec(b"k", b"v")] * 10)))
    batches[3] = {
        "cut": replace(batches[3], payload=batches[3].payload[:-3]),
        "none": replace(batches[3], payload=b""),
        "count": replace(batches[3], count=9),
        "more": replace(batches[3], payload=compress(raw + b"\0\0", codec)),
        "marked": replace(batches[3], payload=batches[3].payload + codecs._mark(codec)[1]),
    }[damage]
    rows = record_batches(Decoder(slice_of(), max_rows=30), indexed(batches))
    assert next(rows)["offset"].to_pylist() == list(range(30))
    with pytest.raises(CorruptRecordError, match="batch at offset 30 is corrupt"):
        next(rows)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, 100),
        b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, -1),
        b"\x82SNAPPY\0" + struct.pack(">iih", 1, 1, 1),
        b"\xff\xff\xff\xff\x0f" + b"x" * 20,  # says that it is 4 GiB
        b"\xff\xff\xff\xff\xff\xff",
    ],
)
def test_snappy_that_lies_about_its_size(payload: bytes) -> None:
    with pytest.raises(CorruptRecordError, match=r"snappy|decompressed"):
        decode(replace(batch_of(FEW, codec="snappy"), payload=payload))


def test_no_room_is_made_for_more_than_a_snappy_block_can_hold() -> None:
    payload = b"\x80\x80\x04" + b"x" * 20  # says that it is 64 KiB
    with pytest.raises(CorruptRecordError, match="claims to be larger than it can be"):
        decode(replace(batch_of(FEW, codec="snappy"), payload=payload))


@pytest.mark.parametrize("count", [4, 6])
def test_another_number_of_records_than_there_are(count: int) -> None:
    with pytest.raises(CorruptRecordError, match="record"):
        decode(replace(batch_of(FEW), count=count))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2), (-1, 0)])
def test_offsets_that_do_not_ascend_within_the_batch(deltas: tuple[int, int]) -> None:
    batch = batch_of([Rec(b"k", b"v", delta) for delta in deltas], last_delta=1)
    with pytest.raises(CorruptRecordError, match="offset is not within the batch"):
        decode(batch)


def test_a_decoder_decodes_one_response_at_a_time() -> None:
    decoder = Decoder(slice_of(), max_rows=1)
    first, second = (
        record_batches(decoder, indexed([simple(0, 3)])),
        record_batches(decoder, indexed([simple(9, 3)])),
    )
    next(first)
    assert next(second)["offset"].to_pylist() == [9]
    with pytest.raises(RuntimeError, match="one response at a time"):
        next(first)


# -- memory -------------------------------------------------------------------------------------


def test_a_large_record_is_a_batch_alone() -> None:
    sizes = [10, 50_000, 10, 10]
    recs = numbered([Rec(b"k", bytes(size)) for size in sizes])
    decoder = Decoder(slice_of(), max_bytes=1_000)
    found = list(record_batches(decoder, indexed([batch_of(recs, codec="zstd")])))
    assert [batch.num_rows for batch in found] == [1, 1, 2]
    assert [len(v) for batch in found for v in batch["value"].to_pylist()] == sizes


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("xerial", [False, True])
def test_a_large_batch_makes_the_arena_larger_for_a_while(codec: str, xerial: bool) -> None:
    large = numbered([Rec(b"k", b"%d" % number * 500_000) for number in range(10)] * 2)
    decoder = Decoder(slice_of())
    found = list(record_batches(decoder, indexed([batch_of(large, codec=codec, xerial=xerial)])))
    assert [v for b in found for v in b["value"].to_pylist()] == [rec.value for rec in large]
    assert max(batch.nbytes for batch in found) < 9 << 20
    list(record_batches(decoder, indexed([batch_of(FEW, codec=codec)])))
    assert decoder._arena.size <= 8 << 20


def test_a_record_that_would_fill_the_memory() -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        decoder = Decoder(slice_of(), max_record=1 << 20)
        bomb = batch_of([Rec(b"k", bytes(4 << 20))], codec=codec)
        with pytest.raises(RecordTooLargeError, match="more than 1048576, which is maxRecordBytes"):
            list(record_batches(decoder, indexed([bomb])))
        assert decoder._arena.size <= 4 << 20
        fits = batch_of([Rec(b"k", bytes((1 << 20) - 100))], codec=codec)
        assert len(list(record_batches(decoder, indexed([fits])))) == 1


def test_what_was_handed_out_stays_as_it_is() -> None:
    decoder = Decoder(slice_of())
    (first,) = record_batches(decoder, indexed([batch_of(FEW, codec="lz4")]))
    before = first.to_pylist()
    list(record_batches(decoder, indexed([simple(100, 5, codec="lz4")], 100)))
    assert first.to_pylist() == before


def test_columns_are_not_larger_than_their_rows() -> None:
    """A batch of few rows in columns that were made for many does not keep their memory."""
    index = indexed([simple(0, 20_000, codec="lz4")])
    key = key_hash(b"k5", 5)
    (batch,) = record_batches(Decoder(slice_of(hashes=HashRange.of(key))), index)
    held = pa.total_allocated_bytes()
    del batch
    assert held - pa.total_allocated_bytes() < 20_000


@pytest.mark.parametrize("size", [100, 2 << 20])
def test_a_damaged_value_of_any_size_is_found(size: int) -> None:
    """Large batches are checked in another way: other threads run meanwhile."""
    data = bytearray(batch_of(numbered([Rec(b"k", b"v" * size)]), base=5).encode())
    assert len(decode(bytes(data))) == 1
    data[-size // 2] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        decode(bytes(data))
