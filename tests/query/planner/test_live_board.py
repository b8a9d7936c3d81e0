"""What tasks say of an open batch is shown, on this host and in the log of ends."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.live import NO_LATENCY, Latency, decode_live
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.tasks import OpenTask
from kshare.kafka.end_log import EndLog
from kshare.monitor.live_file import read_live
from kshare.query.feedback.messages import TaskReport
from kshare.query.feedback.server import FeedbackServer
from kshare.query.planner.live_board import LiveBoard
from kshare.testing import FakeCluster
from tests.support.clock import until
from tests.support.parked_keys import kafka

TPS = [TopicPartition("t", 0), TopicPartition("t", 1)]
HALVES = tuple(KeyRanges([half]) for half in split(WHOLE, 2))
ENDS = "__kshare_range_ends.mine"
COUNTED = Latency((2, *NO_LATENCY.counts[1:]))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={ENDS: 1}) as running:
        yield running


def batch_of(name: str, at: LogPosition) -> tuple[OpenBatch, list[OpenTask]]:
    """A batch with a task for each partition, of two ranges each."""
    batch = OpenBatch(name, 1, ENDS, at, dict.fromkeys(TPS, HALVES))
    ranges = open_ranges(batch, {tp: Progress.at(5) for tp in TPS})
    return batch, [OpenTask(tuple(ranges[n : n + 2]), 1, ENDS, at) for n in (0, 2)]


def board_of(cluster: FakeCluster, feedback: FeedbackServer | None = None) -> LiveBoard:
    return LiveBoard(kafka(cluster), feedback, every_seconds=0.05)


def test_what_tasks_say_is_shown_until_the_query_ends(cluster: FakeCluster, folder: Path) -> None:
    with closing(board_of(cluster)) as board, EndLog(kafka(cluster), ENDS) as log:
        batch, tasks = batch_of("3f9c-1", log.position())
        told = board.follow(batch, tasks)
        assert [replace(task, ticket=None) for task in told] == tasks
        assert read_live("3f9c-1") is None
        for number, task in enumerate(told):
            assert task.ticket is not None
            with closing(TaskReport(task.ticket)) as report:
                report.begin()
                report.reading(task.ticket, [7 + number, 8], [20, 20], COUNTED)
        until(lambda: read_live("3f9c-1") is not None)
        until(lambda: len(read_live("3f9c-1").ranges) == 4)  # type: ignore[union-attr]
        live = read_live("3f9c-1")
        assert live is not None
        assert {(tp, number, position) for tp, number, _, position, _ in live.ranges} == {
            (TPS[0], 0, 7),
            (TPS[0], 1, 8),
            (TPS[1], 0, 8),
            (TPS[1], 1, 8),
        }
        assert {(each.hashes, each.end) for each in live.ranges} == {
            (half.span, 20) for half in HALVES
        }
        assert live.latency == live.recent == Latency.total([COUNTED, COUNTED])

        def seen() -> bool:
            assert not log.read(batch.log, tasks[0].ranges).ends  # they are no ends
            return log.live is not None and len(decode_live(log.live).ranges) == 4

        until(seen)
        later, tasks = batch_of("3f9c-2", log.position())
        assert all(task.ticket for task in board.follow(later, tasks))
        log.read(later.log, tasks[0].ranges)
        assert log.live is None  # nothing of the next one yet
        other, _ = batch_of("aaaa-1", LogPosition(0, 0))
        log.read(LogPosition(0, 0), open_ranges(other, {tp: Progress.at(5) for tp in TPS}))
        assert log.live is None  # of another run
    assert not [*folder.iterdir()]


def test_a_report_of_another_task_is_left_out(cluster: FakeCluster) -> None:
    with closing(board_of(cluster)) as board, EndLog(kafka(cluster), ENDS) as log:
        batch, tasks = batch_of("3f9c-1", log.position())
        ticket = board.follow(batch, tasks)[0].ticket
        assert ticket is not None
        with closing(TaskReport(ticket)) as report:
            report.begin()
            report.reading(ticket, [7], [20], COUNTED)  # of one range, and it has two
            until(lambda: read_live("3f9c-1") is not None)
            live = read_live("3f9c-1")
            assert live is not None
            assert not live.ranges
            report.reading(ticket, [7, 8], [20, 20], Latency.total([COUNTED] * 3))
            until(lambda: bool(read_live("3f9c-1").ranges))  # type: ignore[union-attr]
        live = read_live("3f9c-1")
        assert live is not None
        assert (live.latency.records, live.recent.records) == (6, 4)


def test_without_a_server_tasks_report_nothing(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = FeedbackServer(("no.such.host.invalid", 1), without="what is live is not shown")
    with closing(board_of(cluster, unknown)) as board:
        batch, tasks = batch_of("3f9c-1", LogPosition(0, 0))
        assert board.follow(batch, tasks) == tuple(tasks)
    assert "no feedback from tasks, what is live is not shown: cannot listen" in caplog.text


def test_a_log_that_takes_nothing_is_said_once_and_is_tried_again(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kshare.planner")
    with closing(board_of(cluster)) as board, EndLog(kafka(cluster), ENDS) as log:
        cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"] * 2)
        batch, tasks = batch_of("3f9c-1", log.position())
        ticket = board.follow(batch, tasks)[0].ticket
        assert ticket is not None
        with closing(TaskReport(ticket)) as report:
            report.begin()
            numbers = iter(range(10_000))

            def seen() -> bool:
                report.reading(ticket, [next(numbers), 8], [20, 20], COUNTED)
                log.read(batch.log, tasks[0].ranges)
                return log.live is not None

            until(seen)
    said = [each for each in caplog.records if "is not shown" in each.message]
    assert [each.levelname for each in said] == ["WARNING"]
