"""Avro schemas, parsed: names, aliases and references resolved.

https://avro.apache.org/docs/1.12.0/specification/. Everything that says what a schema may be is
here. A logical type that its schema cannot have is ignored, as the specification wants it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum as PythonEnum
from typing import Any, Final, TypeAlias

__all__ = [
    "NO_DEFAULT",
    "Array",
    "Enum",
    "Field",
    "Fixed",
    "Logical",
    "Map",
    "Primitive",
    "Record",
    "Schema",
    "Union",
    "described",
    "parse",
    "short_name",
]

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_MOST_DEEP: Final = 100  # of schemas in schemas: deeper ones are nobody's, and Python's stack ends

_LOGICAL: Final = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "decimal": ("bytes", "fixed"),
}
"""The logical types, and what each annotates."""


class _NoDefault(PythonEnum):
    NO_DEFAULT = "no default"


NO_DEFAULT: Final = _NoDefault.NO_DEFAULT
"""In place of a default, which may be None, too."""


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type.

    Attributes:
        name: Its name.
        precision: The digits of a decimal; else 0.
        scale: Those behind the point.
    """

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type, such as ``int``."""

    kind: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes of a fixed number."""

    name: str
    aliases: frozenset[str]
    size: int
    logical: Logical | None = None
    kind: str = "fixed"


@dataclass(frozen=True, slots=True)
class Enum:
    """One of some symbols; ``default`` is for a reader that does not know the writer's."""

    name: str
    aliases: frozenset[str]
    symbols: tuple[str, ...]
    default: str | None = None
    kind: str = "enum"


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items."""

    items: "Schema"
    kind: str = "array"


@dataclass(frozen=True, slots=True)
class Map:
    """Strings with a value each."""

    values: "Schema"
    kind: str = "map"


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types."""

    branches: tuple["Schema", ...]
    kind: str = "union"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record; ``default`` is JSON, or NO_DEFAULT."""

    name: str
    type: "Schema"
    aliases: frozenset[str]
    default: Any


@dataclass(eq=False, slots=True)
class Record:
    """A record. It may have itself among its fields, so these are filled in last."""

    name: str
    aliases: frozenset[str]
    fields: tuple[Field, ...] = ()
    kind: str = field(default="record")


Named: TypeAlias = Fixed | Enum | Record
Schema: TypeAlias = Primitive | Fixed | Enum | Array | Map | Union | Record


def short_name(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition(".")[2]


def described(schema: Schema) -> str:
    """Return what to call a schema in a sentence, such as ``record Order``."""
    if isinstance(schema, Fixed | Enum | Record):
        return f"{schema.kind} {short_name(schema.name)}"
    logical = schema.logical if isinstance(schema, Primitive) else None
    return f"{schema.kind} ({logical.name})" if logical else schema.kind


def parse(text: str) -> Schema:
    """Parse a schema.

    Args:
        text: JSON; or the bare name of a primitive type.

    Raises:
        ValueError: It is no JSON, or no schema; the text says where.
    """
    if text.strip() in PRIMITIVES:
        return Primitive(text.strip())
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the Avro schema is no JSON: {error}") from None
    return _Parser().parse(plain, "", 0)


class _Parser:
    """One schema's names, while it is parsed."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}

    def parse(self, plain: Any, namespace: str, depth: int) -> Schema:
        """Parse a schema.

        Args:
            plain: The JSON.
            namespace: That of the schema around it.
            depth: How many schemas are around it.
        """
        if depth > _MOST_DEEP:
            raise ValueError(f"the Avro schema is nested more than {_MOST_DEEP} deep")
        if isinstance(plain, str):
            return self._reference(plain, namespace)
        if isinstance(plain, list):
            return self._union(plain, namespace, depth)
        if not isinstance(plain, Mapping):
            wanted = "an Avro schema is a name, a list or an object"
            raise ValueError(f"{wanted}; got {_short(plain)}")  # noqa: TRY004 - of JSON
        return self._object(plain, namespace, depth)

    def _object(self, plain: Mapping[str, Any], namespace: str, depth: int) -> Schema:
        kind = plain.get("type")
        if isinstance(kind, Mapping | list):
            return self.parse(kind, namespace, depth + 1)
        if kind == "array":
            return Array(self.parse(_wanted(plain, "items"), namespace, depth + 1))
        if kind == "map":
            return Map(self.parse(_wanted(plain, "values"), namespace, depth + 1))
        if kind in ("record", "error"):
            return self._record(plain, namespace, depth)
        return self._leaf(plain, kind, namespace)

    def _leaf(self, plain: Mapping[str, Any], kind: object, namespace: str) -> Schema:
        if kind == "enum":
            return self._enum(plain, namespace)
        if kind == "fixed":
            return self._fixed(plain, namespace)
        if not isinstance(kind, str):
            raise ValueError(f"an Avro schema has no type: {_short(plain)}")  # noqa: TRY004 - of JSON
        if kind in PRIMITIVES:
            return Primitive(kind, _logical(plain, kind, None))
        return self._reference(kind, namespace)

    def _reference(self, name: str, namespace: str) -> Schema:
        if name in PRIMITIVES:
            return Primitive(name)
        for full in (_full(name, namespace), name):
            if full in self._named:
                return self._named[full]
        raise ValueError(
            f"the Avro schema names the type {name!r}, which it does not define before"
        )

    def _union(self, plain: Sequence[Any], namespace: str, depth: int) -> Union:
        branches = tuple(self.parse(one, namespace, depth + 1) for one in plain)
        seen = set()
        for one in branches:
            if isinstance(one, Union):
                raise ValueError("the Avro schema has a union in a union")  # noqa: TRY004 - of JSON
            name = one.name if isinstance(one, Fixed | Enum | Record) else one.kind
            if name in seen:
                raise ValueError(f"a union in the Avro schema has the type {name} twice")
            seen.add(name)
        return Union(branches)

    def _define(self, schema: Named) -> None:
        if schema.name in self._named:
            raise ValueError(f"the Avro schema defines {schema.name!r} twice")
        self._named[schema.name] = schema

    def _record(self, plain: Mapping[str, Any], namespace: str, depth: int) -> Record:
        name, inner, aliases = _names(plain, namespace)
        record = Record(name, aliases)
        self._define(record)
        listed = _wanted(plain, "fields")
        if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
            raise ValueError(f"the fields of record {name} are not a list of objects")
        fields = []
        for one in listed:
            kind = self.parse(_wanted(one, "type"), inner, depth + 1)
            names = frozenset(map(str, one.get("aliases", ())))
            default = one.get("default", NO_DEFAULT)
            fields.append(Field(str(_wanted(one, "name")), kind, names, default))
        if len({one.name for one in fields}) < len(fields):
            raise ValueError(f"record {name} has two fields of one name")
        record.fields = tuple(fields)
        return record

    def _enum(self, plain: Mapping[str, Any], namespace: str) -> Enum:
        name, _, aliases = _names(plain, namespace)
        symbols, default = _wanted(plain, "symbols"), plain.get("default")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise ValueError(f"the symbols of enum {name} are not a list of strings")
        if default is not None and default not in symbols:
            raise ValueError(f"the default of enum {name} is none of its symbols: {default!r}")
        enum = Enum(name, aliases, tuple(symbols), default)
        self._define(enum)
        return enum

    def _fixed(self, plain: Mapping[str, Any], namespace: str) -> Fixed:
        name, _, aliases = _names(plain, namespace)
        size = _wanted(plain, "size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"the size of fixed {name} is no count of bytes: {_short(size)}")
        fixed = Fixed(name, aliases, size, _logical(plain, "fixed", size))
        self._define(fixed)
        return fixed


def _wanted(plain: Mapping[str, Any], key: str) -> Any:
    if key not in plain:
        raise ValueError(f"an Avro schema lacks {key!r}: {_short(plain)}")
    return plain[key]


def _short(plain: Any) -> str:
    text = json.dumps(plain, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _names(plain: Mapping[str, Any], namespace: str) -> tuple[str, str, frozenset[str]]:
    """The full name that a schema defines, its namespace, and its full aliases."""
    name = _wanted(plain, "name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a name in the Avro schema is no text: {_short(name)}")
    full = _full(name, str(plain.get("namespace", namespace)))
    inner = full.rpartition(".")[0]
    return full, inner, frozenset(_full(str(one), inner) for one in plain.get("aliases", ()))


def _logical(plain: Mapping[str, Any], kind: str, size: int | None) -> Logical | None:
    """The logical type of a schema; None where there is none, or not on such a schema."""
    name = plain.get("logicalType")
    if not isinstance(name, str) or kind not in _LOGICAL.get(name, ()):
        return None
    if name == "decimal":
        return _decimal(plain, size)
    sizes = {"uuid": 16, "duration": 12}
    return None if size is not None and size != sizes[name] else Logical(name)


def _decimal(plain: Mapping[str, Any], size: int | None) -> Logical | None:
    precision, scale = plain.get("precision", 0), plain.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return None
    if precision == 0 or (size is not None and precision > _digits(size)):
        return None
    return Logical("decimal", precision, scale)


def _digits(size: int) -> int:
    """The decimal digits that some bytes, with a sign, hold in any case."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1 if size else 0
