"""The reader schemas of a query: found once, when it is defined, and the same for all its tasks.

A reader schema says the columns that Spark sees, so it cannot change while a query runs. A query
that is started again asks again: with ``latest`` it may get a newer one, and what has changed is
said (:func:`told_changes`).
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa

from kshare.errors import KshareError, OptionsError, UnknownSchemaError
from kshare.formats.decoder import Decoder
from kshare.formats.make import made_decoder
from kshare.formats.registry import SchemaRegistry, registry_of
from kshare.formats.schema_files import RegisteredSchema
from kshare.options import KafkaConfig
from kshare.options.typed_rows import (
    InlineSchema,
    RowFormat,
    SchemaId,
    SchemaVersion,
    TypedRows,
)

__all__ = ["ReaderSchema", "ReaderSchemas", "found_schemas", "told_changes", "type_changes"]

_DIGEST_DIGITS: Final = 16
_PINNED_ID: Final = re.compile(r"([a-z]+) id:([0-9]+)", re.ASCII)
_KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The reader schema of a column.

    Attributes:
        form: The format of the column.
        text: The schema; empty for strings.
        registered: What the registry says of it; None if it was given inline, and for strings.
    """

    form: RowFormat
    text: str = ""
    registered: RegisteredSchema | None = None

    @property
    def pin(self) -> str:
        """The checkpoint's text for it: equal for the same schema."""
        if self.registered is not None:
            return f"{self.form.format} id:{self.registered.id}"
        if not self.text:
            return self.form.format
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST_DIGITS]
        return f"{self.form.format} sha256:{digest}"

    @property
    def references(self) -> Mapping[str, str]:
        """The schemas that it refers to, by name."""
        return dict(self.registered.references) if self.registered is not None else {}

    def __str__(self) -> str:
        """The schema as messages name it: ``avro id 7 (version 2 of orders-value)``."""
        if self.registered is not None:
            return f"{self.form.format} {self.registered}"
        return self.form.format if not self.text else f"{self.form.format}, given inline"


@dataclass(frozen=True, slots=True)
class ReaderSchemas:
    """The reader schemas of a query, as its planner and its tasks have them.

    Attributes:
        rows: The options.
        columns: Of each column that is typed, its schema.
        token: By which processes of a host share what they ask the registry.
    """

    rows: TypedRows
    columns: tuple[ReaderSchema, ...]
    token: str

    def of(self, column: str) -> ReaderSchema | None:
        """The schema of a column; None: it is not typed."""
        return next((each for each in self.columns if each.form.column == column), None)

    @property
    def pins(self) -> dict[str, str]:
        """The checkpoint's texts, by column."""
        return {each.form.column: each.pin for each in self.columns}

    def decoder(self, column: str) -> Decoder:
        """The decoder of a column that is typed; a process makes it once."""
        schema = self.of(column)
        assert schema is not None
        return _decoder(schema, self.token)

    def registry(self, kafka: KafkaConfig) -> SchemaRegistry | None:
        """The registry; None if there is none."""
        config = self.rows.registry
        return None if config is None else registry_of(config, kafka, self.token)


def found_schemas(
    rows: TypedRows, kafka: KafkaConfig, token: str, registry: SchemaRegistry | None = None
) -> ReaderSchemas:
    """Find the reader schemas that options ask for, and check that they can be read.

    Args:
        rows: The options.
        kafka: How long to wait for the registry.
        token: Of this ``load()``.
        registry: The registry; None: that of the options.

    Raises:
        OptionsError: Schemas cannot be read; all faults are listed.
        SchemaRegistryError: The registry does not answer, or refuses.
    """
    found: list[ReaderSchema] = []
    problems: list[str] = []
    if registry is None and rows.registry is not None:
        registry = registry_of(rows.registry, kafka, token)
    for form in rows.formats:
        try:
            schema = _found(form, registry)
            found.append(schema)
            _decoder(schema, token)
        except OptionsError as error:
            problems += error.problems
    if problems:
        raise OptionsError(problems)
    return ReaderSchemas(rows, tuple(found), token)


@lru_cache(maxsize=16)
def _decoder(schema: ReaderSchema, _: str) -> Decoder:
    # One for each load(): a decoder learns writers by ids, which another registry gives anew.
    return made_decoder(schema.form, schema.text, schema.references)


def _found(form: RowFormat, registry: SchemaRegistry | None) -> ReaderSchema:
    if form.schema is None:
        return ReaderSchema(form)
    if isinstance(form.schema, InlineSchema):
        return ReaderSchema(form, form.schema.text)
    assert registry is not None
    option = f"{form.column}Schema"
    if form.format == "protobuf":
        wanted = "give a message and its descriptor set, such as shop.Order orders.desc"
        raise OptionsError([f"{option}: a registry's Protobuf is not read yet; {wanted}"])
    try:
        if isinstance(form.schema, SchemaId):
            registered = registry.by_id(form.schema.id)
        else:
            assert form.subject is not None
            version = form.schema.version if isinstance(form.schema, SchemaVersion) else None
            registered = registry.of_subject(form.subject, version)
    except UnknownSchemaError as error:
        subject = f"{form.column}Subject={form.subject}, " if form.subject else ""
        raise OptionsError([f"{option}: {error} ({subject}{option}={form.schema})"]) from None
    if registered.kind != _KINDS[form.format]:
        raise OptionsError(
            [
                (
                    f"{form.column}Format: is {form.format}, and the registry's {registered} is of "
                    f"type {registered.kind}"
                )
            ]
        )
    return ReaderSchema(form, registered.text, registered)


# -- what has changed -----------------------------------------------------------------------------


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
    match = _PINNED_ID.fullmatch(was)
    registry = schemas.registry(kafka)
    if match is None or registry is None or match[1] != schema.form.format:
        return ""
    try:
        old = registry.by_id(int(match[2]))
        before = made_decoder(schema.form, old.text, dict(old.references)).type
    except KshareError as error:
        return f" (what has changed is not known: {error})"
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
