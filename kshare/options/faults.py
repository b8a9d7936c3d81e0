"""Faults and warnings, gathered while options are parsed.

Guarantee: a fault names its option, says what is wrong, and what would be right where that is not
obvious; all faults are reported together.
"""

import difflib
from collections.abc import Iterable
from typing import Any

from kshare.errors import OptionsError
from kshare.options.kinds import Kind

__all__ = ["Faults"]

_SHOWN_MAX = 120


class Faults:
    """The faults of a set of options, and the warnings for the user."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self._unknown: list[str] = []

    def add(self, option: str, value: str | None, wrong: str, right: str = "") -> None:
        """Add a fault.

        Args:
            option: The name, as documented.
            value: The text that was given, to be shown; None if it is a secret or missing.
            wrong: What is wrong with it.
            right: What would be right.
        """
        text = f"{option}: {wrong}"
        if value is not None:
            shown = value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."
            text += f" (given: {shown!r})"
        if right:
            text += f"; {right}"
        if text not in self.problems:
            self.problems.append(text)

    def parse(self, option: str, text: str, kind: Kind) -> Any:
        """Parse the text of an option; None, and a fault, if it is wrong."""
        try:
            return kind.parse(text)
        except ValueError as error:
            self.add(option, text, str(error), getattr(error, "right", ""))
            return None

    def warn(self, option: str, text: str) -> None:
        """Add a warning: the option works otherwise than the user may think."""
        self.warnings.append(f"option {option} {text}")

    def warn_unknown(self, name: str, what: str, known: Iterable[str], prefix: str = "") -> None:
        """Warn of a name that is not known, and name the nearest one.

        Args:
            name: The name as given, without the prefix.
            what: What it is not: an option, or a property.
            known: The names that are known, without the prefix.
            prefix: What the user writes in front of all of them.
        """
        by_lower_case = {known_name.lower(): known_name for known_name in known}
        nearest = difflib.get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.0)[0]
        known_name = f"{prefix}{by_lower_case[nearest]}"
        self.warn(
            f"{prefix}{name}",
            f"is ignored, no such {what} is known; the nearest known one is {known_name}",
        )
        self._unknown.append(
            f"{prefix}{name}: no such {what} is known; the nearest known one is {known_name}"
        )

    def raise_if_any(self) -> None:
        """Raise an error that lists all faults, if there are any.

        Unknown names are listed with them: one may be a missing option's, misspelt.

        Raises:
            OptionsError: There are faults.
        """
        if self.problems:
            raise OptionsError([*self.problems, *self._unknown])
