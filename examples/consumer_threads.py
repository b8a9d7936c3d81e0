"""Threads that handle records, each key in order: python examples/consumer_threads.py SERVERS TOPIC

With ``max.in.flight.per.key=1`` a key's next record comes when its last one is acknowledged.
"""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kshare.group import KeySharedConsumer, Message


def bill(message: Message) -> None:
    print(message.offset(), message.key())


def main(servers: str, topic: str, handle: Callable[[Message], object] = bill) -> None:
    config = {
        "bootstrap.servers": servers,
        "group.id": "billing-threads",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
        "max.in.flight.per.key": 1,
    }

    def work(message: Message) -> None:
        handle(message)
        consumer.acknowledge(message)  # what failed is not acknowledged, and comes again

    with KeySharedConsumer(config) as consumer, ThreadPoolExecutor(16) as threads:
        consumer.subscribe([topic])
        for message in consumer:
            threads.submit(work, message)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
