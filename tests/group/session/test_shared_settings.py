"""Standalone members that differ where all must share a setting: the later one is refused."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.progress import Progress
from kshare.errors import ForeignMemberError
from kshare.group.log.primary import PrimaryOffsets
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Member
from kshare.group.protocol.commit_log.start import Anchor, Primary
from kshare.group.query_member import QueryMember
from kshare.group.session.session import GroupSession
from kshare.testing import FakeCluster
from tests.group.session.test_session import cluster, servers, write
from tests.support.groups import (
    GROUP,
    LOG,
    LOWER,
    T0,
    UPPER,
    closing_session,
    commit,
    eventually,
    fetch_as_brokers_do,
    group_config,
    member,
    rectangle,
    start_of,
)

__all__ = ["cluster", "servers"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": '["k1"]'}, r"keys=all there and 1 \(\w+\) here"),
        ({"claim_timeout_ms": 700}, "claim.timeout.ms=400 there and 700 here"),
        ({"consumption_order": "none"}, "consumption.order=key there and none here"),
    ],
)
def test_who_comes_later_is_refused_by_name(servers: str, given: dict[str, str], said: str) -> None:
    with member(servers, LOWER) as session:
        with closing_session(GroupSession(group_config(servers, **given))) as other:  # type: ignore[arg-type]
            other.claim({T0: ALL_HASHES})
            with pytest.raises(ForeignMemberError, match=f"{session.session_id} on .*: {said}"):
                eventually(other.check)
            # It is not closed, but its beat keeps nobody from starting.
            beats = session._shared.ownerships.log.members
            eventually(lambda: other.session_id not in beats)
            with member(servers, UPPER) as third:
                eventually(third.may_deliver)
        assert commit(session, rectangle(0, 5, LOWER)) == 0  # nobody has the other half
        session.check()
    with member(servers, **given) as other:  # that one has gone  # type: ignore[arg-type]
        assert other.may_deliver()


def test_who_says_nothing_is_accepted(servers: str) -> None:
    """A member of an earlier version, and one that is dead."""
    now_ms = int(time.time() * 1000)
    write(servers, *encode(GROUP, Member("earlier", "h", now_ms)))
    dead = Member("dead", "h", now_ms - 60_000, 2, (("keys", "3 (abc)"),))
    write(servers, *encode(GROUP, dead))
    with member(servers) as session:
        assert commit(session, rectangle(0, 5)) == 5


def test_a_query_beside_consumers_of_another_claim_timeout(servers: str) -> None:
    """It has one of its own. Its keys and its order are compared."""
    kafka = group_config(servers).kafka
    with member(servers, LOWER):
        query = QueryMember(kafka, GROUP, lambda _: KeyRanges([UPPER]))
        assert query.join([T0]) == {T0: Progress.at(0)}
        query.close()
    with member(servers, LOWER, keys='["k1"]'):
        query = QueryMember(kafka, GROUP, lambda _: KeyRanges([UPPER]))
        with pytest.raises(ForeignMemberError, match="keys=1"):
            query.join([T0])


@pytest.fixture
def own_log(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupSession]:
    """A member with a log of its own, which has committed."""
    fetch_as_brokers_do(monkeypatch, T0)
    cluster.create_topic("own-log")
    with member(cluster.bootstrap_servers, individual_commit_topic="own-log") as session:
        commit(session, rectangle(0, 10), rectangle(20, 25))
        eventually(lambda: commit(session) == 10)
        yield session


@pytest.mark.usefixtures("own_log")
def test_a_member_with_another_log_is_refused(servers: str) -> None:
    """Each would not hear the other, and both would have all hashes."""
    with closing_session(GroupSession(group_config(servers))) as other:
        other.claim({T0: ALL_HASHES})
        why = rf"\(orders-0\) belong to the log own-log, not to {LOG}: .*individual.commit.topic"
        with pytest.raises(ForeignMemberError, match=why):
            eventually(other.check)


def test_a_log_that_is_gone_is_no_other_log(
    cluster: FakeCluster, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_as_brokers_do(monkeypatch, T0)
    with closing(PrimaryOffsets(group_config(servers).kafka, GROUP)) as primary:
        offset = Primary(10, Anchor(1, 0, "of no topic"))
        assert primary.stored(primary.store({T0: offset})) == {T0: None}
    with member(servers) as session:
        assert start_of(session).stable == 10
