"""The laws of leases: interleavings, random walks, seeded faults."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kshare.core.offsets import Bounds
from kshare.group.protocol import cooperator
from kshare.group.protocol.actions import Append
from kshare.group.protocol.cooperator import Cooperator
from kshare.group.protocol.lease import counts
from kshare.group.protocol.log import LeaseKey, PartitionLog
from kshare.group.protocol.records import Key, Record, Stable, key_of
from tests.group.protocol import world
from tests.group.protocol.lease_explorer import DEEP, explore, new_world, walk
from tests.group.protocol.lease_world import LeaseLimits, finish

LENGTH = 120
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("by_epochs", [True, False])
def test_every_interleaving(by_epochs: bool) -> None:
    states, broken = explore(LeaseLimits(), 4, by_epochs=by_epochs)
    assert not broken
    assert states > 1_000


@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks(by_epochs: bool) -> None:
    start = new_world(by_epochs=by_epochs, records=8)
    for seed in range(20):
        assert walk(DEEP, LENGTH, seed, start) is None, f"seed {seed}"


@pytest.mark.parametrize("by_epochs", [True, False])
def test_random_walks_with_a_lost_log(by_epochs: bool) -> None:
    limits, start = replace(DEEP, lost_logs=1), new_world(by_epochs=by_epochs, records=8)
    for seed in range(20):
        assert walk(limits, LENGTH, seed, start) is None, f"seed {seed}"


@pytest.mark.parametrize("members", [1, 2, 3])
def test_members_share_all_there_is(members: int) -> None:
    world = new_world(by_epochs=True, members=members, records=9)
    finish(world)
    assert len(world.delivered) == 9
    assert all(len(names) == 1 for names in world.delivered.values())
    if members > 1:
        assert len(set(world.delivered.values())) > 1


# -- seeded faults ---------------------------------------------------------------------------------


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
    patch.setattr(Cooperator, "_is_dead", lambda self, name, _: name != self.member)


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

    def broken(self: Cooperator, log: PartitionLog) -> Iterator[Append]:
        yield from cooperate(self, Mine(log, self))  # type: ignore[arg-type]

    patch.setattr(Cooperator, "_cooperate", broken)


def reuse_a_number(patch: pytest.MonkeyPatch) -> None:
    def broken(self: Cooperator, key: Key) -> None:
        self._appended.discard(key)
        self._looked_at = None
        if key.kind == "lease" and key.detail == (self.member, self._asked):
            self._asked = None
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
    assert any(walk(DEEP, LENGTH, seed, start) for seed in range(60))


def one_stable_offset_for_all(patch: pytest.MonkeyPatch) -> None:
    """What a former lead writes late replaces what its successor has written."""

    def key(record: Record) -> Key:
        found = key_of(record)
        return found._replace(detail=()) if isinstance(record, Stable) else found

    patch.setattr(world, "key_of", key)


@pytest.mark.parametrize("seed", [2_001_203, 2_006_456])
def test_a_former_lead_that_writes_late_is_found(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One walk of 5,000 does: these are two that did."""
    start = new_world(by_epochs=seed % 2 == 0, records=8)
    assert walk(DEEP, LENGTH, seed, start) is None
    one_stable_offset_for_all(monkeypatch)
    assert walk(DEEP, LENGTH, seed, start) is not None
