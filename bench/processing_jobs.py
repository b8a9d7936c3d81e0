"""Handlers by key in a plain process, against Confluent's Parallel Consumer (KEY order).

``python -m bench.processing_jobs SERVERS TOPIC RECORDS CONCURRENCY WORK GROUP LOW HIGH`` is one
process of ours: it handles the key hashes from LOW to HIGH of all partitions. Its event loop is the
one that ``Processor.run`` chooses, uvloop's as that is installed; ``KSHARE_BENCH_LOOP=asyncio`` is
the other one. It prints its CPU time, too. WORK is milliseconds to sleep, or an address to post
each record's value to. It begins when a line comes, and prints as JSON when its first call began
and its last one ended.

``python -m bench.processing_jobs loop RECORDS CONCURRENCY WORK`` is the same loop without kshare:
so many coroutines do the work again and again, and take nothing from anywhere.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a process of ours imports what it needs, and no more
    from bench.rows import Row
    from kshare.processing import Processor, Record

KEYS = 1_000
RECORDS = 100_000
VALUE = b"x" * 100


# -- one process of ours --------------------------------------------------------------------------


def expected(records: int, low: int, high: int) -> int:
    """How many records have such key hashes."""
    from kshare.core.hashing import key_hash

    keys = sum(low <= key_hash(b"key-%d" % key, 0) < high for key in range(KEYS))
    return keys * records // KEYS


Call = Callable[["Record"], Awaitable[None]]
Close = Callable[[], Awaitable[None]]


def sleeping(work: str) -> tuple[Call, Close]:
    seconds = int(work) / 1000

    async def nothing(_: "Record | None" = None) -> None:
        return

    async def sleep(_: "Record") -> None:
        await asyncio.sleep(seconds)

    return sleep if seconds else nothing, nothing


def posting(url: str, concurrency: int) -> tuple[Call, Close]:
    import aiohttp

    session: aiohttp.ClientSession | None = None

    async def post(record: "Record") -> None:
        nonlocal session
        if session is None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency))
        async with session.post(url, data=record.value) as answer:
            assert answer.status == 200

    async def close() -> None:
        assert session is not None
        await session.close()

    return post, close


def process(servers: str, topic: str, records: str, concurrency: str, *rest: str) -> None:
    """Handle records of a key range until all of them are handled."""
    from kshare.core.hashing import HASH_SPACE
    from kshare.group import KeySharedConsumer
    from kshare.processing import Processor

    choose_loop()
    work, group, low, high = rest
    left = expected(int(records), int(low), int(high))
    began = ended = 0.0
    is_web = work.startswith("http")
    call, close = posting(work, int(concurrency)) if is_web else sleeping(work)
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    consumer = KeySharedConsumer(config)

    async def handler(record: "Record") -> None:
        nonlocal began, ended, left
        began = began or time.time()
        await call(record)
        left -= 1
        if not left:
            ended = time.time()
            await close()
            os.kill(os.getpid(), signal.SIGTERM)

    partitions = partitions_of(servers, topic)
    whole = int(high) - int(low) == HASH_SPACE
    ranges = [] if whole else [(int(low), int(high))]
    consumer.assign({(topic, number): ranges for number in range(partitions)})
    print("ready", flush=True)
    sys.stdin.readline()
    Processor(handler, concurrency=int(concurrency)).run(consumer, None)
    print(json.dumps({"began": began, "ended": ended, "cpu": time.process_time()}))


def choose_loop() -> None:
    """Leave uvloop out, if that is wanted."""
    if os.environ.get("KSHARE_BENCH_LOOP") == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment] # as if it were not installed


def loop_alone(records: str, concurrency: str, work: str) -> None:
    """Do the work of as many records, and nothing else, in the loop that a processor has."""
    from kshare.processing.loop import new_event_loop

    choose_loop()
    left, seconds = int(records), int(work) / 1000

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await asyncio.sleep(seconds)

    async def all_workers() -> None:
        await asyncio.gather(*(worker() for _ in range(int(concurrency))))

    loop, began = new_event_loop(), time.time()
    loop.run_until_complete(all_workers())
    loop.close()
    print(json.dumps({"began": began, "ended": time.time(), "cpu": time.process_time()}))


def partitions_of(servers: str, topic: str) -> int:
    from confluent_kafka.admin import AdminClient

    topics = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=30).topics
    return len(topics[topic].partitions)


# -- both sides -----------------------------------------------------------------------------------


def ours(
    processes: int, servers: str, topic: str, records: int, concurrency: int, work: str
) -> float:
    """Records a second of some processes of ours."""
    from kshare.core.hashing import HASH_SPACE

    command = [sys.executable, "-m", "bench.processing_jobs", servers, topic, str(records)]
    command += [str(concurrency), work, f"bench-{uuid.uuid4().hex[:8]}"]
    bounds = [HASH_SPACE * at // processes for at in range(processes + 1)]
    running = [
        subprocess.Popen(
            [*command, str(low), str(high)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for low, high in pairwise(bounds)
    ]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    answers: list[dict[str, float]] = []
    for each in running:
        out, _ = each.communicate()
        assert each.returncode == 0
        answers.append(json.loads(out))
    last, first = max(each["ended"] for each in answers), min(each["began"] for each in answers)
    return records / (last - first)


def theirs(servers: str, topic: str, records: int, concurrency: int, work: str) -> float:
    """Records a second of a Parallel Consumer."""
    from integration.jars import fetched, java

    jars = os.pathsep.join(map(str, fetched("parallel-consumer")))
    source = Path(__file__).with_name("ParallelConsumerJob.java")
    command = [java(), "-cp", jars, str(source), servers, topic, str(records)]
    done = subprocess.run(
        [*command, str(concurrency), work], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds: float = json.loads(done.stdout)["seconds"]
    return records / seconds


def alone(records: int, concurrency: int, work: str) -> float:
    """Records a second of the event loop without kshare."""
    command = [sys.executable, "-m", "bench.processing_jobs", "loop"]
    command += [str(records), str(concurrency), work]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return records / (answer["ended"] - answer["began"])


@contextmanager
def web_server() -> Iterator[str]:
    """A server that answers at once; its address."""
    command = [sys.executable, "-m", "bench.http_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def filled(servers: str, partitions: int, records: int) -> str:
    """A new topic with so many records of all keys in turn."""
    from bench.data import new_topic
    from kshare.testing import produce

    topic = new_topic(servers, f"processing-{partitions}", partitions)
    config = {"linger.ms": 50, "compression.type": "lz4"}
    keyed = ((b"key-%d" % (number % KEYS), VALUE) for number in range(records))
    produce(servers, topic, keyed, config=config)
    return topic


class Case(NamedTuple):
    """What is measured.

    Attributes:
        work: Milliseconds of sleep, or "HTTP".
        concurrency: Maximum number of calls at a time, of each process.
        records: Number of records.
        processes: Number of processes of ours.
        at_least: How many times faster we should be.
        partitions: Numbers of partitions, each a row.
    """

    work: str
    concurrency: int
    records: int
    processes: int
    at_least: float
    partitions: tuple[int, ...] = (1, 8)


CASES = (
    Case("0", 100, RECORDS, 1, 1.5),
    Case("1", 100, RECORDS, 1, 1.0),
    Case("1", 100, RECORDS, 2, 2.0, (1,)),
    Case("10", 1_000, RECORDS, 1, 3.0),
    Case("50", 1_000, RECORDS, 1, 3.0),
    Case("HTTP", 100, RECORDS // 5, 2, 1.0),
)


def rows(servers: str, runs: int) -> "list[Row]":
    """Both sides in turn: records a second, best (median)."""
    return [*measured(servers, max(1, runs // 2), CASES), *scheduler_rows()]


def measured(servers: str, runs: int, cases: Sequence[Case]) -> "list[Row]":
    """A row for each case and number of partitions."""
    found = []
    topics: dict[tuple[int, int], str] = {}
    with web_server() as url:
        for case in cases:
            work = url if case.work == "HTTP" else case.work
            for partitions in case.partitions:
                place = partitions, case.records
                if place not in topics:
                    topics[place] = filled(servers, *place)
                job = servers, topics[place], case.records, case.concurrency, work
                rates = [(theirs(*job), ours(case.processes, *job)) for _ in range(runs)]
                found.append(row_of(case, partitions, rates))
                print(found[-1], flush=True)
    return found


CEILING = Case("10", 256, RECORDS, 1, 0.95, (1,))


def ceiling_rows(servers: str, runs: int) -> "list[Row]":
    """What part of what so many calls can do is done: of the work alone, and of a loop with it."""
    from bench.rows import Row

    case = CEILING
    most = case.concurrency * 1000 / int(case.work)
    job = servers, filled(servers, 1, case.records), case.records, case.concurrency, case.work
    rates = [(alone(*job[2:]), ours(1, *job)) for _ in range(max(1, runs))]
    loop, own = zip(*rates, strict=True)
    best, median = max(own) / most, statistics.median(own) / most
    of_loop = [mine / its for its, mine in rates]
    row = Row(
        f"{case.work} ms, {case.concurrency} at a time: {most / 1000:.1f} k/s are possible; the "
        "loop alone as the peer",
        shown_rate(loop),
        shown_rate(own),
        f"{best:.0%} ({median:.0%}) of it; of the loop's {max(of_loop):.0%} "
        f"({statistics.median(of_loop):.0%})",
        f">= {case.at_least:.0%}",
        median >= case.at_least,
    )
    print(row, flush=True)
    return [row]


def row_of(case: Case, partitions: int, rates: Sequence[tuple[float, float]]) -> "Row":
    from bench.rows import Row

    peer, own = zip(*rates, strict=True)
    best, median = max(own) / max(peer), statistics.median(own) / statistics.median(peer)
    work = case.work if case.work == "HTTP" else f"{case.work} ms"
    name = f"{work}, {partitions} partition{'s' * (partitions > 1)}, {case.concurrency:,} at a time"
    return Row(
        name + f", {case.processes} processes" * (case.processes > 1),
        shown_rate(peer),
        shown_rate(own),
        f"{best:.2f}x ({median:.2f}x)",
        f">= {case.at_least:g}x",
        median >= case.at_least,
    )


def shown_rate(rates: Sequence[float]) -> str:
    return f"{max(rates) / 1000:.1f} ({statistics.median(rates) / 1000:.1f}) k/s"


def scheduler_rows() -> "list[Row]":
    """What a scheduler alone costs: CPU a record, and memory with many busy keys."""
    from bench.rows import own_row

    cost = min(scheduler_cost() for _ in range(3)) * 1e6
    size = lanes_size(10_000) / (1 << 20)
    return [
        own_row("CPU a record of the scheduler", f"{cost:.1f} us", "< 8 us", cost < 8),
        own_row("memory of 10,000 busy keys", f"{size:.1f} MiB", "< 20 MiB", size < 20),
    ]


class _Source:
    def __init__(self) -> None:
        from kshare.core.progress import TopicPartition

        self.topic_partition = TopicPartition("orders", 0)

    def column(self, name: str) -> list[Any]:
        raise AssertionError(name)


def _processor() -> "Processor":
    from kshare.processing import Processor

    return Processor(lambda _: None, concurrency=100)


def _records(processor: "Processor", first: int, count: int, keys: int) -> "list[Record]":
    source = _Source()
    return [
        processor.record(source, at, at, b"key-%d" % (at % keys), VALUE)
        for at in range(first, first + count)
    ]


def scheduler_cost() -> float:
    """CPU seconds a record, from an offer to the outcome; records are made before."""
    from kshare.processing.core.scheduler import Scheduler

    processor = _processor()
    scheduler = Scheduler(processor.settings)
    batches = [_records(processor, at, 500, KEYS) for at in range(0, RECORDS, 500)]
    began = time.process_time()
    for batch in batches:
        scheduler.add(batch, 0.0)
        while call := scheduler.next_call(0.0):
            scheduler.done(call, 0.0)
        scheduler.outcomes.clear()
    return (time.process_time() - began) / RECORDS


def lanes_size(keys: int) -> int:
    """Bytes of so many lanes with a record each, in a scheduler; the keys and values included."""
    import tracemalloc

    from kshare.processing.core.scheduler import Scheduler

    processor = _processor()
    scheduler = Scheduler(processor.settings)
    tracemalloc.start()
    taken = scheduler.add(_records(processor, 0, keys, keys), 0.0)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken == keys
    return size


if __name__ == "__main__":
    if sys.argv[1] == "loop":
        loop_alone(*sys.argv[2:])
    else:
        process(*sys.argv[1:])
