"""A small world for the protocol of individual commits: a log, primary offsets, members, faults.

A world is a value that can be copied: the explorer takes every step that is possible, in every
order. Records of one data partition; a member hands out records of its hashes in offset order, and
acknowledges them in any order.

Which world holds which law. One that extends another holds the laws of that one, too:

=================== =================== ========================================================
world, extends      its ways            laws
=================== =================== ========================================================
world               explorer            A key is with one living member, and comes in offset order.
                                        What was committed does not come again, and is not
                                        forgotten. What counts as processed was. Stable offsets do
                                        not fall, but for a log that was lost.
member_world,       member_explorer     No membership ends in a fault. Primary offsets do not fall.
world                                   A group settles, and processes all.
plain_world,        test_plain_explorer A partition is with the plain consumer, or with a member.
member_world                            What it has stored is not set back.
lease_world,        lease_explorer      An offset is with one living member, and comes once.
world                                   Compaction changes nobody's offsets. A commit takes what was
                                        in work as a lease has ended, and it is not forgotten.
transactional_world transactional_      What is processed has its output, once, in the order of its
                    explorer            key. Who goes on has left no transaction open.
                                        What was handed out before a reset counts no more after it.
grouped_world,      grouped_explorer    A key is with one living member, and comes in offset order.
transactional_world                     Primary offsets do not fall.
core/call_world     core/               What a call returns is its member's at that moment. What it
                    test_call_world     did not return is not committed. A cancelled call returns
                                        nothing.
=================== =================== ========================================================
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Self

from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog
from kshare.group.protocol.commit_log.records import Block, Key, Record, key_of
from kshare.group.protocol.commit_log.start import Primary
from kshare.group.protocol.owners.actions import (
    Delete,
    FetchPrimary,
    ResolveInitial,
    Write,
    WritePrimary,
)
from kshare.group.protocol.owners.owner import Phase
from tests.group.protocol.owning import (
    new_ownerships,
    shallow,
)
from tests.group.protocol.process import DAMAGED, T0, Log, Process, marks_of, own

HALVES = split(WHOLE, 2)


class LawBrokenError(AssertionError):
    """A law of the protocol does not hold in a world."""


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
    expired: int = 0  # how often tombstones were deleted
    failures: int = 0
    left: int = 0
    damaged: int = 0  # how many claims were made unreadable
    vanished: int = 0  # how many records were deleted that nobody has read
    cleaned_after: int = 0  # how many had left when records were last deleted
    per_call: int = 1  # records that a call returns, if there are as many
    _checked: tuple[object, ...] = ()  # what held at the last check
    _shared: set[str] = field(default_factory=set)  # processes that copies have, too

    # -- processes ---------------------------------------------------------------------------

    def own(self, name: str) -> Process:
        """A process that is about to change: another one than that of copies."""
        return own(self.processes, name, self._shared)

    def start(self, hashes: KeyRanges) -> None:
        name = f"m{self.started}"
        self.started += 1
        process = Process(name, new_ownerships(name, self.log.topic_id))
        process.claim({T0: hashes})
        self.processes[name] = process

    def crash(self, name: str) -> None:
        """Kill -9: what it has in flight is forgotten."""
        del self.processes[name]

    def leave(self, name: str) -> None:
        """An orderly end: it gives up what it claims."""
        process = self.processes.pop(name)
        self.left += 1
        for key in [*process.ownerships.give_up(), *process.ownerships.claims()]:
            self.delete(process, key)

    # -- laws ----------------------------------------------------------------------------------

    def deliver(self, process: Process) -> None:
        """A call returns what is next."""
        coming = iter(partial(next_record, self, process), None)
        for offset in islice(coming, self.per_call):
            self.give(process, offset)

    def give(self, process: Process, offset: int) -> None:
        """A record is one that a call returns."""
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
            self.expired,
            self.failures,
            self.left,
            self.damaged,
            self.vanished,
            self.started,
        )


def has_been_waited_for(world: World, process: Process) -> bool:
    """Whether another process has taken over hashes of one whose time was up."""
    claims = world.log.said().of(T0).claims
    own = claims.get(process.owner.claim_name)
    return any(
        other.start is not None
        and other.owner.claim_name in claims
        and (own is None or own.age < claims[other.owner.claim_name].age)
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
    damages: int = 0  # claims that others overwrite with what cannot be read
    vanishes: int = 0  # records that are deleted before anybody, their author too, reads them
    leaves: int = 0  # members that give up what they claim; others take a part of what one has


Step = tuple[str, str]
"""What happens, and to whom."""


def steps(world: World, limits: Limits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    for name, process in world.processes.items():
        possible += log_steps(world, process, limits)
        if world.started < limits.processes:
            possible += (("replace", name), ("crash", name))
            if limits.leaves:
                possible.append(("take a part", name))
        if world.left < limits.leaves and process.commits and process.asked is None:
            possible.append(("leave", name))
    possible += cleaner_steps(world, limits)
    possible += damage_steps(world, limits.damages)
    possible += vanish_steps(world, limits.vanishes)
    if world.lost_logs < limits.lost_logs and world.log.records:
        possible.append(("lose the log", ""))
    return possible


def cleaner_steps(world: World, limits: Limits) -> list[Step]:
    """What the log's cleaner can do: records that later ones replace go first, then tombstones."""
    possible: list[Step] = []
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    if world.expired < world.compactions and world.log.has_tombstones:
        possible.append(("delete tombstones", ""))
    return possible


def damage_steps(world: World, damages: int) -> list[Step]:
    """Claims that can be made unreadable, and records that operators can delete (``repair``).

    They do so when everyone has read it who was not away for longer than the claim timeout.

    Args:
        world: The world.
        damages: How many claims may be damaged, ever.
    """
    if not damages and not world.damaged:
        return []
    said = world.log.said().of(T0)
    possible = [("damage", name) for name in said.claims if world.damaged < damages]
    return [*possible, *repair_steps(said, world.processes.values())]


def repair_steps(said: PartitionLog, processes: Iterable[Process]) -> list[Step]:
    """Claims that cannot be read, of which all know who may go on."""
    seen = min((each.log.end for each in processes if each.is_current), default=math.inf)
    return [("repair", name) for name, damage in said.damaged.items() if damage.position < seen]


def vanish_steps(world: World, vanishes: int) -> list[Step]:
    """Records that their authors have written and nobody has read, which can be deleted.

    Args:
        world: The world.
        vanishes: How many, ever.
    """
    if world.vanished >= vanishes:
        return []
    processes, log = world.processes.values(), world.log
    read = max((each.log.end for each in processes if each.topic_id == log.topic_id), default=0)
    unread = {key: at for at, key, _ in log.records if at >= read}
    return [
        (f"vanish {unread[key]}", each.name)
        for each in processes
        for key in each.awaited
        if key in unread
    ]


def vanish(world: World, offset: int) -> None:
    """A record that nobody has read is there no more, nor what it had replaced: it comes again."""
    before = world._pending()
    world.vanished += 1
    world.log.lose(offset)
    forgotten = world._pending() - before
    world.late_facts |= forgotten
    world.promised -= forgotten


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
    if phase is Phase.WAITING and process.is_waiting:
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
        world.cleaned_after = world.left
    elif what == "delete tombstones":
        world.log.delete_tombstones()
        world.expired += 1
    elif what in {"damage", "repair"}:
        is_damage = what == "damage"
        world.damaged += is_damage
        world.log.append(Key(0, "claim", T0, (name,)), DAMAGED if is_damage else None)
    elif what.startswith("vanish"):
        vanish(world, int(what.split()[1]))
    elif what == "leave":
        world.leave(name)
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
        case "take":
            world.start(KeyRanges([split(process.hashes[0], 2)[0]]))
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
            elif is_awaited:
                process.owner.written(world.log.end - 1)
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
