"""What is known of the demo's query, and how it is shown."""

import io
import json

from rich.console import Console, RenderableType

from kshare.core.checkpoint import BatchOffsets, RangeLimit, encode
from kshare.core.hashing import KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.monitor.report import PartitionReport, RangeReport, encode_report
from spark_plugin.demo.state import QueryState, as_line, as_table
from tests.spark_plugin.demo.rows import HIGH, LOW, T0, rows, state_of


def text(renderable: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=False).print(renderable)
    return out.getvalue()


def test_the_table_shows_where_each_range_stands() -> None:
    table = text(as_table(state_of(range(30), range(30, 60), stable=10)))
    assert table.startswith("batch 1: 60 of 100 records, ")
    lines = [line.split() for line in table.splitlines()]
    assert lines[2][:7] == ["t-0", "0.00", "%", "to", "50.00", "%", "60"]
    assert lines[2][-2:] == ["40", "7"]
    assert lines[3][-1] == "90"
    assert lines[4] == ["t-0", "stable", "offset", "10"]


def test_the_line_says_the_same() -> None:
    assert as_line(state_of(range(30), stable=10)) == (
        "batch 0: 30 of 100 records; t-0 stable 10, ranges at 60 10"
    )


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
