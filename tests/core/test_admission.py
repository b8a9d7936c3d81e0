"""How far a batch goes; the numbers are those of Spark's kafka source."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.admission import admit, should_wait

LONG_MAX = 2**63 - 1
backlogs = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)).map(lambda p: (min(p), max(p))),
)
small = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda p: (min(p), max(p))),
)


def rate_limit(limit: int, start: dict[str, int], until: dict[str, int]) -> dict[str, int]:
    """The numbers of ``KafkaMicroBatchStream.rateLimit``, with doubles as Java has them."""
    sizes = {place: end - start[place] for place, end in until.items() if end > start[place]}
    total = float(sum(sizes.values()))
    if total < 1:
        return until
    ends = dict(until)
    for place, size in sizes.items():
        prorate = float(limit) * (float(size) / total)
        whole = math.ceil(prorate) if prorate < 1 else math.floor(prorate)
        ends[place] = min(until[place], start[place] + whole, LONG_MAX)
    return ends


def parts(backlog: dict[str, tuple[int, int]]) -> tuple[dict[str, int], dict[str, int]]:
    return {p: a for p, (a, _) in backlog.items()}, {p: b for p, (_, b) in backlog.items()}


@given(backlogs, st.integers(1, LONG_MAX))
def test_as_spark_shares_it(backlog: dict[str, tuple[int, int]], limit: int) -> None:
    front, top = parts(backlog)
    assert admit(front, top, limit) == rate_limit(limit, front, top)


@given(small, st.integers(1, 60))
def test_nobody_starves_and_nobody_goes_too_far(
    backlog: dict[str, tuple[int, int]], limit: int
) -> None:
    front, top = parts(backlog)
    ends = admit(front, top, limit)
    assert list(ends) == list(top)
    for place, end in ends.items():
        assert front[place] <= end <= top[place]
        assert end > front[place] or front[place] == top[place]
    below_one = sum(
        0 < (top[p] - front[p]) * limit < sum(top.values()) - sum(front.values()) for p in top
    )
    assert sum(ends.values()) - sum(front.values()) <= limit + below_one


@given(small)
def test_no_limit(backlog: dict[str, tuple[int, int]]) -> None:
    front, top = parts(backlog)
    assert admit(front, top, None) == top


@pytest.mark.parametrize(
    ("sizes", "limit", "wanted"),
    [
        ({"a": 100, "b": 100}, 10, {"a": 5, "b": 5}),
        ({"a": 10, "b": 30}, 10, {"a": 2, "b": 7}),  # rounded down: 9 in all
        ({"a": 1, "b": 1000}, 10, {"a": 1, "b": 9}),  # but not to nothing
        ({"a": 3, "b": 3, "c": 3}, 1, {"a": 1, "b": 1, "c": 1}),
        ({"a": 3, "b": 0}, 10, {"a": 3, "b": 0}),
        ({"a": 0, "b": 0}, 10, {"a": 0, "b": 0}),
        ({}, 10, {}),
    ],
)
def test_examples(sizes: dict[str, int], limit: int, wanted: dict[str, int]) -> None:
    front = dict.fromkeys(sizes, 50)
    ends = admit(front, {place: 50 + size for place, size in sizes.items()}, limit)
    assert {place: end - 50 for place, end in ends.items()} == wanted


def test_a_top_before_its_front_stays() -> None:
    assert admit({"a": 50, "b": 0}, {"a": 40, "b": 10}, 4) == {"a": 40, "b": 4}


@pytest.mark.parametrize(
    ("new", "seconds", "waits"),
    [
        (9, 5.0, True),
        (10, 5.0, False),
        (9, 60.0, False),  # it has waited long enough
        (9, 59.9, True),
        (0, None, False),  # the first trigger never waits
    ],
)
def test_should_wait(new: int, seconds: float | None, waits: bool) -> None:
    positions = {"a": 100, "b": 100, "gone": 7}
    available = {"a": 100 + new // 2, "b": 100 + new - new // 2}
    found = should_wait(
        positions, available, min_offsets=10, max_delay_seconds=60.0, seconds_since_batch=seconds
    )
    assert found is waits


def test_a_partition_without_a_position_counts_from_0() -> None:
    wait = {"min_offsets": 10, "max_delay_seconds": 60.0, "seconds_since_batch": 1.0}
    assert should_wait({}, {"a": 9}, **wait)  # type: ignore[arg-type]
    assert not should_wait({}, {"a": 10}, **wait)  # type: ignore[arg-type]
