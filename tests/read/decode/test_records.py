"""Responses to record batches: every codec, and every kind of batch."""

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from kshare.core.hashing import HASH_SPACE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.errors import CorruptRecordError, UnsupportedFormatError
from kshare.read.decode import columns, records, windows
from kshare.read.decode.codecs import Arena
from kshare.read.decode.columns import COLUMNS, schema
from kshare.read.decode.records import DEFAULT_COLUMNS, Decoder, index_batches
from tests.support.batches import (
    ABORT,
    CODECS,
    COMMIT,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Rec,
    batch_of,
    compress,
    control_batch,
    encode_record,
    java_headers,
    numbered,
)
from tests.support.decoding import (
    FEW,
    decode,
    indexed,
    offsets,
    record_batches,
    simple,
    slice_of,
)
from tests.support.guards import guarded_columns

# -- rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_headers", [False, True])
def test_the_schema_is_sparks(with_headers: bool) -> None:
    spark = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if with_headers:
        header = StructType().add("key", StringType()).add("value", BinaryType())
        spark = spark.add("headers", ArrayType(header))
    names = tuple(COLUMNS) if with_headers else DEFAULT_COLUMNS
    assert schema(names).equals(to_arrow_schema(spark, timezone="UTC"), check_metadata=True)
    decoder = Decoder(slice_of(), columns=names)
    (batch,) = record_batches(decoder, indexed([batch_of(FEW)]))
    assert batch.schema.equals(schema(names), check_metadata=True)


@pytest.mark.parametrize(
    ("codec", "xerial"), [*((codec, False) for codec in CODECS), ("snappy", True)]
)
@pytest.mark.parametrize("with_headers", [False, True])
def test_every_codec(codec: str, xerial: bool, with_headers: bool) -> None:
    batch = batch_of(FEW, base=50, codec=codec, xerial=xerial)
    rows = decode(batch, columns=tuple(COLUMNS) if with_headers else DEFAULT_COLUMNS)
    assert [(r["offset"], r["key"], r["value"]) for r in rows] == [
        (50 + rec.delta, rec.key, rec.value) for rec in FEW
    ]
    assert {(r["topic"], r["partition"], r["timestampType"]) for r in rows} == {("t", 3, 0)}
    if with_headers:
        found = [r["headers"] and tuple((h["key"], h["value"]) for h in r["headers"]) for r in rows]
        assert found == [java_headers(rec.headers) or None for rec in FEW]
    else:
        assert "headers" not in rows[0]


@pytest.mark.parametrize("block", [1, 100, 100_000])
def test_snappy_in_blocks_of_any_size(block: int) -> None:
    raw = b"".join(map(encode_record, FEW))
    payload = compress(raw, "snappy", xerial=True, block=block)
    assert len(decode(replace(batch_of(FEW, codec="snappy"), payload=payload))) == len(FEW)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_stream_of_several_frames(codec: str) -> None:
    parts = [b"".join(map(encode_record, part)) for part in (FEW[:2], FEW[2:])]
    payload = b"".join(compress(part, codec) for part in parts)
    assert len(decode(replace(batch_of(FEW, codec=codec), payload=payload))) == len(FEW)


def test_create_time_and_log_append_time() -> None:
    times: dict[str, Any] = {
        "first_timestamp": 1_700_000_000_000,
        "max_timestamp": 1_700_000_009_999,
    }
    records_ = numbered([Rec(b"k", b"v", time_delta=delta) for delta in (0, 5, -3)])
    created = decode(batch_of(records_, **times))
    appended = decode(batch_of(records_, attributes=LOG_APPEND_TIME, **times))
    assert [(r["timestamp"].timestamp() * 1000, r["timestampType"]) for r in created] == [
        (1_700_000_000_000, 0),
        (1_700_000_000_005, 0),
        (1_699_999_999_997, 0),
    ]
    assert [(r["timestamp"].timestamp() * 1000, r["timestampType"]) for r in appended] == [
        (1_700_000_009_999, 1)
    ] * 3


def test_a_batch_without_timestamps_has_javas_minus_one() -> None:
    (row,) = decode(batch_of([Rec(b"k", b"v")], first_timestamp=-1, max_timestamp=-1))
    assert row["timestamp"].timestamp() == -0.001


NANOSECONDS = 1_700_000_000_000_000_000


def test_a_timestamp_that_microseconds_cannot_hold_is_an_error_that_says_why() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"t-3, batch at offset 8: .*timestamp.*nano"):
        decode(batch_of([Rec(b"k", b"v")], base=8, first_timestamp=1 << 62))


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("max_rows", [1, 2, 3, 100])
def test_a_record_with_such_a_timestamp_can_be_delivered_without_it(
    codec: str, max_rows: int
) -> None:
    """Those before and behind it have theirs, in the same batch and in the next one."""
    first = 1_700_000_000_000
    deltas = (0, NANOSECONDS, 7, NANOSECONDS, NANOSECONDS)
    records_ = numbered([Rec(b"k", b"v" * 500, time_delta=delta) for delta in deltas])
    batch = batch_of(records_, codec=codec, first_timestamp=first)
    other = batch_of(FEW, base=50, codec=codec, first_timestamp=first)
    by_log = batch_of(FEW[:2], base=90, attributes=LOG_APPEND_TIME, max_timestamp=NANOSECONDS)
    given: dict[str, Any] = {"drops_times": True, "max_rows": max_rows, "max_bytes": 900}
    rows = decode(batch, other, by_log, **given)
    times = [first, -1, first + 7, -1, -1, *[first + rec.time_delta for rec in FEW], -1, -1]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == times
    assert [row["timestampType"] for row in rows] == [0] * (5 + len(FEW)) + [1, 1]
    assert [row["value"] for row in rows[:5]] == [b"v" * 500] * 5


def test_timestamps_that_are_not_wanted_decide_nothing() -> None:
    deltas = (0, NANOSECONDS, 7)
    records_ = numbered([Rec(b"k", b"v", time_delta=delta) for delta in deltas])
    rows = decode(batch_of(records_, first_timestamp=5), columns=("offset", "timestampType"))
    assert rows == [{"offset": at, "timestampType": 0} for at in range(3)]


def test_dropped_timestamps_are_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    records._warn_dropped.cache_clear()
    batch = batch_of([Rec(b"k", b"v")], first_timestamp=NANOSECONDS)
    for _ in range(2):
        decode(batch, drops_times=True)
    assert caplog.text.count("t-3 has timestamps that microseconds in 64 bits cannot hold") == 1


@pytest.mark.parametrize(
    "key", [b"plain", "grün".encode(), b"\xff\xfe", b"\xed\xa0\x80x", b"\xe2\x82", b"a\xf0\x9f"]
)
def test_header_keys_are_javas_strings(key: bytes) -> None:
    record = Rec(b"k", b"v", headers=((key, key), (b"next", b"2")))
    (row,) = decode(batch_of([record]), columns=COLUMNS)
    assert [(h["key"], h["value"]) for h in row["headers"]] == list(java_headers(record.headers))


def test_headers_of_many_rows() -> None:
    many = numbered(
        [
            Rec(b"k", b"v", headers=tuple((b"h%d" % h, b"x" * h) for h in range(number % 5)))
            for number in range(500)
        ]
    )
    with guarded_columns():
        rows = decode(batch_of(many, codec="lz4"), columns=COLUMNS, max_rows=77)
    found = [tuple((h["key"], h["value"]) for h in row["headers"] or ()) for row in rows]
    assert found == [java_headers(record.headers) for record in many]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_will_do(kind: Any) -> None:
    data = kind(b"xx" + simple(0, 3).encode())
    index = index_batches(data[2:], topic="t", partition=3, fetch_offset=0)
    assert len(list(record_batches(Decoder(slice_of()), index))) == 1


# -- what is wanted -----------------------------------------------------------------------------


def test_nothing_comes_of_nothing() -> None:
    index = indexed([])
    assert (index.next_offset, index.tail_bytes, index.records) == (None, 0, 0)
    assert decode() == []
    empty = batch_of([], base=4, last_delta=5)
    assert decode(empty, replace(empty, base=10, codec="lz4")) == []
    assert indexed([empty]).next_offset == 10


def test_a_compacted_log_has_holes() -> None:
    batch = batch_of([Rec(b"a", b"1", 3), Rec(b"b", b"2", 7)], base=10, last_delta=9)
    assert offsets(decode(batch, simple(25, 1), simple(90, 1))) == [13, 17, 25, 90]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_may_begin_before_what_is_wanted(codec: str) -> None:
    batch = simple(10, 10, codec=codec)
    assert offsets(decode(batch, slice_=slice_of(14, 17))) == [14, 15, 16]
    assert offsets(decode(batch, fetch_offset=18)) == [18, 19]
    assert offsets(decode(batch, slice_=slice_of(20, 30))) == []


@pytest.mark.parametrize("cut", [1, 12, 16, 17, 60, 61, 70])
def test_a_batch_that_is_cut_off_is_left_for_the_next_response(cut: int) -> None:
    whole, second = simple(0, 3).encode(), simple(3, 2).encode()
    index = indexed([whole, second[:cut]])
    assert (index.next_offset, index.tail_bytes, index.records) == (3, cut, 3)
    assert offsets(decode(whole, second[:cut])) == [0, 1, 2]
    alone = indexed([second[:cut]], fetch_offset=3)
    assert (alone.next_offset, alone.tail_bytes) == (None, cut)


def test_a_response_with_nothing_new_has_no_next_offset() -> None:
    assert indexed([simple(0, 3)], fetch_offset=3).next_offset is None
    assert indexed([simple(0, 3)], fetch_offset=2).next_offset == 3


@st.composite
def responses(draw: st.DrawFn) -> list[tuple[Batch, list[Rec]]]:
    """Batches of every codec and their records, ascending, with holes."""
    found: list[tuple[Batch, list[Rec]]] = []
    base = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 7))):
        delta, recs = -1, []
        for _ in range(draw(st.integers(0, 6))):
            delta += draw(st.integers(1, 3))
            key = draw(st.none() | st.binary(max_size=3))
            recs.append(Rec(key, draw(st.none() | st.binary(max_size=20)), delta))
        last = max(delta, 0) + draw(st.integers(0, 2))
        codec = draw(st.sampled_from(CODECS))
        found.append((batch_of(recs, base=base, codec=codec, last_delta=last), recs))
        base += last + 1 + draw(st.sampled_from([0, 0, 4]))
    return found


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    pieces = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, 40))
        lo, hi = sorted(draw(st.sets(st.integers(0, 8), min_size=2, max_size=2)))
        hashes = HashRange(lo * HASH_SPACE // 8, hi * HASH_SPACE // 8)
        pieces.append(Rectangle(OffsetRange(start, start + draw(st.integers(1, 30))), hashes))
    return Slice("t", 3, tuple(pieces))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    responses(),
    slices(),
    st.integers(0, 40),
    st.integers(1, 9),
    st.sampled_from([1, 60, 1 << 20]),
    st.sampled_from([1, 30, 1 << 20]),
    st.sampled_from([1, 7, 11, 60, 1 << 20]),
)
def test_exactly_the_records_of_the_slice_come_in_order(
    monkeypatch: pytest.MonkeyPatch,
    response: list[tuple[Batch, list[Rec]]],
    slice_: Slice,
    floor: int,
    limit: int,
    group_bytes: int,
    max_bytes: int,
    window: int,
) -> None:
    """Whatever is decoded at a time, in whatever windows, and whatever fits in a record batch."""
    monkeypatch.setattr(windows, "_GROUP_BYTES", group_bytes)
    expected = [
        (batch.base + rec.delta, rec.key, rec.value)
        for batch, recs in response
        for rec in recs
        if batch.base + rec.delta >= floor
        and any(
            piece.offsets.start <= batch.base + rec.delta < piece.offsets.end
            and key_hash(rec.key, batch.base + rec.delta) in piece.hashes
            for piece in slice_.rectangles
        )
    ]
    index = indexed([batch for batch, _ in response], floor)
    decoder = Decoder(slice_, max_rows=limit, max_bytes=max_bytes, arena=Arena(window))
    for _ in range(2):  # a decoder is as good as new
        found = list(record_batches(decoder, index))
        assert [
            row
            for batch in found
            for row in zip(*(batch[n].to_pylist() for n in ("offset", "key", "value")), strict=True)
        ] == expected
        assert all(1 <= batch.num_rows <= limit for batch in found)
        for batch in found:
            sizes = [len(v or b"") for n in ("key", "value") for v in batch[n].to_pylist()]
            assert sum(sizes) <= max_bytes or batch.num_rows == 1
    count, end = decoder.count(index, (), limit)
    assert count == min(limit, len(expected))
    assert end == (expected[count - 1][0] + 1 if count else 0)


# -- transactions -------------------------------------------------------------------------------


def transaction(base: int, producer: int, count: int = 2) -> Batch:
    return simple(base, count, producer=producer, attributes=TRANSACTIONAL)


LOG = [
    transaction(0, 1),
    transaction(2, 2),
    simple(4, 2),
    control_batch(6, 1, ABORT),
    transaction(7, 1),  # the same producer, and now it commits
    control_batch(9, 1, COMMIT),
    simple(10, 2, producer=2),  # idempotent, not of the transaction that is open
    control_batch(12, 2, ABORT),
    transaction(13, 2),
    control_batch(15, 2, COMMIT),
]


def test_control_batches_never_come() -> None:
    everything = [0, 1, 2, 3, 4, 5, 7, 8, 10, 11, 13, 14]
    assert offsets(decode(*LOG)) == everything
    assert offsets(decode(*LOG, aborted=[(1, 0), (2, 2)])) == everything


def test_aborted_transactions_come_only_if_uncommitted_is_read() -> None:
    rows = decode(*LOG, aborted=[(2, 2), (1, 0)], read_committed=True)
    assert offsets(rows) == [4, 5, 7, 8, 10, 11, 13, 14]


def test_an_aborted_transaction_of_one_record() -> None:
    log = (transaction(0, 1, 1), control_batch(1, 1, ABORT))
    assert decode(*log, aborted=[(1, 0)], read_committed=True) == []


def test_what_the_broker_does_not_call_aborted_is_committed() -> None:
    assert offsets(decode(*LOG, read_committed=True))[:4] == [0, 1, 2, 3]


def test_an_abort_of_before_and_one_of_after_the_response() -> None:
    """A transaction that began earlier; one whose marker comes in the next response."""
    rows = decode(*LOG[1:5], aborted=[(1, 0), (2, 2)], read_committed=True, fetch_offset=2)
    assert offsets(rows) == [4, 5, 7, 8]
    rows = decode(*LOG[8:9], aborted=[(2, 13)], read_committed=True, fetch_offset=13)
    assert offsets(rows) == []


def test_nothing_of_a_response_is_remembered_for_the_next() -> None:
    decoder = Decoder(slice_of(), read_committed=True)
    first = list(record_batches(decoder, indexed(LOG[:2]), [(1, 0), (2, 2)]))
    assert first == []
    (second,) = record_batches(decoder, indexed(LOG[8:9], 13), [])
    assert second["offset"].to_pylist() == [13, 14]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_markers_of_any_codec(codec: str) -> None:
    marker = batch_of([Rec(ABORT, b"")], base=2, producer=1, attributes=0x30, codec=codec)
    rows = decode(
        transaction(0, 1), marker, transaction(3, 1), aborted=[(1, 0)], read_committed=True
    )
    assert offsets(rows) == [3, 4]


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0"])
def test_a_marker_with_no_kind(key: bytes | None) -> None:
    marker = batch_of([Rec(key, b"")], base=2, producer=1, attributes=0x30)
    with pytest.raises(CorruptRecordError, match=r"batch at offset 2 .*control record"):
        decode(transaction(0, 1), marker, aborted=[(1, 0)], read_committed=True)


# -- leader epochs ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-1, 2**31 - 1), st.sampled_from(["none", "gzip"]))))
def test_which_leaders_wrote_the_batches(written: list[tuple[int, str]]) -> None:
    batches = [
        simple(3 * number, 3, leader_epoch=epoch, codec=codec)
        for number, (epoch, codec) in enumerate(written)
    ]
    changes = indexed(batches).leader_epochs()
    assert all(one[1] != two[1] for one, two in pairwise(changes))
    found = [
        next(epoch for first, epoch in reversed(changes) if first <= batch.base)
        for batch in batches
    ]
    assert found == [epoch for epoch, _ in written]


# -- what a response costs -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5])
def test_columns_are_begun_once_for_a_response_that_fits_into_them(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Live records come one by one: what a response costs is what each of them costs."""
    allocate = Mock(wraps=columns.allocate)
    monkeypatch.setattr(columns, "allocate", allocate)
    decoder = Decoder(slice_of(), columns=list(COLUMNS))
    found = list(decoder.decode(indexed([simple(0, count)])))
    assert [rows.batch.num_rows for rows in found] == [count]
    # Three columns of fixed width; keys, values and raw headers: offsets, validity and bytes.
    assert allocate.call_count == 3 + 3 * 3


def test_columns_that_got_no_row_are_those_of_the_next_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a key range is one of several, most responses have nothing for it."""
    allocate = Mock(wraps=columns.allocate)
    monkeypatch.setattr(columns, "allocate", allocate)
    decoder = Decoder(slice_of(), columns=list(COLUMNS), keys={b"of nobody"})
    for base in range(0, 30, 3):
        rows = 3 if base % 2 == 0 else 1
        assert list(decoder.decode(indexed([simple(base, rows)], base))) == []
    assert allocate.call_count == 3 + 3 * 3


@given(st.lists(st.tuples(responses(), st.integers(0, 40)), max_size=4), slices())
def test_what_a_decoder_has_decoded_before_changes_nothing(
    read: list[tuple[list[tuple[Batch, list[Rec]]], int]], slice_: Slice
) -> None:
    decoder = Decoder(slice_, columns=list(COLUMNS))
    for response, floor in read:
        index = indexed([batch for batch, _ in response], floor)
        new = Decoder(slice_, columns=list(COLUMNS))
        assert list(record_batches(decoder, index)) == list(record_batches(new, index))
