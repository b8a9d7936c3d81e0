"""Looks at what a cluster offers, refuses and hides: for ``kshare doctor``, which makes nothing.

Guarantees: every request is one that reads, or one that is checked and not carried out
(``validate_only``). In particular no coordinator is asked for, as brokers then make a topic.

Cost: a connection to each broker, one after another; a request for each topic of ours and way to
make it.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource

from kshare.errors import KafkaError
from kshare.kafka.client import code_of, has_timed_out, kind_of
from kshare.kafka.examination import ExaminedCluster
from kshare.kafka.protocol.connection import Connection
from kshare.kafka.protocol.error_codes import ErrorCode, Kind
from kshare.kafka.topic_creation import answer_to, refusal_text
from kshare.kafka.topic_request import TopicRequest, left_out, next_request
from kshare.kafka.topics import TopicSpec
from kshare.options import KafkaConfig

__all__ = [
    "ApiRanges",
    "DryRun",
    "Outcome",
    "Replicas",
    "Service",
    "api_ranges",
    "narrowest",
]

ApiRanges = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each request, by its number in Kafka's protocol."""

_OFFSETS_TOPIC: Final = "__consumer_offsets"
_UNSUPPORTED: Final = RdKafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001


class Outcome(Enum):
    """The outcome of asking whether a topic could be made, from the best to the worst."""

    THERE = "it is there"
    AS_ASKED = "it can be made as it is asked for"
    WITHOUT_WISHES = "it can be made without the settings that are only wished"
    ELSEWHERE = "it can be made on other brokers"
    LESS = "it can be made with less than is asked for, at least cleanup.policy=compact"
    UNKNOWN = "nobody answers"
    REFUSED = "it cannot be made"
    FORBIDDEN = "this login may not make it"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answers of brokers about a topic of ours, asked with ``validate_only``.

    Attributes:
        topic: Its name.
        outcome: What came of it.
        refusals: What they said to each way that they refused, the first way first.
    """

    topic: str
    outcome: Outcome
    refusals: tuple[str, ...] = ()


class Replicas(NamedTuple):
    """The partitions of a topic, and where they lie.

    Attributes:
        nodes: Node ids of the replicas of each partition.
        in_sync: ``min.insync.replicas``; None if brokers do not say.
    """

    nodes: tuple[tuple[int, ...], ...]
    in_sync: str | None


class Service(ExaminedCluster):
    """A cluster, and what it lets this login do.

    Every method raises a :class:`~kshare.errors.KafkaError` if the cluster does not answer within
    ``default.api.timeout.ms``, or refuses.
    """

    def settings(self) -> dict[str, str]:
        """The settings of one of the brokers, by name, as far as it says them."""
        resource = ConfigResource(ConfigResource.Type.BROKER, str(self._nodes()[0].id))
        return self._settings_of(resource, "describe a broker's configuration")

    def offsets_topic(self) -> Replicas:
        """The topic in which Kafka keeps the offsets of groups.

        Raises:
            UnknownTopicError: It is not there, or this login may not see it.
            AuthorizationError: This login may not describe it.
        """
        described = self._described([_OFFSETS_TOPIC], self._deadline())[_OFFSETS_TOPIC]
        nodes = tuple(
            tuple(node.id for node in partition.replicas) for partition in described.partitions
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, _OFFSETS_TOPIC)
        settings: dict[str, str] = {}
        with suppress(KafkaError):  # members do without it, too
            settings = self._settings_of(
                resource, f"describe the configuration of {_OFFSETS_TOPIC}"
            )
        return Replicas(nodes, settings.get("min.insync.replicas"))

    def dry_run(self, spec: TopicSpec) -> DryRun:
        """Ask whether a topic could be made, for less where more is refused; nothing is made."""
        request: TopicRequest | None = TopicRequest.first(spec)
        refusals: dict[str, None] = {}
        while request is not None:
            error = answer_to(self._client.handle, self._kafka, request, validate_only=True)
            if error is None:
                return DryRun(spec.name, _outcome(request), tuple(refusals))
            code = code_of(error)
            if code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return DryRun(spec.name, Outcome.THERE)
            refusals["no CreateTopics" if code == _UNSUPPORTED else refusal_text(error)] = None
            if kind_of(error) is Kind.AUTHORIZATION:
                return DryRun(spec.name, Outcome.FORBIDDEN, tuple(refusals))
            if has_timed_out(error):
                return DryRun(spec.name, Outcome.UNKNOWN, tuple(refusals))
            request = next_request(request, code)
        return DryRun(spec.name, Outcome.REFUSED, tuple(refusals))

    def _settings_of(self, resource: ConfigResource, what: str) -> dict[str, str]:
        answers = self._asked(
            lambda client, seconds: client.describe_configs([resource], request_timeout=seconds),
            self._deadline(),
        )
        try:
            entries = answers[resource].result(timeout=0)
        except (KafkaException, TimeoutError) as error:
            if code_of(error) == _UNSUPPORTED:
                return {}
            raise self._error(error, what) from None
        return {name: each.value for name, each in entries.items() if each.value is not None}


def _outcome(request: TopicRequest) -> Outcome:
    """The outcome if brokers take a request."""
    lacking = left_out(request).keys()
    if not lacking:
        return Outcome.AS_ASKED
    if lacking <= request.spec.wishes.keys():
        return Outcome.WITHOUT_WISHES
    return Outcome.ELSEWHERE if lacking == {"replicas"} else Outcome.LESS


def api_ranges(kafka: KafkaConfig, broker: str) -> ApiRanges:
    """The versions of requests that a broker speaks, by a connection of its own.

    Args:
        kafka: How to reach the cluster.
        broker: The broker, as ``host:port``.

    Raises:
        KafkaError: The broker refuses the connection or the login, or speaks no version of ours.
        OSError: The broker does not answer.
    """
    host, _, port = broker.rpartition(":")
    with closing(Connection(host, int(port), kafka)) as connection:
        return connection.api_versions


def narrowest(ranges: Iterable[ApiRanges]) -> dict[int, tuple[int, int]]:
    """The versions that all of some brokers speak; a request that one of them lacks is left out."""
    common: dict[int, tuple[int, int]] | None = None
    for each in ranges:
        if common is None:
            common = dict(each)
            continue
        both = common.keys() & each.keys()
        pairs = {key: (common[key], each[key]) for key in both}
        common = {key: (max(a[0], b[0]), min(a[1], b[1])) for key, (a, b) in pairs.items()}
    return {key: pair for key, pair in (common or {}).items() if pair[0] <= pair[1]}
