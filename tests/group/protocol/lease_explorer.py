"""The explorer of leases: every interleaving of a small world up to a depth, and random deep ones.

``python -m tests.group.protocol.lease_explorer DEPTH WALKS`` prints how many states it has seen.
"""

import random
import sys
from collections import Counter

from tests.group.protocol.interleavings import Broken, interleavings
from tests.group.protocol.lease_world import (
    LeaseLimits,
    LeaseWorld,
    finish,
    lease_steps,
    take_lease,
)
from tests.group.protocol.world import LawBrokenError, Step

DEEP = LeaseLimits(processes=4, commits=6, in_flight=2, deaths=3, compactions=3, failures=3)


def new_world(*, by_epochs: bool, members: int = 2, records: int = 4) -> LeaseWorld:
    """A world of some processes that have started, with nothing leased."""
    world = LeaseWorld((5,) * records, by_epochs=by_epochs)
    for _ in range(members):
        take_lease(world, ("start", ""))
    limits = LeaseLimits(members, 0, 0, 0, 0, 0)
    for _ in range(20):
        for verb in ("sync", "read", "act"):
            for step in [s for s in lease_steps(world, limits) if s[0] == verb]:
                take_lease(world, step)
    return world


def explore(limits: LeaseLimits, depth: int, *, by_epochs: bool) -> tuple[int, Broken | None]:
    """Take every step in every order, up to a depth.

    Returns:
        The number of states that were seen, and the shortest way to a broken law if there is one.
    """
    seen = list[LeaseWorld]()
    broken = interleavings(
        [new_world(by_epochs=by_epochs)],
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


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
