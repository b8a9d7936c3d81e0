"""The consumer on an embedded cluster, with a session that needs no log: what it receives."""

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import DataLossError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.subscriber import partitions_only
from kshare.group.message import CHUNK_ROWS, Chunk, Message
from kshare.group.metrics import ConsumerHealth
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.fetch import PartitionFetch, fetch_request
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.options import KafkaConfig
from kshare.read.reader import fetcher
from kshare.testing import FakeCluster, Record
from tests.group.consumer.records import KEYS, MIDDLE, ORDERS, fill, offsets, take
from tests.support.clock import WAIT_S, until
from tests.support.fake_session import FakeSessions
from tests.support.requests import times_asked


def test_a_configuration_is_a_dict() -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match="expected configuration dict, not NoneType"):
        KeySharedConsumer(nothing)


# -- messages -------------------------------------------------------------------------------------


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


def test_the_leader_epoch_of_each_message() -> None:
    batch = pa.record_batch([pa.array([3, 5, 8, 9], pa.int64())], ["offset"])
    chunk = Chunk(ORDERS, batch, ((4, 7), (8, -1), (9, 8)))
    found = [message.leader_epoch() for message in chunk.messages().messages]
    assert found == [None, 7, None, 8]
    bare = Chunk(ORDERS, batch).messages().messages
    assert [message.leader_epoch() for message in bare] == [None] * 4


# -- receiving ------------------------------------------------------------------------------------


def test_a_timeout_of_nothing_waits_for_nothing(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign({("orders", 0): []})
    before = time.monotonic()
    assert consumer.consume(5, 0) == []
    assert consumer.poll(0) is None
    assert time.monotonic() - before < WAIT_S


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


def test_reading_stops_when_too_much_is_held_and_goes_on_when_it_is_acknowledged(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says so, and what ends it."""
    caplog.set_level(logging.INFO, "kshare.group")
    monkeypatch.setattr("kshare.group.core.handing_out._UNACKNOWLEDGED_MAX", 200)
    for first in range(0, 1_000, 100):  # a record batch each, and a fetch has few of them
        fill(cluster, 100, first=first)
    consumer = make(
        acknowledgement__mode="explicit",
        max__partition__fetch__bytes=1_000,
        fetch__max__wait__ms=50,
    )
    clock = partial(next, itertools.count(0.0, 20.0))
    log = logging.getLogger("kshare.group")
    consumer._dispatcher.looks.waits = WaitLog(log, "group g", clock=clock)
    consumer.assign({("orders", 0): []})
    messages: list[Message] = []

    def is_full() -> bool:
        found = consumer.consume(1_000, 0.1)
        messages.extend(found)
        return not found and bool(consumer._dispatcher.out.waits())

    until(is_full)
    cluster.track_requests()
    messages += consumer.consume(1_000, 1.0)
    assert times_asked(cluster, "Fetch") == 0
    assert 200 <= len(messages) < 1_000
    said = "nothing more is read, as 1,000,000 records are not acknowledged"
    assert consumer.health() == ConsumerHealth(is_alive=True, is_ready=False, reason=said)
    (warning,) = (each.getMessage() for each in caplog.records if said in each.getMessage())
    assert warning.startswith("group g: waits for ")
    assert warning.endswith("until some of them are acknowledged")
    done = 0

    def has_all() -> bool:
        nonlocal done
        for message in messages[done:]:
            consumer.acknowledge(message)
        done = len(messages)
        messages.extend(consumer.consume(1_000, 0.1))
        return len(messages) >= 1_000

    until(has_all)
    for message in messages:
        consumer.acknowledge(message)
    assert consumer.health().is_ready
    assert [each.levelname for each in caplog.records if "over after" in each.getMessage()][:1]
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


# -- faults ---------------------------------------------------------------------------------------


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


def test_a_seek_beyond_the_end_is_an_error_and_another_one_mends_it(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make()
    consumer.assign({("orders", 0): []})
    assert offsets(take(consumer, 5)) == list(range(5))
    consumer.seek(ORDERS, 500)
    with pytest.raises(DataLossError, match=r"offset 500 is wanted.*0 to 100.*; seek to an offset"):
        consumer.poll(WAIT_S)
    consumer.seek(ORDERS, 90)
    assert offsets(take(consumer, 10)) == list(range(90, 100))


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


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_lost", "on_started"])
def test_a_coroutine_function_is_no_callback(
    make: Callable[..., KeySharedConsumer], name: str
) -> None:
    """Nobody would await what it returns."""

    async def later(_: Any) -> None:
        pass

    class Later:
        async def __call__(self, _: Any) -> None:
            pass

    consumer, function = make(), cast("Any", later)
    for listener in (function, Later(), partial(function), partitions_only(function)):
        with pytest.raises(TypeError, match=f"{name} is a coroutine function: give a plain"):
            consumer.subscribe(["orders"], **{name: listener})  # type: ignore[arg-type]


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
