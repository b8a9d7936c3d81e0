"""What a stream sees of its cluster."""

import logging
from collections.abc import Collection, Iterable, Mapping

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import UnknownTopicError
from kshare.kafka.topic_config import TopicConfig
from kshare.options import Subscribe
from kshare.query.planner.cluster_view import ClusterView
from tests.support.clock import Clock
from tests.support.fake_logs import FakeCluster, NothingParked

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def view(cluster: FakeCluster) -> ClusterView:
    return ClusterView(cluster, Subscribe(("t",)), NothingParked())


def test_what_is_pinned_stays() -> None:
    cluster = FakeCluster({("t", 0): (2, 5)})
    seen = view(cluster)
    seen.pin()
    cluster.logs = {T0: (3, 9), T1: (0, 1)}
    assert seen.partitions() == (T0,)
    assert seen.ends() == {T0: 5}
    assert seen.earliest([T0]) == {T0: 3}  # the log is trimmed all the same
    fresh = view(cluster)
    assert fresh.partitions() == (T0, T1)
    assert fresh.ends() == {T0: 9, T1: 1}
    fresh.close()
    assert cluster.closed


def test_nothing_is_asked_for_nothing() -> None:
    class Silent(FakeCluster):
        def earliest(self, partitions: object) -> dict[TopicPartition, int]:
            raise AssertionError

    assert view(Silent({})).earliest([]) == {}


@pytest.mark.parametrize("compacted", [True, False])
def test_a_topic_that_says_nothing_counts_as_compacted_until_it_does(
    compacted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Counted(FakeCluster):
        asked = 0  # requests
        answers: Mapping[str, TopicConfig] = {}

        def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
            self.asked += 1
            return {topic: self.answers[topic] for topic in topics if topic in self.answers}

    cluster, clock = Counted({}), Clock()
    seen = ClusterView(cluster, Subscribe(("t",)), NothingParked(), clock=clock.monotonic)
    for asked in (1, 2):
        assert [seen.compaction.of(["t", "u"]) for _ in range(3)] == [{"t", "u"}] * 3
        assert cluster.asked == asked
        clock.now += 61
    for topic, warning in zip("tu", caplog.records, strict=True):
        assert warning.levelno == logging.WARNING
        assert f"cannot see whether {topic} is compacted" in warning.message
    cluster.answers = {"t": TopicConfig(compacted=compacted, retention_ms=None)}
    for _ in range(3):
        assert seen.compaction.of(["t"]) == ({"t"} if compacted else set())
        clock.now += 61
    assert cluster.asked == 3


def test_a_partition_that_goes_while_ends_are_asked_for_is_left_out() -> None:
    """Its loss is reported when partitions are compared."""

    class Shrinking(FakeCluster):
        def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            if T1 in list(partitions):
                del self.logs[T1]
                raise UnknownTopicError("t-1 does not exist")
            return super().latest(partitions)

    cluster = Shrinking({("t", 0): (0, 5), ("t", 1): (0, 9)})
    assert view(cluster).ends() == {T0: 5}
    pinned = view(Shrinking({("t", 0): (0, 5), ("t", 1): (0, 9)}))
    pinned.pin()
    assert pinned.ends() == {T0: 5}


def test_a_partition_that_stays_unknown_is_an_error() -> None:
    class Unknown(FakeCluster):
        def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            raise UnknownTopicError("t-0 does not exist")

    with pytest.raises(UnknownTopicError):
        view(Unknown({("t", 0): (0, 5)})).ends()
