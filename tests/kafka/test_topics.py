"""What a cluster tells of topics, and clients that ask in vain."""

from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
)

from kshare.errors import UnknownTopicError
from kshare.kafka.cluster import Cluster
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.examination import ExaminedCluster
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topics import TopicSpec
from kshare.options import Subscribe, SubscribePattern, parse_options
from kshare.testing import FakeCluster, Record
from tests.kafka.test_cluster import T0, U0, FirstAnswer, cluster, cluster_of, fake
from tests.support.clock import Clock

__all__ = ["cluster", "fake"]  # fixtures

# -- what topics are configured for ---------------------------------------------------------------

DAY_MS, WEEK_MS, MIB = 86_400_000, 604_800_000, 1 << 20
DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": str(WEEK_MS),
    "segment.bytes": str(1 << 30),
}


class Settings:
    """A client that answers what topics are configured for, or with errors."""

    def __init__(self, answers: dict[str, dict[str, str] | Exception]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.opened = 0

    def __call__(self, _: object, *, logger: object) -> Any:
        self.opened += 1
        return self

    def describe_configs(self, resources: Any, **_: Any) -> dict[Any, Future[Any]]:
        futures = {}
        for resource in resources:
            assert resource.restype == ConfigResource.Type.TOPIC
            self.asked.append(resource.name)
            futures[resource] = future = Future[Any]()
            answer = self.answers[resource.name]
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                told = DEFAULTS | answer
                future.set_result({name: ConfigEntry(name, told[name]) for name in told})
        return futures

    def poll(self, seconds: float) -> int:
        return 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, TopicConfig(compacted=False, retention_ms=WEEK_MS)),
        ({"retention.ms": "-1"}, TopicConfig(compacted=False, retention_ms=None)),
        ({"retention.ms": "0"}, TopicConfig(compacted=False, retention_ms=0)),
        (
            {"retention.ms": "-1", "retention.bytes": "0", "segment.bytes": str(MIB)},
            TopicConfig(False, None, retention_bytes=0, segment_bytes=MIB),
        ),
        (
            {"retention.bytes": str(9 * MIB), "max.message.bytes": "77"},
            TopicConfig(False, WEEK_MS, retention_bytes=9 * MIB, batch_bytes=77),
        ),
        (
            {"cleanup.policy": "compact", "retention.bytes": "5"},
            TopicConfig(compacted=True, retention_ms=None),
        ),
        (
            {"cleanup.policy": "compact,delete", "retention.bytes": "5"},
            TopicConfig(True, WEEK_MS, retention_bytes=5),
        ),
        (
            {"message.timestamp.type": "LogAppendTime"},
            TopicConfig(False, WEEK_MS, log_append_time=True),
        ),
    ],
)
def test_what_a_topic_is_configured_for(settings: dict[str, str], expected: TopicConfig) -> None:
    cluster = cluster_of("nowhere:9092", admin=Settings({"t": settings}))
    assert cluster.topic_configs(["t"]) == {"t": expected}


def test_topics_whose_settings_may_not_be_seen_are_left_out() -> None:
    secret = KafkaException(RdKafkaError(RdKafkaError.TOPIC_AUTHORIZATION_FAILED))
    admin = Settings({"t": {"retention.ms": str(DAY_MS)}, "u": secret})
    cluster = cluster_of("nowhere:9092", admin=admin)
    assert cluster.topic_configs({"t", "u"}) == {"t": TopicConfig(False, DAY_MS)}
    assert sorted(admin.asked) == ["t", "u"]


@pytest.mark.parametrize(
    ("code", "opened"),
    [(RdKafkaError._TIMED_OUT, 1), (RdKafkaError.TOPIC_AUTHORIZATION_FAILED, 0)],
)
def test_a_client_that_waits_in_vain_for_settings_is_left(code: int, opened: int) -> None:
    """It may wait for a controller that has died, and goes on to do so."""
    admin = Settings({"t": {}})
    cluster = cluster_of("nowhere:9092", admin=admin, clock=Clock())
    assert cluster.topic_configs(["t"]).keys() == {"t"}
    admin.answers = {"t": KafkaException(RdKafkaError(code))}
    assert cluster.topic_configs(["t"]) == {}
    admin.answers = {"t": {}}
    before = admin.opened
    assert cluster.topic_configs(["t"]) == {"t": TopicConfig(False, WEEK_MS)}
    assert admin.opened - before == opened


def test_topics_of_brokers_that_offer_no_settings_count_as_compacted(cluster: Cluster) -> None:
    """Nothing may be missed, and nobody is told to grant a right that does not exist."""
    assert cluster.topic_configs(["t"]) == {"t": TopicConfig(compacted=True, retention_ms=None)}
    assert cluster.topic_configs([]) == {}


def test_a_topic_that_goes_while_a_pattern_is_resolved_is_left_out(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or comes: one broker lists it, and the one that is asked next does not know it yet."""
    listings = [["t", "ghost"], ["t", "ghost"], ["t"]]
    monkeypatch.setattr(Cluster, "_list_topics", lambda _: listings.pop(0))
    clock = Clock()
    with closing(cluster_of(fake.bootstrap_servers, clock=clock)) as cluster:
        assert T0 in cluster.partitions(SubscribePattern("t|ghost"))
    assert len(clock.slept) == 2
    assert not listings


def test_a_topic_that_is_listed_and_stays_unknown_is_an_error(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "_list_topics", lambda _: ["ghost"])
    with (
        closing(cluster_of(fake.bootstrap_servers, clock=Clock())) as cluster,
        pytest.raises(UnknownTopicError, match="topic ghost does not exist"),
    ):
        cluster.partitions(SubscribePattern("ghost"))


@pytest.mark.parametrize("ms", ["3600000", "3600001", "2147483647"])
def test_any_time_for_calls_may_be_given(fake: FakeCluster, ms: str) -> None:
    """librdkafka's admin client takes an hour at most for a request."""
    options = {"kafka.default.api.timeout.ms": ms}
    fake.produce("u", [Record(b"k", b"v")])
    with closing(cluster_of(fake.bootstrap_servers, options=options)) as cluster:
        assert cluster.partitions(Subscribe(("u",))) == (U0,)
        assert cluster.latest([U0]) == {U0: 1}
        assert cluster.topic_configs(["t"])["t"].compacted  # these brokers cannot tell
    kafka = parse_options(
        {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "t", **options},
        streaming=True,
    ).options.kafka
    with closing(ExaminedCluster(kafka)) as examination:
        assert len(examination.brokers()) == 1
        assert examination.rights(["t"]) == {"t": None}
        assert examination.newest_ms([U0]) is None  # nor this
    with closing(CompactedTopic(kafka, TopicSpec("made", 4))) as topic:
        topic.create()


@pytest.mark.parametrize("ask", ["latest", "policies"])
def test_a_client_that_waits_for_a_dead_broker_is_replaced(fake: FakeCluster, ask: str) -> None:
    """librdkafka goes on to wait for the controller, or leader, that it knew."""
    fake.produce("t", [Record(b"k", b"v")], partition=0)
    clock = Clock()
    waited: list[float] = []

    class Deaf(FirstAnswer):
        def list_offsets(self, wanted: Any, **more: Any) -> Any:
            waited.append(more["request_timeout"])
            clock.now += more["request_timeout"]
            return super().list_offsets(wanted, **more)

        describe_configs = list_offsets

    timed_out = KafkaException(RdKafkaError(RdKafkaError._TIMED_OUT))
    hears = AdminClient if ask == "latest" else Settings({"t": {}})
    clients: list[Any] = [*(Deaf(timed_out) for _ in range(3)), hears]

    def admin(config: Any, **more: Any) -> Any:
        return clients.pop(0)(config, **more)

    options = {"kafka.retry.backoff.ms": "0", "kafka.retry.backoff.max.ms": "0"}
    with closing(
        cluster_of(fake.bootstrap_servers, admin=admin, clock=clock, options=options)
    ) as cluster:
        if ask == "latest":
            assert cluster.latest([T0]) == {T0: 1}
        else:
            assert cluster.topic_configs(["t"]) == {"t": TopicConfig(False, WEEK_MS)}
    assert waited == [10, 10, 20]  # less than is left, and as much as was spent


def test_a_client_that_has_lost_a_broker_gets_less_time(fake: FakeCluster) -> None:
    clock = Clock()
    waited: list[float] = []

    class Lost(FirstAnswer):
        def __call__(self, config: Any, **more: Any) -> Any:
            self.fault = partial(config["error_cb"], RdKafkaError(RdKafkaError._TRANSPORT))
            return super().__call__(config, **more)

        def list_offsets(self, wanted: Any, **more: Any) -> Any:
            waited.append(more["request_timeout"])
            self.fault()
            return super().list_offsets(wanted, **more)

    transport = KafkaException(RdKafkaError(RdKafkaError._TRANSPORT))
    lost = Lost(transport)
    with closing(cluster_of(fake.bootstrap_servers, admin=lost, clock=clock)) as cluster:
        assert cluster.latest([T0]) == {T0: 0}
    assert waited[:2] == [10, 2]
