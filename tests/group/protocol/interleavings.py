"""Every interleaving of a small world, and the ordinary way through one, whichever world it is."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from tests.group.protocol.world import LawBrokenError, Step


@dataclass(frozen=True)
class Broken:
    """A way to a state in which a law does not hold."""

    trace: tuple[Step, ...]
    law: str


class Explorable(Protocol):
    """A world, as far as it is explored."""

    def clone(self) -> Self: ...

    def fingerprint(self) -> object: ...


World = TypeVar("World", bound=Explorable)
Take = Callable[[World, Step], None]


def interleavings(
    starts: Iterable[World],
    depth: int,
    steps: Callable[[World], Iterable[Step]],
    take: Take[World],
    see: Callable[[World], None],
) -> Broken | None:
    """Take every step in every order, up to a depth; worlds that go on alike are one.

    Args:
        starts: The worlds to begin with.
        depth: Maximum number of steps.
        steps: Everything that can happen next.
        take: Lets it happen.
        see: Called with each world once.

    Returns:
        The shortest way to a broken law, from one of the starts; None if all hold.
    """
    marks = set[object]()
    border: list[tuple[World, tuple[Step, ...]]] = []

    def put(world: World, trace: tuple[Step, ...]) -> None:
        before = len(marks)
        marks.add(world.fingerprint())  # its hash takes long: it is asked for once
        if len(marks) > before:
            see(world)
            border.append((world, trace))

    for start in starts:
        put(start, ())
    gc.disable()  # worlds have no cycles worth looking for
    try:
        for _ in range(depth):
            last, border = border, []
            for world, trace in last:
                for step in steps(world):
                    after, way = world.clone(), (*trace, step)
                    try:
                        take(after, step)
                    except LawBrokenError as error:
                        return Broken(way, str(error))
                    put(after, way)
    finally:
        gc.enable()
    return None


def seeds(count: int, known: int = 0) -> Iterator[int]:
    """The seeds of random walks, first that of a walk which is known to find what is looked for."""
    yield known
    yield from range(count)


def ordinary_way(
    world: World, ordered: Callable[[World], Iterable[Step]], take: Take[World]
) -> Iterator[World]:
    """The worlds on the way on which the first step is taken that leads to a new one.

    Args:
        world: Where it begins.
        ordered: What can happen next, what comes first at first.
        take: Lets it happen.
    """
    marks = {world.fingerprint()}
    after: World | None = world
    while after is not None:
        world, after = after, None
        yield world
        for step in ordered(world):
            after = world.clone()
            take(after, step)
            if after.fingerprint() not in marks:
                marks.add(after.fingerprint())
                break
            after = None
