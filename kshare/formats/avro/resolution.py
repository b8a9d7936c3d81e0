"""Schema resolution: which of the reader's types and fields a writer's are read as.

The specification's rules, as Java's Avro, and so Spark, applies them: the name of a record is not
compared unless a union has several; that of an enum or a fixed is, without its namespace.
"""

from typing import Final

from kshare.formats.avro.schema import (
    Enum,
    Field,
    Fixed,
    Record,
    Schema,
    Union,
    described,
    short_name,
)

__all__ = ["branch", "fields", "mismatch"]

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def _same_name(writer: Fixed | Enum | Record, reader: Fixed | Enum | Record) -> bool:
    names = {reader.name, *reader.aliases}
    return short_name(writer.name) in map(short_name, names)


def mismatch(writer: Schema, reader: Schema) -> str | None:
    """Return why a writer's type cannot be read as the reader's, looking at no field or item.

    Args:
        writer: No union.
        reader: No union.

    Returns:
        The rest of a sentence about the field; None: it can be.
    """
    if writer.kind != reader.kind and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
        return f"is {described(writer)} where {described(reader)} is wanted"
    if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
        return f"has {writer.size} bytes where {described(reader)} has {reader.size}"
    if not isinstance(writer, Record) and not _is_named_alike(writer, reader):
        return f"is {described(writer)} where {described(reader)} is wanted"
    return None


def _is_named_alike(writer: Schema, reader: Schema) -> bool:
    if isinstance(writer, Fixed | Enum | Record) and isinstance(reader, Fixed | Enum | Record):
        return _same_name(writer, reader)
    return True


def branch(writer: Schema, reader: Union) -> int | None:
    """Return the number of the reader's type that a writer's is read as.

    Args:
        writer: No union.
        reader: A union: the type of the same kind and name; else the first record, or else the
            first type that the writer's can be promoted to.
    """
    alike = [n for n, one in enumerate(reader.branches) if one.kind == writer.kind]
    for number in alike:
        one = reader.branches[number]
        if isinstance(writer, Record) and isinstance(one, Record):
            if _same_name(writer, one):
                return number
        elif mismatch(writer, one) is None:
            return number
    if isinstance(writer, Record):
        return alike[0] if alike else None
    for number, one in enumerate(reader.branches):
        if mismatch(writer, one) is None:
            return number
    return None


def fields(writer: Record, reader: Record) -> dict[str, Field]:
    """Return which of the reader's fields those of a writer are, by the writer's names.

    A field of the same name wins over one whose alias that is.
    """
    written = {one.name for one in writer.fields}
    found: dict[str, Field] = {}
    for one in reader.fields:
        if one.name in written:
            found[one.name] = one
    for one in reader.fields:
        if one.name not in written:
            for alias in sorted(one.aliases & written - found.keys())[:1]:
                found[alias] = one
    return found
