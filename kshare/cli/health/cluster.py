"""Kafka's part of ``kshare doctor``: brokers, login, rights, clocks, and reports to planners."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from kshare.cli.health.finding import Finding, Level
from kshare.cluster.examination import ExaminedCluster
from kshare.cluster.topics import (
    INDIVIDUAL_COMMITS_TOPIC,
    LEDGER_TOPIC,
    PARKED_TOPIC,
    POLICIES_TOPIC,
)
from kshare.errors import KafkaError, UnknownTopicError
from kshare.feedback.report import TaskReport
from kshare.feedback.server import FeedbackServer
from kshare.options import KafkaConfig, Subscribe

__all__ = ["examine_cluster", "examine_feedback"]

_AHEAD_MAX_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _OwnTopic:
    """A topic of kshare's own, and who needs what of it."""

    name: str
    operations: frozenset[str]
    user: str
    level: Level


_READ: Final = frozenset({"READ"})
_READ_WRITE: Final = frozenset({"READ", "WRITE"})
_OWN_TOPICS: Final = (
    _OwnTopic(PARKED_TOPIC, _READ, "every query", "red"),
    _OwnTopic(POLICIES_TOPIC, _READ, "every query", "red"),
    _OwnTopic(INDIVIDUAL_COMMITS_TOPIC, _READ_WRITE, "key-shared groups", "yellow"),
    _OwnTopic(LEDGER_TOPIC, _READ_WRITE, "exactlyOnce sinks", "yellow"),
)


def examine_cluster(
    kafka: KafkaConfig, topic: str | None, *, clock: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Connect, and look at what the principal may do.

    Args:
        kafka: How to reach the cluster.
        topic: A topic that a query shall read; None for none.
        clock: Seconds since 1970.
    """
    with closing(ExaminedCluster(kafka)) as cluster:
        try:
            brokers = cluster.brokers()
            yield Finding("brokers", "green", f"{len(brokers)} answer: {', '.join(brokers)}")
            if topic is not None:
                yield from _topic(cluster, topic, clock)
            yield from _own_topics(cluster)
        except KafkaError as error:
            remedy = "check the address, kafka.security.protocol and the login"
            yield Finding("brokers", "red", str(error), remedy)


def _topic(cluster: ExaminedCluster, topic: str, clock: Callable[[], float]) -> Iterator[Finding]:
    check = f"topic {topic}"
    try:
        partitions = cluster.partitions(Subscribe((topic,)))
        first, end = cluster.earliest(partitions), cluster.latest(partitions)
    except KafkaError as error:
        remedy = "" if isinstance(error, UnknownTopicError) else "grant Read and Describe on it"
        yield Finding(check, "red", str(error), remedy or "name one that is there")
        return
    may = cluster.rights([topic])[topic]
    offsets = sum(end[each] - first[each] for each in partitions)
    text = f"{len(partitions)} partitions, {offsets:,} offsets"
    if isinstance(may, frozenset) and "READ" not in may:
        yield Finding(check, "red", f"{text}; it may not be read", "grant Read on it")
    elif isinstance(may, frozenset) and "DESCRIBE_CONFIGS" not in may:
        text += "; its configuration may not be read: no warning before retention deletes records"
        yield Finding(check, "yellow", text, "grant DescribeConfigs on it")
    else:
        yield Finding(check, "green", text)
    newest = cluster.newest_ms(partitions)
    if newest is not None:
        yield _clocks(newest / 1000 - clock())


def _clocks(ahead: float) -> Finding:
    if ahead > _AHEAD_MAX_SECONDS:
        text = f"the newest record is {ahead:.1f} s in the future of this machine"
        return Finding("clocks", "yellow", text, "synchronise this clock and those of producers")
    return Finding("clocks", "green", f"the newest record is {max(-ahead, 0):.1f} s old")


def _own_topics(cluster: ExaminedCluster) -> Iterator[Finding]:
    rights = cluster.rights([own.name for own in _OWN_TOPICS])
    for own in _OWN_TOPICS:
        may = rights[own.name]
        names = " and ".join(name.capitalize() for name in sorted(own.operations))
        remedy = f"grant {names} on {own.name}"
        if isinstance(may, UnknownTopicError):
            text = f"is not there; made when it is first written ({own.user})"
            yield Finding(own.name, "green", text)
        elif isinstance(may, KafkaError):
            yield Finding(own.name, own.level, f"{may}; {own.user} need it", remedy)
        elif may is not None and not own.operations <= may:
            lacking = ", ".join(name.capitalize() for name in sorted(own.operations - may))
            yield Finding(own.name, own.level, f"no {lacking}; {own.user} need it", remedy)
        else:
            yield Finding(own.name, "green", f"may be used ({own.user})")


def examine_feedback(kafka: KafkaConfig) -> Finding:
    """Listen as a planner does on this machine, and connect as a task would."""
    server = FeedbackServer(kafka.bootstrap_servers[0])
    with closing(server):
        if server.start():
            ticket = server.ticket("doctor", 0, hold=False)
            report = TaskReport(ticket)
            report.begin()
            if report.connected:
                report.close()
                text = f"tasks on this machine reach the planner at {ticket.host}"
                return Finding("feedback", "green", f"{text}; from others, any port there")
    remedy = "let executors connect to the driver's machine; without, only whole batches are timed"
    return Finding("feedback", "yellow", "tasks cannot report to a planner on this machine", remedy)
