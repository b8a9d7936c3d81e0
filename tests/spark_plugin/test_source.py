"""The source before a query is planned: its columns, and what of the user's is run for them."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kshare.errors import OptionsError
from spark_plugin.source import KshareDataSource
from tests.support.options import BASE


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The configs that the assignor ``an_assignor.counting`` got, each time that it got some."""
    got: list[object] = []
    counting = SimpleNamespace(assign=print, configure=got.append)
    monkeypatch.setitem(sys.modules, "an_assignor", SimpleNamespace(counting=counting))
    return got


@pytest.mark.parametrize(
    "more",
    [{}, {"startingOffsets": "latest"}, {"endingOffsets": "earliest"}],
    ids=["of either kind", "of a stream", "of neither kind"],
)
def test_the_schema_makes_no_task_assignor(configured: list[object], more: dict[str, str]) -> None:
    options = {**BASE, "taskAssignor": "an_assignor.counting", "taskAssignor.a": "b", **more}
    source = KshareDataSource(options)
    if "endingOffsets" in more:
        with pytest.raises(OptionsError, match="endingOffsets"):
            source.schema()
    else:
        assert source.schema().names[:2] == ["key", "value"]
    assert configured == []


def test_a_task_assignor_is_configured_once_for_a_stream_and_never_for_a_batch(
    configured: list[object],
) -> None:
    options = {**BASE, "taskAssignor": "an_assignor.counting", "taskAssignor.a": "b"}
    source = KshareDataSource({**options, "startingOffsets": "earliest"})
    schema = source.schema()
    source.reader(schema)
    assert configured == []
    source.streamReader(schema)
    assert configured == [{"a": "b"}]


def test_all_faults_are_told_before_the_kind_of_the_query_is_known() -> None:
    options = {"minPartitions": "x", "maxRecordsPerTask": "-1", "startingOffsets": "latest"}
    with pytest.raises(OptionsError) as raised:
        KshareDataSource({**BASE, **options}).schema()
    text = "\n".join(raised.value.problems)
    assert len(raised.value.problems) == 3
    assert (
        text.index("minPartitions: ") < text.index("maxRecordsPerTask: ") < text.index("[as a st")
    )
    assert text.endswith("[as a batch]")


def test_a_streams_faulty_task_assignor_is_told_by_the_stream() -> None:
    source = KshareDataSource({**BASE, "taskAssignor": "no.such.module"})
    schema = source.schema()
    reader = source.streamReader(schema)
    with pytest.raises(OptionsError, match=r"taskAssignor: no task assignor 'no\.such"):
        reader.initialOffset()


def test_a_stream_with_wrong_options_says_so_at_each_call_and_can_be_stopped() -> None:
    """Spark stops it in any case, and would show its own error if there were nothing to stop."""
    source = KshareDataSource({**BASE, "keys": '["a"]', "targetTaskDuration": "1s"})
    reader: Any = source.streamReader(source.schema())
    calls: list[Callable[[], object]] = [
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        reader.reportLatestOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ]
    for call in calls:
        with pytest.raises(OptionsError, match="targetTaskDuration"):
            call()
    reader.stop()
