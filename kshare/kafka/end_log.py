"""The log of ends: where the ranges of open batches ended (:mod:`kshare.core.range_end`).

A compacted topic, ``__kshare_range_ends`` unless ``realTime.topic`` names another, made on first
use. Each run of a query takes one partition, chosen by chance, and its dicts say which, and from
which offset on the ends of a batch are there.

Guarantees: what is read is all that the log held when it was asked. No record is written twice: a
write that may have arrived is not repeated, as a repetition has the same key (rule 2 of
``docs/design/real-time.md``). So whether it has arrived is seen by reading.

Cost: a read is one request, or two if there is anything new; a write is one. An open log has three
clients of librdkafka.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from secrets import randbelow
from typing import Final, NamedTuple, Self, TypeVar

from confluent_kafka import Producer

from kshare.core.live import is_live_key, live_key, run_of
from kshare.core.open_batch import no_ends
from kshare.core.open_entry import LogPosition, OpenRange
from kshare.core.range_end import (
    EndKey,
    RangeEnd,
    RangeEnds,
    decode_end,
    decode_key,
    encode_end,
    encode_key,
)
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    DataLossError,
    FetchTimeoutError,
    InternalTopicError,
    KafkaError,
    RecordRefusedError,
    UnknownTopicError,
)
from kshare.kafka.client import servers
from kshare.kafka.compacted_topic import Changes, CompactedTopic, Row
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.kafka.row_writer import RowWriter
from kshare.kafka.topics import RANGE_ENDS_TOPIC, TopicSpec
from kshare.options import KafkaConfig

__all__ = ["RANGE_ENDS_SPEC", "EndLog"]

_log = logging.getLogger(__name__)

RANGE_ENDS_SPEC: Final = TopicSpec(
    RANGE_ENDS_TOPIC,
    16,
    {"segment.bytes": str(1 << 20), "segment.ms": "3600000"},
    # Whoever reads a batch's ends begins behind all earlier ones: nobody waits for a tombstone.
    wishes={"min.cleanable.dirty.ratio": "0.05", "delete.retention.ms": "60000"},
)
"""The settings of the log's topic."""

_READER: Final = "kshare-range-ends"
_LASTING: Final = (
    AuthenticationError,
    AuthorizationError,
    FetchTimeoutError,  # which has waited
    InternalTopicError,
    RecordRefusedError,
    UnknownTopicError,  # which a cluster has said twice
)
_Answer = TypeVar("_Answer")


class _Seen(NamedTuple):
    """The proposals of a batch that were read or written, and the partition that they are in."""

    partition: int
    keys: set[EndKey]


class EndLog:
    """The log of ends, for the planner or a task of one query; to be closed by whoever makes it.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.

    Args:
        kafka: How to reach the cluster.
        topic: Its topic.
        fail_on_data_loss: Whether it is an error that ends were deleted. If not, this is logged,
            and what the log holds from its begin on counts.
        choose: The partition of new batches, from the number of partitions.
        producer: Makes the client that writes.

    Attributes:
        topic: Its topic.
        live: What the planner of the batch that was read last has said there of its tasks
            (:mod:`kshare.core.live`); None if nothing.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        topic: str = RANGE_ENDS_TOPIC,
        *,
        fail_on_data_loss: bool = True,
        choose: Callable[[int], int] = randbelow,
        producer: Callable[..., Producer] = Producer,
    ) -> None:
        self.topic = topic
        self.live: bytes | None = None
        self._kafka = kafka
        self._fails = fail_on_data_loss
        self._rows = CompactedTopic(
            kafka,
            replace(RANGE_ENDS_SPEC, name=topic),
            choose=lambda count: (choose(count),),
            group=_READER,
        )
        self._writer = RowWriter(kafka, producer, {"retries": 0})
        self._writing = RetryDeadline.for_requests(kafka)  # over all writes that fail in a row
        self._own: int | None = None  # the partition of new batches
        self._reading: tuple[LogPosition, str] | None = None  # a batch, and where its ends begin
        self._found: list[tuple[EndKey, RangeEnd | None]] = []  # of that batch, in the log's order
        self._seen: dict[str, _Seen] = {}  # by batch: what is to be deleted with it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Make the topic, unless it exists, and look whether it keeps what is written to it.

        Raises:
            InternalTopicError: It cannot be made, or it deletes old records.
        """
        self._partition()
        config = self._rows.config()
        if config is not None and config.deletes_last_values:
            raise InternalTopicError(
                f"topic {self.topic} deletes old records, and a realTime query that was stopped "
                "for longer would not know where it ended; let who may change topics run: "
                f"kafka-configs.sh --bootstrap-server {servers(self._kafka).replace(' ', '')} "
                f"--alter --entity-type topics --entity-name {self.topic} "
                "--add-config cleanup.policy=compact",
                topic=self.topic,
            )

    def position(self) -> LogPosition:
        """The end of the log of this query's new batches. Makes the topic if it is not there."""
        try:
            return self._attempted(self._position)
        except UnknownTopicError:  # deleted since this object has made or found it
            self._own = None
            return self._attempted(self._position)

    def read(self, position: LogPosition, ranges: Sequence[OpenRange]) -> RangeEnds:
        """The ends of ranges of one batch, as the log has them now.

        Args:
            position: Where in the log the ends of the batch begin.
            ranges: The ranges.

        Raises:
            DataLossError: The log was deleted, or cut, since the batch was planned, and
                ``failOnDataLoss`` is true.
        """
        if not ranges:
            return no_ends(ranges)
        batch = ranges[0].id.batch
        is_other = False
        if self._reading != (position, batch):
            is_other = self._is_other(position)
            self._rows.seek(position.partition, 0 if is_other else position.offset)
            self._reading, self._found, self.live = (position, batch), [], None
            self._seen.setdefault(batch, _Seen(position.partition, set()))
        changes = self._attempted(self._rows.read)
        if is_other:
            self._lose(position, "was made again since")
        elif changes.restarted:
            self._lose(position, "ends before that")
        elif changes.is_cut:
            self._lose(position, "begins after that")
        self._take(batch, changes)
        return no_ends(ranges).read(self._found)

    def append(self, ends: Mapping[EndKey, RangeEnd]) -> bool:
        """Propose ends for ranges of the batch that was read last.

        Whether they have arrived, and count, is seen by reading: also if this returns, they may
        not have. Their keys must be new, also after an error.

        Returns:
            Whether a broker has said that it took them. If not, this has paused.

        Raises:
            KafkaError: A write is refused for good, or none was taken for
                ``default.api.timeout.ms``.
        """
        if self._reading is None:
            raise RuntimeError("append() before read()")
        position, batch = self._reading
        self._seen[batch].keys.update(ends)
        rows = [(encode_key(key), encode_end(end)) for key, end in ends.items()]
        deadline = self._writing
        deadline.start()
        try:
            self._writer.write(self.topic, rows, position.partition)
        except KafkaError as error:
            if isinstance(error, _LASTING) or deadline.expired:
                deadline.reset()
                raise
            deadline.sleep(_log, f"write to {self.topic}", error)
            return False
        deadline.reset()
        return True

    def delete(self, batch: str) -> None:
        """Delete the ends of a batch, as far as this object has seen or written them.

        Args:
            batch: The name of a batch that nobody asks for any more.
        """
        seen = self._seen.pop(batch, None)
        if seen is not None and seen.keys:
            rows = [(encode_key(key), None) for key in sorted(seen.keys)]
            self._writer.write(self.topic, rows, seen.partition)

    def close(self) -> None:
        """Close the connections."""
        with closing(self._rows), closing(self._writer):
            self._reading = None

    def _position(self) -> LogPosition:
        partition = self._partition()
        # In this order: what is made again in between is seen by its length.
        topic_id = self._rows.topic_id()
        return LogPosition(partition, self._rows.end(partition), topic_id)

    def _is_other(self, position: LogPosition) -> bool:
        """Whether the topic was made again since a position in it was taken; as far as is known."""
        if position.topic_id is None:
            return False
        try:
            topic_id = self._attempted(self._rows.topic_id)
        except UnknownTopicError:
            return True
        return topic_id not in {None, position.topic_id}

    def _partition(self) -> int:
        if self._own is None:
            try:
                found = self._listed()
            except UnknownTopicError:
                self._rows.create()
                found = self._listed()
            self._own = found
        return self._own

    def _listed(self) -> int:
        self._reading = None
        self._rows.seek(None)
        (found,) = self._rows.partitions()
        return found.partition

    def _take(self, batch: str, changes: Changes) -> None:
        run = live_key(run_of(batch))
        for row in changes.rows:
            if row.key is not None and is_live_key(row.key):
                self.live = row.value if row.key == run else self.live
                continue
            key = self._key_of(row)
            if key is None or key.range.batch not in self._seen:
                continue
            self._seen[key.range.batch].keys.add(key)
            if key.range.batch == batch and (end := self._end_of(row)) is not None:
                self._found.append((key, end))

    def _key_of(self, row: Row) -> EndKey | None:
        try:
            return decode_key(row.key or b"")
        except ValueError as fault:
            self._pass_over(row, fault)
            return None

    def _end_of(self, row: Row) -> RangeEnd | None:
        try:
            return None if row.value is None else decode_end(row.value)
        except ValueError as fault:
            self._pass_over(row, fault)
            return None

    def _pass_over(self, row: Row, fault: ValueError) -> None:
        _log.warning(
            "%s, partition %d, offset %d, is no end of a range, and is passed over: %.300s",
            self.topic,
            row.partition,
            row.offset,
            fault,
        )

    def _lose(self, position: LogPosition, why: str) -> None:
        """The log is another one, shorter than it was, or gone: it may hold what is of anybody.

        Raises:
            DataLossError: ``failOnDataLoss`` is true.
        """
        self._found = []
        text = (
            f"topic {self.topic}, which says where ranges of a realTime query ended, was deleted "
            f"or cut: the last batch begins in it with partition {position.partition}, offset "
            f"{position.offset}, and it {why}. Records of that batch may come again"
        )
        if self._fails:
            self._reading = None
            raise DataLossError(
                f"{text}. If that is acceptable, set failOnDataLoss to false.",
                topic=self.topic,
                partition=position.partition,
                offset=position.offset,
            )
        _log.warning("%s. Going on, since failOnDataLoss is false.", text)
        if not self._rows.exists:
            self._rows.create()
            self._rows.seek(position.partition)

    def _attempted(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer, or ``default.api.timeout.ms`` is over."""
        deadline = RetryDeadline.for_requests(self._kafka)
        deadline.start()
        while True:
            try:
                answer = ask()
            except KafkaError as error:
                if isinstance(error, _LASTING) or deadline.expired:
                    raise
                deadline.sleep(_log, f"read {self.topic}", error)
            else:
                deadline.over()
                return answer
