"""What the group's leader says: the epoch's record, and each member's assignment.

In a group with members that are no kshare consumers it assigns whole partitions, as Kafka's range
assignor does, and writes no epoch::

    kshare-range-v1,range    kshare-range-v1,range    range
            kshare                  kshare            plain  -->  the group votes for `range`

Laws of that: each partition of a topic has one of its subscribers, the numbers of partitions of two
subscribers of a topic differ by one at most, and each one's partitions of a topic are adjacent.
Equal input gives equal plans, also those of Java's assignor; librdkafka's has another order where
some members are static and others are not.

Source: ``org.apache.kafka.clients.consumer.RangeAssignor``, without racks (KIP-881).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError
from kshare.group.protocol.commit_log.consumer_protocol import (
    COMPRESSED,
    decode_topics,
    encode_partitions,
)
from kshare.group.protocol.commit_log.records import Epoch, EpochMember
from kshare.group.protocol.commit_log.shared_settings import difference
from kshare.group.protocol.membership.subscription import (
    MemberAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    denied_to,
    encode_assignment,
    in_order,
    is_of_kshare,
)
from kshare.group.protocol.plan.group_plan import Deal, GroupPlan, plan_group

__all__ = [
    "ChooseDeal",
    "Generation",
    "RangePlan",
    "fits_topics",
    "followup_of",
    "plan_generation",
    "plan_range",
    "range_assignment",
    "topics_of",
    "topics_of_all",
]

ChooseDeal: TypeAlias = Callable[[Mapping[str, Subscription]], Deal | None]
"""Says how shared partitions are dealt, by what members have said; None: evenly."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation as its leader has planned it.

    Attributes:
        epoch: The record to write; its log offset is the epoch.
        plan: Who gets what.
        refusals: Why members take no part, by their ids.
        denied: The topics of members that the leader may not describe, by the members' ids.
        forbidden: The topics that policies keep from members that would share their partitions,
            each with its policy, by the members' ids.
        compressed: Whether all members read compressed user data.
        followup_ms: When to plan again, in ms since 1970; None for not before something changes.
            Members learn it: another one may lead the next round, and a static leader that is
            started again leads this one on.
    """

    epoch: Epoch
    plan: GroupPlan
    refusals: Mapping[str, str]
    denied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compressed: bool = False
    followup_ms: int | None = None
    forbidden: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def assignments(self, epoch: int | None, topic_id: str) -> dict[str, bytes]:
        """What each member is sent, by its id.

        Args:
            epoch: Log offset of the epoch's record; None if the leader may not write it.
            topic_id: Id of the log's topic.
        """
        sent = {
            member: encode_assignment(MemberAssignment((), None, refusal=refusal))
            for member, refusal in self.refusals.items()
        }
        # All are told that another round follows, so that nobody keeps the others waiting for it.
        is_more = self.plan.now != self.plan.target
        for member, target in self.plan.target.items():
            now = self.plan.now[member]
            later = in_order(target) if is_more else None
            denied = self.denied.get(member, ())
            assignment = MemberAssignment(
                in_order(now),
                epoch,
                later,
                topic_id,
                denied=denied,
                compressed=self.compressed,
                followup_ms=self.followup_ms,
                forbidden=self.forbidden.get(member, ()),
            )
            sent[member] = encode_assignment(assignment)
        return sent


def plan_generation(
    generation: int,
    leader: str,
    members: Mapping[str, bytes],
    partitions: Mapping[str, int],
    *,
    whole_topics: Mapping[str, str] | None = None,
    denied: Collection[str] = (),
    choose_deal: ChooseDeal | None = None,
) -> Generation:
    """Plan a generation.

    Args:
        generation: The generation.
        leader: Name of the leader's session.
        members: What each member has said, by its id.
        partitions: Number of partitions of each topic that exists.
        whole_topics: Topics whose partitions are not to be shared, each with the policy that says
            so. Members without key order, who share all that they read, have none of them.
        denied: Topics that the leader may not describe; they have no partitions.
        choose_deal: Says how shared partitions are dealt, by what members have said; None: evenly.
    """
    whole_topics = whole_topics or {}
    subscriptions, refusals = _read(members)
    refusals |= _refuse_other_orders(subscriptions)
    refusals |= _refuse_other_settings(subscriptions, leader)
    deal_shared = None if choose_deal is None else choose_deal(subscriptions)
    plan = plan_group(subscriptions, partitions, whole_topics=whole_topics, deal_shared=deal_shared)
    listed = tuple(
        EpochMember(said.name, member, said.host, in_order(plan.now[member]))
        for member, said in sorted(subscriptions.items(), key=lambda pair: (pair[1].name, pair[0]))
    )
    hidden = {member: denied_to(said.topics, denied) for member, said in subscriptions.items()}
    forbidden = {
        member: tuple((name, whole_topics[name]) for name in denied_to(said.topics, whole_topics))
        for member, said in subscriptions.items()
        if not said.ordered
    }
    compressed = all(said.reads >= COMPRESSED for said in subscriptions.values())
    epoch = Epoch(generation, leader, listed)
    is_compressed = compressed and not refusals
    return Generation(epoch, plan, refusals, hidden, is_compressed, forbidden=forbidden)


def _refuse_other_orders(subscriptions: dict[str, Subscription]) -> dict[str, str]:
    """Take out the members that do not keep the order of the others; return why.

    Those that own something are right; without any, those that keep the order of keys.
    """
    orders = {said.ordered for said in subscriptions.values()}
    if len(orders) < 2:
        return {}
    owners = [said.ordered for _, said in sorted(subscriptions.items()) if said.owned]
    is_ordered = owners[0] if owners else True
    others = [member for member, said in subscriptions.items() if said.ordered != is_ordered]
    here, there = ("key", "none") if is_ordered else ("none", "key")
    why = (
        f"the group's members consume with consumption.order={here}, this one with {there}: use "
        "the same order, or stop all members first"
    )
    for member in others:
        del subscriptions[member]
    return dict.fromkeys(others, why)


def _refuse_other_settings(
    subscriptions: dict[str, Subscription], leader: str = ""
) -> dict[str, str]:
    """Take out the members whose settings differ where all must share them; return why.

    Those that own something are right; without any, the leader. Who does not say a setting is of
    an earlier version, and is not compared by it.
    """
    by_rank = sorted(
        subscriptions.items(), key=lambda pair: (not pair[1].owned, pair[1].name != leader, pair[0])
    )
    right: dict[str, str] = {}
    for _, said in by_rank:
        if not difference(tuple(right.items()), said.settings):
            right |= said.settings
    refusals = {}
    for member, said in by_rank:
        if differs := difference(said.settings, tuple(right.items())):
            del subscriptions[member]
            refusals[member] = (
                f"member {said.name} has other settings than the group's members: {differs}; give "
                "all members of a group the same, or stop all members first"
            )
    return refusals


def topics_of(members: Mapping[str, bytes]) -> set[str]:
    """The topics to which members have subscribed."""
    return {topic for said in _read(members)[0].values() for topic in said.topics}


def fits_topics(
    assignments: Iterable[bytes],
    partitions: Mapping[str, int],
    whole_topics: Collection[str],
    *,
    is_ordered: bool = True,
) -> bool:
    """True if a leader would still assign these partitions, and share no others than these.

    Args:
        assignments: What each member was sent.
        partitions: Number of partitions of each topic that exists.
        whole_topics: Topics whose partitions are not to be shared.
        is_ordered: Whether the group keeps key order; else nobody has any of those topics.
    """
    received = [decode_assignment(data, is_plain_allowed=True) for data in assignments]
    owners = Counter(tp for each in received for tp, _ in each.target or each.assigned)
    there = {
        TopicPartition(topic, number)
        for topic, count in partitions.items()
        if is_ordered or topic not in whole_topics
        for number in range(count)
    }
    is_shared = any(count > 1 and tp.topic in whole_topics for tp, count in owners.items())
    return owners.keys() == there and not is_shared


def followup_of(assignments: Iterable[bytes]) -> int | None:
    """When the leader wanted to plan again that sent these, in ms since 1970; None: not said.

    Raises:
        ForeignMemberError: They cannot be read.
    """
    received = [decode_assignment(data, is_plain_allowed=True) for data in assignments]
    said = (each.followup_ms for each in received)
    return min((ms for ms in said if ms is not None), default=None)


def _read(members: Mapping[str, bytes]) -> tuple[dict[str, Subscription], dict[str, str]]:
    subscriptions, refusals = {}, {}
    for member, data in members.items():
        try:
            subscriptions[member] = decode_subscription(data, member)
        except ForeignMemberError as error:
            refusals[member] = str(error)
    return subscriptions, refusals


# -- whole partitions --------------------------------------------------------------------------


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
    plain, refusals = [], dict[str, str]()
    subscriptions: dict[str, Subscription] = {}
    for member, data in members.items():
        try:
            names, user_data = decode_topics(data)
            if is_of_kshare(user_data):
                subscriptions[member] = decode_subscription(data, member)
            else:
                plain.append(member)
            topics[member] = set(names)
        except (ForeignMemberError, ValueError) as error:
            refusals[member] = str(error)
    others = _refuse_other_settings(subscriptions)
    refusals |= others
    topics = {member: names for member, names in topics.items() if member not in others}
    sent = {
        member: encode_assignment(MemberAssignment((), None, refusal=refusal))
        for member, refusal in refusals.items()
    }
    for member, mine in range_assignment(topics, partitions, instances).items():
        hidden = denied_to(topics[member], denied)
        whole = MemberAssignment(in_order(dict.fromkeys(mine, ALL_HASHES)), None, denied=hidden)
        sent[member] = encode_partitions(mine) if member in plain else encode_assignment(whole)
    return RangePlan(sent, tuple(sorted(plain)), refusals)


def topics_of_all(members: Mapping[str, bytes]) -> set[str]:
    """The topics to which members have subscribed, also those that are no kshare consumers."""
    topics: set[str] = set()
    for data in members.values():
        with suppress(ValueError):
            topics.update(decode_topics(data)[0])
    return topics
