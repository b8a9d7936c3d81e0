"""A consumer's side of a processor: its messages as records, and what becomes of them there.

That is acknowledgements, dead letters and parked keys. What earlier runs and operators have left is
read in :mod:`kshare.processing.kept_state`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from kshare.core.hashing import key_hash
from kshare.core.showing import error_text, shown
from kshare.dead_letters.record import (
    Outcome,
    Record,
    error_name,
)
from kshare.dead_letters.writer import DeadLetters
from kshare.group.config.rules import facts_of, needs_explicit
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.topic_lookup import SubscribedTopics
from kshare.group.log.retry_log import Reason
from kshare.group.message import ACKNOWLEDGED, Chunk, Message
from kshare.kafka.parked_keys import ParkedKeys
from kshare.options.raw import Faults
from kshare.options.rules import Rule
from kshare.processing.committed import committed_of
from kshare.processing.handling import Handling
from kshare.processing.handling_right import HandlingRight
from kshare.processing.own_thread import in_own_thread
from kshare.processing.parker import Parker
from kshare.processing.policy import DeadLetter, Park, reads_own_letters

__all__ = ["ConsumerEdge", "check_consumer", "message_of", "records_of"]

_log = logging.getLogger("kshare.processing")
_WRITES_AT_ONCE = 8
"""Maximum number of sequence marks that are written at a time."""
_CLOSE_SECONDS: Final = 5.0

_IS_WHOLE: Final = "set allow.individual.commit=false, so that each has whole ones"
_SHARED: Final = (
    "lets members share partitions by key, and the processor's order is that of partitions"
)
_RULES: Final = (
    needs_explicit("a processor acknowledges each record"),
    Rule("!enable.auto.commit", "", "is false; nothing would be committed", "leave it out"),
    Rule("transactional.id", "", "is set", "a processor cannot run within transactions"),
    Rule("consumption.order=none", "", "is none", "give order to Processor instead"),
    Rule("allow.individual.commit", "order=partition", _SHARED, _IS_WHOLE),
)
"""The needs of a processor; ``order`` is the processor's."""


def check_consumer(
    consumer: KeySharedConsumer, processor: Handling, topics: SubscribedTopics | None
) -> None:
    """Check that a processor may process what a consumer reads.

    Args:
        consumer: The consumer.
        processor: The processor.
        topics: What the processor subscribes to, with callbacks of its own; None: nothing.

    Raises:
        OptionsError: It may not; every fault is listed.
    """
    config, faults = consumer.config, Faults()
    faults.check(_RULES, {**facts_of(config), "order": processor.order})
    if config.typed_rows is not None:
        for form in config.typed_rows.formats:
            faults.add(
                f"{form.column}.format",
                None,
                "makes typed columns for consume_batch, and a handler is given bytes",
                f"leave it out, and give Processor a {form.column}_deserializer",
            )
    needed: dict[str, tuple[str, ...]] = {"a handler is given them": ("key", "value", "offset")}
    if isinstance(processor.on_failure, DeadLetter):
        needed["a dead letter has them"] = ("timestamp", "headers")
    if processor.handler.deserializers:
        needed["deserializers are given them"] = ("headers",)
    for why, names in needed.items() if config.columns else ():
        missing = [name for name in names if name not in config.columns]
        if missing:
            faults.add("columns", None, f"has no {', '.join(missing)}; {why}")
    faults.problems += _faults_of_topics(consumer, processor, topics)
    faults.raise_if_any("the consumer of Processor.run")


def _faults_of_topics(
    consumer: KeySharedConsumer, processor: Handling, topics: SubscribedTopics | None
) -> Iterator[str]:
    if isinstance(processor.on_failure, DeadLetter):
        letters = processor.on_failure.topic
        assigned = {tp.topic for tp in consumer.assignment()}
        if letters in (assigned if topics is None else topics.among([letters])):
            yield reads_own_letters(processor.on_failure)
    if topics is None and consumer.receiver.subscriber is not None:
        yield (
            "topics is None, and the consumer has subscribed itself, so nobody would tell the "
            "processor what goes to other members: give topics to Processor.run, and do not call "
            "subscribe(); or call assign() in its place"
        )


def message_of(record: Record) -> Message:
    """The message that a record was made of."""
    chunk = cast("Chunk", record.source)  # what a consumer returns is of one
    return Message(chunk, record.row, record.raw_value)


def records_of(processor: Handling, messages: Iterable[Message]) -> Iterable[Record]:
    """Records of messages, with the time of a header ``not-before``."""
    chunk: Chunk | None = None
    keys, values, offsets, has_headers = [], [], [], False
    for message in messages:
        if message.chunk is not chunk:
            chunk = message.chunk
            source: Chunk = (
                chunk.slim
            )  # a record may wait for long, and would keep the others' values
            keys, values, offsets = map(chunk.column, ("key", "value", "offset"))
            has_headers = _has_headers(source)
        row = message.row
        record = processor.record(source, row, offsets[row], keys[row], values[row])
        if has_headers:
            record.due = processor.not_before.of(record)
        yield record


def _has_headers(chunk: Chunk) -> bool:
    if "headers" not in chunk.batch.schema.names:
        return False
    headers = chunk.batch.column("headers")
    return bool(headers.null_count < len(headers))


class ConsumerEdge:
    """Acknowledges, writes dead letters, parks keys: see :class:`.effects.Edge`.

    Args:
        processor: Says what becomes of records that have failed.
        consumer: Where they come from.
        on_room: Called when there may be room again.

    Attributes:
        retry_log: Keeps attempts and sequences in the group's log, until the consumer is closed.
        has_given_back: Whether any records were given back.
        right: The right to call handlers.
    """

    def __init__(
        self, processor: Handling, consumer: KeySharedConsumer, on_room: Callable[[], None]
    ) -> None:
        self._processor = processor
        self._on_room = on_room
        self._releases = consumer.releases
        self.right = HandlingRight(consumer.receiver)
        self.has_given_back = False
        self.retry_log = consumer.releases.retry_log()
        kafka = consumer.config.kafka
        self._config = consumer.config
        self._letters: DeadLetters | None = None
        self._parker: Parker | None = None
        self._writes = asyncio.Semaphore(_WRITES_AT_ONCE)
        if isinstance(processor.on_failure, DeadLetter):
            self._letters = DeadLetters(kafka, processor.on_failure.topic)
        elif isinstance(processor.on_failure, Park):
            self._parker = Parker(ParkedKeys(kafka))

    def seconds_left(self) -> float:
        """Seconds for which the member may deliver, and so have its records handled."""
        return self.right.seconds_left()

    @property
    def reads_committed(self) -> bool:
        """True if records of open and aborted transactions do not come."""
        return self._config.kafka.read_committed

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Acknowledge the records whose outcomes are final."""
        for outcome in outcomes:
            if outcome.status.is_final:
                record = outcome.record
                record.source.acknowledged[record.row] = ACKNOWLEDGED  # type: ignore[attr-defined]
        on_outcome = self._processor.on_outcome
        if on_outcome is not None:
            for outcome in outcomes:
                try:
                    on_outcome(outcome)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException:  # a future's CancelledError is no Exception
                    _log.exception("on_outcome has failed with %r", outcome.record)
        self._on_room()

    async def write_letter(self, record: Record, error: BaseException | None) -> None:
        """Write a dead letter; return when the broker has it."""
        assert self._letters is not None
        await self._letters.write(record, error, time.time())

    async def begin_sequence(self, record: Record, error: BaseException | None) -> None:
        """Keep in the group's log that later records of a key follow it, and why it failed."""
        reason = Reason() if error is None else Reason(error_name(error), error_text(error))
        await self._in_thread(self.retry_log.begin_sequence, record, reason)

    async def park(self, record: Record, error: BaseException | None) -> None:
        """Park the key of a record, with the error as the reason."""
        policy = self._processor.on_failure
        assert isinstance(policy, Park)
        if record.raw_key is None:
            raise ValueError("a record without a key cannot be parked")
        why = ": ".join(filter(None, (policy.why, shown(error, 500))))
        assert self._parker is not None
        await self._parker.park((record.topic, record.raw_key), why)

    async def _in_thread(self, call: Callable[..., None], *given: Any) -> None:
        # Its own: handlers may fill those of asyncio.to_thread, with calls that hang.
        async with self._writes:
            await in_own_thread(partial(call, *given))

    def give_back(self, firsts: Sequence[Record]) -> None:
        """Have the consumer return keys' records from some on again, after :meth:`take_again`."""
        self.has_given_back = True
        self._releases.defer(map(message_of, firsts))

    def take_again(self, record: Record) -> None:
        """Have the key of a record read again, from that record on."""
        self._releases.let_go(record.topic_partition, record.raw_key, record.offset)

    def parked(self, firsts: Iterable[Record]) -> list[Hashable]:
        """The lanes, of those that begin with some records, whose keys operators have parked.

        The consumer obeys the same list, so it returns nothing more of these keys.
        """
        parked = self._releases.parked
        return [
            each.lane
            for each in firsts
            if each.raw_key is not None
            and (hashes := parked.get(each.topic))
            and hashes.holds(key_hash(each.raw_key, 0))
        ]

    def unparked(self, lanes: Mapping[Hashable, Record]) -> list[Hashable]:
        """Those of some parked lanes whose keys an operator has unparked since.

        Raises:
            KafkaError: It cannot be read.
        """
        if self._parker is None:
            still = self.parked(lanes.values())
            return [lane for lane in lanes if lane not in still]
        parked = self._parker.read() if lanes else None
        if parked is None:
            return []
        return [lane for lane, first in lanes.items() if (first.topic, first.raw_key) not in parked]

    def committed(self, records: Collection[Record]) -> set[Record]:
        """Those of some records that are of committed transactions; waits until it is decided.

        Raises:
            KafkaError: It is not decided yet, or the cluster did not answer.
        """
        return committed_of(records, self._config)

    def remember(self, record: Record) -> None:
        """Keep failures and due time in the group's log."""
        self.retry_log.remember(record)

    async def keep_attempts(self) -> None:
        """Wait, for some seconds, until the group's log has all failures that were remembered."""
        await in_own_thread(partial(self.retry_log.flush, _CLOSE_SECONDS))

    def forget(self, record: Record, *, is_parked: bool) -> None:
        """Forget a record's attempts when its commit is answered; at once if it is parked."""
        if is_parked:
            self.retry_log.forget(record)
        else:
            self._releases.ended(record, key_hash(record.raw_key, record.offset))

    def close(self) -> None:
        """Close the connections; waits some seconds for a key that is being parked."""
        if self._letters is not None:
            self._letters.close()
        if self._parker is not None:
            self._parker.close(_CLOSE_SECONDS)
