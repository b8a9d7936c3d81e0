"""Messages between Spark and a Python worker never wait for an acknowledgement.

Spark's JVM sends a task to its worker in two messages, first what is to be run, then its rows, or
the partition to read. It leaves its connection as TCP has it by default, so the second message is
held back until the first one is acknowledged (Nagle's algorithm), and the worker's system does
that with the worker's next answer, or 40 ms later. The answer comes last, so each task lost these
40 ms: more than half of a task of few rows (docs/design/benchmarks.md). What runs in a task is
unpickled between the two, so that is when to acknowledge the first one. Seen on Spark 4.0.2 and
4.3.0, with any Python.

The other way is the same where a task sends rows as they come: the next ones would be held back
until Spark's system acknowledges the last ones.

Cost: some system calls a task, and for each batch of rows that it takes, 0.02 ms. Nothing is
imported that a worker has not loaded anyway.
"""

import inspect
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedIOBase
from typing import Any, Final, TypeVar

from kshare.operating_system import this_system

__all__ = ["SentToTasks", "acknowledging", "worker_output"]

_T = TypeVar("_T")
_MAIN: Final = "main"
_WORKERS: Final = ("pyspark.worker", "__main__")  # the latter without a daemon
_OUTPUT: Final = "outfile"


class SentToTasks:
    """Base of classes that Spark sends to tasks, pickled: there, the rest need not wait."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _wait_for_nothing()


def worker_output() -> BufferedIOBase | None:
    """Return what this process writes to for Spark, if it is a Python worker.

    It is in a local variable of the worker's main function, so this looks there: it is to be called
    by what the worker calls, in its thread.

    Returns:
        None outside of a worker, and in one of an unknown version of Spark.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == _MAIN and frame.f_globals.get("__name__") in _WORKERS:
            output = frame.f_locals.get(_OUTPUT)
            return output if isinstance(output, BufferedIOBase) else None
        frame = frame.f_back
    return None


def acknowledging(batches: Iterable[_T]) -> Iterator[_T]:
    """The batches that Spark sends a task; each message is acknowledged once it is taken.

    A task that only takes rows, as a sink's does, answers nothing until it ends: each next message
    would be held back for up to 40 ms. To be called in the worker's thread.
    """
    output = worker_output()
    return iter(batches) if output is None else _acknowledged(batches, output)


def _acknowledged(batches: Iterable[_T], output: BufferedIOBase) -> Iterator[_T]:
    for batch in batches:
        _acknowledge(output)
        yield batch


def _wait_for_nothing() -> None:
    output = worker_output()
    if output is not None:
        _acknowledge(output, no_delay=True)


def _acknowledge(output: BufferedIOBase, *, no_delay: bool = False) -> None:
    """Acknowledge what has come; ``no_delay``: from now on, let what is sent not wait, either."""
    # No file: a worker without a daemon, which takes far longer to start. No TCP: a unix socket,
    # which keeps nothing back.
    with suppress(OSError):
        connection = socket.socket(fileno=output.fileno())
        try:
            connection.setblocking(True)  # whatever socket.setdefaulttimeout() has made of it
            if no_delay:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            this_system().acknowledge(connection)
        finally:
            connection.detach()  # it stays the worker's
