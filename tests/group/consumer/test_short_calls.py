"""Calls without a time to wait, with pauses between them: each goes on where the last one ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kshare.group.consumer.async_consumer import AsyncKeySharedConsumer
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.group.consumer.records import ORDERS
from tests.support.short_calls import CALLS, SLOW_MS, after_a_pause

Receive = Callable[[KeySharedConsumer], Any]


def in_a_loop(consumer: KeySharedConsumer) -> AsyncKeySharedConsumer:
    return AsyncKeySharedConsumer({}, consumer=lambda _: consumer)


RECEIVE: dict[str, Receive] = {
    "poll": lambda consumer: consumer.poll(0),
    "consume": lambda consumer: consumer.consume(1, 0),
    "consume_batch": lambda consumer: consumer.consume_batch(0),
    "async poll": lambda consumer: asyncio.run(in_a_loop(consumer).poll(0)),
    "async consume": lambda consumer: asyncio.run(in_a_loop(consumer).consume(1, 0)),
    "async consume_batch": lambda consumer: asyncio.run(in_a_loop(consumer).consume_batch(0)),
}


@pytest.mark.parametrize("receive", RECEIVE.values(), ids=RECEIVE)
def test_records_come_within_a_few_calls(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer], receive: Receive
) -> None:
    cluster.delay(1, SLOW_MS)
    consumer = make()
    consumer.assign({ORDERS: []})
    for value in range(3):
        cluster.produce("orders", [("k", f"{value}")], partition=0)
        received = 0
        for _ in range(CALLS):
            after_a_pause(consumer._dispatcher._reader)
            received += receive(consumer) not in (None, [])
        assert received == 1
