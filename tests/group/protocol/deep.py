"""Many random ways through the small worlds: ``python -m tests.group.protocol.deep``.

With arguments: how many of each world (10^6 if none is given), and the first seed. ``make
test-all`` takes a few hundred; this takes as many as asked for, on all cores, and prints each
minute how many there were, how fast, what has happened in them, and how many broke a law.
``--state FILE`` keeps the counts in a file, in which a later run finds where to go on.
``--seconds`` ends it earlier. ``--worlds`` names those to walk through.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

from tests.group.protocol import (
    explorer,
    grouped_explorer,
    lease_explorer,
    member_explorer,
    test_explorer,
    test_grouped_transactions,
    test_lease_explorer,
    test_membership_explorer,
    test_transactions,
    transactional_explorer,
)

AT_ONCE = 250
SHOW_SECONDS = 60.0

# Where walks begin: made once, and copied by each walk.
_running_world = cache(explorer.first_world)
_first_group = cache(member_explorer.first_group)
_first_transactions = cache(transactional_explorer.first_world)
_first_leases = cache(lease_explorer.new_world)
_first_grouped = cache(grouped_explorer.first_grouped)


def standalone(seed: int, events: Counter[str] | None = None) -> object:
    limits, length, runs = test_explorer.FAILING, test_explorer.LENGTH, seed % 2 == 0
    start, slow = _running_world(running=runs), "m0" if runs else None
    return explorer.walk(limits, length, seed, start, slow=slow, events=events)


def transactions(seed: int, events: Counter[str] | None = None) -> object:
    limits, length = test_transactions.LIMITS, test_transactions.LENGTH
    start = _first_transactions(**transactional_explorer.chosen_by(seed))
    return transactional_explorer.walk(limits, length, seed, start, events)


def membership(seed: int, events: Counter[str] | None = None) -> object:
    limits, length = test_membership_explorer.LIMITS, test_membership_explorer.LENGTH
    start = _first_group(2 + seed % 2, settled=seed % 4 < 2)
    return member_explorer.walk_group(limits, length, seed, start, events)


def leases(seed: int, events: Counter[str] | None = None) -> object:
    limits, length = lease_explorer.DEEP, test_lease_explorer.LENGTH
    start = _first_leases(by_epochs=seed % 2 == 0, records=8)
    return lease_explorer.walk(limits, length, seed, start, events)


def grouped(seed: int, events: Counter[str] | None = None) -> object:
    limits, length = test_grouped_transactions.LIMITS, test_grouped_transactions.LENGTH
    start = _first_grouped(**grouped_explorer.chosen_by(seed))
    return grouped_explorer.walk_grouped(limits, length, seed, start, events)


World: TypeAlias = Callable[[int, Counter[str] | None], object]
WORLDS: tuple[World, ...] = (standalone, transactions, membership, leases, grouped)
NAMES = [world.__name__ for world in WORLDS]
_OUTCOMES = {"handover", "output", "torn"}
"""What is counted, and is no step."""


@dataclass
class Count:
    """Walks through one world.

    Attributes:
        walks: Number of walks.
        seconds: How long they took, summed over the processes.
        events: How often each thing happened.
        faults: Those that broke a law.
    """

    walks: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.events = Counter(self.events)

    def add(self, other: "Count") -> None:
        """Add other walks."""
        self.walks += other.walks
        self.seconds += other.seconds
        self.events += other.events
        self.faults += other.faults

    @property
    def steps(self) -> int:
        """How many steps they had."""
        return sum(n for event, n in self.events.items() if event not in _OUTCOMES)


def walked(world: World, seeds: range) -> Count:
    """Take some walks."""
    gc.disable()  # worlds have no cycles worth looking for
    count, began = Count(walks=len(seeds)), time.monotonic()
    for seed in seeds:
        way = world(seed, count.events)
        if way is not None:
            count.faults.append(f"seed {seed}: {way}")
    gc.enable()
    gc.collect()
    count.seconds = time.monotonic() - began
    return count


def batches(first: int, walks: int) -> Iterator[range]:
    """Seeds, some hundred at a time."""
    for begin in range(first, first + walks, AT_ONCE):
        yield range(begin, min(begin + AT_ONCE, first + walks))


def take_walks(
    counts: dict[str, Count], walks: int, first: int, processes: int, seconds: float
) -> Iterator[None]:
    """Take walks through some worlds, some hundred of each at a time, and count them.

    Args:
        counts: What each of the worlds has had before; it goes on from there.
        walks: Number of walks of each world.
        first: The seed of the first walk.
        processes: Number of processes.
        seconds: For how long.
    """
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        run: Callable[..., Iterable[Count]] = map
        if processes > 1:
            run = stack.enter_context(ProcessPoolExecutor(processes)).map
        for seeds in batches(first, walks):
            for world in WORLDS:
                if world.__name__ not in counts:
                    continue
                count = counts[world.__name__]
                left = seeds[max(0, first + count.walks - seeds.start) :]
                if not left:
                    continue
                if time.monotonic() > until:
                    return
                # each process takes its part
                parts = [left[number::processes] for number in range(processes)]
                for part in run(walked, [world] * processes, parts):
                    count.add(part)
            yield


def load(path: Path | None, first: int) -> dict[str, Count]:
    """The counts of an earlier run.

    Raises:
        ValueError: It began with another seed.
    """
    if path is None or not path.exists():
        return {name: Count() for name in NAMES}
    read = json.loads(path.read_text())
    if read["first"] != first:
        raise ValueError(f"{path} is of seeds from {read['first']} on, not from {first}")
    return {name: Count(**count) for name, count in read["counts"].items()}


def save(path: Path, first: int, counts: dict[str, Count]) -> None:
    """Keep the counts."""
    after = path.with_suffix(".new")
    each = {name: vars(count) for name, count in counts.items()}
    after.write_text(json.dumps({"first": first, "counts": each}))
    after.replace(path)


def show(counts: dict[str, Count], began: float, before: int) -> None:
    """Print a line for each world, and one for all."""
    for name, count in counts.items():
        speed = count.walks / count.seconds if count.seconds else 0.0
        events = ", ".join(f"{event} {n:,}" for event, n in sorted(count.events.items()))
        print(
            f"  {name}: {count.walks:,} walks, {count.steps:,} steps, "
            f"{len(count.faults)} broke a law, {speed:.0f} walks/s of a process; {events}"
        )
    total = sum(count.walks for count in counts.values())
    broken = sum(len(count.faults) for count in counts.values())
    seconds = time.monotonic() - began
    print(
        f"{time.strftime('%F %T')}: {total:,} walks, {sum(c.steps for c in counts.values()):,} "
        f"steps, {broken} broke a law; {(total - before) / max(seconds, 1e-9):.0f} walks/s",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    """Take the walks, and print how many there were and what was found."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("walks", type=int, nargs="?", default=1_000_000, help="of each world")
    parser.add_argument("first", type=int, nargs="?", default=1_000_000, help="first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most")
    parser.add_argument("--worlds", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--state", type=Path, help="file of the counts, to go on from")
    asked = parser.parse_args(arguments)
    counts = load(asked.state, asked.first)
    before = sum(count.walks for count in counts.values())
    chosen = {name: counts[name] for name in asked.worlds}
    began = shown = time.monotonic()
    for _ in take_walks(chosen, asked.walks, asked.first, asked.processes, asked.seconds):
        if asked.state is not None:
            save(asked.state, asked.first, counts)
        if time.monotonic() - shown > SHOW_SECONDS:
            shown = time.monotonic()
            show(counts, began, before)
    show(counts, began, before)
    for name, count in counts.items():
        for fault in count.faults[:5]:
            print(f"  {name}: {fault}")


if __name__ == "__main__":
    main(sys.argv[1:])
