"""The explorer of leases: every interleaving of a small world up to a depth, and random deep ones.

``python -m tests.group.protocol.lease_explorer DEPTH WALKS`` prints how many states it has seen.
"""

import random
import sys
from collections import Counter
from dataclasses import replace

from tests.group.protocol.interleavings import Broken, interleavings
from tests.group.protocol.lease_world import (
    LeaseLimits,
    LeaseWorld,
    finish,
    lease_steps,
    sharer,
    take_lease,
)
from tests.group.protocol.world import LawBrokenError, Step

DEEP = LeaseLimits(processes=4, commits=6, in_flight=2, deaths=3, compactions=3, failures=3)
LATE = replace(DEEP, expiries=3)
"""Leases of members that live end, too; for worlds that keep late work."""


def new_world(
    *, by_epochs: bool, members: int = 2, records: int = 4, keeps_late: bool = False
) -> LeaseWorld:
    """A world of some processes that have started, with nothing leased."""
    world = LeaseWorld((5,) * records, by_epochs=by_epochs, keeps_late=keeps_late)
    for _ in range(members):
        take_lease(world, ("start", ""))
    _go_on(world, members)
    return world


def _go_on(world: LeaseWorld, members: int) -> None:
    """Let all read and write what there is, and take nothing."""
    limits = LeaseLimits(members, 0, 0, 0, 0, 0)
    for _ in range(20):
        for verb in ("sync", "read", "act"):
            for step in [s for s in lease_steps(world, limits) if s[0] == verb]:
                take_lease(world, step)


def new_leased_world(*, by_epochs: bool) -> LeaseWorld:
    """A world in which two members have leased what they may, and handed out a record each."""
    world = new_world(by_epochs=by_epochs, records=8)
    for name in ("m0", "m1"):
        take_lease(world, ("want", name))
        _go_on(world, 2)
        take_lease(world, ("deliver", name))
    return world


def new_late_world(*, by_epochs: bool, ends: str = "expire") -> LeaseWorld:
    """A world in which the first member has two records in work of a lease that has ended.

    Args:
        by_epochs: Whether a coordinator tells who is dead.
        ends: How it ended: "expire", or "renew" as others may have taken the member for dead.
    """
    world = new_world(by_epochs=by_epochs, records=8, keeps_late=True)
    take_lease(world, ("want", "m0"))
    _go_on(world, 2)
    for _ in range(2):
        take_lease(world, ("deliver", "m0"))
    if ends == "renew":
        take_lease(world, ("drop", "m0"))
    take_lease(world, (ends, "m0"))
    _go_on(world, 2)
    assert len(sharer(world.processes["m0"]).late) == 1
    return world


def explore(
    limits: LeaseLimits, depth: int, *, by_epochs: bool, start: LeaseWorld | None = None
) -> tuple[int, Broken | None]:
    """Take every step in every order, up to a depth.

    Args:
        limits: How much may happen.
        depth: Number of steps.
        by_epochs: Whether a coordinator tells who is dead.
        start: Where it begins; None: a new world.

    Returns:
        The number of states that were seen, and the shortest way to a broken law if there is one.
    """
    seen = list[LeaseWorld]()
    broken = interleavings(
        [start or new_world(by_epochs=by_epochs)],
        depth,
        lambda world: lease_steps(world, limits),
        take_lease,
        seen.append,
    )
    return len(seen), broken


def walk(
    limits: LeaseLimits,
    length: int,
    seed: int,
    start: LeaseWorld,
    events: Counter[str] | None = None,
) -> Broken | None:
    """One random way through the world, after which everything has to come to its end.

    Args:
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        start: Where it begins; it stays as it is.
        events: Counts what has happened.
    """
    world, draw, trace = start.clone(), random.Random(seed), list[Step]()
    broken: str | None = None
    try:
        for _ in range(length):
            possible = lease_steps(world, limits)
            if not possible:
                break
            trace.append(draw.choice(possible))
            take_lease(world, trace[-1])
        finish(world)
    except LawBrokenError as error:
        broken = str(error)
    if events is not None:
        events.update(what.partition(" ")[0] for what, _ in trace)
    return None if broken is None else Broken(tuple(trace), broken)


def main(depth: int, walks: int) -> None:
    """Explore, and print what was found."""
    for by_epochs in (True, False):
        how = "by epochs" if by_epochs else "by silence"
        states, broken = explore(LeaseLimits(), depth, by_epochs=by_epochs)
        print(f"{how}, depth {depth}: {states} states, {broken or 'all laws hold'}")
        start = new_world(by_epochs=by_epochs, records=8)
        found = [seed for seed in range(walks) if walk(DEEP, 150, seed, start)]
        print(f"{how}, {walks} random walks of 150 steps: {len(found)} break a law {found[:5]}")
        late = new_late_world(by_epochs=by_epochs)
        found = [seed for seed in range(walks) if walk(LATE, 150, seed, late)]
        print(f"{how}, with late work: {len(found)} break a law {found[:5]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
