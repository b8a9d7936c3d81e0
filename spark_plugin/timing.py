"""How the planner sees that a task has ended: the task's Python worker ends with it.

What a task delivers does not change. At worst the end is not seen. Cost: Spark does not use the
worker again, so a later task starts in a new one.

A reader is done long before its task if something slow follows it, because rows are buffered on the
way. A worker that Spark uses again is not told when its task ends. But Spark's JVM closes the
socket of a worker that it will not use again exactly then (``BasePythonRunner``'s listener for the
completion of tasks), and ``pyspark.daemon``'s child waits for that, and exits::

    reader done ............ rows on their way ............ task ends
    worker: END_OF_DATA_SECTION -> waits for the JVM ------> socket closed -> exits

A worker answers END_OF_DATA_SECTION, "do not use me again", if ``pyspark.worker`` cannot read the
finish signal. So this module makes it believe that, in a process that is about to exit.
"""

import logging
import os
import sys
from typing import Any, NoReturn

__all__ = ["end_worker_with_task"]

_log = logging.getLogger("kshare")

_DAEMONS = {"pyspark.daemon", "spark_plugin.daemon"}
_RECEIVER = "SparkSocketMessageReceiver"
_FINISH = "get_finish_signal_from_stream"


class _EndsWithTaskError(Exception):
    """``pyspark.worker`` takes it for a finish signal that cannot be read."""


def end_worker_with_task() -> bool:
    """Make this Python worker end when its task does.

    Returns:
        Whether it will. It will not, and nothing has changed, if this process is no worker of
        Spark's daemon, or a worker of an unknown version of Spark.
    """
    if not os.environ.get("SPARK_REUSE_WORKER") or not _is_daemon(sys.modules.get("__main__")):
        return False
    receiver = getattr(sys.modules.get("pyspark.worker"), _RECEIVER, None)
    finish = getattr(receiver, _FINISH, None)
    if receiver is None or finish is None:
        _log.debug("this version of Spark's Python worker is not known: no task times")
        return False

    def finish_and_end(self: Any) -> NoReturn:
        finish(self)
        raise _EndsWithTaskError("this worker ends with its task")

    setattr(receiver, _FINISH, finish_and_end)
    return True


def _is_daemon(main: Any) -> bool:
    return getattr(getattr(main, "__spec__", None), "name", None) in _DAEMONS
