"""A sink's formats on the driver: faults of schemas come with those of options."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
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
from kshare.testing import FakeCluster, FakeRegistry
from spark_plugin.sink import batch_sink, stream_sink
from spark_plugin.source import KshareDataSource

VALUE = StructType([StructField("user", StringType()), StructField("qty", IntegerType())])
COLUMNS = StructType([StructField("value", VALUE), StructField("key", VALUE)])
ROWS = StructType([StructField("value", VALUE)])
TEXTS = StructType([StructField("value", StringType())])
NOBODY = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}


def faults(columns: StructType, **options: str) -> tuple[str, ...]:
    given = {**NOBODY, **options}
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
        given = {**NOBODY, "valueFormat": "json"}
        batch_sink(given, columns, overwrite=False)
        found = faults(columns, valueFormat="avro", autoRegister="false")
        reason = f"column {path}: has type variant, which only JSON has; write to_json({path})"
        assert any(each.startswith(reason) for each in found), found


def sent(source: KshareDataSource) -> Any:
    """The source as it reaches the process that commits or aborts."""
    serializer: Any = CloudPickleSerializer
    spark = serializer()
    return spark.loads(spark.dumps(source))


def test_a_batch_ends_whatever_the_registry_says_meanwhile() -> None:
    """Its rows are written: refused here, they would be written again, or stay in transactions."""
    with FakeRegistry() as registry:
        given = {**NOBODY, "valueFormat": "avro", "schemaRegistry.url": registry.url}
        source = KshareDataSource(given)
        with pytest.raises(OptionsError, match="t-value"):  # before a task starts
            source.streamWriter(ROWS, overwrite=False)
        asked = registry.requests
        assert asked
        sent(source).streamWriter(ROWS, overwrite=False).commit([None], 0)
        sent(source).streamWriter(ROWS, overwrite=False).abort([None], 0)
        assert registry.requests == asked


def test_a_batch_ends_though_the_file_of_its_schema_is_gone(tmp_path: Path) -> None:
    schema = f"Order {tmp_path / 'gone.desc'}"
    source = KshareDataSource({**NOBODY, "valueFormat": "protobuf", "valueSchema": schema})
    with pytest.raises(OptionsError, match="No such file"):
        source.streamWriter(ROWS, overwrite=False)
    sent(source).streamWriter(ROWS, overwrite=False).commit([None], 0)


def test_a_batch_ends_without_a_question_about_transactions() -> None:
    with FakeCluster(topics={"t": 1}) as fake:
        fake.limit_api_version("EndTxn", -1, -1)
        base = {"kafka.bootstrap.servers": fake.bootstrap_servers, "topic": "t"}
        source = KshareDataSource({**base, "exactlyOnce": "true"})
        with pytest.raises(OptionsError, match="EndTxn"):
            source.streamWriter(TEXTS, overwrite=False)
        sent(source).streamWriter(TEXTS, overwrite=False)
