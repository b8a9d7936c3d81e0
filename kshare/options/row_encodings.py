"""Options by which a sink encodes columns: ``valueFormat``, ``valueSchema``, ``autoRegister``.

Guarantee: as for :mod:`kshare.options.sink`: nothing is contacted, and all faults are reported
together. The names are those of typed rows, and mean the same; what a sink does otherwise::

    format      without valueSchema                       with a registry
    string      -                                         refused
    json        as it is                                  valueSchema is looked up, for its id
    avro        the rows' own schema                      looked up, or registered by autoRegister
    protobuf    refused                                   looked up, or registered by autoRegister
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kshare.options.model import Subscribe, Topics
from kshare.options.raw import RawOptions
from kshare.options.record_names import RecordNames
from kshare.options.row_formats import TypedRowsParser
from kshare.options.typed_rows import (
    LATEST_SCHEMA,
    SINK_FRAMINGS,
    Framing,
    InlineSchema,
    OtherRecords,
    RegistryConfig,
    RowFormat,
    SchemaChoice,
)

__all__ = ["RowEncoding", "RowEncodings", "RowEncodingsParser"]

_NESTED: Final = {
    "json": ("struct<", "array<", "map<", "variant"),
    "avro": ("struct<",),
    "protobuf": ("struct<",),
}


@dataclass(frozen=True, slots=True)
class RowEncoding:
    """The encoding of a column, as tasks have it.

    Attributes:
        column: The column.
        format: What it is encoded to.
        schema: The schema; "": the format needs none.
        head: What stands in front of each payload.
        header: What the header has that names the schema; empty: no header names it.
    """

    column: str
    format: str
    schema: str
    head: bytes
    header: bytes = b""


@dataclass(frozen=True, slots=True)
class RowEncodings:
    """The encodings that a sink's options ask for.

    Attributes:
        formats: Of keys, of values, or of both; at least one.
        registry: The schema registry; None if there is none.
        auto_register: Whether schemas are registered.
    """

    formats: tuple[RowFormat, ...]
    registry: RegistryConfig | None = None
    auto_register: bool = False


class RowEncodingsParser(TypedRowsParser):
    """Parses the options of a sink's encodings once.

    Args:
        raw: The options as given.
        types: Name and type (as Spark's ``simpleString``) of the columns; empty: not known.
    """

    _writes = True

    def __init__(self, raw: RawOptions, types: Mapping[str, str]) -> None:
        super().__init__(raw)
        self._types = types
        self._auto = raw.value("autoRegister") is True

    def parse_encodings(self, topic: str | None) -> RowEncodings | None:
        """Return the encodings; None if there are none, or with a fault.

        Args:
            topic: The topic of all rows; None if each row names its own.
        """
        topics: Topics = Subscribe((topic,) if topic is not None else ())
        parsed = self.parse(topics, ())
        if self._auto and not self._names_registry():
            self._faults.add("autoRegister", None, "needs schemaRegistry.url")
        if parsed is None:
            return None
        for form in parsed.formats:
            self._check(form)
        return RowEncodings(parsed.formats, parsed.registry, self._auto)

    def _check(self, form: RowFormat) -> None:
        option = f"{form.column}Format"
        if form.framing not in SINK_FRAMINGS:
            listed = ", ".join(SINK_FRAMINGS)
            self._raw.fault(f"{form.column}Framing", "is not written", f"give one of {listed}")
        if form.framing in {"confluent", "confluentHeader"} and not self._names_registry():
            self._raw.fault(f"{form.column}Framing", "needs schemaRegistry.url")
        given, wanted = self._types.get(form.column), _NESTED.get(form.format)
        if given is not None and wanted is not None and not given.startswith(wanted):
            kinds = " or ".join(kind.rstrip("<") for kind in wanted)
            self._faults.add(
                f"column {form.column}",
                None,
                f"has type {given}, which {option}={form.format} does not encode",
                f"allowed: {kinds}",
            )

    def _schema(self, column: str, form: str) -> SchemaChoice | None:
        """The schema, which some formats can do without in a sink."""
        option = f"{column}Schema"
        if option in self._raw or form == "protobuf":
            return super()._schema(column, form)
        if self._names_registry() and not (self._auto and form == "avro"):
            return LATEST_SCHEMA
        return None

    def _record_names(
        self,
        column: str,
        form: str,
        framing: Framing,  # noqa: ARG002 - rows have one schema, whatever it is
        schema: SchemaChoice | None,
    ) -> tuple[SchemaChoice | None, tuple[str, ...], OtherRecords | None]:
        names = RecordNames(self._raw, column, form, schema, is_registry=True)
        wrong = "names several, and a sink writes by one schema"
        if len(names.listed) > 1:
            self._raw.fault(f"{column}Subject", wrong)
        if len(names.messages) > 1:
            self._faults.add(f"{column}Schema", None, wrong, "name one message")
        return schema, (), None

    def _subject(
        self, column: str, schema: SchemaChoice | None, topics: Topics | None
    ) -> str | None:
        # An inline schema is looked up, or registered, under its subject.
        is_inline = schema is None or isinstance(schema, InlineSchema)
        if is_inline and self._names_registry():
            return super()._subject(column, LATEST_SCHEMA, topics)
        return super()._subject(column, schema, topics)
