"""A message of which a single field comes in several parts, with each in one.

https://protobuf.dev/programming-guides/encoding/#last-one-wins: of a number or text the last part
counts, of a oneof the last member; the parts of a message follow one another.

Cost: some 50 us a message. No serializer writes such; whoever does makes his own rows slow.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kshare.formats.protobuf.schema import WIRE_TYPES, Field, Message
from kshare.formats.protobuf.varints import read_varint, varint

__all__ = ["merged"]

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}
_JOINED: Final = {"message", "timestamp", "duration"}


class _Part(NamedTuple):
    """A field in the bytes of a message: with its tag, and without."""

    number: int
    wire_type: int
    whole: bytes
    content: bytes


def merged(data: bytes, message: Message) -> bytes:
    """Return a message with each of its single fields in one part.

    Args:
        data: The message. What is no Protobuf, or cut short, stays, at its end.
        message: Its schema.
    """
    fields = {field.number: field for field in message.fields}
    single: dict[str, tuple[Field, bytes]] = {}
    kept, rest = bytearray(), data
    for part in _parts(data):
        rest = rest[len(part.whole) :]
        field = fields.get(part.number)
        if field is None or part.wire_type != WIRE_TYPES[field.kind]:
            kept += part.whole
        elif field.repeated:
            kept += part.whole if field.message is None else _inner(field, part.content)
        else:
            name = f"oneof {field.oneof}" if field.oneof else field.name
            before = single.get(name)
            if field.kind not in _JOINED:
                single[name] = field, part.whole
            elif before is not None and before[0] is field:
                single[name] = field, before[1] + part.content
            else:
                single[name] = field, part.content
    for field, made in single.values():
        kept += _inner(field, made) if field.kind in _JOINED else made
    return bytes(kept) + rest


def _inner(field: Field, content: bytes) -> bytes:
    """The field of a message in a message."""
    if field.message is not None:
        content = merged(content, field.message)
    return varint(field.number << 3 | _BYTES) + varint(len(content)) + content


def _parts(data: bytes) -> Iterator[_Part]:
    """The fields of a message, up to what is no Protobuf."""
    at = 0
    while at < len(data):
        begin = at
        try:
            tag, at = read_varint(data, at)
            content, at = _end(data, at, tag)
        except ValueError:
            return
        yield _Part(tag >> 3, tag & 7, data[begin:at], data[content:at])


def _end(data: bytes, at: int, tag: int) -> tuple[int, int]:
    """The begin and the end of a field's content.

    Raises:
        ValueError: It is no Protobuf, or cut short.
    """
    open_groups: list[int] = []
    begin = at
    while True:
        wire_type, number = tag & 7, tag >> 3
        begin = at
        if wire_type == _GROUP:
            open_groups.append(number)
        elif wire_type == _GROUP_END:
            if not open_groups or open_groups.pop() != number:
                raise ValueError("a group ends that has not begun")
        elif wire_type == _VARINT:
            _, at = read_varint(data, at)
        else:
            size = _SIZES.get(wire_type)
            if size is None:
                if wire_type != _BYTES:
                    raise ValueError("there is no such wire type")
                size, begin = read_varint(data, at)
            at = begin + size
        if at > len(data):
            raise ValueError("it is cut short")
        if not open_groups:
            return begin, at
        tag, at = read_varint(data, at)
