"""A small world for transactions: a log with transactions, their coordinator, members, faults.

As :mod:`.world`, with outputs beside facts: each record of the data partition is to have its output
exactly once, and the outputs of a key in order.
"""

from dataclasses import dataclass, field, replace

from kshare.core.hashing import complement
from kshare.core.progress import Progress
from kshare.group.protocol import transaction
from kshare.group.protocol.actions import (
    Delete,
    Fence,
    FetchPrimary,
    ResolveInitial,
    Unblock,
    Write,
    WritePrimary,
)
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.owner import Owner, Phase
from kshare.group.protocol.records import Block, Claim, Key, key_of
from kshare.group.protocol.start import Primary, Start
from kshare.group.protocol.transaction import Admission, TransactionChunk
from tests.group.protocol.transactional_log import TransactionalLog, TransactionCoordinator
from tests.group.protocol.world import (
    HALVES,
    T0,
    LawBrokenError,
    Process,
    Step,
    clone_process,
    is_own,
    is_pending,
    print_of,
)


def is_visible(log: TransactionalLog, number: int) -> bool:
    """Whether a reader of committed records sees the records of a transaction that has ended."""
    return number not in log.aborted


def read_to(world: "TransactionalWorld") -> int:
    """The end of what a reader of committed records is given."""
    return world.log.stable(world.transactions)


@dataclass
class Member(Process):
    """A process whose facts go into transactions; ``in_flight`` holds a transaction's records."""

    transactional_id: str = ""
    since: Start | None = None  # the start that its records came from
    epoch: int | None = None
    is_read: bool = False  # the log, since it has that epoch
    begun: int = 0  # number of the transaction that holds its outputs, if they are written before
    number: int = 0  # of the transaction that holds its facts; 0 if they are not written
    records: tuple[tuple[Block, ...], tuple[Key, ...]] | None = None  # to be written, as checked
    is_doubtful: bool = False  # whether it does not know what became of its transaction
    unread: tuple[Block, ...] = ()
    passes: bool = False  # its transaction passes over offsets that are none of its records
    _admission: tuple[tuple[object, ...], Admission] | None = None  # by what, and what it is

    @property
    def is_open(self) -> bool:
        """Whether it has a transaction that processes something."""
        return bool(self.in_flight) or self.passes


@dataclass
class TransactionalWorld:
    """The state of everything."""

    keys: tuple[int, ...]
    log: TransactionalLog = field(default_factory=TransactionalLog)
    transactions: TransactionCoordinator = field(default_factory=TransactionCoordinator)
    primary: Primary | None = None
    members: dict[str, Member] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)  # that readers of committed records see
    highest_stable: int = 0
    started: int = 0
    compactions: int = 0
    expired: int = 0
    shares_ids: bool = False
    _known: tuple[object, Progress] | None = None  # by what, and what is known
    _checked: tuple[object, ...] = ()  # what held at the last check

    def start(self, half: int) -> None:
        name = f"m{self.started}"
        transactional_id = f"t{half}" if self.shares_ids else f"t-{name}"
        self.started += 1
        hashes = (HALVES[half],)
        owner = Owner(Claim(T0, name, hashes, transactional_id=transactional_id), "a")
        self.members[name] = Member(
            name, hashes, GroupLog("g"), owner, "a", transactional_id=transactional_id
        )
        self.transactions.epochs.setdefault(transactional_id, 0)

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

    def check_delivery(self, member: Member, offset: int) -> None:
        """What holds when a record is handed out."""
        if offset in self.outputs:
            raise LawBrokenError(f"offset {offset} again, after its output was committed")

    def put_out(self, offsets: tuple[int, ...]) -> None:
        for offset in offsets:
            if offset in self.outputs:
                raise LawBrokenError(f"the output of {offset} twice")
            before = {o for o in range(offset) if self.keys[o] == self.keys[offset]}
            if not before <= set(self.outputs):
                raise LawBrokenError(f"the output of {offset} before an earlier one of its key")
            self.outputs.append(offset)

    def clone(self) -> "TransactionalWorld":
        return replace(
            self,
            log=self.log.clone(),
            transactions=replace(
                self.transactions,
                epochs=dict(self.transactions.epochs),
                open=dict(self.transactions.open),
            ),
            members={name: _clone(member) for name, member in self.members.items()},
            outputs=list(self.outputs),
        )

    def fingerprint(self) -> tuple[object, ...]:
        return (
            tuple(self.log.records),
            self.log.aborted,
            tuple(sorted(self.transactions.epochs.items())),
            tuple(sorted((n, t.number, t.state) for n, t in self.transactions.open.items())),
            self.transactions.late,
            self.primary,
            tuple(_print(member) for _, member in sorted(self.members.items())),
            tuple(self.outputs),
            self.started,
            self.compactions,
            self.expired,
        )


def _clone(member: Member) -> Member:
    copy = clone_process(member)
    assert isinstance(copy, Member)
    return copy


def _print(member: Member) -> tuple[object, ...]:
    owner = member.owner
    state: tuple[object, ...] = (member.since, member.epoch, member.is_read, member.number)
    state += (member.records, member.is_doubtful, member.since is owner.start, member.passes)
    state += (member.begun,)
    return (
        *print_of(member),
        *state,
        member.unread,
        owner._takeover.has_fenced,
        owner._takeover.unblocked,
    )


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


def may_take(member: Member) -> bool:
    """Whether its transaction may process more."""
    is_committing = member.number or member.records is not None or member.is_doubtful
    if member.owner.phase is not Phase.RUNNING or is_committing or member.begun:
        return False
    # What it holds may have come from an older start: then it has to abort.
    return member.since is None or member.since is member.owner.start


def next_record(world: TransactionalWorld, member: Member) -> int | None:
    if not may_take(member):
        return None
    for offset in range(member.position, len(world.keys)):
        hash_ = world.keys[offset]
        if is_own(member, hash_) and is_pending(member.owner.done, offset, hash_):
            return offset
    return None


def chunk_of(member: Member) -> TransactionChunk:
    known = transaction.known_progress(member.part(), member.owner.done)
    start = transaction.chunk_start(processed(member), known)
    return TransactionChunk(start, member.hashes, member.hashes, known)


def processed(member: Member) -> Progress:
    """What is processed, with the records of the transaction."""
    assert member.owner.start is not None
    done = member.owner.done
    return done.commit(done.pending_of(member.position, member.hashes))


def is_alive(member: Member) -> bool:
    """Whether nobody can have taken over its hashes who is sure that it is dead."""
    return member.is_member


def may_write(member: Member) -> bool:
    """Whether the transaction may write its facts, and commit."""
    is_committing = member.number or member.records is not None or member.is_doubtful
    if member.epoch is None or not member.is_open or is_committing or not is_alive(member):
        return False
    start = member.owner.start if member.owner.phase is Phase.RUNNING else None
    if not transaction.may_commit(member.since, start, is_read=member.is_read):
        return False
    return admission_of(member) is Admission.OPEN


def admission_of(member: Member) -> Admission:
    """Whether the purgatory is open for a member; asked again once something has changed."""
    by = (member.log.end, member.owner.done, member.position, member.hashes)
    if member._admission is None or member._admission[0] != by:
        member._admission = by, transaction.admission([chunk_of(member)], "stable")
    return member._admission[1]


def steps(world: TransactionalWorld, limits: Limits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    end = read_to(world)
    for name, member in world.members.items():
        verbs = log_verbs(world, limits, member, end)
        if world.started < limits.members:
            verbs += ("replace", "crash")
            if not member.in_flight and not member.is_doubtful:
                verbs.append("leave")
        verbs += transactional_verbs(limits, member)
        possible += [(verb, name) for verb in verbs]
    return possible + broker_steps(world, limits)


def broker_steps(world: TransactionalWorld, limits: Limits) -> list[Step]:
    """What can happen at the brokers: transactions end or expire, the log is compacted."""
    possible: list[Step] = []
    for name, current in world.transactions.open.items():
        if current.state != "open":
            possible.append(("mark", name))
        elif world.expired < limits.expired:
            possible.append(("expire", name))
    if world.transactions.late is not None:
        possible.append(("arrive", ""))
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    return possible


def log_verbs(world: TransactionalWorld, limits: Limits, member: Member, end: int) -> list[str]:
    """What a member can do next with the log, up to where it can be read, and with records."""
    verbs = []
    if member.log.end < end or not member.is_current or (member.epoch and not member.is_read):
        verbs.append("read")
    if member.inbox:
        verbs.append("act")
    may_deliver = (
        member.is_current and member.is_member and len(member.in_flight) < limits.in_flight
    )
    if may_deliver and next_record(world, member) is not None:
        verbs.append("deliver")
    phase = member.owner.phase
    can_settle = member.unread and phase is Phase.RUNNING and member.owner.commit is None
    if can_settle and transaction.is_read_back(member.part(), member.unread):
        verbs.append("settle")
    if phase is Phase.WAITING:
        verbs.append("wait")
    return verbs


def transactional_verbs(limits: Limits, member: Member) -> list[str]:
    """What a member can do next with its transaction."""
    if member.is_doubtful:
        return ["resolve"]
    verbs = []
    if member.is_open and member.epoch is None:
        verbs.append("init")
    if may_write(member):
        verbs.append("check")
    if member.records is not None:
        verbs.append("write")
    if member.number:
        verbs.append("end")
        if limits.doubts:
            verbs.append("doubt")
        if limits.late:
            verbs.append("repeat")
    elif limits.late and member.in_flight and member.epoch is not None and not member.begun:
        verbs.append("put")
    if member.is_open:
        verbs.append("abort")
    return verbs


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
        case "mark":
            current = world.transactions.open.pop(name)
            if current.state == "aborting":
                world.log.aborted |= {current.number}
            else:
                world.put_out(current.outputs)
        case "arrive":
            world.transactions.arrive()
        case "expire":
            world.transactions.fence(name)
            world.expired += 1
        case _:
            _happen(world, world.members[name], what)
    world.check()


def _happen(world: TransactionalWorld, member: Member, what: str) -> None:
    match what:
        case "init":
            member.epoch = world.transactions.fence(member.transactional_id)
            member.is_read = False
        case "end" | "doubt" | "abort":
            _end(world, member, what)
        case "repeat":
            world.transactions.late = member.transactional_id, member.epoch or 0
            _end(world, member, "end")
            committed_twice(member)
        case "settle":
            member.unread = ()
            member.owner.begin_commit(member.part())
        case "wait":
            member.owner.waited()
            for other in world.members.values():
                if other is not member:
                    other.is_current = False
        case "replace" | "crash" | "leave":
            if what != "replace":
                del world.members[member.name]
            if what == "leave":
                delete(world, (Key(0, "claim", T0, (member.name,)),))
            world.start(HALVES.index(member.hashes[0]))
            return
        case _:
            globals()[what](world, member)  # looked up late: a fault may be in its place
    if what != "deliver":
        member.ask(member.owner.actions(member.part(), member.log.end))


def read(world: TransactionalWorld, member: Member) -> None:
    end = read_to(world)
    for at, key, record, number in world.log.between(member.log.end, end):
        if is_visible(world.log, number):
            member.log.apply(at, key, record)
    member.log.end = max(member.log.end, end)
    member.is_current = True
    member.is_read = member.epoch is not None


def deliver(world: TransactionalWorld, member: Member) -> None:
    offset = next_record(world, member)
    assert offset is not None
    world.check_delivery(member, offset)
    member.since = member.owner.start
    member.in_flight.append(offset)
    member.position = offset + 1


def check(world: TransactionalWorld, member: Member) -> None:
    """See that it may commit, and what it has to write."""
    before = world.known().pending_of(chunk_of(member).start or 0, complement(member.hashes))
    for piece in before:
        overtaken = range(piece.offsets.start, min(piece.offsets.end, len(world.keys)))
        if any(world.keys[at] in piece.hashes for at in overtaken):
            raise LawBrokenError(f"{member.name} overtakes offset {piece.offsets.start}")
    blocks, keys = transaction.transaction_records(
        T0, member.part(), member.owner.member, member.hashes, processed(member)
    )
    member.records = tuple(blocks), tuple(keys)


def write(world: TransactionalWorld, member: Member) -> None:
    """Write the outputs and the facts, in one transaction."""
    assert member.epoch is not None
    assert member.records is not None
    (blocks, keys), member.records = member.records, None
    number = written(world, member)
    if number is None:  # fenced: its transaction is ended
        member.epoch = None
        forget(member)
        return
    member.number, member.unread = number, blocks
    for block in blocks:
        world.log.append(key_of(block), block, fact_number(number))
    for key in keys:
        world.log.append(key, None, number)


def written(world: TransactionalWorld, member: Member) -> int | None:
    """Write the outputs, unless they are written; their transaction, or None if it is not open."""
    transactions, name = world.transactions, member.transactional_id
    assert member.epoch is not None
    if not member.begun:
        return transactions.write(name, member.epoch, tuple(member.in_flight))
    current = transactions.open.get(name)
    is_open = current is not None and (current.number, current.state) == (member.begun, "open")
    return member.begun if is_open and transactions.epochs[name] == member.epoch else None


def put(world: TransactionalWorld, member: Member) -> None:
    """Write the outputs before the facts, as ever: a transaction is open that holds them alone."""
    number = written(world, member)
    if number is None:
        member.epoch = None
        forget(member)
    else:
        member.begun = number


def committed_twice(member: Member) -> None:
    """A commit was asked for twice: the next transaction needs a new epoch."""
    member.epoch = None


def fact_number(number: int) -> int:
    """The number of the transaction that a fact is written in."""
    return number


def _end(world: TransactionalWorld, member: Member, what: str) -> None:
    transactions, name = world.transactions, member.transactional_id
    assert what == "abort" or member.epoch is not None
    if what == "abort":
        is_begun = member.number or member.begun
        clean = not is_begun or transactions.end(name, member.epoch or 0, "aborting")
        member.is_doubtful = not clean
        if clean:
            forget(member)
        return
    was_ended = transactions.end(name, member.epoch or 0, "committing")
    if what == "doubt":
        member.is_doubtful = True
        return
    if not was_ended:  # fenced, or it has expired
        member.epoch = None
        forget(member)
        return
    if member.since is member.owner.start:
        member.owner.processed(processed(member).minus(member.owner.done))
    member.in_flight, member.since, member.number, member.passes = [], None, 0, False
    member.begun = 0


def forget(member: Member) -> None:
    """After an abort: the positions go back to what the log says."""
    member.in_flight, member.since, member.number, member.unread = [], None, 0, ()
    member.begun = 0
    member.position, member.is_doubtful, member.records, member.passes = 0, False, None, False
    member.owner.rewind()
    member.outdated = len(member.inbox)


def resolve(world: TransactionalWorld, member: Member) -> None:
    """Fence the own id, until no transaction of it is open."""
    if world.transactions.fence(member.transactional_id) is not None:
        member.epoch = None
        forget(member)


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
            for record in records:
                world.log.append(key_of(record), record)
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


def delete(world: TransactionalWorld, keys: tuple[Key, ...]) -> None:
    for key in keys:
        world.log.append(key, None)


def bound(world: TransactionalWorld) -> int:
    """How far the log has to be read, as the broker says."""
    return world.log.end
