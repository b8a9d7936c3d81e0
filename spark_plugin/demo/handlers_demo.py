"""``kshare demo --handlers``: slow work for many keys at a time; one fails, the order holds.

::

    produce --> handle, 1 ms each --> handled ----------+--> verdict
                   |                                    |
                   +--> fails 3 times --> dead letters -+

No Spark, no Java: without a real cluster the broker is embedded. Nothing is left behind there.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from kshare.core.hashing import HASH_SPACE, key_hash
from kshare.errors import KshareError
from kshare.group import KeySharedConsumer
from kshare.processing import DeadLetter, Processor, Record, Retry, Status
from kshare.processing.core.lane import Lane, State
from kshare.processing.runner import Runner
from kshare.testing import produce, skewed_records
from kshare.testing.records import watermarks
from spark_plugin.demo.topic import Say, temporary_topic
from spark_plugin.demo.verdict import Row, order_of, say_verdict

__all__ = ["lane_bar", "run_handlers"]

_RECORDS: Final = 200_000
_KEYS: Final = 1_000
_SKEW: Final = 0.5
_CONCURRENCY: Final = 256
_WORK_SECONDS: Final = 0.001
_RETRY: Final = Retry(attempts=3, first="20ms", most="1s")
_SHOW_SECONDS: Final = 0.5
_WAIT_SECONDS: Final = 30.0
_CELLS: Final = 48
_LEVELS: Final = ".:-=+*#"
_LETTERS: Final = "-dlq"


class _Demo:
    """A handler, and what it has done.

    Args:
        failing: The key whose records fail.
    """

    def __init__(self, failing: bytes) -> None:
        self.failing = failing
        self.handled: list[Row] = []
        self.attempts = 0

    async def handle(self, record: Record) -> None:
        """Work on a record."""
        if record.key == self.failing:
            self.attempts += 1
            raise ValueError("the failing key's")
        await asyncio.sleep(_WORK_SECONDS)
        self.handled.append((record.offset, record.key))


def run_handlers(servers: str | None, records: int | None, seconds_max: float, say: Say) -> int:
    """Run the demo.

    Args:
        servers: Bootstrap servers of a real cluster; None for an embedded one.
        records: Number of records to produce; None for 200,000.
        seconds_max: Maximum time until all of them have their outcomes.
        say: Prints a line.

    Returns:
        The exit code: 0 if every key was in order and nothing was lost.

    Raises:
        KshareError: Not all have their outcomes in time, or nothing can be read.
    """
    count = _RECORDS if records is None else records
    keys = max(min(_KEYS, count // 20), 2)
    demo = _Demo(f"key-{keys * 7 // 10:06}".encode())
    with temporary_topic(servers, [_LETTERS]) as (broker, topic):
        say(f"Producing {count:,} records of {keys:,} keys into one partition ...")
        config = {"compression.type": "lz4", "linger.ms": 50}
        made = skewed_records(count, keys, skew=_SKEW)
        produce(broker, topic, made, partition=0, config=config)
        first, end = watermarks(broker, topic)
        if first:
            say(f"The embedded broker keeps the last {end - first:,} of them.")
        say(f"A handler takes 1 ms a record, {_CONCURRENCY} at a time. {demo.failing.decode()}")
        say("fails: 3 attempts for each of its records, which become dead letters. Each column is")
        say(f"a part of the key hashes: how many records wait ({_LEVELS}), ! if one is retried.")
        say("In flight is what the handler works on.")
        began = time.monotonic()
        asyncio.run(_run(demo, broker, topic, end - first, seconds_max, say))
        seconds = time.monotonic() - began
        letters = _read(broker, f"{topic}{_LETTERS}")
    say(
        f"{len(demo.handled):,} handled, {len(letters):,} dead letters after {demo.attempts:,} "
        f"attempts, in {seconds:.1f} s"
    )
    alone = (end - first) * _WORK_SECONDS
    return say_verdict(
        order_of([*demo.handled, *letters], first, end),
        say,
        f"A plain loop handles one record after another: {alone:,.0f} s at least for these,",
        "and its first failed record holds up all others.",
        "\nNext: `kshare broker` starts a broker with a topic; see docs/processing.md.",
    )


async def _run(
    demo: _Demo,
    broker: str,
    topic: str,
    count: int,
    seconds_max: float,
    say: Say,
) -> None:
    config = {
        "bootstrap.servers": broker,
        "group.id": f"kshare-demo-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
        "acknowledgement.mode": "explicit",
    }
    processor = Processor(
        demo.handle,
        concurrency=_CONCURRENCY,
        retry=_RETRY,
        on_failure=DeadLetter(f"{topic}{_LETTERS}"),
    )
    runner = Runner(processor, KeySharedConsumer(config), [topic])
    running = asyncio.create_task(runner.run())
    began = time.monotonic()
    while not running.done():
        await asyncio.wait([running], timeout=_SHOW_SECONDS)
        seconds = time.monotonic() - began
        if processor.running is not None:
            scheduler, outcomes = processor.running.scheduler, processor.running.measures.outcomes
            figures = scheduler.figures()
            say(
                f"{seconds:5.1f} s  |{lane_bar(scheduler.lanes())}|  {outcomes[Status.DONE]:7,} "
                f"handled, {figures.calls:3} in flight, {figures.waiting} retrying, "
                f"{outcomes[Status.DEAD_LETTERED]:,} dead letters"
            )
            if outcomes.total() >= count:
                break
        if seconds > seconds_max:
            runner.stop()
            await running
            raise KshareError("not all records were handled in time; --seconds gives more")
    runner.stop()
    await running


def lane_bar(lanes: Iterable[Lane], cells: int = _CELLS) -> str:
    """The records that are held, by their keys' hashes, as text.

    Args:
        lanes: The lanes.
        cells: Number of letters.

    Returns:
        For each part of the key hashes, ``!`` if a key in it waits for its next attempt or its
        dead letter, else one of ``.:-=+*#``: none, and then 4 times as many from one to the next.
    """
    held, failing = [0] * cells, [False] * cells
    for lane in lanes:
        records = list(lane.records)
        if records:
            cell = key_hash(records[0].raw_key, records[0].offset) * cells // HASH_SPACE
            held[cell] += len(records)
            failing[cell] |= lane.state in {State.WAITING, State.ENDING}
    levels = [min((count.bit_length() + 1) // 2, len(_LEVELS) - 1) for count in held]
    return "".join(
        "!" if fails else _LEVELS[level] for level, fails in zip(levels, failing, strict=True)
    )


def _read(broker: str, topic: str) -> list[Row]:
    """Original offsets and keys of the dead letters."""
    left = watermarks(broker, topic)[1]
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "kshare-demo", "log_level": 2})
    rows: list[Row] = []
    deadline = time.monotonic() + _WAIT_SECONDS
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(rows) < left and time.monotonic() < deadline:
            for message in consumer.consume(left - len(rows), 1.0):
                offset = dict(message.headers() or ()).get("__connect.errors.offset")
                rows.append((int(offset or b"-1"), message.key() or b""))
    finally:
        consumer.close()
    return rows
