"""The laws of a group that keeps no log: walks, and faults that must be found."""

from collections import Counter
from collections.abc import Callable

import pytest

from kshare.group.core.member import GroupMember
from kshare.group.core.right import Liveness
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.owners.owner import Owner
from kshare.group.protocol.owners.plain_owner import OffsetOwner, PlainOwner
from tests.group.protocol import member_world
from tests.group.protocol.member_explorer import finish_group
from tests.group.protocol.member_world import GroupLimits
from tests.group.protocol.unlogged_world import new_unlogged, walk_unlogged
from tests.support.effort import walks
from tests.support.shown import is_found, no_law_is_broken

pytestmark = pytest.mark.deep

LIMITS = GroupLimits(
    processes=5, drops=3, commits=4, in_flight=2, failures=2, late_beats=True, compactions=0
)
LENGTH = 300
Patch = Callable[[pytest.MonkeyPatch], None]


def test_random_walks() -> None:
    events = Counter[str]()
    no_law_is_broken(lambda seed: walk_unlogged(LIMITS, LENGTH, seed, events), walks(60))
    assert min(events[what] for what in ("handover", "drop", "crash", "commit", "fail")) > 0


def test_all_is_processed_and_committed() -> None:
    world = new_unlogged(3)
    finish_group(world)
    assert world.acknowledged == set(range(len(world.keys)))
    assert world.primary is not None
    assert (world.primary.offset, world.primary.anchor) == (len(world.keys), None)


# -- faults that must be found ---------------------------------------------------------------------


def trusts_itself(patch: pytest.MonkeyPatch) -> None:
    """It delivers though its last heartbeat was answered longer than a session ago."""
    patch.setattr(Liveness, "seconds_to_deliver", lambda *_: 1.0)


def commits_the_front(patch: pytest.MonkeyPatch) -> None:
    def stable(self: OffsetOwner, log: PartitionLog) -> int:
        return self.done.stable + 1

    patch.setattr(PlainOwner, "stable", stable)
    commit = PlainOwner._commit

    def commits(self: PlainOwner, log: PartitionLog, what: object) -> object:
        if not getattr(what, "is_primary_written", False):
            what.done = what.done.advance(what.done.stable + 1)  # type: ignore[attr-defined]
        return commit(self, log, what)  # type: ignore[arg-type]

    patch.setattr(PlainOwner, "_commit", commits)


def commits_though_it_is_no_member(patch: pytest.MonkeyPatch) -> None:
    """As a standalone one, of which the coordinator asks nothing."""
    patch.setattr(GroupMember, "committable", lambda _, partitions: set(partitions))
    patch.setattr(member_world, "takes_offsets", lambda *_: True)


def counts_on_the_log(patch: pytest.MonkeyPatch) -> None:
    """An offset that it may not commit, as it is no member, counts as committed."""
    patch.setattr(PlainOwner, "dropped", Owner.primary_written)


FAULTS: tuple[Patch, ...] = (
    trusts_itself,
    commits_the_front,
    commits_though_it_is_no_member,
    counts_on_the_log,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert is_found(any(walk_unlogged(LIMITS, LENGTH, seed) for seed in range(1_000)))
