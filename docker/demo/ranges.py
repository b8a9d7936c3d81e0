"""One of several pods with key ranges of their own:

    python docker/demo/ranges.py SERVERS TOPIC PARTITIONS POD PODS [PORT]

POD ends with the pod's number, as `shipping-2` does; PODS is how many there are. Each has the same
share of the key hashes of each partition. There is no rebalance: a pod that is started again claims
what it had. SIGTERM lets it commit and give its claims up.
"""

import asyncio
import sys

import kshare
from kshare.group import KeySharedConsumer, serve_metrics
from kshare.processing import Processor, Record, register_metrics

Assignment = dict[tuple[str, int], list[kshare.HashRange]]


async def handle(order: Record) -> None:
    await asyncio.sleep(0.01 if order.key == b"customer-7" else 0.001)


def assignment(topic: str, partitions: int, pod: str, pods: int) -> Assignment:
    number = int(pod.rpartition("-")[2])
    if number >= pods:
        raise SystemExit(f"pod {pod} has no key ranges: they are for {pods} pods, from number 0")
    mine = kshare.hash_ranges(pods)[number]
    return {(topic, partition): [mine] for partition in range(partitions)}


def main(servers: str, topic: str, partitions: int, pod: str, pods: int, port: int = 9400) -> None:
    config = {
        "bootstrap.servers": servers,
        "group.id": "shipping",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    processor = Processor(handle, concurrency=32)
    register_metrics(processor)
    consumer = KeySharedConsumer(config)
    consumer.assign(assignment(topic, partitions, pod, pods))
    # Prometheus and the probes come from outside of the container.
    with serve_metrics(consumer, port, "0.0.0.0"):
        processor.run(consumer, None)


if __name__ == "__main__":
    _, servers, topic, partitions, pod, pods, *port = sys.argv
    main(servers, topic, int(partitions), pod, int(pods), *map(int, port))
