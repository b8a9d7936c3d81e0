"""The decoders of all formats: the one place that knows them.

Each is imported when it is first asked for: kernels and their tables are not needed by other
formats.
"""

from collections.abc import Mapping
from typing import Protocol

from kshare.errors import OptionsError
from kshare.formats.decoder import Decoder
from kshare.options.typed_rows import RowFormat

__all__ = ["WriterDecoder", "made_decoder"]


class WriterDecoder(Decoder, Protocol):
    """A decoder that has to know the schema that a record was written with: Avro's.

    The reader schema is number 0.
    """

    def add_writer(self, text: str) -> int:
        """Add a writer's schema; return its number, for ``Payloads.writers``.

        Records of one that the reader schema cannot read are bad.
        """


def made_decoder(form: RowFormat, schema: str, references: Mapping[str, str]) -> Decoder:
    """Make the decoder of a format.

    Args:
        form: The format.
        schema: The reader schema; empty for strings.
        references: Schemas that it refers to, by name.

    Raises:
        OptionsError: The schema cannot be read, or lacks a field that is asked for.
    """
    option = f"{form.column}Schema"
    if references and form.format != "avro":
        listed = ", ".join(references)
        raise OptionsError(
            [f"{option}: refers to other schemas ({listed}), which is not built; give it inline"]
        )
    if form.format == "string":
        from kshare.formats.string import StringDecoder  # noqa: PLC0415 - as above

        return StringDecoder()
    try:
        return _of_schema(form, schema, references)
    except (TypeError, ValueError) as error:
        raise OptionsError([f"{option}: {error}"]) from None


def _of_schema(form: RowFormat, schema: str, references: Mapping[str, str]) -> Decoder:
    fields = form.fields or ()
    if form.format == "avro":
        from kshare.formats.avro.decoder import AvroDecoder  # noqa: PLC0415 - as above
        from kshare.formats.avro.references import with_references  # noqa: PLC0415

        return AvroDecoder(with_references(schema, references), fields)
    if form.format == "json":
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
