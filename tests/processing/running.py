"""A processor over a consumer, on a mock cluster with records of ten keys."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import Processor, Retry
from kshare.processing.runner import Runner
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S

ORDERS = TopicPartition("orders", 0)
RECORDS = 300
ROWS = [(f"k{at % 10}", str(at)) for at in range(RECORDS)]
SOON = Retry(attempts=2, first=0.001, most=0.01)


def run(
    processor: Processor,
    consumer: KeySharedConsumer,
    until: Callable[[], bool],
    seconds: float = WAIT_S,
) -> None:
    """Run until something is so; then stop as a signal would."""
    runner = Runner(processor, consumer, None)
    deadline, is_over = time.monotonic() + seconds, list[bool]()

    def watch() -> None:
        while not until() and time.monotonic() < deadline and not is_over:
            time.sleep(0.01)
        runner.stop()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        asyncio.run(runner.run())
    finally:
        is_over.append(True)
        thread.join()


def letters(cluster: FakeCluster, count: int) -> list[tuple[Any, dict[str, Any]]]:
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader"})
    reader.assign([Partition("dlq", 0, 0)])
    messages = reader.consume(count, WAIT_S)
    reader.close()
    return [(message.value(), dict(message.headers() or ())) for message in messages]
