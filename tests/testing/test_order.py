"""The test kit: the order checker against a plain twin."""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.testing import (
    OrderReport,
    check_order,
)

# -- the order checker -----------------------------------------------------------------------------

COLUMNS = ("topic", "partition", "offset", "key", "batch", "task")
TYPES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("batch", pa.int64()),
        ("task", pa.int32()),
    ]
)

rows_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),
        st.integers(0, 6),
        st.sampled_from([None, b"", b"x", b"y"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=25,
)
expected_of = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1)),
    st.lists(st.integers(0, 8), min_size=2, max_size=4, unique=True).map(
        lambda cuts: [
            (lo, hi) for lo, hi in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)
        ]
    ),
    max_size=4,
)


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    return pa.table([pa.array(c, t.type) for c, t in zip(columns, TYPES, strict=True)], TYPES)


def numbered(rows: list[tuple[Any, ...]]) -> pa.Table:
    """With the row's number in a column of the user's own, which comes back in the report."""
    return table(rows).append_column("row", pa.array(range(len(rows)), pa.int64()))


class Twin:
    """The definitions, word by word, a record at a time."""

    def __init__(self, rows: list[tuple[Any, ...]], expected: Mapping[Any, Any] | None) -> None:
        self.duplicated: list[int] = []
        self.out_of_order: list[tuple[int, int]] = []
        self.split: list[tuple[int, int]] = []
        seen: set[Any] = set()
        highest: dict[Any, int] = {}
        first_task: dict[Any, int] = {}
        for i in sorted(range(len(rows)), key=lambda i: rows[i][4]):  # by batch, stable
            topic, partition, offset, key, batch, task = rows[i]
            if (topic, partition, offset) in seen:
                self.duplicated.append(i)
            seen.add((topic, partition, offset))
            if key is None:
                continue
            who = (topic, partition, key)
            if offset < highest.get(who, -1):
                self.out_of_order.append((i, highest[who]))
            highest[who] = max(highest.get(who, -1), offset)
            if first_task.setdefault((who, batch), task) != task:
                self.split.append((i, first_task[who, batch]))
        wanted = {
            (*place, offset)
            for place, ranges in (expected or {}).items()
            for start, end in ranges
            for offset in range(start, end)
        }
        self.lost = [] if expected is None else sorted(wanted - seen)
        self.unexpected = (
            [] if expected is None else [i for i, row in enumerate(rows) if row[:3] not in wanted]
        )
        self.keys = len({(row[:2], row[3]) for row in rows if row[3] is not None})


@given(rows_of, st.none() | expected_of)
def test_the_report_is_that_of_the_plain_twin(rows: Any, expected: Any) -> None:
    report = check_order(numbered(rows), expected)
    twin = Twin(rows, expected)
    late = report.out_of_order
    assert list(zip(late["row"].to_pylist(), late["after"].to_pylist(), strict=True)) == sorted(
        twin.out_of_order
    )
    split = report.split
    assert list(
        zip(split["row"].to_pylist(), split["first_task"].to_pylist(), strict=True)
    ) == sorted(twin.split)
    assert report.duplicated["row"].to_pylist() == sorted(twin.duplicated)
    assert report.unexpected["row"].to_pylist() == twin.unexpected
    lost = [report.lost[name].to_pylist() for name in COLUMNS[:3]]
    assert sorted(zip(*lost, strict=True)) == twin.lost
    assert report.keys == twin.keys
    assert report.records == len(rows)
    assert report.partitions == len({row[:2] for row in rows})
    assert report.batches == len({row[4] for row in rows})
    faults = twin.duplicated or twin.out_of_order or twin.split or twin.lost or twin.unexpected
    assert report.ok == bool(report) == (not faults)
    assert str(report).startswith("ORDER OK" if report.ok else "ORDER BROKEN")


@given(rows_of, st.integers(1, 4))
def test_how_the_rows_are_given_changes_nothing(rows: Any, size: int) -> None:
    whole = check_order(table(rows), None)
    in_batches = check_order(table(rows).to_batches(max_chunksize=size), None)
    in_dicts = check_order(table(rows).to_pylist(), None) if rows else whole
    for other in (in_batches, in_dicts):
        assert str(other) == str(whole)


@given(rows_of)
def test_what_was_received_is_expected_by_its_own_table(rows: Any) -> None:
    once = {row[:3]: row for row in rows}
    report = check_order(table(list(once.values())), table(list(once.values())))
    assert (report.lost.num_rows, report.unexpected.num_rows) == (0, 0)


def ordered(count: int = 20, tasks: int = 2) -> list[dict[str, Any]]:
    return [
        {"partition": 0, "offset": i, "key": b"k%d" % (i % 4), "batch": i // 8, "task": i % tasks}
        for i in range(count)
    ]


def test_all_in_order() -> None:
    report = check_order(ordered(), {0: (0, 20)})
    assert report.ok
    assert str(report) == (
        "ORDER OK: 20 records of 4 keys from 1 partition in 3 batches; "
        "none lost, duplicated or out of order"
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows: rows[:7] + rows[8:], "1 lost: partition 0 at offset 7"),
        (
            lambda rows: [*rows, {**rows[-1], "offset": 99}],
            "1 unexpected: partition 0 at offset 99 (key b'k3') in batch 2, task 1",
        ),
        (lambda rows: [*rows, rows[-1]], "1 duplicated: partition 0 at offset 19 (key b'k3')"),
        (
            lambda rows: [rows[4], *rows[1:4], rows[0], *rows[5:]],
            (
                "1 out of order: partition 0 at offset 0 (key b'k0') in batch 0, task 0 came after "
                "offset 4"
            ),
        ),
        (
            lambda rows: [*rows[:4], {**rows[4], "task": 7}, *rows[5:]],
            (
                "1 split over tasks: partition 0 at offset 4 (key b'k0') in batch 0, task 7, the "
                "key's first of the batch in task 0"
            ),
        ),
    ],
    ids=["lost", "unexpected", "duplicated", "out-of-order", "split"],
)
def test_each_fault_is_named_and_no_other(spoil: Callable[[Any], Any], said: str) -> None:
    text = str(check_order(spoil(ordered()), {0: (0, 20)}))
    assert said in text
    assert len(text.splitlines()) == 2


def test_a_later_batch_with_lower_offsets_is_out_of_order() -> None:
    rows = ordered(8)
    rows[0]["batch"] = 5
    assert check_order(rows, {0: (0, 8)}).out_of_order["offset"].to_pylist() == [0]


def test_records_without_a_key_have_no_order() -> None:
    rows = [{**row, "key": None} for row in ordered()]
    assert check_order(rows[::-1], {0: (0, 20)}).ok


def test_keys_are_compared_if_they_are_expected() -> None:
    wanted = [{name: row[name] for name in ("partition", "offset", "key")} for row in ordered()]
    assert check_order(ordered(), wanted).ok
    wanted[3]["key"] = b"another"
    assert check_order(ordered(), wanted).unexpected["offset"].to_pylist() == [3]
    wanted[3]["key"] = None
    assert check_order(ordered(), wanted).unexpected["offset"].to_pylist() == [3]


def test_text_and_bytes_are_the_same_key() -> None:
    wanted = [{"offset": row["offset"], "key": row["key"].decode()} for row in ordered()]
    assert check_order(ordered(), wanted).ok


def test_only_the_first_offenders_are_shown() -> None:
    text = str(check_order([], {0: (0, 9)}))
    assert "9 lost: " in text
    assert text.endswith("; and 4 more")


def test_ranges_with_gaps() -> None:
    assert check_order(ordered(4), {0: [(0, 3), (3, 4)]}).ok
    report = check_order(ordered(4), {0: [(0, 2), (3, 4)], 1: (0, 1)})
    assert report.unexpected["offset"].to_pylist() == [2]
    assert report.lost.select(["partition", "offset"]).to_pylist() == [
        {"partition": 1, "offset": 0}
    ]


def test_a_side_without_topics_means_the_topic_of_the_other() -> None:
    named = [{**row, "topic": "t"} for row in ordered()]
    assert check_order(named, {0: (0, 20)}).ok
    assert check_order(ordered(), {("t", 0): (0, 20)}).ok
    assert not check_order(named, {("u", 0): (0, 20)}).ok


def test_which_topic_is_meant_must_be_clear() -> None:
    rows = [{**row, "topic": f"t{row['offset'] % 2}"} for row in ordered()]
    with pytest.raises(ValueError, match=r"records of which topic\? There are t0, t1"):
        check_order(rows, {0: (0, 20)})


def test_columns_that_are_needed() -> None:
    with pytest.raises(ValueError, match="has no column offset, key; it has: partition"):
        check_order(pa.table({"partition": [1]}))
    with pytest.raises(ValueError, match="is null"):
        check_order([{"offset": None, "key": b"k"}])


def test_nothing_received_nothing_expected() -> None:
    assert check_order([], None).ok
    assert check_order([], {}).ok
    assert check_order(pa.table({"offset": pa.array([], pa.int64()), "key": []})).ok


def test_the_report_shows_no_tables() -> None:
    report: OrderReport = check_order([], {0: (0, 1)})
    assert "Table" not in repr(report)
