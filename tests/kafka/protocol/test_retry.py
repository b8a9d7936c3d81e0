"""Pauses before retries, and the time after which an operation gives up."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.kafka.protocol.retry import RetryDeadline, retry_backoff
from kshare.options import KafkaConfig
from tests.support.clock import Clock

LOG = logging.getLogger("kshare.test")
LONG_MAX = 2**63 - 1
MILLISECONDS = st.one_of(st.integers(0, 10_000), st.integers(0, LONG_MAX))


def config(**more: Any) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=(("broker", 9092),), **more)


@given(MILLISECONDS, MILLISECONDS, st.integers(0, 70))
def test_pauses_double_up_to_the_longest_with_a_fifth_of_jitter(
    first_ms: int, longest_ms: int, before: int
) -> None:
    backoff = retry_backoff(config(retry_backoff_ms=first_ms, retry_backoff_max_ms=longest_ms))
    for _ in range(before):
        backoff.pause()
    meant = min(min(first_ms, longest_ms) / 1000 * 2.0**before, longest_ms / 1000, 86_400.0)
    assert 0.79 * meant <= backoff.pause() <= min(1.21 * meant, longest_ms / 1000)
    backoff.reset()
    meant = min(first_ms, longest_ms) / 1000
    assert 0.79 * min(meant, 86_400.0) <= backoff.pause() <= 1.21 * meant


@pytest.mark.parametrize("first_ms", [10, 1000, 9000])
def test_two_clients_do_not_pause_alike(first_ms: int) -> None:
    paces = config(retry_backoff_ms=first_ms, retry_backoff_max_ms=1000)
    pauses = {retry_backoff(paces).pause() for _ in range(50)}
    assert len(pauses) > 5


def test_a_reader_pauses_as_retry_backoff_says() -> None:
    clock = Clock()
    deadline = RetryDeadline.for_reading(
        config(retry_backoff_ms=1000, retry_backoff_max_ms=4000), clock
    )
    for meant in (1.0, 2.0, 4.0, 4.0):
        deadline.start()
        deadline.sleep(LOG, "ask", "no answer")
        assert 0.8 * meant <= clock.slept[-1] <= 1.2 * meant
    deadline.reset()
    deadline.start()
    deadline.sleep(LOG, "ask", "no answer")
    assert clock.slept[-1] <= 1.2


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (RetryDeadline.for_reading, {"poll_timeout_ms": 5000, "api_timeout_ms": 9000}),
        (RetryDeadline.for_reading, {"api_timeout_ms": 5000}),
        (RetryDeadline.for_requests, {"poll_timeout_ms": 9000, "api_timeout_ms": 5000}),
    ],
)
def test_no_pause_outlasts_the_deadline(make: Any, option: dict[str, int]) -> None:
    clock = Clock()
    longest = {"retry_backoff_ms": LONG_MAX, "retry_backoff_max_ms": LONG_MAX}
    deadline = make(config(**option, **longest), clock)
    deadline.start()
    clock.now += 2
    deadline.start()  # it is running
    assert not deadline.expired
    assert deadline.seconds_left == 3.0
    deadline.sleep(LOG, "ask", "no answer")
    assert clock.slept == [3.0]
    assert deadline.expired
    deadline.sleep(LOG, "ask", "no answer")
    assert clock.slept[1:] == [0.0]


def test_who_goes_on_behind_the_deadline_pauses_as_before_it() -> None:
    clock = Clock()
    deadline = RetryDeadline.for_reading(
        config(poll_timeout_ms=1500, retry_backoff_ms=1000, retry_backoff_max_ms=1000), clock
    )
    deadline.start()
    clock.now += 1
    deadline.postpone()
    assert deadline.due == clock.now + 0.5
    clock.now = deadline.due
    deadline.postpone()
    assert 0.8 <= deadline.due - clock.now <= 1.2


def test_a_pause_too_short_for_the_clock_does_not_put_off_the_end() -> None:
    """Many pauses add up to the time but for a rounding error."""
    clock = Clock()
    deadline = RetryDeadline.for_requests(
        config(api_timeout_ms=300, retry_backoff_ms=40, retry_backoff_max_ms=40), clock
    )
    deadline.start()
    for _ in range(20):
        deadline.sleep(LOG, "ask", "no answer")
    assert deadline.expired


def test_progress_stops_the_time() -> None:
    clock = Clock()
    deadline = RetryDeadline.for_requests(config(api_timeout_ms=5000), clock)
    deadline.start()
    clock.now += 5
    assert (deadline.expired, deadline.seconds_left) == (True, 0.0)
    deadline.reset()
    assert (deadline.expired, deadline.seconds_left) == (False, 5.0)


def test_a_step_is_retried_while_its_error_may_pass_and_there_is_time() -> None:
    clock = Clock()
    pauses = {"retry_backoff_ms": 1000, "retry_backoff_max_ms": 1000}
    faults: list[Exception] = [OSError("gone"), OSError("gone"), ValueError("for good")]

    def step() -> str:
        if faults:
            raise faults.pop(0)
        return "answer"

    def ask() -> str:
        deadline = RetryDeadline.for_requests(config(api_timeout_ms=5000, **pauses), clock)
        return deadline.retried(LOG, "ask", step, lambda error: isinstance(error, OSError))

    with pytest.raises(ValueError, match="for good"):
        ask()
    assert len(clock.slept) == 2
    assert ask() == "answer"
    faults += [OSError(f"{number}") for number in range(99)]
    clock.slept.clear()
    with pytest.raises(OSError, match=r"^\d+$"):
        ask()
    assert sum(clock.slept) == pytest.approx(5.0)
