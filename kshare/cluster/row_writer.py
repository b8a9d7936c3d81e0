"""Writes rows of topics of ours: by one client of librdkafka, for as long as somebody writes.

A client has threads and connections of its own, so that one for each write is dear. It is opened by
the first write. After a write that has failed, the next one opens another: what was left of the
first is given up with it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.cluster.client import Client, kafka_error, kind_of
from kshare.options import KafkaConfig
from kshare.security.librdkafka import librdkafka_config
from kshare.wire.protocol.error_codes import Kind

__all__ = ["RowWriter"]

_POLL_SECONDS: Final = 0.05  # another thread may have taken the report
_of_parents: Final = list[Client[Producer]]()
"""Clients that a fork has copied: their threads are not there, so closing one would hang."""


class RowWriter:
    """Writes rows, and returns when the brokers have them. For any thread, several at a time.

    Args:
        kafka: How to reach the cluster.
        producer: Makes the producer.
    """

    def __init__(self, kafka: KafkaConfig, producer: Callable[..., Producer] = Producer) -> None:
        self._kafka = kafka
        self._make = producer
        self._client: Client[Producer] | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def write(
        self,
        topic: str,
        rows: Iterable[tuple[bytes, bytes | None]],
        partition: int = -1,
        seconds: float = float("inf"),
    ) -> None:
        """Write rows.

        Args:
            topic: Where to.
            rows: Keys and values; None for a tombstone.
            partition: Number of the partition; -1 leaves that to the key.
            seconds: Maximum time, if that is below ``default.api.timeout.ms``.

        Raises:
            KafkaError: They are not known to be written.
        """
        client, producer = self._opened()
        deadline = time.monotonic() + min(self._kafka.api_timeout_ms / 1000 + 1, seconds)
        error = _write(producer, topic, rows, partition, deadline)
        if error is not None:
            # Librdkafka remembers for minutes that a topic was refused, or was not there.
            if kind_of(error) is not Kind.RECORD:
                self._leave(client)
            raise kafka_error(error, f"write to {topic}", topic=topic)

    def close(self) -> None:
        """Close the connections; a later write opens them again."""
        with self._lock:
            self._drop()

    def _opened(self) -> tuple[Client[Producer], Producer]:
        with self._lock:
            if self._process != os.getpid():
                self._drop()
            if self._client is None:
                self._client = Client(
                    self._make, self._kafka, lambda: _config(self._kafka), making="make a producer"
                )
                self._process = os.getpid()
            return self._client, self._client.handle  # opened by one thread

    def _leave(self, client: Client[Producer]) -> None:
        """The next write is another client's; who writes by this one now goes on."""
        with self._lock:
            if self._client is client:
                self._drop()

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        if self._process == os.getpid():
            client.close()  # who writes by it now holds its producer, which ends with that
        else:
            _of_parents.append(client)


def _write(
    producer: Producer,
    topic: str,
    rows: Iterable[tuple[bytes, bytes | None]],
    partition: int,
    deadline: float,
) -> RdKafkaError | KafkaException | TimeoutError | None:
    """Write rows until a time; return why they are not known to be written, or None."""
    reports, count = list[RdKafkaError | None](), 0

    def delivered(error: RdKafkaError | None, _: object) -> None:
        reports.append(error)

    def wait() -> bool:
        left = deadline - time.monotonic()
        producer.poll(max(min(left, _POLL_SECONDS), 0.0))
        return left > 0

    for key, value in rows:
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=delivered)
                break
            except KafkaException as error:
                return error
            except BufferError:  # others are to be sent first
                if not wait():
                    return TimeoutError()
        count += 1
    while len(reports) < count:
        if not wait():
            return TimeoutError()
    return next((error for error in reports if error is not None), None)


def _config(kafka: KafkaConfig) -> dict[str, Any]:
    config = {
        **librdkafka_config(kafka),
        "acks": "all",
        "linger.ms": 0,
        "message.timeout.ms": kafka.api_timeout_ms,
    }
    config.pop("client.rack", None)  # a consumer's
    return config
