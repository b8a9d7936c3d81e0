"""Objects of the user's whose repr, str or pickling fails: our own error is said all the same."""

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kshare.assignment.loading import load_task_assignor
from kshare.core.dotted_path import find
from kshare.errors import KshareError, OptionsError, ProcessingError, UndecodableError
from kshare.group.assignments import parse_partition
from kshare.group.consumer.call_state import raise_first
from kshare.group.consumer.topic_lookup import SubscribedTopics
from kshare.processing import Outcome, Processor, Record, Retry, Status
from kshare.processing.frame_rows import rows_of_outcomes
from kshare.processing.pickling import unpicklable
from kshare.processing.policy import RetryAfter
from kshare.security.tokens import provided_token
from tests.processing.engines import handle, records_of


class SilentError(Exception):
    """Nothing of it can be shown, nor sent to another process."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


class EndlessError(SilentError):
    def __str__(self) -> str:
        return f"{self}"

    def __repr__(self) -> str:
        return f"{self!r}"


class Object:
    def __repr__(self) -> str:
        raise SilentError

    __str__ = __repr__


ERRORS = [SilentError, EndlessError]


def fails() -> Any:
    raise SilentError


class Assignor:
    def __init__(self) -> None:
        raise SilentError

    def assign(self, *_: Any) -> None: ...


@pytest.mark.parametrize("kind", ERRORS)
def test_a_processor_says_which_record_has_failed(kind: type[Exception]) -> None:
    async def handler(record: Record) -> None:
        raise kind

    _, engine = handle(Processor(handler, retry=Retry(attempts=1)), [b"k"])
    with pytest.raises(ProcessingError, match=r"failed for good with orders-0 offset 0") as caught:
        engine.raise_failure()
    assert pickle.loads(pickle.dumps(caught.value)).offset == 0


@pytest.mark.parametrize("kind", ERRORS)
def test_what_a_deserializer_raises_is_named_with_its_record(kind: type[Exception]) -> None:
    def deserialize(*_: Any) -> Any:
        raise kind

    handler = Processor(print, value_deserializer=deserialize).handler
    records = records_of(Processor(print), [b"k"])
    with pytest.raises(UndecodableError, match="orders-0 offset 0: the value cannot be decoded"):
        handler.call_in_thread(records, lambda _: None)


def test_a_choice_of_errors_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    handler = Processor(print, retry=Retry(on=lambda _: fails())).handler
    assert not handler.is_final(SilentError())
    assert "Retry(on=...) has failed with an object of SilentError" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"handler": Object()},
        {"order": Object()},
        {"on_failure": Object()},
        {"concurrency": Object()},
        {"max_bytes": Object()},
        {"timeout": Object()},
        {"retry": Retry(first=Object())},  # type: ignore[arg-type]
        {"retry": Retry(attempts=Object())},  # type: ignore[arg-type]
        {"retry": Retry(on=Object())},  # type: ignore[arg-type]
    ],
)
def test_arguments_of_a_processor_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(OptionsError) as caught:
        Processor(**{"handler": print, **given})
    assert next(iter(given)) in str(caught.value).lower()
    assert "an object of Object, its repr cannot be made: SilentError" in str(caught.value)


def test_a_result_that_cannot_be_shown_is_refused_with_its_record() -> None:
    (record,) = records_of(Processor(print), [b"k"])
    with pytest.raises(ProcessingError, match="orders-0 from offset 0 on: a handler returned what"):
        list(rows_of_outcomes_of(record, Object()))


def rows_of_outcomes_of(record: Record, result: Any) -> Any:
    batch = pa.RecordBatch.from_pydict({"key": [b"k"]})
    fields = {"topic_partition": record.topic_partition, "batch": batch, "first": 0}
    record.source = type("Rows", (), fields)()
    return rows_of_outcomes([Outcome(record, Status.DONE, result)], "string")


def test_what_cannot_be_pickled_is_named_although_its_error_is_silent() -> None:
    def dumps(_: Any) -> bytes:
        raise SilentError

    (fault,) = unpicklable({"handler": print}, dumps)
    assert "handler print cannot be sent to Spark's tasks" in fault
    assert "SilentError: its text cannot be made: ValueError" in fault


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: load_task_assignor(f"{__name__}:Assignor"), ValueError, "it cannot be made"),
        (lambda: load_task_assignor(f"{__name__}:fails"), ValueError, "it cannot be made"),
        (lambda: provided_token(f"{__name__}:fails", 0.0), KshareError, "failed: SilentError: its"),
        (lambda: parse_partition(("orders", Object())), ValueError, "not a partition: an object"),
        (lambda: SubscribedTopics.of([Object()]), ValueError, "not a topic: an object of Object"),
        (lambda: RetryAfter(float("inf")), ValueError, "RetryAfter: seconds is inf"),
        (lambda: find("tests.silent_module:x", "task assignor", ()), ValueError, "imported: an"),
    ],
)
def test_what_was_given_is_refused_in_our_words(
    call: Callable[[], Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        call()


def test_what_callbacks_raise_besides_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="first"):
        raise_first([OSError("first"), SilentError()])
    assert "a callback has failed, too: an object of SilentError" in caplog.text
