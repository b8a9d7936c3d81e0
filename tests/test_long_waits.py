"""Whoever waits for long says for what, and when it is over: seen from outside."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.group.consumer.topic_lookup import SubscribedTopics, TopicPatterns
from kshare.group.session.session import GroupSession
from kshare.kafka.protocol.retry import boot_time
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.options.sink import parse_sink_options
from kshare.processing.loop import EngineLoop
from kshare.query.produce import write_rows
from kshare.read.reader.tail_reader import GROUP_TEXTS, _Tail, _TopicIds
from kshare.testing import FakeCluster
from tests.support.groups import LOG, T0, closing_session, eventually, group_config


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={LOG: 1, "orders": 1, "out": 1}) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kshare")


def hurried(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let 20 s pass between two looks."""
    clock = partial(next, count(0.0, 20.0))
    monkeypatch.setattr(f"{module}.WaitLog", partial(WaitLog, clock=clock))


def levels(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [each.levelname for each in caplog.records if text in each.getMessage()]


def test_a_session_whose_log_has_no_leader(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = [0.0]
    cluster.move_leader(LOG, 0, None)
    session = GroupSession(
        group_config(cluster.bootstrap_servers), now=lambda: boot_time() + ahead[0]
    )
    text = f"the group's log, {LOG}-0, is not read to its end"

    def is_said() -> bool:
        ahead[0] += 10.0
        return "WARNING" in levels(caplog, text)

    with closing_session(session):
        session.claim({T0: ALL_HASHES})
        eventually(is_said)
        cluster.move_leader(LOG, 0, 1)
        eventually(lambda: levels(caplog, text)[-1] == "INFO")
        eventually(lambda: T0 in session.started())
    assert levels(caplog, text).count("WARNING") == 1


def test_a_sink_whose_topic_has_no_leader(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch, "kshare.query.produce.sender")
    cluster.move_leader("out", 0, None)
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "out"}
    options = parse_sink_options(given, streaming=True).options
    text = "rows are not on the brokers"
    rows = [pa.RecordBatch.from_pydict({"value": ["a", "b"]})]
    written: list[int] = []
    writer = threading.Thread(target=lambda: written.append(write_rows(rows, options)))
    writer.start()
    eventually(lambda: levels(caplog, text))
    cluster.move_leader("out", 0, 1)
    writer.join()
    assert written == [2]
    assert levels(caplog, text) == ["WARNING", "INFO"]
    assert "2 rows wait" in caplog.text


def test_a_pattern_that_no_topic_matches(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch, "kshare.group.consumer.topic_lookup")
    monkeypatch.setattr("kshare.group.consumer.topic_lookup._SOON_SECONDS", 0.01)
    found: list[tuple[str, ...]] = []
    lookup = TopicPatterns(
        group_config(cluster.bootstrap_servers).kafka, found.append, threading.RLock()
    )
    text = "no topic matches the subscription"
    lookup.follow(SubscribedTopics.of(["^late.*"]))
    try:
        eventually(lambda: levels(caplog, text) == ["WARNING"])
        cluster.create_topic("late-1", 1)
        eventually(lambda: levels(caplog, text) == ["WARNING", "INFO"])
        assert found == [("late-1",)]
    finally:
        lookup.stop()


def tail_of(brokers: Any) -> _Tail:
    place = TopicPartition("orders", 0)
    return _Tail("error", {}, _TopicIds(), brokers, place, 1 << 62, GROUP_TEXTS)


def test_records_that_an_open_transaction_hides(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried(monkeypatch, "kshare.read.reader.tail_reader")
    tail = tail_of(SimpleNamespace(topic_id=lambda _: ""))
    text = "an open transaction hides records"
    answers: list[tuple[int, int, int]] = [
        (5, 9, 4),  # it is not there yet
        (5, 9, 5),
        (6, 9, 6),  # another one
        (6, 9, 6),
        (6, 9, 6),
        (9, 9, 9),
    ]
    for stable, end, position in answers:
        tail.reader = SimpleNamespace(offset=position)  # type: ignore[assignment]
        tail.answered(0, stable, end)
    assert levels(caplog, text) == ["WARNING", "INFO"]
    assert "orders-0: waits for 40 s" in caplog.text
    assert "(offsets 6 to 9, end not included)" in caplog.text


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_who_waits_in_an_event_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seconds: float | None
) -> None:
    hurried(monkeypatch, "kshare.processing.loop")
    monkeypatch.setattr("kshare.processing.loop.SAY_SECONDS", 0.01)
    wait: Callable[[], Wait] = lambda: Wait("records are in work", "handlers return")  # noqa: E731

    async def work() -> bool:
        loop = EngineLoop(lambda: None)
        try:
            is_over = partial(levels, caplog, "records are in work")
            return await loop.wait(lambda: bool(is_over()), seconds, wait)
        finally:
            await loop.close()

    assert asyncio.run(work())
    assert levels(caplog, "records are in work") == ["WARNING", "INFO"]
