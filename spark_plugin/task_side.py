"""What the source does in a task: read its slices, and report to the planner where reading ended.

This imports the compiled kernels. Planners do not import this module.
"""

import gc
from collections.abc import Iterator
from functools import cache
from itertools import chain

import pyarrow as pa

from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice, Ticket
from kshare.feedback.report import TaskReport
from kshare.options import SourceOptions
from kshare.wire.reader.read_slice import read_slice
from spark_plugin.executor import this_executor
from spark_plugin.logs import show_log
from spark_plugin.planning import SlicePartition
from spark_plugin.timing import end_worker_with_task

__all__ = ["read_partition"]


def read_partition(partition: SlicePartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read a task's slices, one after the other.

    For a slice with a ticket, the planner hears when reading begins and where it ends.
    """
    _prepare_process()
    return chain.from_iterable(_read(planned, options) for planned in partition.slices)


@cache
def _prepare_process() -> None:
    """Do what a worker does once."""
    show_log()
    # Spark's workers collect garbage after every task. Modules are never garbage, and walking
    # through those of numba and others takes longer than a small task does: leave them out.
    gc.freeze()


def _read(planned: PlannedSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    if planned.ticket is not None:
        return _read_and_report(planned, planned.ticket, options)
    return read_slice(
        planned.slice,
        options,
        max_records=planned.max_records,
        fetch_group=planned.fetch_group,
    )


def _read_and_report(
    planned: PlannedSlice, ticket: Ticket, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    report = TaskReport(ticket)
    report.begin(this_executor())

    def report_end(end: SliceEnd) -> None:
        # A worker that ends with its task leaves the connection open until then: so the planner
        # sees when the task has ended.
        report.done(end, held=ticket.hold and report.connected and end_worker_with_task())

    try:
        yield from read_slice(
            planned.slice,
            options,
            max_records=planned.max_records,
            on_end=report_end,
            fetch_group=planned.fetch_group,
        )
    finally:
        report.close()
