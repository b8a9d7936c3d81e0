"""kshare's own topics: what the doctor says of each answer, and what it costs which feature."""

import pytest

from kshare.cli.doctor_topics import (
    OwnTopic,
    TopicAnswers,
    finding_of,
    lacks_of,
    own_topics,
)
from kshare.cli.features import Feature
from kshare.errors import AuthorizationError, UnknownTopicError
from kshare.group.log.topic import OFFSETS_PARTITIONS
from kshare.kafka.service import DryRun, Outcome, Replicas
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topics import (
    INDIVIDUAL_COMMITS_TOPIC,
    LEDGER_TOPIC,
    PARKED_TOPIC,
    POLICIES_TOPIC,
    RANGE_ENDS_TOPIC,
)

OWN = {own.spec.name: own for own in own_topics(None)}
COMPACTED = TopicConfig(compacted=True, retention_ms=None)
DELETES = TopicConfig(compacted=False, retention_ms=1_000)
COMMAND = "kafka-topics.sh --create"
REFUSED = "POLICY_VIOLATION: no segment.bytes"
EVERY = pytest.mark.parametrize("own", OWN.values(), ids=OWN.keys())


def missing(own: OwnTopic, outcome: Outcome) -> TopicAnswers:
    """The answers about a topic that is not there."""
    fine = outcome in {Outcome.AS_ASKED, Outcome.THERE}
    run = DryRun(own.spec.name, outcome, () if fine else (REFUSED,))
    return TopicAnswers(UnknownTopicError("not there"), run=run)


def losses(own: OwnTopic, answers: TopicAnswers) -> list[str]:
    """What the feature does without; empty texts where it does not work."""
    return [lack.without for lack in lacks_of(own, answers)]


def test_each_topic_is_made_as_its_users_make_it() -> None:
    assert list(OWN) == [
        PARKED_TOPIC,
        POLICIES_TOPIC,
        INDIVIDUAL_COMMITS_TOPIC,
        LEDGER_TOPIC,
        RANGE_ENDS_TOPIC,
    ]
    log = OWN[INDIVIDUAL_COMMITS_TOPIC].spec
    assert (log.partitions, log.replicas) == (OFFSETS_PARTITIONS, ())
    assert log.config == {"segment.bytes": "10485760"}
    beside = own_topics(Replicas(((1, 2), (2, 1)), "2"))[2].spec
    assert (beside.partitions, beside.replicas) == (2, ((1, 2), (2, 1)))
    assert beside.config["min.insync.replicas"] == "2"
    assert beside.wishes == log.wishes


@EVERY
def test_a_topic_that_may_be_made_or_used_costs_nothing(own: OwnTopic) -> None:
    for answers in (
        missing(own, Outcome.AS_ASKED),
        TopicAnswers(frozenset({"READ", "WRITE"}), COMPACTED),
        TopicAnswers(None, None),
    ):
        assert losses(own, answers) == []
        assert finding_of(own, answers, COMMAND).level == "green"


@EVERY
def test_a_topic_that_cannot_be_made(own: OwnTopic) -> None:
    for outcome in (Outcome.REFUSED, Outcome.FORBIDDEN):
        answers = missing(own, outcome)
        found = finding_of(own, answers, COMMAND)
        assert found.level == "yellow"
        assert found.text.endswith(f"cannot be made ({own.user}): {REFUSED}")
        assert found.remedy == f"let who may make topics run: {COMMAND}"
        assert losses(own, answers) == [own.whole]
    assert losses(own, missing(own, Outcome.UNKNOWN)) == ["certainty"]
    assert finding_of(own, missing(own, Outcome.UNKNOWN), COMMAND).level == "yellow"


def test_settings_that_are_refused_cost_what_they_are_for() -> None:
    lacking = {
        name: {outcome: losses(own, missing(own, outcome)) for outcome in Outcome}
        for name, own in OWN.items()
    }
    for name in (PARKED_TOPIC, POLICIES_TOPIC):
        assert lacking[name][Outcome.LESS] == lacking[name][Outcome.WITHOUT_WISHES] == []
    for name, what in (
        (INDIVIDUAL_COMMITS_TOPIC, "a short log"),
        (LEDGER_TOPIC, "a short ledger"),
        (RANGE_ENDS_TOPIC, "a short topic of ends"),
    ):
        assert lacking[name][Outcome.LESS][0].startswith(what)
        assert lacking[name][Outcome.WITHOUT_WISHES][0].startswith("early compaction")
    own = OWN[INDIVIDUAL_COMMITS_TOPIC]
    assert lacking[own.spec.name][Outcome.ELSEWHERE] == [
        "a log on the brokers that coordinate its groups"
    ]
    found = finding_of(own, missing(own, Outcome.LESS), COMMAND)
    assert found.level == "yellow"
    assert found.text.endswith(f"but not as asked for: {REFUSED}")


@EVERY
def test_a_topic_that_may_not_be_used(own: OwnTopic) -> None:
    hidden = TopicAnswers(AuthorizationError("not authorized to describe it"))
    useless = TopicAnswers(frozenset({"DESCRIBE"}), COMPACTED)
    for answers in (hidden, useless):
        found = finding_of(own, answers, COMMAND)
        assert (found.level, found.remedy[:10]) == (own.level, "grant Read")
        assert losses(own, answers) == [own.whole]


@EVERY
def test_a_topic_that_deletes_is_red_and_is_mended_by_one_setting(own: OwnTopic) -> None:
    answers = TopicAnswers(frozenset({"READ", "WRITE"}), DELETES)
    found = finding_of(own, answers, COMMAND)
    assert found.level == own.level
    assert "deletes old records" in found.text
    assert found.remedy.endswith("--add-config cleanup.policy=compact")
    assert losses(own, answers) == [own.whole]


def test_only_policies_can_be_done_without() -> None:
    assert {own.feature for own in OWN.values() if own.whole} == {Feature.SOURCE}
