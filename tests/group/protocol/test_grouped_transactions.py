"""The laws of groups whose members commit by transactions, while members come and go."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle
from kshare.group.core.ownership import Claimant, Ownership
from kshare.group.core.transaction_state import Stage, TransactionState
from kshare.group.protocol.commit_log.commit import TransactionPart
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.records import Claim, Key
from kshare.group.protocol.commit_log.start import Start, resolve_start
from kshare.group.protocol.owners import owner, takeover
from kshare.group.protocol.owners.actions import Delete
from kshare.group.protocol.owners.owner import Owner
from tests.group.protocol import grouped_world, member_world, transactional_member
from tests.group.protocol.grouped_explorer import (
    WAYS,
    Way,
    chosen_by,
    explore,
    finish_all,
    first_grouped,
    walk_grouped,
)
from tests.group.protocol.grouped_world import GroupedLimits, GroupedMember, GroupedWorld
from tests.group.protocol.interleavings import seeds
from tests.group.protocol.process import GONE, T0
from tests.group.protocol.transactional_member import Member
from tests.group.protocol.world import LawBrokenError
from tests.support.effort import depth, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

pytestmark = pytest.mark.deep
LIMITS = GroupedLimits(members=5, drops=3)
NARROW = GroupedLimits(members=3, in_flight=1, drops=1)
LENGTH = 200
Patch = Callable[[pytest.MonkeyPatch], None]


def name_of(each: Callable[..., object]) -> str:
    return getattr(each, "__name__", "")


# -- the world -------------------------------------------------------------------------------------


def test_every_interleaving_of_a_group_that_runs() -> None:
    seen, broken = explore(GroupedLimits(members=3), depth(4), [first_grouped()])
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > least(1_000)


def test_every_interleaving_around_transactions_that_are_open() -> None:
    """One step out of the way from any state in which hashes change hands amid a transaction."""
    starts = [world for way in WAYS for world in way()]
    seen, broken = explore(NARROW, 1, starts)  # no less deep: that would be the ways alone
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > 4_000
    assert min(seen.outputs, seen.handovers, seen.open, seen.torn) > 500


@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_a_way_ends_with_all_outputs(way: Way) -> None:
    *_, world = way()
    assert sorted(world.outputs) == list(range(len(world.keys)))
    assert world.handovers or way.__name__ == "the_lead_is_dropped"


@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_group_settles_and_gives_each_record_its_output(members: int) -> None:
    world = first_grouped(members, running=False)
    finish_all(world)
    assert sorted(world.outputs) == list(range(len(world.keys)))


def chosen_start(seed: int) -> GroupedWorld:
    """Where a walk begins; it stays as it is."""
    return _first_grouped(**chosen_by(seed))


_first_grouped = cache(first_grouped)


@pytest.mark.parametrize("first", [0, 30])
def test_random_walks_give_each_record_its_output_once(first: int) -> None:
    no_law_is_broken(
        lambda seed: walk_grouped(LIMITS, LENGTH, seed, chosen_start(seed)),
        walks(30, after=first),
    )


# -- faults that must be found: each of them matters to members with transactions alone ------------


def follows_the_group_amid_a_transaction(patch: pytest.MonkeyPatch) -> None:
    """It gives hashes up, and does not abort what it has open of them."""
    patch.setattr(
        grouped_world,
        "may_follow",
        lambda member: member.membership.has_change and member.state.stage is not Stage.DOUBTFUL,
    )


def goes_on_after_it_was_dropped(patch: pytest.MonkeyPatch) -> None:
    """It does not ask whether what it was handed out is its own still."""
    patch.setattr(TransactionState, "is_own", lambda *_: True)


def keeps_its_transaction_over_a_rebalance(patch: pytest.MonkeyPatch) -> None:
    """What it began before counts for the hashes that it has afterwards."""
    follows_the_group_amid_a_transaction(patch)
    patch.setattr(TransactionState, "is_own", lambda _, starts: None not in starts.values())


def does_not_fence_those_that_were_dropped(patch: pytest.MonkeyPatch) -> None:
    """They deliver no more; but what they have open may be committed."""
    real = Owner._fence

    def fence(self: Owner, log: PartitionLog) -> object:
        return real(self, without_the_past(self, log))

    patch.setattr(Owner, "_fence", fence)


def lets_those_that_were_dropped_end_what_they_have_open(patch: pytest.MonkeyPatch) -> None:
    """Nobody fences them: no leader, and no owner before its claim is read back or after it."""
    does_not_fence_those_that_were_dropped(patch)
    leaves_open_what_hides_its_epoch(patch)
    real = Owner._unblock

    def unblock(self: Owner, log: PartitionLog) -> object:
        return real(self, without_the_past(self, log))

    patch.setattr(Owner, "_unblock", unblock)


def without_the_past(owner: Owner, log: PartitionLog) -> PartitionLog:
    """What a log says, without the claims of members that were dropped."""
    claims = {
        name: placed
        for name, placed in log.claims.items()
        if not takeover.is_of_the_past(placed.claim, owner.claim, owner.peers)
    }
    return replace(log, claims=claims)


def names_its_id_in_its_first_claim_only(patch: pytest.MonkeyPatch) -> None:
    real = Claimant._owner

    def owner(self: Claimant, claim: Claim, topic_id: str) -> Owner:
        each = real(self, claim, topic_id)
        if vars(self).get("_has_named"):
            each.claim = replace(each.claim, transactional_id=None)
        vars(self)["_has_named"] = True
        return each

    patch.setattr(Claimant, "_owner", owner)


def gives_up_its_claim_when_it_is_lost(patch: pytest.MonkeyPatch) -> None:
    """At once, though its transaction is open: nobody knows whom to fence."""
    real = GroupedMember.look_at_clock

    def look_at_clock(self: GroupedMember) -> None:
        real(self)
        tombstone = Delete((Key(0, "claim", T0, (self.owner.claim_name,)),))
        if self.membership.is_lost and self.hashes and tombstone not in self.inbox:
            self.wanted.append((GONE, tombstone))

    patch.setattr(GroupedMember, "look_at_clock", look_at_clock)


def commits_without_its_generation(patch: pytest.MonkeyPatch) -> None:
    """The coordinator does not check who writes the primary offset."""
    patch.setattr(member_world, "takes_offsets", lambda *_: True)


def does_not_wait_for_what_nobody_owns(patch: pytest.MonkeyPatch) -> None:
    """The purgatory passes over hashes that are between two owners."""
    real = transactional_member.part_of

    def part_of(member: Member) -> TransactionPart:
        part, chunk = member.part(), real(member)
        owned = [each for name in part.claims for each in part.owned_by(name)]
        free = ALL_HASHES - owned
        passed = (Rectangle(OffsetRange(0, 4), each) for each in free)
        return replace(chunk, known=chunk.known.commit(passed))

    patch.setattr(transactional_member, "part_of", part_of)


def goes_on_at_its_position_with_what_it_gains(patch: pytest.MonkeyPatch) -> None:
    """What is below counts as processed, also of the hashes that it had not."""

    def next_position(self: Member) -> int:
        return self.position if self.state.is_settled else 0

    patch.setattr(Member, "next_position", property(next_position))


def looks_at_the_claims_that_are_left(patch: pytest.MonkeyPatch) -> None:
    """It forgets who was excluded by a claim that is given up."""
    patch.setattr(PartitionLog, "was_fenced", PartitionLog.is_fenced)


def commits_when_it_may_have_been_dropped(patch: pytest.MonkeyPatch) -> None:
    """It takes the log for all that there is to know."""
    patch.setattr(transactional_member, "is_alive", lambda _: True)


def leaves_open_what_hides_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader that waits does not abort what former members have left open."""
    patch.setattr(takeover, "dropped_ids", lambda *_: frozenset())


def gives_up_its_claim_with_its_transaction_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """As it leaves: nobody finds its transactional id in its claim."""
    patch.setattr(TransactionState, "keeps_claims", property(lambda _: False))


def does_not_repeat_the_primary_offset(patch: pytest.MonkeyPatch) -> None:
    """It takes what the log says for what its coordinator has."""
    patch.setattr(Ownership, "_repeats", lambda *_: False)


def waits_for_news_to_write_the_primary_offset(patch: pytest.MonkeyPatch) -> None:
    """Though a former lead has not come to it."""
    real = resolve_start

    def resolve(*given: Any, **more: Any) -> Start:
        return replace(real(*given, **more), lags=False)

    patch.setattr(owner, "resolve_start", resolve)


FOUND_BY_WALKS: dict[Patch, int] = {
    follows_the_group_amid_a_transaction: 64,
    names_its_id_in_its_first_claim_only: 154,
    does_not_wait_for_what_nobody_owns: 71,
    goes_on_at_its_position_with_what_it_gains: 2,
    does_not_repeat_the_primary_offset: 78,
    waits_for_news_to_write_the_primary_offset: 31,
}
"""Faults that random walks find, with the first seed that does; if it finds nothing any more,
others are tried."""
FOUND_ON_WAYS: tuple[Patch, ...] = (
    keeps_its_transaction_over_a_rebalance,
    lets_those_that_were_dropped_end_what_they_have_open,
    gives_up_its_claim_when_it_is_lost,
    commits_without_its_generation,
    commits_when_it_may_have_been_dropped,
    leaves_open_what_hides_its_epoch,
)
"""Faults that break a law on a way on which a transaction is open while hashes change hands.

Some of them take a dozen steps in one order, which random walks seldom come upon.
"""


TWO_LAYERS: tuple[Patch, ...] = (
    goes_on_after_it_was_dropped,
    does_not_fence_those_that_were_dropped,
    looks_at_the_claims_that_are_left,
    gives_up_its_claim_with_its_transaction_in_doubt,
)
"""Faults that break no law of a group alone.

Who may have been dropped does not commit, whatever it knows of claims; and who was is also fenced
by the leader, and while a new claim is not read back.
"""


@pytest.mark.parametrize("fault", FOUND_BY_WALKS, ids=name_of)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [chosen_start(seed) for seed in range(24)]  # 24 are all there are
    fault(monkeypatch)
    tried = seeds(1_000, FOUND_BY_WALKS[fault])
    assert is_found(any(walk_grouped(LIMITS, LENGTH, seed, starts[seed % 24]) for seed in tried))


@pytest.mark.parametrize("fault", FOUND_ON_WAYS, ids=name_of)
def test_a_fault_is_found_around_transactions_that_are_open(
    fault: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert is_found(any(map(breaks_a_law, WAYS)))


def breaks_a_law(way: Way) -> bool:
    """Whether a law does not hold on a way; one of them is that it ends with all outputs."""
    try:
        *_, world = way()
    except LawBrokenError:
        return True
    return sorted(world.outputs) != list(range(len(world.keys)))


@pytest.mark.parametrize("fault", TWO_LAYERS, ids=name_of)
def test_one_layer_alone_holds(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert not any(map(breaks_a_law, WAYS))
