"""The laws of a group that a plain consumer joins and leaves: interleavings, walks, faults."""

import random
from collections.abc import Callable

import pytest

from kshare.group.protocol.membership.membership_state import Membership
from tests.group.protocol.member_explorer import finish_group, settled
from tests.group.protocol.member_world import GroupLimits
from tests.group.protocol.plain_world import (
    explore_plain,
    finish_without_plain,
    new_plain_group,
    plain_steps,
    take_plain,
    walk_with_plain,
)
from tests.support.effort import depth, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

pytestmark = pytest.mark.deep

LIMITS = GroupLimits(processes=4, drops=3)
LENGTH = 300
FOUND = 602  # a walk that meets the rarest fault
Patch = Callable[[pytest.MonkeyPatch], None]


def test_every_interleaving_of_a_plain_consumer_that_joins_a_settled_group() -> None:
    world = new_plain_group(2)
    finish_group(world, until=0)
    states, broken = explore_plain(GroupLimits(processes=2, drops=1), depth(5), world)
    explored(states, broken)
    assert not broken
    assert states > least(1_000)


def test_random_walks() -> None:
    no_law_is_broken(lambda seed: walk_with_plain(LIMITS, LENGTH, seed), walks(60))


@pytest.mark.parametrize("seed", range(15))
def test_when_it_has_gone_key_ranges_are_shared_and_all_is_processed(seed: int) -> None:
    world, draw = new_plain_group(2), random.Random(seed)
    for _ in range(LENGTH):
        possible = list(plain_steps(world, LIMITS, visits=2))
        if not possible:
            break
        take_plain(world, draw.choice(possible))
    finish_without_plain(world)
    assert settled(world)
    assert world.acknowledged == set(range(len(world.keys)))


# -- faults that must be found ---------------------------------------------------------------------


def stays_cooperative(patch: pytest.MonkeyPatch) -> None:
    """It joins without giving anything up."""
    patch.setattr(Membership, "is_eager", False)


def joins_before_it_has_given_up(patch: pytest.MonkeyPatch) -> None:
    def may_join(self: Membership) -> bool:
        return not self.owned

    patch.setattr(Membership, "_gives_up", False)
    patch.setattr(Membership, "is_eager", property(may_join))


def commits_what_it_gave_up(patch: pytest.MonkeyPatch) -> None:
    """A primary offset that was still to be sent goes out in the next generation."""
    patch.setattr(Membership, "may_commit", lambda *_: True)


FAULTS: tuple[Patch, ...] = (
    stays_cooperative,
    joins_before_it_has_given_up,
    commits_what_it_gave_up,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    seeds = (FOUND, *range(2_000))
    assert is_found(any(walk_with_plain(LIMITS, LENGTH, seed, members=2) for seed in seeds))
