"""Spark's schemas as text, DDL or the JSON of ``StructType.json()``, and the Arrow types of these.

What a column may hold is read, whether it may be null is not: all is nullable, as in what Spark's
``from_json`` gives. Types that no JSON text can fill (intervals, ``CHAR``, ``VOID``) are refused.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from kshare.errors import OptionsError

__all__ = ["parse_schema"]

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_MAX_PRECISION: Final = 38
_MAX_DEPTH: Final = 64  # of types in types: a text of brackets alone is an error, not a crash

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<mark>[<>(),:])|(?P<other>\S))",
    re.DOTALL,
)


def parse_schema(text: str, option: str = "valueSchema") -> pa.StructType:
    """Read a schema.

    Args:
        text: DDL, such as ``user STRING, items ARRAY<STRUCT<sku: STRING, n: INT>>``, with or
            without ``STRUCT<...>`` around it; or what ``StructType.json()`` writes.
        option: The option that has it, for errors.

    Raises:
        OptionsError: It is neither, or has a type that cannot be read; the place is named.
    """
    try:
        if text.lstrip().startswith("{"):
            return _of_json(text)
        return _Ddl(text).schema()
    except _SchemaError as error:
        raise OptionsError([f"{option}: {error}"]) from None


class _SchemaError(ValueError):
    """The rest of a sentence about the option."""


def _struct(fields: Iterable[tuple[str, pa.DataType]], place: str) -> pa.StructType:
    found = list(fields)
    names = [name for name, _ in found]
    if not found:
        raise _SchemaError(f"{place}a struct without fields; wanted one field at least")
    for name in names:
        if names.count(name) > 1:
            raise _SchemaError(f"{place}the field {name!r} is there twice; wanted it once")
    return pa.struct(found)


def _decimal(precision: int, scale: int, place: str) -> pa.DataType:
    if not 1 <= precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        raise _SchemaError(
            f"{place}DECIMAL({precision},{scale}); wanted a precision from 1 to {_MAX_PRECISION}, "
            "and a scale from 0 to the precision"
        )
    return pa.decimal128(precision, scale)


def _map(key: pa.DataType, value: pa.DataType, place: str) -> pa.DataType:
    if not pa.types.is_string(key):
        raise _SchemaError(f"{place}a map whose keys are no strings; JSON has none")
    return pa.map_(key, pa.field("value", value))


def _list(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))


class _Ddl:
    """The text of a schema, and where its reader stands."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup]
        self._at = 0
        self._depth = 0

    def schema(self) -> pa.StructType:
        """Read the whole text."""
        if self._peek().lower() == "struct" and self._peek(1) == "<":
            found = self._type()
        else:
            found = _struct(self._fields(), self._place())
        if self._at < len(self._tokens):
            raise self._fault("the end, or a comma and another field")
        return found

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at].group().strip() if at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _place(self) -> str:
        at = self._at
        if at >= len(self._tokens):
            return "at its end: "
        match = self._tokens[at]
        return f"at character {match.start(match.lastgroup or 0) + 1}: "

    def _fault(self, wanted: str) -> _SchemaError:
        found = self._peek()
        return _SchemaError(
            f"{self._place()}found {found!r}; wanted {wanted}"
            if found
            else f"it ends too early; wanted {wanted}"
        )

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            raise self._fault(repr(mark))
        self._at += 1

    def _takes(self, *words: str) -> bool:
        """Pass over these words, if they come next."""
        if all(self._peek(ahead).lower() == word for ahead, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def _fields(self) -> Iterable[tuple[str, pa.DataType]]:
        while True:
            name = self._name()
            if self._peek() == ":":
                self._at += 1
            yield name, self._type()
            self._notes()
            if self._peek() != ",":
                return
            self._at += 1

    def _name(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or token.lastgroup not in {"quoted", "word"}:
            raise self._fault("a field's name")
        name = self._next()
        return name[1:-1].replace("``", "`") if token.lastgroup == "quoted" else name

    def _notes(self) -> None:
        """Pass over what is said of a field besides its type."""
        while True:
            if self._takes("comment"):
                token = self._tokens[self._at] if self._at < len(self._tokens) else None
                if token is None or token.lastgroup != "text":
                    raise self._fault("a comment in quotes")
                self._at += 1
            elif self._takes("collate"):
                self._name()
            elif not self._takes("not", "null"):
                return

    def _type(self) -> pa.DataType:
        place, word = self._place(), self._peek().lower()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _SchemaError(f"{place}types in types, more than {_MAX_DEPTH} deep")
        try:
            return self._type_of(word, place)
        finally:
            self._depth -= 1

    def _type_of(self, word: str, place: str) -> pa.DataType:
        if word in _DECIMALS:
            self._at += 1
            return self._decimal(place)
        if word in _SIMPLE:
            self._at += 1
            return _SIMPLE[word]
        if word not in {"array", "map", "struct"}:
            raise self._fault("a type, such as STRING, INT, ARRAY<...>, MAP<...> or STRUCT<...>")
        self._at += 1
        self._expect("<")
        if word == "array":
            found = _list(self._type())
        elif word == "map":
            key = self._type()
            self._expect(",")
            found = _map(key, self._type(), place)
        else:
            found = _struct(self._fields(), place)
        self._expect(">")
        return found

    def _decimal(self, place: str) -> pa.DataType:
        if self._peek() != "(":
            return _decimal(10, 0, place)
        self._at += 1
        precision, scale = self._number(), 0
        if self._peek() == ",":
            self._at += 1
            scale = self._number()
        self._expect(")")
        return _decimal(precision, scale, place)

    def _number(self) -> int:
        # Not ``isdigit``: int() refuses some of what that takes.
        if not re.fullmatch("[0-9]{1,4}", self._peek()):
            raise self._fault("a number")
        return int(self._next())


def _of_json(text: str) -> pa.StructType:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _SchemaError(f"begins as JSON, but is none: {error}") from None
    found = _json_type(document, "", 0)
    if not pa.types.is_struct(found):
        raise _SchemaError("is no struct; wanted what StructType.json() writes")
    return found


def _json_type(document: Any, path: str, depth: int) -> pa.DataType:
    """Return the type of a part of ``StructType.json()``; ``path`` says which."""
    place = f"at {path}: " if path else ""
    if depth > _MAX_DEPTH:
        raise _SchemaError(f"{place}types in types, more than {_MAX_DEPTH} deep")
    match document:
        case str(name) if name in _SIMPLE:
            return _SIMPLE[name]
        case "decimal":
            return _decimal(10, 0, place)
        case str(name) if found := re.fullmatch(r"decimal\((\d{1,4}), ?(\d{1,4})\)", name):
            return _decimal(int(found[1]), int(found[2]), place)
        case {"type": "struct", "fields": list(fields)}:
            return _struct(_json_fields(fields, path, place, depth), place)
        case {"type": "array", "elementType": element}:
            return _list(_json_type(element, f"{path}[]", depth + 1))
        case {"type": "map", "keyType": key, "valueType": value}:
            key_type = _json_type(key, f"{path}{{key}}", depth + 1)
            return _map(key_type, _json_type(value, f"{path}{{value}}", depth + 1), place)
    raise _SchemaError(f"{place}found {json.dumps(document)[:80]}; wanted a type of Spark's")


def _json_fields(
    fields: list[Any], path: str, place: str, depth: int
) -> Iterable[tuple[str, pa.DataType]]:
    for field in fields:
        match field:
            case {"name": str(name), "type": kind}:
                yield name, _json_type(kind, f"{path}.{name}" if path else name, depth + 1)
            case _:
                raise _SchemaError(f"{place}a field without a name and a type")
