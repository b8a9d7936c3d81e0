"""A Protobuf message's fields as a tree of plain data, and the Arrow type of its rows.

Guarantees: names and types are those that Spark's ``from_protobuf`` gives without options: enums
are strings, ``Timestamp`` and ``Duration`` what they say, unsigned numbers the signed ones of the
same bits, wrappers structs of one field. A message without fields is left out, as Spark does.

Only :func:`read_schema` needs the package ``protobuf`` (``pip install 'kshare[protobuf]'``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kshare.formats.protobuf.files import find_message, named_files

__all__ = ["WIRE_TYPES", "EnumType", "Field", "Message", "arrow_type", "kind_of", "read_schema"]

_MOST_FIELDS: Final = 10_000
"""Of a tree; a message that is used in many places counts once for each."""

_ARROW: Final = {
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "double": pa.float64(),
    "duration": pa.duration("us"),
    "enum": pa.string(),
    "fixed32": pa.int32(),
    "fixed64": pa.int64(),
    "float": pa.float32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "sfixed32": pa.int32(),
    "sfixed64": pa.int64(),
    "sint32": pa.int32(),
    "sint64": pa.int64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "uint32": pa.int32(),
    "uint64": pa.int64(),
}
WIRE_TYPES: Final = {
    kind: 1
    if kind in {"double", "fixed64", "sfixed64"}
    else 5
    if kind in {"fixed32", "float", "sfixed32"}
    else 2
    if kind in {"bytes", "duration", "message", "string", "timestamp"}
    else 0
    for kind in (*_ARROW, "message")
}
"""The wire type of each kind: 0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes."""

_MOMENTS: Final = {"Timestamp": "timestamp", "Duration": "duration"}

# google.protobuf.FieldDescriptorProto.Type; 10 is a group.
_KINDS: Final = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}


_Wanted: TypeAlias = dict[str, Any] | None
_NOTHING: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum.

    Attributes:
        name: Its name, without those of its package and message.
        values: Numbers and names, as declared; the first name of a number counts.
        closed: Whether other numbers are no values of it, as in proto2.
    """

    name: str
    values: tuple[tuple[int, str], ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        name: Its name.
        number: Its number.
        kind: Protobuf's name of its type, ``timestamp`` or ``duration``.
        repeated: Whether it is a list, or a map.
        message: The message, of kind ``message``; the entries of a map.
        enum: The enum, of kind ``enum``.
        implicit: Whether its default value is the same as no value.
        required: Whether a message without it is no message.
        default: Its value where it has none: as a number, text or bytes; None: null.
        oneof: The name of its oneof; "": none.
    """

    name: str
    number: int
    kind: str
    repeated: bool = False
    message: "Message | None" = None
    enum: EnumType | None = None
    implicit: bool = False
    required: bool = False
    default: Any = None
    oneof: str = ""

    @property
    def is_map(self) -> bool:
        """True for a map."""
        return self.message is not None and self.message.is_entry


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    Attributes:
        name: Its full name.
        fields: Its fields, as declared.
        is_entry: Whether it is an entry of a map: ``key`` and ``value``.
        path: Of a row's message: its number in the file, and those of the messages below, to it.
    """

    name: str
    fields: tuple[Field, ...]
    is_entry: bool = False
    path: tuple[int, ...] = ()


def arrow_type(message: Message) -> pa.DataType:
    """Return the type of a message's rows."""
    return pa.struct([(field.name, _field_type(field)) for field in message.fields])


def _field_type(field: Field) -> pa.DataType:
    if field.message is None:
        kind = _ARROW[field.kind]
    elif field.is_map:
        key, value = field.message.fields
        return pa.map_(_field_type(key), _field_type(value))
    else:
        kind = arrow_type(field.message)
    return pa.list_(pa.field("element", kind)) if field.repeated else kind


def read_schema(text: str, paths: Sequence[str] = ()) -> Message:
    """Read a message's schema, as the options of a source or sink give it.

    Args:
        text: The message's full name (the last part, if that is unique), a blank, and a descriptor
            set, as :func:`~kshare.formats.protobuf.files.named_files` takes it. Without a name: the
            first message of the last file.
        paths: Dotted names of the fields that are wanted, such as ``user`` or ``items.sku``, as of
            :mod:`kshare.formats.selection`. None: all.

    Raises:
        ValueError: There is no such message or field, or its rows have no type, or the package
            ``protobuf`` is not installed; the text says why.
    """
    files, name = named_files(text)
    descriptor, path = find_message(files, name)
    message = _Reader().message(descriptor, _tree(paths), ())
    if not message.fields:
        raise ValueError(f"names message {message.name}, which has no fields")
    return replace(message, path=path)


def kind_of(field: Any) -> str | None:
    """The kind of a field of the package's descriptors, as of :class:`Field`; None: a group."""
    if _is_moment(field.message_type):
        return _MOMENTS[field.message_type.name]
    return _KINDS.get(field.type)


def _tree(paths: Sequence[str]) -> _Wanted:
    """The wanted fields by name, each with those below it; None: all."""
    if not paths:
        return None
    tree: dict[str, Any] = {}
    whole: list[tuple[dict[str, Any], str]] = []
    for path in paths:
        below, parts = tree, path.split(".")
        for part in parts[:-1]:
            below = below.setdefault(part, {})
        below.setdefault(parts[-1], {})
        whole.append((below, parts[-1]))
    for below, name in whole:
        below[name] = None
    return tree


class _Reader:
    """Makes a tree of descriptors."""

    def __init__(self) -> None:
        self._fields = 0

    def message(self, descriptor: Any, wanted: _Wanted, above: tuple[str, ...]) -> Message:
        """The tree of a message.

        Args:
            descriptor: The package's descriptor.
            wanted: Which fields of it.
            above: The names of the messages that it is in.
        """
        name = descriptor.full_name
        if name in above:
            cycle = " -> ".join((*above[above.index(name) :], name))
            raise ValueError(
                f"names message {name}, which is recursive ({cycle}), and no column's "
                "type is; name the fields that are wanted, without the recursive one, or leave the "
                "value as bytes"
            )
        names = {field.name for field in descriptor.fields}
        if wanted is not None and (unknown := wanted.keys() - names):
            raise ValueError(f"has no field {', '.join(sorted(unknown))} in message {name}")
        is_entry = bool(descriptor.GetOptions().map_entry)
        fields = []
        for field in descriptor.fields:
            below = None if wanted is None else wanted.get(field.name, _NOTHING)
            if is_entry and field.name == "key":
                below = None
            if below is not _NOTHING:
                found = self._field(field, below, (*above, name))
                fields += [found] if found is not None else []
        if is_entry and len(fields) < 2:
            fields = []
        return Message(name, tuple(fields), is_entry)

    def _field(self, field: Any, wanted: _Wanted, above: tuple[str, ...]) -> Field | None:
        """A field; None if it is a message without fields."""
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise ValueError(f"has a message of more than {_MOST_FIELDS:,} fields")
        kind = kind_of(field)
        if kind is None:
            raise ValueError(f"has field {field.full_name}, a group, which is not supported")
        of_message = field.message_type
        if wanted is not None and kind != "message":
            raise ValueError(f"has field {field.full_name} of type {kind}, which has no fields")
        made = Field(
            name=field.name,
            number=field.number,
            kind=kind,
            repeated=field.is_repeated,
            enum=None if field.enum_type is None else _enum(field.enum_type),
            required=field.is_required,
            implicit=not field.is_repeated and not field.has_presence,
            default=_default(field),
            oneof=field.containing_oneof.name if field.containing_oneof is not None else "",
        )
        if kind != "message":
            return made
        if wanted is not None and of_message.GetOptions().map_entry:
            wanted = {"value": wanted}
        message = self.message(of_message, wanted, above)
        return replace(made, message=message) if message.fields else None


def _is_moment(message: Any) -> bool:
    """True if a field's message is a timestamp or a duration: Spark goes by name and fields."""
    return (
        message is not None
        and message.name in _MOMENTS
        and [field.name for field in message.fields] == ["seconds", "nanos"]
    )


def _enum(enum: Any) -> EnumType:
    values: dict[int, str] = {}
    for value in enum.values:
        values.setdefault(value.number, value.name)
    return EnumType(enum.name, tuple(values.items()), bool(enum.is_closed))


def _default(field: Any) -> Any:
    """The value that the schema states for a field; an enum's is its name."""
    if not field.has_default_value or field.is_repeated:
        return None
    if field.enum_type is not None:
        return field.enum_type.values_by_number[field.default_value].name
    return field.default_value
