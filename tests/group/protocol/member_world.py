"""The small world with a group: a coordinator, members that come and go, and what they own.

On top of :mod:`tests.group.protocol.world`: each process runs the core of membership, and claims
what it was assigned. Time is told by what it does: before the coordinator drops a member, the
member has fenced itself, unless it was heard of since.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kshare.core.hashing import WHOLE
from kshare.group.protocol.actions import Delete, WritePrimary
from kshare.group.protocol.leader import plan_generation
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.membership import (
    Change,
    Code,
    Join,
    Leave,
    Membership,
    Plan,
    State,
    Sync,
)
from kshare.group.protocol.owner import Owner, Phase
from kshare.group.protocol.range_protocol import RANGE, plan_range
from kshare.group.protocol.records import Key, key_of
from kshare.group.protocol.subscription import PROTOCOL, Subscription
from tests.group.protocol import world as base
from tests.group.protocol.coordinator import Coordinator, Stage
from tests.group.protocol.world import (
    HALVES,
    T0,
    LawBrokenError,
    Process,
    Step,
    World,
    clone_process,
    is_living,
    next_record,
    print_of,
)


@dataclass
class MemberProcess(Process):
    """A process that subscribes; without hashes its owner does nothing."""

    membership: Membership = field(default_factory=lambda: Membership("g", Subscription("", ())))
    claims: int = 0


@dataclass
class GroupWorld(World):
    """A world whose processes are members of a group."""

    coordinator: Coordinator = field(default_factory=Coordinator)
    drops: int = 0
    highest_primary: int = 0
    handled_by: dict[int, str] = field(default_factory=dict)  # the last process of each key
    handovers: int = 0  # keys that went on with another process, ever
    protocols: tuple[str, ...] = (PROTOCOL,)

    def join(self) -> None:
        """Start a process that subscribes."""
        name = f"m{self.started}"
        self.started += 1
        owner = Owner(T0, f"{name}#0", (), self.log.topic_id, phase=Phase.FENCED)
        membership = Membership("g", Subscription(name, ("orders",)), protocols=self.protocols)
        self.processes[name] = MemberProcess(
            name,
            (),
            GroupLog("g"),
            owner,
            self.log.topic_id,
            is_member=False,
            membership=membership,
        )

    def deliver(self, process: Process) -> None:
        offset = next_record(self, process)
        assert offset is not None
        before = self.handled_by.get(self.keys[offset], process.name)
        super().deliver(process)
        self.handled_by[self.keys[offset]] = process.name
        self.handovers += before != process.name

    def check(self) -> None:
        super().check()
        primary = 0 if self.primary is None else self.primary.offset
        if primary < self.highest_primary and not self.lost_logs:
            raise LawBrokenError(f"primary offset {primary} after {self.highest_primary}")
        self.highest_primary = max(self.highest_primary, primary)

    def clone(self) -> "GroupWorld":
        return replace(
            self,
            log=replace(self.log, records=list(self.log.records)),
            processes={name: clone_member(member_of(p)) for name, p in self.processes.items()},
            acknowledged=set(self.acknowledged),
            promised=set(self.promised),
            coordinator=self.coordinator.clone(),
            handled_by=dict(self.handled_by),
        )

    def fingerprint(self) -> tuple[object, ...]:
        return (
            *super().fingerprint(),
            self.coordinator.fingerprint(),
            self.drops,
            self.highest_primary,
            self.handovers,
            tuple(
                (
                    name,
                    repr(member_of(process).membership),
                    member_of(process).claims,
                    process.hashes,
                    process.is_member,
                )
                for name, process in sorted(self.processes.items())
            ),
        )


def member_of(process: Process) -> MemberProcess:
    assert isinstance(process, MemberProcess)
    return process


def clone_member(process: MemberProcess) -> MemberProcess:
    copy = member_of(clone_process(process))
    membership = process.membership
    copy.membership = replace(membership, owned=dict(membership.owned))
    return copy


def new_group(members: int = 2, records: int = 4) -> GroupWorld:
    """A world with some processes; the records' keys in turn."""
    # At the upper ends of what members own: that is what moves when others join.
    keys = (WHOLE.hi - 5, HALVES[0].hi - 5, WHOLE.hi - 5, 5)
    world = GroupWorld(tuple(keys[i % 4] for i in range(records)))
    for _ in range(members):
        world.join()
    return world


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupLimits:
    """How much may happen in a world, so that it is finite."""

    processes: int = 3
    commits: int = 2
    in_flight: int = 1
    crashes: int = 1
    drops: int = 2
    compactions: int = 1
    lost_logs: int = 0


def group_steps(world: GroupWorld, limits: GroupLimits) -> Iterator[Step]:
    """Everything that can happen next."""
    for name, process in world.processes.items():
        yield from _log_steps(world, process, limits)
        yield from _member_steps(world, member_of(process))
        if world.started < limits.processes:
            yield ("crash", name)
    if world.started < limits.processes:
        yield ("start", "")
    if world.coordinator.can_complete:
        yield ("complete", "")
    for member_id, known in world.coordinator.members.items():
        is_dead = known.process not in world.processes
        if is_dead or (world.drops < limits.drops and not known.awaits_join):
            yield ("drop", member_id)
    if world.compactions < limits.compactions and world.log.records:
        yield ("compact", "")
    if world.lost_logs < limits.lost_logs and world.log.records:
        yield ("lose the log", "")


def _log_steps(world: GroupWorld, process: Process, limits: GroupLimits) -> Iterator[Step]:
    name = process.name
    is_behind = process.log.end < world.log.end or process.topic_id != world.log.topic_id
    if is_behind or not process.is_current:
        yield ("read", name)
    if process.inbox:
        yield ("act", name)
    may_deliver = is_living(process) and len(process.in_flight) < limits.in_flight
    if may_deliver and next_record(world, process) is not None:
        yield ("deliver", name)
    for offset in process.in_flight:
        yield (f"acknowledge {offset}", name)
    can_commit = process.owner.phase is Phase.RUNNING and process.owner.commit is None
    if can_commit and process.commits < limits.commits:
        yield ("commit", name)
    if process.owner.phase is Phase.WAITING:
        yield ("wait", name)


def _member_steps(world: GroupWorld, process: MemberProcess) -> Iterator[Step]:
    name, membership = process.name, process.membership
    if replace(membership).action() is not None:
        yield ("member", name)
    if world.coordinator.mail.get(name):
        yield ("mail", name)
    if membership.generation >= 0 and membership.state is not State.SYNCING:
        code = world.coordinator.heartbeat(membership.member_id, membership.generation)
        if code is not None or not process.is_member:
            yield ("heartbeat", name)
    if membership.has_change:
        yield ("poll", name)


def take_group(world: GroupWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    match what:
        case "start":
            world.join()
        case "crash":
            world.crash(name)
            world.coordinator.mail.pop(name, None)
            world.join()
        case "complete":
            world.coordinator.complete()
        case "drop":
            drop(world, name)
        case "member":
            _act_as_member(world, member_of(world.processes[name]))
        case "mail":
            _receive(world, member_of(world.processes[name]))
        case "heartbeat":
            _heartbeat(world, member_of(world.processes[name]))
        case "poll":
            poll(world, member_of(world.processes[name]))
        case "act" if isinstance(world.processes[name].inbox[0], WritePrimary):
            _write_primary(world, member_of(world.processes[name]))
        case _:
            _know_peers(world)
            base.take(world, step)
            return
    world.check()


def _write_primary(world: GroupWorld, process: MemberProcess) -> None:
    """The coordinator refuses the primary offset of who is no member of this generation."""
    _know_peers(world)
    if may_commit(world, process.membership):
        base._act(world, process)
    else:
        process.inbox.pop(0)
        process.owner.failed()
    base._decide(world, process)


def may_commit(world: GroupWorld, membership: Membership) -> bool:
    """Whether the coordinator takes offsets of a member, also while it prepares a rebalance."""
    code = world.coordinator.heartbeat(membership.member_id, membership.generation)
    return code in {None, Code.REBALANCE_IN_PROGRESS}


def drop(world: GroupWorld, member_id: str) -> None:
    """A member's session times out; by then it has fenced itself."""
    known = world.coordinator.members[member_id]
    world.coordinator.remove(member_id)
    if known.process in world.processes:
        world.drops += 1
        process = member_of(world.processes[known.process])
        if process.membership.member_id == member_id:
            process.is_member = False


def poll(world: GroupWorld, process: MemberProcess) -> None:
    """What was returned is processed; then revoke, claim, and say so."""
    change = process.membership.take()
    if change is None:
        return
    world.acknowledged |= set(process.in_flight)
    process.in_flight = []
    apply_change(world, process, change)
    process.membership.applied()


def apply_change(world: GroupWorld, process: MemberProcess, change: Change) -> None:
    """Give up what was claimed, and claim what is assigned, if that is something else."""
    hashes = () if T0 not in change.assigned else change.assigned[T0] or (WHOLE,)
    if hashes == process.hashes:
        return
    if process.hashes:
        process.inbox = [a for a in process.inbox if isinstance(a, Delete)]
        process.inbox.append(Delete((Key(0, "claim", T0, (process.owner.member,)),)))
    process.claims += 1
    process.hashes, process.position = hashes, 0
    epoch = change.epoch if change.topic_id == process.topic_id else None
    name = f"{process.name}#{process.claims}"
    process.owner = Owner(T0, name, hashes, process.topic_id, epoch=epoch, self_fencing=True)
    if not hashes:
        process.owner.phase = Phase.FENCED  # it does nothing
    _know_peers(world)
    base._decide(world, process)


def _know_peers(world: GroupWorld) -> None:
    for process in world.processes.values():
        epoch = process.owner.epoch
        record = None if epoch is None else process.log.epochs.get(epoch)
        process.owner.peers = None if record is None else record.names


def _act_as_member(world: GroupWorld, process: MemberProcess) -> None:
    match process.membership.action():
        case Join() as join:
            world.coordinator.mail.pop(process.name, None)
            world.coordinator.join(process.name, join)
        case Plan(generation, members) as plan if plan.protocol == RANGE:
            sent = plan_range(members, {"orders": 1}, {}).assignments
            process.membership.planned(generation, sent)
        case Plan(generation, members):
            planned = plan_generation(generation, process.name, members, {"orders": 1})
            position = world.log.end
            world.log.append(key_of(planned.epoch), planned.epoch)
            process.membership.planned(
                generation, planned.assignments(position, world.log.topic_id)
            )
        case Sync() as sync:
            world.coordinator.sync(process.name, sync)
        case Leave(member_id) if member_id in world.coordinator.members:
            world.coordinator.remove(member_id)
        case _:
            pass


def _receive(world: GroupWorld, process: MemberProcess) -> None:
    first, *others = world.coordinator.mail[process.name]
    world.coordinator.mail[process.name] = tuple(others)
    first(process.membership)
    _hear(world, process)


def _heartbeat(world: GroupWorld, process: MemberProcess) -> None:
    membership = process.membership
    code = world.coordinator.heartbeat(membership.member_id, membership.generation)
    if code is not None:
        membership.heartbeat_refused(code)
    _hear(world, process)


def _hear(world: GroupWorld, process: MemberProcess) -> None:
    """It was heard of, if it is still a member; what is lost is not handed out any more."""
    membership = process.membership
    process.is_member = membership.member_id in world.coordinator.members and not membership.is_lost


# -- ways through ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BrokenGroup:
    """A way to a state in which a law does not hold."""

    trace: tuple[Step, ...]
    law: str


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
) -> tuple[Seen, BrokenGroup | None]:
    """Take every step in every order, up to a depth.

    Returns:
        The states that were seen, and the way to a broken law, from one of the starts.
    """
    marks, seen = set[object](), Seen()
    border: list[tuple[GroupWorld, tuple[Step, ...]]] = []

    def put(world: GroupWorld, trace: tuple[Step, ...]) -> None:
        mark = world.fingerprint()
        if mark not in marks:
            marks.add(mark)
            seen.add(world)
            border.append((world, trace))

    for start in starts:
        put(start, ())
    for _ in range(depth):
        last, border = border, []
        for world, trace in last:
            for step in group_steps(world, limits):
                after = world.clone()
                try:
                    take_group(after, step)
                except LawBrokenError as error:
                    return seen, BrokenGroup((*trace, step), str(error))
                put(after, (*trace, step))
    return seen, None


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
    marks = {world.fingerprint()}
    after: GroupWorld | None = world
    while after is not None:
        world, after = after, None
        yield world
        possible = sorted(
            (step for step in group_steps(world, limits) if step[0].split()[0] in verbs),
            key=lambda step: (is_late(step), verbs.index(step[0].split()[0])),
        )
        for step in possible:
            after = world.clone()
            take_group(after, step)
            if after.fingerprint() not in marks:
                marks.add(after.fingerprint())
                break
            after = None


def running(limits: GroupLimits) -> GroupWorld:
    """Two members run, with a record each in hand."""
    world = new_group(2)
    finish_group(world, until=0)
    for step in list(group_steps(world, limits)):
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
    drop(world, member_of(world.processes["m0"]).membership.member_id)
    world.drops = 0
    return world


def joined(world: GroupWorld) -> GroupWorld:
    """A third member is started."""
    world.join()
    return world


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
    the_lead_is_dropped,
    the_lead_is_slow,
)
"""The ways on which hashes or the lead change hands; every interleaving begins anywhere on one."""


def walk_group(
    limits: GroupLimits, length: int, seed: int, *, members: int = 2, settled: bool = True
) -> BrokenGroup | None:
    """One random way through the world.

    Args:
        limits: How much may happen.
        length: Maximum number of steps.
        seed: Of the random numbers.
        members: Processes to begin with.
        settled: Begin when all of them run.
    """
    world, draw, trace = new_group(members), random.Random(seed), []
    if settled:
        finish_group(world, until=0)
        for step in list(group_steps(world, limits)):
            if step[0] == "deliver":  # all have something in hand when things change
                take_group(world, step)
    slow = draw.choice([None, *world.processes])
    reads_late = draw.choice([None, *world.processes])
    for _ in range(length):
        possible = list(group_steps(world, limits))
        if not possible:
            break
        weights = [
            0.05
            if name == slow
            or (what == "read" and name == reads_late)
            or what.startswith("acknowledge")
            else 1
            for what, name in possible
        ]
        (step,) = draw.choices(possible, weights)
        trace.append(step)
        try:
            take_group(world, step)
        except LawBrokenError as error:
            return BrokenGroup(tuple(trace), str(error))
    return None


def finish_group(world: GroupWorld, until: int | None = None) -> None:
    """Let no more go wrong: the group settles, and everyone processes and commits all there is.

    Args:
        world: The world.
        until: No record from this offset on is handed out; None for all.
    """
    limits = GroupLimits(0, commits=1_000, in_flight=1_000, crashes=0, drops=0, compactions=0)
    verbs = ("drop", "heartbeat", "member", "mail", "complete", "poll", "read", "act", "wait")
    late = ("deliver", "acknowledge", "commit")
    for _ in range(30):
        for verb in (*verbs, *(late if until is None else ())):
            for step in list(group_steps(world, limits)):
                if step[0].split()[0] == verb and step in set(group_steps(world, limits)):
                    take_group(world, step)


def settled(world: GroupWorld) -> bool:
    """Whether the group is stable, and all hashes are with a member that delivers."""
    owned = [part for p in world.processes.values() if is_living(p) for part in p.hashes]
    total = sum(part.width for part in owned)
    return world.coordinator.stage is Stage.STABLE and total == WHOLE.width


__all__ = [
    "WAYS",
    "GroupLimits",
    "Seen",
    "Way",
    "explore_group",
    "finish_group",
    "group_steps",
    "new_group",
    "print_of",
    "settled",
    "take_group",
    "walk_group",
]
