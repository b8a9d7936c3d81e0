"""The processes of a small world: what each has read, owns and has begun, and the log."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Self, TypeVar

from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog
from kshare.group.protocol.commit_log.records import Claim, Key, Member, Record, key_of
from kshare.group.protocol.owners.actions import (
    Action,
    Delete,
    Write,
)
from kshare.group.protocol.owners.owner import Owner, Phase
from tests.group.protocol.owning import (
    TIMEOUT,
    Mark,
    clone_log,
    clone_of_ownerships,
    print_of_ownership,
    shallow,
)

T0 = TopicPartition("orders", 0)


NOBODY: Final = Owner(Claim(T0, "", NO_HASHES), phase=Phase.FENCED)
"""The owner of a process that owns nothing."""


GONE: Final = -1
"""The number of actions for which nobody waits."""


DAMAGED: Final = Member("damaged", "", 0)
"""Stands for a record that cannot be read."""


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
    _marks: tuple[Mark, ...] = ()  # of the first records
    _is_shared: bool = False  # whether copies have what it says, too

    def append(self, key: Key, record: Record | None) -> None:
        self.records.append((self.end, key, record))
        self.end += 1
        self.version += 1
        self._mark = None

    @property
    def has_tombstones(self) -> bool:
        return any(record is None for _, _, record in self.records)

    def compact(self) -> None:
        """Delete what later records of the same key replace; their tombstones stay for a while."""
        last = {key: offset for offset, key, _ in self.records}
        self._keep([r for r in self.records if last[r[1]] == r[0]])

    def delete_tombstones(self, below: int | None = None) -> None:
        """``delete.retention.ms`` is over of those that have nothing left to delete.

        Args:
            below: Only of those below this offset; None for all.
        """
        first = {key: offset for offset, key, _ in reversed(self.records)}
        end = self.end if below is None else below
        self._keep(
            [r for r in self.records if r[2] is not None or first[r[1]] < r[0] or r[0] >= end]
        )

    def lose(self, offset: int) -> None:
        """A record was damaged, deleted as such, and compacted away, with its tombstone."""
        self._keep([each for each in self.records if each[0] != offset])

    def _keep(self, records: list[tuple[int, Key, Record | None]]) -> None:
        self.records = records
        self._said, self._is_shared = GroupLog("g"), False
        self.version += 1
        self._mark, self._marks = None, ()

    def has_holes(self, start: int) -> bool:
        """Whether a reader that goes on at an offset, up to the end, misses some."""
        return len(self.records) - bisect_left(self.records, start, key=itemgetter(0)) < (
            self.end - start
        )

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
            self._marks += tuple(map(Mark.of, self.records[len(self._marks) :]))
            self._mark = Mark.of((self._marks, self.end, self.topic_id))
        return self._mark


def apply_record(into: GroupLog, position: int, key: Key, record: Record | None) -> None:
    """Let a reader read the next record, which it may not be able to."""
    if record is DAMAGED:
        into.damage(position, key, "it cannot be read")
    else:
        into.apply(position, key, record)


def replay(log: Log, into: GroupLog) -> None:
    """Let a reader read to the end of the log."""
    if into.end < log.end:
        first = bisect_left(log.records, into.end, key=itemgetter(0))
        for position, key, record in log.records[first:]:
            apply_record(into, position, key, record)
    into.end = max(into.end, log.end)


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
        read_mark: The log that it has read, how far, and the same of what that says.
        shares_log: Whether copies of it have the same object for what they have read.
    """

    name: str
    ownerships: Ownerships
    wanted: list[tuple[int, Action]] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    position: int = 0
    delivery: DeliveryStart | None = None
    asked: Asked | None = None
    is_current: bool = False
    is_member: bool = True
    commits: int = 0
    mark: Mark | None = None
    read_mark: tuple[GroupLog, int, Mark] | None = None
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
    def hashes(self) -> KeyRanges:
        return self.owner.hashes

    @property
    def log(self) -> GroupLog:
        return self.ownerships.log

    @property
    def topic_id(self) -> str:
        return self.ownerships.topic_id

    @property
    def start(self) -> DeliveryStart | None:
        """From where it may deliver; None if it may not."""
        each = self.ownerships.by_partition.get(T0)
        return None if each is None else each.start

    @property
    def inbox(self) -> list[Action]:
        """What is to be done, and is not done yet."""
        return [action for _, action in self.wanted]

    @property
    def awaited(self) -> list[Key]:
        """The keys of the records that it has written, and waits to read."""
        pending, placement = self.owner.pending, self.owner._placement
        if placement.offset is None or not pending or not isinstance(pending[0], Write):
            return []
        return [key_of(record) for record in pending[0].records]

    @property
    def is_waiting(self) -> bool:
        """Whether time goes on for what it waits for."""
        each = self.ownership
        return each is not None and each.waits_since is not None

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
        each, asked = self.ownership, self.asked
        return (
            self.name,
            self._mark_of_what_it_read(),
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

    def _mark_of_what_it_read(self) -> Mark:
        log, known = self.log, self.read_mark
        if known is not None and known[0] is log and known[1] == log.end:
            return known[2]
        part = log.of(T0)
        mark = Mark.of(
            (
                log.end,
                part.incarnation,
                part.reset_to,
                part.stable,
                frozenset(part.stables.items()),
                frozenset(part.resets),
                frozenset(part.blocks.items()),
                frozenset(part.claims.items()),
                frozenset(part.overtaken),
                frozenset(part.damaged.items()),
            )
        )
        self.read_mark = log, log.end, mark
        return mark

    # -- as the session does -----------------------------------------------------------------

    def claim(self, assignment: Mapping[TopicPartition, KeyRanges], **given: Any) -> None:
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
        starts = {} if self.delivery is None else {T0: self.delivery}
        for each, number in self.ownerships.ask_commits({T0: processed}, starts):
            self.asked = Asked(number, each.owner.done)

    def decide(self, now: float = 0.0) -> None:
        """Go on as far as the log says; what is wanted then."""
        self._give_up()
        while True:
            before = self.ownership
            wanted = [
                (each.action_number, action)
                for each, actions in self.ownerships.advance(now)
                for action in actions
            ]
            self.forget(before)
            self.wanted += wanted
            self._give_up()
            if self.ownership is None or not self.ownership.can_commit:
                return  # else that is due at once

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
        number = each.action_number if each is not None and is_awaited else GONE
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
        before, was_late = self.log.end, not self.is_current
        replay(log, self.own_log())
        if was_late and before and log.has_holes(before):
            self.look_anew()
        self.is_current = True

    def look_anew(self) -> None:
        """Claims may have come and gone while it did not read the log."""
        before = self.ownership
        self.ownerships.look_anew()
        self.forget(before)

    def own_log(self) -> GroupLog:
        """What it has read, to be read on."""
        if self.shares_log:
            self.ownerships.log, self.shares_log = clone_log(self.ownerships.log), False
        return self.ownerships.log

    def follow(self) -> None:
        """As its dispatcher: what is delivered from another start begins anew."""
        each = self.ownership
        is_fenced = each is not None and each.owner.phase is Phase.FENCED
        if self.start != self.delivery and not is_fenced:
            self.delivery, self.in_flight, self.position = self.start, [], 0


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
