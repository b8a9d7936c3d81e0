"""The world of a group that keeps no log: its coordinator alone says who has the partition.

On top of :mod:`tests.group.protocol.member_world`: members come, go, are stopped for longer than
their session, and fail; the coordinator drops those that live, and fails over. What counts is the
primary offset.
"""

import random
from collections import Counter
from dataclasses import dataclass

from tests.group.protocol.member_explorer import finish_group
from tests.group.protocol.member_process import MemberProcess, member_of, new_member
from tests.group.protocol.member_world import KEYS, GroupLimits, GroupWorld, group_steps, take_group
from tests.group.protocol.owning import new_ownerships
from tests.group.protocol.process import T0
from tests.group.protocol.world import LawBrokenError


@dataclass
class UnloggedWorld(GroupWorld):
    """A world whose processes keep no log."""

    def join(self) -> None:
        name = f"m{self.started}"
        self.started += 1
        self.processes[name] = MemberProcess(
            name,
            new_ownerships(name, "", keeps_log=False),
            is_member=False,
            member=new_member(name, self.protocols, individual=False),
            keeps_log=False,
        )

    def check(self) -> None:
        if self.log.end:
            raise LawBrokenError("something was written to the log")
        offset = 0 if self.primary is None else self.primary.offset
        if not set(range(offset)) <= self.acknowledged:
            raise LawBrokenError(f"primary offset {offset} passes what was not processed")
        if offset < self.highest_primary:
            raise LawBrokenError(f"primary offset {offset} after {self.highest_primary}")
        self.highest_primary = offset
        self.promised &= set(range(offset))  # above it, nothing says what was processed
        for process in self.processes.values():
            each = process.ownership
            if each is not None and each.start is not None:
                said = process.ownerships.stable(T0)
                if said > offset:
                    raise LawBrokenError(f"{process.name} says {said}, and {offset} is committed")
            fault = member_of(process).membership.fault
            if fault is not None:
                raise LawBrokenError(f"{process.name} is no member any more: {fault}")


def new_unlogged(members: int = 2) -> UnloggedWorld:
    """A world with some processes that run."""
    world = UnloggedWorld(tuple(KEYS))
    for _ in range(members):
        world.join()
    finish_group(world, until=0)
    return world


def walk_unlogged(
    limits: GroupLimits, length: int, seed: int, events: Counter[str] | None = None
) -> str:
    """One random way through the world; the law that is broken, or nothing."""
    draw = random.Random(seed)
    try:
        world = new_unlogged()
    except LawBrokenError as error:
        return str(error)
    slow = draw.choice([None, *world.processes])
    for _ in range(length):
        possible = group_steps(world, limits)
        if not possible:
            break
        weights = [
            0.05 if name == slow or what.startswith("acknowledge") else 1.0
            for what, name in possible
        ]
        (step,) = draw.choices(possible, weights)
        if events is not None:
            events[step[0].partition(" ")[0]] += 1
        try:
            take_group(world, step)
        except LawBrokenError as error:
            return str(error)
    if events is not None:
        events["handover"] += world.handovers
    return ""
