"""kshare as a Spark data source. This package is the only code that knows Spark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_plugin.listener import KshareListener
    from spark_plugin.source import KshareDataSource

__all__ = ["KshareDataSource", "KshareListener"]

# Planners and tasks need no listener, and ``kshare --help`` needs no Spark.
_MODULES = {"KshareDataSource": "spark_plugin.source", "KshareListener": "spark_plugin.listener"}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
