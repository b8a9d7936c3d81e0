"""The world of a group with a plain consumer: it joins and leaves, and reads whole partitions.

On top of :mod:`tests.group.protocol.member_world`: the plain consumer lists `range` alone, goes on
from the primary offset, and commits it without an anchor. It gives its partition up before it
joins, and hands out nothing once the coordinator has dropped it.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from kshare.group.protocol.commit_log.consumer_protocol import decode_partitions, encode_topics
from kshare.group.protocol.commit_log.start import Primary
from kshare.group.protocol.membership.requests import Code, Join, Sync
from kshare.group.protocol.membership.subscription import PROTOCOL, RANGE
from kshare.group.protocol.plan.generation import plan_range
from tests.group.protocol.coordinator import Stage
from tests.group.protocol.interleavings import interleavings
from tests.group.protocol.member_explorer import finish_group
from tests.group.protocol.member_world import (
    GroupLimits,
    GroupWorld,
    group_steps,
    take_group,
)
from tests.group.protocol.process import T0, Process
from tests.group.protocol.world import LawBrokenError, Step, is_living

FIRST, LAST = "a plain consumer", "z plain consumer"
"""Its name: the first of all members gets the partition."""


@dataclass
class PlainConsumer:
    """A plain consumer; it takes the coordinator's answers as a membership does."""

    name: str = FIRST
    member_id: str = ""
    generation: int = -1
    awaits: bool = False  # the answer to JoinGroup or SyncGroup
    owns: bool = False
    position: int = 0
    stored: int = 0  # since it has the partition
    next: Sync | None = None

    def joined(
        self,
        member_id: str,
        generation: int,
        leader: str,
        members: Mapping[str, bytes],
        *,
        protocol: str,
    ) -> None:
        assert protocol == RANGE
        self.member_id, self.generation = member_id, generation
        leads = leader == member_id
        sent = plan_range(members, {"orders": 1}, {}).assignments if leads else {}
        self.next = Sync(member_id, generation, sent)

    def synced(self, assignment: bytes) -> None:
        self.awaits = False
        self.owns = bool(assignment) and T0 in decode_partitions(assignment)[0]

    def refused(self, code: Code) -> None:
        self.awaits = False
        if code is Code.UNKNOWN_MEMBER_ID:
            self.member_id = ""


@dataclass
class PlainWorld(GroupWorld):
    """A world in which a plain consumer may be a member, too."""

    plain: PlainConsumer = field(default_factory=PlainConsumer)
    visits: int = 0
    has_stored: bool = False

    def clone(self) -> Self:
        copy = super().clone()
        copy.plain = replace(self.plain)
        return copy

    def fingerprint(self) -> tuple[object, ...]:
        return (*super().fingerprint(), repr(self.plain), self.visits, self.has_stored)

    @property
    def is_plain_in(self) -> bool:
        return self.plain.member_id in self.coordinator.members

    def deliver(self, process: Process) -> None:
        if self.plain.owns and self.is_plain_in:
            raise LawBrokenError(f"{T0} is with the plain consumer and {process.name}")
        super().deliver(process)

    def check(self) -> None:
        if self.has_stored:  # individual commits count no more where it has committed
            self.promised, self.highest_stable = set(), 0
        offset = 0 if self.primary is None else self.primary.offset
        if self.plain.owns and self.is_plain_in and offset < self.plain.stored:
            raise LawBrokenError(f"the primary went back to {offset}, from {self.plain.stored}")
        super().check()


def new_plain_group(members: int) -> PlainWorld:
    """A world with some processes that list both protocols, and no plain consumer yet."""
    world = PlainWorld((5, 9, 5, 9), protocols=(PROTOCOL, RANGE))
    for _ in range(members):
        world.join()
    return world


def plain_steps(world: PlainWorld, limits: GroupLimits, visits: int) -> Iterator[Step]:
    """Everything that can happen next; the plain consumer comes so often at most."""
    for what, name in group_steps(world, limits):
        known = world.coordinator.members.get(name) if what == "drop" else None
        if known is None or known.process not in {FIRST, LAST}:
            yield what, name
    plain, is_in, name = world.plain, world.is_plain_in, world.plain.name
    if world.coordinator.mail.get(name):
        yield ("mail", name)
    if not plain.awaits and not is_in and world.visits < visits:
        yield ("enter", FIRST)
        yield ("enter", LAST)
    if not plain.awaits and is_in:
        if world.coordinator.stage is Stage.PREPARING:
            yield ("rejoin", name)
        yield ("leave", name)
    if is_in:
        yield ("die", name)
    if is_in and plain.owns and plain.position < len(world.keys):
        yield ("hand out", name)
    if is_in and plain.owns:
        yield ("store", name)


def take_plain(world: PlainWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    if name not in {FIRST, LAST}:
        take_group(world, step)
        return
    plain = world.plain
    match what:
        case "enter" | "rejoin":
            world.visits += what == "enter"
            _give_up(world)
            plain.awaits, plain.name = True, name
            member_id = plain.member_id if what == "rejoin" else ""
            said = encode_topics(("orders",), b"")
            world.coordinator.mail.pop(name, None)
            world.coordinator.join(name, Join(member_id, said, (RANGE,)))
        case "mail":
            _receive(world)
        case "leave" | "die":
            if what == "leave":
                _give_up(world)
            world.coordinator.remove(plain.member_id)
            world.coordinator.mail.pop(name, None)
            world.plain = PlainConsumer()
        case "hand out":
            _hand_out(world)
        case "store":
            _store(world)
    world.check()


def _receive(world: PlainWorld) -> None:
    plain = world.plain
    first, *others = world.coordinator.mail[plain.name]
    world.coordinator.mail[plain.name] = tuple(others)
    first(plain)
    if plain.next is not None:
        request, plain.next = plain.next, None
        world.coordinator.sync(plain.name, request)
    if plain.owns:
        plain.position = 0 if world.primary is None else world.primary.offset
        plain.stored = plain.position


def _give_up(world: PlainWorld) -> None:
    if world.plain.owns and world.is_plain_in:
        _store(world)
    world.plain.owns = False


def _store(world: PlainWorld) -> None:
    world.primary, world.has_stored = Primary(world.plain.position), True
    world.plain.stored = world.plain.position


def _hand_out(world: PlainWorld) -> None:
    plain = world.plain
    offset, hash_ = plain.position, world.keys[plain.position]
    for process in world.processes.values():
        if is_living(process) and any(world.keys[held] == hash_ for held in process.in_flight):
            raise LawBrokenError(f"key {hash_} is with {process.name} and the plain consumer")
    if not {o for o in range(offset) if world.keys[o] == hash_} <= world.acknowledged:
        raise LawBrokenError(f"offset {offset} before another one of the same key")
    world.acknowledged.add(offset)
    plain.position += 1


_WEIGHTS = {
    **dict.fromkeys(("acknowledge", "die", "compact", "leave", "drop", "crash", "start"), 0.02),
    **dict.fromkeys(("enter", "hand", "complete"), 3.0),
    **dict.fromkeys(("commit", "deliver"), 4.0),
    "heartbeat": 0.3,
    "poll": 2.0,
}
"""How often what happens in a random walk: the members are seldom done when the group changes."""


def walk_with_plain(limits: GroupLimits, length: int, seed: int, *, members: int = 2) -> str:
    """One random way through the world; the law that is broken, or nothing."""
    world, draw = new_plain_group(members), random.Random(seed)
    if draw.random() < 0.5:
        finish_group(world, until=0)
    slow = draw.choice([None, *world.processes])
    for _ in range(length):
        possible = list(plain_steps(world, limits, visits=3))
        if not possible:
            break
        weights = [
            0.02 if name == slow else _WEIGHTS.get(what.split()[0], 1.0) for what, name in possible
        ]
        (step,) = draw.choices(possible, weights)
        try:
            take_plain(world, step)
        except LawBrokenError as error:
            return str(error)
    return ""


def finish_without_plain(world: PlainWorld) -> None:
    """The plain consumer leaves, and the others process all there is."""
    while world.is_plain_in or world.coordinator.mail.get(world.plain.name):
        steps = list(plain_steps(world, GroupLimits(0, crashes=0, drops=0, compactions=0), 0))
        mine = [
            step
            for step in steps
            if step[1] == world.plain.name and step[0] in {"mail", "leave", "die"}
        ]
        take_plain(world, mine[0])
    finish_group(world)


def explore_plain(limits: GroupLimits, depth: int, start: PlainWorld) -> tuple[int, str]:
    """Take every step in every order, up to a depth; the number of states, and a broken law."""
    seen = list[PlainWorld]()
    broken = interleavings(
        [start], depth, lambda world: plain_steps(world, limits, visits=1), take_plain, seen.append
    )
    return len(seen), str(broken or "")
