"""A query on real executors that gets another one: ``python -m integration.elastic_job``.

``python -m integration.elastic_job SERVERS TOPIC FOLDER`` reads a topic with
``minPartitions=auto``, first on one executor of one slot, then, without a restart, on two
(``local-cluster``). It needs a process of its own, as a process has one Spark. It writes each batch
to ``FOLDER/BATCH.arrow``, and ends when some batches in a row were read by a task for each slot.
"""

import os
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyspark
from pyarrow import feather
from pyspark.sql import DataFrame

from integration.spark import start_spark

BATCHES = 2
SECONDS = 100.0
AT_ONCE = 300


def main(servers: str, topic: str, folder: str) -> None:
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    config = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "600m",
        # One executor to begin with; Spark does not ask for another by itself.
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1h",
        "spark.dynamicAllocation.executorIdleTimeout": "1h",
    }
    spark = start_spark(master="local-cluster[2,1,1024]", config=config, keep_home=True)
    tasks: list[int] = []

    def keep(rows: DataFrame, batch: int) -> None:
        named = rows.selectExpr(
            "key", "partition", "offset", f"{batch} AS batch", "spark_partition_id() AS task"
        )
        table = named.toArrow()
        feather.write_feather(table, str(Path(folder) / f"{batch:04}.arrow"))
        tasks.append(len(pa.compute.unique(table["task"])))

    reader = (
        spark.readStream.format("kshare")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("minPartitions", "auto")
        .option("maxOffsetsPerTrigger", AT_ONCE)
    )
    writer = reader.load().writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).start()
    deadline = time.monotonic() + SECONDS
    try:
        for slots in (1, 2):
            while tasks[-BATCHES:] != [slots] * BATCHES:
                if query.exception() is not None or time.monotonic() > deadline:
                    sys.exit(f"{slots} tasks in {BATCHES} batches not seen: {tasks}")
                time.sleep(0.1)
            if slots == 1:
                assert spark.sparkContext._jsc.sc().requestExecutors(1)
    finally:
        query.stop()
        spark.stop()
        # local-cluster keeps its executors' files there, regardless of its settings.
        shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
