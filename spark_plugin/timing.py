"""End of a task, as the planner sees it: the task's Python worker ends with it.

What a task delivers does not change. At worst the end is not seen. Cost: Spark does not use the
worker again, so a later task starts in a new one.

A reader is done long before its task if something slow follows it, because rows are buffered on the
way. A worker that Spark uses again does not learn when its task ends. But Spark's JVM closes the
socket of a worker that it will not use again exactly then (``BasePythonRunner``'s listener for the
completion of tasks), and ``pyspark.daemon``'s child waits for that, and exits::

    reader done ............ rows on their way ............ task ends
    worker: END_OF_DATA_SECTION -> waits for the JVM ------> socket closed -> exits

A worker answers END_OF_DATA_SECTION, "do not use me again", if it cannot read the finish signal.
So :func:`spark_plugin.spark_api.refuse_reuse` makes it believe that, in a process that is about to
exit.
"""

import logging
import os
import sys
from typing import Any

from spark_plugin.spark_api import SPARK, refuse_reuse

__all__ = ["end_worker_with_task"]

_log = logging.getLogger("kshare")

_DAEMONS = {"pyspark.daemon", "spark_plugin.daemon"}


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
