"""When a transaction may commit, as far as the session knows."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from kshare.errors import TransactionAbortedError
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.transaction import ProducerEpoch, Todo, TransactionState
from kshare.group.core.work import Work
from kshare.group.session.shared import Shared
from kshare.group.session.transaction_log import LogThread, TransactionLog


def log_of(read_at: float) -> TransactionLog:
    thread = cast("LogThread", SimpleNamespace(read_at=read_at))
    return TransactionLog("g", Shared(Ownerships("m", "g", 10.0)), thread, time.monotonic)


def next_todo(log: TransactionLog, timeout: float, *, is_closed: bool = False) -> Todo:
    """What is next for a transaction that has written outputs, after it has waited.

    Args:
        log: The group's log.
        timeout: ``transaction.timeout.ms``, in seconds.
        is_closed: Whether its consumer is closed.
    """
    state = TransactionState(timeout)
    state.begin("mark", 0)
    state.begun(time.monotonic(), ProducerEpoch(ready_at=6.0, own_fences=0))
    state.ask_commit("mark", {}, time.monotonic(), has_news=False)
    todo = Todo.WAIT
    while todo is Todo.WAIT:
        todo = log.next_todo(
            state,
            Work({}, {}),
            "stable",
            is_closed=lambda: is_closed,
            is_disturbed=lambda: False,
        )
    return todo


def answers() -> Iterator[bool]:
    yield from (False, False, True)


def test_a_session_that_may_have_been_taken_for_dead_does_not_commit() -> None:
    """Who had its key hashes meanwhile may have left nothing in the log."""
    log = log_of(read_at=7.0)
    log.is_alive = lambda: False
    with pytest.raises(TransactionAbortedError, match="its coordinator does not answer"):
        next_todo(log, 0.05)
    said = answers()
    log.is_alive = lambda: next(said)
    assert next_todo(log, 60) is Todo.WRITE
    assert log.records() == []


def test_a_log_that_was_not_read_since_does_not_do() -> None:
    with pytest.raises(TransactionAbortedError, match="the group's log or"):
        next_todo(log_of(read_at=6.0), 0.05)


def test_a_member_that_was_dropped_does_not_wait() -> None:
    """It joins again only once the transaction is over."""
    log = log_of(read_at=7.0)
    log.is_alive, log.is_lost = lambda: False, lambda: True
    began = time.monotonic()
    with pytest.raises(TransactionAbortedError, match="was dropped from its group"):
        next_todo(log, 60)
    assert time.monotonic() - began < 30


def test_one_whose_consumer_is_closed_does_not_wait() -> None:
    with pytest.raises(TransactionAbortedError, match="the consumer was closed"):
        next_todo(log_of(read_at=6.0), 60, is_closed=True)
