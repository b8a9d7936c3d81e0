"""What is said of a query that Spark ends after one batch; Spark's objects are played here.

The real ones are those of ``integration/test_spark_versions.py``.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from pyspark.sql.types import StructType

from kshare.core.checkpoint import BatchOffsets, decode, encode
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import AuthorizationError
from kshare.kafka.cluster import Cluster
from kshare.kafka.parked_keys import ParkedKeys
from kshare.testing import FakeCluster, Record
from spark_plugin.listener import KshareListener
from spark_plugin.one_batch import ONE_BATCH, OneBatchWatch
from spark_plugin.source import KshareDataSource
from tests.spark_plugin.test_listener import event

QUERY = "7b2e3ec0-0000-4000-8000-000000000001"
NOW = "2026-11-28T12:00:00.000Z"
WITH_HANDLERS = KshareDataSource.working(b"", StructType())


def at_timestamps(
    _: Cluster, asked: dict[TopicPartition, int], _on_fault: object
) -> dict[TopicPartition, int | None]:
    """All records are older than any time but 0: the mock's brokers look none up."""
    return {tp: 0 if time_ms == 0 else None for tp, time_ms in asked.items()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with (
        FakeCluster(topics={"orders": 2, "payments": 1}) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(Cluster, "at_timestamps", at_timestamps)
        for topic, partition, records in (("orders", 0, 30), ("orders", 1, 12), ("payments", 0, 5)):
            running.produce(topic, [Record(b"k", b"v")] * records, partition=partition)
        yield running


def end_of(offsets: dict[str, int]) -> BatchOffsets:
    """The end of a batch, by names such as ``orders-0``."""
    named = {name.rpartition("-"): offset for name, offset in offsets.items()}
    return BatchOffsets(
        {TopicPartition(t, int(p)): Progress.at(offset) for (t, _, p), offset in named.items()}
    )


def leaf(name: str, options: dict[str, str], kind: str = "StreamingRelationV2") -> Any:
    return SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: kind),
        sourceName=lambda: name,
        extraOptions=lambda: SimpleNamespace(asCaseSensitiveMap=lambda: options),
    )


def session(trigger: str, leaves: Sequence[Any]) -> Any:
    """A session with one query."""
    plan = SimpleNamespace(
        collectLeaves=lambda: SimpleNamespace(size=lambda: len(leaves), apply=leaves.__getitem__)
    )
    execution = SimpleNamespace(
        trigger=lambda: SimpleNamespace(toString=lambda: trigger), analyzedPlan=lambda: plan
    )
    query = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    return SimpleNamespace(streams=SimpleNamespace(get={QUERY: query}.get))


def source(cluster: FakeCluster, topics: str = "orders,payments") -> Any:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topics}
    return leaf("kshare", options)


def run(watch: OneBatchWatch, *ends: BatchOffsets | None, failed: bool = False) -> None:
    watch.started(QUERY, "run")
    if ends:
        watch.ended_batch("run", 3, NOW, ends)
    watch.ended("daily", "run", failed=failed)


PART = end_of({"orders-0": 10, "orders-1": 2, "payments-0": 5})
ALL = end_of({"orders-0": 30, "orders-1": 12, "payments-0": 5})


@pytest.mark.parametrize("trigger", ["AvailableNowTrigger", "OneTimeTrigger"])
def test_what_is_left_is_said_by_topic(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    run(OneBatchWatch(lambda: session(trigger, [source(cluster)])), PART)
    (said,) = (each for each in caplog.records if each.name == "kshare")
    assert said.levelno == logging.WARNING
    assert "daily ended after one batch with 30 records unread: orders 30. " in said.getMessage()
    assert "spark_plugin.available_now(writer)" in said.getMessage()


@pytest.mark.parametrize("kind", [KshareDataSource, WITH_HANDLERS], ids=["plain", "handlers"])
@pytest.mark.parametrize("trigger", ["AvailableNowTrigger", "ProcessingTimeTrigger(0)"])
def test_a_trigger_that_reads_what_is_there_is_warned_of_beside_real_time(
    caplog: pytest.LogCaptureFixture, trigger: str, kind: type[KshareDataSource]
) -> None:
    """Of a source with handlers, too."""
    watch = OneBatchWatch(lambda: session(trigger, [leaf(kind.name(), {"REALTIME": "5s"})]))
    watch.started(QUERY, "run")
    assert ("Leave out realTime, or the trigger" in caplog.text) == (trigger in ONE_BATCH)


def test_without_the_list_of_parked_keys_the_rest_is_said(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: ParkedKeys) -> None:
        raise AuthorizationError("not authorized to read them")

    monkeypatch.setattr(ParkedKeys, "read", refused)
    caplog.set_level(logging.INFO)
    run(OneBatchWatch(lambda: session("OneTimeTrigger", [source(cluster)])), PART)
    assert "what is unread: parked keys are not known: not authorized to read them" in caplog.text
    assert "30 records unread: orders 30. " in caplog.text


def test_each_source_is_asked_for_its_own(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    leaves = [
        leaf("rate", {}),
        source(cluster, "payments"),
        leaf("kshare", {}, "LogicalRelation"),
        source(cluster, "orders"),
    ]
    watch = OneBatchWatch(lambda: session("OneTimeTrigger", leaves))
    run(watch, None, end_of({"payments-0": 1}), end_of({"orders-0": 29, "orders-1": 12}))
    assert "5 records unread: orders 1, payments 4." in caplog.text


@pytest.mark.parametrize(
    ("trigger", "ends", "failed"),
    [
        ("ProcessingTimeTrigger(600000)", [PART], False),
        ("ProcessingTimeTrigger(0)", [PART], False),
        ("AvailableNowTrigger", [ALL], False),
        ("AvailableNowTrigger", [], False),
        ("AvailableNowTrigger", [PART], True),
    ],
    ids=["processing time", "at once", "all was read", "no batch", "failed"],
)
def test_nothing_is_said(
    cluster: FakeCluster,
    caplog: pytest.LogCaptureFixture,
    trigger: str,
    ends: list[BatchOffsets],
    failed: bool,
) -> None:
    run(OneBatchWatch(lambda: session(trigger, [source(cluster)])), *ends, failed=failed)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "found",
    [
        None,
        SimpleNamespace(streams=SimpleNamespace(get=lambda _: None)),
        SimpleNamespace(streams=SimpleNamespace(get=lambda _: SimpleNamespace())),
        session("AvailableNowTrigger", [leaf("rate", {})]),
    ],
    ids=["no session", "of another session", "Spark Connect", "no source of kshare"],
)
def test_queries_that_cannot_be_seen(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    run(OneBatchWatch(lambda: found), PART)
    assert caplog.records == []


def test_the_listener_follows_queries_where_spark_ends_them(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = session("AvailableNowTrigger", [source(cluster)])
    monkeypatch.setattr("spark_plugin.listener.TELLS_START", False)
    monkeypatch.setattr("spark_plugin.listener.OneBatchWatch", lambda: OneBatchWatch(lambda: found))
    play(KshareListener(), event((encode(PART), None), query=QUERY, name="daily"))
    assert "daily ended after one batch with 30 records unread: orders 30." in caplog.text
    caplog.clear()
    found.streams.get(QUERY)._jsq.streamingQuery().analyzedPlan = None
    play(KshareListener(), event((encode(PART), None), query=QUERY, name="daily"))
    assert "unread" not in caplog.text


def test_a_cluster_that_cannot_be_asked_is_named_and_nothing_raises(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = leaf("kshare", {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    found = session("AvailableNowTrigger", [nowhere])
    monkeypatch.setattr("spark_plugin.listener.TELLS_START", False)
    monkeypatch.setattr("spark_plugin.listener.OneBatchWatch", lambda: OneBatchWatch(lambda: found))
    play(KshareListener(), event((encode(PART), None), query=QUERY, name="daily"))
    assert "daily ended after one batch, and it is not known what it left: " in caplog.text
    assert "127.0.0.1:1" in caplog.text


def play(listener: KshareListener, progress: QueryProgressEvent) -> None:
    """A query that starts, runs one batch and ends."""
    run_id = str(progress.progress.runId)
    started = {"id": QUERY, "runId": run_id, "name": "daily", "timestamp": NOW, "jobTags": []}
    ended = {"id": QUERY, "runId": run_id, "exception": None, "errorClassOnException": None}
    listener.onQueryStarted(QueryStartedEvent.fromJson(started))
    listener.onQueryProgress(progress)
    listener.onQueryTerminated(QueryTerminatedEvent.fromJson(ended))


def test_the_ends_of_events_are_those_of_the_checkpoint() -> None:
    """Else what is played here says nothing of real events."""
    assert decode(json.dumps(encode(PART))) == PART
