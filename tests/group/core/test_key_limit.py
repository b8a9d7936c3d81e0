"""Limited keys of a consumer: what is kept back is neither lost nor counted as processed."""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.core import key_limit
from kshare.group.core.key_limit import KeyLimit
from kshare.group.message import CHUNK_ROWS, Chunk, Message, batch_of
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions, fake_consumers

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
RECORDS = 3 * CHUNK_ROWS
LOWER, UPPER = "abcdefghijklmnop", "ABCDEFGHIJKLMNOP"
CONFIG = {"acknowledgement__mode": "explicit", "max__in__flight__per__key": 1}

Make = Callable[..., KeySharedConsumer]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def make(cluster: FakeCluster) -> Iterator[Make]:
    with fake_consumers(cluster, FakeSessions()) as consumers:
        yield consumers


def fill(cluster: FakeCluster, keys: str, partition: int, times: int = 1) -> None:
    for part in range(times):
        rows = [(keys[i % len(keys)], f"{part}-{i}") for i in range(RECORDS)]
        cluster.produce("orders", rows, partition=partition)


def drain(consumer: KeySharedConsumer, messages: list[Message], wanted: int) -> list[Message]:
    """Acknowledge what is in flight, and take what comes, until all has come."""
    seen = list(messages)
    while messages:
        for message in messages:
            consumer.acknowledge(message)
        messages = consumer.consume(min(len(messages), wanted - len(seen)), 10.0)
        seen += messages
    return seen


def places(messages: list[Message]) -> list[tuple[int, int]]:
    return sorted((message.partition(), message.offset()) for message in messages)


def test_while_all_keys_are_in_flight_nothing_that_was_fetched_is_lost(
    cluster: FakeCluster, make: Make
) -> None:
    fill(cluster, LOWER, 0, times=2)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    first = consumer.consume(len(LOWER), WAIT_S)
    for _ in range(5):
        assert consumer.consume(1, 0.1) == []
    seen = drain(consumer, first, 2 * RECORDS)
    assert places(seen) == [(0, offset) for offset in range(2 * RECORDS)]


def test_what_is_let_out_of_one_partition_is_not_counted_for_another(
    cluster: FakeCluster, make: Make
) -> None:
    fill(cluster, LOWER, 0)
    fill(cluster, UPPER, 1)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: [], OTHER: []})
    first = consumer.consume(len(LOWER + UPPER), WAIT_S)
    seen = drain(consumer, first, 2 * RECORDS)
    assert places(seen) == [(p, offset) for p in range(2) for offset in range(RECORDS)]
    assert consumer.commit() == {ORDERS: RECORDS, OTHER: RECORDS}


def test_a_call_waits_for_no_record_that_comes_only_after_an_acknowledgement(
    cluster: FakeCluster, make: Make
) -> None:
    """It waits without a limit, and ends when each key has one in flight."""
    fill(cluster, LOWER, 0)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    seen: list[Message] = []
    while len(seen) < RECORDS:
        messages = consumer.consume(RECORDS - len(seen))
        assert len(messages) <= len(LOWER)
        seen += messages
        for message in messages:
            consumer.acknowledge(message)
    assert places(seen) == [(0, offset) for offset in range(RECORDS)]


HUNG, BEHIND = "hung", 12_000


def fill_behind(cluster: FakeCluster, others: int) -> None:
    """Most records are of one key."""
    rows = [(HUNG if i % 5 else f"k{i % 100}", f"{i}") for i in range(BEHIND * 5 // 4)]
    cluster.produce("orders", rows, partition=0)
    cluster.produce("orders", [(f"k{i % 100}", "v") for i in range(others)], partition=0)


def take_others(consumer: KeySharedConsumer, wanted: int) -> tuple[list[Message], list[Message]]:
    """Take and acknowledge all but what is of the hung key: the hung records, and the others."""
    hung: list[Message] = []
    seen: list[Message] = []
    while len(seen) < wanted:
        messages = consumer.consume(500, WAIT_S)
        assert messages
        for message in messages:
            if message.key() == HUNG.encode():
                hung.append(message)
            else:
                seen.append(message)
                consumer.acknowledge(message)
    return hung, seen


def stable_at(consumer: KeySharedConsumer, end: int) -> dict[TopicPartition, int] | None:
    """Commit, when it is known that the log has nothing more."""
    deadline = time.monotonic() + 10.0
    while consumer.position()[ORDERS] < end:
        assert consumer.consume(1, 0.05) == []
        assert time.monotonic() < deadline
    return consumer.commit()


def test_a_hanging_key_with_many_records_behind_it_stops_nobody(
    cluster: FakeCluster, make: Make
) -> None:
    fill_behind(cluster, 2_000)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    total = BEHIND * 5 // 4 + 2_000
    hung, seen = take_others(consumer, total - BEHIND)
    assert [message.offset() for message in hung] == [1]
    assert consumer.commit() == {ORDERS: 1}
    (metrics,) = consumer.metrics().partitions.values()
    assert metrics.held is not None
    assert metrics.held <= 10_000
    rest = drain(consumer, hung, BEHIND)
    offsets = [message.offset() for message in rest]
    assert offsets == [i for i in range(BEHIND * 5 // 4) if i % 5]
    assert len(offsets) + len(seen) == total
    assert stable_at(consumer, total) == {ORDERS: total}


def test_what_is_put_aside_is_pending_after_a_restart(cluster: FakeCluster, make: Make) -> None:
    fill_behind(cluster, 500)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    total = BEHIND * 5 // 4 + 500
    take_others(consumer, total - BEHIND)
    consumer.commit()
    consumer.close()
    again = make(**CONFIG)
    again.assign({ORDERS: []})
    rest = drain(again, again.consume(1, WAIT_S), BEHIND)
    assert [message.offset() for message in rest] == [i for i in range(BEHIND * 5 // 4) if i % 5]
    assert stable_at(again, total) == {ORDERS: total}


def test_a_seek_goes_for_what_is_put_aside_too(cluster: FakeCluster, make: Make) -> None:
    fill_behind(cluster, 500)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    total = BEHIND * 5 // 4 + 500
    take_others(consumer, total - BEHIND)
    consumer.seek(ORDERS, total - 501)
    seen = drain(consumer, consumer.consume(100, WAIT_S), 501)
    assert places(seen) == [(0, offset) for offset in range(total - 501, total)]


def test_rare_records_of_a_hanging_key_keep_few_chunks(cluster: FakeCluster, make: Make) -> None:
    """A record that is kept back keeps its chunk in memory."""
    total = 80 * CHUNK_ROWS
    rows = [(f"k{i % 300}" if i % CHUNK_ROWS else HUNG, "v") for i in range(total)]
    cluster.produce("orders", rows, partition=0)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: []})
    hung, _ = take_others(consumer, total - 80)
    (limit,) = (limit for _, limit in consumer.receiver._dispatcher.state.left_out.limits)
    assert limit.chunks <= 64
    rest = drain(consumer, hung, 80)
    assert [message.offset() for message in rest] == [i * CHUNK_ROWS for i in range(80)]
    assert stable_at(consumer, total) == {ORDERS: total}


def test_a_paused_partition_whose_records_are_kept_back_stops_no_other(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_limit, "_HELD_MAX", 1_000)
    cluster.produce("orders", [(f"k{i}", "v") for i in range(RECORDS)], partition=0)
    consumer = make(**CONFIG)
    consumer.assign({ORDERS: [], OTHER: []})
    seen = consumer.consume(10, WAIT_S)
    consumer.pause([ORDERS])  # the others of its chunk may go out, and are not returned
    fill(cluster, LOWER, 1)
    while len(seen) < 10 + RECORDS:
        messages = consumer.consume(min(len(LOWER), 10 + RECORDS - len(seen)), WAIT_S)
        assert messages
        for message in messages:
            consumer.acknowledge(message)
        seen += messages
    consumer.resume([ORDERS])
    while len(seen) < 2 * RECORDS:
        messages = consumer.consume(min(500, 2 * RECORDS - len(seen)), WAIT_S)
        assert messages
        seen += messages
    assert places(seen) == [(p, offset) for p in range(2) for offset in range(RECORDS)]


@given(
    keys=st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=30),
    most=st.integers(1, 3),
    data=st.data(),
)
def test_a_limit_of_batches_keeps_the_order_of_each_key(
    keys: list[str | None], most: int, data: st.DataObject
) -> None:
    """Whatever is acknowledged when; by the limit alone, which messages share."""
    raw = [None if key is None else key.encode() for key in keys]
    columns = {"offset": list(range(len(raw))), "key": raw, "value": raw}
    types = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
    batch = pa.RecordBatch.from_pydict(columns, schema=types)
    limit, seen, in_flight = KeyLimit(most), list[int](), set[int]()
    limit.put(Chunk(ORDERS, batch).messages().messages)
    while limit.ready or in_flight:
        if limit.ready:
            taken = batch_of(list(limit.ready)).column("offset").to_pylist()
            limit.ready.clear()
            seen += taken
            in_flight.update(taken)
        for key in {key for key in raw if key is not None}:
            assert sum(raw[offset] == key for offset in in_flight) <= most
        done = data.draw(st.sets(st.sampled_from(sorted(in_flight)), min_size=1))
        for offset in done:
            limit.acknowledge(offset)
        in_flight -= done
    assert sorted(seen) == list(range(len(raw)))
    for one in set(raw) - {None}:
        own = [offset for offset in seen if raw[offset] == one]
        assert own == sorted(own)
