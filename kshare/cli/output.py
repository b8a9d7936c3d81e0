"""The output of commands: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Collection, Sequence
from typing import Any

from kshare.core.listing import counted, duration

__all__ = ["counted", "duration", "print_json", "printable", "text_table"]


def print_json(value: Any) -> None:
    """Print a value for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def printable(text: str) -> str:
    """A text of others without what moves the cursor, or worse."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


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
