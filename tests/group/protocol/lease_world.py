"""The small world of a partition without key order: members lease chunks of its offsets.

On top of :mod:`tests.group.protocol.world`. Who is dead is told in one of two ways. With epochs,
the group's coordinator drops members and a record lists who is left; a member stops before
it is dropped. Without, members fall silent: a silent member stops delivering, and goes on under
another name if it lives. Who reads a claim that cannot be read ends.

With late work, leases of the living end, too, and what a member had in work then is processed and
committed later. Its laws: a commit takes it, and what it has answered is not forgotten.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Self

from kshare.core.hashing import ALL_HASHES, WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle
from kshare.group.core.work import LateWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Epoch, EpochMember, Key, Record, key_of
from kshare.group.protocol.owners.actions import Append, Delete
from kshare.group.protocol.owners.cooperator import Cooperator
from kshare.group.protocol.owners.leases import holdings, processed_offsets
from kshare.group.protocol.owners.owner import Phase
from kshare.group.protocol.owners.takeover import session_of
from tests.group.protocol import world as base
from tests.group.protocol.owning import clone_log, new_ownerships
from tests.group.protocol.process import GONE, T0, Asked, Log, Process, apply_record
from tests.group.protocol.world import LawBrokenError, Step, World


@dataclass(frozen=True)
class Late:
    """What was handed out from a start that has ended.

    Attributes:
        start: The start.
        taken: All of it.
        in_flight: What of it is not processed.
    """

    start: DeliveryStart
    taken: frozenset[int]
    in_flight: frozenset[int]

    def work(self) -> LateWork:
        """What of it is to be committed."""
        return LateWork(T0, self.start, Progress.of(0, _pieces(self.taken - self.in_flight)))


@dataclass
class Sharer(Process):
    """A process that leases chunks.

    Attributes:
        taken: What it has handed out since it began.
        epoch: The last epoch that the coordinator has told it.
        keeps_late: Whether it remembers what it had in work when its delivery ended.
        late: That.
        refused: The offsets that its last commit did not take.
    """

    taken: frozenset[int] = frozenset()
    epoch: int | None = None
    keeps_late: bool = False
    late: tuple[Late, ...] = ()
    refused: tuple[int, ...] = ()

    @property
    def cooperator(self) -> Cooperator:
        assert isinstance(self.owner, Cooperator)
        return self.owner

    @property
    def awaited(self) -> list[Key]:
        owner, incarnation = self.cooperator, self.part().incarnation
        if owner.asked is None or owner._placement_asked.offset is None:
            return super().awaited
        lease = Key(incarnation, "lease", T0, (owner.claim_name, owner.asked))
        return [*super().awaited, lease]

    def clone(self) -> Self:
        copy = super().clone()
        owner = copy.cooperator
        owner._given_up, owner._appended = set(owner._given_up), set(owner._appended)
        return copy

    def fingerprint(self) -> tuple[object, ...]:
        owner = self.cooperator
        return (
            *super().fingerprint(),
            owner.share,
            owner.silent,
            owner.asked,
            owner._placement_asked,
            owner._data,
            frozenset(owner._given_up),
            frozenset(owner._appended),
            frozenset(self.part().leases.items()),
            self.taken,
            self.epoch,
            tuple((self._takes(each), each.taken, each.in_flight) for each in self.late),
        )

    def _takes(self, late: Late) -> bool:
        return self.ownerships.may_count(T0, late.start)

    def follow(self) -> None:
        before, in_flight = self.delivery, frozenset(self.in_flight)
        super().follow()
        if self.delivery is not before:
            if self.keeps_late and before is not None and self.taken:
                self.late = (*self.late, Late(before, self.taken, in_flight))
            self.taken = frozenset()
        if self.late:
            done = processed_offsets(self.part().progress())
            self.late = tuple(
                each for each in self.late if not all(is_in(offset, done) for offset in each.taken)
            )

    def finish(self, offset: int) -> None:
        """Some record is processed that it had in work before."""
        at = next(at for at, each in enumerate(self.late) if offset in each.in_flight)
        each = self.late[at]
        each = replace(each, in_flight=each.in_flight - {offset})
        self.late = (*self.late[:at], each, *self.late[at + 1 :])

    def commit(self, processed: Sequence[Rectangle]) -> None:
        """Ask for a commit of what was processed, in time and late."""
        if not self.keeps_late:
            super().commit(processed)
            return
        self.commits += 1
        starts = {} if self.delivery is None else {T0: self.delivery}
        late = [each.work() for each in self.late]
        refused = self.ownerships.refused({T0: processed}, starts, late)
        self.refused = refused.get(T0, ())
        what = [each.processed for each in late if not self.ownerships.refused({}, {}, [each])]
        done = reduce(Progress.union, what, Progress.of(0, processed))
        for each, number in self.ownerships.ask_commits({T0: processed}, starts, late):
            self.asked = Asked(number, each.owner.done.union(done))


@dataclass
class History(Log):
    """A log that remembers what compaction has deleted."""

    all_records: list[tuple[int, Key, Record | None]] = field(default_factory=list)
    _all_said: GroupLog = field(default_factory=lambda: GroupLog("g"))
    _shares_all: bool = False  # whether copies have that, too

    def append(self, key: Key, record: Record | None) -> None:
        self.all_records.append((self.end, key, record))
        super().append(key, record)

    def lose(self, offset: int) -> None:
        super().lose(offset)
        # What it has replaced is gone, too, where compaction was there before.
        kept, (_, lost, _) = {at for at, _, _ in self.records}, self.all_records[offset]
        for at, key, _ in self.all_records[: offset + 1]:
            if key == lost and at not in kept:
                self.all_records[at] = (at, Key(0, "member", None, ("nobody",)), None)
        self._all_said, self._shares_all = GroupLog("g"), False

    def compact_for(self, read_to: int) -> None:
        """Compact; tombstones stay that some member has not read (``delete.retention.ms``)."""
        self.compact()
        self.delete_tombstones(read_to)

    def all_said(self) -> GroupLog:
        """What it would say if nothing had been deleted."""
        if self._all_said.end < len(self.all_records) and self._shares_all:
            self._all_said, self._shares_all = clone_log(self._all_said), False
        for position, key, record in self.all_records[self._all_said.end :]:
            apply_record(self._all_said, position, key, record)
        return self._all_said

    def said_once_compacted(self) -> GroupLog:
        """What it would say if it was compacted now."""
        log = Log(list(self.records), self.end)
        log.compact()
        log.delete_tombstones()
        return log.said()

    def clone(self) -> Self:
        self._shares_all = True
        copy = super().clone()
        copy.all_records = list(self.all_records)
        return copy


@dataclass
class LeaseWorld(World):
    """A world whose processes share one partition.

    Attributes:
        by_epochs: Whether a coordinator tells who is dead.
        epoch: The last epoch: its log offset, and the names of its members.
        delivered: Who has handed out each offset, by names.
        deaths: How often a living member was dropped, or fell silent.
        keeps_late: Whether members commit what they had in work when their delivery ended.
        expiries: How often a lease of a living member has ended.
        late_commits: The offsets of commits of late work: others may have leased them meanwhile.
    """

    log: Log = field(default_factory=History)
    by_epochs: bool = True
    chunk: int = 2
    epoch: tuple[int, frozenset[str]] = (-1, frozenset())
    delivered: dict[int, frozenset[str]] = field(default_factory=dict)
    deaths: int = 0
    keeps_late: bool = False
    expiries: int = 0
    late_commits: frozenset[int] = frozenset()
    _compared: tuple[str, int] = ("", -1)  # the last log of which it was checked

    def share(self) -> None:
        """Start a process."""
        name = f"m{self.started}"
        self.started += 1
        if self.by_epochs:
            self._write_epoch(self.epoch[1] | {name})
        owned = new_ownerships(name, self.log.topic_id, lease_records=self.chunk)
        process = Sharer(name, owned, keeps_late=self.keeps_late)
        self.processes[name] = process
        self.claim(process)

    def claim(self, process: Sharer) -> None:
        """Claim the partition, as a member of the last epoch if there are some."""
        is_known = self.by_epochs and process.topic_id == self.log.topic_id  # else it is told again
        process.epoch = self.epoch[0] if is_known else None
        epoch = (self.epoch[0], self.log.topic_id) if self.by_epochs else None
        process.claim({T0: ALL_HASHES}, epoch=epoch, self_fencing=self.by_epochs)

    def leave(self, name: str) -> None:
        """The coordinator drops a member, or it falls silent."""
        self.own(name).is_member = False
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
            for name in self.processes:
                sharer(self.own(name)).epoch = None

    # -- laws ------------------------------------------------------------------------------------

    def hand_out(self, process: Sharer) -> None:
        offset = next_offset(self, process)
        assert offset is not None
        before = self.delivered.get(offset, frozenset())
        for other in self.processes.values():
            owner = other.owner.claim_name
            is_living = other.is_member and other.is_current and other is not process
            has_it = offset in other.in_flight if self.lost_logs else owner in before
            if is_living and has_it:
                raise LawBrokenError(f"offset {offset} is with {owner} and {process.name}")
        if offset in process.taken:
            raise LawBrokenError(f"offset {offset} twice of {process.name}")
        is_promised = offset in self.promised and not self.lost_logs
        if is_promised and not self._is_unheard(process, offset):
            raise LawBrokenError(f"offset {offset} again, after it was committed")
        self.delivered[offset] = before | {process.owner.claim_name}
        process.taken |= {offset}
        process.in_flight.append(offset)

    def _is_unheard(self, process: Sharer, offset: int) -> bool:
        """Whether a process cannot know of a commit of what it has leased: it came late.

        Facts count at any time. So a member may commit what another one has by now, and that one
        hands it out until it reads so.
        """
        read = processed_offsets(process.part().progress())
        return offset in self.late_commits and not is_in(offset, read)

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

    def clone(self) -> Self:
        world = super().clone()
        world.delivered = dict(self.delivered)
        return world

    def fingerprint(self) -> tuple[object, ...]:
        return (
            *super().fingerprint(),
            self.epoch,
            tuple(sorted(self.delivered.items())),
            self.deaths,
            self.expiries,
            self.late_commits,
        )


def is_in(offset: int, bounds: tuple[int, ...]) -> bool:
    """Whether an offset is in a set."""
    return bisect_right(bounds, offset) % 2 == 1


def sharer(process: Process) -> Sharer:
    assert isinstance(process, Sharer)
    return process


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
    expiries: int = 0
    damages: int = 0
    vanishes: int = 0


def lease_steps(world: LeaseWorld, limits: LeaseLimits) -> list[Step]:
    """Everything that can happen next."""
    possible: list[Step] = []
    for process in map(sharer, world.processes.values()):
        possible += _own_steps(world, process, limits)
        possible += _deaths(world, process)
        if world.deaths < limits.deaths:
            if process.is_member or not world.lost_logs:  # else only a next epoch tells
                possible.append(("crash", process.name))
            if process.is_member:
                possible.append(("drop", process.name))
    if world.started < limits.processes:
        possible.append(("start", ""))
    if world.compactions < limits.compactions and world.log.records:
        possible.append(("compact", ""))
    possible += base.damage_steps(world, limits.damages)
    possible += base.vanish_steps(world, limits.vanishes)
    if world.lost_logs < limits.lost_logs and world.log.records:
        possible.append(("lose the log", ""))
    return possible


def _own_steps(world: LeaseWorld, process: Sharer, limits: LeaseLimits) -> list[Step]:
    possible: list[Step] = []
    name, owner, log = process.name, process.cooperator, world.log
    is_behind = process.log.end < log.end or process.topic_id != log.topic_id
    if is_behind or not process.is_current:
        possible.append(("read", name))
    if process.wanted:
        possible.append(("act", name))
        first = process.wanted[0][1]
        if world.failures < limits.failures and not isinstance(first, Delete):
            possible.append(("fail", name))
            if isinstance(first, Append):
                possible.append(("fail late", name))
    is_running = process.start is not None
    delivers = process.is_member and process.is_current and is_running
    has_room = len(process.in_flight) < limits.in_flight
    if delivers and has_room and next_offset(world, process) is not None:
        possible.append(("deliver", name))
    share = owner.share
    is_wanted = share is not None and owner._data is None and not share.is_asking
    if is_wanted and share is not None and share.free < len(world.keys):
        possible.append(("want", name))
    possible += [(f"acknowledge {offset}", name) for offset in process.in_flight]
    possible += [
        (f"finish {offset}", name)
        for offset in sorted({o for each in process.late for o in each.in_flight})
    ]
    has_late = any(each.taken - each.in_flight for each in process.late)
    if (is_running or has_late) and owner.commit is None and process.commits < limits.commits:
        possible.append(("commit", name))
    if is_running and owner.leased and world.expiries < limits.expiries:
        possible.append(("expire", name))
    if base.may_settle(process):
        possible.append(("settle", name))
    return possible


def _deaths(world: LeaseWorld, process: Sharer) -> list[Step]:
    """What a process learns of who is dead."""
    possible: list[Step] = []
    name, owner = process.name, process.cooperator
    if owner.phase is Phase.WAITING:
        possible.append(("wait", name))
    if world.by_epochs and process.is_member and process.epoch != world.epoch[0]:
        possible.append(("sync", name))
    # With epochs, too: who claims before it has noticed that the log is another one has no epoch.
    if silent := _silent(world, process):
        names = {claim for claim in process.part().claims if session_of(claim) in silent}
        if names - owner.silent:
            possible.append(("deem", name))
    if not process.is_member:
        possible.append(("renew", name))
    return possible


def _silent(world: LeaseWorld, process: Sharer) -> set[str]:
    """The sessions of others that are dead or silent, as far as a process has read of them."""
    living = {each.name for each in world.processes.values() if each.is_member}
    return process.ownerships.sharers() - living


def take_lease(world: LeaseWorld, step: Step) -> None:
    """Let something happen.

    Raises:
        LawBrokenError: A law does not hold any more.
    """
    what, name = step
    if what == "start":
        world.share()
        base._decide(world, world.processes[f"m{world.started - 1}"])
    elif what == "compact":
        assert isinstance(world.log, History)
        ends = [p.log.end for p in world.processes.values() if p.topic_id == world.log.topic_id]
        world.log.compact_for(min(ends, default=0))
        world.compactions += 1
    elif what == "lose the log":
        world.lose_log()
    elif what.split()[0] in {"damage", "repair", "vanish"}:
        base.take(world, step)
    else:
        _happen(world, sharer(world.own(name)), what)
        if name in world.processes and must_end(sharer(world.processes[name])):
            world.leave(name)
            del world.processes[name]
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
            is_known = process.topic_id == world.log.topic_id
            process.epoch = world.epoch[0] if is_known else None  # else it is told again
            process.ownerships.enter_epoch((world.epoch[0], world.log.topic_id))
        case ["deem"]:
            process.ownerships.expire(_silent(world, process))
        case ["settle"]:
            base.settle(world, process)
            return
        case ["renew"]:
            _renew(world, process)
        case ["commit" | "finish" | "expire", *_]:
            _work(world, process, what)
        case _:
            base._happen(world, process, what)
            return
    base._decide(world, process)


def must_end(process: Sharer) -> bool:
    """Whether a process has read a claim that cannot be read: leases count by the claims of all."""
    return bool(process.part().damaged)


def _work(world: LeaseWorld, process: Sharer, what: str) -> None:
    """A commit; the lease of a living member ends; what it has in work then is processed later."""
    verb, *rest = what.split()
    if verb == "finish":
        process.finish(int(rest[0]))
        world.acknowledged.add(int(rest[0]))
        return
    if verb == "commit":
        world.late_commits |= {o for each in process.late for o in each.taken - each.in_flight}
        process.commit(list(processed(process)))
        if process.refused and not world.lost_logs:
            raise LawBrokenError(f"a commit of {process.name} refuses what is late")
        return
    world.expiries += 1
    before = process.ownership
    process.ownerships._renew(process.cooperator, "a lease is over")
    process.forget(before)


def _act(world: LeaseWorld, process: Sharer) -> None:
    action = process.wanted[0][1]
    if isinstance(action, Append):
        number, _ = process.wanted.pop(0)
        world.log.append(action.key, action.record)
        if number != GONE:
            process.cooperator.appended(action.key, world.log.end - 1)
    else:
        base._act(world, process)


def _fail(world: LeaseWorld, process: Sharer, *, is_late: bool) -> None:
    """Something is not done, or it is, and nobody learns of it."""
    action = process.wanted[0][1]
    if isinstance(action, Append):
        number, _ = process.wanted.pop(0)
        if is_late:
            world.log.append(action.key, action.record)
        if number != GONE:
            process.cooperator.not_appended(action.key)
    else:
        process.fail()


def _renew(world: LeaseWorld, process: Sharer) -> None:
    """It lives, and goes on under another name; with a coordinator, as a member of a new epoch."""
    process.is_member = True
    if world.by_epochs:
        process.claim({})
        world._write_epoch(world.epoch[1] | {process.name})
        world.claim(process)
    else:
        process.renew()


def processed(process: Sharer) -> Iterator[Rectangle]:
    """What a process has processed."""
    yield from _pieces(process.taken - set(process.in_flight))


def _pieces(offsets: frozenset[int]) -> Iterator[Rectangle]:
    for offset in sorted(offsets):
        yield Rectangle(OffsetRange(offset, offset + 1), WHOLE)


def finish(world: LeaseWorld) -> None:
    """Let no more go wrong: everyone reads, acts and processes all there is, and commits.

    Raises:
        LawBrokenError: Something is left.
    """
    limits = LeaseLimits(0, 1_000, 1_000, 0, 0, 0)
    verbs = (
        "sync", "deem", "renew", "read", "wait", "act", "want", "deliver", "acknowledge", "finish",
        "commit", "settle",
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
    late = [each.taken - each.in_flight for each in process.late]
    offsets = {piece.offsets.start for piece in processed(process)}.union(*late)
    return any(not is_in(offset, done) for offset in offsets)
