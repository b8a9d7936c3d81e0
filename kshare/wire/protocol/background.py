"""Calls that wait for brokers, each in a thread of its own, for threads that must not wait."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["begin"]

_T = TypeVar("_T")


def begin(call: Callable[[], _T], name: str, wake: Callable[[], None]) -> "Future[_T]":
    """Begin a call.

    Args:
        call: The call.
        name: Name of its thread.
        wake: Called, by that thread, once the future is done.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        wake()

    # A daemon: a broker that does not answer delays no exit.
    threading.Thread(target=run, name=name, daemon=True).start()
    return future
