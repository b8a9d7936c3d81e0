"""The laws of groups in a small world: all interleavings to a depth, random walks, seeded faults.

Run ``python -m tests.group.protocol.explorer`` for deeper ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.core.ownership import CommitCounter, Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.protocol.commit_log import commit, log, start
from kshare.group.protocol.commit_log.placement import Placement
from kshare.group.protocol.commit_log.records import Key, Stable
from kshare.group.protocol.owners import owner
from kshare.group.protocol.owners.actions import Delete, WritePrimary
from kshare.group.protocol.owners.owner import Owner
from tests.group.protocol import world as world_module
from tests.group.protocol.explorer import (
    check_that_nobody_waits,
    explore,
    finish,
    first_world,
    new_world,
    random_steps,
    suspended_world,
    walk,
)
from tests.group.protocol.interleavings import Broken, seeds
from tests.group.protocol.process import T0, Process, replay
from tests.group.protocol.world import Limits, World, is_pending, take, vanish_steps
from tests.support.effort import depth, least, walks
from tests.support.shown import explored, is_found, no_law_is_broken

pytestmark = pytest.mark.deep

WALKS, LENGTH = 200, 160
LIMITS = Limits(processes=4, commits=3, in_flight=2, compactions=2)
FAILING = replace(LIMITS, failures=3)
LOST = replace(FAILING, lost_logs=1)
PARTS = replace(LIMITS, leaves=2, compactions=8)
DAMAGED = replace(LIMITS, damages=2)
VANISHED = replace(LIMITS, vanishes=3)
Patch = Callable[[pytest.MonkeyPatch], None]


def test_every_interleaving_to_a_depth() -> None:
    """From the start on: claims, waiting, starts; nobody delivers within so few steps."""
    reached, broken = explore(Limits(processes=3), depth(8))
    explored(reached.states, broken)
    assert broken is None
    assert reached.states > least(3_000)


@pytest.mark.parametrize(
    ("failures", "steps", "promised"), [pytest.param(0, 7, 50, marks=pytest.mark.long), (1, 6, 10)]
)
def test_every_interleaving_of_members_that_run(failures: int, steps: int, promised: int) -> None:
    limits = Limits(processes=3, lost_logs=1, failures=failures)
    reached, broken = explore(limits, depth(steps), running=True)
    explored(reached.states, broken)
    assert broken is None
    assert reached.states > least(8_000)
    assert min(reached.delivered, reached.crashed, reached.lost) > least(1_000)
    assert reached.promised >= least(promised)


def test_random_walks() -> None:
    no_law_is_broken(lambda seed: walk(LIMITS, LENGTH, seed), walks(WALKS))


def test_every_interleaving_with_a_claim_that_cannot_be_read() -> None:
    reached, broken = explore(Limits(processes=3, damages=1), depth(6), running=True)
    explored(reached.states, broken)
    assert broken is None
    assert reached.states > least(3_000)


@pytest.mark.parametrize("limits", [DAMAGED, replace(LOST, damages=2), replace(PARTS, damages=2)])
def test_random_walks_with_claims_that_cannot_be_read(limits: Limits) -> None:
    run = first_world(running=True)
    no_law_is_broken(lambda seed: walk(limits, LENGTH, seed, run, slow="m0"), walks(WALKS))


def test_a_group_goes_on_though_a_claim_cannot_be_read() -> None:
    """Of a member that lives, and of one that is dead: all is processed, and nobody has to help."""
    for crashes in (False, True):
        world = first_world(running=True)
        if crashes:
            take(world, ("replace", "m0"))
            world.crash("m0")
        take(world, ("damage", "m0#1"))
        finish(world)
        assert world.acknowledged == {0, 1, 2, 3}
        assert {each.owner.phase for each in world.processes.values()} == {owner.Phase.RUNNING}
        assert ("m0#1" in world.log.said().of(T0).damaged) is crashes


def claimed_and_unread() -> World:
    """A world in which a member has written its claim, and has not read it."""
    world = World((0,) * 4)
    world.start(ALL_HASHES)
    for step in (("read", "m0"), ("act", "m0")):
        take(world, step)
    assert world.processes["m0"].owner.phase is owner.Phase.CLAIMING
    return world


@pytest.mark.parametrize("keeps", ["all", "the tombstone", "nothing"])
def test_who_reads_only_that_its_claim_was_deleted_claims_anew(keeps: str) -> None:
    """It was away for so long: it has read neither its claim nor that it could not be read."""
    world = claimed_and_unread()
    for step in (("damage", "m0#1"), ("repair", "m0#1")):
        take(world, step)
    if keeps != "all":
        take(world, ("compact", ""))
    if keeps == "nothing":
        take(world, ("delete tombstones", ""))
    finish(world)
    member = world.processes["m0"]
    assert (member.owner.claim_name, member.owner.phase) == ("m0#2", owner.Phase.RUNNING)
    assert world.acknowledged == {0, 1, 2, 3}


def test_whose_claim_was_deleted_before_it_read_it_takes_nothing_back() -> None:
    """Another has claimed the same since: who has read neither is fenced."""
    world = claimed_and_unread()
    world.start(ALL_HASHES)
    for step in (("read", "m1"), ("act", "m1"), ("read", "m1"), ("wait", "m1")):
        take(world, step)
    world.log.append(Key(0, "claim", T0, ("m0#1",)), None)  # as who runs deletes it
    take(world, ("compact", ""))
    take(world, ("delete tombstones", ""))
    take(world, ("read", "m0"))
    assert world.processes["m0"].owner.phase is owner.Phase.FENCED
    finish(world)
    assert world.processes["m1"].owner.phase is owner.Phase.RUNNING


def test_a_claim_that_went_into_the_next_log_says_nothing_of_this_one() -> None:
    """The log was deleted and made again, which the member has not noticed yet."""
    world = claimed_and_unread()
    member = world.processes["m0"]
    member.log.end = 10
    member.owner.actions(member.part(), 10)
    member.owner.failed()
    member.owner.actions(member.part(), 10)
    member.owner.written(3)
    assert not member.owner.has_missed_records(10)
    member.owner.written(10)
    assert member.owner.has_missed_records(11)


@pytest.mark.parametrize("kind", ["claim", "reset", "block", "stable"])
def test_what_was_deleted_before_its_author_read_it_is_written_again(kind: str) -> None:
    """Each record of a start and of a commit: damaged, deleted, and compacted away at once."""
    world = claimed_and_unread()
    finish(world, until=0)
    if kind in {"claim", "reset"}:
        world = claimed_and_unread()
    else:
        take(world, ("deliver", "m0"))
        take(world, ("acknowledge 0", "m0"))
        take(world, ("commit", "m0"))
    for _ in range(20):
        found = [at for at, key, _ in world.log.records if key.kind == kind]
        steps = [step for step in vanish_steps(world, 1) if step[0].split()[1] in map(str, found)]
        if steps:
            break
        take(world, ("act" if world.processes["m0"].inbox else "read", "m0"))
    take(world, steps[-1])
    assert not {key.kind for _, key, _ in world.log.records} & {kind}
    finish(world)
    check_that_nobody_waits(world)
    assert world.acknowledged == {0, 1, 2, 3}
    assert world.processes["m0"].asked is None


@pytest.mark.parametrize("running", [False, True])
def test_random_walks_with_records_that_are_deleted_unread(running: bool) -> None:
    """Of claims, resets, facts and stable offsets: nobody waits for ever for one to come back."""
    run, events = first_world(running=running), Counter[str]()
    for limits in (VANISHED, replace(PARTS, vanishes=2), replace(LOST, vanishes=2, damages=2)):
        no_law_is_broken(
            lambda seed, limits=limits: walk(  # type: ignore[misc]
                limits, LENGTH, seed, run, slow="m0" if running else None, events=events, ends=True
            ),
            walks(WALKS // 4),
        )
    assert events["vanish"] > least(50)


def test_every_interleaving_with_a_lost_log() -> None:
    reached, broken = explore(Limits(processes=3, lost_logs=1), depth(7))
    explored(reached.states, broken)
    assert broken is None
    assert reached.states > least(3_000)


@pytest.mark.parametrize("running", [False, True])
def test_random_walks_with_a_lost_log(running: bool) -> None:
    start, slow = first_world(running=running), "m0" if running else None
    no_law_is_broken(lambda seed: walk(LOST, LENGTH, seed, start, slow=slow), walks(WALKS))


def test_random_walks_with_failures() -> None:
    run = first_world(running=True)
    half = WALKS // 2
    no_law_is_broken(lambda seed: walk(FAILING, LENGTH, seed, run, slow="m0"), walks(half))
    no_law_is_broken(lambda seed: walk(FAILING, LENGTH, seed), walks(half, after=half))


def test_random_walks_of_a_member_that_is_suspended_while_others_come_and_go() -> None:
    start = suspended_world()
    no_law_is_broken(lambda seed: walk(PARTS, LENGTH, seed, start, slow="m0"), walks(WALKS))


@pytest.mark.parametrize("keeps_tombstone", [True, False])
def test_a_suspended_member_looks_anew_although_compaction_left_no_trace(
    keeps_tombstone: bool,
) -> None:
    """Another takes a part of its hashes, commits and leaves; then the log's cleaner comes."""
    world = suspended_world()
    finish(world, without="m0")
    assert world.promised >= {0, 2}
    take(world, ("leave", "m2"))
    take(world, ("compact", ""))
    if not keeps_tombstone:
        take(world, ("delete tombstones", ""))
    assert "m2#1" not in {
        key.detail[0] for _, key, record in world.log.records if key.kind == "claim" and record
    }
    take(world, ("read", "m0"))
    suspended = world.processes["m0"]
    assert suspended.start is None
    assert suspended.in_flight == []
    finish(world)
    assert suspended.owner.phase is owner.Phase.RUNNING
    assert suspended.owner.claim_name != "m0#1"
    assert not any(is_pending(suspended.owner.done, offset, world.keys[0]) for offset in (0, 2))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_living_members_process_all(seed: int) -> None:
    world = new_world()
    for step in random_steps(world, LOST, LENGTH // 2, seed):
        take(world, step)
    finish(world, until=0)
    owned = set()
    for name, process in list(world.processes.items()):
        if process.owner.phase is owner.Phase.FENCED:
            world.crash(name)
        else:
            owned.add(process.hashes)
    for half in {KeyRanges([half]) for half in world_module.HALVES} - owned:
        world.start(half)
    finish(world)
    said = log.GroupLog("g")
    replay(world.log, said)
    progress = said.of(T0).progress()
    assert world.acknowledged == set(range(len(world.keys)))
    assert not any(is_pending(progress, at, hash_) for at, hash_ in enumerate(world.keys))
    assert world.primary is not None
    assert world.primary.offset == progress.stable


def test_a_primary_offset_that_a_former_lead_has_set_back_is_written_again() -> None:
    """It is stopped between its decision and the coordinator, which does not ask who it is."""
    world = World((0,) * 4)
    world.start(ALL_HASHES)
    finish(world, until=0)
    old = world.processes["m0"]
    take(world, ("deliver", "m0"))
    take(world, ("acknowledge 0", "m0"))
    take(world, ("commit", "m0"))
    while not isinstance(old.inbox[0], WritePrimary):
        take(world, ("act", "m0"))
        take(world, ("read", "m0"))
    stopped = world.processes.pop("m0")
    world.start(ALL_HASHES)
    finish(world)
    assert world.primary is not None
    assert world.primary.offset == 4
    world.processes["m0"] = stopped
    take(world, ("act", "m0"))
    assert world.primary.offset == 1
    new = world.processes["m1"]
    for now, offset in ((1.0, 1), (11.0, 4)):
        new.commit([])
        new.decide(now)
        while new.inbox:
            take(world, ("act", "m1"))
        assert world.primary.offset == offset
    assert new.owner.commit is None


def test_living_members_write_again_what_a_lost_log_said() -> None:
    world = new_world()
    finish(world, until=0)
    upper = world.processes["m1"]  # the lower half, which holds the stable offset, does nothing
    for offset in (1, 3):
        world.deliver(upper)
        take(world, (f"acknowledge {offset}", "m1"))
    take(world, ("commit", "m1"))
    finish(world, until=0)
    take(world, ("lose the log", ""))
    finish(world, until=0)
    take(world, ("commit", "m1"))
    finish(world, until=0)
    said = log.GroupLog("g")
    replay(world.log, said)
    progress = said.of(T0).progress(0)
    assert not any(is_pending(progress, offset, world.keys[1]) for offset in range(4))
    assert upper.owner.resolved is not None
    assert upper.owner.resolved.reason is start.Reason.LOST_LOG


# -- faults that must be found ---------------------------------------------------------------------


def does_not_wait_for_former_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "is_alone", lambda *_: True)


def does_not_fence_itself(patch: pytest.MonkeyPatch) -> None:
    for name in ("is_fenced", "was_fenced"):
        patch.setattr(log.PartitionLog, name, lambda self, member: member not in self.claims)


def delivers_without_reading_the_log(patch: pytest.MonkeyPatch) -> None:
    """No self-fencing by time: a paused process goes on."""
    happen = world_module._happen

    def paused(world: world_module.World, process: Process, what: str) -> None:
        current = {name for name, other in world.processes.items() if other.is_current}
        happen(world, process, what)
        if what == "wait":
            for name in current & world.processes.keys():
                world.processes[name].is_current = True

    patch.setattr(world_module, "_happen", paused)


def starts_from_the_primary_alone(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: log.PartitionLog, primary: int = 0) -> Progress:
        return Progress.at(primary)

    patch.setattr(log.PartitionLog, "progress", forgetful)


def commits_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    processed = world_module.processed

    def too_much(world: world_module.World, process: Process) -> Iterator[Rectangle]:
        return processed(world, replace(process, in_flight=[]))

    patch.setattr(world_module, "processed", too_much)


def commits_for_all_hashes(patch: pytest.MonkeyPatch) -> None:
    real = world_module.processed

    def too_much(world: world_module.World, process: Process) -> Iterator[Rectangle]:
        return (replace(piece, hashes=WHOLE) for piece in real(world, process))

    patch.setattr(world_module, "processed", too_much)
    patch.setattr(commit, "_wanted", partial(_of_all, commit._wanted))


def _of_all(
    real: Callable[..., object], member: str, _: object, done: Progress, stable: int
) -> object:
    return real(member, ALL_HASHES, done, stable)


def commits_the_front(patch: pytest.MonkeyPatch) -> None:
    """Stable by the maximum."""

    def front(at: object, said: log.PartitionLog, member: str, primary: int) -> Stable | None:
        reached = said.progress(primary).front
        if said.stable is not None and reached <= said.stable.offset:
            return None
        return Stable(T0, said.incarnation, reached, author=member)

    patch.setattr(owner, "stable_to_write", front)


def deletes_before_reading_back(patch: pytest.MonkeyPatch) -> None:
    """Its own blocks go as soon as the next ones are on their way."""
    real = Owner._commit

    def hasty(self: Owner, said: log.PartitionLog, under_way: commit.Commit) -> object:
        facts = under_way.facts
        actions = real(self, said, under_way)
        if facts:
            keys = [Key(said.incarnation, "block", self.partition, key) for key in said.blocks]
            mine = tuple(key for key in keys if key.detail[0] == self.claim_name)
            return (Delete(mine), *actions) if mine else actions
        return actions

    patch.setattr(Owner, "_commit", hasty)


def deletes_what_living_members_write(patch: pytest.MonkeyPatch) -> None:
    real = commit.keys_to_delete

    def greedy(
        at: TopicPartition,
        said: log.PartitionLog,
        member: str,
        owned: KeyRanges,
        done: Progress,
    ) -> list[Key]:
        stable = said.stable.offset if said.stable else 0
        below = [
            Key(said.incarnation, "block", at, key)
            for key, bounds in said.blocks.items()
            if bounds[-1] <= stable
        ]
        return [*real(at, said, member, owned, done), *below] if said.lead == member else below

    patch.setattr(owner, "keys_to_delete", greedy)


def deletes_inherited_blocks_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commit, "_covers", lambda *_: True)


def judges_by_an_old_primary(patch: pytest.MonkeyPatch) -> None:
    """Facts without an anchor: a reset, although the anchor may be newer than the primary read."""
    real = Owner._start

    def old(self: Owner, said: log.PartitionLog) -> object:
        self._evidence = replace(self._evidence, seen=(said.incarnation, said.has_facts))
        return real(self, said)

    patch.setattr(Owner, "_start", old)


def answers_before_reading_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(owner, "is_written", lambda *_: True)


def never_writes_an_anchor(patch: pytest.MonkeyPatch) -> None:
    real = start.resolve_start
    patch.setattr(owner, "resolve_start", lambda *a, **k: replace(real(*a, **k), unanchored=False))


def does_not_wait_after_a_lost_log(patch: pytest.MonkeyPatch) -> None:
    real = Owner._start

    def hasty(self: Owner, said: log.PartitionLog) -> object:
        self._takeover = replace(self._takeover, has_waited=True)
        return real(self, said)

    patch.setattr(Owner, "_start", hasty)


def delivers_on_without_the_lost_log(patch: pytest.MonkeyPatch) -> None:
    """It takes note of the loss, and does not claim again."""
    patch.setattr(Owner, "log_lost", lambda self, topic_id: setattr(self, "topic_id", topic_id))
    real = Owner.look

    def look(self: Owner, said: log.PartitionLog) -> None:
        if self.phase is not owner.Phase.RUNNING or self.claim_name in said.claims:
            real(self, said)

    patch.setattr(Owner, "look", look)


def forgets_facts_that_were_not_written(patch: pytest.MonkeyPatch) -> None:
    real = Owner.failed

    def failed(self: Owner) -> None:
        self._pending = ()
        real(self)

    patch.setattr(Owner, "failed", failed)


def looks_not_anew_after_a_lapse(patch: pytest.MonkeyPatch) -> None:
    """Who was away trusts its claim, although others may have come and gone."""
    patch.setattr(Ownerships, "look_anew", lambda _: None)


def takes_what_cannot_be_read_for_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.GroupLog, "damage", lambda self, at, key, _: self.apply(at, key, None))


def trusts_its_claim_though_a_later_one_cannot_be_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "must_claim_anew", lambda *_: False)


def drops_a_claim_before_all_have_read_that_it_cannot_be(patch: pytest.MonkeyPatch) -> None:
    """As `kshare offsets drop --damaged` would without its wait."""

    def steps(world: world_module.World, damages: int) -> list[world_module.Step]:
        names = world.log.said().of(T0)
        possible = [("damage", name) for name in names.claims if world.damaged < damages]
        return [*possible, *(("repair", name) for name in names.damaged)]

    patch.setattr(world_module, "damage_steps", steps)


def deletes_claims_that_others_wait_for(patch: pytest.MonkeyPatch) -> None:
    def greedy(at: TopicPartition, said: log.PartitionLog, member: str) -> list[Key]:
        gone = [other for other in said.claims if not said.owned_by(other)]
        return [Key(0, "claim", at, (other,)) for other in gone if other != member]

    patch.setattr(owner, "past_to_delete", greedy)


def answers_a_commit_when_it_begins(patch: pytest.MonkeyPatch) -> None:
    def begin(self: CommitCounter) -> None:
        self.begun = self.finished = self.wanted

    patch.setattr(CommitCounter, "begin", begin)


FAULTS: dict[Patch, int] = {
    does_not_wait_for_former_owners: 17,
    does_not_fence_itself: 1,
    delivers_without_reading_the_log: 454,
    starts_from_the_primary_alone: 0,
    commits_what_is_in_flight: 6,
    commits_for_all_hashes: 1,
    commits_the_front: 1,
    deletes_before_reading_back: 3,
    deletes_what_living_members_write: 40,
    deletes_inherited_blocks_at_once: 506,
    judges_by_an_old_primary: 76,
    answers_before_reading_back: 0,
    never_writes_an_anchor: 0,
}
"""Faults that random walks find, with the first seed that does; if it finds nothing any more,
others are tried."""
FAULTS_OF_RUNNING_MEMBERS: dict[Patch, tuple[Limits, int]] = {
    deletes_claims_that_others_wait_for: (LIMITS, 485),
    takes_what_cannot_be_read_for_given_up: (DAMAGED, 18),
    trusts_its_claim_though_a_later_one_cannot_be_read: (DAMAGED, 21),
    drops_a_claim_before_all_have_read_that_it_cannot_be: (DAMAGED, 33),
    forgets_facts_that_were_not_written: (FAILING, 4),
    answers_a_commit_when_it_begins: (FAILING, 0),
    does_not_wait_after_a_lost_log: (LOST, 392),
    delivers_on_without_the_lost_log: (LOST, 21),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    ways = (walk(LIMITS, LENGTH, seed) for seed in seeds(2_000, FAULTS[fault]))
    assert is_found(any(isinstance(found, Broken) for found in ways))


@pytest.mark.parametrize(
    "fault",
    [
        starts_from_the_primary_alone,
        commits_what_is_in_flight,
        commits_for_all_hashes,
        commits_the_front,
        answers_before_reading_back,
        forgets_facts_that_were_not_written,
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_fault_is_found_by_every_interleaving(
    fault: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without luck: these need few steps once members run."""
    fault(monkeypatch)
    limits = Limits(processes=3, lost_logs=1, failures=1)
    assert is_found(isinstance(explore(limits, 6, running=True)[1], Broken))


def test_that_a_suspended_member_trusts_its_claim_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks_not_anew_after_a_lapse(monkeypatch)
    start = suspended_world()
    ways = (walk(PARTS, LENGTH, seed, start, slow="m0") for seed in seeds(2_000, 38))
    assert is_found(any(isinstance(found, Broken) for found in ways))


@pytest.mark.parametrize("fault", FAULTS_OF_RUNNING_MEMBERS, ids=lambda fault: fault.__name__)
def test_a_fault_of_running_members_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    (limits, known), start = FAULTS_OF_RUNNING_MEMBERS[fault], first_world(running=True)
    ways = (walk(limits, 60, seed, start, slow="m0") for seed in seeds(6_000, known))
    assert is_found(any(isinstance(found, Broken) for found in ways))


def test_that_who_waits_for_what_was_deleted_waits_for_ever_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Placement, "is_passed", lambda *_: False)
    start = first_world(running=True)
    ways = (walk(VANISHED, LENGTH, seed, start, ends=True) for seed in seeds(200, 3))
    assert is_found(any(isinstance(found, Broken) for found in ways))


def test_that_an_owner_hears_of_what_it_does_not_wait_for_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One walk of 10,000 does, and this is one: the failure of a reset that another has written."""
    seed = 2_001_887
    assert walk(FAILING, LENGTH, seed) is None
    monkeypatch.setattr(Ownership, "waits_for", lambda *_: True)
    assert is_found(isinstance(walk(FAILING, LENGTH, seed), Broken))
