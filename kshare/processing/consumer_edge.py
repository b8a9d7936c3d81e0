"""What is outside an engine on a consumer: acknowledgements, dead letters, parked keys."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kshare.cluster.parked_keys import ParkedKeys
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import RetryLog
from kshare.group.log.topic import log_table
from kshare.group.message import ACKNOWLEDGED
from kshare.processing.consumed import message_of
from kshare.processing.core.outcome import Outcome
from kshare.processing.core.record import Record
from kshare.processing.dead_letters import DeadLetters
from kshare.processing.policy import DeadLetter, Park
from kshare.processing.processor import Processor

__all__ = ["ConsumerEdge"]

_log = logging.getLogger("kshare.processing")

_WRITES_AT_ONCE = 8
"""Marks of sequences that are written at once. Keys are parked one after another."""


class ConsumerEdge:
    """Acknowledges, writes dead letters, parks keys: see :class:`~kshare.processing.edge.Edge`.

    Args:
        processor: Says what becomes of records that have failed.
        consumer: Where they come from.
        on_room: Called when there may be room again.

    Attributes:
        retry_log: Keeps attempts and sequences in the group's log.
        has_released: Whether any records were released.
    """

    def __init__(
        self, processor: Processor, consumer: KeySharedConsumer, on_room: Callable[[], None]
    ) -> None:
        self._policy = processor.on_failure
        self._on_outcome = processor.on_outcome
        self._on_room = on_room
        self._releases = consumer.releases
        self.has_released = False
        kafka, group = consumer.config.kafka, consumer.config.group
        self.retry_log = RetryLog(log_table(kafka, consumer.config.log_topic, group), group)
        self._letters: DeadLetters | None = None
        self._parked: ParkedKeys | None = None
        self._parking = threading.Lock()  # its connections are for one thread at a time
        # Its own: handlers may fill those of asyncio.to_thread, with calls that hang.
        self._threads = ThreadPoolExecutor(_WRITES_AT_ONCE, thread_name_prefix="kshare-edge")
        if isinstance(self._policy, DeadLetter):
            self._letters = DeadLetters(kafka, self._policy.topic)
        elif isinstance(self._policy, Park):
            self._parked = ParkedKeys(kafka)

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Acknowledge the records whose outcomes are final."""
        for outcome in outcomes:
            if outcome.status.is_final:
                record = outcome.record
                rows = record.source.acknowledged  # type: ignore[attr-defined]
                if not rows[record.row]:
                    rows[record.row] = ACKNOWLEDGED
        if self._on_outcome is not None:
            for outcome in outcomes:
                try:
                    self._on_outcome(outcome)
                except Exception:
                    _log.exception("on_outcome has failed with %r", outcome.record)
        self._on_room()

    async def deliver(self, record: Record, error: BaseException | None) -> None:
        """Write a dead letter; return when the broker has it."""
        assert self._letters is not None
        await self._letters.write(record, error, time.time())

    async def begin_sequence(self, record: Record) -> None:
        """Keep in the group's log that later records of a key follow it."""
        await self._in_thread(self.retry_log.begin_sequence, record)

    async def park(self, record: Record, error: BaseException | None) -> None:
        """Park the key of a record, with the error as the reason."""
        assert isinstance(self._policy, Park)
        if record.raw_key is None:
            raise ValueError("a record without a key cannot be parked")
        why = ": ".join(filter(None, (self._policy.why, repr(error)[:500])))
        await self._in_thread(self._park, record.topic, record.raw_key, why)

    async def _in_thread(self, call: Callable[..., None], *given: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, call, *given)

    def _park(self, topic: str, key: bytes, why: str) -> None:
        assert self._parked is not None
        with self._parking:
            self._parked.park(topic, [key], why=why, by="processor")

    def release(self, record: Record) -> None:
        """A key's records from one on come again from the consumer, once it is let go."""
        self.has_released = True
        self._releases.hold(message_of(record))

    def take_again(self, record: Record) -> None:
        """Let the key of a record go."""
        self._releases.let_go(message_of(record))

    def unparked(self, lanes: Mapping[Hashable, Record]) -> list[Hashable]:
        """Those of some parked lanes whose keys an operator has unparked since.

        None are found while one is being parked: that may take long, and the next look comes soon.

        Raises:
            KafkaError: It cannot be read.
        """
        if not lanes or self._parked is None or not self._parking.acquire(blocking=False):
            return []
        try:
            parked = self._parked.read()
        finally:
            self._parking.release()
        return [lane for lane, first in lanes.items() if (first.topic, first.raw_key) not in parked]

    def remember(self, record: Record) -> None:
        """Keep failures and due time in the group's log."""
        self.retry_log.remember(record)

    def forget(self, record: Record) -> None:
        """Keep them no more."""
        self.retry_log.forget(record)

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(wait=False)
        self.retry_log.close()
        if self._letters is not None:
            self._letters.close()
        if self._parked is not None:
            with self._parking:
                self._parked.close()
