"""Ways through the world of a group: every interleaving to a depth, and random ones."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kshare.core.hashing import WHOLE
from kshare.group.protocol.membership.membership_state import State
from kshare.group.protocol.membership.requests import PlanRequest
from kshare.group.protocol.owners.actions import WritePrimary
from tests.group.protocol import member_world
from tests.group.protocol.coordinator import Stage
from tests.group.protocol.interleavings import Broken, interleavings, ordinary_way
from tests.group.protocol.member_process import member_of
from tests.group.protocol.member_world import (
    GroupLimits,
    GroupWorld,
    group_steps,
    new_group,
    take_group,
)
from tests.group.protocol.world import LawBrokenError, Step, is_living


@dataclass
class Seen:
    """The states that an exploration has seen, and what had happened in them.

    Attributes:
        states: Number of states.
        handovers: Those in which a key had gone on with another member.
        committed: Those in which a commit had been answered.
        dropped: Those in which the coordinator had dropped a living member.
    """

    states: int = 0
    handovers: int = 0
    committed: int = 0
    dropped: int = 0

    def add(self, world: GroupWorld) -> None:
        """Count a state."""
        self.states += 1
        self.handovers += world.handovers > 0
        self.committed += bool(world.promised)
        self.dropped += world.drops > 0


def explore_group(
    limits: GroupLimits, depth: int, *starts: GroupWorld
) -> tuple[Seen, Broken | None]:
    """Take every step in every order, up to a depth.

    Returns:
        The states that were seen, and the way to a broken law, from one of the starts.
    """
    seen = Seen()
    broken = interleavings(
        starts, depth, lambda world: group_steps(world, limits), take_group, seen.add
    )
    return seen, broken


_ORDINARY = ("member", "mail", "complete", "poll", "read", "act", "wait", "heartbeat")


def along(
    world: GroupWorld, limits: GroupLimits, is_late: Callable[[Step], bool] = lambda _: False
) -> Iterator[GroupWorld]:
    """The worlds on the ordinary way from one, in which nothing goes wrong, until all is done.

    Args:
        world: The world.
        limits: How much may happen.
        is_late: Says which steps come only when no others are left.
    """
    verbs = (*_ORDINARY, "acknowledge", "deliver", "commit")

    def ordered(world: GroupWorld) -> list[Step]:
        return sorted(
            (step for step in group_steps(world, limits) if step[0].split()[0] in verbs),
            key=lambda step: (is_late(step), verbs.index(step[0].split()[0])),
        )

    return ordinary_way(world, ordered, take_group)


def running(limits: GroupLimits) -> GroupWorld:
    """Two members run, with what a call has returned to each in hand."""
    world = new_group(2, per_call=limits.per_call)
    finish_group(world, until=0)
    for step in group_steps(world, limits):
        if step[0] == "deliver":
            take_group(world, step)
    return world


def committing(limits: GroupLimits) -> GroupWorld:
    """The lead is about to write the primary offset: both have committed their first records."""
    world = running(limits)
    for name in ("m1", "m0"):
        process = world.processes[name]
        for verb in (f"acknowledge {process.in_flight[0]}", "commit"):
            take_group(world, (verb, name))
        while not any(isinstance(action, WritePrimary) for action in process.inbox):
            possible = [step for step in group_steps(world, limits) if step[1] == name]
            steps = [step for step in possible if step[0] in {"act", "read"}]
            if not steps:
                break
            take_group(world, steps[0])
    return world


def dropped(world: GroupWorld) -> GroupWorld:
    """The coordinator drops the first member, which lives."""
    member_world.drop(world, member_of(world.processes["m0"]).membership.member_id)
    world.drops = 0
    return world


def joined(world: GroupWorld) -> GroupWorld:
    """A third member is started."""
    world.join()
    return world


DRAINING = GroupLimits(processes=5, drops=2, in_flight=2, drains=True)


def draining() -> GroupWorld:
    """A third member joins, and the first one waits for its handlers before it revokes."""
    return next(world for world in _on_the_way(joined(running(DRAINING))) if _drains(world)).clone()


def returned(world: GroupWorld) -> GroupWorld:
    """The third member dies meanwhile: what the first one is to revoke is assigned to it again."""
    world.crash("m2")
    world.coordinator.mail.pop("m2", None)
    (gone,) = (at for at, each in world.coordinator.members.items() if each.process == "m2")
    member_world.drop(world, gone)
    *_, last = _on_the_way(world)
    return last.clone()


def _on_the_way(world: GroupWorld) -> Iterator[GroupWorld]:
    """The worlds on the ordinary way, but that handlers take their time with what is revoked."""
    verbs = ("drain", *_ORDINARY)

    def ordered(world: GroupWorld) -> list[Step]:
        possible = group_steps(world, DRAINING)
        drains = {name for what, name in possible if what == "drain"}
        return sorted(
            (
                step
                for step in possible
                if step[0] in verbs and not (step[0] == "poll" and step[1] in drains)
            ),
            key=lambda step: verbs.index(step[0]),
        )

    return ordinary_way(world, ordered, take_group)


def _drains(world: GroupWorld) -> bool:
    return any(member_of(process).draining for process in world.processes.values())


def _is_of_the_first(step: Step) -> bool:
    return step[1] == "m0"


def a_third_joins(limits: GroupLimits) -> Iterator[GroupWorld]:
    """It gets hashes of both others, once they poll: they have records in hand.

    Nor do they read the log before they have to.
    """
    slow = {"poll", "acknowledge", "read"}

    def is_late(step: Step) -> bool:
        return step[0].split()[0] in slow and step[1] != "m2"

    return along(joined(running(limits)), limits, is_late)


def one_is_dropped(limits: GroupLimits) -> Iterator[GroupWorld]:
    """It sleeps with a record in hand until the other one has taken over all, and goes on."""
    return along(dropped(running(limits)), limits, _is_of_the_first)


def one_is_dropped_amid_a_rebalance(limits: GroupLimits) -> Iterator[GroupWorld]:
    """It sleeps with a record in hand, and with the answer to SyncGroup on its way to it."""
    for world in along(joined(running(limits)), limits):
        first = member_of(world.processes["m0"])
        if first.membership.state is State.SYNCING and world.coordinator.mail.get("m0"):
            return along(dropped(world), limits, _is_of_the_first)
    raise AssertionError("nobody waits for SyncGroup")


def a_coordinator_takes_over_amid_a_rebalance(limits: GroupLimits) -> Iterator[GroupWorld]:
    """The leader plans when another broker takes over, which knows nothing of its generation."""
    for world in along(joined(running(limits)), limits):
        for process in map(member_of, world.processes.values()):
            if isinstance(process.membership._next, PlanRequest):
                member_world.think(world, process)
                member_world.fail_over(world)
                return along(world, limits)
    raise AssertionError("nobody plans")


def the_lead_is_dropped(limits: GroupLimits) -> Iterator[GroupWorld]:
    """It sleeps before it writes the primary offset; the other one commits more meanwhile."""
    return along(dropped(committing(limits)), limits, _is_of_the_first)


def the_lead_is_slow(limits: GroupLimits) -> Iterator[GroupWorld]:
    """It sleeps before it writes the primary offset, and stays a member."""
    return along(committing(limits), limits, _is_of_the_first)


Way: TypeAlias = Callable[[GroupLimits], Iterator[GroupWorld]]
WAYS: tuple[Way, ...] = (
    a_third_joins,
    one_is_dropped,
    one_is_dropped_amid_a_rebalance,
    the_lead_is_dropped,
    the_lead_is_slow,
    a_coordinator_takes_over_amid_a_rebalance,
)
"""The ways on which hashes or the lead change hands; every interleaving begins anywhere on one."""


def first_group(members: int = 2, *, settled: bool = True) -> GroupWorld:
    """Where a walk begins.

    Args:
        members: Number of processes.
        settled: Whether all of them run, with a record each in hand as far as there are some.
    """
    world = new_group(members)
    if settled:
        finish_group(world, until=0)
        for step in group_steps(world, GroupLimits()):
            if step[0] == "deliver":  # all have something in hand when things change
                take_group(world, step)
    return world


def walk_group(
    limits: GroupLimits,
    length: int,
    seed: int,
    start: GroupWorld | None = None,
    events: Counter[str] | None = None,
) -> Broken | None:
    """One random way through the world.

    Args:
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        start: Where it begins; it stays as it is. None for two members that run.
        events: Counts what has happened.
    """
    world = first_group() if start is None else start.clone()
    draw, trace = random.Random(seed), list[Step]()
    slow = draw.choice([None, *world.processes])
    reads_late = draw.choice([None, *world.processes])
    broken: str | None = None
    for _ in range(length):
        possible = group_steps(world, limits)
        if not possible:
            break
        weights = [
            0.05
            if name == slow
            or (what == "read" and name == reads_late)
            or what.startswith("acknowledge")
            or what == "drained"
            else 1
            for what, name in possible
        ]
        (step,) = draw.choices(possible, weights)
        trace.append(step)
        try:
            take_group(world, step)
        except LawBrokenError as error:
            broken = str(error)
            break
    if events is not None:
        events.update(what.partition(" ")[0] for what, _ in trace)
        events["handover"] += world.handovers
    return None if broken is None else Broken(tuple(trace), broken)


def finish_group(world: GroupWorld, until: int | None = None) -> None:
    """Let no more go wrong: the group settles, and everyone processes and commits all there is.

    Args:
        world: The world.
        until: No record from this offset on is handed out; None for all.
    """
    limits = GroupLimits(0, commits=1_000, in_flight=1_000, crashes=0, drops=0, compactions=0)
    verbs = (
        "drop", "heartbeat", "member", "mail", "complete", "poll", "drained", "read", "act", "wait",
    )  # fmt: skip
    late = ("deliver", "acknowledge", "commit")
    for _ in range(30):
        is_done = True
        for verb in (*verbs, *(late if until is None else ())):
            for step in group_steps(world, limits):
                if step[0].split()[0] == verb and step in group_steps(world, limits):
                    take_group(world, step)
                    is_done = False
        if is_done:  # nothing has changed, and nothing will
            return


def settled(world: GroupWorld) -> bool:
    """Whether the group is stable, and all hashes are with a member that delivers."""
    owned = [part for p in world.processes.values() if is_living(p) for part in p.hashes]
    total = sum(part.width for part in owned)
    return world.coordinator.stage is Stage.STABLE and total == WHOLE.width
