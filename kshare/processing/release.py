"""Puts the letters of keys back and ends their sequences, in one step, while processors run.

::

    a key's letters, all of them --one transaction--> its topic, each with what ends the sequence
          |                                             |
          |     the group's log: "a record that bears this ends it", written before
          |                                             |
          +-- is there a record of the key between them, or one without a letter? --> aborted, again

Guarantees: the sequence of a key ends with the first record that is put back, in whatever process
reads it: nobody has to see it in time. One that was aborted ends nothing, also for processors that
read what is not committed. No other record of the key lies between its letters, nor waits before
them: so handlers get all of its records in order, and each has its letter or comes behind them. If
it is interrupted, either both have happened or neither has.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from kshare.core.hashing import KeyRanges, key_hash
from kshare.core.listing import show_key
from kshare.core.progress import Progress, Slice, TopicPartition
from kshare.core.waits import PATIENCE_SECONDS, Wait
from kshare.dead_letters.writer import RELEASE
from kshare.errors import TransactionAbortedError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.delivery.dispatcher import read_options
from kshare.group.log.retry_log import RetryLog, Sequenced
from kshare.group.log.topic import log_table
from kshare.group.message import chunks
from kshare.group.tools.offsets import GroupOffsets
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.processing.replay import (
    Batch,
    Letter,
    Replay,
    Targets,
    acknowledge,
    is_over,
    put_back,
)
from kshare.read.reader.read_slice import read_slice

__all__ = ["Found", "Release", "Released", "first_without_letter"]

_log = logging.getLogger("kshare.processing")

_BATCH: Final = 500
_WAIT_SECONDS: Final = 0.2
_PAUSE_SECONDS: Final = 0.1
_Marks: TypeAlias = Mapping[TopicPartition, Sequenced]
_Place: TypeAlias = tuple[str, int, int]


class Found(NamedTuple):
    """A record of a key that its group has not committed.

    Attributes:
        place: Topic, partition and offset.
        release: What it bears that ends a sequence; empty if nothing.
    """

    place: _Place
    release: str


class Released(NamedTuple):
    """What became of a key.

    Attributes:
        partition: Where its sequence was.
        key: The key.
        letters: How many letters were put back there; 0: there were none, and it is not released.
        is_seen: Whether a processor has read them, and handles the key.
    """

    partition: TopicPartition
    key: bytes
    letters: int
    is_seen: bool = True


def first_without_letter(
    found: Iterable[Found], letters: Collection[_Place], own: str
) -> _Place | None:
    """The first record of a key that would be handled out of order, were it released now.

    Args:
        found: The records of the key that its group has not committed, up to the end of the log.
        letters: The places of its letters that are put back.
        own: What those bear that are put back with these letters; empty before they are.

    Returns:
        None if there is none: all are letters, or were put back, or lie behind all that was.
    """
    early: _Place | None = None
    is_back = False
    for record in found:
        if own and record.release == own:
            is_back = True
            if early is not None:  # before what was put back, or amid it
                return early
        elif record.place not in letters:
            early = early or record.place
    return None if is_back else early


class _TooEarlyError(Exception):
    def __init__(self, place: _Place) -> None:
        super().__init__(place)
        self.place = place


class Release:
    """Puts the letters of keys back and ends the sequences of a group. For one thread.

    Args:
        replay: Whose letters, and of which keys.
        group: Id of the group whose processors have written them.
        log_topic: The group's log.
        topics: Only the sequences of these topics; None: all, also those whose letters are gone.
    """

    def __init__(
        self, replay: Replay, group: str, log_topic: str, topics: Collection[str] | None
    ) -> None:
        self._replay = replay
        self._group = group
        self._topics = topics
        kafka = replay.kafka
        self._log = RetryLog(log_table(kafka, log_topic, group), group)
        self._offsets = GroupOffsets(group, kafka, log_topic)
        # What other transactions have not ended yet is not to be overtaken either.
        uncommitted = {**replay.config, "group.id": group, "isolation.level": "read_uncommitted"}
        config = consumer_config(uncommitted)
        self._options = read_options(replace(config, columns=("key", "offset", "headers")))
        self._cluster = Cluster(config.kafka)

    def run(self) -> Iterator[Released]:
        """Release the keys, one after the other, and say what became of each.

        Raises:
            UnknownGroupError: Nobody knows the group.
            KshareError: The cluster did not answer, a letter cannot be put back, or the log has
                nothing of the group, whose offsets belong to another one.
        """
        if not self._log.read().sequences:
            self._offsets.checked()
        with self._replay.consumer() as consumer:
            for key in sorted({key for _, key in self._open()}):
                yield from self._release(consumer, key)

    def close(self) -> None:
        """Close the connections."""
        self._log.close()
        self._offsets.close()
        self._cluster.close()

    def _open(self) -> dict[tuple[TopicPartition, bytes], Sequenced]:
        """The sequences that have not ended, of the keys and topics that are wanted."""
        keys, topics = self._replay.keys, self._topics
        return {
            (tp, key): mark
            for (tp, key), mark in self._log.read().sequences.items()
            if mark.until is None
            and (not keys or key in keys)
            and (topics is None or tp.topic in topics)
        }

    def _release(self, consumer: KeySharedConsumer, key: bytes) -> Iterator[Released]:
        hashes = KeyRanges.of_hashes([key_hash(key, 0)])
        targets = Targets(self._cluster)
        waits, ends = WaitLog(_log), dict[TopicPartition, int]()
        while marks := {tp: mark for (tp, each), mark in self._open().items() if each == key}:
            token = secrets.token_hex(16)  # what an earlier attempt wrote must not count
            for tp, mark in marks.items():
                self._log.offer_release(tp, key, mark, token)
            had = ends.keys()
            ends = {tp: end for tp, (_, end) in self._replay.bounds(self._cluster).items()}
            if had != ends.keys():
                consumer.assign(dict.fromkeys(ends, hashes))
            try:
                with consumer.transaction() as transaction:
                    batch = self._letters(consumer, ends, targets)
                    letters = {each.place for _, each in batch.letters if each.place is not None}
                    counts = Counter(_partition_of(letter) for _, letter in batch.letters)
                    for tp in marks:  # before anything is written
                        self._check(key, hashes, tp, letters, "")
                    put_back(transaction, batch.letters, partial(_ends, token, marks))
                    transaction.flush()
                    for tp in marks:
                        self._check(key, hashes, tp, letters, token if counts[tp] else "")
                    acknowledge(consumer, batch)
            except TransactionAbortedError as error:
                _log.warning("a transaction is aborted, and tried again: %s", error)
            except _TooEarlyError as early:
                waits.wait(self._too_early(key, early.place))
                time.sleep(_PAUSE_SECONDS)
            else:
                waits.over()
                self._replay.count(batch)
                ended = self._ended(key, {tp: mark for tp, mark in marks.items() if counts[tp]})
                for tp in marks:
                    yield Released(tp, key, counts[tp], tp in ended)
                return

    def _ended(self, key: bytes, marks: _Marks) -> Collection[TopicPartition]:
        """Wait, for some time, until processors have ended sequences; those that they have."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            known = {tp: mark.offset for (tp, each), mark in self._open().items() if each == key}
            ended = [tp for tp, mark in marks.items() if known.get(tp) != mark.offset]
            if len(ended) == len(marks) or time.monotonic() > until:
                return ended
            time.sleep(_PAUSE_SECONDS)

    def _letters(
        self, consumer: KeySharedConsumer, ends: Mapping[TopicPartition, int], targets: Targets
    ) -> Batch:
        """All letters of a key up to some ends."""
        batch, known = Batch([], []), set[bytes]()
        while not is_over(consumer, ends):
            messages = consumer.consume(_BATCH, _WAIT_SECONDS)
            more = self._replay.sort(messages, known, targets)
            batch = Batch(batch.letters + more.letters, batch.repeated + more.repeated)
        return batch

    def _check(
        self,
        key: bytes,
        hashes: KeyRanges,
        tp: TopicPartition,
        letters: Collection[_Place],
        own: str,
    ) -> None:
        """Check that nothing of the key would be handled out of order."""
        place = first_without_letter(self._found(key, hashes, tp), letters, own)
        if place is not None:
            raise _TooEarlyError(place)

    def _found(self, key: bytes, hashes: KeyRanges, tp: TopicPartition) -> Iterator[Found]:
        """The records of a key that the group has not committed, up to the end of the log."""
        end, first = self._cluster.latest([tp])[tp], self._cluster.earliest([tp])[tp]
        committed = self._offsets.committed([tp])
        done = committed[tp].progress if tp in committed else Progress.at(first)
        pending = done.advance(first).pending_stripes(end, hashes)
        for batch in read_slice(Slice(*tp, stripes=pending), self._options) if pending else ():
            for chunk in chunks(tp, batch):
                for message in chunk.messages().messages:
                    if message.key() == key:
                        value = dict(message.headers() or ()).get(RELEASE) or b""
                        yield Found((*tp, message.offset()), value.decode(errors="replace"))

    def _too_early(self, key: bytes, place: _Place) -> Wait:
        """For what a key waits that cannot be released yet."""
        return Wait(
            f"key {show_key(key)} is not released yet",
            f"a processor of group {self._group} has written a dead letter for each of its "
            "records: if none runs, start one; if new records of the key come faster than letters "
            "are put back, pause whoever writes them",
            detail="its record {}-{} offset {} is no dead letter so far".format(*place),
        )


def _partition_of(letter: Letter) -> TopicPartition | None:
    return None if letter.place is None else TopicPartition(*letter.place[:2])


def _ends(token: str, marks: _Marks, letter: Letter) -> Sequence[tuple[str, bytes | None]]:
    """The header that ends a sequence, of letters that are put back behind it."""
    return [(RELEASE, token.encode())] if _partition_of(letter) in marks else []
