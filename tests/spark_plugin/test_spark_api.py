"""What Spark has, and what is done without it. ``make test-spark`` runs on each version."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from spark_plugin import source as source_module
from spark_plugin import spark_api
from spark_plugin.plain_reader import PlainReader
from spark_plugin.readers import StreamReader
from spark_plugin.source import KshareDataSource
from tests.support.options import BASE

END_OF_STREAM = -4


def test_this_spark_is_named() -> None:
    assert f"Spark {pyspark.__version__}" == spark_api.SPARK


@pytest.mark.parametrize("told", [True, False])
def test_the_reader_is_one_that_spark_can_call(monkeypatch: Any, told: bool) -> None:
    monkeypatch.setattr(source_module, "TELLS_START", told)
    for options in (BASE, {**BASE, "maxOffsetsPerTrigger": "few"}):
        source = KshareDataSource(options)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader if told else PlainReader)


@pytest.mark.parametrize(
    ("shown", "json"),
    [
        ("{'t': {'0': 5}}", '{"t": {"0": 5}}'),
        ("{'t': None}", '{"t": null}'),
        ('{"t": {"0": 5}}', '{"t": {"0": 5}}'),
        ("{'t': ", "{'t': "),
        ("{'t': print}", "{'t': print}"),
        ("5", "5"),
        ("None", None),
        (None, None),
    ],
)
def test_offsets_are_shown_as_json(shown: str | None, json: str | None) -> None:
    assert spark_api.shown_offsets(shown) == json


def worker_of_4_0(numbers: list[int]) -> SimpleNamespace:
    """The end of ``pyspark.worker`` of Spark 4.0 and 4.1: it answers by the last number."""
    module: dict[str, Any] = {"read_int": lambda _: numbers.pop(0)}
    exec("def main(stream):\n    return read_int(stream)", module)
    worker = SimpleNamespace(
        main=module["main"], SpecialLengths=SimpleNamespace(END_OF_STREAM=END_OF_STREAM)
    )
    worker.__dict__.update(read_int=module["read_int"])
    return worker


def test_a_worker_of_spark_4_0_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of_4_0([7, END_OF_STREAM])
    monkeypatch.setitem(sys.modules, "pyspark.worker", worker)
    assert spark_api.refuse_reuse()
    assert worker.read_int(None) == 7
    assert worker.read_int(None) != END_OF_STREAM


def test_a_worker_of_spark_4_2_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    receiver = type(
        "SparkSocketMessageReceiver", (), {"get_finish_signal_from_stream": heard.append}
    )
    worker = SimpleNamespace(SparkSocketMessageReceiver=receiver)
    monkeypatch.setitem(sys.modules, "pyspark.worker", worker)
    assert spark_api.refuse_reuse()
    signal: Any = receiver()
    with pytest.raises(Exception, match="ends with its task"):
        signal.get_finish_signal_from_stream()
    assert heard == [signal]


@pytest.mark.parametrize("worker", [None, SimpleNamespace(main=print), SimpleNamespace(main=len)])
def test_an_unknown_worker_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, worker: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.worker", worker)
    before = None if worker is None else dict(worker.__dict__)
    assert not spark_api.refuse_reuse()
    assert worker is None or worker.__dict__ == before


@pytest.mark.parametrize("name", ["pyspark.worker", "__main__"])
def test_what_a_worker_has_written_can_be_sent(name: str) -> None:
    """What it writes to is found from within the generator that it takes rows from."""
    module: dict[str, Any] = {"__name__": name}
    exec("def main(infile, outfile):\n    return next(infile)", module)

    def rows() -> Iterator[object]:
        yield spark_api.worker_flush()

    with ExitStack() as stack:
        ours, spark = map(stack.enter_context, socket.socketpair())
        outfile = stack.enter_context(ours.makefile("wb"))
        flush = module["main"](rows(), outfile)
        outfile.write(b"rows")
        spark.setblocking(False)
        with pytest.raises(BlockingIOError):
            spark.recv(4)
        flush()
        spark.setblocking(True)
        assert spark.recv(4) == b"rows"
        assert module["main"](rows(), None) is None
        assert spark_api.worker_flush() is None
        module["__name__"] = "a_users_module"
        assert module["main"](rows(), outfile) is None
