"""A Protobuf message as the tables that the kernel reads.

See MESSAGE and MESSAGE_FIELD in :mod:`kshare.read.decode.layout`. Guarantee: a field's node is that
of its place in the Arrow type, counted in preorder, as :mod:`kshare.read.decode.output` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kshare.formats.protobuf.schema import WIRE_TYPES, EnumType, Field, Message
from kshare.read.decode import message_table as table
from kshare.read.decode.layout import ENUM_NAME, MESSAGE, MESSAGE_ENUM, MESSAGE_FIELD

__all__ = ["Tables"]

_KINDS: Final = {
    "bool": table.BOOL,
    "bytes": table.BYTES,
    "double": table.FIXED64,
    "duration": table.MOMENT,
    "enum": table.ENUM,
    "fixed32": table.FIXED32,
    "fixed64": table.FIXED64,
    "float": table.FIXED32,
    "int32": table.INT32,
    "int64": table.INT64,
    "message": table.MESSAGE,
    "sfixed32": table.FIXED32,
    "sfixed64": table.FIXED64,
    "sint32": table.ZIGZAG32,
    "sint64": table.ZIGZAG64,
    "string": table.STRING,
    "timestamp": table.MOMENT,
    "uint32": table.INT32,
    "uint64": table.INT64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The tables of a message.

    Attributes:
        messages: The table of MESSAGE.
        fields: The table of MESSAGE_FIELD.
        enums: The table of MESSAGE_ENUM.
        names: The table of ENUM_NAME.
        texts: The bytes of names and default values.
        paths: The dotted path of each field of the table.
        depth: How many messages are in one another.
    """

    messages: npt.NDArray[np.void]
    fields: npt.NDArray[np.void]
    enums: npt.NDArray[np.void]
    names: npt.NDArray[np.void]
    texts: npt.NDArray[np.uint8]
    paths: tuple[str, ...]
    depth: int

    @classmethod
    def of(cls, message: Message, *, emit_defaults: bool) -> "Tables":
        """The tables of a message.

        Args:
            message: The message.
            emit_defaults: Whether a proto3 field of its default value has it, where Spark gives
                null unless ``emit.default.values`` is set.
        """
        rows = _Rows(emit_defaults=emit_defaults)
        rows.add_message(0, message, 0, "", 1)
        return cls(
            np.array(rows.messages, MESSAGE),
            np.array(rows.fields, MESSAGE_FIELD),
            np.array(rows.enums, MESSAGE_ENUM),
            np.array(rows.names, ENUM_NAME),
            np.frombuffer(bytes(rows.texts), np.uint8),
            tuple(rows.paths),
            rows.depth,
        )


class _Rows:
    """The rows of the tables under construction; attributes as of :class:`Tables`."""

    def __init__(self, *, emit_defaults: bool) -> None:
        self._emit_defaults = emit_defaults
        self.messages: list[tuple[int, ...]] = [()]
        self.fields: list[tuple[int, ...]] = []
        self.enums: list[tuple[int, ...]] = []
        self._enum_numbers: dict[EnumType, int] = {}
        self.names: list[tuple[int, ...]] = []
        self.texts = bytearray()
        self.paths: list[str] = []
        self.depth = 0

    def add_message(
        self, number: int, message: Message, node: int, prefix: str, depth: int
    ) -> None:
        """Add a message, whose place in the table is taken already.

        Args:
            number: Its number.
            message: The message.
            node: Its node.
            prefix: Of its fields' paths.
            depth: How many messages there are to it, with it.
        """
        self.depth = max(self.depth, depth)
        holders = {}
        behind = node + 1
        for field in message.fields:
            holders[field.number] = behind
            behind += _nodes(field)
        first = len(self.fields)
        by_number = sorted(message.fields, key=lambda field: field.number)
        others = _next_members(by_number)
        below = []
        for place, field in enumerate(by_number):
            holder = holders[field.number]
            inner = holder + field.repeated
            number_below = 0
            if field.enum is not None:
                number_below = self._add_enum(field.enum)
            elif field.message is not None:
                number_below = len(self.messages)
                self.messages.append(())
                below.append((number_below, field.message, inner, f"{prefix}{field.name}."))
            kind, wire_type = _KINDS[field.kind], WIRE_TYPES[field.kind]
            flags, default = self._flags(field, in_entry=message.is_entry)
            other = first + others[place]
            row = (field.number, kind, wire_type, flags, inner, holder, number_below, other)
            self.fields.append((*row, *default))
            self.paths.append(f"{prefix}{field.name}")
        self.messages[number] = (first, len(self.fields), node, _values(message))
        for one in below:
            self.add_message(*one, depth + 1)

    def _flags(self, field: Field, *, in_entry: bool) -> tuple[int, tuple[int, int]]:
        """The flags of a field, and the value that stands for none."""
        flags = 0
        if field.repeated:
            flags |= table.REPEATED
        if field.required:
            flags |= table.REQUIRED
        if field.enum is not None and field.enum.closed:
            flags |= table.CLOSED
        if in_entry:
            return flags | table.ZERO, self._value(field, _zero(field))
        if field.implicit:
            if self._emit_defaults:
                return flags | table.DEFAULT, self._value(field, _zero(field))
            return flags | table.IMPLICIT, (0, 0)
        if field.default is not None:
            return flags | table.DEFAULT, self._value(field, field.default)
        return flags, (0, 0)

    def _value(self, field: Field, value: Any) -> tuple[int, int]:
        """A value as the table has it: the bits of a number, or where a text is."""
        if isinstance(value, str | bytes):
            return self._text(value.encode() if isinstance(value, str) else value)
        if field.kind == "float":
            value = np.float32(value).view(np.int32)
        elif field.kind == "double":
            value = np.float64(value).view(np.int64)
        elif value >= 1 << 63:
            value -= 1 << 64
        return int(value), 0

    def _text(self, text: bytes) -> tuple[int, int]:
        position = len(self.texts)
        self.texts += text
        return position, len(text)

    def _add_enum(self, enum: EnumType) -> int:
        if enum not in self._enum_numbers:
            first = len(self.names)
            for number, name in sorted(enum.values):
                self.names.append((number, *self._text(name.encode())))
            unknown = self._text(f"UNKNOWN_ENUM_VALUE_{enum.name}_".encode())
            self._enum_numbers[enum] = len(self.enums)
            self.enums.append((first, len(self.names), *unknown))
        return self._enum_numbers[enum]


def _nodes(field: Field) -> int:
    """The number of a field's nodes."""
    items = 1 if field.message is None else 1 + sum(map(_nodes, field.message.fields))
    return items + field.repeated


def _values(message: Message) -> int:
    """The number of a message's nodes that are below no list."""
    return 1 + sum(
        1 if field.repeated or field.message is None else _values(field.message)
        for field in message.fields
    )


def _next_members(fields: Sequence[Field]) -> list[int]:
    """For each field the next member of its oneof, round and round; itself, if there is none."""
    members: dict[str, list[int]] = {}
    for place, field in enumerate(fields):
        members.setdefault(field.oneof or f"{place}", []).append(place)
    found = list(range(len(fields)))
    for places in members.values():
        for place, other in zip(places, (*places[1:], places[0]), strict=True):
            found[place] = other
    return found


def _zero(field: Field) -> Any:
    """The value that a field of its kind has where nothing is said."""
    if field.enum is not None:
        return field.enum.values[0][1]
    return {"string": "", "bytes": b""}.get(field.kind, 0)
