"""The encoders of a sink: their schemas are found on the driver, and columns encoded in tasks.

Guarantees: a schema that does not fit the rows is an error before a task starts, and all such are
listed. A registry is asked once in a process for each schema, and never once a batch: Spark makes a
sink for each. The newest version of a subject is asked for again after a minute.

Cost: an encoder is made once in a process.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from kshare.errors import KafkaError, OptionsError, UnknownSchemaError
from kshare.formats.encode.parts import EncodeError, joined, narrow
from kshare.formats.encode.schema_headers import with_schema_header
from kshare.formats.header_ids import header_value
from kshare.formats.make import REGISTRY_KINDS, inline_text, registered_text
from kshare.formats.registry import SchemaRegistry, registry_of
from kshare.formats.schema_files import RegisteredSchema
from kshare.options import KafkaConfig
from kshare.options.row_encodings import RowEncoding, RowEncodings
from kshare.options.typed_rows import InlineSchema, RowFormat, SchemaId, SchemaVersion

if TYPE_CHECKING:
    from kshare.formats.protobuf.files import Part

__all__ = ["Encoder", "encoded", "found_encodings", "inline_faults"]

_LATEST_SECONDS: Final = 60.0


class Encoder(Protocol):
    """Makes bytes of rows."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of bytes; null stays null.

        Raises:
            EncodeError: A value cannot be encoded.
        """


def found_encodings(
    asked: RowEncodings, columns: pa.Schema, kafka: KafkaConfig
) -> tuple[RowEncoding, ...]:
    """Find the schemas of a sink's encodings, and check that they are those of its rows.

    Args:
        asked: What the options ask for.
        columns: The columns of the rows.
        kafka: How long to wait for the registry.

    Raises:
        OptionsError: Schemas cannot be used; all faults are listed.
        SchemaRegistryError: The registry does not answer, or refuses.
    """
    found: list[RowEncoding] = []
    problems: list[str] = []
    for form, kind in _encoded_columns(asked, columns):
        try:
            encoding = _found(form, kind, asked, kafka)
            _encoder(encoding, kind)
        except OptionsError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(_fault(form, error))
        else:
            found.append(encoding)
    if problems:
        raise OptionsError(problems)
    return tuple(found)


def inline_faults(asked: RowEncodings, columns: pa.Schema) -> list[str]:
    """The faults of schemas that no registry has to say. Nothing is contacted.

    Args:
        asked: What the options ask for; they may have other faults.
        columns: The columns of the rows.
    """
    problems: list[str] = []
    for form, kind in _encoded_columns(asked, columns):
        is_type = pa.types.is_nested if form.format == "json" else pa.types.is_struct
        is_known = form.schema is None or isinstance(form.schema, InlineSchema)
        if not is_known or not is_type(kind):  # that it is none is said by the options
            continue
        try:
            text = _own_text(form, kind, asked)
            if text or form.format == "json":
                _encoder(RowEncoding(form.column, form.format, text, b""), kind)
        except OptionsError as error:
            problems += error.problems
        except ValueError as error:
            problems.append(_fault(form, error))
    return problems


def _encoded_columns(
    asked: RowEncodings, columns: pa.Schema
) -> Iterator[tuple[RowFormat, pa.DataType]]:
    for form in asked.formats:
        if form.column in columns.names and form.format != "string":
            yield form, columns.field(form.column).type


def _fault(form: RowFormat, error: ValueError) -> str:
    is_of_schema = form.schema is not None
    option = f"{form.column}Schema" if is_of_schema else f"column {form.column}"
    return f"{option}: {error}"


def _own_text(form: RowFormat, kind: pa.DataType, asked: RowEncodings) -> str:
    """The schema that is given, or that the rows have; empty if the registry says it, or none."""
    if form.schema is None and form.format == "avro":
        from kshare.formats.encode.avro import avro_schema  # noqa: PLC0415 - of this format

        return avro_schema(kind, evolves=asked.registry is not None)
    return inline_text(form, form.schema.text) if isinstance(form.schema, InlineSchema) else ""


def _found(
    form: RowFormat, kind: pa.DataType, asked: RowEncodings, kafka: KafkaConfig
) -> RowEncoding:
    text = _own_text(form, kind, asked)
    if asked.registry is None:
        return RowEncoding(form.column, form.format, text, b"")
    registered = _registered(form, text, asked, registry_of(asked.registry, kafka, None))
    if registered.kind != REGISTRY_KINDS[form.format]:
        raise OptionsError(
            [
                (
                    f"{form.column}Format: is {form.format}, and the registry's {registered} is of "
                    f"type {registered.kind}"
                )
            ]
        )
    if not text and form.format != "json":  # rows of JSON are written without a schema
        text = registered_text(form, registered, form.message)
    if form.framing == "none":
        return RowEncoding(form.column, form.format, text, b"")
    assert isinstance(registered.id, int)
    indexes = _indexes(text) if form.format == "protobuf" else b""
    in_header = form.framing == "confluentHeader"
    named = header_value(registered.id, registered.guid if in_header else None, indexes)
    if in_header:
        return RowEncoding(form.column, form.format, text, b"", named)
    return RowEncoding(form.column, form.format, text, named)


def _indexes(text: str) -> bytes:
    """Protobuf's indexes of the message, which are behind the id."""
    from kshare.formats.protobuf.indexes import index_bytes  # noqa: PLC0415 - of this format
    from kshare.formats.protobuf.schema import read_schema  # noqa: PLC0415 - of this format

    return index_bytes(read_schema(text).path)


def _registered(
    form: RowFormat, text: str, asked: RowEncodings, registry: SchemaRegistry
) -> RegisteredSchema:
    """The schema as the registry has it, which it is given first, if it may be."""
    kind = REGISTRY_KINDS[form.format]
    try:
        if isinstance(form.schema, SchemaId):
            return registry.by_id(form.schema.id, kind)
        assert form.subject is not None
        if text:
            parts: list[Part] = []
            if form.format == "protobuf":
                from kshare.formats.protobuf.files import parts_of  # noqa: PLC0415 - of this format

                parts = parts_of(text)
                text = parts[-1].text
            return registry.of_text(form.subject, kind, text, parts, register=asked.auto_register)
        if isinstance(form.schema, SchemaVersion):  # it stays what it is
            return registry.of_subject(form.subject, form.schema.version, kind, max_age=math.inf)
        return registry.of_subject(form.subject, kind=kind, max_age=_LATEST_SECONDS)
    except UnknownSchemaError as error:
        hint = "" if asked.auto_register else "; register it, or set autoRegister=true"
        raise OptionsError([f"{form.column}Schema: {error}{hint}"]) from None


def encoded(batch: pa.RecordBatch, encodings: tuple[RowEncoding, ...]) -> pa.RecordBatch:
    """Return a batch with its columns encoded.

    Args:
        batch: The rows.
        encodings: Of some columns.

    Raises:
        KafkaError: A value cannot be encoded; with row, column and field.
    """
    for encoding in encodings:
        place = batch.schema.get_field_index(encoding.column)
        column = batch.column(place)
        if column.type != (kind := narrow(column.type)):
            column = column.cast(kind)
        try:
            made = _encoder(encoding, kind).encode(column)
        except EncodeError as error:
            where = f"{encoding.column}.{error.field}" if error.field else encoding.column
            raise KafkaError(
                f"cannot write row {error.row} of its batch as {encoding.format}: {where} "
                f"{error.reason}"
            ) from None
        if encoding.head:
            made = _framed(encoding.head, made)
        batch = batch.set_column(place, encoding.column, made)
        batch = with_schema_header(batch, encoding.column, encoding.header)
    return batch


def _framed(head: bytes, column: pa.Array) -> pa.Array:
    """A column with bytes in front of each value; null stays null."""
    if not column.null_count:
        return joined(head, column)
    from pyarrow import compute  # noqa: PLC0415 - 9 MB, which consumers do without

    return compute.if_else(column.is_valid(), joined(head, column), pa.scalar(None, pa.binary()))


@lru_cache(maxsize=16)
def _encoder(encoding: RowEncoding, kind: pa.DataType) -> Encoder:
    """The encoder of a column.

    Raises:
        ValueError: The schema is not one of the rows; the text says why.
    """
    if encoding.format == "json":
        from kshare.formats.encode.json import JsonEncoder  # noqa: PLC0415 - of this format

        return JsonEncoder(kind)
    if encoding.format == "avro":
        from kshare.formats.encode.avro import AvroEncoder  # noqa: PLC0415 - of this format

        return AvroEncoder(kind, encoding.schema)
    from kshare.formats.encode.protobuf import ProtobufEncoder  # noqa: PLC0415 - of this format
    from kshare.formats.protobuf.schema import read_schema  # noqa: PLC0415 - of this format

    return ProtobufEncoder(kind, read_schema(encoding.schema))
