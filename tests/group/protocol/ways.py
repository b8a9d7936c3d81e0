"""Every interleaving around handovers and outputs: ``python -m tests.group.protocol.ways DEPTH``.

It begins in each state on the ways on which hashes, the lead or a transaction change hands, takes
every step in every order up to the depth, and prints what was reached.
"""

import sys
import time

from tests.group.protocol import (
    grouped_explorer,
    member_explorer,
    test_grouped_transactions,
    test_membership_explorer,
    test_transactions,
    transactional_explorer,
)


def main(depth: int = 3) -> None:
    """Explore, and print what was found."""
    narrow = test_membership_explorer.NARROW
    for way in member_explorer.WAYS:
        began, members = time.monotonic(), list(way(narrow))
        states, broken = member_explorer.explore_group(narrow, depth, *members)
        show(f"membership, {way.__name__}", len(members), depth, f"{states}", broken, began)
    began = time.monotonic()
    worlds = [world for way in transactional_explorer.WAYS for world in way()]
    seen, law = transactional_explorer.explore(test_transactions.NARROW, depth, worlds)
    show("transactions", len(worlds), depth, f"{seen}", law, began)
    for grouped in grouped_explorer.WAYS:
        began, starts = time.monotonic(), list(grouped())
        found, law = grouped_explorer.explore(test_grouped_transactions.NARROW, depth, starts)
        show(f"both, {grouped.__name__}", len(starts), depth, f"{found}", law, began)


def show(model: str, starts: int, depth: int, seen: str, broken: object, began: float) -> None:
    """Print a line."""
    seconds = time.monotonic() - began
    holds = broken or "all laws hold"
    print(f"{model}: {depth} steps from {starts} states: {seen}, {holds} ({seconds:.0f} s)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
