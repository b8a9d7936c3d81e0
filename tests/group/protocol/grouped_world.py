"""The small world of a group whose members commit by transactions: membership and transactions.

On top of :mod:`.transactional_world`, with what :mod:`.member_world` says of members: a process
subscribes, claims what it was assigned under the id of its transactions, and follows the group only
between two transactions. A leader sends nothing before it has read its epoch back, and what is open
of another member may hide that.
"""

from dataclasses import dataclass, field
from typing import Self

from kshare.group.protocol.commit_log.commit import known_progress
from kshare.group.protocol.membership.membership_state import State
from kshare.group.protocol.membership.requests import PlanRequest
from kshare.group.protocol.owners import takeover
from kshare.group.protocol.owners.actions import Delete, WritePrimary
from kshare.group.protocol.owners.owner import Phase
from kshare.group.protocol.plan.generation import Generation
from tests.group.protocol import member_world
from tests.group.protocol import transactional_world as transactional
from tests.group.protocol.coordinator import Coordinator
from tests.group.protocol.member_process import MemberProcess, new_member
from tests.group.protocol.member_world import (
    KEYS,
    claim_assigned,
    coordinator_steps,
    is_unknown_while_it_waits,
    membership_steps,
    take_as_member,
)
from tests.group.protocol.owning import new_ownerships
from tests.group.protocol.process import T0, Process
from tests.group.protocol.transactional_member import Member, ensure_open, may_take
from tests.group.protocol.transactional_world import Limits, TransactionalWorld
from tests.group.protocol.world import LawBrokenError, Step, is_living


@dataclass
class GroupedMember(Member, MemberProcess):
    """A process that subscribes, and whose facts go into transactions."""

    planned: tuple[PlanRequest, Generation] | None = (
        None  # whose epoch it has written, and not read back
    )
    unblocked: frozenset[str] = frozenset()  # ids whose transactions may have hidden that
    left: tuple[tuple[object, ...], bool] | None = None  # by what, and whether some is pending

    def fingerprint(self) -> tuple[object, ...]:
        planned = self.planned and self.planned[1].epoch
        return (*super().fingerprint(), self.transactional_id, planned, self.unblocked)

    @property
    def is_lost(self) -> bool:
        return self.membership.is_lost

    @property
    def is_disturbed(self) -> bool:
        return self.membership.has_change

    def plan(
        self, plan: PlanRequest, planned: Generation, position: int | None, topic_id: str
    ) -> None:
        self.planned, self.unblocked = (plan, planned), frozenset()

    @property
    def epoch_read_back(self) -> int | None:
        """Where the epoch is that it has written; None while it has not read that back."""
        if self.planned is None:
            return None
        wanted = self.planned[1].epoch
        return next((at for at, epoch in self.log.epochs.items() if epoch == wanted), None)

    @property
    def hiding(self) -> frozenset[str]:
        """Transactional ids that may hide the epoch that it waits for."""
        if self.planned is None or self.epoch_read_back is not None:
            return frozenset()
        return takeover.dropped_ids(self.log, self.planned[1].epoch.names) - self.unblocked

    @property
    def may_look(self) -> bool:
        """Whether it learns from the log that others have claimed what it owns."""
        is_fenced = self.owner.phase is Phase.FENCED and bool(self.hashes)
        membership = self.membership
        return is_fenced and not membership.is_lost and membership.state is not State.ENDED

    @property
    def may_hang(self) -> bool:
        """Whether the coordinator knows it, so that it leaves if nobody polls."""
        membership = self.membership
        is_in = membership.state is not State.ENDED and not membership.is_lost
        return is_in and bool(membership.member_id)


@dataclass
class GroupedWorld(TransactionalWorld):
    """A world whose members come and go, and commit by transactions."""

    coordinator: Coordinator = field(default_factory=Coordinator)
    drops: int = 0
    highest_primary: int = 0
    handled_by: dict[int, str] = field(default_factory=dict)  # the last process of each key
    handovers: int = 0  # keys that went on with another process, ever
    torn: int = 0  # members that were dropped, left or killed amid a transaction, ever

    @property
    def processes(self) -> dict[str, Member]:
        """The members, as membership knows them."""
        return self.members

    def join(self, transactional_id: str | None = None) -> None:
        """Start a process that subscribes.

        Args:
            transactional_id: Id of its transactions; None for one that nobody had before.
        """
        name = f"m{self.started}"
        transactional_id = transactional_id or f"t-{name}"
        self.started += 1
        owned = new_ownerships(name, self.log.topic_id, transactional_id=transactional_id)
        self.members[name] = GroupedMember(
            name,
            owned,
            is_member=False,
            transactional_id=transactional_id,
            member=new_member(name),
        )
        self.transactions.epochs.setdefault(transactional_id, 0)

    def check_delivery(self, member: Member, offset: int) -> None:
        super().check_delivery(member, offset)
        hash_ = self.keys[offset]
        for other in self.members.values():
            has_key = any(self.keys[held] == hash_ for held in other.in_flight)
            if other is not member and has_key and is_living(other):
                raise LawBrokenError(f"key {hash_} is with {other.name} and {member.name}")
        ended = self.transactions.open.get(member.transactional_id)
        known = {*self.outputs, *member.in_flight, *(ended.outputs if ended else ())}
        earlier = {at for at in range(offset) if self.keys[at] == hash_} - known
        if earlier:
            raise LawBrokenError(f"offset {offset} before {min(earlier)} of the same key")
        self.handovers += self.handled_by.get(hash_, member.name) != member.name
        self.handled_by[hash_] = member.name

    def check(self) -> None:
        super().check()
        primary = 0 if self.primary is None else self.primary.offset
        if primary < self.highest_primary:
            raise LawBrokenError(f"primary offset {primary} after {self.highest_primary}")
        self.highest_primary = primary

    def clone(self) -> Self:
        world = super().clone()
        world.coordinator = self.coordinator.clone()
        world.handled_by = dict(self.handled_by)
        return world

    def fingerprint(self) -> tuple[object, ...]:
        return (
            *super().fingerprint(),
            self.coordinator.fingerprint(),
            self.drops,
            self.highest_primary,
            self.handovers > 0,
            self.torn > 0,
        )


def grouped_of(process: Process) -> GroupedMember:
    assert isinstance(process, GroupedMember)
    return process


def new_grouped(members: int = 2, *, shares_ids: bool = False) -> GroupedWorld:
    """A world with some processes; the records' keys in turn.

    Args:
        members: Number of processes.
        shares_ids: Whether who is started in the place of another one has the same id.
    """
    world = GroupedWorld(KEYS, shares_ids=shares_ids)
    for _ in range(members):
        world.join()
    return world


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedLimits(Limits):
    """How much may happen in a world.

    Attributes:
        drops: How many living members the coordinator drops, or leave as nobody polls.
    """

    drops: int = 2


def grouped_steps(world: GroupedWorld, limits: GroupedLimits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    end = transactional.read_to(world)
    for name, each in world.members.items():
        member = grouped_of(each)
        verbs = transactional.log_verbs(world, limits, member, end)
        verbs += transactional.transactional_verbs(limits, member)
        possible += [(verb, name) for verb in verbs]
        possible += membership_steps(world, member)
        possible += [(verb, name) for verb in _grouped_verbs(world, limits, member)]
    if world.started < limits.members:
        possible.append(("start", ""))
    possible += coordinator_steps(world, limits.drops)
    return possible + transactional.broker_steps(world, limits)


def _grouped_verbs(world: GroupedWorld, limits: GroupedLimits, member: GroupedMember) -> list[str]:
    verbs = []
    if may_pass(world, member):
        verbs.append("pass")
    if member.epoch_read_back is not None:
        verbs.append("sync")
    if member.hiding:
        verbs.append("unblock")
    if member.may_look:
        verbs.append("look")
    if is_unknown_while_it_waits(world, member):
        verbs.append("heartbeat")
    if may_follow(member):
        verbs.append("poll")
    if world.drops < limits.drops and member.may_hang:
        verbs.append("hang")
    if world.started < limits.members:
        verbs += ("crash", "leave")
    return verbs


def may_pass(world: GroupedWorld, member: GroupedMember) -> bool:
    """Whether what is left are records of others, and the log does not say that it passed them."""
    if not (member.is_current and member.is_member and may_take(member)):
        return False
    end = len(world.keys)
    if member.next_position == end or transactional.next_record(world, member) is not None:
        return False
    by = (member.log.end, member.owner.done, member.hashes)
    if member.left is None or member.left[0] != by:
        known = known_progress(member.part(), member.owner.done)
        member.left = by, bool(known.pending_of(end, member.hashes))
    return member.left[1]


def may_follow(member: GroupedMember) -> bool:
    """Whether it does what the group wants: between two transactions, once the last is decided."""
    return member.membership.has_change and member.state.is_settled


def take_grouped(world: GroupedWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    match what:
        case "start":
            world.join()
        case "complete" | "drop" | "member" | "mail" | "heartbeat":
            _take_as_member(world, step)
        case "act" if isinstance(world.members[name].wanted[0][1], WritePrimary):
            write_primary(world, grouped_of(world.own(name)))
        case "pass":
            pass_over(world.own(name), len(world.keys))
        case "sync" | "unblock" | "look" | "hang" | "poll" | "crash" | "leave":
            globals()[what](world, grouped_of(world.own(name)))  # a fault may be in its place
        case _:
            transactional.take(world, step)
            return
    world.check()


def _take_as_member(world: GroupedWorld, step: Step) -> None:
    busy = {
        name for name, member in world.members.items() if member.state.is_open and member.is_member
    }
    take_as_member(world, step)
    world.torn += any(not world.members[name].is_member for name in busy)


def pass_over(member: Member, end: int) -> None:
    """All that is left of its hashes is processed, as there is nothing."""
    ensure_open(member)
    member.position, member.passes = end, True


def sync(world: GroupedWorld, member: GroupedMember) -> None:
    """Send what was planned, under the epoch that was read back."""
    epoch = member.epoch_read_back
    assert member.planned is not None
    (plan, planned), member.planned = member.planned, None
    member.membership.planned(plan, planned.assignments(epoch, member.topic_id))


def unblock(world: GroupedWorld, member: GroupedMember) -> None:
    """As the leader, abort what may hide the epoch: nobody else is assigned anything before."""
    hiding = member.hiding
    member.unblocked |= hiding
    transactional.fence(world, hiding)


def look(world: GroupedWorld, member: GroupedMember) -> None:
    """Others have claimed what it owns: it counts no longer, and joins again under its id."""
    world.torn += member.state.is_open and member.is_member
    member.member.fenced()
    member.look_at_clock()


def hang(world: GroupedWorld, member: GroupedMember) -> None:
    """Nobody polls: it leaves by itself, and does no more until somebody does."""
    world.drops += 1
    world.torn += member.state.is_open and member.is_member
    member.member.polled(float("-inf"))
    member.member.watch_polls(member.now)
    member.member.polled(float("inf"))
    member.look_at_clock()


def poll(world: GroupedWorld, member: GroupedMember) -> None:
    """Give up, claim, and say so; what was handed out before is committed, or was aborted."""
    change = member.membership.take()
    assert change is not None
    claim_assigned(member, change)
    member.decide()
    member.membership.applied()


def write_primary(world: GroupedWorld, member: GroupedMember) -> None:
    """As a member of its generation; one that is lost leaves it to who owns its hashes now."""
    if not member.member.committable((T0,)):
        member_world.leave_to_others(member)
    elif member_world.takes_offsets(world, member.membership):
        transactional.act(world, member)
    else:
        member.fail()
    member.decide()


def crash(world: GroupedWorld, member: GroupedMember) -> None:
    """Kill -9: what it has open stays open. Another one is started in its place."""
    world.torn += member.state.is_open
    _end(world, member)


def leave(world: GroupedWorld, member: GroupedMember) -> None:
    """Close it: it gives up its claim, unless a transaction of it may still be open, and leaves."""
    inbox = list(member.inbox)
    transactional.close(world, member)
    if not member.state.keeps_claims:
        for action in inbox:
            if isinstance(action, Delete):
                transactional.delete(world, action.keys)
    last = member.member.leave()
    if last is not None and last.member_id in world.coordinator.members:
        world.coordinator.remove(last.member_id)
    _end(world, member)


def _end(world: GroupedWorld, member: GroupedMember) -> None:
    del world.members[member.name]
    world.coordinator.mail.pop(member.name, None)
    world.join(member.transactional_id if world.shares_ids else None)
