"""Who owns which key hashes: against a naive answer for single hashes, in any log."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, KeyRanges, split
from kshare.core.progress import TopicPartition
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import (
    Claim,
    Epoch,
    EpochMember,
    Member,
    Record,
    key_of,
)
from kshare.group.protocol.owners.range_owners import (
    LivingMember,
    RangeOwner,
    living_members,
    owner_of,
    range_owners,
    whole_owners,
)

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
EIGHTHS = split(WHOLE, 8)
LOWER, UPPER = split(WHOLE, 2)
SESSIONS = ("a", "b", "c")


def log_of(*records: Record) -> GroupLog:
    log = GroupLog("billing")
    for position, record in enumerate(records):
        log.apply(position, key_of(record), record)
    return log


def alive(*names: str) -> dict[str, LivingMember]:
    return {name: LivingMember(name, f"{name}:80", name.upper()) for name in names}


def ranges(numbers: set[int]) -> KeyRanges:
    """Some eighths of the hash space."""
    return KeyRanges(EIGHTHS[number] for number in numbers)


hashes = st.sets(st.integers(0, 7), min_size=1).map(ranges)
claims = st.builds(
    lambda tp, session, number, parts, epoch: Claim(tp, f"{session}#{number}", parts, epoch),
    st.sampled_from([T0, T1]),
    st.sampled_from(SESSIONS),
    st.integers(1, 3),
    hashes,
    st.none() | st.integers(0, 12),
)


@st.composite
def epochs(draw: st.DrawFn) -> Epoch:
    """A generation that assigns each eighth to one member at most."""
    members = []
    free = {T0: set(range(8)), T1: set(range(8))}
    for name in draw(st.sets(st.sampled_from(SESSIONS))):
        assigned = []
        for tp, numbers in free.items():
            mine = draw(st.sets(st.sampled_from(sorted(numbers)))) if numbers else set()
            numbers.difference_update(mine)
            if mine:
                assigned.append((tp, ranges(mine)))
        members.append(EpochMember(name, name.upper(), f"{name}:80", tuple(assigned)))
    return Epoch(1, "a", tuple(members))


def naive_owner(log: GroupLog, names: set[str], tp: TopicPartition, hash_: int) -> str | None:
    covering = [
        placed
        for placed in log.of(tp).claims.values()
        if any(hash_ in part for part in placed.claim.hashes)
    ]
    if covering:
        latest = max(covering, key=lambda placed: placed.age)
        session = latest.claim.name.rpartition("#")[0]
        if session in names:
            return session
    last = log.epochs[max(log.epochs)].members if log.epochs else ()
    for member in last:
        for partition, parts in member.assigned:
            if partition == tp and any(hash_ in part for part in parts or ALL_HASHES):
                return member.name if member.name in names else None
    return None


@given(st.lists(claims | epochs(), max_size=12), st.sets(st.sampled_from(SESSIONS)))
def test_each_hash_has_the_owner_of_the_naive_answer(
    records: list[Claim | Epoch], names: set[str]
) -> None:
    log = log_of(*records)
    owners = range_owners(log, alive(*names))
    for tp in (T0, T1):
        for part in EIGHTHS:
            for hash_ in (part.lo, part.hi - 1):
                found = owner_of(owners, tp, hash_)
                assert (found and found.member) == naive_owner(log, names, tp, hash_)


@given(st.lists(claims | epochs(), max_size=12), st.sets(st.sampled_from(SESSIONS)))
def test_ranges_are_disjoint_ascending_and_as_few_as_can_be(
    records: list[Claim | Epoch], names: set[str]
) -> None:
    owners = range_owners(log_of(*records), alive(*names))
    assert list(owners) == sorted(owners)
    for one, next_one in pairwise(owners):
        if one.partition == next_one.partition:
            assert one.hashes.hi <= next_one.hashes.lo
            is_neighbour = one.hashes.hi == next_one.hashes.lo
            assert not (is_neighbour and one.member == next_one.member)


def test_what_moves_is_its_former_owners_until_that_gives_it_up() -> None:
    """The leader assigns B the upper half, which A has claimed and has not given up yet."""
    now_a = EpochMember("a", "A", "a:80", ((T0, KeyRanges([LOWER])),))
    now_b = EpochMember("b", "B", "b:80")
    log = log_of(Claim(T0, "a#1", ALL_HASHES), Epoch(2, "a", (now_a, now_b)))
    assert range_owners(log, alive("a", "b")) == (RangeOwner(T0, WHOLE, "a"),)
    log.apply(2, key_of(Claim(T0, "a#1", ALL_HASHES)), None)
    log.apply(3, key_of(Epoch(3, "a", ())), Epoch(3, "a", (
        now_a, EpochMember("b", "B", "b:80", ((T0, KeyRanges([UPPER])),)))))  # fmt: skip
    assert range_owners(log, alive("a", "b")) == (
        RangeOwner(T0, LOWER, "a"),
        RangeOwner(T0, UPPER, "b"),
    )
    assert range_owners(log, alive("a")) == (RangeOwner(T0, LOWER, "a"),)


MEMBERS = (EpochMember("a", "A", "a:80"), EpochMember("b", "B", "b:80"))


@pytest.mark.parametrize(
    ("joined", "names"),
    [({"A", "B"}, {"a", "b", "s"}), ({"B", "X"}, {"b", "s"}), (set(), {"s"}), (None, {"a", "s"})],
    ids=["all", "one was dropped", "none is left", "brokers do not say"],
)
def test_who_is_alive(joined: set[str] | None, names: set[str]) -> None:
    """A member that has joined is alive while the coordinator knows it; others by their signs."""
    log = log_of(
        Epoch(1, "a", MEMBERS),
        Member("a", "node-a", 900),
        Member("b", "node-b", 100),
        Member("s", "node-s", 500),
        Member("dead", "node-d", 499),
    )
    assert living_members(log, 500, joined).keys() == names


def test_a_member_of_an_older_epoch_is_no_standalone_consumer() -> None:
    log = log_of(Epoch(1, "a", MEMBERS), Member("b", "node-b", 900), Epoch(2, "a", MEMBERS[:1]))
    assert living_members(log, 500, {"A"}) == {"a": LivingMember("a", "a:80", "A")}


def test_a_host_is_what_the_last_epoch_says() -> None:
    said = (EpochMember("a", "A", "pod-3:8080"),)
    log = log_of(Member("a", "node-a", 900), Epoch(1, "a", MEMBERS), Epoch(2, "a", said))
    assert living_members(log, 500, {"A"})["a"].host == "pod-3:8080"
    assert owner_of((), T0, HASH_SPACE - 1) is None


def test_with_whole_partitions_the_coordinator_says_who_has_what_nobody_claims() -> None:
    """The last epoch does not count: of a, its partition is a plain consumer's now."""
    log = log_of(
        Epoch(1, "a", MEMBERS),
        Member("a", "pod-1:80", 900),
        Member("b", "node-b", 900),
        Member("dead", "node-d", 499),
        Claim(T0, "a#2", ALL_HASHES),
        Claim(T1, "dead#1", ALL_HASHES),
    )
    owners, alive = whole_owners(log, 500, {"A": (T0,), "X": (T1,), "Y": ()})
    assert owners == (RangeOwner(T0, WHOLE, "a"), RangeOwner(T1, WHOLE, "X"))
    assert alive == {
        "a": LivingMember("a", "pod-1:80", "A"),
        "b": LivingMember("b", "node-b"),
        "X": LivingMember("X", "", "X"),
    }
