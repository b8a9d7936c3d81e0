"""What of a processor cannot be sent to Spark's tasks: by name, before a query is planned.

PySpark pickles a function with all that it uses: variables around it, globals of a script or a
notebook, attributes of its object. What it says of a lock deep inside names none of them.

Cost: the processor is pickled once more.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from kshare.core.showing import shown_error

__all__ = ["Dumps", "spark_dumps", "unpicklable"]

Dumps: TypeAlias = Callable[[Any], bytes]

_DEPTH_MAX = 5
_EMPTY = CellType()  # of a variable that has no value yet


def spark_dumps() -> Dumps | None:
    """PySpark's pickler; None if there is no PySpark. Where there is a frame, it is loaded."""
    module: Any = sys.modules.get("pyspark.cloudpickle")
    return None if module is None else module.dumps


def unpicklable(parts: Mapping[str, Any], dumps: Dumps) -> Iterator[str]:
    """A sentence for each part that cannot be pickled.

    Args:
        parts: What was given, by the names of arguments.
        dumps: Pickles an object.
    """
    for argument, part in parts.items():
        error = _failure(part, dumps)
        if error is None:
            continue
        name = getattr(part, "__qualname__", type(part).__qualname__)
        path = " of ".join(reversed(_path(part, dumps)))
        what = f"its {path}" if path else "it"
        yield (
            f"{argument} {name} cannot be sent to Spark's tasks: {what} cannot be pickled "
            f"({shown_error(error)}); make that inside the function when it is first "
            "called, or in a module that the workers import"
        )


def _failure(value: Any, dumps: Dumps) -> Exception | None:
    try:
        dumps(value)
    except Exception as error:  # whatever a class raises in __reduce__, too
        return error
    return None


def _path(value: Any, dumps: Dumps) -> list[str]:
    """The way to what cannot be pickled, by name; empty if it is the value itself."""
    path: list[str] = []
    while len(path) < _DEPTH_MAX:
        found = next((each for each in _used(value) if _failure(each[1], dumps) is not None), None)
        if found is None:
            break
        path.append(found[0])
        value = found[1]
    return path


def _used(value: Any) -> Iterator[tuple[str, Any]]:
    """What is pickled with a value, by name."""
    if isinstance(value, MethodType):
        yield from _used(value.__self__)
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        variables = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
        variables |= {
            name: value.__globals__[name]
            for name in _names(value.__code__)
            if name in value.__globals__
        }
        variables |= {f"default {at}": each for at, each in enumerate(value.__defaults__ or ())}
        for name, each in variables.items():
            if not isinstance(each, ModuleType):
                yield f"variable {name!r}", each
    elif isinstance(value, partial):
        yield from _used(value.func)
        given = {str(at): each for at, each in enumerate(value.args)} | value.keywords
        yield from ((f"argument {name}", each) for name, each in given.items())
    else:
        for name, each in getattr(value, "__dict__", {}).items():
            yield f"attribute {name!r}", each


def _names(code: CodeType) -> Iterator[str]:
    """The globals that a function may use, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
