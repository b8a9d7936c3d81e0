"""Subscriptions by pattern: which topics they mean, and topics that come later."""

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kshare.group import KeySharedConsumer
from kshare.group.consumer import topic_lookup
from kshare.group.consumer.topic_lookup import SubscribedTopics, TopicPatterns
from kshare.testing import FakeCluster
from tests.support.groups import LOG, SECONDS, eventually, group_config, quick_settings

NAMES = [
    "orders",
    "orders-eu",
    "audit",
    "__consumer_offsets",
    f"{LOG}.billing",
    "__kshare_policies",
]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders-eu": 1, "audit": 1, LOG: 1}) as running:
        yield running


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("orders", ["orders"]),
        (["orders", "new"], ["new", "orders"]),
        ("^orders", ["orders", "orders-eu"]),
        (["^orders-.*"], ["orders-eu"]),
        (["^.*"], ["audit", "orders", "orders-eu"]),
        (re.compile("dit"), ["audit"]),
        (["new", re.compile("(?i)ORDERS$"), "^au"], ["audit", "new", "orders"]),
        ("^nothing", []),
    ],
)
def test_what_a_subscription_means(given: Any, meant: list[str]) -> None:
    assert list(SubscribedTopics.of(given).among(NAMES)) == meant


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ([], "no topics to subscribe to"),
        (["or ders"], "not a topic: 'or ders'"),
        ([7], "not a topic: 7: is not a text"),
        (re.compile(b"x"), "not a topic"),
        ("^(", "is not a regular expression"),
        ("^orders(?<!x*)", "is not a regular expression"),
    ],
)
def test_what_is_refused(given: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        SubscribedTopics.of(given)


def test_topics_that_come_later_are_found_until_it_stops(cluster: FakeCluster) -> None:
    config = group_config(cluster.bootstrap_servers, metadata_max_age_ms=50)
    said: list[tuple[str, ...]] = []
    patterns = TopicPatterns(config.kafka, said.append, threading.RLock())
    patterns.follow(SubscribedTopics.of(["audit", "^orders"]))
    eventually(lambda: said == [("audit", "orders-eu")])
    cluster.create_topic("orders-us")
    eventually(lambda: said[1:] == [("audit", "orders-eu", "orders-us")])
    patterns.stop()
    cluster.create_topic("orders-asia")
    patterns.follow(SubscribedTopics.of("^au"))
    eventually(lambda: said[2:] == [("audit",)])
    patterns.stop()


def test_no_fault_ends_the_look_for_topics(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once."""
    monkeypatch.setattr(topic_lookup, "_SOON_SECONDS", 0.01)
    config, said, faults = group_config(cluster.bootstrap_servers), list[Any](), [1, 2]

    def on_topics(found: tuple[str, ...]) -> None:
        if faults:
            faults.pop()
            raise LookupError("of who is called")
        said.append(found)

    patterns = TopicPatterns(config.kafka, on_topics, threading.RLock())
    patterns.follow(SubscribedTopics.of("^au"))
    eventually(lambda: said == [("audit",)])
    patterns.stop()
    assert caplog.text.count("cannot look which topics match a subscription") == 1


def test_a_consumer_reads_the_topics_that_match(cluster: FakeCluster) -> None:
    settings = quick_settings(cluster.bootstrap_servers, metadata_max_age_ms=100)
    with closing(KeySharedConsumer(settings)) as consumer:
        consumer.subscribe("^orders-")
        cluster.produce("orders-eu", [(b"k", b"v")], partition=0)
        cluster.produce("audit", [(b"k", b"v")], partition=0)
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.topic() == "orders-eu"
        cluster.create_topic("orders-us")
        cluster.produce("orders-us", [(b"k", b"v")], partition=0)
        found = eventually(lambda: consumer.poll(0.1))
        assert found.topic() == "orders-us"
        assert sorted(tp.topic for tp in consumer.assignment()) == ["orders-eu", "orders-us"]
        consumer.unsubscribe()
        assert consumer.assignment() == {}
