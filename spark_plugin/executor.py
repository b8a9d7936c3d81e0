"""Which executor a Python worker belongs to. Spark does not tell it, so it looks above itself.

Law: two workers of one executor get the same name, those of two executors different ones.
Cost: two small files of ``/proc``, once a process.

A worker's parent is the daemon that forked it, and the daemon's is the executor's JVM, whose
command line has ``--executor-id`` and ``--cores`` under every cluster manager
(``CoarseGrainedExecutorBackend``); in local mode it has neither.
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
    """The executor of this process: its id and its host, and its slots if they can be seen."""
    host = socket.gethostname()
    try:
        above = _parent(os.getppid())
        command = Path(f"/proc/{above}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError, IndexError):  # no /proc, or not ours to see
        return Executor(f"{os.getppid()}@{host}", 0)
    given = dict(pairwise(command))
    name, cores = given.get("--executor-id", "driver"), given.get("--cores", "")
    return Executor(f"{name}@{host}", int(cores) if cores.isdecimal() else 0)


def _parent(process: int) -> int:
    """The parent of a process; its name may hold anything, parentheses too."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
