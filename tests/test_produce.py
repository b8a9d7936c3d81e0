"""The sink without Spark: rows, deliveries, and exactly-once under crashes at every step."""

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from kshare.errors import (
    AuthorizationError,
    CheckpointVersionError,
    KafkaError,
    UnknownTopicError,
)
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.produce import Attempt, Prepared, abort_batch, commit_batch, prepare_rows, write_rows
from kshare.produce import sender as sender_module
from kshare.produce.config import TRANSACTION_TIMEOUT_MS, producer_config, transactional_config
from kshare.produce.coordinator import Coordinators
from kshare.produce.decision import Batch
from kshare.produce.ledger import (
    LEDGER_TOPIC,
    RUNS_MAX,
    Entry,
    State,
    Verdict,
    decide,
    decode,
    encode,
    judge,
)
from kshare.produce.rows import rows_of
from kshare.produce.transactions import Transaction
from kshare.testing import FakeCluster

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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(a_row, max_size=8),
    st.sets(st.sampled_from(["key", "partition", "headers"])),
    st.data(),
)
def test_rows_are_the_columns_row_by_row(rows, optional, data):
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


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_becomes_utf_8(kind):
    text = "ключ🎈"
    given = text if "string" in str(kind) else text.encode()
    batch = pa.RecordBatch.from_pydict({"value": pa.array([given, None], kind)})
    assert [call[1] for call in calls(batch, "t")] == [text.encode(), None]


def test_a_null_topic_is_refused_with_its_row():
    batch = pa.RecordBatch.from_pydict({"topic": ["t", None], "value": ["a", "b"]})
    with pytest.raises(KafkaError, match=r"null topic present in the data \(row 1 .*'topic'"):
        list(rows_of(batch, None))
    assert [call[0] for call in calls(batch, "option")] == ["option", "option"]


def test_a_negative_partition_is_refused():
    # -1 means "any" to librdkafka, and nothing to a user.
    batch = pa.RecordBatch.from_pydict(
        {"value": ["a", "b"], "partition": pa.array([0, -1], pa.int32())}
    )
    with pytest.raises(KafkaError, match=r"invalid partition -1 \(row 1"):
        list(rows_of(batch, "t"))


def test_a_header_needs_a_key():
    batch = batch_of([{"value": b"v", "headers": [(None, b"h")]}], ["value", "headers"])
    with pytest.raises(KafkaError, match="null header key"):
        list(rows_of(batch, "t"))


# -- deliveries ------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 3, "u": 1, LEDGER_TOPIC: 4}) as running:
        yield running
        sender_module._forget()


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
            if message.error() is None:
                place = message.partition(), message.offset()
                found.append((place, message.key(), message.value(), message.headers()))
            else:
                assert message.error().code() == RdKafkaError._PARTITION_EOF
                ends += 1
    consumer.close()
    return [(place[0], *rest) for place, *rest in sorted(found, key=lambda record: record[0])]


def numbered(count: int, keys: int = 7, start: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {"key": [f"k{n % keys}" for n in numbers], "value": [str(n) for n in numbers]}
    )


def test_keys_are_where_javas_producer_puts_them_and_in_order(cluster):
    assert write_rows([numbered(500), numbered(500, start=500)], options_for(cluster)) == 1000
    found = records(cluster)
    assert sorted(int(value) for _, _, value, _ in found) == list(range(1000))
    for partition in range(3):
        values = [int(value) for where, _, value, _ in found if where == partition]
        assert values == sorted(values)
    assert {key: where for where, key, _, _ in found} == {
        key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in {f"k{n}".encode() for n in range(7)}
    }


def test_columns_decide_topic_partition_and_headers(cluster):
    rows = [
        {"value": b"a", "topic": "t", "partition": 2, "headers": [("h", b"1"), ("h", None)]},
        {"value": b"b", "topic": "u", "partition": None, "headers": None},
    ]
    options = replace(options_for(cluster), topic=None)
    write_rows([batch_of(rows, ["value", "topic", "partition", "headers"])], options)
    assert records(cluster) == [(2, None, b"a", [("h", b"1"), ("h", None)])]
    assert records(cluster, "u", 1) == [(0, None, b"b", None)]


def test_a_full_queue_is_waited_for_and_keeps_the_order(cluster):
    options = options_for(cluster)
    small = type(options.producer)({**options.producer, "queue.buffering.max.messages": 50})
    write_rows([numbered(2000)], replace(options, producer=small))
    found = records(cluster)
    assert len(found) == 2000
    for partition in range(3):
        values = [int(value) for where, _, value, _ in found if where == partition]
        assert values == sorted(values)


def test_the_queue_is_bounded_in_rows_and_bytes(cluster):
    config = producer_config(options_for(cluster))
    assert config["queue.buffering.max.messages"] <= 200_000
    assert config["queue.buffering.max.kbytes"] <= 64 << 10
    given = producer_config(options_for(cluster, **{"kafka.buffer.memory": str(1 << 20)}))
    assert given["queue.buffering.max.kbytes"] == 1 << 10


def test_a_refused_row_fails_with_topic_partition_and_cause(cluster):
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"] * 5)
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([1], pa.int32())})
    with pytest.raises(AuthorizationError, match="topic t, partition 1") as raised:
        write_rows([batch], options_for(cluster))
    assert (raised.value.topic, raised.value.partition) == ("t", 1)
    cluster.stop_failing("Produce")
    # A task after a failed one begins anew.
    assert write_rows([numbered(3)], options_for(cluster)) == 3


def test_a_partition_that_does_not_exist_is_named(cluster):
    batch = pa.RecordBatch.from_pydict({"value": ["v"], "partition": pa.array([9], pa.int32())})
    with pytest.raises(UnknownTopicError, match="topic t, partition 9"):
        write_rows([batch], options_for(cluster))


def test_a_broker_that_comes_back_gets_every_row_once(cluster):
    cluster.fail("Produce", ["_TRANSPORT", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT"])
    write_rows([numbered(300)], options_for(cluster))
    assert Counter(int(value) for _, _, value, _ in records(cluster)) == Counter(range(300))


def test_a_broker_that_stays_away_fails_the_task(cluster):
    options = options_for(
        cluster,
        **{
            "kafka.delivery.timeout.ms": "600",
            "kafka.request.timeout.ms": "500",
            "kafka.linger.ms": "0",
        },
    )
    write_rows([numbered(1)], options)
    cluster.stop_broker(1)
    with pytest.raises(KafkaError, match="write to topic t") as raised:
        write_rows([numbered(20)], options)
    assert raised.value.topic == "t"


def test_the_next_task_uses_the_same_producer(cluster):
    options = options_for(cluster)
    write_rows([numbered(1)], options)
    kept = sender_module._kept
    write_rows([numbered(1)], options)
    assert sender_module._kept is kept
    write_rows([numbered(1)], replace(options, producer=type(options.producer)({"acks": -1})))
    assert sender_module._kept is not kept


def test_nothing_is_opened_for_no_rows(cluster):
    nothing = numbered(0)
    assert write_rows([nothing], options_for(cluster)) == 0
    assert sender_module._kept is None
    attempt = Attempt("q", "r", 0, 0, 0, time.time())
    prepared = prepare_rows([nothing], options_for(cluster), attempt)
    assert prepared == Prepared(attempt, None)


def test_what_promises_rest_on_cannot_be_switched_off(cluster):
    options = options_for(cluster, exactlyOnce="true")
    config = transactional_config(options, "id")
    assert config["enable.idempotence"] is True
    assert config["acks"] == -1
    assert config["transaction.timeout.ms"] == TRANSACTION_TIMEOUT_MS
    assert config["message.timeout.ms"] <= config["transaction.timeout.ms"]
    short = options_for(cluster, exactlyOnce="true", **{"kafka.transaction.timeout.ms": "5000"})
    config = transactional_config(short, "id")
    assert (config["transaction.timeout.ms"], config["message.timeout.ms"]) == (5000, 5000)


# -- the ledger ------------------------------------------------------------------------------

entries = st.builds(Entry, *[st.integers(0, 2**31)] * 5)
states = st.builds(
    State,
    st.integers(0, 10**9),
    st.text(max_size=4),
    st.lists(st.text(max_size=4), max_size=3).map(tuple),
    st.lists(entries, max_size=3).map(tuple),
    st.booleans(),
)


@settings(max_examples=50)
@given(states)
def test_a_state_is_read_as_it_was_written(state):
    assert decode(encode(state)) == state


def test_the_golden_state():
    state = State(7, "r2", ("r1", "r2"), (Entry(0, 1, 4000, 2, 10),))
    told = (
        b'{"v":1,"batch":7,"run":"r2","runs":["r1","r2"],"ended":false,'
        b'"transactions":[[0,1,4000,2,10]]}'
    )
    assert encode(state) == told
    assert decode(told) == state


def test_a_later_version_and_other_bytes_are_refused():
    with pytest.raises(CheckpointVersionError, match="version 999"):
        decode(b'{"v": 999}')
    for told in (b"", b"[]", b"{}", b'{"v":1}', b"\xff"):
        with pytest.raises(KafkaError, match="no state of a sink"):
            decode(told)


def test_judgement():
    state = decide(decide(None, "r1", 4, ()), "r2", 5, ())
    assert judge(None, "r1", 0) is Verdict.DECIDE
    assert judge(state, "r2", 6) is Verdict.DECIDE
    assert judge(state, "r3", 5) is Verdict.WRITTEN
    with pytest.raises(KafkaError, match="batch 6 is not written: the query was started again"):
        judge(state, "r1", 6)
    with pytest.raises(KafkaError, match="put back to an older state"):
        judge(state, "r3", 4)


def test_old_runs_are_forgotten_not_the_last_one():
    state = None
    for number in range(RUNS_MAX + 5):
        state = decide(state, f"r{number}", number, ())
    assert state is not None
    assert len(state.runs) == RUNS_MAX
    assert state.runs[-1] == state.run


# -- crashes at every step -------------------------------------------------------------------


class Crash(BaseException):
    """The driver was killed."""


@dataclass
class Kafka:
    """Transactions and the ledger, in memory; ``steps`` until something happens."""

    transactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: bytes | None = None
    owner: int = 0
    steps: int = -1
    after: bool = False
    event: Callable[[], None] | None = None

    def step(self, effect: Callable[[], Any]) -> Any:
        self.steps -= 1
        if self.steps == 0 and not self.after:
            self._happen()
        result = effect()
        if self.steps == 0 and self.after:
            self._happen()
        return result

    def _happen(self) -> None:
        event, self.event = self.event, None
        if event is None:
            raise Crash
        event()

    def begin(self, name: str, rows: list[int]) -> Transaction:
        old = self.transactions.get(name)
        epoch = 0 if old is None else old["epoch"] + 1
        if old is not None and old["state"] == "open":
            self._end(old, "aborted")
        rows_before = [] if old is None else old["visible"]
        new = {"epoch": epoch, "state": "open", "rows": rows, "visible": rows_before}
        self.transactions[name] = new
        return Transaction(name, 1, epoch, "t", 0, len(rows))

    def time_out(self) -> None:
        for transaction in self.transactions.values():
            if transaction["state"] == "open":
                self._end(transaction, "aborted")
                transaction["epoch"] += 1

    def _end(self, transaction: dict[str, Any], state: str) -> None:
        transaction["state"] = state
        if state == "committed":
            transaction["visible"] = transaction["visible"] + transaction["rows"]

    def visible(self) -> Counter[int]:
        return Counter(n for found in self.transactions.values() for n in found["visible"])


class FakeCoordinators:
    def __init__(self, kafka: Kafka, lists: bool) -> None:
        self.kafka, self.lists = kafka, lists

    def _find(self, transaction: Transaction) -> dict[str, Any] | None:
        found = self.kafka.transactions[transaction.id]
        return found if found["epoch"] == transaction.epoch else None

    def is_open(self, transaction):
        found = self.kafka.step(lambda: self._find(transaction))
        return found is not None and found["state"] == "open"

    def end(self, transaction, *, commit):
        wanted = "committed" if commit else "aborted"

        def effect():
            found = self._find(transaction)
            if found is not None and found["state"] == "open":
                self.kafka._end(found, wanted)
            return found is not None and found["state"] == wanted

        return self.kafka.step(effect)

    def fence(self, name):
        def effect():
            found = self.kafka.transactions[name]
            if found["state"] == "open":
                self.kafka._end(found, "aborted")
            found["epoch"] += 1

        self.kafka.step(effect)

    def open_ids(self, prefix):
        if not self.lists:
            return []
        found = self.kafka.transactions.items()
        return self.kafka.step(
            lambda: [n for n, t in found if t["state"] == "open" and n.startswith(prefix)]
        )

    def each(self, action, of):
        answers = {t.id: action(self, t) for t in reversed(of)}  # real ones: in any order
        return [answers[t.id] for t in of]


class FakeLedger:
    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.mine = -1

    def read(self):
        told = self.kafka.step(lambda: self.kafka.told)
        return None if told is None else decode(told)

    def take_over(self):
        def effect():
            self.kafka.owner += 1
            self.mine = self.kafka.owner

        self.kafka.step(effect)

    def write(self, state):
        def effect():
            if self.mine != self.kafka.owner:
                raise KafkaError("fenced")
            self.kafka.told = encode(state)

        self.kafka.step(effect)


@dataclass
class Query:
    """What Spark does: batches in order, again after a failure, a new run each time."""

    kafka: Kafka
    options: SinkOptions
    lists: bool
    data: Any
    batches: int = 3
    done: int = 0  # batches in the checkpoint's commit log
    runs: int = 0

    def rows(self, batch: int) -> list[int]:
        return [batch * 10 + n for n in range(4)]

    def prepare(self, run: str, batch: int) -> list[Prepared]:
        """The tasks of a batch: rows in whatever split, some attempts in vain."""
        tasks = self.data.draw(st.integers(1, 3), "tasks")
        messages = []
        for task in range(tasks):
            rows = [n for n in self.rows(batch) if n % tasks == task]
            failed = self.data.draw(st.integers(0, 1), "failed attempts")
            for number in range(failed + 1):
                attempt = Attempt("q", run, batch, task, number, time.time())
                found = self.kafka.begin(attempt.transactional_id, rows) if rows else None
            messages.append(Prepared(attempt, found))
        return messages

    def work(self, messages: list[Prepared], batch: int) -> Batch:
        coordinators, ledger = FakeCoordinators(self.kafka, self.lists), FakeLedger(self.kafka)
        return Batch(messages, batch, self.options, ledger, coordinators)  # type: ignore[arg-type]

    def run_on(self, batches: int | None = None) -> None:
        """One start of the query, up to its end or the first failure."""
        self.runs += 1
        run = f"run{self.runs}"
        last = self.batches if batches is None else min(self.batches, self.done + batches)
        for batch in range(self.done, last):
            messages = self.prepare(run, batch)
            try:
                self.work(messages, batch).commit()
            except KafkaError:
                self.work(messages, batch).abort()
                raise
            self.done = max(self.done, batch + 1)

    def expected(self) -> Counter[int]:
        return Counter(n for batch in range(self.batches) for n in self.rows(batch))


OPTIONS = parse_sink_options(
    {"kafka.bootstrap.servers": "h:1", "topic": "t", "exactlyOnce": "true"}, streaming=True
).options


def finish(query: Query) -> None:
    query.kafka.steps = -1
    for _ in range(20):
        if query.done >= query.batches:
            return
        query.run_on()
    raise AssertionError("the query does not get on")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_every_row_once_with_drivers_killed_anywhere(data, lists):
    query = Query(Kafka(), OPTIONS, lists, data)
    for _ in range(data.draw(st.integers(1, 4), "kills")):
        query.kafka.steps = data.draw(st.integers(1, 40), "step")
        query.kafka.after = data.draw(st.booleans(), "after it")
        try:
            query.run_on()
        except Crash:
            assert max(query.kafka.visible().values(), default=1) == 1
    finish(query)
    assert query.kafka.visible() == query.expected()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_commits_that_fail_are_followed_by_abort(data):
    # An error, not a kill: Spark calls abort with the same messages, decided or not.
    query = Query(Kafka(), OPTIONS, True, data)

    def fail() -> None:
        raise KafkaError("a coordinator did not answer in time")

    for _ in range(data.draw(st.integers(1, 3), "failures")):
        query.kafka.event = fail
        query.kafka.steps = data.draw(st.integers(1, 30), "step")
        query.kafka.after = data.draw(st.booleans(), "after it")
        with suppress(KafkaError):
            query.run_on()
    query.kafka.event = None
    finish(query)
    assert query.kafka.visible() == query.expected()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_two_drivers_on_one_checkpoint_write_no_row_twice(data):
    query = Query(Kafka(), OPTIONS, data.draw(st.booleans(), "lists"), data)
    query.run_on(data.draw(st.integers(0, 1), "batches before"))
    other = data.draw(st.integers(1, 2), "batches of the other")
    query.kafka.event = lambda: query.run_on(other)
    query.kafka.steps = data.draw(st.integers(1, 20), "step")
    query.kafka.after = data.draw(st.booleans(), "after it")
    with suppress(KafkaError):  # the older one has to stop
        query.run_on()
    query.kafka.event = None
    finish(query)
    assert query.kafka.visible() == query.expected()


class Told(logging.Handler):
    """The rows that were said to be lost, by batch."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lost: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.match(
            r"exactlyOnce: of batch (\d+), ([\d,]+) rows are lost, those of tasks",
            record.getMessage(),
        )
        assert found, record.getMessage()
        self.lost[found[1]] = int(found[2].replace(",", ""))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_times_out_is_written_again_or_named(data):
    query = Query(Kafka(), OPTIONS, data.draw(st.booleans()), data)
    told = Told()
    log = logging.getLogger("kshare.produce.decision")
    log.addHandler(told)
    try:
        for _ in range(data.draw(st.integers(1, 3), "kills")):
            query.kafka.steps = data.draw(st.integers(1, 40), "step")
            query.kafka.after = data.draw(st.booleans(), "after it")
            with suppress(KafkaError):
                try:
                    query.run_on()
                except Crash:
                    if data.draw(st.booleans(), "for long"):
                        query.kafka.time_out()
        query.kafka.steps = -1
        with suppress(KafkaError):
            finish(query)
        finish(query)
    finally:
        log.removeHandler(told)
    visible = query.kafka.visible()
    assert max(visible.values()) == 1
    assert visible.total() + sum(told.lost.values()) == query.expected().total()


def test_a_batch_that_took_too_long_is_not_decided():
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    began = time.time() - 0.95 * TRANSACTION_TIMEOUT_MS / 1000
    attempt = Attempt("q", "r", 0, 0, 0, began)
    message = Prepared(attempt, kafka.begin(attempt.transactional_id, [1]))
    with pytest.raises(KafkaError, match=r"not written: it took .*kafka\.transaction\.timeout\.ms"):
        query.work([message], 0).commit()
    assert kafka.told is None


def test_attempts_that_do_not_count_leave_nothing_open():
    kafka = Kafka()
    query = Query(kafka, OPTIONS, True, None)
    first = [Attempt("q", "r", 0, 0, number, time.time()) for number in (0, 1)]
    kafka.begin(first[0].transactional_id, [1])
    counted = Prepared(first[1], kafka.begin(first[1].transactional_id, [1]))
    query.work([counted], 0).commit()
    # Of a later batch too, and of a task that Spark runs twice at a time.
    twice = [Attempt("q", "r", 1, 0, n, time.time(), speculative=True) for n in (0, 1)]
    counted = Prepared(twice[0], kafka.begin(twice[0].transactional_id, [2]))
    kafka.begin(twice[1].transactional_id, [2])
    query.work([counted], 1).commit()
    assert kafka.visible() == {1: 1, 2: 1}
    assert not [name for name, found in kafka.transactions.items() if found["state"] == "open"]


def test_tasks_of_another_batch_are_refused():
    attempts = [Attempt("q", "r", batch, 0, 0, 0.0) for batch in (1, 2)]
    with pytest.raises(KafkaError, match="tasks of other batches report to batch 1"):
        Query(Kafka(), OPTIONS, True, None).work([Prepared(a, None) for a in attempts], 1)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_no_two_attempts_of_a_batch_share_a_transactional_id(batch, task, number):
    attempt = Attempt("q", "r", batch, task, number, 0.0)
    name = attempt.transactional_id
    assert name.startswith("kshare-q-r-")
    for other in (
        replace(attempt, task=task + 1),
        replace(attempt, number=number + 1),
        replace(attempt, run="s"),
        replace(attempt, query="p"),
        replace(attempt, batch=batch + 1),
    ):
        assert other.transactional_id != name
    assert replace(attempt, batch=batch + 2).transactional_id == name


# -- the same on a broker --------------------------------------------------------------------


def prepared(cluster, run: str, batch: int, tasks: int = 2) -> list[Prepared]:
    options = options_for(cluster, exactlyOnce="true")
    return [
        prepare_rows(
            [numbered(5, start=10 * task)], options, Attempt("q", run, batch, task, 0, time.time())
        )
        for task in range(tasks)
    ]


def test_batches_are_decided_once_on_a_broker(cluster):
    options = options_for(cluster, exactlyOnce="true")
    coordinators = Coordinators(options.kafka)
    first = prepared(cluster, "r1", 0)
    transactions = [message.transaction for message in first]
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


def test_a_task_that_fails_aborts(cluster):
    options = options_for(cluster, exactlyOnce="true")

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(3)
        raise RuntimeError("the UDF before it")

    cluster.track_requests()
    with pytest.raises(RuntimeError, match="the UDF"):
        prepare_rows(batches(), options, Attempt("q", "r", 0, 0, 0, time.time()))


@pytest.mark.parametrize("code", [47, 48, 49, 90])
def test_a_transaction_that_is_gone_keeps_the_batch_from_being_decided(cluster, code):
    options = options_for(cluster, exactlyOnce="true")
    (message,) = prepared(cluster, "r", 0, 1)
    cluster.fail("AddPartitionsToTxn", [code])
    with pytest.raises(KafkaError, match="batch 0 is not written: the transactions of tasks 0"):
        commit_batch([message], 0, options)
    commit_batch([message], 0, options)


def test_answers_of_a_coordinator(cluster):
    options = options_for(cluster, exactlyOnce="true", **{"kafka.default.api.timeout.ms": "900"})
    transaction = Transaction("id", 1, 0, "t", 0, 1)
    coordinators = Coordinators(options.kafka)
    cluster.fail("EndTxn", ["COORDINATOR_NOT_AVAILABLE"] * 100)
    with pytest.raises(KafkaError, match=r"cannot abort transaction id within 0\.9 s"):
        coordinators.end(transaction, commit=False)
    cluster.stop_failing("EndTxn")
    cluster.fail("EndTxn", ["_TRANSPORT", 16, 51, 90])
    assert not coordinators.end(transaction, commit=True)
    cluster.fail("EndTxn", [53])
    with pytest.raises(AuthorizationError, match="transactional ids that begin with kshare-"):
        coordinators.end(transaction, commit=True)
    cluster.fail("InitProducerId", [51])
    coordinators.fence("id")
    assert coordinators.open_ids("kshare-") == []  # these brokers cannot tell
    coordinators.close()


def test_no_secret_in_any_text(cluster):
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
