"""Objects of the user's in our texts, whatever their classes do."""

from typing import Any

import pytest

from kshare.core.showing import error_text, shown, shown_error


class PanicError(BaseException):
    """As PyO3's: no Exception."""


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error


class NoText:
    def __repr__(self) -> Any:
        return None


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Endless:
    def __repr__(self) -> str:
        return f"<{self!r}>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"k", "b'k'"),
        ("\ud800", "'\\ud800'"),
        (Raises(OSError("no")), "an object of Raises, its repr cannot be made: OSError"),
        (Raises(PanicError()), "an object of Raises, its repr cannot be made: PanicError"),
        (NoText(), "an object of NoText, its repr cannot be made: TypeError"),
        (Endless(), "an object of Endless, its repr cannot be made: RecursionError"),
        (["x" * 2000], "['" + "x" * 998),
    ],
)
def test_an_object_is_shown_or_why_it_cannot_be(value: object, text: str) -> None:
    assert shown(value) == text


def test_an_error_has_its_text_or_why_there_is_none() -> None:
    assert shown_error(ValueError("bad \ud800 name")) == "ValueError: bad \\ud800 name"
    assert shown_error(ValueError()) == "ValueError"
    assert shown_error(SilentError()) == "SilentError: its text cannot be made: ValueError"
    assert error_text(ValueError("long"), 2) == "lo"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_what_ends_the_process_passes(error: BaseException) -> None:
    with pytest.raises(type(error)):
        shown(Raises(error))
