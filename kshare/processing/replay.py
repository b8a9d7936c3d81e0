"""Puts dead letters back: each to the topic that it came from, or to another one, in key order.

::

    dead-letter topic --kshare's consumer--> transaction: the records, and that they are put back
                                              |
                                              +--> the topics, with the headers that they had

Guarantees: a letter is put back once for readers with ``isolation.level=read_committed``, also if
it was interrupted and runs again: the records and what is put back are committed together, in the
individual commits of a group. Letters of a key come in the order in which they are in the
dead-letter topic. One that a crash had written twice is put back once if one run reads both. A
place alone does not say so: a frame of Spark may have several rows of one record, and a topic may
be made again. So key, value and headers are compared, too.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Final, NamedTuple

from kshare.core.hashing import ALL_HASHES, KeyRanges, key_hash
from kshare.core.listing import ParkedCount, counted
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.dead_letters.letter import LEFT_OUT, REWRITTEN, TIMESTAMP
from kshare.dead_letters.writer import HEADERS, without_letter_headers
from kshare.errors import (
    KafkaError,
    KshareError,
    RecordRefusedError,
    TransactionAbortedError,
    UnknownTopicError,
)
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.transaction import Transaction
from kshare.group.delivery.dispatcher import read_options
from kshare.group.message import Message, chunks
from kshare.group.tools.offsets import GroupOffsets
from kshare.kafka.cluster import Cluster
from kshare.kafka.parked_keys import ParkedKey
from kshare.kafka.topics import is_internal
from kshare.options import KafkaConfig, Subscribe
from kshare.options.kinds import topic_fault
from kshare.read.reader.read_slice import read_slice

__all__ = [
    "Batch",
    "Letter",
    "Replay",
    "Targets",
    "acknowledge",
    "group_of",
    "is_over",
    "letter_of",
    "put_back",
]

_log = logging.getLogger("kshare.processing")

_BATCH: Final = 500
_WAIT_SECONDS: Final = 0.2
_TRANSACTION_MS: Final = 30_000  # if it is killed amid one, readers wait no longer for its end
_PARTITION: Final = re.compile("[0-9]{1,10}")
_OFFSET: Final = re.compile("[0-9]{1,19}")
_SHOWN: Final = 260  # characters of a name that is none
_SHOWN_BAD: Final = 20
_UNKNOWN: Final = "(an unknown topic)"
_DIGEST: Final = 16  # bytes


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
        timestamp: The record's own, in milliseconds since 1970, where the letter has another; None
            if it has not.
    """

    key: bytes | None
    place: tuple[str, int, int] | None
    topic: str
    partition: int
    why: str
    timestamp: int | None = None


def group_of(topic: str) -> str:
    """Id of the group that knows which letters of a topic were put back."""
    return f"kshare-replay-{topic}"


def place_of(message: Message) -> tuple[str, int, int] | None:
    """The topic, the partition and the offset that a letter came from, if its headers say so."""
    topic, partition, offset = _texts(message)[:3]
    if not (topic and _PARTITION.fullmatch(partition) and _OFFSET.fullmatch(offset)):
        return None
    if int(partition) >= 1 << 31 or int(offset) >= 1 << 63:
        return None
    return topic, int(partition), int(offset)


def _texts(message: Message) -> list[str]:
    """The texts of a letter's headers, one for each of :data:`HEADERS`."""
    headers = dict(message.headers() or ())
    return [(headers.get(name) or b"").decode(errors="replace") for name in HEADERS]


def letter_of(message: Message, to: str | None) -> Letter:
    """The letter that a record of the dead-letter topic is.

    Args:
        message: The record.
        to: Where to put it; None: where it came from.

    Raises:
        KshareError: Its headers do not say where it came from, or say that it is not what the
            record had, and ``to`` is None; or they name what cannot be a topic, or one of Kafka's
            or kshare's own, to which nothing is put back.
    """
    headers = dict(message.headers() or ())
    left_out = (headers.get(LEFT_OUT) or b"").decode(errors="replace").split(", ")
    if "value" in left_out:
        raise KshareError(
            "it has not the record's value, which was more than the topic of dead letters takes: "
            "its headers say where the record is"
        )
    rewritten = (headers.get(REWRITTEN) or b"").decode(errors="replace")
    if rewritten and to is None:
        raise KshareError(
            f"its {rewritten[:_SHOWN]} is a text made of a query's columns (process_by_key), and "
            "not what the record had: readers of the topic would not expect it. Read the record "
            "from its topic, or name another topic for the text: --to"
        )
    place, texts = place_of(message), _texts(message)
    if to is None and place is None:
        raise KshareError(
            f"it is no dead letter: its headers ({', '.join(HEADERS[:3])}) do not say where it "
            "came from; say where to put it: --to"
        )
    topic = place[0] if to is None and place is not None else to or ""
    fault = topic_fault(topic)
    if fault is not None:
        raise KshareError(f"it says that it came from topic {topic[:_SHOWN]!r}, which is no name")
    if is_internal(topic):
        raise KshareError(
            f"it would be put back to topic {topic!r}, which is Kafka's or kshare's own: none of "
            "its records becomes a dead letter, so somebody has made this one up. --to names "
            "another topic"
        )
    partition = place[1] if place is not None and place[0] == topic else -1
    key = None if "no key" in left_out else message.key()
    stamp = (headers.get(TIMESTAMP) or b"").decode(errors="replace")
    timestamp = int(stamp) if _OFFSET.fullmatch(stamp) and int(stamp) < 1 << 63 else None
    why = f"{texts[3]}: {texts[4]}".strip(": ")
    return Letter(key, place, topic, partition, why, timestamp)


class Targets:
    """The topics to which letters are put back, as they are when they are first asked for.

    Args:
        cluster: The cluster; whoever makes this closes it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._partitions: dict[str, int] = {}

    def check(self, letter: Letter) -> None:
        """Check that there is a place for a letter.

        Raises:
            KshareError: Its topic, or its partition there, does not exist.
        """
        topic = letter.topic
        if topic not in self._partitions:
            try:
                self._partitions[topic] = len(self._cluster.partitions(Subscribe((topic,))))
            except UnknownTopicError:
                self._partitions[topic] = 0
        count = self._partitions[topic]
        if count == 0:
            raise KshareError(f"topic {topic} does not exist; make it, or name another one: --to")
        if letter.partition >= count:
            raise KshareError(
                f"it says that it came from partition {letter.partition} of topic {topic}, which "
                f"has {count}; --to puts it where its key belongs"
            )


class Batch(NamedTuple):
    """Records of the dead-letter topic, by what becomes of them.

    Attributes:
        letters: Letters that are put back, and the records that they are.
        repeated: Those of which an equal one was there before.
    """

    letters: list[tuple[Message, Letter]]
    repeated: list[Message]


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
        topics: Only those that came from these topics, the others stay, and those that do not say;
            None: all.
        skips_bad: Whether those that cannot be put back stay, and the others do not.

    Attributes:
        counts: Number of letters that were put back, by topic.
        repeated: Number of letters that had been written twice.
        others: Where letters came from that stay, as that was not named, by partition and offset
            of the dead-letter topic.
        bad: Why letters cannot be put back, by partition and offset of the dead-letter topic.
    """

    kafka: KafkaConfig
    config: Mapping[str, Any]
    topic: str
    to: str | None = None
    keys: Collection[bytes] = ()
    topics: Collection[str] | None = None
    skips_bad: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    others: dict[tuple[TopicPartition, int], str] = field(default_factory=dict)
    bad: dict[tuple[TopicPartition, int], str] = field(default_factory=dict)

    def look(self) -> Iterator[Letter]:
        """The letters that would be put back, one after the other; nothing is changed.

        Those that cannot be put back are in :attr:`bad` then. Nothing is claimed either, so it may
        run beside :meth:`run`.

        Raises:
            KshareError: They cannot be read.
        """
        known = set[bytes]()
        config = consumer_config({**self.config, "group.id": group_of(self.topic)})
        options = read_options(config)
        hashes = self._hashes()
        with closing(Cluster(self.kafka)) as cluster:
            bounds = self.bounds(cluster)
        with closing(GroupOffsets(config.group, self.kafka, config.log_topic)) as offsets:
            committed = offsets.committed(list(bounds))
        with closing(Cluster(self.kafka)) as cluster:
            targets = Targets(cluster)
            for tp, (first, end) in sorted(bounds.items()):
                done = committed[tp].progress if tp in committed else Progress.at(first)
                pending = done.advance(first).pending_stripes(end, hashes)
                if pending:
                    for batch in read_slice(Slice(*tp, stripes=pending), options):
                        for chunk in chunks(tp, batch):
                            messages = chunk.messages().messages
                            found = self.sort(list(messages), known, targets).letters
                            yield from (letter for _, letter in found)

    def check(self) -> Counter[str]:
        """Look at all letters before any is put back: how many go to each topic.

        Raises:
            KshareError: They cannot be read; or some cannot be put back, and are not to be skipped.
                Each is in the text, with its place.
        """
        counts = Counter(letter.topic for letter in self.look())
        if self.bad and not self.skips_bad:
            shown = [f"  {line}" for line in islice(self.bad_lines(), _SHOWN_BAD)]
            more = len(self.bad) - len(shown)
            raise KshareError(
                f"{counted(len(self.bad), 'letter')} cannot be put back, so none is: --skip-bad "
                "leaves them there, and puts the others back\n"
                + "\n".join([*shown, *([f"  and {more} more"] if more else [])])
            )
        return counts

    def bad_lines(self) -> Iterator[str]:
        """A line for each letter that cannot be put back, with its place."""
        for (tp, offset), why in sorted(self.bad.items()):
            yield f"{tp} offset {offset}: {why}"

    def run(self) -> None:
        """Put them back.

        Raises:
            KshareError: They cannot be read or written, or one cannot be put back, and is not to be
                skipped. What was put back before is known to the next run.
        """
        known = set[bytes]()
        with closing(Cluster(self.kafka)) as cluster, self.consumer() as consumer:
            targets, most = Targets(cluster), _BATCH
            ends, again = {tp: end for tp, (_, end) in self.bounds(cluster).items()}, False
            if ends:
                consumer.assign(dict.fromkeys(ends, self._hashes()))
            while again or not is_over(consumer, ends):
                again = False
                batch, within = Batch([], []), set(known)
                try:
                    with consumer.transaction() as transaction:
                        messages = consumer.consume(most, _WAIT_SECONDS)
                        batch = self.sort(messages, within, targets)
                        put_back(transaction, batch.letters)
                        acknowledge(consumer, batch)
                except TransactionAbortedError as error:
                    _log.warning("a transaction is aborted, and tried again: %s", error)
                    again = True  # they come again: positions say so when the next one begins
                    continue
                except RecordRefusedError as error:
                    most, again = self._refused(batch, error), True
                    continue
                self.count(batch)
                known = within

    def _refused(self, batch: Batch, error: RecordRefusedError) -> int:
        """A topic takes some letter never; how many letters to try at a time to find it."""
        if len(batch.letters) != 1:
            return 1
        ((message, _),) = batch.letters
        self.bad[message.topic_partition, message.offset()] = str(error)
        if not self.skips_bad:
            raise KshareError(
                f"{message.topic_partition} offset {message.offset()} cannot be put back: {error}; "
                "--skip-bad leaves it there, and puts the others back"
            ) from error
        return _BATCH

    # -- the parts of it -------------------------------------------------------------------------

    def count(self, batch: Batch) -> None:
        """Letters are put back."""
        self.counts.update(letter.topic for _, letter in batch.letters)
        self.repeated += len(batch.repeated)

    def consumer(self) -> KeySharedConsumer:
        """A consumer of the group that knows which letters were put back."""
        config = {
            "group.id": group_of(self.topic),
            "auto.offset.reset": "earliest",
            "transactional.id": group_of(self.topic),
            "acknowledgement.mode": "explicit",  # bad ones stay
            "transaction.timeout.ms": _TRANSACTION_MS,
            # Nobody claims the other keys, so a transaction must not wait for what is theirs.
            "purgatory": "key",
        }
        return KeySharedConsumer({**self.config, **config}, parked=lambda _: _NoneParked())

    def bounds(self, cluster: Cluster) -> dict[TopicPartition, tuple[int, int]]:
        """The first offset and the end of each partition that has letters."""
        partitions = cluster.partitions(Subscribe((self.topic,)))
        ends, first = cluster.latest(partitions), cluster.earliest(partitions)
        return {tp: (first[tp], end) for tp, end in ends.items() if first[tp] < end}

    def _hashes(self) -> KeyRanges:
        """The hashes of the keys; all if none are named."""
        return KeyRanges.of_hashes(key_hash(key, 0) for key in self.keys) or ALL_HASHES

    def sort(self, messages: Sequence[Message], known: set[bytes], targets: Targets) -> Batch:
        """Sort records of the dead-letter topic.

        Args:
            messages: The records.
            known: Digests of letters that were seen before; gets those of these.
            targets: Where letters may go.
        """
        batch = Batch([], [])
        for message in messages:
            place = message.topic_partition, message.offset()
            if place in self.bad:
                continue
            origin = place_of(message)
            if self.topics is not None and (origin is None or origin[0] not in self.topics):
                self.others[place] = _UNKNOWN if origin is None else origin[0][:_SHOWN]
                continue
            try:
                letter = letter_of(message, self.to)
                targets.check(letter)
            except KshareError as error:
                if isinstance(error, KafkaError):
                    raise
                self.bad[place] = str(error)
                continue
            digest = _digest(letter, message)
            if digest in known:
                batch.repeated.append(message)
                continue
            known |= {digest} if digest is not None else set()
            batch.letters.append((message, letter))
        return batch


def _digest(letter: Letter, message: Message) -> bytes | None:
    """The digest of a letter's place and of what its record had; None if it has no place.

    Without the timestamp: a record that has none gets another one each time its letter is written.
    """
    if letter.place is None:
        return None
    value, headers = message.value(), without_letter_headers(message.headers() or [])
    # The value's length ends the head, and None is no empty value.
    head = repr((letter.place, letter.key, headers, None if value is None else len(value)))
    digest = blake2b(head.encode(errors="backslashreplace"), digest_size=_DIGEST)
    digest.update(value or b"")
    return digest.digest()


def put_back(
    transaction: Transaction,
    letters: Iterable[tuple[Message, Letter]],
    more: Callable[[Letter], Sequence[tuple[str, bytes | None]]] = lambda _: (),
) -> None:
    """Write records back in a transaction, with the headers that they had.

    Args:
        transaction: The transaction.
        letters: Letters, and the records that they are.
        more: More headers of a letter.
    """
    for message, letter in letters:
        kind, milliseconds = message.timestamp()
        transaction.produce(
            letter.topic,
            message.value(),
            letter.key,
            letter.partition,
            letter.timestamp or (milliseconds if kind else 0),
            [*without_letter_headers(message.headers() or []), *more(letter)],
        )


def acknowledge(consumer: KeySharedConsumer, batch: Batch) -> None:
    """What was put back does not come again."""
    for message in (*(message for message, _ in batch.letters), *batch.repeated):
        consumer.acknowledge(message)


def is_over(consumer: KeySharedConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    """True if a consumer has returned what lies before some ends."""
    position = consumer.position() if ends else {}
    return all(position.get(tp, 0) >= end for tp, end in ends.items())
