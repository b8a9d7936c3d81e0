"""Parked keys, in a topic of an embedded cluster."""

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.listing import ParkedCount
from kshare.errors import AuthorizationError, KafkaError
from kshare.kafka.cluster import Cluster
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.parked_keys import EVERY_SECONDS, PARKED_TOPIC, ParkedInfo, ParkWatch
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topic_table import json_bytes, texts_of
from kshare.kafka.topics import TopicSpec
from kshare.testing import FakeCluster, Record
from tests.support.clock import WAIT_S, Clock, until
from tests.support.effort import examples
from tests.support.parked_keys import NOON, SINCE, A, B, kafka, keys_of


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 1, PARKED_TOPIC: 1}) as running:
        yield running


@pytest.fixture
def empty() -> Iterator[FakeCluster]:
    """A cluster where nothing was ever parked."""
    with FakeCluster(topics={"t": 1}) as running:
        yield running


# -- the list -------------------------------------------------------------------------------------


def test_parked_and_unparked(cluster: FakeCluster) -> None:
    with closing(keys_of(cluster)) as keys:
        assert keys.parked() == {}
        keys.park("t", [B, A, A], why="bad JSON", by="me")
        keys.park("s", [A])
        told = ParkedInfo(SINCE, by="me", why="bad JSON")
        expected = {("s", A): ParkedInfo(SINCE), ("t", A): told, ("t", B): told}
        assert keys.parked() == expected
        assert list(keys.parked()) == sorted(expected)
        keys.unpark("t", [A, b"never parked"])
        del expected["t", A]
        assert keys.parked() == expected
    with closing(keys_of(cluster)) as others:
        assert others.parked() == expected


def test_parking_again_changes_nothing(cluster: FakeCluster) -> None:
    with closing(keys_of(cluster)) as keys:
        keys.park("t", [A], why="first")
        end = _end(cluster)
        keys.park("t", [A], why="second")
        keys.unpark("t", [B])
        assert keys.parked()["t", A].why == "first"
        assert _end(cluster) == end
        keys.unpark("t", [A])
        keys.park("t", [A], why="third")
        assert keys.parked()["t", A].why == "third"


def _end(cluster: FakeCluster) -> int:
    with closing(Cluster(kafka(cluster))) as asked:
        (end,) = asked.latest([(PARKED_TOPIC, 0)]).values()  # type: ignore[list-item]
    return end


def test_what_is_in_the_topic(cluster: FakeCluster) -> None:
    """Other versions of kshare must read it."""
    from confluent_kafka import Consumer, TopicPartition

    with closing(keys_of(cluster)) as keys:
        keys.park("t", [B], why="bad", by="me")
        keys.unpark("t", [B])
    servers = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "test"}
    consumer = Consumer(servers)
    consumer.assign([TopicPartition(PARKED_TOPIC, 0, 0)])
    parked, unparked = consumer.consume(2, WAIT_S)
    consumer.close()
    assert parked.key() == unparked.key() == b'{"key":"ff00","topic":"t"}'
    assert parked.value() == b'{"by":"me","when":"%s","why":"bad"}' % SINCE.encode()
    assert unparked.value() is None


@examples(15)
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from(["t", "u"]),
            st.lists(st.binary(max_size=3), max_size=3),
        ),
        max_size=8,
    )
)
def test_the_list_is_a_set(steps: list[tuple[bool, str, list[bytes]]]) -> None:
    parked: set[tuple[str, bytes]] = set()
    with (
        FakeCluster(topics={PARKED_TOPIC: 1}) as cluster,
        closing(keys_of(cluster)) as keys,
        closing(keys_of(cluster)) as others,
    ):
        for parks, topic, some in steps:
            places = {(topic, key) for key in some}
            if parks:
                keys.park(topic, some)
                parked |= places
            else:
                keys.unpark(topic, some)
                parked -= places
            assert set(others.parked()) == parked
        with closing(keys_of(cluster)) as fresh:
            assert set(fresh.parked()) == parked


def test_records_of_others_are_told_of_and_passed_over(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    place = json.dumps({"topic": "t", "key": "61"})
    told = json.dumps({"by": "b", "when": "w", "why": "y", "new": 1})
    records = [
        Record(None, told),
        Record("no JSON", told),
        Record("[]", told),
        Record('{"topic": "t"}', told),
        Record('{"topic": "t", "key": "6"}', told),
        Record('{"topic": 1, "key": "61"}', told),
        Record('{"topic": "t", "key": "62"}', "no JSON"),
        Record('{"topic": "t", "key": "63"}', '{"by": "b"}'),
        Record(place, told),
    ]
    cluster.produce(PARKED_TOPIC, records, partition=0)
    with closing(keys_of(cluster)) as keys:
        assert keys.parked() == {("t", A): ParkedInfo("w", "b", "y")}
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == len(records) - 1
    assert warned[1].startswith(
        f"{PARKED_TOPIC}, offset 1, is no record of a parked key, and is passed"
    )


# -- the topic ------------------------------------------------------------------------------------


class Admin:
    """A client that makes topics: the embedded cluster cannot be asked to."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.made: list[Any] = []
        self.error: int | None = None
        self.seconds = 0.0

    def __call__(self, _: object, *, logger: object) -> Any:
        return self

    def create_topics(
        self, topics: list[Any], *, operation_timeout: float
    ) -> dict[str, Future[None]]:
        (topic,) = topics
        self.made.append(topic)
        future: Future[None] = Future()
        if self.error in {None, RdKafkaError.TOPIC_ALREADY_EXISTS}:
            new = (topic.topic, topic.num_partitions)
            threading.Timer(self.seconds, self.cluster.create_topic, new).start()
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(RdKafkaError(self.error, "told so")))
        return {topic.topic: future}


@pytest.fixture
def admin(empty: FakeCluster) -> Admin:
    return Admin(empty)


def test_the_topic_is_made_on_first_use(empty: FakeCluster, admin: Admin) -> None:
    with closing(keys_of(empty, admin)) as keys:
        assert keys.parked() == {}
        keys.unpark("t", [A])
        keys.park("t", [])
        assert not admin.made
        keys.park("t", [A])
        keys.park("t", [B])
        (topic,) = admin.made
        assert set(keys.parked()) == {("t", A), ("t", B)}
    assert (topic.topic, topic.num_partitions) == (PARKED_TOPIC, 1)
    assert topic.config["cleanup.policy"] == "compact"
    assert topic.replication_factor == -1  # the broker's default


def test_somebody_else_makes_the_topic_at_the_same_time(empty: FakeCluster, admin: Admin) -> None:
    admin.error = RdKafkaError.TOPIC_ALREADY_EXISTS
    with closing(keys_of(empty, admin)) as keys:
        keys.park("t", [A])
        assert set(keys.parked()) == {("t", A)}


def test_brokers_hear_of_the_topic_after_it_was_made(empty: FakeCluster, admin: Admin) -> None:
    admin.seconds = 1.0
    with closing(CompactedTopic(kafka(empty), TopicSpec("table", 2), admin=admin)) as topic:
        topic.create()
        assert [tp.partition for tp in topic.partitions()] == [0, 1]


def test_the_topic_cannot_be_made(empty: FakeCluster, admin: Admin) -> None:
    admin.error = RdKafkaError.TOPIC_AUTHORIZATION_FAILED
    with (
        closing(keys_of(empty, admin)) as keys,
        pytest.raises(AuthorizationError, match=f"create topic {PARKED_TOPIC}: told so"),
    ):
        keys.park("t", [A])
    admin.error = RdKafkaError.POLICY_VIOLATION
    with closing(keys_of(empty, admin)) as keys, pytest.raises(KafkaError, match="told so"):
        keys.park("t", [A])


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (TopicConfig(compacted=True, retention_ms=None), False),
        (TopicConfig(compacted=False, retention_ms=1_000), True),
        (TopicConfig(compacted=True, retention_ms=1_000), True),
    ],
)
def test_a_topic_that_forgets_is_warned_of(
    cluster: FakeCluster,
    config: TopicConfig,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        Cluster, "topic_configs", lambda self, topics: dict.fromkeys(topics, config)
    )
    with closing(keys_of(cluster)) as keys:
        keys.park("t", [A])
    assert ("keys will not stay parked" in caplog.text) == warned


def test_a_write_that_is_refused(cluster: FakeCluster) -> None:
    with closing(keys_of(cluster)) as keys:
        keys.parked()
        cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"])
        with pytest.raises(AuthorizationError, match=f"not authorized to write to {PARKED_TOPIC}"):
            keys.park("t", [A])


# -- as a query sees it ---------------------------------------------------------------------------


def test_a_watch_sees_the_keys_of_its_topics(cluster: FakeCluster) -> None:
    with closing(keys_of(cluster)) as keys, closing(ParkWatch(kafka(cluster))) as watch:
        keys.park("t", [A, B])
        keys.park("u", [A])
        assert sorted(watch.current({"t"})) == [("t", A), ("t", B)]
        assert watch.current({"u", "v"}) == [("u", A)]
        assert watch.current(set()) == []


def test_a_watch_looks_every_two_seconds(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with (
        closing(keys_of(cluster)) as keys,
        closing(ParkWatch(kafka(cluster), clock=clock)) as watch,
    ):
        assert watch.current({"t"}) == []
        keys.park("t", [A])
        clock.now += EVERY_SECONDS - 0.01
        assert watch.current({"t"}) == []
        clock.now += 0.01
        with caplog.at_level(logging.INFO, "kshare.kafka.parked_keys"):
            assert watch.current({"t"}) == [("t", A)]
        assert "parked: key b'a' of topic t" in caplog.text
        assert watch.counts() == {"t": ParkedCount(1, NOON.timestamp())}
        keys.unpark("t", [A])
        assert watch.current({"t"}) == [("t", A)]
        clock.now += EVERY_SECONDS
        with caplog.at_level(logging.INFO, "kshare.kafka.parked_keys"):
            assert watch.current({"t"}) == []
        assert "unparked: key b'a' of topic t" in caplog.text


def test_nothing_is_parked_where_there_is_no_list(
    empty: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with closing(ParkWatch(kafka(empty), clock=clock)) as watch:
        assert watch.current({"t"}) == []
        assert not caplog.records
        empty.create_topic(PARKED_TOPIC)
        clock.now += EVERY_SECONDS
        with closing(keys_of(empty)) as keys:
            keys.park("t", [A])
        assert watch.current({"t"}) == [("t", A)]


def test_a_list_that_cannot_be_read_is_as_last_known(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with closing(keys_of(cluster)) as keys:
        keys.park("t", [A])
        with closing(ParkWatch(kafka(cluster), look_seconds=0.25, clock=clock)) as watch:
            assert watch.current({"t"}) == [("t", A)]
            cluster.stop_broker(1)
            for _ in range(3):
                clock.now += EVERY_SECONDS
                assert watch.current({"t"}) == [("t", A)]
            warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
            told = [text for r in warned if "cannot read which" in (text := r.getMessage())]
            (warning,) = told  # once, until it has been read again
            assert "going on with the 1 that were parked" in warning
            cluster.start_broker(1)
            keys.unpark("t", [A])
            _until_read(watch, clock)


def test_a_look_in_between_waits_less_than_the_first_one(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with closing(ParkWatch(kafka(cluster), look_seconds=0.25, clock=clock)) as watch:
        assert watch.current({"t"}) == []
        cluster.move_leader(PARKED_TOPIC, 0, None)
        clock.now += EVERY_SECONDS
        assert watch.current({"t"}) == []
    assert "within 0.25 s" in caplog.text


def _until_read(watch: ParkWatch, clock: Clock) -> None:
    def is_read() -> bool:
        clock.now += EVERY_SECONDS
        return not watch.current({"t"})

    until(is_read)


def test_a_topic_that_was_made_anew(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets begin again; and what was parked before is not parked any more."""
    with closing(keys_of(cluster)) as keys:
        keys.park("t", [b"1", b"2", b"3"])
        assert len(keys.parked()) == 3
        ends = Cluster.latest
        monkeypatch.setattr(Cluster, "latest", lambda self, places: dict.fromkeys(places, 1))
        assert set(keys.parked()) == {("t", b"1")}
        monkeypatch.setattr(Cluster, "latest", ends)
        assert len(keys.parked()) == 3


def test_a_part_that_was_read_before_an_error_does_not_count(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(keys_of(cluster)) as keys, closing(keys_of(cluster)) as others:
        others.park("t", [A])
        cluster.fail("Fetch", ["TOPIC_AUTHORIZATION_FAILED"])
        with pytest.raises(AuthorizationError, match=f"read {PARKED_TOPIC}"):
            keys.parked()
        assert set(keys.parked()) == {("t", A)}


def test_a_reason_that_is_no_text_can_be_read() -> None:
    """An argument of the command line may have any bytes."""
    row = json_bytes(
        {"by": "ann", "when": "now", "why": b"caf\xe9".decode(errors="surrogateescape")}
    )
    assert texts_of(row, "by", "why") == ["ann", "caf?"]
