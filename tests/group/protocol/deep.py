"""Many random ways through the small worlds: ``python -m tests.group.protocol.deep``.

With arguments: how many of each world (10^6 if none is given), and the first seed. ``make test``
takes a few hundred; this takes as many as asked for, on all cores, and prints each minute how many
there were and how many broke a law. ``--seconds`` ends it earlier; the next seed is then the first
one plus the walks.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

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

AT_ONCE = 100
SHOW_SECONDS = 60.0


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


def broken(world: Callable[[int], object], seeds: range) -> list[str]:
    """What breaks a law."""
    ways = ((seed, world(seed)) for seed in seeds)
    return [f"seed {seed}: {way}" for seed, way in ways if way is not None]


@dataclass
class Count:
    """Walks through one world, and those that broke a law."""

    walks: int = 0
    faults: list[str] = field(default_factory=list)


def batches(first: int, walks: int) -> Iterator[range]:
    """Seeds, some hundred at a time."""
    for begin in range(first, first + walks, AT_ONCE):
        yield range(begin, min(begin + AT_ONCE, first + walks))


def take_walks(
    counts: dict[str, Count], walks: int, first: int, processes: int, seconds: float
) -> Iterator[None]:
    """Take walks through each world, some hundred of each at a time, and count them."""
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        run: Callable[..., Iterable[list[str]]] = map
        if processes > 1:
            run = stack.enter_context(ProcessPoolExecutor(processes)).map
        for seeds in batches(first, walks):
            for world in WORLDS:
                if time.monotonic() > until:
                    return
                # each process takes its part
                parts = [seeds[number::processes] for number in range(processes)]
                count = counts[world.__name__]
                for faults in run(broken, [world] * processes, parts):
                    count.faults += faults
                count.walks += len(seeds)
            yield


def main(arguments: list[str]) -> None:
    """Take the walks, and print how many there were and what was found."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("walks", type=int, nargs="?", default=1_000_000, help="of each world")
    parser.add_argument("first", type=int, nargs="?", default=1_000_000, help="first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    asked = parser.parse_args(arguments)
    began = shown = time.monotonic()
    counts = {world.__name__: Count() for world in WORLDS}

    def show() -> None:
        each = (f"{name} {c.walks:,} walks, {len(c.faults)} broken" for name, c in counts.items())
        print(f"{time.monotonic() - began:.0f} s: {'; '.join(each)}", flush=True)

    for _ in take_walks(counts, asked.walks, asked.first, asked.processes, asked.seconds):
        if time.monotonic() - shown > SHOW_SECONDS:
            shown = time.monotonic()
            show()
    show()
    for name, count in counts.items():
        for fault in count.faults[:5]:
            print(f"  {name}: {fault}")
    total = sum(count.walks for count in counts.values())
    print(f"{total:,} walks, {sum(len(count.faults) for count in counts.values())} broke a law")


if __name__ == "__main__":
    main(sys.argv[1:])
