"""Topics of kshare's own that brokers take with less, later, or not at all."""

import logging
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from kshare.errors import AuthorizationError, InternalTopicError, KafkaError
from kshare.group.config.consumer_config import consumer_config
from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka.topic_creation import make_topic
from kshare.kafka.topics import TopicSpec
from kshare.options import KafkaConfig

SPEC = TopicSpec(
    "table", 2, {"segment.bytes": "9"}, ((1, 2), (2, 1)), {"max.compaction.lag.ms": "5"}
)
BARE = {"cleanup.policy": "compact"}


class Brokers:
    """Answers each request to make a topic with the next code; the last one for ever.

    Attributes:
        asked: The requests.
    """

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.asked: list[NewTopic] = []

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def poll(self, _: float) -> None:
        pass

    def create_topics(self, new: list[NewTopic], **_: Any) -> dict[str, Future[None]]:
        self.asked.extend(new)
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        answer: Future[None] = Future()
        if code:
            answer.set_exception(KafkaException(RdKafkaError(code, f"words {code}")))
        else:
            answer.set_result(None)
        return {new[0].topic: answer}


def kafka(**more: str) -> KafkaConfig:
    return consumer_config({"bootstrap.servers": "b1:9092,b2:9093", "group.id": "g", **more}).kafka


def test_what_was_refused_is_one_warning_with_the_brokers_words_and_what_it_costs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers(ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION, 0)
    with caplog.at_level(logging.INFO):
        refused = make_topic(kafka(), SPEC, brokers)
    assert refused == {"segment.bytes", "max.compaction.lag.ms", "replicas"}
    assert (brokers.asked[-1].config, brokers.asked[-1].replication_factor) == (BARE, -1)
    assert not brokers.asked[-1].replica_assignment
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for words in (
        "topic table was made without segment.bytes=9, max.compaction.lag.ms=5, replicas on",
        "INVALID_CONFIG: words 40; POLICY_VIOLATION: words 44",
        "What it costs: the topic grows larger",
    ):
        assert words in record.getMessage()


def test_nothing_is_said_of_a_topic_that_is_made_as_it_should_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert not make_topic(kafka(), SPEC, Brokers(0))
    assert not caplog.records


def test_another_one_that_makes_it_meanwhile_has_said_what_there_is_to_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers(ErrorCode.POLICY_VIOLATION, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert not make_topic(kafka(), SPEC, brokers)
    assert not caplog.records


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.THROTTLING_QUOTA_EXCEEDED],
)
def test_what_passes_is_asked_again_and_nothing_is_left_out(code: ErrorCode) -> None:
    brokers = Brokers(code, code, 0)
    assert not make_topic(kafka(**{"retry.backoff.ms": "1"}), SPEC, brokers)
    assert [new.config for new in brokers.asked] == [brokers.asked[0].config] * 3


def test_what_does_not_pass_in_time_is_no_refusal() -> None:
    brokers = Brokers(ErrorCode.NOT_CONTROLLER)
    brief = kafka(**{"default.api.timeout.ms": "50", "retry.backoff.ms": "1"})
    with pytest.raises(KafkaError, match="create topic table") as raised:
        make_topic(brief, SPEC, brokers)
    assert not isinstance(raised.value, InternalTopicError)


@pytest.mark.parametrize("code", [ErrorCode.POLICY_VIOLATION, 37])  # 37: INVALID_PARTITIONS
def test_a_topic_that_is_refused_is_an_error_with_the_command_that_makes_it(code: int) -> None:
    with pytest.raises(InternalTopicError) as raised:
        make_topic(kafka(), SPEC, Brokers(code))
    text = str(raised.value)
    assert f"words {code}" in text
    assert text.count(f"words {code}") == 1
    assert text.endswith(
        "kafka-topics.sh --bootstrap-server b1:9092,b2:9093 --create --topic table --partitions 2 "
        "--config cleanup.policy=compact"
    )
    assert raised.value.topic == "table"


def test_a_principal_that_may_not_make_it_hears_what_to_do() -> None:
    brokers = Brokers(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match=r"grant Create on it, or .* --create --topic"):
        make_topic(kafka(), SPEC, brokers)
    assert len(brokers.asked) == 1
