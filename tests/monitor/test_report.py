"""The report inside progress events: there and back, and what is not one."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.checkpoint import BatchOffsets, RangeLimit, encode
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange, KeyRanges
from kshare.core.listing import ParkedCount
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slice_end import HotKey
from kshare.core.slicing import RangeObservation
from kshare.monitor.report import (
    PartitionReport,
    RangeReport,
    are_measured,
    decode_report,
    encode_report,
    entry_bytes,
    hottest,
    lag,
    partition_report,
    slowest,
)

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0 = TopicPartition("t", 0)
counts = st.integers(0, 2**63 - 1)
hash_sets = st.sets(st.integers(0, HASH_SPACE), min_size=2, max_size=6).map(
    lambda cuts: KeyRanges(
        HashRange(lo, hi) for lo, hi in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)
    )
)
range_reports = st.builds(
    RangeReport,
    hash_sets,
    counts,
    counts,
    st.none() | counts,
    st.none() | st.floats(0, 1e9),
    st.none() | counts,
    st.lists(
        st.builds(HotKey, st.binary(max_size=9), st.floats(0, 1, exclude_min=True)), max_size=3
    ).map(tuple),
    st.booleans(),
)
reports = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "told", "Ünï 😀"]), st.integers(0, 20)),
    st.builds(
        PartitionReport,
        counts,
        counts,
        counts,
        counts,
        st.booleans(),
        st.lists(range_reports, max_size=3).map(tuple),
        st.none() | counts,
        st.none() | counts,
        st.none() | st.builds(ParkedCount, st.integers(1, 9), st.none() | st.floats(0, 1e10)),
    ),
    max_size=4,
)


@given(reports)
def test_there_and_back_through_json(told: dict[TopicPartition, PartitionReport]) -> None:
    assert decode_report(json.loads(json.dumps(encode_report(told)))) == told


def test_the_shape() -> None:
    told = PartitionReport(
        9,
        5,
        1,
        30,
        True,
        (RangeReport(ALL_HASHES - KeyRanges.of_hashes([HALF]), 5, 4, 3, 1.5, 10),),
    )
    assert encode_report({T0: told}, ends={TopicPartition("t", 10): 7, T0: 1}) == {
        "t": {"0": 9, "10": 7},
        "@kshare": {
            "v": 1,
            "report": {
                "t": {
                    "0": {
                        "stable": 5,
                        "gaps": 1,
                        "bytes": 30,
                        "retention_at_risk": True,
                        "ranges": [
                            {
                                "h": [[0, HALF], [HALF + 1, HASH_SPACE]],
                                "position": 5,
                                "lag": 4,
                                "records": 3,
                                "seconds": 1.5,
                                "limit": 10,
                            }
                        ],
                    }
                }
            },
        },
    }


def test_where_retention_is_a_risk_the_report_says_from_where() -> None:
    told = encode_report({T0: partition_report(9, Progress.at(9), at_risk_from=4)})
    entry = told["@kshare"]["report"]["t"]["0"]
    assert (entry["retention_at_risk"], entry["at_risk_from"]) == (True, 4)
    told = encode_report({T0: partition_report(9, Progress.at(9))})
    entry = told["@kshare"]["report"]["t"]["0"]
    assert not entry["retention_at_risk"]
    assert "at_risk_from" not in entry


def test_without_a_report_there_are_only_ends() -> None:
    assert encode_report({}, ends={T0: 7}) == {"t": {"0": 7}}
    assert decode_report({"t": {"0": 7}}) == {}


def test_what_a_later_kshare_adds_is_no_fault() -> None:
    told = encode_report({T0: PartitionReport(9, 5)})
    told["@kshare"]["v"] = 2
    told["@kshare"]["report"]["t"]["0"]["new"] = "x"
    assert decode_report(told) == {T0: PartitionReport(9, 5)}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([], "the report: Input should be a valid dictionary"),
        ({"t": 1}, "t: Input should be a valid dictionary, found 1"),
        ({"t": {"0": -1}}, "t.0: Input should be greater than or equal to 0, found -1"),
        ({"t": {"0": True}}, "t.0: Input should be a valid integer, found True"),
        ({"t": {"x": 1}}, "t.x.[key]: String should match"),
        ({"@kshare": 1}, "@kshare: Input should be a valid dictionary"),
        (
            {"@kshare": {"report": {"t": {"0": {"stable": 1}}}}},
            "@kshare.report.t.0: there is no end beside it",
        ),
        (
            {"t": {"0": 1}, "@kshare": {"report": {"t": {"0": {"gaps": 7}}}}},
            "@kshare.report.t.0.stable: Field required",
        ),
    ],
)
def test_other_shapes_are_refused(value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}") as refused:
        decode_report(value)
    assert type(refused.value) is ValueError  # and none of pydantic's


def test_an_error_shows_little_of_what_was_found() -> None:
    """One fault, however many there are, and the beginning of what is wrong."""
    with pytest.raises(ValueError, match="found") as refused:
        decode_report({"t": {"0": "x" * 10_000, "1": "y" * 10_000}})
    assert len(str(refused.value)) < 200
    # Nor does a traceback show pydantic's own text.
    assert (refused.value.__cause__, refused.value.__suppress_context__) == (None, True)
    assert str(refused.value).count("found") == 1


def test_only_who_reads_a_report_loads_pydantic() -> None:
    code = (
        "import sys\n"
        "import kshare.query.planner, kshare.monitor.status, spark_plugin, spark_plugin.listener\n"
        "from kshare.monitor.report import PartitionReport, decode_report, encode_report\n"
        "told = encode_report({('t', 0): PartitionReport(9, 5)})\n"
        "print('pydantic' in sys.modules)\n"
        "decode_report(told)\n"
        "print('pydantic' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("h", []),
        ("h", [[1]]),
        ("h", [[1, 2.0]]),
        ("h", [[2, 1]]),
        ("h", [[5, 9], [8, 12]]),
        ("position", None),
        ("lag", True),
        ("records", -1),
        ("seconds", -0.5),
        ("seconds", float("nan")),
        ("seconds", float("inf")),
        ("seconds", True),
        ("limit", "1"),
    ],
)
def test_a_range_of_another_shape_is_refused(field: str, value: Any) -> None:
    told = encode_report({T0: PartitionReport(9, 5, ranges=(RangeReport(ALL_HASHES, 5, 4),))})
    told["@kshare"]["report"]["t"]["0"]["ranges"][0][field] = value
    with pytest.raises(ValueError, match=rf"^@kshare.report.t.0.ranges.0.{field}(\.0)?(\.1)?: "):
        decode_report(told)


def test_slowest_and_hottest() -> None:
    slow = RangeReport(KeyRanges([LOW]), 0, 0, 10, 5.0)
    hot = RangeReport(KeyRanges([HIGH]), 0, 0, 1000, 5.0)
    unmeasured = RangeReport(ALL_HASHES, 0, 0, 500, None)
    nothing = RangeReport(ALL_HASHES, 0, 0, 0, 3.0)
    every = [hot, nothing, slow, unmeasured]
    assert (slowest(every), hottest(every)) == (slow, hot)
    assert slow.seconds_per_record == 0.5
    assert (slowest([nothing, unmeasured]), hottest([nothing])) == (None, None)


def test_ranges_are_measured_if_each_with_records_is() -> None:
    measured = RangeReport(KeyRanges([LOW]), 0, 5, 10, 5.0)
    others = {
        "not measured": (RangeReport(KeyRanges([HIGH]), 0, 5, 10), False),
        "nothing is known": (RangeReport(KeyRanges([HIGH]), 0, 5), False),
        "no records": (RangeReport(KeyRanges([HIGH]), 0, 5, 0), True),
        "nothing to read": (RangeReport(KeyRanges([HIGH]), 5, 0), True),
        "parked": (RangeReport(KeyRanges([HIGH]), 0, 5, is_parked=True), True),
    }
    for name, (other, expected) in others.items():
        assert are_measured([measured, other]) == expected, name
    assert are_measured([])


def test_lag_counts_an_offset_once() -> None:
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    assert lag(progress, 30, KeyRanges([LOW])) == 10
    assert lag(progress, 30, ALL_HASHES) == 20
    assert lag(progress, 30, KeyRanges([HashRange(0, 1), HIGH])) == 20
    assert lag(progress, 5, ALL_HASHES) == 0


def test_entry_bytes_are_those_of_the_dict() -> None:
    assert entry_bytes(Progress.at(7)) == 0
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    limits = (RangeLimit(KeyRanges([HIGH]), 30, 5),)
    for kept in ((), limits):
        told = encode(
            BatchOffsets(
                {TopicPartition("", 0): progress},
                limits={TopicPartition("", 0): kept} if kept else {},
            )
        )
        assert entry_bytes(progress, kept) == len(json.dumps(told["@kshare"]).replace(" ", ""))
    assert entry_bytes(progress, limits) > entry_bytes(progress) > 0


def test_the_ranges_of_a_level_partition() -> None:
    assert partition_report(30, Progress.at(7)) == PartitionReport(
        30, 7, ranges=(RangeReport(ALL_HASHES, 7, 23),)
    )


def test_the_ranges_of_an_uneven_partition() -> None:
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    told = partition_report(30, progress, at_risk_from=7)
    assert told.ranges == (
        RangeReport(KeyRanges([LOW]), 20, 10),
        RangeReport(KeyRanges([HIGH]), 10, 20),
    )
    assert (told.stable, told.gaps, told.entry_bytes) == (10, 1, entry_bytes(progress))
    assert (told.retention_at_risk, told.at_risk_from) == (True, 7)


def test_ranges_with_limits_and_ranges_that_had_a_task() -> None:
    """A parked key lies in the limited range; the other one has nothing to do in this batch."""
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    parts = KeyRanges([HashRange(0, 5), HashRange(6, HALF)])
    observed = (RangeObservation(LOW, 4, 9, 2.0), RangeObservation(HIGH, 3, 9))
    told = partition_report(30, progress, (RangeLimit(parts, 30, 8),), observed)
    assert told.ranges == (
        RangeReport(parts, 20, 10, records=4, seconds=2.0, limit=8),
        RangeReport(KeyRanges([HIGH]), 10, 20, records=3),
    )


def test_behind_latest() -> None:
    assert RangeReport(KeyRanges([LOW]), 5, 2).behind(9) == 4
    assert RangeReport(KeyRanges([LOW]), 5, 0).behind(3) == 0
