"""What is known of the demo's query."""

import json

from kshare.core.checkpoint import BatchOffsets, RangeLimit, encode
from kshare.core.hashing import KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.monitor.report import PartitionReport, RangeReport, encode_report
from spark_plugin.demo.state import QueryState
from tests.spark_plugin.demo.rows import HIGH, LOW, T0, rows


def test_records_a_second_are_counted_from_the_first_batch() -> None:
    clock = iter([50.0, 52.0])
    state = QueryState(target=100, clock=lambda: next(clock))
    assert state.records_per_second is None
    state.add_batch(0, rows(range(30)))
    assert state.records_per_second is None
    state.add_batch(1, rows(range(30, 50)))
    assert state.records_per_second == 10.0


def test_a_batch_that_runs_again_replaces_its_rows() -> None:
    state = QueryState(target=10)
    state.add_batch(0, rows(range(5)))
    state.add_batch(0, rows(range(8)))
    assert state.records == 8
    assert state.rows()["batch"].to_pylist() == [0] * 8


def test_progress_events_bring_the_planners_reports() -> None:
    state = QueryState(target=10)
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    limits = {T0: (RangeLimit(KeyRanges([HIGH]), 40, 7),)}
    end = json.dumps(encode(BatchOffsets({T0: progress}, limits=limits)))
    state.add_progress({"sources": [{"endOffset": end, "latestOffset": None}]})
    assert state.stable_offset(T0) == 10
    assert [range_.limit for range_ in state.partitions[T0].ranges] == [7]
    report = PartitionReport(50, 30, ranges=(RangeReport(KeyRanges([LOW]), 30, 20),))
    latest = json.dumps(encode_report({T0: report}))
    state.add_progress({"sources": [{"endOffset": end, "latestOffset": latest}]})
    assert state.partitions == {T0: report}
    state.add_progress({"sources": [{"endOffset": "null", "latestOffset": None}, {}]})
    assert state.partitions == {T0: report}
    assert state.stable_offset(TopicPartition("t", 9)) == 0


def test_the_moment_is_kept_when_the_ranges_were_furthest_apart() -> None:
    state = QueryState(target=50)
    for low, high in ((5, 10), (10, 30), (40, 45), (50, 50)):
        report = PartitionReport(
            50,
            low,
            ranges=(
                RangeReport(KeyRanges([LOW]), high, 50 - high),
                RangeReport(KeyRanges([HIGH]), low, 50 - low),
            ),
        )
        latest = json.dumps(encode_report({T0: report}))
        state.add_progress({"sources": [{"endOffset": None, "latestOffset": latest}]})
    assert state.widest is not None
    partition, widest = state.widest
    assert (partition, [each.position for each in widest.ranges]) == (T0, [30, 10])
