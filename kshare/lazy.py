"""Names of a package that are imported when they are first used.

A package imports so only what is asked for, and needs an extra only where that is. Where the import
fails because a file of the user's hides a module that kshare needs, the error names the file.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from kshare.start_folder import NEEDED, hiding, start_folders

__all__ = ["names_of"]


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``.

    Args:
        package: Its name.
        homes: By public name, the module that has it.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(_imported(home), name)

    return find


def _imported(home: str) -> Any:
    if home in sys.modules:
        return import_module(home)
    before = frozenset(sys.modules)
    try:
        module = import_module(home)
    except Exception as error:
        also = (getattr(error, "name", None) or "").partition(".")[0]
        files = _files(sys.modules.keys() | {also})
        if not files:
            raise
        raise ImportError(f"{home} cannot be imported ({error}): {files}") from error
    imported = sys.modules.keys() - before
    if files := _files(imported & NEEDED):
        raise ImportError(f"{home} cannot be used: {files}")
    if files := _files(imported):  # of the standard library's; perhaps what is missing is not used
        warnings.warn(f"{home} may fail: {files}", RuntimeWarning, stacklevel=3)
    return module


def _files(imported: Collection[str]) -> str:
    """Name the files that hide modules of these names; empty for none."""
    files = [file for name, file in hiding(start_folders()).items() if name in imported]
    if not files:
        return ""
    they = "it" if len(files) == 1 else "them"
    return (
        f"{', '.join(files)} hid{'es a module' if len(files) == 1 else 'e modules'} of the same "
        f"name, which kshare needs. Rename {they}, or start in another folder"
    )
