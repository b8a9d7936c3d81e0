"""Asking coordinators for the descriptions of groups."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError as RdKafkaError

from kshare.errors import AuthenticationError
from kshare.group.tools import description
from kshare.group.tools.description import describe_group
from kshare.options import KafkaConfig


class Refused:
    """An admin client whose login is refused: its requests stay without an answer."""

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        self._on_error = config["error_cb"]

    def describe_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Future[Any]]:
        return {group: Future() for group in groups}

    def poll(self, _: float) -> None:
        self._on_error(RdKafkaError(RdKafkaError._AUTHENTICATION, "wrong password"))


def test_a_refused_login_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "AdminClient", Refused)
    hours = 3_600_000
    kafka = KafkaConfig(bootstrap_servers=(("localhost", 1),), api_timeout_ms=hours)
    with pytest.raises(AuthenticationError, match="wrong password"):
        describe_group(kafka, "billing")
