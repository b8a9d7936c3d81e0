"""When a task has ended, seen from its Python worker: only by ending with it.

Law: what a task delivers does not change; at worst nothing is seen. Cost: the worker is not used
again, so that a later task forks a new one, which imports its modules anew.

A reader is done long before its task is, if something slow comes after it: rows are buffered on
the way. Nothing tells a worker that is used again when its task has ended. But one that is not
has its socket closed by Spark's JVM (``BasePythonRunner``'s listener for the completion of tasks)
at just that time; and ``pyspark.daemon``'s child waits for that, and exits. A worker asks for it
by answering END_OF_DATA_SECTION at its end, which ``pyspark.worker`` does if the finish signal
cannot be read. So that is what we have it believe, in a process that ends anyway.
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
    """What ``pyspark.worker`` takes for a finish signal that cannot be read."""


def end_worker_with_task() -> bool:
    """Have this Python worker end when its task does.

    Returns:
        Whether it will: it is a worker of Spark's daemon, and this is a version of Spark that is
        known. If not, nothing has changed.
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
