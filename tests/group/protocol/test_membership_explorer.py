"""The laws of groups while members come and go: interleavings, random walks, seeded faults."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kshare.core.hashing import WHOLE
from kshare.group.core.member import GroupMember
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.right import Liveness
from kshare.group.protocol.commit_log import commit
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog
from kshare.group.protocol.commit_log.records import Block, Claim
from kshare.group.protocol.membership.holdings import Change, Holdings
from kshare.group.protocol.membership.membership_state import Membership, Standing, State
from kshare.group.protocol.membership.requests import Code, Heartbeat, PlanRequest
from kshare.group.protocol.owners import owner, takeover
from kshare.group.protocol.owners.takeover import session_of
from kshare.group.protocol.plan import group_plan
from tests.group.protocol import member_world
from tests.group.protocol.coordinator import Stage
from tests.group.protocol.interleavings import seeds
from tests.group.protocol.member_explorer import (
    DRAINING,
    WAYS,
    Way,
    committing,
    draining,
    explore_group,
    finish_group,
    first_group,
    returned,
    settled,
    walk_group,
)
from tests.group.protocol.member_process import MemberProcess, member_of, new_member
from tests.group.protocol.member_world import (
    GroupLimits,
    GroupWorld,
    group_steps,
    new_group,
    take_group,
)
from tests.group.protocol.process import T0, replay
from tests.group.protocol.world import LawBrokenError, is_pending
from tests.support.effort import depth, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

pytestmark = pytest.mark.deep

LIMITS = GroupLimits(processes=4, drops=3)
NARROW = GroupLimits(processes=3, drops=1, commits=2, per_call=2)
LATE = replace(LIMITS, late_plans=2)
MOVED = replace(LATE, failovers=2)
SLOW = replace(MOVED, late_beats=True)
LENGTH = 120
Patch = Callable[[pytest.MonkeyPatch], None]


def test_every_interleaving_of_two_that_join() -> None:
    seen, broken = explore_group(GroupLimits(processes=3), depth(9), new_group(2))
    explored(seen.states, broken)
    assert not broken
    assert seen.states > least(1_000)


def test_every_interleaving_of_a_third_that_joins_a_settled_group() -> None:
    world = new_group(2)
    finish_group(world, until=0)
    seen, broken = explore_group(GroupLimits(processes=3, crashes=0), depth(5), world)
    explored(seen.states, broken)
    assert not broken
    assert seen.states > least(1_000)


def test_every_interleaving_around_a_handover() -> None:
    """Two steps out of the way from any state in which hashes or the lead change hands."""
    starts = [world for way in WAYS for world in way(NARROW)]
    seen, broken = explore_group(NARROW, depth(2), *starts)
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > least(10_000)
    assert min(seen.handovers, seen.committed, seen.dropped) > least(2_000)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_way_ends_with_all_processed(way: Way) -> None:
    *_, world = way(NARROW)
    assert world.acknowledged == set(range(len(world.keys)))
    assert world.handovers or way.__name__.startswith("the_lead")


@pytest.mark.parametrize("is_settled", [False, True])
def test_random_walks(is_settled: bool) -> None:
    start = first_group(settled=is_settled)
    limits = replace(LIMITS, in_flight=2)  # acknowledged in any order
    no_law_is_broken(lambda seed: walk_group(limits, LENGTH, seed, start), walks(40))


def test_random_walks_with_a_lost_log() -> None:
    limits, start = replace(LIMITS, lost_logs=1), first_group()
    no_law_is_broken(lambda seed: walk_group(limits, LENGTH, seed, start), walks(40))


def test_random_walks_with_claims_that_cannot_be_read() -> None:
    """Members claim anew, while others join and leave, and operators delete such claims."""
    limits, events = replace(MOVED, damages=2, vanishes=2), Counter[str]()
    no_law_is_broken(
        lambda seed: walk_group(limits, LENGTH, seed, first_group(), events), walks(40)
    )
    assert events["damage"] > least(20)
    assert events["repair"] > least(10)
    assert events["vanish"] > least(10)


@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_group_settles_though_a_claim_cannot_be_read(is_repaired: bool) -> None:
    world = first_group()
    take_group(world, ("damage", "m0#1"))
    if is_repaired:
        finish_group(world, until=0)
        repairs = [step for step in group_steps(world, LIMITS) if step[0] == "repair"]
        for step in repairs:
            take_group(world, step)
    finish_group(world)
    assert settled(world)
    check_all_is_processed(world)


def test_random_walks_with_late_plans() -> None:
    no_law_is_broken(lambda seed: walk_group(LATE, LENGTH, seed, first_group()), walks(40))


def test_random_walks_with_coordinators_that_know_nothing_of_the_rebalance() -> None:
    no_law_is_broken(lambda seed: walk_group(MOVED, LENGTH, seed, first_group()), walks(40))


@pytest.mark.parametrize("limits", [SLOW, replace(LIMITS, late_beats=True)], ids=["moved", "slow"])
def test_random_walks_with_coordinators_that_answer_heartbeats_late(limits: GroupLimits) -> None:
    no_law_is_broken(lambda seed: walk_group(limits, LENGTH, seed, first_group()), walks(40))


def test_every_interleaving_with_heartbeats_that_are_answered_late() -> None:
    """One step out of the way, and then another one, or the answer."""
    narrow = replace(NARROW, per_call=1)
    starts = [world for way in WAYS[:2] for world in way(narrow)]
    seen, broken = explore_group(replace(narrow, late_beats=True), depth(2), *starts)
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > least(5_000)


def test_a_hash_returns_to_its_first_owner_while_it_drains() -> None:
    world = returned(draining())
    first = member_of(world.processes["m0"])
    change, received = first.draining, first.membership.holdings.received
    assert change is not None
    assert received is not None
    back = dict(received.assigned)[T0] & change.revoked[T0]
    assert back
    assert not change.assigned[T0] & back
    take_group(world, ("drained", "m0"))
    finish_group(world)
    assert settled(world)
    assert first.name in world.processes
    assert back == world.processes["m0"].hashes & back
    assert world.acknowledged == set(range(len(world.keys)))


@pytest.mark.parametrize("is_back", [False, True])
def test_every_interleaving_while_a_member_drains(is_back: bool) -> None:
    start = returned(draining()) if is_back else draining()
    seen, broken = explore_group(DRAINING, depth(5), start)
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > least(500)


@pytest.mark.parametrize("is_back", [False, True])
def test_random_walks_while_members_drain(is_back: bool) -> None:
    start = returned(draining()) if is_back else draining()
    no_law_is_broken(lambda seed: walk_group(DRAINING, LENGTH, seed, start), walks(40))


def test_that_a_member_takes_what_it_has_given_up_for_its_own_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What returned amid its drain is nothing new to it then, and nobody claims it."""

    def applied(self: Holdings) -> Holdings:
        return replace(self, change=None)

    world = returned(draining())
    monkeypatch.setattr(Holdings, "applied", applied)
    take_group(world, ("drained", "m0"))
    finish_group(world)
    assert is_found(not settled(world))


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
    assert primary_lag(world) == 0


def primary_lag(world: GroupWorld) -> int:
    """How far the primary offset is behind what the log says."""
    primary = 0 if world.primary is None else world.primary.offset
    return world.known_of(world.log.said()).stable - primary


def test_a_leader_whose_generation_is_over_assigns_nothing() -> None:
    """Two leaders: the first is dropped before it has planned, and plans after the second."""
    world = new_group(2)
    for step in (("member", "m0"), ("member", "m1"), ("complete", ""), ("mail", "m0")):
        take_group(world, step)
    (first,) = [each for each in world.coordinator.members if each.startswith("m0")]
    assert world.coordinator.leader == first
    member_world.drop(world, first)
    verbs = ("mail", "member", "heartbeat")
    while world.coordinator.stage is not Stage.STABLE:
        possible = [("complete", ""), *((verb, "m1") for verb in verbs)]
        there = member_world.group_steps(world, LIMITS)
        take_group(world, next(step for step in possible if step in there))
    assigned, end = dict(world.coordinator.assignments), world.log.end
    take_group(world, ("member", "m0"))  # it writes an epoch, later than that of its successor
    assert world.log.end == end + 1
    take_group(world, ("member", "m0"))
    assert world.coordinator.assignments == assigned
    take_group(world, ("mail", "m0"))
    finish_group(world)
    assert settled(world)
    check_all_is_processed(world)


def whatever_happens(seed: int) -> GroupWorld:
    """A world in which much has happened, and that has come to rest."""
    world, draw = new_group(2), random.Random(seed)
    for _ in range(LENGTH):
        possible = member_world.group_steps(world, LIMITS)
        if not possible:
            break
        take_group(world, draw.choice(possible))
    finish_group(world)
    return world


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_living_members_process_all(seed: int) -> None:
    world = whatever_happens(seed)
    assert settled(world)
    check_all_is_processed(world)
    assert not given_up(world)


def given_up(world: GroupWorld) -> set[str]:
    """The claims that living members have given up, and that are in the log."""
    owners = {process.owner.claim_name for process in world.processes.values()}
    claims = set(world.log.said().of(T0).claims) - owners
    return {name for name in claims if session_of(name) in world.processes}


def beside_a_stranger() -> GroupWorld:
    """A member joins a group that runs, and does not keep the order of keys as that does."""
    world = first_group()
    world.join()
    *_, name = world.processes
    member_of(world.processes[name]).member = new_member(name, ordered=False)
    return world


def who_waits_for_a_stranger(seed: int) -> str | None:
    """The law that is broken once a stranger was refused; None if all hold."""
    world, draw = beside_a_stranger(), random.Random(seed)
    try:
        for _ in range(LENGTH // 2):
            if possible := group_steps(world, GroupLimits(drops=0)):
                take_group(world, draw.choice(possible))
        finish_group(world)
        world.join()  # another rebalance
        finish_group(world)
    except LawBrokenError as error:
        return str(error)
    check_all_is_processed(world)
    return None if settled(world) else "the group waits for somebody"


def test_a_member_that_is_refused_leaves() -> None:
    """Else the next rebalance waits for it until its session times out."""
    no_law_is_broken(who_waits_for_a_stranger, walks(40))


def test_that_a_member_which_is_refused_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "_leaving", None)
    assert is_found(who_waits_for_a_stranger(0))


def lag_on_a_quiet_topic(*, is_amid_rebalance: bool) -> int:
    """How far the primary offset stays behind when a lead is killed before it is written.

    Nobody commits any more.

    Args:
        is_amid_rebalance: Whether the group gets another member at the same time.
    """
    world = committing(NARROW)
    assert primary_lag(world) > 0
    if is_amid_rebalance:
        world.join()
    world.crash("m0")
    world.coordinator.mail.pop("m0", None)
    finish_group(world, until=0)
    assert settled(world)
    return primary_lag(world)


@pytest.mark.parametrize("is_amid_rebalance", [False, True])
def test_who_leads_next_writes_the_primary_offset(is_amid_rebalance: bool) -> None:
    assert lag_on_a_quiet_topic(is_amid_rebalance=is_amid_rebalance) == 0


def test_that_nobody_writes_what_a_killed_lead_has_not_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ownership, "_repeats", lambda *_: False)
    assert is_found(lag_on_a_quiet_topic(is_amid_rebalance=False))


# -- faults that must be found ---------------------------------------------------------------------


def does_not_fence_itself(patch: pytest.MonkeyPatch) -> None:
    """It goes on after its session has timed out, until it hears of that."""

    def seconds_to_deliver(self: Liveness, now: float) -> float:
        return min(self._heard_at, 1.0)

    patch.setattr(Liveness, "seconds_to_deliver", seconds_to_deliver)


def does_not_wait_for_former_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "is_alone", lambda *_: True)


def takes_members_of_the_epoch_for_dropped(patch: pytest.MonkeyPatch) -> None:
    def of_the_past(claim: Claim, later: Claim, _: object) -> bool:
        return later.epoch is not None and (claim.epoch or 0) < later.epoch

    patch.setattr(takeover, "is_of_the_past", of_the_past)


def gives_what_others_own(patch: pytest.MonkeyPatch) -> None:
    """One phase: only the claims keep the new owner waiting."""
    patch.setattr(group_plan, "_without_others", lambda target, _: target)


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
            change = Change({}, {}, self.owned, is_lost=True)
            self.holdings = replace(self.holdings, change=change)
        return change

    real = Membership.take
    patch.setattr(Membership, "take", take)

    def apply_change(world: GroupWorld, process: MemberProcess, change: Change) -> None:
        if not change.is_lost:
            apply(world, process, change)

    apply = member_world.apply_change
    patch.setattr(member_world, "apply_change", apply_change)


def takes_a_refused_heartbeat_for_a_good_one(patch: pytest.MonkeyPatch) -> None:
    real = GroupMember.heartbeat_answered

    def answered(
        self: GroupMember, beat: Heartbeat, code: Code | None, now: float, *, is_refused: bool
    ) -> None:
        real(self, beat, None, now, is_refused=False)

    patch.setattr(GroupMember, "heartbeat_answered", answered)


def takes_any_answer_for_a_sign_of_life(patch: pytest.MonkeyPatch) -> None:
    real_refused, real_answered = GroupMember.refused, GroupMember.heartbeat_answered

    def refused(self: GroupMember, code: Code | None, now: float) -> None:
        real_refused(self, code, now)
        self.liveness.heard(now, is_joined=True)

    def answered(
        self: GroupMember, beat: Heartbeat, code: Code | None, now: float, *, is_refused: bool
    ) -> None:
        real_answered(self, beat, code, now, is_refused=is_refused)
        self.liveness.heard(now, is_joined=True)

    patch.setattr(GroupMember, "refused", refused)
    patch.setattr(GroupMember, "heartbeat_answered", answered)


def counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The answer to SyncGroup renews its right from when it comes, however late that is."""
    real = GroupMember.synced

    def synced(self: GroupMember, assignment: bytes, now: float) -> bool:
        self.schedule.asked_at = now
        return real(self, assignment, now)

    patch.setattr(GroupMember, "synced", synced)


def takes_a_rebalance_for_stable(patch: pytest.MonkeyPatch) -> None:
    """Heartbeats that say that the group waits for it to join renew its right without an end."""
    real = Liveness.heard

    def heard(self: Liveness, sent_at: float, *, is_joined: bool) -> None:
        real(self, sent_at, is_joined=True)

    patch.setattr(Liveness, "heard", heard)


def keeps_its_right_when_it_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "_end_right", lambda _: None)


def commits_what_it_has_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupMember, "committable", lambda _, partitions: set(partitions))
    commits_without_its_generation(patch)


def does_not_lose_when_it_is_unknown(patch: pytest.MonkeyPatch) -> None:
    def lose(self: Membership, *, keeps_id: bool = False) -> None:
        member_id, number = self.member_id if keeps_id else "", self.standing.number
        self.standing, self.state = Standing(member_id, number=number), State.UNJOINED
        self._next = None

    patch.setattr(Membership, "lose", lose)


def names_nothing_when_it_joins(patch: pytest.MonkeyPatch) -> None:
    """It revokes after it has joined: others get what it still delivers."""
    real = Membership._subscription
    patch.setattr(Membership, "_subscription", lambda self: replace(real(self), owned=()))


def names_nothing_when_it_joins_and_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    names_nothing_when_it_joins(patch)
    does_not_wait_for_former_owners(patch)


def takes_a_plan_of_another_generation_of_that_number(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes over counts on from the last generation that was assigned."""

    def awaits_plan(self: Membership, plan: PlanRequest) -> bool:
        return self.state is State.SYNCING and plan.generation == self.generation

    patch.setattr(Membership, "awaits_plan", awaits_plan)


def commits_without_its_generation(patch: pytest.MonkeyPatch) -> None:
    """The coordinator does not check who writes the primary offset."""
    patch.setattr(member_world, "takes_offsets", lambda *_: True)


def highest(said: PartitionLog, claim: Claim) -> bool:
    """Whether a member owns the highest hash of all."""
    owned = said.owned_by(claim.name)
    return bool(owned) and owned[-1].hi == WHOLE.hi


def leads_by_the_highest_hash_too(patch: pytest.MonkeyPatch) -> None:
    """Two leads: the owner of the highest hash takes itself for one."""
    real = commit.leads
    patch.setattr(owner, "leads", lambda said, claim: real(said, claim) or highest(said, claim))


def leads_by_the_highest_hash(patch: pytest.MonkeyPatch) -> None:
    """All take the owner of the highest hash for the lead."""
    patch.setattr(owner, "leads", highest)


def leads_by_the_claims_that_are_there(patch: pytest.MonkeyPatch) -> None:
    """Two leads: one before the owner of the lowest hash has claimed it, which is the other one."""
    patch.setattr(owner, "leads", lambda said, claim: said.lead == claim.name)


def writes_that_all_before_is_processed_too(patch: pytest.MonkeyPatch) -> None:
    """Also what the same call has returned and is not acknowledged."""
    real = commit.blocks_to_write

    def blocks(*given: Any) -> list[Block]:
        return [replace(block, bounds=(0, block.bounds[-1])) for block in real(*given)]

    patch.setattr(owner, "blocks_to_write", blocks)


FAULTS: dict[Patch, int] = {
    does_not_fence_itself: 50,
    leads_by_the_highest_hash_too: 44,
    gives_what_others_own_and_does_not_wait: 988,
    gives_what_others_own_and_takes_them_for_dropped: 988,
    goes_on_with_what_is_lost: 61,
    takes_a_refused_heartbeat_for_a_good_one: 5,
    takes_a_rebalance_for_stable: 50,
    takes_any_answer_for_a_sign_of_life: 0,
    does_not_lose_when_it_is_unknown: 132,
}
"""Faults that random walks find, with the first seed that does; if it finds nothing any more,
others are tried."""
TWO_LAYERS: tuple[Patch, ...] = (
    gives_what_others_own,
    does_not_wait_for_former_owners,
    takes_members_of_the_epoch_for_dropped,
    names_nothing_when_it_joins,
    keeps_its_right_when_it_is_lost,
    leads_by_the_highest_hash,
)
"""Faults that break no law alone: two phases and claims each keep a new owner waiting.

Who hears that it is lost has no right left by the clock. And it does not matter who leads, as long
as it is one.
"""
FOUND_ON_WAYS: tuple[Patch, ...] = (
    does_not_fence_itself,
    gives_what_others_own_and_does_not_wait,
    gives_what_others_own_and_takes_them_for_dropped,
    names_nothing_when_it_joins_and_does_not_wait,
    takes_any_answer_for_a_sign_of_life,
    commits_without_its_generation,
    commits_what_it_has_lost,
    counts_from_the_answer,
    takes_a_plan_of_another_generation_of_that_number,
    leads_by_the_highest_hash_too,
    writes_that_all_before_is_processed_too,
)
"""Faults that every interleaving around a handover finds."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    start = first_group(3)
    ways = (walk_group(LIMITS, LENGTH, seed, start) for seed in seeds(2_000, FAULTS[fault]))
    assert is_found(any(ways))


def keeps_the_claims_that_it_gives_up(patch: pytest.MonkeyPatch) -> None:
    """Who gets the hashes waits for nobody's sake."""
    patch.setattr(Ownerships, "give_up", lambda _: [])


def test_that_claims_which_are_given_up_stay_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_the_claims_that_it_gives_up(monkeypatch)
    assert is_found(any(given_up(whatever_happens(seed)) for seed in seeds(15, 3)))


def writes_the_epoch_of_any_plan(patch: pytest.MonkeyPatch) -> None:
    """It does not look whether its generation is over when it has planned."""
    patch.setattr(Membership, "awaits_plan", lambda *_: True)


def test_the_epoch_of_a_late_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    writes_the_epoch_of_any_plan(monkeypatch)
    start = first_group(3)
    found = (walk_group(LATE, LENGTH, seed, start) for seed in seeds(2_000, 73))
    assert is_found("epoch" in next(broken.law for broken in found if broken))


LATE_CLAIM = """
drop m2.3, heartbeat m2, drop m0.1, poll m2, drop m1.2, act m2, heartbeat m0, member m2, poll
m0, start -, act m0, member m0, member m3, commit m1, complete -, mail m0, member m0, mail m2,
member m2, member m2, mail m2, poll m2, mail m3, member m3, act m2, read m2, mail m0, mail m3,
poll m3, act m2, commit m2, act m1, act m3, poll m0, read m3, act m3, deliver m3, act m0, read
m0, act m0, acknowledge 0 m3, commit m3, act m2, deliver m0, act m3, read m0, commit m0, act
m0, act m0, read m0, act m0, read m2, act m2
"""
"""A way on which the owner of the lowest hash claims it after the next one commits."""


def go_the_way(world: GroupWorld, way: str) -> str:
    """The law that is broken on a way; empty if all hold."""
    try:
        for each in " ".join(way.split()).split(", "):
            what, _, name = each.rpartition(" ")
            step = what, name.strip("-")
            if step in member_world.group_steps(world, LIMITS):
                take_group(world, step)
    except LawBrokenError as error:
        return str(error)
    return ""


def test_who_is_about_to_claim_the_lowest_hash_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random walks come upon it once in fifty thousand; this was one, without what it needs not."""
    start = first_group(3, settled=True)
    assert not go_the_way(start.clone(), LATE_CLAIM)
    leads_by_the_claims_that_are_there(monkeypatch)
    assert is_found("primary offset 0 after 1" in go_the_way(start.clone(), LATE_CLAIM))


@pytest.mark.parametrize("fault", TWO_LAYERS, ids=lambda fault: fault.__name__)
def test_one_layer_alone_holds(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    start = first_group(3)
    assert not any(walk_group(LIMITS, LENGTH, seed, start) for seed in range(20))


@pytest.mark.parametrize("fault", FOUND_ON_WAYS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_by_every_interleaving_around_a_handover(
    fault: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert is_found(breaks_a_law(2))


def breaks_a_law(depth: int) -> bool:
    """Whether a law does not hold on a way, or up to so many steps out of one."""
    try:
        starts = [world for way in WAYS for world in way(NARROW)]
    except LawBrokenError:
        return True
    return explore_group(NARROW, depth, *starts)[1] is not None
