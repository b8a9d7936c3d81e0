"""Run by the Python that Spark's workers use, which may have no kshare: the standard library alone.

And of that nothing that Python 3.8 lacks: a Python that is too old answers, and so is named.

It is run as Spark runs a daemon of workers: ``python -m MODULE pyspark.worker``, with names of
modules behind it. It prints one line of JSON: what there is of Python, PySpark and kshare; which of
the modules that Spark imports to find data sources cannot be imported; where the named modules are;
what fails of what planners and tasks import.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["main"]

_MOST = 1_000
_WORKER = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read")
_KSHARE = ("kshare.query.produce", "kshare.kafka.cluster", "kshare.read.reader.read_slice")
_PLUGIN = (
    *("spark_plugin.source", "spark_plugin.readers", "spark_plugin.planner_side"),
    *("spark_plugin.task_side", "spark_plugin.sink"),
)


def main() -> None:
    """Print the line; what the modules print stands before it."""
    fault = _fault()  # first, as workers import PySpark before anything of kshare's
    broken = {}
    for module in pkgutil.iter_modules():
        if module.name.startswith("pyspark_"):
            try:
                importlib.import_module(module.name)
            except BaseException as error:
                broken[module.name] = _shown(error)
    line = json.dumps(
        {
            "python": list(sys.version_info[:3]),
            "prefix": sys.prefix,
            "pyspark": _version("pyspark") or _version("pyspark-client"),
            "kshare": _version("kshare"),
            "broken": broken,
            "origins": {name: _origin(name) for name in ("kshare", *sys.argv[2:])},
            "fault": fault,
        }
    )
    sys.stdout.write(f"\n{line}\n")


def _origin(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def _fault() -> str:
    """Import what planners and tasks do, and find the compiled code; empty if nothing fails."""
    if _origin("kshare") is None:
        return ""
    try:
        has_pyspark = _origin("pyspark") is not None  # or else Spark lends it its own
        for name in (*_WORKER, *_PLUGIN, *_KSHARE) if has_pyspark else _KSHARE:
            importlib.import_module(name)
        importlib.import_module("kshare.read.decode.kernel_library").locate()
    except BaseException as error:
        return _shown(error)
    return ""


def _shown(error: BaseException) -> str:
    """The class of an error and its text; a class of others may have none."""
    try:
        text = str(error)[:_MOST]
    except BaseException as fault:
        text = f"its text cannot be made: {type(fault).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
