"""Schemas that records were written with, against the one that they are read with.

Protobuf finds fields by their numbers, so the reader's own table reads what other versions of its
message have written: fields that are new are passed over, those that were not there yet are null.
What can be wrong is that a number means something else. That is looked for once for each schema;
the rules are those of Protobuf and of a registry's check of compatibility::

    alike              int32, uint32, int64, uint64, bool and enums; sint32 and sint64;
                       string and bytes; fixed32 and sfixed32; fixed64 and sfixed64
    one, and a list    of strings, bytes and messages
    not there          unless the reader requires it
"""

from dataclasses import dataclass
from typing import Any, Final

from kshare.formats.protobuf.files import find_message, message_names, named_files
from kshare.formats.protobuf.schema import WIRE_TYPES, Field, Message, kind_of

__all__ = ["Incompatible", "WriterFile", "written_as"]

_ALIKE: Final = (
    {"int32", "uint32", "int64", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"string", "bytes"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
)
_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Incompatible:
    """The reason why rows of a schema cannot be read.

    Attributes:
        field: The dotted path of the field; "" if it is the whole.
        reason: A clause.
    """

    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class WriterFile:
    """The file that rows were written with.

    Attributes:
        path: The reader's message in this file; None: it does not have it.
        names: The names of its messages by their paths; empty: not known.
        refused: Why rows of the reader's message cannot be read; None: they can.
        indexed: Whether message indexes stand in front of rows.
    """

    path: tuple[int, ...] | None
    names: dict[tuple[int, ...], str]
    refused: Incompatible | None = None
    indexed: bool = True


def written_as(reader: Message, text: str) -> WriterFile:
    """Look how rows of a schema are read.

    Args:
        reader: The message that is wanted.
        text: The writer's schema, as of :func:`~kshare.formats.protobuf.files.named_files`; its
            last file is the one that indexes are of.

    Returns:
        How; also of a schema that cannot be used, whose rows are refused.
    """
    try:
        files, _ = named_files(text)
        names = message_names(files[-1])
        path = next((path for path, name in names.items() if name == reader.name), None)
        descriptor = None if path is None else find_message(files, reader.name)[0]
    except ValueError as error:
        return WriterFile((), {}, Incompatible("", f"has a schema that {error}"))
    refused = None if descriptor is None else _difference(reader, descriptor, "")
    return WriterFile(path, names, refused)


def _difference(reader: Message, writer: Any, prefix: str) -> Incompatible | None:
    """The first field of a message that cannot be read; None: all can."""
    by_number = {field.number: field for field in writer.fields}
    for field in reader.fields:
        found = _of_field(field, by_number.get(field.number), f"{prefix}{field.name}")
        if found is not None:
            return found
    return None


def _of_field(field: Field, written: Any, path: str) -> Incompatible | None:
    if written is None:
        return Incompatible(path, "is missing, and required") if field.required else None
    kind = kind_of(written)
    if kind != field.kind and not any({kind, field.kind} <= each for each in _ALIKE):
        return Incompatible(path, f"is {kind or 'a group'} where {field.kind} is wanted")
    if field.repeated != written.is_repeated and WIRE_TYPES[field.kind] != _BYTES:
        was, wanted = ("a list", "one") if written.is_repeated else ("one", "a list")
        return Incompatible(path, f"is {was} where {wanted} is wanted")
    if field.message is None:
        return None
    return _difference(field.message, written.message_type, f"{path}.")
