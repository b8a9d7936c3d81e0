"""The laws of leases: interleavings, random walks, seeded faults."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import Bounds, OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.core.ownership import Claimant, Ownership, ReplacedClaims
from kshare.group.core.ownerships import Ownerships
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.log import LeaseKey, PartitionLog
from kshare.group.protocol.commit_log.placement import Placement
from kshare.group.protocol.commit_log.records import Key, Record, Stable, key_of
from kshare.group.protocol.owners import cooperator
from kshare.group.protocol.owners.actions import Append
from kshare.group.protocol.owners.cooperator import Cooperator
from kshare.group.protocol.owners.leases import counts
from kshare.group.protocol.owners.owner import Phase
from tests.group.protocol import lease_world, world
from tests.group.protocol.interleavings import seeds
from tests.group.protocol.lease_explorer import (
    DEEP,
    LATE,
    explore,
    new_late_world,
    new_leased_world,
    new_world,
    walk,
)
from tests.group.protocol.lease_world import (
    Late,
    LeaseLimits,
    LeaseWorld,
    finish,
    lease_steps,
    take_lease,
)
from tests.group.protocol.process import T0
from tests.group.protocol.world import LawBrokenError, Step, vanish_steps
from tests.support.effort import depth, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

pytestmark = pytest.mark.deep

LENGTH = 120
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("by_epochs", [True, False])
def test_every_interleaving(by_epochs: bool) -> None:
    states, broken = explore(LeaseLimits(), depth(4), by_epochs=by_epochs)
    explored(states, broken)
    assert not broken
    assert states > least(1_000)


@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks(by_epochs: bool) -> None:
    start = new_world(by_epochs=by_epochs, records=8)
    no_law_is_broken(lambda seed: walk(DEEP, LENGTH, seed, start), walks(20))


def test_who_falls_silent_before_it_has_read_its_claim_goes_on_under_another_name() -> None:
    """Another has read the claim, and deletes it; the walk of seed 596188001 found it."""
    world = new_world(by_epochs=False, records=8)
    for step in (("start", ""), ("act", "m2"), ("drop", "m2")):
        take_lease(world, step)
    before = world.processes["m2"].owner
    take_lease(world, ("renew", "m2"))
    after = world.processes["m2"].owner
    assert before.phase is after.phase is Phase.CLAIMING
    assert before.claim_name != after.claim_name
    assert walk(DEEP, LENGTH, 596188001, new_world(by_epochs=False, records=8)) is None


@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks_with_a_lost_log(by_epochs: bool) -> None:
    limits, start = replace(DEEP, lost_logs=1), new_world(by_epochs=by_epochs, records=8)
    no_law_is_broken(lambda seed: walk(limits, LENGTH, seed, start), walks(20))


@pytest.mark.parametrize("by_epochs", [True, False])
def test_every_interleaving_with_a_claim_that_cannot_be_read(by_epochs: bool) -> None:
    start, limits = new_leased_world(by_epochs=by_epochs), LeaseLimits(processes=4, damages=1)
    states, broken = explore(limits, depth(4), by_epochs=by_epochs, start=start)
    explored(states, broken)
    assert not broken
    assert states > least(1_000)


@pytest.mark.parametrize("by_epochs", [True, False])
@pytest.mark.parametrize("keeps", ["all", "the tombstone", "nothing"])
def test_whose_claim_was_deleted_before_it_read_it_goes_on_under_another_name(
    keeps: str, by_epochs: bool
) -> None:
    """Others share the partition: that takes nothing from it."""
    world = new_leased_world(by_epochs=by_epochs)
    for step in (("start", ""), ("act", "m2"), ("damage", "m2#1")):
        take_lease(world, step)
    for name in ("m0", "m1"):  # who reads it ends
        take_lease(world, ("read", name))
    for step in (("start", ""), ("repair", "m2#1")):
        take_lease(world, step)
    if keeps != "all":
        world.log.compact()
    if keeps == "nothing":
        world.log.delete_tombstones()
    member = world.processes["m2"]
    assert member.owner.phase is Phase.CLAIMING
    take_lease(world, ("read", "m2"))
    finish(world)
    assert member.ownerships.fenced() is None
    assert (member.owner.claim_name, member.owner.phase) == ("m2#2", Phase.RUNNING)


def test_a_claim_that_was_deleted_unread_is_no_reason_to_wait_for_ever() -> None:
    """Damaged, deleted and compacted away beside another member's; this walk found it."""
    limits = replace(LATE, processes=6, damages=2)
    start = new_late_world(by_epochs=False)
    no_law_is_broken(lambda seed: walk(limits, LENGTH, seed, start), [667_091_012])


@pytest.mark.parametrize(("by_epochs", "seed"), [(True, 695_035_198), (False, 521_176_627)])
def test_who_reads_last_that_its_claim_was_deleted_goes_on_at_once(
    by_epochs: bool, seed: int
) -> None:
    """No further record comes that would wake it. Those that a coordinator lists, too."""
    limits = replace(DEEP, lost_logs=1, damages=2, vanishes=2)
    start = new_leased_world(by_epochs=by_epochs)
    no_law_is_broken(lambda seed: walk(limits, LENGTH, seed, start), [seed])


def test_a_lease_that_was_deleted_unread_is_asked_for_again() -> None:
    world = new_world(by_epochs=True, members=1)
    for step in (("want", "m0"), ("act", "m0")):
        take_lease(world, step)
    (vanish,) = vanish_steps(world, 1)
    take_lease(world, vanish)
    assert not world.log.said().of(T0).leases
    finish(world)
    assert len(world.delivered) == 4


@pytest.mark.parametrize("lost_logs", [0, 1])
@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks_with_records_that_are_deleted_unread(by_epochs: bool, lost_logs: int) -> None:
    """Claims, leases, facts: damaged, deleted and compacted away before their authors read them."""
    limits, events = replace(LATE, vanishes=3, damages=1, lost_logs=lost_logs), Counter[str]()
    start = new_late_world(by_epochs=by_epochs)
    no_law_is_broken(lambda seed: walk(limits, LENGTH, seed, start, events), walks(20))
    assert events["vanish"] > least(10)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks_with_claims_that_cannot_be_read(by_epochs: bool, is_late: bool) -> None:
    """Who reads so ends; who is started once they are deleted goes on with what was leased."""
    events, limits = Counter[str](), replace(LATE if is_late else DEEP, processes=6, damages=2)
    made = new_late_world if is_late else new_leased_world
    no_law_is_broken(
        lambda seed: walk(limits, LENGTH, seed, made(by_epochs=by_epochs), events), walks(20)
    )
    assert events["damage"] > least(10)
    assert events["repair"] > least(5)


@pytest.mark.parametrize("ends", ["expire", "renew"])
@pytest.mark.parametrize("by_epochs", [True, False])
def test_every_interleaving_with_late_work(by_epochs: bool, ends: str) -> None:
    """What was in work as a lease has ended, is processed later, and committed then."""
    start = new_late_world(by_epochs=by_epochs, ends=ends)
    limits = LeaseLimits(processes=2, expiries=2)
    states, broken = explore(limits, depth(4), by_epochs=by_epochs, start=start)
    explored(states, broken)
    assert not broken
    assert states > least(500)


@pytest.mark.parametrize("lost_logs", [0, 1])
@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks_with_late_work(by_epochs: bool, lost_logs: int) -> None:
    limits, events = replace(LATE, lost_logs=lost_logs), Counter[str]()
    start = new_late_world(by_epochs=by_epochs)
    no_law_is_broken(lambda seed: walk(limits, LENGTH, seed, start, events), walks(20))
    assert events["finish"] > least(10)


def test_what_is_committed_late_may_be_with_another_that_has_not_read_so() -> None:
    """One walk of many thousands comes to it: this is one that did."""
    start = new_late_world(by_epochs=False)
    no_law_is_broken(lambda seed: walk(LATE, LENGTH, seed, start), [283_660_009])


@pytest.mark.parametrize("members", [1, 2, 3])
def test_members_share_all_there_is(members: int) -> None:
    world = new_world(by_epochs=True, members=members, records=9)
    finish(world)
    assert len(world.delivered) == 9
    assert all(len(names) == 1 for names in world.delivered.values())
    if members > 1:
        assert len(set(world.delivered.values())) > 1


# -- seeded faults ---------------------------------------------------------------------------------


def go_the_way(way: str, world: LeaseWorld, limits: LeaseLimits) -> str:
    """The law that is broken on a way, or at its end; empty if all hold.

    Args:
        way: Its steps; those that are not possible are left out.
        world: Where it begins.
        limits: How much may happen.
    """
    try:
        for each in " ".join(way.split()).split(", "):
            what, _, name = each.rpartition(" ")
            step = what, name.strip("-")
            if step in lease_steps(world, limits):
                take_lease(world, step)
        finish(world)
    except LawBrokenError as error:
        return str(error)
    return ""


def _all_that_is_named(log: PartitionLog) -> dict[LeaseKey, Bounds]:
    return {
        key: (lease.offsets.start, lease.offsets.end)
        for key, lease in log.leases.items()
        if counts(log, key[0])
    }


def keep_what_was_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cooperator, "holdings", _all_that_is_named)


def ignore_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cooperator, "_is_dead", lambda *_: False)


def bury_the_living(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cooperator, "_is_dead", lambda self, name, _: name != self.claim_name)


def clear_leases_of_the_living(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cooperator, "counts", lambda *_: False)


def trust_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """A lease is deleted when its offsets are processed, before the log says so."""
    cooperate = Cooperator._cooperate

    class Mine:
        def __init__(self, log: PartitionLog, owner: Cooperator) -> None:
            self._log, self._owner = log, owner

        def __getattr__(self, name: str) -> object:
            return getattr(self._log, name)

        def progress(self, stable: int) -> object:
            return self._owner.done if self._owner.done.stable else self._log.progress(stable)

    def broken(self: Cooperator, log: PartitionLog, end: int) -> Iterator[Append]:
        yield from cooperate(self, Mine(log, self), end)  # type: ignore[arg-type]

    patch.setattr(Cooperator, "_cooperate", broken)


def reuse_a_number(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Cooperator, key: Key) -> None:
        self._appended.discard(key)
        self._looked_at = None
        if key.kind == "lease" and key.detail == (self.claim_name, self.asked):
            self.asked = None
            self._number -= 1

    patch.setattr(Cooperator, "not_appended", broken)


FAULTS: tuple[Patch, ...] = (
    keep_what_was_lost,
    ignore_claims,
    bury_the_living,
    clear_leases_of_the_living,
    trust_what_is_not_committed,
    reuse_a_number,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_seeded_faults_are_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    start = new_world(by_epochs=True, records=8)
    assert is_found(any(walk(DEEP, LENGTH, seed, start) for seed in range(60)))


def goes_on_under_its_old_name(patch: pytest.MonkeyPatch) -> None:
    """What was leased before counts as its own, and the numbers of its leases begin again."""
    patch.setattr(Claimant, "rename", lambda self: setattr(self, "_claims", 1))


def goes_on_as_if_nobody_took_it_for_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ownerships, "renew", lambda *_: None)


def takes_all_for_dead_if_one_is(patch: pytest.MonkeyPatch) -> None:
    def expire(self: Cooperator, _: object, log: PartitionLog) -> None:
        self.silent = frozenset(name for name in log.claims if name != self.claim_name)

    patch.setattr(Cooperator, "expire", expire)


FAULTS_OF_SESSIONS: dict[Patch, int] = {
    goes_on_under_its_old_name: 189,
    goes_on_as_if_nobody_took_it_for_dead: 103,
    takes_all_for_dead_if_one_is: 3,
}
"""Faults of what a session owns, with the first seed that finds them; else others are tried."""


@pytest.mark.parametrize("fault", FAULTS_OF_SESSIONS, ids=lambda fault: fault.__name__)
def test_faults_of_sessions_are_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    starts = [new_world(by_epochs=by_epochs, records=8) for by_epochs in (True, False)]
    tried = seeds(1_000, FAULTS_OF_SESSIONS[fault])
    assert is_found(any(walk(DEEP, LENGTH, seed, starts[seed % 2]) for seed in tried))


def goes_on_though_a_claim_cannot_be_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease_world, "must_end", lambda _: False)


def deletes_such_a_claim_before_all_have_read_it(patch: pytest.MonkeyPatch) -> None:
    def steps(world: LeaseWorld, damages: int) -> list[Step]:
        names = world.log.said().of(T0)
        possible = [("damage", name) for name in names.claims if world.damaged < damages]
        return [*possible, *(("repair", name) for name in names.damaged)]

    patch.setattr(world, "damage_steps", steps)


def waits_for_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "is_passed", lambda *_: False)


def test_that_who_waits_for_what_was_deleted_waits_for_ever_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_for_what_was_deleted(monkeypatch)
    limits, start = replace(DEEP, vanishes=3), new_leased_world(by_epochs=True)
    assert is_found(any(walk(limits, LENGTH, seed, start) for seed in seeds(200, 0)))


FAULTS_WITH_DAMAGE: tuple[Patch, ...] = (
    goes_on_though_a_claim_cannot_be_read,
    deletes_such_a_claim_before_all_have_read_it,
)
DAMAGED_CLAIM = """
damage m0#1, repair m0#1, read m1, want m1, act m1, act m1, read m1, acknowledge 2 m1, deliver m1,
deliver m1
"""
"""A way on which a member leases what another has in work, as that one's claim is gone."""


@pytest.mark.parametrize("by_epochs", [True, False])
@pytest.mark.parametrize("fault", FAULTS_WITH_DAMAGE, ids=lambda fault: fault.__name__)
def test_faults_with_claims_that_cannot_be_read_are_found(
    fault: Patch, by_epochs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One walk of many thousands finds them: members go on under other names, and drop theirs."""
    limits = replace(DEEP, processes=6, damages=2)
    assert not go_the_way(DAMAGED_CLAIM, new_leased_world(by_epochs=by_epochs), limits)
    fault(monkeypatch)
    broken = go_the_way(DAMAGED_CLAIM, new_leased_world(by_epochs=by_epochs), limits)
    assert is_found("offset 0 is with m0#1 and m1" in broken)


def test_who_has_read_that_its_claim_cannot_be_leases_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends once it has read the log to the end: until then it goes on."""
    goes_on_though_a_claim_cannot_be_read(monkeypatch)
    world = new_world(by_epochs=True, members=1)
    for step in (("damage", "m0#1"), ("read", "m0"), ("want", "m0")):
        take_lease(world, step)
    assert not world.processes["m0"].wanted


def forgets_the_starts_of_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ownership, "former", lambda self: ReplacedClaims())


def forgets_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """Of a member that has joined again, which gives up all first."""
    claim = Ownerships.claim

    def broken(self: Ownerships, *given: Any, **named: Any) -> None:
        self._former.clear()
        claim(self, *given, **named)

    patch.setattr(Ownerships, "claim", broken)


def answers_and_writes_nothing(patch: pytest.MonkeyPatch) -> None:
    """A commit of late work is answered as if it was taken."""
    processed_since = Ownership.processed_since

    def broken(self: Ownership, start: DeliveryStart | None, what: Any) -> bool:
        return processed_since(self, start, what if start == self.start else ())

    patch.setattr(Ownership, "processed_since", broken)


def forgets_it_as_delivery_begins(patch: pytest.MonkeyPatch) -> None:
    """What was committed while the next claim was not in place."""
    begin = Ownership._begin

    def broken(self: Ownership) -> None:
        self.replaced_claims.processed = None
        begin(self)

    patch.setattr(Ownership, "_begin", broken)


def counts_all_that_was_handed_out(patch: pytest.MonkeyPatch) -> None:
    """Also what is still in work."""

    def work(self: Late) -> LateWork:
        pieces = [Rectangle(OffsetRange(at, at + 1), WHOLE) for at in sorted(self.taken)]
        return LateWork(T0, self.start, Progress.of(0, pieces))

    patch.setattr(Late, "work", work)


FAULTS_OF_LATE_WORK: tuple[Patch, ...] = (
    forgets_the_starts_of_before,
    forgets_what_was_given_up,
    answers_and_writes_nothing,
    forgets_it_as_delivery_begins,
    counts_all_that_was_handed_out,
)


@pytest.mark.parametrize("fault", FAULTS_OF_LATE_WORK, ids=lambda fault: fault.__name__)
def test_faults_of_late_work_are_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    starts = [new_late_world(by_epochs=True, ends=ends) for ends in ("expire", "renew")]
    assert is_found(any(walk(LATE, LENGTH, seed, starts[seed % 2]) for seed in range(100)))


def one_stable_offset_for_all(patch: pytest.MonkeyPatch) -> None:
    """What a former lead writes late replaces what its successor has written."""

    def key(record: Record) -> Key:
        found = key_of(record)
        return found._replace(detail=()) if isinstance(record, Stable) else found

    patch.setattr(world, "key_of", key)


def test_a_former_lead_that_writes_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One walk of 5,000 does: this is one that did."""
    start = new_world(by_epochs=True, records=8)
    assert walk(DEEP, LENGTH, 2_006_456, start) is None
    one_stable_offset_for_all(monkeypatch)
    assert is_found(walk(DEEP, LENGTH, 2_006_456, start))


FORMER_LEAD = """
crash m0, deem m1, drop m1, act m1, start -, renew m1, start -, act m2, act m1, act m3, read m2,
act m2, read m3, act m3, want m3, act m3, act m1, read m3, commit m2, deliver m3, acknowledge 0 m3,
commit m3, act m3, read m1, act m1, commit m1, act m1, act m1
"""
"""A way without epochs on which a former lead writes a stable offset late."""


def test_a_former_lead_that_writes_late_is_found_on_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    start = new_world(by_epochs=False, records=8)
    assert not go_the_way(FORMER_LEAD, start.clone(), DEEP)
    one_stable_offset_for_all(monkeypatch)
    assert "compaction changes who has an offset" in go_the_way(FORMER_LEAD, start, DEEP)
