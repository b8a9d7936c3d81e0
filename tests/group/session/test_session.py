"""Sessions on the mock cluster: starts, commits, claims, fences, and faults of the log."""

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import (
    AuthorizationError,
    CommitFailedError,
    CommitLogError,
    FencedError,
    FetchTimeoutError,
    KshareError,
    LaterVersionError,
    NoOffsetError,
)
from kshare.group.delivery_start import DeliveryStart
from kshare.group.log.topic import log_partition
from kshare.group.protocol.commit_log.record_codec import encode, encode_key
from kshare.group.protocol.commit_log.records import Claim, Key
from kshare.group.session.session import GroupSession
from kshare.group.tools.offsets import GroupOffsets
from kshare.testing import FakeCluster, watermarks
from tests.support.clock import WAIT_S, Ahead
from tests.support.groups import (
    GROUP,
    LOG,
    LOWER,
    SECONDS,
    T0,
    T1,
    UPPER,
    by_log,
    closing_session,
    commit,
    eventually,
    group_config,
    member,
    rectangle,
    start_of,
)

LOG_PARTITIONS = 3
NUMBER = log_partition(GROUP, LOG_PARTITIONS)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, LOG: LOG_PARTITIONS}) as running:
        running.produce("orders", [(b"k", b"v")] * 100, partition=0)
        yield running


@pytest.fixture
def servers(cluster: FakeCluster) -> str:
    return cluster.bootstrap_servers


def offsets(servers: str) -> GroupOffsets:
    return GroupOffsets(GROUP, group_config(servers).kafka, LOG)


def write(servers: str, key: bytes, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": False})
    producer.produce(LOG, value, key, NUMBER)
    assert producer.flush(WAIT_S) == 0


# -- commits ---------------------------------------------------------------------------------------


def test_a_new_group_starts_where_auto_offset_reset_says(servers: str) -> None:
    with member(servers, LOWER) as session:
        assert session.started()[T0].done == Progress.at(0)
        eventually(session.may_deliver)
    with member(servers, group_id="other", auto_offset_reset="latest") as session:
        assert session.started()[T0].done == Progress.at(100)


def test_a_commit_answers_the_stable_offset(servers: str) -> None:
    with member(servers, LOWER) as lower, member(servers, UPPER) as upper:
        assert commit(lower, rectangle(0, 30, LOWER)) == 0
        assert commit(upper, rectangle(0, 20, UPPER), rectangle(25, 40, UPPER)) == 0
        eventually(lambda: commit(lower) == 20)  # the lead pushes it
        found = upper.committed([T0], SECONDS)[T0]
        assert found.offset == 20
        assert found.range_offsets == ((25, 30),)
        assert found.individual_commits == (rectangle(20, 30, LOWER), rectangle(25, 40, UPPER))
        with closing(offsets(servers)) as outside:
            assert outside.committed() == {T0: found}


def test_a_primary_offset_that_was_set_back_is_written_again(servers: str) -> None:
    """As by a former lead that was stopped amid its commit, and goes on."""
    with member(servers) as session:
        commit(session, rectangle(0, 50), rectangle(60, 70))
    with member(servers) as session:
        admin = AdminClient({"bootstrap.servers": servers})
        asked = [ConsumerGroupTopicPartitions(GROUP, [RdTopicPartition(*T0, 20)])]
        admin.alter_consumer_group_offsets(asked)[GROUP].result(WAIT_S)
        assert commit(session) == 50  # nothing is new
        asked = [ConsumerGroupTopicPartitions(GROUP, [RdTopicPartition(*T0)])]
        found = admin.list_consumer_group_offsets(asked)[GROUP].result(WAIT_S).topic_partitions
        assert [each.offset for each in found] == [50]
    with member(servers) as session:
        assert session.started()[T0].done == Progress.of(50, [rectangle(60, 70)])


def test_a_restart_goes_on_with_its_gaps(servers: str) -> None:
    with member(servers) as session:
        assert commit(session, rectangle(0, 10), rectangle(15, 20)) == 10
    with member(servers) as session:
        assert session.started()[T0].done == Progress.of(10, [rectangle(15, 20)])
        assert commit(session, rectangle(10, 15)) == 20


def test_what_belongs_to_another_start_is_passed_over_which_is_said(servers: str) -> None:
    with member(servers) as session:
        late = {T0: DeliveryStart.new(Progress.at(0))}
        with pytest.raises(CommitFailedError, match="orders-0, offsets 0 to 8: its offsets") as e:
            session.commit({T0: [rectangle(0, 9)]}, SECONDS, starts=late)
        assert e.value.offsets == {("orders", 0): ((0, 9),)}
        assert pickle.loads(pickle.dumps(e.value)).offsets == e.value.offsets
        starts = session.started()
        assert session.commit({T0: Progress.at(9)}, SECONDS, starts=starts) == {T0: 9}


def test_what_is_not_taken_of_one_partition_does_not_keep_another_one(servers: str) -> None:
    """And of a partition that the member does not have at all."""
    with member(servers) as session:
        starts, audit = session.started(), TopicPartition("audit", 0)
        done = {T0: Progress.at(9), audit: Progress.at(5)}
        with pytest.raises(
            CommitFailedError, match="audit-0, offsets 2 to 4: this member does not"
        ):
            session.commit(
                done, SECONDS, starts={**starts, audit: DeliveryStart.new(Progress.at(2))}
            )
        assert session.commit({T0: Progress.at(0)}, SECONDS, starts=starts) == {T0: 9}
        late = {T0: DeliveryStart.new(Progress.at(0))}  # nothing new
        assert session.commit({T0: [rectangle(0, 9)]}, SECONDS, starts=late) == {T0: 9}


def test_a_commit_while_the_next_claim_is_not_in_place(servers: str) -> None:
    """What is read on through a rebalance is committed when the call returns."""
    with member(servers, LOWER) as session:
        starts = session.started()
        write(servers, *encode(GROUP, Claim(T0, "killed", KeyRanges([UPPER]))))
        session.claim({T0: KeyRanges([WHOLE])})  # waits for the other one
        assert session.commit({T0: [rectangle(0, 9, LOWER)]}, SECONDS, starts=starts) == {T0: 0}
    with closing(offsets(servers)) as outside:
        assert outside.committed()[T0].individual_commits == (rectangle(0, 9, LOWER),)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Lets something happen once, when a commit begins to wait."""
    wait = GroupSession._wait

    def let(happen: Callable[[], None]) -> None:
        left = [happen]

        def waits(session: GroupSession, *given: Any) -> None:
            if left:
                left.pop()()
            wait(session, *given)

        monkeypatch.setattr(GroupSession, "_wait", waits)

    return let


Meanwhile = Callable[[Callable[[], None]], None]


def test_a_commit_whose_claim_is_replaced_meanwhile_is_done_by_the_next_one(
    servers: str, meanwhile: Meanwhile
) -> None:
    with member(servers, LOWER) as session:
        starts = session.started()
        meanwhile(lambda: session.claim({T0: KeyRanges([WHOLE])}))
        assert session.commit({T0: [rectangle(0, 9, LOWER)]}, SECONDS, starts=starts) == {T0: 0}
    with closing(offsets(servers)) as outside:
        assert outside.committed()[T0].individual_commits == (rectangle(0, 9, LOWER),)


@pytest.mark.parametrize(
    ("claim", "said"),
    [({T0: KeyRanges([UPPER])}, "have gone to others"), ({}, "does not have the partition")],
)
def test_a_commit_whose_hashes_are_given_up_meanwhile_says_what_it_did_not_take(
    servers: str, meanwhile: Meanwhile, claim: dict[TopicPartition, KeyRanges], said: str
) -> None:
    """Whoever commits again would hear the same: it needs no second call."""
    with member(servers, LOWER) as session:
        starts = session.started()
        meanwhile(lambda: session.claim(claim))
        with pytest.raises(CommitFailedError, match=said) as raised:
            session.commit({T0: [rectangle(0, 9, LOWER)]}, SECONDS, starts=starts)
    assert raised.value.offsets == {("orders", 0): ((0, 9),)}


def test_a_commit_that_nobody_waits_for_is_done_by_the_next_claim(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(servers, LOWER) as session:
        starts, wake = session.started(), session._thread.wake
        left = [partial(session.claim, {T0: KeyRanges([WHOLE])})]

        def wakes() -> None:
            if left:
                left.pop()()
            wake()

        monkeypatch.setattr(session._thread, "wake", wakes)
        session.commit({T0: [rectangle(0, 9, LOWER)]}, 0, starts=starts)
        assert not left
        start_of(session)
        eventually(lambda: commit(session, rectangle(0, 9, UPPER)) == 9)


def test_a_commit_whose_claim_is_not_in_place_in_time(servers: str) -> None:
    with member(servers, LOWER, claim_timeout_ms=60_000) as session:
        starts = session.started()
        write(servers, *encode(GROUP, Claim(T0, "killed", KeyRanges([UPPER]))))
        session.claim({T0: KeyRanges([WHOLE])})
        with pytest.raises(FetchTimeoutError, match="the claim of orders-0 is not in place"):
            session.commit({T0: [rectangle(0, 9, LOWER)]}, 0.3, starts=starts)


def test_a_commit_that_nobody_waits_for(servers: str) -> None:
    with member(servers) as session:
        assert session.commit({T0: [rectangle(0, 7)]}, 0) == {T0: 0}
        eventually(lambda: session.commit({T0: []}, 0) == {T0: 7})


def test_without_an_offset_to_start_from(servers: str) -> None:
    with closing_session(GroupSession(group_config(servers, auto_offset_reset="error"))) as session:
        session.claim({T0: ALL_HASHES})
        with pytest.raises(NoOffsetError, match=r"orders-0, and auto\.offset\.reset is error"):
            start_of(session)


def test_an_error_that_nobody_has_foreseen_ends_the_session(servers: str) -> None:
    def reset(_: TopicPartition) -> int:
        raise ValueError("no such day")

    as_reset: Any = reset  # as queries give it
    config = replace(group_config(servers), offset_reset=as_reset)
    with closing_session(GroupSession(config)) as session:
        session.claim({T0: ALL_HASHES})
        with pytest.raises(KshareError, match=r"group .*: asking brokers failed.*no such day"):
            start_of(session)


# -- claims ----------------------------------------------------------------------------------------


def test_the_later_claim_wins(servers: str) -> None:
    with member(servers) as first:
        commit(first, rectangle(0, 10), rectangle(20, 30))
        with member(servers, LOWER) as second:
            assert second.started()[T0].done == Progress.of(10, [rectangle(20, 30)])
            eventually(lambda: not first.started())
            with pytest.raises(FencedError) as caught:
                first.check()
            assert caught.value.other == second.session_id
            assert caught.value.hashes == ((LOWER.lo, LOWER.hi),)
            assert (caught.value.topic, caught.value.partition) == T0
            with pytest.raises(FencedError):
                commit(first, rectangle(10, 20))
            first.claim({T0: KeyRanges([UPPER])})
            start_of(first)
            second.check()


def test_hashes_that_are_given_up_are_free_at_once(servers: str) -> None:
    patient = 60_000
    with member(servers, claim_timeout_ms=patient) as first:
        first.claim({T0: KeyRanges([UPPER])})
        with member(servers, LOWER, claim_timeout_ms=patient):
            start_of(first)


def test_a_claim_that_is_not_given_up_is_waited_for(servers: str) -> None:
    write(servers, *encode(GROUP, Claim(T0, "killed", KeyRanges([LOWER]))))
    clock, patient = Ahead(), group_config(servers, claim_timeout_ms=600_000)
    with closing_session(GroupSession(patient, now=clock.monotonic)) as session:
        session.claim({T0: ALL_HASHES})
        (waiting,) = session._shared.ownerships.by_partition.values()
        eventually(lambda: waiting.waits_since is not None)
        clock.seconds += 500
        assert not session.started()
        clock.seconds += 100
        start_of(session)
        commit(session)
    with member(servers, claim_timeout_ms=600_000):  # starts: the killed one's claim was deleted
        pass


def test_an_unchanged_partition_goes_on(servers: str) -> None:
    with member(servers) as session:
        before = session.started()[T0]
        session.claim({T0: KeyRanges([UPPER, LOWER])})  # together: the whole
        commit(session)
        assert session.started()[T0] == before


# -- faults ----------------------------------------------------------------------------------------


def test_while_the_log_is_down_delivery_stops() -> None:
    with FakeCluster(2, topics={"orders": 1, LOG: 1}) as cluster:
        cluster.move_leader("orders", 0, 1)
        cluster.move_leader(LOG, 0, 2)
        with member(cluster.bootstrap_servers) as session:
            before = session.started()[T0]
            cluster.stop_broker(2)
            eventually(lambda: not session.may_deliver())
            with pytest.raises(FetchTimeoutError, match="cannot commit within 1 s"):
                commit(session, rectangle(0, 5), seconds=1)
            cluster.start_broker(2)
            eventually(session.may_deliver)
            assert commit(session) == 5
            assert session.started()[T0] == before


def test_after_a_gap_the_log_has_to_take_a_record_before_anything_is_delivered() -> None:
    """A leader that was frozen, and goes on, shows the log as it was; but it replicates nothing."""
    with FakeCluster(2, topics={"orders": 1, LOG: 1}) as cluster:
        cluster.move_leader("orders", 0, 1)
        cluster.move_leader(LOG, 0, 2)
        with member(cluster.bootstrap_servers) as session:
            eventually(session.may_deliver)
            cluster.stop_broker(2)
            eventually(lambda: not session.may_deliver())
            cluster.fail("Produce", ["NOT_ENOUGH_REPLICAS"] * 1_000)
            cluster.start_broker(2)
            began = time.monotonic()
            eventually(lambda: has_read_since(session, began))
            assert not session.may_deliver()
            cluster.stop_failing("Produce")
            eventually(session.may_deliver)


def has_read_since(session: GroupSession, began: float) -> bool:
    """Whether the log has been read to its end, by a request that was sent after some time."""
    return session.transaction_log.now() - session._thread.read_at < time.monotonic() - began


def test_no_right_to_write_to_the_log(cluster: FakeCluster, servers: str) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"] * 10)
    with closing_session(GroupSession(group_config(servers))) as session:
        session.claim({T0: ALL_HASHES})
        with pytest.raises(AuthorizationError, match=f"write to {LOG}"):
            eventually(session.check)


def test_a_record_of_a_later_version(servers: str) -> None:
    with member(servers) as session:
        write(servers, f'[2,"{GROUP}",0,"lease","orders",0]'.encode(), b"{}")
        with pytest.raises(LaterVersionError, match=f"drop --group {GROUP}"):
            eventually(session.check)
        assert not session.may_deliver()
        with pytest.raises(LaterVersionError):
            commit(session, rectangle(0, 1))


def test_what_cannot_be_read_is_deleted_alone_while_members_live(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    fact = f'[1,"{GROUP}",1,"block","orders",0,"m",[0,8],0]'.encode()
    reset = f'[1,"{GROUP}",1,"reset","orders",0,"typo",0]'.encode()
    with member(servers) as session, closing(offsets(servers)) as outside:
        write(servers, fact, b"junk")
        eventually(lambda: "it is passed over" in caplog.text)
        assert commit(session, rectangle(0, 4), rectangle(6, 8)) == 4
        assert outside.drop_damaged(is_dry_run=True) == outside.drop_damaged() == 1
        assert outside.drop_damaged() == 0
        write(servers, reset, b"{}")  # records might be skipped: nobody goes on
        with pytest.raises(CommitLogError, match=rf"{LOG}-{NUMBER}, offset \d+, .*--damaged"):
            eventually(session.check)
    with pytest.raises(CommitLogError), member(servers):
        pass
    with closing(offsets(servers)) as outside:
        assert outside.drop_damaged(topic="audit") == 0
        assert outside.drop_damaged(topic="orders") == 1
    with member(servers) as session:
        assert start_of(session) == Progress.of(4, [rectangle(6, 8)])  # nothing else was given up


@pytest.mark.parametrize("is_own", [False, True])
def test_a_claim_that_cannot_be_read_costs_its_partition_a_wait(
    servers: str, caplog: pytest.LogCaptureFixture, is_own: bool
) -> None:
    with member(servers, LOWER) as session, closing(offsets(servers)) as outside:
        session.claim({T0: KeyRanges([LOWER]), T1: ALL_HASHES})
        start_of(session, T1)
        start_of(session)
        other, before = session.started()[T1], session.started()[T0]
        assert commit(session, rectangle(0, 4, LOWER)) == 0
        (name,) = session._shared.ownerships.log.of(T0).claims
        claim = Key(0, "claim", T0, (name if is_own else "typo",))
        write(servers, encode_key(GROUP, claim), b"{}")
        eventually(lambda: "claim orders-0 anew, and wait" in caplog.text)
        eventually(lambda: session.started().get(T0) not in {None, before})
        assert start_of(session) == Progress.of(0, [rectangle(0, 4, LOWER)])
        assert session.started()[T1] == other
        assert commit(session, rectangle(4, 6, LOWER)) == 0
        if not is_own:  # it has gone with the claim that is replaced
            assert outside.drop_damaged() == 1
        eventually(lambda: not outside.drop_damaged(is_dry_run=True))
        session.check()


def test_a_damaged_claim_is_deleted_once_all_members_can_have_read_it(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who read of it only together with what deletes it would take it for given up."""
    keys = [encode_key(GROUP, Key(0, "claim", T0, (name,))) for name in ("a", "b", "c")]
    waited: list[float] = []

    def let_pass(seconds: float) -> None:
        """Meanwhile a member deletes its own, and somebody writes another one of these."""
        if not waited:
            write(servers, keys[1], None)
            write(servers, keys[2], b"[]")
        waited.append(seconds)

    monkeypatch.setattr("kshare.group.tools.damage._let_pass", let_pass)
    with member(servers, claim_timeout_ms=700) as session, closing(offsets(servers)) as outside:
        for key in keys:
            write(servers, key, b"{}")
        assert outside.drop_damaged(is_dry_run=True) == 3
        assert not waited
        assert outside.drop_damaged() == 1
        assert waited == [0.7]  # the claim.timeout.ms that the member says
        assert outside.drop_damaged() == 1
        assert outside.drop_damaged() == 0
        assert waited == [0.7, 0.7]
        session.check()


def test_what_is_no_claim_is_deleted_at_once(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kshare.group.tools.damage._let_pass", pytest.fail)
    with closing(offsets(servers)) as outside:
        write(servers, f'[1,"{GROUP}",1,"block","orders",0,"m",[0,8],0]'.encode(), b"junk")
        write(servers, f'[1,"{GROUP}",0,'.encode(), b"{}")
        assert outside.drop_damaged() == 2


@pytest.mark.parametrize(
    "given",
    [{"consumption_order": "none"}, {"transactional_id": "mine"}],
    ids=["leases", "transactions"],
)
def test_a_claim_that_cannot_be_read_ends_who_has_leases_or_transactions(
    servers: str, given: dict[str, str]
) -> None:
    claim = Key(0, "claim", T0, ("typo",))
    with closing_session(GroupSession(group_config(servers, **given))) as session:  # type: ignore[arg-type]
        session.claim({T0: ALL_HASHES})
        start_of(session)
        write(servers, encode_key(GROUP, claim), b"{}")
        with pytest.raises(CommitLogError, match=rf"{LOG}-{NUMBER}, offset \d+, .*--damaged"):
            eventually(session.check)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63 - 2, 2**62 + 1])
def test_an_offset_behind_each_log_is_refused(servers: str, offset: int) -> None:
    """Members would wait there for ever, and say nothing."""
    plain = Consumer({"bootstrap.servers": servers, "group.id": GROUP})
    with closing(plain):
        plain.commit(offsets=[RdTopicPartition(*T0, offset)], asynchronous=False)
    with closing_session(GroupSession(group_config(servers))) as session:
        session.claim({T0: ALL_HASHES})
        with pytest.raises(CommitLogError, match=rf"orders-0: .* offset {offset} is behind"):
            eventually(session.check)


def test_records_of_other_groups_do_not_matter(servers: str) -> None:
    write(servers, b'[2,"other",0,"lease","orders",0]', b"{}")
    write(servers, b"junk", b"junk")
    with member(servers) as session:
        assert commit(session, rectangle(0, 4)) == 4


def test_a_log_that_is_trimmed_is_written_again(
    cluster: FakeCluster, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    with member(servers, LOWER) as lower, member(servers, UPPER) as upper:
        commit(upper, rectangle(0, 50, UPPER))
        commit(lower, rectangle(0, 10, LOWER))
        starts = {session: session.started()[T0] for session in (lower, upper)}
        _, end = watermarks(servers, LOG, NUMBER)
        with caplog.at_level(logging.WARNING, "kshare.group"):
            cluster.trim(LOG, NUMBER, end)
            for session in (lower, upper):
                eventually(partial(_starts_again, session, starts[session]))
        eventually(lambda: commit(upper, rectangle(50, 60, UPPER)) == 10)
        assert upper.committed([T0], SECONDS)[T0].individual_commits == (rectangle(10, 60, UPPER),)
    lost = [record.getMessage() for record in caplog.records if "was lost" in record.getMessage()]
    assert len(lost) == 2  # once for each member
    assert all("orders-0 at stable offset" in text for text in lost)


def _starts_again(session: GroupSession, before: DeliveryStart) -> bool:
    return session.started().get(T0, before) != before


def test_nothing_is_written_into_a_log_that_was_truncated(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(servers) as session:
        thread, looked, acted = session._thread, list[object](), list[object]()
        monkeypatch.setattr(by_log(session).presence, "look", looked.append)
        monkeypatch.setattr(by_log(session).actions, "act", acted.append)
        link = by_log(session).follower.link
        assert link is not None
        link.truncated = "it ends before"

        def goes_on() -> bool:
            thread.wake()
            return looked[-3:] == [None] * 3

        eventually(goes_on)
        assert None not in acted
        acted.clear()
        looked.clear()
        eventually(goes_on)
        assert acted == []


def test_offsets_that_cannot_be_stored_are_tried_again(cluster: FakeCluster, servers: str) -> None:
    with member(servers) as session:
        cluster.fail("OffsetCommit", ["GROUP_MAX_SIZE_REACHED"] * 2)
        assert commit(session, rectangle(0, 5)) == 5
