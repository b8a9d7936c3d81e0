"""Offsets of a group without members: committed on one connection, found again after a fault."""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KafkaError, UnknownTopicError
from kshare.kafka.committed import CommittedOffset
from kshare.kafka.coordinator import OffsetWriter, commit_codes, fetch_offsets, offsets_to_send
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.testing import FakeCluster
from tests.support.groups import GROUP, T0, T1, group_config

METADATA = "what the committer says"
NOWHERE = TopicPartition("nowhere", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def writer(cluster: FakeCluster) -> Iterator[OffsetWriter]:
    config = group_config(cluster.bootstrap_servers, default_api_timeout_ms=5_000)
    with closing(OffsetWriter(config.kafka, GROUP)) as writer:
        yield writer


def commit(writer: OffsetWriter, **offsets: int) -> dict[TopicPartition, KafkaError | None]:
    named = {"zero": T0, "one": T1, "nowhere": NOWHERE}
    return writer.commit(
        {named[name]: CommittedOffset(offset, METADATA) for name, offset in offsets.items()}
    ).result(30)


def stored(cluster: FakeCluster) -> dict[TopicPartition, int]:
    kafka = group_config(cluster.bootstrap_servers).kafka
    fetched = fetch_offsets(kafka, GROUP, [T0, T1])
    assert all(each.metadata == METADATA for each in fetched.values())
    return {partition: each.offset for partition, each in fetched.items()}


def test_the_last_commit_counts_and_one_connection_does(
    cluster: FakeCluster, writer: OffsetWriter
) -> None:
    cluster.track_requests()
    for number in range(20):
        assert commit(writer, zero=number, one=2 * number) == {T0: None, T1: None}
    names = [name for (_, name), count in cluster.requests().items() for _ in range(count)]
    assert names.count("OffsetCommit") == 20
    assert names.count("FindCoordinator") == 1
    assert stored(cluster) == {T0: 19, T1: 38}


@pytest.mark.parametrize(
    "code", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"]
)
def test_a_coordinator_that_has_moved_is_found_again(
    cluster: FakeCluster, writer: OffsetWriter, code: str
) -> None:
    assert commit(writer, zero=1) == {T0: None}
    cluster.fail("OffsetCommit", [code])
    refused = commit(writer, zero=2)[T0]
    assert isinstance(refused, KafkaError)
    assert f"cannot commit offsets of group {GROUP}" in str(refused)
    cluster.track_requests()
    assert commit(writer, zero=3) == {T0: None}
    assert "FindCoordinator" in {name for _, name in cluster.requests()}
    assert stored(cluster) == {T0: 3}


def test_a_connection_that_was_closed_is_made_again(
    cluster: FakeCluster, writer: OffsetWriter
) -> None:
    assert commit(writer, zero=1) == {T0: None}
    cluster.stop_broker(1)
    cluster.start_broker(1)
    assert commit(writer, zero=2) == {T0: None}
    cluster.stop_broker(1)
    with pytest.raises(KafkaError, match=f"cannot find the coordinator of group {GROUP}"):
        commit(writer, zero=3)
    cluster.start_broker(1)
    assert commit(writer, zero=4) == {T0: None}
    assert stored(cluster) == {T0: 4}


def test_a_connection_whose_login_is_about_to_expire_is_asked_nothing_more(
    cluster: FakeCluster, writer: OffsetWriter
) -> None:
    assert commit(writer, zero=1) == {T0: None}
    connection = writer._connection
    assert connection is not None
    connection._good_until = 0.0
    assert commit(writer, zero=2) == {T0: None}
    assert writer._connection is not connection
    assert connection.fileno() < 0
    assert stored(cluster) == {T0: 2}


def test_an_answer_that_does_not_come_is_an_error_and_the_next_commit_goes_on(
    cluster: FakeCluster,
) -> None:
    config = group_config(cluster.bootstrap_servers, default_api_timeout_ms=1_000)
    with closing(OffsetWriter(config.kafka, GROUP)) as writer:
        assert commit(writer, zero=1) == {T0: None}
        cluster.delay(1, 5_000)
        with pytest.raises(KafkaError, match="cannot"):
            commit(writer, zero=2)
        cluster.delay(1, 0)
        assert commit(writer, zero=3) == {T0: None}


def test_refusals_say_why(cluster: FakeCluster, writer: OffsetWriter) -> None:
    codes = ["UNKNOWN_MEMBER_ID", "GROUP_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART"]
    cluster.fail("OffsetCommit", codes)
    members = commit(writer, zero=1)[T0]
    assert "members that subscribe, with kshare or another client: stop them" in str(members)
    denied = commit(writer, zero=1)[T0]
    assert isinstance(denied, AuthorizationError)
    assert f"not authorized to commit offsets of group {GROUP} for orders-0: " in str(denied)
    assert (denied.topic, denied.partition) == ("orders", 0)
    gone = commit(writer, zero=1)[T0]
    assert isinstance(gone, UnknownTopicError)
    assert f"cannot commit offsets of group {GROUP} for orders-0: " in str(gone)
    mixed = commit(writer, zero=5, nowhere=5)
    assert mixed[T0] is None
    assert mixed[NOWHERE] is not None


def test_it_closes_at_once_and_nothing_has_to_be_begun(cluster: FakeCluster) -> None:
    config = group_config(cluster.bootstrap_servers)
    OffsetWriter(config.kafka, GROUP).close()
    writer = OffsetWriter(config.kafka, GROUP)
    answer = writer.commit({T0: CommittedOffset(5, METADATA)})
    writer.close()
    assert answer.result(30) == {T0: None}


def test_offsets_are_sent_by_topic_in_order() -> None:
    (topic,) = offsets_to_send({T1: CommittedOffset(3), T0: CommittedOffset(2, METADATA, 4)})
    assert [part.committed_metadata for part in topic.partitions] == [METADATA, ""]
    assert [part.committed_leader_epoch for part in topic.partitions] == [4, -1]


def test_a_partition_that_the_answer_leaves_out_is_not_committed() -> None:
    zero = SimpleNamespace(partition_index=0, error_code=0)
    answer = SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[zero])])
    asked = {T0: CommittedOffset(2), T1: CommittedOffset(3)}
    assert commit_codes(answer, asked) == {T0: 0, T1: ErrorCode.UNKNOWN_SERVER_ERROR}
