"""The sink without Spark: rows, deliveries, and transactions on a broker."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from threading import Timer
from types import FrameType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from kshare.errors import AuthorizationError, KafkaError, UnknownTopicError
from kshare.kafka.listening import START_SECONDS
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.options.sink import TRANSACTION_TIMEOUT_MS, SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, Prepared, prepare_rows, write_rows
from kshare.query.produce import sender as sender_module
from kshare.query.produce.config import producer_config, transactional_config
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.driver import abort_batch, commit_batch, kept_clients
from kshare.query.produce.ledger import Ledger
from kshare.query.produce.model import Transaction
from kshare.query.produce.rows import rows_of
from kshare.testing import FakeCluster
from tests.support.effort import examples

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


# -- rows ------------------------------------------------------------------------------------

optional_bytes = st.none() | st.binary(max_size=5)
a_row = st.fixed_dictionaries(
    {
        "key": optional_bytes,
        "value": optional_bytes,
        "topic": st.sampled_from(["t", "u"]),
        "partition": st.none() | st.integers(0, 3),
        "headers": st.none() | st.lists(st.tuples(st.text(max_size=2), optional_bytes), max_size=3),
    }
)


def batch_of(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pa.RecordBatch:
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "headers": HEADERS,
    }
    arrays = {}
    for name in columns:
        given = [row[name] for row in rows]
        if name == "headers":
            given = [h and [{"key": k, "value": v} for k, v in h] for h in given]
        arrays[name] = pa.array(given, types[name])
    return pa.RecordBatch.from_pydict(arrays)


def calls(batch: pa.RecordBatch, topic: str | None, start: int = 0) -> list[tuple[Any, ...]]:
    """What produce() is called with: topic, value, key, partition, headers."""
    return [
        (*args[:4], args[7] if len(args) > 4 else None)
        for rows in rows_of(batch, topic)
        for args in zip(*rows.arguments(start), strict=False)
    ]


@examples(60)
@given(
    st.lists(a_row, max_size=8),
    st.sets(st.sampled_from(["key", "partition", "headers"])),
    st.data(),
)
def test_rows_are_the_columns_row_by_row(
    rows: list[dict[str, Any]], optional: set[str], data: st.DataObject
) -> None:
    columns = ["topic", "value", *sorted(optional)]
    option = data.draw(st.none() | st.just("option"))
    cut = data.draw(st.integers(0, len(rows)))
    batch = batch_of(rows, columns).slice(cut)
    expected = [
        (
            option or row["topic"],
            row["value"],
            row["key"] if "key" in optional else None,
            row["partition"] if "partition" in optional and row["partition"] is not None else -1,
            (row["headers"] or None) if "headers" in optional else None,
        )
        for row in rows[cut:]
    ]
    assert calls(batch, option) == expected
    start = data.draw(st.integers(0, len(expected)))
    assert calls(batch, option, start) == expected[start:]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_a_row_that_comes_alone_calls_no_compute_function(kind: pa.DataType) -> None:
    # With realTime, each row is a batch. Such a function costs as much as all the rest of a row.
    header = pa.struct([("key", pa.string()), ("value", kind)])
    columns = {
        "topic": pa.array(["t"]),
        "key": pa.array(["k"], kind),
        "value": pa.array(["v"], kind),
        "partition": pa.array([1], pa.int32()),
        "headers": pa.array([[{"key": "h", "value": "x"}]], pa.list_(header)),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"] == "pyarrow.compute":
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        rows = calls(batch, None)
    finally:
        sys.setprofile(None)
    assert rows == [("t", b"v", b"k", 1, [("h", b"x")])]
    assert called == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_becomes_utf_8(kind: pa.DataType) -> None:
    text = "ключ🎈"
    given = text if "string" in str(kind) else text.encode()
    batch = pa.RecordBatch.from_pydict({"value": pa.array([given, None], kind)})
    assert [call[1] for call in calls(batch, "t")] == [text.encode(), None]


def test_a_null_topic_is_refused_with_its_row() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["t", None], "value": ["a", "b"]})
    with pytest.raises(KafkaError, match=r"null topic present in the data \(row 1 .*'topic'"):
        list(rows_of(batch, None))
    assert [call[0] for call in calls(batch, "option")] == ["option", "option"]


def test_a_negative_partition_is_refused() -> None:
    # -1 means "any" to librdkafka, and nothing to a user.
    batch = pa.RecordBatch.from_pydict(
        {"value": ["a", "b"], "partition": pa.array([0, -1], pa.int32())}
    )
    with pytest.raises(KafkaError, match=r"invalid partition -1 \(row 1"):
        list(rows_of(batch, "t"))


def test_a_header_needs_a_key() -> None:
    batch = batch_of([{"value": b"v", "headers": [(None, b"h")]}], ["value", "headers"])
    with pytest.raises(KafkaError, match="null header key"):
        list(rows_of(batch, "t"))


# -- deliveries ------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 3, "u": 1, LEDGER_TOPIC: 4}) as running:
        yield running
        sender_module._kept().drop()
        kept_clients().drop()


def options_for(cluster: FakeCluster, **options: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", **options}
    return parse_sink_options(given, streaming=True).options


def records(cluster: FakeCluster, topic: str = "t", partitions: int = 3) -> list[Any]:
    """(partition, key, value, headers) of all records, a partition after the other."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "test",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ends, deadline = [], 0, time.monotonic() + 30
    while ends < partitions:
        assert time.monotonic() < deadline
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is None:
                place = message.partition(), message.offset()
                found.append((place, message.key(), message.value(), message.headers()))
            else:
                assert error.code() == RdKafkaError._PARTITION_EOF
                ends += 1
    consumer.close()
    return [(place[0], *rest) for place, *rest in sorted(found, key=lambda record: record[0])]


def numbered(count: int, keys: int = 7, start: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {"key": [f"k{n % keys}" for n in numbers], "value": [str(n) for n in numbers]}
    )


def test_keys_are_where_javas_producer_puts_them_and_in_order(cluster: FakeCluster) -> None:
    assert write_rows([numbered(500), numbered(500, start=500)], options_for(cluster)) == 1000
    found = records(cluster)
    assert sorted(int(value) for _, _, value, _ in found) == list(range(1000))
    for partition in range(3):
        values = [int(value) for where, _, value, _ in found if where == partition]
        assert values == sorted(values)
    assert {key: where for where, key, _, _ in found} == {
        key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in {f"k{n}".encode() for n in range(7)}
    }


def test_columns_decide_topic_partition_and_headers(cluster: FakeCluster) -> None:
    rows: list[dict[str, Any]] = [
        {"value": b"a", "topic": "t", "partition": 2, "headers": [("h", b"1"), ("h", None)]},
        {"value": b"b", "topic": "u", "partition": None, "headers": None},
    ]
    options = replace(options_for(cluster), topic=None)
    write_rows([batch_of(rows, ["value", "topic", "partition", "headers"])], options)
    assert records(cluster) == [(2, None, b"a", [("h", b"1"), ("h", None)])]
    assert records(cluster, "u", 1) == [(0, None, b"b", None)]


def test_a_full_queue_is_waited_for_and_keeps_the_order(cluster: FakeCluster) -> None:
    options = options_for(cluster)
    small = type(options.producer)({**options.producer, "queue.buffering.max.messages": 50})
    write_rows([numbered(2000)], replace(options, producer=small))
    found = records(cluster)
    assert len(found) == 2000
    for partition in range(3):
        values = [int(value) for where, _, value, _ in found if where == partition]
        assert values == sorted(values)


def test_the_queue_is_bounded_in_rows_and_bytes(cluster: FakeCluster) -> None:
    config = producer_config(options_for(cluster))
    assert config["queue.buffering.max.messages"] <= 200_000
    assert config["queue.buffering.max.kbytes"] <= 64 << 10
    given = producer_config(options_for(cluster, **{"kafka.buffer.memory": str(1 << 20)}))
    assert given["queue.buffering.max.kbytes"] == 1 << 10


def test_a_refused_row_fails_with_topic_partition_and_cause(cluster: FakeCluster) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"] * 5)
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([1], pa.int32())})
    with pytest.raises(AuthorizationError, match="topic t, partition 1") as raised:
        write_rows([batch], options_for(cluster))
    assert (raised.value.topic, raised.value.partition) == ("t", 1)
    cluster.stop_failing("Produce")
    # A task after a failed one begins anew.
    assert write_rows([numbered(3)], options_for(cluster)) == 3


def test_the_error_that_counts_is_that_for_which_other_rows_are_given_up(
    cluster: FakeCluster,
) -> None:
    """Which of them is reported first depends on librdkafka's threads."""
    options = options_for(cluster, topic="t")
    sender = sender_module.Sender(lambda: producer_config(options), options.kafka)
    row = SimpleNamespace(
        partition=lambda: 0, key=lambda: b"", value=lambda: b"", topic=lambda: "t"
    )
    for code in (RdKafkaError._PURGE_QUEUE, RdKafkaError.TOPIC_AUTHORIZATION_FAILED):
        sender._on_delivery(RdKafkaError(code), row)
    with pytest.raises(AuthorizationError, match=r"not authorized.*1 more rows too"):
        sender.raise_faults()


class LateReports(Producer):
    """A producer that has nothing to report at once."""

    def poll(self, timeout: float = -1) -> int:
        return super().poll(timeout) if timeout else 0


@pytest.mark.parametrize("producer", [Producer, LateReports])
def test_a_fatal_error_of_the_producer_names_topic_and_partition(
    cluster: FakeCluster, producer: type[Producer]
) -> None:
    """confluent-kafka raises it out of a poll or a flush, before it reports the row."""
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([1], pa.int32())})
    write_rows([batch], options_for(cluster), producer=producer)
    cluster.fail("Produce", ["OUT_OF_ORDER_SEQUENCE_NUMBER"])
    with pytest.raises(KafkaError, match=r"topic t, partition 1: .*out of order") as raised:
        write_rows([batch], options_for(cluster), producer=producer)
    assert (raised.value.topic, raised.value.partition) == ("t", 1)
    assert write_rows([batch], options_for(cluster)) == 1  # by another producer


def test_a_partition_that_does_not_exist_is_named(cluster: FakeCluster) -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([9], pa.int32())})
    with pytest.raises(UnknownTopicError, match="topic t has no partition 9 on 127"):
        write_rows([batch], options_for(cluster))


def test_a_broker_that_comes_back_gets_every_row_once(cluster: FakeCluster) -> None:
    cluster.fail("Produce", ["_TRANSPORT", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT"])
    write_rows([numbered(300)], options_for(cluster))
    assert Counter(int(value) for _, _, value, _ in records(cluster)) == Counter(range(300))


def test_a_broker_that_stays_away_fails_the_task(cluster: FakeCluster) -> None:
    options = options_for(
        cluster,
        **{
            "kafka.delivery.timeout.ms": "3000",
            "kafka.request.timeout.ms": "500",
            "kafka.linger.ms": "0",
        },
    )
    write_rows([numbered(1)], options)
    cluster.stop_broker(1)
    with pytest.raises(KafkaError, match="write to topic t") as raised:
        write_rows([numbered(20)], options)
    assert raised.value.topic == "t"


def test_the_next_task_uses_the_same_producer(cluster: FakeCluster) -> None:
    options = options_for(cluster)
    write_rows([numbered(1)], options)
    kept = sender_module._kept()._sender
    assert kept is not None
    write_rows([numbered(1)], options)
    assert sender_module._kept()._sender is kept
    write_rows([numbered(1)], replace(options, producer=type(options.producer)({"acks": -1})))
    assert sender_module._kept()._sender is not kept


def test_only_a_new_producer_looks_whether_a_server_listens(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of a batch is a start; but one whose producer is kept waits for brokers, as Spark."""
    looks: list[float] = []
    monkeypatch.setattr(sender_module, "check_listening", lambda _, seconds: looks.append(seconds))
    options = options_for(cluster)
    write_rows([numbered(0)], options, is_start=True)
    assert looks == []
    write_rows([numbered(1), numbered(1)], options, is_start=True)
    assert looks == [START_SECONDS]
    cluster.stop_broker(1)
    Timer(1.0, cluster.start_broker, (1,)).start()
    write_rows([numbered(1)], options, is_start=True)
    assert looks == [START_SECONDS]
    others = replace(options, producer=type(options.producer)({"acks": -1}))
    write_rows([numbered(1)], others)
    assert looks == [START_SECONDS]
    write_rows([numbered(1)], options, is_start=True)
    assert looks == [START_SECONDS] * 2


@pytest.mark.parametrize("size", [999_000, 1_000_000, 1_048_000])
def test_rows_may_be_as_large_as_javas_producer_takes_them(cluster: FakeCluster, size: int) -> None:
    rows = pa.record_batch({"value": pa.array([b"x" * size], pa.binary())})
    assert write_rows([rows], options_for(cluster)) == 1


@pytest.mark.parametrize(
    ("size", "given"), [(1_048_576, {}), (2_000, {"kafka.max.request.size": "1500"})]
)
def test_a_row_that_is_too_large_is_named_with_its_size(
    cluster: FakeCluster, size: int, given: dict[str, str]
) -> None:
    rows = pa.record_batch({"value": pa.array([b"x" * size], pa.binary())})
    wanted = rf"topic t.*key and value have {size:,} bytes.*kafka\.max\.request\.size"
    with pytest.raises(KafkaError, match=wanted):
        write_rows([rows], options_for(cluster, **given))


def test_nothing_is_opened_for_no_rows(cluster: FakeCluster) -> None:
    nothing = numbered(0)
    assert write_rows([nothing], options_for(cluster)) == 0
    assert sender_module._kept()._sender is None
    attempt = Attempt("q", "r", 0, 0, 0, time.time())
    prepared = prepare_rows([nothing], options_for(cluster), attempt)
    assert prepared == Prepared(attempt, None)


def test_what_promises_rest_on_cannot_be_switched_off(cluster: FakeCluster) -> None:
    options = options_for(cluster, exactlyOnce="true")
    config = transactional_config(options, "id")
    assert config["enable.idempotence"] is True
    assert config["acks"] == -1
    assert config["transaction.timeout.ms"] == TRANSACTION_TIMEOUT_MS
    assert config["message.timeout.ms"] <= config["transaction.timeout.ms"]
    short = options_for(cluster, exactlyOnce="true", **{"kafka.transaction.timeout.ms": "5000"})
    config = transactional_config(short, "id")
    assert (config["transaction.timeout.ms"], config["message.timeout.ms"]) == (5000, 5000)


# -- the same on a broker --------------------------------------------------------------------


def prepared(cluster: FakeCluster, run: str, batch: int, tasks: int = 2) -> list[Prepared]:
    options = options_for(cluster, exactlyOnce="true")
    return [
        prepare_rows(
            [numbered(5, start=10 * task)], options, Attempt("q", run, batch, task, 0, time.time())
        )
        for task in range(tasks)
    ]


def test_batches_are_decided_once_on_a_broker(cluster: FakeCluster) -> None:
    options = options_for(cluster, exactlyOnce="true")
    coordinators = Coordinators(options.kafka)
    first = prepared(cluster, "r1", 0)
    transactions = [message.transaction for message in first if message.transaction]
    assert [t.rows for t in transactions] == [5, 5]
    assert coordinators.each(Coordinators.is_open, transactions) == [True, True]
    commit_batch(first, 0, options)
    again = prepared(cluster, "r2", 0)
    commit_batch(again, 0, options)  # written before: these are aborted
    commit_batch(prepared(cluster, "r2", 1), 1, options)
    old = prepared(cluster, "r1", 2)
    with pytest.raises(KafkaError, match="older run"):
        commit_batch(old, 2, options)
    abort_batch(old, 2, options)
    coordinators.close()


def opened_for(cluster: FakeCluster, run: str, batch: int) -> int:
    """How many producers a batch's decision takes."""
    messages = prepared(cluster, run, batch)
    cluster.track_requests()
    commit_batch(messages, batch, options_for(cluster, exactlyOnce="true"))
    requests = cluster.requests()
    return sum(count for (_, name), count in requests.items() if name == "InitProducerId")


def test_batches_of_a_run_are_committed_by_the_same_clients(cluster: FakeCluster) -> None:
    assert opened_for(cluster, "r1", 0)
    assert not kept_clients().empty
    assert [opened_for(cluster, "r1", batch) for batch in (1, 2)] == [0, 0]
    assert opened_for(cluster, "r2", 3)
    with pytest.raises(KafkaError, match="older run"):
        opened_for(cluster, "r1", 4)
    assert kept_clients().empty


@pytest.mark.parametrize(("given", "timeout"), [(None, 30), ("900000", 30), ("10000", 10)])
def test_a_driver_that_dies_holds_up_the_ledger_for_less_time_than_others_wait(
    cluster: FakeCluster, given: str | None, timeout: int
) -> None:
    """Nor is it held up for longer than a transaction may take, as brokers may allow no more."""
    more = {} if given is None else {"kafka.transaction.timeout.ms": given}
    more |= {"kafka.default.api.timeout.ms": "5000"}
    options = options_for(cluster, exactlyOnce="true", **more)
    with Ledger(options, "q") as ledger:
        config = ledger._producer_config()
        for name in ("transaction.timeout.ms", "message.timeout.ms", "socket.timeout.ms"):
            assert config[name] == timeout * 1000
        # Coordinators look for what has timed out every 10 s.
        assert ledger._rows._seconds > timeout + 10
        ledger.take_over()


def test_a_ledger_that_was_deleted_is_not_made_by_who_writes_to_it(cluster: FakeCluster) -> None:
    """Brokers would make it with their defaults. Topics of the user's rows they may make."""
    options = options_for(cluster, exactlyOnce="true")
    with Ledger(options, "q") as ledger:
        assert ledger._producer_config()["allow.auto.create.topics"] is False
    assert "allow.auto.create.topics" not in producer_config(options)


def test_a_task_that_fails_aborts(cluster: FakeCluster) -> None:
    options = options_for(cluster, exactlyOnce="true")

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(3)
        raise RuntimeError("the UDF before it")

    cluster.track_requests()
    with pytest.raises(RuntimeError, match="the UDF"):
        prepare_rows(batches(), options, Attempt("q", "r", 0, 0, 0, time.time()))


@pytest.mark.parametrize("code", [47, 48, 49, 90])
def test_a_transaction_that_is_gone_keeps_the_batch_from_being_decided(
    cluster: FakeCluster, code: int
) -> None:
    options = options_for(cluster, exactlyOnce="true")
    (message,) = prepared(cluster, "r", 0, 1)
    cluster.fail("AddPartitionsToTxn", [code])
    with pytest.raises(KafkaError, match="batch 0 is not written: the transactions of tasks 0"):
        commit_batch([message], 0, options)
    commit_batch([message], 0, options)


def test_answers_of_a_coordinator(cluster: FakeCluster) -> None:
    transaction = Transaction("id", 1, 0, "t", 0, 1)
    hasty = options_for(cluster, exactlyOnce="true", **{"kafka.default.api.timeout.ms": "900"})
    cluster.fail("EndTxn", ["COORDINATOR_NOT_AVAILABLE"] * 100)
    with (
        closing(Coordinators(hasty.kafka)) as coordinators,
        pytest.raises(KafkaError, match=r"cannot abort transaction id within 0\.9 s"),
    ):
        coordinators.end(transaction, commit=False)
    cluster.stop_failing("EndTxn")
    coordinators = Coordinators(options_for(cluster, exactlyOnce="true").kafka)
    cluster.fail("EndTxn", ["_TRANSPORT", 16, 51, 90])
    assert coordinators.end(transaction, commit=True) is False
    for code in (49, 59):  # its id has expired: it may have been committed
        cluster.fail("EndTxn", [code])
        assert coordinators.end(transaction, commit=True) is None
    cluster.fail("EndTxn", [53])
    with pytest.raises(AuthorizationError, match="transactional ids that begin with kshare-"):
        coordinators.end(transaction, commit=True)
    cluster.fail("InitProducerId", [51])
    coordinators.fence("id")
    with pytest.raises(KafkaError, match="does not know ListTransactionsRequest"):
        coordinators.open_ids("kshare-")
    coordinators.close()


def test_no_secret_in_any_text(cluster: FakeCluster) -> None:
    secret = "geheim-4711"
    options = options_for(
        cluster,
        exactlyOnce="true",
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
            f'required username="u" password="{secret}";',
            "kafka.default.api.timeout.ms": "500",
        },
    )
    assert secret not in repr(options)
    with pytest.raises(KafkaError) as raised:
        prepare_rows([numbered(1)], options, Attempt("q", "r", 0, 0, 0, time.time()))
    assert secret not in repr(raised.value)


@pytest.mark.parametrize("before", [0, 30])
def test_a_row_that_never_fits_into_the_buffer_is_an_error(
    cluster: FakeCluster, before: int
) -> None:
    options = options_for(cluster, **{"kafka.buffer.memory": "32768"})
    rows = [b"v" * 1_000] * before + [b"v" * 100_000]
    batch = pa.RecordBatch.from_pydict({"value": rows})
    with pytest.raises(KafkaError, match=r"to topic t: .* have 100,000 bytes .* kafka.buffer.mem"):
        write_rows([batch], options)
    assert write_rows([numbered(3)], options) == 3
