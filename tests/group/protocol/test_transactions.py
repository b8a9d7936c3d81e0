"""The laws of transactions in a small world, with seeded faults; and those of the purgatory."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest

from kshare.core.hashing import NO_HASHES
from kshare.core.progress import Progress, TopicPartition
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.transaction_state import Outlook, Stage, TransactionState
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log import commit
from kshare.group.protocol.commit_log.commit import (
    PurgatoryState,
    TransactionPart,
    blocks_to_write,
)
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.records import Key
from kshare.group.protocol.owners import actions, owner
from kshare.group.protocol.owners.owner import Owner, Phase
from tests.group.protocol import transactional_member as member_module
from tests.group.protocol import transactional_world as world_module
from tests.group.protocol.interleavings import seeds
from tests.group.protocol.process import GONE, T0
from tests.group.protocol.transactional_explorer import (
    WAYS,
    a_zombie_with_a_new_epoch,
    explore,
    finish_all,
    go,
    let_run,
    new_world,
    suspended_world,
    two_commit,
    walk,
)
from tests.group.protocol.transactional_member import Member
from tests.group.protocol.transactional_world import Limits, TransactionalWorld, take
from tests.group.protocol.world import LawBrokenError
from tests.support.effort import depth, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

pytestmark = pytest.mark.deep
Patch = Callable[[pytest.MonkeyPatch], None]
LENGTH = 160
LIMITS = Limits()
NARROW = Limits(members=3, in_flight=1)
LATE = Limits(late=True)
PARTS = Limits(members=3, parts=2, compactions=8)
DAMAGED = Limits(members=6, damages=2)
RESET = Limits(resets=2, looks_late=True)
RESET_AMID = Limits(
    members=0, in_flight=1, compactions=0, expired=0, doubts=False, resets=1, looks_late=True
)

# -- the world -------------------------------------------------------------------------------------


def test_every_interleaving_to_a_depth() -> None:
    world = new_world()
    let_run(world)
    seen, broken = explore(Limits(members=3), depth(6), [world])
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > least(1_000)


def test_every_interleaving_around_outputs() -> None:
    """Two steps out of the way from any state in which outputs are committed, or taken over."""
    starts = [world for way in WAYS for world in way()]
    seen, broken = explore(NARROW, depth(2), starts)
    explored(seen.states, broken)
    assert broken is None
    assert seen.states > least(4_000)
    assert min(seen.outputs, seen.replaced, seen.open) > least(1_500)


def test_every_interleaving_around_a_reset() -> None:
    """Callers come between what a member reads of it and what its owner does then."""
    seen, broken = explore(RESET_AMID, depth(5), two_commit())
    explored(seen.states, broken)
    assert broken is None
    assert min(seen.states, seen.outputs, seen.open) > least(3_000)


def test_a_way_ends_with_all_outputs() -> None:
    for way in WAYS:
        *_, world = way()
        assert sorted(world.outputs) == list(range(len(world.keys)))


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_random_walks_give_each_record_its_output_once(first: int) -> None:
    no_law_is_broken(lambda seed: walk(LIMITS, LENGTH, seed), walks(30, after=first))


def test_a_zombie_with_a_new_epoch_writes_nothing() -> None:
    assert a_zombie_with_a_new_epoch() is None


def a_zombie_whose_successor_has_gone() -> str | None:
    """A member wakes with records in hand when its successor has processed them, and left.

    Returns:
        The law that is broken; None if all hold.
    """
    world = new_world()
    let_run(world)
    go(world, "m0", until="init")
    take(world, ("replace", "m0"))
    go(world, "m2", until="end")
    take(world, ("end", "m2"))
    take(world, ("mark", "t-m2"))
    take(world, ("leave", "m2"))
    try:
        take(world, ("init", "m0"))
        take(world, ("read", "m0"))
        go(world, "m0")
        finish_all(world)
    except LawBrokenError as error:
        return str(error)
    return None


def test_a_zombie_whose_successor_has_gone_writes_nothing() -> None:
    """Of the successor's claim, the log says no more than that there was one."""
    assert a_zombie_whose_successor_has_gone() is None


def test_a_member_is_suspended_amid_a_transaction_while_others_come_and_go() -> None:
    """They take a part of its hashes, commit and leave, and compaction deletes their claims."""
    start = suspended_world()
    no_law_is_broken(lambda seed: walk(PARTS, LENGTH, seed, start), walks(60))


def test_that_a_suspended_member_trusts_its_claim_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its id was fenced, but its producer gets another epoch: only its claim would say no."""
    monkeypatch.setattr(Ownerships, "look_anew", lambda _: None)
    start = suspended_world()
    assert is_found(any(walk(PARTS, LENGTH, seed, start) for seed in seeds(200, 1)))


def test_random_walks_with_claims_that_cannot_be_read() -> None:
    """Who reads so ends, amid a transaction, too; also one whose end arrives late."""
    events: Counter[str] = Counter()
    for limits in (DAMAGED, replace(DAMAGED, late=True)):
        no_law_is_broken(partial(walk, limits, LENGTH, events=events), walks(25))
    assert events["damage"] > least(20)
    assert events["repair"] > least(20)


def test_random_walks_with_resets() -> None:
    events: Counter[str] = Counter()
    no_law_is_broken(partial(walk, RESET, LENGTH, events=events), walks(60))
    assert min(events["reset"], events["receive"]) > least(100)


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_a_commit_that_arrives_late_decides_nothing(first: int) -> None:
    """As librdkafka has repeated it; the next transaction has a new epoch."""
    events: Counter[str] = Counter()
    no_law_is_broken(lambda seed: walk(LATE, LENGTH, seed, events=events), walks(30, after=first))
    assert min(events["repeat"], events["arrive"], events["put"]) > least(20)


# -- faults that must be found ---------------------------------------------------------------------


def skips_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "former_ids", lambda *_: frozenset())


def keeps_its_epoch_after_a_repeated_commit(patch: pytest.MonkeyPatch) -> None:
    real = TransactionState.committed

    def committed(self: TransactionState, *, may_go_on: bool) -> None:
        real(self, may_go_on=True)

    patch.setattr(TransactionState, "committed", committed)


def fences_once(patch: pytest.MonkeyPatch) -> None:
    """Who is fenced gets another epoch, and goes on without a look at the log."""
    patch.setattr(TransactionState, "_has_read", lambda *_: True)


def does_not_wait_for_the_end_of_what_it_fences(patch: pytest.MonkeyPatch) -> None:
    """CONCURRENT_TRANSACTIONS taken for success."""
    real = world_module.fence

    def hasty(world: world_module.TransactionalWorld, names: frozenset[str]) -> bool:
        real(world, names)
        return True

    patch.setattr(world_module, "fence", hasty)


def fences_only_before_its_claim_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "_fence", lambda *_: ())


def writes_facts_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(world_module, "fact_number", lambda _: 0)


def writes_facts_with_commits_too(patch: pytest.MonkeyPatch) -> None:
    """What is processed, though its transaction may be aborted."""
    real = world_module.write

    def write(world: world_module.TransactionalWorld, member: Member) -> None:
        done = member_module.processed(member)
        facts = blocks_to_write(T0, member.part(), member.owner.claim_name, member.hashes, done)
        member.wanted.append((GONE, actions.Write(tuple(facts))))
        real(world, member)

    patch.setattr(world_module, "write", write)


def deletes_its_blocks_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "_is_block_of", lambda *_: False)


def gives_up_its_claim_when_it_is_fenced(patch: pytest.MonkeyPatch) -> None:
    real = Owner._next

    def next_(self: Owner, said: PartitionLog) -> object:
        if self.phase is Phase.FENCED and self.claim_name in said.claims:
            return (actions.Delete((Key(0, "claim", T0, (self.claim_name,)),)),)
        return real(self, said)

    patch.setattr(Owner, "_next", next_)


def looks_at_the_claims_that_are_left(patch: pytest.MonkeyPatch) -> None:
    """It forgets who was excluded by a claim that is given up."""
    patch.setattr(PartitionLog, "was_fenced", PartitionLog.is_fenced)


def reads_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(world_module, "read_to", lambda world: world.log.end)


def reads_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(world_module, "is_visible", lambda *_: True)


def goes_on_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    """The positions do not go back."""

    def rewind(member: Member) -> None:
        member.in_flight, member.records, member.passes = [], None, False
        member.number, member.written = 0, ()
        member.state.rewound()

    patch.setattr(member_module, "rewind", rewind)


def goes_back_without_a_look_at_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "rewind", lambda _: None)


def takes_doubt_for_an_abort(patch: pytest.MonkeyPatch) -> None:
    """What it has left open hides the log until the coordinator's time is over."""

    def resolve(_: world_module.TransactionalWorld, member: Member) -> None:
        member.state.decided()
        member_module.rewind(member)

    patch.setattr(world_module, "resolve", resolve)


def is_in_doubt_only_once_it_has_asked(patch: pytest.MonkeyPatch) -> None:
    """An abort that is interrupted leaves nothing to be done: the next one has its records."""
    real = TransactionState.abort

    def abort(self: TransactionState) -> None:
        real(self)
        if self.stage is Stage.DOUBTFUL:
            self.stage = Stage.NONE

    def decided(self: TransactionState) -> None:
        self.stage = Stage.REWINDING

    patch.setattr(TransactionState, "abort", abort)
    patch.setattr(TransactionState, "decided", decided)


def does_not_go_back_once_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    def decided(self: TransactionState) -> None:
        self.stage = Stage.NONE

    patch.setattr(TransactionState, "decided", decided)


def commits_what_is_of_another_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionState, "is_own", lambda *_: True)


def asks_for_admission_only_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    real = TransactionState.next_action

    def next_action(self: TransactionState, outlook: Outlook, now: float) -> object:
        if self.is_begun:
            outlook = replace(outlook, purgatory=PurgatoryState.OPEN)
        return real(self, outlook, now)

    patch.setattr(TransactionState, "next_action", next_action)


def reads_to_the_last_stable_offset_only(patch: pytest.MonkeyPatch) -> None:
    """What was decided may lie behind another open transaction."""
    patch.setattr(world_module, "bound", world_module.read_to)


def waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "purgatory_state", lambda *_: PurgatoryState.OPEN)


def waits_for_itself(patch: pytest.MonkeyPatch) -> None:
    """Until the stable offset has reached the end of its own part."""

    def end(processed: Progress, known: Progress) -> int | None:
        added = processed.minus(known)
        return max((piece.offsets.end for piece in added), default=None)

    patch.setattr(commit, "first_new_offset", end)
    real = commit._state_of

    def closed(part: TransactionPart) -> PurgatoryState:
        found = real(replace(part, hashes=NO_HASHES))
        return PurgatoryState.CLOSED if found is PurgatoryState.LOST else found

    patch.setattr(commit, "_state_of", closed)


def waits_for_living_members_alone(patch: pytest.MonkeyPatch) -> None:
    """It takes what it has processed itself for what all have."""
    real = commit._state_of

    def own(part: TransactionPart) -> PurgatoryState:
        known = Progress.at(part.known.position_of(part.hashes))
        return real(replace(part, known=known))

    patch.setattr(commit, "_state_of", own)


FAULTS: dict[Patch, int] = {
    skips_the_fence: 41,
    fences_once: 46,
    writes_facts_outside_of_the_transaction: 0,
    writes_facts_with_commits_too: 0,
    deletes_its_blocks_outside_of_the_transaction: 8,
    reads_what_is_not_committed: 2,
    reads_what_was_aborted: 0,
    goes_on_after_an_abort: 0,
    goes_back_without_a_look_at_the_log: 3,
    reads_to_the_last_stable_offset_only: 90,
    takes_doubt_for_an_abort: 6,
    is_in_doubt_only_once_it_has_asked: 0,
    does_not_go_back_once_it_is_decided: 0,
    commits_what_is_of_another_start: 46,
    asks_for_admission_only_before_it_begins: 19,
    waits_for_nobody: 15,
    waits_for_itself: 0,
    waits_for_living_members_alone: 15,
}
"""Faults that random walks find, with the first seed that does; if it finds nothing any more,
others are tried."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    ways = (walk(LIMITS, LENGTH, seed) for seed in seeds(2_000, FAULTS[fault]))
    assert is_found(any(broken is not None for broken in ways))


def test_a_fault_is_found_by_commits_that_arrive_late(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps_its_epoch_after_a_repeated_commit(monkeypatch)
    assert is_found(any(walk(LATE, LENGTH, seed) is not None for seed in range(200)))


def trusts_starts_until_owners_look(patch: pytest.MonkeyPatch) -> None:
    """A caller that comes between a reset that is read, and its owner."""

    def started(self: Ownerships) -> dict[TopicPartition, DeliveryStart]:
        listed = self.by_partition.items()
        return {at: each.start for at, each in listed if each.start is not None}

    patch.setattr(Ownerships, "started", started)


def test_a_fault_is_found_by_every_interleaving_around_a_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusts_starts_until_owners_look(monkeypatch)
    assert is_found(explore(RESET_AMID, 3, two_commit())[1])


@pytest.mark.parametrize(
    "fault",
    [
        skips_the_fence,
        writes_facts_outside_of_the_transaction,
        writes_facts_with_commits_too,
        reads_what_is_not_committed,
        reads_what_was_aborted,
        is_in_doubt_only_once_it_has_asked,
        waits_for_nobody,
        waits_for_living_members_alone,
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_fault_is_found_by_every_interleaving_around_outputs(
    fault: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert is_found(any(breaks_a_law(way) for way in WAYS))


def breaks_a_law(way: Callable[[], Iterable[TransactionalWorld]]) -> bool:
    """Whether a law does not hold on a way, or one step out of it."""
    try:
        return explore(NARROW, 1, way())[1] is not None
    except LawBrokenError:
        return True


@pytest.mark.parametrize(
    "fault",
    [fences_only_before_its_claim_is_there, gives_up_its_claim_when_it_is_fenced],
    ids=lambda fault: fault.__name__,
)
def test_a_fault_is_found_by_a_zombie(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random walks do not come upon it: it takes a dozen steps in one order."""
    fault(monkeypatch)
    assert is_found(a_zombie_with_a_new_epoch() is not None)


def test_a_fault_is_found_by_a_zombie_whose_successor_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks_at_the_claims_that_are_left(monkeypatch)
    assert is_found(a_zombie_whose_successor_has_gone() is not None)


def test_what_would_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts are in the log before their transaction is decided, and hold its last stable offset.

    So who reads to the end of the log waits for the outcome. To have it decided first saves that
    time: else it takes as long as the transaction's timeout.
    """
    does_not_wait_for_the_end_of_what_it_fences(monkeypatch)
    for seed in range(60):
        assert walk(LIMITS, LENGTH, seed) is None, f"seed {seed}"
