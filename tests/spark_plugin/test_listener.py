"""The query listener on events as Spark makes them, from JSON."""

import json
import logging
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

import spark_plugin
from kshare.core.checkpoint import BatchOffsets, RangeLimit, encode
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges, split
from kshare.core.listing import ParkedCount
from kshare.core.live import NO_LATENCY, Latency, Live, LiveRange
from kshare.core.offsets import OffsetRange
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slice_end import HotKey
from kshare.monitor.live_file import write_live
from kshare.monitor.report import PartitionReport, RangeReport, encode_report
from spark_plugin.listener import KshareListener, QueryReport, report_of
from spark_plugin.query_report import as_of_now
from tests.support.series import series

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
QUERY = "7b2e3ec0-0000-4000-8000-000000000001"
AHEAD = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
CUSTOMER = (HotKey(b"customer-7", 0.75),)
SLOW = RangeReport(KeyRanges([LOW]), 20, 10, records=10, seconds=5.0, limit=10, hot_keys=CUSTOMER)
HOT = RangeReport(KeyRanges([HIGH]), 10, 20, records=1000, seconds=1.0, limit=1000)
ENDED = QueryTerminatedEvent.fromJson(
    {"id": QUERY, "runId": QUERY, "exception": None, "errorClassOnException": None}
)
OPERATOR = {
    "operatorName": "stateStoreSave",
    **dict.fromkeys(("numRowsTotal", "numRowsUpdated", "numRowsRemoved"), 1),
    **dict.fromkeys(("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs"), 1),
    **dict.fromkeys(("memoryUsedBytes", "numShufflePartitions", "numStateStoreInstances"), 1),
    "customMetrics": {},
}
TOLD = {T0: PartitionReport(30, 10, 1, 44, ranges=(SLOW, HOT))}


def event(
    *sources: tuple[Any, Any] | tuple[Any, Any, str],
    query: str = QUERY,
    name: str | None = "orders",
    dropped: tuple[int, ...] = (),
    batch: int = 4,
    run: int = 2,
) -> QueryProgressEvent:
    """A progress event: for each source its end offset, its latest offset, its description."""
    written = [
        {
            "description": more[0] if more else "PythonMicroBatchStream",
            "startOffset": None,
            "endOffset": end,
            "latestOffset": latest,
            "numInputRows": 1,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
        }
        for end, latest, *more in sources
    ]
    progress = {
        "id": query,
        "runId": f"7b2e3ec0-0000-4000-8000-{run:012}",
        "name": name,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchId": batch,
        "batchDuration": 9000,
        "durationMs": {"triggerExecution": 10_000},
        "eventTime": {},
        "stateOperators": [{**OPERATOR, "numRowsDroppedByWatermark": rows} for rows in dropped],
        "sources": written,
        "sink": {"description": "noop", "numOutputRows": -1},
        "observedMetrics": {},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(progress))


def heard(*sources: Any) -> QueryReport | None:
    listener = KshareListener()
    listener.onQueryProgress(event(*sources))
    return listener.last.get(QUERY)


def test_a_report() -> None:
    report = heard((encode(BatchOffsets({T0: AHEAD})), encode_report(TOLD)))
    assert report is not None
    assert (report.name, report.batch, report.seconds) == ("orders", 4, 10.0)
    assert report.partitions == TOLD
    assert (report.slowest, report.hottest) == ((T0, SLOW), (T0, HOT))
    assert report.records_per_second(HOT) == 100.0
    assert SLOW.seconds_per_record == 0.5
    assert (report.gaps, report.entry_bytes) == (1, 44)


@pytest.mark.parametrize("latest", [None, {"t": {"0": 30, "1": 9}}, {"t": 1}, "5"])
def test_without_a_report_there_are_positions(latest: Any) -> None:
    limits = {T1: (RangeLimit(ALL_HASHES, 9, 5),)}
    report = heard((encode(BatchOffsets({T0: AHEAD, T1: Progress.at(3)}, limits=limits)), latest))
    assert report is not None
    known = isinstance(latest, dict) and latest["t"] != 1
    end = 30 if known else 20
    first, second = report.partitions[T0], report.partitions[T1]
    assert first.ranges == (
        RangeReport(KeyRanges([LOW]), 20, end - 20),
        RangeReport(KeyRanges([HIGH]), 10, end - 10),
    )
    assert (first.end, first.stable, first.gaps, first.entry_bytes > 0) == (end, 10, 1, True)
    assert second.ranges == (RangeReport(ALL_HASHES, 3, 6 if known else 0, limit=5),)
    assert (report.slowest, report.hottest) == (None, None)


def test_a_partition_without_a_report_stands_beside_one_with() -> None:
    latest = encode_report(TOLD, ends={T1: 8})
    report = heard((encode(BatchOffsets({T0: AHEAD, T1: Progress.at(3)})), latest))
    assert report is not None
    assert report.partitions[T0] == TOLD[T0]
    assert report.partitions[T1].ranges == (RangeReport(ALL_HASHES, 3, 5),)


def test_other_sources_are_no_concern() -> None:
    assert heard((5, 6), ({"logOffset": 3}, None), (None, None)) is None
    assert heard(({"t": {"0": 5}}, {"t": {"0": 5}}, "KafkaV2[Subscribe[t]]")) is None
    mixed = heard((5, 6), ({"t": {"0": 5}}, {"t": {"0": 5}}))
    assert mixed is not None
    assert list(mixed.partitions) == [T0]


def test_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    listener = KshareListener()
    safe = event((encode(BatchOffsets({T0: AHEAD, T1: Progress.at(3)})), encode_report(TOLD)))
    with caplog.at_level(logging.INFO, "kshare"):
        listener.onQueryProgress(safe)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "INFO"]
    assert caplog.messages[0] == (
        "orders batch 4, source 0: offsets behind latest: min 20, max 20, avg 20.0"
    )
    assert caplog.messages[1] == (
        "orders batch 4, t-0: stable 10, end 30, 2 ranges at 10 to 20, lag up to 20, "
        "slowest 0.00 % to 50.00 %: 500 ms a record (keys 'customer-7' 75 %), "
        "hottest 50.00 % to 100.00 %: 100 records/s, 1 gaps in 44 bytes"
    )
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "kshare"):
        listener.onQueryProgress(safe)
    assert caplog.messages[2] == (
        "orders batch 4, t-0, 0.00 % to 50.00 %: position 20, offsets behind latest 10, "
        "pending 10, 10 records, 1 records/s, 5 s, 500 ms a record, limit 10"
    )
    caplog.clear()
    for at_risk_from in (None, 4):  # an older kshare says only that there is a risk
        risky = {T0: PartitionReport(30, 10, retention_at_risk=True, at_risk_from=at_risk_from)}
        with caplog.at_level(logging.WARNING, "kshare"):
            listener.onQueryProgress(
                event((encode(BatchOffsets({T0: AHEAD})), encode_report(risky)))
            )
    assert caplog.messages == [
        "orders: retention is about to take records of t-0 that are pending, from offset 10 on",
        "orders: retention is about to take records of t-0 that are pending, from offset 4 on",
    ]


def test_no_range_is_called_the_slowest_before_all_are_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    offsets = encode(BatchOffsets({T0: AHEAD}))
    for other, is_said in ((HOT, True), (replace(HOT, seconds=None), False)):
        told = {T0: PartitionReport(30, 10, 1, 44, ranges=(SLOW, other))}
        caplog.clear()
        with caplog.at_level(logging.INFO, "kshare"):
            KshareListener().onQueryProgress(event((offsets, encode_report(told))))
        assert ("slowest 0.00 % to 50.00 %" in caplog.text) == is_said
        assert "hottest 50.00 % to 100.00 %" in caplog.text


def test_a_callback_gets_every_report_and_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[QueryReport] = []

    def callback(report: QueryReport) -> None:
        seen.append(report)
        raise RuntimeError("of the user's")

    listener = KshareListener(callback)
    for _ in range(2):
        listener.onQueryProgress(event((encode(BatchOffsets({T0: AHEAD})), None)))
    assert len(seen) == 2
    assert listener.last == {QUERY: seen[1]}
    assert caplog.text.count("could not report a batch") == 2


def test_an_event_of_another_shape_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = None
    KshareListener().onQueryProgress(nothing)
    assert "could not report a batch" in caplog.text


def test_reports_of_old_queries_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_plugin.listener._QUERIES_MAX", 2)
    listener = KshareListener()
    ids = [QUERY[:-1] + str(i) for i in range(3)]
    for query in (*ids[:2], ids[0], ids[2]):
        listener.onQueryProgress(event((encode(BatchOffsets({T0: AHEAD})), None), query=query))
    assert list(listener.last) == [ids[0], ids[2]]


def test_offsets_as_json_text() -> None:
    """As the JVM gives them."""
    report = heard((json.dumps(encode(BatchOffsets({T0: AHEAD}))), json.dumps(encode_report(TOLD))))
    assert report is not None
    assert report.partitions == TOLD


# -- as Spark's kafka source tells them ------------------------------------------------------------


def test_metrics_are_those_of_sparks_kafka_source() -> None:
    """``KafkaMicroBatchStream.metrics``: latest minus consumed, over the partitions of a source."""
    end, latest = {"t": {"0": 5, "1": 10}}, {"t": {"0": 5, "1": 31}}
    report = heard(({"u": {"0": 1}}, {"u": {"0": 4}}, "KafkaV2[Subscribe[u]]"), (end, latest))
    assert report is not None
    (source,) = report.sources
    assert source.number == 1
    assert source.metrics == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "21",
        "avgOffsetsBehindLatest": "10.5",
    }


def test_of_uneven_partitions_the_slowest_range_counts() -> None:
    report = heard(
        (encode(BatchOffsets({T0: AHEAD, T1: Progress.at(3)})), encode_report(TOLD, {T1: 3}))
    )
    assert report is not None
    assert report.sources[0].offsets_behind_latest == {T0: 20, T1: 0}


def test_without_an_end_nothing_is_behind_it() -> None:
    report = heard(({"t": {"0": 5}}, None))
    assert report is not None
    assert report.sources[0].metrics == {}


def test_a_partition_that_two_sources_read() -> None:
    report = heard(({"t": {"0": 5}}, {"t": {"0": 9}}), ({"t": {"0": 2}}, {"t": {"0": 9}}))
    assert report is not None
    assert [s.metrics["maxOffsetsBehindLatest"] for s in report.sources] == ["4", "7"]
    assert report.partitions[T0].stable == 2


# -- Prometheus -----------------------------------------------------------------------------------


def test_prometheus_metrics() -> None:
    registry = CollectorRegistry()
    listener = KshareListener(prometheus=registry)
    assert series(registry) == {}
    parked = ParkedCount(2, 1_700_000_000.0)
    told = {T0: replace(TOLD[T0], gaps_max=10_000, parked=parked)}
    listener.onQueryProgress(
        event((encode(BatchOffsets({T0: AHEAD, T1: Progress.at(3)})), encode_report(told, {T1: 4})))
    )
    source, low, high = ("orders", "0"), "0.00 % to 50.00 %", "50.00 % to 100.00 %"
    first, second = (*source, "t", "0"), (*source, "t", "1")
    assert series(registry) == {
        ("kshare_batch_duration_seconds", "orders"): 10.0,
        ("kshare_rows_dropped_by_watermark_total", "orders"): 0.0,
        ("kshare_min_offsets_behind_latest", *source): 1.0,
        ("kshare_max_offsets_behind_latest", *source): 20.0,
        ("kshare_avg_offsets_behind_latest", *source): 10.5,
        ("kshare_offsets_behind_latest", *first): 20.0,
        ("kshare_offsets_behind_latest", *second): 1.0,
        ("kshare_stable_offset", *first): 10.0,
        ("kshare_stable_offset", *second): 3.0,
        ("kshare_ranges", *first): 2.0,
        ("kshare_ranges", *second): 1.0,
        ("kshare_individual_commits", *first): 1.0,
        ("kshare_individual_commits", *second): 0.0,
        ("kshare_checkpoint_entry_bytes", *first): 44.0,
        ("kshare_checkpoint_entry_bytes", *second): 0.0,
        ("kshare_retention_at_risk", *first): 0.0,
        ("kshare_retention_at_risk", *second): 0.0,
        ("kshare_individual_commits_max", *first): 10_000.0,
        ("kshare_parked_keys", *source, "t"): 2.0,
        ("kshare_oldest_parked_key_timestamp_seconds", *source, "t"): 1_700_000_000.0,
        ("kshare_range_position", *first, low): 20.0,
        ("kshare_range_position", *first, high): 10.0,
        ("kshare_range_offsets_behind_latest", *first, low): 10.0,
        ("kshare_range_offsets_behind_latest", *first, high): 20.0,
        ("kshare_range_batch_records", *first, low): 10.0,
        ("kshare_range_batch_records", *first, high): 1000.0,
        ("kshare_range_task_duration_seconds", *first, low): 5.0,
        ("kshare_range_task_duration_seconds", *first, high): 1.0,
        ("kshare_range_limit_records", *first, low): 10.0,
        ("kshare_range_limit_records", *first, high): 1000.0,
    }


def test_rows_behind_the_watermark_are_counted_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    listener = KshareListener(prometheus=registry)
    for batch, dropped in enumerate(((), (3, 4), (), (5,)), 4):
        listener.onQueryProgress(event(({"t": {"0": 5}}, None), dropped=dropped, batch=batch))
        assert listener.last[QUERY].dropped_rows == sum(dropped)
    assert series(registry)["kshare_rows_dropped_by_watermark_total", "orders"] == 12
    lines = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.getMessage().split(" rows")[0] for line in lines] == [
        "orders batch 5: Spark has dropped 7",
        "orders batch 7: Spark has dropped 5",
    ]
    assert "after partial aggregation" in caplog.text
    assert '.option("maxTimeAhead", "10m")' in caplog.text
    listener.onQueryTerminated(ENDED)
    listener.onQueryProgress(event(({"t": {"0": 5}}, None)))
    assert series(registry)["kshare_rows_dropped_by_watermark_total", "orders"] == 0


def test_rows_count_once_for_all_listeners_of_a_registry() -> None:
    """A cell of a notebook that makes one was run twice. A batch may run again in a later run."""
    registry = CollectorRegistry()
    listeners = [KshareListener(prometheus=registry) for _ in range(2)]
    for run, batch in ((2, 4), (2, 5), (3, 5), (3, 6)):
        told = event(({"t": {"0": 5}}, None), dropped=(7,), batch=batch, run=run)
        for listener in listeners:
            listener.onQueryProgress(told)
    assert series(registry)["kshare_rows_dropped_by_watermark_total", "orders"] == 28


def test_series_go_with_their_ranges_and_queries() -> None:
    registry = CollectorRegistry()
    listener = KshareListener(prometheus=registry)
    listener.onQueryProgress(event((encode(BatchOffsets({T0: AHEAD})), encode_report(TOLD))))
    assert ("kshare_range_batch_records", "orders", "0", "t", "0", "0.00 % to 50.00 %") in (
        series(registry)
    )
    level = {"t": {"0": 30}}
    listener.onQueryProgress(event((level, level)))
    left = series(registry)
    assert not [names for names in left if names[0].startswith("kshare_range_")]
    assert left["kshare_stable_offset", "orders", "0", "t", "0"] == 30
    listener.onQueryTerminated(ENDED)
    assert series(registry) == {}
    assert QUERY in listener.last


def test_a_query_of_too_many_ranges_has_series_of_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    listener = KshareListener(prometheus=registry, prometheus_ranges_max=1)
    for _ in range(2):
        listener.onQueryProgress(event((encode(BatchOffsets({T0: AHEAD})), encode_report(TOLD))))
    names = {name for name, *_ in series(registry)}
    assert "kshare_offsets_behind_latest" in names
    assert not [name for name in names if name.startswith("kshare_range_")]
    assert caplog.text.count("orders has 2 ranges, more than prometheus_ranges_max (1)") == 1


def test_parked_ranges_have_no_series() -> None:
    registry = CollectorRegistry()
    parked = RangeReport(KeyRanges([HashRange(7, 8)]), 3, 1, is_parked=True)
    told = {T0: PartitionReport(30, 3, ranges=(parked, SLOW))}
    KshareListener(prometheus=registry).onQueryProgress(
        event((encode(BatchOffsets({T0: AHEAD})), encode_report(told)))
    )
    shown = {key[-1] for key in series(registry) if key[0] == "kshare_range_position"}
    assert shown == {"0.00 % to 50.00 %"}


def test_queries_are_told_apart() -> None:
    registry = CollectorRegistry()
    # Two listeners, as in two sessions, or in a cell of a notebook that is run again.
    first, second = KshareListener(prometheus=registry), KshareListener(prometheus=registry)
    other, third = QUERY[:-1] + "2", QUERY[:-1] + "3"
    level = {"t": {"0": 30}}
    first.onQueryProgress(event((level, level)))
    second.onQueryProgress(event((level, level), query=other))
    second.onQueryProgress(event((level, level), query=third, name=None))
    shown = {labels[0] for name, *labels in series(registry) if name == "kshare_stable_offset"}
    assert shown == {QUERY, other, third}  # one name for two says nothing


def test_the_default_registry() -> None:
    listener = KshareListener(prometheus=True)
    level = {"t": {"0": 30}}
    listener.onQueryProgress(event((level, level)))
    labels = {"query": "orders", "source": "0", "topic": "t", "partition": "0"}
    assert REGISTRY.get_sample_value("kshare_stable_offset", labels) == 30
    listener.onQueryTerminated(ENDED)
    assert REGISTRY.get_sample_value("kshare_stable_offset", labels) is None


def test_without_the_extra() -> None:
    """In a process of its own, as modules stay imported."""
    script = """
import sys
sys.modules["prometheus_client"] = None
from spark_plugin import KshareListener
KshareListener()
try:
    KshareListener(prometheus=True)
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "needs prometheus-client: pip install 'kshare[prometheus]'" in done.stdout


def test_it_is_exported() -> None:
    assert spark_plugin.KshareListener is KshareListener
    with pytest.raises(AttributeError, match="no attribute 'KshareWriter'"):
        spark_plugin.KshareWriter  # noqa: B018


@pytest.fixture
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark before 4.2, whose events show the end of the batch as the latest offset."""
    monkeypatch.setattr("spark_plugin.listener.REPORTS_LATEST", False)
    monkeypatch.setattr("spark_plugin.listener.REPORTS_LATEST", False)


@pytest.mark.usefixtures("without_reports")
def test_an_end_that_spark_shows_as_the_latest_is_no_lag(caplog: pytest.LogCaptureFixture) -> None:
    end = encode(BatchOffsets({T1: Progress.at(3)}))
    report = heard((end, end))
    assert report is not None
    assert report.partitions[T1].end == 3
    assert report.sources[0].metrics == {}
    assert "Spark " in caplog.text
    assert "lags, records and times of ranges are not known" in caplog.text


def test_offsets_in_the_way_of_python() -> None:
    """As Spark 4.0 and 4.1 show them in a session of Spark Connect."""
    report = heard((str(encode(BatchOffsets({T1: Progress.at(3)}))), str({"t": {"1": 8}})))
    assert report is not None
    assert report.sources[0].metrics["maxOffsetsBehindLatest"] == "5"


# -- positions of a batch that reads for a while ---------------------------------------------------

LOWER, UPPER = split(WHOLE, 2)
OPEN = OpenBatch(
    "3f9c-1", 60_000, "ends", LogPosition(0, 0), {T0: (KeyRanges([LOWER]), KeyRanges([UPPER]))}
)
LATENCY = Latency((9, *NO_LATENCY.counts[1:]))


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    """What a planner says of a later batch of the same run, while that reads."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ranges = (LiveRange(T0, 1, UPPER, 25, 40), LiveRange(T0, 0, LOWER, 20, 40))
    said = Live("3f9c-2", round(time.time() * 1000), ranges, LATENCY, LATENCY)
    write_live(said)
    return said


def open_event() -> QueryProgressEvent:
    offsets = BatchOffsets({T0: Progress.at(10), T1: Progress.at(3)}, open=OPEN)
    parked = RangeReport((HashRange.of(7),), 2, 28, is_parked=True)
    told = {T0: PartitionReport(30, 10, ranges=(parked,))}
    return event((encode(offsets), encode_report(told, {T1: 4})))


def test_positions_are_those_of_now(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kshare")
    listener = KshareListener()
    listener.onQueryProgress(open_event())
    (source,) = listener.last[QUERY].sources
    assert (source.batch, source.live, source.latency) == ("3f9c-1", {T0: 20}, LATENCY)
    assert source.offsets_behind_latest == {T0: 20, T1: 1}
    assert source.partitions[T0] == PartitionReport(
        40,
        10,
        ranges=(
            RangeReport((LOWER,), 20, 20),
            RangeReport((HashRange.of(7),), 2, 28, is_parked=True),
            RangeReport((UPPER,), 25, 15),
        ),
    )
    said = [record.message for record in caplog.records]
    assert (
        "orders batch 4, source 0: positions are live, latency in the last 10 s p50 1 ms p90 1 ms "
        "p99 1 ms, in the batch p50 1 ms p90 1 ms p99 1 ms"
    ) in said
    assert any("t-0: live 20, committed 10, end 40, 3 ranges" in text for text in said)
    assert any("t-1: stable 3, end 4" in text for text in said)
    write_live(replace(live, ranges=(LiveRange(T0, 0, WHOLE, 33, 50),)))
    (source,) = listener.now(QUERY).sources
    assert (source.live, source.offsets_behind_latest[T0]) == ({T0: 33}, 17)
    write_live(replace(live, at_ms=1))
    (source,) = listener.last[QUERY].sources
    assert source.live == {T0: 20}  # what the last event had
    assert not as_of_now(report_of(open_event().progress)).sources[0].live  # type: ignore[arg-type]


def test_metrics_are_those_of_now(live: Live) -> None:
    registry = CollectorRegistry()
    KshareListener(prometheus=registry).onQueryProgress(open_event())
    source, first = ("orders", "0"), ("orders", "0", "t", "0")
    write_live(replace(live, ranges=(LiveRange(T0, 0, WHOLE, 33, 50),), recent=NO_LATENCY))
    found = series(registry)
    assert found["kshare_live_offset", *first] == 33
    assert found["kshare_stable_offset", *first] == 10
    assert found["kshare_offsets_behind_latest", *first] == 17
    assert {labels: value for labels, value in found.items() if "latency" in labels[0]} == {
        ("kshare_latency_seconds", *source, "batch", share): 0.001
        for share in ("0.5", "0.9", "0.99")
    }
