"""Pauses before retries, and the time after which a reader gives up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.options import KafkaConfig
from kshare.wire.protocol import retry
from kshare.wire.protocol.retry import Backoff, Patience
from tests.support.clock import Clock

LONG_MAX = 2**63 - 1
MILLISECONDS = st.one_of(st.integers(0, 10_000), st.integers(0, LONG_MAX))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(retry, "time", made)
    return made


def config(**more: Any) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=(("broker", 9092),), **more)


@given(MILLISECONDS, MILLISECONDS, st.integers(0, 70))
def test_pauses_double_up_to_the_longest_with_a_fifth_of_jitter(
    first_ms: int, longest_ms: int, before: int
) -> None:
    backoff = Backoff(first_ms, longest_ms)
    for _ in range(before):
        backoff.pause()
    meant = min(min(first_ms, longest_ms) / 1000 * 2.0**before, longest_ms / 1000, 86_400.0)
    assert 0.79 * meant <= backoff.pause() <= min(1.21 * meant, longest_ms / 1000)
    backoff.reset()
    meant = min(first_ms, longest_ms) / 1000
    assert 0.79 * min(meant, 86_400.0) <= backoff.pause() <= 1.21 * meant


@pytest.mark.parametrize("first_ms", [10, 1000, 9000])
def test_two_clients_do_not_pause_alike(first_ms: int) -> None:
    pauses = {Backoff(first_ms, 1000).pause() for _ in range(50)}
    assert len(pauses) > 5


def test_a_reader_pauses_as_retry_backoff_says(clock: Clock) -> None:
    waiting = Patience(config(retry_backoff_ms=1000, retry_backoff_max_ms=4000))
    for meant in (1.0, 2.0, 4.0, 4.0):
        waiting.begin()
        waiting.sleep()
        assert 0.8 * meant <= clock.slept[-1] <= 1.2 * meant
    waiting.end()
    waiting.begin()
    waiting.sleep()
    assert clock.slept[-1] <= 1.2


def test_no_pause_outlasts_the_patience(clock: Clock) -> None:
    waiting = Patience(
        config(poll_timeout_ms=5000, retry_backoff_ms=LONG_MAX, retry_backoff_max_ms=LONG_MAX)
    )
    waiting.begin()
    clock.now += 2
    assert not waiting.expired
    waiting.sleep()
    assert clock.slept == [3.0]
    assert waiting.expired
    waiting.sleep()
    assert clock.slept[1:] == [0.0]
