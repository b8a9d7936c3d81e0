"""JSON Schema: the types of its values, and what no column can have."""

import json
from typing import Any

import pyarrow as pa
import pytest

from kshare.formats.json_schema import is_json_schema, json_schema_type


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string", "format": "date-time"}, pa.string()),
        ({"type": ["null", "integer"], "minimum": 3}, pa.int64()),
        ({"type": "integer", "connect.type": "int32"}, pa.int32()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"const": 7}, pa.int64()),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, pa.string()),
        (
            {"oneOf": [{"type": "null", "title": "Not included"}, {"type": "string"}]},
            pa.string(),
        ),
        ({"anyOf": [{"type": ["null"], "default": None}, {"type": "string"}]}, pa.string()),
        (
            {**of(x={"type": "string"}), "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
            pa.struct([("x", pa.string())]),
        ),
        (
            {"properties": {"x": {"type": "string"}}, "oneOf": [{"required": ["x"]}]},
            pa.struct([("x", pa.string())]),
        ),
        (
            {
                **of(x={"type": "string"}),
                "allOf": [{"if": {"required": ["x"]}, "then": {"required": ["y"]}}],
            },
            pa.struct([("x", pa.string())]),
        ),
        (
            {"type": "object", "additionalProperties": False, "allOf": [of(x={"type": "string"})]},
            pa.struct([("x", pa.string())]),
        ),
        ({"type": "string", "anyOf": [{"format": "date"}, {"format": "time"}]}, pa.string()),
        ({"anyOf": [of(x={"type": "string"})]}, pa.struct([("x", pa.string())])),
        (
            {"type": "array", "items": of(x={"type": "string"})},
            pa.list_(pa.field("element", pa.struct([("x", pa.string())]))),
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            pa.map_(pa.string(), pa.int64()),
        ),
        ({"properties": {"y": {"type": "string"}}}, pa.struct([("y", pa.string())])),
    ],
)
def test_types(schema: Any, kind: pa.DataType) -> None:
    assert json_schema_type(json.dumps(of(a=schema))) == pa.struct([("a", kind)])


def test_references_within_the_document() -> None:
    item, _refers = of(sku={"type": "string"}), {"$ref": "#/$defs/It~1em"}
    schema = {
        **of(
            a={"$ref": "#/$defs/It~1em"}, b={"type": "array", "items": {"$ref": "#/$defs/It~1em"}}
        ),
        "$defs": {"It/em": item},
    }
    kind = pa.struct([("sku", pa.string())])
    assert json_schema_type(json.dumps(schema)) == pa.struct(
        [("a", kind), ("b", pa.list_(pa.field("element", kind)))]
    )


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (of(a={"type": ["string", "integer"]}), "a has several types, or none: string, integer"),
        (of(a={"type": "null"}), "a has several types, or none: null alone"),
        (of(a={}), "a has type 'none', which is not known"),
        (of(a={"type": "object"}), "a is an object that says no properties"),
        (of(a={"oneOf": [{"type": "string"}, {"type": "integer"}]}), "a has 2 types besides null"),
        (of(a=of(b={"$ref": "other.json"})), "a.b refers to 'other.json': another document"),
        (of(a={"$ref": "#/nowhere"}), "a refers to #/nowhere, which is not there"),
        (of(a={"$ref": "#/properties/a"}), "a is recursive, by #/properties/a"),
        (of(a=True), "a says no type that can be read"),
        ({"type": "array", "items": of(a={"type": "string"})}, "describes records of type list"),
    ],
)
def test_what_no_column_can_have(schema: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"^{wrong}"):
        json_schema_type(json.dumps(schema))


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("a INT", False),
        ('{"type": "struct", "fields": []}', False),
        ("{", False),
        ('{"type": "object"}', True),
        ('{"$schema": "http://json-schema.org/draft-07/schema#"}', True),
    ],
)
def test_which_texts_are_json_schemas(text: str, is_one: bool) -> None:
    assert is_json_schema(text) == is_one
