"""Run by the Python that Spark's workers use, which may have no kshare: the standard library alone.

Prints one line of JSON: what there is of Python, PySpark and kshare, and which of the modules that
Spark imports to find data sources cannot be imported.
"""

import importlib
import json
import pkgutil
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["main"]


def main() -> None:
    """Print the line; what the modules print stands before it."""
    broken = {}
    for module in pkgutil.iter_modules():
        if module.name.startswith("pyspark_"):
            try:
                importlib.import_module(module.name)
            except BaseException as error:
                broken[module.name] = f"{type(error).__name__}: {error}"
    line = json.dumps(
        {
            "python": list(sys.version_info[:3]),
            "prefix": sys.prefix,
            "pyspark": _version("pyspark") or _version("pyspark-client"),
            "kshare": _version("kshare"),
            "broken": broken,
        }
    )
    sys.stdout.write(f"\n{line}\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
