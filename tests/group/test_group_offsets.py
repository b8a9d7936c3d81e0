"""A group's offsets from Python: listed, reset and dropped with the configuration of a consumer."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.progress import Progress, TopicPartition
from kshare.errors import GroupAliveError, KshareError, OptionsError, UnknownTopicError
from kshare.group import GroupOffsets, ShiftBy, list_offsets
from kshare.group.log.topic import LogTopic, LogWriter
from kshare.group.protocol.commit_log.start import Anchor, Primary
from kshare.testing import FakeCluster
from tests.support.groups import (
    GROUP,
    T0,
    commit,
    fetch_as_brokers_do,
    member,
    rectangle,
    start_of,
)

LOG = "__individual_commit_offsets.team"
RECORDS = 40


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fetch_as_brokers_do(monkeypatch, T0)
    with FakeCluster(topics={"orders": 1, LOG: 3}) as running:
        running.produce("orders", [(None, f"{i}") for i in range(RECORDS)], partition=0)
        yield running


@pytest.fixture
def config(cluster: FakeCluster) -> dict[str, Any]:
    with member(cluster.bootstrap_servers, individual_commit_topic=LOG) as session:
        assert commit(session, rectangle(0, 10), rectangle(20, 30)) == 10
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "another",
        "individual.commit.topic": LOG,
    }


def test_a_group_is_listed_reset_and_dropped(config: dict[str, Any]) -> None:
    with GroupOffsets(GROUP, config) as offsets:
        assert list_offsets(GROUP, config) == offsets.committed()
        known = offsets.committed()[T0]
        assert known.progress == Progress(10).commit([rectangle(20, 30)])
        assert offsets.reset(ShiftBy(-3), is_dry_run=True) == {T0: 7}
        assert offsets.committed()[T0] == known
        assert offsets.reset({RdTopicPartition("orders", 0): 5}) == {T0: 5}
        assert offsets.reset({("orders", 0): 6}, is_dry_run=True) == {T0: 6}
        assert offsets.committed()[T0].progress == Progress(5)
        assert offsets.reset("latest", topic="orders") == {T0: RECORDS}
        assert offsets.drop(is_dry_run=True) == offsets.drop() > 0
        assert offsets.committed()[T0].progress == Progress(RECORDS)


def test_a_reset_of_a_group_without_a_log_makes_none(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its members would warn that they had kept one."""
    settings = {**config, "individual.commit.topic": "unused-log"}
    with GroupOffsets("plain", settings) as offsets:
        assert offsets.reset({T0: 5}) == offsets.reset({T0: 5}) == {T0: 5}
        stored = offsets.snapshot([T0]).stored[T0]
        assert (stored.offset, stored.metadata) == (5, "")
        with pytest.raises(UnknownTopicError):
            offsets._topic.find()
    without: dict[str, Any] = {"group_id": "plain", "allow_individual_commit": False}
    with member(settings["bootstrap.servers"], **without) as session:
        assert start_of(session) == Progress.at(5)
    assert "log" not in caplog.text


def test_a_reset_of_a_group_whose_log_is_gone_makes_another_one(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its anchors say that it keeps one. Brokers that have just made it may not know it yet."""
    find, unknown = LogTopic.find, [None] * 3

    def find_late(self: LogTopic) -> tuple[TopicPartition, str]:
        found = find(self)
        if unknown:
            unknown.pop()
            raise UnknownTopicError("none")
        return found

    with GroupOffsets("moved", {**config, "individual.commit.topic": "another-log"}) as offsets:
        offsets._store({T0: Primary(0, Anchor(1, 0, "SP/z+RJSRM2rEOTLUnCmYA"))})
        monkeypatch.setattr(LogTopic, "find", find_late)
        assert offsets.reset({T0: 5}) == {T0: 5}
        anchor = offsets.snapshot([T0]).stored[T0].primary.anchor
    assert anchor is not None
    assert anchor.incarnation == 2
    assert unknown == []


def test_more_records_are_dropped_than_a_queue_takes(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = {"queue.buffering.max.messages": 2}
    writer = partial(LogWriter, producer=lambda config, **more: Producer(config | queue, **more))
    monkeypatch.setattr("kshare.group.tools.offsets._PART", 2)
    monkeypatch.setattr("kshare.group.tools.offsets.LogWriter", writer)
    with GroupOffsets(GROUP, config) as offsets:
        assert offsets.drop() > 2
        assert offsets.drop(is_dry_run=True) == 0


def test_nothing_is_changed_while_a_member_is_alive(
    cluster: FakeCluster, config: dict[str, Any]
) -> None:
    with (
        member(cluster.bootstrap_servers, individual_commit_topic=LOG),
        GroupOffsets(GROUP, config) as offsets,
    ):
        with pytest.raises(GroupAliveError, match="is alive"):
            offsets.reset("earliest")
        with pytest.raises(GroupAliveError, match="is alive"):
            offsets.drop()


@pytest.mark.parametrize(
    ("to", "topic", "said"),
    [
        ("beginning", None, "not a reset target: 'beginning'; wanted earliest, latest, stable"),
        (None, None, "not a reset target: None"),
        (5, None, "not a reset target: 5"),
        (ShiftBy("1"), None, "ShiftBy: not an offset: '1'"),  # type: ignore[arg-type]
        ({("orders", 0): "5"}, None, "orders-0: not an offset: '5'; wanted an int"),
        ({("orders", 0): True}, None, "orders-0: not an offset: True"),
        ({"orders": 5}, None, "orders"),
        ({("orders", 0): 5}, "orders", "topic='orders' beside offsets by partition"),
    ],
)
def test_what_is_no_target_is_refused(to: Any, topic: str | None, said: str) -> None:
    """Before anything is asked of a broker."""
    with (
        GroupOffsets(GROUP, {"bootstrap.servers": "localhost:1"}) as offsets,
        pytest.raises(ValueError, match=said),
    ):
        offsets.reset(to, topic=topic)


def test_faults_of_the_configuration_and_of_targets(config: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match=r"individual\.commit\.topic"):
        GroupOffsets(GROUP, {**config, "individual.commit.topic": "a/b"})
    with GroupOffsets(GROUP, config) as offsets:
        with pytest.raises(KshareError, match="offset 41 is outside of the log"):
            offsets.reset({T0: RECORDS + 1})
        assert offsets.committed()[T0].offset == 10
