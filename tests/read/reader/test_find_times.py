"""The timestamps that are found in a log are those of its records, by plain Python."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.admission import StampedOffset
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash
from kshare.errors import DataLossError
from kshare.kafka.protocol import broker_pool
from kshare.read.reader.read_slice import find_first, find_later, reader_options
from kshare.testing import FakeCluster, Record
from tests.support.batches import (
    ABORT,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Rec,
    batch_of,
    control_batch,
)
from tests.support.scripted import ScriptedLog

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}
HALVES = (HashRange(0, HASH_SPACE // 2), HashRange(HASH_SPACE // 2, HASH_SPACE))


def slice_of(start: int, end: int, hashes: HashRange = WHOLE, partition: int = 0) -> kshare.Slice:
    piece = kshare.Rectangle(kshare.OffsetRange(start, end), hashes)
    return kshare.Slice("t", partition, (piece,))


@dataclass(frozen=True)
class Written:
    """A log, and its records as (offset, key hash, timestamp)."""

    batches: list[bytes]
    end: int
    records: list[tuple[int, int, int]]

    def of(self, slice_: kshare.Slice) -> list[StampedOffset]:
        return [
            StampedOffset(offset, ms)
            for offset, hash_, ms in self.records
            if slice_.offsets.start <= offset < slice_.offsets.end and hash_ in slice_.hashes
        ]


@st.composite
def logs(draw: st.DrawFn) -> Written:
    """A log of some batches with holes, and timestamps in any order; of brokers in some."""
    found, records, base = [], [], 0
    for _ in range(draw(st.integers(1, 6))):
        first, of_broker = draw(st.integers(-1, 5_000)), draw(st.booleans())
        inside, delta = [], -1
        for _ in range(draw(st.integers(0, 8))):
            delta += draw(st.sampled_from([1, 1, 1, 3]))
            key = draw(st.sampled_from([b"a", b"b", b"c", b"d"]))
            later = draw(st.integers(-1 - first, 4_000))
            inside.append(Rec(key, b"v", delta, later))
            at = 7_000 if of_broker else first + later
            records.append((base + delta, key_hash(key, base + delta), at))
        batch = batch_of(
            inside,
            base=base,
            codec=draw(st.sampled_from(["none", "lz4"])),
            last_delta=max(delta, 0) + 2,
            first_timestamp=first,
            max_timestamp=7_000,
            attributes=LOG_APPEND_TIME if of_broker else 0,
        )
        found.append(batch.encode())
        base += batch.last_delta + 1
    return Written(found, base, records)


@given(logs(), st.sampled_from([WHOLE, *HALVES]), st.integers(-2, 8_000), st.data())
def test_first_and_later_records_are_those_of_the_log(
    log: Written, hashes: HashRange, than: int, data: st.DataObject
) -> None:
    options = reader_options(NOBODY, "t")
    brokers = ScriptedLog(log.batches, response_bytes=data.draw(st.integers(1, 2_000)))
    middle = data.draw(st.integers(1, log.end))
    slices = [slice_of(0, middle, hashes)]
    if middle < log.end:
        slices.append(slice_of(middle, log.end, hashes))
    wanted = [next(iter(log.of(slice_)), None) for slice_ in slices]
    assert find_first(slices, options, brokers=brokers) == wanted

    whole = slice_of(0, log.end, hashes)
    late = [at.offset for at in log.of(whole) if at.timestamp_ms > than]
    found = find_later(whole, than, options, brokers=brokers)
    assert found == (late[0] if late else None)


def test_aborted_records_are_passed_over() -> None:
    def batch(base: int, producer: int, ms: int) -> bytes:
        attributes = TRANSACTIONAL if producer >= 0 else 0
        made = batch_of(
            [Rec(b"k", b"v")],
            base=base,
            producer=producer,
            attributes=attributes,
            first_timestamp=ms,
        )
        return made.encode()

    log = ScriptedLog(
        [batch(0, 1, 900), control_batch(1, 1, ABORT).encode(), batch(2, -1, 500)],
        aborted=[(1, 0, 1)],
    )
    committed = reader_options({**NOBODY, "kafka.isolation.level": "read_committed"}, "t")
    assert find_first([slice_of(0, 3)], committed, brokers=log) == [StampedOffset(2, 500)]
    assert find_later(slice_of(0, 3), 600, committed, brokers=log) is None
    assert find_later(slice_of(0, 3), 600, reader_options(NOBODY, "t"), brokers=log) == 0


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(1, topics={"t": 2}) as running:
        for partition in range(2):
            records = [Record(b"k%d" % (i % 7), b"v", timestamp=1_000 + i) for i in range(300)]
            running.produce("t", records, partition=partition)
        yield running
    broker_pool.close_idle()


def test_partitions_of_a_broker_in_one_pass(cluster: FakeCluster) -> None:
    options = reader_options({"kafka.bootstrap.servers": cluster.bootstrap_servers}, "t")
    slices = [slice_of(5, 30), slice_of(250, 300), slice_of(7, 300, partition=1)]
    times = [5, 250, 7]
    assert find_first(slices, options) == [StampedOffset(at, 1_000 + at) for at in times]
    assert find_later(slices[2], 1_200, options) == 201


def test_keys_and_columns_of_the_query_do_not_matter(cluster: FakeCluster) -> None:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    given |= {"keys": '["k6"]', "columns": "value,headers"}
    assert find_first([slice_of(0, 300)], reader_options(given, "t")) == [StampedOffset(0, 1_000)]


def test_a_trimmed_log_is_data_loss(cluster: FakeCluster) -> None:
    cluster.trim("t", 0, 50)
    options = reader_options({"kafka.bootstrap.servers": cluster.bootstrap_servers}, "t")
    with pytest.raises(DataLossError, match="t-0"):
        find_first([slice_of(10, 300)], options)
