"""The Python interpreter that Spark should start its workers with."""

import os
import sys
import sysconfig
from pathlib import Path

__all__ = ["worker_python"]


def worker_python() -> str:
    """Return this environment's ``kshare-python``; without one, this interpreter."""
    starter = Path(sysconfig.get_path("scripts")) / "kshare-python"
    return str(starter) if os.access(starter, os.X_OK) else sys.executable
