"""A compacted topic as a table: several partitions, tombstones, topics that are made again."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError, FetchTimeoutError, KafkaError, UnknownTopicError
from kshare.kafka import compacted_topic
from kshare.kafka.cluster import Cluster
from kshare.kafka.compacted_topic import Changes, CompactedTopic, Row
from kshare.kafka.topics import TopicSpec
from kshare.testing import FakeCluster
from tests.support.effort import examples
from tests.support.parked_keys import kafka

PARTITIONS = 3
SPEC = TopicSpec("table", PARTITIONS)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"table": PARTITIONS}) as running:
        yield running


def table(cluster: FakeCluster, **more: Any) -> CompactedTopic:
    return CompactedTopic(kafka(cluster), SPEC, **more)


def by_partition(changes: Changes) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Keys and values of each partition, in the order of its log; offsets must ascend."""
    rows: dict[int, list[Row]] = {}
    for row in changes.rows:
        rows.setdefault(row.partition, []).append(row)
    for of_one in rows.values():
        assert [row.offset for row in of_one] == sorted({row.offset for row in of_one})
    return {number: [row[2:] for row in of_one] for number, of_one in rows.items()}


writes = st.lists(
    st.tuples(
        st.integers(0, PARTITIONS - 1), st.sampled_from([b"a", b"b"]), st.none() | st.just(b"v")
    ),
    max_size=5,
)


@examples(15)
@given(st.lists(writes, min_size=1, max_size=4), st.sets(st.integers(0, PARTITIONS - 1)))
def test_each_read_tells_what_was_written_since_the_last_one(
    steps: list[list[tuple[int, bytes, bytes | None]]], chosen: set[int]
) -> None:
    with (
        FakeCluster(topics={"table": PARTITIONS}) as cluster,
        closing(table(cluster)) as writer,
        closing(table(cluster)) as reader,
        closing(table(cluster, choose=lambda count: sorted(chosen))) as other,
    ):
        for step in steps:
            expected: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
            for partition, key, value in step:
                writer.write([(key, value)], partition)
                expected.setdefault(partition, []).append((key, value))
            assert by_partition(reader.read()) == expected
            assert reader.read() == Changes(())
            if chosen:
                assert by_partition(other.read()) == {
                    number: rows for number, rows in expected.items() if number in chosen
                }


def test_the_key_chooses_the_partition_if_none_is_named(cluster: FakeCluster) -> None:
    keys = [b"%d" % number for number in range(20)]
    with closing(table(cluster)) as topic:
        topic.write([(key, b"1") for key in keys])
        topic.write([(key, None) for key in keys])
        rows = topic.read().rows
    assert len({row.partition for row in rows}) > 1
    where: dict[bytes | None, set[int]] = {}
    for row in rows:
        where.setdefault(row.key, set()).add(row.partition)
    assert {key: len(partitions) for key, partitions in where.items()} == dict.fromkeys(keys, 1)


def test_a_topic_that_does_not_exist_is_empty(cluster: FakeCluster) -> None:
    with closing(CompactedTopic(kafka(cluster), TopicSpec("none", 1))) as topic:
        assert topic.read() == Changes((), restarted=True)
        assert not topic.exists
        with pytest.raises(UnknownTopicError):
            topic.partitions()
        cluster.create_topic("none")
        topic.write([(b"k", b"v")])
        assert [row[2:] for row in topic.read().rows] == [(b"k", b"v")]
        assert topic.exists


def test_the_partitions_are_those_that_are_read(cluster: FakeCluster) -> None:
    with closing(table(cluster, choose=lambda count: (count - 1,))) as topic:
        assert topic.partitions() == (TopicPartition("table", 2),)


def test_after_an_error_nothing_is_missing(cluster: FakeCluster) -> None:
    with closing(table(cluster)) as writer, closing(table(cluster)) as reader:
        writer.write([(b"a", b"1")], 0)
        writer.write([(b"b", b"2")], 1)
        cluster.fail("Fetch", ["TOPIC_AUTHORIZATION_FAILED"])
        with pytest.raises(AuthorizationError, match="not authorized to read table"):
            reader.read()
        assert by_partition(reader.read()) == {0: [(b"a", b"1")], 1: [(b"b", b"2")]}


def test_a_broker_that_has_not_heard_of_a_topic_changes_nothing_of_what_is_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: Cluster, partitions: Any) -> dict[TopicPartition, int]:
        raise UnknownTopicError("not heard of it yet")

    with closing(table(cluster, choose=lambda _: (0,))) as topic:
        topic.write([(b"a", b"1"), (b"b", b"2")], 2)
        topic.seek(2, 1)
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "latest", unknown)
            with pytest.raises(KafkaError, match="not heard"):
                topic.read()
        assert topic.read() == Changes((Row(2, 1, b"b", b"2"),))


def test_a_partition_that_was_sought_and_is_gone_counts_as_made_again(
    cluster: FakeCluster,
) -> None:
    with closing(table(cluster)) as topic:
        topic.seek(PARTITIONS)
        assert topic.read() == Changes((), restarted=True)
        topic.write([(b"a", b"1")], 0)
        topic.seek(None)
        assert topic.read() == Changes((Row(0, 0, b"a", b"1"),))


def test_a_read_that_takes_too_long_names_what_is_left(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = Cluster.latest

    def beyond(self: Cluster, partitions: Any) -> dict[TopicPartition, int]:
        return {tp: end + (tp.partition == 1) for tp, end in latest(self, partitions).items()}

    # As of a transaction that is open: the end of what is committed lies before the end.
    monkeypatch.setattr(Cluster, "latest", beyond)
    with closing(table(cluster, read_committed=True)) as topic:
        topic.write([(b"a", b"1")], 1)
        topic.shorten_timeout(0.3)
        with pytest.raises(
            FetchTimeoutError, match=r"table, partition 1, from offset 1 to 2 within 0\.3 s"
        ) as raised:
            topic.read()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("table", 1, 1)
    least = replace(kafka(cluster), api_timeout_ms=100)
    spec = TopicSpec("table", PARTITIONS)
    with (
        closing(CompactedTopic(least, spec, read_committed=True, seconds_min=0.4)) as topic,
        pytest.raises(FetchTimeoutError, match=r"within 0\.4 s: is a transaction open there"),
    ):
        topic.read()


class Ends:
    """A consumer whose broker names its end: at first a former one, if that is given."""

    def __init__(self, consumer: Consumer, former: int | None, beyond: int) -> None:
        self._consumer = consumer
        self._former = former
        self._beyond = beyond

    def poll(self, seconds: float) -> Any:
        if self._former is not None:
            offset, self._former = self._former, None
            return self._end(0, offset)
        message = self._consumer.poll(seconds)
        if message is None or message.error() is None:
            return message
        return self._end(message.partition() or 0, (message.offset() or 0) + self._beyond)

    @staticmethod
    def _end(partition: int, offset: int) -> Any:
        return SimpleNamespace(
            topic=lambda: SPEC.name,
            partition=lambda: partition,
            offset=lambda: offset,
            error=lambda: RdKafkaError(RdKafkaError._PARTITION_EOF),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def let_end(
    monkeypatch: pytest.MonkeyPatch, *, former: int | None = None, beyond: int = 0
) -> list[dict[str, Any]]:
    """Let ends be named so; returns the configurations of the consumers that are made."""
    made: list[dict[str, Any]] = []

    def consumer(config: dict[str, Any], **more: Any) -> Ends:
        made.append(config)
        return Ends(Consumer(config, **more), former, beyond)

    monkeypatch.setattr(compacted_topic, "Consumer", consumer)
    return made


def test_compaction_leaves_gaps(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the end: there the broker answers that no more comes."""
    latest = Cluster.latest

    def beyond(self: Cluster, partitions: Any) -> dict[TopicPartition, int]:
        return {tp: end + 1 for tp, end in latest(self, partitions).items()}

    let_end(monkeypatch, beyond=1)
    monkeypatch.setattr(Cluster, "latest", beyond)
    with closing(table(cluster, choose=lambda _: (0,))) as topic:
        topic.write([(b"a", b"1")], 0)
        assert topic.read() == Changes((Row(0, 0, b"a", b"1"),))
        assert topic.read() == Changes(())


@pytest.mark.parametrize("read_committed", [False, True])
def test_what_a_broker_that_is_behind_does_not_have_yet_is_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, read_committed: bool
) -> None:
    let_end(monkeypatch, former=0)
    with closing(table(cluster, read_committed=read_committed)) as topic:
        topic.write([(b"a", b"1"), (b"b", b"2")], 0)
        assert [row.key for row in topic.read().rows] == [b"a", b"b"]


def test_no_follower_is_read(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    made = let_end(monkeypatch)
    near = replace(kafka(cluster), client_rack="near")
    with closing(CompactedTopic(near, SPEC)) as topic:
        topic.write([(b"a", b"1")], 0)
        assert len(topic.read().rows) == 1
    assert [config.get("client.rack") for config in made] == [None]


def test_a_log_that_begins_after_what_is_to_be_read_is_cut(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(table(cluster)) as topic:
        topic.write([(b"1", b""), (b"2", b""), (b"3", b"")], 0)
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "earliest", lambda self, tps: dict.fromkeys(tps, 2))
            topic.seek(0, 1)
            assert topic.read() == Changes((Row(0, 2, b"3", b""),), is_cut=True)
            assert not topic.read().is_cut
            topic.seek(0, 2)
            assert not topic.read().is_cut


def test_a_topic_that_was_made_again_is_read_from_its_start(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(table(cluster, choose=lambda count: (0,))) as topic:
        topic.write([(b"1", b""), (b"2", b""), (b"3", b"")], 0)
        assert len(topic.read().rows) == 3
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "latest", lambda self, tps: dict.fromkeys(tps, 1))
            changes = topic.read()
            assert changes.restarted
            assert [row.key for row in changes.rows] == [b"1"]
        changes = topic.read()
        assert not changes.restarted
        assert [row.key for row in changes.rows] == [b"2", b"3"]


def test_an_end_before_what_was_read_is_asked_for_once_more_by_another_client(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer may be that of a former leader, which is cut off from the others."""
    latest, close = Cluster.latest, Cluster.close
    calls: list[Any] = []

    def answer(self: Cluster, partitions: Any) -> dict[TopicPartition, int]:
        calls.append([tp.partition for tp in partitions])
        is_first = len(calls) == 1
        return {
            tp: 1 if is_first and tp.partition == 1 else end
            for tp, end in latest(self, partitions).items()
        }

    def closed(self: Cluster) -> None:
        calls.append("close")
        close(self)

    with closing(table(cluster)) as topic:
        for partition in range(PARTITIONS):
            topic.write([(b"1", b""), (b"2", b"")], partition)
        assert len(topic.read().rows) == 2 * PARTITIONS
        topic.write([(b"3", b"")], 1)
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "latest", answer)
            patch.setattr(Cluster, "close", closed)
            assert topic.read() == Changes((Row(1, 2, b"3", b""),))
        assert calls == [[0, 1, 2], "close", [1]]


class Placing:
    """A cluster one of whose brokers is gone for good."""

    asked: ClassVar[list[NewTopic]] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def create_topics(self, new: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        self.asked.extend(new)
        answer: Future[None] = Future()
        if new[0].replica_assignment:
            code = RdKafkaError.INVALID_REPLICA_ASSIGNMENT
            answer.set_exception(KafkaException(RdKafkaError(code)))
        else:
            answer.set_result(None)
        return {new[0].topic: answer}


def test_replicas_on_a_broker_that_is_gone_are_placed_by_the_others(cluster: FakeCluster) -> None:
    """They are copied from another topic, which still names it."""
    spec = TopicSpec("table", PARTITIONS, replicas=((1, 9), (9, 2), (1, 2)))
    with closing(CompactedTopic(kafka(cluster), spec, admin=Placing)) as topic:  # type: ignore[arg-type]
        topic.create()
    first, second = Placing.asked
    assert first.replica_assignment == [[1, 9], [9, 2], [1, 2]]
    assert (second.num_partitions, second.replication_factor) == (PARTITIONS, 2)
    assert second.config == first.config == {"cleanup.policy": "compact"}


class Strict(Placing):
    """A cluster that knows only the settings of its own."""

    asked: ClassVar[list[NewTopic]] = []
    code = RdKafkaError.INVALID_CONFIG

    def create_topics(self, new: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        answers = super().create_topics(new)
        if "max.compaction.lag.ms" in (new[0].config or {}):
            answers[new[0].topic] = Future()
            answers[new[0].topic].set_exception(KafkaException(RdKafkaError(self.code)))
        return answers


@pytest.mark.parametrize("code", [RdKafkaError.INVALID_CONFIG, RdKafkaError.POLICY_VIOLATION])
def test_settings_that_are_only_wishes_are_left_out_if_they_are_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(Strict, "asked", [])
    monkeypatch.setattr(Strict, "code", code)
    wishes = {"max.compaction.lag.ms": "3600000"}
    spec = TopicSpec("table", PARTITIONS, {"segment.bytes": "1000000"}, wishes=wishes)
    with closing(CompactedTopic(kafka(cluster), spec, admin=Strict)) as topic:  # type: ignore[arg-type]
        topic.create()
    plain = {"cleanup.policy": "compact", "segment.bytes": "1000000"}
    assert [new.config for new in Strict.asked] == [plain | wishes, plain]


class Old(Placing):
    """A cluster of brokers before Kafka 2.4: they choose no replication factor (KIP-464)."""

    asked: ClassVar[list[NewTopic]] = []
    brokers = 5

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(brokers=dict.fromkeys(range(self.brokers)))

    def create_topics(self, new: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        answers = super().create_topics(new)
        if new[0].replication_factor < 1:
            code = RdKafkaError._UNSUPPORTED_FEATURE
            answers[new[0].topic] = Future()
            answers[new[0].topic].set_exception(KafkaException(RdKafkaError(code)))
        return answers


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_old_brokers_are_told_the_replication_factor(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, brokers: int, factor: int
) -> None:
    monkeypatch.setattr(Old, "asked", [])
    monkeypatch.setattr(Old, "brokers", brokers)
    spec = TopicSpec("table", PARTITIONS)
    with closing(CompactedTopic(kafka(cluster), spec, admin=Old)) as topic:  # type: ignore[arg-type]
        topic.create()
    assert [new.replication_factor for new in Old.asked] == [-1, factor]
    assert Old.asked[1].num_partitions == PARTITIONS


def test_a_topic_is_there_when_it_was_made(cluster: FakeCluster) -> None:
    with closing(CompactedTopic(kafka(cluster), TopicSpec("made", 4))) as topic:
        topic.create()
        assert len(topic.partitions()) == 4


def test_what_an_idle_consumer_reports_is_taken_by_each_read(cluster: FakeCluster) -> None:
    """Of brokers that are away it says much, and for as long as they are, no read polls it."""
    with closing(table(cluster)) as topic:
        topic.write([(b"a", b"v")], 0)
        topic.read()
        topic.shorten_timeout(0.1)
        cluster.stop_broker(1)
        time.sleep(1)
        with pytest.raises(KafkaError):
            topic.read()
        assert topic._consumer.last_fault is not None
