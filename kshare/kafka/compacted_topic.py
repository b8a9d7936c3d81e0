"""A compacted topic as a table: made on first use, read to its end and on from there, written.

Guarantees: a read returns all that the log held when it was called, or it raises and changes
nothing. That a topic was deleted or made again is said by :attr:`Changes.restarted`.

Cost: a read takes one request, and another one if anything is new; then it fetches what is new. A
topic that seems to be made again is asked for once more.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from kshare.core.progress import TopicPartition
from kshare.errors import FetchTimeoutError, KafkaError, UnknownTopicError
from kshare.kafka.client import Client, kafka_error, kind_of
from kshare.kafka.cluster import Cluster
from kshare.kafka.protocol.error_codes import PASSING
from kshare.kafka.protocol.retry import RetryDeadline
from kshare.kafka.row_writer import RowWriter
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topic_creation import make_topic
from kshare.kafka.topics import TopicSpec
from kshare.options import KafkaConfig, Subscribe
from kshare.security.librdkafka import librdkafka_config

__all__ = ["Changes", "CompactedTopic", "Row"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.1
_END: Final = RdKafkaError._PARTITION_EOF  # noqa: SLF001


class Row(NamedTuple):
    """A record of the topic. Without a value it is a tombstone: the key has no row any more."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows written since the last read.

    Attributes:
        rows: Records; those of one partition are in the order of its log.
        restarted: Whether the topic is gone or was made again: rows of earlier reads do not count.
        is_cut: Whether a log begins after what was to be read next: rows were deleted, and not by
            compaction, which leaves the begin of a log where it is.
    """

    rows: tuple[Row, ...]
    restarted: bool = False
    is_cut: bool = False


class CompactedTopic:
    """A compacted topic of ours.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.

    Args:
        kafka: How to reach the cluster.
        spec: What the topic is called, and how it is made.
        read_committed: Whether a read waits for open transactions, and skips aborted ones.
        choose: Numbers of the partitions to read, from the number of partitions. All by default.
        group: Consumer group, as brokers see it. It is never joined.
        admin: Makes the client that makes the topic.
        seconds_min: Minimum time that a read waits for open transactions.
        producer: Makes the client that writes.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        spec: TopicSpec,
        *,
        read_committed: bool = False,
        choose: Callable[[int], Collection[int]] = range,
        group: str = "kshare",
        admin: Callable[..., AdminClient] = AdminClient,
        seconds_min: float = 0.0,
        producer: Callable[..., Producer] = Producer,
    ) -> None:
        self._kafka = kafka
        self._spec = spec
        self._admin = admin
        self._choose = choose
        # What is not committed yet is part of the log: its end is the high watermark.
        self._cluster = Cluster(replace(kafka, read_committed=False))
        self._consumer = Client(
            Consumer, kafka, lambda: _consumer_config(kafka, group, read_committed=read_committed)
        )
        self._writer = RowWriter(kafka, producer)
        self._positions: Mapping[TopicPartition, int] = {}  # to read from; empty without a topic
        self._sought: int | None = None  # the partition to read, in place of those of `choose`
        self._seconds = max(kafka.api_timeout_ms / 1000, seconds_min)  # of a read, at most

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._spec.name

    @property
    def exists(self) -> bool:
        """True if the topic was there when it was last read."""
        return bool(self._positions)

    def read(self) -> Changes:
        """Return what was written since the last read; after a failed read, that comes again."""
        self._consumer.take_reports()  # nothing new, or no answer: it is not polled below
        try:
            self.partitions()
            try:
                return self._read_on()
            except UnknownTopicError as error:
                # Deleted; or a leader that has just started has not heard of it yet.
                self._positions = {tp: self._positions.get(tp, 0) for tp in self._listed()}
                raise KafkaError(str(error), topic=self.name) from error
        except UnknownTopicError:
            self._positions = {}
            return Changes((), restarted=True)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read.

        Raises:
            UnknownTopicError: The topic does not exist.
        """
        if not self._positions:
            self._positions = dict.fromkeys(self._listed(), 0)
        return tuple(self._positions)

    def seek(self, partition: int | None, offset: int = 0) -> None:
        """Read one partition from an offset on, whatever was read before.

        A topic that ends before it counts as made again, as for any other read.

        Args:
            partition: Its number; None: those that ``choose`` chooses, from their begin on.
            offset: The offset.
        """
        self._sought = partition
        if partition is None:
            self._positions = {}
        else:
            self._positions = {TopicPartition(self.name, partition): offset}

    def end(self, partition: int) -> int:
        """The end of a partition.

        Raises:
            UnknownTopicError: The topic does not exist, or has no such partition.
        """
        (offset,) = self._cluster.latest([TopicPartition(self.name, partition)]).values()
        return offset

    def topic_id(self) -> str | None:
        """The id that the topic has now; None if its brokers have none.

        Raises:
            UnknownTopicError: The topic does not exist.
        """
        self._cluster.partitions(Subscribe((self.name,)))
        return self._cluster.topic_ids().get(self.name)

    def config(self) -> TopicConfig | None:
        """The configuration of the topic; None if this client is not authorized to know."""
        return self._cluster.topic_configs([self.name]).get(self.name)

    def create(self) -> frozenset[str]:
        """Make the topic, unless it exists, and wait until the brokers know it.

        Returns:
            The names of the settings that brokers refused.

        Raises:
            InternalTopicError: The brokers refuse the topic.
        """
        refused = make_topic(self._kafka, self._spec, self._admin)
        self.await_topic()
        return refused

    def write(
        self,
        rows: Iterable[tuple[bytes, bytes | None]],
        partition: int = -1,
        seconds: float = float("inf"),
    ) -> None:
        """Write records, and return when the brokers have them.

        Args:
            rows: Keys and values; None for a tombstone.
            partition: Where to write; -1 leaves that to the key.
            seconds: Maximum time, if that is below ``default.api.timeout.ms``.
        """
        self._writer.write(self.name, rows, partition, seconds)

    def shorten_timeout(self, seconds: float) -> None:
        """From now on, let no read wait for an answer longer than this."""
        self._seconds = min(self._seconds, seconds)
        self._cluster.shorten_timeout(seconds)

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        self._cluster.close()
        self._consumer.close()
        self._writer.close()

    # -- reading ----------------------------------------------------------------------------

    def await_topic(self) -> None:
        """Wait until the brokers know the topic: the controller tells them one by one.

        Raises:
            UnknownTopicError: They still do not after ``default.api.timeout.ms``.
        """
        RetryDeadline.for_requests(self._kafka).retried(
            _log,
            f"find topic {self.name}",
            self.partitions,
            lambda error: isinstance(error, UnknownTopicError),
        )

    def _listed(self) -> tuple[TopicPartition, ...]:
        partitions = self._cluster.partitions(Subscribe((self.name,)))
        if self._sought is None:
            return tuple(partitions[number] for number in self._choose(len(partitions)))
        if self._sought >= len(partitions):  # it was made again, with fewer
            raise UnknownTopicError(
                f"topic {self.name} has no partition {self._sought}",
                topic=self.name,
                partition=self._sought,
            )
        return (partitions[self._sought],)

    def _read_on(self) -> Changes:
        ends = self._cluster.latest(self._positions)
        if before := self._ends_before(ends):
            # A former leader that is cut off from the others takes its own end for that of now.
            self._cluster.close()  # another client may ask another broker
            ends |= self._cluster.latest(before)
        restarted = bool(self._ends_before(ends))
        positions = dict.fromkeys(ends, 0) if restarted else dict(self._positions)
        new = {tp: end for tp, end in ends.items() if positions[tp] < end}
        rows: list[Row] = []
        is_cut = False
        if new:
            for tp, first in self._cluster.earliest(new).items():
                is_cut |= first > positions[tp]
                positions[tp] = max(positions[tp], first)
            self._fetch(positions, new, rows)
        self._positions = positions
        return Changes(tuple(rows), restarted, is_cut)

    def _ends_before(self, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The partitions that end before what was read of them."""
        return [tp for tp, position in self._positions.items() if ends[tp] < position]

    def _fetch(
        self,
        positions: dict[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        rows: list[Row],
    ) -> None:
        """Append the records up to the ends, and advance the positions."""
        consumer = self._consumer.handle
        consumer.assign([RdTopicPartition(*tp, positions[tp]) for tp in ends])
        deadline = time.monotonic() + self._seconds
        try:
            while behind := [tp for tp, end in ends.items() if positions[tp] < end]:
                message = consumer.poll(_POLL_SECONDS)
                # An error of no topic is one of the group, which is never joined.
                if message is not None and message.topic() is not None:
                    self._take(message, positions, rows)
                elif time.monotonic() > deadline:
                    raise self._timeout(behind[0], positions, ends)
        finally:
            consumer.unassign()

    def _take(
        self,
        message: Message,
        positions: dict[TopicPartition, int],
        rows: list[Row],
    ) -> None:
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        error, offset = message.error(), message.offset()
        if error is None:
            assert offset is not None
            rows.append(Row(tp.partition, offset, _bytes(message.key()), _bytes(message.value())))
            positions[tp] = offset + 1
        elif error.code() == _END:
            # Compaction leaves gaps before the end, and transactions leave marks. It is the end as
            # the broker that answers knows it: one that is behind has more later.
            positions[tp] = max(positions.get(tp, 0), offset or 0)
        elif kind_of(error) not in PASSING:
            raise kafka_error(error, f"read {self.name}", topic=tp.topic, partition=tp.partition)

    def _timeout(
        self,
        tp: TopicPartition,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> FetchTimeoutError:
        is_given = self._seconds <= self._kafka.api_timeout_ms / 1000
        why = " (kafka.default.api.timeout.ms)" if is_given else ": is a transaction open there?"
        return FetchTimeoutError(
            f"cannot read {tp.topic}, partition {tp.partition}, from offset {positions[tp]} to "
            f"{ends[tp]} within {self._seconds:g} s{why}",
            topic=tp.topic,
            partition=tp.partition,
            offset=positions[tp],
        )


def _consumer_config(kafka: KafkaConfig, group: str, *, read_committed: bool) -> dict[str, Any]:
    config = librdkafka_config(kafka)
    config.pop("client.rack", None)  # a follower is behind, and every read waits for the end
    return {
        **config,
        "group.id": kafka.group_id or group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        "fetch.wait.max.ms": 10,  # the end is known: there is no more to wait for
        "log_level": 3,
    }


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
