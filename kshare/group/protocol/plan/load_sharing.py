"""The leader's plan by load: a range assignor cuts the partitions that members share.

::

    who shares which partition: as always       observed loads --> range assignor --> n ranges
                 |                                                                      |
                 +--> n members of a partition --- each gets the range of which it <----+
                                                   has most already

Laws: the parts of a partition tile its hash space, and each sharing member has one. With
``adaptive`` nothing moves while no part has more than twice the mean work of the others, and a hot
one of many partitions is cut, too. Without loads, members that stay among themselves keep what they
have, and others get equal parts. A round in which members give hashes up is finished before loads
are looked at again, so it is the last one.

Of partitions that members have whole, a hot one is cut, and work is dealt: see
:mod:`.hot_partitions`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from kshare.core.hashing import NO_HASHES, WHOLE, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import TopicPartition
from kshare.core.region import Rectangle
from kshare.core.showing import shown
from kshare.core.slicing import PartitionLoad, RangeAssignor, RangeObservation, plan_ranges
from kshare.errors import PlanError
from kshare.group.protocol.membership.report import ROUND_ROBIN
from kshare.group.protocol.membership.subscription import Assignment, Subscription
from kshare.group.protocol.plan.group_plan import Dealt, HeldHashes, deal, instances_of, separated
from kshare.group.protocol.plan.hot_partitions import deal_by_work
from kshare.group.protocol.plan.range_parts import divided, keeping_most, tiles
from kshare.ranges.adaptive import adaptive, is_even

__all__ = ["LoadSharing", "ReportedLoads", "unfinished"]

_Observed: TypeAlias = Mapping[str, tuple[RangeObservation, ...]]
"""The observations of a partition, by the id of the member that has made them."""


class ReportedLoads:
    """The reports of some members, by partition. Made once: what is asked costs nothing of others.

    Args:
        subscriptions: What each member has said, by its id.
    """

    def __init__(self, subscriptions: Mapping[str, Subscription]) -> None:
        self._lags: dict[TopicPartition, int] = {}
        self._observed: dict[TopicPartition, dict[str, tuple[RangeObservation, ...]]] = {}
        for member, said in subscriptions.items():
            for partition, lag in said.report.lags:
                self._lags[partition] = max(lag, self._lags.get(partition, 0))
            for partition, observed in said.report.loads:
                self._observed.setdefault(partition, {})[member] = observed

    def observed(self, partition: TopicPartition) -> _Observed:
        """The observations of a partition by its members; without those that have none."""
        return self._observed.get(partition, {})

    def load(self, partition: TopicPartition) -> PartitionLoad:
        """The load of a partition, as a range assignor gets it.

        What is pending begins at offset 0 and has as many offsets as the last of its readers is
        behind: at least one.
        """
        observed = [seen for of in self.observed(partition).values() for seen in of]
        return PartitionLoad(
            partition.topic,
            partition.partition,
            (Rectangle(OffsetRange(0, max(self._lags.get(partition, 0), 1)), WHOLE),),
            observed=tuple(sorted(observed, key=lambda seen: seen.hashes)),
        )


class LoadSharing:
    """Deals partitions out by load. For one plan.

    Args:
        subscriptions: What each member has said, by its id.
        assign_ranges: The range assignor.
        name: Its name, for faults.
        seconds: The time until the leader looks again.

    Attributes:
        faults: Why the range assignor's answers could not be used.
        wants_followup: Whether a later plan may be better: members share partitions, or may.
    """

    def __init__(
        self,
        subscriptions: Mapping[str, Subscription],
        assign_ranges: RangeAssignor,
        name: str,
        seconds: float = 60.0,
    ) -> None:
        self.faults: list[str] = []
        self.wants_followup = False
        self._subscriptions = subscriptions
        self._reported = ReportedLoads(subscriptions)
        self._assign_ranges = assign_ranges
        self._name = name
        self._seconds = seconds

    def deal(
        self,
        partitions: Sequence[TopicPartition],
        members: Sequence[str],
        sharers: Collection[str],
        holdings: HeldHashes,
    ) -> Dealt:
        """Who gets what of partitions that have the same subscribers, as :func:`.deal`."""
        together = list(separated(partitions, members, sharers))
        may_cut = self._assign_ranges is adaptive and len(sharers) == len(members) > 1
        if may_cut or (sharers and any(len(listed) < len(members) for listed, _ in together)):
            self.wants_followup = True
            under_way = unfinished(partitions, members, sharers, self._subscriptions)
            if under_way is not None:
                yield from under_way
                return
        instances = instances_of(self._subscriptions)
        for listed, ordered in together:
            dealt: Dealt | None = None
            if may_cut and len(listed) >= len(members):
                said = self._subscriptions
                dealt = deal_by_work(listed, ordered, holdings, said, self._seconds)
            if dealt is None:
                dealt = deal(listed, ordered, sharers, holdings, self.divide, instances)
            yield from dealt

    def divide(
        self, partition: TopicPartition, members: Sequence[str], held: Mapping[str, KeyRanges]
    ) -> Sequence[KeyRanges]:
        """Divide a partition among members: one range each, as the range assignor cuts it.

        Args:
            partition: The partition.
            members: The members.
            held: What they and others had before.
        """
        stay = held.keys() == set(members) and tiles(held.values())
        parts = [held[member] for member in members] if stay else divided(members, held)
        observed = self._reported.observed(partition)
        if not any(seen.records for each in observed.values() for seen in each):
            return parts
        if stay and self._shall_stay(members, observed):
            return parts
        load = self._reported.load(partition)
        count = len(members)
        try:
            ranges = plan_ranges((load,), self._assign_ranges, min_tasks=count, key_ranges=count)
            if len(ranges[partition]) != count:
                raise PlanError(
                    f"{partition} has {len(ranges[partition])} ranges and {count} members"
                )
        except Exception as fault:  # the range assignor may be the user's
            self.faults.append(f"rangeAssignor {self._name}: {shown(fault)}")
            return parts
        return keeping_most(ranges[partition], [held.get(member, NO_HASHES) for member in members])

    def _shall_stay(self, members: Sequence[str], observed: _Observed) -> bool:
        """True if members keep their parts: loads are even, or not known yet of all who measure."""
        measures = {
            member
            for member in members
            if self._subscriptions[member].report.range_assignor != ROUND_ROBIN
        }
        if not all(observed.get(member) for member in measures):
            return True
        is_known = measures == set(members)
        is_adaptive = self._assign_ranges is adaptive
        return is_adaptive and is_known and is_even([observed[member] for member in members])


def unfinished(
    partitions: Collection[TopicPartition],
    members: Sequence[str],
    sharers: Collection[str],
    subscriptions: Mapping[str, Subscription],
) -> list[tuple[str, TopicPartition, KeyRanges]] | None:
    """What members were to have, if all of them are amid the same rebalance; else None.

    They are if all have been assigned something in the same epoch, some do not own yet what they
    are to have, and nobody is missing. Then another plan would begin another rebalance.
    """
    said = [subscriptions[member] for member in members]
    if len({each.epoch for each in said}) != 1 or said[0].epoch is None:
        return None
    targets = [_of(partitions, each.owned if each.target is None else each.target) for each in said]
    if targets == [_of(partitions, each.owned) for each in said]:
        return None
    parts: dict[TopicPartition, list[KeyRanges]] = {partition: [] for partition in partitions}
    for member, target in zip(members, targets, strict=True):
        for partition, hashes in target.items():
            if not hashes.is_all and member not in sharers:
                return None
            parts[partition].append(hashes)
    for of_members in parts.values():
        together = [part for hashes in of_members for part in hashes]
        if not tiles(of_members) or not KeyRanges(together).is_all:
            return None
    return [
        (member, partition, hashes)
        for member, target in zip(members, targets, strict=True)
        for partition, hashes in target.items()
    ]


def _of(
    partitions: Collection[TopicPartition], assigned: Assignment
) -> dict[TopicPartition, KeyRanges]:
    wanted = set(partitions)
    return {partition: hashes for partition, hashes in assigned if partition in wanted}
