"""Stable offsets in a consumer group: they get there, and nothing depends on it."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from kshare.commits import Committer, committer
from kshare.core.progress import TopicPartition
from kshare.options import SourceOptions, parse_options
from kshare.testing import FakeCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
WAIT_S = 20.0


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 2}) as running:
        yield running


def options(servers: str, **given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": servers, "subscribe": "t", "kafka.group.id": "g"}
    return parse_options({**base, **given}, streaming=True).options


def committing(cluster: FakeCluster, **given: str) -> Committer:
    made = committer(options(cluster.bootstrap_servers, commitOffsets="true", **given))
    assert made is not None
    return made


def committed(cluster: FakeCluster) -> dict[TopicPartition, int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    found = consumer.committed([Place(*T0), Place(*T1)], WAIT_S)
    consumer.close()
    return {TopicPartition(p.topic, p.partition): p.offset for p in found if p.offset >= 0}


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Ours; librdkafka has its own."""
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [text for text in told if "offsets were not committed" in text]


def test_nobody_commits_unasked():
    assert committer(options("nowhere:9092")) is None


def test_offsets_get_there(cluster: FakeCluster):
    group = committing(cluster)
    group.commit({T0: 5, T1: 7})
    until(lambda: committed(cluster) == {T0: 5, T1: 7})
    group.commit({T0: 6, T1: 7})
    group.close()
    assert committed(cluster) == {T0: 6, T1: 7}


def test_closing_sends_what_is_newest(cluster: FakeCluster):
    """However fast the batches were."""
    group = committing(cluster)
    for offset in range(100):
        group.commit({T0: offset})
    group.close()
    assert committed(cluster) == {T0: 99}
    group.close()


def test_what_has_not_moved_is_not_sent(cluster: FakeCluster):
    group = committing(cluster)
    group.commit({T0: 5})
    until(lambda: committed(cluster) == {T0: 5})
    cluster.track_requests()
    for _ in range(5):
        group.commit({T0: 5})
        group.commit({})
    assert sum(n for (_, name), n in cluster.requests().items() if name == "OffsetCommit") == 0
    group.close()


def test_nothing_is_opened_before_there_is_something_to_commit(monkeypatch: pytest.MonkeyPatch):
    def opened(self: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Committer, "_open", opened)
    group = committer(options("nowhere:9092", commitOffsets="true"))
    assert group is not None
    group.commit({})
    group.close()


def test_a_refused_commit_is_a_warning_and_tried_again(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
):
    group = committing(cluster)
    cluster.fail("OffsetCommit", ["GROUP_AUTHORIZATION_FAILED"] * 3)

    def warned() -> bool:
        group.commit({T0: 5})
        return bool(warnings(caplog))

    until(warned)
    (warning,) = warnings(caplog)
    assert "not committed to group g" in warning
    assert "commitOffsets" in warning

    def got_there() -> bool:
        group.commit({T0: 5})
        return committed(cluster) == {T0: 5}

    until(got_there)
    group.close()
    assert len(warnings(caplog)) == 1  # the same one but once


def test_a_cluster_that_does_not_answer_holds_up_nothing(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
):
    group = committing(cluster, **{"kafka.default.api.timeout.ms": "300"})
    cluster.stop_broker(1)
    begun = time.monotonic()
    for offset in range(50):
        group.commit({T0: offset})
    assert time.monotonic() - begun < 1
    group.close()
    assert warnings(caplog)


def test_what_cannot_even_be_sent_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def cannot(self: Any) -> None:
        raise OSError("no token")

    monkeypatch.setattr(Committer, "_open", cannot)
    group = committer(options("nowhere:9092", commitOffsets="true"))
    assert group is not None
    group.commit({T0: 5})
    group.commit({T0: 6})
    group.close()
    (warning,) = warnings(caplog)
    assert warning.endswith("no token")
