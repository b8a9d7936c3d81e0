"""Brokers that take connections and answer nothing: a caller's time is kept, and others are asked.

Answers may take two minutes, so that who waits for one of a frozen broker does not come back.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.errors import FetchTimeoutError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.session import thread
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from tests.support.groups import (
    GROUP,
    LOG,
    SECONDS,
    T0,
    closing_session,
    group_config,
    quick_settings,
    start_of,
)

NEVER_MS = 120_000
SHORT = 0.2
WITHOUT_LOG: dict[str, Any] = {"allow_individual_commit": "false"}

Committed = Callable[[float], object]
"""Asks for committed offsets within some seconds."""


@pytest.fixture
def frozen() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        yield f"{host}:{port}"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 1}) as running:
        yield running


def test_a_frozen_bootstrap_server_does_not_keep_a_session_from_starting(
    frozen: str, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "ANSWER_MS", 500)
    servers = f"{frozen},{cluster.bootstrap_servers}"
    config = group_config(servers, request_timeout_ms=NEVER_MS, **WITHOUT_LOG)
    with closing_session(GroupSession(config)) as session:
        session.claim({T0: ALL_HASHES})
        start_of(session)


def of_session(servers: str) -> Committed:
    session = GroupSession(group_config(servers, request_timeout_ms=NEVER_MS))
    return lambda seconds: session.committed([T0], seconds)


def of_consumer(servers: str) -> Committed:
    settings = quick_settings(servers, request_timeout_ms=NEVER_MS, session_timeout_ms=NEVER_MS)

    def ask(seconds: float) -> object:
        with closing(KeySharedConsumer(settings)) as consumer:
            return consumer.committed([T0], seconds)

    return ask


@pytest.mark.parametrize("make", [of_session, of_consumer])
def test_offsets_that_are_not_known_in_time_are_a_timeout(
    frozen: str, make: Callable[[str], Committed]
) -> None:
    with pytest.raises(FetchTimeoutError, match=rf"group {GROUP}: cannot .* within {SHORT} s: "):
        make(frozen)(SHORT)


def test_who_has_more_time_waits_for_offsets_longer_than_a_session_does(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "ANSWER_MS", 1)
    cluster.fail("FindCoordinator", ["COORDINATOR_NOT_AVAILABLE"] * 4)
    config = group_config(cluster.bootstrap_servers, **WITHOUT_LOG)
    with closing_session(GroupSession(config)) as session:
        assert session.committed([T0], SECONDS) == {}
