"""Makes ``format("kshare")`` work without ``register()``: Spark looks for modules of this name."""

from spark_plugin import KshareDataSource as DefaultSource

__all__ = ["DefaultSource"]
