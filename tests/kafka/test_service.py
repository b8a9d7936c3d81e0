"""Requests to a service: nothing is made, and each way to make a topic is tried in order."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import UnknownTopicError
from kshare.kafka.service import DryRun, Outcome, Service, api_ranges, narrowest
from kshare.kafka.topics import TopicSpec
from kshare.options import KafkaConfig, parse_options
from kshare.testing import FakeCluster

SPEC = TopicSpec(
    "__log", 2, {"segment.bytes": "10"}, ((1, 2), (2, 1)), {"max.compaction.lag.ms": "9"}
)
Judge = Callable[[Mapping[str, Any]], RdKafkaError | None]
PAIRS = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (min(pair), max(pair)))
RANGES = st.dictionaries(st.integers(0, 4), PAIRS)


def kafka(servers: str = "localhost:1") -> KafkaConfig:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "t"}
    options["kafka.default.api.timeout.ms"] = "20000"
    return parse_options(options, streaming=False).options.kafka


class Admin:
    """Judges each request for a topic, and fails if one is to be carried out."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.asked: list[Mapping[str, Any]] = []

    def __call__(self, *_: Any, **__: Any) -> "Admin":
        return self

    def poll(self, _: float) -> None:
        """Serve no callbacks."""

    def list_topics(self, **_: Any) -> SimpleNamespace:
        """A cluster of one broker."""
        return SimpleNamespace(brokers={1: None})

    def create_topics(self, topics: list[Any], **given: Any) -> dict[str, Future[None]]:
        """The answers to a request that is checked alone."""
        assert given["validate_only"] is True
        (new,) = topics
        self.asked.append({"replicas": new.replica_assignment, **new.config})
        future: Future[None] = Future()
        error = self.judge(self.asked[-1])
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(error))
        return {new.topic: future}


def dry_run(judge: Judge, spec: TopicSpec = SPEC) -> tuple[DryRun, list[Mapping[str, Any]]]:
    admin = Admin(judge)
    with closing(Service(kafka(), admin=admin)) as service:  # type: ignore[arg-type]
        return service.dry_run(spec), admin.asked


def refusing(*names: str, code: int = RdKafkaError.POLICY_VIOLATION) -> Judge:
    """A policy that takes no such settings."""

    def judge(asked: Mapping[str, Any]) -> RdKafkaError | None:
        refused = [name for name in names if asked.get(name)]
        return RdKafkaError(code, f"no {refused[0]}") if refused else None

    return judge


def test_what_is_taken_as_it_is_asked_for() -> None:
    run, asked = dry_run(refusing())
    assert run == DryRun("__log", Outcome.AS_ASKED)
    assert asked == [
        {
            "replicas": [[1, 2], [2, 1]],
            "cleanup.policy": "compact",
            "segment.bytes": "10",
            "max.compaction.lag.ms": "9",
        }
    ]


def test_less_is_asked_for_until_it_is_taken() -> None:
    run, asked = dry_run(refusing("max.compaction.lag.ms"))
    assert run.outcome is Outcome.WITHOUT_WISHES
    assert run.refusals == ("POLICY_VIOLATION: no max.compaction.lag.ms",)
    assert "max.compaction.lag.ms" not in asked[-1]
    run, asked = dry_run(refusing("segment.bytes"))
    assert run == DryRun("__log", Outcome.LESS, ("POLICY_VIOLATION: no segment.bytes",))
    assert asked[-1]["cleanup.policy"] == "compact"
    assert "segment.bytes" not in asked[-1]
    run, asked = dry_run(refusing("replicas", code=RdKafkaError.INVALID_REPLICA_ASSIGNMENT))
    assert run.outcome is Outcome.ELSEWHERE
    assert not asked[-1]["replicas"]
    assert asked[-1]["segment.bytes"] == "10"
    run, asked = dry_run(refusing("cleanup.policy"))
    assert run == DryRun("__log", Outcome.REFUSED, ("POLICY_VIOLATION: no cleanup.policy",))


@pytest.mark.parametrize(
    ("code", "outcome", "text"),
    [
        (RdKafkaError.TOPIC_ALREADY_EXISTS, Outcome.THERE, None),
        (RdKafkaError.TOPIC_AUTHORIZATION_FAILED, Outcome.FORBIDDEN, "TOPIC_AUTHORIZATION_FAILED"),
        (RdKafkaError._TIMED_OUT, Outcome.UNKNOWN, "_TIMED_OUT"),
    ],
)
def test_what_no_other_way_changes_is_asked_once(
    code: int, outcome: Outcome, text: str | None
) -> None:
    run, asked = dry_run(lambda _: RdKafkaError(code))
    assert run.outcome is outcome
    assert len(asked) == 1
    if text is None:
        assert not run.refusals
    else:
        assert text in run.refusals[0]


@given(st.lists(RANGES, min_size=1))
def test_what_all_brokers_speak_is_what_each_speaks(ranges: list[dict[int, Any]]) -> None:
    common = narrowest(ranges)
    for api in range(5):
        for version in range(6):
            every = all(api in each and each[api][0] <= version <= each[api][1] for each in ranges)
            assert every == (api in common and common[api][0] <= version <= common[api][1])


def test_brokers_that_offer_no_such_request() -> None:
    """Asked again with a number of replicas, as Kafka before 2.4 wants one."""
    spec = TopicSpec("__ledger", 16)
    run, asked = dry_run(lambda _: RdKafkaError(RdKafkaError._UNSUPPORTED_FEATURE), spec)
    assert run == DryRun("__ledger", Outcome.REFUSED, ("no CreateTopics",))
    assert len(asked) == 2


def test_no_broker_speaks_nothing() -> None:
    assert narrowest([]) == {}


def test_the_mock_says_what_it_is_told_to_say() -> None:
    with FakeCluster(topics={"t": 1}) as fake:
        fake.limit_api_version("Fetch", 4, 11)
        assert api_ranges(kafka(fake.bootstrap_servers), fake.bootstrap_servers)[1] == (4, 11)
        with closing(Service(kafka(fake.bootstrap_servers))) as service:
            assert service.settings() == {}, "it offers no DescribeConfigs"
            with pytest.raises(UnknownTopicError):
                service.offsets_topic()
            assert service.topics() == ["t"]
