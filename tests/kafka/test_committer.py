"""Stable offsets in a consumer group: they get there, and nothing depends on it."""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NoReturn

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.kafka.committed import CommittedOffsets, Outcome
from kshare.kafka.committer import Committer, committer
from kshare.kafka.coordinator import OffsetWriter
from kshare.options import KafkaConfig, SourceOptions, parse_options
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until
from tests.support.requests import times_asked

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Ours; librdkafka has its own."""
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    return [text for text in told if "offsets were not committed" in text]


def test_nobody_commits_unasked() -> None:
    assert committer(options("nowhere:9092")) is None


def test_offsets_get_there(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    group = committing(cluster)
    group.commit({T0: 5, T1: 7})
    until(lambda: committed(cluster) == {T0: 5, T1: 7})
    group.commit({T0: 6, T1: 7})
    group.close()
    assert committed(cluster) == {T0: 6, T1: 7}
    assert not warnings(caplog)


def test_closing_sends_what_is_newest(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """However fast the batches were."""
    group = committing(cluster)
    for offset in range(100):
        group.commit({T0: offset})
    group.close()
    assert committed(cluster) == {T0: 99}
    assert not warnings(caplog)
    group.close()


def test_what_has_not_moved_is_not_sent(cluster: FakeCluster) -> None:
    group = committing(cluster)
    group.commit({T0: 5})
    until(lambda: committed(cluster) == {T0: 5})
    cluster.track_requests()
    for _ in range(5):
        group.commit({T0: 5})
        group.commit({})
    assert times_asked(cluster, "OffsetCommit") == 0
    group.close()


class Sent(OffsetWriter):
    """What sends commits; its answers are a test's."""

    def __init__(self) -> None:
        self.asked: list[dict[TopicPartition, int]] = []
        self.waiting: Future[Outcome]
        self.is_closed = False

    def make(self, _: KafkaConfig, group: str) -> "Sent":
        assert group == "g"
        return self

    def commit(self, offsets: CommittedOffsets) -> Future[Outcome]:
        self.asked.append({tp: each.offset for tp, each in offsets.items()})
        self.waiting = Future()
        return self.waiting

    def answer(self, fault: str | None) -> None:
        self.waiting.set_result({T0: None if fault is None else KafkaError(fault)})

    def close(self) -> None:
        self.is_closed = True


def committing_by(sent: Sent) -> Committer:
    made = committer(options("nowhere:9092", commitOffsets="true"), make_writer=sent.make)
    assert made is not None
    return made


def test_nothing_is_sent_before_there_is_something_to_commit() -> None:
    sent = Sent()
    group = committing_by(sent)
    group.commit({})
    group.close()
    assert sent.asked == []


def test_a_second_commit_waits_for_the_first_one() -> None:
    sent = Sent()
    group = committing_by(sent)
    group.commit({T0: 5})
    group.commit({T0: 6})
    assert sent.asked == [{T0: 5}]
    sent.answer(None)
    group.commit({T0: 7})
    assert sent.asked == [{T0: 5}, {T0: 7}]


def test_a_fault_that_comes_back_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    sent = Sent()
    group = committing_by(sent)
    group.commit({T0: 5})
    for offset, fault in enumerate(("no", "no", None, "no", None), 6):
        sent.answer(fault)
        group.commit({T0: offset})
    sent.answer(None)
    group.close()
    assert [text.rpartition("again): ")[2] for text in warnings(caplog)] == ["no"] * 2


def test_closing_lets_go_of_the_cluster(caplog: pytest.LogCaptureFixture) -> None:
    """Also where no answer has come."""
    sent = Sent()
    kafka = options("nowhere:9092", commitOffsets="true").kafka
    group = Committer(kafka, "g", make_writer=sent.make, close_seconds=0.01)
    group.commit({T0: 5})
    group.close()
    assert sent.is_closed
    (warning,) = warnings(caplog)
    assert warning.endswith("no answer within 0.01 s")


def test_a_refused_commit_is_a_warning_and_tried_again(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
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
) -> None:
    group = committing(cluster, **{"kafka.default.api.timeout.ms": "300"})
    cluster.stop_broker(1)
    begun = time.monotonic()
    for offset in range(50):
        group.commit({T0: offset})
    assert time.monotonic() - begun < 10  # not 50 times 0.3 s
    group.close()
    assert warnings(caplog)


def test_what_cannot_even_be_sent_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Sent):
        def commit(self, offsets: CommittedOffsets) -> NoReturn:
            raise OSError("no token")

    group = committing_by(Broken())
    group.commit({T0: 5})
    group.commit({T0: 6})
    group.close()
    (warning,) = warnings(caplog)
    assert warning.endswith("no token")
