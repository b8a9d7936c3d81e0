"""How a consumer's transaction ends: the consumer is closed amid it, or its beginning is cancelled.

On the mock cluster. A signal handler closes a consumer amid whatever its thread does.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from kshare.errors import ConsumerClosedError, TransactionAbortedError
from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer
from kshare.group.consumer.processed import Processed
from kshare.group.consumer.transaction import Transaction, Transactions
from kshare.group.session.transaction_log import TransactionLog
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until
from tests.support.groups import T0, UPPER
from tests.support.transactions import (
    cluster_with_records,
    committed,
    consumers_of,
    copy,
    outputs,
    settings,
)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with cluster_with_records() as running:
        yield running


@pytest.fixture
def make(cluster: FakeCluster) -> Iterator[Callable[..., KeySharedConsumer]]:
    with consumers_of(cluster) as made:
        yield made


def test_after_the_end_there_is_no_transaction(make: Callable[..., KeySharedConsumer]) -> None:
    consumer = make()
    consumer.assign({T0: []})
    consumer.close()
    with pytest.raises(ConsumerClosedError), consumer.transaction():
        raise AssertionError("it has begun")


def test_a_signal_handler_closes_amid_the_block(
    make: Callable[..., KeySharedConsumer], cluster: FakeCluster
) -> None:
    consumer = make()
    consumer.assign({T0: []})

    def close_amid_the_block() -> None:
        with consumer.transaction() as transaction:
            copy(consumer, transaction, 20)
            consumer.close()
            transaction.produce("invoices", b"late")

    with pytest.raises(TransactionAbortedError, match="the consumer was closed"):
        close_amid_the_block()
    assert committed(cluster)[T0].stable == 0


@pytest.mark.parametrize("step", ["is_settled", "next_action", "committed"])
def test_a_signal_handler_closes_amid_the_beginning_or_the_commit(
    make: Callable[..., KeySharedConsumer],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    original = getattr(TransactionLog, step)
    ended: list[bool] = []

    def interrupted(self: TransactionLog, *arguments: Any, **named: Any) -> Any:
        consumer.close()  # as the handler does, amid this call
        ended.append(consumer._state.has_ended)
        return original(self, *arguments, **named)

    monkeypatch.setattr(TransactionLog, step, interrupted)
    taken: list[int] = []
    aborts = pytest.raises(TransactionAbortedError, match="the consumer was closed")
    is_decided = step == "committed"
    with nullcontext() if is_decided else aborts, consumer.transaction() as transaction:
        taken = copy(consumer, transaction, 20)
    assert ended[0] is False
    assert consumer._state.has_ended
    if is_decided:
        assert outputs(cluster) == taken == list(range(20))
    assert committed(cluster)[T0].stable == (len(taken) if is_decided else 0)


def test_a_transaction_that_is_over_takes_nothing_more(
    make: Callable[..., KeySharedConsumer], cluster: FakeCluster
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    with consumer.transaction() as first:
        assert copy(consumer, first, 5) == list(range(5))
    with (
        consumer.transaction() as second,
        pytest.raises(RuntimeError, match="the transaction is over"),
    ):
        first.produce("invoices", b"99")
    second_end = pytest.raises(RuntimeError, match="the transaction is over")
    with second_end:
        second.produce("invoices", b"99")
    assert outputs(cluster) == list(range(5))


def test_after_an_abort_the_position_is_where_records_come_again(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make()
    consumer.assign({T0: []})
    with consumer.transaction() as transaction:
        copy(consumer, transaction, 5)

    def fail() -> None:
        with consumer.transaction() as transaction:
            copy(consumer, transaction, 5)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    until(lambda: consumer.position().get(T0, 5) == 5)


def test_a_handler_closes_amid_a_rebalance_at_the_beginning(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer, revoked = make(), list[object]()
    consumer.subscribe(["orders"], lambda _: consumer.close(), revoked.append)

    def begin() -> None:
        while True:
            with consumer.transaction():
                consumer.poll(0.1)

    with pytest.raises((ConsumerClosedError, TransactionAbortedError)):
        begin()
    assert consumer._state.has_ended
    assert revoked  # what it owned, as amid a poll


def test_another_thread_closes_before_a_rebalance_at_the_beginning(
    make: Callable[..., KeySharedConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, revoked = make(), list[object]()
    consumer.subscribe(["orders"], on_revoked=revoked.append)
    taken: list[int] = []
    while not taken:
        with consumer.transaction() as transaction:
            taken = copy(consumer, transaction, 5)
    subscriber = consumer.receiver.subscriber
    assert subscriber is not None
    subscriber.member.fenced()

    def closes(_: Transactions) -> None:
        closer = threading.Thread(target=consumer.close)
        closer.start()
        closer.join()

    monkeypatch.setattr(Transactions, "resolve", closes)
    with pytest.raises(ConsumerClosedError), consumer.transaction():
        raise AssertionError("it has begun")
    assert len(revoked) == 1


def test_closing_ends_the_wait_for_what_comes_before(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make()
    consumer.assign({T0: [UPPER]})
    with consumer.transaction() as transaction:
        copy(consumer, transaction, 5)
    closer = threading.Timer(1.0, consumer.close)
    began = time.monotonic()

    def close_while_it_waits() -> None:
        with consumer.transaction() as transaction:
            copy(consumer, transaction, 5)
            closer.start()

    with pytest.raises(TransactionAbortedError, match="the consumer was closed"):
        close_while_it_waits()
    closer.join()
    assert time.monotonic() - began < 20
    assert consumer._state.has_ended


def test_closing_aborts(make: Callable[..., KeySharedConsumer], cluster: FakeCluster) -> None:
    consumer = make()
    consumer.assign({T0: []})

    def write_and_close(transaction: Transaction) -> None:
        transaction.produce("invoices", b"7")
        consumer.close()

    with (
        pytest.raises(TransactionAbortedError, match="the consumer was closed"),
        consumer.transaction() as transaction,
    ):
        write_and_close(transaction)
    with pytest.raises(RuntimeError, match="Consumer closed"), consumer.transaction():
        pass


def test_closing_amid_a_transaction_with_asyncio(cluster: FakeCluster) -> None:
    async def run() -> None:
        consumer = AsyncKeySharedConsumer(settings(cluster))
        await consumer.assign({T0: []})

        async def work(has_begun: asyncio.Event, may_end: asyncio.Event) -> None:
            async with consumer.transaction() as transaction:
                for message in await consumer.consume(20, WAIT_S):
                    transaction.produce("invoices", message.value())
                has_begun.set()
                await may_end.wait()

        events = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(work(*events))
        await events[0].wait()
        await consumer.close()
        events[1].set()
        with pytest.raises(TransactionAbortedError, match="the consumer was closed"):
            await task
        with pytest.raises(ConsumerClosedError):
            await work(*events)

    asyncio.run(run())
    assert committed(cluster)[T0].stable == 0


def test_a_beginning_that_is_cancelled_leaves_no_transaction_open(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = threading.Event(), threading.Event()
    begin = Processed.begin_transaction

    def slowly(self: Processed) -> int:
        began.set()
        assert may_go_on.wait(WAIT_S)
        return begin(self)

    monkeypatch.setattr(Processed, "begin_transaction", slowly)

    async def run() -> list[int]:
        async with AsyncKeySharedConsumer(settings(cluster)) as consumer:
            await consumer.assign({T0: []})

            async def copy_once() -> list[int]:
                async with consumer.transaction() as transaction:
                    messages = await consumer.consume(5, WAIT_S)
                    for message in messages:
                        transaction.produce("invoices", message.value())
                    return [message.offset() for message in messages]

            task = asyncio.create_task(copy_once())
            await asyncio.to_thread(began.wait, WAIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as kept:  # with all that it refers to
                await task
            may_go_on.set()
            again = await copy_once()
            del kept
            return again

    assert asyncio.run(run()) == list(range(5))
