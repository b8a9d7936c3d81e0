"""Rows are written by one client, however often and from however many threads."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from kshare import process_local
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, KafkaError, RecordRefusedError
from kshare.group.log.retry_log import Reason, RetryLog
from kshare.kafka.cluster import Cluster
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.parked_keys import ParkedKeys
from kshare.kafka.row_writer import RowWriter
from kshare.kafka.topics import PARKED_TOPIC, TopicSpec
from kshare.processing import Processor
from kshare.testing import FakeCluster
from tests.processing.engines import PARTITION, records_of
from tests.support.clock import WAIT_S, until
from tests.support.parked_keys import kafka

SPEC = TopicSpec("table", 1)


class Made:
    """Makes producers, and counts them."""

    def __init__(self) -> None:
        self.configs = list[dict[str, Any]]()

    def __call__(self, config: dict[str, Any], **more: Any) -> Producer:
        self.configs.append(config)
        return Producer(config, **more)

    @property
    def count(self) -> int:
        return len(self.configs)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"table": 1, PARKED_TOPIC: 1}) as running:
        yield running


def resources() -> tuple[int, int]:
    """Threads and descriptors of this process."""
    process = psutil.Process()
    return process.num_threads(), process.num_fds()


def are_flat(work: Callable[[int], None], times: int = 30) -> None:
    """Work takes no more threads and descriptors the more often it was done."""
    for at in range(3):
        work(at)
    before = resources()
    for at in range(3, times):
        work(at)
    after = resources()
    # A client that idles may begin or end a connection of its own; one for each write has four.
    assert after[0] <= before[0] + 3
    assert after[1] <= before[1] + 3


def test_a_table_has_one_writer_until_it_is_closed(cluster: FakeCluster) -> None:
    made = Made()
    with closing(CompactedTopic(kafka(cluster), SPEC, producer=made)) as topic:
        are_flat(lambda at: topic.write([(b"k", b"%d" % at)]))
        assert made.count == 1
        assert [row.value for row in topic.read().rows] == [b"%d" % at for at in range(30)]
        topic.close()
        topic.write([(b"k", None)])
        assert made.count == 2


def test_what_is_closed_has_no_threads(cluster: FakeCluster) -> None:
    """Not only once Python collects garbage."""
    gc.disable()
    try:
        threads = psutil.Process().num_threads()
        writer = RowWriter(kafka(cluster))
        writer.write("table", [(b"k", b"v")])
        assert psutil.Process().num_threads() > threads
        writer.close()
        until(lambda: psutil.Process().num_threads() <= threads)
    finally:
        gc.enable()


def test_a_processor_s_failures_have_one_writer(cluster: FakeCluster) -> None:
    """Attempts that are written behind, and marks of sequences beside them."""
    made = Made()
    table = CompactedTopic(kafka(cluster), SPEC, read_committed=True, producer=made)
    log = RetryLog(table, "g")
    records = records_of(Processor(print), [b"k%d" % at for at in range(30)])

    def fails(at: int) -> None:
        record = records[at]
        record.failures, record.since, record.due = 1, 1000.0, 1001.0
        log.remember(record)
        log.flush(WAIT_S)
        log.begin_sequence(record, Reason("builtins.ValueError", "no"))

    are_flat(fails)
    assert made.count == 1
    known = log.read()
    assert set(known.attempts) == {(PARTITION, at) for at in range(30)}
    assert set(known.sequences) == {(PARTITION, b"k%d" % at) for at in range(30)}
    log.close()
    assert table._writer._open().client is None


def test_parked_keys_have_one_writer(cluster: FakeCluster) -> None:
    with closing(ParkedKeys(kafka(cluster))) as keys:
        made = Made()
        keys._topic._writer = RowWriter(kafka(cluster), made)
        keys.read()

        def parks(at: int) -> None:
            keys.park("orders", [b"%d" % at])

        are_flat(parks, 10)
        keys.unpark("orders", [b"0", b"1"])
        assert made.count == 1
        assert set(keys.read()) == {("orders", b"%d" % at) for at in range(2, 10)}


def test_many_threads_write_by_one_client(cluster: FakeCluster) -> None:
    made = Made()
    with (
        closing(CompactedTopic(kafka(cluster), SPEC, producer=made)) as topic,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda at: topic.write([(b"%d" % at, b"v")] * 3), range(40)))
        assert made.count == 1
        keys = [row.key or b"" for row in topic.read().rows]
    assert sorted(keys) == sorted(b"%d" % at for at in range(40) for _ in range(3))


@pytest.mark.parametrize(
    ("code", "error", "clients"),
    [
        ("MSG_SIZE_TOO_LARGE", RecordRefusedError, 1),
        # A client goes on to refuse the topic for minutes, also once the right is granted.
        ("TOPIC_AUTHORIZATION_FAILED", AuthorizationError, 2),
    ],
)
def test_what_brokers_refuse_once_is_written_the_next_time(
    cluster: FakeCluster, code: str, error: type[KafkaError], clients: int
) -> None:
    made = Made()
    with closing(CompactedTopic(kafka(cluster), SPEC, producer=made)) as topic:
        cluster.fail("Produce", [code])
        with pytest.raises(error, match="write to table"):
            topic.write([(b"k", b"1")])
        topic.write([(b"k", b"2")])
        assert made.count == clients
        assert [row.value for row in topic.read().rows] == [b"2"]


def test_what_the_client_itself_refuses_is_an_error_of_ours(cluster: FakeCluster) -> None:
    def small(config: dict[str, Any], **more: Any) -> Producer:
        return Producer({**config, "message.max.bytes": 1000}, **more)

    with closing(CompactedTopic(kafka(cluster), SPEC, producer=small)) as topic:
        with pytest.raises(RecordRefusedError, match="write to table"):
            topic.write([(b"k", b"v" * 2000)])
        topic.write([(b"k", b"v")])


def test_after_silence_the_next_write_has_another_client(cluster: FakeCluster) -> None:
    """And what the first one had not sent does not come behind it."""
    made = Made()
    with closing(CompactedTopic(kafka(cluster), SPEC, producer=made)) as topic:
        topic.write([(b"k", b"0")])
        cluster.stop_broker(1)
        try:
            with pytest.raises(KafkaError, match="cannot write to table"):
                topic.write([(b"k", b"1")], seconds=0.2)
        finally:
            cluster.start_broker(1)
        topic.write([(b"k", b"2")])
        assert made.count == 2
        topic.partitions()
        values = [row.value for row in topic.read().rows]
    assert values == [b"0", b"2"]


def test_a_topic_that_was_deleted_is_not_made_by_who_writes_to_it(cluster: FakeCluster) -> None:
    """Brokers would make it with their defaults, so that old rows are deleted."""
    at_once = replace(kafka(cluster), api_timeout_ms=500)
    with closing(RowWriter(at_once)) as writer, pytest.raises(KafkaError, match="write to gone"):
        writer.write("gone", [(b"k", b"v")])
    with closing(Cluster(kafka(cluster))) as seen:
        assert sorted(seen.topics()) == sorted(["table", PARKED_TOPIC])


def test_a_full_queue_is_waited_for(cluster: FakeCluster) -> None:
    def small(config: dict[str, Any], **more: Any) -> Producer:
        return Producer({**config, "queue.buffering.max.messages": 3}, **more)

    with closing(CompactedTopic(kafka(cluster), SPEC, producer=small)) as topic:
        topic.write([(b"%d" % at, b"v") for at in range(50)])
        assert len(topic.read().rows) == 50
        cluster.stop_broker(1)
        least = replace(kafka(cluster), api_timeout_ms=200)
        writer = RowWriter(least, small)
        with pytest.raises(KafkaError, match="cannot write to table"):
            writer.write("table", [(b"%d" % at, b"v") for at in range(50)], 0, 0.1)


def test_a_fork_has_a_client_of_its_own(cluster: FakeCluster, monkeypatch: Any) -> None:
    """The parent's has no threads there; to close it would wait for them."""
    made, place = Made(), TopicPartition("table", 0)
    writer = RowWriter(kafka(cluster), made)
    writer.write(place.topic, [(b"k", b"1")])
    parents = writer._open().client
    monkeypatch.setattr(os, "getpid", lambda: 1)
    writer.write(place.topic, [(b"k", b"2")])
    assert made.count == 2
    assert writer._open().client is not parents
    assert process_local._of_parents.pop().client is parents  # type: ignore[attr-defined]
    monkeypatch.undo()
    threads = threading.active_count()
    writer.close()
    assert threading.active_count() <= threads
