"""A member of a key-shared group: python docker/demo/consumer.py SERVERS TOPIC [PORT]

Its metrics are at /metrics of the port, its health at /healthz and /readyz. Start as many as you
like, also more than there are partitions. SIGTERM lets it commit and leave.
"""

import signal
import sys
import time

from kshare.group import KeySharedConsumer, Message, serve_metrics


def handle(order: Message) -> None:
    time.sleep(0.01 if order.key() == b"customer-7" else 0.001)


def main(servers: str, topic: str, port: int = 9400) -> None:
    config = {
        "bootstrap.servers": servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "acknowledgement.mode": "explicit",
    }
    with KeySharedConsumer(config) as consumer, serve_metrics(consumer, port):
        signal.signal(signal.SIGTERM, lambda *_: consumer.close())
        consumer.subscribe([topic])
        for order in consumer:
            handle(order)
            consumer.acknowledge(order)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
