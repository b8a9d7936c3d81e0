"""The source in a task: read its slices, and report to the planner where reading ended.

This imports the compiled kernels. Planners do not import this module.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import cache, partial

import pyarrow as pa

from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice, Ticket
from kshare.feedback.report import TaskReport
from kshare.options import SourceOptions
from kshare.wire.reader.read_slice import WantedSlice, read_slices
from spark_plugin.executor import this_executor
from spark_plugin.logs import show_log
from spark_plugin.planning import SlicePartition
from spark_plugin.timing import end_worker_with_task

__all__ = ["read_partition"]


def read_partition(partition: SlicePartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read a task's slices, together.

    For a slice with a ticket, the planner hears when reading begins and where it ends.
    """
    _prepare_process()
    tickets = [planned.ticket for planned in partition.slices if planned.ticket is not None]
    with ExitStack() as stack:
        report = None
        if tickets:
            report = stack.enter_context(closing(TaskReport(*tickets)))
            report.begin(this_executor())
        yield from read_slices([_wanted(each, report) for each in partition.slices], options)


def _wanted(planned: PlannedSlice, report: TaskReport | None) -> WantedSlice:
    """A slice as the reader takes it."""
    on_end = None
    if report is not None and planned.ticket is not None:
        on_end = partial(_report, report, planned.ticket)
    return WantedSlice(planned.slice, planned.max_records, on_end, planned.fetch_group)


def _report(report: TaskReport, ticket: Ticket, end: SliceEnd) -> None:
    # A worker that ends with its task leaves the connection open until then: so the planner sees
    # when the task has ended.
    held = ticket.hold and report.connected and end_worker_with_task()
    report.done(ticket, end, held=held)


@cache
def _prepare_process() -> None:
    """Do what a worker does once."""
    show_log()
    # Spark's workers collect garbage after every task. Modules are never garbage, and walking
    # through them takes longer than a small task does: leave them out.
    gc.freeze()
