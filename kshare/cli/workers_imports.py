"""What Spark's workers import if they start in this folder, as the doctor judges it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import kshare
from kshare.start_folder import hiding

__all__ = ["files_here", "judged", "they_hide"]

_STARTER = "kshare-python"


def files_here() -> dict[str, str]:
    """Return, by its name, each module of this folder that can hide one that kshare needs."""
    return hiding([os.curdir], imported={})


def they_hide(files: Iterable[str]) -> str:
    """Return the end of a sentence that names files; empty without any."""
    named = ", ".join(sorted(files))
    return f"; modules of the same name are hidden by {named}" if named else ""


def judged(
    python: str, seen: Mapping[str, Any], files: Mapping[str, str]
) -> tuple[Literal["green", "yellow", "red"], str, str]:
    """Judge what the probe has seen.

    Args:
        python: The workers' Python.
        seen: What :mod:`kshare.cli.probe` says of it.
        files: What :func:`files_here` has found.

    Returns:
        Level, text and remedy of a finding.
    """
    folder, origins = Path.cwd(), seen["origins"]
    imported = [file for name, file in files.items() if origins.get(name) == file]
    remedies = ["start in another folder"]
    if imported:
        remedies.insert(0, f"rename {', '.join(sorted(map(os.path.basename, imported)))}")
    if Path(python).name != _STARTER:
        remedies.append(f"or let PYSPARK_PYTHON be {_STARTER}, which imports what is installed")
    remedy, where = "; ".join(remedies), f"of workers that start in {folder}"
    if seen["fault"]:
        text = f"{where}: what kshare needs cannot be imported: {seen['fault']}"
        return "red", f"{text}{they_hide(imported)}", remedy
    if imported:
        return "yellow", f"{where}: not what is installed{they_hide(imported)}", remedy
    origin, own = Path(origins["kshare"]).parent, Path(kshare.__file__).parent
    if origin == folder / "kshare" and origin != own:
        text = f"{where}: kshare in {origin}, not the installed one in {own}; it works"
        return "yellow", text, remedy
    return "green", f"{where}: kshare in {origin}, and all that it needs", ""
