"""Values of a process, before and after a fork."""

import os
from collections.abc import Callable

import pytest

from kshare import process_local
from kshare.process_local import ProcessLocal


class Ended:
    """Says so when nothing refers to it any more."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end

    def __del__(self) -> None:
        self.end()


@pytest.mark.parametrize("keeps_copy", [False, True])
def test_a_fork_makes_its_own_value(monkeypatch: pytest.MonkeyPatch, keeps_copy: bool) -> None:
    ends = list[str]()
    value = ProcessLocal(lambda: Ended(lambda: ends.append("ended")), keeps_copy=keeps_copy)
    first = id(value())
    assert id(value()) == first
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    monkeypatch.setattr(process_local, "_of_parents", [])
    second = value()
    assert value() is second
    assert ends == ([] if keeps_copy else ["ended"])
    assert len(process_local._of_parents) == keeps_copy
