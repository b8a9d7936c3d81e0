"""Open batches: ends, their records, what is read of a range, the entry of the dict."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.checkpoint import BatchOffsets, RangeLimit, decode, encode
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, NO_HASHES, WHOLE, KeyRanges, split
from kshare.core.open_batch import (
    RangeReader,
    Step,
    done_slices,
    missing,
    no_ends,
    open_ranges,
    reached,
    read_so_far,
    seals,
)
from kshare.core.open_entry import LogPosition, OpenBatch, decode_open, encode_open
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import (
    PARTS_MAX,
    EndKey,
    RangeEnd,
    RangeId,
    decode_end,
    decode_key,
    encode_end,
    encode_key,
)
from kshare.errors import CheckpointError
from tests.support.mutation import mutated

T0 = TopicPartition("t", 0)
LEFT, RIGHT = (KeyRanges([half]) for half in split(WHOLE, 2))
QUARTERS = split(WHOLE, 4)
BATCH = OpenBatch("b", 60_000, "ends", LogPosition(3, 7), {T0: (LEFT, RIGHT)})
KEY = EndKey(RangeId("b", T0, 1), "a-0")


@st.composite
def ends_of(draw: st.DrawFn, hashes: KeyRanges = ALL_HASHES) -> RangeEnd:
    """An end of some hashes, each quarter with an offset of its own."""
    parts = [(hashes & (quarter,), draw(st.integers(0, 9))) for quarter in QUARTERS]
    return RangeEnd(tuple(part for part in parts if part[0]))


def at(end: RangeEnd, quarter: int) -> int:
    return next(offset for hashes, offset in end.parts if hashes.holds(QUARTERS[quarter].lo))


@given(ends_of(), ends_of(), st.integers(0, 9))
def test_ends_are_offsets_of_hashes(one: RangeEnd, two: RangeEnd, offset: int) -> None:
    cut, raised = one.cut(two), one.raised(offset, but=LEFT)
    assert one.hashes == cut.hashes == raised.hashes == ALL_HASHES
    for quarter in range(4):
        assert at(cut, quarter) == min(at(one, quarter), at(two, quarter))
        higher = at(one, quarter) if quarter < 2 else max(at(one, quarter), offset)
        assert at(raised, quarter) == higher
    assert one.is_within(two) == all(at(one, q) <= at(two, q) for q in range(4))
    assert decode_end(encode_end(one)) == one


def test_an_end_has_each_hash_once() -> None:
    for parts in ((), ((LEFT, 1), (ALL_HASHES, 2)), ((NO_HASHES, 1),), ((LEFT, -1),)):
        with pytest.raises(ValueError, match="wanted"):
            RangeEnd(parts)
    many = split(WHOLE, PARTS_MAX + 1)
    with pytest.raises(ValueError, match="1001 parts"):
        RangeEnd(tuple((KeyRanges([part]), n) for n, part in enumerate(many)))


def test_records_are_read_as_they_were_written() -> None:
    assert decode_key(encode_key(KEY)) == KEY
    end = RangeEnd(((LEFT, 5), (RIGHT, 7)))
    half = HASH_SPACE // 2
    text = f'{{"v":1,"ends":[[[[0,{half}]],5],[[[{half},{HASH_SPACE}]],7]]}}'
    assert encode_end(end) == text.encode()


def test_an_end_may_have_as_many_hashes_as_a_query_has_keys() -> None:
    """Each key that a query reads alone, or that is parked, is a range of hashes."""
    many = KeyRanges.of_hashes(number * 100_003 for number in range(20_000))
    end = RangeEnd(((many, 5), (ALL_HASHES - many, 1 << 62)))
    assert decode_end(encode_end(end)) == end


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"v":2,"ends":[]}',
        b'{"v":1}',
        b'{"v":1,"ends":[]}',
        b'{"v":1,"ends":[[[],1]]}',
    ],
)
def test_what_is_no_end_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="wanted a range's end"):
        decode_end(value)


def test_what_is_no_key_is_refused() -> None:
    for field, value in (("batch", ""), ("by", 1), ("partition", -1), ("range", 1 << 16)):
        fields = {**json.loads(encode_key(KEY)), field: value}
        with pytest.raises(ValueError, match="wanted the key of a range"):
            decode_key(json.dumps(fields).encode())


@given(mutated([encode_end(RangeEnd(((LEFT, 5), (RIGHT, 7)))), encode_key(KEY)]))
def test_damaged_records_are_refused(data: bytes) -> None:
    for read in (decode_end, decode_key):
        try:
            read(data)
        except ValueError:
            continue


@given(ends_of(LEFT), ends_of(RIGHT), st.integers(0, 5))
def test_what_is_read_is_what_lies_below_the_ends(
    left: RangeEnd, right: RangeEnd, stable: int
) -> None:
    begin = {T0: Progress.at(stable)}
    ranges = open_ranges(BATCH, begin)
    ends = no_ends(ranges)
    assert missing(ranges, ends) == ranges
    with pytest.raises(ValueError, match=r"no end of .* 1 more"):
        reached(ranges, begin, ends, lambda _: NO_HASHES)
    rows = [(EndKey(each.id, "a"), end) for each, end in zip(ranges, (left, right), strict=True)]
    later = [(EndKey(each.id, "b"), each.begin) for each in ranges]
    ends = ends.read([(EndKey(RangeId("other", T0, 0), "a"), left), *rows, *later])
    ends = ends.read([(key, None) for key, _ in rows])
    after = reached(ranges, begin, ends, lambda _: NO_HASHES)[T0]
    for quarter, half in enumerate((left, left, right, right)):
        assert after.position(QUARTERS[quarter]) == max(stable, at(half, quarter))
    for each, end in zip(ranges, (left, right), strict=True):
        for slice_ in done_slices(each, end):
            assert slice_.offsets.start >= stable


@given(st.integers(0, 5), st.integers(0, 9), st.integers(0, 3), ends_of(LEFT))
def test_the_rest_of_a_reader_is_what_it_has_not_handed_over(
    stable: int, delivered: int, parked: int, bound: RangeEnd
) -> None:
    """Without an end, all that comes of keys that are not parked; with one, up to this."""
    each, _ = open_ranges(BATCH, {T0: Progress.at(stable)})
    held = KeyRanges(QUARTERS[:parked])
    reader = RangeReader.of(each).park(held).deliver_to(delivered)
    following = next(iter(reader.rest), None)
    assert (following is None) == (LEFT - held == NO_HASHES)
    if following is not None:
        assert KeyRanges(stripe.hashes for stripe in following.stripes) == LEFT - held
        assert following.offsets.start == max(stable, delivered)
    bounded = replace(reader, bound=bound)
    wanted = {
        (quarter, offset)
        for quarter in (0, 1)
        for offset in range(stable, 10)
        if at(reader.delivered, quarter) <= offset < at(bound, quarter)
    }
    found = [
        (quarter, offset)
        for slice_ in bounded.rest
        for each_ in slice_.rectangles
        for quarter in (0, 1)
        for offset in range(each_.offsets.start, each_.offsets.end)
        if each_.hashes.lo <= QUARTERS[quarter].lo < each_.hashes.hi
    ]
    assert len(found) == len(wanted)
    assert set(found) == wanted


def test_what_has_no_end_is_sealed_where_it_begins() -> None:
    begin = {T0: Progress.at(4)}
    ranges = open_ranges(BATCH, begin)
    ends = no_ends(ranges).read([(EndKey(ranges[0].id, "x"), RangeEnd.at(RIGHT, 9))])
    assert seals(ranges, ends) == {
        ranges[0].id: RangeEnd.at(LEFT, 4),
        ranges[1].id: RangeEnd.at(RIGHT, 4),
    }


def test_a_reader_that_was_alone() -> None:
    (each, _) = open_ranges(BATCH, {T0: Progress.at(0)})
    reader = RangeReader.of(each)
    assert reader.step is Step.LOOK
    reader = reader.look(no_ends([each])).deliver_to(3)
    parked = KeyRanges([QUARTERS[0]])
    reader = reader.park(parked).deliver_to(5)
    assert reader.step is Step.READ
    reader = reader.time_over()
    assert reader.step is Step.PROPOSE
    key, end = reader.key("a"), reader.delivered
    assert end == RangeEnd(((parked, 3), (LEFT - parked, 5)))
    reader = reader.proposed()
    assert reader.step is Step.LOOK
    assert reader.key("a") != key
    assert reader.look(no_ends([each])).step is Step.PROPOSE
    ends = no_ends([each]).read([(key, end)])
    assert reader.look(ends).step is Step.END
    again = RangeReader.of(each).look(ends)
    assert again.step is Step.READ
    assert again.deliver_to(9).step is Step.END
    assert again.deliver_to(9).delivered == end
    assert RangeReader.of(each).look(no_ends([each])).deliver_to(9).look(ends).step is Step.FAIL


def test_the_entry_is_read_as_it_was_written() -> None:
    for batch in (BATCH, replace(BATCH, until_ms=7)):
        assert decode_open(json.loads(json.dumps(encode_open(batch)))) == batch


HALF = LEFT.pairs


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("ms", -1),
        ("log", [1]),
        ("log", ["", 1, 2]),
        ("log", ["ends", 1, -2]),
        ("log", ["ends", 1, 2, ""]),
        ("log", ["ends", 1, 2, "id", "id"]),
        ("ranges", []),
        ("ranges", {"t": {"01": [HALF]}}),
        ("ranges", {"t": {"0": []}}),
        ("ranges", {"t": {"0": [HALF, HALF]}}),
        ("ranges", {"t": {"0": [[]]}}),
        ("until", -1),
        ("until", None),
        ("more", 1),
    ],
)
def test_what_is_no_entry_is_refused(field: str, value: Any) -> None:
    entry = {**encode_open(BATCH), field: value}
    offsets = {"t": {"0": 5}, "@kshare": {"v": 3, "open": entry}}
    with pytest.raises(CheckpointError, match=r"@kshare\.open: .*checkpoint drop-ranges"):
        decode(offsets)


def test_an_open_batch_is_in_the_dict() -> None:
    offsets = BatchOffsets({T0: Progress.at(5)}, open=BATCH, schemas={"value": "avro id:7"})
    encoded = encode(offsets)
    assert encoded["@kshare"]["v"] == 3
    assert decode(json.dumps(encoded)) == offsets
    for version in (1, 2):  # what an older kshare would take for a dict of its own
        encoded["@kshare"]["v"] = version
        with pytest.raises(CheckpointError, match="only committed"):
            decode(encoded)


def test_an_open_batch_has_no_limits_and_knows_where_its_partitions_begin() -> None:
    limit = RangeLimit(LEFT, 9, 1)
    both = encode(BatchOffsets({T0: Progress.at(5)}, limits={T0: (limit,)}, open=BATCH))
    with pytest.raises(CheckpointError, match="no limits beside it"):
        decode(both)
    with pytest.raises(CheckpointError, match=r"@kshare\.open\.t\.0: wanted the stable offset"):
        decode(encode(BatchOffsets({}, open=BATCH)))


def test_who_only_looks_sees_what_ends_say() -> None:
    begin = {T0: Progress.at(5)}
    ranges = open_ranges(BATCH, begin)
    assert read_so_far(BATCH, begin, no_ends(ranges)) == begin
    ends = no_ends(ranges).read([(EndKey(ranges[0].id, "a"), RangeEnd.at(LEFT, 9))])
    seen = read_so_far(BATCH, begin, ends)[T0]
    assert (seen.position_of(LEFT), seen.position_of(RIGHT)) == (9, 5)
