"""Commits in the background: what a user reads when one fails."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import (
    CommitFailedError,
    ConsumerClosedError,
    FencedError,
    KafkaError,
    PolicyError,
)
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.processed import Processed
from kshare.group.core.work import CommitRequest, LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.session.session import GroupSession
from tests.support.clock import WAIT_S
from tests.support.groups import LOWER, T0, T1, UPPER, group_config, rectangle

WORK = CommitRequest({T0: Progress.at(5)}, {T0: DeliveryStart.new(Progress.at(0))})


def commits_of(config: ConsumerConfig, session: object, work: CommitRequest = WORK) -> Commits:
    processed = SimpleNamespace(
        work=lambda **_: work,
        allowed=lambda work: work,
        forget=lambda _: None,
        ranges=dict,
        finished_leases=lambda: 0,
        releases=SimpleNamespace(forget=lambda work, started: None),
    )
    return Commits(config, cast("GroupSession", session), cast("Processed", processed))


class Refusing:
    """A session whose commits fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.wait: Callable[[], object] = lambda: None
        self.may_count = lambda *_: False

    def commit(self, *_: Any, **__: Any) -> None:
        self.wait()
        raise self.error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KafkaError("no coordinator"), "the next one does it again: no coordinator"),
        (
            FencedError("taken over", topic="orders", partition=0, hashes=((0, 5),), other="m2"),
            "too late, so some records will come again: taken over",
        ),
        (
            CommitFailedError("reset meanwhile", offsets={}),
            "too late, so some records will come again: reset meanwhile",
        ),
    ],
)
def test_a_commit_that_fails_in_the_background_says_what_becomes_of_it(
    error: Exception, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = group_config("b:9092", enable_auto_commit=False)
    commits = commits_of(config, Refusing(error))
    commits.begin(WORK)
    commits._wait(WAIT_S)
    with caplog.at_level(logging.WARNING, "kshare.group"):
        commits.serve()
    assert [record.message for record in caplog.records if says in record.message]
    commits.close(9.0)


@pytest.mark.parametrize("callback", [False, True])
def test_what_a_policy_refuses_is_raised_to_who_polls(callback: bool) -> None:
    """Else records are handed out for ever, and never committed."""
    told: list[Any] = []
    config = group_config("b:9092", auto_commit_interval_ms=1)
    if callback:
        config = replace(config, on_commit=lambda error, _: told.append(error))
    session = Refusing(PolicyError("not accepted", policy="accept.range.fetch"))
    commits = commits_of(config, session)

    def serve() -> None:
        commits.serve()

    commits.begin(WORK)
    commits._wait(WAIT_S)
    for _ in range(2):
        with pytest.raises(PolicyError):
            serve()
    assert len(told) == callback
    commits.finish()
    session.error = KafkaError("another one")
    commits.begin(WORK)
    commits.finish()
    serve()
    commits.close(9.0)


class Waiting:
    """A session whose claim is not in place before it is closed."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []
        self.closed = threading.Event()

    def commit(self, _: Any, timeout: float, **__: Any) -> None:
        self.timeouts.append(timeout)
        self.closed.wait(timeout)
        raise KafkaError("the claim is not in place")


def test_closing_waits_so_long_at_most() -> None:
    """For a last commit, and for one that is under way, which ends when the session is closed."""
    session = Waiting()
    config = group_config("b:9092", enable_auto_commit=True)
    commits = commits_of(config, session)
    commits.begin(WORK)
    closing = threading.Thread(target=commits.close, args=(0.1,), daemon=True)
    closing.start()
    closing.join(30)  # the one that is under way waits for a minute
    is_closed = not closing.is_alive()
    session.closed.set()
    assert is_closed
    assert sorted(session.timeouts) == [0.1, 60.0]


def test_what_is_under_way_is_not_looked_for_all_the_time() -> None:
    session, over = Refusing(KafkaError("no coordinator")), threading.Event()
    session.wait = lambda: over.wait(20)
    config = group_config("b:9092", auto_commit_interval_ms=1)
    commits = commits_of(config, session)
    commits.begin(WORK)
    assert commits.seconds_until_due == float("inf")
    over.set()
    commits.finish()
    assert commits.seconds_until_due < 1
    commits.close(9.0)


def test_while_nothing_is_assigned_nothing_is_committed_and_no_callback_called() -> None:
    told: list[Any] = []
    config = group_config("b:9092", auto_commit_interval_ms=0)
    config = replace(config, on_commit=lambda *said: told.append(said))
    commits = commits_of(config, Gated(), CommitRequest({}, {}))
    for _ in range(3):
        commits.serve()
        commits.finish()
    commits.close(9.0)
    assert told == []


def test_a_commit_in_the_background_after_the_end() -> None:
    """As by another thread, while what comes after the last commit is closed."""
    config = group_config("b:9092", enable_auto_commit=False)
    commits = commits_of(config, Waiting())
    commits.close(9.0)
    with pytest.raises(ConsumerClosedError):
        commits.begin(WORK)


class Gated:
    """A session whose commits wait to be let through, one after the other."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, Progress]] = []
        self.begun, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)

    def started(self) -> dict[TopicPartition, DeliveryStart]:
        return {}

    def commit(self, processed: Any, *_: Any, **__: Any) -> dict[TopicPartition, int]:
        self.asked.append(dict(processed))
        self.begun.release()
        assert self.goes_on.acquire(timeout=WAIT_S)
        return {tp: progress.stable for tp, progress in processed.items()}


def gated(**given: Any) -> tuple[Commits, Gated, list[Any]]:
    told: list[Any] = []
    config = group_config("b:9092", enable_auto_commit=False)
    config = replace(config, on_commit=lambda error, stable: told.append((error, stable)), **given)
    session = Gated()
    return commits_of(config, session), session, told


def test_commits_that_wait_become_one_and_each_is_called_back_once() -> None:
    """Work is a total: as confluent-kafka's users commit after each record, none is queued."""
    commits, session, told = gated()
    start = DeliveryStart.new(Progress.at(0))
    commits.begin(CommitRequest({T0: Progress.at(1)}, {T0: start}))
    assert session.begun.acquire(timeout=WAIT_S)
    for offset in range(2, 100):
        commits.begin(CommitRequest({T0: Progress.at(offset)}, {T0: start}))
    commits.begin(CommitRequest({T1: Progress.at(7)}, {T1: start}))
    last = commits.begin_last()
    session.goes_on.release(2)
    assert last is not None
    assert last.result(WAIT_S) == {T0: 99, T1: 7}
    commits.serve()
    assert session.asked == [{T0: Progress.at(1)}, {T0: Progress.at(99), T1: Progress.at(7)}]
    assert told == [(None, {T0: 1})] + [(None, {T0: 99, T1: 7})] * 99
    commits.close(9.0)
    commits.end(0.0)
    assert len(told) == 100


def test_a_commit_that_takes_in_an_older_one_loses_nothing() -> None:
    """Another thread may ask later with what it has looked at before; so do other hashes."""
    commits, session, _ = gated()
    start = DeliveryStart.new(Progress.at(0))
    commits.begin(CommitRequest({}, {}))
    commits.begin(CommitRequest({T0: Progress.at(1)}, {T0: start}))
    assert session.begun.acquire(timeout=WAIT_S)
    newer, older = (
        Progress.of(5, [rectangle(5, 9, LOWER)]),
        Progress.of(3, [rectangle(3, 8, UPPER)]),
    )
    commits.begin(CommitRequest({T0: newer}, {T0: start}))
    commits.begin(CommitRequest({T0: older}, {T0: start}))
    session.goes_on.release(2)
    commits.finish()
    assert session.asked[1:] == [{T0: newer.union(older)}]
    commits.close(9.0)


def test_late_work_of_one_start_becomes_one() -> None:
    first, second = (DeliveryStart.new(Progress.at(0)) for _ in range(2))
    newer, older = Progress.of(0, [rectangle(0, 9)]), Progress.of(0, [rectangle(2, 5)])
    one = CommitRequest({}, {}, (LateWork(T0, first, newer),))
    other = CommitRequest({}, {}, (LateWork(T0, second, older), LateWork(T0, first, older)))
    both = one.joined(other)
    assert both is not None
    assert both.partitions == {T0}
    assert [(each.start == first, each.processed) for each in both.late] == [
        (True, newer),
        (False, older),
    ]


def test_commits_that_count_from_other_starts_stay_two() -> None:
    commits, session, told = gated()
    for offset in (1, 2, 3):
        commits.begin(
            CommitRequest({T0: Progress.at(offset)}, {T0: DeliveryStart.new(Progress.at(0))})
        )
        if offset == 1:
            assert session.begun.acquire(timeout=WAIT_S)
    session.goes_on.release(3)
    commits.finish()
    assert [each[T0].stable for each in session.asked] == [1, 2, 3]
    assert len(told) == 3
    commits.close(9.0)


def test_what_was_not_done_before_the_end_is_called_back() -> None:
    """Each callback, also if one raises."""
    commits, session, told = gated()

    def on_commit(error: Exception | None, _: Any) -> None:
        told.append(error)
        raise OSError(f"number {len(told)}")

    commits._config = replace(commits._config, on_commit=on_commit)
    for offset in (1, 2, 3):
        commits.begin(CommitRequest({T0: Progress.at(offset)}, WORK.starts))
    assert session.begun.acquire(timeout=WAIT_S)
    commits.close(0.0)
    assert not told
    with pytest.raises(OSError, match="number 1"):
        commits.end(0.0)
    commits.end(0.0)
    assert list(map(type, told)) == [ConsumerClosedError] * 3
    session.goes_on.release()


def test_without_a_callback_a_warning_says_what_was_not_done_before_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    commits, session, _ = gated()
    commits._config = replace(commits._config, on_commit=None)
    commits.begin(WORK)
    assert session.begun.acquire(timeout=WAIT_S)
    with caplog.at_level(logging.WARNING, "kshare.group"):
        commits.close(0.0)
        commits.end(0.0)
    assert [each.message for each in caplog.records if "not done before the end" in each.message]
    session.goes_on.release()


def test_a_callback_that_raises_is_called_for_the_others_later() -> None:
    commits, session, told = gated()
    faults = [OSError("no")]

    def on_commit(error: Exception | None, _: Any) -> None:
        told.append(error)
        if faults:
            raise faults.pop()

    commits._config = replace(commits._config, on_commit=on_commit)
    for _ in range(3):
        commits.begin(WORK)
    session.goes_on.release(3)
    commits._wait(WAIT_S)
    with pytest.raises(OSError, match="no"):
        commits.serve()
    commits.serve()
    assert told == [None] * 3
    commits.close(9.0)
