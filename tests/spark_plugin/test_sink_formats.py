"""A sink's formats on the driver: faults of schemas come with those of options."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from kshare.errors import OptionsError
from kshare.testing import FakeRegistry
from spark_plugin.sink import batch_sink, stream_sink

VALUE = StructType([StructField("user", StringType()), StructField("qty", IntegerType())])
COLUMNS = StructType([StructField("value", VALUE), StructField("key", VALUE)])


def faults(columns: StructType, **options: str) -> tuple[str, ...]:
    given = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", **options}
    with pytest.raises(OptionsError) as raised:
        batch_sink(given, columns, overwrite=False)
    with pytest.raises(OptionsError) as of_stream:
        stream_sink(given, columns)
    problems: tuple[str, ...] = raised.value.problems
    assert of_stream.value.problems == problems
    return problems


def test_faults_of_schemas_come_with_all_others() -> None:
    with FakeRegistry() as registry:
        found = faults(
            COLUMNS,
            valueFormat="avro",
            valueSchema='"string"',
            keyFormat="protobuf",
            keySchema="Order none.desc",
            keyFraming="none",
            valueFraming="apicurio",
            **{"schemaRegistry.url": registry.url},
        )
        assert registry.requests == ()
    assert [each.partition(":")[0] for each in found] == [
        "valueFraming",
        "keySchema",
        "valueSchema",
    ]
    assert found[-1] == (
        "valueSchema: has string where rows of type struct<user: string, qty: int32> is to be "
        "written"
    )


def test_columns_that_no_format_has() -> None:
    odd = StructType([StructField("months", YearMonthIntervalType())])
    columns = StructType([StructField("value", odd)])
    found = faults(columns, valueFormat="json", topic="", autoRegister="true")
    assert [each.partition(":")[0] for each in found] == [
        "topic",
        "autoRegister",
        "column value.months",
    ]


def test_a_column_that_is_no_struct_is_said_once() -> None:
    text = StructType([StructField("value", StringType())])
    assert faults(text, valueFormat="avro") == (
        "column value: has type string, which valueFormat=avro does not encode; allowed: struct",
    )


def test_variants_are_of_json_alone() -> None:
    """Of another format they would be taken for a struct of two binaries."""
    inner = StructType([StructField("any", ArrayType(VariantType()))])
    for value, path in ((inner, "value.any"), (VariantType(), "value")):
        columns = StructType([StructField("value", value)])
        given = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "valueFormat": "json"}
        batch_sink(given, columns, overwrite=False)
        found = faults(columns, valueFormat="avro", autoRegister="false")
        reason = f"column {path}: has type variant, which only JSON has; write to_json({path})"
        assert any(each.startswith(reason) for each in found), found
