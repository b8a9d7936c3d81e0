"""Writes rows of topics of ours: by one client of librdkafka, for as long as somebody writes.

A client has threads and connections of its own, so that one for each write is dear. It is opened by
the first write. After a write that has failed, the next one opens another: what was left of the
first is given up with it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException, Producer

from kshare.kafka.client import Client, kafka_error, kind_of
from kshare.kafka.protocol.error_codes import Kind
from kshare.kafka.topics import MAKES_NONE
from kshare.options import KafkaConfig
from kshare.process_local import ProcessLocal
from kshare.security.librdkafka import librdkafka_config

__all__ = ["RowWriter"]

_POLL_SECONDS: Final = 0.05  # another thread may have taken the report


class RowWriter:
    """Writes rows, and returns when the brokers have them. For any thread, several at a time.

    Args:
        kafka: How to reach the cluster.
        producer: Makes the producer.
        settings: Of the producer, in place of the usual ones, by librdkafka's names.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        producer: Callable[..., Producer] = Producer,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._kafka = kafka
        self._settings = settings
        self._make = producer
        self._open = ProcessLocal(_Open, keeps_copy=True)

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
        self._open().close()

    def _opened(self) -> tuple[Client[Producer], Producer]:
        here = self._open()
        with here.lock:
            if here.client is None:
                here.client = Client(
                    self._make,
                    self._kafka,
                    lambda: {**_config(self._kafka), **self._settings},
                    making="make a producer",
                )
            return here.client, here.client.handle  # opened by one thread

    def _leave(self, client: Client[Producer]) -> None:
        """The next write is another client's; who writes by this one now goes on."""
        self._open().close(client)


class _Open:
    """The client of a process, while it has one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Client[Producer] | None = None

    def close(self, only: Client[Producer] | None = None) -> None:
        """Close it; if one is given, only if it is that one."""
        with self.lock:
            if self.client is not None and (only is None or only is self.client):
                # Who writes by it now holds its producer, which ends with that.
                self.client.close()
                self.client = None


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
        **MAKES_NONE,
        "acks": "all",
        "linger.ms": 0,
        "message.timeout.ms": kafka.api_timeout_ms,
    }
    config.pop("client.rack", None)  # a consumer's
    return config
