"""Where an open batch is: there and back, its latencies, and what is none of it."""

import json
from bisect import bisect_left
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange
from kshare.core.live import (
    BOUNDS,
    FRESH_SECONDS,
    NO_LATENCY,
    QUANTILES,
    Latency,
    Live,
    LiveRange,
    decode_live,
    encode_live,
    is_live_key,
    latency_text,
    live_key,
    run_of,
)
from kshare.core.progress import TopicPartition
from kshare.core.range_end import EndKey, RangeId, encode_key

T0 = TopicPartition("t", 0)


def latency_of(*seconds: float) -> Latency:
    counts = [0] * (len(BOUNDS) + 1)
    for each in seconds:
        counts[bisect_left(BOUNDS, each)] += 1
    return Latency(tuple(counts))


SECONDS = st.lists(st.floats(0, 1_000), max_size=30)
LATENCIES = SECONDS.map(lambda seconds: latency_of(*seconds))
RANGES = st.builds(
    LiveRange,
    st.builds(TopicPartition, st.sampled_from(["t", "ü"]), st.integers(0, 2)),
    st.integers(0, 9),
    st.integers(0, HASH_SPACE - 1).map(HashRange.of),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
)
LIVES = st.builds(
    Live,
    st.text(max_size=30),
    st.integers(0, 2**50),
    st.lists(RANGES, max_size=6).map(
        # Ranges of a partition stand together.
        lambda ranges: tuple(
            each
            for topic in dict.fromkeys(one.partition.topic for one in ranges)
            for tp in dict.fromkeys(one.partition for one in ranges if one.partition.topic == topic)
            for each in ranges
            if each.partition == tp
        )
    ),
    LATENCIES,
    LATENCIES,
)


@given(LIVES)
def test_there_and_back(live: Live) -> None:
    assert decode_live(encode_live(live)) == live


@given(st.binary(max_size=100))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="wanted positions of a batch"):
        decode_live(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("v", 2),
        ("batch", 3),
        ("batch", "b" * 101),
        ("at", -1),
        ("ranges", []),
        ("ranges", {"t": {"x": []}}),
        ("ranges", {"t": {"0": [[0, 1, 1, 5, 9]]}}),
        ("ranges", {"t": {"0": [[0, 1, 2, 5]]}}),
        ("latency", [[len(BOUNDS) + 1, 1]]),
        ("recent", [[0, -1]]),
    ],
)
def test_a_field_that_is_another_thing_is_refused(field: str, value: object) -> None:
    fields = json.loads(encode_live(Live("b-1", 7, (LiveRange(T0, 0, WHOLE, 5, 9),))))
    assert decode_live(json.dumps(fields).encode()).at_ms == 7
    with pytest.raises(ValueError, match="wanted positions of a batch"):
        decode_live(json.dumps({**fields, field: value}).encode())


@given(SECONDS.filter(bool), st.sampled_from(QUANTILES))
def test_a_quantile_is_the_bound_above_that_of_the_sorted_times(
    seconds: list[float], share: float
) -> None:
    exact = sorted(seconds)[ceil(share * len(seconds)) - 1]
    found = latency_of(*seconds).quantile(share)
    bounds = (*BOUNDS, 2 * BOUNDS[-1])
    assert found == bounds[bisect_left(BOUNDS, exact)]


@given(LATENCIES, LATENCIES)
def test_what_was_counted_since(before: Latency, more: Latency) -> None:
    both = Latency.total([before, more])
    assert both.records == before.records + more.records
    assert both.since(before) == more
    assert before.since(both) == (NO_LATENCY if before == both else before)


def test_wrong_counts_are_refused() -> None:
    for counts in ((), (0,) * len(BOUNDS), (-1, *NO_LATENCY.counts[1:])):
        with pytest.raises(ValueError, match="counts"):
            Latency(counts)


def test_text_for_people() -> None:
    assert Latency.total([]) == NO_LATENCY
    assert NO_LATENCY.quantile(0.5) is None
    assert latency_text(NO_LATENCY, NO_LATENCY) == ""
    some, slow = latency_of(0.001, 0.001, 0.0035), latency_of(3.0, 5_000.0)
    assert (
        latency_text(NO_LATENCY, some) == ", latency in the batch p50 1 ms p90 3.81 ms p99 3.81 ms"
    )
    assert latency_text(slow, some).startswith(
        ", latency in the last 10 s p50 3.1 s p90 over 8 min p99 over 8 min, in the batch p50 1 ms"
    )


def test_what_holds_need_not_be_said_again() -> None:
    live = Live("b-1", 1_000_000, (LiveRange(T0, 0, WHOLE, 5, 9),))
    assert replace(live, at_ms=1_002_000).says_as(live)
    assert not replace(live, at_ms=1_011_000).says_as(live)
    assert not replace(live, batch="b-2").says_as(live)
    assert live.is_fresh(1_000 + FRESH_SECONDS)
    assert live.is_fresh(900)
    assert not live.is_fresh(1_001 + FRESH_SECONDS)


def test_keys_are_those_of_no_end() -> None:
    assert run_of("3f9c-12") == "3f9c"
    assert is_live_key(live_key("3f9c"))
    assert live_key("3f9c") == b'{"live":"3f9c"}'
    assert not is_live_key(encode_key(EndKey(RangeId('{"live":', T0, 0), "a")))
