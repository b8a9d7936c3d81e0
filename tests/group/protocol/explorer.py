"""The explorer: every interleaving of a small world up to a depth, and random deep ones.

``python -m tests.group.protocol.explorer DEPTH WALKS`` prints how many states it has seen.
"""

import random
import sys
from dataclasses import dataclass

from tests.group.protocol.world import (
    HALVES,
    LawBrokenError,
    Limits,
    Step,
    World,
    steps,
    take,
)


@dataclass(frozen=True)
class Broken:
    """A way to a state in which a law does not hold."""

    trace: tuple[Step, ...]
    law: str


def new_world(records: int = 4) -> World:
    """Two processes, a half of the hash space each; the records' keys in turn."""
    keys = tuple(HALVES[i % 2].lo + 5 for i in range(records))
    world = World(keys)
    for half in HALVES:
        world.start((half,))
    return world


def explore(limits: Limits, depth: int, *, records: int = 4) -> tuple[int, Broken | None]:
    """Take every step in every order, up to a depth.

    Returns:
        The number of states that were seen, and the shortest way to a broken law if there is one.
    """
    world = new_world(records)
    seen = {world.fingerprint()}
    border: list[tuple[World, tuple[Step, ...]]] = [(world, ())]
    for _ in range(depth):
        following: list[tuple[World, tuple[Step, ...]]] = []
        for world, trace in border:
            for step in steps(world, limits):
                after = world.clone()
                try:
                    take(after, step)
                except LawBrokenError as error:
                    return len(seen), Broken((*trace, step), str(error))
                mark = after.fingerprint()
                if mark not in seen:
                    seen.add(mark)
                    following.append((after, (*trace, step)))
        border = following
        if not border:
            break
    return len(seen), None


def walk(limits: Limits, length: int, seed: int, *, records: int = 4) -> Broken | None:
    """One random way through the world."""
    draw = random.Random(seed)
    world, trace = new_world(records), []
    for _ in range(length):
        possible = list(steps(world, limits))
        if not possible:
            break
        step = draw.choice(possible)
        trace.append(step)
        try:
            take(world, step)
        except LawBrokenError as error:
            return Broken(tuple(trace), str(error))
    return None


def main(depth: int, walks: int) -> None:
    """Explore, and print what was found."""
    states, broken = explore(Limits(processes=3), depth)
    print(f"depth {depth}: {states} states, {broken or 'all laws hold'}")
    limits = Limits(processes=4, commits=3, in_flight=2, compactions=3)
    found = [seed for seed in range(walks) if walk(limits, 200, seed)]
    print(f"{walks} random walks of 200 steps: {len(found)} break a law {found[:5]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
