"""A task that waits for rows: what librdkafka reports meanwhile is taken, and faults are raised."""

import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from kshare.errors import AuthorizationError
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, prepare_rows
from kshare.query.produce import transactions as transactions_module
from kshare.query.produce.sender import Sender
from kshare.query.produce.served_sender import ServedSender
from kshare.query.produce.transactions import _Statistics
from kshare.testing import FakeCluster

ROW = pa.RecordBatch.from_pydict({"value": ["v"]})
THREAD = "kshare sink"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 1}) as running:
        yield running
    assert THREAD not in {thread.name for thread in threading.enumerate()}


def prepare(cluster: FakeCluster, batches: Iterator[pa.RecordBatch]) -> int:
    """Write batches as a task does; the number of rows."""
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t"}
    options: SinkOptions = parse_sink_options(
        {**given, "exactlyOnce": "true"}, streaming=True
    ).options
    prepared = prepare_rows(batches, options, Attempt("q", "r", 1, 1, 0, time.time()))
    return 0 if prepared.transaction is None else prepared.transaction.rows


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_reports_do_not_pile_up_while_rows_are_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []

    class Counted(_Statistics):
        def __call__(self, report: str) -> None:
            reports.append(threading.current_thread().name)
            super().__call__(report)

    monkeypatch.setattr(transactions_module, "_Statistics", Counted)

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROW
        before = len(reports)
        until(lambda: len(reports) >= before + 30)  # they come every 50 ms
        yield ROW

    assert prepare(cluster, batches()) == 2
    assert reports.count(THREAD) >= 30
    assert reports[-1] != THREAD  # the one that is read, when all is delivered


@pytest.mark.parametrize("is_last", [False, True])
def test_a_row_that_is_refused_while_others_are_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """The fault is raised by whoever sends, with its topic, and the queue is emptied until then."""
    discarded: list[str] = []
    discard = Sender.discard

    def noted(self: Sender) -> None:
        discarded.append(threading.current_thread().name)
        discard(self)

    monkeypatch.setattr(Sender, "discard", noted)
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"] * 5)

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROW
        until(lambda: discarded.count(THREAD) >= 2)
        if not is_last:
            yield ROW

    with pytest.raises(AuthorizationError, match="topic t") as raised:
        prepare(cluster, batches())
    assert raised.value.topic == "t"


@pytest.mark.parametrize("is_last", [False, True])
def test_a_fault_that_librdkafka_tells_once_is_raised(is_last: bool) -> None:
    """A fatal error comes out of one poll only, and a flush behind it may say nothing."""

    class Fatal:
        polls = 0
        sent = 0

        def poll(self, _: float) -> None:
            self.polls += 1
            if self.polls == 1:
                raise KafkaException("fatal")

        def discard(self) -> None:
            self.polls += 1

        def send(self, _: pa.RecordBatch, __: str | None) -> None:
            self.sent += 1

    sender = Fatal()

    def send() -> None:
        with ServedSender(sender) as served:  # type: ignore[arg-type]
            served.send(ROW, "t")
            until(lambda: sender.polls > 1)
            if not is_last:
                served.send(ROW, "t")

    with pytest.raises(KafkaException, match="fatal"):
        send()
    assert sender.sent == 1


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_ends_the_task_ends_the_thread(
    cluster: FakeCluster, error: type[BaseException]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield ROW
        raise error("the operator before it")

    with pytest.raises(error, match="the operator before it"):
        prepare(cluster, batches())
