"""A reader with a limit delivers the first so many records, and tells where that ended."""

import os
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

import kshare
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.slice_end import SliceEnd
from kshare.errors import OptionsError
from kshare.kafka.protocol import broker_pool
from kshare.read.reader.read_slice import read_slice
from kshare.testing import FakeCluster, Record
from tests.support import batches, scripted
from tests.support.scripted import ScriptedLog

COUNT = 300
KEYS = [b"k%d" % (offset % 7) for offset in range(COUNT)]
NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(1, topics={"t": 1}) as running:
        running.produce("t", [Record(key, b"v%d" % i) for i, key in enumerate(KEYS)])
        yield running
    broker_pool.close_idle()


def whole(start: int = 0, end: int = COUNT, hashes: HashRange = WHOLE) -> kshare.Slice:
    return kshare.Slice("t", 0, (kshare.Rectangle(kshare.OffsetRange(start, end), hashes),))


def limited(
    slice_: kshare.Slice,
    options: dict[str, str],
    limit: int | None,
    log: ScriptedLog | None = None,
) -> tuple[list[pa.RecordBatch], SliceEnd]:
    """What a reader delivers, and what it tells at its end."""
    ends: list[SliceEnd] = []
    read = read_slice if log is None else partial(scripted.read_slice, log)
    found = list(read(slice_, options, max_records=limit, on_end=ends.append))
    (end,) = ends
    return found, end


def offsets(found: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in found for offset in batch["offset"].to_pylist()]


# -- the limit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 7, 100, COUNT - 1, COUNT, COUNT + 1])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_first_so_many_records_of_a_slice(cluster: FakeCluster, limit: int, part: int) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    hashes = split(WHOLE, 3)[part]
    slice_ = whole(17, 230, hashes)
    expected = [o for o in range(17, 230) if key_hash(KEYS[o], o) in hashes]
    found, end = limited(slice_, options, limit)
    assert offsets(found) == expected[:limit]
    reached = expected[limit - 1] + 1 if limit <= len(expected) else 230
    assert (end.end, end.records) == (reached, len(expected[:limit]))


def test_without_a_limit_the_end_is_that_of_the_slice(cluster: FakeCluster) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    _, end = limited(whole(0, 200), options, None)
    assert (end.end, end.records) == (200, 200)


def test_a_reader_that_is_closed_tells_nothing(cluster: FakeCluster) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    ends: list[SliceEnd] = []
    reader = read_slice(whole(), options, on_end=ends.append)
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert ends == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(limit: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        read_slice(whole(), NOBODY, max_records=limit)


def test_options_are_checked_before_the_limit_is_used() -> None:
    with pytest.raises(OptionsError):
        read_slice(whole(), {**NOBODY, "kafka.isolation.level": "nothing"}, max_records=5)


# -- what is asked of the broker ----------------------------------------------------------------


def scripted_log(records: int, response_bytes: int = 1 << 20) -> ScriptedLog:
    """A log of batches of ten records of 1,000 bytes each."""
    encoded = []
    for base in range(0, records, 10):
        recs = [batches.Rec(b"k%d" % (base + i), os.urandom(980), i) for i in range(10)]
        encoded.append(batches.batch_of(recs, base=base).encode())
    return ScriptedLog(encoded, response_bytes=response_bytes)


@pytest.mark.parametrize("response_bytes", [1, 25_000, 1 << 20])
@pytest.mark.parametrize("limit", [1, 10, 11, 95, 200])
def test_the_size_of_responses_does_not_matter(response_bytes: int, limit: int) -> None:
    log = scripted_log(200, response_bytes)
    found, end = limited(whole(0, 200), NOBODY, limit, log)
    assert offsets(found) == list(range(limit))
    assert (end.end, end.records) == (limit, limit)
    assert end.sample == tuple(sorted(key_hash(b"k%d" % o, o) for o in range(limit)))


def test_no_request_is_under_way_when_the_limit_is_reached() -> None:
    log = scripted_log(1000, response_bytes=50_000)
    limited(whole(0, 1000), NOBODY, 5, log)
    assert len(log.fetches) == 1
    assert log.left_in_flight == [0]


def test_little_is_asked_for_when_little_is_wanted() -> None:
    log = scripted_log(2000)
    limited(whole(0, 2000), NOBODY, 5, log)
    assert [size for _, size in log.fetches] == [64 << 10]


def test_without_a_limit_a_request_is_always_under_way() -> None:
    log = scripted_log(100, response_bytes=20_000)
    waiting = [
        (batch["offset"][-1].as_py(), log.in_flight)
        for batch in scripted.read_slice(log, whole(0, 100), NOBODY)
    ]
    assert [count for _, count in waiting[:-1]] == [1] * (len(waiting) - 1)
    assert waiting[-1] == (99, 0)
