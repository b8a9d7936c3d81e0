"""JSON Schema, as registries keep it for JSON, and the Arrow types that its values have.

What JSON Schema says beyond types (ranges, patterns, what is required) is not looked at: all is
nullable. Refused is what no column can have: several types besides null, recursion, references to
other documents.
"""

from typing import Any, Final

import pyarrow as pa

from kshare.core.bounded_json import read_object

__all__ = ["is_json_schema", "json_schema_title", "json_schema_type"]

_SIMPLE: Final = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_CONNECT: Final = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "float32": pa.float32(),
}
"""Narrower types, which Kafka Connect says as ``connect.type``."""
_MARKS: Final = {"$schema", "$defs", "definitions", "properties", "oneOf", "anyOf", "allOf", "$ref"}
_DEPTH_MAX: Final = 64


def is_json_schema(text: str) -> bool:
    """True if a text is a JSON Schema, rather than DDL or what ``StructType.json()`` writes."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        found = read_object(text)
    except ValueError:
        return False
    return not _MARKS.isdisjoint(found) or found.get("type") == "object"


def json_schema_title(text: str) -> str:
    """The title of a JSON Schema; empty if it has none, or is none."""
    try:
        title = read_object(text).get("title")
    except ValueError:
        return ""
    return title if isinstance(title, str) else ""


def json_schema_type(text: str) -> pa.StructType:
    """The type of the records that a JSON Schema describes.

    Raises:
        ValueError: It describes no object, or has a type that no column can have; the text names
            the place.
    """
    root = read_object(text)
    kind = _Reader(root).kind(root, "", 0)
    if not pa.types.is_struct(kind):
        raise ValueError(f"describes records of type {kind}, where an object is wanted")
    return kind


class _Reader:
    """Reads the types of one document.

    Args:
        root: The document.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._within: list[str] = []  # references that are being read

    def kind(self, schema: Any, path: str, depth: int) -> pa.DataType:
        """The type of a schema.

        Args:
            schema: The schema.
            path: Where it is, for errors.
            depth: In how many others it is.
        """
        if not isinstance(schema, dict) or depth > _DEPTH_MAX:
            raise ValueError(f"{path or 'the schema'} says no type that can be read")
        if "$ref" in schema:
            return self._referred(schema["$ref"], path, depth)
        named = schema.get("type")
        kinds = named if isinstance(named, list) else [named]
        kinds = [each for each in kinds if each != "null"]
        if not _says_inner(schema) and all(each in (None, "object", "array") for each in kinds):
            # Beside a type of its own, they only say what else holds, such as what is required.
            for name in ("oneOf", "anyOf", "allOf"):
                if name in schema:
                    return self._one_of(schema[name], path, depth)
        if kinds == [None]:
            kinds = [_of_values(schema)]
        if len(kinds) != 1:
            listed = ", ".join(map(str, kinds)) or "null alone"
            raise ValueError(f"{path or 'the schema'} has several types, or none: {listed}")
        kind = kinds[0]
        if kind == "object":
            return self._object(schema, path, depth)
        if kind == "array":
            return pa.list_(pa.field("element", self.kind(schema.get("items"), path, depth + 1)))
        if kind not in _SIMPLE:
            raise ValueError(f"{path or 'the schema'} has type {kind!r}, which is not known")
        return _CONNECT.get(schema.get("connect.type", ""), _SIMPLE[kind])

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> pa.DataType:
        properties = schema.get("properties")
        if properties:
            return pa.struct(
                [
                    (name, self.kind(each, f"{path}.{name}" if path else name, depth + 1))
                    for name, each in properties.items()
                ]
            )
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            return pa.map_(pa.string(), self.kind(others, path, depth + 1))
        raise ValueError(f"{path or 'the schema'} is an object that says no properties")

    def _one_of(self, schemas: Any, path: str, depth: int) -> pa.DataType:
        others = [each for each in schemas if not _is_null(each)]
        if len(others) != 1:
            raise ValueError(f"{path or 'the schema'} has {len(others)} types besides null")
        return self.kind(others[0], path, depth + 1)

    def _referred(self, place: Any, path: str, depth: int) -> pa.DataType:
        if not isinstance(place, str) or not place.startswith("#/"):
            raise ValueError(f"{path or 'the schema'} refers to {place!r}: another document")
        if place in self._within:
            raise ValueError(f"{path or 'the schema'} is recursive, by {place}")
        found: Any = self._root
        for name in place[2:].split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise ValueError(f"{path or 'the schema'} refers to {place}, which is not there")
            found = found[key]
        self._within.append(place)
        try:
            return self.kind(found, path, depth + 1)
        finally:
            self._within.pop()


def _says_inner(schema: dict[str, Any]) -> bool:
    """True if a schema says itself what is in its values."""
    is_map = isinstance(schema.get("additionalProperties"), dict)
    return is_map or "properties" in schema or "items" in schema


def _is_null(schema: Any) -> bool:
    """True if it is the schema of null, which may have a title and more."""
    return isinstance(schema, dict) and schema.get("type") in ("null", ["null"])


def _of_values(schema: dict[str, Any]) -> str:
    """The type of a schema that only lists its values, or its properties."""
    if "properties" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {type(each) for each in values if each is not None}
    by_kind = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return by_kind[kinds.pop()] if len(kinds) == 1 and kinds <= by_kind.keys() else "none"
