"""The folder where a process starts: Python looks for modules there first.

That is the script's with ``python script.py``, and the current one with ``python -m``, by which
Spark starts its processes. Users rely on it: their own modules lie there. But a ``kafka/``, a
``numpy.py`` or a ``queue.py`` there would be imported in place of what kshare needs.

- In kshare's own processes, :func:`put_installed_first` has what kshare needs looked for elsewhere
  first; all other modules of the folder are found as before.
- In a process of the user's, a name can mean one thing only. There :func:`hiding` finds the files
  that an error has to name.

Cost: 0.2 ms; importing it reads nothing.
"""

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Final

__all__ = [
    "NEEDED",
    "OWN",
    "InstalledFirst",
    "hiding",
    "put_installed_first",
    "python_module",
    "python_of_kshare",
    "start_folders",
]

OWN: Final = frozenset({"kshare", "pyspark_kshare", "spark_plugin"})
NEEDED: Final = frozenset(
    {
        *("_cffi_backend", "annotated_types", "anyio", "attr", "attrs", "authlib", "cachetools"),
        *("certifi", "cffi", "confluent_kafka", "crc32c", "cryptography", "dateutil", "fastavro"),
        *("fsspec", "google", "h11", "httpcore", "httpx", "httpx2", "idna", "javaproperties"),
        *("joserfc", "kafka", "mmh3", "msgspec", "numpy", "opentelemetry", "pandas"),
        *("prometheus_client", "py4j", "pyarrow", "pycparser", "pydantic", "pydantic_core"),
        *("pyspark", "pytz", "scipy", "six", "typing_extensions", "typing_inspection", "tzdata"),
        "uvloop",
    }
)
"""Modules of other packages that planners, tasks and consumers import, extras among them."""


def python_of_kshare(code: str) -> list[str]:
    """Return the command of a process that imports this kshare, whatever lies in its folder.

    Args:
        code: What it runs; arguments may be added to the command.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    # Not by PYTHONPATH: where pip builds a wheel, it drops what the environment has for its own.
    first = "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    return [sys.executable, "-P", "-c", first + code, root]


def python_module(module: str) -> list[str]:
    """Return the command of a process that runs a module of this kshare as ``python -m`` does."""
    code = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    return [*python_of_kshare(code), module]


def start_folders() -> list[str]:
    """Return the first folder of the path, and the current one: a start puts either there."""
    first = sys.path[0] if sys.path else ""
    folders = [os.path.realpath(first or os.curdir)]
    return list(dict.fromkeys([*folders, os.path.realpath(os.curdir)]))


class InstalledFirst:
    """A finder that looks for some top-level modules everywhere but in one folder.

    What is nowhere else is left to the finders behind it, so it is found in the folder.

    Args:
        folder: The folder.
        names: The modules.
    """

    def __init__(self, folder: str, names: Collection[str]) -> None:
        self._folder = os.path.realpath(folder)
        self._names = frozenset(names)
        self._is_folder: dict[str, bool] = {}  # by the path's entry

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is outside of the folder; None if it is nowhere."""
        if path is not None or name not in self._names:
            return None
        elsewhere = [entry for entry in sys.path if not self._is(entry)]
        spec = PathFinder.find_spec(name, elsewhere, target)
        return spec if spec is not None and spec.loader is not None else None

    def _is(self, entry: str) -> bool:
        known = self._is_folder.get(entry)
        if known is None:
            known = os.path.realpath(entry or os.curdir) == self._folder
            self._is_folder[entry] = known
        return known


def put_installed_first(folder: str) -> None:
    """From now on, import the standard library, kshare and what it needs from elsewhere.

    A kshare that lies in the folder itself, such as a clone that is installed in editable mode,
    stays the one that is imported.
    """
    names = NEEDED | sys.stdlib_module_names
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    if os.path.realpath(root) != os.path.realpath(folder):
        names |= OWN
    # Built-in modules keep their place before it, and an editable installation's finders behind.
    finders: list[object] = list(sys.meta_path)
    place = finders.index(PathFinder) if PathFinder in finders else len(finders)
    sys.meta_path.insert(place, InstalledFirst(folder, names))


def hiding(
    folders: Iterable[str],
    names: Collection[str] | None = None,
    imported: Mapping[str, ModuleType] | None = None,
) -> dict[str, str]:
    """Find files that a process has imported, or would import, in place of what is also elsewhere.

    Args:
        folders: Folders of the path.
        names: Top-level modules; None: those of the standard library, and those that kshare needs.
        imported: The modules that are imported; None: those of this process.

    Returns:
        By its name, the file of each module that hides another one.
    """
    wanted = frozenset(NEEDED | sys.stdlib_module_names if names is None else names)
    modules = sys.modules if imported is None else imported
    found = {}
    for folder in map(os.path.realpath, folders):
        try:
            present = {entry.partition(".")[0] for entry in os.listdir(folder)}  # noqa: PTH208
        except OSError:
            continue
        for name in sorted(wanted & present):
            spec = PathFinder.find_spec(name, [folder])
            if spec is None or not spec.has_location or spec.origin is None:
                continue  # a folder without __init__.py hides nothing
            loaded = modules.get(name)
            if loaded is not None and not _lies_in(loaded, folder):
                continue
            if InstalledFirst(folder, {name}).find_spec(name, None) is not None:
                found[name] = spec.origin
    return found


def _lies_in(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file).startswith(os.path.join(folder, ""))  # noqa: PTH118
