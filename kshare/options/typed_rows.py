"""The options by which bytes become typed columns, parsed; see :mod:`kshare.options.row_formats`.

Guarantee: values only, as in :mod:`kshare.options.model`: they compare, they pickle, and no text
form holds a secret.
"""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from kshare.options.frozen import FrozenMapping, Properties

__all__ = [
    "FORMATS",
    "FRAMINGS",
    "LATEST_SCHEMA",
    "OTHER_RECORDS",
    "SINK_FRAMINGS",
    "TYPED_COLUMNS",
    "VARIANT_SCHEMA",
    "BadRecords",
    "Format",
    "Framing",
    "InlineSchema",
    "LatestSchema",
    "OtherRecords",
    "RegistryConfig",
    "RowFormat",
    "SchemaChoice",
    "SchemaId",
    "SchemaVersion",
    "TypedRows",
]

Format: TypeAlias = Literal["avro", "json", "protobuf", "string"]
Framing: TypeAlias = Literal[
    "confluent", "confluentHeader", "apicurio", "glue", "singleObject", "none"
]
OtherRecords: TypeAlias = Literal["bad", "null", "skip"]
FORMATS: Final[tuple[Format, ...]] = ("avro", "json", "protobuf", "string")
FRAMINGS: Final[tuple[Framing, ...]] = ("confluent", "apicurio", "glue", "singleObject", "none")
"""Those that are read."""
SINK_FRAMINGS: Final[tuple[Framing, ...]] = ("confluent", "confluentHeader", "none")
"""Those that are written."""
OTHER_RECORDS: Final[tuple[OtherRecords, ...]] = ("bad", "null", "skip")
TYPED_COLUMNS: Final = (
    "keyError",
    "keyBytes",
    "keySchemaId",
    "valueError",
    "valueBytes",
    "valueSchemaId",
)
"""The columns that ``columns`` may name besides where key or value are typed."""


@dataclass(frozen=True, slots=True)
class LatestSchema:
    """The newest version of the subject, when the query is defined."""

    message: str = ""

    def __str__(self) -> str:
        return f"{self.message} latest".lstrip()


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of the subject."""

    version: int
    message: str = ""

    def __str__(self) -> str:
        return f"{self.message} version:{self.version}".lstrip()


@dataclass(frozen=True, slots=True)
class SchemaId:
    """A schema of the registry by its id."""

    id: int
    message: str = ""

    def __str__(self) -> str:
        return f"{self.message} id:{self.id}".lstrip()


@dataclass(frozen=True, slots=True)
class InlineSchema:
    """The schema itself: DDL, JSON Schema, Avro, or what else the format takes."""

    text: str


# ``message`` of the others: of Protobuf, the names of the file's messages, separated by commas.
SchemaChoice: TypeAlias = LatestSchema | SchemaVersion | SchemaId | InlineSchema
LATEST_SCHEMA: Final = LatestSchema()
VARIANT_SCHEMA: Final = InlineSchema("VARIANT")
"""JSON of any kind, as Spark's VARIANT: the reader schema of JSON where none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """The format of keys, or that of values.

    Attributes:
        column: The column of which the bytes are.
        format: How they are written (``valueFormat``).
        schema: The reader schema (``valueSchema``); None for strings, which need none.
        subject: Where versions of the schema are kept in the registry (``valueSubject``, or the
            default); None if none is needed.
        subjects: The subjects of several schemas, of a record each; with an inline schema, the full
            names of its records, or of its messages. Empty: there is one schema.
        others: What becomes of records of other names than the schemas' (``valueOtherRecords``);
            None: names of records are not compared, and there is one schema.
        framing: What stands in front of the payload (``valueFraming``).
        fields: Dotted paths of the fields to decode (``valueFields``); None: all of them.
        json: Options of JSON (``value.json.NAME``), by Spark's names.
    """

    column: Literal["key", "value"]
    format: Format
    schema: SchemaChoice | None = None
    subject: str | None = None
    subjects: tuple[str, ...] = ()
    others: OtherRecords | None = None
    framing: Framing = "none"
    fields: tuple[str, ...] | None = None
    json: FrozenMapping[str, str] = field(default_factory=FrozenMapping)

    @property
    def message(self) -> str:
        """The name of the message of a registry's file.

        "": the one that the subject names, else the first; or there is no such file.
        """
        if self.schema is None or isinstance(self.schema, InlineSchema):
            return ""
        return self.schema.message

    @property
    def messages(self) -> tuple[str, ...]:
        """The names of the messages of a registry's file; empty as :attr:`message` may be."""
        return tuple(self.message.split(",")) if self.message else ()


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """The connection to a schema registry.

    Attributes:
        properties: Of confluent-kafka's client, by its names, ``url`` too. Any may be a secret.
    """

    properties: Properties

    @property
    def url(self) -> str:
        """The addresses, separated by commas; they hold no password."""
        return self.properties["url"]


@dataclass(frozen=True, slots=True)
class BadRecords:
    """The fate of records that cannot be decoded (``badRecords``).

    Attributes:
        policy: An error; a null; or the record is written to a topic, and is no row.
        topic: The topic, of ``deadLetter``.
    """

    policy: Literal["fail", "null", "deadLetter"] = "fail"
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRows:
    """The typed columns of a source.

    Attributes:
        formats: Of keys, of values, or of both; at least one.
        registry: The schema registry; None if there is none.
        bad_records: What becomes of records that cannot be decoded.
    """

    formats: tuple[RowFormat, ...]
    registry: RegistryConfig | None = None
    bad_records: BadRecords = BadRecords()

    def of(self, column: str) -> RowFormat | None:
        """The format of a column; None: it stays bytes."""
        return next((each for each in self.formats if each.column == column), None)
