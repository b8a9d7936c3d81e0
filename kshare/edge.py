"""Errors where Spark calls kshare: the sentence without kshare's own frames.

Spark shows the traceback of an error before its text, and notebooks show only the beginning. So an
error that says what is wrong leaves without the frames of kshare. Frames of the user's code stay,
and those of any other error. ``KSHARE_FULL_TRACEBACK=1`` keeps all of them.
"""

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, ParamSpec, TypeVar, cast

from kshare.errors import KshareError

__all__ = ["FULL_TRACEBACK", "edge"]

P = ParamSpec("P")
R = TypeVar("R")

FULL_TRACEBACK: Final = "KSHARE_FULL_TRACEBACK"
_OFF: Final = {"", "0", "false"}
_OURS: Final = {"kshare", "spark_plugin", "pyspark_kshare"}
_LIBRARIES: Final = {
    *("confluent_kafka", "cryptography", "javaproperties", "kafka", "numpy", "pyarrow", "pydantic"),
    *("py4j", "pyspark", "scipy"),
}


def edge(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function, or a generator function, the edge that errors cross without our frames.

    A cause stays if the user's code has raised it; the text of a :class:`KshareError` says any
    other.
    """
    if isgeneratorfunction(function):

        @wraps(function)
        def rows(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return (yield from function(*args, **kwargs))
            except KshareError as error:
                if _stays(error):
                    raise
                raise error.with_traceback(None) from _users_cause(error)

        return cast("Callable[P, R]", rows)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KshareError as error:
            if _stays(error):
                raise
            raise error.with_traceback(None) from _users_cause(error)

    return call


def _stays(error: KshareError) -> bool:
    """True if the error leaves as it is: the user's code raised it, or all frames are wanted."""
    wanted = os.environ.get(FULL_TRACEBACK, "").strip().lower() not in _OFF
    return wanted or _is_users(error)


def _users_cause(error: BaseException) -> BaseException | None:
    """The first of the error's causes that has passed the user's code."""
    cause: BaseException | None = error
    while cause is not None:
        if _is_users(cause):
            return cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _is_users(error: BaseException) -> bool:
    """True if a frame between the edge and where the error was raised is the user's."""
    return any(_is_foreign(frame.f_globals) for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_foreign(names: dict[str, Any]) -> bool:
    package = str(names.get("__name__", "")).partition(".")[0]
    if package == "__main__":  # of Spark's Python processes, or the user's script
        package = str(names.get("__package__") or "").partition(".")[0]
    return package not in _OURS | _LIBRARIES and package not in sys.stdlib_module_names
