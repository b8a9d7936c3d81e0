"""A small world for transactions: a log with transactions, their coordinator, members, faults.

As :mod:`.world`, with outputs beside facts: each record of the data partition is to have its output
exactly once, and the outputs of a key in order. After a reset, once more from there on.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final, Self

from kshare.core.hashing import ALL_HASHES, KeyRanges, split
from kshare.core.progress import Progress
from kshare.group.core.transaction_state import ProducerEpoch, Stage, TransactionAction
from kshare.group.protocol.commit_log import commit
from kshare.group.protocol.commit_log.records import Key, Record, Reset, key_of
from kshare.group.protocol.commit_log.start import Primary
from kshare.group.protocol.owners.actions import (
    Delete,
    Fence,
    FetchPrimary,
    ResolveInitial,
    Unblock,
    Write,
    WritePrimary,
)
from kshare.group.protocol.owners.owner import Phase
from tests.group.protocol import transactional_member
from tests.group.protocol.owning import new_ownerships, shallow
from tests.group.protocol.process import DAMAGED, T0, apply_record, marks_of, own
from tests.group.protocol.transactional_log import (
    Transaction,
    TransactionalLog,
    TransactionCoordinator,
)
from tests.group.protocol.transactional_member import (
    Member,
    action_of,
    ask_commit,
    ensure_open,
    give_up,
    may_take,
    part_of,
    processed,
)
from tests.group.protocol.world import (
    HALVES,
    LawBrokenError,
    Step,
    is_own,
    is_pending,
    may_settle,
    repair_steps,
)


def is_visible(log: TransactionalLog, number: int) -> bool:
    """Whether a reader of committed records sees the records of a transaction that has ended."""
    return number not in log.aborted


def read_to(world: "TransactionalWorld") -> int:
    """The end of what a reader of committed records is given."""
    return world.log.stable(world.transactions)


@dataclass
class TransactionalWorld:
    """The state of everything."""

    keys: tuple[int, ...]
    log: TransactionalLog = field(default_factory=TransactionalLog)
    transactions: TransactionCoordinator = field(default_factory=TransactionCoordinator)
    primary: Primary | None = None
    members: dict[str, Member] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)  # that are committed, since the last reset
    highest_stable: int = 0
    started: int = 0
    compactions: int = 0
    cleaned_after: int = 0  # how many had left when the log was last compacted
    expired: int = 0
    left: int = 0
    parts: int = 0
    damaged: int = 0  # how many claims were made unreadable
    resets: int = 0  # how often others have reset the offsets
    shares_ids: bool = False
    per_call: int = 1  # records that a call returns, if there are as many
    _known: tuple[object, Progress] | None = None  # by what, and what is known
    _checked: tuple[object, ...] = ()  # what held at the last check
    _shared: set[str] = field(default_factory=set)  # members that copies have, too

    def own(self, name: str) -> Member:
        """A member that is about to change: another one than that of copies."""
        return own(self.members, name, self._shared)

    def start(self, half: int) -> None:
        name = f"m{self.started}"
        transactional_id = f"t{half}" if self.shares_ids else f"t-{name}"
        self.started += 1
        owned = new_ownerships(name, "a", transactional_id=transactional_id)
        self.members[name] = member = Member(name, owned, transactional_id=transactional_id)
        member.claim({T0: KeyRanges([HALVES[half]])})
        self.transactions.epochs.setdefault(transactional_id, 0)

    def take_a_part(self, half: int) -> None:
        """Another member claims the lower part of a half, where its keys are."""
        self.start(half)
        self.parts += 1
        part = KeyRanges([split(HALVES[half], 2)[0]])
        list(self.members.values())[-1].claim({T0: part})

    def known(self) -> Progress:
        """What is processed by all facts that are committed, also behind an open transaction."""
        log, primary = self.log, self.primary
        by = (log.version, log.aborted, self.transactions.numbers(), primary)
        if self._known is None or self._known[0] != by:
            part = log.said(self.transactions).of(T0)
            anchor = None if primary is None else primary.anchor
            counts = anchor is not None and anchor.incarnation >= part.incarnation
            self._known = by, part.progress(primary.offset if primary and counts else 0)
        return self._known[1]

    def check(self) -> None:
        """What holds in every state; nothing new of one that differs in nothing looked at here."""
        known = self.known()
        checked = (known, tuple(self.outputs), self.highest_stable)
        if self._checked == checked:
            return
        for offset, hash_ in enumerate(self.keys):
            is_done, has_output = not is_pending(known, offset, hash_), offset in self.outputs
            if is_done != has_output:
                raise LawBrokenError(f"offset {offset}: processed {is_done}, output {has_output}")
        if known.stable < self.highest_stable:
            raise LawBrokenError(f"stable offset {known.stable} after {self.highest_stable}")
        self.highest_stable = known.stable
        self._checked = (known, tuple(self.outputs), self.highest_stable)

    @property
    def incarnation(self) -> int:
        """The incarnation of the offsets, by all that is in the log."""
        return self.log.said(self.transactions).of(T0).incarnation

    def reset(self) -> None:
        """Another member begins with the offsets anew: what was processed counts no more."""
        self.resets += 1
        reset = Reset(T0, self.incarnation + 1, RESET_TO, "other#1", self.resets)
        self.log.append(key_of(reset), reset)
        self.outputs, self.highest_stable = [*range(RESET_TO)], 0

    def check_delivery(self, member: Member, offset: int) -> None:
        """What holds when a record is handed out; it may not have read of a reset yet."""
        if offset in self.outputs and member.incarnation == self.incarnation:
            raise LawBrokenError(f"offset {offset} again, after its output was committed")

    def check_settled(self, member: Member) -> None:
        """What holds once the last transaction of a member is decided."""
        current = self.transactions.open.get(member.transactional_id)
        is_its = self.transactions.epochs[member.transactional_id] == member.epoch
        if member.state.is_settled and is_its and current is not None and current.state == "open":
            raise LawBrokenError(f"{member.name} goes on, and has left {current.number} open")

    def put_out(self, transaction: Transaction) -> None:
        """A transaction is committed; if the offsets were reset since, its records come again."""
        if transaction.incarnation != self.incarnation:
            return
        for offset in transaction.outputs:
            if offset in self.outputs:
                raise LawBrokenError(f"the output of {offset} twice")
            before = {o for o in range(offset) if self.keys[o] == self.keys[offset]}
            if not before <= set(self.outputs):
                raise LawBrokenError(f"the output of {offset} before an earlier one of its key")
            self.outputs.append(offset)

    def clone(self) -> Self:
        self._shared = set(self.members)
        copy = shallow(self)
        copy.log, copy.members, copy.outputs = self.log.clone(), dict(self.members), [*self.outputs]
        copy.transactions = its = shallow(self.transactions)
        its.epochs, its.open = dict(its.epochs), dict(its.open)
        copy._shared = set(self._shared)
        return copy

    def fingerprint(self) -> tuple[object, ...]:
        return (
            self.log.mark(),
            self.log.aborted,
            tuple(sorted(self.transactions.epochs.items())),
            tuple(
                sorted(
                    (name, each.number, each.state, each.incarnation)
                    for name, each in self.transactions.open.items()
                )
            ),
            self.transactions.late,
            self.primary,
            marks_of(self.members),
            tuple(self.outputs),
            self.started,
            self.compactions,
            self.expired,
            self.left,
            self.parts,
            self.damaged,
            self.resets,
        )


RESET_TO: Final = 1
"""The offset that others reset to."""

# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """How much may happen in a world."""

    members: int = 4
    in_flight: int = 2
    compactions: int = 1
    expired: int = 1
    doubts: bool = True
    late: bool = False  # whether requests arrive late, and outputs are written before facts
    parts: int = 0  # members that take a part of what another has, and leave without a successor
    damages: int = 0  # claims that others overwrite with what cannot be read
    resets: int = 0  # how often others reset the offsets
    looks_late: bool = False  # callers come between what is read and what owners do with it


def next_record(world: TransactionalWorld, member: Member) -> int | None:
    if not may_take(member):
        return None
    for offset in range(member.next_position, len(world.keys)):
        hash_ = world.keys[offset]
        if is_own(member, hash_) and is_pending(member.owner.done, offset, hash_):
            return offset
    return None


def steps(world: TransactionalWorld, limits: Limits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    end = read_to(world)
    for name, member in world.members.items():
        verbs = log_verbs(world, limits, member, end)
        if world.started < limits.members:
            verbs += ("replace", "crash", "leave")
        is_half = member.hashes[0] in HALVES
        if world.parts < limits.parts and is_half:
            verbs.append("take a part")
        has_worked = any(is_own(member, world.keys[offset]) for offset in world.outputs)
        if not is_half and has_worked and member.state.is_settled:
            verbs.append("leave for good")
        verbs += transactional_verbs(limits, member)
        possible += [(verb, name) for verb in verbs]
    return possible + broker_steps(world, limits)


def broker_steps(world: TransactionalWorld, limits: Limits) -> list[Step]:
    """What can happen at the brokers: transactions end or expire, the log is compacted."""
    possible: list[Step] = []
    for name, current in world.transactions.open.items():
        if current.state != "open":
            possible.append(("mark", name))
        elif world.expired < limits.expired or is_left_by_damage(world, name):
            possible.append(("expire", name))
    if world.transactions.late is not None:
        possible.append(("arrive", ""))
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    if world.resets < limits.resets and world.incarnation:
        possible.append(("reset", ""))
    if limits.damages or world.damaged:
        said = world.log.said(world.transactions).of(T0)
        possible += [("damage", at) for at in said.claims if world.damaged < limits.damages]
        possible += repair_steps(said, world.members.values())
    return possible


def is_left_by_damage(world: TransactionalWorld, transactional_id: str) -> bool:
    """Whether nobody may know of a transaction: the claim that named its id could not be read."""
    living = {member.transactional_id for member in world.members.values()}
    return world.damaged > 0 and transactional_id not in living


def log_verbs(world: TransactionalWorld, limits: Limits, member: Member, end: int) -> list[str]:
    """What a member can do next with the log, up to where it can be read, and with records."""
    verbs = []
    has_new_epoch = member.state.epoch is not None and not member.is_read
    if member.log.end < end or not member.is_current or has_new_epoch or member.owner_is_behind:
        verbs.append("read")
    if limits.looks_late and member.log.end < end and member.is_current:
        verbs.append("receive")
    if member.wanted:
        verbs.append("act")
    may_deliver = (
        member.is_current and member.is_member and len(member.in_flight) < limits.in_flight
    )
    if may_deliver and next_record(world, member) is not None:
        verbs.append("deliver")
    if may_settle(member):
        verbs.append("settle")
    if member.owner.phase is Phase.WAITING:
        verbs.append("wait")
    return verbs


def transactional_verbs(limits: Limits, member: Member) -> list[str]:
    """What a member can do next with its transaction."""
    state, action = member.state, action_of(member)
    if state.is_settled:
        return []
    if action in (TransactionAction.FENCE, TransactionAction.REWIND):
        return ["resolve"]
    verbs = []
    may_produce = state.may_take and member.has_work
    if may_produce:
        verbs.append("commit")
    if action is TransactionAction.BEGIN or (may_produce and not state.is_begun):
        verbs.append("init")
    if limits.late and may_produce and state.is_begun and not member.number and member.in_flight:
        verbs.append("put")
    if action is TransactionAction.WRITE:
        verbs.append("check")
    if member.records is not None:
        verbs.append("write")
    elif state.stage is Stage.ENDING:
        verbs.append("end")
        verbs += ["doubt"] * limits.doubts + ["repeat"] * limits.late
    return verbs + ["abort"] + ["interrupt"] * limits.doubts


def take(world: TransactionalWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    match what:
        case "compact":
            world.log.compact(read_to(world))
            world.compactions += 1
            world.cleaned_after = world.left
        case "mark":
            current = world.transactions.open.pop(name)
            if current.state == "aborting":
                world.log.aborted |= {current.number}
            else:
                world.put_out(current)
        case "arrive":
            world.transactions.arrive()
        case "reset":
            world.reset()
        case "damage" | "repair":
            is_damage = what == "damage"
            world.damaged += is_damage
            world.log.append(Key(0, "claim", T0, (name,)), DAMAGED if is_damage else None)
        case "expire":
            world.transactions.fence(name)
            world.expired += 1
        case "take a part":
            world.take_a_part(half_of(world.members[name]))
        case "leave for good":
            close(world, world.own(name))
            del world.members[name]
            world.left += 1
        case _:
            _happen(world, world.own(name), what)
    world.check()


def _happen(world: TransactionalWorld, member: Member, what: str) -> None:
    now = 0.0
    match what:
        case "end" | "doubt" | "repeat":
            _end(world, member, what)
        case "settle":
            assert member.ownership is not None
            assert member.ownership.follow_ups.is_due
            now = member.ownership.follow_ups.due_at
        case "wait":
            now = member.waited
            for other in set(world.members) - {member.name}:
                world.own(other).is_current = False
        case "commit":
            ask_commit(member)
        case "interrupt":
            give_up(member, is_decided=False)  # nobody is asked what became of it
        case "replace" | "crash" | "leave":
            if what == "leave":
                close(world, member)
            if what != "replace":
                del world.members[member.name]
            world.start(half_of(member))
            return
        case _:
            globals()[what](world, member)  # looked up late: a fault may be in its place
    if what not in {"deliver", "receive"}:
        if must_end(member):
            del world.members[member.name]  # its transaction stays as it is
            return
        member.decide(now)
        member.owner_is_behind = False
    world.check_settled(member)


def must_end(member: Member) -> bool:
    """Whether a member has read a claim that cannot be read: the id to fence was in it."""
    return bool(member.part().damaged)


def half_of(member: Member) -> int:
    """The half of the hash space that a member has, or has a part of."""
    return int(member.hashes[0].lo >= HALVES[1].lo)


def read(world: TransactionalWorld, member: Member) -> None:
    """Read to the end, and look at what was read."""
    was_late, has_holes = not member.is_current, receive(world, member)
    if was_late and has_holes:
        member.look_anew()
    member.is_current = True
    member.is_read = member.state.epoch is not None


def receive(world: TransactionalWorld, member: Member) -> bool:
    """Apply what comes next in the log, with the lock held; whether some was missing in it.

    Who has waited for the lock may come before the owner looks.
    """
    end, log = read_to(world), member.own_log()
    records, offsets = world.log.between(log.end, end), end - log.end
    for at, key, record, number in records:
        if is_visible(world.log, number):
            apply_record(log, at, key, record)
    has_holes = log.end > 0 and len(records) < offsets
    log.end, member.owner_is_behind = max(log.end, end), True
    return has_holes


def deliver(world: TransactionalWorld, member: Member) -> None:
    """A call returns what is next."""
    ensure_open(member)
    coming = iter(partial(next_record, world, member), None)
    for offset in islice(coming, world.per_call):
        world.check_delivery(member, offset)
        member.in_flight.append(offset)
        member.position = offset + 1


def check(world: TransactionalWorld, member: Member) -> None:
    """See that it may commit, and what it has to write."""
    if member.incarnation == world.incarnation:
        check_that_nothing_is_overtaken(world, member)
    blocks, keys = commit.transaction_records(
        T0, member.part(), member.owner.claim_name, member.hashes, processed(member)
    )
    for block in blocks:
        if block.incarnation != member.incarnation:
            former, now = member.incarnation, block.incarnation
            raise LawBrokenError(f"what {member.name} got by incarnation {former} counts in {now}")
    member.records = tuple(blocks), tuple(keys)
    member.state.written()


def check_that_nothing_is_overtaken(world: TransactionalWorld, member: Member) -> None:
    """What holds when a member is to write its transaction."""
    before = world.known().pending_of(part_of(member).first or 0, ALL_HASHES - member.hashes)
    for piece in before:
        overtaken = range(piece.offsets.start, min(piece.offsets.end, len(world.keys)))
        if any(world.keys[at] in piece.hashes for at in overtaken):
            raise LawBrokenError(f"{member.name} overtakes offset {piece.offsets.start}")


def init(world: TransactionalWorld, member: Member) -> None:
    """Begin, with a producer of a new epoch if there is none."""
    if member.state.epoch is not None:
        member.state.begun(0.0)
        return
    epoch = world.transactions.fence(member.transactional_id)
    if epoch is not None:
        member.epoch, member.is_read = epoch, False
        member.state.begun(0.0, ProducerEpoch(0.0, 0))


def write(world: TransactionalWorld, member: Member) -> None:
    """Write the outputs and the facts, in one transaction."""
    assert member.records is not None
    (blocks, keys), member.records = member.records, None
    if not written(world, member):
        give_up(member, is_decided=True)  # it was fenced, and so its transaction is ended
        return
    member.written = blocks
    for block in blocks:
        world.log.append(key_of(block), block, fact_number(member.number))
    for key in keys:
        world.log.append(key, None, member.number)


def written(world: TransactionalWorld, member: Member) -> bool:
    """Write the outputs, unless they are written; whether the brokers take it."""
    transactions, name = world.transactions, member.transactional_id
    if not member.number:
        given = member.epoch, tuple(member.in_flight), member.incarnation
        member.number = transactions.write(name, *given) or 0
        return bool(member.number)
    current = transactions.open.get(name)
    if current is None or (current.number, current.state) != (member.number, "open"):
        return False
    if transactions.epochs[name] != member.epoch:
        return False
    transactions.open[name] = replace(current, outputs=tuple(member.in_flight))
    return True


def put(world: TransactionalWorld, member: Member) -> None:
    """Write the outputs before the facts, as ever: a transaction is open that holds them alone."""
    if not written(world, member):
        give_up(member, is_decided=True)


def fact_number(number: int) -> int:
    """The number of the transaction that a fact is written in."""
    return number


def _end(world: TransactionalWorld, member: Member, what: str) -> None:
    transactions, name = world.transactions, member.transactional_id
    if what == "repeat":
        transactions.late = name, member.epoch
    was_ended = transactions.end(name, member.epoch, "committing")
    if what == "doubt":
        give_up(member, is_decided=False)
    elif not was_ended:  # fenced, or it has expired
        give_up(member, is_decided=True)
    else:
        member.state.committed(may_go_on=what != "repeat")
        each = member.ownership
        if each is not None and each.start == member.delivery:
            each.processed(processed(member).minus(each.owner.done))
            each.follow_ups.facts = member.written or each.follow_ups.facts
        elif each is not None:
            each.rewind()
        member.in_flight, member.number, member.passes = [], 0, False
        member.written = ()


def abort(world: TransactionalWorld, member: Member) -> None:
    """Its user has failed, or it waits in vain; the coordinator answers."""
    transactions, name, number = world.transactions, member.transactional_id, member.number
    is_clean = not number or transactions.end(name, member.epoch, "aborting")
    give_up(member, is_decided=is_clean)


def close(world: TransactionalWorld, member: Member) -> None:
    """Abort what is open; the claim is given up unless others need it to find the id."""
    if member.state.is_open:
        abort(world, member)
    if not member.state.keeps_claims:
        delete(world, (*member.ownerships.give_up(), *member.ownerships.claims()))


def resolve(world: TransactionalWorld, member: Member) -> None:
    """Do what is to be done before anything else begins."""
    if member.state.recovery is TransactionAction.FENCE:
        if world.transactions.fence(member.transactional_id) is None:
            return
        member.state.decided()
    transactional_member.rewind(member)


def fence(world: TransactionalWorld, names: frozenset[str]) -> bool:
    """Fence former owners; whether that is done."""
    answers = [world.transactions.fence(name) for name in sorted(names)]  # all are asked
    return None not in answers


def act(world: TransactionalWorld, member: Member) -> None:
    action, is_awaited = member.next_action()
    match action:
        case Fence(names):
            if not fence(world, names):
                member.rest(action, is_awaited=is_awaited)
            elif is_awaited:
                member.owner.former_fenced()
        case Unblock(names):
            fence(world, names)
        case Write(records):
            append_all(world, records)
            if is_awaited:
                member.owner.written(world.log.end - 1)
        case Delete(keys):
            delete(world, keys)
        case FetchPrimary() if is_awaited:
            member.owner.primary_read(world.primary, bound(world))
        case ResolveInitial() if is_awaited:
            member.owner.initial_found(0)
        case WritePrimary(offset, anchor):
            world.primary = Primary(offset, anchor)
            if is_awaited:
                member.owner.primary_written()


def append_all(world: TransactionalWorld, records: tuple[Record, ...]) -> None:
    for record in records:
        world.log.append(key_of(record), record)


def delete(world: TransactionalWorld, keys: tuple[Key, ...]) -> None:
    for key in keys:
        world.log.append(key, None)


def bound(world: TransactionalWorld) -> int:
    """How far the log has to be read, as the broker says."""
    return world.log.end
