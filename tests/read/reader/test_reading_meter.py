"""What a task says while it reads."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.live import BOUNDS, NO_LATENCY, Latency
from kshare.read.decode.columns import schema
from kshare.read.reader.reading_meter import ReadingMeter

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Said:
    """What was said."""

    def __init__(self) -> None:
        self.last: list[tuple[list[int], list[int], Latency]] = []

    def __call__(self, positions: Sequence[int], ends: Sequence[int], latency: Latency, /) -> None:
        self.last.append(([*positions], [*ends], latency))


def batch_of(late_ms: list[int]) -> pa.RecordBatch:
    times = [NOW - timedelta(milliseconds=each) for each in late_ms]
    return pa.record_batch({"timestamp": pa.array(times, schema(("timestamp",)).field(0).type)})


@given(st.lists(st.lists(st.integers(-10, 2_000_000), max_size=8), max_size=4))
def test_each_record_is_counted_where_it_belongs(batches: list[list[int]]) -> None:
    said = Said()
    meter = ReadingMeter(said, lambda: 0.0, NOW.timestamp)
    for late in batches:
        meter.take(batch_of(late))
    meter.say([(5, 9), (6, 0)])
    ((positions, ends, latency),) = said.last
    assert (positions, ends) == ([5, 6], [9, 0])
    bounds = [0.0, *BOUNDS, float("inf")]
    late_s = [max(each, 0) / 1000 for late in batches for each in late]
    counts = [
        sum(low < each <= high for each in late_s)
        for low, high in zip([-1.0, *bounds[1:-1]], bounds[1:], strict=True)
    ]
    assert list(latency.counts) == counts


def test_without_timestamps_nothing_is_counted() -> None:
    said = Said()
    meter = ReadingMeter(said, lambda: 0.0, NOW.timestamp)
    meter.take(pa.record_batch({"value": pa.array([b"1"])}))
    unknown = pa.array([-1000], pa.int64()).view(pa.timestamp("us", "UTC"))
    meter.take(pa.record_batch({"timestamp": unknown}))
    meter.say([])
    assert said.last == [([], [], NO_LATENCY)]


def test_it_is_due_once_a_second() -> None:
    now = [7.0]
    meter = ReadingMeter(Said(), lambda: now[0])
    due = [meter.is_due]
    meter.say([])
    due.append(meter.is_due)
    now[0] = 8.0
    due.append(meter.is_due)
    assert due == [True, False, True]
