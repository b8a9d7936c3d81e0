"""What Spark itself needs: a Python source whose record batches are ready before the clock counts.

A batch of a Python source crosses to the JVM as Arrow, and becomes rows there. No Python source can
be faster than this one, whatever it reads.
"""

import itertools
import os
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

__all__ = ["read_ready_made"]

_ROWS = 30_000  # of a record batch
_BYTES = {"key": 12, "value": 88}


def read_ready_made(spark: SparkSession, columns: str, tasks: int, records: int) -> float:
    """Seconds to bring ready-made record batches into the noop sink.

    Args:
        spark: The session.
        columns: Some of ``key,value``.
        tasks: Number of tasks that share the records.
        records: Number of records.
    """
    spark.dataSource.register(ReadyMade)
    frame = spark.read.format(ReadyMade.name()).options(
        columns=columns, tasks=str(tasks), batches=str(records // _ROWS // tasks)
    )
    started = time.perf_counter()
    frame.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


class ReadyMade(DataSource):
    """Keys and values of the sizes of bench-main's."""

    @classmethod
    def name(cls) -> str:
        return "bench-ready-made"

    def schema(self) -> str:
        return ", ".join(f"{name} binary" for name in self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _Reader(schema.fieldNames(), int(options["tasks"]), int(options["batches"]))


class _Reader(DataSourceReader):
    def __init__(self, columns: list[str], tasks: int, batches: int) -> None:
        self._columns, self._tasks, self._batches = columns, tasks, batches

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, _: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.record_batch({name: _column(_BYTES[name]) for name in self._columns})
        yield from itertools.repeat(batch, self._batches)


def _column(size: int) -> pa.Array:
    ends = pa.py_buffer((np.arange(_ROWS + 1, dtype=np.int32) * size).tobytes())
    return pa.Array.from_buffers(
        pa.binary(), _ROWS, [None, ends, pa.py_buffer(os.urandom(size * _ROWS))]
    )
