"""The lines of a file that a process writes while it is read."""

import os
from pathlib import Path

__all__ = ["append_lines", "whole_lines"]


def whole_lines(file: Path) -> list[str]:
    """The lines that are written to their end: the last one may be cut."""
    text = file.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def append_lines(file: str, *lines: str) -> None:
    """Append lines by one write, so that a kill leaves no part of them."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(descriptor)
