"""Many random ways through the small worlds: ``python -m tests.group.protocol.deep``.

With arguments: how many of each world, and the first seed. ``make test`` takes a few hundred; this
takes as many as asked for, on all cores, and prints how many there were and what broke a law.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.group.protocol import (
    explorer,
    lease_explorer,
    member_world,
    test_explorer,
    test_lease_explorer,
    test_membership_explorer,
    test_transactions,
    transactional_explorer,
)

AT_ONCE = 500


def standalone(seed: int) -> object:
    return explorer.walk(test_explorer.FAILING, test_explorer.LENGTH, seed, running=seed % 2 == 0)


def transactions(seed: int) -> object:
    return transactional_explorer.walk(test_transactions.LIMITS, test_transactions.LENGTH, seed)


def membership(seed: int) -> object:
    limits, length = test_membership_explorer.LIMITS, test_membership_explorer.LENGTH
    return member_world.walk_group(limits, length, seed, members=2 + seed % 2, settled=seed % 4 < 2)


def leases(seed: int) -> object:
    limits, length = lease_explorer.DEEP, test_lease_explorer.LENGTH
    return lease_explorer.walk(limits, length, seed, by_epochs=seed % 2 == 0)


WORLDS: tuple[Callable[[int], object], ...] = (standalone, transactions, membership, leases)


def broken(world: Callable[[int], object], seeds: tuple[int, ...]) -> list[str]:
    """What breaks a law."""
    ways = ((seed, world(seed)) for seed in seeds)
    return [f"seed {seed}: {way}" for seed, way in ways if way is not None]


def batches(first: int, walks: int) -> list[tuple[int, ...]]:
    """Seeds, some hundred at a time."""
    ends = range(first, first + walks, AT_ONCE)
    return [tuple(range(begin, min(begin + AT_ONCE, first + walks))) for begin in ends]


def main(walks: int = 10_000, first: int = 1_000_000) -> None:
    """Take the walks, and print what was found."""
    with ProcessPoolExecutor() as pool:
        for world in WORLDS:
            began, faults = time.monotonic(), list[str]()
            seeds = batches(first, walks)
            for found in pool.map(broken, [world] * len(seeds), seeds):
                faults += found
            seconds = time.monotonic() - began
            print(f"{world.__name__}: {walks} walks in {seconds:.0f} s, {len(faults)} broken")
            for fault in faults[:5]:
                print(f"  {fault}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
