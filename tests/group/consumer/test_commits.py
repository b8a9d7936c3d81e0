"""Commits in the background: what a user reads when one fails."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kshare.core.progress import Progress
from kshare.errors import ConsumerClosedError, FencedError, KafkaError, PolicyError
from kshare.group.config.table import ConsumerConfig
from kshare.group.consumer.commits import Commits
from kshare.group.consumer.processed import Processed
from kshare.group.core.ownership import Work
from kshare.group.session.session import GroupSession
from tests.support.groups import T0, group_config

WORK = Work({T0: Progress.at(5)}, {T0: Progress.at(0)})


def commits_of(config: ConsumerConfig, session: object) -> Commits:
    processed = SimpleNamespace(
        work=lambda: WORK, allowed=lambda work: work, ranges=dict, chunks=lambda: 0
    )
    return Commits(config, cast("GroupSession", session), cast("Processed", processed))


class Refusing:
    """A session whose commits fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.wait: Callable[[], object] = lambda: None

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
    ],
)
def test_a_commit_that_fails_in_the_background_says_what_becomes_of_it(
    error: Exception, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = group_config("b:9092", enable_auto_commit=False)
    commits = commits_of(config, Refusing(error))
    commits.begin(WORK)
    wait(commits._under_way)
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
    wait(commits._under_way)
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
    assert commits.seconds_left == float("inf")
    over.set()
    commits.finish()
    assert commits.seconds_left < 1
    commits.close(9.0)


def test_a_commit_in_the_background_after_the_end() -> None:
    """As by another thread, while what comes after the last commit is closed."""
    config = group_config("b:9092", enable_auto_commit=False)
    commits = commits_of(config, Waiting())
    commits.close(9.0)
    with pytest.raises(ConsumerClosedError):
        commits.begin(WORK)
