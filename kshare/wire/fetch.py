"""The read path: a :class:`~kshare.core.progress.Slice` in, Arrow record batches out.

Law: the batches hold exactly the records of the slice that the log holds, in offset order, or an
error says what is missing; a passing fault never shows, a lasting one ends in an error that names
broker, topic, partition and offset. With a limit, they hold the first so many of these: where that
ends is a function of the log. Cost: one request is always under way while the last response is
decoded (unless a limit is likely to be reached in it); memory is two fetch responses and one output
batch, whatever the backlog.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import NoReturn

import pyarrow as pa
from kafka.errors import for_code

from kshare.core.progress import Slice
from kshare.errors import (
    AuthorizationError,
    CorruptRecordError,
    DataLossError,
    FetchTimeoutError,
    KafkaError,
    UnknownTopicError,
)
from kshare.options import KafkaConfig, SourceOptions, parse_options
from kshare.wire.connection import Connection
from kshare.wire.ends import KeySample, SliceEnd
from kshare.wire.leaders import Leaders
from kshare.wire.messages import (
    FetchAnswer,
    fetch_request,
    fetch_version,
    list_offsets,
    parse_fetch_response,
)
from kshare.wire.records import ROWS_MAX, BatchIndex, Decoder, index_batches

__all__ = ["SliceEnd", "SliceReader", "read_slice", "reader_options"]

_log = logging.getLogger(__name__)

_FIRST_FETCH_BYTES = 1 << 20
_FETCH_BYTES_MIN = 64 << 10
_FETCH_BYTES_MAX = 1 << 30
_RECORD_BYTES = 1 << 10  # a guess, until the first response
_OFFSET_OUT_OF_RANGE = 1
_CORRUPT_MESSAGE = 2
_AUTHORIZATION_FAILED = {29, 31}
# Leadership moves, brokers start, storage fails over: ask for the leader again, and retry.
_RETRIABLE = {-1, _CORRUPT_MESSAGE, 3, 5, 6, 7, 8, 9, 13, 56, 74, 75, 78, 100}


def read_slice(
    slice_: Slice,
    options: Mapping[str, str] | SourceOptions,
    *,
    max_records: int | None = None,
    on_end: Callable[[SliceEnd], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the records of a slice from Kafka, without Spark.

    Args:
        slice_: topic, partition and rectangles of offsets x key hashes. Every offset must have been
            below the high watermark (``read_committed``: the last stable offset) when the slice was
            made; the reader waits for it otherwise, up to ``default.api.timeout.ms``.
        options: the options of ``format("kshare")``; of these the ``kafka.*`` ones,
            ``includeHeaders`` and ``failOnDataLoss`` matter here. A mapping needs no subscription.
        max_records: stop after so many records, at least 1; None is no limit.
        on_end: called once, after the last batch was taken, with where reading ended. Not called
            when the reader fails or is closed before.

    Yields:
        Batches of the columns of Spark's kafka source, about 8 MiB each at most, in offset order.

    Raises:
        ValueError: ``max_records`` is not at least 1; raised at the call.
        OptionsError: the options cannot be used; raised at the call, before anything is contacted.
        KafkaError: :mod:`kshare.errors` has the kinds.
        DataLossError: wanted offsets are gone, and ``failOnDataLoss`` is true.
        RecordError: the log's bytes are damaged or in a format that is not read.
    """
    options = reader_options(options, slice_.topic)
    sample = None if on_end is None else KeySample()
    reader = SliceReader(slice_, options, max_records=max_records, sample=sample)
    return reader.batches() if on_end is None else _reported(reader, on_end)


def reader_options(options: Mapping[str, str] | SourceOptions, topic: str) -> SourceOptions:
    """The options of a reader of one topic, parsed.

    Raises:
        OptionsError: they cannot be used.
    """
    if isinstance(options, SourceOptions):
        return options
    names = {name.lower() for name in options}
    if not names & {"subscribe", "subscribepattern", "assign"}:
        options = {**options, "subscribe": topic}
    return parse_options(options, streaming=False).options


def _key_at(batch: pa.RecordBatch, row: int) -> tuple[bytes | None, int]:
    """The key and the offset of a row."""
    return batch.column("key")[row].as_py(), batch.column("offset")[row].as_py()


def _reported(
    reader: "SliceReader", on_end: Callable[[SliceEnd], None]
) -> Generator[pa.RecordBatch, None, None]:
    yield from reader.batches()
    on_end(reader.slice_end)


class SliceReader:
    """Reads one slice once.

    Args:
        slice_: what to read.
        options: parsed; see :func:`read_slice`.
        max_records: stop after so many records.
        sample: gets the keys of the delivered records.

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
    ) -> None:
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records is {max_records}; wanted at least 1")
        self._topic, self._partition = slice_.topic, slice_.partition
        self._bands = deque(band.offsets for band in slice_.bands())
        self._end = slice_.offsets.end
        whole = slice_.hashes.is_whole
        self._of_hashes = "" if whole else f" of the key hashes {slice_.hashes}"
        self._options = options
        self._kafka = options.kafka
        self._leaders = Leaders(options.kafka)
        self._decoder = Decoder(
            slice_,
            include_headers=options.include_headers,
            read_committed=options.kafka.read_committed,
            check_crcs=options.kafka.check_crcs,
            max_rows=min(ROWS_MAX, max_records or ROWS_MAX),
        )
        self._max_records = max_records
        self._sample = sample
        self._records = 0  # delivered
        self._records_seen = 0  # looked at, for these
        self._offsets_seen = 0
        self._stop: int | None = None  # where the limit was reached
        self._offset: int | None = None  # the next that is wanted; None: all is read
        first_bytes = _FIRST_FETCH_BYTES
        if max_records is not None:
            first_bytes = max(_FETCH_BYTES_MIN, min(first_bytes, max_records * _RECORD_BYTES))
        self._bytes_wanted = min(first_bytes, self._kafka.max_partition_fetch_bytes)
        self._bytes_per_offset: float | None = None
        self._throttle_until = 0.0
        self._broker = ", ".join(f"{h}:{p}" for h, p in self._kafka.bootstrap_servers)
        self._seek(0)

    @property
    def slice_end(self) -> SliceEnd:
        """Where reading ended; to be asked when it has."""
        sample = () if self._sample is None else self._sample.hashes
        end = self._end if self._stop is None else self._stop
        return SliceEnd(end, self._records, sample)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The record batches of the slice, up to the limit."""
        waiting = _Patience(self._kafka)
        while self._offset is not None:
            try:
                with self._leaders.connection(self._topic, self._partition) as connection:
                    self._broker = connection.broker
                    yield from self._read_from(connection, waiting)
            except UnknownTopicError as error:
                # A topic that was just made, or a broker that has just started, looks like this.
                self._pause(waiting, error)
            except OSError as error:
                self._leaders.forget(self._topic, self._partition)
                self._pause(waiting, error)

    def _read_from(
        self, connection: Connection, waiting: "_Patience"
    ) -> Generator[pa.RecordBatch, None, None]:
        """Read on from one leader until all is read; return early to ask who leads now."""
        self._send(connection)
        while self._offset is not None:
            waiting.begin()
            throttled = max(0.0, self._throttle_until - time.monotonic())
            answer = parse_fetch_response(connection.receive(throttled), fetch_version(connection))
            if answer.throttle_seconds:
                self._throttle_until = time.monotonic() + answer.throttle_seconds
            if answer.error_code:
                if self._refused(connection, answer, waiting):
                    return
                if self._offset is not None:
                    self._send(connection)
                continue
            index = index_batches(
                answer.records,
                topic=self._topic,
                partition=self._partition,
                fetch_offset=self._offset,
            )
            if index.next_offset is None:
                self._starved(answer, waiting)
                self._send(connection)
                continue
            waiting.end()
            seen, offsets = index.records, index.next_offset - self._offset
            self._learn(len(answer.records), offsets)
            self._seek(index.next_offset)
            ahead = self._offset is not None and not self._may_be_last(index)
            if ahead:
                self._send(connection)  # under way while this response is decoded
            yield from self._take(index, answer.aborted)
            if self._stop is not None:
                self._offset = None  # what is under way goes down with its connection
                return
            self._records_seen += seen
            self._offsets_seen += offsets
            if self._offset is not None and not ahead:
                self._send(connection)

    # -- the limit --------------------------------------------------------------------------

    def _take(
        self, index: BatchIndex, aborted: Sequence[tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Deliver the records of a response, up to the limit."""
        for decoded in self._decoder.decode(index, aborted):
            batch = decoded
            if self._max_records is not None:
                batch = decoded.slice(0, self._max_records - self._records)
            self._records += batch.num_rows
            if self._sample is not None:
                self._sample.add(batch.num_rows, partial(_key_at, batch))
            if self._records == self._max_records:
                self._stop = batch.column("offset")[-1].as_py() + 1
            yield batch
            if self._stop is not None:
                return

    def _may_be_last(self, index: BatchIndex) -> bool:
        """Whether the limit is likely to be reached by this response."""
        if self._max_records is None:
            return False
        share = self._records / self._records_seen if self._records_seen else 1.0
        return self._records + index.records * share >= self._max_records

    # -- requests ---------------------------------------------------------------------------

    def _send(self, connection: Connection) -> None:
        assert self._offset is not None
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
                max_bytes=self._next_fetch_bytes(),
            )
        )

    def _next_fetch_bytes(self) -> int:
        """As many bytes as the rest of the slice is likely to need, within the limits."""
        if self._bytes_per_offset is None or self._offset is None:
            return self._bytes_wanted
        offsets: float = self._end - self._offset
        if self._max_records is not None and self._records:
            missing = self._max_records - self._records
            offsets = min(offsets, missing * self._offsets_seen / self._records)
        rest = offsets * self._bytes_per_offset
        return max(min(self._bytes_wanted, int(rest * 1.25) + _FETCH_BYTES_MIN), _FETCH_BYTES_MIN)

    def _learn(self, size: int, offsets: int) -> None:
        self._bytes_per_offset = size / max(offsets, 1)
        self._bytes_wanted = min(4 * self._bytes_wanted, self._kafka.max_partition_fetch_bytes)

    def _seek(self, offset: int) -> None:
        """Set the next wanted offset: the first one not before ``offset`` that a band holds."""
        while self._bands and self._bands[0].end <= offset:
            self._bands.popleft()
        self._offset = max(offset, self._bands[0].start) if self._bands else None

    # -- faults -----------------------------------------------------------------------------

    def _starved(self, answer: FetchAnswer, waiting: "_Patience") -> None:
        """No whole batch came: the fetch was too small, or there is nothing there yet."""
        if len(answer.records):
            self._bytes_wanted = min(2 * self._bytes_wanted, _FETCH_BYTES_MAX)
            self._bytes_per_offset = None
        visible = answer.last_stable_offset if self._kafka.read_committed else answer.high_watermark
        if waiting.expired:
            name = "last stable offset" if self._kafka.read_committed else "high watermark"
            self._give_up(
                waiting,
                f"the broker returns no records there; its {name} is {visible}, and offsets up to "
                f"{self._end} are wanted",
            )

    def _refused(self, connection: Connection, answer: FetchAnswer, waiting: "_Patience") -> bool:
        """Deal with an error code. True: ask again who leads the partition."""
        code = answer.error_code
        if code == _OFFSET_OUT_OF_RANGE:
            return self._out_of_range(connection, waiting)
        place = self._place()
        if code in _AUTHORIZATION_FAILED:
            raise AuthorizationError(
                f"not authorized to read topic {self._topic}: grant the principal Read on it",
                **place,
            )
        name = for_code(code).__name__
        if code not in _RETRIABLE:
            raise KafkaError(
                f"broker {self._broker} refused to read {self._topic}-{self._partition} at offset "
                f"{self._offset}: {name} ({code})",
                **place,
            )
        if code == _CORRUPT_MESSAGE and waiting.expired:
            raise CorruptRecordError(
                f"broker {self._broker} reports that its own log of {self._topic}-"
                f"{self._partition} is corrupt at offset {self._offset}",
                **place,
            )
        self._leaders.forget(self._topic, self._partition)
        self._pause(waiting, OSError(f"broker {self._broker} answered {name}"))
        return True

    def _out_of_range(self, connection: Connection, waiting: "_Patience") -> bool:
        """The log does not hold the wanted offset: trimmed before it, or ends before it."""
        earliest, latest = list_offsets(connection, self._topic, self._partition)
        assert self._offset is not None
        if earliest <= self._offset <= latest:  # it moved between the two requests
            self._pause(waiting, OSError("the offset was out of range for a moment"))
            return True
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
        self._seek(lost_end)
        return False

    def _pause(self, waiting: "_Patience", cause: Exception) -> None:
        waiting.begin()
        if waiting.expired:
            if isinstance(cause, UnknownTopicError):
                raise cause
            self._give_up(waiting, str(cause) or type(cause).__name__, cause)
        _log.info("%s-%d: retrying after: %s", self._topic, self._partition, cause)
        waiting.sleep()

    def _give_up(self, waiting: "_Patience", why: str, cause: Exception | None = None) -> NoReturn:
        stated = self._kafka.poll_timeout_ms is not None
        option = "kafkaConsumer.pollTimeoutMs" if stated else "kafka.default.api.timeout.ms"
        raise FetchTimeoutError(
            f"no progress on {self._topic}-{self._partition} at offset {self._offset} from broker "
            f"{self._broker} for {waiting.seconds:g} s ({option}): {why}",
            **self._place(),
        ) from cause

    def _place(self) -> dict[str, str | int | None]:
        return {
            "broker": self._broker,
            "topic": self._topic,
            "partition": self._partition,
            "offset": self._offset,
        }


class _Patience:
    """How long a reader has waited without progress, and how long it pauses before a retry.

    Only waiting counts, not the time that the reader's consumer takes.
    """

    def __init__(self, kafka: KafkaConfig) -> None:
        self.seconds = kafka.read_timeout_ms / 1000
        self._pause_first = kafka.retry_backoff_ms / 1000
        self._pause_max = kafka.retry_backoff_max_ms / 1000
        self._pause = self._pause_first
        self._since: float | None = None

    def begin(self) -> None:
        """Waiting begins, unless it is going on."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """There was progress."""
        self._since = None
        self._pause = self._pause_first

    @property
    def expired(self) -> bool:
        """Whether the stated time is over."""
        return self._since is not None and time.monotonic() - self._since >= self.seconds

    def sleep(self) -> None:
        """Pause before a retry: exponential, with a fifth of jitter as Kafka's clients do."""
        time.sleep(self._pause * random.uniform(0.8, 1.2))  # noqa: S311
        self._pause = min(2 * self._pause, self._pause_max)
