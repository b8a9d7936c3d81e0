"""The laws of groups while members come and go: interleavings, random walks, seeded faults."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kshare.group.protocol import assignor
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.membership import Change, Membership, State
from kshare.group.protocol.owner import Owner
from kshare.group.protocol.records import Claim
from tests.group.protocol import member_world
from tests.group.protocol.member_world import (
    GroupLimits,
    GroupWorld,
    MemberProcess,
    explore_group,
    finish_group,
    new_group,
    settled,
    take_group,
    walk_group,
)
from tests.group.protocol.world import T0, is_pending, replay

LIMITS = GroupLimits(processes=4, drops=3)
LENGTH = 120
Patch = Callable[[pytest.MonkeyPatch], None]


def test_every_interleaving_of_two_that_join() -> None:
    states, broken = explore_group(GroupLimits(processes=3), 9, new_group(2))
    assert not broken
    assert states > 1_000


def test_every_interleaving_of_a_third_that_joins_a_settled_group() -> None:
    world = new_group(2)
    finish_group(world, until=0)
    states, broken = explore_group(GroupLimits(processes=3, crashes=0), 5, world)
    assert not broken
    assert states > 1_000


@pytest.mark.parametrize("is_settled", [False, True])
def test_random_walks(is_settled: bool) -> None:
    for seed in range(40):
        assert walk_group(LIMITS, LENGTH, seed, settled=is_settled) is None, f"seed {seed}"


def test_random_walks_with_a_lost_log() -> None:
    limits = replace(LIMITS, lost_logs=1)
    for seed in range(40):
        assert walk_group(limits, LENGTH, seed) is None, f"seed {seed}"


@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_group_settles_and_processes_all(members: int) -> None:
    world = new_group(members)
    finish_group(world)
    assert settled(world)
    check_all_is_processed(world)


def check_all_is_processed(world: GroupWorld) -> None:
    said = GroupLog("g")
    replay(world.log, said)
    progress = said.of(T0).progress()
    assert world.acknowledged == set(range(len(world.keys)))
    assert not any(is_pending(progress, at, hash_) for at, hash_ in enumerate(world.keys))


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_living_members_process_all(seed: int) -> None:
    import random

    world, draw = new_group(2), random.Random(seed)
    for _ in range(LENGTH):
        possible = list(member_world.group_steps(world, LIMITS))
        if not possible:
            break
        take_group(world, draw.choice(possible))
    finish_group(world)
    assert settled(world)
    check_all_is_processed(world)


# -- faults that must be found ---------------------------------------------------------------------


def does_not_fence_itself(patch: pytest.MonkeyPatch) -> None:
    """It goes on after its session has timed out, until it hears of that."""
    real = member_world.drop

    def drop(world: GroupWorld, member_id: str) -> None:
        alive = {name: process.is_member for name, process in world.processes.items()}
        real(world, member_id)
        for name, process in world.processes.items():
            process.is_member = alive[name]

    patch.setattr(member_world, "drop", drop)


def does_not_wait_for_former_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "is_alone", lambda *_: True)


def takes_members_of_the_epoch_for_dropped(patch: pytest.MonkeyPatch) -> None:
    def of_the_past(self: Owner, claim: Claim) -> bool:
        return self.epoch is not None and (claim.epoch or 0) < self.epoch

    patch.setattr(Owner, "_is_of_the_past", of_the_past)


def gives_what_others_own(patch: pytest.MonkeyPatch) -> None:
    """One phase: only the claims keep the new owner waiting."""
    patch.setattr(assignor, "_without_others", lambda target, _: target)


def gives_what_others_own_and_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    gives_what_others_own(patch)
    does_not_wait_for_former_owners(patch)


def gives_what_others_own_and_takes_them_for_dropped(patch: pytest.MonkeyPatch) -> None:
    gives_what_others_own(patch)
    takes_members_of_the_epoch_for_dropped(patch)


def goes_on_with_what_is_lost(patch: pytest.MonkeyPatch) -> None:
    def take(self: Membership) -> Change | None:
        change = real(self)
        if change is not None and change.is_lost:
            self._change = change = Change({}, {}, dict(self.owned), is_lost=True)
        return change

    real = Membership.take
    patch.setattr(Membership, "take", take)

    def apply_change(world: GroupWorld, process: MemberProcess, change: Change) -> None:
        if not change.is_lost:
            apply(world, process, change)

    apply = member_world.apply_change
    patch.setattr(member_world, "apply_change", apply_change)


def takes_a_refused_heartbeat_for_a_good_one(patch: pytest.MonkeyPatch) -> None:
    def heartbeat(world: GroupWorld, process: MemberProcess) -> None:
        process.is_member = True

    patch.setattr(member_world, "_heartbeat", heartbeat)


def takes_any_answer_for_a_sign_of_life(patch: pytest.MonkeyPatch) -> None:
    def hear(world: GroupWorld, process: MemberProcess) -> None:
        process.is_member = True

    patch.setattr(member_world, "_hear", hear)


def does_not_lose_when_it_is_unknown(patch: pytest.MonkeyPatch) -> None:
    def lose(self: Membership) -> None:
        self.member_id, self.generation, self.state = "", -1, State.UNJOINED
        self._next = None

    patch.setattr(Membership, "lose", lose)


FAULTS: tuple[Patch, ...] = (
    does_not_fence_itself,
    gives_what_others_own_and_does_not_wait,
    gives_what_others_own_and_takes_them_for_dropped,
    goes_on_with_what_is_lost,
    takes_a_refused_heartbeat_for_a_good_one,
    takes_any_answer_for_a_sign_of_life,
    does_not_lose_when_it_is_unknown,
)
TWO_LAYERS: tuple[Patch, ...] = (
    gives_what_others_own,
    does_not_wait_for_former_owners,
    takes_members_of_the_epoch_for_dropped,
)
"""Faults that break no law alone: two phases and claims each keep a new owner waiting."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert any(walk_group(LIMITS, LENGTH, seed, members=3) for seed in range(2_000))


@pytest.mark.parametrize("fault", TWO_LAYERS, ids=lambda fault: fault.__name__)
def test_one_layer_alone_holds(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert not any(walk_group(LIMITS, LENGTH, seed, members=3) for seed in range(20))
