"""Spark's daemon of Python workers, which does a worker's imports once, before it forks any.

``kshare-python`` starts it in place of ``pyspark.daemon``. With another Python, it is
``--conf spark.python.daemon.module=spark_plugin.daemon``.

It is ``pyspark.daemon`` in all else, and in everything where a forked process may not use what its
parent has loaded (:mod:`kshare.operating_system`). An import that fails is left to the worker that
needs it, and daemons of Spark's planning processes import nothing ahead. Before a fork there are no
threads of Python's, no connections and no librdkafka handles (the helper threads of OpenBLAS and
jemalloc have fork handlers of their own). Cost: the imports once an executor (about 1 s, with the
compiled kernels in their cache), and their memory once, shared by all workers.

New workers are common where tasks are measured: such a task ends its worker
(:mod:`spark_plugin.task_side`).
"""

import sys
import threading
from collections.abc import Sequence
from typing import Final

from pyspark.daemon import manager

from kshare.operating_system import this_system
from spark_plugin import fork_server
from spark_plugin.fork_server import preload

__all__ = ["main"]

MODULES: Final = (
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "kshare.query.produce",
    "spark_plugin.source",
    "spark_plugin.sink",
    "spark_plugin.task_side",
)
"""Modules that the tasks of a source and of a sink import."""
LOOKUP: Final = ("pyspark.sql.worker.lookup_data_sources", "spark_plugin.source")
"""Modules of a session's first planning process, which finds the sources."""


def main() -> None:
    """Run the daemon until Spark ends it."""
    if this_system().forks_after_imports:  # else each worker does its own
        _prepare(sys.argv[1:2])
    threads = threading.active_count()
    if threads > 1:
        print(f"spark_plugin.daemon: {threads} threads before the first fork", file=sys.stderr)  # noqa: T201
    manager()


def _prepare(modules: Sequence[str]) -> None:
    """Do the imports of the processes that run a module: Spark starts a daemon for each."""
    if modules in ([], ["pyspark.worker"]):
        preload(MODULES)
    else:
        preload(LOOKUP)
        fork_server.start()


if __name__ == "__main__":
    main()
