"""``integration.verifiable_consumer``: its exit code, and when it prints what is assigned.

All else that it prints is tested with Kafka itself.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from integration import verifiable_consumer
from kshare.core.hashing import ALL_HASHES, HashRange, KeyRanges
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
    return verifiable_consumer.main(*given, *more)


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


EAGER, COOPERATIVE = "RangeAssignor", "CooperativeStickyAssignor"


class Rebalances:
    """What calls of the consumer do: such as ``assigned 0 1``, ``started 0`` or ``record 0``."""

    def __init__(self, consumer: Any, calls: Sequence[str]) -> None:
        self._consumer, self._calls = consumer, iter(calls)
        self._assigned: dict[TopicPartition, tuple[HashRange, ...]] = {}
        self._starting: dict[TopicPartition, KeyRanges] = {}
        consumer.receiver.subscriber = Mock(has_work=False, starting=self._starting)
        consumer.metrics.return_value.rebalances = 0
        consumer.assignment.return_value = self._assigned
        consumer.consume.side_effect = self._consume

    def _consume(self, *_: object) -> list[Any]:
        what, *numbers = next(self._calls).split()
        partitions = {TopicPartition("t", int(number)): () for number in numbers}
        callbacks = self._consumer.subscribe.call_args.kwargs
        match what:
            case "assigned":
                self._consumer.metrics.return_value.rebalances += 1
                self._assigned |= partitions
                self._starting |= dict.fromkeys(partitions, ALL_HASHES)
            case "started":
                callbacks["on_started"](partitions)
                self._drop(self._starting, partitions)
            case "revoked":
                self._drop(self._starting, partitions)
                callbacks["on_revoked"](partitions)
                self._drop(self._assigned, partitions)
            case "record":
                message = Mock(topic_partition=next(iter(partitions)))
                message.offset.return_value = 7
                return [message]
        return []

    @staticmethod
    def _drop(some: dict[TopicPartition, Any], partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            some.pop(partition, None)


@pytest.mark.parametrize(
    ("strategy", "calls", "printed"),
    [
        pytest.param(
            COOPERATIVE,
            ["assigned 0 1", "nothing", "started 0", "started 1", "record 0"],
            ["assigned 0 1", "consumed 0"],
            id="once, when all of it is claimed",
        ),
        pytest.param(
            COOPERATIVE,
            ["assigned 0 1", "started 0", "record 0", "started 1", "record 1"],
            ["assigned 0", "consumed 0", "assigned 1", "consumed 1"],
            id="before its records",
        ),
        pytest.param(
            EAGER,
            ["assigned 0 1", "started 0", "record 0", "started 1", "record 1"],
            ["assigned 0", "consumed 0", "assigned 0 1", "consumed 1"],
            id="all that is claimed, if the protocol is eager",
        ),
        pytest.param(
            COOPERATIVE,
            ["assigned 0 1", "started 0 1", "revoked 1", "record 0", "assigned", "record 0"],
            ["assigned 0 1", "revoked 1", "assigned", "consumed 0", "assigned", "consumed 0"],
            id="of what stays, before its records amid a rebalance",
        ),
        pytest.param(
            COOPERATIVE,
            ["assigned 0", "revoked 0", "assigned 1", "started 1", "record 1"],
            ["revoked 0", "assigned", "assigned 1", "consumed 1"],
            id="nothing that is revoked before it is claimed",
        ),
    ],
)
def test_an_assignment_is_printed(
    consumer: Any,
    capsys: pytest.CaptureFixture[str],
    strategy: str,
    calls: Sequence[str],
    printed: Sequence[str],
) -> None:
    Rebalances(consumer, calls)
    records = sum(each.startswith("record") for each in calls)
    assert run("--max-messages", str(records), "--assignment-strategy", strategy) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [
        " ".join([name.split("_")[1], *(str(place["partition"]) for place in each["partitions"])])
        for each in events
        if (name := each["name"].replace("records_", "partitions_")).startswith("partitions_")
    ] == printed
