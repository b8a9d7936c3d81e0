"""What a Spark Connect client does with typed rows: a batch, a stream, and a sink.

``python connect_typed.py SERVERS TOPIC SINK FOLDER`` runs with ``pyspark-client`` alone, so it
imports nothing of the tests. It prints what it has seen, as JSON.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

SCHEMA = "n INT, at TIMESTAMP, local TIMESTAMP_NTZ, items ARRAY<STRUCT<sku: STRING>>"


def main(servers: str, topic: str, sink: str, folder: str) -> dict[str, Any]:
    """Run, and return what was seen."""
    spark = SparkSession.builder.getOrCreate()
    options = {
        "kafka.bootstrap.servers": servers,
        "startingOffsets": "earliest",
        "keyFormat": "string",
        "valueFormat": "json",
        "valueSchema": SCHEMA,
    }

    def rows_of(name: str) -> list[str]:
        frame = spark.read.format("kshare").options(**options, subscribe=name).load()
        texts = frame.selectExpr("key", "to_json(value) AS value", "offset").collect()
        return [f"{row.key} {row.value}" for row in sorted(texts, key=lambda row: row.offset)]

    stream = spark.readStream.format("kshare").options(**options, subscribe=topic).load()
    writer = stream.select("key", "value").writeStream.format("kshare")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", sink)
    writer = writer.option("valueFormat", "json").option("checkpointLocation", f"{folder}/typed")
    writer.trigger(availableNow=True).start().awaitTermination()
    kind = stream.schema["value"].dataType.simpleString()
    rows, written = rows_of(topic), rows_of(sink)
    del options["valueSchema"]  # then it is a VARIANT
    frame = spark.read.format("kshare").options(**options, subscribe=topic).load()
    taken = frame.selectExpr("variant_get(value, '$.n', 'int') AS n", "offset").collect()
    seen = {
        "type": kind,
        "rows": rows,
        "written": written,
        "variant": frame.schema["value"].dataType.simpleString(),
        "taken": [row.n for row in sorted(taken, key=lambda row: row.offset)],
    }
    spark.stop()
    return seen


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
