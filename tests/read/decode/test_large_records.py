"""Batches that inflate to more than a window, and records that are larger than they may be."""

import logging
import resource
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HashRange, key_hash
from kshare.errors import CorruptRecordError, RecordTooLargeError
from kshare.read.decode.codecs import Arena
from kshare.read.decode.columns import Columns
from kshare.read.decode.large_records import record_head, record_length
from kshare.read.decode.records import Decoder
from tests.support.batches import CODECS, Rec, batch_of, compress, encode_record, numbered, varint
from tests.support.decoding import decode, indexed, offsets, record_batches, simple, slice_of
from tests.support.documents import ROOT

MEBI = 1 << 20
SHAPED = [*((codec, False) for codec in CODECS), ("snappy", True)]


def length_of(record: Rec) -> int:
    """The length of a record as the wire says it."""
    length = record_length(memoryview(encode_record(record)))
    assert length
    return length


RECORDS = st.lists(
    st.builds(
        Rec,
        key=st.none() | st.binary(max_size=30),
        value=st.none() | st.integers(0, 300).map(bytes),
        time_delta=st.integers(-300, 300),
        headers=st.lists(st.tuples(st.binary(max_size=3), st.none()), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=9,
).map(numbered)


# -- the laws -----------------------------------------------------------------------------------


@given(
    records=RECORDS,
    shaped=st.sampled_from(SHAPED),
    window=st.integers(1, 700),
    most=st.integers(80, 340),
    floor=st.integers(0, 9),
    hashes=st.sampled_from([HashRange(0, 1 << 63), HashRange(0, 1 << 62)]),
    rows=st.integers(1, 9),
)
def test_records_up_to_the_limit_come_and_larger_ones_do_not(
    records: list[Rec],
    shaped: tuple[str, bool],
    window: int,
    most: int,
    floor: int,
    hashes: HashRange,
    rows: int,
) -> None:
    """Whatever the windows are: left out, or the first that is wanted is the error."""
    codec, xerial = shaped
    batch = batch_of(records, base=5, codec=codec, xerial=xerial)
    if codec == "snappy" and sum(len(encode_record(r)) for r in records) > most:
        return  # one block
    wanted = [
        (5 + record.delta, record)
        for record in records
        if 5 + record.delta >= floor and key_hash(record.key, 5 + record.delta) in hashes
    ]
    large = [at for at, record in wanted if length_of(record) > most]
    small = [at for at, record in wanted if length_of(record) <= most]
    options: dict[str, Any] = {"max_rows": rows, "max_record": most}
    index = indexed([batch], floor)
    decoder = Decoder(
        slice_of(hashes=hashes), arena=Arena(window), leaves_out_large=True, **options
    )
    found = list(record_batches(decoder, index))
    assert [at for part in found for at in part["offset"].to_pylist()] == small
    count, end = decoder.count(index, (), 1_000)
    assert (count, end) == (len(small), small[-1] + 1 if small else 0)
    strict = Decoder(slice_of(hashes=hashes), arena=Arena(window), **options)
    if not large:
        assert strict.count(index, (), 1_000) == (count, end)
        return
    came: list[int] = []
    with pytest.raises(RecordTooLargeError) as raised:
        came.extend(
            at for part in record_batches(strict, index) for at in part["offset"].to_pylist()
        )
    assert came == [at for at in small if at < large[0]]
    assert raised.value.offset == large[0]
    assert raised.value.size == length_of(records[large[0] - 5])
    before = sum(at < large[0] for at in small)
    if before:
        assert strict.count(index, (), before)[0] == before


@given(
    records=RECORDS,
    codec=st.sampled_from(["gzip", "lz4", "zstd"]),
    window=st.integers(1, 200),
    cut=st.integers(1, 200),
    more=st.binary(max_size=3),
)
def test_records_that_end_too_early_or_too_late_are_damage(
    records: list[Rec], codec: str, window: int, cut: int, more: bytes
) -> None:
    raw = b"".join(map(encode_record, records))
    for wrong in (raw[: max(0, len(raw) - cut)], *([raw + more] if more else [])):
        batch = replace(batch_of(records, base=5, codec=codec), payload=compress(wrong, codec))
        with pytest.raises(CorruptRecordError, match="batch at offset 5 is corrupt"):
            decode(batch, arena=Arena(window))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("length", [100, 2_000_000, (1 << 31) - 1])
@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_length_that_lies_is_damage_and_never_too_large(
    codec: str, length: int, leaves_out: bool
) -> None:
    """What the batch does not hold is not left out, but refused."""
    raw = encode_record(Rec(b"a", b"b")) + varint(length) + b"\0\0\2\1\1\0"
    batch = replace(batch_of([Rec(b"k", b"v")] * 2, base=7, codec=codec), last_delta=1)
    batch = replace(batch, payload=compress(raw, codec))
    arena = Arena(64)
    with pytest.raises(CorruptRecordError, match="does not fit into the batch") as raised:
        decode(batch, arena=arena, max_record=1_024, leaves_out_large=leaves_out)
    assert raised.value.offset == 7
    assert arena.size <= 2 * MEBI


@pytest.mark.parametrize("length", [-1, 0, 1 << 31, 1 << 62])
def test_a_length_that_no_record_has_is_damage(length: int) -> None:
    raw = encode_record(Rec(b"a", bytes(100))) + varint(length) + bytes(1_000)
    batch = replace(batch_of([Rec(b"k", b"v")] * 2, codec="zstd"), payload=compress(raw, "zstd"))
    with pytest.raises(CorruptRecordError, match="does not fit into the batch"):
        decode(batch, arena=Arena(64), max_record=1_024)


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (b"\0\0" + varint(7) + varint(1) + b"k", "offset is not within the batch"),
        (b"\0\0" + varint(-1) + varint(1) + b"k", "offset is not within the batch"),
        (b"\0\0" + varint(0) + varint(99_999_999) + b"k", "cut short or too long"),
        (b"\0\0" + varint(0) + varint(-2) + b"k", "cut short or too long"),
        (b"\0" + b"\xff" * 11, "cut short or too long"),
    ],
)
def test_a_damaged_head_of_a_large_record(head: bytes, fault: str) -> None:
    raw = varint(5_000) + (head + bytes(5_000))[:5_000]
    batch = replace(batch_of([Rec(b"k", b"v")], codec="zstd"), payload=compress(raw, "zstd"))
    with pytest.raises(CorruptRecordError, match=fault):
        decode(batch, arena=Arena(64), max_record=1_024, leaves_out_large=True)


# -- what is said -------------------------------------------------------------------------------

THREE = numbered([Rec(b"a", b"1"), Rec(b"b", bytes(5_000)), Rec(b"c", b"3")])


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_a_record_that_is_too_large_is_named(codec: str) -> None:
    with pytest.raises(RecordTooLargeError) as raised:
        decode(batch_of(THREE, base=40, codec=codec), max_record=1_024)
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("t", 3, 41)
    assert error.size == length_of(THREE[1])
    assert f"t-3: the record at offset 41 has {error.size} bytes (decompressed)" in str(error)
    assert "more than 1024, which is maxRecordBytes (consumers: max.record.bytes)" in str(error)
    assert "seek to offset 42" in str(error)


def test_what_is_left_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"max_record": 1_024, "leaves_out_large": True}
    with caplog.at_level(logging.WARNING):
        rows = decode(batch_of(THREE, base=40, codec="zstd"), **options)
    assert offsets(rows) == [40, 42]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "t-3: the record at offset 41 has" in record.getMessage()
    assert "Left out, since failOnDataLoss is false: offset 41" in record.getMessage()


def test_a_large_record_that_is_not_wanted_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """Those of another task, and those below the offset where a query starts."""
    batch = batch_of(THREE, base=40, codec="zstd")
    other = HashRange.of(key_hash(b"c", 42))
    with caplog.at_level(logging.WARNING):
        assert offsets(decode(batch, slice_=slice_of(hashes=other), max_record=1_024)) == [42]
        assert offsets(decode(batch, fetch_offset=42, max_record=1_024)) == [42]
        assert offsets(decode(batch, slice_=slice_of(0, 41), max_record=1_024)) == [40]
        assert offsets(decode(batch, keys=[b"a", b"c"], max_record=1_024)) == [40, 42]
    assert not caplog.records


def test_a_large_key_counts_as_wanted() -> None:
    """One that does not fit into a window cannot be hashed."""
    batch = batch_of(numbered([Rec(b"k" * 9_000, b"")]), base=40, codec="zstd")
    for hashes in (HashRange(0, 1 << 62), HashRange(1 << 62, 1 << 63)):
        with pytest.raises(RecordTooLargeError, match="offset 40"):
            decode(batch, slice_=slice_of(hashes=hashes), arena=Arena(64), max_record=1_024)


def test_a_snappy_block_that_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    """It must be decompressed at once: the rest of its batch is left out, and is named."""
    batch = batch_of(THREE, base=40, codec="snappy")
    after = simple(43, 2)
    with pytest.raises(RecordTooLargeError, match="a snappy block with records from offset 40 on"):
        decode(batch, after, arena=Arena(64), max_record=1_024)
    with caplog.at_level(logging.WARNING):
        rows = decode(batch, after, arena=Arena(64), max_record=1_024, leaves_out_large=True)
    assert offsets(rows) == [43, 44]
    assert "the rest of its batch, offsets 40 to 42" in caplog.text


@pytest.mark.parametrize("window", [1, 64, 300, 1_024])
@pytest.mark.parametrize("cut", [0, 1])
def test_what_comes_before_a_large_snappy_block_is_read(
    caplog: pytest.LogCaptureFixture, window: int, cut: int
) -> None:
    """In Java's framing, whatever the windows are: the block may begin amid a record."""
    records = numbered([Rec(b"k", bytes(size)) for size in (100, 100, 5_000, 3)])
    raw = b"".join(encode_record(each) for each in records)
    first = sum(len(encode_record(each)) for each in records[:2]) + cut
    framed = compress(raw[:first], "snappy", xerial=True)
    rest = compress(raw[first:], "snappy")
    payload = framed + len(rest).to_bytes(4, "big") + rest
    batch = replace(batch_of(records, base=40, codec="snappy"), payload=payload)
    options: dict[str, Any] = {"max_record": 1_024}
    decoder = Decoder(slice_of(), arena=Arena(window), **options)
    with pytest.raises(RecordTooLargeError, match="block with records from offset 42 on") as raised:
        list(record_batches(decoder, indexed([batch])))
    assert raised.value.offset == 42
    with caplog.at_level(logging.WARNING):
        rows = decode(batch, arena=Arena(window), leaves_out_large=True, **options)
    assert offsets(rows) == [40, 41]
    assert "the rest of its batch, offsets 42 to 43" in caplog.text
    assert decoder.count(indexed([batch]), (), 2)[0] == 2


def test_a_snappy_block_of_many_small_records_is_no_large_record() -> None:
    """Other clients write a batch as one block."""
    batch = batch_of(numbered([Rec(b"k", bytes(100))] * 100), base=40, codec="snappy")
    assert offsets(decode(batch, max_record=1_024)) == list(range(40, 140))


def test_the_head_of_a_record() -> None:
    whole = encode_record(Rec(b"key", b"value", 3, -70))
    head = record_head(memoryview(whole))
    assert head == (len(whole), 3, b"key", True)
    assert record_head(memoryview(whole[:-8])) == (len(whole), 3, b"ke", False)
    assert record_head(memoryview(encode_record(Rec(None, b"")))) == (7, 0, None, True)
    for size in range(5):
        assert record_head(memoryview(whole[:size])) is None


# -- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "xerial"), SHAPED)
def test_a_record_that_straddles_windows(codec: str, xerial: bool) -> None:
    """A large one that is allowed makes the arena larger, and no larger than twice its size."""
    sizes = [3, 1_000, 20 * MEBI, 5, 9 * MEBI, 0]
    recs = numbered([Rec(b"k", bytes([n]) * size) for n, size in enumerate(sizes)])
    decoder = Decoder(slice_of())
    batch = batch_of(recs, codec=codec, xerial=xerial)
    found = list(record_batches(decoder, indexed([batch])))
    assert [v for part in found for v in part["value"].to_pylist()] == [r.value for r in recs]
    assert decoder._arena.size <= 40 * MEBI
    list(record_batches(decoder, indexed([simple(9, 3, codec="lz4")])))
    assert decoder._arena.size <= 8 * MEBI


def bomb(codec: str, records: int, size: int) -> bytes:
    """A batch of many records of zeros, whose head is small."""
    batch = batch_of([Rec(b"k", bytes(size))], codec=codec)
    raws = (encode_record(Rec(b"k", bytes(size), delta)) for delta in range(records))
    payload = compress(b"".join(raws), codec, xerial=codec == "snappy", block=1 << 20)
    return replace(batch, payload=payload, count=records, last_delta=records - 1).encode()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_inflates_takes_no_more_than_a_window(codec: str) -> None:
    """Each of its records comes, and what is held does not grow with what it inflates to."""
    decoder = Decoder(slice_of())
    seen = 0
    for part in record_batches(decoder, indexed([bomb(codec, 96, MEBI)])):
        assert part.nbytes < 18 * MEBI
        seen += part.num_rows
    assert seen == 96
    assert decoder._arena.size <= 8 * MEBI
    assert decoder.count(indexed([bomb(codec, 96, MEBI)]), (), 1_000) == (96, 96)


UNDER_A_LIMIT = """
import resource, sys
from kshare.errors import RecordTooLargeError
from kshare.read.decode.records import Decoder
from tests.support.decoding import indexed, record_batches, simple, slice_of
from tests.read.decode.test_large_records import bomb

data = bomb(sys.argv[1], 1, 100 << 20)
list(record_batches(Decoder(slice_of()), indexed([simple(0, 3, codec=sys.argv[1])])))
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
try:
    list(record_batches(Decoder(slice_of()), indexed([data])))
except RecordTooLargeError as error:
    print((error.topic, error.partition, error.offset), error)
"""


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_process_without_memory_says_where(codec: str) -> None:
    """As under ``spark.executor.pyspark.memory``, which sets RLIMIT_AS."""
    command = [sys.executable, "-c", UNDER_A_LIMIT, codec]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("('t', 3, 0) t-3, batch at offset 0: the process has no memory")
    assert "spark.executor.pyspark.memory" in done.stdout
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("counts", [False, True])
def test_memory_that_is_not_there_for_columns_or_windows(
    monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    decoder = Decoder(slice_of())

    def none(*_: Any, **__: Any) -> Any:
        raise MemoryError

    index = indexed([simple(0, 3), simple(3, 3, codec="gzip")])
    if counts:
        monkeypatch.setattr(Arena, "fill", none)
    else:
        monkeypatch.setattr(Columns, "finish", none)
    with pytest.raises(RecordTooLargeError, match="batch at offset 3: the process has no memory"):
        decoder.count(index, (), 9) if counts else list(record_batches(decoder, index))
