"""Calls beside one thread, also where no other thread can begin."""

import threading

import pytest

from kshare.kafka.protocol.background import Beside, OneCall, begin
from tests.support.groups import eventually


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is when the interpreter ends."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("no_thread")
def test_a_call_is_made_at_once() -> None:
    woken: list[bool] = []
    made = begin(lambda: 7, "calls", lambda: woken.append(True))
    assert made.result(0) == 7
    assert woken == [True]


@pytest.mark.usefixtures("no_thread")
def test_what_it_raises_is_taken_as_ever() -> None:
    beside, failed = Beside(lambda: None), list[Exception]()
    beside.begin(lambda: 1 // 0, "fails", lambda _: None, failed.append)
    beside.take()
    assert [type(each) for each in failed] == [ZeroDivisionError]


def test_one_call_at_a_time() -> None:
    going_on, calls = threading.Event(), list[str]()
    call = OneCall("test")

    def wait() -> None:
        going_on.wait(60)
        calls.append("first")

    assert call.begin(wait)
    assert not call.begin(lambda: calls.append("never"))
    going_on.set()
    eventually(lambda: call.begin(lambda: calls.append("second")))
    eventually(lambda: calls == ["first", "second"])
