"""Ways through the small world of transactions: every interleaving to a depth, and random ones."""

import random

from kshare.group.protocol.owner import Phase
from tests.group.protocol.transactional_world import (
    Limits,
    Member,
    TransactionalWorld,
    steps,
    take,
)
from tests.group.protocol.world import HALVES, LawBrokenError, Step


def new_world(*, records: int = 4, shares_ids: bool = False) -> TransactionalWorld:
    """Two members, a half of the hash space each; the records' keys in turn."""
    world = TransactionalWorld(
        tuple(HALVES[i % 2].lo + 5 for i in range(records)), shares_ids=shares_ids
    )
    world.start(0)
    world.start(1)
    return world


def finish(world: TransactionalWorld) -> None:
    """Let no more go wrong: everyone does what there is to do."""
    limits = Limits(members=0, in_flight=2, compactions=0, expired=0, doubts=False)
    order = ("mark", "resolve", "read", "act", "wait", "deliver", "init", "check", "write", "end")
    for _ in range(400):
        by_verb: dict[str, Step] = {}
        for step in steps(world, limits):
            if step[0] != "abort" or is_stale(world.members[step[1]]):
                by_verb.setdefault(step[0], step)
        verb = next((verb for verb in (*order, "settle", "abort") if verb in by_verb), None)
        if verb is None:
            return
        take(world, by_verb[verb])


def let_run(world: TransactionalWorld) -> None:
    """Let all members begin to run."""
    for _ in range(12):
        for verb in ("read", "act", "wait"):
            for step in list(steps(world, Limits(members=0))):
                if step[0] == verb:
                    take(world, step)


def is_stale(member: Member) -> bool:
    """Whether the records of the transaction do not belong to the member any more."""
    return member.owner.phase is not Phase.RUNNING or member.since is not member.owner.start


_RARE = {"crash", "replace", "leave", "abort", "doubt", "expire", "compact"}


def walk(limits: Limits, length: int, seed: int) -> tuple[tuple[Step, ...], str] | None:
    """One random way through a world, and then all that is left to do.

    Returns:
        The way to a broken law, and which one; None if all hold.
    """
    draw = random.Random(seed)
    world, trace = new_world(shares_ids=seed % 3 == 0), []
    if seed % 4:
        let_run(world)
    paused, until = "", 0  # a member that does nothing for a while, and until which step
    try:
        for number in range(length):
            possible = list(steps(world, limits))
            if not possible:
                break
            busy = [name for name, member in world.members.items() if member.in_flight]
            if busy and number >= until and draw.random() < 0.1:
                paused, until = draw.choice(busy), number + draw.choice([0, 20, 50])
                if ("replace", paused) in possible:
                    possible = [("replace", paused)]
            weights = [
                (0.1 if what in _RARE else 1) * (0.01 if name == paused and number < until else 1)
                for what, name in possible
            ]
            (step,) = draw.choices(possible, weights)
            trace.append(step)
            take(world, step)
        finish_all(world)
    except LawBrokenError as error:
        return tuple(trace), str(error)
    return None


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
    if missing:
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
        if ("act", "m0") in set(steps(world, Limits())):
            take(world, ("act", "m0"))
        go(world, "m2")
        go(world, "m0")
        finish_all(world)
    except LawBrokenError as error:
        return str(error)
    return None


def go(world: TransactionalWorld, name: str, *, until: str = "") -> None:
    """Let one member do what it can, until it could do something."""
    order = ("act", "read", "wait", "deliver", "init", "check", "write", "end", "settle")
    limits = Limits(members=0, in_flight=1, compactions=0, expired=0, doubts=False)
    for _ in range(60):
        names = {name, world.members[name].transactional_id}
        possible = {verb for verb, whom in steps(world, limits) if whom in names}
        verb = next((verb for verb in (*order, "mark") if verb in possible), None)
        if verb is None or until in possible:
            return
        whom = world.members[name].transactional_id if verb == "mark" else name
        take(world, (verb, whom))


def explore(limits: Limits, depth: int) -> tuple[int, str | None]:
    """Take every step in every order up to a depth; the number of states, and a broken law."""
    world = new_world()
    let_run(world)
    seen, border = {world.fingerprint()}, [world]
    for _ in range(depth):
        following = []
        for world in border:
            for step in steps(world, limits):
                after = world.clone()
                try:
                    take(after, step)
                except LawBrokenError as error:
                    return len(seen), f"{step}: {error}"
                if (mark := after.fingerprint()) not in seen:
                    seen.add(mark)
                    following.append(after)
        border = following
    return len(seen), None
