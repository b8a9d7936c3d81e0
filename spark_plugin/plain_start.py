"""A start of one of Spark's processes without the fork server, for ``kshare-python``.

``python3 -P -m spark_plugin.plain_start MODULE ...`` runs a module as ``python3 -m MODULE ...``
does, but nothing that lies in the current folder hides what kshare needs: that is settled when this
package is imported (:mod:`spark_plugin.process_start`).
"""

import runpy
import sys

__all__ = ["main"]


def main(module: str, arguments: list[str]) -> None:
    """Run a module as ``__main__``."""
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
