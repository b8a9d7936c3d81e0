"""A processor's arguments."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kshare.errors import OptionsError
from kshare.processing import DeadLetter, Park, Processor, Record, Retry, RetryAfter


def test_all_faults_are_listed_at_once() -> None:
    wrong: Any = Processor
    with pytest.raises(OptionsError) as fault:
        wrong(
            None,
            concurrency=0,
            timeout="soon",
            retry=Retry(attempts=0, first="10s", most="1s", jitter=2),
            on_failure=DeadLetter(""),
            order="time",
            batch_size=0,
            max_records=-1,
            drain_timeout=0,
        )
    named = [problem.split(" is ")[0].split("=")[0] for problem in fault.value.problems]
    assert named == [
        "handler",
        "concurrency",
        "order",
        "on_failure",
        "batch_size",
        "max_records",
        "Retry: attempts",
        "Retry: jitter",
        "Retry: most",
        "timeout",
        "drain_timeout",
    ]


def test_a_retry_that_is_none_is_a_fault() -> None:
    with pytest.raises(OptionsError, match=r"retry is 5; wanted Retry\(attempts=\.\.\., first="):
        Processor(print, retry=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["x" * 600, "a\0b", "a b"])
def test_dead_letters_go_to_no_topic_that_cannot_be(topic: str) -> None:
    wanted = r"on_failure=DeadLetter\(...\): .* cannot be a topic's name; allowed: 1 to 249"
    with pytest.raises(OptionsError, match=wanted):
        Processor(print, on_failure=DeadLetter(topic))


@pytest.mark.parametrize(
    ("arguments", "records"),
    [
        ({}, 10_000),
        ({"concurrency": 1_000}, 100_000),
        ({"concurrency": "auto"}, 102_400),
        ({"on_batch": True}, 64_000),
        ({"concurrency": 1_000, "max_records": 5}, 5),
    ],
)
def test_by_default_it_holds_as_many_records_as_keep_all_calls_busy(
    arguments: dict[str, Any], records: int
) -> None:
    assert Processor(print, **arguments).settings.records_max == records


def test_a_wrong_number_of_calls_is_named_with_the_default_number_of_records() -> None:
    wrong: Any = Processor
    with pytest.raises(OptionsError) as fault:
        wrong(print, concurrency="many", batch_size=None)
    assert len(fault.value.problems) == 1


def test_one_class_of_errors_is_the_same_as_a_tuple_of_it() -> None:
    """It can be called, too, and what that returns would be true of any error."""
    for retry in (Retry(on=OSError), Retry(on=(OSError,))):
        assert retry.is_worth(ConnectionError())
        assert not retry.is_worth(ValueError())


@pytest.mark.parametrize("on", [[OSError], ("OSError",), "OSError"])
def test_errors_that_are_no_classes_are_refused(on: Any) -> None:
    with pytest.raises(OptionsError, match=r"Retry: on is .* wanted a class of exceptions"):
        Processor(print, retry=Retry(on=on))


def test_a_handler_with_a_yield_would_do_nothing() -> None:
    def handler(record: Record) -> Iterator[int]:
        yield record.offset

    async def coroutine(record: Record) -> AsyncIterator[int]:
        yield record.offset

    for each in (handler, coroutine):
        with pytest.raises(OptionsError, match="which has a yield, so nothing of it runs"):
            Processor(each)


@pytest.mark.parametrize("order", ["partition", "none"])
def test_only_a_key_has_a_sequence_of_dead_letters(order: Any) -> None:
    with pytest.raises(OptionsError, match="follows keys, and order is"):
        Processor(print, order=order, on_failure=DeadLetter("dlq", sequence=True))


def test_an_on_outcome_that_is_a_coroutine_function_would_do_nothing() -> None:
    async def later(_: Any) -> None:
        pass

    with pytest.raises(OptionsError, match="on_outcome is a coroutine function"):
        Processor(print, on_outcome=later)


def test_retry_after_takes_the_text_of_a_header() -> None:
    assert RetryAfter("30").seconds == 30.0
    for wrong in ("Wed, 21 Oct 2026 07:28:00 GMT", "inf", float("nan"), "1e306", 4e7):
        with pytest.raises(ValueError, match=r"could not convert|wanted a number"):
            RetryAfter(wrong)


def test_a_partition_that_is_processed_in_order_cannot_go_on_without_a_key() -> None:
    with pytest.raises(OptionsError, match=r"Park\(\) parks keys, and order is 'partition'"):
        Processor(print, order="partition", on_failure=Park())
    Processor(print, order="none", on_failure=Park())


@pytest.mark.parametrize("seconds", [1e306, 1e10, float("inf"), float("nan"), 10**400])
def test_a_time_that_no_wait_takes_is_refused(seconds: float) -> None:
    with pytest.raises(OptionsError) as fault:
        Processor(print, retry=Retry(first=seconds), timeout=seconds, drain_timeout=seconds)
    assert len([each for each in fault.value.problems if "292 years" in each]) == 3
