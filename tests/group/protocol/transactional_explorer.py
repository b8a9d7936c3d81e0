"""Ways through the small world of transactions: every interleaving to a depth, and random ones."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kshare.group.core.transaction_state import GiveUp
from kshare.group.protocol.owners.owner import Phase
from tests.group.protocol.interleavings import Broken, interleavings, ordinary_way
from tests.group.protocol.transactional_member import Member, action_of
from tests.group.protocol.transactional_world import Limits, TransactionalWorld, steps, take
from tests.group.protocol.world import HALVES, LawBrokenError, Step


def new_world(
    *, records: int = 4, shares_ids: bool = False, per_call: int = 1
) -> TransactionalWorld:
    """Two members, a half of the hash space each; the records' keys in turn."""
    keys = tuple(HALVES[i % 2].lo + 5 for i in range(records))
    world = TransactionalWorld(keys, shares_ids=shares_ids, per_call=per_call)
    world.start(0)
    world.start(1)
    return world


def finish(world: TransactionalWorld) -> None:
    """Let no more go wrong: everyone does what there is to do."""
    limits = Limits(members=0, in_flight=2, compactions=0, expired=0, doubts=False)
    for _ in range(400):
        by_verb: dict[str, Step] = {}
        for step in steps(world, limits):
            if step[0] != "abort" or gives_up(world.members[step[1]]):
                by_verb.setdefault(step[0], step)
        # Operators delete what cannot be read; a transaction that is left expires.
        verb = next((verb for verb in (*_ORDER, "repair", "expire") if verb in by_verb), None)
        if verb is None:
            return
        take(world, by_verb[verb])


def let_run(world: TransactionalWorld) -> None:
    """Let all members begin to run."""
    for _ in range(12):
        for verb in ("read", "act", "wait"):
            for step in steps(world, Limits(members=0)):
                if step[0] == verb:
                    take(world, step)


def gives_up(member: Member) -> bool:
    """Whether its transaction cannot commit any more, or is not to wait for that."""
    return isinstance(action_of(member), GiveUp)


RARE = {
    **dict.fromkeys(("crash", "replace", "leave", "doubt", "expire", "compact", "damage"), 0.1),
    **dict.fromkeys(("abort", "interrupt"), 0.05),
}
"""How often what goes wrong happens in random walks; all else: 1."""


def first_world(*, shares_ids: bool = False, running: bool = True) -> TransactionalWorld:
    """Where a walk begins: with members that run, or have just started."""
    world = new_world(shares_ids=shares_ids)
    if running:
        let_run(world)
    return world


def suspended_world() -> TransactionalWorld:
    """A member is suspended amid a transaction, and another takes a part of its keys."""
    world = first_world()
    take(world, ("deliver", "m0"))
    take(world, ("take a part", "m0"))
    return world


def walk(
    limits: Limits,
    length: int,
    seed: int,
    start: TransactionalWorld | None = None,
    events: Counter[str] | None = None,
) -> tuple[tuple[Step, ...], str] | None:
    """One random way through a world, and then all that is left to do.

    Args:
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        start: Where it begins; it stays as it is. None for one that the seed chooses.
        events: Counts what has happened.

    Returns:
        The way to a broken law, and which one; None if all hold.
    """
    world = first_world(**chosen_by(seed)) if start is None else start.clone()
    draw, trace = random.Random(seed), list[Step]()
    paused, until = "", 0  # a member that does nothing for a while, and until which step
    broken: str | None = None
    try:
        for number in range(length):
            possible = steps(world, limits)
            if limits.parts and not world.cleaned_after:  # the first one is suspended until then
                possible = [step for step in possible if step[1] != "m0"]
            if not possible:
                break
            busy = [name for name, member in world.members.items() if member.in_flight]
            if busy and number >= until and draw.random() < 0.1:
                paused, until = draw.choice(busy), number + draw.choice([0, 20, 50])
                if ("replace", paused) in possible:
                    possible = [("replace", paused)]
            weights = [
                RARE.get(what, 1) * (0.01 if name == paused and number < until else 1)
                for what, name in possible
            ]
            (step,) = draw.choices(possible, weights)
            trace.append(step)
            take(world, step)
        finish_all(world)
    except LawBrokenError as error:
        broken = str(error)
    if events is not None:
        events.update(what for what, _ in trace)
        events["output"] += len(world.outputs)
    return None if broken is None else (tuple(trace), broken)


def chosen_by(seed: int) -> dict[str, bool]:
    """How the world of a walk begins."""
    return {"shares_ids": seed % 3 == 0, "running": seed % 4 != 0}


def finish_all(world: TransactionalWorld) -> None:
    """Living members process all there is; fenced ones leave, and others come for them.

    Raises:
        LawBrokenError: A record has no output.
    """
    finish(world)
    for name, member in list(world.members.items()):
        if member.owner.phase is Phase.FENCED:
            del world.members[name]
    owned = {member.hashes[0] for member in world.members.values()}
    for number, half in enumerate(HALVES):
        if half not in owned:
            world.start(number)
    finish(world)
    missing = set(range(len(world.keys))) - set(world.outputs)
    # Who has a part without records passes over it: grouped_world's members do, these do not.
    if missing and not world.parts:
        raise LawBrokenError(f"no output of {sorted(missing)}")


def a_zombie_with_a_new_epoch() -> str | None:
    """A member gets a new epoch between its successor's fences, and stops before it writes.

    Returns:
        The law that is broken; None if all hold.
    """
    world = new_world()
    let_run(world)
    try:
        go(world, "m0", until="write")
        take(world, ("replace", "m0"))
        take(world, ("read", "m2"))
        take(world, ("act", "m2"))  # the first fence, as it has seen the claim
        take(world, ("write", "m0"))
        go(world, "m0", until="write")
        take(world, ("act", "m2"))  # its own claim
        take(world, ("read", "m0"))
        if ("act", "m0") in steps(world, Limits()):
            take(world, ("act", "m0"))
        go(world, "m2")
        go(world, "m0")
        finish_all(world)
    except LawBrokenError as error:
        return str(error)
    return None


def go(world: TransactionalWorld, name: str, *, until: str = "") -> None:
    """Let one member do what it can, until it could do something."""
    order = ("act", "read", "wait", "deliver", "commit", "init", "check", "write", "end", "settle")
    limits = Limits(members=0, in_flight=1, compactions=0, expired=0, doubts=False)
    for _ in range(60):
        names = {name, world.members[name].transactional_id}
        possible = {verb for verb, whom in steps(world, limits) if whom in names}
        verb = next((verb for verb in (*order, "mark") if verb in possible), None)
        if verb is None or until in possible:
            return
        whom = world.members[name].transactional_id if verb == "mark" else name
        take(world, (verb, whom))


# -- every interleaving ----------------------------------------------------------------------------


def along(
    world: TransactionalWorld, is_late: Callable[[Step], bool] = lambda _: False
) -> Iterator[TransactionalWorld]:
    """The worlds on the ordinary way from one, in which nothing goes wrong, until all is done.

    Args:
        world: The world.
        is_late: Says which steps come only when no others are left.
    """
    limits = Limits(members=0, in_flight=1, compactions=0, expired=0, doubts=False)

    def ordered(world: TransactionalWorld) -> list[Step]:
        possible = [
            step
            for step in steps(world, limits)
            if step[0] != "abort" or gives_up(world.members[step[1]])
        ]
        return sorted(possible, key=lambda each: (is_late(each), _ORDER.index(each[0])))

    return ordinary_way(world, ordered, take)


_ORDER = (
    *("mark", "resolve", "read", "act", "wait", "deliver", "commit", "init", "check", "write"),
    *("end", "settle", "abort"),
)
"""What members do by themselves, in the order in which they do it if they can."""


def two_commit() -> Iterator[TransactionalWorld]:
    """Two members run, and commit all there is: of each two records, and then another one."""
    world = new_world(records=6, per_call=2)
    let_run(world)
    return along(world)


def replaced(until: str) -> Iterator[TransactionalWorld]:
    """A member is replaced amid a transaction, sleeps until its successor is done, and goes on."""
    world = new_world(records=6, per_call=2)
    let_run(world)
    go(world, "m0", until=until)
    take(world, ("replace", "m0"))
    return along(world, lambda step: step[1] == "m0")


WAYS: tuple[Callable[[], Iterator[TransactionalWorld]], ...] = (
    two_commit,
    partial(replaced, "check"),  # with records in hand
    partial(replaced, "write"),  # admitted
    partial(replaced, "end"),  # facts are in the log, and not decided
)
"""The ways on which outputs are committed; every interleaving begins anywhere on one."""


@dataclass
class Seen:
    """The states that an exploration has seen, and what had happened in them.

    Attributes:
        states: Number of states.
        outputs: Those in which an output was committed.
        replaced: Those in which a member had been replaced, and an output was committed.
        open: Those in which a transaction was open.
    """

    states: int = 0
    outputs: int = 0
    replaced: int = 0
    open: int = 0

    def add(self, world: TransactionalWorld) -> None:
        """Count a state."""
        self.states += 1
        self.outputs += bool(world.outputs)
        self.replaced += bool(world.outputs) and world.started > 2
        self.open += bool(world.transactions.open)


def explore(
    limits: Limits, depth: int, starts: Iterable[TransactionalWorld]
) -> tuple[Seen, Broken | None]:
    """Take every step in every order up to a depth; what was seen, and a broken law."""
    seen = Seen()
    broken = interleavings(starts, depth, lambda world: steps(world, limits), take, seen.add)
    return seen, broken
