"""What Spark's own processes import when ``kshare-python`` starts them."""

from collections.abc import Iterator

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class WherePySparkIs(DataSource, DataSourceReader):
    """The PySpark of the processes that give a schema, plan, and read."""

    def schema(self) -> str:
        self.options["schema"] = pyspark.__file__
        return "schema string, plan string, read string"

    def reader(self, schema: object) -> DataSourceReader:
        return self

    def partitions(self) -> list[InputPartition]:
        return [InputPartition((self.options.get("schema"), pyspark.__file__))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, str]]:
        yield (*partition.value, pyspark.__file__)


def test_all_of_them_import_what_is_compiled(spark: SparkSession):
    spark.dataSource.register(WherePySparkIs)
    row = spark.read.format("WherePySparkIs").load().collect()[0]
    # Spark's pyspark.zip would come first.
    assert set(row) == {pyspark.__file__}
