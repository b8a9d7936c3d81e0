"""Errors at Spark's edge: our frames go, those of the user's code and of other errors stay."""

import traceback
from collections.abc import Callable, Iterator
from types import FunctionType

import pytest

from kshare.edge import FULL_TRACEBACK, edge
from kshare.errors import KshareError, UnknownTopicError


def of_module(name: str, function: Callable[..., None]) -> Callable[[], None]:
    """The function, as if a module of this name had defined it."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {**function.__globals__, "__name__": name})


def ask() -> None:
    try:
        raise OSError("refused")
    except OSError as error:
        raise UnknownTopicError("topic nope does not exist", topic="nope") from error


def call_the_users() -> None:
    try:
        users()
    except ValueError as error:
        raise KshareError(f"the assignor failed: {error}") from error


def users() -> None:
    raise ValueError("no such key")


def refuse() -> None:
    raise KshareError("the assignor cannot answer now")


def read_rows() -> Iterator[int]:
    yield 1
    ours()


ours = of_module("kshare.kafka.cluster", ask)


def shown(function: Callable[[], object]) -> tuple[BaseException, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any of them
        function()
    error = caught.value
    return error, "".join(traceback.format_exception(error))


def test_the_sentence_stands_alone() -> None:
    error, text = shown(edge(ours))
    assert isinstance(error, UnknownTopicError)
    assert error.topic == "nope"
    assert text.endswith("kshare.errors.UnknownTopicError: topic nope does not exist\n")
    assert "in ask" not in text
    assert "OSError" not in text
    assert text.count("  File ") == 2  # this file's, which stands for Spark, and the edge


def test_rows_come_before_the_sentence() -> None:
    read = FunctionType(
        read_rows.__code__, {**read_rows.__globals__, "__name__": "kshare.read.reader"}
    )
    iterator = edge(read)()
    assert next(iterator) == 1
    error, text = shown(lambda: next(iterator))
    assert isinstance(error, UnknownTopicError)
    assert "in ask" not in text
    assert "in read_rows" not in text


def test_what_the_user_raised_keeps_its_frames() -> None:
    ours = of_module("kshare.query.planner.task_order", call_the_users)
    error, text = shown(edge(ours))
    assert isinstance(error, KshareError)
    assert isinstance(error.__cause__, ValueError)
    assert "in users" in text
    assert "in call_the_users" in text  # on the way to the user's
    assert text.endswith("the assignor failed: no such key\n")
    _, text = shown(edge(refuse))
    assert "in refuse" in text


def test_an_error_that_is_not_ours_keeps_its_frames() -> None:
    def fail() -> None:
        raise TypeError("a fault of kshare's")

    error, text = shown(edge(of_module("kshare.core.batch", fail)))
    assert isinstance(error, TypeError)
    assert "in fail" in text


@pytest.mark.parametrize(
    ("given", "kept"), [("1", True), ("true", True), ("0", False), ("", False)]
)
def test_all_frames_stay_if_they_are_wanted(
    given: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FULL_TRACEBACK, given)
    _, text = shown(edge(ours))
    assert ("in ask" in text) is kept
    assert ("OSError: refused" in text) is kept
