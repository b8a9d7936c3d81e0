"""A hot partition among enough: it is cut, work is dealt, and what is even enough stays whole."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeObservation
from kshare.group.protocol.membership.report import MemberReport, by_range
from kshare.group.protocol.membership.subscription import Assigned, Subscription, in_order
from kshare.group.protocol.plan.group_plan import GroupPlan, plan_group
from kshare.group.protocol.plan.load_sharing import LoadSharing
from kshare.ranges import adaptive
from kshare.ranges.adaptive import hot_above
from tests.group.protocol.test_group_plan import (
    Group,
    check_no_overlap,
    check_tiles,
    given_up,
    group_of,
    joined,
    stores,
    tp,
    width,
)
from tests.support.effort import examples

POINTS = [part.lo + part.width // 3 for part in split(WHOLE, 48)]
ADAPTIVE = MemberReport(range_assignor="adaptive")
PROBING = 60.0


class Traffic:
    """The seconds of work that each key of each partition is, in every minute.

    Args:
        works: Of each partition, in order; keys share it evenly.
        single: Partitions whose work is one key's.
        lags: How many minutes each partition is behind.
    """

    def __init__(
        self, works: list[float], single: tuple[int, ...] = (), lags: Mapping[int, float] = {}
    ) -> None:
        self.topics = {"t": len(works)}
        self.keys = {
            tp(i): {POINTS[7]: work} if i in single else dict.fromkeys(POINTS, work / len(POINTS))
            for i, work in enumerate(works)
        }
        self.lags = {tp(i): lag for i, lag in lags.items()}

    def of(self, assigned: Assigned) -> float:
        return sum(
            (1 + self.lags.get(partition, 0.0)) * work
            for partition, hashes in assigned.items()
            for point, work in self.keys[partition].items()
            if any(point in part for part in hashes)
        )

    def busiest(self, plan: GroupPlan) -> float:
        return max(map(self.of, plan.target.values()))

    def report(self, assigned: Assigned, span: float) -> MemberReport:
        """What a member says that has worked for some seconds."""
        loads = []
        for partition, hashes in in_order(assigned):
            inside = {
                point: work * span / 60
                for point, work in self.keys[partition].items()
                if any(point in part for part in hashes)
            }
            sample = [point for point, work in inside.items() for _ in range(8) if work]
            offsets, total = round(100 * span), sum(inside.values())
            records = round(100 * total)
            loads.append((partition, by_range(hashes, records, offsets, total, sample)))
        lags = tuple((at, round(6000 * lag)) for at, lag in self.lags.items() if at in assigned)
        return replace(ADAPTIVE, loads=tuple(loads), lags=lags, spans=(span,) * len(loads))


def plan(group: Group, topics: Mapping[str, int]) -> GroupPlan:
    return plan_group(
        group, topics, deal_shared=LoadSharing(group, adaptive, "adaptive", PROBING).deal
    )


def settled(group: Group, planned: GroupPlan, epoch: int, traffic: Traffic | None) -> Group:
    """What members say when the rebalance is over; what each has observed began at another time."""
    return {
        member: replace(
            said,
            owned=in_order(planned.target[member]),
            target=in_order(planned.target[member]),
            epoch=epoch,
            report=ADAPTIVE
            if traffic is None
            else traffic.report(planned.target[member], 30.0 + 7 * i),
        )
        for i, (member, said) in enumerate(group.items())
    }


def is_cut(planned: GroupPlan, number: int) -> bool:
    return not any(assigned.get(tp(number)) == ALL_HASHES for assigned in planned.target.values())


def moved(one: GroupPlan, other: GroupPlan) -> bool:
    return one.target != other.target


def on_hosts(group: Group, hosts: str) -> Group:
    """The members on a host each, in order; a dot is none."""
    return {
        member: replace(said, host="" if host == "." else host)
        for (member, said), host in zip(group.items(), hosts, strict=True)
    }


@pytest.mark.parametrize("hosts", ["xxyy", "xyxy", "xyyx"])
def test_parts_of_hot_partitions_meet_on_an_instance(hosts: str) -> None:
    """Two hot ones of four: each instance has one of them, whoever had them before."""
    traffic = Traffic([10.0, 10.0, 0.2, 0.2])
    group = on_hosts(group_of(["a", "b", "c", "d"]), hosts)
    whole = plan(group, traffic.topics)
    said = settled(group, whole, 1, traffic)
    planned = plan(said, traffic.topics)
    check_tiles(planned.target, traffic.topics)
    hot = {pair for pair in stores(group, planned) if pair[1] in {tp(0), tp(1)}}
    assert is_cut(planned, 0)
    assert is_cut(planned, 1)
    assert len(hot) == 2
    apart = plan(on_hosts(said, "...."), traffic.topics)
    assert traffic.busiest(planned) <= 1.1 * traffic.busiest(apart)


def test_even_work_comes_before_meeting() -> None:
    """A part may not meet another one where its instance has no room for its work."""
    traffic = Traffic([10.0, 4.0, 4.0, 4.0])
    group = on_hosts(group_of(["a", "b", "c", "d"]), "xxyy")
    said = settled(group, plan(group, traffic.topics), 1, traffic)
    planned = plan(said, traffic.topics)
    apart = plan(on_hosts(said, "...."), traffic.topics)
    assert traffic.busiest(planned) <= max(traffic.busiest(apart), 1.1 * 22 / 4)


WORKS = st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.0, 5.0, 20.0, 60.0]), min_size=2, max_size=7)


@given(WORKS, st.data())
@examples(150)
def test_it_tiles_is_no_worse_than_whole_and_comes_to_rest(
    works: list[float], data: st.DataObject
) -> None:
    """Whoever leads: the plan does not depend on the order in which members are listed."""
    members = data.draw(st.integers(2, len(works)))
    numbers = st.sets(st.integers(0, len(works) - 1), max_size=2)
    single = tuple(data.draw(numbers))
    traffic = Traffic(works, single, dict.fromkeys(data.draw(numbers), 3.0))
    group = group_of([f"m{i}" for i in range(members)])
    hosts = data.draw(st.text("xy.", min_size=members, max_size=members))
    group = on_hosts(group, hosts)
    whole = plan_group(group, traffic.topics)
    planned = plan(group, traffic.topics)
    assert planned == whole
    plans = [planned]
    for epoch in range(8):
        said = settled(group, planned, 2 * epoch, traffic)
        planned = plan(said, traffic.topics)
        plans.append(planned)
        check_tiles(planned.target, traffic.topics)
        check_no_overlap(said, planned)
        assert plan(dict(reversed(said.items())), traffic.topics) == planned
        assert all(planned.target.values())
        second = given_up(joined(said, planned, 2 * epoch + 1), planned)
        after = plan(second, traffic.topics)
        assert after.target == after.now == planned.target
    assert not moved(plans[-1], plans[-2])
    assert not moved(plans[-1], plans[-3])
    assert traffic.busiest(planned) <= traffic.busiest(whole) * 1.001


@given(WORKS, st.data())
@examples(100)
def test_instances_need_no_more_state_and_no_more_work(
    works: list[float], data: st.DataObject
) -> None:
    members = data.draw(st.integers(2, len(works)))
    traffic = Traffic(works)
    group = group_of([f"m{i}" for i in range(members)])
    said = settled(group, plan(group, traffic.topics), 1, traffic)
    hosts = data.draw(st.text("xy.", min_size=members, max_size=members))
    here = on_hosts(said, hosts)
    planned, apart = plan(here, traffic.topics), plan(on_hosts(said, "." * members), traffic.topics)
    assert len(stores(here, planned)) <= len(stores(here, apart))
    mean = sum(works) / members
    assert traffic.busiest(planned) <= max(traffic.busiest(apart), 1.1 * mean) * 1.001


@given(st.integers(2, 6), st.integers(0, 4), st.data())
@examples(80)
def test_nothing_is_cut_while_no_partition_is_hot(
    members: int, more: int, data: st.DataObject
) -> None:
    """However loads differ from minute to minute: the plan is that of always."""
    number = members + more
    group = group_of([f"m{i}" for i in range(members)])
    planned = plan(group, {"t": number})
    first = planned
    for epoch in range(4):
        works = data.draw(st.lists(st.floats(1.0, 1.99), min_size=number, max_size=number))
        said = settled(group, planned, epoch, Traffic(works))
        assert plan(said, {"t": number}) == plan_group(said, {"t": number})
        planned = plan(said, {"t": number})
    assert planned.target == first.target


def test_a_partition_with_ten_times_the_work_is_shared() -> None:
    """Each member that stays keeps what it has: what moves is the others' parts of the hot one."""
    traffic = Traffic([10.0, 1.0, 1.0, 1.0])
    group = group_of(["a", "b", "c", "d"])
    whole = plan(group, traffic.topics)
    planned = plan(settled(group, whole, 1, traffic), traffic.topics)
    assert is_cut(planned, 0)
    assert [is_cut(planned, i) for i in (1, 2, 3)] == [False] * 3
    assert traffic.busiest(planned) <= 0.4 * traffic.busiest(whole)
    for member in "bcd":
        assert whole.target[member].keys() <= planned.target[member].keys()
    assert tp(0) in planned.target["a"]


@given(st.integers(3, 5), st.integers(0, 2), st.data())
def test_what_is_cut_does_not_move_while_nobody_has_too_much(
    members: int, more: int, data: st.DataObject
) -> None:
    number = members + more
    group = group_of([f"m{i}" for i in range(members)])

    def traffic() -> Traffic:
        others = st.lists(st.floats(0.3, 2.0), min_size=number - 1, max_size=number - 1)
        return Traffic([10.0, *data.draw(others)])

    before, after = traffic(), traffic()
    planned = plan(settled(group, plan(group, before.topics), 1, before), before.topics)
    now = [after.of(assigned) for assigned in planned.target.values()]
    assume(is_cut(planned, 0) and max(now) <= 0.95 * hot_above(now))
    assert not moved(plan(settled(group, planned, 2, after), after.topics), planned)


def test_each_member_gets_something() -> None:
    """Though those who had partitions before have room for the idle ones."""
    traffic = Traffic([10.0, 7.8, 7.8, 0.0, 0.0])
    had = {"a": (0, 3, 4), "b": (1,), "c": (2,), "d": (), "e": ()}
    group = {}
    for name, numbers in had.items():
        owned: Assigned = {tp(i): ALL_HASHES for i in numbers}
        group[name] = Subscription(
            name, ("t",), owned=in_order(owned), target=in_order(owned), epoch=1,
            report=traffic.report(owned, 60.0),
        )  # fmt: skip
    planned = plan(group, traffic.topics)
    assert is_cut(planned, 0)
    assert all(planned.target.values())


def test_what_waits_counts_as_work() -> None:
    """All members are busy all the time; one partition is ten minutes behind."""
    traffic = Traffic([20.0] * 4, lags={2: 10.0})
    group = group_of(["a", "b", "c", "d"])
    planned = plan(settled(group, plan(group, traffic.topics), 1, traffic), traffic.topics)
    assert is_cut(planned, 2)
    behind = Traffic([20.0] * 4, lags=dict.fromkeys(range(4), 10.0))
    planned = plan(settled(group, plan(group, behind.topics), 1, behind), behind.topics)
    assert not any(is_cut(planned, i) for i in range(4))


def test_what_is_cut_stays_so_until_it_has_half_the_work_that_made_it_hot() -> None:
    group = group_of(["a", "b", "c", "d"])
    hot = Traffic([10.0, 1.0, 1.0, 1.0])
    once = plan(settled(group, plan(group, hot.topics), 1, hot), hot.topics)
    cooler = Traffic([1.5, 1.0, 1.0, 1.0])  # it is hot above 1.8
    assert not moved(plan(settled(group, once, 2, cooler), hot.topics), once)
    cold = Traffic([0.5, 1.0, 1.0, 1.0])
    again = plan(settled(group, once, 3, cold), hot.topics)
    assert not is_cut(again, 0)
    assert not moved(plan(settled(group, again, 4, cooler), hot.topics), again)


def test_nothing_moves_until_all_have_measured_and_by_noise() -> None:
    group = group_of(["a", "b", "c"])
    hot = Traffic([30.0, 1.0, 1.0])
    whole = plan(group, hot.topics)
    said = settled(group, whole, 1, hot)
    said["b"] = replace(said["b"], report=ADAPTIVE)
    assert plan(said, hot.topics).target == whole.target
    spans = replace(hot.report(whole.target["b"], 60.0), spans=())  # of an older version
    said["b"] = replace(said["b"], report=spans)
    assert plan(said, hot.topics).target == whole.target
    quiet = Traffic([0.1, 0.0, 0.0])
    assert not moved(plan(settled(group, whole, 1, quiet), hot.topics), whole)
    said = settled(group, whole, 1, Traffic([1.0, 1.0, 1.0]))
    few = (RangeObservation(WHOLE, 20, 10, 0.1, tuple(POINTS)),)  # and much waits
    report = replace(said["a"].report, loads=((tp(0), few),), lags=((tp(0), 100_000),))
    said["a"] = replace(said["a"], report=report)
    assert plan(said, hot.topics).target == whole.target
    once = plan(settled(group, whole, 1, hot), hot.topics)
    assert is_cut(once, 0)
    for nothing in (None, quiet):  # what is cut stays so, too
        assert not moved(plan(settled(group, once, 2, nothing), hot.topics), once)


def test_one_hot_key_is_not_cut_in_vain() -> None:
    group = group_of(["a", "b", "c"])
    traffic = Traffic([30.0, 1.0, 1.0], single=(0,))
    whole = plan(group, traffic.topics)
    assert not moved(plan(settled(group, whole, 1, traffic), traffic.topics), whole)


def test_who_joins_and_who_is_killed() -> None:
    """The others keep parts of the hot one, and who joins gets one."""
    traffic = Traffic([20.0, 1.0, 1.0, 1.0, 1.0])
    group = group_of(["a", "b", "c"])
    once = plan(settled(group, plan(group, traffic.topics), 1, traffic), traffic.topics)
    said = settled(group, once, 2, traffic)
    fresh = {"d": Subscription("d", ("t",), report=ADAPTIVE)}
    more = plan({**said, **fresh}, traffic.topics)
    whole = plan_group(group_of(["a", "b", "c", "d"]), traffic.topics)
    assert is_cut(more, 0)
    assert more.target["d"]
    assert traffic.busiest(more) < traffic.busiest(once) < traffic.busiest(whole)
    del said["b"]
    fewer = plan(said, traffic.topics)
    check_tiles(fewer.target, traffic.topics)
    assert is_cut(fewer, 0)
    assert traffic.busiest(fewer) <= 0.75 * traffic.busiest(plan_group(said, traffic.topics))


@pytest.mark.parametrize("why", ["opts out", "has round-robin", "whole topic"])
def test_who_does_not_share_or_measure_gets_whole_partitions(why: str) -> None:
    traffic = Traffic([30.0, 1.0, 1.0])
    group = group_of(["a", "b", "c"], whole=["b"] if why == "opts out" else ())
    said = settled(group, plan(group, traffic.topics), 1, traffic)
    if why == "has round-robin":
        said["b"] = replace(said["b"], report=MemberReport())
    topics = ["t"] if why == "whole topic" else ()
    sharing = LoadSharing(said, adaptive, "adaptive", PROBING)
    planned = plan_group(said, traffic.topics, whole_topics=topics, deal_shared=sharing.deal)
    assert planned == plan_group(said, traffic.topics, whole_topics=topics)


def test_of_a_member_with_many_partitions_only_the_busiest_are_known() -> None:
    """The others count as the least of those: there is no room for more in a report."""
    works = [1.0] * 39 + [200.0]
    traffic = Traffic(works)
    group = group_of(["a", "b"])
    whole = plan(group, traffic.topics)
    said = settled(group, whole, 1, traffic)
    for member, each in said.items():
        busy = sorted(each.report.loads, key=lambda load: -(load[1][0].seconds or 0))[:16]
        report = replace(each.report, loads=tuple(sorted(busy)), spans=(60.0,) * 16)
        said[member] = replace(each, report=report)
    planned = plan(said, traffic.topics)
    assert is_cut(planned, 39)
    assert traffic.busiest(planned) <= 0.8 * traffic.busiest(whole)


def test_members_with_different_topics_and_subscriptions() -> None:
    """A hot partition of one topic is cut among all who subscribe to it, and no others."""
    group: Group = {
        "a": Subscription("a", ("t", "u")), "b": Subscription("b", ("t", "u")),
        "c": Subscription("c", ("u",)),
    }  # fmt: skip
    topics = {"t": 2, "u": 3}

    def seen(assigned: Assigned) -> MemberReport:
        loads = tuple(
            (at, (RangeObservation(WHOLE, 100, 100, 30.0 if at == tp(0) else 1.0, tuple(POINTS)),))
            for at, _ in in_order(assigned)
        )
        return replace(ADAPTIVE, loads=loads, spans=(60.0,) * len(loads))

    whole = plan(group, topics)
    said = {
        member: replace(
            each, owned=in_order(whole.target[member]), target=in_order(whole.target[member]),
            epoch=1, report=seen(whole.target[member]),
        )
        for member, each in group.items()
    }  # fmt: skip
    planned = plan(said, topics)
    check_tiles(planned.target, topics)
    assert {m for m, assigned in planned.target.items() if assigned.get(tp(0))} == {"a", "b"}
    others = TopicPartition("u", 0).topic
    for member in group:
        mine = {at: h for at, h in planned.target[member].items() if at.topic == others}
        assert mine == {at: h for at, h in whole.target[member].items() if at.topic == others}
    assert width(planned.target["a"]) > 0
