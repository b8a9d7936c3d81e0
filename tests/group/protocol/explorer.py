"""The explorer: every interleaving of a small world up to a depth, and random deep ones.

``python -m tests.group.protocol.explorer DEPTH WALKS`` prints how many states it has seen.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kshare.core.hashing import KeyRanges
from kshare.group.protocol.owners.owner import Phase
from tests.group.protocol.interleavings import Broken, interleavings
from tests.group.protocol.world import (
    HALVES,
    LawBrokenError,
    Limits,
    Step,
    World,
    steps,
    take,
)


def new_world(records: int = 4) -> World:
    """Two processes, a half of the hash space each; the records' keys in turn."""
    keys = tuple(HALVES[i % 2].lo + 5 for i in range(records))
    world = World(keys)
    for half in HALVES:
        world.start(KeyRanges([half]))
    return world


@dataclass
class Reached:
    """In how many states it was so that a record was delivered, a commit promised, and so on."""

    states: int = 0
    delivered: int = 0
    promised: int = 0
    crashed: int = 0
    lost: int = 0

    def add(self, world: World) -> None:
        """Count a state."""
        self.states += 1
        in_flight = any(process.in_flight for process in world.processes.values())
        self.delivered += in_flight or bool(world.acknowledged)
        self.promised += bool(world.promised)
        self.crashed += world.started > len(world.processes)
        self.lost += world.lost_logs > 0


def explore(
    limits: Limits, depth: int, *, records: int = 4, running: bool = False
) -> tuple[Reached, Broken | None]:
    """Take every step in every order, up to a depth.

    Args:
        limits: How much may happen.
        depth: Maximum number of steps.
        records: Number of records in the partition.
        running: Begin when all members run: nobody delivers before that.

    Returns:
        The states that were seen, and the shortest way to a broken law if there is one.
    """
    reached, start = Reached(), first_world(records=records, running=running)
    broken = interleavings([start], depth, lambda world: steps(world, limits), take, reached.add)
    return reached, broken


def random_steps(
    world: World, limits: Limits, length: int, seed: int, slow: str | None = None
) -> Iterator[Step]:
    """A random step of those that are possible, again and again; the caller takes it.

    Args:
        world: The world.
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        slow: A process that does little meanwhile. Where others leave, it is suspended until they
            have, and the log's cleaner has come since.
    """
    draw = random.Random(seed)
    for _ in range(length):
        possible = steps(world, limits)
        if slow is not None and limits.leaves and not world.cleaned_after:
            possible = [step for step in possible if step[1] != slow] or possible
        if not possible:
            break
        if slow is not None and slow in world.processes and world.processes[slow].in_flight:
            weights = [0.03 if name == slow else 1 for _, name in possible]
            (step,) = draw.choices(possible, weights)
            yield step
        else:
            yield draw.choice(possible)


def finish(world: World, until: int | None = None, *, without: str | None = None) -> None:
    """Let no more go wrong: everyone reads, acts, waits and processes all there is, and commits.

    Args:
        world: The world.
        until: No record from this offset on is handed out; None for all.
        without: A process that is suspended meanwhile.
    """
    limits = Limits(processes=0, commits=1_000, in_flight=1_000, crashes=0, compactions=0)
    for _ in range(20):
        is_done = True
        for verb in ("read", "act", "wait", "deliver", "acknowledge", "commit"):
            if until is not None and verb in {"deliver", "acknowledge", "commit"}:
                continue
            for step in steps(world, limits):
                if step[0].split()[0] == verb and step[1] != without:
                    take(world, step)
                    is_done = False
        if is_done:  # nothing has changed, and nothing will
            return


def first_world(*, records: int = 4, running: bool = False) -> World:
    """Where a walk begins: with members that have just started, or that run."""
    world = new_world(records)
    if running:
        finish(world, until=0)
    return world


def suspended_world() -> World:
    """A member is suspended while it has a record in hand, and another takes a part of its keys."""
    world = first_world(running=True)
    take(world, ("deliver", "m0"))
    take(world, ("take a part", "m0"))
    return world


def walk(
    limits: Limits,
    length: int,
    seed: int,
    start: World | None = None,
    *,
    slow: str | None = None,
    events: Counter[str] | None = None,
    ends: bool = False,
) -> Broken | None:
    """One random way through the world.

    Args:
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        start: Where it begins; it stays as it is. None for members that have just started.
        slow: A process that does little while it has a record in hand.
        events: Counts what has happened.
        ends: Whether everything has to come to its end then.
    """
    world, trace = first_world() if start is None else start.clone(), list[Step]()
    broken: str | None = None
    for step in random_steps(world, limits, length, seed, slow):
        trace.append(step)
        try:
            take(world, step)
        except LawBrokenError as error:
            broken = str(error)
            break
    if ends and broken is None:
        try:
            finish(world)
            check_that_nobody_waits(world)
        except LawBrokenError as error:
            broken = str(error)
    if events is not None:
        events.update(what.partition(" ")[0] for what, _ in trace)
    return None if broken is None else Broken(tuple(trace), broken)


def check_that_nobody_waits(world: World) -> None:
    """All delivers and is committed, or is fenced, once nothing more goes wrong.

    Raises:
        LawBrokenError: A member waits for ever.
    """
    for process in world.processes.values():
        phase, asked = process.owner.phase, process.asked
        if phase not in {Phase.RUNNING, Phase.FENCED}:
            raise LawBrokenError(f"{process.name} waits for ever: {phase.value}")
        if asked is not None and phase is Phase.RUNNING:
            raise LawBrokenError(f"a commit of {process.name} waits for ever")


def main(depth: int, walks: int) -> None:
    """Explore, and print what was found."""
    for running in (False, True):
        reached, broken = explore(Limits(processes=3, lost_logs=1), depth, running=running)
        print(f"depth {depth}: {reached}, {broken or 'all laws hold'}")
    for lost_logs in (0, 1):
        limits = Limits(processes=4, commits=3, in_flight=2, compactions=3, lost_logs=lost_logs)
        found = [seed for seed in range(walks) if walk(limits, 200, seed)]
        print(
            f"{walks} random walks of 200 steps, {lost_logs} lost logs: {len(found)} break a law "
            f"{found[:5]}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
