"""Values of a process, before and after a fork."""

import os
import threading
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


def test_threads_of_a_child_have_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    made = list[object]()

    def make() -> object:
        if len(made) > 0:
            both.wait(60)  # each thread has seen that there is none
        made.append(object())
        return made[-1]

    value = ProcessLocal(make, keeps_copy=False)
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    seen = list[object]()
    threads = [threading.Thread(target=lambda: seen.append(value())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 3
    assert seen[0] is seen[1] is value()
