"""Restoring a store from its changelog, on the mock cluster: what is pending, and nothing else."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import kshare.group
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import DataLossError, OptionsError, UnknownTopicError
from kshare.group import StoreProgress, restore
from kshare.group.config.consumer_config import consumer_config
from kshare.group.tools import restoration
from kshare.testing import FakeCluster
from tests.docs.test_examples import examples as examples_of
from tests.support.clock import until
from tests.support.effort import examples

RECORDS = 60
KEYS = [f"k{number % 13}".encode() for number in range(RECORDS)]
PARTS = split(WHOLE, 4)
CHANGELOG = TopicPartition("balances-changelog", 1)


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


def had(offset: int) -> StoreProgress:
    """What a store has that has read the changelog up to an offset."""
    return StoreProgress(CHANGELOG, Progress.at(offset))


def test_it_is_exported() -> None:
    assert kshare.group.restore is restore


def test_all_of_a_changelog(servers: str) -> None:
    # The producer cuts the records into batches by time, so they come in one answer or in several.
    restored = restore("balances-changelog", 1, [], None, config(servers))
    batch = pa.Table.from_batches(list(restored))
    assert batch.column("key").to_pylist() == KEYS
    assert batch.column("value").to_pylist() == [f"{at}".encode() for at in range(RECORDS)]


def test_an_empty_changelog(servers: str) -> None:
    restored = restore("balances-changelog", 0, [], None, config(servers))
    assert list(restored) == []
    assert (restored.end, restored.progress.processed) == (0, Progress.at(0))


@examples(25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sets(st.sampled_from(PARTS), min_size=1),
    st.lists(
        st.tuples(st.sampled_from(PARTS), st.integers(0, RECORDS - 1), st.integers(1, RECORDS)),
        max_size=4,
    ),
    st.integers(0, RECORDS),
)
def test_what_is_pending_of_the_gained_ranges_comes_once(
    servers: str, gained: set[HashRange], had: list[tuple[HashRange, int, int]], stable: int
) -> None:
    pieces = [
        Rectangle(OffsetRange(start, min(start + count, RECORDS)), part)
        for part, start, count in had
    ]
    done = Progress.of(stable, pieces)
    ranges = [(part.lo, part.hi) for part in gained]
    restored = restore(
        "balances-changelog", 1, ranges, StoreProgress(CHANGELOG, done), config(servers)
    )
    wanted = [
        at
        for at, key in enumerate(KEYS)
        if any(key_hash(key, at) in part for part in gained)
        and any(
            at in piece.offsets and key_hash(key, at) in piece.hashes
            for piece in done.pending(RECORDS)
        )
    ]
    assert offsets(restored) == wanted
    again = restore("balances-changelog", 1, ranges, restored.progress, config(servers))
    assert offsets(again) == []
    assert not restored.progress.processed.minus(
        done.commit(done.pending_of(RECORDS, sorted(gained)))
    )


def test_progress_says_what_was_returned(servers: str) -> None:
    restored = restore("balances-changelog", 1, [PARTS[0]], None, config(servers))
    assert restored.progress == StoreProgress(CHANGELOG, Progress.at(0))
    for batch in restored:
        last = batch.column("offset")[-1].as_py()
        assert restored.progress.processed.position(PARTS[0]) == last + 1
    assert restored.progress.processed.position(PARTS[0]) == RECORDS
    assert restored.progress.processed.position(PARTS[1]) == 0


@pytest.mark.parametrize(
    ("given", "is_committed"),
    [
        ({}, False),
        ({"isolation.level": "read_committed"}, True),
        ({"transactional.id": "billing-1"}, True),
        ({"transactional.id": "billing-1", "isolation.level": "read_uncommitted"}, False),
    ],
)
def test_what_is_aborted_is_left_out_by_default_where_the_consumer_is_transactional(
    given: dict[str, str], is_committed: bool
) -> None:
    config = {"bootstrap.servers": "b:9092", "group.id": "g", "enable.auto.commit": False, **given}
    for each in (config, consumer_config(config)):
        kafka = restoration._kafka_config(each)
        assert kafka.read_committed == is_committed
        assert kafka.read_timeout_ms == (90_000 if is_committed else 60_000)


@pytest.mark.parametrize("other", [("balances-changelog", 0), ("other-changelog", 1)])
def test_what_is_of_another_partition_is_refused(servers: str, other: tuple[str, int]) -> None:
    done = StoreProgress(TopicPartition(*other), Progress.at(RECORDS))
    with pytest.raises(ValueError, match=rf"has of {'-'.join(map(str, other))}, and balances-ch"):
        restore("balances-changelog", 1, [], done, config(servers))


def test_the_example_restores_all_of_two_partitions() -> None:
    """The second one has more than the first, so it would lack some if one's progress were used."""

    class Store:
        def __init__(self) -> None:
            self.keys: set[bytes] = set()

        def apply(self, batch: pa.RecordBatch) -> None:
            self.keys.update(batch.column("key").to_pylist())

    blocks = examples_of("docs/consumer.md")
    (text,) = (each.text for each in blocks if "restore_gained" in each.text)
    names: dict[str, Any] = {}
    exec(text, names)
    counts, store = (100, 150), Store()
    topics = {"orders": len(counts), "balances-changelog": len(counts)}
    with FakeCluster(topics=topics) as cluster:
        for number, count in enumerate(counts):
            rows = [(f"{number}-{at}".encode(), b"v") for at in range(count)]
            cluster.produce("balances-changelog", rows, partition=number)
        given = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "billing"}
        with closing(names["start"](store, given)) as consumer:
            until(lambda: consumer.poll(0.1) or len(store.keys) == sum(counts))


def test_a_store_that_has_more_than_the_changelog_is_an_error(servers: str) -> None:
    ahead = Progress.at(10).commit([Rectangle(OffsetRange(20, RECORDS + 5), PARTS[0])])
    for done in (ahead, Progress.at(RECORDS + 1)):
        with pytest.raises(DataLossError, match=rf"the changelog ends at {RECORDS}"):
            restore("balances-changelog", 1, [], StoreProgress(CHANGELOG, done), config(servers))


def test_a_store_that_ends_before_the_changelog_begins_is_a_warning(
    servers: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restoration, "_bounds", lambda *_: (30, RECORDS))
    with caplog.at_level("WARNING", "kshare.group"):
        assert offsets(restore("balances-changelog", 1, [], had(30), config(servers)))
        assert not caplog.messages
        read = offsets(restore("balances-changelog", 1, [], had(5), config(servers)))
    assert read == list(range(30, RECORDS))
    assert "up to 5, and the changelog begins at 30" in caplog.text


def test_what_is_wrong_is_said_at_the_call(servers: str) -> None:
    with pytest.raises(ValueError, match=r"balances-changelog-1: key ranges .* overlap"):
        restore("balances-changelog", 1, [(0, 10), (5, 20)], None, config(servers))
    wrong = {**config(servers), "isolation.level": "none"}
    with pytest.raises(OptionsError, match=r"isolation\.level"):
        restore("balances-changelog", 1, [], None, wrong)
    with pytest.raises(UnknownTopicError):
        restore("balances-changelog", 7, [], None, config(servers))
