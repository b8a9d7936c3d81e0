"""Puts dead letters back: each to the topic that it came from, or to another one, in key order.

::

    dead-letter topic --kshare's consumer--> transaction: the records, and that they are put back
                                              |
                                              +--> the topics, with the headers that they had

Guarantees: a letter is put back once for readers with ``isolation.level=read_committed``, also if
it was interrupted and runs again: the records and what is put back are committed together, in the
individual commits of a group. Letters of a key come in the order in which they are in the
dead-letter topic. One that a crash had written twice is put back once if one run reads both.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from kshare.cluster.cluster import Cluster
from kshare.cluster.parked_keys import ParkedKey
from kshare.cluster.topics import is_internal
from kshare.core.hashing import ALL_HASHES, KeyRanges, key_hash
from kshare.core.listing import ParkedCount
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.errors import KshareError, TransactionAbortedError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.delivery.dispatcher import read_options
from kshare.group.message import Message, chunks
from kshare.group.offsets import GroupOffsets
from kshare.options import KafkaConfig, Subscribe
from kshare.processing.dead_letters import HEADERS, without_letter_headers
from kshare.wire.reader.read_slice import read_slice

__all__ = ["Letter", "Replay", "group_of", "letter_of"]

_log = logging.getLogger("kshare.processing")

_BATCH: Final = 500
_WAIT_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter.

    Attributes:
        key: Its key.
        place: The topic, the partition and the offset that it came from; None: its headers do not
            say.
        topic: Where it is put back.
        partition: The partition there; -1: the one that its key chooses.
        why: The error, for people.
    """

    key: bytes | None
    place: tuple[str, int, int] | None
    topic: str
    partition: int
    why: str


def group_of(topic: str) -> str:
    """Id of the group that knows which letters of a topic were put back."""
    return f"kshare-replay-{topic}"


def letter_of(message: Message, to: str | None) -> Letter:
    """The letter that a record of the dead-letter topic is.

    Args:
        message: The record.
        to: Where to put it; None: where it came from.

    Raises:
        KshareError: Its headers do not say where it came from, and ``to`` is None; or they name a
            topic of Kafka's or kshare's own, to which nothing is put back.
    """
    headers = dict(message.headers() or ())
    texts = [(headers.get(name) or b"").decode(errors="replace") for name in HEADERS]
    place: tuple[str, int, int] | None = None
    if texts[0] and texts[1].isdecimal() and texts[2].isdecimal():
        place = texts[0], int(texts[1]), int(texts[2])
    if to is None and place is None:
        raise KshareError(
            f"{message.topic_partition} offset {message.offset()} is no dead letter: its headers "
            f"({', '.join(HEADERS[:3])}) do not say where it came from. Say where to put it: --to"
        )
    topic = place[0] if to is None and place is not None else to or ""
    if is_internal(topic):
        raise KshareError(
            f"{message.topic_partition} offset {message.offset()} would be put back to topic "
            f"{topic!r}, which is Kafka's or kshare's own: none of its records becomes a dead "
            "letter, so somebody has made this one up. --to names another topic"
        )
    partition = place[1] if place is not None and place[0] == topic else -1
    return Letter(message.key(), place, topic, partition, f"{texts[3]}: {texts[4]}".strip(": "))


class _NoneParked:
    """Letters of parked keys are put back, too: where they go, their keys stay parked."""

    def everywhere(self) -> Collection[ParkedKey]:
        return ()

    def counts(self) -> Mapping[str, ParkedCount]:
        return {}

    def close(self) -> None:
        pass


@dataclass
class Replay:
    """Puts the letters of a topic back, up to its end now, or a little more.

    Args:
        kafka: How to reach the cluster.
        config: The same, as :class:`.KeySharedConsumer` takes it.
        topic: The dead-letter topic.
        to: Where to put them; None: where each came from.
        keys: Only those of these keys; none: all.

    Attributes:
        counts: Number of letters that were put back, by topic.
        repeated: Number of letters that had been written twice.
    """

    kafka: KafkaConfig
    config: Mapping[str, Any]
    topic: str
    to: str | None = None
    keys: Collection[bytes] = ()
    counts: Counter[str] = field(default_factory=Counter)
    repeated: int = 0

    def look(self) -> Iterator[Letter]:
        """The letters that would be put back, one after the other; nothing is changed.

        Nothing is claimed either, so it may run beside :meth:`run`.

        Raises:
            KshareError: They cannot be read, or one is no letter.
        """
        known = set[tuple[str, int, int]]()
        config = consumer_config({**self.config, "group.id": group_of(self.topic)})
        options = read_options(config)
        bounds, hashes = self._bounds(), self._hashes()
        with closing(GroupOffsets(self.kafka, config.group, config.log_topic)) as offsets:
            committed = offsets.committed(list(bounds))
        for tp, (first, end) in sorted(bounds.items()):
            done = committed[tp].progress if tp in committed else Progress.at(first)
            pending = done.advance(first).pending_stripes(end, hashes)
            if pending:
                for batch in read_slice(Slice(*tp, stripes=pending), options):
                    for chunk in chunks(tp, batch):
                        found = self._new(list(chunk.messages().messages), known)
                        yield from (letter for _, letter in found)

    def run(self) -> None:
        """Put them back.

        Raises:
            KshareError: They cannot be read or written, or one is no letter. What was put back
                before is known to the next run.
        """
        known = set[tuple[str, int, int]]()
        # Nobody claims the other keys, so a transaction must not wait for what is theirs.
        config = {"transactional.id": group_of(self.topic), "purgatory": "key"}
        with self._consumer(config) as consumer:
            ends, was_aborted = self._assign(consumer), False
            while was_aborted or not self._is_over(consumer, ends):
                was_aborted = False
                try:
                    with consumer.transaction() as transaction:
                        messages = consumer.consume(_BATCH, _WAIT_SECONDS)
                        within = set(known)
                        new = list(self._new(messages, within))
                        for message, letter in new:
                            kind, milliseconds = message.timestamp()
                            transaction.produce(
                                letter.topic,
                                message.value(),
                                message.key(),
                                letter.partition,
                                milliseconds if kind else 0,
                                without_letter_headers(message.headers() or []),
                            )
                except TransactionAbortedError as error:
                    _log.warning("a transaction is aborted, and tried again: %s", error)
                    was_aborted = True  # they come again: positions say so when the next one begins
                    continue
                self.counts.update(letter.topic for _, letter in new)
                self.repeated += len(messages) - len(new)
                known = within

    def _consumer(self, config: Mapping[str, Any]) -> KeySharedConsumer:
        own = {"group.id": group_of(self.topic), "auto.offset.reset": "earliest"}
        return KeySharedConsumer({**self.config, **own, **config}, parked=lambda _: _NoneParked())

    def _assign(self, consumer: KeySharedConsumer) -> dict[TopicPartition, int]:
        """Read the letters of the keys; the end of each partition now."""
        ends = {tp: end for tp, (_, end) in self._bounds().items()}
        if ends:
            consumer.assign(dict.fromkeys(ends, self._hashes()))
        return ends

    def _bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset and the end of each partition that has letters."""
        with closing(Cluster(self.kafka)) as cluster:
            partitions = cluster.partitions(Subscribe((self.topic,)))
            ends, first = cluster.latest(partitions), cluster.earliest(partitions)
        return {tp: (first[tp], end) for tp, end in ends.items() if first[tp] < end}

    def _hashes(self) -> KeyRanges:
        """The hashes of the keys; all if none are named."""
        return KeyRanges.of_hashes(key_hash(key, 0) for key in self.keys) or ALL_HASHES

    def _is_over(self, consumer: KeySharedConsumer, ends: Mapping[TopicPartition, int]) -> bool:
        position = consumer.position() if ends else {}
        return all(position.get(tp, 0) >= end for tp, end in ends.items())

    def _new(
        self, messages: Sequence[Message], known: set[tuple[str, int, int]]
    ) -> Iterator[tuple[Message, Letter]]:
        for message in messages:
            letter = letter_of(message, self.to)
            if letter.place is None or letter.place not in known:
                known |= {letter.place} if letter.place is not None else set()
                yield message, letter
