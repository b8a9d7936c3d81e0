"""A member of a key-shared group: python docker/demo/consumer.py SERVERS TOPIC [PORT]

Its metrics are at /metrics of the port, its health at /healthz and /readyz. Start as many as you
like, also more than there are partitions. SIGTERM lets it commit and leave.
"""

import asyncio
import sys

from kshare.group import KeySharedConsumer, serve_metrics
from kshare.processing import Processor, Record, register_metrics


async def handle(order: Record) -> None:
    await asyncio.sleep(0.01 if order.key == b"customer-7" else 0.001)


def main(servers: str, topic: str, port: int = 9400) -> None:
    config = {
        "bootstrap.servers": servers,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    processor = Processor(handle, concurrency=32)
    register_metrics(processor)
    consumer = KeySharedConsumer(config)
    # Prometheus and the probes come from outside of the container.
    with serve_metrics(consumer, port, "0.0.0.0"):
        processor.run(consumer, [topic])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
