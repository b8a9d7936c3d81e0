"""What is seen of the log's topic: settings that lose or keep too much, and partitions added."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kshare.cluster.cluster import TopicPolicy
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.group.session.log_follower import LogInspector

LOG0, LOG3 = TopicPartition("log", 0), TopicPartition("log", 3)
COMPACT = {"cleanup.policy": "compact", "segment.bytes": "10485760"}


class Topic:
    """A topic that changes."""

    name = "log"

    def __init__(self, config: dict[str, str] | None = None) -> None:
        self.found = (LOG0, "id")
        self.config = COMPACT if config is None else config
        self.looks = 0
        self.is_away = False

    def find(self) -> tuple[TopicPartition, str]:
        if self.is_away:
            raise KafkaError("nobody answers")
        return self.found

    def policy(self) -> TopicPolicy:
        return TopicPolicy.of(self.config)

    def close(self) -> None:
        self.looks += 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def inspector(topic: Topic, clock: Callable[[], float]) -> LogInspector:
    made: Any = lambda: topic  # noqa: E731
    return LogInspector(made, "billing", clock)


def look(looks: LogInspector, clock: Clock) -> bool:
    """Look once more, and again when that has its answer."""
    clock.now += 60
    has_moved = looks.has_moved(LOG0, "id")
    for thread in threading.enumerate():
        if thread.name == "kshare billing looks":  # it warns after it has closed the topic
            thread.join()
    return has_moved or looks.has_moved(LOG0, "id")


def test_partitions_that_are_added_are_seen() -> None:
    topic, clock = Topic(), Clock()
    looks = inspector(topic, clock)
    assert not look(looks, clock)
    topic.found = (LOG3, "id")
    assert look(looks, clock)
    assert not looks.has_moved(LOG0, "id")  # said once
    topic.is_away = True
    assert not look(looks, clock)
    topic.is_away, topic.found = False, (LOG3, "another id")
    assert not look(looks, clock)  # who reads it finds out


def test_it_is_looked_at_now_and_then_only() -> None:
    topic, clock = Topic(), Clock()
    looks = inspector(topic, clock)
    look(looks, clock)
    for _ in range(100):
        looks.has_moved(LOG0, "id")
    assert topic.looks == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, ""),
        ({"min.compaction.lag.ms": "60000"}, ""),
        ({"cleanup.policy": "delete"}, "Set its cleanup.policy to compact"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1"}, "Set its cleanup.policy"),
        ({"cleanup.policy": "compact,delete", "retention.bytes": "1"}, "Set its cleanup.policy"),
        ({"min.compaction.lag.ms": "86400000"}, "min.compaction.lag.ms is 86400000"),
        ({"segment.bytes": "1073741824"}, "segment.bytes is 1073741824"),
    ],
)
def test_settings_that_lose_or_keep_too_much_are_a_warning_once(
    config: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kshare.group")
    topic, clock = Topic({**COMPACT, **config}), Clock()
    looks = inspector(topic, clock)
    look(looks, clock)
    look(looks, clock)
    assert len(caplog.messages) == bool(said)
    for text in caplog.messages:
        assert text.startswith("topic log, the log of group billing, ")
        assert said in text
