"""A query whose checkpoint goes to and fro between Spark 4.0 and 4.3, with ranges that stand apart.

The two versions are played here, by the calls that each makes. Every record is read once.
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kshare.core.checkpoint import decode
from kshare.errors import KshareError, OptionsError
from kshare.testing import FakeCluster, Record
from spark_plugin.held_ends import hold
from spark_plugin.plain_reader import WRAPPER, PlainReader
from spark_plugin.readers import StreamReader
from spark_plugin.source import KshareDataSource
from tests.support.effort import examples
from tests.support.options import BASE

Offsets = dict[str, Any]
ENDS = "__kshare_range_ends.old"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={ENDS: 2}) as running:
        yield running


def new_topic(cluster: FakeCluster, partitions: int = 1) -> str:
    return cluster.create_topic(f"t{next(_numbers)}", partitions=partitions)


def new_reader(options: dict[str, str]) -> StreamReader:
    source = KshareDataSource(options)
    made: Any = source.streamReader(source.schema())
    reader: StreamReader = getattr(made, "reader", made)
    return reader


class Query:
    """A query's logs, and the offsets of the records that its batches have read."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.log: list[str] = []
        self.done = 0
        self.seen: Counter[tuple[int, int]] = Counter()
        self.pending: list[tuple[int, int]] = []

    def run(self, *, old: bool, batches: int, fails: bool) -> None:
        """Run some batches, of which the last one's tasks may fail when they have read."""
        reader = new_reader(self.options)
        try:
            (self._old if old else self._new)(reader, batches, fails=fails)
        finally:
            reader.stop()

    def _old(self, inner: StreamReader, batches: int, *, fails: bool) -> None:
        reader = PlainReader(inner)
        start = None
        if self.log:
            start = json.loads(self.log[-1])
            assert reader.partitions(start, start) == []
        for number in range(batches):
            if self.done == len(self.log):
                end = reader.latestOffset()
                if self._is_old(end):
                    return
                self.log.append(json.dumps(end))
                if start is not None:
                    reader.commit(start)
            self._batch(reader, fails=fails and number == batches - 1)
            start = json.loads(self.log[-1])

    def _new(self, reader: StreamReader, batches: int, *, fails: bool) -> None:
        limit = reader.getDefaultReadLimit()
        for number in range(batches):
            if self.done == len(self.log):
                start = json.loads(self.log[-1]) if self.log else reader.initialOffset()
                end = reader.latestOffset(start, limit)
                if self._is_old(end):
                    return
                self.log.append(json.dumps(end))
            self._batch(reader, fails=fails and number == batches - 1)

    def _is_old(self, end: Offsets) -> bool:
        return bool(self.log) and json.dumps(end) == self.log[-1]

    def _batch(self, reader: Any, *, fails: bool) -> None:
        start = json.loads(self.log[-2]) if len(self.log) > 1 else reader.initialOffset()
        read = [
            place
            for task in reader.partitions(start, json.loads(self.log[-1]))
            for batch in reader.read(task)
            for place in zip(
                batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True
            )
        ]
        if not fails:
            self.seen.update(read)
            self.done = len(self.log)


@examples(12, suppress_health_check=list(HealthCheck))
@given(
    runs=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.booleans()), max_size=6),
    old_last=st.booleans(),
    most=st.sampled_from([None, "3"]),
)
def test_each_record_once(
    cluster: FakeCluster, runs: list[tuple[bool, int, bool]], old_last: bool, most: str | None
) -> None:
    topic = new_topic(cluster, partitions=2)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "keyRanges": "2",
        "maxOffsetsPerTrigger": "16",
        **({} if most is None else {"maxRecordsPerTask": most}),
    }
    query = Query(options)
    records = [Record(b"k%d" % (i % 5), b"v") for i in range(12)]
    produced = 0
    for old, batches, fails in [*runs, (old_last, 99, False)]:
        cluster.produce(topic, records, partition=0)
        cluster.produce(topic, records, partition=1)
        produced += len(records)
        query.run(old=old, batches=batches, fails=fails)
    assert query.seen == Counter((p, i) for p in (0, 1) for i in range(produced))


def test_ranges_stand_apart_in_what_moves(cluster: FakeCluster) -> None:
    """Else the law above says nothing of them."""
    topic = new_topic(cluster)
    cluster.produce(topic, [Record(b"k%d" % (i % 5 if i < 40 else 0), b"v") for i in range(60)])
    query = Query(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "keyRanges": "2",
            "maxRecordsPerTask": "7",
        }
    )
    query.run(old=True, batches=3, fails=True)
    assert not all(reached.is_level for reached in decode(query.log[-1]).progress.values())
    query.run(old=False, batches=2, fails=False)
    query.run(old=True, batches=99, fails=False)
    assert query.seen == Counter((0, i) for i in range(60))


@pytest.mark.parametrize(
    "runs",
    [
        [(True, 1, True), (True, 2, False), (True, 2, True), (True, 2, False)],
        [(True, 2, True), (False, 2, True), (True, 2, False)],
        [(False, 1, False), (True, 1, False), (True, 1, True), (False, 1, False)],
    ],
    ids=["old", "to and fro amid batches", "to and fro"],
)
def test_each_record_once_in_real_time(
    cluster: FakeCluster, runs: list[tuple[bool, int, bool]]
) -> None:
    topic = new_topic(cluster, partitions=2)
    query = Query(
        {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "keyRanges": "2",
            "realTime": "200ms",
            "realTime.topic": ENDS,
        }
    )
    produced = 0
    for old, batches, fails in runs:
        for partition in (0, 1):
            cluster.produce(
                topic, [Record(b"k%d" % n, b"v") for n in range(9)], partition=partition
            )
        produced += 9
        query.run(old=old, batches=batches, fails=fails)
    assert decode(query.log[-1]).open is not None
    for _ in range(50):  # a batch ends when its time is over, whatever has come
        if query.seen.total() < 2 * produced:
            query.run(old=True, batches=1, fails=False)
    assert query.seen == Counter((p, i) for p in (0, 1) for i in range(produced))


def test_a_held_query_in_real_time_is_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    folder = str(tmp_path / "of-a-load")
    options = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "realTime": "5s"}
    with (
        hold(folder),
        pytest.raises(OptionsError, match=r"realTime: .* trigger\(availableNow=True\)"),
    ):
        PlainReader(new_reader(options), folder).latestOffset()


def test_a_new_query_starts_where_it_was_first_told_to(cluster: FakeCluster) -> None:
    """``latest`` moves on while batch 0 is planned."""
    topic = new_topic(cluster)
    cluster.produce(topic, [Record(b"k", b"v")] * 5)
    reader = PlainReader(
        new_reader({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic})
    )
    end = reader.latestOffset()
    cluster.produce(topic, [Record(b"k", b"v")] * 5)
    start = reader.initialOffset()
    assert start["@kshare"]["start"] == {topic: {"0": 5}}
    assert reader.partitions(start, end) == []
    after = reader.latestOffset()
    assert after == {topic: {"0": 10}}
    reader.commit(end)
    assert len(reader.partitions(end, after)) == 1
    reader.stop()


def test_a_held_source_stops_at_the_ends_of_its_start_and_then_goes_on(
    cluster: FakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, folder = new_topic(cluster), str(tmp_path / "of-a-load")
    cluster.produce(topic, [Record(b"k", b"v")] * 5)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "3",
    }
    reader, ends, start = PlainReader(new_reader(options), folder), [], None
    with hold(folder):
        for _ in range(4):
            end = reader.latestOffset()
            ends.append(end[topic]["0"])
            if start != end:
                if start is not None:
                    reader.commit(start)
                start = reader.initialOffset() if start is None else start
                assert reader.partitions(start, end)
            start = end
            cluster.produce(topic, [Record(b"k", b"v")])
    assert ends == [3, 5, 5, 5]
    assert reader.latestOffset()[topic] == {"0": 8}
    reader.stop()
    assert caplog.messages == []  # no word about limits: they hold


def test_a_restarted_source_is_held_amid_its_batch(cluster: FakeCluster, tmp_path: Path) -> None:
    topic, folder = new_topic(cluster), str(tmp_path / "of-a-load")
    cluster.produce(topic, [Record(b"k", b"v")] * 5)
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    reader = PlainReader(new_reader(servers), folder)
    before, last = {topic: {"0": 1}}, {topic: {"0": 3}}
    with hold(folder):
        assert reader.partitions(last, last) == []
        cluster.produce(topic, [Record(b"k", b"v")] * 5)
        assert len(reader.partitions(before, last)) == 1
        assert reader.latestOffset() == {topic: {"0": 5}}
    reader.stop()


def test_the_wrapper_is_refused_before_anything_is_read(cluster: FakeCluster) -> None:
    topic = new_topic(cluster)
    reader = PlainReader(
        new_reader({"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic})
    )
    reader.latestOffset()
    with pytest.raises(KshareError, match=WRAPPER):
        reader.partitions({topic: {"0": 3}}, {topic: {"0": 3}})
    reader.stop()


def test_limits_are_said_once_and_not_among_the_warnings(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A processing-time query starts in the same way, and nothing is wrong with it."""
    caplog.set_level(logging.INFO, "kshare")
    limits = {
        "maxOffsetsPerTrigger": "5",
        "targetTaskDuration": "3s",
        "keyRanges": "2",
    }
    at = {"t": {"0": 3}}
    for options in ({}, limits):
        named = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
        reader = PlainReader(new_reader({**BASE, **named}))
        for _ in range(2):
            assert reader.partitions(at, at) == []
        reader.stop()
    (said,) = [each for each in caplog.records if "Trigger.AvailableNow" in each.getMessage()]
    assert said.levelno == logging.INFO
    assert "maxOffsetsPerTrigger, targetTaskDuration" in said.getMessage()


def test_a_start_beside_gaps_is_said_and_not_among_the_warnings(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kshare")
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    group = {"startingOffsets": "group", "kafka.group.id": "g", **servers}
    reader = PlainReader(new_reader({**BASE, **group}))
    assert reader.partitions({"t": {"0": 3}}, {"t": {"0": 3}}) == []
    reader.stop()
    (said,) = [each for each in caplog.records if "Trigger.AvailableNow" in each.getMessage()]
    assert said.levelno == logging.INFO
    assert "the first start of a query only notes them" in said.getMessage()


def test_wrong_options_are_told_by_the_first_call() -> None:
    refused = new_reader({**BASE, "maxOffsetsPerTrigger": "few"})
    at = {"t": {"0": 3}}
    calls: list[Callable[[PlainReader], object]] = [
        lambda reader: reader.latestOffset(),
        lambda reader: reader.partitions(at, at),
    ]
    for call in calls:
        with pytest.raises(OptionsError, match="maxOffsetsPerTrigger"):
            call(PlainReader(refused))
    PlainReader(refused).stop()


def test_a_start_that_is_none_fails_a_new_query_and_no_restart_amid_batch_0(
    cluster: FakeCluster,
) -> None:
    topic = new_topic(cluster, 2)
    cluster.produce(topic, [Record(b"k", b"v")], partition=0)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: {"0": 0}}),
    }
    zero = {topic: {"0": 1}, "@kshare": {"v": 1, "start": {topic: {"0": 0}}}}
    reader = PlainReader(new_reader(options))
    assert reader.partitions(zero, zero) == []
    assert len(reader.partitions(reader.initialOffset(), zero)) == 1
    assert reader.latestOffset()[topic] == {"0": 1, "1": 0}
    reader.stop()

    new = PlainReader(new_reader(options))
    with pytest.raises(OptionsError, match=f"startingOffsets: lacks {topic}-1"):
        new.latestOffset()
    new.stop()
