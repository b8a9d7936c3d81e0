"""What has changed between the reader schemas of two runs of a query, in words."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from kshare.errors import KshareError
from kshare.formats.make import REGISTRY_KINDS, made_decoder, registered_text
from kshare.formats.records import short_name
from kshare.formats.schemas import ReaderSchema, ReaderSchemas
from kshare.options import KafkaConfig

__all__ = ["told_changes", "type_changes"]

_PINNED_ID: Final = re.compile(r"(?:(.+) )?id:([0-9]+)")


def told_changes(
    schemas: ReaderSchemas | None, before: Mapping[str, str], kafka: KafkaConfig | None
) -> list[str]:
    """Say how reader schemas differ from those of the batch before; nothing if they do not.

    Args:
        schemas: Those of now; None: keys and values are bytes.
        before: What the checkpoint says, by column.
        kafka: How long to wait for the registry.
    """
    told = []
    pins = schemas.pins if schemas is not None else {}
    for column in sorted({*pins, *before}):
        was, now = before.get(column), pins.get(column)
        if was == now:
            continue
        schema = schemas.of(column) if schemas is not None else None
        if schemas is None or schema is None:
            told.append(f"{column} was read as {was}, and is bytes now")
        elif was is None:
            told.append(f"{column} was bytes, and is read as {schema} now")
        else:
            more = "" if kafka is None else _type_changes_since(schema, schemas, was, kafka)
            told.append(f"{column} was read with the schema {was}, and is with {schema} now{more}")
    return told


def _type_changes_since(
    schema: ReaderSchema, schemas: ReaderSchemas, was: str, kafka: KafkaConfig
) -> str:
    """The changes since a schema of the registry, as the end of a sentence."""
    registry = schemas.registry(kafka)
    form, _, listed = was.partition(" ")
    pinned = [_PINNED_ID.fullmatch(each) for each in listed.split(", ")]
    if registry is None or form != schema.form.format:
        return ""
    forms = {each.record: each.form for each in schema.members}
    is_several = bool(schema.members) or len(pinned) > 1
    whole = replace(schema.form, fields=None) if is_several else schema.form
    try:
        types: dict[str | None, pa.DataType] = {}
        for match in pinned:
            if match is None:
                return ""
            # It is only told, and batches wait for that: a registry that is down is not waited for.
            name = match[1] or ""  # of a record; of one schema, it is Protobuf's message
            old = registry.by_id(int(match[2]), REGISTRY_KINDS[form], waits=False)
            decoder = made_decoder(forms.get(name, whole), registered_text(whole, old, name))
            types[short_name(name) if len(pinned) > 1 else None] = decoder.type
    except (KshareError, ValueError) as error:
        return f" (what has changed is not known: {error})"
    before = types[None] if None in types else pa.struct(types.items())
    column = schema.form.column
    found = list(type_changes(before, schemas.decoder(column).type, column))
    return f": {', '.join(found)}" if found else ": the columns are the same"


def type_changes(before: pa.DataType, now: pa.DataType, path: str) -> Iterator[str]:
    """The differences between two types of rows, each as a clause about a dotted path."""
    if before.equals(now):
        return
    if pa.types.is_struct(before) and pa.types.is_struct(now):
        was = {field.name: field.type for field in before}
        new = {field.name: field.type for field in now}
        for name in [*was, *(name for name in new if name not in was)]:
            if name not in new:
                yield f"{path}.{name} is gone"
            elif name not in was:
                yield f"{path}.{name} is new ({_shown(new[name])})"
            else:
                yield from type_changes(was[name], new[name], f"{path}.{name}")
        if list(was) != list(new) and sorted(was) == sorted(new):
            yield f"the fields of {path} have another order"
    elif pa.types.is_list(before) and pa.types.is_list(now):
        yield from type_changes(before.value_type, now.value_type, path)
    elif pa.types.is_map(before) and pa.types.is_map(now) and before.key_type == now.key_type:
        yield from type_changes(before.item_type, now.item_type, path)
    else:
        yield f"{path} was {_shown(before)} and is {_shown(now)}"


def _shown(kind: pa.DataType) -> str:
    return str(kind) if not pa.types.is_nested(kind) else str(kind).partition("<")[0]
