"""Whole partitions by Kafka's range assignor, in a group with members that are no kshare consumers.

::

    kshare-range-v1,range    kshare-range-v1,range    range
            kshare                  kshare            plain  -->  the group votes for `range`

Laws: each partition of a topic has one of its subscribers, the numbers of partitions of two
subscribers of a topic differ by one at most, and each one's partitions of a topic are adjacent.
Equal input gives equal plans, also those of Java's assignor; librdkafka's has another order where
some members are static and others are not.

Source: ``org.apache.kafka.clients.consumer.RangeAssignor``, without racks (KIP-881).
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError
from kshare.group.protocol.consumer_protocol import decode_topics, encode_partitions
from kshare.group.protocol.subscription import (
    MemberAssignment,
    decode_subscription,
    denied_to,
    encode_assignment,
    in_order,
    is_of_kshare,
)

__all__ = ["RANGE", "RangePlan", "plan_range", "range_assignment", "topics_of_all"]

RANGE: Final = "range"
"""The name of the protocol, as all of Kafka's clients call it."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """A generation of whole partitions.

    Attributes:
        assignments: What each member is sent, by its id.
        plain: Ids of the members that are no kshare consumers, in order.
        refusals: Why members take no part, by their ids.
    """

    assignments: Mapping[str, bytes]
    plain: tuple[str, ...]
    refusals: Mapping[str, str]


def range_assignment(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, int],
    instances: Mapping[str, str],
) -> dict[str, list[TopicPartition]]:
    """Kafka's range assignor: of each topic, adjacent partitions for each subscriber.

    Args:
        subscriptions: The topics of each member, by its id.
        partitions: Number of partitions of each topic; topics that are missing get no member.
        instances: The ``group.instance.id`` of each static member, by its id.

    Returns:
        The partitions of each member, by topic, ascending.
    """

    def rank(member: str) -> tuple[bool, bytes]:
        """Static members first, then by id; Java compares UTF-16."""
        static = member in instances
        return not static, instances.get(member, member).encode("utf-16-be")

    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    members = sorted(subscriptions, key=rank)
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        subscribers = [member for member in members if topic in subscriptions[member]]
        least, extra = divmod(partitions.get(topic, 0), len(subscribers))
        first = 0
        for i, member in enumerate(subscribers):
            end = first + least + (i < extra)
            assigned[member] += (TopicPartition(topic, number) for number in range(first, end))
            first = end
    return assigned


def plan_range(
    members: Mapping[str, bytes],
    partitions: Mapping[str, int],
    instances: Mapping[str, str],
    *,
    denied: Collection[str] = (),
) -> RangePlan:
    """Plan a generation of whole partitions.

    Members of kshare are sent user data, so that brokers do not convert the group.

    Args:
        members: What each member has said, by its id.
        partitions: Number of partitions of each topic that exists.
        instances: The ``group.instance.id`` of each static member, by its id.
        denied: Topics that the leader may not describe; they have no partitions.
    """
    topics: dict[str, Collection[str]] = {}
    plain, refusals = [], {}
    for member, data in members.items():
        try:
            names, user_data = decode_topics(data)
            if is_of_kshare(user_data):
                decode_subscription(data, member)
            else:
                plain.append(member)
            topics[member] = set(names)
        except (ForeignMemberError, ValueError) as error:
            refusals[member] = str(error)
    sent = {
        member: encode_assignment(MemberAssignment((), None, refusal=refusal))
        for member, refusal in refusals.items()
    }
    for member, mine in range_assignment(topics, partitions, instances).items():
        hidden = denied_to(topics[member], denied)
        whole = MemberAssignment(in_order(dict.fromkeys(mine, ())), None, denied=hidden)
        sent[member] = encode_partitions(mine) if member in plain else encode_assignment(whole)
    return RangePlan(sent, tuple(sorted(plain)), refusals)


def topics_of_all(members: Mapping[str, bytes]) -> set[str]:
    """The topics to which members have subscribed, also those that are no kshare consumers."""
    topics: set[str] = set()
    for data in members.values():
        with suppress(ValueError):
            topics.update(decode_topics(data)[0])
    return topics
