"""Requests of a transaction that arrive late: the next transaction is not theirs to decide.

The verdict is of a reader of committed records: the output of each input exactly once.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from integration.holding_proxy import (
    ADD_PARTITIONS,
    END_TRANSACTION,
    PRODUCE,
    HoldingProxy,
    Request,
)
from integration.kafka import KafkaBroker
from integration.members import SECONDS, eventually
from integration.sinking import Query, expected
from integration.transactions import Processes, commits, key_of, outputs
from kshare.core.hashing import WHOLE
from kshare.errors import TransactionAbortedError
from kshare.group import KeySharedConsumer
from kshare.kafka.protocol.error_codes import ErrorCode

RECORDS, AT_ONCE = 60, 10
REFUSALS = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
Proxied = tuple[KafkaBroker, HoldingProxy]


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(1, marks=pytest.mark.long)],
    ids=["transaction-version-2", "version-1"],
)
def held(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    """A broker behind a proxy, with and without KIP-890's transactions."""
    broker = KafkaBroker(features={"transaction.version": request.param})
    with HoldingProxy(broker.ports["PLAINTEXT"]) as proxy:
        broker.config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker:
            yield broker, proxy


class Member:
    """A transactional consumer of a topic, and what it has written."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.topic, self.output = broker.create_topic(), broker.create_topic()
        self.id = f"{self.topic}-id"
        rows = [(key_of(number), f"{number}") for number in range(RECORDS)]
        broker.produce(self.topic, rows, partition=0)
        self.consumer = KeySharedConsumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": self.topic,
                "auto.offset.reset": "earliest",
                "claim.timeout.ms": 500,
                "transactional.id": self.id,
            }
        )
        self.consumer.assign({(self.topic, 0): []})

    def writes(self) -> Request:
        return Request(PRODUCE, (self.id, self.output))

    def ends(self) -> Request:
        return Request(END_TRANSACTION, (self.id,))

    def run(self, wait: Callable[[], object] = lambda: None, *, aborts: bool = False) -> None:
        """Run a transaction that waits for something before it ends, or fails."""
        try:
            with self.consumer.transaction() as transaction:
                for message in self.consumer.consume(AT_ONCE, 20.0):
                    transaction.produce(self.output, str(message.offset()), message.key())
                wait()
                if aborts:
                    raise ZeroDivisionError
        except (TransactionAbortedError, ZeroDivisionError):
            pass

    def check(self) -> None:
        """The output of each input exactly once, in the end."""
        with self.consumer:
            for _ in range(30):
                if len(outputs(self.broker, self.output)) >= RECORDS:
                    break
                self.run()
        found = Counter(offset for offset, _ in outputs(self.broker, self.output))
        assert found == Counter(range(RECORDS))


@pytest.mark.parametrize("aborts", [True, False], ids=["abort", "commit"])
def test_a_commit_that_arrives_amid_the_next_transaction(held: Proxied, aborts: bool) -> None:
    broker, proxy = held
    member = Member(broker)
    late = proxy.hold(member.ends(), member.writes())
    member.run()
    member.run(lambda: late.is_over.wait(60), aborts=aborts)
    member.check()
    assert late.error_code in REFUSALS


@pytest.mark.parametrize("aborts", [True, False], ids=["abort", "commit"])
def test_records_that_arrive_amid_the_next_transaction(held: Proxied, aborts: bool) -> None:
    """After a commit they are repetitions; after an abort, those of an older producer."""
    broker, proxy = held
    member = Member(broker)
    late = proxy.hold(member.writes(), member.writes())
    member.run(lambda: eventually(lambda: bool(late.frame)), aborts=aborts)
    member.run(lambda: late.is_over.wait(60))
    assert late.is_over.is_set()
    member.check()


def test_a_commit_that_arrives_before_a_process_is_killed(held: Proxied, tmp_path: Path) -> None:
    broker, proxy = held
    with closing(Processes(broker, broker.create_topic(), tmp_path)) as group:
        group.fill(400)
        name = f"{group.topic}-id"
        process, file = group.start(WHOLE, name)
        eventually(lambda: commits(file) >= 1)
        late = proxy.hold(
            Request(END_TRANSACTION, (name,)),
            Request(PRODUCE, (name, group.output)),
            then=process.kill,
        )
        group.fill(400)  # else it may have read all already, and ends no other transaction
        assert late.is_over.wait(SECONDS)
        process.wait()
        group.start(WHOLE, name)
        group.check()
        assert late.error_code in REFUSALS


def test_the_ledger_is_written_on(held: Proxied) -> None:
    """A decision that is committed twice does not end the next one before it is written."""
    broker, proxy = held
    query = Query(broker)
    name = f"kshare-ledger-{query.id}"
    late = proxy.hold(Request(END_TRANSACTION, (name,)), Request(ADD_PARTITIONS, (name,)))
    check_batches(query)
    assert late.error_code in REFUSALS


def test_a_task_of_a_later_batch(held: Proxied) -> None:
    """The one after the next has a task of the same transactional id."""
    broker, proxy = held
    query = Query(broker)
    name = f"kshare-{query.id}-r-0-0-0"
    late = proxy.hold(Request(END_TRANSACTION, (name,)), Request(PRODUCE, (name,)))
    check_batches(query)
    assert late.error_code in REFUSALS


def check_batches(query: Query) -> None:
    for batch in range(3):
        query.commit(query.prepare("r", batch), batch)
    query.coordinators.close()
    # The markers that end a transaction are written after its commit is answered.
    eventually(lambda: len(query.rows()) >= len(expected(0, 1, 2)))
    assert query.rows() == expected(0, 1, 2)
