"""A finding of ``kshare doctor``."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Finding", "Level"]

Level: TypeAlias = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding.

    Attributes:
        check: What was looked at, in a word or two.
        level: ``green``: in order. ``yellow``: works, but worse than it could. ``red``: queries
            fail.
        text: What there is.
        remedy: What to do; empty if nothing has to be done.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""
