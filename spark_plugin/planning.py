"""What Spark carries from the planner to the tasks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kshare.core.fetch_groups import FetchGroup
from kshare.core.progress import Slice

if TYPE_CHECKING:
    from kshare.feedback.messages import Ticket
    from kshare.planner import Task

__all__ = ["SlicePartition", "as_partitions"]


@dataclass
class SlicePartition(InputPartition):
    """One task.

    Attributes:
        slice: what it reads,
        max_records: and how many records of that at most; None is all.
        ticket: how it reports to the planner; None if it does not.
        fetch_group: tasks with which it shares what it fetches; None: with nobody.
    """

    slice: Slice
    max_records: int | None = None
    ticket: "Ticket | None" = None
    fetch_group: FetchGroup | None = None


def as_partitions(tasks: "Iterable[Task]") -> list[InputPartition]:
    """Tasks as Spark's input partitions, in the order of the plan."""
    return [
        SlicePartition(task.slice, task.max_records, task.ticket, task.fetch_group)
        for task in tasks
    ]
