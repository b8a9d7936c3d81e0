"""Parked keys when a query starts: it has to know them, or to be kept from it by its rights."""

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kshare.errors import AuthenticationError, KafkaError
from kshare.kafka.cluster import Cluster
from kshare.kafka.parked_keys import EVERY_SECONDS, PARKED_TOPIC, ParkWatch
from kshare.options import KafkaConfig
from kshare.security.librdkafka import librdkafka_config
from kshare.testing import FakeCluster
from tests.support.clock import Clock, until
from tests.support.parked_keys import A, kafka, keys_of


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 1, PARKED_TOPIC: 1}) as running:
        yield running


@pytest.fixture
def empty() -> Iterator[FakeCluster]:
    """A cluster where nothing was ever parked."""
    with FakeCluster(topics={"t": 1}) as running:
        yield running


@pytest.fixture
def parked(cluster: FakeCluster) -> FakeCluster:
    """A cluster where key a of topic t is parked."""
    with closing(keys_of(cluster)) as keys:
        keys.park("t", [A])
    return cluster


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the watch has warned of; librdkafka has its own to say of connections."""
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in told if "keys are parked" in text]


@pytest.mark.parametrize(
    ("request_", "errors"),
    [
        ("ListOffsets", ["LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION"]),
        ("ListOffsets", ["COORDINATOR_LOAD_IN_PROGRESS"] * 2),
        ("ListOffsets", ["REQUEST_TIMED_OUT", "UNKNOWN"]),
        ("ListOffsets", ["_TRANSPORT"]),
        ("ListOffsets", ["UNKNOWN_TOPIC_OR_PART"] * 3),
        ("Fetch", ["_TRANSPORT"]),
        ("Fetch", ["UNKNOWN"]),
        ("Fetch", ["OFFSET_OUT_OF_RANGE"]),
    ],
)
def test_a_fault_that_passes_does_not_unpark(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture, request_: str, errors: list[str]
) -> None:
    parked.fail(request_, errors)
    with closing(ParkWatch(kafka(parked))) as watch:
        assert watch.current({"t"}) == [("t", A)]
    assert not warnings(caplog)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ("ListOffsets", "LEADER_NOT_AVAILABLE"),
        pytest.param("ListOffsets", "UNKNOWN_TOPIC_OR_PART", marks=pytest.mark.slow),
        pytest.param("ListOffsets", "COORDINATOR_LOAD_IN_PROGRESS", marks=pytest.mark.slow),
        pytest.param("Fetch", "UNKNOWN", marks=pytest.mark.slow),
        ("Fetch", "LEADER_NOT_AVAILABLE"),
    ],
)
def test_no_query_starts_without_the_list(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture, request_: str, error: str
) -> None:
    parked.fail(request_, [error] * 200)
    with closing(ParkWatch(kafka(parked, timeout_ms=1_000))) as watch:
        for _ in range(2):  # it is no better for having been asked
            with pytest.raises(KafkaError, match=f"topic {PARKED_TOPIC}") as raised:
                watch.current({"t"})
            text, why = str(raised.value), str(raised.value.__cause__)
            assert text.startswith(f"the list of parked keys (topic {PARKED_TOPIC}) cannot be read")
            assert "the query does not start without it, as it would read parked keys" in text
            assert PARKED_TOPIC in why
            assert text.endswith(f": {why}")
            assert raised.value.topic == PARKED_TOPIC
        parked.stop_failing(request_)
        until(lambda: _has_started(watch))
    assert not warnings(caplog)


def _has_started(watch: ParkWatch) -> bool:
    try:
        assert watch.current({"t"}) == [("t", A)]
    except KafkaError:
        return False
    return True


def test_no_query_starts_on_a_cluster_that_is_away(parked: FakeCluster) -> None:
    parked.stop_broker(1)
    with (
        closing(ParkWatch(kafka(parked, timeout_ms=1_000))) as watch,
        pytest.raises(KafkaError, match=f"{PARKED_TOPIC}.* does not start without it"),
    ):
        watch.current({"t"})


def test_a_token_endpoint_that_is_away_for_a_while(
    parked: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [OSError("no route to host")]

    def ask(given: KafkaConfig) -> dict[str, Any]:
        if answers:
            raise answers.pop()
        return librdkafka_config(given)

    monkeypatch.setattr("kshare.kafka.client.librdkafka_config", ask)
    with closing(ParkWatch(kafka(parked))) as watch:
        assert watch.current({"t"}) == [("t", A)]
    assert not answers


def test_a_login_that_is_refused_is_not_tried_again(
    parked: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(self: Cluster, _: object) -> None:
        asked.append(self)
        raise AuthenticationError("cannot log in")

    monkeypatch.setattr(Cluster, "partitions", refuse)
    with (
        closing(ParkWatch(kafka(parked))) as watch,
        pytest.raises(KafkaError, match=r"does not start without it.*: cannot log in"),
    ):
        watch.current({"t"})
    assert len(asked) == 1


@pytest.mark.parametrize("request_", ["ListOffsets", "Fetch", "the topic"])
def test_a_query_that_may_not_read_the_list_starts(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture, request_: str
) -> None:
    """Most often nobody parks keys there. It is told of once, and when the right is there, used."""
    clock, error = Clock(), "TOPIC_AUTHORIZATION_FAILED"
    if request_ == "the topic":
        parked.fail_topic(PARKED_TOPIC, error)
    else:
        parked.fail(request_, [error] * 200)
    with closing(ParkWatch(kafka(parked), clock=clock)) as watch:
        for _ in range(3):
            clock.now += EVERY_SECONDS
            assert watch.current({"t"}) == []
        (warning,) = warnings(caplog)
        assert warning.startswith("not authorized to read which keys are parked")
        assert f"the right Read on topic {PARKED_TOPIC}" in warning
        if request_ == "the topic":
            parked.fail_topic(PARKED_TOPIC, "NO_ERROR")
        else:
            parked.stop_failing(request_)
        clock.now += EVERY_SECONDS
        assert watch.current({"t"}) == [("t", A)]


def test_watches_that_share_what_was_said_warn_once_of_a_damaged_record(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Each task of a query reads the list from its begin."""
    parked.produce(PARKED_TOPIC, [("no key", "no value")], partition=0)
    said = set[str]()
    for _ in range(3):
        with closing(ParkWatch(kafka(parked), said=said)) as watch:
            assert watch.current({"t"}) == [("t", A)]
    with closing(ParkWatch(kafka(parked))) as watch:  # of another query
        assert watch.current({"t"}) == [("t", A)]
    told = [each for each in caplog.records if "is no record of a parked key" in each.getMessage()]
    assert [each.levelname for each in told] == ["WARNING"] * 2
    assert told[0].getMessage().startswith(f"{PARKED_TOPIC}, offset 1, ")


def test_a_query_that_was_started_unauthorized_goes_on(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    parked.fail("ListOffsets", ["TOPIC_AUTHORIZATION_FAILED"])
    with closing(ParkWatch(kafka(parked), look_seconds=0.25, clock=clock)) as watch:
        assert watch.current({"t"}) == []
        parked.move_leader(PARKED_TOPIC, 0, None)
        clock.now += EVERY_SECONDS
        assert watch.current({"t"}) == []
    assert len(warnings(caplog)) == 1


def test_no_right_to_a_group_is_needed(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    parked.fail("FindCoordinator", ["GROUP_AUTHORIZATION_FAILED"] * 200)
    with closing(keys_of(parked)) as keys, closing(ParkWatch(kafka(parked))) as watch:
        assert set(keys.parked()) == {("t", A)}
        assert watch.current({"t"}) == [("t", A)]
    assert not warnings(caplog)


def test_a_start_without_a_list_asks_once(
    empty: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = Cluster._ask

    def count(self: Cluster, request: Any, what: str, *more: Any) -> dict[Any, Any]:
        asked.append(what)
        return ask(self, request, what, *more)

    monkeypatch.setattr(Cluster, "_ask", count)
    with closing(ParkWatch(kafka(empty))) as watch:
        assert watch.current({"t"}) == []
    assert asked == ["describe the partitions"]


def test_a_leader_that_has_not_heard_of_the_topic_unparks_nothing(
    parked: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with closing(ParkWatch(kafka(parked), clock=clock)) as watch:
        assert watch.current({"t"}) == [("t", A)]
        parked.fail("ListOffsets", ["UNKNOWN_TOPIC_OR_PART"] * 2)
        clock.now += EVERY_SECONDS
        assert watch.current({"t"}) == [("t", A)]
        assert "going on with the 1 that were parked" in caplog.text
        parked.stop_failing("ListOffsets")
        parked.fail_topic(PARKED_TOPIC, "UNKNOWN_TOPIC_OR_PART")
        parked.fail("ListOffsets", ["UNKNOWN_TOPIC_OR_PART"] * 2)
        clock.now += EVERY_SECONDS
        assert watch.current({"t"}) == []  # nobody has heard of it: it is deleted
