"""The reader schemas of a query: found once, when it is defined, and the same for all its tasks.

A reader schema says the columns that Spark sees, so it cannot change while a query runs. A query
that is started again asks again: with ``latest`` it may get a newer one, and what has changed is
said (:mod:`kshare.formats.schema_changes`).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from kshare.errors import OptionsError, UnknownSchemaError
from kshare.formats.avro.references import records_of
from kshare.formats.decoder import Decoder
from kshare.formats.make import REGISTRY_KINDS, inline_text, made_decoder, registered_text
from kshare.formats.protobuf.files import message_name
from kshare.formats.records import NamedDecoder, RecordsDecoder, names_of, short_name
from kshare.formats.registry import SchemaRegistry, registry_of
from kshare.formats.schema_files import RegisteredSchema
from kshare.options import KafkaConfig
from kshare.options.typed_rows import (
    VARIANT_SCHEMA,
    InlineSchema,
    RowFormat,
    SchemaId,
    SchemaVersion,
    TypedRows,
)

__all__ = ["ReaderSchema", "ReaderSchemas", "found_schemas", "inline_faults"]

_DIGEST_DIGITS: Final = 16
_PIN_MAX: Final = 1_000  # as the checkpoint takes it


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The reader schema of a column.

    Attributes:
        form: The format of the column.
        text: The schema, with those that it refers to; empty for strings.
        registered: What the registry says of it; None if it was given inline, and for strings.
        record: The full name of its record, where records are distinguished by name.
        members: The schemas of several records, which are then all there is; else empty. Of
            Protobuf that was given inline, the text is the file of all of them.
    """

    form: RowFormat
    text: str = ""
    registered: RegisteredSchema | None = None
    record: str = ""
    members: "tuple[ReaderSchema, ...]" = ()

    @property
    def pin(self) -> str:
        """The checkpoint's text for it: equal for the same schema.

        Such as ``avro id:7``, of several ``avro shop.Placed id:7, shop.Paid id:8``, and of a
        message that is named ``protobuf shop.Order id:7``.
        """
        parts = [f"{each.record} {each.name.split()[-1]}" for each in self.members] or [self.name]
        pin = " ".join([self.form.format, ", ".join(parts)]).rstrip()
        if len(pin) > _PIN_MAX:
            return f"{self.form.format} {_digest(pin)}"
        return pin

    @property
    def name(self) -> str:
        """The schema's name in a pin; empty for strings."""
        if self.registered is not None:
            return f"{self._message} id:{self.registered.id}".lstrip()
        if self.form.schema == VARIANT_SCHEMA:
            return VARIANT_SCHEMA.text
        return _digest(self.text) if self.text else ""

    @property
    def _message(self) -> str:
        """Of Protobuf, the message that options or the subject name; "": the first."""
        return message_name(self.text) if self.form.format == "protobuf" else ""

    def __str__(self) -> str:
        """The schema as messages name it: ``avro id 7 (version 2 of orders-value)``."""
        if self.members:
            parts = (f"{each.record} {each.registered or ''}".rstrip() for each in self.members)
            return f"{self.form.format} {', '.join(parts)}"
        if self.registered is not None:
            message = f"{self._message} of " if self._message else ""
            return f"{self.form.format} {message}{self.registered}"
        if self.form.schema == VARIANT_SCHEMA:
            return f"{self.form.format} of any kind, VARIANT"
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


def inline_faults(rows: TypedRows) -> list[str]:
    """The faults of the schemas that are given inline. Nothing is contacted.

    Args:
        rows: The options, which may have other faults.
    """
    problems: list[str] = []
    for form in rows.formats:
        if isinstance(form.schema, InlineSchema):
            try:
                _decoder(_found(form, None), "")
            except OptionsError as error:
                problems += error.problems
    return problems


@lru_cache(maxsize=16)
def _decoder(schema: ReaderSchema, _: str) -> Decoder:
    # One for each load(): a decoder learns writers by ids, which another registry gives anew.
    form = schema.form
    if form.others is None:
        return made_decoder(form, schema.text)
    members: list[NamedDecoder] = []
    problems: list[str] = []
    for each in schema.members or (schema,):
        try:
            decoder = made_decoder(each.form, each.text)
            members.append(NamedDecoder(names_of(form.format, each.text), decoder))
        except OptionsError as error:
            problems += error.problems
    if problems:
        raise OptionsError(problems)
    is_struct, is_other_bad = bool(schema.members), form.others == "bad"
    if form.format != "protobuf":
        return RecordsDecoder(form.format, members, is_struct=is_struct, is_other_bad=is_other_bad)
    from kshare.formats.messages import MessagesDecoder  # noqa: PLC0415 - of this format

    return MessagesDecoder(
        members, is_struct=is_struct, is_other_bad=is_other_bad, text=schema.text
    )


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]}"


def _found(form: RowFormat, registry: SchemaRegistry | None) -> ReaderSchema:
    if form.others is None:
        return _one(form, registry)
    if isinstance(form.schema, InlineSchema) and form.subjects:
        found = _inline_records(form, form.schema.text)
    else:
        parts = _parts(form)
        if len(parts) == 1:
            return _named(_one(parts[0], registry))
        found = _each(parts, registry)
    if len(found) == 1:
        return found[0]
    _check_names(form, [each.record for each in found])
    is_file = form.format == "protobuf" and isinstance(form.schema, InlineSchema)
    text = found[0].text if is_file else ""
    return ReaderSchema(form, text, members=_with_fields(form, found))


def _parts(form: RowFormat) -> list[RowFormat]:
    """The options of each of several subjects, or messages of one; of one, as they are."""
    if form.subjects:
        return [replace(form, subject=subject, subjects=()) for subject in form.subjects]
    if len(form.messages) < 2:
        return [form]
    assert form.schema is not None
    assert not isinstance(form.schema, InlineSchema)
    return [replace(form, schema=replace(form.schema, message=name)) for name in form.messages]


def _each(parts: Sequence[RowFormat], registry: SchemaRegistry | None) -> list[ReaderSchema]:
    """The schemas of records; the faults of all come together."""
    found: list[ReaderSchema] = []
    problems: list[str] = []
    for part in parts:
        try:
            found.append(_named(_one(part, registry)))
        except OptionsError as error:
            problems += error.problems
    if problems:
        raise OptionsError(problems)
    return found


def _one(form: RowFormat, registry: SchemaRegistry | None) -> ReaderSchema:
    """The one schema of a column, or of a subject."""
    if form.schema is None:
        return ReaderSchema(form)
    option = f"{form.column}Schema"
    if isinstance(form.schema, InlineSchema):
        try:
            return ReaderSchema(form, inline_text(form, form.schema.text))
        except ValueError as error:
            raise OptionsError([f"{option}: {error}"]) from None
    assert registry is not None
    kind = REGISTRY_KINDS[form.format]
    try:
        if isinstance(form.schema, SchemaId):
            registered = registry.by_id(form.schema.id, kind)
        else:
            assert form.subject is not None
            version = form.schema.version if isinstance(form.schema, SchemaVersion) else None
            registered = registry.of_subject(form.subject, version, kind)
    except UnknownSchemaError as error:
        subject = f"{form.column}Subject={form.subject}, " if form.subject else ""
        raise OptionsError([f"{option}: {error} ({subject}{option}={form.schema})"]) from None
    if registered.kind != kind:
        raise OptionsError(
            [
                (
                    f"{form.column}Format: is {form.format}, and the registry's {registered} is of "
                    f"type {registered.kind}"
                )
            ]
        )
    try:
        text = registered_text(form, registered, form.message)
    except ValueError as error:
        raise OptionsError([f"{option}: {error}"]) from None
    return ReaderSchema(form, text, registered)


# -- records by name ------------------------------------------------------------------------------


def _named(schema: ReaderSchema) -> ReaderSchema:
    """A schema with the name of its record."""
    try:
        name = names_of(schema.form.format, schema.text)[0]
    except ValueError as error:
        where = f"{schema.registered} " if schema.registered is not None else ""
        raise OptionsError([f"{schema.form.column}Schema: {where}{error}"]) from None
    return replace(schema, record=name)


def _inline_records(form: RowFormat, text: str) -> list[ReaderSchema]:
    """The schemas of an inline schema's records, of those that are asked for."""
    option = f"{form.column}Schema"
    if form.format == "protobuf":
        parts = [
            replace(form, subjects=(), schema=InlineSchema(f"{name} {text}"))
            for name in form.subjects
        ]
        return _each(parts, None)
    try:
        there = records_of(text)
    except ValueError as error:
        raise OptionsError([f"{option}: {error}"]) from None
    missing = [name for name in form.subjects if name not in there]
    if missing:
        listed = f"{option} has {', '.join(there)}"
        raise OptionsError(
            [f"{form.column}Subject: there is no record {name}: {listed}" for name in missing]
        )
    return [
        ReaderSchema(replace(form, subjects=()), there[name], record=name) for name in form.subjects
    ]


def _check_names(form: RowFormat, names: Sequence[str]) -> None:
    """Refuse records that would have the same column. Spark does not compare the case of names."""
    by_column: dict[str, list[str]] = {}
    for name in names:
        by_column.setdefault(short_name(name).lower(), []).append(name)
    problems = [
        f"{form.column}Subject: records {' and '.join(alike)} would have the same column "
        f"{form.column}.{short_name(alike[0])}; name one of them"
        for alike in by_column.values()
        if len(alike) > 1
    ]
    if problems:
        raise OptionsError(problems)


def _with_fields(form: RowFormat, found: Sequence[ReaderSchema]) -> tuple[ReaderSchema, ...]:
    """The schemas of records, each with the fields of it that are wanted."""
    if form.fields is None:
        return tuple(found)
    option = f"{form.column}Fields"
    by_column: dict[str, list[str]] = {short_name(each.record): [] for each in found}
    problems = []
    for path in form.fields:
        head, _, rest = path.partition(".")
        if head in by_column:
            by_column[head].append(rest)
        else:
            there = ", ".join(by_column)
            problems.append(f"{option}: {path} begins with no record: there are {there}")
    problems += [
        f"{option}: names no field of {name}, which {form.column}Subject asks for; {name} alone "
        "is all of them"
        for name, paths in by_column.items()
        if not paths
    ]
    if problems:
        raise OptionsError(problems)
    return tuple(
        replace(each, form=replace(each.form, fields=tuple(filter(None, paths)) or None))
        for each, paths in zip(found, by_column.values(), strict=True)
    )
