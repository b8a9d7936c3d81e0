"""``available_now``: what it asks of a writer and its query, on a Spark with the trigger and not.

``integration/test_available_now.py`` runs it beside ``format("kafka")`` on each version of Spark.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

import spark_plugin
from kshare.errors import KshareError
from spark_plugin import available_now, spark_api, triggers
from spark_plugin import source as source_module
from spark_plugin.held_ends import Hold
from spark_plugin.source import KshareDataSource
from tests.support.groups import eventually
from tests.support.options import BASE

FAILURE = StreamingQueryException("it failed")


class FakeQuery:
    def __init__(self, said: list[str], failure: BaseException | None) -> None:
        self._said, self._failure = said, failure
        self.sees: Callable[[], object] = lambda: None

    def processAllAvailable(self) -> None:  # noqa: N802
        self._said.append("all")
        self.sees()
        self._fail()

    def awaitTermination(self) -> None:  # noqa: N802
        self._said.append("await")
        self._fail()

    def stop(self) -> None:
        self._said.append("stop")

    def _fail(self) -> None:
        if self._failure is not None:
            raise self._failure


class FakeWriter:
    """A writer of PySpark's, whose plan reads some sources."""

    def __init__(self, *leaves: Any, failure: BaseException | None = None) -> None:
        self.said: list[str] = []
        self.query = FakeQuery(self.said, failure)
        seq = SimpleNamespace(size=lambda: len(leaves), apply=leaves.__getitem__)
        plan = SimpleNamespace(collectLeaves=lambda: seq)
        execution = SimpleNamespace(analyzed=lambda: plan)
        option = SimpleNamespace(empty=lambda: None)
        jvm = SimpleNamespace(scala=SimpleNamespace(Option=option))
        self._df = SimpleNamespace(
            _jdf=SimpleNamespace(queryExecution=lambda: execution),
            sparkSession=SimpleNamespace(_jvm=jvm),
        )

    def trigger(self, **kind: Any) -> "FakeWriter":
        self.said.append(str(kind))
        return self

    def start(self) -> FakeQuery:
        self.said.append("start")
        return self.query

    def toTable(self, name: str) -> FakeQuery:  # noqa: N802
        self.said.append(f"to {name}")
        return self.query


def leaf(name: str, made: Any = None, kind: str = "StreamingRelationV2") -> Any:
    """A relation of a logical plan, in the calls of py4j."""
    result = SimpleNamespace(dataSource=lambda: pickle.dumps(made))
    source = SimpleNamespace(getOrCreateDataSourceInPython=lambda *_: result)
    return SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: kind),
        sourceName=lambda: name,
        source=lambda: SimpleNamespace(get=lambda: source),
        extraOptions=dict,
    )


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that runs the trigger as one batch."""
    for module in (triggers, spark_api, source_module):
        monkeypatch.setattr(module, "TELLS_START", False)


NEWER = str({"availableNow": True})
OLDER = str({"processingTime": "0 seconds"})


def test_it_is_a_name_of_the_package() -> None:
    assert spark_plugin.available_now is triggers.available_now
    assert "available_now" in spark_plugin.__all__


@pytest.mark.parametrize(("table", "started"), [(None, "start"), ("db.t", "to db.t")])
def test_a_newer_spark_has_the_trigger(table: str | None, started: str) -> None:
    writer: Any = FakeWriter()
    assert available_now(writer, table) is writer.query
    assert writer.said == [NEWER, started, "await", "stop"]


@pytest.mark.parametrize("failure", [FAILURE, KeyboardInterrupt()])
def test_a_newer_spark_raises_what_it_raises(failure: BaseException) -> None:
    """And an interrupted caller, who gets no query, leaves none behind."""
    writer: Any = FakeWriter(failure=failure)
    with pytest.raises(type(failure)):
        available_now(writer)
    assert writer.said[-1] == "stop"


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize(("table", "started"), [(None, "start"), ("db.t", "to db.t")])
def test_an_older_spark_is_stopped_when_nothing_is_left(table: str | None, started: str) -> None:
    sources = [KshareDataSource(dict(BASE)) for _ in range(2)]
    writer: Any = FakeWriter(
        leaf("kshare", sources[0]), leaf("KShare", sources[1]), leaf("", kind="LocalRelation")
    )
    holds: list[Hold] = []
    writer.query.sees = lambda: holds.extend(Hold(source.folder) for source in sources)
    assert available_now(writer, table) is writer.query
    assert writer.said == [OLDER, started, "all", "stop", "await"]
    assert len(holds) == 2
    assert not any(Path(str(source.folder)).exists() for source in sources)


@pytest.mark.usefixtures("older")
def test_a_source_with_handlers_is_held_too(caplog: pytest.LogCaptureFixture) -> None:
    """It has a name of its own. Not held, one with ``realTime`` would go on for ever."""
    name = KshareDataSource.working(b"", StructType()).name()
    source = KshareDataSource(dict(BASE))
    writer: Any = FakeWriter(leaf(name, source))
    writer.query.sees = lambda: seen.append(bool(Hold(source.folder)))
    seen: list[bool] = []
    available_now(writer)
    assert seen == [True]
    assert caplog.messages == []


@pytest.mark.usefixtures("older")
def test_each_source_was_held(caplog: pytest.LogCaptureFixture) -> None:
    source = KshareDataSource(dict(BASE))
    writer: Any = FakeWriter(leaf("kshare", source))
    writer.query.sees = lambda: seen.append(bool(Hold(source.folder)))
    seen: list[bool] = []
    available_now(writer)
    assert seen == [True]
    assert caplog.messages == []
    writer.query.sees = lambda: None
    available_now(writer)
    (said,) = caplog.messages
    assert "a source has not found the file that the driver keeps for it" in said


@pytest.mark.usefixtures("older")
def test_a_query_that_is_not_held_says_so_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may go on for ever."""
    monkeypatch.setattr(triggers, "_UNSEEN_SECONDS", 0.0)
    writer: Any = FakeWriter(leaf("kshare", KshareDataSource(dict(BASE))))
    writer.query.sees = lambda: eventually(lambda: caplog.messages)
    available_now(writer)
    assert len(caplog.messages) == 1


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("failure", [FAILURE, KeyboardInterrupt()])
def test_an_older_spark_raises_what_it_raises(failure: BaseException) -> None:
    source = KshareDataSource(dict(BASE))
    writer: Any = FakeWriter(leaf("kshare", source), failure=failure)
    writer.query.sees = lambda: Hold(source.folder)
    with pytest.raises(type(failure)):
        available_now(writer)
    assert "stop" in writer.said
    assert not Path(str(source.folder)).exists()


@pytest.mark.usefixtures("older")
@pytest.mark.parametrize("name", ["kafka", "rate", "rate-micro-batch", "socket"])
def test_a_source_without_an_end_is_refused(name: str) -> None:
    source = KshareDataSource(dict(BASE))
    writer: Any = FakeWriter(leaf("kshare", source), leaf(name))
    with pytest.raises(KshareError, match=f"the query also reads {name}, and Spark"):
        available_now(writer)
    assert writer.said == []


@pytest.mark.usefixtures("older")
def test_another_source_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    source = KshareDataSource(dict(BASE))
    files = leaf("FileSource[/in]", kind="StreamingRelation")
    writer: Any = FakeWriter(leaf("kshare", source), files)
    writer.query.sees = lambda: Hold(source.folder)
    available_now(writer)
    (said,) = caplog.messages
    assert "what comes into filesource[/in] while the query runs is read, too" in said


@pytest.mark.usefixtures("older")
def test_spark_connect_is_refused() -> None:
    with pytest.raises(KshareError, match="this one is of Spark Connect"):
        available_now(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.usefixtures("older")
def test_a_platform_that_hides_the_source_is_refused() -> None:
    for hidden in (leaf("kshare", None), leaf("kshare", KshareDataSource)):
        writer: Any = FakeWriter(hidden)
        with pytest.raises(KshareError, match="does not show the source of the query"):
            available_now(writer)
        assert writer.said == []
