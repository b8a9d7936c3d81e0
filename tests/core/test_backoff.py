"""Pauses between retries: they double, up to the longest, and begin anew after a success."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kshare.core.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(100, 1_000)
    assert [round(backoff.pause(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.pause() == 0.1


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.lists(st.floats(0.8, 1.2), min_size=1, max_size=50),
)
def test_no_pause_is_longer_than_the_longest_or_a_day(
    first_ms: int, longest_ms: int, jitters: list[float]
) -> None:
    drawn = iter(jitters)

    def uniform(low: float, high: float) -> float:
        return min(max(next(drawn), low), high)

    backoff = Backoff(first_ms, longest_ms, uniform)
    pauses = [backoff.pause() for _ in jitters]
    assert all(0 <= pause <= min(longest_ms / 1000, 86_400) for pause in pauses)
    # A jitter of a fifth is less than the doubling.
    assert all(before <= 1.5 * after for before, after in pairwise(pauses))
