"""When a transaction may commit, as far as the session knows."""

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.errors import TransactionAbortedError
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.transaction_state import ProducerEpoch, TransactionAction, TransactionState
from kshare.group.core.work import CommitRequest
from kshare.group.delivery_start import DeliveryStart
from kshare.group.membership.handle import MemberHandle
from kshare.group.protocol.commit_log.records import Reset, key_of
from kshare.group.protocol.commit_log.start import Reason, Start
from kshare.group.session.shared import Shared
from kshare.group.session.thread import SessionThread
from kshare.group.session.transaction_log import TransactionLog
from tests.support.groups import T0, UPPER

NOT_OWN = (
    "orders-0 is not this consumer's any more, or its offsets were reset, or the group's log was "
    "lost"
)
LATE = (
    "others have not processed what comes before it, and it waits for that (purgatory=stable): "
    "orders-0 from offset 5 on (stable offset 3)"
)
UNPROVEN = "the group's log or its coordinator does not answer; the last trouble: none"
DROPPED = "the member was dropped from its group, and others may have its key hashes"
NOTHING = CommitRequest({}, {})


def log_of(read_at: float, is_alive: Callable[[], bool] = lambda: True) -> TransactionLog:
    thread = cast("SessionThread", SimpleNamespace(read_at=read_at))
    shared = Shared(Ownerships("m", "g", 10.0))
    return TransactionLog("g", shared, thread, is_alive, time.monotonic)


def next_action(
    log: TransactionLog,
    timeout: float,
    work: CommitRequest = NOTHING,
    *,
    is_torn: bool = False,
    is_closed: bool = False,
    is_disturbed: bool = False,
) -> TransactionAction:
    """What is next for a transaction that has written outputs, after it has waited.

    Args:
        log: The group's log.
        timeout: ``transaction.timeout.ms``, in seconds.
        work: What it processes.
        is_torn: Whether a delivery began again amid it.
        is_closed: Whether its consumer is closed.
        is_disturbed: Whether key hashes are about to change.
    """
    if is_disturbed:
        member = SimpleNamespace(is_lost=False, has_change=True)
        log._shared.member = cast("MemberHandle", member)
    state = TransactionState(timeout)
    state.begin("mark", 0)
    state.begun(time.monotonic(), ProducerEpoch(ready_at=6.0, own_fences=0))
    mark = "another mark" if is_torn else "mark"
    state.ask_commit(mark, work.starts, time.monotonic(), has_news=False)
    action = TransactionAction.WAIT
    while action is TransactionAction.WAIT:
        action = log.next_action(state, work, "stable", is_closed=is_closed)
    return action


def answers() -> Iterator[bool]:
    yield from (False, False, True)


def test_a_session_that_may_have_been_taken_for_dead_does_not_commit() -> None:
    """Who had its key hashes meanwhile may have left nothing in the log."""
    with pytest.raises(TransactionAbortedError, match=UNPROVEN):
        next_action(log_of(7.0, lambda: False), 0.05)
    said = answers()
    log = log_of(7.0, lambda: next(said))
    assert next_action(log, 60) is TransactionAction.WRITE
    assert log.records() == []


def test_a_log_that_was_not_read_since_does_not_do() -> None:
    with pytest.raises(TransactionAbortedError, match="the group's log or"):
        next_action(log_of(read_at=6.0), 0.05)


def test_a_member_that_was_dropped_does_not_wait() -> None:
    """It joins again only once the transaction is over."""
    log = log_of(7.0, lambda: False)
    log._shared.member = cast("MemberHandle", SimpleNamespace(is_lost=True, has_change=False))
    began = time.monotonic()
    with pytest.raises(TransactionAbortedError, match=DROPPED):
        next_action(log, 60)
    assert time.monotonic() - began < 30


START = DeliveryStart.new(Progress.at(3))
AHEAD = CommitRequest(
    {T0: START.done.commit([Rectangle(OffsetRange(5, 8), UPPER)])},
    {T0: START},
)
"""What is below is with the owner of the other hashes."""


def log_of_the_upper_half() -> TransactionLog:
    log = log_of(read_at=7.0)
    ownerships = log._shared.ownerships
    ownerships.claim({T0: KeyRanges([UPPER])})
    each = ownerships.by_partition[T0]
    each.start = START
    each.owner.done = START.done.commit([Rectangle(OffsetRange(3, 5), UPPER)])
    return log


@pytest.mark.parametrize(
    ("work", "given", "text"),
    [
        (NOTHING, {"is_closed": True}, "the consumer was closed"),
        (AHEAD, {"is_torn": True}, "the delivery of a partition began again meanwhile"),
        (
            CommitRequest({}, {T0: DeliveryStart.new(Progress.at(3))}),
            {},
            NOT_OWN,
        ),
        (
            AHEAD,
            {},
            LATE,
        ),
        (
            AHEAD,
            {"is_disturbed": True},
            "key hashes were assigned anew while it waited for what comes before its records",
        ),
    ],
)
def test_what_is_said_of_one_that_cannot_commit(
    work: CommitRequest, given: dict[str, bool], text: str
) -> None:
    with pytest.raises(TransactionAbortedError) as caught:
        next_action(log_of_the_upper_half(), 0.0, work, **given)
    has_group = not given.get("is_closed") and not given.get("is_torn")
    assert str(caught.value) == f"{'group g: ' * has_group}the transaction is aborted: {text}"


@pytest.mark.parametrize("is_anew", [False, True])
def test_what_is_committed_under_a_claim_that_was_replaced_is_read_first(is_anew: bool) -> None:
    """The new claim may have started before these facts were in the log: they would come again."""
    log = log_of_the_upper_half()
    each = log._shared.ownerships.by_partition[T0]
    log._thread = cast("SessionThread", SimpleNamespace(wake=lambda: None))
    if is_anew:
        each.start = DeliveryStart.new(START.done)
    log.committed(AHEAD)
    assert (each.start is None) == is_anew


def test_a_reset_that_its_owner_has_not_looked_at_ends_the_transaction() -> None:
    """Its facts would be of the new offsets, by which nobody has been handed these records."""
    log = log_of(read_at=7.0)
    ownerships = log._shared.ownerships
    ownerships.claim({T0: ALL_HASHES})
    each = ownerships.by_partition[T0]
    each.start, each.owner.resolved = START, Start(Reason.CONTINUED, 1, START.done)
    work = CommitRequest({T0: START.done.advance(8)}, {T0: START})
    for incarnation in (1, 2):
        reset = Reset(T0, incarnation, 0, "other#1")
        ownerships.log.apply(ownerships.log.end, key_of(reset), reset)
        if incarnation == 1:
            assert next_action(log, 60, work) is TransactionAction.WRITE
            assert log.records()
    with pytest.raises(TransactionAbortedError) as caught:
        next_action(log, 60, work)
    assert str(caught.value).endswith(NOT_OWN)
    assert log.records() == []
