"""Following a log on scripted brokers: nothing waits for them."""

import struct
import threading

import pytest

from kshare.core.progress import TopicPartition
from kshare.group.log.tail import LogTail
from kshare.options import KafkaConfig
from tests.support.batches import COMMIT, Rec, batch_of, control_batch
from tests.support.clock import WAIT_S
from tests.support.scripted_cluster import Log, ScriptedCluster, ScriptedConnection

LOG = TopicPartition("log", 0)
KAFKA = KafkaConfig(bootstrap_servers=())


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster({LOG: Log(())})


def test_whoever_follows_a_log_waits_neither_for_the_connection_nor_for_answers(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, woken = threading.Event(), threading.Event()
    call, receive, parts = ScriptedConnection.call, ScriptedConnection.receive, [True, True]

    def slow(self: ScriptedConnection, request: object) -> object:
        assert may_answer.wait(WAIT_S)
        return call(self, request)

    def in_parts(self: ScriptedConnection) -> memoryview | None:
        return None if parts and parts.pop() else receive(self)

    monkeypatch.setattr(ScriptedConnection, "call", slow)
    monkeypatch.setattr(ScriptedConnection, "receive_ready", in_parts)
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=10)
    for _ in range(3):
        tail.ask()
        assert tail.is_asking
        assert not cluster.fetches
    may_answer.set()
    assert woken.wait(WAIT_S)
    tail.ask()
    assert len(cluster.fetches) == 1
    assert [tail.take(), tail.take(), tail.take()] == [None, None, []]
    assert tail.last.caught_up
    tail.close()


def test_a_long_answer_is_overdue_only_if_nothing_more_of_it_comes(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be asked for again and again, and never be taken."""
    receive, parts = ScriptedConnection.receive, [True] * 20

    def in_parts(self: ScriptedConnection) -> memoryview | None:
        return None if parts and parts.pop() else receive(self)

    monkeypatch.setattr(ScriptedConnection, "receive_ready", in_parts)
    clock, woken = cluster.clock, threading.Event()
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=0, now=clock.monotonic)
    tail.ask()
    assert woken.wait(WAIT_S)
    tail.ask()
    asked_at = clock.now
    for _ in range(20):
        clock.now += 0.05
        assert tail.take() is None
        assert not tail.is_overdue(0.1)
    clock.now += 0.11
    assert tail.is_overdue(0.1)
    assert tail.take() == []
    assert tail.last.read_at == asked_at
    tail.close()


def test_a_connection_that_is_given_up_while_another_thread_asks_is_closed_after_that(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, asked, woken = threading.Event(), threading.Event(), threading.Event()
    call = ScriptedConnection.call

    def slow(self: ScriptedConnection, request: object) -> object:
        asked.set()
        assert may_answer.wait(WAIT_S)
        assert self.is_open
        return call(self, request)

    monkeypatch.setattr(ScriptedConnection, "call", slow)
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=10)
    tail.ask()
    assert asked.wait(WAIT_S)
    tail.close()
    may_answer.set()
    assert woken.wait(WAIT_S)
    assert [each.is_open for each in cluster.open] == [False]


def test_a_leader_that_does_not_say_where_the_log_begins_is_a_fault(
    cluster: ScriptedCluster,
) -> None:
    woken = threading.Event()
    cluster.logs[LOG].leader = 2
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=10)

    def ask() -> None:
        tail.ask()
        assert woken.wait(WAIT_S)
        tail.ask()

    with pytest.raises(OSError, match="cannot list the offsets of log-0"):
        ask()
    assert not cluster.open
    tail.drop()
    assert not tail.is_asking


def test_a_throttled_answer_is_no_fault(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is asked again on the same connection, once the broker wants it."""
    receive, throttles = ScriptedConnection.receive, [2_500]
    asked = list[ScriptedConnection]()

    def throttled(self: ScriptedConnection) -> memoryview:
        asked.append(self)
        if throttles:
            self.requests.clear()
            return memoryview(struct.pack(">ihii", throttles.pop(), 0, 0, 0))
        return receive(self)

    monkeypatch.setattr(ScriptedConnection, "receive_ready", throttled)
    woken, now = threading.Event(), [100.0]
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=10, now=lambda: now[0])
    tail.ask()
    assert woken.wait(WAIT_S)
    tail.ask()
    assert tail.take() == []
    before = tail.last
    tail.ask()
    assert tail.ask_at == 102.5
    assert not tail.is_asking
    said = tail.throttle.wait
    assert said is not None
    assert "throttles what is read by the quotas of client.id 'kshare'" in said.state
    now[0] = 102.5
    tail.ask()
    assert tail.take() == []
    assert tail.throttle.wait is None
    assert (before.caught_up, tail.last.caught_up) == (False, True)
    first, second = asked
    assert first is second
    tail.close()


def test_a_connection_whose_login_is_about_to_expire_is_replaced_and_that_is_no_fault(
    cluster: ScriptedCluster,
) -> None:
    woken = threading.Event()
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=0)
    tail.ask()
    assert woken.wait(WAIT_S)
    for count in range(1, 3):
        woken.clear()
        tail.ask()
        cluster.open[-1].is_expiring = True  # amid a request: its answer comes
        assert tail.take() == []
        tail.ask()
        assert tail.is_asking
        assert woken.wait(WAIT_S)
        assert [each.is_open for each in cluster.open] == [False] * count + [True]
    assert tail.ask_at <= 0  # nobody pauses
    tail.close()


def test_markers_of_transactions_are_not_missing() -> None:
    rows = [Rec(b"k", b"v")]
    batches = [batch_of(rows, base=0).encode(), control_batch(1, 7, COMMIT).encode()]
    batches += [batch_of(rows, base=2).encode()]
    cluster = ScriptedCluster({LOG: Log(batches[:1])})
    woken = threading.Event()
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=0)
    tail.ask()
    assert woken.wait(WAIT_S)
    assert tail.take()
    cluster.logs[LOG] = Log(batches)
    tail.ask()
    rows_after = tail.take()
    assert rows_after is not None
    assert [row.offset for row in rows_after] == [2]
    assert tail.position == 3
    assert not tail.last.has_holes
    tail.close()


def test_records_that_are_missing_since_the_log_was_read_to_its_end_are_said() -> None:
    """Of what was read before that nobody has relied upon anything."""

    def batch(*offsets: int) -> bytes:
        rows = [Rec(b"k", b"v", at - offsets[0]) for at in offsets]
        return batch_of(rows, base=offsets[0]).encode()

    batches = [batch(0, 2), batch(3, 4)]
    cluster = ScriptedCluster({LOG: Log(batches)})
    woken, seen = threading.Event(), list[tuple[list[int], bool, bool]]()
    tail = LogTail(KAFKA, LOG, cluster, woken.set, wait_ms=0)

    def read() -> None:
        tail.ask()
        rows = tail.take()
        assert rows is not None
        seen.append(([row.offset for row in rows], tail.last.caught_up, tail.last.has_holes))

    tail.ask()
    assert woken.wait(WAIT_S)
    read()
    cluster.logs[LOG] = Log([*batches, batch(5, 6)])
    read()
    cluster.logs[LOG] = Log([*batches, batch(5, 6), batch(9, 10)])
    read()
    read()
    assert seen == [
        ([0, 2, 3, 4], True, False),
        ([5, 6], True, False),
        ([9, 10], True, True),
        ([], True, False),
    ]
    tail.close()
