"""Receiving in all ways that there are, at random: what a member's process does with its consumer.

A run is one of threads or one of asyncio, as one thread polls; each call of it is another way. With
transactions, a run is one of threads, and what a transaction has received counts as returned once
it is committed: the outputs say what became of the others.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from kshare.core.hashing import HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError, KshareError, TransactionAbortedError
from kshare.group import AsyncKeySharedConsumer, KeySharedConsumer, Message

__all__ = ["Returned", "Ways"]

_PATIENT_SECONDS: Final = 20.0


class _HandlerError(Exception):
    """A transaction is aborted by what handles its records."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A record that a call has returned.

    Attributes:
        time: When the call returned, and then one ns more for each record.
        partition: Its partition.
        offset: Its offset.
        key: Its key.
    """

    time: int
    partition: int
    offset: int
    key: bytes


@dataclass(slots=True)
class Ways:
    """Receives and commits.

    Args:
        consumer: Receives.
        settings: Its configuration.
        seed: Which way each call goes.
        write: Writes a line.
        output: With transactions, the topic to which each record's offset is written.
    """

    consumer: KeySharedConsumer
    settings: Mapping[str, object]
    seed: int
    write: Callable[[str], None]
    output: str = ""
    pending: list[Returned] = field(default_factory=list)  # not known to be committed
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def run(self, pause: float) -> None:
        """Receive until the consumer is closed.

        Args:
            pause: Seconds that a record takes.
        """
        if self.output:
            calls, pause = self._transactions(pause), 0.0
        else:
            calls = self._async_calls() if self.seed % 2 else self._calls()
        next_commit = time.monotonic()
        for returned in calls:
            for each in returned:
                where = f"{each.partition} {each.offset}"
                self.write(f"record {each.time} {where} {each.key.hex()}")
            self.pending += returned
            time.sleep(pause * len(returned))
            if time.monotonic() >= next_commit and not self.consumer.is_closed:
                self.commit()
                next_commit = time.monotonic() + self._chance.choice([0.1, 0.5, 1.0])

    def commit(self) -> None:
        """Commit, unless the consumer does by itself; write what the group's log has."""
        try:
            if not self.settings.get("enable.auto.commit", True):
                self.consumer.commit()
            partitions = {each.partition for each in self.pending}
            (topic,) = {tp.topic for tp in self.consumer.assignment()} or {""}
            where = [TopicPartition(topic, partition) for partition in partitions]
            committed = self.consumer.committed(where, 5.0) if topic and where else {}
        except (KshareError, RuntimeError):
            return
        now = time.monotonic_ns()
        left = []
        for each in self.pending:
            said = committed.get(TopicPartition(topic, each.partition))
            hashed = key_hash(each.key, each.offset)
            if said is not None and (
                each.offset < said.offset
                or any(
                    each.offset in piece.offsets and hashed in piece.hashes
                    for piece in said.individual_commits
                )
            ):
                self.write(f"committed {now} {each.partition} {each.offset}")
            else:
                left.append(each)
        self.pending = left

    def gone(self, changed: Mapping[TopicPartition, tuple[HashRange, ...]]) -> None:
        """Key hashes are revoked: commit them first."""
        if changed and not self.settings.get("enable.auto.commit", True):
            self.commit()

    # -- calls -------------------------------------------------------------------------------

    def _calls(self) -> Iterator[list[Returned]]:
        consumer, chance = self.consumer, self._chance
        explicit = self.settings.get("acknowledgement.mode") == "explicit"
        while not consumer.is_closed:
            way = chance.choice(["iterate", "poll", "consume", "consume", "patient", "batch"])
            if way == "iterate":
                left = chance.randrange(1, 100)
                for message in consumer:
                    yield _stamped([message])
                    if explicit:
                        consumer.acknowledge(message)
                    left -= 1
                    if not left:
                        break
                continue
            if way == "batch":
                batch = consumer.consume_batch(0.5)
                yield _of_batch(batch)
                if explicit and batch is not None:
                    consumer.acknowledge_batch(batch)
                continue
            if way == "poll":
                message_or_none = consumer.poll(0.5)
                messages = [] if message_or_none is None else [message_or_none]
            elif way == "consume":
                messages = consumer.consume(50, 0.5)
            else:
                most = chance.choice([1, 5, 20])
                # One that waits for several holds what it has got; at the end, no more come.
                messages = consumer.consume(most, None if most == 1 else _PATIENT_SECONDS)
            yield _stamped(messages)
            for message in messages if explicit else ():
                consumer.acknowledge(message)

    def _transactions(self, pause: float) -> Iterator[list[Returned]]:
        consumer, chance = self.consumer, self._chance
        while not consumer.is_closed:
            try:
                with consumer.transaction() as transaction:
                    way = chance.choice(["poll", "consume", "consume", "batch"])
                    if way == "batch":
                        returned = _of_batch(consumer.consume_batch(0.5))
                    elif way == "consume":
                        returned = _stamped(consumer.consume(50, 0.5))
                    else:
                        message = consumer.poll(0.5)
                        returned = _stamped([] if message is None else [message])
                    for each in returned:
                        transaction.produce(self.output, str(each.offset), each.key)
                    time.sleep(pause * len(returned))
                    if chance.random() < 0.05:
                        raise _HandlerError
            except (_HandlerError, TransactionAbortedError, KafkaError):
                continue  # the last one: the coordinator does not answer
            yield returned

    def _async_calls(self) -> Iterator[list[Returned]]:
        loop, core, chance = asyncio.new_event_loop(), self.consumer, self._chance
        consumer = AsyncKeySharedConsumer(self.settings, consumer=lambda _: core)
        explicit = self.settings.get("acknowledgement.mode") == "explicit"

        async def patient(call: "asyncio.Future[list[Returned]]", seconds: float) -> list[Returned]:
            try:
                return await asyncio.wait_for(call, seconds)
            except TimeoutError:
                return []

        async def receive() -> list[Returned]:
            way = chance.choice(["poll", "consume", "consume", "batch"])
            if way == "batch":
                batch = await consumer.consume_batch(0.5)
                returned = _of_batch(batch)
                if explicit and batch is not None:
                    consumer.acknowledge_batch(batch)
                return returned
            if way == "poll":
                message = await consumer.poll(0.5)
                messages = [] if message is None else [message]
            else:
                messages = await consumer.consume(50, 0.5)
            returned = _stamped(messages)
            for each in messages if explicit else ():
                consumer.acknowledge(each)
            return returned

        while not core.is_closed:
            seconds = chance.choice([0.001, 0.05, 0.3, 5.0, 5.0])
            task = loop.create_task(receive())
            yield loop.run_until_complete(patient(task, seconds))


def _stamped(messages: Sequence[Message]) -> list[Returned]:
    now = time.monotonic_ns()
    return [
        Returned(now + at, each.partition(), each.offset(), each.key() or b"")
        for at, each in enumerate(messages)
    ]


def _of_batch(batch: pa.RecordBatch | None) -> list[Returned]:
    now = time.monotonic_ns()
    if batch is None:
        return []
    columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "key")]
    rows = zip(*columns, strict=True)
    return [
        Returned(now + at, partition, offset, key or b"")
        for at, (partition, offset, key) in enumerate(rows)
    ]
