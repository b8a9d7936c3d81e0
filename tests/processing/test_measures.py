"""Metrics, lines of progress and warnings of a processor that runs."""

import asyncio
import gc
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import DeadLetter, Processor, Record, Retry, measures, register_metrics
from kshare.processing.measures import LoopWatch, Progress
from tests.processing.running import RECORDS, run
from tests.support.clock import WAIT_S, until
from tests.support.series import series

pytestmark = pytest.mark.usefixtures("each_loop")


def test_metrics_in_prometheus_while_it_runs(consumer: Callable[..., KeySharedConsumer]) -> None:
    registry, scrapes = CollectorRegistry(), list[dict[tuple[str, ...], float]]()

    async def handler(record: Record) -> None:
        await asyncio.sleep(0)
        if record.offset == 7:
            raise ValueError("no")
        if record.offset == 296:
            scrapes.append(series(registry))

    processor = Processor(
        handler, concurrency=8, retry=Retry(attempts=9, first=60, most=60), drain_timeout=1.0
    )
    register_metrics(processor, registry)
    assert not series(registry)
    run(processor, consumer(), lambda: bool(scrapes))
    assert not series(registry)
    (scrape,) = scrapes
    values = {
        (name.removeprefix("kshare_processor_"), *rest): value
        for (name, _, _, *rest), value in scrape.items()
    }
    assert values["waiting_lanes",] == 1
    assert values["ending_lanes",] == 0
    assert values["concurrency",] == 8
    assert 1 <= values["running_calls",] <= 8
    assert values["lanes",] >= 2
    assert values["held_bytes",] >= values["held_records",] >= 29
    assert 0 <= values["oldest_failure_seconds",] < 20
    assert 297 <= values["records_total",] <= RECORDS
    assert values["failed_calls_total",] == 1
    assert values["undelivered_total",] == 0
    assert 200 <= values["outcomes_total", "done"] < RECORDS
    assert values["outcomes_total", "dead_lettered"] == 0
    calls = values["call_duration_seconds_count",]
    assert calls >= values["outcomes_total", "done"] + 1
    assert values["call_duration_seconds_bucket", "+Inf"] == calls
    assert values["call_duration_seconds_sum",] > 0


def test_a_handler_that_blocks_the_loop_is_named(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, warnings = list[int](), list[logging.LogRecord]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "blocks the event loop" in record.getMessage():
                warnings.append(record)

    async def careless(record: Record) -> None:
        seen.append(record.offset)
        deadline = time.monotonic() + WAIT_S
        while not warnings and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - that is what it is about

    monkeypatch.setattr(logging.getLogger("kshare.processing"), "handlers", [Kept()])
    gc.disable()  # in a large process the call that is seen may be one of the collector's
    try:
        with caplog.at_level(logging.WARNING):
            run(Processor(careless), consumer(), lambda: len(seen) == RECORDS)
    finally:
        gc.enable()
    (warning,) = [text for text in caplog.messages if "blocks the event loop" in text]
    assert "careless blocks" in warning
    assert "test_measures.py" in warning


def test_a_turn_of_many_short_calls_is_not_blamed_on_the_handler(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: each look finds another call."""
    calls: list[Any] = []
    engine = {"__name__": "kshare.processing.engine"}
    exec("def turn(call):\n    call()\n", engine)
    frames = {threading.get_ident(): None}
    monkeypatch.setattr("sys._current_frames", lambda: frames)
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, "careless", most_seconds=3600)

    def short() -> None:
        frames[threading.get_ident()] = sys._getframe()  # type: ignore[assignment]
        calls.append(watch._warn(1.0))

    def long() -> None:
        short()
        calls.append(watch._warn(1.1))

    engine["turn"](short)  # type: ignore[operator]
    engine["turn"](short)  # type: ignore[operator]
    short()
    assert calls == [False] * 3
    engine["turn"](long)  # type: ignore[operator]
    watch.close()
    loop.close()
    assert calls[3:] == [False, True]
    assert len([text for text in caplog.messages if "careless blocks" in text]) == 1


def test_what_one_watch_has_said_another_one_of_the_loop_does_not_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task of Spark may be short, and each has a watch."""
    said = list[str]()

    def warn(watch: LoopWatch, _: float) -> bool:
        said.append(watch._handler)
        return watch._handler == "first"

    monkeypatch.setattr(LoopWatch, "_warn", warn)
    monkeypatch.setattr(measures, "_LOOK_SECONDS", 0.001)
    loop, quiet = asyncio.new_event_loop(), dict[str, float]()  # it does not run
    first = LoopWatch(loop, "first", 0.0, quiet)
    until(lambda: said == ["first"])
    first.close()
    watches = [LoopWatch(loop, name, 0.0, quiet) for name in ("first", "second")]
    until(lambda: said.count("second") >= 3)
    for watch in watches:
        watch.close()
    loop.close()
    assert said.count("first") == 1


def test_a_line_of_progress_names_what_is_held_longest(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Progress, "seconds", 0.1)

    async def handler(record: Record) -> None:
        if record.offset == 5:
            raise ValueError("no")
        if record.offset == 17:
            await asyncio.Event().wait()

    def lines() -> list[str]:
        return [text for text in caplog.messages if "records/s" in text]

    wanted = re.compile(
        r"group \S+: 0 records/s, 1 in flight, 59 held of 2 keys, 1 retrying, 0 dead-lettered, "
        r"0 parked, oldest held: orders-0 offset 5, \d+ s after it was produced"
    )
    retry = Retry(attempts=2, first=600, most=600)
    processor = Processor(handler, retry=retry, drain_timeout=0.1)
    with caplog.at_level(logging.INFO, "kshare.processing"):
        run(processor, consumer(), lambda: bool(lines()) and bool(wanted.fullmatch(lines()[-1])))
    assert wanted.fullmatch(lines()[-1])
    rates = [text.split(" ")[2] for text in lines()]
    assert sum(float(rate.replace(",", "")) * 0.1 for rate in rates) == RECORDS - 59


@pytest.mark.parametrize("sequence", [True, False])
def test_records_that_have_failed_for_good_are_a_warning(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    sequence: bool,
) -> None:
    """At the end at the latest, also where nobody has asked for lines at INFO."""
    done = list[int]()

    async def handler(record: Record) -> None:
        if record.offset == 5:
            raise ValueError("no secret")

    processor = Processor(
        handler,
        retry=Retry(attempts=1),
        on_failure=DeadLetter("orders.dlq", sequence=sequence),
        on_outcome=lambda outcome: done.append(outcome.record.offset),
    )
    run(processor, consumer(), lambda: len(done) == RECORDS)
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    failed = "1 record failed for good (1 dead letter, 0 of parked keys)"
    if not sequence:
        assert f"{failed}; the last one is orders-0 offset 5, ValueError" in said
    assert "failed for good" in said
    assert "secret" not in said


def test_a_processor_that_has_nothing_to_do_tells_nothing(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Progress, "seconds", 0.05)
    seen, told, tell = list[int](), list[int](), Progress._log_line

    def lines() -> list[str]:
        return [text for text in caplog.messages if "records/s" in text]

    def tells(progress: Progress) -> None:
        tell(progress)
        told.append(len(lines()))

    async def handler(record: Record) -> None:
        seen.append(record.offset)

    def has_told_nothing() -> bool:
        is_done = len(seen) == RECORDS and "0 held of 0 keys" in "".join(lines()[-1:])
        return is_done and told[-5:] == [len(lines())] * 5

    monkeypatch.setattr(Progress, "_log_line", tells)
    with caplog.at_level(logging.INFO, "kshare.processing"):
        run(Processor(handler), consumer(), has_told_nothing)
    assert has_told_nothing()
    assert ": 0 records/s" not in lines()[-1]
