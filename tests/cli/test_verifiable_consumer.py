"""The exit code of ``kshare verifiable-consumer``; what it prints is tested with Kafka itself."""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.cli import main, verifiable_consumer
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = Mock()
    made.receiver.subscriber = None
    made.consume.return_value = []
    made.commit.return_value = {}
    monkeypatch.setattr(verifiable_consumer, "KeySharedConsumer", lambda _: made)
    monkeypatch.setattr(verifiable_consumer, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("signal.signal", Mock())
    yield made
    made.close.assert_called_once_with()


def run(*more: str) -> int:
    given = ["--bootstrap-server", "localhost:1", "--topic", "t", "--group-id", "g"]
    return main(["verifiable-consumer", *given, *more])


def test_what_has_ended_its_membership_is_a_failure(
    consumer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer.consume.side_effect = KafkaError("another consumer has its id")
    assert run() == 1
    said = capsys.readouterr()
    assert "another consumer has its id" in said.err
    assert json.loads(said.out.splitlines()[-1])["name"] == "shutdown_complete"


def test_a_topic_that_cannot_be_subscribed_to_is_a_failure(consumer: Any) -> None:
    consumer.subscribe.side_effect = KafkaError("no broker answers")
    assert run() == 1


def test_a_last_commit_that_fails_is_a_failure(
    consumer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer.commit.side_effect = KafkaError("no broker answers")
    assert run("--max-messages", "0") == 1
    assert "the last commit: no broker answers" in capsys.readouterr().err


def test_what_passes_is_none(consumer: Any) -> None:
    message = Mock(topic_partition=TopicPartition("t", 0))
    message.offset.return_value = 7
    consumer.consume.side_effect = [KafkaError("once"), KafkaError("twice"), [message]]
    assert run("--max-messages", "1") == 0
