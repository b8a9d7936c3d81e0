"""Spark's own archives on Python's path cost a task nothing.

Before each task, a Python worker of Spark 4.0 or 4.1 empties Python's caches of imports
(``setup_spark_files``; later versions do if the path has changed). Up to Python 3.12 each finder
that looks into an archive then reads its directory anew. Spark puts three archives of its own on
the path: ``pyspark.zip``, with a finder for each package in it, that of py4j, and the jar of its
core, which has 6,000 files and no Python. A task of few rows took twice its time by that
(docs/design/benchmarks.md). ``kshare-python`` leaves them out of the path.
"""

import re
import sys
from typing import Final

__all__ = ["forget_finders"]

_SPARKS: Final = re.compile(
    r"(?:^|/)(?:pyspark\.zip|py4j-[^/]*-src\.zip|spark-core_[^/]*\.jar)(?:/|$)"
)


def forget_finders() -> None:
    """Let Python forget the finders in Spark's own archives, for the next task of this process.

    A finder that is not there is not emptied. The next import that looks there makes one, from the
    directory that Python has read before: these files do not change while Spark runs. Archives of
    users may, and stay as they are.
    """
    for path in [each for each in sys.path_importer_cache if _SPARKS.search(each)]:
        del sys.path_importer_cache[path]
