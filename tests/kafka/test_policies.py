"""Policies, in a topic of an embedded cluster."""

import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest

from kshare.kafka.policies import (
    INDIVIDUAL_COMMIT,
    RANGE_FETCH,
    Policies,
    Policy,
    PolicyInfo,
    PolicyWatch,
)
from kshare.kafka.topics import POLICIES_TOPIC
from kshare.options import KafkaConfig
from kshare.testing import FakeCluster, Record
from tests.support.clock import Clock
from tests.support.parked_keys import kafka

ORDERS = Policy(RANGE_FETCH, "orders")
ALL = Policy(INDIVIDUAL_COMMIT)
NOW = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)


@pytest.fixture
def config() -> Iterator[KafkaConfig]:
    with FakeCluster(topics={POLICIES_TOPIC: 1}) as running:
        yield kafka(running)


def test_what_is_set_is_read_from_anywhere(config: KafkaConfig) -> None:
    with closing(Policies(config, now=lambda: NOW)) as policies:
        assert policies.read() == {}
        policies.set(ORDERS, False, why="too many readers", by="ann")
        policies.set(ALL, False)
        policies.set(ALL, True)
    since = "2026-11-22T09:30:00+00:00"
    with closing(Policies(config)) as others:
        assert others.read() == {
            ORDERS: PolicyInfo(False, since, "ann", "too many readers"),
            ALL: PolicyInfo(True, since),
        }


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Policy("accept.anything"), "no policy is named 'accept.anything'"),
        (Policy(RANGE_FETCH), r"accept\.range\.fetch is a policy of a topic"),
        (Policy(INDIVIDUAL_COMMIT, "t"), r"accept\.individual\.commit is a policy of the whole"),
    ],
)
def test_what_is_no_policy(config: KafkaConfig, policy: Policy, says: str) -> None:
    with closing(Policies(config)) as policies, pytest.raises(ValueError, match=says):
        policies.set(policy, False)


def test_what_is_taken_away_accepts_again(config: KafkaConfig) -> None:
    with closing(Policies(config)) as policies, closing(Policies(config)) as others:
        policies.set(ORDERS, False)
        policies.set(ALL, False)
        assert policies.unset(ORDERS)
        assert not policies.unset(Policy(RANGE_FETCH, "other"))
        assert others.read().keys() == {ALL}
        with pytest.raises(ValueError, match="is a policy of a topic"):
            policies.unset(Policy(RANGE_FETCH))


def test_a_watch_knows_within_seconds(config: KafkaConfig) -> None:
    clock = Clock()
    with closing(PolicyWatch(config, clock=clock)) as watch, closing(Policies(config)) as policies:
        assert watch.accepts(ORDERS)
        policies.set(ORDERS, False)
        assert watch.accepts(ORDERS)
        clock.sleep(2.0)
        assert not watch.accepts(ORDERS)
        assert watch.accepts(Policy(RANGE_FETCH, "other"))
        assert watch.accepts(ALL)


def test_a_record_that_is_no_policy_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster(topics={POLICIES_TOPIC: 1}) as cluster:
        key = b'{"policy":"accept.range.fetch","topic":"orders"}'
        wrong = b'{"by":"","value":"maybe","when":"","why":""}'
        right = wrong.replace(b"maybe", b"false")
        records = [Record(b"?", right), Record(key, wrong), Record(key, right)]
        cluster.produce(POLICIES_TOPIC, records)
        with (
            closing(Policies(kafka(cluster))) as policies,
            caplog.at_level(logging.WARNING, "kshare"),
        ):
            assert policies.read() == {ORDERS: PolicyInfo(False, "")}
    begins = "__kshare_policies, offset {}, is no record of a policy, and is passed over: "
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    for offset, message in enumerate(messages):
        assert message.startswith(begins.format(offset))
        assert message.endswith("'kshare policy list --drop-damaged' deletes what cannot be read")
