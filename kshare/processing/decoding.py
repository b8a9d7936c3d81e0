"""A user's deserializers: plain ones, and coroutine functions, for either kind of handler.

A deserializer is called where the handler is: in the event loop for a coroutine function, in a
thread for a plain one. What is to be awaited is awaited in the event loop, in both.
"""

from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable, iscoroutine
from typing import Any, TypeAlias

from confluent_kafka.serialization import MessageField, SerializationContext

from kshare.core.showing import shown, shown_error
from kshare.dead_letters.record import Record
from kshare.errors import UndecodableError

__all__ = ["Deserializer", "Deserializers", "Wait", "fault_of"]

Deserializer: TypeAlias = Callable[[bytes | None, SerializationContext], Any]
"""As in ``confluent_kafka.DeserializingConsumer``; what it returns may be awaitable."""

Wait: TypeAlias = Callable[[Awaitable[Any]], Any]
"""Has something awaited elsewhere, and returns what comes of it."""


def fault_of(name: str, deserializer: Any) -> str | None:
    """What is wrong with a deserializer that was given as an argument; None for nothing.

    Args:
        name: Name of the argument.
        deserializer: What was given.
    """
    if deserializer is None or callable(deserializer):
        return None
    if isawaitable(deserializer):
        if iscoroutine(deserializer):
            deserializer.close()  # it would be said to be never awaited, too
        return (
            f"{name} is a {type(deserializer).__name__} that nobody awaits; wanted what comes of "
            "it: await it first, as in: await AsyncAvroDeserializer(client)"
        )
    return f"{name} is {shown(deserializer)}; wanted a function of bytes and a SerializationContext"


class Deserializers:
    """Makes keys and values of bytes.

    Args:
        key: Deserializes keys; None: they stay bytes.
        value: Deserializes values; None: they stay bytes.

    Attributes:
        key: As given.
        value: As given.
    """

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self.key = key
        self.value = value

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def decode(self, records: list[Record], wait: Wait) -> None:
        """Decode records, in a thread.

        Args:
            records: They get their keys and values.
            wait: Has a coroutine awaited in the event loop.

        Raises:
            UndecodableError: One cannot be decoded.
        """
        for record, field, deserialize in self._calls(records):
            try:
                result = deserialize(*_given(record, field))
                decoded = wait(result) if isawaitable(result) else result
            except Exception as error:
                raise _undecodable(record, field, error) from error
            _put(record, field, decoded)

    async def decode_in_loop(self, records: list[Record]) -> None:
        """Decode records, in the event loop.

        Args:
            records: They get their keys and values.

        Raises:
            UndecodableError: One cannot be decoded.
        """
        for record, field, deserialize in self._calls(records):
            try:
                result = deserialize(*_given(record, field))
                decoded = await result if isawaitable(result) else result
            except Exception as error:
                raise _undecodable(record, field, error) from error
            _put(record, field, decoded)

    def _calls(self, records: list[Record]) -> Iterator[tuple[Record, MessageField, Deserializer]]:
        for record in records:
            if self.key is not None:
                yield record, MessageField.KEY, self.key
            if self.value is not None:
                yield record, MessageField.VALUE, self.value


def _given(record: Record, field: MessageField) -> tuple[bytes | None, SerializationContext]:
    """What ``DeserializingConsumer`` calls a deserializer with: None stands for no headers."""
    data = record.raw_key if field is MessageField.KEY else record.raw_value
    headers: list[Any] | None = record.headers or None
    return data, SerializationContext(record.topic, field, headers)


def _put(record: Record, field: MessageField, decoded: Any) -> None:
    if field is MessageField.KEY:
        record.key = decoded
    else:
        record.value = decoded


def _undecodable(record: Record, field: MessageField, error: Exception) -> UndecodableError:
    return UndecodableError(
        f"{record.topic_partition} offset {record.offset}: the {field.value} cannot be decoded: "
        f"{shown_error(error)}"
    )
