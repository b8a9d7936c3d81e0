"""What the demo's query may have read, made by hand."""

import pyarrow as pa

from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.monitor.report import PartitionReport, RangeReport
from spark_plugin.demo.state import QueryState

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0 = TopicPartition("t", 0)


def rows(offsets: range, task: int = 0, topic: str = "t") -> pa.Table:
    """Rows of partition 0, with five keys."""
    return pa.table(
        {
            "topic": pa.array([topic] * len(offsets), pa.string()),
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"k%d" % (offset % 5) for offset in offsets], pa.binary()),
            "task": pa.array([task] * len(offsets), pa.int32()),
        }
    )


def state_of(*batches: range, stable: int = 0) -> QueryState:
    """The state after some batches of partition 0, which two ranges read."""
    state = QueryState(target=100)
    for number, offsets in enumerate(batches):
        state.add_batch(number, rows(offsets))
    state.partitions[T0] = PartitionReport(
        100,
        stable,
        ranges=(
            RangeReport(KeyRanges([LOW]), 60, 40, 7),
            RangeReport(KeyRanges([HIGH]), stable, 90),
        ),
    )
    return state
