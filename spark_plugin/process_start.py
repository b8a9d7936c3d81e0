"""In a process that Spark has started, what lies in the current folder hides nothing of kshare's.

Spark starts its processes with ``python -m``, which puts the current folder first on the path.
``kshare-python`` starts them without it (``-P``), so that nothing of the folder is imported before
this puts it back: first, as users' own modules lie there, but what kshare needs is looked for
elsewhere first (:mod:`kshare.start_folder`). With another Python, what PySpark has imported until
now came from the folder.
"""

import os
import sys
from collections.abc import Sequence

__all__ = ["is_sparks", "settle"]

_OURS = ("spark_plugin.daemon", "spark_plugin.plain_start")
_SPARKS = ("pyspark.daemon", "pyspark.worker")
_PACKAGES = ("pyspark.sql.worker.", "pyspark.sql.streaming.", "pyspark.sql.connect.")


def is_sparks(command: Sequence[str]) -> bool:
    """Return whether a command line of Python is one that Spark starts its processes with.

    That is ``python -m`` with a module of PySpark, or with a daemon's, which gets one.
    """
    if "-m" not in command[1:]:
        return False
    place = command.index("-m", 1)
    if not all(option.startswith("-") for option in command[1:place]):
        return False  # an argument of a script
    module, argument = (*command[place + 1 : place + 3], "", "")[:2]
    return module in _OURS or any(
        name in _SPARKS or name.startswith(_PACKAGES) for name in (module, argument)
    )


def settle(command: Sequence[str]) -> None:
    """Put the current folder first on the path, without letting it hide what kshare needs.

    Does nothing in a process that Spark has not started.

    Args:
        command: The process's command line.

    Raises:
        ImportError: A file of the folder has been imported in place of a package that kshare needs.
    """
    if not is_sparks(command):
        return
    try:
        folder = os.getcwd()  # noqa: PTH109 - as Python does
    except OSError:  # it was removed
        return
    is_on_path = "-P" not in command[1 : command.index("-m", 1)]
    if is_on_path and sys.path[:1] != [folder]:
        return  # by PYTHONSAFEPATH: users do not want it there
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if is_on_path and folder != root:
        sys.path.pop(0)  # another kshare may lie there
    from kshare.start_folder import NEEDED, hiding, put_installed_first  # noqa: PLC0415 - see above

    if not is_on_path or folder != root:
        sys.path.insert(0, folder)
    put_installed_first(folder)
    imported = [file for name, file in hiding([folder], NEEDED).items() if name in sys.modules]
    if imported:
        raise ImportError(
            f"{', '.join(imported)} was imported in place of a package of the same name, which "
            "kshare needs. Rename it, start in another folder, or set PYSPARK_PYTHON to "
            "kshare-python, which does not import it"
        )
