"""The leader's plan by load: it tiles, is steady under a steady load, and comes to an end."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.assignment import StickyTaskAssignor
from kshare.core.hashing import HASH_SPACE, WHOLE, HashRange, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeAssignor, RangeObservation, RangeRequest
from kshare.group.protocol.membership.report import MemberReport, by_range
from kshare.group.protocol.membership.subscription import Assigned, Subscription, in_order
from kshare.group.protocol.plan.group_plan import GroupPlan, plan_group
from kshare.group.protocol.plan.load_sharing import LoadSharing
from kshare.group.protocol.plan.range_parts import keeping_most
from kshare.group.protocol.plan.task_sharing import TaskPlanning, TaskSharing
from kshare.ranges import adaptive
from tests.group.protocol.test_group_plan import (
    Group,
    both,
    check_no_overlap,
    check_tiles,
    given_up,
    group_of,
    joined,
    tp,
    width,
)
from tests.support.effort import examples

POINTS = [part.lo + part.width // 3 for part in split(WHOLE, 24)]
ADAPTIVE = MemberReport(range_assignor="adaptive")
Sharing: TypeAlias = Callable[[Group], LoadSharing | TaskSharing]


class Load:
    """Keys that take so many seconds each, for every thousand offsets."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.seconds = seconds

    def of(self, hashes: Sequence[HashRange]) -> float:
        return sum(s for point, s in self.seconds.items() if any(point in h for h in hashes))

    def seen(self, assigned: Assigned, scale: float = 1.0) -> MemberReport:
        loads = []
        for partition, hashes in sorted(assigned.items()):
            inside = {p: s for p, s in self.seconds.items() if any(p in h for h in hashes)}
            total = sum(inside.values())
            sample = [p for p, s in inside.items() for _ in range(round(600 * s / total))]
            observed = by_range(hashes, 10 * len(inside), 1000, scale * total, sample)
            loads.append((partition, observed))
        return replace(ADAPTIVE, loads=tuple(loads))


def plan(
    group: Group, partitions: Mapping[str, int], assign: RangeAssignor = adaptive
) -> tuple[GroupPlan, LoadSharing]:
    sharing = LoadSharing(group, assign, "adaptive")
    return plan_group(group, partitions, deal_shared=sharing.deal), sharing


def settled(group: Group, planned: GroupPlan, epoch: int, load: Load | None) -> Group:
    """What members say when the rebalance is over, and they have worked for a while."""
    return {
        member: replace(
            said,
            owned=in_order(planned.target[member]),
            target=in_order(planned.target[member]),
            epoch=epoch,
            report=ADAPTIVE if load is None else load.seen(planned.target[member]),
        )
        for member, said in group.items()
    }


def works(load: Load, target: Mapping[str, Assigned]) -> list[float]:
    return [load.of(assigned[tp(0)]) for assigned in target.values()]


loads = st.lists(
    st.sampled_from([0.1, 0.5, 1.0, 2.0, 8.0, 30.0]), min_size=len(POINTS), max_size=len(POINTS)
).map(lambda seconds: Load(dict(zip(POINTS, seconds, strict=True))))


@given(st.integers(2, 6), st.integers(1, 3), st.lists(loads, max_size=4))
@examples(60)
def test_a_plan_tiles_gives_each_one_part_and_takes_two_rounds(
    members: int, number: int, history: list[Load]
) -> None:
    partitions = {"t": number}
    group = group_of([f"m{i}" for i in range(members)])
    planned, _ = plan(group, partitions)
    for epoch, load in enumerate(history):
        said = settled(group, planned, 2 * epoch, load)
        planned, sharing = plan(said, partitions)
        assert sharing.faults == []
        assert sharing.wants_followup
        check_tiles(planned.target, partitions)
        check_no_overlap(said, planned)
        assert plan(dict(reversed(said.items())), partitions)[0] == planned
        if members > number:
            assert all(len(assigned) == 1 for assigned in planned.target.values())
        if planned.now == planned.target:
            continue
        # Loads change amid the round: who has given hashes up has measured nothing of the rest.
        second = {
            member: replace(each, report=history[0].seen(dict(each.owned), scale=0.01))
            for member, each in given_up(joined(said, planned, 2 * epoch + 1), planned).items()
        }
        after, _ = plan(second, partitions)
        assert after.target == planned.target
        assert after.now == after.target


@given(st.integers(2, 6), loads)
@examples(60)
def test_with_a_steady_load_it_comes_to_rest_where_nobody_is_hot(members: int, load: Load) -> None:
    group = group_of([f"m{i}" for i in range(members)])
    planned, _ = plan(group, {"t": 1})
    targets = [planned.target]
    for epoch in range(12):
        planned, _ = plan(settled(group, planned, epoch, load), {"t": 1})
        targets.append(planned.target)
    assert targets[-1] == targets[-2] == targets[-3]
    before, after = works(load, targets[0]), works(load, targets[-1])
    assert max(after) <= max(before)


@given(st.integers(2, 6), st.floats(1.0, 1.9))
def test_a_load_that_is_even_enough_moves_nothing(members: int, most: float) -> None:
    """Also where parts are of several ranges, as members had joined and left before loads."""
    group = group_of([f"m{i}" for i in range(members)])
    once, _ = plan(group, {"t": 1})
    group |= group_of(["z"])
    planned, _ = plan(settled(group_of([]), once, 1, None) | {
        member: replace(each, owned=in_order(once.target.get(member, {})),
                        target=in_order(once.target.get(member, {})), epoch=1 + (member == "z"))
        for member, each in group.items()
    }, {"t": 1})  # fmt: skip
    said = {
        member: replace(
            each,
            report=replace(
                ADAPTIVE,
                loads=((tp(0), by_range(
                    planned.target[member][tp(0)], 1000, 1000, most if i else 1.0, ()
                )),),
            ),
        )
        for i, (member, each) in enumerate(settled(group, planned, 2, None).items())
    }  # fmt: skip
    assert plan(said, {"t": 1})[0].target == planned.target


@given(st.integers(1, 7), st.integers(1, 4), st.booleans())
def test_without_loads_it_is_the_plan_of_always(members: int, number: int, says: bool) -> None:
    group = group_of([f"m{i}" for i in range(members)])
    if says:
        group = {member: replace(each, report=ADAPTIVE) for member, each in group.items()}
    partitions = {"t": number}
    first, _ = plan(group, partitions)
    assert first == plan_group(group, partitions)
    group = {**settled(group, first, 1, None), **group_of(["n", "o"])}
    del group["m0"]
    assert plan(group, partitions)[0] == plan_group(group, partitions)


def test_a_hot_half_is_cut_and_its_member_keeps_what_it_can() -> None:
    group = group_of(["a", "b"])
    first, _ = plan(group, {"t": 1})
    load = Load({point: 9.0 if point < HASH_SPACE // 2 else 1.0 for point in POINTS})
    said = settled(group, first, 1, load)
    planned, sharing = plan(said, {"t": 1})
    assert sharing.wants_followup
    one, two = works(load, planned.target)
    assert max(one, two) <= 1.3 * min(one, two)
    for member in group:  # the hot one keeps a part of its own, the other one gets more
        had = first.target[member]
        kept = both(had, planned.target[member])
        assert kept == min(width(had), width(planned.target[member]))


@given(st.data(), st.integers(2, 6))
def test_no_two_members_would_keep_more_by_changing_their_ranges(
    data: st.DataObject, members: int
) -> None:
    scale = HASH_SPACE // 100

    def cut() -> list[HashRange]:
        some = st.sets(st.integers(1, 99), min_size=members - 1, max_size=members - 1)
        bounds = [0, *(scale * cut for cut in sorted(data.draw(some))), HASH_SPACE]
        return [HashRange(lo, hi) for lo, hi in pairwise(bounds)]

    had = [{tp(0): KeyRanges([part])} for part in data.draw(st.permutations(cut()))]
    fresh = cut()
    chosen = [{tp(0): part} for part in keeping_most(fresh, [each[tp(0)] for each in had])]
    assert sorted(part for each in chosen for part in each[tp(0)]) == fresh
    for i in range(members):
        for j in range(i):
            kept = both(had[i], chosen[i]) + both(had[j], chosen[j])
            assert kept >= both(had[i], chosen[j]) + both(had[j], chosen[i])


def test_a_load_of_the_whole_partition_says_where_to_cut_for_one_who_joins() -> None:
    group = group_of(["a"])
    alone, _ = plan(group, {"t": 1})
    load = Load({point: 9.0 if point < HASH_SPACE // 8 else 1.0 for point in POINTS})
    said = {**settled(group, alone, 1, load), **group_of(["b"])}
    planned, _ = plan(said, {"t": 1})
    one, two = works(load, planned.target)
    assert max(one, two) <= 1.3 * min(one, two)


def test_nothing_moves_until_all_have_measured() -> None:
    group = group_of(["a", "b", "c"])
    first, _ = plan(group, {"t": 1})
    hot = Load({point: 90.0 if point < HASH_SPACE // 3 else 1.0 for point in POINTS})
    said = settled(group, first, 1, hot)
    said["c"] = replace(said["c"], report=ADAPTIVE)
    assert plan(said, {"t": 1})[0].target == first.target
    # One that measures nothing, as its configuration is another one, is not waited for.
    said["c"] = replace(said["c"], report=MemberReport())
    assert plan(said, {"t": 1})[0].target != first.target


def wrong(kind: str, request: RangeRequest) -> dict[TopicPartition, Sequence[HashRange]]:
    if kind == "raises":
        raise LookupError("no idea")
    parts = {"leaves a gap": split(WHOLE, 3)[:2], "one too many": split(WHOLE, 4)}[kind]
    return {load.topic_partition: parts for load in request.loads}


@pytest.mark.parametrize("kind", ["raises", "leaves a gap", "one too many"])
def test_a_wrong_answer_is_told_and_the_plan_is_that_of_always(kind: str) -> None:
    group = group_of(["a", "b", "c"])
    first, _ = plan(group, {"t": 1})
    said = settled(group, first, 1, Load(dict.fromkeys(POINTS, 1.0)))
    planned, sharing = plan(said, {"t": 1}, partial(wrong, kind))
    assert planned.target == first.target
    (fault,) = sharing.faults
    assert fault.startswith("rangeAssignor adaptive: ")
    assert {"raises": "no idea", "leaves a gap": "t-0", "one too many": "4 ranges"}[kind] in fault


def test_an_assignor_of_the_users_is_told_loads_and_lag() -> None:
    asked: list[RangeRequest] = []

    def assign(request: RangeRequest) -> dict[TopicPartition, Sequence[HashRange]]:
        asked.append(request)
        return {load.topic_partition: split(WHOLE, request.key_ranges) for load in request.loads}

    group = group_of(["a", "b"])
    first, _ = plan(group, {"t": 1}, assign)
    said = settled(group, first, 1, Load(dict.fromkeys(POINTS, 1.0)))
    said["b"] = replace(said["b"], report=replace(said["b"].report, lags=((tp(0), 77),)))
    plan(said, {"t": 1}, assign)
    (request,) = asked
    (load,) = request.loads
    assert load.size == 77
    assert [seen.hashes for seen in load.observed] == list(split(WHOLE, 2))
    assert request.key_ranges == request.min_tasks == 2


def test_whole_topics_and_members_that_opt_out_are_as_always() -> None:
    group = group_of(["a", "b", "c"], whole=["b"])
    said = {member: replace(each, report=ADAPTIVE) for member, each in group.items()}
    assert plan(said, {"t": 2})[0] == plan_group(group, {"t": 2})
    sharing = LoadSharing(said, adaptive, "adaptive")
    whole = plan_group(said, {"t": 1}, whole_topics=["t"], deal_shared=sharing.deal)
    assert whole == plan_group(group, {"t": 1}, whole_topics=["t"])
    assert not sharing.wants_followup


@given(st.integers(2, 5), st.integers(0, 99))
@examples(40)
def test_members_come_and_go_under_load(number: int, seed: int) -> None:
    chance = random.Random(seed)
    load = Load({point: chance.choice([0.1, 1.0, 20.0]) for point in POINTS})
    said: Group = {}
    for epoch in range(0, 12, 2):
        names = chance.sample([f"m{i}" for i in range(6)], number)
        group = {name: said.get(name, Subscription(name, ("t",), report=ADAPTIVE))
                 for name in sorted(names)}  # fmt: skip
        planned, _ = plan(group, {"t": 1})
        check_tiles(planned.target, {"t": 1})
        check_no_overlap(group, planned)
        second = given_up(joined(group, planned, epoch), planned)
        after, _ = plan(second, {"t": 1})
        assert after.target == after.now == planned.target
        said = settled(group, after, epoch + 1, load)


def test_an_observation_of_several_ranges_is_divided_by_its_sample() -> None:
    low, _, high = split(WHOLE, 3)
    sample = [low.lo + 1] * 3 + [high.lo]
    one, two = by_range(KeyRanges([low, high]), 400, 1000, 8.0, sample)
    assert one == RangeObservation(low, 300, 1000, 6.0, (low.lo + 1,) * 3)
    assert two == RangeObservation(high, 100, 1000, 2.0, (high.lo,))
    assert [seen.records for seen in by_range(KeyRanges([low, high]), 10, 10, None, ())] == [5, 5]


class Counted(tuple[Any, ...]):
    """What a member has reported; counts how often any of these is gone through."""

    __slots__ = ()
    times = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.times += 1
        return super().__iter__()


def times_read(sharing: Sharing, members: int, partitions: int) -> int:
    """How often a plan goes through what members have reported.

    Args:
        sharing: How to share.
        members: Number of members, who have reported something of each partition.
        partitions: Number of partitions.
    """
    observed = (RangeObservation(WHOLE, 100, 100, 1.0),)
    names = [f"m{i}" for i in range(members)]
    held = [
        in_order({tp(i): split_among(names)[name] for i in range(partitions)}) for name in names
    ]
    group = {
        name: replace(
            said,
            owned=owned,
            report=replace(
                ADAPTIVE,
                loads=Counted((partition, observed) for partition, _ in owned),
                lags=Counted((partition, 7) for partition, _ in owned),
                spans=(60.0,) * len(owned),
            ),
        )
        for (name, said), owned in zip(group_of(names).items(), held, strict=True)
    }
    Counted.times = 0
    plan_group(group, {"t": partitions}, deal_shared=sharing(group).deal)
    return Counted.times


def split_among(names: Sequence[str]) -> dict[str, KeyRanges]:
    """A part of the hash space for each."""
    parts = split(WHOLE, len(names))
    return {name: KeyRanges([part]) for name, part in zip(names, parts, strict=True)}


SHARINGS: dict[str, Sharing] = {
    "by load": lambda group: LoadSharing(group, adaptive, "adaptive"),
    "by a task assignor": lambda group: TaskSharing(
        group, TaskPlanning(StickyTaskAssignor(), "StickyTaskAssignor", adaptive)
    ),
}


@pytest.mark.parametrize("how", SHARINGS)
@pytest.mark.parametrize(("members", "partitions"), [(20, 4), (4, 8)], ids=["shared", "whole"])
def test_a_plan_reads_reports_as_often_whatever_partitions_there_are(
    how: str, members: int, partitions: int
) -> None:
    few, many = (times_read(SHARINGS[how], members, n * partitions) for n in (1, 4))
    assert few == many > 0
