"""The source before a query is planned: its columns, and what of the user's is run for them."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from kshare.errors import KafkaError, OptionsError
from kshare.query.produce import sender
from kshare.testing import FakeCluster
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


REFUSED = {"kafka.bootstrap.servers": "localhost:1", "kafka.default.api.timeout.ms": "300"}
REFUSING = "localhost:1: Connection refused"


@pytest.mark.parametrize("topics", [{}, {"subscribe": "", "assign": '{"t": [0]}'}])
def test_a_query_does_not_start_while_no_broker_listens(topics: dict[str, str]) -> None:
    options = {name: text for name, text in {**BASE, **REFUSED, **topics}.items() if text}
    source = KshareDataSource(options)
    schema = source.schema()
    with pytest.raises(KafkaError, match=REFUSING):
        source.reader(schema).partitions()
    with pytest.raises(KafkaError, match=REFUSING):
        source.streamReader(schema).initialOffset()


@pytest.mark.parametrize("exactly_once", ["false", "true"])
@pytest.mark.parametrize(("batch", "is_told"), [("0", True), ("7", False)])
def test_the_first_batch_is_not_written_while_no_broker_listens(
    monkeypatch: pytest.MonkeyPatch, exactly_once: str, batch: str, *, is_told: bool
) -> None:
    """A later one waits for a broker, as a query that runs does."""
    task = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "r"}
    context = SimpleNamespace(
        getLocalProperty={**task, "streaming.sql.batchId": batch}.get,
        partitionId=lambda: 0,
        attemptNumber=lambda: 0,
    )
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    hasty = {
        "kafka.delivery.timeout.ms": "500",
        "kafka.request.timeout.ms": "400",
        "kafka.linger.ms": "0",
        "exactlyOnce": exactly_once,
        "topic": "t",
    }
    schema = StructType([StructField("value", StringType())])
    sink = KshareDataSource({**REFUSED, **hasty}).streamWriter(schema, overwrite=False)
    rows = pa.RecordBatch.from_pydict({"value": ["v"]})
    with pytest.raises(KafkaError) as raised:
        sink.write(iter([rows]))
    assert ("kafka.bootstrap.servers; at each look" in str(raised.value)) is is_told
    sender._kept().drop()


VALUE = StructType([StructField("value", StringType())])


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "EndTxn"])
def test_exactly_once_is_refused_before_a_batch_has_a_task(api: str) -> None:
    with FakeCluster(topics={"t": 1}) as fake:
        fake.limit_api_version(api, -1, -1)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "topic": "t"}
        source = KshareDataSource({**given, "exactlyOnce": "true"})
        for _ in range(2):  # what was refused is refused again
            with pytest.raises(OptionsError, match=f"exactlyOnce: leave it out.* know {api}$"):
                source.streamWriter(VALUE, overwrite=False)
        KshareDataSource(given).streamWriter(VALUE, overwrite=False)


def test_a_process_asks_for_transactions_once() -> None:
    with FakeCluster(topics={"t": 1}) as fake:
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "topic": "t"}
        source = KshareDataSource({**given, "exactlyOnce": "true"})
        source.streamWriter(VALUE, overwrite=False)
        fake.limit_api_version("EndTxn", -1, -1)
        source.streamWriter(VALUE, overwrite=False)  # it does not hear of it
        another = {**given, "exactlyOnce": "true", "kafka.client.id": "another"}
        with pytest.raises(OptionsError, match="EndTxn"):
            KshareDataSource(another).streamWriter(VALUE, overwrite=False)


def test_a_batch_is_not_written_while_no_broker_listens() -> None:
    schema = StructType([StructField("value", StringType())])
    sink = KshareDataSource({**REFUSED, "topic": "t"}).writer(schema, overwrite=False)
    with pytest.raises(KafkaError, match=REFUSING):
        sink.write(iter([pa.RecordBatch.from_pydict({"value": ["v"]})]))


def test_a_table_without_its_options_is_told_of_views() -> None:
    """Spark opens a table of SQL with the options of its SELECT, and asks for no schema."""
    schema = KshareDataSource(BASE).schema()
    bare = KshareDataSource({})
    frame = StructType([StructField("value", StringType())])
    calls: list[Callable[[], object]] = [
        lambda: bare.reader(schema),
        bare.streamReader(schema).initialOffset,
        lambda: bare.writer(frame, overwrite=False),
        lambda: bare.streamWriter(frame, overwrite=False),
    ]
    for call in calls:
        with pytest.raises(OptionsError, match="CREATE TEMPORARY VIEW"):
            call()
    with pytest.raises(OptionsError) as raised:
        KshareDataSource({"minPartitions": "2"}).reader(schema)
    assert "VIEW" not in str(raised.value)


def test_a_stream_warns_once_though_two_processes_make_its_reader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeCluster(topics={"t": 1}) as fake:
        options = {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"}
        source = KshareDataSource({**options, "minpartition": "2"})
        source.streamReader(source.schema())  # the process that plans how tasks read
        assert caplog.records == []
        reader: Any = source.streamReader(source.schema())
        reader.initialOffset()
        reader.reportLatestOffset()
        reader.stop()
    said = [each.getMessage() for each in caplog.records]
    assert len([text for text in said if "minPartitions" in text]) == 1
