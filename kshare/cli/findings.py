"""The findings of ``kshare doctor``: what there is, how good it is, and what to do."""

import sys
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["Finding", "Level", "text_of_finding"]

Level: TypeAlias = Literal["green", "yellow", "red"]
_COLOURS: Final[dict[Level, int]] = {"green": 32, "yellow": 33, "red": 31}


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding.

    Attributes:
        check: What was looked at, in a word or two.
        level: ``green``: in order. ``yellow``: works, but worse than it could, or does not work and
            was not asked for. ``red``: queries, or what was asked for, fail.
        text: What there is.
        remedy: What to do; empty if nothing has to be done.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""


def text_of_finding(finding: Finding) -> str:
    """A finding as lines, in colours if a terminal shows them."""
    mark = f"{finding.level:<6}"
    if sys.stdout.isatty():
        mark = f"\033[{_COLOURS[finding.level]}m{mark}\033[0m"
    remedy = f"\n       -> {finding.remedy}" if finding.remedy else ""
    return f"{mark} {finding.check}: {finding.text}{remedy}\n"
