"""Consuming without Spark, each job in a process of its own: ``python -m bench.group_jobs JOB ...``.

``loop SERVERS TOPIC``          ``for message in consumer``, ``value()`` of each
``explicit SERVERS TOPIC``      the same, and ``acknowledge`` of each, with a commit a second
``batches SERVERS TOPIC``       ``consume_batch``
``confluent-loop SERVERS TOPIC``  confluent-kafka's ``consume(500)``, ``value()`` of each
``commits SERVERS TOPIC``       the median time of ``commit()``, and the log's bytes a gap
``acknowledge SERVERS TOPIC``   CPU a second of 100,000 acknowledgements a second
``restore SERVERS TOPIC``       a group with a million gaps on a real log
``work SERVERS TOPIC GROUP LO HI``  1 ms of work a record of a key range, until none comes

Each prints its seconds, CPU seconds and records, and its peak memory above imports, as JSON.
"""

import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

Measured = dict[str, float]
WORK_RECORDS = 4_000


def consumer_of(servers: str, **config: Any) -> Any:
    from kshare.group import KeySharedConsumer

    given = {name.replace("__", "."): value for name, value in config.items()}
    base = {
        "bootstrap.servers": servers,
        "group.id": f"bench-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
    }
    return KeySharedConsumer(base | given)


def end_of(servers: str, topic: str) -> int:
    from kshare.testing.records import watermarks

    return watermarks(servers, topic, 0)[1]


def assigned(servers: str, topic: str, **config: Any) -> tuple[Any, int]:
    """A consumer of a whole partition that has started, and the number of its records."""
    end, consumer = end_of(servers, topic), consumer_of(servers, **config)
    consumer.assign({(topic, 0): []})
    consumer.pause([(topic, 0)])
    while not consumer.position():
        consumer.poll(0.01)
    consumer.resume([(topic, 0)])
    return consumer, end


def loop(servers: str, topic: str) -> Measured:
    consumer, end = assigned(servers, topic)

    def read() -> int:
        count = 0
        for message in consumer:
            message.value()
            count += 1
            if count == end:
                break
        return count

    return timed(read, consumer)


def explicit(servers: str, topic: str) -> Measured:
    mode = {"acknowledgement__mode": "explicit", "auto__commit__interval__ms": 1000}
    consumer, end = assigned(servers, topic, **mode)

    def read() -> int:
        count = 0
        for message in consumer:
            message.value()
            consumer.acknowledge(message)
            count += 1
            if count == end:
                break
        return count

    return timed(read, consumer)


def batches(servers: str, topic: str) -> Measured:
    consumer, end = assigned(servers, topic)

    def read() -> int:
        count = 0
        while count < end:
            batch = consumer.consume_batch(1.0)
            count += 0 if batch is None else batch.num_rows
        return count

    return timed(read, consumer)


def confluent_loop(servers: str, topic: str) -> Measured:
    from confluent_kafka import Consumer, TopicPartition

    end = end_of(servers, topic)
    config: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": "bench",
        "enable.auto.commit": False,
    }
    config |= {
        "queued.max.messages.kbytes": 1 << 17,
        "queued.min.messages": 1_000_000,  # or it stops fetching for a second, now and then
        "fetch.queue.backoff.ms": 10,
        "fetch.message.max.bytes": 4 << 20,
    }
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])

    def read() -> int:
        count = 0
        while count < end:
            for message in consumer.consume(500, 1.0):
                message.value()
                count += 1
        return count

    return timed(read, consumer)


def commits(servers: str, topic: str) -> Measured:
    mode = {"acknowledgement__mode": "explicit", "enable__auto__commit": False}
    consumer, _ = assigned(servers, topic, **mode)
    times = []
    for _ in range(100):
        for message in consumer.consume(500, 5.0)[::2]:  # every other one is a gap
            consumer.acknowledge(message)
        began = time.perf_counter()
        consumer.commit()
        times.append(time.perf_counter() - began)
    consumer.close()
    return {"seconds": statistics.median(times), "best": min(times), "worst": max(times)}


def confluent_commits(servers: str, topic: str) -> Measured:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"bench-{uuid.uuid4().hex[:8]}",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    times = []
    for _ in range(100):
        last = consumer.consume(500, 5.0)[-1].offset() or 0
        began = time.perf_counter()
        consumer.commit(offsets=[TopicPartition(topic, 0, last + 1)], asynchronous=False)
        times.append(time.perf_counter() - began)
    consumer.close()
    return {"seconds": statistics.median(times), "best": min(times), "worst": max(times)}


def acknowledge(servers: str, topic: str) -> Measured:
    mode = {"acknowledgement__mode": "explicit", "auto__commit__interval__ms": 1000}
    consumer, _ = assigned(servers, topic, **mode)
    messages = consumer.consume(1_000_000, 20.0)
    began, cpu, count = time.perf_counter(), time.process_time(), 0
    for number, message in enumerate(messages):
        if number % 1000 == 0:
            time.sleep(max(0.0, began + count / 100_000 - time.perf_counter()))
            consumer.poll(0.0)
        if number % 7:
            consumer.acknowledge(message)
            count += 1
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    consumer.close()
    return {"seconds": seconds, "cpu": cpu, "records": count}


def work(servers: str, topic: str, group: str, low: str, high: str) -> Measured:
    consumer = consumer_of(servers, group__id=group)
    consumer.assign({(topic, 0): [(int(low), int(high))]})
    while not consumer.position():
        consumer.poll(0.01)
    print("ready", flush=True)
    count, first = 0, 0.0
    while (message := consumer.poll(5.0 if count else 60.0)) is not None:
        first = first or time.time()
        count += 1
        last = time.time()
        until = time.perf_counter() + 0.001
        time.sleep(0.001)
        while time.perf_counter() < until:
            pass
        message.value()
    consumer.commit()
    consumer.close()
    return {"records": count, "first": first, "last": last + 0.001}


def restore(servers: str, topic: str) -> Measured:
    """A group with a million gaps on a real log: how long its next consumer takes to start."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    mode = {"acknowledgement__mode": "explicit", "enable__auto__commit": False, "group__id": name}
    consumer, _ = assigned(servers, topic, **mode)
    gaps = 0
    while gaps < 999_000:  # a million unacknowledged records are all that a consumer has
        batch = consumer.consume_batch(10.0)
        consumer.acknowledge_batch(batch.take(pa.array(range(1, batch.num_rows, 2))))
        gaps += (batch.num_rows + 1) // 2
    began = time.perf_counter()
    consumer.commit()
    committed = time.perf_counter() - began
    consumer.close()
    began = time.perf_counter()
    consumer = consumer_of(servers, **mode)
    consumer.assign({(topic, 0): []})
    first = consumer.consume_batch(30.0)
    seconds = time.perf_counter() - began
    consumer.close()
    assert first.column("offset")[0].as_py() == 0
    return {"seconds": seconds, "commit": committed, "records": gaps}


def timed(read: Callable[[], int], consumer: Any) -> Measured:
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    began, cpu = time.perf_counter(), time.process_time()
    count = read()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    highest = peak()
    consumer.close()
    memory = {"above": (highest - before) / (1 << 20), "peak": highest / (1 << 20)}
    return {"seconds": seconds, "cpu": cpu, "records": count, **memory}


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    ]
    return int(line.split()[1]) * 1024


JOBS: dict[str, Callable[..., Measured]] = {
    "loop": loop,
    "explicit": explicit,
    "batches": batches,
    "confluent-loop": confluent_loop,
    "commits": commits,
    "confluent-commits": confluent_commits,
    "acknowledge": acknowledge,
    "restore": restore,
    "work": work,
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
