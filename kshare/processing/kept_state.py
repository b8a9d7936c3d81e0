"""What earlier runs and operators have left of records and keys, as a processor goes by it.

::

    group's log --read--> attempts, for the records that come
                    +---> marks of sequences --> the scheduler
    a record that ends a sequence --> the log says so, too? --> it is ended there, then handled
    parked keys ---> what is held of them is given back; unparked: it comes again

Guarantees: a record that ends a sequence is looked up in the log before it, and those behind it,
reach the scheduler: what it bears was written there before it could be read, so no mark that is
older than it decides.
"""

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from typing import Final, TypeVar

from kshare.dead_letters.record import EarlierFailure, Mark, Record
from kshare.dead_letters.writer import RELEASE
from kshare.errors import KafkaError
from kshare.group.log.retry_log import Remembered, Sequenced
from kshare.group.message import ACKNOWLEDGED
from kshare.processing.consumer_edge import ConsumerEdge, message_of
from kshare.processing.engine import Engine

__all__ = ["KeptState"]

_log = logging.getLogger("kshare.processing")
_T = TypeVar("_T")
_LOOK_SECONDS: Final = 2.0


def _release_of(record: Record) -> str:
    """What a record bears that ends a sequence of its key; empty if nothing."""
    found = next((value for name, value in record.headers if name == RELEASE), None)
    return (found or b"").decode(errors="replace")


def _mark(sequence: Sequenced) -> Mark:
    """A mark of the group's log, as the scheduler has it."""
    reason = sequence.reason
    error = EarlierFailure(reason.name, reason.text) if reason.name else None
    return Mark(sequence.offset, error, sequence.failures, sequence.since)


class KeptState:
    """Reads attempts and sequences from the group's log, and follows which keys are parked.

    For the reader's thread.

    Args:
        engine: The engine, in its event loop.
        edge: Where that is read.
        has_sequences: Whether keys with a dead letter are sequences.
    """

    def __init__(self, engine: Engine, edge: ConsumerEdge, *, has_sequences: bool) -> None:
        self._engine = engine
        self._edge = edge
        self._has_sequences = has_sequences
        self._remembered = Remembered()
        self._marked: Collection[Hashable] = ()  # as of the last look
        self._aborted: set[Record] = set()  # of those that came last
        self._put_back: dict[Hashable, tuple[int, int]] = {}  # offsets, by lane
        self._next_look = 0.0
        self._said_unused = False

    def recall(self, records: Iterable[Record]) -> None:
        """Give records the attempts that they have had."""
        if self._remembered.attempts:
            for record in records:
                self._remembered.recall(record)

    def read(self) -> None:
        """Read attempts, and the marks of keys whose records follow a dead letter."""
        sequences = self._engine.scheduler.sequences
        had = dict(sequences.marks)  # first: these were written before this read
        known = self._edge.retry_log.read()
        self._remembered = known
        if not self._has_sequences:  # only that policy knows what marks mean
            self._log_unused(sum(each.until is None for each in known.sequences.values()))
            return
        marks, self._put_back = dict[Hashable, Mark](), {}
        for lane, sequence in known.sequences.items():
            if sequence.until is None:
                marks[lane] = _mark(sequence)
            else:
                self._put_back[lane] = sequence.offset, sequence.until
        self._marked = marks
        self._soon(partial(sequences.learn, had), marks)

    def without_put_back(self, records: list[Record]) -> list[Record]:
        """End the sequences that some records end; return the records that are to be handled.

        A record says that it ends a sequence, and the log has to say so, too: it was written before
        the record could be read. What comes again from before that record is put back behind it,
        so it counts as processed; and so does what was put back in a transaction that was aborted.

        Raises:
            KshareError: The log cannot be read or written: do not handle the records then.
        """
        if not self._has_sequences:
            return records
        self._aborted = set()
        lanes = {*self._marked, *self._engine.scheduler.sequences.marks}
        if lanes:
            self._end_sequences([each for each in records if each.lane in lanes])
        if not self._put_back and not self._aborted:
            return records
        others = list[Record]()
        for record in records:
            first, end = self._put_back.get(record.lane, (0, 0))
            if first <= record.offset < end or record in self._aborted:
                message_of(record).chunk.acknowledged[record.row] = ACKNOWLEDGED
                _log.info("%r is passed over: it is put back behind it", record)
            else:
                others.append(record)
        return others

    def _end_sequences(self, records: Iterable[Record]) -> None:
        """End the sequences of some records' keys that one of them ends."""
        ending = [(record, token) for record in records if (token := _release_of(record))]
        if not ending:
            return
        if not self._edge.reads_committed:
            committed = self._edge.committed([record for record, _ in ending])
            self._aborted |= {record for record, _ in ending} - committed
            ending = [(record, token) for record, token in ending if record in committed]
        self.read()
        ended = dict[Hashable, Record]()
        for record, token in ending:
            place = record.topic_partition, record.raw_key or b""
            mark = self._remembered.sequences.get(place)
            is_open = mark is not None and mark.until is None and mark.offset < record.offset
            if mark is not None and is_open and mark.release == token and place not in ended:
                self._edge.retry_log.end_sequence_at(*place, mark, record.offset)
                ended[place] = record
        if ended:
            self.read()
        for record in ended.values():  # behind what that read has found, and before the records
            end = self._engine.scheduler.sequences.end
            self._engine.loop.soon_from_thread(partial(end, record.lane, record.offset))
            _log.info("%r ends the sequence of its key, which is handled from here on", record)

    def _log_unused(self, marks: int) -> None:
        if marks and not self._said_unused:
            self._said_unused = True
            _log.warning(
                "%d keys have dead letters that later records were to follow "
                "(DeadLetter(sequence=True), in an earlier run): without it, these are handled",
                marks,
            )

    def _soon(self, call: Callable[[_T], object], given: _T) -> None:
        self._engine.loop.soon_from_thread(lambda: call(given))

    def follow_parking(self) -> None:
        """Give back what is held of keys that an operator has parked; unparked, it comes again."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._soon(self._engine.park, self._edge.parked(self._engine.scheduler.firsts()))
        try:
            # The lanes first: a key that is parked meanwhile is in the list that is read then.
            parked = dict(self._engine.scheduler.parked_lanes)
            unparked = self._edge.unparked(parked)
            if unparked or self._has_sequences:
                self.read()  # first: what has been parked has all its attempts again
            for lane in unparked:
                self._soon(self._engine.unparked, lane)
        except KafkaError as error:
            _log.warning("cannot see which keys are unparked: %s", error)
