"""The decoders of all formats: the one place that knows them.

Each is imported when it is first asked for: kernels and their tables are not needed by other
formats.
"""

from typing import Final, Protocol

from kshare.errors import OptionsError
from kshare.formats.decoder import Decoder
from kshare.formats.schema_files import RegisteredSchema
from kshare.options.typed_rows import VARIANT_SCHEMA, RowFormat

__all__ = [
    "REGISTRY_KINDS",
    "WriterDecoder",
    "inline_text",
    "made_decoder",
    "registered_text",
    "writer_text",
]

REGISTRY_KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
"""The names of the formats in a registry."""


class WriterDecoder(Decoder, Protocol):
    """A decoder that has to know the schema that a record was written with: Avro's, Protobuf's.

    The reader schema is number 0.
    """

    def add_writer(self, text: str, path: tuple[int, ...] | None = None) -> int:
        """Add a writer's schema; return its number, for ``Payloads.writers``.

        Records of one that the reader schema cannot read are bad.

        Args:
            text: The schema, as :func:`writer_text` makes it.
            path: Of Protobuf, the message's indexes, if they do not stand in front of records.
        """


def registered_text(form: RowFormat, registered: RegisteredSchema, message: str = "") -> str:
    """A registry's schema as one text, with those that it refers to.

    Args:
        form: The format.
        registered: The schema.
        message: Of Protobuf, the name of the message that is wanted; "": the one that the subject
            names, else the first.

    Raises:
        ValueError: The schema is of another kind, or is none; a clause about it.
    """
    references = dict(registered.references)
    _check_kind(form, registered)
    if form.format == "avro":
        from kshare.formats.avro.references import with_references  # noqa: PLC0415 - as above

        return with_references(registered.text, references)
    if form.format == "protobuf":
        from kshare.formats.protobuf.files import registry_set  # noqa: PLC0415 - as above

        return registry_set(registered.text, references, message, registered.subject or "")
    if references:
        listed = ", ".join(references)
        raise ValueError(f"refers to other schemas ({listed}), which is not built; give it inline")
    return registered.text


def writer_text(form: RowFormat, registered: RegisteredSchema) -> str:
    """A registry's schema that rows were written with, for :meth:`WriterDecoder.add_writer`.

    Args:
        form: The format.
        registered: The schema.

    Raises:
        ValueError: The schema is of another kind, or is none; a clause about it.
    """
    if form.format == "json":  # only its name counts: rows are read by the reader schema
        _check_kind(form, registered)
        return registered.text
    return registered_text(form, registered)


def _check_kind(form: RowFormat, registered: RegisteredSchema) -> None:
    if registered.kind != REGISTRY_KINDS[form.format]:
        raise ValueError(f"is of type {registered.kind}, and {form.column}Format={form.format}")


def inline_text(form: RowFormat, text: str) -> str:
    """A schema that is given as an option, as tasks can read it: a file's contents, not its path.

    Raises:
        ValueError: It cannot be read; a clause about it.
    """
    if form.format != "protobuf":
        return text
    from kshare.formats.protobuf.files import inline_set  # noqa: PLC0415 - as above

    return inline_set(text)


def made_decoder(form: RowFormat, schema: str) -> Decoder:
    """Make the decoder of a format.

    Args:
        form: The format.
        schema: The reader schema; empty for strings.

    Raises:
        OptionsError: The schema cannot be read, or lacks a field that is asked for.
    """
    if form.format == "string":
        from kshare.formats.string import StringDecoder  # noqa: PLC0415 - as above

        return StringDecoder()
    try:
        return _of_schema(form, schema)
    except (TypeError, ValueError) as error:
        raise OptionsError([f"{form.column}Schema: {error}"]) from None


def _of_schema(form: RowFormat, schema: str) -> Decoder:
    fields = form.fields or ()
    if form.format == "avro":
        from kshare.formats.avro.decoder import AvroDecoder  # noqa: PLC0415 - as above

        return AvroDecoder(schema, fields)
    if form.format == "json":
        if form.schema == VARIANT_SCHEMA:
            from kshare.formats.json.variant_decoder import VariantDecoder  # noqa: PLC0415

            return VariantDecoder()
        return _json_decoder(form, schema)
    from kshare.formats.protobuf.decoder import ProtobufDecoder  # noqa: PLC0415 - as above
    from kshare.formats.protobuf.schema import read_schema  # noqa: PLC0415

    is_framed = form.framing == "confluent"
    return ProtobufDecoder(read_schema(schema, fields), framed=is_framed)


def _json_decoder(form: RowFormat, schema: str) -> Decoder:
    """The decoder of JSON; faults of its options and of the schema come together."""
    from kshare.formats.ddl import parse_schema  # noqa: PLC0415 - as above
    from kshare.formats.json.decoder import JsonDecoder  # noqa: PLC0415
    from kshare.formats.json.options import JsonOptions  # noqa: PLC0415
    from kshare.formats.json_schema import is_json_schema, json_schema_type  # noqa: PLC0415

    option, options = f"{form.column}Schema", None
    problems: list[str] = []
    try:
        options = JsonOptions.of(form.json)
    except OptionsError as error:
        problems += (f"{form.column}.json.{problem}" for problem in error.problems)
    try:
        is_of_json = is_json_schema(schema)
        kind = json_schema_type(schema) if is_of_json else parse_schema(schema, option)
        decoder = JsonDecoder(kind, options, form.fields or ())
    except OptionsError as error:
        problems += error.problems
    except (TypeError, ValueError) as error:
        problems.append(f"{option}: {error}")
    if problems:
        raise OptionsError(problems)
    return decoder
