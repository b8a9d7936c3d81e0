"""Ways through the world of a group with transactions: every interleaving, and random ones."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kshare.group.protocol.membership.membership_state import State
from kshare.group.protocol.owners.actions import Write, WritePrimary
from kshare.group.protocol.owners.takeover import session_of
from tests.group.protocol.coordinator import Stage
from tests.group.protocol.grouped_world import (
    GroupedLimits,
    GroupedWorld,
    grouped_of,
    grouped_steps,
    new_grouped,
    take_grouped,
)
from tests.group.protocol.interleavings import Broken, interleavings, ordinary_way
from tests.group.protocol.transactional_explorer import RARE, gives_up
from tests.group.protocol.transactional_member import Member
from tests.group.protocol.world import LawBrokenError, Step

_QUIET: Final = GroupedLimits(
    members=0, in_flight=1, compactions=0, expired=0, doubts=False, drops=0
)
"""Nothing goes wrong."""

_VERBS: Final = (
    *("drop", "mark", "resolve", "look", "member", "mail", "sync", "unblock", "complete"),
    *("poll", "heartbeat", "read", "act", "wait", "init", "check", "write", "end", "settle"),
    *("abort", "deliver", "pass", "commit"),
)
"""What members do by themselves, in the order in which they do it if they can."""


def ordinary_steps(world: GroupedWorld, limits: GroupedLimits = _QUIET) -> list[Step]:
    """What members do by themselves, what they do first at first."""
    possible = [step for step in grouped_steps(world, limits) if is_ordinary(world, step)]
    return sorted(possible, key=lambda step: _VERBS.index(step[0]))


def is_ordinary(world: GroupedWorld, step: Step) -> bool:
    """Whether a member does something by itself, and it is of use."""
    what, name = step
    if what == "heartbeat":  # one that joins hears of the rebalance anyway
        member = grouped_of(world.members[name])
        return member.membership.state is not State.JOINING or not member.is_member
    return what != "abort" or gives_up(world.members[name])


def missed(world: GroupedWorld) -> list[str]:
    """The members that have not joined again in the time that a rebalance may take.

    Such as a leader whose epoch is compacted away before it has read it back.
    """
    if world.coordinator.stage is not Stage.PREPARING:
        return []
    members = world.coordinator.members.items()
    return [member_id for member_id, known in members if not known.awaits_join]


def finish(world: GroupedWorld, *, delivers: bool = True) -> None:
    """Let no more go wrong: the group settles, and everyone does what there is to do.

    Args:
        world: The world.
        delivers: Whether records are handed out.
    """
    for _ in range(1_500):
        possible = ordinary_steps(world)
        if not delivers:
            possible = [step for step in possible if step[0] not in {"deliver", "pass"}]
        if not possible:
            possible = [("drop", member_id) for member_id in missed(world)]
        if not possible:
            return
        take_grouped(world, possible[0])
    raise LawBrokenError("the group does not come to rest")


def finish_all(world: GroupedWorld) -> None:
    """Living members process all there is.

    Raises:
        LawBrokenError: A record has no output.
    """
    finish(world)
    missing = set(range(len(world.keys))) - set(world.outputs)
    if missing:
        raise LawBrokenError(f"no output of {sorted(missing)}")
    primary, stable = world.primary, world.known().stable
    if primary is None or primary.offset < stable:
        raise LawBrokenError(f"the primary offset stays behind {stable}: {primary}")


# -- random walks ----------------------------------------------------------------------------------

_RARE: Final = {**RARE, **dict.fromkeys(("hang", "drop", "start"), 0.1)}


def first_grouped(
    members: int = 2, *, shares_ids: bool = False, running: bool = True
) -> GroupedWorld:
    """Where a walk begins: with members that run, or have just started."""
    world = new_grouped(members, shares_ids=shares_ids)
    if running:
        finish(world, delivers=False)
    return world


def walk_grouped(
    limits: GroupedLimits,
    length: int,
    seed: int,
    start: GroupedWorld | None = None,
    events: Counter[str] | None = None,
) -> Broken | None:
    """One random way through the world, and then all that is left to do.

    Args:
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        start: Where it begins; it stays as it is. None for one that the seed chooses.
        events: Counts what has happened.
    """
    world = first_grouped(**chosen_by(seed)) if start is None else start.clone()
    draw, trace = random.Random(seed), list[Step]()
    paused, until = "", 0  # a member that does nothing for a while, and until which step
    broken: str | None = None
    try:
        for number in range(length):
            possible = grouped_steps(world, limits)
            if not possible:
                break
            busy = [name for name, member in world.members.items() if member.state.is_open]
            if busy and number >= until and draw.random() < 0.1:
                paused, until = draw.choice(busy), number + draw.choice([0, 30, 80])
                possible = _ends_session(world, paused, possible) or possible
            weights = [
                _RARE.get(what, 1) * (0.01 if name == paused and number < until else 1)
                for what, name in possible
            ]
            (step,) = draw.choices(possible, weights)
            trace.append(step)
            take_grouped(world, step)
        finish_all(world)
    except LawBrokenError as error:
        broken = str(error)
    if events is not None:
        events.update(what for what, _ in trace)
        events.update({"output": len(world.outputs), "handover": world.handovers})
        events["torn"] += world.torn
    return None if broken is None else Broken(tuple(trace), broken)


def _ends_session(world: GroupedWorld, name: str, possible: Iterable[Step]) -> list[Step]:
    """The step by which the coordinator drops a member, if it may."""
    member_id = grouped_of(world.members[name]).membership.member_id
    return [step for step in possible if step == ("drop", member_id)]


def chosen_by(seed: int) -> dict[str, Any]:
    """How the world of a walk begins."""
    return {"members": 2 + seed % 2, "shares_ids": seed % 3 == 0, "running": seed % 8 != 0}


# -- every interleaving ----------------------------------------------------------------------------


def go(world: GroupedWorld, name: str, until: str) -> GroupedWorld:
    """Let one member do what it can, until it could do something."""
    names = {name, world.members[name].transactional_id}
    while mine := [step for step in ordinary_steps(world) if step[1] in names]:
        if any(what == until for what, _ in mine):
            break
        take_grouped(world, mine[0])
    return world


def along(
    world: GroupedWorld, is_late: Callable[[Step], int] = lambda _: False
) -> Iterator[GroupedWorld]:
    """The worlds on the ordinary way from one, in which nothing goes wrong, until all is done.

    Args:
        world: The world.
        is_late: Says which steps come only when no others are left, and which of them last.
    """

    def ordered(world: GroupedWorld) -> list[Step]:
        return sorted(ordinary_steps(world), key=is_late)

    return ordinary_way(world, ordered, take_grouped)


def a_third_joins() -> Iterator[GroupedWorld]:
    """It gets hashes of both others, who have records in hand, and commit them before."""
    world = first_grouped()
    for name in ("m0", "m1"):
        go(world, name, "init")
    take_grouped(world, ("start", ""))
    return along(world, lambda step: step[1] in {"m0", "m1"} and step[0] in {"init", "read"})


def take_turns(
    world: GroupedWorld, until: Callable[[GroupedWorld], bool], *without: str
) -> GroupedWorld:
    """Let members do what they can, without the first one and without some things."""
    while not until(world):
        others = (step for step in ordinary_steps(world) if step[1] != "m0")
        take_grouped(world, next(step for step in others if step[0] not in without))
    return world


def drop_first(world: GroupedWorld) -> GroupedWorld:
    """The coordinator drops the first member, which lives."""
    member_id = grouped_of(world.members["m0"]).membership.member_id
    take_grouped(world, ("drop", member_id))
    world.drops = 0
    return world


def _is_of_the_first(step: Step) -> bool:
    return step[1] == "m0"


def dropped(until: str) -> Iterator[GroupedWorld]:
    """A member sleeps amid a transaction until the other one has taken over all, and goes on."""
    return along(drop_first(go(first_grouped(), "m0", until)), _is_of_the_first)


def dropped_with_records() -> Iterator[GroupedWorld]:
    """It has records in hand, and no producer."""
    return dropped("init")


def dropped_when_admitted() -> Iterator[GroupedWorld]:
    """It is about to write its facts."""
    return dropped("write")


def dropped_undecided() -> Iterator[GroupedWorld]:
    """Its facts are in the log, and it is about to commit them."""
    return dropped("end")


def dropped_and_told() -> Iterator[GroupedWorld]:
    """It is about to write its facts, and hears that it is lost before it sleeps."""
    world = drop_first(go(first_grouped(), "m0", "write"))
    take_grouped(world, ("heartbeat", "m0"))
    for step in (("act", "m0"), ("read", "m1")):
        if step in ordinary_steps(world):
            take_grouped(world, step)
    return along(world, _is_of_the_first)


def dropped_between_fences() -> Iterator[GroupedWorld]:
    """It gets a producer when its id was fenced, and its successor's claim is not there yet."""
    world = drop_first(go(first_grouped(), "m0", "init"))
    take_turns(world, lambda world: _is_about_to_claim(world.members["m1"]))
    return along(go(world, "m0", "write"), _is_of_the_first)


def _is_about_to_claim(member: Member) -> bool:
    return bool(member.inbox) and member.inbox[0] == Write((member.owner.claim,))


def the_lead_is_dropped() -> Iterator[GroupedWorld]:
    """It sleeps before it writes the primary offset; the other one commits more meanwhile."""
    world = first_grouped()
    go(world, "m1", "pass")
    go(world, "m0", "settle")
    take_grouped(world, ("settle", "m0"))
    while not any(isinstance(action, WritePrimary) for action in world.members["m0"].inbox):
        verbs = [what for what, name in ordinary_steps(world) if name == "m0"]
        take_grouped(world, (next(what for what in verbs if what in {"act", "read"}), "m0"))
    return along(drop_first(world), lambda step: 0 if step[1] != "m0" else 1 + (step[0] != "act"))


def killed_undecided() -> Iterator[GroupedWorld]:
    """A member is killed with its facts in the log: what it has left open hides what others write.

    Another one is started in its place.
    """
    world = go(first_grouped(), "m0", "end")
    take_grouped(world, ("crash", "m0"))
    return along(world)


def handed_on() -> Iterator[GroupedWorld]:
    """A member sleeps until the one that took over has handed its hashes on, and goes on."""
    world = drop_first(go(first_grouped(), "m0", "init"))
    take_turns(world, lambda world: 1 in world.outputs, "settle")
    take_grouped(world, ("start", ""))
    take_turns(world, _has_given_up, "settle")
    return along(world, lambda step: step[1] != "m0")


def _has_given_up(world: GroupedWorld) -> bool:
    """Whether the claim with which the second member took over was given up just now."""
    _, key, record, _ = world.log.records[-1]
    return key.kind == "claim" and record is None and session_of(key.detail[0]) == "m1"


def handed_on_and_compacted() -> Iterator[GroupedWorld]:
    """The same, and nothing is left in the log of who took over."""
    world = next(handed_on()).clone()
    take_grouped(world, ("compact", ""))
    return along(world, lambda step: step[1] != "m0")


Way = Callable[[], Iterator[GroupedWorld]]
WAYS: tuple[Way, ...] = (
    a_third_joins,
    dropped_with_records,
    dropped_when_admitted,
    dropped_undecided,
    dropped_and_told,
    dropped_between_fences,
    the_lead_is_dropped,
    killed_undecided,
    handed_on,
    handed_on_and_compacted,
)
"""The ways on which a transaction is open while hashes change hands."""


@dataclass
class Seen:
    """The states that an exploration has seen, and what had happened in them.

    Attributes:
        states: Number of states.
        outputs: Those in which an output was committed.
        handovers: Those in which a key had gone on with another member.
        open: Those in which a transaction was open.
        torn: Those in which a member had been dropped or killed, or had left, amid a transaction.
    """

    states: int = 0
    outputs: int = 0
    handovers: int = 0
    open: int = 0
    torn: int = 0

    def add(self, world: GroupedWorld) -> None:
        """Count a state."""
        self.states += 1
        self.outputs += bool(world.outputs)
        self.handovers += world.handovers > 0
        self.open += bool(world.transactions.open)
        self.torn += world.torn > 0


def explore(
    limits: GroupedLimits, depth: int, starts: Iterable[GroupedWorld]
) -> tuple[Seen, Broken | None]:
    """Take every step in every order up to a depth; what was seen, and a broken law."""
    seen = Seen()
    broken = interleavings(
        starts, depth, lambda world: grouped_steps(world, limits), take_grouped, seen.add
    )
    return seen, broken
