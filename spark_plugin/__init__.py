"""kshare as a Spark data source. This package is the only code that knows Spark."""

import sys
from typing import TYPE_CHECKING

from spark_plugin.process_start import settle

settle(sys.orig_argv)  # before any import of what kshare needs

from kshare.lazy import names_of  # noqa: E402 - see above

if TYPE_CHECKING:
    from spark_plugin.listener import KshareListener
    from spark_plugin.source import KshareDataSource
    from spark_plugin.threads import use_in_thread
    from spark_plugin.triggers import available_now

__all__ = ["KshareDataSource", "KshareListener", "available_now", "use_in_thread"]

# Planners and tasks need no listener, and ``kshare --help`` needs no Spark.
_HOMES = {
    "KshareDataSource": "spark_plugin.source",
    "KshareListener": "spark_plugin.listener",
    "available_now": "spark_plugin.triggers",
    "use_in_thread": "spark_plugin.threads",
}

__getattr__ = names_of(__name__, _HOMES)
