"""Python sources in the installed Spark, from 4.0 on: the one module that knows versions.

It looks for what is there, as vendors' versions carry changes of later ones. What Spark lacks is
stood in for here, or named in a warning with Spark's version.

===================================  ======  ====================================================
what                                 from    without it
===================================  ======  ====================================================
``latestOffset(start, limit)``       4.2     :mod:`spark_plugin.plain_reader` finds the start
several batches for AvailableNow     4.2     :mod:`spark_plugin.triggers` runs them; Spark's own
                                             trigger is one batch, which the options' limits bound
Once without limits                  4.2     the limits hold: a warning
``reportLatestOffset``               4.2     events do not tell the lag: a warning of the listener
rows leave a worker at once          4.3     by a setting; :func:`worker_flush` does it on all
Arrow batches for a stream's sink    4.1     the Arrow writer of batch queries, which 4.0 asks too
filters                              4.1     Spark filters (:mod:`spark_plugin.read_info`)
===================================  ======  ====================================================
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyspark
from pyspark.sql import datasource

from kshare.worker_connection import worker_output

SPARK: Final = f"Spark {pyspark.__version__}"
"""The installed Spark, as warnings and errors name it."""

REPORTS_LATEST: Final = hasattr(datasource.DataSourceStreamReader, "reportLatestOffset")
"""True if ``latestOffset`` in an event is what a source reports; without, it is the batch's end."""

TELLS_START: Final = REPORTS_LATEST
"""True if ``latestOffset`` gets the start of the batch and its limit; both came with 4.2."""

if TYPE_CHECKING or TELLS_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """As in Spark 4.2."""

    class ReadAllAvailable(ReadLimit):
        """As in Spark 4.2."""

    @dataclass
    class ReadMinRows(ReadLimit):
        """As in Spark 4.2."""

        min_rows: int

    @dataclass
    class ReadMaxRows(ReadLimit):
        """As in Spark 4.2."""

        max_rows: int

    class SupportsTriggerAvailableNow:
        """As in Spark 4.2."""


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(
        datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter
    ):
        """A streaming writer that gets Arrow batches, as Spark 4.0 asks for its batch one only."""


__all__ = [
    "REPORTS_LATEST",
    "SPARK",
    "TELLS_START",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "new_folder",
    "refuse_reuse",
    "shown_offsets",
    "worker_flush",
]

_RECEIVER: Final = "SparkSocketMessageReceiver"
_FINISH: Final = "get_finish_signal_from_stream"
_READ: Final = "read_int"


def new_folder() -> str | None:
    """Return the folder by which a source hears of ``available_now``; None if Spark says it."""
    if TELLS_START:
        return None
    # Only older versions need it.
    from spark_plugin.held_ends import folder_name  # noqa: PLC0415

    return folder_name()


def shown_offsets(shown: Any) -> Any:
    """Return the offsets of a progress event as JSON; None if it has none.

    Spark 4.0 and 4.1 show those of a Spark Connect session, and of ``query.recentProgress``, in
    the way of ``str(dict)``.
    """
    if shown == "None":
        return None
    if not isinstance(shown, str) or not shown.startswith("{'"):
        return shown
    try:
        return json.dumps(ast.literal_eval(shown))
    except (ValueError, SyntaxError):
        return shown


class _NotReusedError(Exception):
    """``pyspark.worker`` takes it for a finish signal that cannot be read."""


def refuse_reuse() -> bool:
    """Make this Python worker answer, when its task is done, that it cannot be used again.

    Returns:
        Whether it will; false, with nothing changed, in a worker of an unknown version of Spark.
    """
    worker: Any = sys.modules.get("pyspark.worker")
    receiver = getattr(worker, _RECEIVER, None)
    finish = getattr(receiver, _FINISH, None)
    if receiver is not None and finish is not None:
        setattr(receiver, _FINISH, _failing(finish))
        return True
    if worker is None or _READ not in _names_in(worker.main):
        return False
    # Spark 4.0 and 4.1: the last number that the worker reads says whether all has gone well.
    end, read = worker.SpecialLengths.END_OF_STREAM, worker.read_int
    worker.read_int = lambda stream: 0 if (number := read(stream)) == end else number
    return True


def worker_flush() -> Callable[[], None] | None:
    """Return what sends the rows that this Python worker has written so far to Spark.

    A worker keeps 64 KiB of rows back (``spark.buffer.size``), which in a batch that reads for a
    while may be all of them. To be called in the generator that the worker takes rows from. Seen on
    Spark 4.0.2 and 4.3.0, with any Python.

    Returns:
        None outside of a worker, and in one of an unknown version of Spark.
    """
    output = worker_output()
    return None if output is None else output.flush


def _failing(finish: Callable[[Any], None]) -> Callable[[Any], NoReturn]:
    def finish_and_fail(self: Any) -> NoReturn:
        finish(self)
        raise _NotReusedError("this worker ends with its task")

    return finish_and_fail


def _names_in(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_names if code is not None else ()


def streaming_leaves(plan: Any) -> Iterator[Any]:
    """The streaming sources in a JVM's logical plan, which have names as in ``format(...)``."""
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName().startswith("StreamingRelation"):
            yield leaf
