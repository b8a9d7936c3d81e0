"""Orders from Kafka into a streaming table, and what each country has spent."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Each order once, however often the pipeline runs; four tasks on one partition."""
    records = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("minPartitions", 4)
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "country STRING, amount DOUBLE")
    return records.select("partition", "offset", order.alias("order")).select(
        "partition", "offset", "order.*"
    )


@dp.materialized_view
def by_country() -> DataFrame:
    """Number of orders, and their sum, by country."""
    return (
        spark.read.table("orders")
        .groupBy("country")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    )
