"""A hot partition among enough: it is cut, and work is dealt out instead of partitions.

Of partitions that members have whole, a hot one is cut, and work is dealt::

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

Parts of a partition meet on an instance where that makes nobody busier than the plan without it, or
than a tenth above the mean (:func:`_meeting`).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, TypeAlias

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange
from kshare.core.progress import TopicPartition
from kshare.core.region import Rectangle
from kshare.core.slicing import PartitionLoad, RangeObservation, plan_ranges
from kshare.group.protocol.membership.report import RANGES_MAX, ROUND_ROBIN, MemberReport
from kshare.group.protocol.membership.subscription import Subscription
from kshare.group.protocol.plan.group_plan import Dealt, HeldHashes, deal, instances_of
from kshare.group.protocol.plan.range_parts import shared_width, tiles
from kshare.ranges.adaptive import adaptive, disjoint, hot_above, is_enough

__all__ = ["deal_by_work"]

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
    whole = max(_totals(members, deal(partitions, members, (), holdings), works))
    bound = min(most, whole if cut else _WORTH * whole)
    meeting = _meeting(dealt, wanted, works, held, instances_of(subscriptions))
    for plan in (meeting, dealt):
        if max(_totals(members, plan, works)) <= bound:
            return plan
    return kept if max(_totals(members, dealt, works)) > most else None


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
    reported = {member: {tp for tp, _ in each.loads} for member, each in reports.items()}
    has_room = {member for member, each in reports.items() if _ranges_of(each) < RANGES_MAX}
    for partition, of in held.items():
        for member in of:
            if member in has_room and partition not in reported[member]:
                return False
    return all(len(each.spans) == len(each.loads) for each in reports.values())


def _ranges_of(report: MemberReport) -> int:
    """The number of ranges of which a member has reported a load."""
    return sum(len(observed) for _, observed in report.loads)


def _works(
    partitions: Sequence[TopicPartition], reports: Mapping[str, MemberReport], seconds: float
) -> dict[TopicPartition, _Work]:
    """The work of each partition; where it is not known, the mean of the others."""
    listed = [
        (partition, seen, span, lags.get(partition, 0))
        for report in reports.values()
        for lags in [dict(report.lags)]  # once for each
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
    full = [each for each in reports.values() if _ranges_of(each) >= RANGES_MAX]
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


# -- parts of a partition on one instance --------------------------------------------------------


def _meeting(
    dealt: Sequence[tuple[str, TopicPartition, KeyRanges]],
    cut: Collection[TopicPartition],
    works: Mapping[TopicPartition, _Work],
    held: _Held,
    instances: Mapping[str, str],
) -> Sequence[tuple[str, TopicPartition, KeyRanges]]:
    """What was dealt out, exchanged so that instances have parts of fewer partitions.

    Args:
        dealt: Who gets what; each member has something, and one part of a partition at most.
        cut: The partitions of which there are parts.
        works: The work of each partition.
        held: What members had before.
        instances: The instance of members that have one.
    """
    exchange = _Exchange(dealt, works, held, instances)
    before = exchange.pairs
    is_better = True
    while is_better:  # each exchange brings more members together, so it ends
        is_better = False
        for member, partition, _ in exchange.dealt:
            if partition in cut:
                is_better |= exchange.improve(member, partition)
    return exchange.dealt if exchange.pairs < before else dealt


class _Exchange:
    """Brings parts of a partition to instances that have others of it."""

    def __init__(
        self,
        dealt: Sequence[tuple[str, TopicPartition, KeyRanges]],
        works: Mapping[TopicPartition, _Work],
        held: _Held,
        instances: Mapping[str, str],
    ) -> None:
        self._has: dict[str, dict[TopicPartition, KeyRanges]] = {m: {} for m, _, _ in dealt}
        self._held = held
        self._works = {(tp, hashes): works[tp].of(hashes) for _, tp, hashes in dealt}
        self._load = dict.fromkeys(self._has, 0.0)
        self._instance: dict[str, tuple[str, ...]] = {  # who has none is one by itself
            member: (instances[member],) if member in instances else ("", member)
            for member in self._has
        }
        self._count: Counter[tuple[tuple[str, ...], TopicPartition]] = Counter()
        for member, tp, hashes in dealt:
            self._give(member, tp, hashes)
        loads = self._load.values()
        self._most = max(*loads, _FULL * sum(loads) / len(loads))

    @property
    def pairs(self) -> int:
        """The number of pairs of an instance and a partition that it has some of."""
        return sum(map(bool, self._count.values()))

    @property
    def dealt(self) -> list[tuple[str, TopicPartition, KeyRanges]]:
        """Who has what."""
        return [(member, tp, h) for member, parts in self._has.items() for tp, h in parts.items()]

    def improve(self, member: str, tp: TopicPartition) -> bool:
        """Give a member's part away if that brings more members together; return whether it did."""
        if tp not in self._has[member]:  # it has gone away meanwhile
            return False
        ways = [
            (*self._cost(member, tp, other, back), other, back)
            for other, parts in self._has.items()
            if tp not in parts and self._count[self._instance[other], tp]
            for back in (None, *parts)
            if self._may_change(member, tp, other, back)
        ]
        if not ways:
            return False
        *_, other, back = min(ways, key=lambda way: (*way[:3], way[3] is not None, way[3] or ()))
        self._give(other, tp, self._take(member, tp))
        if back is not None:
            self._give(member, back, self._take(other, back))
        return True

    def _may_change(
        self, member: str, tp: TopicPartition, other: str, back: TopicPartition | None
    ) -> bool:
        """True if nobody is too busy afterwards, and each has something, and one part at most."""
        mine, its = self._has[member], self._has[other]
        if (back is None and len(mine) == 1) or back in mine:
            return False
        more = self._works[tp, mine[tp]] - (0.0 if back is None else self._works[back, its[back]])
        is_too_much = max(self._load[member] - more, self._load[other] + more) > self._most
        return not is_too_much and self._gain(member, tp, other, back) > 0

    def _gain(
        self, member: str, tp: TopicPartition, other: str, back: TopicPartition | None
    ) -> int:
        """The number of members more that would find others of their instance there."""
        here, there, count = self._instance[member], self._instance[other], self._count
        if here == there:
            return 0
        gain = count[there, tp] - count[here, tp] + 1
        return gain if back is None else gain + count[here, back] - count[there, back] + 1

    def _cost(
        self, member: str, tp: TopicPartition, other: str, back: TopicPartition | None
    ) -> tuple[int, int]:
        """How much is gained, the most first; and how many hashes move that would have stayed."""
        moved = self._kept(member, tp)
        if back is not None:
            moved += self._kept(other, back)
        return -self._gain(member, tp, other, back), moved

    def _kept(self, member: str, tp: TopicPartition) -> int:
        before = self._held[tp].get(member)
        return 0 if before is None else (before & self._has[member][tp]).width

    def _give(self, member: str, tp: TopicPartition, hashes: KeyRanges) -> None:
        self._has[member][tp] = hashes
        self._load[member] += self._works[tp, hashes]
        self._count[self._instance[member], tp] += 1

    def _take(self, member: str, tp: TopicPartition) -> KeyRanges:
        hashes = self._has[member].pop(tp)
        self._load[member] -= self._works[tp, hashes]
        self._count[self._instance[member], tp] -= 1
        return hashes
