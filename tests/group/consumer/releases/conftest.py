"""Consumers that release records, with a retry log that is a list."""

from collections.abc import Iterator
from typing import Any

import pytest

from kshare.group.consumer import processed
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.delivery import dispatcher as dispatcher_module
from kshare.testing import FakeCluster
from tests.group.consumer.released import RECORDS, Make
from tests.group.log.test_retry_log import log_of
from tests.support.clock import Ahead
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.groups import T0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """By which delays are over."""
    ahead = Ahead()
    monkeypatch.setattr(dispatcher_module, "time", ahead)
    return ahead


@pytest.fixture
def make(group: FakeSessions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    log = list[Any]()
    monkeypatch.setattr(
        processed,
        "_retry_log",
        lambda config: log_of(log, config.group),
        raising=True,
    )
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [(f"k{i % 4}", str(i)) for i in range(RECORDS)], partition=0)
        with fake_consumers(cluster, group) as consumers:

            def made(**config: Any) -> KeySharedConsumer:
                consumer = consumers(**{"acknowledgement__mode": "explicit", **config})
                consumer.assign([T0])
                return consumer

            yield made
