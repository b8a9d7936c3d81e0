"""What filters say about where rows can lie, against rows that are looked at one by one."""

import pickle
import sys
from datetime import UTC, datetime, timedelta, timezone
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from operator import eq, ge, gt, le, lt
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from kshare.core.progress import TopicPartition
from kshare.query.planner.batch_query import EVERYTHING, Condition, Interval, RowBounds, bounds_of
from spark_plugin import read_info as filters_module
from spark_plugin.planner_side import conditions_of
from spark_plugin.read_info import filters_may_be_pushed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOLDS = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def holds(condition: Condition, row: dict[str, Any]) -> bool:
    """What SQL says: null and what cannot be compared are not true."""
    value = row[condition.column]
    if condition.comparison == "in":
        return any(type(v) is type(value) and v == value for v in condition.values)
    (literal,) = condition.values
    if type(literal) is not type(value):
        # Spark would have cast one of them: then anything may be true.
        return literal is not None
    if isinstance(value, datetime) and (value.tzinfo is None) != (literal.tzinfo is None):
        return True  # as above
    return bool(HOLDS[condition.comparison](value, literal))


topics = st.sampled_from(["a", "b", "Ünï 😀", ""])
numbers = st.integers(-3, 6)
instants = st.integers(-3_000, 6_000).map(at)
literals = {
    "topic": topics,
    "partition": numbers,
    "offset": numbers,
    "timestamp": instants,
    "value": st.binary(max_size=2),
}
strange = st.sampled_from([None, True, 2.5, "1", b"a", datetime(2020, 1, 1)])  # noqa: DTZ001


def conditions_on(column: str) -> st.SearchStrategy[Condition]:
    value = st.one_of(literals[column], literals[column], strange)
    single = st.builds(Condition, st.just(column), st.sampled_from([*HOLDS]), st.tuples(value))
    several = st.builds(
        Condition, st.just(column), st.just("in"), st.lists(value, min_size=1).map(tuple)
    )
    return single | several


rows = st.fixed_dictionaries(
    {
        "topic": topics,
        "partition": st.integers(0, 6),
        "offset": st.integers(0, 6),
        "timestamp": st.integers(-3, 6).map(lambda ms: at(1_000 * ms)),
        "value": st.binary(max_size=2),
    }
)


def within(bounds: RowBounds, row: dict[str, Any]) -> bool:
    offsets = bounds.offsets.intersect(0, 100)
    assert offsets.start is not None
    assert offsets.end is not None
    since = bounds.since_ms
    return (
        offsets.start <= row["offset"] < offsets.end
        and bounds.hold(TopicPartition(row["topic"], row["partition"]))
        and (since is None or row["timestamp"] >= at(1_000 * since))
    )


@given(st.lists(st.sampled_from([*literals]).flatmap(conditions_on), max_size=4), rows)
def test_a_row_for_which_filters_hold_is_never_cut(
    given_: list[Condition], row: dict[str, Any]
) -> None:
    if all(holds(condition, row) for condition in given_):
        assert within(bounds_of(given_), row)


@given(
    st.lists(
        st.sampled_from(["topic", "partition", "offset"]).flatmap(
            lambda column: st.builds(
                Condition,
                st.just(column),
                st.sampled_from([*HOLDS]),
                st.tuples(literals[column]),
            )
        ),
        max_size=4,
    ),
    rows,
)
def test_comparisons_that_are_understood_cut_all_they_can(
    given_: list[Condition], row: dict[str, Any]
) -> None:
    assert within(bounds_of(given_), row) == all(holds(condition, row) for condition in given_)


@pytest.mark.parametrize(
    ("comparison", "values", "interval"),
    [
        ("=", (5,), Interval(5, 6)),
        ("<", (5,), Interval(None, 5)),
        ("<=", (5,), Interval(None, 6)),
        (">", (5,), Interval(6, None)),
        (">=", (5,), Interval(5, None)),
        ("in", (7, 3, 5), Interval(3, 8)),
        ("in", (7, None), Interval(7, 8)),
    ],
)
def test_offsets(comparison: Any, values: tuple[Any, ...], interval: Interval) -> None:
    assert bounds_of([Condition("offset", comparison, values)]) == RowBounds(interval)


@pytest.mark.parametrize(
    ("comparison", "microseconds", "since_ms"),
    [
        ("=", 5_000, 5),
        ("=", 5_001, 6),  # no record has such a time
        (">=", 5_000, 5),
        (">=", 5_001, 6),
        (">", 5_000, 6),
        (">", 5_999, 6),
        (">", -1, 0),
        ("<", 5_000, None),
        ("<=", 5_000, None),
    ],
)
def test_timestamps(comparison: Any, microseconds: int, since_ms: int | None) -> None:
    bounds = bounds_of([Condition("timestamp", comparison, (at(microseconds),))])
    assert bounds == RowBounds(since_ms=since_ms)


def test_a_timestamp_of_another_zone() -> None:
    there = timezone(timedelta(hours=2))
    value = datetime(2026, 1, 1, 2, tzinfo=there)
    expected = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    assert bounds_of([Condition("timestamp", ">=", (value,))]).since_ms == expected


def test_conditions_count_together() -> None:
    bounds = bounds_of(
        [
            Condition("offset", ">=", (3,)),
            Condition("offset", "<", (9,)),
            Condition("offset", ">=", (1,)),
            Condition("timestamp", ">=", (at(2_000),)),
            Condition("timestamp", ">=", (at(1_000),)),
            Condition("topic", "in", ("a", "b")),
            Condition("partition", ">", (0,)),
        ]
    )
    assert (bounds.offsets, bounds.since_ms) == (Interval(3, 9), 2)
    places = [TopicPartition(topic, number) for topic in "abc" for number in range(2)]
    assert [place for place in places if bounds.hold(place)] == [("a", 1), ("b", 1)]
    assert pickle.loads(pickle.dumps(bounds)) == bounds


@pytest.mark.parametrize(
    "condition",
    [
        Condition("value", "=", (b"x",)),
        Condition("offset", "=", (None,)),
        Condition("offset", "=", (True,)),
        Condition("offset", "<", (2.5,)),
        Condition("offset", "in", (1, 2.5)),
        Condition("offset", "in", (None,)),
        Condition("offset", "in", ()),
        Condition("partition", "=", ("1",)),
        Condition("topic", "=", (1,)),
        Condition("timestamp", ">=", (datetime(2026, 1, 1),)),  # noqa: DTZ001
    ],
)
def test_what_is_not_understood_cuts_nothing(condition: Condition) -> None:
    assert bounds_of([condition]) == EVERYTHING
    assert EVERYTHING.hold(TopicPartition("t", 0))


# -- Spark's filters ------------------------------------------------------------------------------


def test_filters_of_spark_as_conditions() -> None:
    column = ("offset",)
    filters = [
        spark.EqualTo(column, 1),
        spark.EqualNullSafe(column, 2),
        spark.LessThan(column, 3),
        spark.LessThanOrEqual(column, 4),
        spark.GreaterThan(column, 5),
        spark.GreaterThanOrEqual(column, 6),
        spark.In(column, (7, 8)),
    ]
    comparisons = ["=", "=", "<", "<=", ">", ">=", "in"]
    values = [(1,), (2,), (3,), (4,), (5,), (6,), (7, 8)]
    assert conditions_of(filters) == [
        Condition("offset", comparison, value)  # type: ignore[arg-type]
        for comparison, value in zip(comparisons, values, strict=True)
    ]


def test_other_filters_are_left_to_spark() -> None:
    column = ("topic",)
    assert not conditions_of(
        [
            spark.Not(spark.EqualTo(column, "t")),
            spark.IsNull(column),
            spark.IsNotNull(column),
            spark.StringStartsWith(column, "t"),
            spark.EqualTo(("headers", "key"), "x"),
        ]
    )


@pytest.fixture
def scans_keep_read_info(monkeypatch: pytest.MonkeyPatch) -> None:
    """This Spark is one that may push filters: see tests/test_read_info.py."""
    monkeypatch.setattr(filters_module, "scans_keep_read_info", lambda: True)


@pytest.mark.usefixtures("scans_keep_read_info")
def test_this_process_was_not_started_to_push_filters() -> None:
    assert not filters_may_be_pushed()


@pytest.mark.usefixtures("scans_keep_read_info")
@pytest.mark.parametrize("started", [True, False])
def test_spark_pushes_filters_in_a_worker_of_its_own(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    """That module is what ``python -m`` was given, or what a daemon has imported."""
    name = "pyspark.sql.worker.data_source_pushdown_filters"
    assert find_spec(name) is not None  # so this Spark calls it
    if started:
        main, spec = ModuleType("__main__"), ModuleSpec(name, None)
        monkeypatch.setattr(main, "__spec__", spec)
        monkeypatch.setitem(sys.modules, "__main__", main)
    else:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert filters_may_be_pushed()
