"""kshare as a Spark data source. The only code that knows Spark; each method calls into kshare."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_plugin.listener import KshareListener
    from spark_plugin.source import KshareDataSource

__all__ = ["KshareDataSource", "KshareListener"]

# Planners and tasks need no listener, and ``kshare --help`` needs no Spark.
_HOMES = {"KshareDataSource": "spark_plugin.source", "KshareListener": "spark_plugin.listener"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
