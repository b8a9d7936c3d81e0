"""Consumers on an embedded cluster, with sessions that need no log."""

from collections.abc import Callable, Iterator

import pytest

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.policies import FakePolicies


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def group() -> FakeSessions:
    return FakeSessions()


@pytest.fixture
def policies() -> FakePolicies:
    return FakePolicies()


@pytest.fixture
def make(
    cluster: FakeCluster, group: FakeSessions, policies: FakePolicies
) -> Iterator[Callable[..., KeySharedConsumer]]:
    with fake_consumers(cluster, group, policies) as consumers:
        yield consumers
