"""The source in a task: what the planner hears of it."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from kshare.cluster.end_log import EndLog
from kshare.cluster.topics import RANGE_ENDS_TOPIC
from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import OpenTask, PlannedSlice
from kshare.feedback import server as server_module
from kshare.feedback.server import FeedbackServer
from kshare.formats.schemas import found_schemas
from kshare.options import parse_options
from kshare.testing import FakeCluster
from kshare.wire.reader.open_reader import OpenReader
from kshare.wire.reader.read_slice import OnEnd
from spark_plugin import task_side
from spark_plugin.partitions import OpenPartition, SlicePartition
from tests.support.clock import WAIT_S
from tests.support.fake_logs import stream
from tests.support.feedback import HERE


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


@pytest.mark.parametrize("is_typed", [False, True])
def test_rows_of_an_open_batch_leave_the_worker_one_by_one(
    monkeypatch: pytest.MonkeyPatch, is_typed: bool
) -> None:
    """A batch is sent before the next one is waited for."""
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    seen: list[int] = []
    monkeypatch.setattr(task_side, "worker_flush", lambda: lambda: seen.append(-1))
    tp = TopicPartition("orders", 0)
    with FakeCluster(topics={"orders": 1, RANGE_ENDS_TOPIC: 1}) as cluster:
        cluster.produce("orders", [("k", "1")] * 30, partition=0)
        at = LogPosition(0, 0)
        batch = OpenBatch("b", 60_000, RANGE_ENDS_TOPIC, at, {tp: (ALL_HASHES,)})
        ranges = tuple(open_ranges(batch, {tp: Progress.at(0)}))
        task = OpenTask(ranges, batch.milliseconds, RANGE_ENDS_TOPIC, at)
        given = {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": "orders",
            "columns": "value,offset",
            **({"valueFormat": "string"} if is_typed else {}),
        }
        options = parse_options(given, streaming=True).options
        schemas = None
        if options.typed_rows is not None:
            schemas = found_schemas(options.typed_rows, options.kafka, "here")
        with EndLog(options.kafka) as ends:  # an earlier attempt has ended at 20
            assert not ends.read(at, ranges).ends
            ends.append({EndKey(ranges[0].id, "earlier-0"): RangeEnd.at(ALL_HASHES, 20)})
        rows = task_side.read_open_partition(OpenPartition(task), options, schemas)
        for each in rows:
            seen.append(each.num_rows)
            kind = pa.string() if is_typed else pa.binary()
            assert each.schema.field("value").type == kind
    assert seen == [20, -1]


def iter_nothing() -> Generator[pa.RecordBatch, None, None]:
    yield from ()


def test_a_worker_that_keeps_rows_back_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task_side, "_prepare_process", lambda: None)
    monkeypatch.setattr(OpenReader, "batches", lambda _: iter_nothing())
    task = OpenTask((), 1, RANGE_ENDS_TOPIC, LogPosition(0, 0))
    assert list(task_side.read_open_partition(OpenPartition(task), stream())) == []
    assert "spark.python.udf.pipelined.enabled=true" in caplog.text
