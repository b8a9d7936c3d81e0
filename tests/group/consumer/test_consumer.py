"""The consumer on an embedded cluster, with a session that needs no log."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from hypothesis import given
from hypothesis import strategies as st

from kshare.cluster.policies import Policy
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import DataLossError, KshareError, PolicyError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.core.key_limit import KeyLimit
from kshare.group.message import CHUNK_ROWS, Chunk, Message, batch_of
from kshare.options import KafkaConfig
from kshare.testing import FakeCluster, Record
from kshare.wire.protocol.connection import BrokerConnection
from kshare.wire.protocol.messages import PartitionFetch, fetch_request
from kshare.wire.protocol.waker import Waker
from kshare.wire.reader import fetcher
from tests.support.clock import WAIT_S, until
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.policies import FakePolicies
from tests.support.requests import times_asked

ORDERS = TopicPartition("orders", 0)
MIDDLE = HASH_SPACE // 2
LONG_S = 600.0
KEYS = [f"k{number}" for number in range(20)]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def group() -> FakeSessions:
    return FakeSessions()


@pytest.fixture
def policies() -> FakePolicies:
    return FakePolicies()


@pytest.fixture
def make(
    cluster: FakeCluster, group: FakeSessions, policies: FakePolicies
) -> Iterator[Callable[..., KeySharedConsumer]]:
    with fake_consumers(cluster, group, policies) as consumers:
        yield consumers


def fill(cluster: FakeCluster, records: int, partition: int = 0, first: int = 0) -> None:
    rows = [(KEYS[i % len(KEYS)], str(i)) for i in range(first, first + records)]
    cluster.produce("orders", rows, partition=partition)


def take(consumer: KeySharedConsumer, records: int) -> list[Message]:
    messages = consumer.consume(records, WAIT_S)
    assert len(messages) == records
    return messages


def offsets(messages: list[Message]) -> list[int]:
    return [message.offset() for message in messages]


# -- messages ------------------------------------------------------------------------------------


def test_a_message_has_all_of_its_record(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    cluster.produce(
        "orders",
        [
            Record(b"k", b"value", [("a", b"1"), ("a", None)], 1_700_000_000_123),
            Record(None, None),
        ],
        partition=0,
    )
    consumer = make()
    consumer.assign({("orders", 0): []})
    full, bare = consumer.poll(WAIT_S), consumer.poll(WAIT_S)
    assert full is not None
    assert (full.key(), full.value(), full.topic(), full.partition(), full.offset()) == (
        b"k",
        b"value",
        "orders",
        0,
        0,
    )
    assert full.timestamp() == (1, 1_700_000_000_123)
    assert full.headers() == [("a", b"1"), ("a", None)]
    assert full.error() is None
    assert full.leader_epoch() == 0
    assert (len(full), bool(full), full.topic_partition) == (5, True, ORDERS)
    assert bare is not None
    assert (bare.key(), bare.value(), bare.headers(), len(bare), bool(bare)) == (
        None,
        None,
        None,
        0,
        True,
    )
    assert bare != full
    assert len({bare, full}) == 2
    assert consumer.poll(0.05) is None


def test_columns_that_are_not_read_are_named(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 1)
    consumer = make(columns="key")
    consumer.assign({("orders", 0): []})
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert (message.key(), message.offset()) == (b"k0", 0)
    for method in (message.value, message.headers, message.timestamp):
        with pytest.raises(ValueError, match="'columns'"):
            method()


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_offsets_of_others_after_the_last_record_are_processed(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer], mode: str
) -> None:
    """Else members with few records would hold the stable offset, until their next record."""
    fill(cluster, 100)
    lower = sum(key_hash(key.encode(), 0) < MIDDLE for key in KEYS) * 5
    consumers = []
    for hashes, count in (((0, MIDDLE), lower), ((MIDDLE, HASH_SPACE), 100 - lower)):
        consumers.append(make(acknowledgement__mode=mode))
        consumers[-1].assign({("orders", 0): [hashes]})
        for message in take(consumers[-1], count):
            consumers[-1].acknowledge(message)

    def is_committed() -> bool:
        found = [(consumer.commit() or {}).get(ORDERS) for consumer in consumers]
        assert [consumer.poll(0.05) for consumer in consumers] == [None, None]
        return found[-1] == 100

    until(is_committed)
    assert group.done[ORDERS] == Progress.at(100)


def test_a_timeout_of_nothing_waits_for_nothing(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign({("orders", 0): []})
    before = time.monotonic()
    assert consumer.consume(5, 0) == []
    assert consumer.poll(0) is None
    assert time.monotonic() - before < WAIT_S


# -- receiving -----------------------------------------------------------------------------------


def test_ranges_of_one_partition_get_their_keys_in_order(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 5_000)
    low, high = make(), make()
    low.assign({("orders", 0): [(0, MIDDLE)]})
    high.assign([("orders", 1)])
    high.assign({("orders", 0): [HashRange(MIDDLE, HASH_SPACE)]})
    expected: dict[bool, list[int]] = {False: [], True: []}
    for offset in range(5_000):
        key = KEYS[offset % len(KEYS)].encode()
        expected[key_hash(key, offset) >= MIDDLE].append(offset)
    assert offsets(take(low, len(expected[False]))) == expected[False]
    assert offsets(take(high, len(expected[True]))) == expected[True]
    assert low.consume(1, 0.05) == []
    assert high.assignment() == {ORDERS: (HashRange(MIDDLE, HASH_SPACE),)}


def test_all_ranges_of_a_partition_are_one_fetch(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    """One answer has all that is there, and one request waits for more, however many ranges."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 60_000})
    producer.list_topics("orders", timeout=20)  # so that they are one batch, however slow it is
    for i in range(500):
        producer.produce("orders", str(i), KEYS[i % len(KEYS)], 0)
    assert producer.flush(WAIT_S) == 0
    quarter = HASH_SPACE // 4
    ranges = [(0, quarter // 2), (quarter, 2 * quarter), (3 * quarter, 4 * quarter)]
    wanted = [i for i in range(500) if _is_in(ranges, KEYS[i % len(KEYS)])]
    assert 0 < len(wanted) < 500
    consumer = make(fetch__max__wait__ms=30_000, request__timeout__ms=60_000)
    cluster.track_requests()
    consumer.assign({("orders", 0): ranges})
    assert offsets(take(consumer, len(wanted))) == wanted
    assert consumer.poll(0.5) is None
    assert times_asked(cluster, "Fetch") == 2


def _is_in(ranges: list[tuple[int, int]], key: str) -> bool:
    return any(lo <= key_hash(key.encode(), 0) < hi for lo, hi in ranges)


@pytest.mark.parametrize(
    "limit", ["core.handing_out._UNACKNOWLEDGED_MAX", "core.key_limit._HELD_MAX"]
)
def test_reading_stops_when_too_much_is_held_and_goes_on_when_it_is_acknowledged(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    monkeypatch.setattr(f"kshare.group.{limit}", 200)
    monkeypatch.setattr("kshare.group.core.key_limit._ASIDE_MAX", 0)  # as if many keys hang
    more = {"max__in__flight__per__key": 1} if "_HELD_MAX" in limit else {}
    for first in range(0, 1_000, 100):  # a record batch each, and a fetch has few of them
        fill(cluster, 100, first=first)
    consumer = make(
        acknowledgement__mode="explicit",
        max__partition__fetch__bytes=1_000,
        fetch__max__wait__ms=50,
        **more,
    )
    consumer.assign({("orders", 0): []})
    messages: list[Message] = []

    def is_full() -> bool:
        found = consumer.consume(1_000, 0.1)
        messages.extend(found)
        return not found and consumer._dispatcher.out.is_full

    until(is_full)
    cluster.track_requests()
    messages += consumer.consume(1_000, 1.0)
    assert times_asked(cluster, "Fetch") == 0
    assert 200 <= len(messages) < 1_000 if not more else len(messages) == len(KEYS)
    done = 0

    def has_all() -> bool:
        nonlocal done
        for message in messages[done:]:
            consumer.acknowledge(message)
        done = len(messages)
        messages.extend(consumer.consume(1_000, 0.1))
        return len(messages) >= 1_000

    until(has_all)
    assert sorted(offsets(messages)) == list(range(1_000))
    by_key = {key: [m.offset() for m in messages if m.key() == key.encode()] for key in KEYS}
    assert all(found == sorted(found) for found in by_key.values())


@pytest.mark.parametrize(
    ("queue", "largest"),
    [(None, 4096), (65_536, 4096), (16_384, 4096), (1_024, 256), (256, 64), (1, 64)],
)
def test_fetches_ask_for_a_quarter_of_the_queue_at_most(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    queue: int | None,
    largest: int,
) -> None:
    """In KiB; no more than ``max.partition.fetch.bytes``, and 64 KiB once it has read something."""
    asked: list[int] = []

    def recording(
        connection: BrokerConnection,
        kafka: KafkaConfig,
        wanted: Sequence[PartitionFetch],
        **options: Any,
    ) -> object:
        asked.extend(each.max_bytes for each in wanted)
        return fetch_request(connection, kafka, wanted, **options)

    monkeypatch.setattr(fetcher, "fetch_request", recording)
    for first in range(0, 30, 10):  # the mock answers with one record batch
        fill(cluster, 10, first=first)
    consumer = make(**({} if queue is None else {"queued__max__messages__kbytes": queue}))
    consumer.assign({("orders", 0): []})
    take(consumer, 30)
    assert max(asked) == largest << 10


def test_it_follows_the_log(cluster: FakeCluster, make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign([("orders", 0), RdTopicPartition("orders", 1)])
    assert consumer.poll(0.2) is None
    for round_ in range(3):
        fill(cluster, 3, partition=round_ % 2, first=3 * round_)
        assert [message.value() for message in take(consumer, 3)] == [
            str(i).encode() for i in range(3 * round_, 3 * round_ + 3)
        ]
    assert consumer.position() == {ORDERS: 6, TopicPartition("orders", 1): 3}


def test_poll_consume_and_iteration_go_on_where_the_other_stopped(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 3 * CHUNK_ROWS)
    consumer = make()
    consumer.assign({("orders", 0): []})
    seen: list[int] = []
    for message in consumer:
        seen.append(message.offset())
        if len(seen) == 10:
            break
    while len(seen) < 3 * CHUNK_ROWS - 7:
        one = consumer.poll(WAIT_S)
        assert one is not None
        seen.append(one.offset())
        seen += offsets(take(consumer, min(1_000, 3 * CHUNK_ROWS - 7 - len(seen))))
    while len(seen) < 3 * CHUNK_ROWS:
        batch = consumer.consume_batch(WAIT_S)
        assert batch is not None
        seen += batch.column("offset").to_pylist()
    assert seen == list(range(3 * CHUNK_ROWS))
    assert batch is not None
    assert batch.schema.names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    assert consumer.consume_batch(0.05) is None


def test_what_is_committed_is_not_delivered(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    group.done[ORDERS] = Progress.at(10).commit(list(Progress.at(50).minus(Progress.at(30))))
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert offsets(take(consumer, 70)) == [*range(10, 30), *range(50, 100)]


# -- what is processed ---------------------------------------------------------------------------


def test_implicitly_what_poll_returned_is_processed_when_poll_is_called_again(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make(enable__auto__commit=True, auto__commit__interval__ms=600_000)
    consumer.assign({("orders", 0): []})
    for _ in range(5):
        consumer.poll(WAIT_S)
    consumer.close()
    assert group.members[0].commits_before_close == 0
    assert group.done[ORDERS] == Progress.at(4)
    again = make(enable__auto__commit=True, auto__commit__interval__ms=600_000)
    again.assign({("orders", 0): []})
    assert offsets(take(again, 10)) == list(range(4, 14))
    again.close()
    assert group.done[ORDERS] == Progress.at(4)
    third = make()
    third.assign({("orders", 0): []})
    take(third, 10)
    while third.position() != {ORDERS: 100}:
        assert third.consume_batch(WAIT_S) is not None
    assert third.commit() == {ORDERS: 100}


def test_commits_of_a_message_or_of_offsets(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    fill(cluster, 100, partition=1)
    other = TopicPartition("orders", 1)
    consumer = make()
    consumer.assign([ORDERS, other])
    messages = take(consumer, 200)
    of = {tp: [m for m in messages if m.topic_partition == tp] for tp in (ORDERS, other)}
    assert consumer.commit(message=of[ORDERS][9]) == {ORDERS: 10}
    assert consumer.commit(offsets=[RdTopicPartition("orders", 1, 7)]) == {other: 7}
    assert consumer.commit(offsets={("orders", 1): 8, ORDERS: 11}) == {other: 8, ORDERS: 11}
    with pytest.raises(ValueError, match="beyond the position 100"):
        consumer.commit(offsets={ORDERS: 101})
    with pytest.raises(ValueError, match="not both"):
        consumer.commit(of[ORDERS][0], {ORDERS: 1})
    with pytest.raises(ValueError, match="not assigned"):
        consumer.commit(offsets={("payments", 0): 1})
    assert consumer.committed()[other].offset == 8
    assert consumer.commit(offsets={}) == {}
    assert consumer.commit(offsets=[], asynchronous=True) is None
    assert consumer.committed()[other].offset == 8
    assert consumer.commit() == {ORDERS: 100, other: 100}


def test_a_commit_with_metadata_is_refused(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({("orders", 0): []})
    with pytest.raises(ValueError, match=r"orders-0: commits hold no metadata of your own"):
        consumer.commit(offsets=[RdTopicPartition("orders", 0, 3, metadata="mine")])


def test_explicitly_what_is_acknowledged_is_processed_in_any_order_and_nothing_else(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    records = 2 * CHUNK_ROWS
    fill(cluster, records + 50)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): []})
    messages = take(consumer, records)
    waiting = {3, 4, CHUNK_ROWS, records - 1}
    for message in reversed(messages):
        if message.offset() not in waiting:
            consumer.acknowledge(message)
    assert consumer.commit() == {ORDERS: 3}
    for offset in range(records + 50):
        is_done = offset < records and offset not in waiting
        assert group.processed(ORDERS, offset) is is_done, offset
    again = make(acknowledgement__mode="explicit")
    again.assign({("orders", 0): []})
    assert offsets(take(again, 54)) == sorted([*waiting, *range(records, records + 50)])
    consumer.acknowledge(messages[3])
    assert consumer.commit() == {ORDERS: 4}
    assert consumer.commit(message=messages[4]) == {ORDERS: CHUNK_ROWS}


def test_batches_are_acknowledged_whole_or_in_parts(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    fill(cluster, 100, partition=1)
    other = TopicPartition("orders", 1)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign([ORDERS, other])
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < 200:
        batch = consumer.consume_batch(WAIT_S)
        assert batch is not None
        batches.append(batch)
    table = pa.Table.from_batches(batches).sort_by("partition")
    consumer.acknowledge_batch(table.slice(150))
    consumer.acknowledge_batch(table.slice(0, 20))
    assert consumer.commit() == {ORDERS: 20, other: 0}
    consumer.acknowledge_batch(table)
    assert consumer.commit() == {ORDERS: 100, other: 100}
    with pytest.raises(ValueError, match="topic and partition"):
        consumer.acknowledge_batch(table.select(["offset"]))


def test_acknowledging_from_many_threads(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    records = 5 * CHUNK_ROWS
    fill(cluster, records)
    consumer = make(acknowledgement__mode="explicit", auto__commit__interval__ms=1)
    consumer.assign({("orders", 0): []})
    threads = []
    for _ in range(10):
        messages = take(consumer, records // 10)

        def acknowledge(messages: list[Message] = messages) -> None:
            for message in messages:
                consumer.acknowledge(message)

        threads.append(threading.Thread(target=acknowledge))
        threads[-1].start()
        consumer.commit()
    for thread in threads:
        thread.join()
    assert consumer.commit() == {ORDERS: records}


def test_a_key_s_next_record_waits_for_the_one_before(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    rows = [("a", "0"), ("a", "1"), ("b", "2"), (None, "3"), (None, "4"), ("a", "5"), ("b", "6")]
    cluster.produce("orders", rows, partition=0)
    consumer = make(acknowledgement__mode="explicit", max__in__flight__per__key=1)
    consumer.assign({("orders", 0): []})
    first = consumer.consume(7, WAIT_S)  # until only an acknowledgement brings more
    assert offsets(first) == [0, 2, 3, 4]
    consumer.acknowledge(first[0])
    consumer.acknowledge(first[0])
    (second,) = consumer.consume(7, WAIT_S)
    assert second.offset() == 1
    assert consumer.commit() == {ORDERS: 1}
    threading.Timer(0.2, consumer.acknowledge, [second]).start()
    third = consumer.poll(WAIT_S)
    assert third is not None
    assert third.offset() == 5
    consumer.pause([ORDERS])
    for message in (*first, third):
        consumer.acknowledge(message)
    assert consumer.poll(0.1) is None
    consumer.resume([ORDERS])
    (last,) = consumer.consume(1, WAIT_S)
    assert last.offset() == 6
    consumer.acknowledge(last)
    assert consumer.commit() == {ORDERS: 7}


def test_batches_of_records_whose_keys_have_none_in_flight(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    rows = [("a", "0"), ("a", "1"), ("b", "2"), (None, "3"), ("a", "4"), ("b", "5")]
    cluster.produce("orders", rows, partition=0)
    config = {"acknowledgement__mode": "explicit", "columns": "value,offset"}
    consumer = make(max__in__flight__per__key=1, **config)
    consumer.assign({("orders", 0): []})
    first = consumer.consume_batch(WAIT_S)
    assert first is not None
    assert first.to_pydict() == {"value": [b"0", b"2", b"3"], "offset": [0, 2, 3]}
    assert consumer.consume_batch(0.2) is None
    threading.Timer(0.2, consumer.acknowledge_batch, [first.slice(0, 2)]).start()
    second = consumer.consume_batch(WAIT_S)
    assert second is not None
    assert second.column("offset").to_pylist() == [1, 5]
    assert consumer.commit() == {ORDERS: 1}
    consumer.acknowledge_batch(second)
    consumer.acknowledge_batch(first)
    third = take(consumer, 1)  # messages and batches may take turns
    assert offsets(third) == [4]
    assert consumer.consume(1, 0.1) == []
    consumer.acknowledge(third[0])
    assert consumer.consume_batch(0.2) is None
    assert consumer.commit() == {ORDERS: 6}


def test_the_leader_epoch_of_each_message() -> None:
    batch = pa.record_batch([pa.array([3, 5, 8, 9], pa.int64())], ["offset"])
    chunk = Chunk(ORDERS, batch, ((4, 7), (8, -1), (9, 8)))
    found = [message.leader_epoch() for message in chunk.messages().messages]
    assert found == [None, 7, None, 8]
    bare = Chunk(ORDERS, batch).messages().messages
    assert [message.leader_epoch() for message in bare] == [None] * 4


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


def test_automatic_and_asynchronous_commits_call_back_from_poll(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    answers: list[Any] = []
    consumer = make(
        enable__auto__commit=True,
        auto__commit__interval__ms=20,
        on_commit=lambda error, stable: answers.append((threading.get_ident(), error, stable)),
    )
    consumer.assign({("orders", 0): []})
    take(consumer, 60)
    consumer.pause([ORDERS])
    while (threading.get_ident(), None, {ORDERS: 60}) not in answers:
        assert consumer.poll(0.02) is None
    assert consumer.commit(asynchronous=True) is None
    group.members[0].error = KshareError("no right to write")
    answers.clear()
    consumer.commit(asynchronous=True)
    while not any(str(error) == "no right to write" for _, error, _ in answers):
        with pytest.raises(KshareError, match="no right"):
            consumer.poll(0.02)


def test_it_commits_early_when_ranges_have_gathered(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 1_000)
    consumer = make(
        acknowledgement__mode="explicit",
        enable__auto__commit=True,
        auto__commit__interval__ms=600_000,
        max__num__ranges__to__commit=300,
    )
    consumer.assign({("orders", 0): []})
    messages = take(consumer, 900)
    for message in messages[1:400:2]:  # 200 gaps
        consumer.acknowledge(message)
    take(consumer, 100)
    assert consumer.consume(1, 0.1) == []
    assert not group.members[0].commits
    for message in messages[401::2]:
        consumer.acknowledge(message)
    consumer.pause([ORDERS])
    while not group.members[0].commits:
        consumer.poll(0.02)
    assert not group.processed(ORDERS, 0)
    assert group.processed(ORDERS, 1)


# -- control -------------------------------------------------------------------------------------


def test_the_leader_epochs_of_what_was_read_stay_known(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 20)
    consumer = make()
    consumer.assign({("orders", 0): []})
    take(consumer, 10)
    epochs = group.members[0].leader_epochs
    assert epochs(ORDERS).before(10) == 0
    consumer.pause([ORDERS])
    assert epochs(ORDERS).before(10) == 0
    consumer.resume([ORDERS])
    assert epochs(ORDERS).before(10) == 0
    consumer.assign({("orders", 1): []})
    assert epochs(ORDERS).before(10) == 0
    assert epochs(TopicPartition("orders", 1)).before(10) is None


def test_seek_pause_and_resume(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign([RdTopicPartition("orders", 0, 90)])
    assert offsets(take(consumer, 5)) == list(range(90, 95))
    consumer.seek(("orders", 0), 10)
    assert offsets(take(consumer, 3)) == [10, 11, 12]
    consumer.pause([ORDERS])
    assert consumer.poll(0.1) is None
    consumer.resume([("orders", 0)])
    assert offsets(take(consumer, 2)) == [13, 14]
    assert consumer.position() == {ORDERS: 15}
    # What was passed over is pending: only what was returned is processed.
    assert consumer.commit() == {ORDERS: 0}
    assert not group.processed(ORDERS, 9)
    assert group.processed(ORDERS, 14)
    assert not group.processed(ORDERS, 15)
    assert group.processed(ORDERS, 92)
    for wrong in [("orders", 1), ("", 0), "orders"]:
        with pytest.raises(ValueError, match="not "):
            consumer.pause([wrong])
    with pytest.raises(ValueError, match="no offset to seek to"):
        consumer.seek(("orders", 0))
    with pytest.raises(ValueError, match="cannot start at offset -5"):
        consumer.seek(("orders", 0), -5)


@pytest.mark.parametrize(
    ("assignment", "fault"),
    [
        ({("orders", 0): [(0, 10), (5, 20)]}, "overlap"),
        ({("orders", 0): [(10, 5)]}, "not a hash range"),
        ({("orders", 0): [(1, 2, 3)]}, "orders-0"),
        ({("or ders", 0): []}, "cannot be a topic"),
        ([("orders", 0), RdTopicPartition("orders", 0)], "twice"),
        ([("orders", -1)], "not a partition"),
    ],
)
def test_wrong_assignments(
    make: Callable[..., KeySharedConsumer], assignment: Any, fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        make().assign(assignment)


def test_whole_partitions_only_without_individual_commits(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 20)
    consumer = make(allow__individual__commit=False, acknowledgement__mode="explicit")
    with pytest.raises(ValueError, match=r"allow\.individual\.commit"):
        consumer.assign({("orders", 0): [(0, 5)]})
    consumer.assign({("orders", 0): [(0, MIDDLE), (MIDDLE, HASH_SPACE)]})
    messages = take(consumer, 20)
    for message in messages[:5] + messages[6:]:
        consumer.acknowledge(message)
    assert consumer.commit() == {ORDERS: 5}
    assert group.done[ORDERS] == Progress.at(5)


@pytest.mark.parametrize(
    "policy", [Policy("accept.individual.commit"), Policy("accept.range.fetch", "orders")]
)
def test_a_policy_that_does_not_accept_key_ranges(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
    policy: Policy,
) -> None:
    consumer = make()
    fill(cluster, 20)
    consumer.assign({("orders", 0): [(0, MIDDLE)]})
    assert consumer.poll(WAIT_S) is not None
    policies.denied.add(policy)
    with pytest.raises(PolicyError, match=f"orders-0: key ranges .* policy {policy.name}") as found:
        consumer.commit()
    assert (found.value.policy, found.value.topic or "") == policy
    with pytest.raises(PolicyError, match="assign whole partitions"):
        consumer.assign({("orders", 0): [(5, 9)]})
    assert consumer.assignment() == {ORDERS: (HashRange(0, MIDDLE),)}
    consumer.assign({("orders", 0): [(0, MIDDLE), (MIDDLE, HASH_SPACE)], ("orders", 1): []})
    take(consumer, 20)
    assert consumer.commit() == {ORDERS: 20, TopicPartition("orders", 1): 0}
    consumer.close()
    assert policies.is_closed


def test_plain_offsets_only_where_a_policy_says_so(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(cluster, 20)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): []})
    messages = take(consumer, 20)
    for message in messages[:5] + messages[6:10]:
        consumer.acknowledge(message)
    assert consumer.commit() == {ORDERS: 5}
    assert not group.done[ORDERS].is_level
    policies.denied.add(Policy("accept.individual.commit"))
    group.done = {}
    for _ in range(2):
        assert consumer.commit() == {ORDERS: 5}
    assert group.done[ORDERS] == Progress.at(5)
    assert caplog.text.count("policy accept.individual.commit is false") == 1
    policies.denied.clear()
    consumer.commit()
    assert not group.done[ORDERS].is_level


def test_faults_of_the_session_are_raised_and_nothing_is_handed_out(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    session = group.members[0]
    session.error = KshareError("fenced")
    session.change()
    with pytest.raises(KshareError, match="fenced"):
        consumer.poll(WAIT_S)
    session.error, session.can_deliver = None, False
    session.change()
    assert consumer.poll(0.1) is None
    assert consumer.consume_batch(0.1) is None
    assert consumer.consume(5, 0.1) == []
    session.can_deliver = True
    assert offsets(take(consumer, 99)) == list(range(1, 100))


def test_a_new_start_drops_what_is_buffered(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert offsets(take(consumer, 5)) == list(range(5))
    group.members[0].restart(ORDERS, Progress.at(50))
    assert offsets(take(consumer, 5)) == list(range(50, 55))
    group.holds_back = True
    group.members[0].change()
    assert consumer.poll(0.1) is None


def test_a_fence_amid_an_iteration_stops_it_at_the_next_record(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    seen = []

    def consume() -> None:
        for message in consumer:
            seen.append(message.offset())
            if len(seen) == 7:
                group.members[0].error = KshareError("fenced")
                group.members[0].change()

    with pytest.raises(KshareError, match="fenced"):
        consume()
    assert seen == list(range(7))


@pytest.mark.parametrize(("reset", "first"), [("earliest", 40), ("latest", 40), ("error", None)])
def test_deleted_records_are_passed_over_or_an_error(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], reset: str, first: int | None
) -> None:
    fill(cluster, 100)
    cluster.trim("orders", 0, 40)
    consumer = make(auto__offset__reset=reset)
    consumer.assign({("orders", 0): []})
    if reset == "error":
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"offset 0 is wanted.*40 to 100.*reset"):
                consumer.poll(WAIT_S)
        return
    message = consumer.poll(WAIT_S)
    assert (None if message is None else message.offset()) == first


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_retention_overtakes_a_gap(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    reset: str,
) -> None:
    fill(cluster, 100)
    done = [Rectangle(OffsetRange(4, 50), WHOLE), Rectangle(OffsetRange(60, 70), WHOLE)]
    group.done[TopicPartition("orders", 0)] = Progress.of(3, done)
    cluster.trim("orders", 0, 40)
    consumer = make(auto__offset__reset=reset)
    consumer.assign({("orders", 0): []})
    assert offsets(take(consumer, 40)) == [*range(50, 60), *range(70, 100)]
    assert "offset 3 is wanted, the log holds 40 to 100" in caplog.text
    assert consumer.commit() == {TopicPartition("orders", 0): 100}


def test_a_clock_that_is_set_back_lets_nothing_out(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session is over meanwhile, which is no event: each record is a look at the clock."""
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    for module in ("consumer", "receiver"):
        monkeypatch.setattr(
            f"kshare.group.consumer.{module}.wall_time", lambda: time.time() - 3_600
        )
    group.members[0].can_deliver = False
    assert consumer.poll(0.1) is None
    group.members[0].can_deliver = True
    assert consumer.poll(WAIT_S) is not None


def test_faults_that_pass_do_not_show(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 50)
    consumer = make(fetch__max__wait__ms=50)
    consumer.assign({("orders", 0): []})
    assert len(take(consumer, 50)) == 50
    cluster.fail("Fetch", ["_TRANSPORT", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT"])
    fill(cluster, 50, first=50)
    assert offsets(take(consumer, 50)) == list(range(50, 100))


# -- the end -------------------------------------------------------------------------------------


def test_close_wakes_a_poll_of_another_thread(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    policies: FakePolicies,
) -> None:
    consumer = make(fetch__max__wait__ms=20_000, request__timeout__ms=30_000)
    consumer.assign({("orders", 0): []})
    returned: list[Any] = []
    thread = threading.Thread(target=lambda: returned.append(list(consumer)))
    thread.start()
    until(consumer.position)
    consumer.close()
    thread.join(WAIT_S)
    assert returned == [[]]
    assert group.members[0].is_closed
    consumer.close()
    policies.asked.clear()
    ranges = partial(consumer.assign, {("orders", 0): [(0, MIDDLE)]})
    receiving = (consumer.poll, consumer.consume, consumer.consume_batch, consumer.commit)
    asking = (consumer.assignment, consumer.position, consumer.memberid, consumer.unsubscribe)
    moving = (partial(consumer.seek, ("orders", 0), 1), partial(consumer.pause, [("orders", 0)]))
    for call in (*receiving, *asking, *moving, ranges):
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()
    assert policies.asked == []


@pytest.mark.parametrize("call", ["poll", "consume", "consume_batch"])
def test_close_wakes_each_call_amid_a_long_poll(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """The broker would answer after 600 s: only a wake-up ends the call before the test fails."""
    monkeypatch.setattr("kshare.group.consumer.receiver._TICK_SECONDS", LONG_S)
    consumer = make(fetch__max__wait__ms=600_000, request__timeout__ms=900_000)
    consumer.assign({("orders", 0): []})
    cluster.track_requests()
    calls: dict[str, Callable[[], object]] = {
        "poll": lambda: consumer.poll(LONG_S),
        "consume": lambda: consumer.consume(10, LONG_S),
        "consume_batch": lambda: consumer.consume_batch(LONG_S),
    }
    returned: list[object] = []
    thread = threading.Thread(target=lambda: returned.append(calls[call]()), daemon=True)
    thread.start()
    until(lambda: times_asked(cluster, "Fetch"))
    assert not returned
    closing = threading.Thread(target=consumer.close, daemon=True)  # it waits for the call
    closing.start()
    for each in (thread, closing):
        each.join(WAIT_S)
        assert not each.is_alive()
    assert returned in ([None], [[]])


def test_a_poll_that_a_close_wakes_waits_for_nothing_more(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kshare.group.consumer.receiver._TICK_SECONDS", LONG_S)
    consumer = make(fetch__max__wait__ms=600_000, request__timeout__ms=900_000)
    consumer.assign({("orders", 0): []})
    waits: list[float] = []
    wait = Waker.wait

    def waited(waker: Waker, seconds: float, *sockets: Mapping[int, int]) -> list[int]:
        if threading.current_thread() is thread:
            waits.append(seconds)
        return wait(waker, seconds, *sockets)

    monkeypatch.setattr(Waker, "wait", waited)
    cluster.track_requests()
    thread = threading.Thread(target=consumer.poll, args=[LONG_S], daemon=True)
    thread.start()
    until(lambda: times_asked(cluster, "Fetch") and waits and waits[-1] > WAIT_S)
    before = len(waits)
    consumer.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert len(waits) == before


def test_a_signal_ends_an_iteration(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 10)
    consumer = make(fetch__max__wait__ms=20_000, request__timeout__ms=30_000)
    consumer.assign({("orders", 0): []})
    seen: list[int] = []

    def consume() -> None:
        for message in consumer:
            seen.append(message.offset())
            if len(seen) == 10:
                later(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            consume()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == list(range(10))
    fill(cluster, 5, first=10)
    assert offsets(take(consumer, 5)) == list(range(10, 15))


def test_a_signal_handler_may_close(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(fetch__max__wait__ms=20_000, request__timeout__ms=30_000)
    consumer.assign({("orders", 0): []})
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
    try:
        later(signal.SIGUSR1)
        assert list(consumer) == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_held_back_for_long_is_said_once(
    cluster: FakeCluster,
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("kshare.group.consumer.hold._HELD_SECONDS", 0.2)
    fill(cluster, 10)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert consumer.poll(WAIT_S) is not None
    for _ in range(2):
        caplog.clear()
        group.members[0].can_deliver = False
        group.members[0].change()
        for _ in range(5):
            assert consumer.poll(0.1) is None
        assert [r.getMessage()[:28] for r in caplog.records] == ["member-0 has handed out noth"]
        group.members[0].can_deliver = True
        assert consumer.poll(WAIT_S) is not None


def test_closing_amid_a_call_waits_for_the_call(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    """As a signal handler does it, which may interrupt what holds a lock."""
    fill(cluster, 10)
    consumer = make()
    consumer.assign({("orders", 0): []})
    session = group.members[0]
    amid: list[tuple[bool, bool]] = []

    def check() -> None:
        consumer.close()
        amid.append((consumer.is_closed, session.is_closed))

    session.check = check  # type: ignore[method-assign]
    assert consumer.poll(WAIT_S) is None
    assert amid == [(True, False)]
    assert session.is_closed


def later(number: signal.Signals) -> None:
    """Send the main thread a signal, most likely while it waits."""
    thread = threading.main_thread().ident
    assert thread is not None
    threading.Timer(0.3, signal.pthread_kill, [thread, number]).start()


def test_a_configuration_is_a_dict() -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match="expected configuration dict, not NoneType"):
        KeySharedConsumer(nothing)
