"""A member's ownership of key hashes of one partition, from claim to fence: events in, actions out.

::

    CLAIMING --claim read back--> WAITING --others gone, or timeout--> STARTING
                                                                          |
         FENCED <--a later claim overlaps-- (any phase)          start resolved
                                                                          v
                                                      RUNNING <--anchor written-- ANCHORING

    CLAIMING <--the log was lost-- (any phase but FENCED): then WAITING takes the whole timeout
    STARTING <--a transaction was aborted-- RUNNING

STARTING begins with the fence of former owners' transactional ids. Then no transaction of theirs
is open, so all their facts are in the log, and a former owner that goes on under a new epoch finds
the later claim before it commits.

Nothing here waits, reads a clock or does I/O. The caller feeds a :class:`.GroupLog` from the log,
asks :meth:`Owner.actions` what to do after every event, does it, and says so. An action that was
returned is not returned again until it has failed (:meth:`Owner.failed`).

Delivery is safe if the caller hands out no record once the last answered fetch of the log was sent
longer than the claim timeout ago: a new owner waits as long, from when it has read its own claim
back, unless those that it replaces have given up their claims before. Nor does it wait for members
that the group's coordinator has dropped, if they fence themselves before that. With a log that was
lost, claims are gone that may still be acted upon, so nobody goes on before the timeout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from kshare.core.hashing import HashRange
from kshare.core.leader_epochs import NO_EPOCHS, LeaderEpochs
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.group.protocol.actions import (
    Action,
    Delete,
    Fence,
    FetchPrimary,
    ResolveInitial,
    Unblock,
    Write,
    WritePrimary,
)
from kshare.group.protocol.commit import (
    blocks_to_write,
    keys_to_delete,
    past_to_delete,
    stable_to_write,
)
from kshare.group.protocol.log import PartitionLog
from kshare.group.protocol.records import Block, Claim, Key, Reset, Stable
from kshare.group.protocol.start import (
    Anchor,
    Primary,
    Reason,
    Start,
    needs_initial_offset,
    resolve_start,
)

__all__ = [
    "Commit",
    "Owner",
    "Phase",
    "committed",
    "log_position",
    "session_of",
]


class Phase(Enum):
    """How far a member is with its ownership."""

    CLAIMING = "its claim is not in the log yet"
    WAITING = "former owners may still deliver"
    STARTING = "where to start is not known yet"
    ANCHORING = "the primary offset has no anchor yet"
    RUNNING = "it delivers and commits"
    FENCED = "a later claim has taken some of its hashes"


_GOES_ON: Final = {Reason.CONTINUED, Reason.LOST_LOG}
"""What has been processed before the log was lost still counts."""


@dataclass(slots=True)
class Commit:
    """A commit under way: facts, then the stable offset, then the primary, then deletions.

    Attributes:
        done: What is committed.
        facts: The blocks that have to be read back.
        stable: The stable offset that has to be read back; None if it is not known yet.
        is_lead: Whether the member was the lead when the facts had been read back.
        is_primary_written: Whether the primary offset has been written, or is not to be.
    """

    done: Progress
    facts: tuple[Block, ...]
    stable: Stable | None = None
    is_lead: bool | None = None
    is_primary_written: bool = False


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What a start is resolved from, as far as it is known.

    Attributes:
        primary: The primary offset, and the log's bounds beside it; None if they are not fetched.
        seen: Of the log, before the primary was asked for: its incarnation, and whether it has
            facts.
        initial: What ``auto.offset.reset`` means; None if it is not known.
        voids: Why individual commits were given up; None if they were not.
    """

    primary: tuple[Primary | None, int, int] | None = None
    seen: tuple[int, bool] = (0, False)
    initial: int | None = None
    voids: Reason | None = None

    def forgotten(self) -> "_Evidence":
        """What is left when brokers have to be asked again."""
        return replace(self, primary=None, initial=None)


@dataclass(frozen=True, slots=True)
class _Takeover:
    """How far a member is with taking over from former owners.

    Attributes:
        waits: Whether claims are lost: it has to wait, also if it seems to be alone.
        has_waited: Whether it has waited for the claim timeout.
        has_fenced: Whether former owners' transactional ids are fenced since its claim was read
            back.
        unblocked: Transactional ids whose transactions may have hidden its claim.
    """

    waits: bool = False
    has_waited: bool = False
    has_fenced: bool = False
    unblocked: frozenset[str] = frozenset()


@dataclass(slots=True)
class Owner:
    """A member's ownership of some key hashes of a partition.

    Attributes:
        partition: The partition.
        member: Id of the member.
        hashes: The key hashes that it claims, ascending, not adjacent.
        topic_id: Id of the log's topic; empty if it is not known.
        epoch: The group's epoch in which they were assigned; None for a standalone consumer.
        self_fencing: Whether it delivers no more before the group's coordinator drops it.
        peers: Names of the members of its epoch; None if they are not known.
        phase: How far it is.
        start: Where it starts, from phase ANCHORING on.
        done: What has been processed, as far as it knows; from phase RUNNING on.
        commit: The commit under way; None if there is none.
        transactional_id: Its facts are written in transactions of this id, and by no commit; None
            if they are not.
        leader_epochs: Which leaders wrote what this member has read of the partition.
    """

    partition: TopicPartition
    member: str
    hashes: tuple[HashRange, ...]
    topic_id: str = ""
    epoch: int | None = None
    self_fencing: bool = False
    peers: frozenset[str] | None = None
    phase: Phase = Phase.CLAIMING
    start: Start | None = None
    done: Progress = field(default_factory=lambda: Progress.at(0))
    commit: Commit | None = None
    transactional_id: str | None = None
    leader_epochs: LeaderEpochs = NO_EPOCHS
    _pending: tuple[Action, ...] = ()  # returned, and neither confirmed nor failed
    _known: tuple[int, Progress] | None = None  # incarnation and progress before the log was lost
    _evidence: _Evidence = _Evidence()
    _takeover: _Takeover = _Takeover()

    # -- events ----------------------------------------------------------------------------

    def waited(self) -> None:
        """The claim timeout has passed since the own claim was read back."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.STARTING
            self._takeover = replace(self._takeover, has_waited=True)

    def primary_read(self, primary: Primary | None, log_end: int, log_start: int = 0) -> None:
        """The primary offset and the bounds of the log have been fetched, after the own claim."""
        self._evidence = replace(self._evidence, primary=(primary, log_end, log_start))
        self._pending = ()

    def initial_found(self, offset: int) -> None:
        """``auto.offset.reset`` means this offset."""
        self._pending, self._evidence = (), replace(self._evidence, initial=offset)

    def primary_written(self) -> None:
        """A primary offset has been written."""
        self._pending = ()
        if self.phase is Phase.ANCHORING:
            self._run()
        elif self.commit is not None:
            self.commit.is_primary_written = True

    def former_fenced(self) -> None:
        """The transactional ids of former owners are fenced, and their transactions ended."""
        self._pending, self._takeover = (), replace(self._takeover, has_fenced=True)

    def rewind(self) -> None:
        """A transaction was aborted: find out from the log what is processed, and start there.

        Only when the outcome of all own transactions is decided.
        """
        if self.phase in {Phase.RUNNING, Phase.ANCHORING}:
            self.phase, self.start, self.commit = Phase.STARTING, None, None
            self._pending, self._evidence = (), self._evidence.forgotten()

    def failed(self) -> None:
        """What was to be done has failed, and is worth another attempt."""
        if self.commit is not None and self._pending and isinstance(self._pending[0], Write):
            lost = self._pending[0].records
            self.commit.facts = tuple(record for record in lost if isinstance(record, Block))
            self.commit.stable = self.commit.is_lead = None
        self._pending, self._evidence = (), self._evidence.forgotten()

    def log_lost(self, topic_id: str = "") -> None:
        """The log was deleted or truncated: the next one to be read holds no claim of this member.

        It claims again, and writes what it knows to be processed with its next commit.

        Args:
            topic_id: Id of the log's topic from now on; empty if it is not known.
        """
        self.topic_id = topic_id
        self.epoch = self.peers = None  # an offset of the log that was lost
        if self.phase is Phase.FENCED:
            return
        if self.phase is Phase.RUNNING:
            assert self.start is not None
            self._known = (self.start.incarnation, self.done)
        self.phase, self.start, self.commit = Phase.CLAIMING, None, None
        self._pending, self._evidence = (), self._evidence.forgotten()
        self._takeover = _Takeover(waits=True)

    def processed(self, pieces: Sequence[Rectangle]) -> None:
        """Some records have been processed."""
        self.done = self.done.commit(pieces)

    def begin_commit(self, log: PartitionLog) -> None:
        """Commit what has been processed; at once if no commit is under way.

        Raises:
            ValueError: A commit is under way, or nothing can be committed in this phase.
        """
        if self.commit is not None or self.phase is not Phase.RUNNING:
            raise ValueError(f"cannot begin a commit: {self.phase.value}")
        self.commit = Commit(self.done, tuple(self._facts(log)))

    def _facts(self, log: PartitionLog) -> Sequence[Block]:
        """What a commit has to write of what has been processed."""
        if self.transactional_id is not None:
            return ()
        return blocks_to_write(self.partition, log, self.member, self.hashes, self.done)

    def stable(self, log: PartitionLog) -> int:
        """The stable offset that the log names."""
        return committed(log, self.start)

    # -- decisions -------------------------------------------------------------------------

    def actions(self, log: PartitionLog, log_end: int) -> tuple[Action, ...]:
        """What to do next; empty if there is something to wait for.

        Args:
            log: What the log says of the partition, as far as the member has read it.
            log_end: How far it has read it.
        """
        self._look(log)
        aside = self._unblock(log)
        primary = self._evidence.primary
        if self._pending or (primary is not None and log_end < primary[1]):
            return aside
        actions = self._next(log)
        self._pending = tuple(action for action in actions if not isinstance(action, Delete))
        return (*aside, *actions)

    def is_alone(self, log: PartitionLog) -> bool:
        """Whether there is no earlier claim on the own hashes that may still be acted upon."""
        mine = log.claims.get(self.member)
        return mine is not None and not any(
            part.intersect(own) is not None
            for other in log.claims.values()
            if mine.excludes(other) and not self._is_of_the_past(other.claim)
            for part in other.claim.hashes
            for own in self.hashes
        )

    def _is_of_the_past(self, claim: Claim) -> bool:
        """Whether a claim's member was dropped from the group, and so has fenced itself before."""
        return (
            self.peers is not None
            and self.epoch is not None
            and claim.self_fencing
            and claim.epoch is not None
            and claim.epoch < self.epoch
            and session_of(claim.member) not in self.peers
        )

    def _unblock(self, log: PartitionLog) -> tuple[Action, ...]:
        """While the own claim is not read back: a transaction of a former owner may hide it."""
        if self.phase is not Phase.CLAIMING:
            return ()
        hiding = self._former(log) - self._takeover.unblocked
        unblocked = self._takeover.unblocked | hiding
        self._takeover = replace(self._takeover, unblocked=unblocked)
        return (Unblock(hiding),) if hiding else ()

    def _fence(self, log: PartitionLog) -> tuple[Action, ...]:
        """What former owners have decided is in the log from then on, and no more comes."""
        former = frozenset() if self._takeover.has_fenced else self._former(log)
        return (Fence(former),) if former else ()

    def _former(self, log: PartitionLog) -> frozenset[str]:
        """The transactional ids of other processes that may have owned some of the hashes.

        Before the own claim is read back, of all that have claimed some of them.
        """
        mine = log.claims.get(self.member)
        return frozenset(
            other.claim.transactional_id
            for name, other in log.claims.items()
            if other.claim.transactional_id is not None
            and session_of(name) != session_of(self.member)
            and (mine is None or other.age < mine.age)
            and any(part.intersect(own) for part in other.claim.hashes for own in self.hashes)
        )

    def _look(self, log: PartitionLog) -> None:
        """Move on by what the log says."""
        mine = log.claims.get(self.member)
        if self.phase is Phase.CLAIMING:
            if mine is None:
                return
            self.phase, self._pending = Phase.WAITING, ()
        if self.phase is not Phase.FENCED and log.is_fenced(self.member):
            self.phase, self.commit, self._pending = Phase.FENCED, None, ()
        if self.phase is Phase.WAITING and not self._takeover.waits and self.is_alone(log):
            self.phase = Phase.STARTING
        if self.start is not None and log.incarnation > self.start.incarnation:
            # The offsets were reset: what has been processed counts no longer.
            self.phase, self.start = Phase.STARTING, None
            self.commit, self._pending = None, ()
            self._evidence = replace(self._evidence, primary=None)
        if self._pending and isinstance(self._pending[0], Write) and self._is_written(log):
            self._pending = ()

    def _is_written(self, log: PartitionLog) -> bool:
        """Whether the log holds the records that were to be written."""
        (write,) = self._pending
        assert isinstance(write, Write)
        for record in write.records:
            match record:
                case Block():
                    key = (record.member, record.hashes, record.stretch)
                    is_there = log.blocks.get(key) == record.bounds
                case Stable():
                    is_there = log.stable is not None and log.stable.offset >= record.offset
                case Reset():
                    is_there = log.incarnation >= record.incarnation
                case _:
                    is_there = False
            # Records of an older incarnation say nothing any more: there is nothing to wait for.
            if not is_there and getattr(record, "incarnation", 0) == log.incarnation:
                return False
            if isinstance(record, Reset) and not is_there:
                return False
        return True

    def _next(self, log: PartitionLog) -> tuple[Action, ...]:
        match self.phase:
            case Phase.CLAIMING:
                return (Write((self._claim(),)),)
            case Phase.STARTING:
                return self._fence(log) or self._start(log)
            case Phase.ANCHORING:
                assert self.start is not None
                anchor = Anchor(self.start.incarnation, log_position(log), self.topic_id)
                return (WritePrimary(self.start.progress.stable, anchor, self.start.leader_epoch),)
            case Phase.RUNNING if self.commit is not None:
                return self._commit(log, self.commit)
            # A transaction may be under way: who takes over has to know its id.
            case Phase.FENCED if self.member in log.claims and self.transactional_id is None:
                return (Delete((Key(0, "claim", self.partition, (self.member,)),)),)
        return ()

    def _claim(self) -> Claim:
        return Claim(
            self.partition,
            self.member,
            self.hashes,
            self.epoch,
            self_fencing=self.self_fencing,
            transactional_id=self.transactional_id,
        )

    def _start(self, log: PartitionLog) -> tuple[Action, ...]:
        # Facts are written after the anchor. So facts without an anchor mean a reset, but only if
        # the primary was fetched after they had been read: else both may be new.
        seen = (log.incarnation, log.has_facts)
        evidence = self._evidence
        if evidence.primary is None or evidence.seen != seen:
            self._evidence = replace(evidence, primary=None, seen=seen)
            return (FetchPrimary(),)
        primary, log_end, log_start = evidence.primary
        if needs_initial_offset(primary, log) and evidence.initial is None:
            return (ResolveInitial(),)
        start = resolve_start(
            primary,
            log,
            log_end=log_end,
            log_start=log_start,
            topic_id=self.topic_id,
            initial=evidence.initial,
        )
        self._evidence = evidence.forgotten()
        return self._begin(log, start)

    def _begin(self, log: PartitionLog, start: Start) -> tuple[Action, ...]:
        """Go on from a start."""
        if start.reason is Reason.LOST_LOG and not self._takeover.has_waited:
            self.phase = Phase.WAITING
            self._takeover = replace(self._takeover, waits=True)
            return ()
        if start.reason.voids:  # once it has begun, it looks like any other
            self._evidence = replace(self._evidence, voids=start.reason)
        if start.begins:
            # Another member may begin it as well, and elsewhere: the log says who was first.
            return (Write((Reset(self.partition, start.incarnation, start.progress.stable),)),)
        self.start = replace(start, reason=self._evidence.voids or start.reason)
        self._evidence = replace(self._evidence, voids=None)
        if start.unanchored:
            self.phase = Phase.ANCHORING
            return self._next(log)
        self._run()
        return ()

    def _run(self) -> None:
        assert self.start is not None
        known, self._known = self._known, None
        is_same = known is not None and known[0] == self.start.incarnation
        goes_on = known is not None and is_same and self.start.reason in _GOES_ON
        self.phase = Phase.RUNNING
        self.done = self._done_at(self.start.progress, known[1] if known and goes_on else None)

    def _done_at(self, start: Progress, known: Progress | None) -> Progress:
        """What has been processed when it begins to run.

        Args:
            start: What the log and the primary offset say.
            known: What it knew before the log was lost, if that still counts.
        """
        if known is None:
            return start
        return known.advance(start.stable).commit(start.individual_commits)

    def _commit(self, log: PartitionLog, commit: Commit) -> tuple[Action, ...]:
        """The next step of a commit; each follows from what has been read back."""
        floor = 0 if self.start is None else self.start.progress.stable
        is_lead = log.lead == self.member
        if commit.facts:
            facts, commit.facts = commit.facts, ()
            if is_lead:  # true once they are in the log before it, so one round trip does
                blocks = {(each.member, each.hashes, each.stretch): each.bounds for each in facts}
                said = replace(log, blocks={**log.blocks, **blocks})
                commit.stable = self._stable_to_write(said, floor)
            return (Write(facts if commit.stable is None else (*facts, commit.stable)),)
        if commit.is_lead is None:
            commit.is_lead = is_lead
            later = self._stable_to_write(log, floor) if is_lead else None
            commit.stable = (later or commit.stable) if is_lead else None
            if later is not None:
                return (Write((later,)),)
        if commit.stable is not None and not commit.is_primary_written:
            anchor = Anchor(log.incarnation, log_position(log), self.topic_id)
            return (WritePrimary(commit.stable.offset, anchor, commit.stable.leader_epoch),)
        self.commit = None
        self.done = self.done.commit(()).advance(log.stable.offset if log.stable else 0)
        owned = log.owned_by(self.member)
        keys = [
            *keys_to_delete(self.partition, log, self.member, owned, self.done),
            *past_to_delete(self.partition, log, self.member),
        ]
        if self.transactional_id is not None:  # else a tombstone might overtake a later fact
            keys = [key for key in keys if not _is_block_of(key, self.member)]
        return (Delete(tuple(keys)),) if keys else ()

    def _stable_to_write(self, log: PartitionLog, floor: int) -> Stable | None:
        stable = stable_to_write(self.partition, log, floor)
        if stable is None:
            return None
        return replace(stable, leader_epoch=self.leader_epochs.before(stable.offset))


def session_of(member: str) -> str:
    """The session that has made a claim, from the claim's member: ``session#number``."""
    return member.rpartition("#")[0] or member


def _is_block_of(key: Key, member: str) -> bool:
    return key.kind == "block" and key.detail[0] == member


def log_position(log: PartitionLog) -> int:
    """A log offset that the log has surely reached: that of the newest claim."""
    return max((placed.position for placed in log.claims.values()), default=0)


def committed(log: PartitionLog, start: Start | None) -> int:
    """The stable offset that the log names."""
    floor = 0 if start is None else start.progress.stable
    return max(floor, log.stable.offset if log.stable else 0)
