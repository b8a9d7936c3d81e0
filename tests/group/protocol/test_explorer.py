"""The laws of GROUP.md in a small world: all interleavings to a depth, random walks, seeded faults.

Run ``python -m tests.group.protocol.explorer`` for deeper ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from kshare.core.hashing import WHOLE, HashRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.protocol import commit, log, owner, start
from kshare.group.protocol.owner import Delete, Owner
from kshare.group.protocol.records import Key, Stable
from tests.group.protocol import world as world_module
from tests.group.protocol.explorer import Broken, explore, walk
from tests.group.protocol.world import Limits

WALKS, LENGTH = 200, 160
LIMITS = Limits(processes=4, commits=3, in_flight=2, compactions=2)
Patch = Callable[[pytest.MonkeyPatch], None]


def test_every_interleaving_to_a_depth() -> None:
    states, broken = explore(Limits(processes=3), 8)
    assert broken is None
    assert states > 1_500


def test_random_walks() -> None:
    for seed in range(WALKS):
        assert walk(LIMITS, LENGTH, seed) is None, f"seed {seed}"


# -- faults that must be found ---------------------------------------------------------------------


def does_not_wait_for_former_owners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "is_alone", lambda *_: True)


def does_not_fence_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log.PartitionLog, "is_fenced", lambda self, member: member not in self.claims)


def delivers_without_reading_the_log(patch: pytest.MonkeyPatch) -> None:
    """No self-fencing by time: a paused process goes on."""
    happen = world_module._happen

    def paused(world: world_module.World, process: world_module.Process, what: str) -> None:
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

    def too_much(world: world_module.World, process: world_module.Process) -> Iterator[Rectangle]:
        return processed(world, replace(process, in_flight=[]))

    patch.setattr(world_module, "processed", too_much)


def commits_for_all_hashes(patch: pytest.MonkeyPatch) -> None:
    real = world_module.processed

    def too_much(world: world_module.World, process: world_module.Process) -> Iterator[Rectangle]:
        return (replace(piece, hashes=WHOLE) for piece in real(world, process))

    patch.setattr(world_module, "processed", too_much)
    patch.setattr(commit, "_wanted", partial(_of_all, commit._wanted))


def _of_all(
    real: Callable[..., object], member: str, _: object, done: Progress, stable: int
) -> object:
    return real(member, (WHOLE,), done, stable)


def commits_the_front(patch: pytest.MonkeyPatch) -> None:
    """Stable by the maximum."""

    def front(at: object, said: log.PartitionLog, primary: int) -> Stable | None:
        reached = said.progress(primary).front
        if said.stable is not None and reached <= said.stable.offset:
            return None
        return Stable(world_module.T0, said.incarnation, reached)

    patch.setattr(owner, "stable_to_write", front)


def deletes_before_reading_back(patch: pytest.MonkeyPatch) -> None:
    """Its own blocks go as soon as the next ones are on their way."""
    real = Owner._commit

    def hasty(self: Owner, said: log.PartitionLog, under_way: owner.Commit) -> object:
        facts = under_way.facts
        actions = real(self, said, under_way)
        if facts:
            keys = [Key(said.incarnation, "block", self.partition, key) for key in said.blocks]
            mine = tuple(key for key in keys if key.detail[0] == self.member)
            return (Delete(mine), *actions) if mine else actions
        return actions

    patch.setattr(Owner, "_commit", hasty)


def deletes_what_living_members_write(patch: pytest.MonkeyPatch) -> None:
    real = commit.keys_to_delete

    def greedy(
        at: TopicPartition,
        said: log.PartitionLog,
        member: str,
        owned: tuple[HashRange, ...],
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
        self._seen = (said.incarnation, said.has_facts)
        return real(self, said)

    patch.setattr(Owner, "_start", old)


def answers_before_reading_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Owner, "_is_written", lambda *_: True)


def never_writes_an_anchor(patch: pytest.MonkeyPatch) -> None:
    real = start.resolve_start
    patch.setattr(owner, "resolve_start", lambda *a, **k: replace(real(*a, **k), unanchored=False))


FAULTS: tuple[Patch, ...] = (
    does_not_wait_for_former_owners,
    does_not_fence_itself,
    delivers_without_reading_the_log,
    starts_from_the_primary_alone,
    commits_what_is_in_flight,
    commits_for_all_hashes,
    commits_the_front,
    deletes_before_reading_back,
    deletes_what_living_members_write,
    deletes_inherited_blocks_at_once,
    judges_by_an_old_primary,
    answers_before_reading_back,
    never_writes_an_anchor,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert any(isinstance(walk(LIMITS, LENGTH, seed), Broken) for seed in range(2_000))
