"""Calls of a consumer, and its end."""

import os
import threading
from contextlib import suppress

import pytest

from kshare.group.consumer import call_state
from kshare.group.consumer.call_state import CallState
from tests.support.groups import SECONDS
from tests.support.interrupts import Interrupt, interrupt


@pytest.mark.parametrize("begins_before", [False, True])
def test_who_ends_it_may_wait_for_a_call_of_another_thread(begins_before: bool) -> None:
    """As an ``on_revoked`` that joins the threads that work."""
    has_begun, may_go_on, has_returned = (threading.Event() for _ in range(3))
    waited = list[bool]()

    def work() -> None:
        if not begins_before:
            assert may_go_on.wait(SECONDS)
        with state.call():
            has_begun.set()
            assert may_go_on.wait(SECONDS)
        has_returned.set()

    def shut_down() -> None:
        may_go_on.set()
        waited.append(has_returned.wait(SECONDS))

    state = CallState(shut_down)
    worker = threading.Thread(target=work)
    worker.start()
    assert not begins_before or has_begun.wait(SECONDS)
    state.shut_down()
    worker.join(SECONDS)
    assert waited == [True]
    assert state.has_ended


def test_who_closes_it_amid_a_call_ends_it_after_that() -> None:
    state = CallState(lambda: None)
    with state.call():
        with state.call():
            state.shut_down()
        assert not state.has_ended
    assert state.has_ended


def test_who_closes_it_amid_a_change_of_what_is_delivered_lets_another_thread_end_it() -> None:
    """As a signal handler: who polls holds ``polling``, and may wait for ``lock``."""
    by, has_ended = list[int](), threading.Event()

    def shut_down() -> None:
        by.append(threading.get_ident())
        has_ended.set()

    state = CallState(shut_down)
    with state.lock:
        state.shut_down()
    assert has_ended.wait(SECONDS)
    assert by != [threading.get_ident()]


def test_in_a_process_that_was_forked_since_no_call_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = CallState(lambda: None)
    inherited = [state.is_inherited]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    inherited.append(state.is_inherited)
    assert inherited == [False, True]
    for begins in (state.call, lambda: state.changing(lambda: None)):
        with pytest.raises(RuntimeError, match="make one here, after the fork"), begins():
            pass
    with pytest.raises(RuntimeError, match="make one here, after the fork"):
        state.check_open()


def test_no_interrupt_leaves_a_thread_amid_a_call() -> None:
    number, is_over = 0, False
    while not is_over:
        state = CallState(lambda: None)
        with suppress(Interrupt), interrupt(number, call_state) as raised, state.call():
            pass
        state.shut_down()
        assert state.has_ended, raised
        number, is_over = number + 1, not raised
    assert number > 2


def test_an_end_that_is_interrupted_while_it_waits_comes_after_the_call_of_another_thread() -> None:
    has_begun, may_go_on, has_ended = (threading.Event() for _ in range(3))

    class Interrupted:
        """Interrupts who waits for it first, as Ctrl-C does."""

        def __init__(self) -> None:
            self.faults = [Interrupt()]

        def __enter__(self) -> None:
            if self.faults:
                raise self.faults.pop()
            polling.acquire()

        def __exit__(self, *_: object) -> None:
            polling.release()

    def work() -> None:
        with state.call(), polling:
            has_begun.set()
            assert may_go_on.wait(SECONDS)

    state = CallState(has_ended.set)
    polling = state.polling
    state.polling = Interrupted()  # type: ignore[assignment]
    worker = threading.Thread(target=work)
    worker.start()
    assert has_begun.wait(SECONDS)
    with pytest.raises(Interrupt):
        state.shut_down()
    assert not state.has_ended
    may_go_on.set()
    worker.join(SECONDS)
    assert has_ended.wait(SECONDS)
