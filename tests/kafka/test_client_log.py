"""What librdkafka logs: once, and readable."""

import logging
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kshare.kafka.client import Once, client_log

REFUSED = (
    "FAIL [kshare#producer-1] [thrd:localhost:1/bootstrap]: localhost:1/bootstrap: Connect to "
    "ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT{})"
)
TOLD = "Kafka client: localhost:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"


def passed(once: Once, *texts: str) -> list[str]:
    """The messages that come through."""
    records = [logging.LogRecord("kshare.client", 40, "", 0, text, (), None) for text in texts]
    return [record.getMessage() for record in records if once.filter(record)]


def test_equal_messages_are_told_once_in_five_minutes() -> None:
    now = 0.0
    once = Once(lambda: now)
    again = REFUSED.format(", 1 identical error(s) suppressed")
    assert passed(once, REFUSED.format(""), again, "100 % of it") == [
        TOLD,
        "Kafka client: 100 % of it",
    ]
    now = 299.0
    assert passed(once, again) == []
    now = 300.0
    assert passed(once, again, again) == [TOLD]


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_many_messages_are_forgotten_the_oldest_first() -> None:
    once = Once(lambda: 0.0)
    assert len(passed(once, *map(str, range(1000)))) == 1000
    assert len(passed(once, *map(str, range(1000 - 256, 1000)))) == 0
    assert len(passed(once, "0")) == 1


def test_a_client_that_reconnects_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said()
    monkeypatch.setattr(client_log, "handlers", [said])
    monkeypatch.setattr(client_log, "filters", [Once()])  # other tests have no broker there, too
    config: dict[str, Any] = {"bootstrap.servers": "localhost:1", "reconnect.backoff.max.ms": 100}
    client = AdminClient(config, logger=client_log)
    for _ in range(15):
        client.poll(0.1)
    told = [text for text in said.texts if "refused" in text]
    assert len(told) == len(set(told)) > 0
    assert all("producer" not in text for text in told)
