"""The reader of one slice: a :class:`~kshare.core.progress.Slice` in, Arrow record batches out.

Law: the batches hold exactly the records of the slice that the log holds, in offset order, or an
error says what is missing; a passing fault never shows, a lasting one ends in an error that names
broker, topic, partition and offset. With a limit, they hold the first so many of these: where that
ends is a function of the log. A follower that is read instead of the leader changes nothing of
that, nor do chunks that siblings on the host have fetched. Cost: one request is always under way
while the last response is decoded (unless a limit is likely to be reached in it, or a sibling makes
it); memory is two fetch responses and one output batch, whatever the backlog.
"""

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import NoReturn

import pyarrow as pa

from kshare.core.fetch_groups import FetchGroup
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Slice
from kshare.core.slice_end import KeySample, SliceEnd
from kshare.errors import (
    DataLossError,
    FetchTimeoutError,
    Location,
    RecordError,
    UnknownTopicError,
)
from kshare.options import SourceOptions
from kshare.wire.decode.records import ROWS_MAX, BatchIndex, Decoder, index_batches
from kshare.wire.protocol import error_codes
from kshare.wire.protocol.broker_pool import Leaders
from kshare.wire.protocol.connection import Connection
from kshare.wire.protocol.error_codes import ErrorCode
from kshare.wire.protocol.messages import (
    FetchAnswer,
    fetch_request,
    fetch_version,
    list_offsets,
    parse_fetch_response,
)
from kshare.wire.protocol.replicas import ReadReplica
from kshare.wire.protocol.retry import RetryDeadline
from kshare.wire.reader.faults import permanent_error
from kshare.wire.reader.fetch_size import FetchSize
from kshare.wire.sharing.chunks import SharedChunks

__all__ = ["SliceReader"]

_log = logging.getLogger(__name__)


class SliceReader:
    """Reads one slice once.

    Args:
        slice_: what to read.
        options: parsed; see :func:`kshare.wire.reader.read_slice.read_slice`.
        max_records: stop after so many records.
        sample: gets the keys of the delivered records.
        fetch_group: see there.

    Raises:
        ValueError: ``max_records`` is not at least 1.
    """

    def __init__(
        self,
        slice_: Slice,
        options: SourceOptions,
        *,
        max_records: int | None = None,
        sample: KeySample | None = None,
        fetch_group: FetchGroup | None = None,
    ) -> None:
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records is {max_records}; wanted at least 1")
        self._topic, self._partition = slice_.topic, slice_.partition
        self._slice = slice_
        self._bands: deque[OffsetRange] = deque()  # what is still to be asked for
        self._end = slice_.offsets.end
        whole = slice_.hashes.is_whole
        self._of_hashes = "" if whole else f" of the key hashes {slice_.hashes}"
        self._options = options
        self._kafka = options.kafka
        self._leaders = Leaders(options.kafka)
        self._replica = ReadReplica(self._leaders, options.kafka, self._topic, self._partition)
        self._decoder = Decoder(
            slice_,
            columns=options.column_names,
            with_keys=sample is not None,
            read_committed=options.kafka.read_committed,
            check_crcs=options.kafka.check_crcs,
            max_rows=ROWS_MAX,
        )
        self._max_records = max_records
        self._sample = sample
        self._records = 0  # delivered
        self._records_seen = 0  # looked at, for these
        self._offsets_seen = 0
        self._stop: int | None = None  # where the limit was reached
        self._offset: int | None = None  # the next that is wanted; None: all is read
        self._delivered = 0  # all that is wanted below this offset, or it is lost and was told
        self._asked = 0  # where the last response begins
        self._sent_on = False  # to another replica, without a record since
        self._size = FetchSize(options.kafka, max_records)
        self._throttle_until = 0.0
        self._broker = ", ".join(f"{h}:{p}" for h, p in self._kafka.bootstrap_servers)
        self._fetch_group = fetch_group if options.max_bytes_key_range_results else None
        self._shared: SharedChunks | None = None
        self._rewind()

    @property
    def slice_end(self) -> SliceEnd:
        """Where reading ended; to be asked when it has."""
        sample = () if self._sample is None else self._sample.hashes
        end = self._end if self._stop is None else self._stop
        return SliceEnd(end, self._records, sample)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches of the slice, up to the limit."""
        if self._fetch_group is None:
            yield from self._batches()
            return
        limit = self._options.max_bytes_key_range_results
        self._shared = SharedChunks(self._fetch_group, self._topic, self._partition, limit)
        try:
            yield from self._batches()
        finally:
            self._shared.close(done=self._offset is None)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        waiting = RetryDeadline.for_reading(self._kafka)
        while self._offset is not None:
            try:
                if self._shared is not None and (yield from self._take_shared(self._shared)):
                    waiting.reset()
                    continue
                with self._replica.connection() as connection:
                    if connection.broker != self._broker:
                        self._broker, self._throttle_until = connection.broker, 0.0
                    yield from self._read_from(connection, waiting)
            except UnknownTopicError as error:
                # A topic that was just made, or a broker that has just started, looks like this.
                self._pause(waiting, error)
            except OSError as error:
                self._leaders.forget(self._topic, self._partition)
                self._rewind()  # whatever failed, and when: no record of a response is passed over
                if not self._replica.leave(error):
                    self._pause(waiting, error)
            except RecordError as error:
                if self._shared is not None:  # a next attempt shall ask the broker
                    self._shared.condemn(self._asked)
                if not self._replica.leave(error):
                    raise
                self._rewind()  # the leader's copy of these records may be sound

    def _read_from(
        self, connection: Connection, waiting: RetryDeadline
    ) -> Generator[pa.RecordBatch, None, None]:
        """Read on from one replica until all is read; return early to ask which one to ask."""
        self._send(connection)
        while self._offset is not None:
            waiting.start()
            answer = self._receive(connection)
            if answer.error_code:
                if self._refused(connection, answer, waiting):
                    return
                self._send(connection)
                continue
            index = index_batches(
                answer.records,
                topic=self._topic,
                partition=self._partition,
                fetch_offset=self._offset,
            )
            self._asked = self._offset
            moves = self._replica.follow(answer.preferred_replica) or self._replica.is_over
            if index.next_offset is None:
                if self._turns(waiting) if moves else self._starved(connection, answer, waiting):
                    return
                self._send(connection)
                continue
            waiting.reset()
            self._sent_on = False
            self._size.learn(len(answer.records), index.next_offset - self._offset)
            self._seek(index.next_offset)
            if self._shared is not None:
                whole = answer.records[: len(answer.records) - index.tail_bytes]
                self._shared.put(self._asked, index.next_offset, answer.aborted, whole)
            ahead = not moves and not self._may_be_last(index) and self._is_ours()
            fault = self._send_ahead(connection) if ahead else None
            yield from self._take(index, answer.aborted)
            if self._stop is not None:
                return  # what is under way goes down with its connection
            if fault is not None:
                raise fault
            if moves or (self._shared is not None and not ahead):
                return
            if not ahead:
                self._send(connection)

    # -- what siblings have fetched ---------------------------------------------------------

    def _take_shared(self, shared: SharedChunks) -> Generator[pa.RecordBatch, None, bool]:
        """Deliver a chunk that a sibling has fetched. False: the broker is to be asked."""
        assert self._offset is not None
        found = shared.find(self._offset, self._expected_end(self._offset))
        if found is None:
            return False
        try:
            index = index_batches(
                found.records,
                topic=self._topic,
                partition=self._partition,
                fetch_offset=self._offset,
            )
            if index.next_offset is not None:
                self._size.learn(len(found.records), index.next_offset - found.start)
                self._seek(index.next_offset)
                yield from self._take(index, found.aborted)
                return True
        except RecordError as error:
            _log.info("%s-%d: not from a sibling: %s", self._topic, self._partition, error)
        # What is wrong with the log, if anything, the broker's own answer shall say.
        shared.condemn(found.start)
        shared.close(done=False)
        self._rewind()
        return False

    def _is_ours(self) -> bool:
        """Whether it is for this task to fetch what comes next, if anything does."""
        if self._offset is None or self._shared is None:
            return self._offset is not None
        return self._shared.claim(self._offset, self._expected_end(self._offset))

    def _expected_end(self, offset: int) -> int:
        """The offset after the last one that a fetch from there would probably bring."""
        return min(self._end, offset + self._size.offsets_for(self._offsets_left(offset)))

    # -- the limit --------------------------------------------------------------------------

    def _take(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Deliver the records of a response, up to the limit."""
        yield from self._deliver(index, aborted)
        if self._stop is not None:
            self._offset = None
            return
        assert index.next_offset is not None
        self._delivered = index.next_offset
        self._records_seen += index.records
        self._offsets_seen += index.next_offset - index.fetch_offset

    def _deliver(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Decode the records of a response, and count them as they are handed out."""
        left = None if self._max_records is None else self._max_records - self._records
        for rows in self._decoder.decode(index, aborted, left):
            self._delivered = rows.end
            if self._sample is not None:
                self._sample.add(rows.batch.num_rows, rows.key_at)
            self._count(rows.batch.num_rows, rows.end)
            yield rows.batch
            if self._stop is not None:
                return

    def _count(self, records: int, end: int) -> None:
        """So many more are delivered; ``end`` is the offset after the last one."""
        self._records += records
        if self._records == self._max_records:
            self._stop = end

    def _may_be_last(self, index: BatchIndex) -> bool:
        """Whether the limit is likely to be reached by this response."""
        if self._max_records is None:
            return False
        share = self._records / self._records_seen if self._records_seen else 1.0
        return self._records + index.records * share >= self._max_records

    # -- requests ---------------------------------------------------------------------------

    def _send(self, connection: Connection) -> None:
        """Ask for what is wanted next, if anything is."""
        if self._offset is None:
            return
        pause = self._throttle_until - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        connection.send(
            fetch_request(
                connection,
                self._kafka,
                topic=self._topic,
                partition=self._partition,
                offset=self._offset,
                max_bytes=self._size.bytes_for(self._offsets_left(self._offset)),
                rack=self._replica.rack,
            )
        )

    def _receive(self, connection: Connection) -> FetchAnswer:
        throttled = max(0.0, self._throttle_until - time.monotonic())
        answer = parse_fetch_response(connection.receive(throttled), fetch_version(connection))
        if answer.throttle_seconds:
            self._throttle_until = time.monotonic() + answer.throttle_seconds
        return answer

    def _send_ahead(self, connection: Connection) -> OSError | None:
        """Send the next request before this response is decoded; what of it fails, is for later.

        This response is good all the same, and nobody would ask for it again.
        """
        try:
            self._send(connection)
        except OSError as error:
            return error
        return None

    def _offsets_left(self, offset: int) -> float:
        """How many offsets are likely to be needed from there on."""
        left: float = self._end - offset
        if self._max_records is not None and self._records:
            missing = self._max_records - self._records
            left = min(left, missing * self._offsets_seen / self._records)
        return left

    def _rewind(self) -> None:
        """Set the next wanted offset: the first one that was not delivered, up to the limit."""
        bands = self._slice.bands() if self._stop is None else ()
        self._bands = deque(band.offsets for band in bands)
        self._seek(self._delivered)

    def _seek(self, offset: int) -> None:
        """Set the next wanted offset: the first one not before ``offset`` that a band holds."""
        while self._bands and self._bands[0].end <= offset:
            self._bands.popleft()
        self._offset = max(offset, self._bands[0].start) if self._bands else None

    # -- faults -----------------------------------------------------------------------------

    def _turns(self, waiting: RetryDeadline) -> bool:
        """Another replica is to be asked; to and fro without a record: not at once."""
        if self._sent_on:
            self._pause(waiting, OSError("the leader names a follower that answers nothing"))
        self._sent_on = True
        return True

    def _starved(self, connection: Connection, answer: FetchAnswer, waiting: RetryDeadline) -> bool:
        """No whole batch came: the fetch was too small, or there is nothing there yet.

        Returns:
            Whether the leader is to be asked, since a follower has nothing.
        """
        if len(answer.records):
            self._size.grow()
        elif self._replica.leave("it has no records yet"):
            return True
        visible = answer.last_stable_offset if self._kafka.read_committed else answer.high_watermark
        if waiting.expired:
            assert self._offset is not None
            earliest, latest = list_offsets(connection, self._topic, self._partition)
            if latest <= self._offset:  # it ends just there, and stays so
                self._lost(earliest, latest)
                return False
            name = "last stable offset" if self._kafka.read_committed else "high watermark"
            self._give_up(
                waiting,
                f"the broker returns no records there; its {name} is {visible}, and offsets up to "
                f"{self._end} are wanted",
            )
        return False

    def _refused(self, connection: Connection, answer: FetchAnswer, waiting: RetryDeadline) -> bool:
        """Deal with an error code. True: ask again which replica to ask."""
        code = answer.error_code
        if self._replica.leave(error_codes.name(code)):
            return True
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(connection, waiting)
        error = permanent_error(
            code,
            expired=waiting.expired,
            broker=self._broker,
            topic=self._topic,
            partition=self._partition,
            offset=self._offset,
        )
        if error is not None:
            raise error
        self._leaders.forget(self._topic, self._partition)
        self._pause(waiting, OSError(f"broker {self._broker} answered {error_codes.name(code)}"))
        return True

    def _out_of_range(self, connection: Connection, waiting: RetryDeadline) -> bool:
        """The log does not hold the wanted offset: trimmed before it, or ends before it."""
        earliest, latest = list_offsets(connection, self._topic, self._partition)
        assert self._offset is not None
        if earliest <= self._offset <= latest:  # it moved between the two requests
            self._pause(waiting, OSError("the offset was out of range for a moment"))
            return True
        self._lost(earliest, latest)
        return False

    def _lost(self, earliest: int, latest: int) -> None:
        """What is wanted next is not in the log: an error, or it is skipped."""
        assert self._offset is not None
        wanted = (self._offset, self._end)
        gone = (
            "was deleted by retention or by an operator"
            if self._offset < earliest
            else ("is beyond the end of the log (truncated, or the topic was made anew)")
        )
        text = (
            f"{self._topic}-{self._partition}: offsets {wanted[0]} to {wanted[1]}{self._of_hashes} "
            "are wanted, the "
            f"log holds {earliest} to {latest} (ends not included): what is missing {gone}"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(
                text + ". If losing it is acceptable, set failOnDataLoss to false.",
                wanted=wanted,
                available=(earliest, latest),
                **self._place(),
            )
        lost_end = min(earliest, wanted[1]) if self._offset < earliest else wanted[1]
        _log.warning(
            "%s. Skipped, since failOnDataLoss is false: offsets %d to %d",
            text,
            self._offset,
            lost_end,
        )
        self._delivered = lost_end
        self._seek(lost_end)

    def _pause(self, waiting: RetryDeadline, cause: Exception) -> None:
        waiting.start()
        if waiting.expired:
            if isinstance(cause, UnknownTopicError):
                raise cause
            self._give_up(waiting, str(cause) or type(cause).__name__, cause)
        _log.info("%s-%d: retrying after: %s", self._topic, self._partition, cause)
        waiting.sleep()

    def _give_up(
        self, waiting: RetryDeadline, why: str, cause: Exception | None = None
    ) -> NoReturn:
        stated = self._kafka.poll_timeout_ms is not None
        option = "kafkaConsumer.pollTimeoutMs" if stated else "kafka.default.api.timeout.ms"
        raise FetchTimeoutError(
            f"no progress on {self._topic}-{self._partition} at offset {self._offset} from broker "
            f"{self._broker} for {waiting.seconds:g} s ({option}): {why}",
            **self._place(),
        ) from cause

    def _place(self) -> Location:
        return {
            "broker": self._broker,
            "topic": self._topic,
            "partition": self._partition,
            "offset": self._offset,
        }
