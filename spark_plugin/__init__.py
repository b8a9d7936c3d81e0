"""kshare as a Spark data source. The only code that knows Spark; each method calls into kshare."""

from typing import TYPE_CHECKING, Any

from spark_plugin.source import KshareDataSource

if TYPE_CHECKING:
    from spark_plugin.listener import KshareListener

__all__ = ["KshareDataSource", "KshareListener"]


def __getattr__(name: str) -> Any:
    if name == "KshareListener":  # planners and tasks import this package, and need no listener
        from spark_plugin.listener import KshareListener  # noqa: PLC0415

        return KshareListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
