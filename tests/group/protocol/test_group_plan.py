"""The leader's plan: the proposal's example, and laws: tiling, balance, stickiness, two phases."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import (
    ALL_HASHES,
    HASH_SPACE,
    NO_HASHES,
    WHOLE,
    HashRange,
    KeyRanges,
    split,
)
from kshare.core.progress import TopicPartition
from kshare.group.protocol.membership.subscription import Assigned, Subscription, in_order
from kshare.group.protocol.plan.group_plan import GroupPlan, plan_group
from tests.support.effort import examples

Group: TypeAlias = dict[str, Subscription]
LOWER, UPPER = split(WHOLE, 2)


def group_of(names: Sequence[str], *topics: str, whole: Sequence[str] = ()) -> Group:
    return {
        name: Subscription(name, topics or ("t",), individual=name not in whole) for name in names
    }


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def width(assigned: Assigned) -> int:
    return sum(hashes.width for hashes in assigned.values())


def both(one: Assigned, other: Assigned) -> int:
    """How many hashes are in two assignments."""
    return sum((one[partition] & other[partition]).width for partition in one.keys() & other.keys())


def check_tiles(target: Mapping[str, Assigned], partitions: Mapping[str, int]) -> None:
    parts: dict[TopicPartition, list[HashRange]] = {}
    for assigned in target.values():
        for partition, hashes in assigned.items():
            parts.setdefault(partition, []).extend(hashes)
            assert all(a.hi < b.lo for a, b in pairwise(hashes))
    assert parts.keys() == {tp(i, topic) for topic, n in partitions.items() for i in range(n)}
    for listed in parts.values():
        listed.sort()
        assert listed[0].lo == 0
        assert listed[-1].hi == HASH_SPACE
        assert all(a.hi == b.lo for a, b in pairwise(listed))


def check_balance(group: Group, target: Mapping[str, Assigned], partitions: int) -> None:
    """Of members that all subscribe to one topic, and share."""
    if len(group) <= partitions:
        counts = [len(assigned) for assigned in target.values()]
        assert max(counts) - min(counts) <= 1
        return
    seats: dict[TopicPartition, list[int]] = {}
    for assigned in target.values():
        ((partition, hashes),) = assigned.items()
        seats.setdefault(partition, []).append(sum(part.width for part in hashes))
    numbers = [len(widths) for widths in seats.values()]
    assert max(numbers) - min(numbers) <= 1
    assert all(max(widths) - min(widths) <= 1 for widths in seats.values())


def joined(group: Group, plan: GroupPlan, epoch: int) -> Group:
    """What members say at the next join: they own what they were given, and know their target."""
    return {
        member: replace(
            said,
            owned=in_order(plan.now[member]),
            target=in_order(plan.target[member]),
            epoch=epoch,
        )
        for member, said in group.items()
    }


def given_up(group: Group, plan: GroupPlan) -> Group:
    """The same after they have given up what is not theirs any more."""

    def kept(owned: Assigned, now: Assigned) -> Assigned:
        return {
            partition: shared
            for partition, hashes in owned.items()
            if (shared := hashes & now.get(partition, NO_HASHES))
        }

    return {
        member: replace(said, owned=in_order(kept(dict(said.owned), plan.now[member])))
        for member, said in group.items()
    }


def test_the_proposals_five_consumers() -> None:
    plan = plan_group(group_of(["M1", "M2", "M3", "M4", "M5"], "tp"), {"tp": 3})
    assert plan.target == {
        "M1": {tp(0, "tp"): (LOWER,)},
        "M2": {tp(1, "tp"): (LOWER,)},
        "M3": {tp(2, "tp"): ALL_HASHES},
        "M4": {tp(0, "tp"): (UPPER,)},
        "M5": {tp(1, "tp"): (UPPER,)},
    }
    assert plan.now == plan.target


def test_members_that_opt_out_get_whole_partitions() -> None:
    plan = plan_group(group_of(["a", "b", "c"], whole=["b"]), {"t": 2})
    assert plan.target == {"b": {tp(0): ALL_HASHES}, "a": {tp(1): (LOWER,)}, "c": {tp(1): (UPPER,)}}
    again = plan_group(joined(group_of(["a", "b", "c"], whole=["b"]), plan, 1), {"t": 2})
    assert again.target == plan.target


def test_too_many_members_that_opt_out_leave_a_partition_to_the_others() -> None:
    group = group_of(["a", "b", "c", "d"], whole=["a", "b", "c"])
    plan = plan_group(group, {"t": 2})
    assert plan.target == {"a": {tp(0): ALL_HASHES}, "b": {}, "c": {}, "d": {tp(1): ALL_HASHES}}
    nobody_shares = plan_group(group_of(["a", "b", "c"], whole="abc"), {"t": 2})
    assert nobody_shares.target == {"a": {tp(0): ALL_HASHES}, "b": {tp(1): ALL_HASHES}, "c": {}}


def test_topics_that_are_not_to_be_shared() -> None:
    plan = plan_group(group_of(["a", "b", "c"], "t", "u"), {"t": 1, "u": 1}, whole_topics=["u"])
    check_tiles(plan.target, {"t": 1, "u": 1})
    assert [dict(plan.target[m])[tp(0, "u")] for m in "abc" if tp(0, "u") in plan.target[m]] == [
        ALL_HASHES
    ]
    assert all(plan.target[m][tp(0)] for m in "abc")


def parts_of(plan: GroupPlan, topic: str) -> dict[str, float]:
    """How many partitions of a topic each member has, and parts of them."""
    own = {m: {t: h for t, h in a.items() if t.topic == topic} for m, a in plan.target.items()}
    return {member: width(assigned) / HASH_SPACE for member, assigned in own.items()}


@pytest.mark.parametrize(("wide", "each"), [(8, 2.0), (4, 1.0), (2, 0.5)])
def test_sharing_is_decided_topic_by_topic(wide: int, each: float) -> None:
    """Four members: a busy topic of one partition is in quarters, whatever else they read."""
    group = group_of(["a", "b", "c", "d"], "orders", "audit")
    partitions = {"orders": 1, "audit": wide}
    plan = plan_group(group, partitions)
    assert set(parts_of(plan, "orders").values()) == {0.25}
    assert set(parts_of(plan, "audit").values()) == {each}
    check_tiles(plan.target, partitions)


def test_members_have_the_larger_parts_of_topics_in_turn() -> None:
    group = group_of(["a", "b", "c", "d"], "t", "u", "v", "w")
    plan = plan_group(group, dict.fromkeys("tuvw", 3))
    assert [width(plan.target[member]) / HASH_SPACE for member in "abcd"] == [3.0] * 4


def test_parts_of_a_partition_meet_on_a_host() -> None:
    """The proposal's example: of two instances with two members each, each has one partition."""
    group = {
        name: Subscription(name, ("t",), host=host)
        for name, host in {"m1": "a:80", "m2": "b", "m3": "a:81", "m4": "b"}.items()
    }
    plan = plan_group(group, {"t": 2})
    check_tiles(plan.target, {"t": 2})
    assert plan.target["m1"].keys() == plan.target["m3"].keys()
    assert plan.target["m2"].keys() == plan.target["m4"].keys()


def test_members_that_name_one_instance_are_one_wherever_they_run() -> None:
    """``group.instance.host``: pods of one node, which have names of their own."""
    named = {"m1": "node-1", "m2": "node-2", "m3": "node-1", "m4": "node-2"}
    group = {
        name: Subscription(name, ("t",), host=f"pod-{name}", instance=instance)
        for name, instance in named.items()
    }
    plan = plan_group(group, {"t": 2})
    assert plan.target["m1"].keys() == plan.target["m3"].keys()
    assert plan.target["m2"].keys() == plan.target["m4"].keys()


def settled(group: Group, partitions: Mapping[str, int], epoch: int) -> tuple[Group, GroupPlan]:
    """What members say after a rebalance, and its plan, which stays."""
    plan = plan_group(group, partitions)
    check_tiles(plan.target, partitions)
    check_no_overlap(group, plan)
    second = given_up(joined(group, plan, 2 * epoch), plan)
    after = plan_group(second, partitions)
    assert after.now == after.target == plan.target
    said = joined(second, after, 2 * epoch + 1)
    assert plan_group(said, partitions).target == plan.target
    return said, after


def on_host(name: str, host: str) -> Subscription:
    return Subscription(name, ("t",), host=host)


def stores(group: Group, plan: GroupPlan) -> set[tuple[str, TopicPartition]]:
    """The pairs of an instance and a partition that it has some hashes of."""
    return {
        (group[member].host or f"none: {member}", partition)
        for member, assigned in plan.target.items()
        for partition in assigned
    }


@pytest.mark.parametrize("names", list(permutations(["a1", "a2", "b1", "b2"])))
def test_parts_of_a_partition_meet_on_a_host_of_those_who_join_one_by_one(
    names: tuple[str, ...],
) -> None:
    group: Group = {}
    for epoch, name in enumerate(names):
        group, plan = settled({**group, name: on_host(name, name[0])}, {"t": 2}, epoch)
    assert len(stores(group, plan)) == 2


def test_who_joins_where_its_host_has_a_partition_moves_nobody_else() -> None:
    group: Group = {}
    for epoch, name in enumerate(["a1", "b1", "b2", "a2"]):
        before = {member: dict(said.owned) for member, said in group.items()}
        group, plan = settled({**group, name: on_host(name, name[0])}, {"t": 2}, epoch)
        for member, had in before.items():
            if epoch > 1:  # before, they have whole partitions
                assert both(had, plan.target[member]) == width(plan.target[member])


@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.sampled_from("abcdefghijklmn"), st.sampled_from(["", "x", "y", "z", "w"])),
        min_size=1,
        max_size=14,
        unique_by=lambda pair: pair[0],
    ),
    st.sets(st.sampled_from("abcdefghijklmn"), max_size=4),
)
def test_instances_and_partitions_are_a_forest_however_members_come_and_go(
    number: int, members: list[tuple[str, str]], leave: set[str]
) -> None:
    """So there are fewer stores than instances and partitions together."""
    partitions, group = {"t": number}, dict[str, Subscription]()
    steps = [*members, *((name, None) for name in sorted(leave))]
    for epoch, (name, host) in enumerate(steps):
        if host is not None:
            group[name] = on_host(name, host)
        elif len(group) > 1:
            group.pop(name, None)
        group, plan = settled(group, partitions, epoch)
        check_balance(group, plan.target, number)
        instances = {said.host or f"none: {member}" for member, said in group.items()}
        most = number if len(group) <= number else len(instances) + number - 1
        assert len(stores(group, plan)) <= most


hosts = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["", "x", "y:1", "z"]))


@given(hosts, hosts, st.lists(st.integers(1, 6), min_size=1, max_size=4))
@examples(200)
def test_laws_of_several_topics_and_hosts(
    before: dict[str, str], after: dict[str, str], numbers: list[int]
) -> None:
    partitions = {f"t{i}": number for i, number in enumerate(numbers)}
    said: Group = {}
    for epoch, members in enumerate((before, after)):
        if not members:
            continue
        group = {
            member: replace(said.get(member, Subscription(member, tuple(partitions))), host=host)
            for member, host in members.items()
        }
        plan = plan_group(group, partitions)
        check_tiles(plan.target, partitions)
        check_no_overlap(group, plan)
        for topic, number in partitions.items():
            if number < len(members):
                own = {
                    member: {at: hashes for at, hashes in assigned.items() if at.topic == topic}
                    for member, assigned in plan.target.items()
                }
                check_balance(group, own, number)
        whole = {topic for topic, number in partitions.items() if number >= len(members)}
        counts = [sum(at.topic in whole for at in own) for own in plan.target.values()]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == sum(partitions[topic] for topic in whole)
        second = given_up(joined(group, plan, 2 * epoch), plan)
        again = plan_group(second, partitions)
        assert again.target == again.now == plan.target
        said = joined(second, again, 2 * epoch + 1)


def test_members_with_different_topics() -> None:
    group = {
        "a": Subscription("a", ("t", "u")),
        "b": Subscription("b", ("u",)),
        "c": Subscription("c", ("t", "v", "gone")),
    }
    partitions = {"t": 2, "u": 1, "v": 1}
    plan = plan_group(group, partitions)
    check_tiles(plan.target, partitions)
    for member, assigned in plan.target.items():
        assert {partition.topic for partition in assigned} <= set(group[member].topics)


def test_a_member_joins_and_takes_an_even_share_of_each() -> None:
    names = ["a", "b", "c", "d"]
    group = joined(group_of(names), plan_group(group_of(names), {"t": 1}), 1)
    plan = plan_group({**group, **group_of(["e"])}, {"t": 1})
    fifth = HASH_SPACE // 5
    for name in names:
        kept = both(dict(group[name].owned), plan.target[name])
        assert abs(kept - fifth) <= 1
        assert plan.now[name] == plan.target[name]
    assert plan.now["e"] == {}
    after = plan_group(given_up(joined({**group, **group_of(["e"])}, plan, 2), plan), {"t": 1})
    assert after.target == plan.target


def test_what_a_member_of_an_older_epoch_says_does_not_count() -> None:
    group = {
        "a": Subscription("a", ("t",), owned=((tp(0), ALL_HASHES),), epoch=3),
        "b": Subscription("b", ("t",), owned=((tp(0), KeyRanges([LOWER])),), epoch=5),
        "c": Subscription("c", ("t",), owned=((tp(0), KeyRanges([UPPER])),), epoch=5),
    }
    plan = plan_group(group, {"t": 1})
    third = HASH_SPACE // 3
    for name, half in (("b", LOWER), ("c", UPPER)):
        assert both({tp(0): KeyRanges([half])}, plan.target[name]) >= third
    # It may still hand out records of all of them: nobody else gets any before it gives them up.
    assert plan.now["b"] == plan.now["c"] == {}


@st.composite
def churn(draw: st.DrawFn) -> tuple[int, list[set[str]]]:
    """The number of partitions, and who is there in each generation."""
    names = st.sets(st.sampled_from("abcdefghijkl"), min_size=1)
    return draw(st.integers(1, 5)), draw(st.lists(names, min_size=1, max_size=6))


@given(churn())
@examples(300)
def test_laws_while_members_come_and_go(history: tuple[int, list[set[str]]]) -> None:
    number, generations = history
    partitions = {"t": number}
    said: Group = {}
    for epoch, names in enumerate(generations):
        group = {name: said.get(name, group_of([name])[name]) for name in sorted(names)}
        plan = plan_group(group, partitions)
        check_tiles(plan.target, partitions)
        check_balance(group, plan.target, number)
        check_no_overlap(group, plan)
        check_sticky(group, plan, number)
        second = given_up(joined(group, plan, epoch), plan)
        after = plan_group(second, partitions)
        assert after.target == plan.target  # so that no third round is needed
        assert after.now == after.target
        said = joined(second, after, epoch)


def check_no_overlap(group: Group, plan: GroupPlan) -> None:
    """Nobody gets what another one owns, and everybody gets only what is meant for it."""
    for member, assigned in plan.now.items():
        assert both(assigned, plan.target[member]) == width(assigned)
        for other, its in group.items():
            if other != member:
                assert both(assigned, dict(its.owned)) == 0


def check_sticky(group: Group, plan: GroupPlan, partitions: int) -> None:
    """A member that stays keeps what it had, as far as its share goes."""
    for member, said in group.items():
        had, has = dict(said.owned), plan.target[member]
        if len(group) > partitions == 1:
            share = HASH_SPACE // len(group)
            assert both(had, has) >= min(width(had), share) - 1
        elif len(group) <= partitions:
            whole = [partition for partition, hashes in had.items() if not hashes]
            kept = [partition for partition in whole if partition in has]
            assert len(kept) >= min(len(whole), partitions // len(group))


def test_ranges_do_not_break_up_for_ever() -> None:
    said: Group = {}
    most = 0
    for epoch in range(200):
        names = [f"m{i}" for i in range(8) if (epoch * 7 + i * epoch) % 5 != i % 5] or ["m0"]
        group = {name: said.get(name, group_of([name])[name]) for name in names}
        plan = plan_group(group, {"t": 1})
        check_tiles(plan.target, {"t": 1})
        most = max(most, *(len(assigned[tp(0)]) for assigned in plan.target.values()))
        said = joined(group, replace(plan, now=plan.target), epoch)
    assert most <= 16


@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_the_order_of_members_and_their_ids_change_nothing(members: int) -> None:
    names = [f"n{i}" for i in range(members)]
    group = {f"id-{i * 7 % members}-{name}": group_of([name])[name] for i, name in enumerate(names)}
    plan = plan_group(group, {"t": 3})
    turned = plan_group(dict(reversed(group.items())), {"t": 3})
    assert plan == turned
