"""The reader of one partition, for one slice or more: what to ask next, and what an answer means.

It sends nothing itself. At an obstacle, its :class:`ObstacleHandler` says how it goes on.
The states of a partition, and the outcomes that lead from one to another::

    waiting ------> assigned to a broker ------> asked ------ RECORDS ------> delivered --> done
    (a pause, a      ^       ^                   | | |     LAST_RECORDS         |    |
     sibling's       |       +------ EMPTY ------+ | |                          |    |
     chunk)          +-----------------------------|-|------ after RECORDS -----+    |
      ^                                            | |                               |
      +------------------ REROUTE -----------------+ |                               |
      +-------------- after LAST_RECORDS ------------|-------------------------------+
      |                                              |
      +--- found, or look again ---- CHECK_BOUNDS ---+
                                          |
                              lost: an error, or skipped
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from enum import Enum, auto
from typing import Protocol, TypeAlias

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.errors import RecordError, UnknownTopicError
from kshare.kafka.protocol import error_codes
from kshare.kafka.protocol.brokers import Brokers, ReadReplica
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka.protocol.fetch import FetchAnswer, PartitionFetch
from kshare.kafka.protocol.retry import Clock, RetryDeadline
from kshare.options import SourceOptions
from kshare.read.decode.batch_index import BatchIndex, index_batches
from kshare.read.reader.faults import LostOffsets, ReadPosition, no_progress, permanent_error
from kshare.read.reader.slice_records import PartitionRecords, SliceRecords
from kshare.read.sharing.chunks import SharedChunks

__all__ = ["Delivered", "ObstacleHandler", "Outcome", "PartitionReader"]

_log = logging.getLogger(__name__)

Delivered: TypeAlias = "tuple[PartitionReader, pa.RecordBatch]"
"""Some records of a partition."""


class Outcome(Enum):
    """The meaning of an answer for a partition."""

    RECORDS = auto()
    """Whole record batches came: deliver them, and ask the same broker for more."""
    LAST_RECORDS = auto()
    """Whole record batches came: deliver them, then find out which replica to ask."""
    EMPTY = auto()
    """No whole record batch came: ask the same broker again."""
    REROUTE = auto()
    """Find out which replica to ask, after a pause if there is one."""
    CHECK_BOUNDS = auto()
    """Wanted offsets may be lost: ask which offsets the log holds."""


class ObstacleHandler(Protocol):
    """Decides what becomes of a partition at an obstacle, and hears of answers for it."""

    @property
    def is_endless(self) -> bool:
        """True if no records are as good as some, and faults are retried for ever.

        All but an unknown topic: it may have been deleted.
        """

    @property
    def awaits_topic(self) -> bool:
        """True if an unknown topic is waited for, too: somebody else decides what is read."""

    def answered(self, first: int, end: int, log_end: int) -> None:
        """A broker has answered.

        Args:
            first: First offset of its log; 0 if it does not say.
            end: The end of the offsets that it hands out.
            log_end: The end of its log, as far as it is replicated. An open transaction hides what
                lies between the two.
        """

    def delivering(self, index: BatchIndex) -> None:
        """The records of a response are delivered from now on."""

    def lost(self, lost: LostOffsets) -> int:
        """Return the offset to go on at.

        Raises:
            DataLossError: No record may be missing.
        """


class PartitionReader:
    """Reads some slices of one partition in one pass.

    Args:
        slices: The slices; at least one, and all of one partition.
        options: Options of the source.
        brokers: Where replicas are looked up.
        clock: Source of time, which stands still while the consumer works.
        handler: What is made of answers and obstacles.

    Attributes:
        broker: Broker that was asked last, for error texts.
        replica: Replica to ask.
        is_at_end: Whether the last answer with records had all that the broker hands out.
    """

    def __init__(
        self,
        slices: Sequence[SliceRecords],
        options: SourceOptions,
        brokers: Brokers,
        clock: Clock,
        handler: ObstacleHandler,
    ) -> None:
        self._records = PartitionRecords(slices, options.kafka)
        self._options = options
        self._handler = handler
        self._deadline = RetryDeadline.for_reading(options.kafka, clock)
        self.is_at_end = False
        self._was_redirected = False  # since the last record
        self._was_found_again = False  # the leader, as it had less than is wanted
        self._chunks = self._join_siblings()
        self.broker = ", ".join(f"{host}:{port}" for host, port in options.kafka.bootstrap_servers)
        self.replica = ReadReplica(brokers, options.kafka, self.topic_partition)

    def _join_siblings(self) -> SharedChunks | None:
        """Take part in the sharing of chunks, if there are siblings."""
        limit = self._options.max_bytes_key_range_results
        group, offset = self._records.fetch_group, self.offset
        if group is None or not limit or offset is None or offset >= group.end:
            return None
        return SharedChunks(group, *self.topic_partition, limit)

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self._records.topic_partition

    @property
    def due(self) -> float:
        """Time before which nothing is to be asked, as of the clock."""
        return self._deadline.due

    # -- what is wanted ---------------------------------------------------------------------

    @property
    def shares(self) -> bool:
        """True if siblings may have fetched what is wanted."""
        return self._chunks is not None

    @property
    def offset(self) -> int | None:
        """The next offset to ask for; None if everything is fetched."""
        return self._records.offset

    @property
    def delivered(self) -> int:
        """The offset below which everything wanted is delivered; 0 before the first."""
        return min(part.cursor.delivered for part in self._records.slices)

    @property
    def has_large_batches(self) -> bool:
        """True if an answer was too small for one record batch."""
        return self._records.has_grown

    @property
    def position(self) -> ReadPosition:
        """The position of the reader, for errors."""
        return ReadPosition(self.broker, self.topic_partition, self.offset)

    def next_fetch(self) -> PartitionFetch | None:
        """The next fetch; None if everything is fetched."""
        return self._records.fetch()

    def fetch_ahead(self) -> PartitionFetch | None:
        """The fetch to send while the last response is decoded.

        None if everything is fetched, or probably will be found in that response, or if a sibling
        is fetching it.
        """
        fetch = self._records.fetch_ahead()
        is_first = self._records.response is None
        if fetch is None or not (is_first or self.claim(fetch.offset)):
            return None
        return fetch

    # -- what siblings have fetched ---------------------------------------------------------

    def claim(self, offset: int | None) -> bool:
        """True if it is for this task to fetch what comes from an offset on."""
        if offset is None or self._chunks is None:
            return offset is not None
        return self._chunks.claim(offset, self._records.expected_end(offset))

    def take_chunk(self, *, waits: bool) -> Generator[Delivered, None, bool]:
        """Deliver a chunk that a sibling has fetched.

        Args:
            waits: Whether to wait here for one that is fetching it; else :attr:`due` is raised.

        Returns:
            False if the broker is to be asked.
        """
        offset = self.offset
        if offset is None or self._chunks is None:
            return False
        ask = self._chunks.find if waits else self._chunks.look
        chunk = ask(offset, self._records.expected_end(offset))
        if isinstance(chunk, float):
            self._deadline.pause(chunk)
            return True
        if chunk is None:
            return False
        try:
            index = self._index(chunk.records, offset)
            if index.next_offset is not None:
                self._records.accept(index, chunk.aborted, len(chunk.records), chunk.start)
                self._leave_siblings_behind_their_end()
                yield from self.deliver()
                self._deadline.reset()
                self._deadline.pause(0.0)  # due once more, so nobody waits before the next look
                return True
        except RecordError as error:
            _log.info("%s: not from a sibling: %s", self.topic_partition, error)
        # If something is wrong with the log, the broker's own answer shall say so.
        if self._chunks is not None:
            self._chunks.discard(chunk.start)
            self._chunks.close(done=False)
        self._records.rewind()
        return False

    def _leave_siblings_behind_their_end(self) -> None:
        """Fetch alone what comes behind the offsets of the group, as in an open batch."""
        group, offset = self._records.fetch_group, self.offset
        if self._chunks is None or group is None or offset is None or offset < group.end:
            return
        self._chunks.close(done=True)
        self._chunks = None

    def close(self) -> None:
        """Deliver no more; leave the siblings, and say whether everything was read."""
        if self._chunks is not None:
            self._chunks.close(done=self.offset is None)
        self.rewind()

    # -- answers ----------------------------------------------------------------------------

    def start_waiting(self) -> None:
        """A request is under way: time without progress counts from now on."""
        self._deadline.start()

    def throttled(self) -> None:
        """The broker is there, and has a quota: time without progress counts anew."""
        self._deadline.reset()

    def handle(self, answer: FetchAnswer, asked: int, *, others_have_records: bool) -> Outcome:
        """Take a broker's answer.

        Args:
            answer: The answer.
            asked: Offset that was asked for.
            others_have_records: Whether there are records of other partitions in the response. They
                may have left no room for this one.

        Raises:
            KafkaError, DataLossError, RecordError: Reading cannot go on.
        """
        if answer.error_code:
            return self._refused(answer.error_code)
        ends = self._visible(answer), answer.high_watermark
        self._handler.answered(max(answer.log_start, 0), *ends)
        if self._handler.is_endless:
            self._deadline.reset()
            self._was_found_again = False
        try:
            index = self._index(answer.records, asked)
        except RecordError as error:
            return self.damaged(error, asked)
        moves = self.replica.follow(answer.preferred_replica) or self.replica.is_over
        if index.next_offset is None:
            if moves:
                return self._redirected()
            return self._starved(answer, asked, others_have_records)
        self._deadline.reset()
        self._was_redirected = self._was_found_again = False
        self.is_at_end = index.next_offset >= self._visible(answer)
        self._records.accept(index, answer.aborted, len(answer.records), asked)
        if self._chunks is not None:
            whole = answer.records[: len(answer.records) - index.tail_bytes]
            self._chunks.put(asked, index.next_offset, answer.aborted, whole)
            self._leave_siblings_behind_their_end()
        return Outcome.LAST_RECORDS if moves else Outcome.RECORDS

    def deliver(self) -> Iterator[Delivered]:
        """Deliver the records of the last answer."""
        index = self._records.response
        if index is not None:
            self._handler.delivering(index)
            for batch in self._records.deliver():
                yield self, batch

    def rewind(self) -> None:
        """Fetch again what is not delivered."""
        self._records.rewind()

    def damaged(self, error: RecordError, asked: int | None = None) -> Outcome:
        """The records of an answer cannot be read. Those of the leader may be sound.

        Raises:
            RecordError: It was the leader that answered.
        """
        if self._chunks is not None:  # a next attempt shall ask the broker
            response = self._records.response
            start = asked if response is None else response.fetch_offset
            assert start is not None
            self._chunks.discard(start)
        if not self.replica.leave(error):
            raise error
        self._records.rewind()
        return Outcome.REROUTE

    def failed(self, error: OSError) -> None:
        """A connection failed, or who leads the partition is unknown.

        Raises:
            FetchTimeoutError: There was no progress for the stated time.
        """
        self.replica.forget_leader()
        self.rewind()  # no record of a response is passed over
        if self.offset is not None and not self.replica.leave(error):
            self.pause(error)

    def pause(self, cause: Exception) -> None:
        """Ask nothing for a while.

        Raises:
            FetchTimeoutError: There was no progress for the stated time.
            UnknownTopicError: That was the cause, and nobody awaits the topic.
        """
        is_unknown = isinstance(cause, UnknownTopicError)
        if is_unknown and self._handler.awaits_topic:
            self._deadline.postpone()
            self._waits("cannot be read", "it exists, or another assignment is without it", cause)
            return
        if is_unknown or not self._handler.is_endless:
            self._deadline.start()
            if self._deadline.expired:
                if is_unknown:
                    # A topic that was just made, or a broker that has just started, looks so.
                    self._deadline.postpone()  # so that others are read until it is raised again
                    raise cause
                why = str(cause) or type(cause).__name__
                raise no_progress(self._options.kafka, self.position, why) from cause
        self._deadline.postpone()
        self._waits("cannot be read", "a broker hands out its records", cause)

    def _waits(self, state: str, until: str, why: object) -> None:
        why = str(why) or type(why).__name__
        self._deadline.waits(_log, Wait(state, until, str(self.topic_partition), why))

    def check_bounds(self, answer: FetchAnswer, bounds: tuple[int, int] | OSError) -> Outcome:
        """Take the offsets that the log holds, after :attr:`Outcome.CHECK_BOUNDS`.

        Args:
            answer: The answer that led there.
            bounds: First and end offset of the log, or why they are not known.

        Raises:
            DataLossError: Wanted offsets are lost.
            FetchTimeoutError: They have not come in the stated time.
        """
        if isinstance(bounds, OSError):
            self.failed(bounds)
            return Outcome.REROUTE
        earliest, latest = bounds
        offset = self.offset
        assert offset is not None
        if answer.error_code and earliest <= offset <= latest:  # it moved between the two requests
            self.pause(OSError("the offset was out of range for a moment"))
            return Outcome.REROUTE
        last = latest if answer.error_code else latest - 1
        is_short = not answer.error_code or self._records.wants_beyond(last)
        if is_short and not self._was_found_again:
            # One that leads no more, and has not heard of it, has less than the one that leads now,
            # or does not know that a transaction has ended.
            self._was_found_again = True
            self.replica.forget_leader()
            return Outcome.REROUTE
        self._was_found_again = False
        if latest > offset and not answer.error_code:
            kafka = self._options.kafka
            name = "last stable offset" if kafka.read_committed else "high watermark"
            why = (
                f"the broker returns no records there; its {name} is {self._visible(answer)}, and "
                f"offsets up to {self._records.end} are wanted"
            )
            raise no_progress(kafka, self.position, why)
        for part in self._records.slices:
            offset = part.cursor.next_offset
            if offset is not None and not earliest <= offset <= last:
                position = ReadPosition(self.broker, self.topic_partition, offset)
                lost = LostOffsets(part.planned.slice, position, earliest, latest)
                part.cursor = part.cursor.deliver_to(self._handler.lost(lost))
        return Outcome.EMPTY

    def _index(self, records: memoryview, asked: int) -> BatchIndex:
        topic, partition = self.topic_partition
        return index_batches(records, topic=topic, partition=partition, fetch_offset=asked)

    def _refused(self, code: int) -> Outcome:
        if self.replica.leave(error_codes.name(code)):
            return Outcome.REROUTE
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Outcome.CHECK_BOUNDS
        error = permanent_error(code, self.position, expired=self._deadline.expired)
        if error is not None:
            raise error
        self.replica.forget_leader()
        self.pause(OSError(f"broker {self.broker} answered {error_codes.name(code)}"))
        return Outcome.REROUTE

    def _redirected(self) -> Outcome:
        """Switch to another replica; pause if the last switch brought no record."""
        if self._was_redirected:
            self.pause(OSError("the leader names a follower that answers nothing"))
        self._was_redirected = True
        return Outcome.REROUTE

    def _starved(self, answer: FetchAnswer, asked: int, others_have_records: bool) -> Outcome:
        """No whole batch came: the fetch was too small, or there is nothing there yet."""
        visible = self._visible(answer)
        if len(answer.records):
            self._records.grow()
        elif others_have_records and visible > asked:
            self._deadline.reset()  # its turn comes
            return Outcome.EMPTY
        elif not self._handler.is_endless:
            if self.replica.leave("it has no records yet"):
                return Outcome.REROUTE
            why = f"offset {asked} is wanted, and brokers hand out those below {visible}"
            self._waits("wanted records are not there yet", "they are, or transactions end", why)
        return Outcome.CHECK_BOUNDS if self._deadline.expired else Outcome.EMPTY

    def _visible(self, answer: FetchAnswer) -> int:
        """The end of the offsets that the broker hands out."""
        read_committed = self._options.kafka.read_committed
        return answer.last_stable_offset if read_committed else answer.high_watermark
