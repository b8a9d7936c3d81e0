"""Fetch requests to one broker, for all partitions that are read from it.

A broker that finds a quota exceeded answers a Fetch request at once, without partitions, and says
how long it wants no further request (KIP-219, from Kafka 2.0 on). That is no fault: the connection
stays, and the same is asked for again after that time.
"""

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass

from kshare.core.progress import TopicPartition
from kshare.kafka.protocol.brokers import Brokers
from kshare.kafka.protocol.connection import BrokerConnection
from kshare.kafka.protocol.fetch import (
    FetchAnswer,
    FetchResponse,
    PartitionFetch,
    fetch_request,
    fetch_version,
    parse_fetch_response,
)
from kshare.kafka.protocol.frames import ProtocolError
from kshare.kafka.protocol.messages import Address
from kshare.kafka.protocol.retry import Clock
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.options import KafkaConfig
from kshare.read.reader.partition_reader import PartitionReader

__all__ = ["Fetcher"]

_log = logging.getLogger(__name__)

_NAMES_MAX = 5


@dataclass(slots=True)
class _Request:
    """A request under way.

    Attributes:
        offsets: What was asked for, of each partition.
        heard_at: When some of its answer came last, or else when it was sent.
        body: Its answer, if it was received ahead of being taken.
    """

    offsets: Mapping[TopicPartition, int]
    heard_at: float
    body: memoryview | None = None


class Fetcher:
    """Asks one broker, with at most one request under way.

    Args:
        address: The broker.
        brokers: Where connections come from.
        kafka: Sizes and times of requests.
        clock: Source of time.

    Attributes:
        address: The broker.
        partitions: The partitions that are read from it. The broker fills a response in this order,
            so those that got records go to the end.
        connection: The connection; None while there is none.
    """

    def __init__(
        self, address: Address, brokers: Brokers, kafka: KafkaConfig, clock: Clock
    ) -> None:
        self.address = address
        self.partitions: dict[TopicPartition, PartitionReader] = {}
        self.connection: BrokerConnection | None = None
        self._brokers = brokers
        self._kafka = kafka
        self._clock = clock
        self._request: _Request | None = None
        self._silent_until = 0.0
        self._throttles = WaitLog(_log, "{}:{}".format(*address), clock=clock.monotonic)

    @property
    def is_waiting(self) -> bool:
        """True if a request is under way."""
        return self._request is not None

    @property
    def is_overdue(self) -> bool:
        """True if nothing more of an answer has come within ``request.timeout.ms``.

        A long one takes its time: asked for again, it would be as long. A broker that throttles
        reads the request after that.
        """
        request, connection = self._request, self.connection
        if request is None or connection is None:
            return False
        since = max(request.heard_at, connection.throttled_until)
        return self._clock.monotonic() - since >= self._kafka.request_timeout_ms / 1000

    @property
    def silence_left(self) -> float:
        """Seconds for which the broker is asked nothing; not above 0 if it may be asked.

        It has asked for that, or :meth:`rest` was called.
        """
        return self._silent_until - self._clock.monotonic()

    def assign(self, partition: PartitionReader) -> None:
        """Read a partition from this broker."""
        self.partitions[partition.topic_partition] = partition

    def open(self) -> BrokerConnection:
        """The connection, opened if there is none.

        One that the broker has closed meanwhile is replaced at once: services close what is idle
        for some minutes, as it is while no partition is to be read. That is no failure of the
        broker, so nothing is said and nobody pauses.
        """
        connection = self.connection
        if connection is not None and not self.is_waiting and not connection.idle:
            self.connection = None
            connection.close()
        if self.connection is None:
            self.connection = self._brokers.lease(self.address)
        return self.connection

    def rest(self, seconds: float) -> None:
        """Send no request for some time from now on."""
        self._silent_until = max(self._silent_until, self._clock.monotonic() + seconds)

    def close(self, *, failed: bool) -> None:
        """Give the connection back, if there is one; what is under way on it is not wanted."""
        connection, self.connection = self.connection, None
        self._request = None
        if connection is None:
            return
        with suppress(OSError):  # nothing is wanted from it any more
            if failed:
                self._brokers.discard(self.address, connection)
            else:
                self._brokers.release(self.address, connection)

    def send(self, fetches: Sequence[PartitionFetch], response_bytes: int) -> None:
        """Send a request, if there is anything to ask for.

        Args:
            fetches: What to ask of each partition.
            response_bytes: Maximum size of the response if several partitions share it.
        """
        if not fetches:
            return
        by_topic: dict[str, list[PartitionFetch]] = {}
        for fetch in fetches:
            by_topic.setdefault(fetch.topic_partition.topic, []).append(fetch)
        racks = {self.partitions[fetch.topic_partition].replica.rack for fetch in fetches}
        if len(fetches) == 1:
            response_bytes = self._kafka.fetch_max_bytes
        # One that is larger was grown for the sake of a large record batch.
        largest = max(fetch.max_bytes for fetch in fetches)
        if len(fetches) == 1 or largest > self._kafka.max_partition_fetch_bytes:
            response_bytes = max(response_bytes, largest)
        connection = self.open()
        request = fetch_request(
            connection,
            self._kafka,
            [fetch for of_topic in by_topic.values() for fetch in of_topic],
            max_bytes=response_bytes,
            # A leader that shall name no follower for one of them names none for all.
            rack="" if "" in racks else min(racks),
        )
        connection.send(request)
        offsets = {fetch.topic_partition: fetch.offset for fetch in fetches}
        self._request = _Request(offsets, self._clock.monotonic())

    def receive_ready(self) -> bool:
        """Receive what is there of the response, without waiting; True once that is all of it.

        Raises:
            OSError: The connection failed.
        """
        request = self._request
        assert request is not None
        request.body = self.open().receive_ready()
        request.heard_at = self._clock.monotonic()
        return request.body is not None

    def receive(self) -> list[tuple[PartitionReader, int, FetchAnswer]]:
        """Take the response to the request that is under way; wait for it if it is not there.

        Returns:
            For each partition that is still read from this broker: the offset that was asked for,
            and the answer; none if the broker throttles the request.

        Raises:
            OSError: The connection failed, or the response is not about what was asked for.
        """
        connection, request = self.open(), self._request
        assert request is not None
        asked = request.offsets
        for topic_partition in asked:
            if topic_partition in self.partitions:
                self.partitions[topic_partition].start_waiting()
        self._request = None
        body = connection.receive() if request.body is None else request.body
        response = parse_fetch_response(body, fetch_version(connection))
        self._throttle(response)
        if response.throttle_seconds and not response.answers and not response.error_code:
            for topic_partition in asked:
                if topic_partition in self.partitions:
                    self.partitions[topic_partition].throttled()
            return []
        if response.error_code:
            failure = FetchAnswer(response.error_code, -1, -1, (), memoryview(b""))
            answers = dict.fromkeys(asked, failure)
        else:
            answers = response.answers
        if answers.keys() != asked.keys():
            raise ProtocolError(
                f"broker {connection.broker} answered a Fetch request for {len(asked)} partitions "
                f"without {_some(asked.keys() - answers.keys())}, and with "
                f"{_some(answers.keys() - asked.keys())} besides"
            )
        return [
            (self.partitions[topic_partition], offset, answers[topic_partition])
            for topic_partition, offset in asked.items()
            if topic_partition in self.partitions
        ]

    def _throttle(self, response: FetchResponse) -> None:
        wait = response.throttle(self._kafka.client_id)
        if wait is None:
            self._throttles.over()
            return
        self.rest(response.throttle_seconds)
        self._throttles.wait(wait, lasts=response.throttle_seconds)


def _some(partitions: AbstractSet[TopicPartition]) -> str:
    """Some of the names."""
    names = sorted(map(str, partitions))
    return ", ".join(names[:_NAMES_MAX] + ["..."] * (len(names) > _NAMES_MAX)) or "none"
