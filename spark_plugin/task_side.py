"""The source in a task: read its slices, and report to the planner where reading ended.

This imports the compiled kernels. Planners do not import this module.

**The end of a task, as the planner sees it.** A reader is done long before its task if something
slow follows it, because rows are buffered on the way. A worker that Spark uses again does not learn
when its task ends. But Spark's JVM closes the socket of a worker that it will not use again exactly
then (``BasePythonRunner``'s listener for the completion of tasks), and ``pyspark.daemon``'s child
waits for that, and exits::

    reader done ............ rows on their way ............ task ends
    worker: END_OF_DATA_SECTION -> waits for the JVM ------> socket closed -> exits

A worker answers END_OF_DATA_SECTION, "do not use me again", if it cannot read the finish signal.
So :func:`spark_plugin.spark_api.refuse_reuse` makes it believe that, in a process that is about to
exit. What a task delivers does not change. At worst the end is not seen. Cost: Spark does not use
the worker again, so a later task starts in a new one.

**The executor** is found from the worker's parent processes: Spark does not say. Two workers of one
executor get the same name, those of two executors different ones. A worker's parent is the daemon
that forked it, and the daemon's is the executor's JVM; without a daemon
(``spark.python.use.daemon=false``), the worker's is. The JVM's command line has ``--executor-id``
and ``--cores`` under every cluster manager (``CoarseGrainedExecutorBackend``), and neither in local
mode.
"""

import gc
import logging
import os
import pickle
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kshare.core.progress import Slice
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import Ticket
from kshare.import_caches import forget_finders
from kshare.operating_system import OperatingSystem, this_system
from kshare.options import SourceOptions
from kshare.query.feedback.messages import Executor, TaskReport
from kshare.read.reader.read_slice import OnEnd, read_slices
from spark_plugin.logs import show_log
from spark_plugin.partitions import OpenPartition, SlicePartition
from spark_plugin.spark_api import SPARK, refuse_reuse, worker_flush

if TYPE_CHECKING:
    from kshare.formats.schemas import ReaderSchemas
    from kshare.processing.work import Work

__all__ = [
    "end_worker_with_task",
    "executor_above",
    "read_open_partition",
    "read_partition",
    "this_executor",
    "warn_of_rows_kept_back",
]

_log = logging.getLogger("kshare")
_said: Final = set[str]()  # what a task has warned of: those that come after it need not
_DAEMONS = {"pyspark.daemon", "spark_plugin.daemon"}


def read_partition(
    partition: SlicePartition,
    options: SourceOptions,
    schemas: "ReaderSchemas | None" = None,
    work: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a task's slices, together.

    For a slice with a ticket, the planner hears when reading begins and where it ends.

    Args:
        partition: The task.
        options: The query's options.
        schemas: The reader schemas of typed rows; None: keys and values are bytes.
        work: The handlers that rows go through, as of :meth:`.KshareDataSource.working`.
    """
    rows = _read_partition(partition, options, schemas)
    yield from rows if work is None else _work(work).rows(rows)


def _read_partition(
    partition: SlicePartition, options: SourceOptions, schemas: "ReaderSchemas | None"
) -> Iterator[pa.RecordBatch]:
    _prepare_process()
    tickets = {each.slice: each.ticket for each in partition.slices if each.ticket is not None}
    on_end: dict[Slice, OnEnd] = {}
    with ExitStack() as stack:
        stack.callback(forget_finders)
        if tickets:
            report = stack.enter_context(closing(TaskReport(*tickets.values())))
            report.begin(this_executor())
            on_end = {each: partial(_report, report, ticket) for each, ticket in tickets.items()}
        if schemas is None:
            yield from read_slices(partition.slices, options, on_end)
            return
        # Other queries need none of it.
        from kshare.typed_slices import typed_slices  # noqa: PLC0415

        yield from typed_slices(partition.slices, options, schemas, on_end)


def read_open_partition(
    partition: OpenPartition,
    options: SourceOptions,
    schemas: "ReaderSchemas | None" = None,
    work: bytes | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Read a task of a batch that reads for a while; rows leave the worker as they come.

    Args:
        partition: The task.
        options: The query's options.
        schemas: As of :func:`read_partition`.
        work: The same.
    """
    _prepare_process()
    # Other queries need neither these nor librdkafka's clients.
    from kshare.kafka.end_log import EndLog  # noqa: PLC0415
    from kshare.kafka.parked_keys import ParkWatch  # noqa: PLC0415
    from kshare.kafka.parking import Parking  # noqa: PLC0415
    from kshare.read.reader.open_reader import LOOK_SECONDS, Handled, OpenReader  # noqa: PLC0415
    from kshare.read.reader.reading_meter import Says, say_nothing  # noqa: PLC0415

    task, fails = partition.task, options.fail_on_data_loss
    flush = worker_flush()
    if flush is None:
        warn_of_rows_kept_back()
    with ExitStack() as stack:
        stack.callback(forget_finders)
        ends = stack.enter_context(EndLog(options.kafka, task.topic, fail_on_data_loss=fails))
        parking = stack.enter_context(
            closing(
                Parking(
                    # The planner, which lasts, says to each query what it may not read.
                    ParkWatch(options.kafka, every_seconds=LOOK_SECONDS, said=_said),
                    lambda: None,  # the reader looks by itself
                    unknown="keys that are parked from now on are read until this batch ends",
                    every_seconds=LOOK_SECONDS,
                )
            )
        )
        parking.start()
        says: Says = say_nothing
        if task.ticket is not None:
            report = stack.enter_context(closing(TaskReport(task.ticket)))
            report.begin()
            says = partial(report.reading, task.ticket)

        def read(handled: Handled | None = None) -> Generator[pa.RecordBatch, None, None]:
            def read_raw(raw: SourceOptions) -> Generator[pa.RecordBatch, None, None]:
                hashes = lambda: parking.hashes or {}  # noqa: E731
                reader = OpenReader(task, raw, ends, parked=hashes, says=says, handled=handled)
                return reader.batches()

            if schemas is None:
                return read_raw(options)
            from kshare.typed_slices import typed_batches  # noqa: PLC0415

            places = {each.id.partition for each in task.ranges}
            return typed_batches(read_raw, places, options, schemas)

        rows = read() if work is None else _work(work).open_rows(read, says)
        stack.enter_context(closing(rows))
        for batch in rows:
            yield batch
            if flush is not None:
                flush()  # that batch: the worker has written it, and asks for the next one


@cache
def warn_of_rows_kept_back() -> None:
    """Warn once in a process."""
    _log.warning(
        "%s keeps rows back until there are 64 KiB of them, as its Python worker is not known; "
        "set spark.python.udf.pipelined.enabled=true (from Spark 4.3 on) or a small "
        "spark.buffer.size for rows that leave at once",
        SPARK,
    )


def _work(pickled: bytes) -> "Work":
    work: Work = pickle.loads(pickled)  # noqa: S301 - of the class that the driver has registered
    return work


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


def end_worker_with_task() -> bool:
    """Make this Python worker end when its task does.

    Returns:
        Whether it will. It will not, and nothing has changed, if this process is no worker of
        Spark's daemon, or a worker of an unknown version of Spark.
    """
    if not os.environ.get("SPARK_REUSE_WORKER") or not _is_daemon(sys.modules.get("__main__")):
        return False
    if not refuse_reuse():
        _log.debug("the Python worker of %s is not known: no task times", SPARK)
        return False
    return True


def _is_daemon(main: Any) -> bool:
    return getattr(getattr(main, "__spec__", None), "name", None) in _DAEMONS


@cache
def this_executor() -> Executor:
    """Return the executor of this process; its slots are 0 if they cannot be seen."""
    return executor_above(os.getppid(), this_system())


def executor_above(parent: int, system: OperatingSystem) -> Executor:
    """Return the executor of a worker.

    Args:
        parent: The worker's parent: the daemon, or the executor's JVM.
        system: It shows the processes.

    Returns:
        Named after the parent, without slots, if the processes are not shown.
    """
    host = socket.gethostname()
    try:
        command = system.command_of(parent)
        if not _is_jvm(command):
            command = system.command_of(system.parent_of(parent))
    except (OSError, ValueError, IndexError):  # not on this system, or no right to read it
        return Executor(f"{parent}@{host}", 0)
    arguments = dict(pairwise(command))
    name, cores = arguments.get("--executor-id", "driver"), arguments.get("--cores", "")
    return Executor(f"{name}@{host}", int(cores) if cores.isdecimal() else 0)


def _is_jvm(command: Sequence[str]) -> bool:
    return os.path.basename(next(iter(command), "")) == "java"  # noqa: PTH119
