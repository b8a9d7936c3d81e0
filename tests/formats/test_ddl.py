"""Schemas as text, and the Arrow types that they mean."""

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from kshare.errors import OptionsError
from kshare.formats.ddl import parse_schema

SIMPLE = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "byte": pa.int8(),
    "SMALLINT": pa.int16(),
    "short": pa.int16(),
    "INT": pa.int32(),
    "integer": pa.int32(),
    "BIGINT": pa.int64(),
    "long": pa.int64(),
    "FLOAT": pa.float32(),
    "real": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "DECIMAL": pa.decimal128(10, 0),
    "dec(5)": pa.decimal128(5, 0),
    "NUMERIC( 10 , 2 )": pa.decimal128(10, 2),
}


@pytest.mark.parametrize(("text", "kind"), SIMPLE.items())
def test_each_type(text: str, kind: pa.DataType) -> None:
    assert parse_schema(f"a {text}") == pa.struct([("a", kind)])
    assert parse_schema(f"STRUCT<`a b`: {text} NOT NULL COMMENT 'it''s'>".replace("''", "\\'")) == (
        pa.struct([("a b", kind)])
    )


def test_types_in_types() -> None:
    text = """user STRING, items ARRAY<STRUCT<sku: STRING, n: INT COMMENT "n">>,
              m MAP<STRING, ARRAY<INT>>, `back``tick` INT"""
    item = pa.struct([("sku", pa.string()), ("n", pa.int32())])
    ints = pa.list_(pa.field("element", pa.int32()))
    assert parse_schema(text) == pa.struct(
        [
            ("user", pa.string()),
            ("items", pa.list_(pa.field("element", item))),
            ("m", pa.map_(pa.string(), pa.field("value", ints))),
            ("back`tick", pa.int32()),
        ]
    )


def ddl(depth: int = 2) -> st.SearchStrategy[str]:
    leaf = st.sampled_from([*SIMPLE])
    if depth == 0:
        return leaf
    inner = ddl(depth - 1)
    return st.one_of(
        leaf,
        inner.map(lambda text: f"ARRAY<{text}>"),
        inner.map(lambda text: f"MAP<STRING, {text}>"),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda texts: f"STRUCT<{', '.join(f'f{i}: {text}' for i, text in enumerate(texts))}>"
        ),
    )


@given(st.lists(ddl(), min_size=1, max_size=3))
def test_the_json_of_a_schema_is_read_as_its_ddl(texts: list[str]) -> None:
    found = parse_schema(", ".join(f"c{i} {text}" for i, text in enumerate(texts)))
    assert parse_schema(json.dumps(as_json(found))) == found
    schema = StructType.fromJson(as_json(found))
    assert parse_schema(schema.json()) == found


NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def as_json(kind: pa.DataType) -> Any:
    """A type as ``StructType.json()`` has it."""
    if pa.types.is_struct(kind):
        fields = [
            {"name": each.name, "type": as_json(each.type), "nullable": True, "metadata": {}}
            for each in kind
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_map(kind):
        value = as_json(kind.item_type)
        return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": as_json(kind.value_type), "containsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return NAMES[kind]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it ends too early; wanted a field's name"),
        ("a", "it ends too early; wanted a type"),
        ("a INT,", "it ends too early; wanted a field's name"),
        ("a INT b INT", "at character 7: found 'b'; wanted the end, or a comma and another field"),
        ("a WHAT", "at character 3: found 'WHAT'; wanted a type"),
        ("a INT, a STRING", "the field 'a' is there twice"),
        ("a ARRAY<INT", "it ends too early; wanted '>'"),
        ("a ARRAY INT", "at character 9: found 'INT'; wanted '<'"),
        ("a MAP<INT, INT>", "at character 3: a map whose keys are no strings"),
        ("a DECIMAL(40,2)", "at character 3: DECIMAL(40,2); wanted a precision from 1 to 38"),
        ("a DECIMAL(4,5)", "DECIMAL(4,5); wanted"),
        ("a DECIMAL(x)", "found 'x'; wanted a number"),
        ("a STRUCT<>", "found '>'; wanted a field's name"),
        ("a INT COMMENT b", "found 'b'; wanted a comment in quotes"),
        ("a VOID", "found 'VOID'; wanted a type"),
        ("'a' INT", "at character 1: found \"'a'\"; wanted a field's name"),
        ("a " + "ARRAY<" * 100, "more than 64 deep"),
        ("{", "begins as JSON, but is none"),
        ('{"type":"array","elementType":"long"}', "is no struct"),
        ('{"type":"struct","fields":[]}', "a struct without fields"),
        ('{"type":"struct","fields":[{"name":"a"}]}', "a field without a name and a type"),
        (
            '{"type":"struct","fields":[{"name":"a","type":{"type":"array","elementType":"x"}}]}',
            'at a[]: found "x"; wanted a type of Spark\'s',
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(OptionsError) as error:
        parse_schema(text, "keySchema")
    assert "keySchema: " in str(error.value)
    assert said in str(error.value)


@given(st.text(alphabet="ab INT<>(),:`'\"{}ARYSUCMP", max_size=40))
def test_any_text_is_a_schema_or_an_error(text: str) -> None:
    with suppress(OptionsError):
        assert pa.types.is_struct(parse_schema(text))
