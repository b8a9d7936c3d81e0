"""Records that are not to be handled before a time: how far ahead, and what others have left."""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.progress import TopicPartition
from kshare.errors import OptionsError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import Processor, Record
from kshare.processing.core.lane import Figures
from kshare.processing.held import full
from kshare.processing.not_before import NotBefore
from kshare.testing import FakeCluster
from kshare.testing import Record as Row
from tests.processing.running import ORDERS, RECORDS, run
from tests.support.fake_session import FakeSessions

NOW = 1_800_000_000.0
YEAR_9999_MS = 253_370_764_800_000
YEAR_2200_MS = 7_258_118_400_000


def record(value: bytes | None, offset: int = 5) -> Any:
    headers = [("trace", b"1"), ("not-before", value)]
    return Mock(headers=headers, offset=offset, topic_partition=ORDERS)


def milliseconds(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)


@pytest.mark.parametrize("value", [b"1" * 310, b"-" + b"9" * 400, b"9" * 5_000, b"soon", b"", None])
def test_a_header_that_is_no_time_is_passed_over(value: bytes | None) -> None:
    assert NotBefore(60.0).of(record(value)) == 0.0


def test_a_time_counts_up_to_the_bound() -> None:
    header = NotBefore(60.0, lambda: NOW)
    assert header.of(record(milliseconds(NOW + 60))) == NOW + 60
    assert header.of(record(milliseconds(NOW - 60))) == NOW - 60
    assert header.of(record(milliseconds(NOW + 61))) == 0.0
    assert header.of(Mock(headers=[])) == 0.0
    assert NotBefore(None, lambda: NOW).of(record(milliseconds(NOW + 1))) == 0.0


def test_later_times_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    header = NotBefore(60.0, lambda: NOW)
    for offset in range(5, 9):
        assert header.of(record(b"%d" % YEAR_9999_MS, offset)) == 0.0
    (said,) = caplog.messages
    assert said == (
        "orders-0 offset 5: its header not-before is more than 60 s ahead (max_delay), and is "
        "passed over"
    )
    header._next_warning = 0.0
    header.of(record(b"%d" % YEAR_9999_MS, 9))
    assert caplog.messages[-1].startswith("orders-0 offset 9: ")
    assert caplog.messages[-1].endswith("so were those of 3 records before")


def test_the_bound_is_a_duration() -> None:
    with pytest.raises(OptionsError, match="max_delay='soon'"):
        Processor(print, max_delay="soon")


@pytest.mark.parametrize("max_delay", ["1d", "100000d", None])
def test_records_that_are_late_for_good_stop_nobody(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    cluster: FakeCluster,
    max_delay: str | None,
) -> None:
    """Far more than may be held, each of a key of its own, before records that are to be handled.

    Beyond the bound they are handled like any other; within it they go back to the log.
    """
    late, others = 400, 50
    header = [("not-before", b"%d" % YEAR_2200_MS)]
    rows = [Row(None if at % 10 == 0 else f"late-{at}", "v", header) for at in range(late)]
    rows += [Row(f"other-{at}", "v") for at in range(others)]
    cluster.produce("orders", rows, partition=0)
    seen = list[int]()

    async def handler(record: Record) -> None:
        seen.append(record.offset)

    waits = max_delay == "100000d"
    wanted = {*range(RECORDS), *range(RECORDS + late, RECORDS + late + others)}
    if not waits:
        wanted |= set(range(RECORDS, RECORDS + late))
    processor = Processor(handler, max_records=100, max_delay=max_delay)
    run(processor, consumer(), lambda: len(seen) >= len(wanted))
    assert len(seen) == len(wanted)
    assert set(seen) == wanted
    pending = [at for at in range(RECORDS, RECORDS + late) if not sessions.processed(ORDERS, at)]
    assert pending == (list(range(RECORDS, RECORDS + late)) if waits else [])


def test_what_went_back_to_the_log_comes_at_its_time_and_in_order(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions, cluster: FakeCluster
) -> None:
    keys, due = 120, time.time() + 3.0
    header = [("not-before", milliseconds(due))]
    rows = [Row(f"late-{at % keys}", "v", header) for at in range(3 * keys)]
    cluster.produce("orders", [*rows, Row("other", "v")], partition=0)
    total = RECORDS + 3 * keys + 1
    seen = list[tuple[bytes, int, float]]()

    async def handler(record: Record) -> None:
        await asyncio.sleep(0)
        seen.append((record.key, record.offset, time.time()))

    run(Processor(handler, max_records=60), consumer(), lambda: len(seen) >= total)
    assert sorted(at for _, at, _ in seen) == list(range(total))
    assert all(when >= due for key, _, when in seen if key.startswith(b"late"))
    for key in {key for key, _, _ in seen}:
        offsets = [at for each, at, _ in seen if each == key]
        assert offsets == sorted(offsets)


def test_what_fills_everything_is_named() -> None:
    place = TopicPartition("orders", 3)
    waiting = [Record(Mock(topic_partition=place), 0, at, b"k", b"v", at) for at in range(3)]
    for each in waiting:
        each.due = 4_000_000_000.0 + each.offset
    wait = full(Figures(9, 99, 3, 0, 3, 0, None), waiting)
    assert wait.state == "nothing is read, as max_records or max_bytes is full"
    assert wait.detail.startswith("9 records of 3 keys, of which 3 wait for their time")
    assert wait.detail.endswith(
        "the next one, <Record orders-3 offset 0>, until 2096-10-02T07:06:40+00:00"
    )
