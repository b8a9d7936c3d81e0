"""A query as a member of its group: on a fake session, and on the mock cluster."""

import logging
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import Any, cast

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import (
    AuthorizationError,
    ConsumerClosedError,
    FencedError,
    GroupAliveError,
    KafkaError,
)
from kshare.group import query_member
from kshare.group.core.ownerships import no_epochs
from kshare.group.query_member import QueryMember
from kshare.group.tools.description import GroupDescription, JoinedMember
from kshare.group.tools.offsets import GroupOffsets
from kshare.options import KafkaConfig
from kshare.testing import FakeCluster
from tests.support.clock import Clock
from tests.support.fake_session import FakeSession, FakeSessions
from tests.support.groups import (
    GROUP,
    LOG,
    LOWER,
    SECONDS,
    T0,
    T1,
    UPPER,
    commit,
    eventually,
    group_config,
    member,
    rectangle,
)

KAFKA = KafkaConfig(bootstrap_servers=(("nowhere", 9092),))


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, LOG: 3}) as running:
        running.produce("orders", [(b"k", b"v")] * 100, partition=0)
        yield running


@pytest.fixture
def servers(cluster: FakeCluster) -> str:
    return cluster.bootstrap_servers


def query(servers: str, *hashes: HashRange) -> QueryMember:
    return QueryMember(
        group_config(servers).kafka, GROUP, lambda _: KeyRanges(hashes) or ALL_HASHES
    )


def offsets(servers: str) -> GroupOffsets:
    return GroupOffsets(GROUP, group_config(servers).kafka, LOG)


def committed(servers: str) -> dict[TopicPartition, Progress]:
    with closing(offsets(servers)) as found:
        return {tp: each.progress for tp, each in found.committed().items()}


# -- on the mock cluster ---------------------------------------------------------------------------


def test_what_a_query_has_processed_is_the_groups(servers: str) -> None:
    reached = Progress.of(30, [rectangle(40, 50), rectangle(60, 70, LOWER)])
    with closing(query(servers)) as spark:
        spark.commit({T0: reached})
        spark.flush(SECONDS)
        assert committed(servers) == {T0: reached}
    with member(servers) as session:
        assert session.started()[T0].done == reached
        assert commit(session, rectangle(30, 40)) == 50
    with closing(query(servers)) as spark:
        assert spark.committed([T0, T1]) == {T0: Progress.of(50, [rectangle(60, 70, LOWER)])}


@pytest.mark.parametrize(("hashes", "start"), [(WHOLE, 90), (LOWER, 0)])
def test_where_a_query_lets_a_new_group_start(servers: str, hashes: HashRange, start: int) -> None:
    """Where it stands, unless another query may be behind it with the other hashes."""
    with closing(query(servers, hashes)) as spark:
        spark.commit({T0: Progress.at(90)})
        spark.flush(SECONDS)
        with closing(offsets(servers)) as found:
            assert found._read().log.of(T0).reset_to == start
        assert committed(servers)[T0].position(hashes) == 90


def test_two_queries_with_other_hashes_have_one_stable_offset(servers: str) -> None:
    with closing(query(servers, LOWER)) as lower, closing(query(servers, UPPER)) as upper:
        lower.commit({T0: Progress.at(90)})
        lower.flush(SECONDS)
        assert committed(servers)[T0].stable == 0  # nobody has read the others
        upper.commit({T0: Progress.at(40)})
        upper.flush(SECONDS)
        assert committed(servers)[T0] == Progress.of(40, [rectangle(40, 90, LOWER)])
        eventually(lambda: _push(lower) and primary(servers) == 40)
        upper.commit({T0: Progress.at(70)})
        upper.flush(SECONDS)
        eventually(lambda: _push(lower) and primary(servers) == 70)


def describes(monkeypatch: pytest.MonkeyPatch, answer: GroupDescription | KafkaError) -> None:
    def describe(kafka: KafkaConfig, group: str) -> GroupDescription:
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    monkeypatch.setattr(query_member, "describe_group", describe)


def test_a_query_does_not_start_in_a_group_whose_members_subscribe(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would claim all back, and meanwhile both read the same."""
    joined = JoinedMember("m-1", "billing-1", "10.0.0.7")
    describes(monkeypatch, GroupDescription("stable", {"m-1": joined}))
    with closing(query(servers)) as spark:
        with pytest.raises(
            GroupAliveError, match=r"subscribe: billing-1 on 10\.0\.0\.7; stop them"
        ):
            spark.join([T0])
        assert spark._claims._session is None


@pytest.mark.parametrize(
    "answer", [GroupDescription("empty", {}), GroupDescription("unknown", None), KafkaError("late")]
)
def test_a_query_starts_where_no_member_is_known_to_subscribe(
    servers: str, monkeypatch: pytest.MonkeyPatch, answer: GroupDescription | KafkaError
) -> None:
    describes(monkeypatch, answer)
    with closing(query(servers)) as spark:
        assert spark.join([T0]) == {T0: Progress.at(0)}


def _push(lead: QueryMember) -> bool:
    """What an idle lead does from time to time."""
    lead._pace.again_at = 0.0
    lead.commit({T0: Progress.at(90)})
    lead.flush(SECONDS)
    return True


def primary(servers: str) -> int | None:
    with closing(offsets(servers)) as found:
        stored = found._primary.fetch([T0]).get(T0)
    return None if stored is None else stored.offset


def test_joining_takes_over_from_a_living_member(servers: str) -> None:
    with member(servers) as session:
        commit(session, rectangle(0, 10), rectangle(20, 30))
        with closing(query(servers)) as spark:
            assert spark.join([T0]) == {T0: Progress.of(10, [rectangle(20, 30)])}
            with pytest.raises(FencedError):
                session.check()


def test_joining_a_new_group_begins_at_the_earliest_offset(servers: str) -> None:
    with closing(query(servers)) as spark:
        assert spark.join([T0, T1]) == {T0: Progress.at(0), T1: Progress.at(0)}


def test_a_query_that_was_killed_is_replaced_by_itself(servers: str) -> None:
    killed = query(servers)
    killed.commit({T0: Progress.at(10)})
    killed.flush(SECONDS)
    with closing(query(servers)) as spark:
        spark.commit({T0: Progress.at(30)})
        spark.flush(SECONDS)
        assert committed(servers) == {T0: Progress.at(30)}
        with pytest.raises(FencedError, match="has claimed key hashes"):
            eventually(lambda: killed.commit({T0: Progress.at(20)}))
    killed.close()


# -- on a fake session -----------------------------------------------------------------------------


class Sessions(FakeSessions):
    """Sessions of queries, and what goes wrong with them."""

    def of(self, config: object) -> Any:
        return self(config)  # type: ignore[arg-type]


class SilentSession(FakeSession):
    """The log does not answer a commit until the session ends."""

    def __init__(self) -> None:
        super().__init__(FakeSessions(), None, no_epochs, 0)
        self.closed = Event()

    def commit(self, *_: object, **__: object) -> dict[TopicPartition, int]:
        assert self.closed.wait(SECONDS)
        raise ConsumerClosedError

    def close(self, timeout: float) -> None:
        self.closed.set()


def fake_query(sessions: Sessions, *hashes: HashRange, clock: Clock | None = None) -> QueryMember:
    return QueryMember(
        KAFKA,
        GROUP,
        lambda _: KeyRanges(hashes) or ALL_HASHES,
        session=sessions.of,
        clock=(clock or Clock()).monotonic,
    )


def test_only_its_own_hashes_are_said_to_be_processed() -> None:
    sessions = Sessions()
    with closing(fake_query(sessions, LOWER)) as spark:
        spark.commit({T0: Progress.of(5, [rectangle(5, 9, UPPER), rectangle(7, 8, LOWER)])})
        spark.flush(SECONDS)
    mine = Progress.of(0, [rectangle(0, 5, LOWER), rectangle(7, 8, LOWER)])
    assert sessions.done == {T0: mine}


def test_what_is_said_already_is_said_again_only_after_a_while() -> None:
    sessions, clock = Sessions(), Clock()
    with closing(fake_query(sessions, clock=clock)) as spark:
        for _ in range(3):
            spark.commit({T0: Progress.at(5)})
            spark.flush(SECONDS)
        (session,) = sessions.members
        assert session.commits == [{T0: Progress.at(5)}]
        clock.sleep(5.0)
        spark.commit({T0: Progress.at(5)})
        spark.flush(SECONDS)
        assert len(session.commits) == 2


def test_a_fault_is_a_warning_and_another_session_says_all_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sessions, clock = Sessions(), Clock()
    with closing(fake_query(sessions, clock=clock)) as spark:
        spark.commit({T0: Progress.at(5)})
        spark.flush(SECONDS)
        sessions.members[0].error = AuthorizationError("not authorized to write to the log")
        with caplog.at_level(logging.WARNING, "kshare.planner"):
            for offset in (7, 9, 11):
                spark.commit({T0: Progress.at(offset)})
                spark.flush(SECONDS)
        (warning,) = [record.getMessage() for record in caplog.records]
        assert warning == (
            "individual commits of group billing were not written (commitOffsets; the query does "
            "not depend on it, and tries again): not authorized to write to the log"
        )
        assert sessions.members[0].is_closed
        clock.sleep(2.0)
        spark.commit({T0: Progress.at(11)})
        spark.flush(SECONDS)
        assert sessions.done == {T0: Progress.at(11)}
        assert len(sessions.members) == 2


def test_a_fence_is_an_error_and_nothing_is_claimed_back() -> None:
    sessions = Sessions()
    spark = fake_query(sessions)
    spark.commit({T0: Progress.at(5)})
    spark.flush(SECONDS)
    (session,) = sessions.members
    session.error = FencedError("taken", topic="orders", partition=0, hashes=(), other="m")
    for _ in range(2):
        with pytest.raises(FencedError):
            spark.commit({T0: Progress.at(7), T1: Progress.at(1)})
    spark.close()
    assert sessions.members == [session]
    assert sessions.done == {T0: Progress.at(5)}


@pytest.mark.parametrize(
    ("start", "error"),
    [
        (Progress.at(5), None),
        (Progress.of(5, [rectangle(6, 8, UPPER)]), None),
        (Progress.of(5, [rectangle(6, 8, LOWER)]), "has committed offset 7"),
        (Progress.at(9), "has committed offset 5"),
    ],
)
def test_a_start_behind_what_others_have_committed_in_its_place_is_a_fence(
    start: Progress, error: str | None
) -> None:
    """Its claims were in doubt, and the session has claimed anew: the query cannot go on there."""
    sessions = Sessions()
    spark = fake_query(sessions, LOWER)
    spark.commit({T0: Progress.of(5, [rectangle(6, 7, LOWER)])})
    spark.flush(SECONDS)
    (session,) = sessions.members
    session.restart(T0, start)
    for _ in range(2):
        if error is None:
            spark.commit({T0: Progress.of(5, [rectangle(6, 7, LOWER)])})
        else:
            with pytest.raises(FencedError, match=f"orders-0: another .* {error}, which") as raised:
                spark.commit({T0: Progress.of(5, [rectangle(6, 7, LOWER)])})
            assert raised.value.hashes == ((LOWER.lo, LOWER.hi),)
    spark.close()


class WokenSession(FakeSession):
    """Its process was suspended; it reads the group's log at the third look.

    Attributes:
        others: What others have committed meanwhile.
        passes: Is called at each look, and says how much time passes.
    """

    others: Progress | None = None
    passes: Any = staticmethod(lambda: None)

    def seconds_to_deliver(self) -> float:
        self.passes()
        if self.others is not None and self.looks == 2:
            self.can_deliver = True
            self.restart(T0, self.others)
        return super().seconds_to_deliver()


def woken(spark: QueryMember, sessions: Sessions) -> WokenSession:
    """Let a query that has committed be suspended."""
    spark.commit({T0: Progress.at(5)})
    spark.flush(SECONDS)
    (session,) = sessions.members
    session.__class__ = WokenSession
    session.can_deliver = False
    return cast("WokenSession", session)


@pytest.mark.parametrize("others", [5, 9])
def test_a_query_that_was_suspended_plans_nothing_before_it_has_read_the_log(others: int) -> None:
    """Or it would read once more what others have committed in its place."""
    sessions = Sessions()
    with closing(fake_query(sessions)) as spark:
        woken(spark, sessions).others = Progress.at(others)
        if others == 5:
            spark.commit({T0: Progress.at(5)})
        else:
            with pytest.raises(FencedError, match="has committed offset 5"):
                spark.commit({T0: Progress.at(5)})


def test_a_query_is_held_up_while_a_commit_of_it_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it was suspended amid: the next batch is planned beside that commit."""
    sessions, goes_on = Sessions(), Event()
    with closing(fake_query(sessions)) as spark:
        session = woken(spark, sessions)
        monkeypatch.setattr(session, "commit", lambda *_, **__: goes_on.wait(SECONDS) and {})
        session.can_deliver = True
        spark.commit({T0: Progress.at(6)})
        session.can_deliver, session.others = False, Progress.at(9)
        with pytest.raises(FencedError, match="has committed offset 6"):
            spark.commit({T0: Progress.at(6)})
        goes_on.set()


def test_a_query_whose_claims_are_made_anew_waits_for_them() -> None:
    sessions = Sessions()
    with closing(fake_query(sessions)) as spark:
        session = woken(spark, sessions)
        session.can_deliver = True
        session.waiting = {T0}
        looks = 0

        def claim() -> None:
            nonlocal looks
            looks += 1
            if looks == 5:
                session.waiting = set()
                session.restart(T0, Progress.at(9))

        session.passes = claim
        with pytest.raises(FencedError, match="has committed offset 5"):
            spark.commit({T0: Progress.at(5)})


def test_a_log_that_cannot_be_read_holds_a_query_up_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some looks; then it goes on, as it goes by its checkpoint."""
    monkeypatch.setattr("kshare.group.query_member._LOOKS", 5)
    sessions = Sessions()
    with closing(fake_query(sessions)) as spark:
        session = woken(spark, sessions)
        with caplog.at_level(logging.WARNING, "kshare.planner"):
            for looks in (5, 1, 1):
                session.looks = 0
                spark.commit({T0: Progress.at(5)})
                assert session.looks == looks
        (warning,) = [record.getMessage() for record in caplog.records]
        assert warning.startswith("group billing: its log was not read for longer than others")
        session.can_deliver = True
        spark.commit({T0: Progress.at(5)})
        session.can_deliver, session.looks = False, 0
        spark.commit({T0: Progress.at(5)})
        assert session.looks == 5


def test_a_reset_of_the_groups_offsets_is_no_fence_of_a_query() -> None:
    sessions = Sessions()
    with closing(fake_query(sessions)) as spark:
        spark.commit({T0: Progress.at(5)})
        spark.flush(SECONDS)
        (session,) = sessions.members
        session.incarnations[T0] = 1
        session.restart(T0, Progress.at(50))
        spark.commit({T0: Progress.at(6)})
        spark.flush(SECONDS)
        session.restart(T0, Progress.at(50))  # it was ahead of the query when it was reset
        spark.commit({T0: Progress.at(7)})


def test_closing_publishes_what_is_left() -> None:
    sessions = Sessions()
    spark = fake_query(sessions)
    spark.commit({T0: Progress.at(5)})
    spark.commit({T0: Progress.at(7)})
    spark.close()
    assert sessions.done == {T0: Progress.at(7)}
    assert sessions.members[0].is_closed


def test_closing_says_what_was_not_written_in_time(caplog: pytest.LogCaptureFixture) -> None:
    spark = QueryMember(
        KAFKA, GROUP, lambda _: ALL_HASHES, session=lambda _: cast("Any", SilentSession())
    )
    spark.commit({T0: Progress.at(5)})
    spark.flush(0.0)
    with caplog.at_level(logging.WARNING, "kshare.planner"):
        spark.close()
    assert "were not written" in caplog.text
    assert str(ConsumerClosedError()) in caplog.text


def test_closing_opens_nothing() -> None:
    sessions = Sessions()
    fake_query(sessions).close()
    assert sessions.members == []
