"""Options of typed rows: ``valueFormat``, ``schemaRegistry.*`` and their company -> ``TypedRows``.

Guarantee: as for :mod:`kshare.options.source`: nothing is contacted, and all faults are reported
together. A reader schema is only looked at as far as its kind goes; its text is read at ``load()``.

What is needed, and what contradicts, by format and framing::

    framing        avro                     json, protobuf           string
    confluent      registry                 -                        refused
    apicurio       registry                 -, refused: of protobuf  refused
    glue           refused: no client       -                        refused
    singleObject   -                        refused: Avro's own      refused
    none           -                        -                        the only one
    valueSchema    required: `latest` with a registry, else inline   refused

JSON needs no ``valueSchema``: without one and a registry, values are variants.
"""

from collections.abc import Iterable
from typing import ClassVar, Final, Literal

from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign, Subscribe, Topics
from kshare.options.raw import RawOptions
from kshare.options.record_names import RecordNames
from kshare.options.registry_options import RegistryParser
from kshare.options.registry_table import PREFIX
from kshare.options.typed_rows import (
    LATEST_SCHEMA,
    TYPED_COLUMNS,
    VARIANT_SCHEMA,
    BadRecords,
    Framing,
    InlineSchema,
    LatestSchema,
    OtherRecords,
    RegistryConfig,
    RowFormat,
    SchemaChoice,
    SchemaVersion,
    TypedRows,
)

__all__ = ["JSON_OPTIONS", "TypedRowsParser", "is_row_option"]

_COLUMNS: Final[tuple[Literal["key", "value"], ...]] = ("key", "value")
_OPTIONS: Final = ("Schema", "Subject", "OtherRecords", "Framing", "Fields")
_WITH_IDS: Final = ("confluent", "apicurio")
_SCHEMAS: Final = {
    "avro": "a schema of Avro in JSON",
    "json": "DDL such as user STRING, qty INT, or a JSON Schema",
    "protobuf": "a descriptor set's message",
}

JSON_OPTIONS: Final = (
    "allowBackslashEscapingAnyCharacter",
    "allowComments",
    "allowNonNumericNumbers",
    "allowNumericLeadingZeros",
    "allowSingleQuotes",
    "allowUnquotedControlChars",
    "allowUnquotedFieldNames",
    "dateFormat",
    "maxNestingDepth",
    "timeZone",
    "timestampFormat",
    "timestampNTZFormat",
)
"""The options of Spark's ``from_json`` that ``value.json.NAME`` takes."""
_JSON_SPELLINGS: Final = {name.lower(): name for name in JSON_OPTIONS}


def is_row_option(name: str) -> bool:
    """True if an option is one of a group: ``schemaRegistry.*``, ``key.json.*``, ``value.json.*``.

    Args:
        name: The option as given.
    """
    return name.lower().startswith((PREFIX.lower(), "key.json.", "value.json."))


class TypedRowsParser:
    """Parses the options of typed rows once.

    Args:
        raw: The options as given.
        names_topics: Whether options name the topics. False for consumers: they subscribe later.
    """

    _writes: ClassVar = False
    """True if records are written, and not read."""

    def __init__(self, raw: RawOptions, *, names_topics: bool = True) -> None:
        self._raw = raw
        self._faults = raw.faults
        self._names_topics = names_topics

    def parse(self, topics: Topics | None, columns: Iterable[str]) -> TypedRows | None:
        """Return how rows are typed; None if they are not, or with a fault.

        Args:
            topics: The topics of the query; None if they are wrong.
            columns: The columns that ``columns`` names.
        """
        registry = self.registry()
        bad_records = self._bad_records()
        formats = [
            each
            for column in _COLUMNS
            if (each := self._format(column, registry, topics)) is not None
        ]
        self._check_columns(columns, formats)
        if any(f"{column}Format" in self._raw for column in _COLUMNS):
            if not formats:
                return None
            return TypedRows(formats=tuple(formats), registry=registry, bad_records=bad_records)
        for name in self._raw:
            if name == "badRecords" or name.lower().startswith(PREFIX.lower()):
                self._faults.warn(name, "has no effect without valueFormat or keyFormat")
        return None

    # -- one column -------------------------------------------------------------------------

    def _format(
        self,
        column: Literal["key", "value"],
        registry: RegistryConfig | None,
        topics: Topics | None,
    ) -> RowFormat | None:
        raw, option = self._raw, f"{column}Format"
        json = self._json(column)
        given = [f"{column}{name}" for name in _OPTIONS if f"{column}{name}" in raw]
        if option not in raw:
            for name in [*given, *(f"{column}.json.{name}" for name in json)]:
                self._faults.add(
                    name, None, f"needs {option}, which says how {column}s are written"
                )
            return None
        form = raw.value(option)
        if form is None:
            return None
        if form == "string":
            for name in given:
                if name != f"{column}Framing" or raw.value(name) not in {None, "none"}:
                    raw.fault(name, f"contradicts {option}=string: a string has no schema")
        if form != "json" and json:
            listed = ", ".join(f"{column}.json.{name}" for name in json)
            self._faults.add(listed, None, f"contradicts {option}={form}")
        if form == "string":
            return RowFormat(column=column, format="string")
        framing = self._framing(column, form, registry)
        schema = self._schema(column, form)
        schema, subjects, others = self._record_names(column, form, framing, schema)
        subject = None if subjects else self._subject(column, schema, topics)
        if form == "json" and schema == VARIANT_SCHEMA:
            self._check_variant(column, json)
        return RowFormat(
            column=column,
            format=form,
            schema=schema,
            subject=subject,
            subjects=subjects,
            others=others,
            framing=framing,
            fields=raw.value(f"{column}Fields"),
            json=json,
        )

    def _framing(self, column: str, form: str, registry: RegistryConfig | None) -> Framing:
        option = f"{column}Framing"
        default: Framing = "confluent" if registry is not None else "none"
        framing: Framing = self._raw.value(option) or default
        if framing == "singleObject" and form != "avro":
            self._raw.fault(option, f"is Avro's own, which contradicts {column}Format={form}")
        if form == "avro" and framing == "glue":
            self._raw.fault(
                option,
                "needs the schemas of AWS Glue's registry, which has no client here",
                f"leave out {column}Format, and decode the bytes with from_avro",
            )
        if framing == "confluentHeader" and not self._writes:
            self._raw.fault(option, "is a sink's", "confluent, which reads ids in headers, too")
        if form == "protobuf" and framing == "apicurio":
            self._raw.fault(
                option,
                "is not read: these serializers put the message's name in front of it",
                "none, if they put ids in headers, which is their default",
            )
        if form == "avro" and framing in _WITH_IDS and not self._names_registry():
            self._raw.fault(
                option, "needs schemaRegistry.url: records name their schemas by the registry's ids"
            )
        return framing

    def _schema(self, column: str, form: str) -> SchemaChoice | None:
        option = f"{column}Schema"
        if option not in self._raw:
            if self._names_registry():
                return LATEST_SCHEMA
            if form == "json":
                return VARIANT_SCHEMA
            self._faults.add(
                option,
                None,
                f"must be specified with {column}Format={form}",
                f"give {_SCHEMAS[form]}, or schemaRegistry.url",
            )
            return None
        schema: SchemaChoice | None = self._raw.value(option)
        if schema is None or isinstance(schema, InlineSchema):
            return schema
        if schema.message and form != "protobuf":
            self._raw.fault(
                option, f"names message {schema.message}, which only {column}Format=protobuf has"
            )
        if self._names_registry():
            return schema
        self._faults.add(
            option,
            None,
            f"is {schema}, which needs schemaRegistry.url",
            f"give the address of the registry, or {_SCHEMAS[form]}",
        )
        return schema

    def _check_variant(self, column: str, json: Iterable[str]) -> None:
        """Report options that say how fields are read, where there is one VARIANT."""
        option = f"{column}Schema"
        if f"{column}Fields" in self._raw:
            self._raw.fault(
                f"{column}Fields",
                f"needs {option}: without one, {column} is one VARIANT",
                f"take fields out of it by variant_get({column}, '$.user', 'string')",
            )
        for name in json:
            self._faults.add(
                f"{column}.json.{name}",
                None,
                f"needs {option}: a VARIANT is read as parse_json reads it, without options",
            )

    def _record_names(
        self, column: str, form: str, framing: Framing, schema: SchemaChoice | None
    ) -> tuple[SchemaChoice | None, tuple[str, ...], OtherRecords | None]:
        """The schema, several subjects, and what becomes of records of other names than theirs."""
        is_registry = self._names_registry()
        names = RecordNames(self._raw, column, form, schema, is_registry=is_registry)
        names.check(framing)
        return names.schema, names.subjects, names.others

    def _subject(
        self, column: str, schema: SchemaChoice | None, topics: Topics | None
    ) -> str | None:
        option = f"{column}Subject"
        given = self._raw.get(option, "").strip()
        needed = isinstance(schema, LatestSchema | SchemaVersion)
        if option in self._raw and not given:
            self._raw.fault(option, "is empty", "give the name of a subject")
        elif given and schema is not None and not needed:
            self._faults.warn(
                option, f"has no effect, because {column}Schema names the schema without a subject"
            )
        if given or not needed:
            return given or None
        named = _named(topics)
        if len(named) == 1:
            return f"{named[0]}-{column}"
        if not self._names_topics:
            self._faults.add(
                option,
                None,
                f"must be specified with {column}Schema={schema}, as topics are not known before "
                "subscribe()",
                f"give the name of a subject; serializers' own is <topic>-{column}",
            )
        elif topics is not None:
            self._faults.add(
                option,
                None,
                "must be specified where more than one topic may be read",
                f"with one topic, the default is <topic>-{column}",
            )
        return None

    def _json(self, column: str) -> FrozenMapping[str, str]:
        prefix, found = f"{column}.json.", {}
        for name, text in self._raw.items():
            if not name.lower().startswith(prefix):
                continue
            spelling = _JSON_SPELLINGS.get(name[len(prefix) :].lower())
            if spelling is None:
                self._faults.add(
                    name,
                    None,
                    "is no option of JSON that is built",
                    f"known are: {', '.join(JSON_OPTIONS)}",
                )
            else:
                found[spelling] = text
        return FrozenMapping(found)

    # -- what both columns share ------------------------------------------------------------

    def _names_registry(self) -> bool:
        """True if there is an address of a registry, be it a wrong one."""
        return any(name.lower() == f"{PREFIX}url".lower() for name in self._raw)

    def registry(self) -> RegistryConfig | None:
        """Return how to reach the registry; None if no address is given, or with a fault."""
        return RegistryParser(self._raw).parse()

    def _bad_records(self) -> BadRecords:
        parsed: BadRecords | None = self._raw.value("badRecords")
        return parsed or BadRecords()

    def _check_columns(self, columns: Iterable[str], formats: Iterable[RowFormat]) -> None:
        by_column: dict[str, RowFormat] = {each.column: each for each in formats}
        for name in columns:
            if name not in TYPED_COLUMNS:
                continue
            column = "key" if name.startswith("key") else "value"
            if f"{column}Format" not in self._raw:
                self._faults.add("columns", None, f"has {name}, which needs {column}Format")
            elif (
                name.endswith("SchemaId")
                and column in by_column
                and by_column[column].framing not in _WITH_IDS
            ):
                framing = by_column[column].framing
                self._faults.add(
                    "columns",
                    None,
                    f"has {name}, and with {column}Framing={framing} records name no id",
                    f"framings with ids: {', '.join(_WITH_IDS)}",
                )


def _named(topics: Topics | None) -> tuple[str, ...]:
    match topics:
        case Subscribe():
            return topics.topics
        case Assign():
            return tuple(sorted({tp.topic for tp in topics.partitions}))
    return ()
