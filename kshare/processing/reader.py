"""The thread of a processor that polls the consumer, and tells the engine of rebalances.

Guarantees: nothing is read while there is no room. The group is followed for as long as the engine
holds anything, also while there is no room or the processor ends.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

from kshare.core.hashing import HashRange, key_hash
from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Record
from kshare.errors import (
    AuthorizationError,
    ConsumerClosedError,
    FencedError,
    KafkaError,
    UnknownTopicError,
)
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Message
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.processing.consumer_edge import records_of
from kshare.processing.handling import Handling
from kshare.processing.held import SAY_SECONDS, full
from kshare.processing.intake import Intake
from kshare.processing.kept_state import KeptState
from kshare.processing.room import Allotment, Shares

__all__ = ["READ_MAX", "Ending", "Reader", "Topics"]

READ_MAX: Final = 500
"""Maximum number of records of a read."""

_log = logging.getLogger("kshare.processing")
_WAIT_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 60.0
_Ranges = Mapping[TopicPartition, tuple[HashRange, ...]]
_T = TypeVar("_T")

Topics: TypeAlias = Iterable[str | re.Pattern[str]] | re.Pattern[str] | None
"""What to subscribe to, as the consumer takes it; None if it has partitions already."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How far a processor's end is, for all of its threads.

    Attributes:
        begun: Set once no more records are taken, and what is under way is ended.
        over: Set once the engine holds nothing any more.
    """

    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class Reader:
    """Reads records of a consumer as long as there is room for them. For one thread.

    Args:
        processor: The processor.
        consumer: Where records come from.
        intake: Where they go.
        ending: Says when to stop.

    Attributes:
        fault: The error that has ended it; None if there was none.
    """

    def __init__(
        self,
        processor: Handling,
        consumer: KeySharedConsumer,
        intake: Intake,
        ending: Ending,
    ) -> None:
        self.fault: BaseException | None = None
        self._processor = processor
        self._consumer = consumer
        self._intake = intake
        self._ending = ending
        self._shares = Shares(processor, consumer, intake.room)
        self._kept = KeptState(
            intake.engine, intake.edge, has_sequences=processor.settings.sequence
        )
        self._given_up: list[_Ranges] = []

    def read(self, topics: Topics) -> None:
        """Subscribe to topics, and read until the end is over; a :attr:`fault` ends it earlier."""
        room, is_stopping = self._intake.room, self._ending.begun.is_set
        try:
            if topics is None:
                self._started({})
            else:
                self._consumer.subscribe(
                    topics,
                    on_revoked=self._revoked,
                    on_lost=self._lost,
                    on_started=self._started,
                )
            while not is_stopping():
                self._kept.follow_parking()
                self._look_for_others()
                if not room.wait(is_stopping):
                    self._follow(is_stopping)
                elif messages := self._received(
                    self._shares.allot(self._intake.engine.scheduler.lanes)
                ):
                    self._send(messages)
            # Others may want key hashes while what is held is ended.
            self._follow(self._ending.over.is_set)
        except ConsumerClosedError:
            pass
        except BaseException as error:
            if isinstance(error, FencedError):  # others have what is held
                self._intake.drop(lambda _: True)
            self.fault = error

    def _follow(self, until: Callable[[], bool]) -> None:
        """Poll with all partitions paused, until there is room or ``until()`` holds."""
        scheduler = self._intake.engine.scheduler
        # Not at once: what is held is counted for it.
        waits, look_at = WaitLog(_log), time.monotonic() + SAY_SECONDS
        while not until():
            if not self._ending.begun.is_set():
                self._kept.follow_parking()
                if time.monotonic() >= look_at:
                    waits.wait(full(scheduler.figures(), scheduler.firsts()))
                    look_at = time.monotonic() + SAY_SECONDS
            self._look_for_others()
            paused = list(self._consumer.assignment())
            self._consumer.pause(paused)
            try:
                message = self._polled(_WAIT_SECONDS)
            finally:
                self._consumer.resume([tp for tp in paused if tp in self._consumer.assignment()])
                self._shares.forget()
            if message is not None:  # of a partition that was assigned meanwhile
                self._send([message])
            if self._intake.room.left > 0 and not self._ending.begun.is_set():
                waits.over()
                return

    def _received(self, most: Allotment) -> list[Message]:
        """Wait for a record; return it with all others that are there."""
        first = self._polled(_WAIT_SECONDS)
        if first is None:
            return []
        self._given_up.clear()
        batch = first.chunk.batch
        more = min(most.fits(batch.nbytes // batch.num_rows), READ_MAX) - 1
        others = self._retried(lambda: self._consumer.consume(more, 0.0), list[Message]())
        place = first.topic_partition, first.key(), first.offset()
        # A rebalance in between could not tell the engine of the first one: drop it here.
        return (
            others if any(_has(ranges, *place) for ranges in self._given_up) else [first, *others]
        )

    def _polled(self, seconds: float) -> Message | None:
        return self._retried(lambda: self._consumer.poll(seconds), None)

    def _retried(self, call: Callable[[], _T], nothing: _T) -> _T:
        """Call the consumer; a cluster that does not answer is asked again, for a minute.

        During the end a silent cluster is no failure: handlers can finish.
        """
        deadline = time.monotonic() + _RETRY_SECONDS
        while True:
            try:
                return call()
            except (AuthorizationError, UnknownTopicError):
                raise
            except KafkaError as error:
                if self._ending.begun.is_set():
                    _log.warning("cannot follow the group while it ends: %s", error)
                    self._ending.over.wait(1.0)
                    return nothing
                if time.monotonic() > deadline:
                    raise
                _log.warning("cannot read, and try again: %s", error)
                self._ending.begun.wait(1.0)

    def _look_for_others(self) -> None:
        """Hold nothing of before if others may have come and gone: it comes again."""
        try:
            self._intake.edge.right.follow(self._drop_void, self._kept.read)
        except KafkaError as error:  # no handler is called before the next attempt
            _log.warning("cannot read what others have kept, and try again: %s", error)

    def _drop_void(self) -> None:
        counts = self._intake.edge.right.counts
        self._intake.drop(lambda record: not counts(record.source), comes_again=True)
        self._shares.forget()

    def _send(self, messages: Sequence[Message]) -> None:
        self._look_for_others()
        # Of what was returned before others may have come, a part comes again.
        chunks = {message.chunk.number: message.chunk for message in messages}
        void = {
            number for number, each in chunks.items() if not self._intake.edge.right.counts(each)
        }
        messages = [each for each in messages if each.chunk.number not in void]
        read = list(records_of(self._processor, messages))
        records = self._retried(lambda: self._kept.without_put_back(read), list[Record]())
        self._kept.recall(records)
        self._intake.send(records)

    # -- rebalances, called by the consumer amid a call -------------------------------------

    def _started(self, _: _Ranges) -> None:
        """Key hashes are claimed, and nobody else writes of them: look at what was kept."""
        self._shares.forget()
        self._kept.read()

    def _revoked(self, ranges: _Ranges) -> None:
        """Others shall get some key hashes."""
        self._shares.forget()
        self._given_up.append(ranges)
        self._intake.give_up(partial(_is_in, ranges))

    def _lost(self, ranges: _Ranges) -> None:
        """Others may have some key hashes already."""
        self._shares.forget()
        self._given_up.append(ranges)
        self._intake.drop(partial(_is_in, ranges))


def _is_in(ranges: _Ranges, record: Record) -> bool:
    return _has(ranges, record.topic_partition, record.raw_key, record.offset)


def _has(ranges: _Ranges, partition: TopicPartition, key: bytes | None, offset: int) -> bool:
    hashes = ranges.get(partition)
    if hashes is None:
        return False
    return not hashes or any(key_hash(key, offset) in part for part in hashes)
