"""``realTime`` as Spark calls it: planner, tasks and the log of ends on a mock cluster."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from kshare.core.checkpoint import decode
from kshare.errors import OptionsError
from kshare.testing import FakeCluster, Record
from spark_plugin.source import KshareDataSource
from spark_plugin.spark_api import ReadAllAvailable

Offsets = dict[str, Any]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 2, "__kshare_range_ends": 4}) as running:
        yield running


class Stream:
    """A query: its reader, the offset dict of its last batch, and what its sink got."""

    def __init__(self, cluster: FakeCluster, **options: str) -> None:
        self.cluster = cluster
        self.options = {"realTime": "500ms", "keyRanges": "2", "maxTasks": "2", **options}
        self.rows: list[tuple[int, int]] = []
        self.restart()
        self.at: Offsets = self.reader.initialOffset()

    def restart(self) -> None:
        made = KshareDataSource(
            {
                "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
                "subscribe": "t",
                "startingOffsets": "earliest",
                **self.options,
            }
        )
        self.reader: Any = made.streamReader(made.schema())

    def produce(self, count: int = 10) -> None:
        for partition in range(2):
            records = [Record(b"%d" % (number % 7), b"v") for number in range(count)]
            self.cluster.produce("t", records, partition=partition)

    def plan(self) -> Offsets:
        # As Spark hands it back: from its log, as JSON.
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        found: Offsets = json.loads(json.dumps(end))
        return found

    def run(self, end: Offsets) -> list[tuple[int, int]]:
        """The rows of a batch's tasks, one after the other."""
        return [
            (row["partition"], row["offset"])
            for task in self.reader.partitions(self.at, end)
            for batch in pickle.loads(pickle.dumps(self.reader)).read(task)
            for row in batch.to_pylist()
        ]

    def commit(self, end: Offsets, rows: list[tuple[int, int]]) -> None:
        self.rows += rows
        self.at = end


def test_batches_follow_each_other_through_restarts(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    stream.produce()
    first = stream.plan()
    stream.commit(first, stream.run(first))
    stream.produce()
    second = stream.plan()
    assert decode(second).progress  # where it begins, which is where the first one ended
    rows = stream.run(second)
    stream.reader.stop()
    stream.restart()  # before the batch was committed
    stream.produce()
    assert sorted(stream.run(second)) == sorted(rows)
    stream.commit(second, rows)
    third = stream.plan()
    stream.commit(third, stream.run(third))
    stream.reader.stop()
    assert sorted(stream.rows) == [(p, offset) for p in range(2) for offset in range(30)]


def test_the_way_there_and_back(cluster: FakeCluster) -> None:
    stream = Stream(cluster, **{"realTime.topic": "__kshare_range_ends.mine"})
    stream.produce()
    end = stream.plan()
    stream.commit(end, stream.run(end))
    stream.reader.stop()
    stream.options = {}
    stream.restart()
    stream.produce()
    end = stream.plan()
    assert decode(end).open is None
    assert "open" not in json.dumps(end)
    stream.commit(end, stream.run(end))
    assert stream.plan() == stream.at
    stream.reader.stop()
    assert sorted(stream.rows) == [(p, offset) for p in range(2) for offset in range(20)]
    assert end == {"t": {"0": 20, "1": 20}}  # as Spark's own source writes it


def test_triggers_that_read_what_is_there_are_refused(cluster: FakeCluster) -> None:
    stream = Stream(cluster)
    with pytest.raises(OptionsError, match=r"realTime: .* trigger\(availableNow=True\)"):
        stream.reader.prepareForTriggerAvailableNow()
    with pytest.raises(OptionsError, match=r"realTime: .* trigger\(once=True\)"):
        stream.reader.latestOffset(stream.at, ReadAllAvailable())
    assert stream.plan()
    stream.reader.stop()
