"""Restoring a store from its changelog, on the mock cluster: what is pending, and nothing else."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kshare.group
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.errors import OptionsError, UnknownTopicError
from kshare.group import restore
from kshare.testing import FakeCluster

RECORDS = 60
KEYS = [f"k{number % 13}".encode() for number in range(RECORDS)]
PARTS = split(WHOLE, 4)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with FakeCluster(topics={"balances-changelog": 2}) as running:
        rows = [(key, f"{at}".encode()) for at, key in enumerate(KEYS)]
        running.produce("balances-changelog", rows, partition=1)
        yield running.bootstrap_servers


def config(servers: str) -> dict[str, str]:
    return {"bootstrap.servers": servers}


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_it_is_exported() -> None:
    assert kshare.group.restore is restore


def test_all_of_a_changelog(servers: str) -> None:
    (batch,) = restore("balances-changelog", 1, [], None, config(servers))
    assert batch.column("key").to_pylist() == KEYS
    assert batch.column("value").to_pylist() == [f"{at}".encode() for at in range(RECORDS)]


def test_an_empty_changelog(servers: str) -> None:
    restoration = restore("balances-changelog", 0, [], None, config(servers))
    assert list(restoration) == []
    assert (restoration.end, restoration.progress) == (0, Progress.at(0))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sets(st.sampled_from(PARTS), min_size=1),
    st.lists(
        st.tuples(st.sampled_from(PARTS), st.integers(0, RECORDS), st.integers(1, RECORDS)),
        max_size=4,
    ),
    st.integers(0, RECORDS),
)
def test_what_is_pending_of_the_gained_ranges_comes_once(
    servers: str, gained: set[HashRange], had: list[tuple[HashRange, int, int]], stable: int
) -> None:
    pieces = [Rectangle(OffsetRange(start, start + count), part) for part, start, count in had]
    done = Progress.of(stable, pieces)
    ranges = [(part.lo, part.hi) for part in gained]
    restoration = restore("balances-changelog", 1, ranges, done, config(servers))
    wanted = [
        at
        for at, key in enumerate(KEYS)
        if any(key_hash(key, at) in part for part in gained)
        and any(
            at in piece.offsets and key_hash(key, at) in piece.hashes
            for piece in done.pending(RECORDS)
        )
    ]
    assert offsets(restoration) == wanted
    again = restore("balances-changelog", 1, ranges, restoration.progress, config(servers))
    assert offsets(again) == []
    assert not restoration.progress.minus(done.commit(done.pending_of(RECORDS, sorted(gained))))


def test_progress_says_what_was_returned(servers: str) -> None:
    restoration = restore("balances-changelog", 1, [PARTS[0]], None, config(servers))
    assert restoration.progress == Progress.at(0)
    last = next(restoration).column("offset")[-1].as_py()
    assert restoration.progress.position(PARTS[0]) == last + 1
    assert list(restoration) == []
    assert restoration.progress.position(PARTS[0]) == RECORDS
    assert restoration.progress.position(PARTS[1]) == 0


def test_what_is_wrong_is_said_at_the_call(servers: str) -> None:
    with pytest.raises(ValueError, match=r"balances-changelog-1: key ranges .* overlap"):
        restore("balances-changelog", 1, [(0, 10), (5, 20)], None, config(servers))
    wrong = {**config(servers), "isolation.level": "none"}
    with pytest.raises(OptionsError, match=r"isolation\.level"):
        restore("balances-changelog", 1, [], None, wrong)
    with pytest.raises(UnknownTopicError):
        restore("balances-changelog", 7, [], None, config(servers))
