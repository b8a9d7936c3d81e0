"""A scan finds the end that a reader with the same limit has."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash, split
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.errors import CorruptRecordError, DataLossError
from kshare.kafka.protocol import broker_pool
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.brokers import Brokers
from kshare.options import SourceOptions
from kshare.read.reader.read_slice import find_ends, reader_options
from kshare.testing import FakeCluster, Record
from tests.support.batches import (
    ABORT,
    COMMIT,
    TRANSACTIONAL,
    Rec,
    batch_of,
    control_batch,
    numbered,
)
from tests.support.scripted import ScriptedLog, read_slice

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}
COMMITTED = {**NOBODY, "kafka.isolation.level": "read_committed"}


def slice_of(*pieces: tuple[int, int, HashRange]) -> kshare.Slice:
    return kshare.Slice(
        "t",
        0,
        tuple(
            kshare.Rectangle(kshare.OffsetRange(start, end), hashes)
            for start, end, hashes in pieces
        ),
    )


def find_end(
    slice_: kshare.Slice, options: SourceOptions, limit: int, brokers: Brokers | None = None
) -> int:
    """The end of one slice, found alone."""
    (found,) = find_ends([PlannedSlice(slice_, limit)], options, brokers=brokers)
    return found.end


def scan(brokers: Brokers, slice_: kshare.Slice, limit: int) -> int:
    return find_end(slice_, reader_options(NOBODY, "t"), limit, brokers=brokers)


def both(
    brokers: Brokers, slice_: kshare.Slice, options: dict[str, str], limit: int
) -> tuple[SliceEnd, int]:
    """Where a reader ends, and where the scan says that it does."""
    ends: list[SliceEnd] = []
    for _ in read_slice(brokers, slice_, options, max_records=limit, on_end=ends.append):
        pass
    return ends[0], find_end(slice_, reader_options(options, "t"), limit, brokers=brokers)


HASHES = st.sampled_from(
    [WHOLE, HashRange(0, HASH_SPACE // 3), HashRange(HASH_SPACE // 3, HASH_SPACE)]
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """A log of some batches with holes, and its end."""
    found, base = [], 0
    for _ in range(draw(st.integers(1, 6))):
        records, delta = [], -1
        for _ in range(draw(st.integers(0, 12))):
            delta += draw(st.sampled_from([1, 1, 1, 3]))
            key = draw(st.none() | st.sampled_from([b"a", b"b", b"c", b"d"]))
            records.append(Rec(key, b"v" * draw(st.integers(0, 30)), delta))
        codec = draw(st.sampled_from(["none", "lz4"]))
        batch = batch_of(records, base=base, codec=codec, last_delta=max(delta, 0) + 2)
        found.append(batch.encode())
        base += batch.last_delta + 1
    return found, base


@given(logs(), st.data())
def test_the_scan_and_the_reader_agree(log: tuple[list[bytes], int], data: st.DataObject) -> None:
    encoded, end = log
    pieces = []
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, end - 1))
        pieces.append((start, data.draw(st.integers(start + 1, end)), data.draw(HASHES)))
    slice_ = slice_of(*pieces)
    brokers = ScriptedLog(encoded, response_bytes=data.draw(st.integers(1, 2_000)))
    read, scanned = both(brokers, slice_, NOBODY, data.draw(st.integers(1, 40)))
    assert scanned == read.end


def test_the_end_is_behind_the_record_that_reaches_the_limit() -> None:
    keys = [b"k%d" % (number % 5) for number in range(100)]
    batches = [
        batch_of(numbered([Rec(key, b"v") for key in keys[base : base + 10]]), base=base).encode()
        for base in range(0, 100, 10)
    ]
    log = ScriptedLog(batches, response_bytes=1)
    half = HashRange(0, HASH_SPACE // 2)
    mine = [number for number, key in enumerate(keys) if key_hash(key, number) in half]
    for limit in (1, 2, 19, len(mine)):
        assert scan(log, slice_of((0, 100, half)), limit) == mine[limit - 1] + 1
    assert scan(log, slice_of((0, 100, half)), len(mine) + 1) == 100


def test_the_ends_of_all_ranges_of_a_partition_are_found_in_one_pass() -> None:
    recs = [Rec(b"k%d" % number, b"v" * 20) for number in range(10)]
    batches = [batch_of(numbered(recs), base=base).encode() for base in range(0, 500, 10)]
    log = ScriptedLog(batches, response_bytes=2000)
    limited = [
        PlannedSlice(slice_of((0, 500, hashes)), limit)
        for hashes, limit in zip(split(WHOLE, 4), [1, 30, 90, 500], strict=True)
    ]
    options = reader_options(NOBODY, "t")
    alone = [find_ends([each], options, brokers=log)[0].end for each in limited]
    assert len(set(alone)) == 4
    log.fetches.clear()
    assert find_end(limited[-1].slice, options, 500, brokers=log) == 500
    in_one_pass = len(log.fetches)
    log.fetches.clear()
    assert [found.end for found in find_ends(limited, options, brokers=log)] == alone
    assert len(log.fetches) == in_one_pass


def test_no_more_is_fetched_than_is_needed() -> None:
    batches = [batch_of([Rec(b"k", b"v")], base=base).encode() for base in range(50)]
    log = ScriptedLog(batches, response_bytes=1)
    assert scan(log, slice_of((0, 50, WHOLE)), 3) == 3
    assert max(offset for offset, _ in log.fetches) <= 3


@pytest.mark.parametrize("options", [NOBODY, COMMITTED], ids=["uncommitted", "committed"])
@pytest.mark.parametrize("limit", range(1, 14))
def test_aborted_transactions_count_only_if_they_are_read(
    options: dict[str, str], limit: int
) -> None:
    def batch(base: int, producer: int, **fields: Any) -> bytes:
        records = numbered([Rec(b"k%d" % base, b"v") for _ in range(3)])
        return batch_of(records, base=base, producer=producer, **fields).encode()

    batches = [
        batch(0, 1, attributes=TRANSACTIONAL),
        batch(3, 2, attributes=TRANSACTIONAL),
        control_batch(6, 1, ABORT).encode(),
        batch(7, -1),
        control_batch(10, 2, COMMIT).encode(),
        batch(11, 1, attributes=TRANSACTIONAL),
        control_batch(14, 1, COMMIT).encode(),
    ]
    log = ScriptedLog(batches, response_bytes=200, aborted=[(1, 0, 6)])
    read, scanned = both(log, slice_of((0, 15, WHOLE)), options, limit)
    offsets = [*range(6), *range(7, 10), *range(11, 14)]
    if options is COMMITTED:
        offsets = offsets[3:]
    assert read.records == min(limit, len(offsets))
    assert scanned == read.end == (offsets[limit - 1] + 1 if limit <= len(offsets) else 15)


def test_damage_behind_the_end_is_not_seen_and_before_it_is() -> None:
    good = [batch_of(numbered([Rec(b"k", b"v")] * 4), base=base).encode() for base in (0, 4)]
    bad = bytearray(good[1])
    bad[-1] ^= 1
    log = ScriptedLog([good[0], bytes(bad)])
    assert scan(log, slice_of((0, 8, WHOLE)), 4) == 4
    assert both(log, slice_of((0, 8, WHOLE)), NOBODY, 4)[0].end == 4
    with pytest.raises(CorruptRecordError, match=r"t-0, batch at offset 4 .*checksum"):
        scan(log, slice_of((0, 8, WHOLE)), 5)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(1, topics={"t": 1}) as running:
        running.produce("t", [Record(b"k%d" % (i % 7), b"v%d" % i) for i in range(300)])
        yield running
    broker_pool.close_idle()


def test_with_a_broker(cluster: FakeCluster) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    half = slice_of((10, 290, HashRange(0, HASH_SPACE // 2)))
    read, scanned = both(BrokerPool(reader_options(options, "t").kafka), half, options, 50)
    assert find_end(half, reader_options(options, "t"), 50) == scanned
    assert (read.records, read.end) == (50, scanned)


def test_a_trimmed_log_is_data_loss(cluster: FakeCluster) -> None:
    cluster.trim("t", 0, 50)
    options = reader_options({"kafka.bootstrap.servers": cluster.bootstrap_servers}, "t")
    with pytest.raises(DataLossError, match="offsets 10 to 290 are wanted"):
        find_end(slice_of((10, 290, WHOLE)), options, 50)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_is_at_least_one(limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        find_end(slice_of((0, 9, WHOLE)), reader_options(NOBODY, "t"), limit)
