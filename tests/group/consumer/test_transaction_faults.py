"""Transactions of a consumer that fail: which errors last, and after what a new epoch is needed.

On the mock cluster; requests that arrive late are tested on a real broker.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kshare.errors import (
    AuthorizationError,
    KafkaError,
    OptionsError,
    RecordRefusedError,
    TransactionAbortedError,
    UnknownTopicError,
)
from kshare.group import KeySharedConsumer
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.call_state import CallState
from kshare.group.consumer.processed import Processed
from kshare.group.consumer.transaction import Transactions
from kshare.group.session.fencing import fence_ids
from kshare.group.session.transaction_log import TransactionLog
from kshare.query.produce.config import consumer_producer_config
from kshare.testing import FakeCluster, watermarks
from tests.support.clock import WAIT_S, until
from tests.support.groups import GROUP, LOG, SECONDS, T0
from tests.support.requests import times_asked

BASE = {"bootstrap.servers": "b:1", "group.id": "g", "transactional.id": "t"}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, "invoices": 1, LOG: 1}) as running:
        running.produce("orders", [(b"k", b"%d" % number) for number in range(50)], partition=0)
        yield running


@contextmanager
def started(cluster: FakeCluster, **given: Any) -> Iterator[KeySharedConsumer]:
    """A consumer that has committed a transaction."""
    config = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 300,
        "check.crcs": False,
        "transactional.id": "billing-1",
    }
    with KeySharedConsumer(config | given) as consumer:
        consumer.assign({T0: []})
        assert copy(consumer) == list(range(5))
        cluster.track_requests()
        yield consumer


def copy(
    consumer: KeySharedConsumer, size: int = 1, wait: Callable[[], object] = lambda: None
) -> list[int]:
    with consumer.transaction() as transaction:
        messages = consumer.consume(5, WAIT_S)
        for message in messages:
            transaction.produce("invoices", b"x" * size, message.key())
        wait()
    return [message.offset() for message in messages]


def fail(cluster: FakeCluster, consumer: KeySharedConsumer, error: str, size: int = 1) -> None:
    """Let the outputs of a transaction be refused, before its facts are written."""
    cluster.fail("Produce", [error] * 5)
    cluster.track_requests()
    try:
        copy(consumer, size, lambda: until(lambda: times_asked(cluster, "Produce") >= 1))
    finally:
        cluster.stop_failing("Produce")


@pytest.mark.parametrize("name", ["x" * 600, "a\0b", "\ud800"])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_name_that_no_topic_can_have(cluster: FakeCluster, name: str, *, is_first: bool) -> None:
    """librdkafka refuses it with errors that are none of Kafka's, or that say nothing."""
    with started(cluster) as consumer, consumer.transaction() as transaction:
        if not is_first:
            transaction.produce("invoices", b"v")
        with pytest.raises(RecordRefusedError, match="cannot be a topic's name; allowed: 1 to"):
            transaction.produce(name, b"v")


# -- a new epoch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["_TRANSPORT", "COORDINATOR_NOT_AVAILABLE"])
def test_after_a_commit_that_was_asked_for_twice_comes_a_new_epoch(
    cluster: FakeCluster, error: str
) -> None:
    with started(cluster) as consumer:
        assert copy(consumer) == list(range(5, 10))
        assert times_asked(cluster, "InitProducerId") == 0
        cluster.fail("EndTxn", [error])
        assert copy(consumer) == list(range(10, 15))
        assert times_asked(cluster, "EndTxn") == 3
        assert times_asked(cluster, "InitProducerId") == 0
        assert copy(consumer) == list(range(15, 20))
        assert times_asked(cluster, "InitProducerId") == 1
        assert copy(consumer) == list(range(20, 25))
        assert times_asked(cluster, "InitProducerId") == 1


@pytest.mark.parametrize("given", [{"retry.backoff.ms": 1}, {"retry.backoff.max.ms": 10}])
def test_no_setting_lets_requests_be_repeated_before_that_is_noticed(
    cluster: FakeCluster, given: dict[str, Any]
) -> None:
    with started(cluster, **given) as consumer:
        for _ in range(2):
            cluster.fail("EndTxn", ["_TRANSPORT"])
            copy(consumer)
        assert times_asked(cluster, "InitProducerId") == 1


# -- an interrupt ----------------------------------------------------------------------------------


class InterruptedProducer:
    """A producer whose abort is interrupted, as by Ctrl-C."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def abort_transaction(self, _: float) -> None:
        raise KeyboardInterrupt


def transactions_of(consumer: KeySharedConsumer) -> Transactions:
    transactions = consumer.receiver.transactions
    assert transactions is not None
    return transactions


@pytest.mark.parametrize("has_rewound", [False, True])
def test_after_an_abort_that_was_interrupted_records_come_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, has_rewound: bool
) -> None:
    rewind, faults = TransactionLog.rewind, [KeyboardInterrupt()] if has_rewound else []

    def rewinds(log: TransactionLog) -> None:
        if faults:
            raise faults.pop()
        rewind(log)

    monkeypatch.setattr(TransactionLog, "rewind", rewinds)
    with started(cluster) as consumer:
        transactions = transactions_of(consumer)

        def fail() -> None:
            sender = transactions._producer.sender
            if not has_rewound:
                sender.producer = InterruptedProducer(sender.producer)  # type: ignore[assignment]
            raise LookupError

        with pytest.raises(KeyboardInterrupt):
            copy(consumer, wait=fail)
        assert not faults
        assert copy(consumer) == list(range(5, 10))


@pytest.mark.parametrize("is_begun", [False, True])
def test_after_an_interrupt_no_transaction_is_open(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """As the call ends that has begun one, or as the one begins that aborts it."""
    call, has_failed, faults = CallState.call, list[bool](), list[BaseException]()

    @contextmanager
    def interrupted(state: CallState) -> Iterator[None]:
        if has_failed and faults:
            raise faults.pop()
        with call(state):
            yield
        if not is_begun and transactions.current is not None and faults:
            raise faults.pop()

    def fail() -> None:
        has_failed.append(True)
        raise LookupError

    with started(cluster) as consumer:
        transactions = transactions_of(consumer)
        monkeypatch.setattr(CallState, "call", interrupted)
        faults.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            copy(consumer, wait=fail)
        assert bool(has_failed) is is_begun
        assert copy(consumer) == list(range(5, 10))


def test_claims_stay_if_the_abort_of_a_close_is_interrupted(cluster: FakeCluster) -> None:
    """Whoever takes over has to find the transactional id of what is open."""
    with started(cluster) as consumer:
        transactions = transactions_of(consumer)
        block = consumer.transaction()
        block.__enter__().produce("invoices", b"x")
        sender = transactions._producer.sender
        sender.producer = InterruptedProducer(sender.producer)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
        assert transactions._log._shared.keeps_claims


def test_two_threads_do_not_begin_at_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is refused, and the first one's stays open."""
    begins, may_go_on = threading.Event(), threading.Event()
    begin, refused = Processed.begin_transaction, list[BaseException]()

    def begins_slowly(work: Processed) -> object:
        begins.set()
        assert may_go_on.wait(SECONDS)
        return begin(work)

    def second() -> None:
        assert begins.wait(SECONDS)
        try:
            copy(consumer)
        except RuntimeError as error:
            refused.append(error)

    with started(cluster) as consumer:
        monkeypatch.setattr(Processed, "begin_transaction", begins_slowly)
        threads = [threading.Thread(target=second), threading.Timer(0.2, may_go_on.set)]
        for thread in threads:
            thread.start()
        with consumer.transaction() as transaction:
            threads[0].join(SECONDS)
            transaction.produce("invoices", b"x")
        assert "a transaction is open" in str(refused[0])


# -- errors that last ------------------------------------------------------------------------------


def test_a_partition_that_does_not_exist_is_named(cluster: FakeCluster) -> None:
    with started(cluster) as consumer:
        with (
            pytest.raises(UnknownTopicError, match="invoices has no partition 7 on 127") as caught,
            consumer.transaction() as transaction,
        ):
            transaction.produce("invoices", b"x", partition=7)
        assert (caught.value.topic, caught.value.partition) == ("invoices", 7)
        assert copy(consumer) == list(range(5, 10))


def test_a_topic_that_does_not_exist_is_named(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loop of the docs would begin the transaction again for ever."""

    def soon(*given: Any) -> dict[str, Any]:
        """Without some seconds for a topic that is about to be made."""
        config = consumer_producer_config(*given)
        assert config["topic.metadata.propagation.max.ms"] == 5_000  # librdkafka's are 30
        return {**config, "topic.metadata.propagation.max.ms": 100}

    monkeypatch.setattr("kshare.group.consumer.transaction_producer.consumer_producer_config", soon)
    cluster.fail_topic("missing", "UNKNOWN_TOPIC_OR_PART")
    with started(cluster) as consumer:
        with (
            pytest.raises(UnknownTopicError, match="topic missing does not exist on 127") as caught,
            consumer.transaction() as transaction,
        ):
            transaction.produce("missing", b"x")
        assert caught.value.topic == "missing"
        assert copy(consumer) == list(range(5, 10))


def test_a_right_that_is_missing_is_named(cluster: FakeCluster) -> None:
    with (
        started(cluster) as consumer,
        pytest.raises(AuthorizationError, match="not authorized to write to topic invoices"),
    ):
        fail(cluster, consumer, "TOPIC_AUTHORIZATION_FAILED")


def test_a_record_that_is_too_large_is_named_with_its_size(cluster: FakeCluster) -> None:
    with started(cluster) as consumer:
        wanted = r"topic invoices, partition 0.*too large.*key and value have 101 bytes"
        with pytest.raises(RecordRefusedError, match=wanted) as caught:
            fail(cluster, consumer, "MSG_SIZE_TOO_LARGE", size=100)
        assert (caught.value.topic, caught.value.partition) == ("invoices", 0)
        with pytest.raises(RecordRefusedError, match=r"key and value have 2,000,001 bytes"):
            copy(consumer, size=2_000_000)  # the client refuses it


@pytest.mark.parametrize("error", ["INVALID_TXN_STATE", "OUT_OF_ORDER_SEQUENCE_NUMBER"])
def test_what_may_pass_is_begun_again(cluster: FakeCluster, error: str) -> None:
    with started(cluster) as consumer:
        with pytest.raises(TransactionAbortedError):
            fail(cluster, consumer, error)
        assert copy(consumer) == list(range(5, 10))


# -- configurations --------------------------------------------------------------------------------


def test_a_request_lasts_no_longer_than_its_transaction() -> None:
    given = {**BASE, "transaction.timeout.ms": 10_000}
    consumer_config({**given, "request.timeout.ms": 10_100})
    with pytest.raises(OptionsError, match=r"request\.timeout\.ms.*transaction\.timeout\.ms"):
        consumer_config({**given, "request.timeout.ms": 10_101})
    consumer_config({"bootstrap.servers": "b:1", "group.id": "g", "request.timeout.ms": 90_000})


# -- fences ----------------------------------------------------------------------------------------


def test_a_fence_asks_with_a_timeout_that_the_brokers_allow(cluster: FakeCluster) -> None:
    kafka = consumer_config({**BASE, "bootstrap.servers": cluster.bootstrap_servers}).kafka
    cluster.fail("InitProducerId", ["INVALID_TRANSACTION_TIMEOUT"] * 2)
    cluster.track_requests()
    fence_ids(kafka, ["billing-1"])
    assert times_asked(cluster, "InitProducerId") == 3
    cluster.fail("InitProducerId", ["INVALID_TRANSACTION_TIMEOUT"] * 3)
    with pytest.raises(KafkaError, match="INVALID_TRANSACTION_TIMEOUT"):
        fence_ids(kafka, ["billing-1"])


def test_what_is_flushed_is_on_the_brokers_before_the_transaction_ends(
    cluster: FakeCluster,
) -> None:
    with started(cluster) as consumer:
        before = watermarks(cluster.bootstrap_servers, "invoices")[1]
        with consumer.transaction() as transaction:
            transaction.flush()  # nothing is written yet
            transaction.produce("invoices", b"v")
            transaction.flush()
            assert watermarks(cluster.bootstrap_servers, "invoices")[1] == before + 1
        with pytest.raises(RuntimeError, match="the transaction is over"):
            transaction.flush()


def test_a_flush_raises_what_the_topic_refuses(cluster: FakeCluster) -> None:
    def write(consumer: KeySharedConsumer) -> None:
        with consumer.transaction() as transaction:
            transaction.produce("invoices", b"v")
            transaction.flush()

    with started(cluster) as consumer:
        cluster.fail("Produce", ["INVALID_RECORD"])
        with pytest.raises(RecordRefusedError, match="topic invoices, partition 0"):
            write(consumer)
