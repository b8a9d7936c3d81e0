"""Topics that a sink's rows name: looked up before the first row, and an error if missing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from kshare.errors import (
    AuthorizationError,
    KafkaError,
    RecordRefusedError,
    UnknownTopicError,
)
from kshare.kafka.client import Client
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, prepare_rows, write_rows
from kshare.query.produce import sender as sender_module
from kshare.query.produce.config import producer_config
from kshare.query.produce.topic_lookup import TopicLookup
from kshare.testing import FakeCluster
from tests.support.clock import Clock

MISSING = "UNKNOWN_TOPIC_OR_PART"
HASTY = {
    "kafka.delivery.timeout.ms": "1500",
    "kafka.request.timeout.ms": "500",
    "kafka.linger.ms": "0",
}


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A broker that makes no topic ``gone``; it does not tell its configuration."""
    with FakeCluster(topics={"orders": 1, "gone": 1, "t": 1}) as running:
        running.fail_topic("gone", MISSING)
        yield running
        sender_module._kept().drop()


def options_for(cluster: FakeCluster, **options: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", **options}
    return parse_sink_options(given, streaming=True).options


def lookup_on(cluster: FakeCluster, clock: Clock) -> TopicLookup:
    options = options_for(cluster)
    client = Client(Producer, options.kafka, lambda: producer_config(options))
    return TopicLookup(client, options.kafka, clock=clock)


def rows(*topics: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": list(topics), "value": ["v"] * len(topics)})


def produced(cluster: FakeCluster) -> int:
    return cluster.requests().get((1, "Produce"), 0)


def test_a_missing_topic_is_named_with_the_broker_and_the_nearest_topic(
    cluster: FakeCluster,
) -> None:
    cluster.create_topic("order")
    cluster.fail_topic("order", MISSING)
    clock = Clock()
    with pytest.raises(UnknownTopicError) as raised:
        lookup_on(cluster, clock).check(["order"])
    servers = cluster.bootstrap_servers
    assert str(raised.value) == f"topic order does not exist on {servers}; did you mean orders?"
    assert (raised.value.topic, raised.value.broker) == ("order", servers)
    assert sum(clock.slept) == pytest.approx(5)  # such a broker may be about to make it


def test_none_is_named_where_none_is_near(cluster: FakeCluster) -> None:
    with pytest.raises(UnknownTopicError, match=r"topic gone does not exist on 127[^;]*$"):
        lookup_on(cluster, Clock()).check(["gone"])


@pytest.mark.parametrize("look", [1, 3])
def test_a_topic_that_brokers_make_when_they_are_asked_or_that_was_made_just_now(
    cluster: FakeCluster, look: int
) -> None:
    def make(number: int) -> None:
        if number == look:
            cluster.fail_topic("gone", "NO_ERROR")

    clock = Clock(on_sleep=make)
    lookup_on(cluster, clock).check(["gone"])
    assert len(clock.slept) == look


def test_a_topic_that_may_not_be_seen_is_another_sentence(cluster: FakeCluster) -> None:
    cluster.fail_topic("t", "TOPIC_AUTHORIZATION_FAILED")
    wanted = r"not authorized to write to topic t: .*; grant the principal Write on topic t"
    with pytest.raises(AuthorizationError, match=wanted):
        lookup_on(cluster, Clock()).check(["t"])


@pytest.mark.parametrize("error", ["LEADER_NOT_AVAILABLE", "_TRANSPORT"])
def test_what_passes_is_left_to_the_rows(cluster: FakeCluster, error: str) -> None:
    lookup = lookup_on(cluster, Clock())
    if error == "_TRANSPORT":
        cluster.stop_broker(1)
    else:
        cluster.fail_topic("t", error)
    lookup.check(["t"])


def test_each_topic_is_looked_up_once_a_minute(cluster: FakeCluster) -> None:
    clock = Clock()
    lookup = lookup_on(cluster, clock)
    lookup.check(["t"])
    cluster.track_requests()
    for _ in range(20):
        lookup.check(["t"])
    assert (1, "Metadata") not in cluster.requests()
    cluster.fail_topic("t", MISSING)
    clock.now += 61
    with pytest.raises(UnknownTopicError):
        lookup.check(["t"])


def test_a_topic_of_the_option_is_missing(cluster: FakeCluster) -> None:
    cluster.track_requests()
    with pytest.raises(UnknownTopicError, match="topic gone does not exist on 127"):
        write_rows([rows("t")], options_for(cluster, topic="gone"))
    assert not produced(cluster)
    assert write_rows([rows("t")], options_for(cluster)) == 1


def test_one_of_many_topics_of_a_column_is_missing(cluster: FakeCluster) -> None:
    options = replace(options_for(cluster), topic=None)
    cluster.track_requests()
    with pytest.raises(UnknownTopicError, match="topic gone does not exist on 127"):
        write_rows([rows("t", "orders", "t", "gone", "t")], options)
    assert not produced(cluster)
    assert write_rows([rows("t", "orders", "t")], options) == 3


BAD_NAMES = ("x" * 600, "a\0b", "", "a b", "é", "..", "t\n")


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_name_that_no_topic_can_have(
    cluster: FakeCluster, name: str, place: int, *, exactly_once: bool
) -> None:
    """librdkafka refuses some with errors that are none of Kafka's; the first one earlier."""
    given = options_for(cluster, exactlyOnce=str(exactly_once).lower())
    options = replace(given, topic=None)
    names = ["t", "orders"]
    names.insert(place, name)
    cluster.track_requests()
    attempt = Attempt("q", "r", 0, 0, 0, time.time())
    write: Callable[..., object] = (
        partial(prepare_rows, attempt=attempt) if exactly_once else write_rows
    )
    with pytest.raises(RecordRefusedError) as raised:
        write([rows(*names)], options)
    assert str(raised.value) == (
        f"cannot write to a topic: {repr(name)[:300]} cannot be a topic's name; "
        "allowed: 1 to 249 letters, digits, '.', '_', '-'"
    )
    assert raised.value.topic == name
    assert not produced(cluster)


def test_a_transaction_with_a_missing_topic_is_aborted(cluster: FakeCluster) -> None:
    options = options_for(cluster, exactlyOnce="true", topic="gone")
    with pytest.raises(UnknownTopicError, match="topic gone does not exist on 127"):
        prepare_rows([rows("t")], options, Attempt("q", "r", 0, 0, 0, time.time()))


def test_a_topic_that_goes_while_rows_wait_is_named(cluster: FakeCluster) -> None:
    """Its rows time out, as those of a broker that is away."""
    options = options_for(cluster, **HASTY)
    cluster.fail("Produce", ["NOT_LEADER_FOR_PARTITION"] * 100)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("t")
        cluster.fail_topic("t", MISSING)

    with pytest.raises(UnknownTopicError, match="topic t does not exist on 127"):
        write_rows(batches(), options)


def test_rows_that_time_out_on_a_topic_that_is_there_have(cluster: FakeCluster) -> None:
    options = options_for(cluster, **HASTY)
    cluster.fail("Produce", ["NOT_LEADER_FOR_PARTITION"] * 100)
    with pytest.raises(KafkaError, match="cannot write to topic t") as raised:
        write_rows([rows("t")], options)
    assert not isinstance(raised.value, UnknownTopicError)
