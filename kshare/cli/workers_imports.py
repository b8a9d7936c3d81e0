"""What Spark's workers import if they start in this folder, as the doctor judges it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import kshare
from kshare.start_folder import hiding

__all__ = ["files_here", "judged", "remedies", "they_hide"]

_STARTER = "kshare-python"


def files_here() -> dict[str, str]:
    """Return, by its name, each module of this folder that can hide one that kshare needs."""
    return hiding([os.curdir], imported={})


def they_hide(files: Iterable[str]) -> str:
    """Return the end of a sentence that names files; empty without any."""
    named = ", ".join(sorted(files))
    return f"; modules of the same name are hidden by {named}" if named else ""


def remedies(python: str, files: Iterable[str]) -> str:
    """Return what helps against files of this folder; against none, if there are none.

    Args:
        python: The workers' Python.
        files: The files that are imported.
    """
    helps = ["start in another folder"]
    if names := ", ".join(sorted(map(os.path.basename, files))):
        helps.insert(0, f"rename {names}")
    if Path(python).name != _STARTER:
        helps.append(f"or let PYSPARK_PYTHON be {_STARTER}, which imports what is installed")
    return "; ".join(helps)


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
    remedy, where = remedies(python, imported), f"of workers that start in {folder}"
    again = f"install kshare again for {python}: something that it needs is missing"
    if origins["kshare"] is None:  # its metadata alone is there
        return "red", f"{where}: kshare is installed, and cannot be found", again
    origin, own = Path(origins["kshare"]).parent, Path(kshare.__file__).parent
    is_here = origin == folder / "kshare"
    if seen["fault"]:
        if not (imported or is_here):  # another folder would change nothing
            remedy = again
        text = f"{where}: what kshare needs cannot be imported: {seen['fault']}"
        return "red", f"{text}{they_hide(imported)}", remedy
    if imported:
        return "yellow", f"{where}: not what is installed{they_hide(imported)}", remedy
    if is_here and origin != own:
        text = f"{where}: kshare in {origin}, not the installed one in {own}; it works"
        return "yellow", text, remedy
    return "green", f"{where}: kshare in {origin}, and all that it needs", ""
