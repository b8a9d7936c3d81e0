"""Tasks, as Spark sends them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from kshare.core.tasks import OpenTask, PlannedSlice, Task

__all__ = ["OpenPartition", "SlicePartition", "as_partitions"]


@dataclass
class SlicePartition(InputPartition):
    """A task, as Spark sends it.

    Attributes:
        slices: The slices to read, together; at least one.
    """

    slices: tuple[PlannedSlice, ...]


@dataclass
class OpenPartition(InputPartition):
    """A task of a batch that reads for a while, as Spark sends it.

    Attributes:
        task: The task.
    """

    task: OpenTask


def as_partitions(tasks: Iterable[Task | OpenTask]) -> list[InputPartition]:
    """Convert tasks into Spark's input partitions, in the order of the plan."""
    return [
        OpenPartition(task) if isinstance(task, OpenTask) else SlicePartition(task.slices)
        for task in tasks
    ]
