"""kshare's own topics, as ``kshare doctor`` judges whether they can be made and used."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kshare.cli.features import Feature, Lack
from kshare.cli.findings import Finding, Level
from kshare.errors import KafkaError, UnknownTopicError
from kshare.group.config.table import LOG_SEGMENT_BYTES
from kshare.group.log.topic import OFFSETS_PARTITIONS, log_spec
from kshare.kafka.end_log import RANGE_ENDS_SPEC
from kshare.kafka.parked_keys import ParkedKeys
from kshare.kafka.policies import Policies
from kshare.kafka.service import DryRun, Outcome, Replicas
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topics import INDIVIDUAL_COMMITS_TOPIC, TopicSpec
from kshare.query.produce.ledger import LEDGER_SPEC

__all__ = ["OwnTopic", "TopicAnswers", "finding_of", "lacks_of", "own_topics"]

_READ: Final = frozenset({"READ"})
_READ_WRITE: Final = frozenset({"READ", "WRITE"})
_DELETES: Final = "deletes old records: its cleanup.policy is not compact alone"


@dataclass(frozen=True, slots=True)
class OwnTopic:
    """A topic of kshare's own, and who needs what of it.

    Attributes:
        spec: How it is made.
        feature: The feature that needs it.
        operations: The rights that its users need.
        user: Who uses it.
        needs: The verb of that.
        level: How bad it is if they cannot.
        plain: What the feature does without if the topic has no settings but
            ``cleanup.policy=compact``; None if nothing.
        wishes: What it does without if the topic lacks what is only wished; None if nothing is.
        whole: What it does without if the topic is not there; empty if it does not work.
    """

    spec: TopicSpec
    feature: Feature
    operations: frozenset[str]
    user: str
    needs: str
    level: Level
    plain: str | None = None
    wishes: str | None = None
    whole: str = ""


@dataclass(frozen=True, slots=True)
class TopicAnswers:
    """The answers of brokers about one of the topics.

    Attributes:
        rights: Permitted operations; the error if it is not described; None if brokers do not say.
        config: Its configuration; None if it is not there, or not known.
        run: Whether it could be made; None if it is there.
    """

    rights: frozenset[str] | KafkaError | None
    config: TopicConfig | None = None
    run: DryRun | None = None

    @property
    def is_missing(self) -> bool:
        """True if the topic is not there."""
        return isinstance(self.rights, UnknownTopicError)


def own_topics(offsets: Replicas | None) -> tuple[OwnTopic, ...]:
    """The topics that kshare makes on first use.

    Args:
        offsets: Kafka's topic of offsets, as which the log of groups is made; None if it is not
            shown, or not there: the first group has brokers make it.
    """
    replicas, in_sync = offsets or ((), None)
    return (
        OwnTopic(
            ParkedKeys.spec, Feature.PARKED_KEYS, _READ, user="every query", needs="needs",
            level="red",
        ),
        OwnTopic(
            Policies.spec, Feature.SOURCE, _READ, user="every query", needs="needs", level="red",
            whole="policies",
        ),
        OwnTopic(
            log_spec(
                INDIVIDUAL_COMMITS_TOPIC, LOG_SEGMENT_BYTES, replicas, in_sync, OFFSETS_PARTITIONS
            ),
            Feature.GROUPS, _READ_WRITE, user="key-shared groups", needs="need", level="yellow",
            plain="a short log: members read more when they start",
            wishes="early compaction: members read more when they start",
        ),
        OwnTopic(
            LEDGER_SPEC, Feature.EXACTLY_ONCE, _READ_WRITE, user="exactlyOnce sinks", needs="need",
            level="yellow",
            plain="a short ledger, and room in it for batches of very many tasks",
            wishes="early compaction of the ledger: drivers read more when they start",
        ),
        OwnTopic(
            RANGE_ENDS_SPEC, Feature.REAL_TIME, _READ_WRITE, user="realTime queries", needs="need",
            level="yellow",
            plain="a short topic of ends: it takes more room before it is compacted",
            wishes="early compaction of the topic of ends: it takes more room",
        ),
    )  # fmt: skip


def finding_of(own: OwnTopic, answers: TopicAnswers, command: str) -> Finding:
    """The finding about a topic.

    Args:
        own: The topic.
        answers: What brokers say of it.
        command: The command that makes it by hand.
    """
    name, rights, run = own.spec.name, answers.rights, answers.run
    names = " and ".join(each.capitalize() for each in sorted(own.operations))
    remedy = f"grant {names} on {name}"
    if run is not None and isinstance(rights, UnknownTopicError):
        return _missing(own, run, command)
    if isinstance(rights, KafkaError):
        return Finding(name, own.level, f"{rights}; {own.user} {own.needs} it", remedy)
    if rights is not None and not own.operations <= rights:
        lacking = ", ".join(each.capitalize() for each in sorted(own.operations - rights))
        return Finding(name, own.level, f"no {lacking}; {own.user} {own.needs} it", remedy)
    if answers.config is not None and answers.config.deletes_last_values:
        return Finding(name, own.level, f"{_DELETES}; {own.user} {own.needs} it", _compacting(name))
    return Finding(name, "green", f"may be used ({own.user})")


def _missing(own: OwnTopic, run: DryRun, command: str) -> Finding:
    name, made = own.spec.name, f"made when it is first written ({own.user})"
    match run.outcome:
        case Outcome.WITHOUT_WISHES | Outcome.ELSEWHERE | Outcome.LESS:
            text = f"is not there; {made}, but not as asked for: {run.refusals[0]}"
            return Finding(name, "yellow", text)
        case Outcome.FORBIDDEN | Outcome.REFUSED:
            text = f"is not there, and cannot be made ({own.user}): {run.refusals[-1]}"
            return Finding(name, "yellow", text, f"let who may make topics run: {command}")
        case Outcome.UNKNOWN:
            text = f"is not there, and nobody says whether it can be made: {run.refusals[-1]}"
            return Finding(name, "yellow", text)
    return Finding(name, "green", f"is not there; {made}")


def _compacting(name: str) -> str:
    return (
        f"kafka-configs.sh --alter --entity-type topics --entity-name {name} "
        "--add-config cleanup.policy=compact"
    )


def lacks_of(own: OwnTopic, answers: TopicAnswers) -> Iterator[Lack]:
    """The lacks of a feature for the answers about its topic; its finding has the remedy."""
    topic, rights = f"topic {own.spec.name}", answers.rights
    if answers.run is not None and isinstance(rights, UnknownTopicError):
        yield from _lacks_of_run(own, answers.run)
    elif isinstance(rights, KafkaError):
        yield Lack(own.feature, f"{topic} may not be described", own.whole)
    elif rights is not None and not own.operations <= rights:
        lacking = " and ".join(each.capitalize() for each in sorted(own.operations - rights))
        yield Lack(own.feature, f"no right to {lacking} on {topic}", own.whole)
    elif answers.config is not None and answers.config.deletes_last_values:
        yield Lack(own.feature, f"{topic} {_DELETES}", own.whole)


def _lacks_of_run(own: OwnTopic, run: DryRun) -> Iterator[Lack]:
    topic = f"topic {own.spec.name}"
    match run.outcome:
        case Outcome.WITHOUT_WISHES if own.wishes is not None:
            yield Lack(own.feature, f"{topic} is refused as it is asked for", own.wishes)
        case Outcome.ELSEWHERE:
            loss = "a log on the brokers that coordinate its groups"
            yield Lack(own.feature, f"{topic} is refused as it is asked for", loss)
        case Outcome.LESS if own.plain is not None:
            yield Lack(own.feature, f"{topic} is refused as it is asked for", own.plain)
        case Outcome.FORBIDDEN | Outcome.REFUSED:
            text = f"{topic} is not there, and cannot be made"
            yield Lack(own.feature, text, own.whole)
        case Outcome.UNKNOWN:
            yield Lack(own.feature, f"nobody says whether {topic} can be made", "certainty")
