"""A processor in a plain process: a thread polls the consumer, an event loop calls handlers.

::

    consumer --poll, consume--> reader thread --call_soon_threadsafe--> engine --> handlers
       ^                            ^                                     |
       |                            +------------- room ------------------+
       +---- acknowledged rows, committed by the consumer itself ---------+

Guarantees: a record is acknowledged after its outcome, never before. Nothing is read while there is
no room. Before key hashes go to others, what handlers have of them is ended, within
``drain_timeout``.
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final

from kshare.cluster.parked_keys import ParkedKeys
from kshare.core.hashing import HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthorizationError,
    ConsumerClosedError,
    KafkaError,
    OptionsError,
    UnknownTopicError,
)
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.memory import Memory, Remembered
from kshare.group.log.topic import log_table
from kshare.group.message import Chunk, Message
from kshare.processing.blocking import LoopWatch
from kshare.processing.core.outcome import Outcome
from kshare.processing.core.record import Record
from kshare.processing.dead_letters import DeadLetters
from kshare.processing.measures import Running
from kshare.processing.policy import DeadLetter, Park
from kshare.processing.processor import Processor
from kshare.processing.progress import Progress

__all__ = ["ConsumerEdge", "Runner", "run"]

_log = logging.getLogger("kshare.processing")

_READ: Final = 500
_WAIT_SECONDS: Final = 0.2
_GATHER_SECONDS: Final = 0.01
_FULL_SECONDS: Final = 1.0
"""After so long without room, partitions are paused and the group is followed meanwhile."""
_RETRY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 2.0
_NOT_BEFORE: Final = "not-before"

_Ranges = Mapping[TopicPartition, tuple[HashRange, ...]]


def run(processor: Processor, consumer: KeySharedConsumer, topics: Sequence[str] | None) -> None:
    """Process records until a signal or a fault ends it; closes the consumer."""
    asyncio.run(Runner(processor, consumer, topics).run())


class ConsumerEdge:
    """Acknowledges, writes dead letters, parks keys: see :class:`~kshare.processing.engine.Edge`.

    Args:
        processor: Says what becomes of records that have failed.
        consumer: Where they come from.
        on_room: Called when there may be room again.

    Attributes:
        memory: Keeps attempts and sequences in the group's log.
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
        self.memory = Memory(log_table(kafka, consumer.config.log_topic, group), group)
        self._letters: DeadLetters | None = None
        self._parked: ParkedKeys | None = None
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
                    rows[record.row] = 1
        if self._on_outcome is not None:
            for outcome in outcomes:
                self._on_outcome(outcome)
        self._on_room()

    async def deliver(self, record: Record, error: BaseException | None) -> None:
        """Write a dead letter; return when the broker has it."""
        assert self._letters is not None
        await self._letters.write(record, error, time.time())

    async def begin_sequence(self, record: Record) -> None:
        """Keep in the group's log that later records of a key follow it."""
        await asyncio.to_thread(self.memory.begin_sequence, record)

    async def park(self, record: Record, error: BaseException | None) -> None:
        """Park the key of a record, with the error as the reason."""
        assert isinstance(self._policy, Park)
        assert self._parked is not None
        if record.raw_key is None:
            raise ValueError("a record without a key cannot be parked")
        why = ": ".join(filter(None, (self._policy.why, repr(error)[:500])))
        park = partial(self._parked.park, record.topic, [record.raw_key], why=why, by="processor")
        await asyncio.to_thread(park)

    def release(self, record: Record) -> None:
        """A key's records from one on come again from the consumer, once it is let go."""
        self.has_released = True
        self._releases.hold(_message(record))

    def take_again(self, record: Record) -> None:
        """Let the key of a record go."""
        self._releases.let_go(_message(record))

    def unparked(self, lanes: Mapping[Hashable, Record]) -> list[Hashable]:
        """Those of some parked lanes whose keys an operator has unparked since.

        Raises:
            KafkaError: It cannot be read.
        """
        if not lanes or self._parked is None:
            return []
        parked = self._parked.read()
        return [lane for lane, first in lanes.items() if (first.topic, first.raw_key) not in parked]

    def remember(self, record: Record) -> None:
        """Keep failures and due time in the group's log."""
        self.memory.remember(record)

    def forget(self, record: Record) -> None:
        """Keep them no more."""
        self.memory.forget(record)

    def close(self) -> None:
        """Close the connections."""
        self.memory.close()
        if self._letters is not None:
            self._letters.close()
        if self._parked is not None:
            self._parked.close()


class Runner:
    """Runs a processor over a consumer.

    Args:
        processor: The processor.
        consumer: The consumer, with ``acknowledgement.mode=explicit``.
        topics: What to subscribe to; None if it has partitions already.

    Raises:
        OptionsError: The consumer is configured in another way.
    """

    def __init__(
        self, processor: Processor, consumer: KeySharedConsumer, topics: Sequence[str] | None
    ) -> None:
        check_consumer(consumer)
        consumer.take_turns()
        self._processor = processor
        self._consumer = consumer
        self._topics = topics
        self._has_room = threading.Event()
        self._is_stopping = threading.Event()
        self._sent = 0
        self._taken = 0
        self._fault: BaseException | None = None
        self._remembered = Remembered()
        self._next_look = 0.0
        self._worth = min(_READ, max(processor.settings.records_max // 8, 1))

    def stop(self) -> None:
        """End: take no more records, and end what is under way. From any thread."""
        self._is_stopping.set()
        self._has_room.set()
        with suppress(RuntimeError, AttributeError):  # not begun, or over
            self._loop.call_soon_threadsafe(self._engine.changed)

    async def run(self) -> None:
        """Process records until :meth:`stop`, a signal or a fault."""
        self._loop = asyncio.get_running_loop()
        edge = ConsumerEdge(self._processor, self._consumer, self._has_room.set)
        self._edge = edge
        self._engine = engine = self._processor.engine(edge, gives_back=True)
        self._add_signals()
        watch = LoopWatch(self._loop, engine.handler_name)
        ended = threading.Event()
        reading = self._loop.run_in_executor(None, self._read, ended)
        reading.add_done_callback(lambda _: self.stop())
        try:
            group, member = self._consumer.config.group, self._consumer.memberid()
            running = Running(group, member, engine.scheduler, engine.measures)
            self._processor.running = running
            with closing(Progress(running)):
                await engine.wait(lambda: self._is_stopping.is_set() or engine.failure is not None)
                self.stop()
                await engine.close(self._processor.drain_seconds)
        finally:
            self._processor.running = None
            self.stop()
            ended.set()
            watch.close()
            with suppress(asyncio.CancelledError):
                await reading
            await asyncio.to_thread(self._consumer.close)
            await asyncio.to_thread(edge.close)
        engine.raise_failure()
        if self._fault is not None:
            raise self._fault

    def _add_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self.stop)

    # -- the reader's thread ----------------------------------------------------------------

    def _read(self, ended: threading.Event) -> None:
        try:
            if self._topics is None:
                self._started({})
            else:
                self._consumer.subscribe(
                    list(self._topics),
                    on_revoked=self._revoked,
                    on_lost=self._lost,
                    on_started=self._started,
                )
            while not self._is_stopping.is_set():
                self._look_for_released()
                if not self._wait_for_room():
                    self._follow(self._is_stopping.is_set)
                elif messages := self._received(self._room):
                    self._send(messages)
            self._follow(ended.is_set)  # others may want key hashes while what is held is ended
        except ConsumerClosedError:
            pass
        except BaseException as error:
            self._fault = error

    @property
    def _room(self) -> int:
        return self._engine.room - (self._sent - self._taken)

    def _wait_for_room(self) -> bool:
        """Wait until there is room; for a moment, until it is worth a look at the consumer."""
        began = time.monotonic()
        while (room := self._room) < self._worth and not self._is_stopping.is_set():
            most = _FULL_SECONDS if room <= 0 else _GATHER_SECONDS
            left = began + most - time.monotonic()
            if left <= 0:
                break
            self._has_room.clear()
            if self._room < self._worth:
                self._has_room.wait(left)
        return self._room > 0

    def _follow(self, until: Callable[[], bool]) -> None:
        """Follow the group, and receive nothing, while there is no room, or until something."""
        while not until():
            paused = list(self._consumer.assignment())
            self._consumer.pause(paused)
            try:
                message = self._polled(_WAIT_SECONDS)
            finally:
                self._consumer.resume([tp for tp in paused if tp in self._consumer.assignment()])
            if message is not None:  # of a partition that was assigned meanwhile
                self._send([message])
            if self._room > 0 and not self._is_stopping.is_set():
                return

    def _received(self, most: int) -> list[Message]:
        """What is there, once there is something."""
        first = self._polled(_WAIT_SECONDS)
        if first is None:
            return []
        return [first, *self._consumer.consume(min(most, _READ) - 1, 0.0)]

    def _polled(self, seconds: float) -> Message | None:
        """Poll; a cluster that does not answer is asked again, for a minute."""
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return self._consumer.poll(seconds)
            except (AuthorizationError, UnknownTopicError):
                raise
            except KafkaError as error:
                if time.monotonic() > deadline or self._is_stopping.is_set():
                    raise
                _log.warning("cannot read, and try again: %s", error)
                self._is_stopping.wait(1.0)

    def _send(self, messages: Sequence[Message]) -> None:
        records = list(records_of(self._processor, messages))
        if self._remembered.attempts:
            for record in records:
                self._remembered.recall(record)
        self._sent += len(records)
        self._loop.call_soon_threadsafe(self._take, records)

    def _take(self, records: Sequence[Record]) -> None:
        self._taken += len(records)
        if self._edge.has_released:  # those that were on their way come again
            records = [each for each in records if not _message(each).is_released()]
        self._engine.measures.read += len(records)
        self._engine.offer(records)

    # -- rebalances, called by the reader's thread -------------------------------------------

    def _started(self, _: _Ranges) -> None:
        """Key hashes are claimed, and nobody else writes of them: look at what was kept."""
        self._remembered = self._edge.memory.read()
        sequences = self._engine.scheduler.sequences
        self._loop.call_soon_threadsafe(sequences.update, self._remembered.sequences)

    def _look_for_released(self) -> None:
        """Handle the records of keys again that an operator has released (``kshare unpark``)."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        try:
            # The lanes first: a key that is parked meanwhile is in the list that is read then.
            parked = dict(self._engine.scheduler.parked_lanes)
            for lane in self._edge.unparked(parked):
                self._loop.call_soon_threadsafe(self._engine.unparked, lane)
            if not self._processor.settings.sequence:
                return
            known = self._edge.memory.read()
        except KafkaError as error:
            _log.warning("cannot see which keys are released: %s", error)
            return
        released = self._remembered.sequences - known.sequences
        self._remembered = known
        sequences = self._engine.scheduler.sequences
        self._loop.call_soon_threadsafe(sequences.difference_update, released)

    def _revoked(self, ranges: _Ranges) -> None:
        """Others shall get some key hashes: end what handlers have of them."""
        done = asyncio.run_coroutine_threadsafe(self._give_up(ranges), self._loop)
        done.result()

    def _lost(self, ranges: _Ranges) -> None:
        """Others may have some key hashes already: hold nothing of them."""
        self._loop.call_soon_threadsafe(self._engine.revoke, partial(_is_in, ranges))

    async def _give_up(self, ranges: _Ranges) -> None:
        engine, is_gone = self._engine, partial(_is_in, ranges)
        engine.revoke(is_gone)
        seconds = self._processor.drain_seconds
        if not await engine.wait(lambda: not engine.scheduler.is_running(is_gone), seconds):
            _log.warning(
                "%s is still at work on records that others get now: they may be handled twice",
                engine.handler_name,
            )


def _message(record: Record) -> Message:
    return Message((record.source, record.row, record.raw_value))


def check_consumer(consumer: KeySharedConsumer) -> None:
    """Check that a consumer may be processed.

    Raises:
        OptionsError: It may not; every fault is listed.
    """
    config, problems = consumer.config, []
    if not config.explicit:
        problems.append(
            "acknowledgement.mode is implicit; a processor acknowledges each record: set "
            "acknowledgement.mode=explicit"
        )
    if not config.auto_commit:
        problems.append("enable.auto.commit is false; nothing would be committed: leave it out")
    if config.in_flight_per_key is not None:
        problems.append(
            "max.in.flight.per.key is set; the processor itself keeps the order of keys"
        )
    if config.transactional_id is not None:
        problems.append("transactional.id is set; a processor cannot run within transactions")
    if config.order != "key":
        problems.append(f"consumption.order is {config.order}; give order to Processor instead")
    if config.columns and not {"key", "value", "offset"} <= set(config.columns):
        problems.append("columns has no key, value or offset; a handler is given them")
    if problems:
        raise OptionsError(problems, of="the consumer of Processor.run")


def records_of(processor: Processor, messages: Iterable[Message]) -> Iterable[Record]:
    """Records of messages, with the time of a header ``not-before``."""
    chunk: Chunk | None = None
    keys, values, offsets, has_headers = [], [], [], False
    for message in messages:
        if message[0] is not chunk:
            chunk = message[0]
            keys, values, offsets = map(chunk.column, ("key", "value", "offset"))
            has_headers = _has_headers(chunk)
        row = message[1]
        record = processor.record(chunk, row, offsets[row], keys[row], values[row])
        if has_headers:
            record.due = not_before(record)
        yield record


def _has_headers(chunk: Chunk) -> bool:
    if "headers" not in chunk.batch.schema.names:
        return False
    headers = chunk.batch.column("headers")
    return bool(headers.null_count < len(headers))


def not_before(record: Record) -> float:
    """The time of a record's header ``not-before`` in seconds since 1970; 0 if it has none.

    Its value is a text: milliseconds since 1970. One that is no number is no such header.
    """
    for name, value in record.headers:
        if name == _NOT_BEFORE:
            with suppress(ValueError):
                return int(value or b"") / 1000
    return 0.0


def _is_in(ranges: _Ranges, record: Record) -> bool:
    hashes: Any = ranges.get(record.topic_partition)
    if hashes is None:
        return False
    return not hashes or any(key_hash(record.raw_key, record.offset) in part for part in hashes)
