"""The tables of docs/typed-rows-types.md, and kshare's type of what a cell says."""

import json
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from kshare.errors import OptionsError
from kshare.formats.avro.decoder import AvroDecoder
from kshare.formats.ddl import parse_schema
from kshare.formats.json.decoder import JsonDecoder
from kshare.formats.json_schema import json_schema_type
from kshare.formats.protobuf.files import registry_set
from kshare.formats.protobuf.schema import arrow_type, read_schema
from tests.support.documents import ROOT

__all__ = ["REFUSED", "avro_schema", "own_type", "table"]

REFUSED: Final = "refused"
_PAGE: Final = (ROOT / "docs/typed-rows-types.md").read_text()
_FILE: Final = """
    syntax = "proto3";
    import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    import "google/protobuf/wrappers.proto"; import "google/protobuf/any.proto";
    import "google/protobuf/field_mask.proto"; import "google/protobuf/empty.proto";
    import "google/protobuf/struct.proto";
    message Row { int32 before = 1; %s v = 2; }
    message Line { string sku = 1; }
    enum Kind { NONE = 0; }
"""


def table(first: str) -> list[list[str]]:
    """The rows of the table whose header begins with a cell, without marks of code."""
    lines = _PAGE[_PAGE.index(f"\n| {first} |") + 1 :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" |")] for line in lines]


def own_type(kind: str, written: str) -> str:
    """kshare's type of a field, as Spark names it; or ``refused``, or ``left out``.

    Args:
        kind: The first cell of the table's header.
        written: What the first cell of a row says.
    """
    try:
        fields = _FIELDS[kind](written)
    except (OptionsError, ValueError):
        return REFUSED
    index = fields.get_field_index("v")
    if index < 0:
        return "left out"
    found = from_arrow_type(fields.field(index).type, prefer_timestamp_ntz=True)
    return found.simpleString()


def avro_schema(written: str) -> str:
    """A record ``Row`` with a field of a type."""
    fields = [{"name": "v", "type": json.loads(written)}]
    return json.dumps({"type": "record", "name": "Row", "fields": fields})


def _of_ddl(written: str) -> pa.StructType:
    return JsonDecoder(parse_schema(f"v {written}", "valueSchema")).type


def _of_json_schema(written: str) -> pa.StructType:
    schema = {"type": "object", "properties": {"v": json.loads(written)}}
    return json_schema_type(json.dumps(schema))


def _of_avro(written: str) -> pa.StructType:
    kind: pa.StructType = AvroDecoder(avro_schema(written)).type
    return kind


def _of_protobuf(written: str) -> pa.StructType:
    kind: pa.StructType = arrow_type(read_schema(registry_set(_FILE % written, {}, "Row")))
    return kind


_FIELDS: Final[dict[str, Callable[[str], pa.StructType]]] = {
    "DDL": _of_ddl,
    "JSON Schema": _of_json_schema,
    "Avro": _of_avro,
    "Protobuf": _of_protobuf,
}
