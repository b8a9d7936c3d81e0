"""The source in a task: what the planner hears of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.feedback import server as server_module
from kshare.feedback.server import FeedbackServer
from kshare.wire.reader.read_slice import OnEnd
from spark_plugin import task_side
from spark_plugin.partitions import SlicePartition
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
