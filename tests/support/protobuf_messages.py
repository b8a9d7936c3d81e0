"""Protobuf schemas made in Python, their messages, and the rows that Spark makes of them."""

import base64
import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
    unknown_fields,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError, Message

from kshare.formats.payloads import Payloads

_TYPES = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_IMPORTS = (duration_pb2, timestamp_pb2, wrappers_pb2)


def field(text: str, *, default: str = "", oneof: int | None = None) -> Any:
    """A field as in a file of Protobuf: ``repeated int32 numbers = 1``."""
    *label, kind, name, _, number = text.split()
    made = descriptor_pb2.FieldDescriptorProto(name=name, number=int(number))
    made.label = {"repeated": 3, "required": 2}.get(label[0] if label else "", 1)
    if kind in _TYPES:
        made.type = _TYPES[kind]
    else:
        made.type_name = kind
    if label == ["optional"]:
        made.proto3_optional = True
    if default:
        made.default_value = default
    if oneof is not None:
        made.oneof_index = oneof
    return made


def message(name: str, *fields: Any, oneofs: Sequence[str] = (), nested: Sequence[Any] = ()) -> Any:
    """A message; ``map KEY VALUE name = number`` among its fields is a map."""
    made = descriptor_pb2.DescriptorProto(name=name)
    for oneof in oneofs:
        made.oneof_decl.add(name=oneof)
    made.nested_type.extend(nested)
    for one in fields:
        if isinstance(one, str) and one.startswith("map "):
            _, key, value, map_name, _, number = one.split()
            entry_name = f"{map_name.title().replace('_', '')}Entry"
            entry = message(entry_name, f"{key} key = 1", f"{value} value = 2")
            entry.options.map_entry = True
            made.nested_type.append(entry)
            made.field.append(field(f"repeated {entry.name} {map_name} = {number}"))
        else:
            made.field.append(field(one) if isinstance(one, str) else one)
    optional = [one for one in made.field if one.proto3_optional]
    for one in optional:
        one.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{one.name}")
    return made


def enum(name: str, **values: int) -> Any:
    made = descriptor_pb2.EnumDescriptorProto(name=name)
    for value, number in values.items():
        made.value.add(name=value, number=number)
    return made


class Schema:
    """A file with messages, and the files that it imports."""

    def __init__(self, *messages: Any, enums: Sequence[Any] = (), syntax: str = "proto3") -> None:
        file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
        file.message_type.extend(messages)
        file.enum_type.extend(enums)
        self.set = descriptor_pb2.FileDescriptorSet()
        for module in _IMPORTS:
            module.DESCRIPTOR.CopyToProto(self.set.file.add())
            file.dependency.append(module.DESCRIPTOR.name)
        self.set.file.append(file)
        self._pool = descriptor_pool.DescriptorPool()
        for one in self.set.file:
            self._pool.AddSerializedFile(one.SerializeToString())

    @property
    def text(self) -> str:
        return base64.b64encode(self.set.SerializeToString()).decode()

    def kind(self, name: str) -> Any:
        """The class of a message."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"shop.{name}"))


def payloads(messages: Sequence[bytes | None], between: bytes = b"") -> Payloads:
    """Payloads with some bytes in front of each."""
    data, starts, ends = bytearray(), [], []
    for one in messages:
        data += between
        starts.append(-1 if one is None else len(data))
        data += one or b""
        ends.append(len(data))
    return Payloads(
        np.frombuffer(bytes(data), np.uint8),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.zeros(len(starts), np.int32),
    )


class BadError(Exception):
    """Spark's ``from_protobuf`` refuses the message."""


class NotKnownError(Exception):
    """What Spark does cannot be found out with this package."""


def row_of(kind: Any, data: bytes) -> dict[str, Any]:
    """The row that Spark makes of a message: ``ProtobufDeserializer`` in Python.

    Raises:
        BadError: It refuses the message.
        NotKnownError: It cannot be said what it does.
    """
    try:
        made = kind.FromString(data)
    except DecodeError as error:
        raise BadError(str(error)) from None
    if not made.IsInitialized():
        raise BadError("a required field is missing")
    known = {one.number: one for one in kind.DESCRIPTOR.fields}
    for unknown in unknown_fields.UnknownFieldSet(made):
        if one := known.get(unknown.field_number):
            # This package does not know an entry of a map in which it does not know something.
            if unknown.wire_type == 2 and one.message_type is not None:
                raise NotKnownError
            raise BadError("a known field has another type")
    return _row(made)


def _row(made: Message) -> dict[str, Any]:
    return {one.name: _field_value(made, one) for one in made.DESCRIPTOR.fields}


def _field_value(made: Any, one: Any) -> Any:
    value = getattr(made, one.name)
    if one.is_repeated:
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            of_value = one.message_type.fields_by_name["value"]
            return {key: _value(of_value, value[key]) for key in value}
        return [_value(one, item) for item in value]
    if one.has_presence:
        if not made.HasField(one.name) and not one.has_default_value:
            return None
        return _value(one, value)
    is_default = not value and str(value) != "-0.0"
    return None if is_default else _value(one, value)


def _value(one: Any, value: Any) -> Any:
    if one.enum_type is not None:
        named = one.enum_type.values_by_number.get(value)
        return named.name if named else f"UNKNOWN_ENUM_VALUE_{one.enum_type.name}_{value}"
    if one.message_type is not None:
        if one.message_type.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
            return _micros(value)
        return _row(value)
    if one.type in {_TYPES["uint32"], _TYPES["fixed32"]}:
        return value - (1 << 32) if value >= 1 << 31 else value
    if one.type in {_TYPES["uint64"], _TYPES["fixed64"]}:
        return value - (1 << 64) if value >= 1 << 63 else value
    if isinstance(value, float):
        return repr(value)  # also what is no number is the same then
    return value


def _micros(moment: Any) -> int:
    """What microseconds count, as Java does: a fraction is cut off towards zero."""
    if abs(moment.seconds) > ((1 << 63) - 1) // 1_000_000 - 4:
        raise BadError("the time is out of range")
    return int(moment.seconds) * 1_000_000 + int(moment.nanos / 1000)
