"""The source in a task: what the planner hears of it."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count

import pyarrow as pa
import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import OpenTask, PlannedSlice
from kshare.formats.schemas import found_schemas
from kshare.kafka.end_log import EndLog
from kshare.kafka.parked_keys import ParkedKeys
from kshare.kafka.topics import PARKED_TOPIC, RANGE_ENDS_TOPIC
from kshare.options import SourceOptions, parse_options
from kshare.query.feedback import server as server_module
from kshare.query.feedback.server import FeedbackServer
from kshare.read.reader.open_reader import OpenReader
from kshare.read.reader.read_slice import OnEnd
from kshare.testing import FakeCluster
from spark_plugin import task_side
from spark_plugin.partitions import OpenPartition, SlicePartition
from tests.support.clock import WAIT_S
from tests.support.fake_logs import stream
from tests.support.feedback import HERE
from tests.support.groups import eventually


def test_a_task_of_many_slices_needs_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_CONNECTIONS_MAX", 1)

    def read(
        planned: Sequence[PlannedSlice], _: object, on_end: Mapping[Slice, OnEnd]
    ) -> Iterator[pa.RecordBatch]:
        for each in planned:
            if each.slice in on_end:
                on_end[each.slice](SliceEnd(each.slice.offsets.end, 1))
        yield from ()

    monkeypatch.setattr(task_side, "read_slices", read)
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    with closing(FeedbackServer(HERE)) as server:
        server.start()
        planned = [
            PlannedSlice(
                Slice("t", number, (Rectangle(OffsetRange(0, 10 + number), WHOLE),)),
                ticket=server.ticket("b", number, hold=False) if number % 2 else None,
            )
            for number in range(10)
        ]
        assert list(task_side.read_partition(SlicePartition(tuple(planned)), stream())) == []
        told = server.reports("b", wait_seconds=WAIT_S)
        assert {number: entry.end for number, entry in told.items()} == {
            number: 10 + number for number in range(1, 10, 2)
        }
        assert server.rejected == 0


def open_task(cluster: FakeCluster, **more: str) -> tuple[OpenTask, SourceOptions]:
    """A task that reads all of topic orders for a minute, and its options."""
    tp, at = TopicPartition("orders", 0), LogPosition(0, 0)
    batch = OpenBatch("b", 60_000, RANGE_ENDS_TOPIC, at, {tp: (ALL_HASHES,)})
    ranges = tuple(open_ranges(batch, {tp: Progress.at(0)}))
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": "orders",
        "columns": "value,offset",
        **more,
    }
    task = OpenTask(ranges, batch.milliseconds, RANGE_ENDS_TOPIC, at)
    return task, parse_options(given, streaming=True).options


@pytest.mark.parametrize("is_typed", [False, True])
def test_rows_of_an_open_batch_leave_the_worker_at_once(
    monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    """A batch is sent before the next one is waited for."""
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    seen: list[int] = []
    monkeypatch.setattr(task_side, "worker_flush", lambda: lambda: seen.append(-1))
    with FakeCluster(topics={"orders": 1, RANGE_ENDS_TOPIC: 1}) as cluster:
        cluster.produce("orders", [("k", "1")] * 30, partition=0)
        task, options = open_task(cluster, **({"valueFormat": "string"} if is_typed else {}))
        schemas = None
        if options.typed_rows is not None:
            schemas = found_schemas(options.typed_rows, options.kafka, "here")
        with EndLog(options.kafka) as ends:  # an earlier attempt has ended at 20
            assert not ends.read(task.log, task.ranges).ends
            ends.append({EndKey(task.ranges[0].id, "earlier-0"): RangeEnd.at(ALL_HASHES, 20)})
        rows = task_side.read_open_partition(OpenPartition(task), options, schemas)
        for each in rows:
            seen.append(each.num_rows)
            kind = pa.string() if is_typed else pa.binary()
            assert each.schema.field("value").type == kind
    assert seen == [20, -1]


def test_keys_that_are_parked_while_a_task_reads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    with FakeCluster(topics={"orders": 1, RANGE_ENDS_TOPIC: 1, PARKED_TOPIC: 1}) as cluster:
        task, options = open_task(cluster)
        rows = task_side.read_open_partition(OpenPartition(task), options)

        def read_on(what: str) -> set[str]:
            """The values that come, up to that of a key that is not parked."""
            cluster.produce("orders", [("waits", f"waits {what}"), ("goes", what)], partition=0)
            found: set[str] = set()
            while what not in found:
                found |= {value.decode() for value in next(rows).column("value").to_pylist()}
            return found

        with closing(rows):
            assert read_on("0") == {"0", "waits 0"}
            with closing(ParkedKeys(options.kafka)) as parked:
                parked.park("orders", [b"waits"])
            numbers = count(1)
            eventually(lambda: len(read_on(f"{next(numbers)}")) == 1)
            assert read_on("last") == {"last"}


def iter_nothing() -> Generator[pa.RecordBatch, None, None]:
    yield from ()


def test_a_worker_that_keeps_rows_back_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    monkeypatch.setattr(OpenReader, "batches", lambda _: iter_nothing())
    task_side.warn_of_rows_kept_back.cache_clear()
    task = OpenTask((), 1, RANGE_ENDS_TOPIC, LogPosition(0, 0))
    for _ in range(2):
        assert list(task_side.read_open_partition(OpenPartition(task), stream())) == []
    assert caplog.text.count("spark.python.udf.pipelined.enabled=true") == 1


def test_a_list_that_may_not_be_read_is_warned_of_once_by_the_tasks_of_a_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each task has a watch of its own; a worker runs one after the other."""
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    monkeypatch.setattr(task_side, "_said", set())
    caplog.set_level("DEBUG", "kshare")
    refused = "not authorized to read which keys are parked"

    def levels() -> list[str]:
        return [each.levelname for each in caplog.records if refused in each.getMessage()]

    def run(task: OpenTask, options: SourceOptions, wanted: int) -> None:
        with closing(task_side.read_open_partition(OpenPartition(task), options)) as rows:
            eventually(lambda: next(rows) is not None and len(levels()) == wanted)

    with FakeCluster(topics={"orders": 1, RANGE_ENDS_TOPIC: 1, PARKED_TOPIC: 1}) as cluster:
        cluster.fail_topic(PARKED_TOPIC, "TOPIC_AUTHORIZATION_FAILED")
        given = open_task(cluster)
        run(*given, 1)
        run(*given, 2)
    assert levels() == ["WARNING", "DEBUG"]
