"""What a member's metrics say of its group's log."""

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.log import log_load
from kshare.group.log.log_load import LogLoad
from kshare.group.log.tail import LastAnswer
from kshare.group.metrics import LogMetrics
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Claim, Reset
from kshare.testing import FakeCluster
from tests.support.groups import LOG, eventually, member

T0 = TopicPartition("orders", 0)


def test_size_groups_and_the_time_of_the_first_read() -> None:
    load = LogLoad(10.0)
    assert load.metrics() == LogMetrics(0, 0, None)
    keys = [
        encode(group, record)[0]
        for group in ("billing", 'it says "no"', "Zürich\\")
        for record in (Claim(T0, "a#1", ALL_HASHES), Reset(T0, 1, 5))
    ]
    load.read(keys, LastAnswer(False, 100, (900, 1_000)), 11.0)
    assert load.metrics() == LogMetrics(900, 3, None)
    load.read([b"damaged", b""], LastAnswer(True, 100, (1_000, 1_000)), 12.5)
    assert load.metrics() == LogMetrics(900, 3, 2.5)
    load.read(keys, LastAnswer(True, 950, (1_000, 1_000)), 60.0)
    assert load.metrics() == LogMetrics(50, 3, 2.5)  # that of the first read


@pytest.mark.parametrize(
    ("records", "first", "said"),
    [(10, 0, 10), (10, -6, 10), (10, -7, 0), (9, 0, 0)],
    ids=["all", "markers", "compacted", "few"],
)
def test_a_log_that_is_not_compacted_is_said_once(
    monkeypatch: pytest.MonkeyPatch, records: int, first: int, said: int
) -> None:
    monkeypatch.setattr(log_load, "_MANY", 10)
    load = LogLoad(0.0)
    assert not load.read([b"{}"] * (records - 4), LastAnswer(False, first, (9, records)), 0.0)
    assert load.read([b"{}"] * 4, LastAnswer(True, first, (9, records)), 1.0) == said
    assert not load.read([b"{}"] * 100, LastAnswer(True, first, (109, records + 100)), 2.0)


def test_groups_that_somebody_makes_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_load, "_GROUPS_MAX", 3)
    load = LogLoad(0.0)
    load.read([b'[1,"%d",0]' % number for number in range(9)], LastAnswer(), 0.0)
    assert load.metrics().groups == 3


def test_a_session_says_it() -> None:
    with FakeCluster(topics={"orders": 1, LOG: 1}) as cluster:
        servers = cluster.bootstrap_servers
        with member(servers), member(servers, **{"group.id": "other"}) as session:

            def shown() -> LogMetrics | None:
                found = session.log_metrics()
                return found if found and found.groups == 2 else None

            found = eventually(shown)
            assert found.read_seconds >= 0
            assert found.records >= 2
