"""The small world of a partition without key order: members lease chunks of its offsets.

On top of :mod:`tests.group.protocol.world`. Who is dead is told in one of two ways. With epochs,
the group's coordinator drops members and a record lists who is left; a member stops before
it is dropped. Without, members fall silent: a silent member stops delivering, and goes on under
another name if it lives.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle
from kshare.group.protocol.actions import Append, Delete
from kshare.group.protocol.cooperator import Cooperator
from kshare.group.protocol.lease import holdings, processed_offsets
from kshare.group.protocol.log import GroupLog
from kshare.group.protocol.owner import Phase
from kshare.group.protocol.records import Claim, Epoch, EpochMember, Key, Record, key_of
from tests.group.protocol import world as base
from tests.group.protocol.world import (
    T0,
    LawBrokenError,
    Log,
    Process,
    Step,
    World,
    clone_log,
    clone_process,
)


@dataclass
class Sharer(Process):
    """A process that leases chunks.

    Attributes:
        taken: What it has handed out since it began.
        start: Since when: the start that its owner had then.
        names: How many names it has had.
        epoch: The last epoch that the coordinator has told it.
    """

    taken: frozenset[int] = frozenset()
    start: object = None
    names: int = 1
    epoch: int | None = None

    @property
    def cooperator(self) -> Cooperator:
        assert isinstance(self.owner, Cooperator)
        return self.owner


@dataclass
class History(Log):
    """A log that remembers what compaction has deleted."""

    all_records: list[tuple[int, Key, Record | None]] = field(default_factory=list)
    _all_said: GroupLog = field(default_factory=lambda: GroupLog("g"))

    def append(self, key: Key, record: Record | None) -> None:
        self.all_records.append((self.end, key, record))
        super().append(key, record)

    def compact_for(self, read_to: int) -> None:
        """Compact; tombstones stay that some member has not read (``delete.retention.ms``)."""
        unread = [r for r in self.records if r[2] is None and r[0] >= read_to]
        self.compact()
        self.records = sorted([*self.records, *unread], key=lambda r: r[0])

    def all_said(self) -> GroupLog:
        """What it would say if nothing had been deleted."""
        for position, key, record in self.all_records[self._all_said.end :]:
            self._all_said.apply(position, key, record)
        return self._all_said

    def said_once_compacted(self) -> GroupLog:
        """What it would say if it was compacted now."""
        log = Log(list(self.records), self.end)
        log.compact()
        return log.said()

    def clone(self) -> "History":
        copy = super().clone()
        assert isinstance(copy, History)
        copy.all_records = list(self.all_records)
        copy._all_said = clone_log(self._all_said)
        return copy


@dataclass
class LeaseWorld(World):
    """A world whose processes share one partition.

    Attributes:
        by_epochs: Whether a coordinator tells who is dead.
        epoch: The last epoch: its log offset, and the names of its members.
        delivered: Who has handed out each offset, by names.
        deaths: How often a living member was dropped, or fell silent.
    """

    log: Log = field(default_factory=History)
    by_epochs: bool = True
    chunk: int = 2
    epoch: tuple[int, frozenset[str]] = (-1, frozenset())
    delivered: dict[int, frozenset[str]] = field(default_factory=dict)
    deaths: int = 0
    _compared: tuple[str, int] = ("", -1)  # the last log of which it was checked

    def share(self) -> None:
        """Start a process."""
        name = f"m{self.started}"
        self.started += 1
        if self.by_epochs:
            self._write_epoch(self.epoch[1] | {name})
        process = Sharer(name, (WHOLE,), GroupLog("g"), self.cooperator(name, 1), self.log.topic_id)
        process.epoch = self.epoch[0] if self.by_epochs else None
        process.cooperator.stay(process.epoch)
        self.processes[name] = process

    def cooperator(self, name: str, number: int) -> Cooperator:
        """The core of a process under a new name."""
        return Cooperator(
            Claim(T0, f"{name}#{number}", (WHOLE,), self_fencing=self.by_epochs, shared=True),
            self.log.topic_id,
            chunk_records=self.chunk,
        )

    def leave(self, name: str) -> None:
        """The coordinator drops a member, or it falls silent."""
        self.processes[name].is_member = False
        if self.by_epochs:
            self._write_epoch(self.epoch[1] - {name})

    def _write_epoch(self, names: frozenset[str]) -> None:
        members = tuple(EpochMember(name, name, "") for name in sorted(names))
        record = Epoch(self.log.end, "", members)
        self.epoch = (self.log.end, names)
        self.log.append(key_of(record), record)

    def lose_log(self) -> None:
        """The log is deleted; who has what is forgotten, and the group is assigned again."""
        self.log = History(topic_id=f"lost {self.lost_logs}")
        self.lost_logs += 1
        self.delivered = {}
        if self.by_epochs:
            self._write_epoch(self.epoch[1])
            for process in self.processes.values():
                sharer(process).epoch = None

    # -- laws ------------------------------------------------------------------------------------

    def hand_out(self, process: Sharer) -> None:
        offset = next_offset(self, process)
        assert offset is not None
        before = self.delivered.get(offset, frozenset())
        for other in self.processes.values():
            owner = other.owner.member
            is_living = other.is_member and other.is_current and other is not process
            has_it = offset in other.in_flight if self.lost_logs else owner in before
            if is_living and has_it:
                raise LawBrokenError(f"offset {offset} is with {owner} and {process.name}")
        if offset in process.taken:
            raise LawBrokenError(f"offset {offset} twice of {process.name}")
        if offset in self.promised and not self.lost_logs:
            raise LawBrokenError(f"offset {offset} again, after it was committed")
        self.delivered[offset] = before | {process.owner.member}
        process.taken |= {offset}
        process.in_flight.append(offset)

    def check(self) -> None:
        super().check()
        assert isinstance(self.log, History)
        if self._compared == (self.log.topic_id, self.log.version):
            return
        compacted, whole = self.log.said_once_compacted(), self.log.all_said()
        is_same = compacted.of(T0) == whole.of(T0)  # mostly; then so is what follows from it
        if not is_same and self._holders(compacted) != self._holders(whole):
            raise LawBrokenError("compaction changes who has an offset")
        self._compared = (self.log.topic_id, self.log.version)

    def _holders(self, said: GroupLog) -> dict[int, str]:
        """Who has each offset that is not processed, to one that starts with what a log says."""
        part = said.of(T0)
        if not part.leases:
            return {}
        done = processed_offsets(self.known_of(said))
        return {
            offset: member
            for (member, _), bounds in holdings(part).items()
            for lo, hi in zip(bounds[::2], bounds[1::2], strict=True)
            for offset in range(lo, hi)
            if not is_in(offset, done)
        }

    # -- copies ----------------------------------------------------------------------------------

    def clone(self) -> "LeaseWorld":
        return replace(
            self,
            log=self.log.clone(),
            processes={name: clone_sharer(sharer(p)) for name, p in self.processes.items()},
            acknowledged=set(self.acknowledged),
            promised=set(self.promised),
            delivered=dict(self.delivered),
        )

    def fingerprint(self) -> tuple[object, ...]:
        return (
            *super().fingerprint(),
            self.epoch,
            tuple(sorted(self.delivered.items())),
            self.deaths,
            tuple(_print_of_share(sharer(p)) for _, p in sorted(self.processes.items())),
        )


def is_in(offset: int, bounds: tuple[int, ...]) -> bool:
    """Whether an offset is in a set."""
    return bisect_right(bounds, offset) % 2 == 1


def sharer(process: Process) -> Sharer:
    assert isinstance(process, Sharer)
    return process


def clone_sharer(process: Sharer) -> Sharer:
    copy = sharer(clone_process(process))
    owner = copy.cooperator
    owner._given_up, owner._appended = set(owner._given_up), set(owner._appended)
    return copy


def _print_of_share(process: Sharer) -> tuple[object, ...]:
    owner = process.cooperator
    return (
        owner.member,
        owner.share,
        owner.silent,
        owner.epoch,
        owner.peers,
        owner._asked,
        owner._data,
        frozenset(owner._given_up),
        frozenset(owner._appended),
        frozenset(process.part().leases.items()),
        process.taken,
        process.is_member,
        process.epoch,
    )


def next_offset(world: LeaseWorld, process: Sharer) -> int | None:
    """The next offset that a process would hand out."""
    share = process.cooperator.share
    held = () if share is None else share.held
    for lo, hi in zip(held[::2], held[1::2], strict=True):
        for offset in range(lo, min(hi, len(world.keys))):
            if offset not in process.taken:
                return offset
    return None


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeaseLimits:
    """How much may happen in a world, so that it is finite."""

    processes: int = 3
    commits: int = 2
    in_flight: int = 1
    deaths: int = 1
    compactions: int = 1
    failures: int = 1
    lost_logs: int = 0


def lease_steps(world: LeaseWorld, limits: LeaseLimits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    gone = frozenset[str]() if world.by_epochs else _gone(world)
    for process in map(sharer, world.processes.values()):
        possible += _own_steps(world, process, limits)
        possible += _deaths(world, process, gone)
        if world.deaths < limits.deaths:
            if process.is_member or not world.lost_logs:  # else only a next epoch tells
                possible.append(("crash", process.name))
            if process.is_member:
                possible.append(("drop", process.name))
    if world.started < limits.processes:
        possible.append(("start", ""))
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    if world.lost_logs < limits.lost_logs and world.log.records:
        possible.append(("lose the log", ""))
    return possible


def _own_steps(world: LeaseWorld, process: Sharer, limits: LeaseLimits) -> list[Step]:
    possible: list[Step] = []
    name, owner, log = process.name, process.cooperator, world.log
    is_behind = process.log.end < log.end or process.topic_id != log.topic_id
    if is_behind or not process.is_current:
        possible.append(("read", name))
    if process.inbox:
        possible.append(("act", name))
        if world.failures < limits.failures and not isinstance(process.inbox[0], Delete):
            possible.append(("fail", name))
            if isinstance(process.inbox[0], Append):
                possible.append(("fail late", name))
    is_running = owner.phase is Phase.RUNNING
    delivers = process.is_member and process.is_current and is_running
    has_room = len(process.in_flight) < limits.in_flight
    if delivers and has_room and next_offset(world, process) is not None:
        possible.append(("deliver", name))
    share = owner.share
    is_wanted = share is not None and owner._data is None and not share.is_asking
    if is_wanted and share is not None and share.free < len(world.keys):
        possible.append(("want", name))
    possible += [(f"acknowledge {offset}", name) for offset in process.in_flight]
    if is_running and owner.commit is None and process.commits < limits.commits:
        possible.append(("commit", name))
    return possible


def _deaths(world: LeaseWorld, process: Sharer, gone: frozenset[str]) -> list[Step]:
    """What a process learns of who is dead.

    Args:
        world: The world.
        process: The process.
        gone: The names in the log of members that are dead or silent.
    """
    possible: list[Step] = []
    name, owner = process.name, process.cooperator
    if owner.phase is Phase.WAITING:
        possible.append(("wait", name))
    if world.by_epochs and process.is_member and process.epoch != world.epoch[0]:
        possible.append(("sync", name))
    if not world.by_epochs and gone - owner.silent - {owner.member}:
        possible.append(("deem", name))
    if not process.is_member:
        possible.append(("renew", name))
    return possible


def _gone(world: LeaseWorld) -> frozenset[str]:
    """The names in the log of members that are dead or silent."""
    living = {each.owner.member for each in world.processes.values() if each.is_member}
    return frozenset(world.log.said().of(T0).claims) - living


def take_lease(world: LeaseWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    if what == "start":
        world.share()
        _decide(world, sharer(world.processes[f"m{world.started - 1}"]))
    elif what == "compact":
        assert isinstance(world.log, History)
        ends = [p.log.end for p in world.processes.values() if p.topic_id == world.log.topic_id]
        world.log.compact_for(min(ends, default=0))
        world.compactions += 1
    elif what == "lose the log":
        world.lose_log()
    else:
        _happen(world, sharer(world.processes[name]), what)
    world.check()


def _happen(world: LeaseWorld, process: Sharer, what: str) -> None:
    owner = process.cooperator
    match what.split():
        case ["crash" | "drop" as verb]:
            world.deaths += 1
            world.leave(process.name)
            if verb == "crash":
                del world.processes[process.name]
            return
        case ["deliver"]:
            world.hand_out(process)
            return
        case ["act"]:
            _act(world, process)
        case ["fail", *late]:
            world.failures += 1
            _fail(world, process, is_late=bool(late))
        case ["want"]:
            owner.want(0, len(world.keys))
        case ["sync"]:
            process.epoch = world.epoch[0]
            if process.topic_id == world.log.topic_id:
                owner.stay(*world.epoch)
            else:  # it does not know yet of which log this epoch is
                process.epoch = None
        case ["deem"]:
            owner.silent |= _gone(world) - {owner.member}
        case ["renew"]:
            _renew(world, process)
        case ["commit"]:
            process.commits += 1
            owner.processed(list(processed(process)))
            owner.begin_commit(process.part())
        case _:
            base._happen(world, process, what)
            _follow(process)
            return
    _decide(world, process)


def _act(world: LeaseWorld, process: Sharer) -> None:
    action = process.inbox[0]
    if isinstance(action, Append):
        process.next_action()
        world.log.append(action.key, action.record)
    else:
        base._act(world, process)


def _fail(world: LeaseWorld, process: Sharer, *, is_late: bool) -> None:
    """Something is not done, or it is, and nobody learns of it."""
    action = process.inbox[0]
    if isinstance(action, Append):
        process.next_action()
        if is_late:
            world.log.append(action.key, action.record)
        process.cooperator.not_appended(action.key)
    else:
        process.fail()


def _renew(world: LeaseWorld, process: Sharer) -> None:
    """It lives, and goes on under another name; with a coordinator, as a member of a new epoch."""
    process.names += 1
    old = Key(0, "claim", T0, (process.owner.member,))
    process.owner = world.cooperator(process.name, process.names)
    process.forget(Append(old))
    process.in_flight = []
    process.is_member, process.start, process.taken = True, None, frozenset()
    if world.by_epochs:
        world._write_epoch(world.epoch[1] | {process.name})
        process.epoch = world.epoch[0]
        process.cooperator.stay(process.epoch)


def processed(process: Sharer) -> Iterator[Rectangle]:
    """What a process has processed."""
    for offset in sorted(process.taken - set(process.in_flight)):
        yield Rectangle(OffsetRange(offset, offset + 1), WHOLE)


def _decide(world: LeaseWorld, process: Sharer) -> None:
    owner = process.cooperator
    if owner.peers is None and owner.epoch in process.log.epochs:
        owner.know_peers(process.log.epochs[owner.epoch].names)
    base._decide(world, process)
    _follow(process)


def _follow(process: Sharer) -> None:
    """Another start, as after a reset: what was handed out before counts no more."""
    if process.start is not process.owner.start:
        process.start, process.taken = process.owner.start, frozenset()


def finish(world: LeaseWorld) -> None:
    """Let no more go wrong: everyone reads, acts and processes all there is, and commits.

    Raises:
        LawBrokenError: Something is left.
    """
    limits = LeaseLimits(0, 1_000, 1_000, 0, 0, 0)
    verbs = (
        "sync", "deem", "renew", "read", "wait", "act", "want", "deliver", "acknowledge", "commit"
    )  # fmt: skip
    possible = lease_steps(world, limits)
    for _ in range(40):
        is_done = True
        for verb in verbs:
            for step in [step for step in possible if step[0].split()[0] == verb]:
                if verb != "commit" or _has_news(world, step[1]):
                    take_lease(world, step)
                    is_done, possible = False, []
            possible = possible or lease_steps(world, limits)
        if is_done:  # nothing has changed, and nothing will
            break
    part = world.log.said().of(T0)
    if world.processes and part.progress().stable < len(world.keys):
        raise LawBrokenError(f"offset {part.progress().stable} is never processed")
    if world.processes and part.leases:
        raise LawBrokenError(f"leases stay for ever: {part.leases}")


def _has_news(world: LeaseWorld, name: str) -> bool:
    """Whether a process has something to commit."""
    process = sharer(world.processes[name])
    done = processed_offsets(process.part().progress())
    pieces = [(piece.offsets.start, piece.offsets.end) for piece in processed(process)]
    return any(not is_in(lo, done) for lo, _ in pieces) or process.cooperator._is_stable_behind
