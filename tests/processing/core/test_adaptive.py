"""The number of calls at a time, against servers whose latency follows from it."""

from hypothesis import given
from hypothesis import strategies as st

from kshare.processing.core.settings import AdaptiveLimit
from tests.support.effort import examples


def serve(limit: AdaptiveLimit, capacity: int, calls: int) -> None:
    """A server that does so many calls at a time; more of them wait in its queue."""
    for _ in range(calls):
        running = limit.limit
        limit.ended(0.01 * max(running / capacity, 1.0), running)


@examples(25)
@given(st.integers(8, 300))
def test_it_rises_to_what_a_server_bears_and_not_far_beyond(capacity: int) -> None:
    limit = AdaptiveLimit()
    serve(limit, capacity, 60_000)
    highest = max(limit.limit, limit._after_probe)
    assert capacity * 0.8 <= highest <= capacity * 4


@given(st.integers(1, 2_000))
def test_it_stays_within_its_bounds(calls: int) -> None:
    limit = AdaptiveLimit(limit=8, most=20)
    for _ in range(calls):
        limit.throttled()
        limit.ended(0.01, 8)
    assert limit.limit >= 1
    serve(limit, 1_000, 10_000)
    assert limit.limit == 20


def test_it_falls_once_a_window_when_a_server_is_too_busy() -> None:
    limit = AdaptiveLimit(limit=60)
    for _ in range(10):
        limit.throttled()
    assert limit.limit == 40


def test_it_does_not_rise_while_it_is_not_in_use() -> None:
    limit = AdaptiveLimit(limit=10)
    for _ in range(1_000):
        limit.ended(0.01, 3)
    assert limit.limit == 10
