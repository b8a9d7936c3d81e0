"""The event loops in which handlers run, and a consumer on a mock cluster."""

import asyncio.events
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import frame_task
from kshare.processing.task_loop import TaskLoop
from kshare.testing import FakeCluster
from tests.processing.running import ORDERS, ROWS
from tests.support.fake_session import FakeSessions, fake_consumers


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in a loop of each kind."""
    if request.param == "uvloop":
        monkeypatch.setattr(asyncio.events, "new_event_loop", uvloop.new_event_loop)
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it were not installed


@pytest.fixture
def own_loop(monkeypatch: pytest.MonkeyPatch) -> TaskLoop:
    """A loop of tasks that no other test has; it stays, as that of a worker does."""
    made = TaskLoop()
    monkeypatch.setattr(frame_task, "task_loop", lambda: made)
    return made


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "dlq": 1}) as cluster:
        cluster.produce("orders", ROWS, partition=0)
        yield cluster


@pytest.fixture
def sessions() -> FakeSessions:
    return FakeSessions()


@pytest.fixture
def consumer(cluster: FakeCluster, sessions: FakeSessions) -> Iterator[Callable[..., Any]]:
    with fake_consumers(cluster, sessions) as make:

        def consumer(**config: Any) -> KeySharedConsumer:
            given = {"acknowledgement__mode": "explicit", "enable__auto__commit": True}
            made = make(**given | config)
            made.assign([ORDERS])
            return made

        yield consumer
