"""Faults and warnings, gathered while options are parsed.

Law: a fault names its option, says what is wrong, and what would be right where that is not
obvious; all of them are told together. Cost: none without faults.
"""

from kshare.errors import OptionsError

__all__ = ["Faults"]

_SHOWN_MAX = 120


class Faults:
    """What is wrong with a set of options, and what the user should be told besides."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.warnings: list[str] = []

    def add(self, option: str, value: str | None, wrong: str, right: str = "") -> None:
        """Take a fault.

        Args:
            option: the name, as documented.
            value: what was given, to be shown; None if it is a secret, or is not given.
            wrong: what is wrong with it.
            right: what would be right.
        """
        text = f"{option}: {wrong}"
        if value is not None:
            shown = value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."
            text += f" (given: {shown!r})"
        if right:
            text += f"; {right}"
        if text not in self.problems:
            self.problems.append(text)

    def warn(self, option: str, text: str) -> None:
        """Take a warning: the option works otherwise than the user may think."""
        self.warnings.append(f"option {option} {text}")

    def raise_if_any(self) -> None:
        """Raise what was gathered.

        Raises:
            OptionsError: there are faults.
        """
        if self.problems:
            raise OptionsError(self.problems)
