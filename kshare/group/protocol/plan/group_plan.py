"""The leader's plan: which member gets which key hashes.

::

    subscriptions --> target: who shall have what --> now: the target without what others still own

Laws: targets tile the hash space of each partition exactly, and so do not overlap. Of a topic with
more sharing members than partitions, each of them has one part of one partition, the numbers of
parts of two partitions differ by one at most, and the parts of a partition are equally wide, but
for one hash. Of all other topics together, each member has whole partitions, and their numbers
differ by one at most. A member that stays keeps its hashes, as far as balance and instances allow.
Equal input gets equal plans, and a plan that is made again from its own target is the same.

Members without key order (``consumption.order=none``) have all partitions of their topics. As they
share each of them, topics whose partitions are not to be shared have nobody.

Topics with the same subscribers are planned together, as far as they are not shared. Members on one
host are an instance, and parts of a partition meet there: ``n`` instances that share ``p``
partitions of a topic have at most ``n + p - 1`` pairs of both (:func:`.let_meet`). Source:
"Abstract Assignor" of the key-shared consumption proposal; two phases as in KIP-429, by key hash.

Cost: linear in members, partitions and hash ranges, but for sorting and lookups in what is sorted.
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.core.slicing import PartitionLoad, RangeRequest
from kshare.group.protocol.membership.subscription import Assigned, Subscription
from kshare.group.protocol.plan.range_parts import Overlaps, divided, let_meet
from kshare.ranges.pending import round_robin

__all__ = [
    "Deal",
    "Dealt",
    "Divide",
    "GroupPlan",
    "HeldHashes",
    "deal",
    "even_parts",
    "instances_of",
    "plan_group",
    "separated",
]

HeldHashes: TypeAlias = Mapping[TopicPartition, Mapping[str, KeyRanges]]
"""The hashes that members had before, disjoint."""

Dealt: TypeAlias = Iterable[tuple[str, TopicPartition, KeyRanges]]
"""Who gets what of each partition."""

Divide: TypeAlias = Callable[
    [TopicPartition, Sequence[str], Mapping[str, KeyRanges]], Sequence[KeyRanges]
]
"""Divides a partition among members, who had some of it: a part for each, which tile it."""

Deal: TypeAlias = Callable[
    [Sequence[TopicPartition], Sequence[str], Collection[str], HeldHashes], Dealt
]
"""Says who gets what of partitions that have the same subscribers: as :func:`deal`."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What the leader assigns, by member.

    Attributes:
        target: What each member shall have.
        now: The part of it that no other member owns.
    """

    target: Mapping[str, Assigned]
    now: Mapping[str, Assigned]


def even_parts(
    partition: TopicPartition,  # noqa: ARG001
    members: Sequence[str],
    held: Mapping[str, KeyRanges],
) -> Sequence[KeyRanges]:
    """Equal parts of a partition, so that members keep what they had."""
    return divided(members, held)


def plan_group(
    subscriptions: Mapping[str, Subscription],
    partitions: Mapping[str, int],
    *,
    whole_topics: Collection[str] = (),
    deal_shared: "Deal | None" = None,
) -> GroupPlan:
    """Plan a generation of the group.

    Args:
        subscriptions: What each member has said, by its id.
        partitions: Number of partitions of each topic; topics that are missing get no member.
        whole_topics: Topics whose partitions are not to be shared.
        deal_shared: Says who gets what of partitions that have the same subscribers; None for
            :func:`deal`.
    """
    deal_to = deal_shared or partial(deal, instances=instances_of(subscriptions))
    members = sorted(subscriptions, key=lambda member: (subscriptions[member].name, member))
    holdings = _holdings(members, subscriptions)
    target: dict[str, dict[TopicPartition, KeyRanges]] = {member: {} for member in members}
    by_subscribers: dict[tuple[tuple[str, ...], bool], list[str]] = defaultdict(list)
    topics = {member: set(subscriptions[member].topics) for member in members}
    for topic in sorted({topic for own in topics.values() for topic in own}):
        subscribers = tuple(member for member in members if topic in topics[member])
        by_subscribers[subscribers, topic in whole_topics].append(topic)
    for (subscribers, is_whole), names in by_subscribers.items():
        listed = [TopicPartition(name, i) for name in names for i in range(partitions.get(name, 0))]
        if not any(subscriptions[member].ordered for member in subscribers):
            for member in subscribers if not is_whole else ():  # each leases what it reads
                target[member] |= dict.fromkeys(listed, ALL_HASHES)
            continue
        sharers = {m for m in subscribers if subscriptions[m].individual and not is_whole}
        for member, partition, hashes in deal_to(listed, subscribers, sharers, holdings):
            target[member][partition] = hashes
    return GroupPlan(target, _without_others(target, subscriptions))


def instances_of(subscriptions: Mapping[str, Subscription]) -> dict[str, str]:
    """The instance of each member that has one, by its id: what it names, else its host."""
    hosts = {}
    for member, said in subscriptions.items():
        name, _, port = said.host.rpartition(":")
        host = name if name and port.isdigit() else said.host
        hosts[member] = said.instance or host
    return {member: host for member, host in hosts.items() if host}


def separated(
    partitions: Sequence[TopicPartition], members: Sequence[str], sharers: Collection[str]
) -> Iterator[tuple[list[TopicPartition], list[str]]]:
    """What is dealt out together: each topic that members share, and all others.

    Members are in another order for each topic, so that they have the larger parts in turn.

    Args:
        partitions: The partitions, ascending.
        members: The subscribers, in order.
        sharers: Those of them that share partitions.
    """
    by_topic: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition)
    whole: list[TopicPartition] = []
    first = 0
    for listed in by_topic.values():
        if sharers and len(listed) < len(members):
            yield listed, [*members[first:], *members[:first]]
            first = (first + len(listed)) % len(members)
        else:
            whole += listed
    if whole:
        yield whole, list(members)


def deal(
    partitions: Sequence[TopicPartition],
    members: Sequence[str],
    sharers: Collection[str],
    holdings: HeldHashes,
    divide: Divide = even_parts,
    instances: Mapping[str, str] | None = None,
) -> Dealt:
    """Who gets what of partitions that have the same subscribers.

    Args:
        partitions: The partitions, ascending.
        members: The subscribers, in order.
        sharers: Those of them that share partitions.
        holdings: What members had before.
        divide: Divides a partition that members share.
        instances: The host of members; None if it does not count.
    """
    for listed, ordered in separated(partitions, members, sharers):
        yield from _dealt(listed, ordered, sharers, holdings, divide, instances or {})


def _dealt(
    partitions: Sequence[TopicPartition],
    members: Sequence[str],
    sharers: Collection[str],
    holdings: HeldHashes,
    divide: Divide,
    instances: Mapping[str, str],
) -> Dealt:
    if len(members) <= len(partitions) or not sharers:
        yield from _whole(partitions, members, holdings)
        return
    others = [member for member in members if member not in sharers]
    alone = _alone(partitions, others, holdings, len(partitions) - 1)
    for member, partition in alone.items():
        yield member, partition, ALL_HASHES
    taken = set(alone.values())
    shared = [partition for partition in partitions if partition not in taken]
    sharing = [member for member in members if member in sharers]
    seats = _seats(shared, sharing, holdings, instances)
    for partition, seated in seats.items():
        parts = divide(partition, seated, holdings.get(partition, {}))
        for member, hashes in zip(seated, parts, strict=True):
            yield member, partition, hashes


# -- what members had --------------------------------------------------------------------------


def _holdings(members: Sequence[str], subscriptions: Mapping[str, Subscription]) -> HeldHashes:
    """What members were to have; of two, the one of the later epoch has it."""
    held: dict[TopicPartition, dict[str, KeyRanges]] = defaultdict(dict)
    taken: dict[TopicPartition, list[HashRange]] = defaultdict(list)  # disjoint, ascending

    def epoch_of(member: str) -> int:
        epoch = subscriptions[member].epoch
        return -1 if epoch is None else epoch

    for member in sorted(members, key=epoch_of, reverse=True):
        subscription = subscriptions[member]
        wanted = subscription.owned if subscription.target is None else subscription.target
        for partition, hashes in wanted:
            free = _without(hashes, taken[partition])
            if free:
                held[partition][member] = free
                for part in free:
                    insort(taken[partition], part)
    return held


def _without(hashes: KeyRanges, taken: Sequence[HashRange]) -> KeyRanges:
    """Key hashes without others, which are disjoint and ascending."""
    near: list[HashRange] = []
    for part in hashes if taken else ():
        first = bisect_right(taken, part.lo, key=lambda other: other.hi)
        near += taken[first : bisect_left(taken, part.hi, key=lambda other: other.lo)]
    return hashes - near


def _without_others(
    target: Mapping[str, Assigned], subscriptions: Mapping[str, Subscription]
) -> dict[str, Assigned]:
    """The target of each member without what others own."""
    orders = {subscription.ordered for subscription in subscriptions.values()}
    owners = {ordered: _Owners(subscriptions, ordered=ordered) for ordered in orders}
    now: dict[str, Assigned] = {}
    for member, assigned in target.items():
        free: dict[TopicPartition, KeyRanges] = {}
        foreign = owners[subscriptions[member].ordered]
        for partition, hashes in assigned.items():
            left = foreign.left(partition, hashes, member)
            if left:
                free[partition] = left
        now[member] = free
    return now


class _Owners:
    """Who owns what of each partition, of those who keep others away.

    Args:
        subscriptions: What members have said that they own.
        ordered: True: count all owners. False: count only owners that keep key order.
    """

    def __init__(self, subscriptions: Mapping[str, Subscription], *, ordered: bool) -> None:
        self._owned: dict[TopicPartition, list[tuple[HashRange, str]]] = defaultdict(list)
        self._indexes: dict[TopicPartition, Overlaps[str]] = {}
        for member, subscription in subscriptions.items():
            for partition, hashes in subscription.owned if ordered or subscription.ordered else ():
                self._owned[partition] += [(part, member) for part in hashes]

    def left(self, partition: TopicPartition, hashes: KeyRanges, member: str) -> KeyRanges:
        """What other members do not own of some hashes."""
        owned = self._owned.get(partition, ())
        if all(owner == member for _, owner in owned):
            return hashes
        if partition not in self._indexes:
            self._indexes[partition] = Overlaps(owned)
        near = [pair for part in hashes for pair in self._indexes[partition].of(part)]
        return hashes - [part for part, owner in near if owner != member]


# -- whole partitions --------------------------------------------------------------------------


def _whole(
    partitions: Sequence[TopicPartition], members: Sequence[str], holdings: HeldHashes
) -> Dealt:
    """One member for each partition; their numbers differ by one at most."""
    order = {member: i for i, member in enumerate(members)}
    held: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for partition in partitions:
        holder = _largest_holder(holdings.get(partition, {}), order)
        if holder is not None:
            held[holder].append(partition)
    least, extra = divmod(len(partitions), len(members))
    kept: dict[str, list[TopicPartition]] = {}
    for member in sorted(members, key=lambda member: (-len(held[member]), order[member])):
        may_have = least + (extra > 0)
        mine = sorted(held[member], key=lambda tp: (-holdings[tp][member].width, tp))[:may_have]
        extra -= len(mine) > least
        kept[member] = mine
    taken = {partition for mine in kept.values() for partition in mine}
    heap = [(len(kept[member]), order[member], member) for member in members]
    heapq.heapify(heap)
    for partition in partitions:
        if partition not in taken:
            count, rank, member = heapq.heappop(heap)
            kept[member].append(partition)
            heapq.heappush(heap, (count + 1, rank, member))
    for member in members:
        for partition in kept[member]:
            yield member, partition, ALL_HASHES


def _alone(
    partitions: Sequence[TopicPartition], members: Sequence[str], holdings: HeldHashes, most: int
) -> dict[str, TopicPartition]:
    """A whole partition each for some members that do not share; the first ones, if too many."""
    free = dict.fromkeys(partitions)
    alone: dict[str, TopicPartition] = {}
    for partition in partitions:
        held = {m: hashes for m, hashes in holdings.get(partition, {}).items() if m in members}
        for member, hashes in held.items():
            if hashes.is_all and member not in alone and len(alone) < most:
                alone[member] = partition
                free.pop(partition, None)
    for member in members:
        if member not in alone and len(alone) < most:
            alone[member] = next(iter(free))
            del free[alone[member]]
    return alone


# -- parts of partitions -----------------------------------------------------------------------


@dataclass(slots=True)
class _Seats:
    """The members that share a partition, and how many there shall be."""

    count: int
    members: list[str] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.count - len(self.members)


def _seats(
    partitions: Sequence[TopicPartition],
    members: Sequence[str],
    holdings: HeldHashes,
    instances: Mapping[str, str],
) -> dict[TopicPartition, list[str]]:
    """The members that share each partition; each member shares one."""
    order = {member: i for i, member in enumerate(members)}
    homes = _homes(partitions, order, holdings)
    incumbents: dict[TopicPartition, list[str]] = {partition: [] for partition in partitions}
    for member, partition in homes.items():
        incumbents[partition].append(member)
    loads = tuple(PartitionLoad(*partition, ()) for partition in partitions)
    ranges = round_robin(RangeRequest(loads, min_tasks=len(members)))
    counts = sorted(map(len, ranges.values()), reverse=True)
    waiting = Counter(instances.get(member) for member in members if member not in homes)

    def rank(partition: TopicPartition) -> tuple[int, int]:
        """Sort key: fullest first; ties go to most waiting members of the same instances."""
        here = {instances[member] for member in incumbents[partition] if member in instances}
        fill = min(len(incumbents[partition]), counts[0])
        return -fill, -sum(waiting[instance] for instance in here)

    fullest = sorted(partitions, key=rank)
    count_of = dict(zip(fullest, counts, strict=True))  # sorting is stable: else in their order
    seats = {partition: _Seats(count_of[partition]) for partition in partitions}
    for partition, seat in seats.items():
        held = holdings.get(partition, {})
        ranked = sorted(incumbents[partition], key=lambda m: (-held[m].width, order[m]))
        seat.members = sorted(ranked[: seat.count], key=order.__getitem__)
    _seat_others(seats, members, instances)
    seated = {partition: seat.members for partition, seat in seats.items()}
    let_meet(seated, instances, lambda m, tp: holdings.get(tp, {}).get(m, NO_HASHES).width)
    return seated


def _seat_others(
    seats: Mapping[TopicPartition, _Seats], members: Sequence[str], instances: Mapping[str, str]
) -> None:
    """Give each member without a seat a free one: where its instance has some, or fewest have."""
    seated = {member for seat in seats.values() for member in seat.members}
    near: dict[str, list[TopicPartition]] = defaultdict(list)  # of instances, where they have seats
    for partition, seat in seats.items():
        for member in seat.members:
            if member in instances:
                near[instances[member]].append(partition)
    heap = [(len(seat.members), i, partition) for i, (partition, seat) in enumerate(seats.items())]
    heapq.heapify(heap)
    for member in (member for member in members if member not in seated):
        mine = near[instances[member]] if member in instances else []
        while mine and not seats[mine[0]].free:
            mine.pop(0)
        if mine:
            partition = mine[0]
        else:
            filled, i, partition = heapq.heappop(heap)
            while filled != len(seats[partition].members) or not seats[partition].free:
                if seats[partition].free:
                    heapq.heappush(heap, (len(seats[partition].members), i, partition))
                filled, i, partition = heapq.heappop(heap)
            mine.append(partition)
            heapq.heappush(heap, (filled + 1, i, partition))
        seats[partition].members.append(member)


def _homes(
    partitions: Sequence[TopicPartition], order: Mapping[str, int], holdings: HeldHashes
) -> dict[str, TopicPartition]:
    """The partition that each member had most of."""
    homes: dict[str, tuple[int, TopicPartition]] = {}
    for partition in partitions:
        for member, hashes in holdings.get(partition, {}).items():
            wide = hashes.width
            if member in order and (member not in homes or wide > homes[member][0]):
                homes[member] = (wide, partition)
    ranked = sorted(homes, key=order.__getitem__)
    return {member: homes[member][1] for member in ranked}


def _largest_holder(held: Mapping[str, KeyRanges], order: Mapping[str, int]) -> str | None:
    among = [member for member in held if member in order]
    return min(among, key=lambda member: (-held[member].width, order[member]), default=None)
