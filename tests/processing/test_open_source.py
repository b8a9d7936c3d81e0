"""Which frames have their handlers in the tasks that read, and what is said of the others."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pyspark.sql.types import StructType

from kshare.errors import OptionsError
from kshare.processing import DeadLetter, Processor, Record, Retry, process_by_key
from kshare.processing.open_source import (
    PlannedSource,
    open_source,
    planned_sources,
    why_not_in_reader,
)
from kshare.processing.work import Work
from spark_plugin.source import KshareDataSource

ALL = ("key", "value", "topic", "partition", "offset")
OPTIONS = {"realTime": "60s", "subscribe": "orders"}


async def handle(_: Record) -> None:
    pass


# -- plans of a client of Spark Connect: classes and attributes are named as its own -------------


class DataSource:
    def __init__(self, format_: str, options: dict[str, str], *, is_streaming: bool) -> None:
        self._format, self._options, self._is_streaming = format_, options, is_streaming


class Named(DataSource):
    _source_name = "orders"


Named.__name__ = "DataSource"


@dataclass
class Filter:
    _child: Any


@dataclass
class Join:
    left: Any
    right: Any


def schema_of(columns: tuple[str, ...], key: str = "binary") -> StructType:
    schema = StructType()
    for name in columns:
        schema = schema.add(name, key if name == "key" else "string")
    return schema


class Frame:
    """A frame of a client."""

    def __init__(self, plan: Any, columns: tuple[str, ...] = ALL, key: str = "binary") -> None:
        self._plan, self.columns, self.schema = plan, [*columns], schema_of(columns, key)
        self.mapped = 0

    def mapInArrow(self, func: Any, schema: Any) -> Any:  # noqa: N802
        self.mapped += 1
        return self


def source(format_: str = "kshare", *, is_streaming: bool = True, **options: str) -> DataSource:
    return DataSource(format_, options or OPTIONS, is_streaming=is_streaming)


def source_of(frame: Frame) -> PlannedSource | None:
    return open_source(planned_sources(frame))


def work_of(key: str = "key", **given: Any) -> Work:
    return Work(Processor(handle, **given), key, None, None)


def test_a_source_is_found_in_a_plan() -> None:
    wanted = {"realtime": "60s", "subscribe": "orders"}
    assert source_of(Frame(source())) == PlannedSource(wanted)
    assert source_of(Frame(source("KSHARE"))) == PlannedSource(wanted)
    below = source_of(Frame(Join(source("kafka"), Filter(source()))))
    assert below == PlannedSource(wanted, ("Join", "Filter"))
    with_handlers = source(KshareDataSource.working(b"", StructType()).name())
    assert source_of(Frame(Filter(with_handlers))) == PlannedSource(wanted, ("Filter",))
    named = source_of(Frame(Named("kshare", OPTIONS, is_streaming=True)))
    assert named == PlannedSource(wanted, has_name=True)


@pytest.mark.parametrize(
    "plan",
    [
        None,
        source("kafka"),
        source(is_streaming=False),
        source(subscribe="orders"),
        Filter(source("rate")),
    ],
)
def test_other_frames_have_none(plan: Any) -> None:
    assert source_of(Frame(plan)) is None


def test_a_frame_of_a_batch_is_not_looked_into() -> None:
    """A plan may be long, and each look into it takes a call of the JVM."""

    class Jvms:
        def isStreaming(self) -> bool:  # noqa: N802
            return False

    frame = Frame(source())
    frame._jdf = Jvms()  # type: ignore[attr-defined]
    assert source_of(frame) is None


FOUND = PlannedSource({"realtime": "60s"})


@pytest.mark.parametrize(
    ("found", "frame", "work", "why"),
    [
        (FOUND, Frame(None), work_of(), None),
        (
            PlannedSource({"realtime": "60s"}, ("Project", "Filter")),
            Frame(None),
            work_of(),
            "between load() and it there is Project, Filter; call it with the frame of load()",
        ),
        (
            PlannedSource({"realtime": "60s"}, has_name=True),
            Frame(None),
            work_of(),
            "leave out name(",
        ),
        (FOUND, Frame(None), work_of("value"), "key='value' is not the records' key; leave it out"),
        (FOUND, Frame(None, ("key", "topic")), work_of(), "columns have partition, offset, too"),
        (FOUND, Frame(None, key="string"), work_of(), "keys are typed; leave out keyFormat"),
        (FOUND, Frame(None), work_of(retry=Retry(3, first="20s", most="1h")), "take 60 s, and are"),
        (FOUND, Frame(None), work_of(retry=Retry(3, first="19s", most="1h")), None),
        (FOUND, Frame(None), work_of(retry=Retry(100, first="1s", most="1s")), "take 99 s"),
        (FOUND, Frame(None), work_of(retry=Retry(1, first="5min", most="5min")), None),
    ],
)
def test_why_handlers_cannot_run_in_the_reader(
    found: PlannedSource, frame: Frame, work: Work, why: str | None
) -> None:
    said = why_not_in_reader(found, frame, work)
    assert said is None if why is None else why in (said or "")


def test_handlers_behind_the_reader_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the reason; and no word where there is no realTime."""
    frame, other = Frame(Filter(source())), Frame(source(subscribe="orders"))
    with caplog.at_level(logging.WARNING, "kshare"):
        process_by_key(frame, Processor(handle))
        process_by_key(other, Processor(handle))
    (said,) = [each for each in caplog.records if each.name == "kshare.processing"]
    assert "there is Filter; call it with the frame of load()" in said.getMessage()
    assert "realTime=60s" in said.getMessage()
    assert (frame.mapped, other.mapped) == (1, 1)


def test_options_are_not_shown() -> None:
    found = PlannedSource({"realtime": "60s", "kafka.sasl.password": "secret"})
    work = Work(Processor(handle), "key", None, {"kafka.sasl.password": "secret"})
    assert "secret" not in repr(found) + repr(work)


class Session:
    """Keeps what is registered, and loads it."""

    def __init__(self) -> None:
        self.dataSource, self.readStream = self, self
        self.registered: list[Any] = []
        self.loaded: dict[str, str] = {}

    def register(self, made: Any) -> None:
        self.registered.append(made)

    def format(self, name: str) -> Any:
        assert [each.name() for each in self.registered][-1] == name
        return self

    def options(self, **options: str) -> Any:
        self.loaded = options
        return self

    def load(self) -> Any:
        return self


def test_the_source_is_loaded_anew_with_its_handlers() -> None:
    """Under a name of its own for each call, with all its options and the columns of outcomes."""
    session, frame = Session(), Frame(source())
    frame.sparkSession = session  # type: ignore[attr-defined]
    call = partial(process_by_key, frame, Processor(handle), result="bigint")
    assert call() is session
    assert call() is session
    assert session.loaded == {"realtime": "60s", "subscribe": "orders"}
    one, two = session.registered
    assert one.name() != two.name()
    assert one.adds.simpleString() == (
        "struct<status:string,attempts:int,error:string,result:bigint>"
    )
    made = one({"kafka.bootstrap.servers": "b:1", **OPTIONS})
    assert made.schema().names[-4:] == ["status", "attempts", "error", "result"]
    assert frame.mapped == 0


@pytest.mark.parametrize(
    ("options", "is_read"),
    [
        ({"subscribe": "orders, dlq"}, True),
        ({"subscribe": "orders"}, False),
        ({"subscribePattern": "d.q"}, True),
        ({"subscribePattern": "orders.*"}, False),
        ({"assign": '{"dlq": [0]}', "realTime": "60s"}, True),
        ({"assign": '{"orders": [0]}'}, False),
        ({"subscribe": "dlq", "subscribePattern": ".*"}, False),  # wrong: Spark says that
    ],
)
@pytest.mark.parametrize("between", [lambda plan: plan, Filter])
def test_a_frame_of_its_own_dead_letters_is_refused(
    options: dict[str, str], between: Any, *, is_read: bool
) -> None:
    """Else each letter that fails again would be written again, for ever."""
    frame: Any = Frame(between(DataSource("kshare", options, is_streaming=True)))
    frame.sparkSession = Session()
    processor = Processor(handle, on_failure=DeadLetter("dlq"))
    call = partial(process_by_key, frame, processor, options={"kafka.bootstrap.servers": "b:1"})
    if not is_read:
        call()
        return
    with pytest.raises(OptionsError, match="the processor would read dlq, where on_failure"):
        call()
