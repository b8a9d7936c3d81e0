"""Receiving as a member of a group: ``python -m bench.receive_jobs JOB SERVERS TOPIC``.

``consume``     ``consume(500)``
``explicit``    the same, and ``acknowledge`` of each
``async``       ``async for message in consumer``
``async-poll``  ``await poll`` one by one
``poll``        ``poll`` one by one
``confluent``, ``confluent-poll``  the same by confluent-kafka
``confluent-10ms``, ``confluent-poll-10ms``  with ``fetch.queue.backoff.ms=10``, in place of 1,000:
                so long it sleeps whenever its queue is full
``confluent-aio``  ``await poll`` one by one of its ``AIOConsumer``, some of the records

``live``        ``poll``, of a record each 3 ms for 3 s, to a topic that is empty: milliseconds from
                the call that produces one to its return, and microseconds of CPU time a record

All subscribe, and read key and value of each record. Each prints its seconds from the first record
on, those of CPU time of all its threads, its records, and its peak memory in MiB, as JSON. To
compare two trees, run a job of each in turn.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a process that receives imports what its consumer needs, and no more
    from bench.rows import Row


Measured = dict[str, float]
RECORDS = 1_000_000
AIO = 20_000


class Count:
    """Counts records, and reads key and value of each."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.records = 0
        self._first = 0
        self._began = self._cpu_began = 0.0

    def take(self, messages: Iterable[Any]) -> None:
        """Take the next records."""
        number = 0
        for message in messages:
            message.key()
            message.value()
            number += 1
        self.add(number)

    def add(self, number: int) -> None:
        """So many more are read."""
        if number and not self.records:
            self._began, self._first = time.perf_counter(), number
            self._cpu_began = time.process_time()
        self.records += number

    @property
    def is_over(self) -> bool:
        """Whether all have come."""
        return self.records >= self.wanted

    def measured(self) -> Measured:
        """What a job prints."""
        seconds = time.perf_counter() - self._began
        records = self.records - self._first
        cpu = (time.process_time() - self._cpu_began) * self.wanted / records
        seconds *= self.wanted / records
        return {
            "seconds": seconds,
            "cpu": cpu,
            "records": self.wanted,
            "peak": peak() / (1 << 20),
        }


def settings(servers: str, **more: Any) -> dict[str, Any]:
    """The configuration of both sides."""
    return {
        "bootstrap.servers": servers,
        "group.id": f"bench-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
        **{name.replace("__", "."): value for name, value in more.items()},
    }


def kshare(servers: str, topic: str, receive: Callable[[Any, Count], None], **more: Any) -> Count:
    """Receive all by a consumer."""
    from kshare.group import KeySharedConsumer

    count = Count(RECORDS)
    with KeySharedConsumer(settings(servers, **more)) as consumer:
        consumer.subscribe([topic])
        receive(consumer, count)
        return count


def consume(consumer: Any, count: Count) -> None:
    while not count.is_over:
        count.take(consumer.consume(500, 1.0))


def explicit(consumer: Any, count: Count) -> None:
    while not count.is_over:
        messages = consumer.consume(500, 1.0)
        count.take(messages)
        for message in messages:
            consumer.acknowledge(message)


def poll(consumer: Any, count: Count) -> None:
    while not count.is_over:
        message = consumer.poll(1.0)
        if message is not None:
            message.key()
            message.value()
            count.add(1)


def loop(servers: str, topic: str) -> Count:
    """``async for``."""
    from kshare.group import AsyncKeySharedConsumer

    count = Count(RECORDS)

    async def run() -> None:
        async with AsyncKeySharedConsumer(settings(servers)) as consumer:
            await consumer.subscribe([topic])
            async for message in consumer:
                message.key()
                message.value()
                count.add(1)
                if count.is_over:
                    return

    asyncio.run(run())
    return count


async def poll_all(consumer: Any, count: Count) -> None:
    while not count.is_over:
        message = await consumer.poll(1.0)
        if message is not None:
            message.key()
            message.value()
            count.add(1)


def async_poll(servers: str, topic: str) -> Count:
    from kshare.group import AsyncKeySharedConsumer

    count = Count(RECORDS)

    async def run() -> None:
        async with AsyncKeySharedConsumer(settings(servers)) as consumer:
            await consumer.subscribe([topic])
            await poll_all(consumer, count)

    asyncio.run(run())
    return count


def confluent_aio(servers: str, topic: str) -> Count:
    from confluent_kafka.aio import AIOConsumer

    count = Count(AIO)

    async def run() -> None:
        consumer = AIOConsumer(settings(servers))
        await consumer.subscribe([topic])
        await poll_all(consumer, count)
        await consumer.close()

    asyncio.run(run())
    return count


def confluent(
    servers: str, topic: str, receive: Callable[[Any, Count], None], **more: Any
) -> Count:
    """Receive all by confluent-kafka."""
    from confluent_kafka import Consumer

    count = Count(RECORDS)
    consumer = Consumer(settings(servers, **more))
    consumer.subscribe([topic])
    receive(consumer, count)
    consumer.close()
    return count


PRODUCES = """
import sys, time
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 0})
end = time.time() + float(sys.argv[3])
while time.time() < end:
    producer.produce(sys.argv[2], b"%.6f" % time.time(), b"key")
    producer.poll(0)
    time.sleep(0.003)
producer.produce(sys.argv[2], b"", b"key")
producer.flush()
"""


class Live:
    """What records have waited that came one by one."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.cpu = 0.0

    def measured(self) -> Measured:
        """What a job prints."""
        ordered = sorted(self.waited)
        shares = {"median": 0.5, "90 %": 0.9, "99 %": 0.99}
        at = {name: ordered[int(len(ordered) * share)] * 1e3 for name, share in shares.items()}
        return at | {"cpu": self.cpu / len(ordered) * 1e6, "records": len(ordered)}


def live(servers: str, topic: str) -> Live:
    """Receive records while they are produced; the first ones find what is loaded only then."""
    from kshare.group import KeySharedConsumer

    found, skipped = Live(), 50
    with KeySharedConsumer(settings(servers)) as consumer:
        consumer.subscribe([topic])
        consumer.poll(1.0)
        command = [sys.executable, "-c", PRODUCES, servers, topic, "3"]
        with subprocess.Popen(command):
            while (message := consumer.poll(10.0)) is not None and (sent := message.value()):
                message.key()
                skipped -= 1
                if skipped == 0:
                    found.cpu -= time.process_time()
                elif skipped < 0:
                    found.waited.append(time.time() - float(sent))
        found.cpu += time.process_time()
        return found


EXPLICIT = {"acknowledgement__mode": "explicit"}
SOON = {"fetch__queue__backoff__ms": 10}
JOBS: dict[str, Callable[[str, str], Count | Live]] = {
    "consume": lambda servers, topic: kshare(servers, topic, consume),
    "explicit": lambda servers, topic: kshare(servers, topic, explicit, **EXPLICIT),
    "async": loop,
    "poll": lambda servers, topic: kshare(servers, topic, poll),
    "async-poll": async_poll,
    "confluent": lambda servers, topic: confluent(servers, topic, consume),
    "confluent-aio": confluent_aio,
    "confluent-poll": lambda servers, topic: confluent(servers, topic, poll),
    "confluent-10ms": lambda servers, topic: confluent(servers, topic, consume, **SOON),
    "confluent-poll-10ms": lambda servers, topic: confluent(servers, topic, poll, **SOON),
    "live": live,
}


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if "VmHWM" in line)


def rows(servers: str, runs: int) -> "list[Row]":
    """Both sides in turn."""
    from bench.data import new_topic
    from bench.rows import interleaved, own_row, speed_row
    from kshare.testing import produce

    topic = new_topic(servers, "receive")
    value = b"x" * 100
    for first in range(0, RECORDS, 100_000):
        produce(
            servers,
            topic,
            ((b"key-%d" % (i % 10_000), value) for i in range(first, first + 100_000)),
        )
    peaks: dict[str, list[float]] = {}

    def seconds(job: str) -> float:
        command = [sys.executable, "-m", "bench.receive_jobs", job, servers, topic]
        # Modules that each process compiles anew would count as its memory.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        measured: Measured = json.loads(done.stdout)
        peaks.setdefault(job, []).append(measured["peak"])
        return measured["seconds"] * RECORDS / measured["records"]

    found = []
    for name, peer, ours, target in (
        ("consume(500)", "confluent", "consume", 1.2),
        ("consume(500), all acknowledged", "confluent", "explicit", 1.1),
        ("async for / consume(500)", "confluent", "async", 0.8),
        ("poll", "confluent-poll", "poll", 1.5),
        ("consume(500), peer's queue backoff 10 ms", "confluent-10ms", "consume", 1.0),
        ("the same, all acknowledged", "confluent-10ms", "explicit", 0.95),
        ("the same, async for", "confluent-10ms", "async", 0.6),
        ("poll, peer's queue backoff 10 ms", "confluent-poll-10ms", "poll", 1.5),
        ("await poll / AIOConsumer's", "confluent-aio", "async-poll", 2.0),
        ("await poll / our own poll", "poll", "async-poll", 0.5),
        ("async for / our own poll", "poll", "async", 0.5),
    ):
        times = interleaved(lambda: seconds(peer), lambda: seconds(ours), runs)  # noqa: B023
        found.append(speed_row(name, RECORDS, times, target))
        print(found[-1], flush=True)
    for job in ("consume", "explicit", "async", "poll", "confluent"):
        highest = max(peaks[job]) * 1.048576
        shown, most = f"{highest:.0f} MB", "-" if job == "confluent" else "<= 160 MB"
        found.append(own_row(f"peak memory: {job}", shown, most, highest <= 160))
    return found


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:]).measured()))
