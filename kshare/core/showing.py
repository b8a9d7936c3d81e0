"""Objects of the user's in our texts: what cannot be shown never hides what we have to say."""

import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = ["WHOLE", "error_text", "shown", "shown_error"]

WHOLE: Final = sys.maxsize
"""As the maximum number of characters: no limit."""
_MOST: Final = 1_000
_PASS_ON: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)


def shown(value: Any, most: int = _MOST) -> str:
    """An object as ``repr`` shows it, whatever its class does.

    Args:
        value: The object.
        most: Maximum number of characters.

    Returns:
        A text that UTF-8 has; if there is no ``repr``, the class and why.
    """
    return _text_of(repr, value, most)


def error_text(error: BaseException, most: int = WHOLE) -> str:
    """The text of an error, as ``str`` gives it, whatever its class does.

    Args:
        error: The error.
        most: Maximum number of characters.

    Returns:
        A text that UTF-8 has; if there is none, why.
    """
    return _text_of(str, error, most)


def shown_error(error: BaseException, most: int = _MOST) -> str:
    """The class of an error and its text, such as ``ValueError: no such customer``."""
    text = error_text(error, most)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(make: Callable[[Any], str], value: Any, most: int) -> str:
    try:
        return make(value)[:most].encode(errors="backslashreplace").decode()
    except _PASS_ON:
        raise
    except BaseException as fault:  # a panic of PyO3 is no Exception
        what = "its text" if make is str else f"an object of {type(value).__name__}, its repr"
        return f"{what} cannot be made: {type(fault).__name__}"
