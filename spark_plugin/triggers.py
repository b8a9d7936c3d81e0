"""``Trigger.AvailableNow`` on every Spark: all that is there, in limited batches, and then the end.

From Spark 4.2 on it is Spark's own. Before, Spark runs that trigger as one batch for every Python
source. There a processing-time query does the same: kshare's sources stop at the ends that
partitions have at its start (:mod:`spark_plugin.held_ends`), and the query is stopped when Spark
finds nothing for another batch, not even one without records, as for its own trigger.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from kshare.errors import KshareError
from kshare.format_name import FORMAT, is_ours
from spark_plugin.spark_api import SPARK, TELLS_START, streaming_leaves

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["available_now"]

_log = logging.getLogger("kshare")
_UNSEEN_SECONDS: Final = 30.0  # a planner starts in less, but on a machine that is overloaded
_UNENDING: Final = {"kafka", "rate", "rate-micro-batch", "socket"}
"""Sources that may have something new at each trigger, for ever."""


def available_now(writer: "DataStreamWriter", table: str | None = None) -> "StreamingQuery":
    """Run a streaming query over all that is there now, as ``trigger(availableNow=True)`` does.

    It is Spark's own trigger from Spark 4.2 on. Spark 4.0 and 4.1 run that trigger as one batch
    where a source is written in Python; there this function reads in as many batches as the limits
    of the options ask for, finishes a batch that an earlier run left, and runs the batches without
    records that let rows out of a watermark. Records that are produced meanwhile are not read.

    Args:
        writer: ``frame.writeStream`` with sink, checkpoint and options. Its trigger is replaced.
        table: The table to write to, as of ``writer.toTable``. Default: ``writer.start()``.

    Returns:
        The query, which has ended.

    Raises:
        pyspark.errors.StreamingQueryException: The query has failed: what
            ``query.awaitTermination()`` raises.
        KshareError: Before Spark 4.2: the session is one of Spark Connect, the query also reads a
            source that never ends, or no file can be locked in the temporary folder.
    """
    if TELLS_START:
        query = _started(writer.trigger(availableNow=True), table)
        _await(query)
        return query
    with ExitStack() as held:
        seen = [_held(held, folder) for folder in sorted(_folders(writer))]
        held.enter_context(_watch(seen))
        query = _started(writer.trigger(processingTime="0 seconds"), table)
        try:
            _process_all(query)
        finally:
            query.stop()
        query.awaitTermination()
    return query


def _held(held: ExitStack, folder: str) -> Callable[[], bool]:
    # Not a module import, as above.
    from spark_plugin.held_ends import hold  # noqa: PLC0415

    try:
        return held.enter_context(hold(folder))
    except OSError as error:
        raise KshareError(
            f"available_now: the driver cannot lock a file in the folder {folder}, by which the "
            f"source knows where to end: {error}. Driver and planners need the same temporary "
            "folder (TMPDIR); or use Spark 4.2 or later"
        ) from error


@contextmanager
def _watch(seen: Sequence[Callable[[], bool]]) -> Iterator[None]:
    """Warn of a source that does not see that it is held: after a while, or else at the end."""
    timer = threading.Timer(_UNSEEN_SECONDS, _warn_unseen, [seen])
    timer.daemon = True
    timer.start()
    try:
        yield
        if timer.is_alive():
            _warn_unseen(seen)
    finally:
        timer.cancel()
        timer.join()  # the files that it looks at are closed next


def _warn_unseen(seen: Sequence[Callable[[], bool]]) -> None:
    if not all(each() for each in seen):
        _log.warning(
            "available_now: a source has not found the file that the driver keeps for it in the "
            "temporary folder. Without it, records that are produced after the start are read, "
            "too, and the query ends when a trigger finds none"
        )


def _started(writer: "DataStreamWriter", table: str | None) -> "StreamingQuery":
    return writer.start() if table is None else writer.toTable(table)


def _await(query: "StreamingQuery") -> None:
    try:
        query.awaitTermination()
    finally:
        query.stop()  # it has ended, unless the caller was interrupted, who has no query to stop


def _process_all(query: "StreamingQuery") -> None:
    """Return when a trigger has found nothing to do, or the query has ended in any way."""
    # Not a module import: planners and tasks do without it.
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415

    try:
        query.processAllAvailable()
    except StreamingQueryException:
        return  # awaitTermination raises it, when the query has ended


def _folders(writer: "DataStreamWriter") -> set[str]:
    """The folders of the kshare sources that a query reads.

    Raises:
        KshareError: They cannot be had, or the query reads a source that does not end.
    """
    frame: Any = getattr(writer, "_df", None)
    plan = getattr(frame, "_jdf", None)
    if plan is None:
        raise KshareError(
            f"available_now: {SPARK} shows the sources of a query only to a classic session, and "
            "this one is of Spark Connect. Use trigger(processingTime=...), "
            "query.processAllAvailable() and query.stop(), or Spark 4.2 or later"
        )
    sources = list(streaming_leaves(plan.queryExecution().analyzed()))
    names = [leaf.sourceName().lower() for leaf in sources]
    _check(names)
    empty = frame.sparkSession._jvm.scala.Option.empty()  # noqa: SLF001 - as PySpark's own code
    return {
        _folder(leaf, empty) for leaf, name in zip(sources, names, strict=True) if is_ours(name)
    }


def _check(names: Sequence[str]) -> None:
    others = [name for name in names if not is_ours(name)]
    for name in others:
        if name in _UNENDING:
            raise KshareError(
                f"available_now: the query also reads {name}, and {SPARK} cannot end it there "
                f"beside a Python source. Read Kafka with format({FORMAT!r}), or use "
                "trigger(processingTime=...), or Spark 4.2 or later"
            )
    if others:
        _log.warning(
            "available_now: on %s, what comes into %s while the query runs is read, too",
            SPARK,
            ", ".join(others),
        )


def _folder(leaf: Any, no_schema: Any) -> str:
    """The folder of the ``load()`` that made a source: see :mod:`spark_plugin.held_ends`."""
    from pyspark.serializers import CPickleSerializer  # noqa: PLC0415 - as above

    try:
        made = (
            leaf.source()
            .get()
            .getOrCreateDataSourceInPython(leaf.sourceName(), leaf.extraOptions(), no_schema)
        )
        pickled: Any = CPickleSerializer()
        folder: str = pickled.loads(bytes(made.dataSource())).folder
    except Exception as error:
        raise KshareError(
            f"available_now: this platform's {SPARK} does not show the source of the query "
            f"({type(error).__name__}). Use trigger(processingTime=...), "
            "query.processAllAvailable() and query.stop(), and please report this, with the name "
            "of the platform"
        ) from error
    return folder
