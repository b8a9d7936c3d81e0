"""What options may have kshare call, and ask for tokens: as the environment of the process says.

Who may only give options, in SQL for instance, cannot set the environment of the driver. Kafka's
Java client has such lists since CVE-2025-27817, as system properties.

Guarantee: with a list, nothing else is imported, asked or read, and the error names the list. A
variable that is not set allows everything; one that is empty, nothing.
"""

import os
from typing import Final

__all__ = ["ALLOWED_FUNCTIONS", "ALLOWED_TOKEN_URLS", "function_fault", "token_url_fault"]

ALLOWED_FUNCTIONS: Final = "KSHARE_ALLOWED_FUNCTIONS"
"""Dotted paths of the assignors and token providers (of Kafka, and of a schema registry) that
options may name; ``package.*`` for all of a package; separated by commas."""
ALLOWED_TOKEN_URLS: Final = "KSHARE_ALLOWED_TOKEN_URLS"  # noqa: S105 - the name of a variable
"""URLs of token endpoints (of Kafka, and of a schema registry), and of token files
(``file:///run/token``); separated by commas."""


def function_fault(path: str) -> tuple[str, str] | None:
    """The reason why an option may not name a function or a class.

    Args:
        path: ``package.module:name`` or ``package.module.name``.

    Returns:
        What is wrong, and what would be right; None if it may.
    """
    allowed = _listed(ALLOWED_FUNCTIONS)
    name = _dotted(path)
    if allowed is not None and not any(
        name.startswith(each[:-1]) if each.endswith(".*") else name == each
        for each in map(_dotted, allowed)
    ):
        return _not_allowed(ALLOWED_FUNCTIONS)
    return None


def token_url_fault(url: str) -> tuple[str, str] | None:
    """The reason why no tokens may come from a URL, as :func:`function_fault`; None if they may."""
    allowed = _listed(ALLOWED_TOKEN_URLS)
    if allowed is not None and url.strip() not in allowed:
        return _not_allowed(ALLOWED_TOKEN_URLS)
    return None


def _listed(variable: str) -> list[str] | None:
    given = os.environ.get(variable)
    return None if given is None else list(filter(None, map(str.strip, given.split(","))))


def _dotted(path: str) -> str:
    return path.strip().replace(":", ".", 1)


def _not_allowed(variable: str) -> tuple[str, str]:
    return (
        f"is not allowed here: the environment variable {variable} does not list it",
        "name one that it lists, or ask who runs this process to add it",
    )
