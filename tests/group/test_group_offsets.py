"""A group's offsets from Python: listed, reset and dropped with the configuration of a consumer."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.progress import Progress
from kshare.errors import GroupAliveError, KshareError, OptionsError
from kshare.group import GroupOffsets, ShiftBy, list_offsets
from kshare.testing import FakeCluster
from tests.support.groups import (
    GROUP,
    T0,
    commit,
    fetch_as_brokers_do,
    member,
    rectangle,
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
