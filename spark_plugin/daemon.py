"""Spark's daemon of Python workers, with all imports done before it forks one.

``--conf spark.python.daemon.module=spark_plugin.daemon``

Law: it is ``pyspark.daemon`` in all else; an import that fails is left to the worker that needs it.
No thread of Python's is started before a fork, and nothing is opened (the helper threads of
OpenBLAS and jemalloc have fork handlers of their own). Cost: the imports once an executor (about
1 s, with the compiled kernels in their cache), and their memory once, shared by all workers.

A task whose end is measured ends its worker (:mod:`spark_plugin.timing`), so new workers are
common then.
"""

import contextlib
import gc
import importlib
import sys
import threading
import traceback
from typing import Final

from pyspark.daemon import manager

__all__ = ["main", "preload"]

MODULES: Final = (
    "pyarrow",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.datasource",
    "kshare.feedback.report",
    "kshare.produce",
    "kshare.wire.reader.read_slice",
    "spark_plugin.source",
    "spark_plugin.sink",
    "spark_plugin.timing",
)
"""What the tasks of a source and of a sink import."""


def preload(modules: tuple[str, ...] = MODULES) -> list[str]:
    """Import modules ahead of their use.

    Returns:
        Those that could not be imported.
    """
    failed = []
    # The daemon talks to Spark's JVM over its standard output: whatever an import prints is not
    # for that.
    with contextlib.redirect_stdout(sys.stderr):
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception:  # whatever a module does: its user will see it too
                traceback.print_exc()
                failed.append(module)
    # Workers collect garbage after each task: what was imported is none, and is not copied for it.
    gc.collect()
    gc.freeze()
    return failed


def main() -> None:
    """Run the daemon until Spark ends it."""
    preload()
    threads = threading.active_count()
    if threads > 1:
        print(f"spark_plugin.daemon: {threads} threads before the first fork", file=sys.stderr)  # noqa: T201
    manager()


if __name__ == "__main__":
    main()
