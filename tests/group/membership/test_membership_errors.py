"""What a member does about each error code of the group protocol, on the mock cluster.

Whatever it is, nothing is lost, and what was committed is not delivered again.
"""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from kshare.core.hashing import HASH_SPACE
from kshare.errors import (
    AuthenticationError,
    AuthorizationError,
    ForeignMemberError,
    KafkaError,
    KshareError,
)
from kshare.group import KeySharedConsumer
from kshare.group.core import member
from kshare.group.session import session
from kshare.group.session.session import GroupSession
from kshare.kafka.coordinator import fetch_offsets
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import GROUP, LOG, T0, eventually, group_config, quick_settings
from tests.support.polling import Polling
from tests.support.requests import times_asked

RECORDS = 100
HALF = HASH_SPACE // 2
MOVED = ["COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"]
PASSING = ["_TRANSPORT", "COORDINATOR_LOAD_IN_PROGRESS", *MOVED, "REBALANCE_IN_PROGRESS"]
LOSING = ["ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"]
PATIENT = {"session_timeout_ms": 30_000}
"""Where nobody joins again: for that, the mock coordinator waits for nearly a session."""
FATAL = {
    "INCONSISTENT_GROUP_PROTOCOL": (KafkaError, "do not speak the protocol kshare-range-v1"),
    "INVALID_SESSION_TIMEOUT": (KafkaError, "do not allow this session.timeout.ms"),
    "GROUP_AUTHORIZATION_FAILED": (AuthorizationError, "grant the principal Read on the group"),
    "GROUP_MAX_SIZE_REACHED": (KafkaError, "group.max.size"),
    "FENCED_INSTANCE_ID": (KafkaError, "with the same group.instance.id"),
}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 3}) as running:
        produce(running)
        yield running


def produce(cluster: FakeCluster) -> None:
    cluster.produce("orders", [(f"k{i % 20}", f"{i}") for i in range(RECORDS)], partition=0)


@pytest.fixture
def start(cluster: FakeCluster) -> Iterator[Callable[..., Polling]]:
    with ExitStack() as stack:

        def polling(**config: Any) -> Polling:
            given = {"auto_commit_interval_ms": 50, "retry_backoff_ms": 20, "claim_timeout_ms": 200}
            each = Polling(cluster, **given | config)
            stack.callback(each.end)
            return each.start()

        yield polling


def committed(cluster: FakeCluster) -> int | None:
    kafka = group_config(cluster.bootstrap_servers).kafka
    offset = fetch_offsets(kafka, GROUP, [T0]).get(T0)
    return None if offset is None else offset.offset


def settled(cluster: FakeCluster, member: Polling) -> Polling:
    """Wait until a member has processed and committed everything."""
    eventually(lambda: committed(cluster) == RECORDS)
    assert member.offsets == list(range(RECORDS))
    return member


def check(cluster: FakeCluster, *members: Polling) -> None:
    """Two rounds of records came once each, all is committed, and nobody was told of a fault."""
    eventually(lambda: committed(cluster) == 2 * RECORDS)
    delivered = sorted(offset for member in members for offset in member.offsets)
    assert delivered == list(range(2 * RECORDS))
    assert [fault for member in members for fault in member.faults] == []


def names(member: Polling) -> list[str]:
    """The callbacks, in order."""
    return [name for name, _ in member.told]


@pytest.mark.parametrize("code", [*PASSING, *LOSING, "REQUEST_TIMED_OUT", "MEMBER_ID_REQUIRED"])
def test_a_join_that_fails_twice_is_done_again(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    cluster.fail("JoinGroup", [code, code])
    only = start(**PATIENT)
    produce(cluster)
    check(cluster, only)
    assert names(only) == ["assigned"]


@pytest.mark.slow
@pytest.mark.parametrize("code", [*PASSING, *LOSING, "INVALID_REQUEST"])
def test_what_is_assigned_and_fails_to_come_is_asked_for_again(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    cluster.fail("SyncGroup", [code])
    only = start()
    produce(cluster)
    check(cluster, only)
    assert names(only) == ["assigned"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_name", "code"),
    [
        ("JoinGroup", "NOT_COORDINATOR"),
        ("JoinGroup", "UNKNOWN_MEMBER_ID"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("SyncGroup", "ILLEGAL_GENERATION"),
        ("SyncGroup", "INVALID_REQUEST"),  # the mock's to one that asks after its leader
    ],
)
def test_a_rebalance_in_which_a_request_fails(
    cluster: FakeCluster, start: Callable[..., Polling], request_name: str, code: str
) -> None:
    """Of the member that joins, or of the one that joins again."""
    first = settled(cluster, start())
    cluster.fail(request_name, ["NO_ERROR", code])
    second = start()
    eventually(lambda: (first.width(), second.width()) == (HALF, HALF))
    produce(cluster)
    check(cluster, first, second)
    assert code in LOSING or "lost" not in names(first)


@pytest.mark.parametrize("code", [*PASSING, "REQUEST_TIMED_OUT"])
def test_a_heartbeat_whose_error_passes_loses_nothing(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    only = settled(cluster, start(**({} if code == "REBALANCE_IN_PROGRESS" else PATIENT)))
    cluster.track_requests()
    cluster.fail("Heartbeat", [code] * 3)
    produce(cluster)
    check(cluster, only)
    eventually(lambda: times_asked(cluster, "Heartbeat") >= 4)  # more than there are errors
    assert names(only) == ["assigned"]


@pytest.mark.parametrize("code", LOSING)
def test_a_heartbeat_that_says_it_is_no_member_loses_all_and_it_joins_again(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    only = settled(cluster, start())
    cluster.fail("Heartbeat", [code])
    eventually(lambda: names(only) == ["assigned", "lost", "assigned"])
    assert [changes for _, changes in only.told] == [{T0: ()}] * 3
    produce(cluster)
    check(cluster, only)


@pytest.mark.slow
@pytest.mark.parametrize("code", LOSING)
def test_the_log_says_what_becomes_of_a_member(
    cluster: FakeCluster,
    start: Callable[..., Polling],
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "kshare.group"):
        only = settled(cluster, start())
        cluster.fail("Heartbeat", [code])
        eventually(lambda: names(only) == ["assigned", "lost", "assigned"])
        eventually(lambda: len(said(caplog, "assigned: orders-0")) == 2)
    assert said(caplog, "joined generation")[-1].endswith(", which leads it")
    assert said(caplog, f"the group goes on without this member ({code}), which joins again")
    (lost,) = said(caplog, "lost: orders-0; others may have them")
    assert (
        lost == f"group {GROUP}: lost: orders-0; others may have them. What was not "
        "committed is delivered again"
    )


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [text for record in caplog.records if part in (text := record.getMessage())]


@pytest.mark.parametrize(
    ("request_name", "code"),
    [
        *(("JoinGroup", code) for code in FATAL),
        *(("SyncGroup", code) for code in ("GROUP_AUTHORIZATION_FAILED", "FENCED_INSTANCE_ID")),
        *(("Heartbeat", code) for code in ("GROUP_AUTHORIZATION_FAILED", "FENCED_INSTANCE_ID")),
    ],
)
def test_errors_that_end_it_are_raised_and_nothing_more_is_delivered(
    cluster: FakeCluster, start: Callable[..., Polling], request_name: str, code: str
) -> None:
    patient = {} if request_name == "SyncGroup" else PATIENT  # for SyncGroup it joins again
    first = settled(cluster, start(**patient))
    cluster.fail(request_name, [code])
    if request_name != "Heartbeat":
        cluster.fail("Heartbeat", ["REBALANCE_IN_PROGRESS"])  # so it joins again
    eventually(lambda: first.faults)
    kind, text = FATAL[code]
    assert type(first.faults[0]) is kind
    assert text in str(first.faults[0])
    assert f"group {GROUP}: " in str(first.faults[0])
    assert names(first) == ["assigned", "lost"]
    produce(cluster)
    polls = len(first.faults)
    eventually(lambda: len(first.faults) > polls + 5)  # each poll raises it
    frames = list(traceback.walk_tb(first.faults[-1].__traceback__))
    assert len(frames) == len({frame for frame, _ in frames})  # of one poll: others hold nothing
    assert first.offsets == list(range(RECORDS))


@pytest.mark.slow
def test_what_one_leaves_that_was_ended_by_an_error_goes_to_the_next(
    cluster: FakeCluster, start: Callable[..., Polling]
) -> None:
    first = settled(cluster, start())
    cluster.fail("Heartbeat", ["GROUP_AUTHORIZATION_FAILED"])
    eventually(lambda: first.faults)
    produce(cluster)
    second = start()
    eventually(lambda: committed(cluster) == 2 * RECORDS)
    assert second.offsets == list(range(RECORDS, 2 * RECORDS))
    assert first.offsets == list(range(RECORDS))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_GROUP_ID", KafkaError),
        ("TOPIC_AUTHORIZATION_FAILED", AuthorizationError),
        ("CLUSTER_AUTHORIZATION_FAILED", AuthorizationError),
        ("SASL_AUTHENTICATION_FAILED", AuthenticationError),
    ],
)
def test_an_error_of_joining_that_is_not_known_ends_it_by_its_name(
    cluster: FakeCluster, start: Callable[..., Polling], code: str, kind: type[KafkaError]
) -> None:
    cluster.fail("JoinGroup", [code])
    only = start(**PATIENT)
    eventually(lambda: only.faults)
    assert type(only.faults[0]) is kind
    assert str(only.faults[0]) == f"cannot join group {GROUP}: {code}"
    cluster.track_requests()
    eventually(lambda: len(only.faults) > 5)  # each poll raises it
    assert times_asked(cluster, "JoinGroup") == 0


@pytest.mark.slow
@pytest.mark.parametrize("code", ["_TRANSPORT", "NOT_COORDINATOR", "UNKNOWN_MEMBER_ID"])
def test_an_error_of_leaving_keeps_nobody(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    """All is committed before it, and the coordinator drops the member after its session."""
    first = settled(cluster, start())
    cluster.fail("LeaveGroup", [code])
    cluster.track_requests()
    first.end()
    assert times_asked(cluster, "LeaveGroup") == 1  # once: it is no use to wait
    assert names(first) == ["assigned", "revoked"]
    second = start()
    produce(cluster)
    check(cluster, first, second)
    assert len(first.offsets) == RECORDS


@pytest.mark.parametrize("code", [*PASSING, *LOSING, "FENCED_INSTANCE_ID"])
def test_a_commit_of_a_member_that_fails_is_done_again(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    """Facts are in the log already; the primary offset follows."""
    only = settled(cluster, start(**PATIENT))
    cluster.fail("OffsetCommit", [code] * 2)
    produce(cluster)
    check(cluster, only)
    assert names(only) == ["assigned"]


@pytest.mark.parametrize("code", ["GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"])
def test_a_commit_of_a_member_without_the_right_to_is_an_error(
    cluster: FakeCluster, start: Callable[..., Polling], code: str
) -> None:
    only = settled(cluster, start(**PATIENT))
    cluster.fail("OffsetCommit", [code])
    produce(cluster)
    eventually(lambda: only.faults)
    assert isinstance(only.faults[0], AuthorizationError)
    assert f"cannot commit offsets of group {GROUP} for orders-0: {code}" == str(only.faults[0])
    assert (only.faults[0].topic, only.faults[0].partition) == ("orders", 0)


def test_a_fatal_error_of_the_logs_producer_ends_nobody(cluster: FakeCluster) -> None:
    """librdkafka's producer is of no more use after it; the session goes on with another one."""
    settings = quick_settings(cluster.bootstrap_servers, enable_auto_commit=False, **PATIENT)
    with closing(KeySharedConsumer(settings)) as consumer:
        consumer.subscribe(["orders"])
        for end in (RECORDS, 2 * RECORDS):
            offsets = [message.offset() for message in consumer.consume(RECORDS, WAIT_S)]
            assert offsets == list(range(end - RECORDS, end))
            cluster.fail("Produce", ["OUT_OF_ORDER_SEQUENCE_NUMBER"])
            assert consumer.commit() == {T0: end}
            cluster.stop_failing("Produce")
            produce(cluster)


def test_a_member_whose_session_has_ended_leaves_its_group(
    cluster: FakeCluster, start: Callable[..., Polling], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is polled on, others get what it owns."""
    first = settled(cluster, start())

    def fail() -> None:
        raise KshareError("the disk of the log is on fire")

    session = first.consumer._session
    assert isinstance(session, GroupSession)
    monkeypatch.setattr(session._thread, "_step", fail)
    eventually(lambda: names(first) == ["assigned", "lost"])
    second = start()
    produce(cluster)
    eventually(lambda: committed(cluster) == 2 * RECORDS)
    assert second.offsets == list(range(RECORDS, 2 * RECORDS))
    assert first.offsets == list(range(RECORDS))
    assert first.consumer.assignment() == {}
    polls = len(first.faults)
    eventually(lambda: len(first.faults) > polls + 5)  # each poll raises it
    assert {str(fault) for fault in first.faults} == {"the disk of the log is on fire"}


def test_a_member_that_is_refused_leaves_its_group(
    cluster: FakeCluster, start: Callable[..., Polling]
) -> None:
    """Though it is polled on, the next rebalance does not wait for its session to time out."""
    first = settled(cluster, start())
    cluster.track_requests()
    refused = start(consumption_order="none", auto_commit_interval_ms=5_000)
    eventually(lambda: refused.faults)
    assert isinstance(refused.faults[0], ForeignMemberError)
    eventually(lambda: times_asked(cluster, "LeaveGroup") == 1)
    produce(cluster)
    check(cluster, first)
    assert refused.offsets == []


def test_a_group_that_is_too_large_for_its_coordinator_is_an_error(
    cluster: FakeCluster, start: Callable[..., Polling], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers answer SyncGroup with UNKNOWN_SERVER_ERROR: to join again would change nothing."""
    monkeypatch.setattr(member, "_RECORD_BYTES", 100)
    cluster.fail("SyncGroup", [-1])
    only = start(**PATIENT)
    (first, *_) = eventually(lambda: only.faults)
    assert isinstance(first, KafkaError)
    assert "does not keep what its members say and are assigned" in str(first)
    assert "max.message.bytes" in str(first)
    assert only.offsets == []


def test_closing_waits_for_no_rebalance(
    cluster: FakeCluster,
    start: Callable[..., Polling],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session, "_PRIMARY_SECONDS", 0.0)
    only = settled(cluster, start())
    cluster.fail("OffsetCommit", ["REBALANCE_IN_PROGRESS"] * 99)
    produce(cluster)
    eventually(lambda: len(only.offsets) == 2 * RECORDS)
    only.end()
    assert "the last commit has failed" not in caplog.text
    cluster.stop_failing("OffsetCommit")
    assert committed(cluster) == RECORDS
    produce(cluster)
    other = start()
    eventually(lambda: committed(cluster) == 3 * RECORDS)
    assert other.offsets == list(range(2 * RECORDS, 3 * RECORDS))
