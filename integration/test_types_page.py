"""docs/typed-rows-types.md: columns of from_json and from_avro are what these functions give."""

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from tests.support.types_page import REFUSED, avro_schema, table


def type_by_spark(spark: SparkSession, kind: str, written: str) -> str:
    """The type that Spark's function gives a field, or ``refused``."""
    frame = spark.createDataFrame([], "text STRING, raw BINARY")
    try:
        made = (
            F.from_json("text", f"v {written}")
            if kind == "DDL"
            else from_avro("raw", avro_schema(written))
        )
        found = frame.select(made.alias("row")).select("row.v").schema["v"].dataType
    except (PySparkException, Py4JError):  # what from_avro says has no class of PySpark
        return REFUSED
    return found.simpleString()


@pytest.mark.parametrize("kind", ["DDL", "Avro"])
def test_the_column_of_sparks_function(spark: SparkSession, kind: str) -> None:
    rows = table(kind)
    assert len(rows) > 15
    found = {written: type_by_spark(spark, kind, written) for written, *_ in rows}
    assert found == {written: by_spark for written, by_spark, *_ in rows}
