"""The output of commands: tables for people, JSON for programs."""

import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kshare.core.listing import counted, duration, printable, printable_lines

__all__ = [
    "Answer",
    "complain",
    "counted",
    "duration",
    "line_of",
    "printable",
    "say",
    "say_block",
    "show",
    "text_table",
]

_COLOUR: Final = re.compile(r"(\x1b\[(?:0|31|32|33)m)")
"""What the texts of commands colour with; no other control sequence is theirs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a command that has ``--json``.

    Attributes:
        value: For programs, printed as JSON.
        text: For people: lines that end with line feeds, as :func:`say_block` takes them.
        code: The exit code.
    """

    value: Any
    text: str
    code: int = 0


def show(answer: Answer, *, is_json: bool) -> None:
    """Print a command's answer."""
    if is_json:
        sys.stdout.write(json.dumps(answer.value, indent=2) + "\n")
    else:
        say_block(answer.text)


def line_of(text: str) -> str:
    """One line: what others have put in it begins no other."""
    return "\t".join(map(printable, text.split("\t"))) + "\n"


def say(text: str) -> None:
    """Print one line to standard output."""
    sys.stdout.write(line_of(text))


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
