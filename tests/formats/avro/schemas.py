"""Avro schemas, values of them, and later ones that still read what they wrote."""

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from kshare.formats.avro import schema as parsed
from kshare.formats.avro.types import is_split, members

LOGICAL: list[Any] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
]
PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
}
DEFAULTS: list[tuple[Any, Any]] = [
    ("int", -7),
    ("string", "grün"),
    ("boolean", True),
    ("double", 2.5),
    (["null", "string"], None),
    (["long", "null"], 1 << 40),
    ({"type": "array", "items": "int"}, [1, 2, 3]),
    ({"type": "map", "values": "string"}, {"a": "b"}),
]


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Any:
    """A schema as JSON has it."""
    return _schema(draw, depth, iter(range(1000)).__next__)


@st.composite
def records(draw: st.DrawFn) -> Any:
    """The schema of a record."""
    return _record(draw, 2, iter(range(1000)).__next__)


def _schema(draw: st.DrawFn, depth: int, number: Callable[[], int]) -> Any:
    leaves = ("primitive", "primitive", "logical", "enum", "fixed", "optional")
    kind = draw(st.sampled_from([*leaves, *(["record", "array", "map", "union"] if depth else [])]))
    if kind == "primitive":
        return draw(st.sampled_from(parsed.PRIMITIVES))
    if kind == "logical":
        return draw(st.sampled_from(LOGICAL))
    if kind == "enum":
        return {"type": "enum", "name": f"E{number()}", "symbols": ["RED", "GREEN", "BLUE"]}
    if kind == "fixed":
        made: dict[str, Any] = {
            "type": "fixed",
            "name": f"F{number()}",
            "size": draw(st.integers(1, 20)),
        }
        if draw(st.booleans()):
            made |= {"logicalType": "decimal", "precision": min(2 * made["size"], 38), "scale": 1}
        return made
    if kind == "optional":
        one = draw(st.sampled_from([*parsed.PRIMITIVES[1:], *LOGICAL]))
        return draw(st.permutations(["null", one]))
    if kind == "record":
        return _record(draw, depth - 1, number)
    if kind == "array":
        return {"type": "array", "items": _schema(draw, depth - 1, number)}
    if kind == "map":
        return {"type": "map", "values": _schema(draw, depth - 1, number)}
    # Not bytes with a string: fastavro takes the first of both for either.
    some = ["null", "boolean", "long", "double", draw(st.sampled_from(["string", "bytes"]))]
    chosen = draw(st.lists(st.sampled_from(some), min_size=1, max_size=4, unique=True))
    if draw(st.booleans()):
        chosen.append(_record(draw, depth - 1, number))
    return draw(st.permutations(chosen))


def _record(draw: st.DrawFn, depth: int, number: Callable[[], int]) -> Any:
    fields = [
        {"name": f"f{number()}", "type": _schema(draw, depth, number)}
        for _ in range(draw(st.integers(0, 4)))
    ]
    return {"type": "record", "name": f"R{number()}", "fields": fields}


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Values of a schema without logical types, as fastavro takes them."""
    if isinstance(schema, list):
        return st.one_of(*(_branch(one) for one in schema)) if schema else st.nothing()
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return st.fixed_dictionaries({one["name"]: values(one["type"]) for one in schema["fields"]})
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=3)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    annotated = schema if isinstance(schema, dict) else {}
    if annotated.get("logicalType") == "decimal":
        return _decimals(annotated)
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    if annotated.get("logicalType") in ("timestamp-millis", "local-timestamp-millis"):
        return st.integers(-(2**50), 2**50)
    return _PLAIN[kind]


def _branch(one: Any) -> st.SearchStrategy[Any]:
    name = one if isinstance(one, str) else one.get("name", one["type"])
    return values(one).map(lambda value: (name, value))


def _decimals(schema: dict[str, Any]) -> st.SearchStrategy[bytes]:
    limit, size = 10 ** schema["precision"] - 1, schema.get("size")
    if size is not None:
        return st.integers(-limit, limit).map(lambda n: n.to_bytes(size, "big", signed=True))
    return st.tuples(st.integers(-limit, limit), st.integers(16, 18)).map(
        lambda pair: pair[0].to_bytes(pair[1], "big", signed=True)
    )


_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=12),
    "string": st.text(max_size=12) | st.just("long" * 90),
}


def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """A schema that reads what another wrote."""
    if isinstance(schema, list):
        # fastavro takes the first type that a value can be read as; Java the one that is the same.
        return sorted(draw(st.permutations(schema)), key=lambda one: one == "double")
    if isinstance(schema, str):
        made = draw(st.sampled_from([schema, *PROMOTIONS.get(schema, ())]))
        return ["null", made] if made != "null" and draw(st.booleans()) else made
    if schema["type"] == "record":
        return _evolved_record(draw, schema)
    if schema["type"] == "array":
        return {"type": "array", "items": evolved(draw, schema["items"])}
    if schema["type"] == "map":
        return {"type": "map", "values": evolved(draw, schema["values"])}
    if schema["type"] == "enum":
        symbols = draw(st.permutations([*schema["symbols"], "BLACK"]))
        return {**schema, "symbols": symbols[: draw(st.integers(1, 4))], "default": symbols[0]}
    return schema


def _evolved_record(draw: st.DrawFn, schema: Any) -> Any:
    fields = []
    for one in schema["fields"]:
        match draw(st.sampled_from(["keep", "keep", "drop", "rename"])):
            case "keep":
                fields.append({**one, "type": evolved(draw, one["type"])})
            case "rename":
                fields.append({**one, "name": f"new_{one['name']}", "aliases": [one["name"]]})
    for number, (kind, default) in enumerate(draw(st.lists(st.sampled_from(DEFAULTS), max_size=2))):
        name = f"added{number}_{schema['name']}"
        fields.append({"name": name, "type": kind, "default": default})
    return {**schema, "fields": draw(st.permutations(fields))}


def without_logical(schema: Any) -> Any:
    """The same schema, whose values fastavro takes and gives as they are on the wire."""
    if isinstance(schema, list):
        return [without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {
            key: [{**f, "type": without_logical(f["type"])} for f in one]
            if key == "fields"
            else (without_logical(one) if key in ("items", "values") else one)
            for key, one in schema.items()
            if key not in ("logicalType", "precision", "scale")
        }
    return schema


def written(schema: Any, value: Any) -> bytes:
    """A record as fastavro writes it."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(without_logical(schema)), value)
    return file.getvalue()


def read(data: bytes, writer: Any, reader: Any) -> Any:
    """What fastavro reads of a record."""
    own, wanted = (fastavro.parse_schema(without_logical(one)) for one in (writer, reader))
    return fastavro.schemaless_reader(io.BytesIO(data), own, wanted)


def shaped(value: Any, schema: parsed.Schema, kind: pa.DataType) -> Any:
    """A value of fastavro's as :func:`tests.support.plain_rows.found` gives that of an array."""
    if isinstance(schema, parsed.Union):
        return _shaped_union(value, schema, kind)
    if isinstance(schema, parsed.Record):
        types = {one.name: one.type for one in schema.fields}
        return {one.name: shaped(value[one.name], types[one.name], one.type) for one in kind}
    if isinstance(schema, parsed.Array):
        return [shaped(one, schema.items, kind.value_type) for one in value]
    if isinstance(schema, parsed.Map):
        return [(key, shaped(one, schema.values, kind.item_type)) for key, one in value.items()]
    if pa.types.is_decimal(kind):
        return int.from_bytes(value, "big", signed=True)
    if pa.types.is_timestamp(kind):
        logical = getattr(schema, "logical", None)
        return value * 1000 if logical is not None and logical.name.endswith("millis") else value
    if kind == pa.float32():
        return pa.scalar(float(value), pa.float32()).as_py()
    return float(value) if kind == pa.float64() else value


def _shaped_union(value: Any, schema: parsed.Union, kind: pa.DataType) -> Any:
    if value is None:
        return None
    kinds = members(schema)
    if not is_split(schema):
        return shaped(value, kinds[0], kind)
    (number,) = [n for n, one in enumerate(kinds) if _is_of(value, one)]
    made: dict[str, Any] = dict.fromkeys(kind.names)
    name = f"member{number}"
    if name in made:
        made[name] = shaped(value, kinds[number], kind.field(name).type)
    return made


def _is_of(value: Any, schema: parsed.Schema) -> bool:
    python: dict[str, type] = {
        "boolean": bool,
        "long": int,
        "double": float,
        "string": str,
        "bytes": bytes,
        "record": dict,
    }
    return type(value) is python[schema.kind]


def text(schema: Any) -> str:
    """A schema as a registry has it."""
    return json.dumps(schema)
