"""VARIANT: its type in Arrow, and payloads behind a framing."""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import VariantType, VariantVal

from kshare.formats.schemas import found_schemas
from kshare.formats.typed_columns import RowTyper
from kshare.formats.variant_type import VARIANT
from kshare.options import KafkaConfig
from kshare.options.typed_rows import VARIANT_SCHEMA, BadRecords, RowFormat, TypedRows

KAFKA = KafkaConfig(bootstrap_servers=())


def test_spark_takes_the_type_for_a_variant() -> None:
    assert from_arrow_type(VARIANT) == VariantType()


def test_payloads_behind_ids_are_read_without_the_registry() -> None:
    form = RowFormat(column="value", format="json", schema=VARIANT_SCHEMA, framing="confluent")
    rows = TypedRows(formats=(form,), bad_records=BadRecords("null"))
    schemas = found_schemas(rows, KAFKA, "token")
    assert schemas.pins == {"value": "json VARIANT"}
    names = ("value", "valueError", "valueSchemaId")
    typer = RowTyper(schemas, KAFKA, names, place=("t", 0))
    values = [b'\0\0\0\0\x07{"a":[1]}', b"\0\0\0\0\x08{", None, b'{"a":1}']
    raw = pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "offset": pa.array(range(4), pa.int64())}
    )
    found = typer.typed(raw)
    rows_found = found.column("value").to_pylist()
    assert VariantVal(**rows_found[0]).toPython() == {"a": [1]}
    assert rows_found[1:] == [None] * 3
    errors = found.column("valueError").to_pylist()
    assert errors[:3] == [None, "value is cut short", None]
    assert errors[3] is not None
    assert found.column("valueSchemaId").to_pylist()[:2] == [7, 8]
