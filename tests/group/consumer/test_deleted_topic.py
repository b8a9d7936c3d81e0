"""A topic that is deleted while a group reads it, beside another one that is read on."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from kshare.errors import UnknownTopicError
from kshare.group import KeySharedConsumer
from kshare.group.membership.group_planner import PlannedTopics, SeenTopics
from kshare.testing import FakeCluster
from tests.group.consumer.records import offsets
from tests.support.groups import LOG, SECONDS, eventually, group_config, quick_settings

TIMEOUT_MS = 1_000


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(2, topics={"orders": 1, "audit": 1, LOG: 1}) as running:
        running.move_leader("audit", 0, 1)
        yield running


def settings_of(cluster: FakeCluster, **given: Any) -> dict[str, Any]:
    return quick_settings(
        cluster.bootstrap_servers,
        default_api_timeout_ms=TIMEOUT_MS,
        request_timeout_ms=TIMEOUT_MS,
        retry_backoff_ms=20,
        **given,
    )


def delete(cluster: FakeCluster, topic: str) -> None:
    """As brokers answer once a topic is deleted."""
    cluster.fail_topic(topic, "UNKNOWN_TOPIC_OR_PART")
    cluster.move_leader(topic, 0, 2)  # so that the reader asks who leads, and hears of it


@pytest.mark.parametrize("looks", [True, False], ids=["seen by the leader", "not yet seen"])
def test_the_other_topics_are_read_on(
    cluster: FakeCluster,
    looks: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also while the leader has not looked yet; then the group is assigned without the topic."""
    caplog.set_level(logging.INFO)
    if not looks:
        monkeypatch.setattr(PlannedTopics, "take_due", lambda *_: False)
    with closing(KeySharedConsumer(settings_of(cluster))) as consumer:
        consumer.subscribe(["audit", "orders"])
        cluster.produce("audit", [(b"k", b"v")], partition=0)
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.topic() == "audit"
        delete(cluster, "audit")
        until, sent = time.monotonic() + 3 * TIMEOUT_MS / 1000, 0
        while time.monotonic() < until or (looks and len(consumer.assignment()) > 1):
            cluster.produce("orders", [(b"k", b"v")], partition=0)
            message = consumer.poll(SECONDS)
            assert message is not None
            assert (message.topic(), message.offset()) == ("orders", sent)
            assert consumer.consume(1, 0.0) == []
            sent += 1
        assert "audit-0: cannot be read" in caplog.text
        if looks:
            assert caplog.text.count("topic audit does not exist: nobody is assigned any") == 1
            cluster.fail_topic("audit", "NO_ERROR")
            eventually(lambda: consumer.poll(0.1) or len(consumer.assignment()) == 2)


def test_assigned_by_hand_it_is_an_error_and_the_other_is_read_in_between(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make(**{"default.api.timeout.ms": TIMEOUT_MS, "request.timeout.ms": TIMEOUT_MS})
    consumer.assign([("audit", 0), ("orders", 0)])
    assert consumer.poll(0.2) is None
    delete(cluster, "audit")

    def is_raised() -> bool:
        try:
            consumer.poll(0.1)
        except UnknownTopicError as error:
            return error.topic == "audit"
        return False

    eventually(is_raised)
    cluster.produce("orders", [(b"k", b"v")] * 5, partition=0)
    found: list[Any] = []

    def are_read() -> bool:
        with suppress(UnknownTopicError):
            found.extend(consumer.consume(5, 0.1))
        return len(found) == 5

    eventually(are_read)
    assert offsets(found) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("counts", "seconds"), [({"orders": 1}, 7.0), ({"orders": 1, "audit": 0}, 5.0)]
)
def test_a_leader_looks_at_topics_within_the_time_of_a_request(
    counts: dict[str, int], seconds: float
) -> None:
    """However long ``metadata.max.age.ms`` is: what is deleted meanwhile cannot be read."""
    topics = PlannedTopics(group_config("127.0.0.1:1", default_api_timeout_ms=7_000), lambda _: {})
    topics.lead(SeenTopics(counts, {}))
    assert topics.take_due(100.0)
    assert not topics.take_due(100.0 + seconds - 0.1)
    assert topics.take_due(100.0 + seconds)
