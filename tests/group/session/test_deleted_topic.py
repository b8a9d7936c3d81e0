"""Commits of a topic that does not exist any more, beside those of one that does."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KafkaError, UnknownTopicError
from kshare.group.core import ownership
from kshare.group.log.primary import PrimaryOffsets
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from tests.support.groups import LOG, SECONDS, T0, closing_session, eventually, group_config

GONE = TopicPartition("audit", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "audit": 1, LOG: 1}) as running:
        yield running


class Coordinator:
    """Brokers that answer UNKNOWN_TOPIC_OR_PARTITION to commits of a topic, once it is deleted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lacks = True
        self.answers = 0
        monkeypatch.setattr(ownership, "_UNKNOWN_SECONDS", 0.5)
        stored = PrimaryOffsets.stored

        def answered(
            offsets: PrimaryOffsets, answer: "Future[Any]"
        ) -> dict[TopicPartition, KafkaError | None]:
            outcome = stored(offsets, answer)
            if self.lacks and GONE in outcome:
                self.answers += 1
                outcome[GONE] = UnknownTopicError("audit-0: no such topic", topic="audit")
            return outcome

        monkeypatch.setattr(PrimaryOffsets, "stored", answered)


def claimed(session: GroupSession) -> dict[TopicPartition, Any]:
    session.claim({T0: ALL_HASHES, GONE: ALL_HASHES})
    eventually(lambda: len(session.started()) == 2)
    return dict(session.started())


def work(offset: int) -> dict[TopicPartition, Progress]:
    return dict.fromkeys((T0, GONE), Progress.at(offset))


def test_with_a_log_it_is_done_without_the_offset(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(monkeypatch)
    coordinator.lacks = False
    config = group_config(cluster.bootstrap_servers)
    with closing_session(GroupSession(config)) as session:
        starts = claimed(session)
        coordinator.lacks = True
        assert session.commit(work(3), SECONDS, starts=starts) == {T0: 3, GONE: 3}
        assert coordinator.answers > 1, "it was tried again, as metadata may be late"
        coordinator.answers = 0
        assert session.commit(work(5), SECONDS, starts=starts) == {T0: 5, GONE: 5}
        assert coordinator.answers == 1
        assert session.committed([T0], SECONDS)[T0].offset == 5


def test_without_a_log_the_commit_names_the_topic(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others are committed; and so is this one, once there is the topic again."""
    coordinator = Coordinator(monkeypatch)
    config = group_config(cluster.bootstrap_servers, allow_individual_commit=False)
    with closing_session(GroupSession(config)) as session:
        starts = claimed(session)
        for offset in (3, 5):
            coordinator.answers = 0
            with pytest.raises(UnknownTopicError, match="audit-0: no such topic"):
                session.commit(work(offset), SECONDS, starts=starts)
            assert (coordinator.answers > 1) == (offset == 3), "at once, after the first time"
            assert session.committed([T0], SECONDS)[T0].offset == offset
        coordinator.lacks = False
        assert session.commit(work(5), SECONDS, starts=starts) == {T0: 5, GONE: 5}
        assert session.committed([GONE], SECONDS)[GONE].offset == 5
