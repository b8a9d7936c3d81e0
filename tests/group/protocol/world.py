"""A small world for the protocol of individual commits: a log, primary offsets, members, faults.

A world is a value that can be copied: the explorer takes every step that is possible, in every
order. Records of one data partition; a member hands out records of its hashes in offset order, and
acknowledges them in any order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Self, TypeVar

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.protocol.actions import (
    Action,
    Delete,
    FetchPrimary,
    ResolveInitial,
    Write,
    WritePrimary,
)
from kshare.group.protocol.log import GroupLog, PartitionLog
from kshare.group.protocol.owner import Owner, Phase
from kshare.group.protocol.records import Block, Claim, Key, Record, key_of
from kshare.group.protocol.start import Primary
from tests.group.protocol.owning import (
    TIMEOUT,
    Mark,
    clone_log,
    clone_of_ownerships,
    new_ownerships,
    print_of_ownership,
    shallow,
)

T0 = TopicPartition("orders", 0)
HALVES = split(WHOLE, 2)
NOBODY: Final = Owner(Claim(T0, "", ()), phase=Phase.FENCED)
"""The owner of a process that owns nothing."""
GONE: Final = -1
"""The number of actions for which nobody waits."""


class LawBrokenError(AssertionError):
    """A law of the protocol does not hold in a world."""


@dataclass
class Log:
    """The individual commit log: records by offset; compaction leaves holes.

    Attributes:
        records: The records, ascending by offset.
        end: The offset of the next record.
        topic_id: Id of the topic.
        version: How often it has changed.
    """

    records: list[tuple[int, Key, Record | None]] = field(default_factory=list)
    end: int = 0
    topic_id: str = "a"
    version: int = 0
    _said: GroupLog = field(default_factory=lambda: GroupLog("g"))
    _mark: Mark | None = None
    _is_shared: bool = False  # whether copies have what it says, too

    def append(self, key: Key, record: Record | None) -> None:
        self.records.append((self.end, key, record))
        self.end += 1
        self.version += 1
        self._mark = None

    def compact(self) -> None:
        last = {key: offset for offset, key, _ in self.records}
        self.records = [r for r in self.records if last[r[1]] == r[0] and r[2] is not None]
        self._said, self._is_shared = GroupLog("g"), False
        self.version += 1
        self._mark = None

    def said(self) -> GroupLog:
        """What it says to one that reads all of it now.

        What is appended is applied to what was said before. After a compaction all is read again.
        """
        if self._said.end < self.end:
            if self._is_shared:
                self._said, self._is_shared = clone_log(self._said), False
            replay(self, self._said)
        return self._said

    def clone(self) -> Self:
        """A copy that shares nothing that changes."""
        self._is_shared = True
        copy = shallow(self)
        copy.records = list(self.records)
        return copy

    def mark(self) -> Mark:
        """Equal for logs with the same records."""
        if self._mark is None:
            self._mark = Mark.of((*self.records, self.end, self.topic_id))
        return self._mark


@dataclass(frozen=True)
class Asked:
    """A commit that was asked for, and is not answered.

    Attributes:
        number: Which one of its ownership's.
        done: What is processed.
    """

    number: int
    done: Progress


@dataclass
class Process:
    """One consumer process: what its session owns, and what it has handed out.

    Attributes:
        name: Its name.
        ownerships: What its session owns, as in production.
        wanted: What owners want done, and is not done yet, with the number of these actions.
        in_flight: Offsets that are handed out, and not acknowledged.
        position: All records of its hashes below are handed out.
        delivery: The start that they are handed out from.
        asked: The commit that it waits for.
        is_current: Whether it has read the log since the last time out of somebody.
        is_member: Whether the group's coordinator has not dropped it, as far as it may tell.
        commits: How often it has asked for a commit.
        mark: What makes two go on alike, as it was found; None if it may have changed since.
        shares_log: Whether copies of it have the same object for what they have read.
    """

    name: str
    ownerships: Ownerships
    wanted: list[tuple[int, Action]] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    position: int = 0
    delivery: Progress | None = None
    asked: Asked | None = None
    is_current: bool = False
    is_member: bool = True
    commits: int = 0
    mark: Mark | None = None
    shares_log: bool = False

    @property
    def ownership(self) -> Ownership | None:
        """What it owns of the partition; None if that is nothing."""
        return self.ownerships.by_partition.get(T0)

    @property
    def owner(self) -> Owner:
        each = self.ownerships.by_partition.get(T0)  # not ownership: it is asked all the time
        return NOBODY if each is None else each.owner

    @property
    def hashes(self) -> tuple[HashRange, ...]:
        return self.owner.hashes

    @property
    def log(self) -> GroupLog:
        return self.ownerships.log

    @property
    def topic_id(self) -> str:
        return self.ownerships.topic_id

    @property
    def start(self) -> Progress | None:
        """From where it may deliver; None if it may not."""
        each = self.ownerships.by_partition.get(T0)
        return None if each is None else each.start

    @property
    def inbox(self) -> list[Action]:
        """What is to be done, and is not done yet."""
        return [action for _, action in self.wanted]

    @property
    def waited(self) -> float:
        """A time at which it has waited for former owners."""
        each = self.ownership
        assert each is not None
        assert each.waits_since is not None
        return each.waits_since + 2 * TIMEOUT

    def part(self) -> PartitionLog:
        return self.log.of(T0)

    def clone(self) -> Self:
        """A copy that shares nothing that changes."""
        self.shares_log = True
        copy = shallow(self)
        copy.ownerships = clone_of_ownerships(self.ownerships)
        copy.wanted, copy.in_flight, copy.mark = [*self.wanted], [*self.in_flight], None
        return copy

    def marked(self) -> Mark:
        """Equal for processes that go on alike."""
        if self.mark is None:
            self.mark = Mark.of(self.fingerprint())
        return self.mark

    def fingerprint(self) -> tuple[object, ...]:
        """What makes two go on alike."""
        part, each, asked = self.part(), self.ownership, self.asked
        return (
            self.name,
            self.log.end,
            part.incarnation,
            part.start,
            part.stable,
            frozenset(part.stables.items()),
            frozenset(part.resets),
            frozenset(part.blocks.items()),
            frozenset(part.claims.items()),
            frozenset(part.overtaken),
            print_of_ownership(each, self.log.end, self.delivery),
            self.delivery is None,
            tuple(
                (action, each is not None and each.waits_for(number))
                for number, action in self.wanted
            ),
            asked and each and (each.commits.wanted - asked.number, asked.done),
            tuple(self.in_flight),
            self.position,
            self.is_current,
            self.is_member,
            self.commits,
            self.topic_id,
        )

    # -- as the session does -----------------------------------------------------------------

    def claim(
        self, assignment: Mapping[TopicPartition, tuple[HashRange, ...]], **given: Any
    ) -> None:
        """Own these key hashes, and no others."""
        before = self.ownership
        self.ownerships.claim(assignment, **given)
        self.forget(before)

    def forget(self, before: Ownership | None) -> None:
        """Nobody waits for what was asked by an ownership that is given up."""
        if self.ownership is not before:
            self.wanted, self.asked = [(GONE, action) for _, action in self.wanted], None

    def renew(self) -> None:
        """Others may take it for dead."""
        before = self.ownership
        self.ownerships.renew("the log was not reached")
        self.forget(before)

    def commit(self, processed: Sequence[Rectangle]) -> None:
        """Ask for a commit of what was processed."""
        self.commits += 1
        since = {} if self.delivery is None else {T0: self.delivery}
        for each, number in self.ownerships.ask_commits({T0: processed}, since):
            self.asked = Asked(number, each.owner.done)

    def decide(self, now: float = 0.0) -> None:
        """Go on as far as the log says; what is wanted then."""
        self._give_up()
        before = self.ownership
        wanted = [
            (each.action, action)
            for each, actions in self.ownerships.advance(now)
            for action in actions
        ]
        self.forget(before)
        self.wanted += wanted
        self._give_up()

    def _give_up(self) -> None:
        self.wanted += [(GONE, Delete((key,))) for key in self.ownerships.give_up()]

    def next_action(self) -> tuple[Action, bool]:
        """What is done next, and whether somebody waits for it."""
        number, action = self.wanted.pop(0)
        each = self.ownership
        return action, each is not None and each.waits_for(number)

    def rest(self, action: Action, *, is_awaited: bool) -> None:
        """What is left of an action that is done in part."""
        each = self.ownership
        number = each.action if each is not None and is_awaited else GONE
        self.wanted.insert(0, (number, action))

    def fail(self) -> None:
        """What is next is not done."""
        number, _ = self.wanted.pop(0)
        if self.ownership is not None:
            self.ownership.failed(number, "no answer", 0.0)

    def read(self, log: Log) -> None:
        """Read to the end of the log, which may be another one now."""
        owned = self.ownerships
        if owned.topic_id != log.topic_id:
            owned.lost(log.topic_id, "it was deleted")
            self.wanted, self.shares_log = [], False  # its writer is closed
        replay(log, self.own_log())
        self.is_current = True

    def own_log(self) -> GroupLog:
        """What it has read, to be read on."""
        if self.shares_log:
            self.ownerships.log, self.shares_log = clone_log(self.ownerships.log), False
        return self.ownerships.log

    def follow(self) -> None:
        """As its dispatcher: what is delivered from another start begins anew."""
        each = self.ownership
        is_fenced = each is not None and each.owner.phase is Phase.FENCED
        if self.start is not self.delivery and not is_fenced:
            self.delivery, self.in_flight, self.position = self.start, [], 0


@dataclass
class World:
    """The state of everything, and what has happened as far as the laws need it."""

    keys: tuple[int, ...]  # key hash of each record of the data partition
    log: Log = field(default_factory=Log)
    primary: Primary | None = None
    processes: dict[str, Process] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)  # offsets that were processed, ever
    promised: set[int] = field(default_factory=set)  # offsets of commits that were answered
    late_facts: frozenset[int] = frozenset()  # offsets of facts that were not waited for
    highest_stable: int = 0
    started: int = 0  # processes, ever
    lost_logs: int = 0
    compactions: int = 0
    failures: int = 0
    _checked: tuple[object, ...] = ()  # what held at the last check
    _shared: set[str] = field(default_factory=set)  # processes that copies have, too

    # -- processes ---------------------------------------------------------------------------

    def own(self, name: str) -> Process:
        """A process that is about to change: another one than that of copies."""
        return own(self.processes, name, self._shared)

    def start(self, hashes: tuple[HashRange, ...]) -> None:
        name = f"m{self.started}"
        self.started += 1
        process = Process(name, new_ownerships(name, self.log.topic_id))
        process.claim({T0: hashes})
        self.processes[name] = process

    def crash(self, name: str) -> None:
        """Kill -9: what it has in flight is forgotten."""
        del self.processes[name]

    # -- laws ----------------------------------------------------------------------------------

    def deliver(self, process: Process) -> None:
        offset = next_record(self, process)
        assert offset is not None
        hash_ = self.keys[offset]
        for other in self.processes.values():
            has_key = any(self.keys[held] == hash_ for held in other.in_flight)
            if other is not process and has_key and is_living(other):
                raise LawBrokenError(f"key {hash_} is with {other.name} and {process.name}")
        if offset in self.promised and not self.lost_logs:
            raise LawBrokenError(f"offset {offset} again, after it was committed")
        open_ = {o for o in range(offset) if self.keys[o] == hash_} - self.acknowledged
        if not open_ <= set(process.in_flight):
            raise LawBrokenError(f"offset {offset} before {min(open_)} of the same key")
        process.in_flight.append(offset)
        process.position = offset + 1

    def check(self) -> None:
        """What holds in every state.

        It says nothing new of a state that differs in nothing that is looked at here.
        """
        if self._checked == self._checks():
            return
        known = self.known_of(self.log.said())
        for offset, hash_ in enumerate(self.keys):
            is_done = not is_pending(known, offset, hash_)
            if is_done and offset not in self.acknowledged:
                raise LawBrokenError(f"offset {offset} counts as processed, and was not")
            if not is_done and offset in self.promised and not self.lost_logs:
                raise LawBrokenError(f"offset {offset} was committed, and is forgotten")
        if known.stable < self.highest_stable and not self.lost_logs:
            self._check_what_is_forgotten(known)
            self.highest_stable = 0
        self.highest_stable = max(self.highest_stable, known.stable)
        self._checked = self._checks()

    def _check_what_is_forgotten(self, known: Progress) -> None:
        """A late fact may go with the block that it has replaced: its tombstone was under way.

        What a lead has written as stable, and what was promised, is never forgotten.
        """
        forgotten = {offset for offset in self._pending() if offset < self.highest_stable}
        if not forgotten <= self.late_facts:
            raise LawBrokenError(f"stable offset {known.stable} after {self.highest_stable}")

    def write(self, process: Process, record: Record) -> None:
        """A record of a process arrives in the log."""
        is_late = isinstance(record, Block) and has_been_waited_for(self, process)
        before = self._pending() if is_late else set()
        self.log.append(key_of(record), record)
        if is_late:
            self.late_facts |= before - self._pending()

    def delete(self, process: Process, key: Key) -> None:
        """A tombstone of a process arrives in the log."""
        last = max((at for at, other, _ in self.log.records if other == key), default=-1)
        has_read = process.log.end > last
        before = self._pending() if has_read and self.late_facts else None
        self.log.append(key, None)
        if before is not None:  # it knew what it has deleted: that is no longer excused
            self.late_facts -= self._pending() - before

    def _pending(self) -> set[int]:
        known = self.known_of(self.log.said())
        return {o for o, hash_ in enumerate(self.keys) if is_pending(known, o, hash_)}

    def known_of(self, log: GroupLog) -> Progress:
        """What is processed, by what a log says and the primary offset."""
        part = log.of(T0)
        anchor = None if self.primary is None else self.primary.anchor
        counts = anchor is not None and anchor.incarnation >= part.incarnation
        return part.progress(self.primary.offset if self.primary and counts else 0)

    def _checks(self) -> tuple[object, ...]:
        """All that :meth:`check` depends on."""
        return (
            self.log.version,
            self.primary,
            self.lost_logs,
            self.highest_stable,
            frozenset(self.acknowledged),
            frozenset(self.promised),
        )

    # -- copies --------------------------------------------------------------------------------

    def clone(self) -> Self:
        """A copy that shares nothing that changes."""
        self._shared = set(self.processes)
        copy = shallow(self)
        copy.log, copy.processes = self.log.clone(), dict(self.processes)
        copy.acknowledged, copy.promised = set(self.acknowledged), set(self.promised)
        copy._shared = set(self._shared)
        return copy

    def fingerprint(self) -> tuple[object, ...]:
        """Equal for worlds that go on alike."""
        return (
            self.log.mark(),
            self.primary,
            marks_of(self.processes),
            frozenset(self.acknowledged),
            frozenset(self.promised),
            self.late_facts,
            self.lost_logs,
            self.compactions,
            self.failures,
            self.started,
        )


def has_been_waited_for(world: World, process: Process) -> bool:
    """Whether another process has taken over hashes of one whose time was up."""
    claims = world.log.said().of(T0).claims
    own = claims.get(process.owner.member)
    return any(
        other.start is not None
        and other.owner.member in claims
        and (own is None or own.age < claims[other.owner.member].age)
        and any(a.lo < b.hi and b.lo < a.hi for a in process.hashes for b in other.hashes)
        for other in world.processes.values()
        if other is not process
    )


def is_pending(done: Progress, offset: int, hash_: int) -> bool:
    """Whether a record is not processed: what :meth:`.Progress.pending` says, of one record."""
    if offset < done.stable:
        return False
    for stripe in done.stripes:
        if stripe.hashes.lo <= hash_ < stripe.hashes.hi:
            return not bisect_right(stripe.bounds, offset) % 2
    return True


AnyProcess = TypeVar("AnyProcess", bound=Process)


def own(processes: dict[str, AnyProcess], name: str, shared: set[str]) -> AnyProcess:
    """A process that is about to change: a copy of it, if it is shared."""
    if name in shared:
        shared.discard(name)
        processes[name] = processes[name].clone()
    process = processes[name]
    process.mark = None
    return process


def marks_of(processes: Mapping[str, Process]) -> tuple[Mark, ...]:
    """Equal for processes that go on alike."""
    return tuple(processes[name].marked() for name in sorted(processes))


def is_living(process: Process) -> bool:
    """Whether a process may hand out records: it has read the log, and knows of no later claim."""
    return process.is_current and process.is_member and process.start is not None


def next_record(world: World, process: Process) -> int | None:
    """The next record that a process would hand out."""
    if process.start is None:
        return None
    for offset in range(process.position, len(world.keys)):
        hash_ = world.keys[offset]
        if offset in process.in_flight or not is_own(process, hash_):
            continue
        if is_pending(process.owner.done, offset, hash_):
            return offset
    return None


def is_own(process: Process, hash_: int) -> bool:
    """Whether a key hash is one of those of a process."""
    return any(part.lo <= hash_ < part.hi for part in process.hashes)


def replay(log: Log, into: GroupLog) -> None:
    """Let a reader read to the end of the log."""
    if into.end < log.end:
        first = bisect_left(log.records, into.end, key=itemgetter(0))
        for position, key, record in log.records[first:]:
            into.apply(position, key, record)
    into.end = max(into.end, log.end)


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """How much may happen in a world, so that it is finite."""

    processes: int = 3
    commits: int = 1
    in_flight: int = 1
    crashes: int = 1
    compactions: int = 1
    lost_logs: int = 0
    failures: int = 0


Step = tuple[str, str]
"""What happens, and to whom."""


def steps(world: World, limits: Limits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    for name, process in world.processes.items():
        possible += log_steps(world, process, limits)
        if world.started < limits.processes:
            possible += (("replace", name), ("crash", name))
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    if world.lost_logs < limits.lost_logs and world.log.records:
        possible.append(("lose the log", ""))
    return possible


def log_steps(world: World, process: Process, limits: Limits) -> list[Step]:
    """What a process can do next with the log, and with records."""
    possible: list[Step] = []
    name, log, wanted, in_flight = process.name, world.log, process.wanted, process.in_flight
    phase = process.owner.phase
    is_behind = process.log.end < log.end or process.topic_id != log.topic_id
    if is_behind or not process.is_current:
        possible.append(("read", name))
    if wanted:
        possible.append(("act", name))
        if world.failures < limits.failures and not isinstance(wanted[0][1], Delete):
            possible.append(("fail", name))
    may_deliver = len(in_flight) < limits.in_flight and is_living(process)
    if may_deliver and next_record(world, process) is not None:
        possible.append(("deliver", name))
    possible += [(f"acknowledge {offset}", name) for offset in in_flight]
    can_commit = process.commits < limits.commits and process.owner.commit is None
    if can_commit and phase is Phase.RUNNING:
        possible.append(("commit", name))
    if phase is Phase.WAITING:
        possible.append(("wait", name))
    return possible


def take(world: World, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    if what == "compact":
        world.log.compact()
        world.compactions += 1
    elif what == "lose the log":
        world.log = Log(topic_id=f"lost {world.lost_logs}")
        world.lost_logs += 1
    else:
        _happen(world, world.own(name), what)
    world.check()


def _happen(world: World, process: Process, what: str) -> None:
    verb, *rest = what.split()
    match verb:
        case "read":
            process.read(world.log)
        case "act":
            _act(world, process)
        case "fail":
            world.failures += 1
            process.fail()
        case "deliver":
            world.deliver(process)
            return
        case "acknowledge":
            offset = int(rest[0])
            process.in_flight.remove(offset)
            world.acknowledged.add(offset)
        case "commit":
            process.commit(list(processed(world, process)))
        case "wait":
            for other in set(world.processes) - {process.name}:
                world.own(other).is_current = False
            _decide(world, process, process.waited)
            return
        case "replace" | "crash":
            if verb == "crash":
                world.crash(process.name)
            world.start(process.hashes)
            return
    _decide(world, process)


def processed(world: World, process: Process) -> Iterator[Rectangle]:
    """What a process has processed: all below its position but what it has in flight."""
    for part in process.hashes:
        at = 0
        for offset in [*sorted(process.in_flight), process.position]:
            if at < offset:
                yield Rectangle(OffsetRange(at, offset), part)
            at = offset + 1


def _decide(world: World, process: Process, now: float = 0.0) -> None:
    """Let the session go on; note what a commit has promised when it is answered."""
    process.decide(now)
    each, asked = process.ownership, process.asked
    if each is None or asked is None or each.commits.finished < asked.number:
        process.follow()
        return
    process.asked = None
    process.follow()
    if each.start is None:
        return
    answered = process.ownerships.stable(T0)
    if not world.acknowledged.issuperset(range(answered)):
        raise LawBrokenError(f"a commit answers the stable offset {answered}")
    for offset, hash_ in enumerate(world.keys):
        if is_own(process, hash_) and not is_pending(asked.done, offset, hash_):
            world.promised.add(offset)


def may_settle(process: Process) -> bool:
    """Whether a commit follows from what was read, once some time has passed since the last."""
    each = process.ownership
    return each is not None and each.follow_ups.is_due and each.owner.commit is None


def settle(world: World, process: Process) -> None:
    """That time has passed."""
    assert process.ownership is not None
    _decide(world, process, process.ownership.follow_ups.due_at)


def _act(world: World, process: Process) -> None:
    action, is_awaited = process.next_action()
    match action:
        case Write(records):
            first, *others = records
            world.write(process, first)
            if others:
                process.rest(Write(tuple(others)), is_awaited=is_awaited)
        case Delete(keys):
            first_key, *other_keys = keys
            world.delete(process, first_key)
            if other_keys:
                process.rest(Delete(tuple(other_keys)), is_awaited=is_awaited)
        case FetchPrimary() if is_awaited:
            process.owner.primary_read(world.primary, world.log.end)
        case ResolveInitial() if is_awaited:
            process.owner.initial_found(0)
        case WritePrimary(offset, anchor):
            world.primary = Primary(offset, anchor)
            if is_awaited:
                process.owner.primary_written()
