"""The topics that kshare keeps for itself, and those of Kafka: no subscription reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "INDIVIDUAL_COMMITS_TOPIC",
    "INTERNAL_TOPICS",
    "LEDGER_TOPIC",
    "MAKES_NONE",
    "PARKED_TOPIC",
    "POLICIES_TOPIC",
    "RANGE_ENDS_TOPIC",
    "TopicSpec",
    "is_internal",
]

PARKED_TOPIC: Final = "__kshare_parked_keys"
LEDGER_TOPIC: Final = "__kshare_sink_ledger"
INDIVIDUAL_COMMITS_TOPIC: Final = "__individual_commit_offsets"
POLICIES_TOPIC: Final = "__kshare_policies"
RANGE_ENDS_TOPIC: Final = "__kshare_range_ends"

MAKES_NONE: Final[Mapping[str, Any]] = {"allow.auto.create.topics": False}
"""For producers that write to these topics, by librdkafka's names.

Else brokers may make one that was deleted as soon as it is written to, with their own defaults: it
deletes old records.
"""

INTERNAL_TOPICS: Final = frozenset(
    {
        PARKED_TOPIC,
        LEDGER_TOPIC,
        INDIVIDUAL_COMMITS_TOPIC,
        POLICIES_TOPIC,
        RANGE_ENDS_TOPIC,
        "__consumer_offsets",
        "__share_group_state",
        "__transaction_state",
    }
)
"""The topics that no ``subscribePattern`` matches; see :func:`is_internal`."""


def is_internal(topic: str) -> bool:
    """True if no ``subscribePattern`` matches a topic.

    Logs of individual commits that ``individual.commit.topic`` names, ledgers that ``ledgerTopic``
    names, and logs of ends that ``realTime.topic`` names are known by how their names begin.
    """
    named = (INDIVIDUAL_COMMITS_TOPIC, LEDGER_TOPIC, RANGE_ENDS_TOPIC)
    return topic in INTERNAL_TOPICS or topic.startswith(named)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Settings of a compacted topic, for its creation on first use.

    Attributes:
        name: Name of the topic.
        partitions: Number of partitions.
        config: Topic configuration; ``cleanup.policy`` is always ``compact``.
        replicas: Node ids of the replicas of each partition; empty if the brokers choose, with
            their default replication factor.
        wishes: More topic configuration. A broker may know none of it, or a service may not allow
            it: then the topic is made without.
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[tuple[int, ...], ...] = ()
    wishes: Mapping[str, str] = field(default_factory=dict)
