"""When a transaction may commit, as far as the session knows."""

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from kshare.errors import TransactionAbortedError
from kshare.group.core.ownerships import Ownerships
from kshare.group.session.shared import Shared
from kshare.group.session.transaction_log import LogThread, TransactionLog


def log_of(read_at: float) -> TransactionLog:
    thread = cast("LogThread", SimpleNamespace(read_at=read_at))
    return TransactionLog("g", Shared(Ownerships("m", "g", 10.0)), thread, time.monotonic)


def answers() -> Iterator[bool]:
    yield from (False, False, True)


def test_a_session_that_may_have_been_taken_for_dead_does_not_commit() -> None:
    """Who had its key hashes meanwhile may have left nothing in the log."""
    log = log_of(read_at=7.0)
    log.is_alive = lambda: False
    with pytest.raises(TransactionAbortedError, match="its coordinator does not answer"):
        log.await_read(6.0, time.monotonic() + 0.05)
    said = answers()
    log.is_alive = lambda: next(said)
    log.await_read(6.0, time.monotonic() + 60)


def test_a_log_that_was_not_read_since_does_not_do() -> None:
    with pytest.raises(TransactionAbortedError, match="the group's log or"):
        log_of(read_at=6.0).await_read(6.0, time.monotonic() + 0.05)


def test_a_member_that_was_dropped_does_not_wait() -> None:
    """It joins again only once the transaction is over."""
    log = log_of(read_at=7.0)
    log.is_alive, log.is_lost = lambda: False, lambda: True
    began = time.monotonic()
    with pytest.raises(TransactionAbortedError, match="was dropped from its group"):
        log.await_read(6.0, time.monotonic() + 60)
    assert time.monotonic() - began < 30
