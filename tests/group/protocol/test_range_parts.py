"""Dividing a partition: what is looked up and kept in heaps is what comparing all with all says."""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import FrameType

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
from kshare.group.protocol.membership.subscription import Subscription, in_order
from kshare.group.protocol.plan.group_plan import plan_group
from kshare.group.protocol.plan.range_parts import (
    Overlaps,
    by_overlap,
    divided,
    keeping_most,
    shared_width,
    tiles,
)

SCALE = HASH_SPACE // 100
MANY = 1_000


def cuts(count: int) -> st.SearchStrategy[list[HashRange]]:
    """The hash space in so many parts, ascending."""
    bounds = st.sets(st.integers(1, 99), min_size=count - 1, max_size=count - 1)
    return bounds.map(
        lambda points: [
            HashRange(lo, hi)
            for lo, hi in pairwise([0, *(SCALE * at for at in sorted(points)), HASH_SPACE])
        ]
    )


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[HashRange], list[KeyRanges]]:
    """New parts in any order, and what as many members had: several ranges each, or none."""
    members = draw(st.integers(1, 7))
    fresh = draw(cuts(members).flatmap(st.permutations))
    had: list[list[HashRange]] = [[] for _ in range(members + 1)]  # the last one has left
    for part in draw(st.integers(1, 14).flatmap(cuts)):
        had[draw(st.integers(0, members))].append(part)
    return fresh, list(map(KeyRanges, had[:members]))


def all_pairs(fresh: Sequence[HashRange], had: Sequence[KeyRanges]) -> list[int]:
    """Each member's part, of all pairs by what they share."""
    pairs = sorted(
        (-shared_width(part, own), i, j)
        for i, own in enumerate(had)
        for j, part in enumerate(fresh)
    )
    chosen: dict[int, int] = {}
    for _, i, j in pairs:
        if i not in chosen and j not in chosen.values():
            chosen[i] = j
    return [chosen[i] for i in range(len(had))]


def all_changes(fresh: Sequence[HashRange], had: Sequence[KeyRanges]) -> list[int]:
    """Each member's part, after all changes of two members that keep more."""
    chosen, is_better = all_pairs(fresh, had), True
    while is_better:
        is_better = False
        for i in range(len(had)):
            for j in range(i):
                kept = shared_width(fresh[chosen[i]], had[i]) + shared_width(
                    fresh[chosen[j]], had[j]
                )
                changed = shared_width(fresh[chosen[j]], had[i]) + shared_width(
                    fresh[chosen[i]], had[j]
                )
                if changed > kept:
                    chosen[i], chosen[j] = chosen[j], chosen[i]
                    is_better = True
    return chosen


@given(moves())
def test_parts_go_to_those_that_had_most_of_them(
    moved: tuple[list[HashRange], list[KeyRanges]],
) -> None:
    fresh, had = moved
    assert by_overlap(fresh, had) == tuple((fresh[j],) for j in all_pairs(fresh, had))
    assert keeping_most(fresh, had) == [(fresh[j],) for j in all_changes(fresh, had)]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12), st.integers(0, 40))
def test_ranges_are_found_that_overlap_another_one(spans: list[tuple[int, int]], lo: int) -> None:
    ranges = [(HashRange(at, at + wide), i) for i, (at, wide) in enumerate(spans)]
    sought = HashRange(lo, lo + 5)
    found = Overlaps(ranges).of(sought)
    assert sorted(found) == sorted(pair for pair in ranges if pair[0].intersect(sought))
    assert [part.lo for part, _ in found] == sorted(part.lo for part, _ in found)


def one_joins() -> None:
    """All members trim a range for the one that joins, which gets far too many pieces."""
    names = [f"m{i:04}" for i in range(MANY)]
    held = dict(zip(names, (KeyRanges([part]) for part in split(WHOLE, MANY)), strict=True))
    assert tiles(divided([*names, "z"], held))


def the_group_plans() -> None:
    """The same, with what members own and shall have."""
    group = {f"m{i:04}": Subscription(f"m{i:04}", ("t",)) for i in range(MANY)}
    plan = plan_group(group, {"t": 1})
    said = {
        name: Subscription(name, ("t",), True, in_order(plan.now[name]), epoch=1) for name in group
    }
    again = plan_group({**said, "z": Subscription("z", ("t",))}, {"t": 1})
    assert tiles([hashes for own in again.target.values() for hashes in own.values()])


def load_moves() -> None:
    """One member had all; and each one had another part."""
    fresh = split(WHOLE, MANY)
    assert tiles(keeping_most(fresh, [ALL_HASHES, *[NO_HASHES] * (MANY - 1)]))
    assert tiles(keeping_most(fresh, [KeyRanges([part]) for part in reversed(fresh)]))


def calls_of(job: Callable[[], None]) -> int:
    """How many calls of functions a job makes, so that its cost does not depend on the machine."""
    count = 0

    def counting(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        job()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("plan", [one_joins, the_group_plans, load_moves])
def test_the_cost_of_a_plan_is_no_square_of_its_members(plan: Callable[[], None]) -> None:
    """A thousand members of one partition; comparing all with all would be millions of calls."""
    assert calls_of(plan) < 300 * MANY
