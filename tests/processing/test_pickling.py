"""Handlers that cannot be sent to Spark's tasks: the error names the handler, and what it holds."""

import pickle
import threading
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from kshare.errors import OptionsError
from kshare.processing import Processor, Record, Retry
from kshare.processing.frames import process_by_key
from kshare.processing.pickling import unpicklable


class Frame:
    """A frame that is never planned."""

    columns = ("key", "value")
    schema = StructType().add("key", "binary").add("value", "binary")

    def mapInArrow(self, func: Any, schema: Any) -> bytes:  # noqa: N802
        dumps: Any = cloudpickle.dumps
        return bytes(dumps(func))


class Client:
    """Has a connection, as an HTTP client does."""

    def __init__(self) -> None:
        self.url = "x"
        self.pool = threading.Lock()

    def send(self, record: Record) -> str:
        """A handler."""
        return self.url


async def picklable(record: Record) -> None:
    """A handler."""


def told(processor: Processor) -> str:
    with pytest.raises(OptionsError) as raised:
        process_by_key(Frame(), processor)  # type: ignore[arg-type]
    (problem,) = raised.value.problems
    return problem


LOCK = r"(TypeError: cannot pickle '_thread.lock' object)"


def test_a_variable_around_the_handler() -> None:
    lock = threading.Lock()

    def handle(record: Record) -> None:
        with lock:
            pass

    assert told(Processor(handle)) == (
        f"handler {handle.__qualname__} cannot be sent to Spark's tasks: its variable 'lock' "
        f"cannot be pickled {LOCK}; make that inside the function when it is first called, or in "
        "a module that the workers import"
    )


def test_a_lambda_and_an_object_in_a_variable() -> None:
    client = Client()
    said = told(Processor(lambda record: [client.send(record)]))
    assert ".<lambda> cannot be sent" in said
    assert "its attribute 'pool' of variable 'client' cannot be pickled" in said


def test_a_method_and_an_object_that_is_called() -> None:
    assert "handler Client.send cannot" in told(Processor(Client().send))
    assert "its attribute 'pool' cannot" in told(Processor(Client().send))


def test_what_is_around_a_function_that_the_handler_calls() -> None:
    client = Client()

    def inner(record: Record) -> str:
        return client.send(record)

    said = told(Processor(lambda record: [inner(record)]))
    assert "its attribute 'pool' of variable 'client' of variable 'inner' cannot" in said


def test_a_partial() -> None:
    said = told(Processor(partial(print, threading.Lock())))
    assert said.startswith("handler partial cannot be sent to Spark's tasks: its argument 0 cannot")


def test_other_functions_that_a_processor_has() -> None:
    lock = threading.Lock()
    worth = Retry(on=lambda error: lock.locked())
    assert told(Processor(picklable, retry=worth)).startswith("Retry(on=...) test_other_functions")
    said = told(Processor(picklable, value_deserializer=lambda data, context: lock))
    assert said.startswith("value_deserializer test_other_functions")


def test_a_script_s_globals() -> None:
    """Of a function of ``__main__``, as in a notebook, all that it uses is pickled."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import threading, json\nlock = threading.Lock()\n"
        "def handle(record):\n    return [json.dumps(lock) for _ in range(3)]",
        namespace,
    )
    (said,) = unpicklable({"handler": namespace["handle"]}, cloudpickle.dumps)
    assert "handler handle cannot be sent to Spark's tasks: its variable 'lock' cannot" in said


def test_a_variable_without_a_value_yet_is_passed_over() -> None:
    lock = threading.Lock()

    def handle(record: Record) -> None:
        later(lock)

    assert "variable 'lock'" in told(Processor(handle))

    def later(_: Any) -> None:
        """Defined after its use."""


def test_what_can_be_pickled_is_planned() -> None:
    values = [1, 2]
    planned = process_by_key(Frame(), Processor(lambda record: values))  # type: ignore[arg-type]
    assert pickle.loads(planned)
