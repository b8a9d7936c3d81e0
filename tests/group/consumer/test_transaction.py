"""Transactions of a consumer on the mock cluster.

It hides nothing of open transactions and of aborted ones, and its markers have no checksum. What
readers of committed records see is tested on a real broker.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import key_hash
from kshare.core.progress import Progress, Rectangle
from kshare.errors import (
    KafkaError,
    OptionsError,
    PolicyError,
    TransactionAbortedError,
)
from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer import processed
from kshare.group.consumer.transaction import Transaction
from kshare.group.session import transaction_log
from kshare.group.session.fencing import fence_ids
from kshare.group.session.transaction_log import TransactionLog
from kshare.kafka.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy
from kshare.testing import FakeCluster
from tests.group.log.test_retry_log import log_of
from tests.support.clock import WAIT_S, Ahead, Counted, until
from tests.support.groups import GROUP, LOWER, T0, T1, UPPER
from tests.support.policies import FakePolicies
from tests.support.requests import times_asked
from tests.support.transactions import (
    RECORDS,
    cluster_with_records,
    committed,
    consumers_of,
    copy,
    outputs,
    settings,
)

BASE = {"bootstrap.servers": "b:1", "group.id": "g", "transactional.id": "t"}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_with_records() as running:
        yield running


@pytest.fixture
def make(cluster: FakeCluster) -> Iterator[Callable[..., KeySharedConsumer]]:
    with consumers_of(cluster) as made:
        yield made


def test_a_policy_that_turns_false_ends_the_next_transaction(cluster: FakeCluster) -> None:
    policies = FakePolicies()
    config = {**settings(cluster), "purgatory": "key"}
    with closing(KeySharedConsumer(config, policies=policies)) as consumer:
        consumer.assign({T0: [LOWER]})
        with consumer.transaction() as transaction:
            assert copy(consumer, transaction, 5)
        policies.denied.add(Policy(RANGE_FETCH, "orders"))
        refused = pytest.raises(PolicyError, match="key ranges are not accepted")
        with refused, consumer.transaction():
            raise AssertionError("it has begun")
        policies.denied.clear()
        with consumer.transaction() as transaction:
            assert copy(consumer, transaction, 5)


def test_what_another_consumer_has_released_is_forgotten_once_a_transaction_has_committed_it(
    make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list[Any]()
    monkeypatch.setattr(processed, "_retry_log", lambda config: log_of(rows, config.group))
    log = log_of(rows, GROUP)
    released = SimpleNamespace(topic_partition=T0, offset=0, failures=1, since=None, due=0.0)
    log.remember(released, key_hash(b"k0", 0))
    log.close()
    consumer = make()
    consumer.assign({T0: []})
    with suppress(ZeroDivisionError), consumer.transaction():
        (message, *_) = consumer.consume(5, WAIT_S)
        assert message.delivery_count() == 2
        raise ZeroDivisionError
    with consumer.transaction():
        (message, *_) = consumer.consume(5, WAIT_S)
        assert message.delivery_count() == 2
    assert message.delivery_count() == 1


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"transactional.id": " "}, "transactional.id"),
        ({"enable.auto.commit": True}, "enable.auto.commit.*contradicts transactional.id"),
        ({"transaction.timeout.ms": 10}, "transaction.timeout.ms"),
        ({"purgatory": "never"}, "purgatory"),
    ],
)
def test_configurations_that_cannot_be_used(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        consumer_config({**BASE, **given})


def test_a_transactional_consumer_does_not_commit_by_itself() -> None:
    config = consumer_config(BASE)
    assert (config.transactional_id, config.auto_commit) == ("t", False)
    assert (config.transaction_timeout_ms, config.purgatory) == (60_000, "stable")
    assert consumer_config({"bootstrap.servers": "b:1", "group.id": "g"}).auto_commit


def test_calls_outside_of_a_transaction(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign({T0: []})
    receive: list[Callable[[], object]] = [
        lambda: consumer.poll(0),
        lambda: consumer.consume(1, 0),
        lambda: consumer.consume_batch(0),
        lambda: next(iter(consumer)),
    ]
    for call in receive:
        with pytest.raises(RuntimeError, match=r"receive within consumer\.transaction"):
            call()
    with pytest.raises(RuntimeError, match=r"the end of consumer\.transaction\(\) commits"):
        consumer.commit()


def test_calls_within_a_transaction(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign({T0: []})
    with consumer.transaction() as transaction:
        with pytest.raises(RuntimeError, match="a transaction is open"):
            consumer.assign({T0: [(0, 5)]})
        with pytest.raises(RuntimeError, match="a transaction is open"), consumer.transaction():
            pass
    with pytest.raises(RuntimeError, match="the transaction is over"):
        transaction.produce("invoices", b"1")


def test_a_consumer_without_an_id_has_no_transactions(cluster: FakeCluster) -> None:
    config = settings(cluster)
    del config["transactional.id"]
    with (
        KeySharedConsumer(config) as consumer,
        pytest.raises(RuntimeError, match=r"transactional\.id"),
        consumer.transaction(),
    ):
        pass


# -- outputs and positions -------------------------------------------------------------------------


def test_outputs_and_facts_come_together(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    done: list[int] = []
    while len(done) < RECORDS:
        with consumer.transaction() as transaction:
            done += copy(consumer, transaction, 50)
        assert committed(cluster)[T0] == Progress.at(done[-1] + 1)
    assert done == list(range(RECORDS))
    assert outputs(cluster) == done
    consumer.close()
    assert committed(cluster)[T0] == Progress.at(RECORDS)


def test_an_exception_gives_the_records_back(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    with consumer.transaction() as transaction:
        first = copy(consumer, transaction, 30)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), consumer.transaction():  # noqa: PT012
            assert [m.offset() for m in consumer.consume(50, WAIT_S)] == list(range(30, 80))
            raise ZeroDivisionError
        assert committed(cluster)[T0] == Progress.at(30)
    with consumer.transaction() as transaction:
        assert copy(consumer, transaction, 50) == list(range(30, 80))
    assert outputs(cluster) == first + list(range(30, 80))
    metrics = consumer.metrics()
    assert (metrics.transactions.count, metrics.aborted_transactions) == (2, 2)
    assert metrics.transactions.seconds > 0
    assert metrics.commits.count == 0


def test_record_batches_in_transactions(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    rows = 0
    while rows < RECORDS:
        with consumer.transaction():
            batch = consumer.consume_batch(WAIT_S)
            rows += 0 if batch is None else batch.num_rows
    assert committed(cluster)[T0] == Progress.at(RECORDS)


def test_what_is_not_acknowledged_stays_pending(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(acknowledgement_mode="explicit")
    consumer.assign({T0: []})
    with consumer.transaction():
        for message in consumer.consume(20, WAIT_S):
            if message.offset() not in {4, 9}:
                consumer.acknowledge(message)
    known = committed(cluster)[T0]
    assert known.stable == 4
    assert [piece.offsets.start for piece in known.individual_commits] == [5, 10]


@pytest.mark.parametrize("is_policy", [True, False])
def test_where_one_offset_is_committed_a_gap_aborts(cluster: FakeCluster, is_policy: bool) -> None:
    """A lower offset would not do: outputs of what is acknowledged would be visible twice."""
    policies = FakePolicies()
    config = settings(cluster) | {"acknowledgement.mode": "explicit"}
    if not is_policy:
        config["allow.individual.commit"] = False
    with closing(KeySharedConsumer(config, policies=policies)) as consumer:
        consumer.assign({T0: []})

        def process(left_out: set[int]) -> list[int]:
            with consumer.transaction() as transaction:
                messages = consumer.consume(10, WAIT_S)
                for message in messages:
                    if message.offset() not in left_out:
                        transaction.produce("invoices", message.value(), message.key())
                        consumer.acknowledge(message)
            return [message.offset() for message in messages]

        assert process(set()) == list(range(10))
        policies.denied.add(Policy(INDIVIDUAL_COMMIT))
        text = "orders-0: offset 10 is not acknowledged, and offset 12 behind it is"
        with pytest.raises(PolicyError if is_policy else OptionsError, match=text) as found:
            process({10, 11})
        assert getattr(found.value, "policy", INDIVIDUAL_COMMIT) == INDIVIDUAL_COMMIT
        assert committed(cluster)[T0] == Progress.at(10)
        assert process({18, 19}) == list(range(10, 20))  # up to the end, and nothing behind it
        until(lambda: committed(cluster)[T0] == Progress.at(18))


def test_what_was_committed_individually_before_a_policy_hinders_no_transaction(
    cluster: FakeCluster,
) -> None:
    policies = FakePolicies()
    config = settings(cluster) | {"acknowledgement.mode": "explicit", "purgatory": "key"}
    with closing(KeySharedConsumer(config, policies=policies)) as consumer:
        consumer.assign({T0: []})
        with consumer.transaction():
            held = consumer.consume(10, WAIT_S)
            for message in held[5:]:
                consumer.acknowledge(message)
        policies.denied.add(Policy(INDIVIDUAL_COMMIT))
        with consumer.transaction():
            for message in held[:3]:
                consumer.acknowledge(message)
        until(lambda: committed(cluster)[T0].stable == 3)


def test_a_fault_of_the_coordinator_aborts(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    with consumer.transaction() as transaction:
        done = copy(consumer, transaction, 20)
    cluster.fail("EndTxn", ["INVALID_PRODUCER_EPOCH"])
    with (
        pytest.raises(TransactionAbortedError, match=f"group {GROUP}: the transaction is aborted"),
        consumer.transaction() as transaction,
    ):
        lost = copy(consumer, transaction, 20)
    with consumer.transaction() as transaction:
        again = copy(consumer, transaction, 20)
    # The mock shows what was aborted: so the facts of that transaction count here.
    assert again[0] in {lost[0], lost[-1] + 1}
    assert done == list(range(20))


# -- the purgatory ---------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """How often transactions that are to commit have looked whether they may."""
    counted = Counted(lambda _: False)
    monkeypatch.setattr(TransactionLog, "is_disturbed", property(counted))
    return counted


def test_a_chunk_that_waits_commits_when_the_one_before_it_has(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], looks: Counted
) -> None:
    consumers = {"lower": make("lower"), "upper": make("upper")}
    consumers["lower"].assign({T0: [LOWER]})
    consumers["upper"].assign({T0: [UPPER]})
    waits = threading.Event()
    order: list[str] = []

    def ahead() -> None:
        with consumers["upper"].transaction() as transaction:
            copy(consumers["upper"], transaction, 10)
        with consumers["upper"].transaction() as transaction:
            copy(consumers["upper"], transaction, 10)
            waits.set()
        order.append("upper")

    thread = threading.Thread(target=ahead)
    with consumers["lower"].transaction() as transaction:
        copy(consumers["lower"], transaction, 60)
        thread.start()
        until(looks.has_more(5))  # one has nothing to wait for but its beginning
        order.append("lower")
    thread.join(30)
    assert waits.is_set()
    assert order == ["lower", "upper"]


def test_one_without_records_of_its_own_lets_others_go_on(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    key = next(key for key in (b"a%d" % n for n in range(99)) if key_hash(key, 0) in LOWER)
    cluster.produce("orders", [(key, b"%d" % n) for n in range(60)], partition=1)
    lower, idle = make("lower"), make("idle")
    lower.assign({T1: [LOWER]})
    idle.assign({T1: [UPPER]})
    done: list[int] = []

    def receive_nothing() -> None:
        while len(done) < 60:
            with idle.transaction():
                assert idle.consume(10, 0.1) == []

    thread = threading.Thread(target=receive_nothing)
    thread.start()
    while len(done) < 60:
        with lower.transaction() as transaction:
            done += copy(lower, transaction, 20)
    thread.join(30)
    assert outputs(cluster) == list(range(60))
    assert committed(cluster)[T1].position(LOWER) == 60


def test_a_lead_that_has_nothing_to_do_names_the_offset_that_others_have_reached(
    make: Callable[..., KeySharedConsumer], cluster: FakeCluster
) -> None:
    """Kafka's own tools would show a lag until it has a transaction again."""
    lead, other = make("billing-1", purgatory="key"), make("billing-2", purgatory="key")
    lead.assign({T0: [LOWER]})
    other.assign({T0: [UPPER]})
    count = sum(key_hash(f"k{number % 17}".encode(), 0) in LOWER for number in range(RECORDS))
    for consumer, wanted in ((lead, count), (other, RECORDS - count)):
        done = 0
        while done < wanted:
            with consumer.transaction() as transaction:
                done += len(copy(consumer, transaction, wanted - done))
    plain = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP})
    with closing(plain):
        until(lambda: plain.committed([RdTopicPartition(*T0)], 10)[0].offset >= RECORDS - 1)


def test_with_purgatory_key_nobody_waits(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(purgatory="key")
    consumer.assign({T0: [UPPER]})
    done = 0
    while done < 60:
        with consumer.transaction() as transaction:
            done += len(copy(consumer, transaction, 20))
    pieces: tuple[Rectangle, ...] = committed(cluster)[T0].individual_commits
    assert pieces
    assert all(UPPER.lo <= piece.hashes.lo for piece in pieces)


def test_one_that_waits_too_long_gives_up(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Ahead()

    def look(_: TransactionLog) -> bool:
        if counted.calls == 5:  # until then it has waited
            clock.seconds += 60  # transaction.timeout.ms
        return False

    counted = Counted(look)
    consumer = make()
    consumer.assign({T0: [UPPER]})
    with consumer.transaction() as transaction:
        copy(consumer, transaction, 5)
    monkeypatch.setattr(TransactionLog, "is_disturbed", property(counted))
    monkeypatch.setattr(transaction_log, "time", clock)
    with (
        pytest.raises(TransactionAbortedError, match=r"purgatory=stable.*orders-0"),
        consumer.transaction() as transaction,
    ):
        copy(consumer, transaction, 5)
    assert counted.calls == 6


def test_one_that_waits_gives_up_when_key_hashes_are_about_to_change(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = make()
    consumer.assign({T0: [UPPER]})
    with consumer.transaction() as transaction:
        copy(consumer, transaction, 5)
    counted = Counted(lambda _: counted.calls >= 5)
    monkeypatch.setattr(TransactionLog, "is_disturbed", property(counted))
    with (
        pytest.raises(TransactionAbortedError, match="key hashes were assigned anew"),
        consumer.transaction() as transaction,
    ):
        copy(consumer, transaction, 5)
    assert counted.calls == 6


def test_a_member_that_was_dropped_amid_a_transaction_does_not_commit_it(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(session_timeout_ms=3_000, heartbeat_interval_ms=300)
    consumer.subscribe(["orders"])
    subscriber = consumer._receiver.subscriber
    assert subscriber is not None
    assert next_records(consumer) == list(range(5))
    began = time.monotonic()
    taken: list[int] = []

    def drop() -> None:
        with consumer.transaction() as transaction:
            taken.extend(copy(consumer, transaction, 5))
            subscriber.member.fenced()

    with pytest.raises(TransactionAbortedError, match="the member was dropped from its group"):
        drop()
    assert taken == list(range(5, 10))
    assert time.monotonic() - began < 40  # it does not wait for its time to commit
    assert next_records(consumer) == list(range(5, 10))


def next_records(consumer: KeySharedConsumer) -> list[int]:
    """What the first transaction takes that gets records."""
    for _ in range(100):
        with consumer.transaction() as transaction:
            if offsets := copy(consumer, transaction, 5):
                return offsets
    return []


# -- fences ----------------------------------------------------------------------------------------


def test_a_fence_waits_until_the_transaction_has_ended(cluster: FakeCluster) -> None:
    kafka = consumer_config(settings(cluster)).kafka
    cluster.fail("InitProducerId", ["CONCURRENT_TRANSACTIONS"] * 3)
    cluster.track_requests()
    fence_ids(kafka, ["billing-1"])
    asked = times_asked(cluster, "InitProducerId")
    assert asked == 4


def test_a_fence_that_is_overtaken_is_no_success(cluster: FakeCluster) -> None:
    kafka = consumer_config(settings(cluster)).kafka
    cluster.fail("InitProducerId", ["PRODUCER_FENCED"])
    with pytest.raises(KafkaError, match="cannot fence transactional id billing-1"):
        fence_ids(kafka, ["billing-1"])


def test_a_successor_fences_the_id_of_the_claim_before_it_delivers(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    old, new = make("old"), make("new")
    old.assign({T0: []})
    with old.transaction() as transaction:
        done = copy(old, transaction, 20)
    mine: list[int] = []

    def take_over(transaction: Transaction) -> None:
        copy(old, transaction, 20)
        new.assign({T0: []})
        with new.transaction() as taken:
            mine.extend(copy(new, taken, 20))

    with pytest.raises(TransactionAbortedError), old.transaction() as transaction:
        take_over(transaction)
    assert mine[0] == done[-1] + 1
    assert committed(cluster)[T0] == Progress.at(mine[-1] + 1)


# -- asyncio ---------------------------------------------------------------------------------------


def test_transactions_with_asyncio(cluster: FakeCluster) -> None:
    done = asyncio.run(copy_some(cluster))
    assert outputs(cluster) == done
    assert committed(cluster)[T0] == Progress.at(100)


async def copy_some(cluster: FakeCluster) -> list[int]:
    async with AsyncKeySharedConsumer(settings(cluster)) as consumer:
        await consumer.assign({T0: []})
        done: list[int] = []
        while len(done) < 100:
            async with consumer.transaction() as transaction:
                for message in await consumer.consume(50, WAIT_S):
                    transaction.produce("invoices", message.value(), message.key())
                    done.append(message.offset())
        with pytest.raises(ZeroDivisionError):
            async with consumer.transaction():
                raise ZeroDivisionError
    return done
