"""Which Python Spark should start its workers with."""

import os
import sys
import sysconfig
from pathlib import Path

__all__ = ["worker_python"]


def worker_python() -> str:
    """The ``kshare-python`` of this environment, or this interpreter if it is not installed."""
    starter = Path(sysconfig.get_path("scripts")) / "kshare-python"
    return str(starter) if os.access(starter, os.X_OK) else sys.executable
