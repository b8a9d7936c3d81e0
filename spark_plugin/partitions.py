"""Tasks, as Spark sends them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from kshare.core.tasks import PlannedSlice, Task

__all__ = ["SlicePartition", "as_partitions"]


@dataclass
class SlicePartition(InputPartition):
    """A task, as Spark sends it.

    Attributes:
        slices: The slices to read, together; at least one.
    """

    slices: tuple[PlannedSlice, ...]


def as_partitions(tasks: Iterable[Task]) -> list[InputPartition]:
    """Convert tasks into Spark's input partitions, in the order of the plan."""
    return [SlicePartition(task.slices) for task in tasks]
