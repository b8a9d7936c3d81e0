"""The output of commands: tables for people, JSON for programs."""

import json
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, Final

from kshare.core.listing import counted, duration, printable, printable_lines

__all__ = [
    "complain",
    "counted",
    "duration",
    "print_json",
    "printable",
    "say",
    "say_block",
    "text_table",
]

_COLOUR: Final = re.compile(r"(\x1b\[(?:0|31|32|33)m)")
"""What the texts of commands colour with; no other control sequence is theirs."""


def print_json(value: Any) -> None:
    """Print a value for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def say(line: str) -> None:
    """Print one line to standard output: what others have put in it begins no other."""
    sys.stdout.write("\t".join(map(printable, line.split("\t"))) + "\n")


def say_block(text: str) -> None:
    """Print lines to standard output, which end with line feeds of ours, and may have colours."""
    parts = (
        part if _COLOUR.fullmatch(part) else "\n".join(map(printable, part.split("\n")))
        for part in _COLOUR.split(text)
    )
    sys.stdout.write("".join(parts))


def complain(text: str) -> None:
    """Print a warning or an error to standard error; only its first line begins at the left."""
    sys.stderr.write(f"{printable_lines(text)}\n")


def text_table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows in columns, as wide as they must be; empty columns are left out.

    Args:
        rows: Cells; the first row is the header.
        right: Numbers of the columns whose cells stand on the right.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    used = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    width = {i: max(len(row[i]) for row in rows) for i in used}
    lines = (
        "  ".join(
            row[i].rjust(width[i]) if i in right else row[i].ljust(width[i]) for i in used
        ).rstrip()
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)
