"""The executor of a Python worker, found from its parent processes: Spark does not say.

Two workers of one executor get the same name, those of two executors different ones. Cost: two
small files of ``/proc``, once a process.

A worker's parent is the daemon that forked it, and the daemon's is the executor's JVM. Its command
line has ``--executor-id`` and ``--cores`` under every cluster manager
(``CoarseGrainedExecutorBackend``), and neither in local mode.
"""

import os
import socket
from functools import cache
from itertools import pairwise
from pathlib import Path

from kshare.feedback.messages import Executor

__all__ = ["this_executor"]


@cache
def this_executor() -> Executor:
    """Return the executor of this process; its slots are 0 if they cannot be seen."""
    host = socket.gethostname()
    try:
        jvm = _parent_of(os.getppid())
        command = Path(f"/proc/{jvm}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError, IndexError):  # no /proc, or no right to read it
        return Executor(f"{os.getppid()}@{host}", 0)
    arguments = dict(pairwise(command))
    name, cores = arguments.get("--executor-id", "driver"), arguments.get("--cores", "")
    return Executor(f"{name}@{host}", int(cores) if cores.isdecimal() else 0)


def _parent_of(process: int) -> int:
    # The command's name is in parentheses, and may contain some.
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
