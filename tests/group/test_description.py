"""Asking coordinators for the descriptions of groups."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka import KafkaError as RdKafkaError

from kshare.errors import AuthenticationError, AuthorizationError, KafkaError
from kshare.group.tools import description
from kshare.group.tools.description import GroupDescription, describe_group, describe_groups
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


class Coordinators:
    """An admin client whose groups have coordinators that describe, refuse, or do not answer."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def describe_consumer_groups(self, groups: list[str], **_: Any) -> dict[str, Future[Any]]:
        answers: dict[str, Future[Any]] = {group: Future() for group in groups}
        for group, answer in answers.items():
            if group == "denied":
                error = RdKafkaError(RdKafkaError.GROUP_AUTHORIZATION_FAILED)
                answer.set_exception(KafkaException(error))
            elif group != "late":
                state = ConsumerGroupState.STABLE
                described = SimpleNamespace(members=(), state=state, partition_assignor="range")
                answer.set_result(described)
        return answers

    def poll(self, _: float) -> None:
        pass


AT_ONCE = KafkaConfig(bootstrap_servers=(("localhost", 1),), api_timeout_ms=100)


def test_a_list_shows_groups_that_are_not_described_as_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(description, "AdminClient", Coordinators)
    described = describe_groups(AT_ONCE, ["denied", "billing", "late"])
    assert described == {
        "denied": GroupDescription("unknown", None),
        "billing": GroupDescription("stable", {}, "range"),
        "late": GroupDescription("unknown", None),
    }
    denied, late = sorted(record.getMessage() for record in caplog.records)[::-1]
    assert denied.startswith("not authorized to describe group denied: ")
    assert late.startswith("cannot describe group late: ")
    assert "its state is shown as unknown" in denied


@pytest.mark.parametrize(("group", "error"), [("denied", AuthorizationError), ("late", KafkaError)])
def test_who_has_to_know_of_a_group_hears_that_it_is_not_described(
    monkeypatch: pytest.MonkeyPatch, group: str, error: type[KafkaError]
) -> None:
    """Else a reset would take it for a group without members."""
    monkeypatch.setattr(description, "AdminClient", Coordinators)
    with pytest.raises(error, match=f"describe group {group}: "):
        describe_group(AT_ONCE, group)
