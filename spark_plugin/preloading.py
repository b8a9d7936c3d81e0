"""Imports ahead of their use, in a process that forks others."""

import contextlib
import gc
import importlib
import sys
import traceback
from collections.abc import Sequence

__all__ = ["preload"]


def preload(modules: Sequence[str]) -> list[str]:
    """Import modules ahead of their use.

    Returns:
        The modules that could not be imported.
    """
    failed = []
    # The daemon talks to Spark's JVM over its standard output, so imports must not print there.
    with contextlib.redirect_stdout(sys.stderr):
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception:  # the worker that needs the module will report it
                traceback.print_exc()
                failed.append(module)
    # Workers collect garbage after each task. Modules are never garbage, and looking through them
    # would copy the pages that all workers share.
    gc.collect()
    gc.freeze()
    return failed
