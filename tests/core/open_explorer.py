"""The explorer of open batches: every interleaving of a small world, and random deep walks.

``python -m tests.core.open_explorer DEPTH WALKS`` prints how many states it has seen.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from kshare.core.hashing import HASH_SPACE
from tests.core.open_world import OpenWorld, WorldLimits, finish, steps, take
from tests.group.protocol.interleavings import Broken, interleavings
from tests.group.protocol.world import LawBrokenError
from tests.group.protocol.world import Step as Happens

LOW, HIGH = 5, HASH_SPACE - 5
KEYS = (LOW, HIGH, LOW, HIGH, 7, LOW, HIGH)
"""Three keys; two of them in one half."""
DEEP = WorldLimits(drivers=4, deaths=5, compactions=3, lost=3)
PARKING = replace(DEEP, parks=1)
EARLY = replace(PARKING, abandons=3)
"""Sinks take a few rows of a task, and no more."""
HASTY = replace(PARKING, early=3)
"""Planners seal a batch that runs."""
LENGTH = 150


def new_world(records: int = len(KEYS)) -> OpenWorld:
    """A world in which nothing has begun."""
    return OpenWorld(KEYS[:records])


def running_world(records: int = 3) -> OpenWorld:
    """A world with a driver that runs its first batch, whose two tasks have looked."""
    world = new_world(records)
    take(world, ("start", ""))
    for _ in range(4):
        take(world, ("go", "d0"))
    for number in range(2):
        take(world, (f"launch {number}", "d0"))
        take(world, ("task", f"a{number}"))
    return world


def ended_world(records: int = 3) -> OpenWorld:
    """A world whose tasks have handed over a record each, and have one driver and no time left."""
    world = running_world(records)
    for name in ("a0", "a1"):
        take(world, ("task", name))
        take(world, ("time", name))
    return world


def explore(limits: WorldLimits, depth: int, start: OpenWorld) -> tuple[int, Broken | None]:
    """Take every step in every order, up to a depth; from each state all comes to its end.

    Returns:
        The number of states, and the shortest way to a broken law if there is one.
    """
    seen = list[OpenWorld]()
    broken = interleavings([start], depth, lambda w: steps(w, limits), take, seen.append)
    return len(seen), broken or _first_stuck(seen)


def _first_stuck(seen: Sequence[OpenWorld]) -> Broken | None:
    """A state from which not all comes to its end; one of each hundred is tried."""
    for world in seen[::100]:
        try:
            finish(world.clone())
        except LawBrokenError as error:
            return Broken((), str(error))
    return None


def walk(limits: WorldLimits, seed: int, length: int = LENGTH) -> Broken | None:
    """One random way through the world, after which everything has to come to its end."""
    draw = random.Random(seed)

    def choose(possible: list[Happens]) -> Happens:
        return draw.choices(possible, _weights(possible))[0]

    return follow(limits, choose, length)


def follow(
    limits: WorldLimits, choose: Callable[[list[Happens]], Happens | None], length: int
) -> Broken | None:
    """One way through the world, and its end.

    Args:
        limits: How much may happen.
        choose: The next step of those that are possible; None ends the way.
        length: Maximum number of steps.
    """
    world, trace = new_world(), list[Happens]()
    try:
        for _ in range(length):
            possible = [*steps(world, limits)]
            step = choose(possible) if possible else None
            if step is None:
                break
            trace.append(step)
            take(world, step)
            if world.is_done:
                break
        finish(world)
    except LawBrokenError as error:
        return Broken(tuple(trace), str(error))
    return None


_WEIGHTS = {
    "kill": 0.05,
    "die": 0.1,
    "lose": 0.3,
    "compact": 0.3,
    "time": 0.4,
    "abandon": 0.1,
    "seal": 0.3,
}


def _weights(possible: Sequence[Happens]) -> list[float]:
    return [_WEIGHTS.get(what.partition(" ")[0], 1.0) for what, _ in possible]


def main(depth: int, walks: int) -> None:
    """Explore, and print what was found."""
    for name, start in (("new", new_world(3)), ("run", running_world()), ("end", ended_world())):
        for limits in (WorldLimits(), WorldLimits(parks=1, abandons=1)):
            states, broken = explore(limits, depth, start)
            print(f"{name}, depth {depth}, {limits}: {states} states, {broken or 'all laws hold'}")
    for limits in (DEEP, PARKING, EARLY, HASTY):
        found = [(seed, b) for seed in range(walks) if (b := walk(limits, seed))]
        print(f"{walks} random walks, {limits}: {len(found)} break a law", *found[:1])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
