"""Which files and functions of the product a record passes, by thread.

``python -m bench.walks`` prints the table of docs/design/walks.md; ``--files WALK`` lists the files
of one walk. Each walk is taken several times on mock brokers, with one record each time, once all
is warm. What every one of them passes counts: so a heartbeat or a look of the leader that happens
to come between does not.
"""

import argparse
import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kshare.errors import KafkaError
from kshare.group import KeySharedConsumer, Message
from kshare.options import parse_options
from kshare.processing import Processor, Record
from kshare.processing.runner import Runner
from kshare.testing import FakeCluster
from spark_plugin.readers import StreamReader

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = tuple(f"{ROOT / name}/" for name in ("kshare", "spark_plugin"))
MOCK = f"{ROOT / 'kshare/testing'}/"
TIMES = 5
PLAN, TASK, BATCH = (
    "a micro-batch: its plan",
    "a micro-batch: its task",
    "a micro-batch with its task",
)
POLL, ACKNOWLEDGE, COMMIT = "`poll` of one record", "`acknowledge`", "`commit`"
PROCESSOR = "a record through a `Processor`"
WALKS = (PLAN, TASK, BATCH, POLL, ACKNOWLEDGE, COMMIT, PROCESSOR)
TOPIC, LOG, GROUP = "orders", "__individual_commit_offsets", "billing"
WAIT_SECONDS = 60.0
LOG_SECONDS = 0.3  # the session's longest look at the log
POLL_SECONDS = 2 * LOG_SECONDS  # a poll waits so long, so one such look is in each

Function: TypeAlias = tuple[str, str]
"""A function: its file, from the root of the repository, and its qualified name."""
ByThread: TypeAlias = dict[str, set[Function]]


class Trace:
    """Notes the functions of the product that are called, while it is on.

    It is set up before other threads start, since Python 3.11 has no way to trace running ones.
    """

    def __init__(self) -> None:
        self._noted: ByThread | None = None

    def start(self) -> None:
        """See all threads that start from now on, and this one."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def stop(self) -> None:
        """See no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def on(self) -> Iterator[ByThread]:
        """Note what is called meanwhile."""
        noted: ByThread = defaultdict(set)
        self._noted = noted
        try:
            yield noted
        finally:
            self._noted = None

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        noted = self._noted
        if noted is None or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(PRODUCT) and not code.co_filename.startswith(MOCK):
            name = code.co_qualname.partition(".<locals>")[0]  # expressions are their function's
            file = str(Path(code.co_filename).relative_to(ROOT))
            noted[_role(threading.current_thread().name)].add((file, name))


def _role(thread: str) -> str:
    """The part of a thread's name that is the same in each run."""
    if thread == "MainThread":
        return "caller"
    # "kshare MEMBER" is a session's; those of pools are numbered.
    return "session" if thread.startswith("kshare ") else thread.partition("_")[0]


@dataclass
class Walk:
    """What the same walk has passed, each time that it was taken."""

    name: str
    taken: list[ByThread] = field(default_factory=list)

    def common(self) -> ByThread:
        """What each of them has passed, by thread."""
        threads = set(self.taken[0]).intersection(*self.taken[1:])
        common = {name: set.intersection(*(each[name] for each in self.taken)) for name in threads}
        return {name: functions for name, functions in common.items() if functions}


def files_of(functions: set[Function]) -> list[str]:
    """The files of some functions."""
    return sorted({file for file, _ in functions})


# -- the walks -------------------------------------------------------------------------------------


def settings(servers: str, **given: Any) -> dict[str, Any]:
    """The configuration of a consumer whose rebalances do not take long."""
    return {
        "bootstrap.servers": servers,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "claim.timeout.ms": 500,
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 3_000,  # few walks have one
        "fetch.max.wait.ms": int(LOG_SECONDS * 1000),
        "acknowledgement.mode": "explicit",
        **{name.replace("_", "."): value for name, value in given.items()},
    }


@contextmanager
def mock_cluster() -> Iterator[FakeCluster]:
    """A broker with one topic of one partition, and the log of groups."""
    with FakeCluster(topics={TOPIC: 1, LOG: 1}) as cluster:
        cluster.produce(TOPIC, [("k", "warm")], partition=0)
        yield cluster


def produced(cluster: FakeCluster, number: int) -> None:
    """Write one record."""
    cluster.produce(TOPIC, [("k", str(number))], partition=0)


def micro_batch(trace: Trace, cluster: FakeCluster) -> list[Walk]:
    """A micro-batch of one record: it is planned, and its task reads."""
    plan, task = Walk(PLAN), Walk(TASK)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
    }
    reader = StreamReader(parse_options(options, streaming=True).options)
    try:
        start = reader.initialOffset()
        for number in range(1 + TIMES):
            produced(cluster, number)
            with trace.on() as planned:
                end = reader.latestOffset(start, ReadAllAvailable())
                tasks = reader.partitions(start, end)
            with trace.on() as read:
                rows = sum(batch.num_rows for each in tasks for batch in reader.read(each))
            assert rows, "the batch is empty"
            start = end
            if number:  # the first one opens what the others use
                plan.taken.append(planned)
                task.taken.append(read)
    finally:
        reader.stop()
    return [plan, task, both(BATCH, plan, task)]


def both(name: str, *walks: Walk) -> Walk:
    """One walk after the other, as one."""
    joined = Walk(name)
    for taken in zip(*(walk.taken for walk in walks), strict=True):
        threads = {thread for each in taken for thread in each}
        joined.taken.append(
            {at: set().union(*(each.get(at, ()) for each in taken)) for at in threads}
        )
    return joined


def polled(consumer: KeySharedConsumer) -> Message:
    """The next record, however long it takes."""
    message = consumer.poll(WAIT_SECONDS)
    assert message is not None, "no record came"
    return message


def consumer_calls(trace: Trace, cluster: FakeCluster) -> list[Walk]:
    """A polled record, its acknowledgement and its commit, in a group of one member."""
    poll, acknowledge, commit = (
        Walk("`poll` of one record"),
        Walk("`acknowledge`"),
        Walk("`commit`"),
    )
    with KeySharedConsumer(
        settings(cluster.bootstrap_servers, enable_auto_commit=False)
    ) as consumer:
        consumer.subscribe([TOPIC])
        consumer.acknowledge(polled(consumer))
        while (message := consumer.poll(0.5)) is not None:
            consumer.acknowledge(message)
        consumer.commit(asynchronous=False)
        for number in range(TIMES):
            later = threading.Timer(POLL_SECONDS, produced, (cluster, number))
            with trace.on() as noted:
                later.start()
                message = polled(consumer)
            later.join()
            poll.taken.append(noted)
            with trace.on() as noted:
                consumer.acknowledge(message)
            acknowledge.taken.append(noted)
            with trace.on() as noted:
                consumer.commit(asynchronous=False)
            commit.taken.append(noted)
    return [poll, acknowledge, commit]


def processed(trace: Trace, cluster: FakeCluster) -> list[Walk]:
    """A record through a ``Processor``, until it is committed."""
    walk = Walk(PROCESSOR)
    handled = threading.Semaphore(0)

    async def handler(_: Record) -> None:
        handled.release()

    config = settings(cluster.bootstrap_servers, group_id=f"{GROUP}-processor")
    consumer = KeySharedConsumer({**config, "auto.commit.interval.ms": 100})
    runner = Runner(Processor(handler), consumer, (TOPIC,))
    thread = threading.Thread(target=lambda: asyncio.run(runner.run()), name="handlers")
    thread.start()
    offsets = Offsets(cluster.bootstrap_servers, f"{GROUP}-processor")
    try:
        end = offsets.end()
        offsets.wait_for(end)
        for number in range(TIMES):
            with trace.on() as noted:
                produced(cluster, number)
                assert handled.acquire(timeout=WAIT_SECONDS), "no record came"
                end += 1
                offsets.wait_for(end)
            walk.taken.append(noted)
    finally:
        runner.stop()
        thread.join()
        offsets.close()
    return [walk]


class Offsets:
    """What a group has committed of the partition, as Confluent's client sees it."""

    def __init__(self, servers: str, group: str) -> None:
        self._client = Consumer({"bootstrap.servers": servers, "group.id": group})
        self._at = Partition(TOPIC, 0)

    def end(self) -> int:
        """The end of the partition."""
        return int(self._client.get_watermark_offsets(self._at, WAIT_SECONDS)[1])

    def wait_for(self, offset: int) -> None:
        """Wait until this is committed."""
        waited = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.05)):
            if self._client.committed([self._at], WAIT_SECONDS)[0].offset >= offset:
                return
            waited.wait(0.05)
        raise KafkaError(f"{TOPIC}-0: offset {offset} is not committed")

    def close(self) -> None:
        """End the client."""
        self._client.close()


def all_walks() -> list[Walk]:
    """Take all walks, one after the other."""
    trace, walks = Trace(), list[Walk]()
    trace.start()
    try:
        for take in (micro_batch, consumer_calls, processed):
            with ExitStack() as stack:
                walks += take(trace, stack.enter_context(mock_cluster()))
    finally:
        trace.stop()
    return walks


# -- what is printed -------------------------------------------------------------------------------


def table(walks: list[Walk]) -> str:
    """A line for each walk: files and functions of all threads, then of each."""
    lines = [
        "| walk | files | functions | threads | files (functions) of each thread |",
        "|---|---:|---:|---:|---|",
    ]
    for walk in walks:
        common = walk.common()
        passed = set().union(*common.values())
        by_files = sorted(common.items(), key=lambda each: (-len(files_of(each[1])), each[0]))
        each = ", ".join(f"{name} {len(files_of(of))} ({len(of)})" for name, of in by_files)
        cells = [walk.name, len(files_of(passed)), len(passed), len(common), each]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def listing(walk: Walk) -> str:
    """The files of a walk by thread, with how many functions of each."""
    lines = []
    for name, functions in walk.common().items():
        lines.append(f"{name}:")
        lines += [
            f"  {file} {sum(at == file for at, _ in functions)}" for file in files_of(functions)
        ]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Print the table, or the files of walks."""
    parser = argparse.ArgumentParser(prog="python -m bench.walks", description=__doc__)
    parser.add_argument("--files", help="list the files of walks whose names hold this text")
    given = parser.parse_args(arguments)
    walks = all_walks()
    if given.files is None:
        print(table(walks))
    for walk in walks if given.files is not None else ():
        if given.files in walk.name:
            print(f"{walk.name}\n{listing(walk)}")


if __name__ == "__main__":
    main(sys.argv[1:])
