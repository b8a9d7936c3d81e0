"""What a run has decided and not ended is ended by the next run's first task, on a broker."""

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kshare.errors import AuthorizationError
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, Prepared, prepare_rows
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.driver import commit_batch, kept_clients
from kshare.query.produce.ledger import LedgerRecord
from kshare.query.produce.ledger_state import State
from kshare.query.produce.model import Transaction
from kshare.testing import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 1, LEDGER_TOPIC: 4}) as running:
        yield running
        kept_clients().drop()


def options_for(cluster: FakeCluster) -> SinkOptions:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t"}
    return parse_sink_options({**given, "exactlyOnce": "true"}, streaming=True).options


def ends(cluster: FakeCluster) -> int:
    """The number of requests that end a transaction since they are tracked."""
    return cluster.requests().get((1, "EndTxn"), 0)


def state_of(options: SinkOptions) -> State:
    with LedgerRecord(options.kafka, "q", LEDGER_TOPIC) as record:
        state = record.read()
    assert state is not None
    return state


def prepared(
    cluster: FakeCluster, run: str, task: int = 0, counts: list[int] | None = None
) -> Prepared:
    """A task of batch 0; ``counts`` gets the number of requests before it reads a row."""

    def rows() -> Iterator[pa.RecordBatch]:
        if counts is not None:
            counts.append(ends(cluster))
        yield pa.RecordBatch.from_pydict({"value": [f"{task}"]})

    attempt = Attempt("q", run, 0, task, 0, time.time())
    return prepare_rows(rows(), options_for(cluster), attempt)


def decide(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    """A driver decides a batch of three tasks, commits the leader, and dies."""
    calls, end = list[Transaction](), Coordinators.end

    def dies(self: Coordinators, transaction: Transaction, *, commit: bool) -> bool | None:
        calls.append(transaction)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return end(self, transaction, commit=commit)

    messages = [prepared(cluster, run, task) for task in range(3)]
    with monkeypatch.context() as dying:
        dying.setattr(Coordinators, "end", dies)
        with pytest.raises(KeyboardInterrupt):
            commit_batch(messages, 0, options_for(cluster))
    assert not state_of(options_for(cluster)).ended


def test_a_run_ends_it_before_its_first_task_reads_a_row(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decide(cluster, monkeypatch, "r1")
    cluster.track_requests()
    counts: list[int] = []
    others = [prepared(cluster, "r2", task, counts) for task in (1, 2)]
    assert counts == [0, 0]
    again = prepared(cluster, "r2", 0, counts)
    assert counts.pop() == 3
    assert "r1 of query q decided batch 0" in caplog.text
    assert "of its 3 transactions, 3 are committed now" in caplog.text
    prepared(cluster, "r2", 0, counts)
    assert counts.pop() == 3  # a process looks once
    assert not state_of(options_for(cluster)).ended  # a task writes nothing
    prepared(cluster, "r3", 0, counts)
    assert counts.pop() == 6  # nor does it harm to end it twice
    commit_batch([again, *others], 0, options_for(cluster))
    assert state_of(options_for(cluster)).ended
    before = ends(cluster)
    prepared(cluster, "r4", 0, counts)
    assert counts.pop() == before


def test_a_leader_that_is_gone_keeps_the_others_from_being_committed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(cluster, monkeypatch, "r1")
    cluster.track_requests()
    counts: list[int] = []
    cluster.fail("EndTxn", ["INVALID_TXN_STATE"])
    prepared(cluster, "r2", 0, counts)
    assert counts == [1]


def test_a_batch_does_not_run_again_before_it_is_known_that_all_have_ended(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(cluster, monkeypatch, "r1")
    cluster.track_requests()
    counts: list[int] = []
    cluster.fail("EndTxn", ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"])
    with pytest.raises(AuthorizationError, match="commit transaction kshare-q-r1-0-0-0"):
        prepared(cluster, "r2", 0, counts)
    assert counts == []
    prepared(cluster, "r2", 0, counts)  # Spark tries the task again
    assert counts == [4]


def test_a_ledger_that_nobody_has_made_holds_nothing() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.fail_topic(LEDGER_TOPIC, "UNKNOWN_TOPIC_OR_PART")
        assert prepared(cluster, "r1").transaction is not None
