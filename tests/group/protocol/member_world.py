"""The small world with a group: a coordinator, members that come and go, and what they own.

On top of :mod:`tests.group.protocol.world`: each process runs a :class:`.GroupMember`, and claims
what it was assigned. Each has a clock of its own, which goes on where the coordinator drops it: for
so long it was not heard of, or it has not joined a rebalance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from kshare.core.hashing import WHOLE
from kshare.group.core.member import GroupMember
from kshare.group.protocol.commit_log.records import Key, Record, key_of
from kshare.group.protocol.membership.holdings import Change
from kshare.group.protocol.membership.membership_state import Membership, State
from kshare.group.protocol.membership.requests import (
    Code,
    FindCoordinator,
    Heartbeat,
    Join,
    Leave,
    PlanRequest,
    Request,
    Sync,
)
from kshare.group.protocol.membership.subscription import PROTOCOL, RANGE
from kshare.group.protocol.owners.actions import WritePrimary
from kshare.group.protocol.plan.generation import Generation, plan_generation, plan_range
from tests.group.protocol import world as base
from tests.group.protocol.coordinator import Coordinator, Stage
from tests.group.protocol.member_process import (
    REBALANCE,
    SESSION,
    MemberProcess,
    member_of,
    new_member,
)
from tests.group.protocol.owning import new_ownerships
from tests.group.protocol.process import T0, Process
from tests.group.protocol.world import (
    HALVES,
    LawBrokenError,
    Limits,
    Step,
    World,
    damage_steps,
    log_steps,
    vanish_steps,
)


class WritableLog(Protocol):
    """A log, as far as leaders need it."""

    end: int
    topic_id: str

    def append(self, key: Key, record: Record | None) -> None: ...


class InGroup(Protocol):
    """A world whose processes are members of a group, as far as membership needs it."""

    coordinator: Coordinator
    drops: int

    @property
    def log(self) -> WritableLog: ...

    @property
    def processes(self) -> Mapping[str, Process]: ...

    def own(self, name: str) -> Process: ...


@dataclass
class GroupWorld(World):
    """A world whose processes are members of a group."""

    coordinator: Coordinator = field(default_factory=Coordinator)
    drops: int = 0
    failovers: int = 0
    highest_primary: int = 0
    handled_by: dict[int, str] = field(default_factory=dict)  # the last process of each key
    handovers: int = 0  # keys that went on with another process, ever
    protocols: tuple[str, ...] = (PROTOCOL,)

    def join(self) -> None:
        """Start a process that subscribes."""
        name = f"m{self.started}"
        self.started += 1
        self.processes[name] = MemberProcess(
            name,
            new_ownerships(name, self.log.topic_id),
            is_member=False,
            member=new_member(name, self.protocols),
        )

    def give(self, process: Process, offset: int) -> None:
        before = self.handled_by.get(self.keys[offset], process.name)
        super().give(process, offset)
        self.handled_by[self.keys[offset]] = process.name
        self.handovers += before != process.name

    def check(self) -> None:
        super().check()
        for process in self.processes.values():
            membership = member_of(process).membership
            if membership.fault is not None and membership.said.ordered:
                raise LawBrokenError(f"{process.name} is no member any more: {membership.fault}")
        primary = 0 if self.primary is None else self.primary.offset
        if primary < self.highest_primary and not self.lost_logs:
            raise LawBrokenError(f"primary offset {primary} after {self.highest_primary}")
        self.highest_primary = max(self.highest_primary, primary)

    def clone(self) -> Self:
        world = super().clone()
        world.coordinator, world.handled_by = self.coordinator.clone(), dict(self.handled_by)
        return world

    def fingerprint(self) -> tuple[object, ...]:
        return (
            *super().fingerprint(),
            self.coordinator.fingerprint(),
            self.drops,
            self.failovers,
            self.highest_primary,
            self.handovers,
        )


def new_group(members: int = 2, records: int = 4, per_call: int = 1) -> GroupWorld:
    """A world with some processes; the records' keys in turn."""
    world = GroupWorld(tuple(KEYS[i % len(KEYS)] for i in range(records)), per_call=per_call)
    for _ in range(members):
        world.join()
    return world


KEYS = (WHOLE.hi - 5, HALVES[0].hi - 5, WHOLE.hi - 5, 5)
"""Key hashes of the records: at the upper ends of what members own, which move when others join."""


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupLimits(Limits):
    """How much may happen in a world, so that it is finite."""

    commits: int = 2
    drops: int = 2
    per_call: int = 1
    failovers: int = 0
    late_plans: int = 0  # at once, of each process
    late_beats: bool = False  # answers to heartbeats take their time, and all else goes on
    drains: bool = False  # handlers take their time with what is revoked, and all else goes on


def group_steps(world: GroupWorld, limits: GroupLimits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    for name, process in world.processes.items():
        draining = member_of(process).draining
        of_log = log_steps(world, process, limits)
        # Who drains polls no records, and commits at the end of it.
        possible += [each for each in of_log if not (draining and each[0] in {"deliver", "commit"})]
        if draining is not None:
            possible.append(("drained", name))
        possible += membership_steps(world, member_of(process))
        possible += _late_plans(member_of(process), limits)
        possible += _late_beats(member_of(process), limits)
        if world.failovers and is_unknown_while_it_waits(world, member_of(process)):
            possible.append(("heartbeat", name))
        if member_of(process).membership.has_change:
            possible.append(("poll", name))
            if limits.drains and process.in_flight:
                possible.append(("drain", name))
        if world.started < limits.processes:
            possible.append(("crash", name))
    if world.started < limits.processes:
        possible.append(("start", ""))
    possible += coordinator_steps(world, limits.drops)
    if world.failovers < limits.failovers:
        possible.append(("fail over", ""))
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    possible += damage_steps(world, limits.damages)
    possible += vanish_steps(world, limits.vanishes)
    if world.lost_logs < limits.lost_logs and world.log.records:
        possible.append(("lose the log", ""))
    return possible


def _late_plans(process: MemberProcess, limits: GroupLimits) -> list[Step]:
    """A plan waits for a broker, or for a user's assignor; the plans that have waited.

    Meanwhile the coordinator may fail over.
    """
    possible = [(f"plan {plan.number}", process.name) for plan, _ in process.late]
    if process.late and process.membership.state is State.SYNCING:
        possible.append(("disconnect", process.name))
    wanted = process.membership._next
    is_next = isinstance(wanted, PlanRequest) and wanted.protocol != RANGE
    if is_next and len(process.late) < limits.late_plans:
        possible.append(("think", process.name))
    return possible


def _late_beats(process: MemberProcess, limits: GroupLimits) -> list[Step]:
    """A heartbeat that the coordinator answers, and its answer, which is heard later."""
    if process.beaten is not None:
        return [("heard", process.name)]
    is_member = process.membership.generation >= 0 and process.membership.member_id
    return [("beat", process.name)] if limits.late_beats and is_member else []


def coordinator_steps(world: InGroup, drops: int) -> list[Step]:
    """What the coordinator can do by itself; it drops so many members that live."""
    possible: list[Step] = []
    if world.coordinator.can_complete:
        possible.append(("complete", ""))
    for member_id, known in world.coordinator.members.items():
        is_dead = known.process not in world.processes
        if is_dead or (world.drops < drops and not known.awaits_join):
            possible.append(("drop", member_id))
    return possible


def has_action(membership: Membership) -> bool:
    """True if its ``action`` says something; to ask that costs a copy and an encoded text."""
    return membership._next is not None or membership._may_join


def membership_steps(world: InGroup, process: MemberProcess) -> list[Step]:
    """What a process can do next as a member, but for what the thread that polls does."""
    possible: list[Step] = []
    name, membership = process.name, process.membership
    if has_action(membership):
        possible.append(("member", name))
    if world.coordinator.mail.get(name):
        possible.append(("mail", name))
    is_silent = process.beaten is not None or membership.state is State.SYNCING
    if membership.generation >= 0 and not is_silent:
        code = world.coordinator.heartbeat(membership.member_id, membership.generation)
        if code is not None or not process.is_member:
            possible.append(("heartbeat", name))
    return possible


def is_unknown_while_it_waits(world: InGroup, process: MemberProcess) -> bool:
    """Whether a heartbeat tells a member that waits for SyncGroup that it waits in vain."""
    membership = process.membership
    code = world.coordinator.heartbeat(membership.member_id, membership.generation)
    is_over = code in {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION}
    return membership.state is State.SYNCING and is_over and process.beaten is None


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
        case "complete" | "drop" | "member" | "mail" | "heartbeat":
            take_as_member(world, step)
        case "fail over":
            fail_over(world)
        case "disconnect":
            disconnect(member_of(world.own(name)))
        case "beat":
            _beat(world, member_of(world.own(name)))
        case "heard":
            _hear(member_of(world.own(name)))
        case "think":
            think(world, member_of(world.own(name)))
        case _ if what.startswith("plan "):
            end_plan(world, member_of(world.own(name)), int(what.split()[1]))
        case "poll" | "drain" | "drained":
            {"poll": poll, "drain": drain, "drained": drained}[what](
                world, member_of(world.own(name))
            )
        case "act" if isinstance(world.processes[name].wanted[0][1], WritePrimary):
            _write_primary(world, member_of(world.own(name)))
        case _:
            base.take(world, step)
            return
    world.check()


def take_as_member(world: InGroup, step: Step) -> None:
    """Let something happen between the coordinator and a member."""
    what, name = step
    match what:
        case "complete":
            world.coordinator.complete()
        case "drop":
            drop(world, name)
        case "member":
            _act_as_member(world, member_of(world.own(name)))
        case "mail":
            _receive(world, member_of(world.own(name)))
        case "heartbeat":
            _heartbeat(world, member_of(world.own(name)))


def _write_primary(world: GroupWorld, process: MemberProcess) -> None:
    """The coordinator refuses the primary offset of who is no member of this generation."""
    if not process.member.committable((T0,)):
        leave_to_others(process)
    elif takes_offsets(world, process.membership):
        base._act(world, process)
    else:
        process.fail()
    base._decide(world, process)


def leave_to_others(process: Process) -> None:
    """Who is no member writes no primary offset: whoever owns its hashes now does."""
    _, is_awaited = process.next_action()
    if is_awaited:
        process.owner.dropped()


def takes_offsets(world: InGroup, membership: Membership) -> bool:
    """Whether the coordinator takes offsets of a member, also while it prepares a rebalance."""
    code = world.coordinator.heartbeat(membership.member_id, membership.generation)
    return code in {None, Code.REBALANCE_IN_PROGRESS}


def drop(world: InGroup, member_id: str) -> None:
    """A member's session times out, or a rebalance: what it has sent since was late."""
    known = world.coordinator.members[member_id]
    is_rebalancing = world.coordinator.stage is Stage.PREPARING and not known.awaits_join
    world.coordinator.remove(member_id)
    if known.process in world.processes:
        world.drops += 1
        process = member_of(world.own(known.process))
        if process.membership.member_id == member_id:
            sleep(process, is_rebalancing=is_rebalancing)


def sleep(process: MemberProcess, *, is_rebalancing: bool) -> None:
    """Its clock goes on; if the group waits for it to join, its heartbeats were answered."""
    _hear(process)
    process.now += REBALANCE if is_rebalancing else SESSION
    beat = next_request(process, beats=True) if is_rebalancing else None
    if isinstance(beat, Heartbeat):
        code = Code.REBALANCE_IN_PROGRESS
        process.member.heartbeat_answered(beat, code, process.now, is_refused=True)
    process.now += 1.0
    process.look_at_clock()


def fail_over(world: GroupWorld) -> None:
    """Another broker coordinates; who waits for an answer to JoinGroup or SyncGroup asks again."""
    world.failovers += 1
    for name in world.coordinator.fail_over():
        if name in world.processes:
            disconnect(member_of(world.own(name)))


def disconnect(process: MemberProcess) -> None:
    """No answer comes: it finds the coordinator again, and asks once more."""
    process.beaten = None
    process.member.failed(process.now, "")


def poll(world: GroupWorld, process: MemberProcess) -> None:
    """What was returned is processed; then revoke, claim, and say so."""
    drain(world, process)
    if process.draining is not None:
        drained(world, process)


def drain(world: GroupWorld, process: MemberProcess) -> None:
    """The thread that polls is told of a change, and waits for handlers."""
    process.draining = process.membership.take()


def drained(world: GroupWorld, process: MemberProcess) -> None:
    """Its handlers have ended: revoke, claim, and say so, whatever has been assigned since."""
    change, process.draining = process.draining, None
    assert change is not None
    world.acknowledged |= set(process.in_flight)
    process.in_flight = []
    apply_change(world, process, change)
    process.membership.applied()


def apply_change(world: GroupWorld, process: MemberProcess, change: Change) -> None:
    """Own what is assigned."""
    claim_assigned(process, change)
    base._decide(world, process)


def claim_assigned(process: MemberProcess, change: Change) -> None:
    """As its consumer: own what is assigned, and nothing else."""
    epoch = None if change.epoch is None else (change.epoch, change.topic_id)
    process.claim(change.assigned, epoch=epoch, self_fencing=True)


def _act_as_member(world: InGroup, process: MemberProcess) -> None:
    match next_request(process):
        case Join() as join:
            world.coordinator.mail.pop(process.name, None)
            world.coordinator.join(process.name, join)
        case PlanRequest(generation, members) as plan if plan.protocol == RANGE:
            sent = plan_range(members, {"orders": 1}, {}).assignments
            process.membership.planned(plan, sent)
        case PlanRequest(generation, members) as plan:
            planned = plan_generation(generation, process.name, members, {"orders": 1})
            _write_epoch(world, process, plan, planned)
        case Sync() as sync:
            unnamed = world.coordinator.unnamed(sync)
            if unnamed:
                raise LawBrokenError(f"{process.name} has planned without {', '.join(unnamed)}")
            world.coordinator.sync(process.name, sync)
        case Leave(member_id) if member_id in world.coordinator.members:
            world.coordinator.remove(member_id)
        case _:
            pass
    process.look_at_clock()


def next_request(process: MemberProcess, *, beats: bool = False) -> Request | None:
    """What it sends next: a heartbeat, or what else there is; any time may be that of either."""
    process.member.schedule.heartbeat_at = process.now if beats else float("inf")
    while isinstance(request := process.member.request(process.now), FindCoordinator):
        process.beaten = None
    return request


def think(world: GroupWorld, process: MemberProcess) -> None:
    """Begin a plan, which takes long."""
    plan = next_request(process)
    assert isinstance(plan, PlanRequest)
    planned = plan_generation(plan.generation, process.name, plan.members, {"orders": 1})
    process.late = (*process.late, (plan, planned))


def end_plan(world: GroupWorld, process: MemberProcess, number: int) -> None:
    """A plan that took long is made; it counts if it is still wanted."""
    ((plan, planned),) = (each for each in process.late if each[0].number == number)
    process.late = tuple(each for each in process.late if each[0] is not plan)
    if process.membership.awaits_plan(plan):
        _write_epoch(world, process, plan, planned)


def _write_epoch(
    world: InGroup, process: MemberProcess, plan: PlanRequest, planned: Generation
) -> None:
    """Write the epoch of a plan; no process writes an earlier one after a later one."""
    if plan.number <= process.wrote:
        raise LawBrokenError(f"epoch of plan {plan.number} after that of {process.wrote}")
    process.wrote = plan.number
    if not process.keeps_log:
        process.plan(plan, planned, None, "")
        return
    position = world.log.end
    world.log.append(key_of(planned.epoch), planned.epoch)
    process.plan(plan, planned, position, world.log.topic_id)


def _receive(world: InGroup, process: MemberProcess) -> None:
    first, *others = world.coordinator.mail[process.name]
    world.coordinator.mail[process.name] = tuple(others)
    first(Receiver(process.member, process.now))
    process.look_at_clock()


@dataclass(frozen=True)
class Receiver:
    """A member as the coordinator's answers find it, at a time of its clock."""

    member: GroupMember
    now: float

    @property
    def joined(self) -> Any:
        return self.member.joined

    def synced(self, assignment: bytes) -> None:
        self.member.synced(assignment, self.now)

    def refused(self, code: Code) -> None:
        self.member.refused(code, self.now)


def _heartbeat(world: InGroup, process: MemberProcess) -> None:
    _beat(world, process)
    _hear(process)


def _beat(world: InGroup, process: MemberProcess) -> None:
    """It sends a heartbeat, and the coordinator answers."""
    beat = next_request(process, beats=True)
    assert isinstance(beat, Heartbeat)
    process.beaten = beat, world.coordinator.heartbeat(beat.member_id, beat.generation)


def _hear(process: MemberProcess) -> None:
    """The answer to a heartbeat arrives, if one is on its way."""
    beaten, process.beaten = process.beaten, None
    if beaten is not None:
        beat, code = beaten
        process.member.heartbeat_answered(beat, code, process.now, is_refused=code is not None)
        process.look_at_clock()
