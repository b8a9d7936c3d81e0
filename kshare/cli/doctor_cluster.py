"""The part of ``kshare doctor`` that looks at a cluster.

Guarantees: nothing is made or changed. What is refused is a finding, and ends no other check; a
cluster that does not answer any more ends the look, with a finding.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from kshare.cli.doctor_topics import TopicAnswers, finding_of, lacks_of, own_topics
from kshare.cli.features import (
    Ability,
    Feature,
    Lack,
    Verdict,
    judged,
    lacks_of_apis,
    lacks_of_settings,
    text_of_api,
)
from kshare.cli.findings import Finding, Level
from kshare.cli.output import counted, duration
from kshare.core.listing import join_names
from kshare.errors import KafkaError, UnknownTopicError
from kshare.kafka.client import servers
from kshare.kafka.listening import COMMAND_SECONDS, check_listening
from kshare.kafka.protocol import apis
from kshare.kafka.service import ApiRanges, Replicas, Service, api_ranges, narrowest
from kshare.kafka.topic_request import by_hand
from kshare.options import KafkaConfig, Subscribe

__all__ = ["examine_cluster"]

_AHEAD_MAX_SECONDS: Final = 5.0
_SILENT_MAX: Final = 3
"""Number of brokers without an answer after which no further one is asked."""
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_TRANSACTIONS_TOPIC: Final = "__transaction_state"
_SHOWN: Final = (
    "message.max.bytes",
    "min.insync.replicas",
    "default.replication.factor",
    "delete.topic.enable",
)
"""Settings of brokers that are shown."""


@dataclass(slots=True)
class _Seen:
    """Facts that the checks have learned, for the verdicts.

    Attributes:
        brokers: The brokers, as ``host:port``.
        offsets: Kafka's topic of offsets; None if it is not there, or not shown.
        missing: Topics of Kafka's own that are not there.
        lacks: What lacks.
    """

    brokers: list[str] = field(default_factory=list)
    offsets: Replicas | None = None
    missing: set[str] = field(default_factory=set)
    lacks: list[Lack] = field(default_factory=list)


def examine_cluster(
    kafka: KafkaConfig, topic: str | None, asked: Collection[Feature] = (Feature.SOURCE,)
) -> Iterator[Finding]:
    """Connect, and look at what the cluster offers, and what the principal may do.

    Args:
        kafka: How to reach the cluster.
        topic: A topic that a query shall read; None for none.
        asked: The features that have to work.
    """
    try:
        check_listening(kafka, COMMAND_SECONDS)
    except KafkaError as error:
        remedy = "start a broker there, or give the address of one"
        yield Finding("brokers", "red", str(error), remedy)
        return
    seen = _Seen()
    with closing(Service(kafka)) as cluster:
        try:
            seen.brokers = cluster.brokers()
            text = f"{len(seen.brokers)} answer: {', '.join(seen.brokers)}"
            yield Finding("brokers", "green", text)
            if topic is not None:
                yield from _topic(cluster, topic)
            yield from _apis(kafka, seen)
            yield _offsets_topic(cluster, seen)
            yield from _own_topics(cluster, kafka, seen)
            yield _settings(cluster, seen)
        except KafkaError as error:
            remedy = "check the address, kafka.security.protocol and the login"
            yield Finding("brokers", "red", str(error), remedy)
            return
    for verdict in judged(seen.lacks):
        yield _feature(verdict, is_asked=verdict.feature in asked)


def _topic(cluster: Service, topic: str) -> Iterator[Finding]:
    check = f"topic {topic}"
    try:
        partitions = cluster.partitions(Subscribe((topic,)))
        first, end = cluster.earliest(partitions), cluster.latest(partitions)
    except KafkaError as error:
        said, remedy = str(error).removeprefix(f"{check} "), "grant Read and Describe on it"
        if isinstance(error, UnknownTopicError):
            said, _, question = said.partition("; ")
            remedy = question or "name one that is there"
        yield Finding(check, "red", said, remedy)
        return
    may = cluster.rights([topic])[topic]
    offsets = sum(end[each] - first[each] for each in partitions)
    text = f"{counted(len(partitions), 'partition')}, {counted(offsets, 'offset')}"
    if isinstance(may, frozenset) and "READ" not in may:
        yield Finding(check, "red", f"{text}; it may not be read", "grant Read on it")
    elif isinstance(may, frozenset) and "DESCRIBE_CONFIGS" not in may:
        text += "; its configuration may not be read: no warning before retention deletes records"
        yield Finding(check, "yellow", text, "grant DescribeConfigs on it")
    else:
        yield Finding(check, "green", text)
    newest = cluster.newest_ms(partitions)
    if newest is not None:
        yield _clocks(newest / 1000 - time.time())


def _clocks(ahead: float) -> Finding:
    if ahead > _AHEAD_MAX_SECONDS:
        text = f"the newest record is {duration(ahead)} in the future of this machine"
        return Finding("clocks", "yellow", text, "synchronise this clock and those of producers")
    return Finding("clocks", "green", f"the newest record is {duration(-ahead)} old")


def _apis(kafka: KafkaConfig, seen: _Seen) -> Iterator[Finding]:
    """Ask each broker which requests it knows, and judge by those that all know."""
    ranges: list[ApiRanges] = []
    silent: list[str] = []
    for broker in seen.brokers:
        try:
            ranges.append(api_ranges(kafka, broker))
        except (KafkaError, OSError) as error:
            silent.append(broker)
            text = f"broker {broker} does not tell what it can do: {error}"
            remedy = "look whether this machine reaches its advertised.listeners"
            yield Finding("API versions", "red", text, remedy)
            if len(silent) == _SILENT_MAX:
                break
    if ranges:
        yield _judged_apis(narrowest(ranges), seen)
    else:
        seen.lacks += [Lack(each, "no broker tells what it can do") for each in Feature]


def _judged_apis(common: ApiRanges, seen: _Seen) -> Finding:
    # Who has asked has logged in.
    uses = {lack: {*lack.api.needed_by} - {apis.Feature.LOGIN} for lack in apis.lacks(common)}
    lacking = [lack for lack, of_others in uses.items() if of_others]
    seen.lacks += lacks_of_apis(lacking)
    if not lacking:
        return Finding("API versions", "green", "all requests that kshare sends are known")
    return Finding("API versions", "yellow", join_names(map(text_of_api, lacking), 20))


def _offsets_topic(cluster: Service, seen: _Seen) -> Finding:
    check = _OFFSETS_TOPIC
    try:
        seen.offsets = cluster.offsets_topic()
    except UnknownTopicError:
        seen.missing.add(_OFFSETS_TOPIC)
        text = "is not there, or not shown; brokers make it for the first group"
        return Finding(check, "green", text)
    except KafkaError as error:
        without = "a log on the brokers that coordinate its groups"
        seen.lacks.append(Lack(Feature.GROUPS, f"{check} may not be described", without))
        return Finding(
            check, "yellow", str(error), f"grant Describe and DescribeConfigs on {check}"
        )
    fewest = min(map(len, seen.offsets.nodes))
    partitions = counted(len(seen.offsets.nodes), "partition")
    in_sync = (
        "" if seen.offsets.in_sync is None else f", min.insync.replicas={seen.offsets.in_sync}"
    )
    return Finding(check, "green", f"{partitions}, {counted(fewest, 'replica')}{in_sync}")


def _settings(cluster: Service, seen: _Seen) -> Finding:
    try:
        settings = cluster.settings()
    except KafkaError as error:
        text = f"cannot be read: {error}"
        return Finding("broker settings", "yellow", text, "grant DescribeConfigs on the cluster")
    found = lacks_of_settings(settings, len(seen.brokers), seen.missing)
    seen.lacks += found
    shown = [f"{name}={settings[name]}" for name in _SHOWN if name in settings]
    text = join_names(shown) or "brokers say none of them"
    return Finding("broker settings", "yellow" if found else "green", text)


def _own_topics(cluster: Service, kafka: KafkaConfig, seen: _Seen) -> Iterator[Finding]:
    owned = own_topics(seen.offsets)
    names = [own.spec.name for own in owned]
    rights = cluster.rights([*names, _TRANSACTIONS_TOPIC])
    if isinstance(rights[_TRANSACTIONS_TOPIC], UnknownTopicError):
        seen.missing.add(_TRANSACTIONS_TOPIC)
    there = [name for name in names if not isinstance(rights[name], KafkaError)]
    configs = cluster.topic_configs(there)
    whom, needs_login = servers(kafka).replace(" ", ""), kafka.uses_tls or kafka.uses_sasl
    for own in owned:
        name = own.spec.name
        is_missing = isinstance(rights[name], UnknownTopicError)
        run = cluster.dry_run(own.spec) if is_missing else None
        answers = TopicAnswers(rights[name], configs.get(name), run)
        seen.lacks += lacks_of(own, answers)
        yield finding_of(own, answers, by_hand(own.spec, whom, needs_login=needs_login))


def _feature(verdict: Verdict, *, is_asked: bool) -> Finding:
    level: Level = "yellow"
    if verdict.ability is Ability.WHOLE:
        level = "green"
    elif verdict.ability is Ability.NONE and is_asked:
        level = "red"
    return Finding(str(verdict.feature), level, verdict.text, verdict.remedy)
