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

Of partitions that members have whole, a hot one is cut, and work is dealt (:func:`deal_by_work`)::

    work of each partition --> one is hot? --no--> whole partitions, as always
                                    |
                                   yes --> cut it by load --> its parts and the whole ones by work

A partition is hot if whoever has it has more than twice the mean work of the others, whatever else
they have; so whole partitions cannot be even. Work is what comes until the leader looks again, as
fast as it came lately, and what waits.

Laws: parts tile the hash space. A plan is no worse than whole partitions, by what is known. Nothing
moves while nobody has that much work, and a plan that moves something has to take a fifth off the
busiest member. What is cut becomes whole again when it has half the work that makes it hot.
Without loads of all members, those that stay among themselves keep what they have.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, TypeAlias

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, NO_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slicing import PartitionLoad, RangeAssignor, RangeObservation, plan_ranges
from kshare.errors import PlanError
from kshare.group.protocol.group_plan import Dealt, HeldHashes, deal, instances_of, separated
from kshare.group.protocol.range_parts import divided, keeping_most, shared_width, tiles
from kshare.group.protocol.report import RANGES_MAX, ROUND_ROBIN, MemberReport
from kshare.group.protocol.subscription import Assignment, Subscription
from kshare.ranges.adaptive import adaptive, disjoint, hot_above, is_enough, is_even

__all__ = ["LoadSharing", "deal_by_work", "partition_load", "unfinished"]


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
        observed = {member: self._observed(partition, member) for member in self._subscriptions}
        if not any(seen.records for each in observed.values() for seen in each):
            return parts
        if stay and self._shall_stay(members, observed):
            return parts
        load = partition_load(partition, self._subscriptions)
        count = len(members)
        try:
            ranges = plan_ranges((load,), self._assign_ranges, min_tasks=count, key_ranges=count)
            if len(ranges[partition]) != count:
                raise PlanError(
                    f"{partition} has {len(ranges[partition])} ranges and {count} members"
                )
        except Exception as fault:  # the range assignor may be the user's
            self.faults.append(f"rangeAssignor {self._name}: {fault!r}")
            return parts
        return keeping_most(ranges[partition], [held.get(member, NO_HASHES) for member in members])

    def _observed(self, partition: TopicPartition, member: str) -> tuple[RangeObservation, ...]:
        return dict(self._subscriptions[member].report.loads).get(partition, ())

    def _shall_stay(
        self, members: Sequence[str], observed: Mapping[str, Sequence[RangeObservation]]
    ) -> bool:
        """True if members keep their parts: loads are even, or not known yet of all who measure."""
        measures = {
            member
            for member in members
            if self._subscriptions[member].report.range_assignor != ROUND_ROBIN
        }
        if not all(observed[member] for member in measures):
            return True
        is_known = measures == set(members)
        is_adaptive = self._assign_ranges is adaptive
        return is_adaptive and is_known and is_even([observed[member] for member in members])


def partition_load(
    partition: TopicPartition, subscriptions: Mapping[str, Subscription]
) -> PartitionLoad:
    """The load of a partition, as a range assignor gets it.

    What is pending begins at offset 0 and has as many offsets as the last of its readers is behind:
    at least one.
    """
    reports = [each.report for each in subscriptions.values()]
    lag = max((dict(report.lags).get(partition, 0) for report in reports), default=0)
    observed = [seen for report in reports for seen in dict(report.loads).get(partition, ())]
    return PartitionLoad(
        partition.topic,
        partition.partition,
        (Rectangle(OffsetRange(0, max(lag, 1)), WHOLE),),
        observed=tuple(sorted(observed, key=lambda seen: seen.hashes)),
    )


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


_WORTH: Final = 0.8
"""A plan that moves something leaves the busiest member this part of its work, or less."""
_FULL: Final = 1.1
"""A member keeps what it has up to this many times the mean work."""
_IDLE: Final = 0.05
"""The part of all work that is dealt as if partitions shared it evenly: idle ones spread, too."""

_Held: TypeAlias = Mapping[TopicPartition, Mapping[str, KeyRanges]]
_Item: TypeAlias = tuple[float, TopicPartition, HashRange]
"""The work of some key hashes."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a partition.

    Attributes:
        amount: Of all its hashes: seconds, or records.
        observed: Its ranges, ascending and disjoint, each with its work as if of one offset.
        is_sure: Whether so much was observed that it is not taken for noise.
    """

    amount: float
    observed: tuple[RangeObservation, ...] = ()
    is_sure: bool = False

    def of(self, hashes: KeyRanges) -> float:
        """The work of some key hashes, by the samples of their keys."""
        if hashes.is_all:
            return self.amount
        found, seen_width = 0.0, 0
        for seen in self.observed:
            seen_width += (shared := shared_width(seen.hashes, hashes))
            share = shared / seen.hashes.width
            if seen.sample:
                share = sum(map(hashes.holds, seen.sample)) / len(seen.sample)
            found += share * _amount(seen)
        covered = sum(seen.hashes.width for seen in self.observed)
        unseen = (hashes.width - seen_width) / max(HASH_SPACE - covered, 1)
        return found + unseen * (self.amount - sum(map(_amount, self.observed)))


def deal_by_work(
    partitions: Sequence[TopicPartition],
    members: Sequence[str],
    holdings: HeldHashes,
    subscriptions: Mapping[str, Subscription],
    seconds: float,
) -> Dealt | None:
    """Who gets what of at least as many partitions as there are members.

    Args:
        partitions: The partitions, ascending.
        members: The subscribers, in order; all of them share partitions.
        holdings: What members had before.
        subscriptions: What each member has said, by its id.
        seconds: The time until the leader looks again.

    Returns:
        None for whole partitions, as they are always dealt out.
    """
    reports = {member: subscriptions[member].report for member in members}
    if len(members) < 2 or any(each.range_assignor == ROUND_ROBIN for each in reports.values()):
        return None
    held = {
        partition: {m: h for m, h in holdings.get(partition, {}).items() if m in reports}
        for partition in partitions
    }
    cut = {tp for tp, of in held.items() if not all(hashes.is_all for hashes in of.values())}
    stays = all(tiles(of.values()) for of in held.values()) and len(
        {member for of in held.values() for member in of}
    ) == len(members)
    works = _works(partitions, reports, seconds)
    kept = _kept(held) if stays and cut else None
    if not any(work.is_sure for work in works.values()) or (stays and not _is_known(held, reports)):
        return kept
    above = hot_above([sum(work.amount for work in works.values()), *[0.0] * (len(members) - 1)])
    wanted = {
        tp for tp, work in works.items()
        if (work.is_sure and work.amount > above) or (tp in cut and work.amount > above / 2)
    }  # fmt: skip
    if not wanted:
        return None
    most = float("inf")
    if stays and cut == wanted:
        now = _totals(
            members, ((m, tp, h) for tp, of in held.items() for m, h in of.items()), works
        )
        if max(now) <= hot_above(now):
            return kept
        most = _WORTH * max(now)
    dealt = _dealt(_items(works, wanted, len(members)), members, held)
    busiest = max(_totals(members, dealt, works))
    if busiest > most:
        return kept
    whole = max(_totals(members, deal(partitions, members, (), holdings), works))
    return dealt if busiest <= (whole if cut else _WORTH * whole) else None


def _kept(held: _Held) -> list[tuple[str, TopicPartition, KeyRanges]]:
    return [
        (member, partition, hashes)
        for partition, of in held.items()
        for member, hashes in of.items()
    ]


def _totals(
    members: Sequence[str], dealt: Dealt, works: Mapping[TopicPartition, _Work]
) -> list[float]:
    """The work of each member."""
    totals = dict.fromkeys(members, 0.0)
    for member, partition, hashes in dealt:
        totals[member] += works[partition].of(hashes)
    return list(totals.values())


# -- how much work there is ----------------------------------------------------------------------


def _is_known(held: _Held, reports: Mapping[str, MemberReport]) -> bool:
    """True if all members have reported the work of all they have, as far as there is room."""
    for partition, of in held.items():
        for member in of:
            loads = dict(reports[member].loads)
            if partition not in loads and sum(map(len, loads.values())) < RANGES_MAX:
                return False
    return all(len(each.spans) == len(each.loads) for each in reports.values())


def _works(
    partitions: Sequence[TopicPartition], reports: Mapping[str, MemberReport], seconds: float
) -> dict[TopicPartition, _Work]:
    """The work of each partition; where it is not known, the mean of the others."""
    listed = [
        (partition, seen, span, dict(report.lags).get(partition, 0))
        for report in reports.values()
        for (partition, observed), span in zip(report.loads, report.spans, strict=False)
        for seen in observed
    ]
    is_timed = all(seen.seconds is not None for _, seen, _, _ in listed)
    raw: dict[TopicPartition, list[RangeObservation]] = {}
    coming: dict[TopicPartition, list[RangeObservation]] = {}
    for partition, seen, span, lag in listed:
        times = seconds / max(span, 1.0) + lag / max(seen.offsets, 1)
        amount = times * (seen.seconds or 0.0) if is_timed else None
        records = seen.records if is_timed else round(times * seen.records)
        raw.setdefault(partition, []).append(seen)
        coming.setdefault(partition, []).append(
            RangeObservation(seen.hashes, records, 1, amount, seen.sample)
        )
    works = {}
    for partition in partitions:
        observed = tuple(disjoint(coming.get(partition, ())))
        if observed:
            covered = sum(seen.hashes.width for seen in observed)
            amount = sum(map(_amount, observed)) * HASH_SPACE / covered
            works[partition] = _Work(amount, observed, is_enough(raw[partition], timed=is_timed))
    mean = sum(work.amount for work in works.values()) / max(len(works), 1)
    full = [each for each in reports.values() if sum(len(o) for _, o in each.loads) >= RANGES_MAX]
    missing = min((work.amount for work in works.values()), default=0.0) if full else mean
    return {partition: works.get(partition, _Work(missing)) for partition in partitions}


def _amount(seen: RangeObservation) -> float:
    if not seen.records:
        return 0.0
    return float(seen.records) if seen.seconds is None else seen.seconds


# -- who gets what -------------------------------------------------------------------------------


def _items(
    works: Mapping[TopicPartition, _Work], wanted: set[TopicPartition], count: int
) -> list[_Item]:
    """What is dealt out: whole partitions, and the parts of those that are cut."""
    mean = sum(work.amount for work in works.values()) / count
    items: list[_Item] = []
    for partition, work in works.items():
        parts: Sequence[HashRange] = ALL_HASHES
        if partition in wanted:
            number = min(max(ceil(work.amount / mean), 2), count)
            pending = (Rectangle(OffsetRange(0, 1), WHOLE),)
            load = PartitionLoad(*partition, pending, observed=work.observed)
            parts = plan_ranges((load,), adaptive, min_tasks=number, key_ranges=number)[partition]
        items += [(work.of(KeyRanges([part])), partition, part) for part in parts]
    idle = _IDLE * mean * count / len(items)
    ranked = [(work + idle, partition, part) for work, partition, part in items]
    return sorted(ranked, key=lambda item: (-item[0], item[1], item[2]))


def _dealt(
    items: Sequence[_Item], members: Sequence[str], held: _Held
) -> list[tuple[str, TopicPartition, KeyRanges]]:
    """Deal out the most work first: what has room stays, else it goes to who has least.

    A member has one part of a partition at most, and each has something.
    """
    full = _FULL * sum(work for work, _, _ in items) / len(members)
    loads = dict.fromkeys(members, 0.0)
    has: dict[str, dict[TopicPartition, KeyRanges]] = {member: {} for member in members}
    left: list[_Item] = []
    without = set(members)  # anything

    def give(member: str, item: _Item) -> None:
        work, partition, part = item
        loads[member] += work
        has[member][partition] = KeyRanges([part])
        without.discard(member)

    for at, item in enumerate(items):
        work, partition, part = item
        shares = {m: shared_width(part, hashes) for m, hashes in held[partition].items()}
        holders = sorted((m for m in shares if shares[m]), key=lambda m: (-shares[m], m))
        is_scarce = len(left) + len(items) - at <= len(without)
        for member in holders:
            has_room = loads[member] + work <= full and not is_scarce
            if partition not in has[member] and (has_room or not has[member]):
                give(member, item)
                break
        else:
            left.append(item)
    for item in left:
        free = [member for member in members if item[1] not in has[member]]
        give(min(free, key=lambda member: loads[member]), item)
    return [(member, tp, hashes) for member in members for tp, hashes in has[member].items()]
