"""A member's ownership of key hashes of one partition, from claim to fence: events in, actions out.

::

    CLAIMING --claim read back--> WAITING --others gone, or timeout--> STARTING
                                                                          |
         FENCED <--another claim wins-- (any phase)              start resolved
                                                                          v
                                                      RUNNING <--anchor written-- ANCHORING

    CLAIMING <--the log was lost-- (any phase but FENCED): then WAITING takes the whole timeout
    STARTING <--a transaction was aborted-- RUNNING

Of claims that overlap, that of the later epoch wins, wherever they lie in the log; of one epoch,
the later one in the log. A claim without an epoch counts as one of its own offset
(:attr:`.PlacedClaim.age`).

STARTING begins with the fence of former owners' transactional ids. Then no transaction of theirs
is open, so all their facts are in the log, and a former owner that goes on under a new epoch finds
the winning claim before it commits.

Nothing here waits, reads a clock or does I/O. The caller feeds a :class:`.GroupLog` from the log,
asks :meth:`Owner.actions` what to do after every event, does it, and says so. An action that was
returned is not returned again until it has failed (:meth:`Owner.failed`).

Delivery is safe if the caller hands out no record once the last answered fetch of the log was sent
longer than the claim timeout ago: a new owner waits as long, from when it has read its own claim
back, unless those that it replaces have given up their claims before. Nor does it wait for members
that the group's coordinator has dropped, if they fence themselves before that. With a log that was
lost, claims are gone that may still be acted upon, so nobody goes on before the timeout.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.leader_epochs import NO_EPOCHS, LeaderEpochs
from kshare.core.offsets import START_MAX, Bounds
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.errors import CommitLogError
from kshare.group.protocol.commit_log.commit import (
    Commit,
    blocks_to_write,
    is_written,
    keys_to_delete,
    leads,
    passed_to_delete,
    past_to_delete,
    stable_offset,
    stable_to_write,
)
from kshare.group.protocol.commit_log.log import PartitionLog, PlacedClaim
from kshare.group.protocol.commit_log.placement import UNPLACED, Placement
from kshare.group.protocol.commit_log.records import Block, Claim, Key, Reset, Stable
from kshare.group.protocol.commit_log.start import (
    Anchor,
    Evidence,
    Primary,
    Reason,
    Start,
    needs_initial_offset,
    resolve_start,
)
from kshare.group.protocol.owners.actions import (
    Action,
    Delete,
    Fence,
    FetchPrimary,
    ResolveInitial,
    Unblock,
    Write,
    WritePrimary,
)
from kshare.group.protocol.owners.leases import Share
from kshare.group.protocol.owners.takeover import Takeover, former_ids, is_alone, taken_by_others

__all__ = ["Owner", "Phase"]


class Phase(Enum):
    """How far a member is with its ownership."""

    CLAIMING = "its claim is not in the log yet"
    WAITING = "former owners may still deliver"
    STARTING = "where to start is not known yet"
    ANCHORING = "the primary offset has no anchor yet"
    RUNNING = "it delivers and commits"
    FENCED = "another claim has taken some of its hashes"


@dataclass(slots=True)
class Owner:
    """A member's ownership of some key hashes of a partition.

    Attributes:
        claim: What it claims, and in which of the group's epochs, if in one.
        topic_id: Id of the log's topic; empty if it is not known.
        phase: How far it is.
        resolved: Where it starts, from phase ANCHORING on.
        done: What has been processed, as far as it knows; from phase RUNNING on.
        commit: The commit under way; None if there is none. With a transactional id, facts are
            written in transactions, and by no commit.
        leader_epochs: Which leaders wrote what this member has read of the partition.
    """

    claim: Claim
    topic_id: str = ""
    phase: Phase = Phase.CLAIMING
    resolved: Start | None = None
    done: Progress = field(default_factory=lambda: Progress.at(0))
    commit: Commit | None = None
    leader_epochs: LeaderEpochs = NO_EPOCHS
    _pending: tuple[Action, ...] = ()  # returned, and neither confirmed nor failed
    _placement: Placement = UNPLACED  # of the last record of these
    _evidence: Evidence = field(default_factory=Evidence)
    _takeover: Takeover = field(default_factory=Takeover)

    @property
    def partition(self) -> TopicPartition:
        """The partition."""
        return self.claim.partition

    @property
    def claim_name(self) -> str:
        """Name of the claim, ``session#n``."""
        return self.claim.name

    @property
    def hashes(self) -> KeyRanges:
        """The key hashes that it claims."""
        return self.claim.hashes

    @property
    def epoch(self) -> int | None:
        """The group's epoch in which they were assigned; None for a standalone consumer."""
        return self.claim.epoch

    @property
    def peers(self) -> frozenset[str] | None:
        """Session ids of the members of its epoch; None if they are not known."""
        return self._takeover.peers

    @property
    def pending(self) -> tuple[Action, ...]:
        """Actions that it wants and that were not confirmed."""
        return self._pending

    @property
    def has_facts(self) -> bool:
        """True if the log says all that it has committed, also above the primary offset."""
        return True

    def was_reset(self, log: PartitionLog) -> bool:
        """True if the offsets were reset since it has started: what is processed counts no more.

        Args:
            log: What the log says of the partition; it may be ahead of :meth:`look`.
        """
        return self.resolved is not None and log.incarnation > self.resolved.incarnation

    def must_claim_anew(self, log: PartitionLog) -> bool:
        """True if a claim that cannot be read came behind the own claim.

        It may be the own one, or have replaced one by which others have the same hashes.
        """
        if self.phase is Phase.FENCED:
            return False
        mine = log.claims.get(self.claim_name)
        if mine is None:
            return self.claim_name in log.damaged
        return log.is_damaged_since(mine.position)

    def keys(self, log: PartitionLog) -> list[Key]:
        """The keys of its records that are deleted when it gives its hashes up.

        Args:
            log: What the log says of the partition.
        """
        del log  # it may hold a Cooperator's leases
        return [Key(0, "claim", self.partition, (self.claim_name,))]

    # -- events ----------------------------------------------------------------------------

    def know_peers(self, names: frozenset[str] | None) -> None:
        """The names of the members of its epoch are known, or are not any more."""
        self._takeover = replace(self._takeover, peers=names)

    def enter_epoch(self, epoch: int | None, peers: frozenset[str] | None = None) -> None:
        """The group has another epoch, in which it goes on with what it has claimed."""
        self.claim = replace(self.claim, epoch=epoch)
        self.know_peers(peers)

    def waited(self) -> None:
        """The claim timeout has passed since the own claim was read back."""
        if self.phase is Phase.WAITING:
            self.phase = Phase.STARTING
            self._takeover = replace(self._takeover, has_waited=True)

    def written(self, position: int) -> None:
        """Brokers have taken the last of the records that it wants in the log.

        Args:
            position: The record's log offset.
        """
        self._placement = self._placement.at(position)

    def has_missed_records(self, log_end: int) -> bool:
        """True if records that it has written were deleted before it has read them.

        So it waits in vain: the log was read past them, and does not hold them. They were damaged,
        or are of no use to another member, and compaction was faster than this one. For after
        :meth:`look`.

        Args:
            log_end: How far the log was read.
        """
        return bool(self._pending) and self._placement.is_passed(log_end)

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

    def dropped(self) -> None:
        """Its member is out of the group, which takes no primary offset of it.

        Whoever owns the hashes next commits it: all that it says is in the log.
        """
        self.primary_written()

    def unstored(self) -> None:
        """A commit goes on without its primary offset, whose topic does not exist.

        If that is made again, its offsets begin anew: nobody misses this one.
        """
        self.primary_written()

    def former_fenced(self) -> None:
        """The transactional ids of former owners are fenced, and their transactions ended."""
        self._pending, self._takeover = (), replace(self._takeover, has_fenced=True)

    def rewind(self) -> bool:
        """A transaction was aborted: find out from the log what is processed, and start there.

        Only when the outcome of all own transactions is decided.

        Returns:
            Whether it begins anew: what becomes of earlier actions does not matter then. Else it
            has not begun yet, and waits for them as before.
        """
        if self.phase not in {Phase.STARTING, Phase.ANCHORING, Phase.RUNNING}:
            return False
        self.phase, self.resolved, self.commit = Phase.STARTING, None, None
        self._pending, self._evidence = (), self._evidence.forgotten()
        return True

    def failed(self) -> None:
        """What was to be done has failed, and is worth another attempt."""
        if self.commit is not None and self._pending and isinstance(self._pending[0], Write):
            self.commit.failed(self._pending[0].records)
        self._pending, self._evidence = (), self._evidence.forgotten()

    def log_lost(self, topic_id: str = "") -> None:
        """The log was deleted or truncated: the next one to be read holds no claim of this member.

        It claims again, and writes what it knows to be processed with its next commit.

        Args:
            topic_id: Id of the log's topic from now on; empty if it is not known.
        """
        self.topic_id = topic_id
        self.enter_epoch(None)  # an epoch is an offset of the log that was lost
        if self.phase is Phase.FENCED:
            return
        self._evidence = replace(self._evidence.forgotten(), known=self.known())
        self.phase, self.resolved, self.commit, self._pending = Phase.CLAIMING, None, None, ()
        self._takeover = Takeover(waits=True)

    def inherit(self, former: "Owner") -> None:
        """Go on with what the same session knows to be processed of the hashes that it keeps.

        The log may have been lost, so that it does not say it.
        """
        self._evidence = Evidence(known=former.known()).knowing(former.hashes & self.hashes)

    def known(self) -> tuple[int, Progress] | None:
        """What it knows to be processed, and in which incarnation; None if that is nothing."""
        if self.phase is Phase.RUNNING:
            assert self.resolved is not None
            return self.resolved.incarnation, self.done
        return self._evidence.known

    def processed(self, what: Progress | Sequence[Rectangle]) -> None:
        """Some records have been processed; what is known already may be among them."""
        self.done = self.done.union(what if isinstance(what, Progress) else Progress.of(0, what))

    def begin_commit(self, log: PartitionLog, *, repeats: bool = False) -> None:
        """Commit what has been processed; at once if no commit is under way.

        Args:
            log: What the log says.
            repeats: Whether a lead writes the primary offset again although it should be there. Who
                has led before it may not have come to it. And the coordinator takes offsets of a
                standalone member without asking who it is: so one that was stopped on its way, and
                goes on, may have set it back.

        Raises:
            ValueError: A commit is under way, or nothing can be committed in this phase.
        """
        if self.commit is not None or self.phase is not Phase.RUNNING:
            raise ValueError(f"cannot begin a commit: {self.phase.value}")
        self.commit = Commit(self.done, tuple(self._facts(log)), repeats=repeats)

    def _facts(self, log: PartitionLog) -> Sequence[Block]:
        """What a commit has to write of what has been processed."""
        if self.claim.transactional_id is not None:
            return ()
        return blocks_to_write(self.partition, log, self.claim_name, self.hashes, self.done)

    def stable(self, log: PartitionLog) -> int:
        """The stable offset that the log names."""
        return stable_offset(log, self.resolved)

    def is_stable_behind(self, log: PartitionLog) -> bool:
        """True if it is the lead, and has a stable offset to commit though it commits nothing else.

        Only a lead with transactions: others notice at their next commit.
        """
        has_transactions = self.claim.transactional_id is not None
        if not has_transactions or self.phase is not Phase.RUNNING or not leads(log, self.claim):
            return False
        assert self.resolved is not None
        return self._stable_to_write(log, self.resolved.progress.stable) is not None

    # -- leases: what a Cooperator has, and an owner in key order has not ------------------------

    @property
    def share(self) -> Share | None:
        """Its share by leases; None in key order, which needs none."""
        return None

    @property
    def leased(self) -> Mapping[int, Bounds]:
        """The unprocessed offsets of each of its leases, by the leases' numbers, ascending."""
        return {}

    @property
    def asked(self) -> int | None:
        """Number of the lease that it has written and not read back; None if there is none."""
        return None

    def want(self, first: int, end: int) -> None:
        """Offsets may be leased between the first one of the partition's log and its end."""

    def expire(self, sessions: Collection[str], log: PartitionLog) -> None:
        """These sessions of others deliver no more: what they have leased is free."""

    def appended(self, key: Key, position: int) -> None:
        """Brokers have taken the record of an :class:`.Append`, at this offset of the log."""

    def not_appended(self, key: Key) -> None:
        """The record of an :class:`.Append` could not be written, as far as it is known."""

    # -- decisions -------------------------------------------------------------------------

    def actions(self, log: PartitionLog, log_end: int) -> tuple[Action, ...]:
        """What to do next; empty if there is something to wait for.

        Args:
            log: What the log says of the partition, as far as the member has read it.
            log_end: How far it has read it.
        """
        self.look(log)
        aside = self._unblock(log)
        primary = self._evidence.primary
        # A start is resolved by the log as it was when the primary offset was fetched, or later.
        if self._pending or (primary is not None and log_end < primary[1]):
            return aside
        actions = self._next(log)
        self._pending = tuple(action for action in actions if not isinstance(action, Delete))
        self._placement = Placement(log_end)
        return (*aside, *actions)

    def look(self, log: PartitionLog) -> None:
        """Move on by what the log says, as :meth:`actions` does before it decides."""
        mine = log.claims.get(self.claim_name)
        if self._evidence.known is not None:
            # Others that have had the hashes may have delivered again what is known.
            free = self.hashes - taken_by_others(log, self.claim)
            self._evidence = self._evidence.knowing(free)
        if self.phase is Phase.CLAIMING and mine is None:
            if not self._is_overtaken_unread(log):
                return
        elif self.phase is Phase.CLAIMING:
            self.phase, self._pending = Phase.WAITING, ()
        is_fenced = log.was_fenced(self.claim_name) or self.phase is Phase.CLAIMING
        if self.phase is not Phase.FENCED and is_fenced:
            self.phase, self.commit, self._pending = Phase.FENCED, None, ()
            self._evidence = self._evidence.knowing(NO_HASHES)
        if log.damaged and self.phase is Phase.WAITING:  # nobody knows who has had its hashes
            self._takeover = replace(self._takeover, waits=True)
        may_go_on = self.phase is Phase.WAITING and not self._takeover.waits
        if may_go_on and is_alone(log, self.claim, self.peers):
            self.phase = Phase.STARTING
        if self.phase is not Phase.FENCED and self.was_reset(log):
            self.phase, self.resolved = Phase.STARTING, None
            self.commit, self._pending = None, ()
            self._evidence = replace(self._evidence, primary=None)
        write = self._pending[0] if self._pending else None
        if isinstance(write, Write) and is_written(log, write.records):
            self._pending = ()

    def _is_overtaken_unread(self, log: PartitionLog) -> bool:
        """True if another claim has taken hashes of the own one, which is there no more."""
        if self.claim_name in log.overtaken:
            return True
        at = self._placement.offset
        if at is None or self.claim_name in log.damaged:
            return False
        return log.excludes(PlacedClaim(self.claim, at))

    def _unblock(self, log: PartitionLog) -> tuple[Action, ...]:
        """While the own claim is not read back: a transaction of a former owner may hide it."""
        if self.phase is not Phase.CLAIMING:
            return ()
        hiding = former_ids(log, self.claim) - self._takeover.unblocked
        if not hiding:
            return ()
        unblocked = self._takeover.unblocked | hiding
        self._takeover = replace(self._takeover, unblocked=unblocked)
        return (Unblock(hiding),)

    def _fence(self, log: PartitionLog) -> tuple[Action, ...]:
        """What former owners have decided is in the log from then on, and no more comes."""
        former = frozenset() if self._takeover.has_fenced else former_ids(log, self.claim)
        return (Fence(former),) if former else ()

    def _next(self, log: PartitionLog) -> tuple[Action, ...]:
        match self.phase:
            case Phase.CLAIMING:
                return (Write((self.claim,)),)
            case Phase.STARTING:
                return self._fence(log) or self._start(log)
            case Phase.ANCHORING:
                start = self.resolved
                assert start is not None
                anchor = Anchor(start.incarnation, log.position, self.topic_id)
                return (WritePrimary(start.progress.stable, anchor, start.leader_epoch),)
            case Phase.RUNNING if self.commit is not None:
                return self._commit(log, self.commit)
            # A transaction may be under way: who takes over has to know its id.
            case Phase.FENCED if self.claim.transactional_id is None and (
                self.claim_name in log.claims or self.claim_name in log.damaged
            ):
                return (Delete((Key(0, "claim", self.partition, (self.claim_name,)),)),)
        return ()

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
        self._check(start)
        if start.reason is Reason.LOST_LOG and not self._takeover.has_waited:
            self.phase = Phase.WAITING
            self._takeover = replace(self._takeover, waits=True)
            return ()
        if start.reason.voids:  # once it has begun, it looks like any other
            self._evidence = replace(self._evidence, voids=start.reason)
        if start.begins:
            # Another member may begin it as well, and elsewhere: the log says who was first.
            number = self._evidence.resets
            self._evidence = replace(self._evidence, resets=number + 1)
            offset = start.progress.stable
            reset = Reset(self.partition, start.incarnation, offset, self.claim_name, number)
            return (Write((reset,)),)
        self.resolved = replace(start, reason=self._evidence.voids or start.reason)
        self._evidence = replace(self._evidence, voids=None)
        if start.unanchored:
            self.phase = Phase.ANCHORING
            return self._next(log)
        self._run()
        return ()

    def _check(self, start: Start) -> None:
        """Refuse a start that no log has.

        Raises:
            CommitLogError: The group's committed offset is behind the end of every log.
        """
        if start.progress.stable > START_MAX:
            raise CommitLogError(
                f"{self.partition}: the group's committed offset {start.progress.stable} is behind "
                f"the end of every log; kshare offsets reset sets another one"
            )

    def _run(self) -> None:
        assert self.resolved is not None
        known = self._evidence.still_processed(self.resolved)
        self._evidence = replace(self._evidence, known=None)
        self.phase = Phase.RUNNING
        self.done = self._done_at(self.resolved.progress, known)

    def _done_at(self, start: Progress, known: Progress | None) -> Progress:
        """What has been processed when it begins to run.

        Args:
            start: What the log and the primary offset say.
            known: What it knew before the log was lost, if that still counts.
        """
        if known is None:
            return start
        return known.union(start)

    def _commit(self, log: PartitionLog, commit: Commit) -> tuple[Action, ...]:
        """The next step of a commit; each follows from what has been read back."""
        floor = 0 if self.resolved is None else self.resolved.progress.stable
        is_lead = leads(log, self.claim)
        if commit.facts:
            facts, commit.facts = commit.facts, ()
            if is_lead:  # true once they are in the log before it, so one round trip does
                commit.stable = self._stable_to_write(log.with_facts(facts), floor)
            return (Write(facts if commit.stable is None else (*facts, commit.stable)),)
        if commit.is_lead is None:
            commit.is_lead = is_lead
            later = self._stable_to_write(log, floor) if is_lead else None
            known = log.stable if commit.repeats else None
            commit.stable = (later or commit.stable or known) if is_lead else None
            if later is not None:
                return (Write((later,)),)
        if commit.stable is not None and not commit.is_primary_written:
            anchor = Anchor(log.incarnation, log.position, self.topic_id)
            return (WritePrimary(commit.stable.offset, anchor, commit.stable.leader_epoch),)
        self.commit = None
        self.done = self.done.advance(log.stable.offset if log.stable else 0)
        owned = log.owned_by(self.claim_name)
        keys = [
            *keys_to_delete(self.partition, log, self.claim_name, owned, self.done),
            *passed_to_delete(self.partition, log, self.claim_name),
            *past_to_delete(self.partition, log, self.claim_name),
        ]
        if self.claim.transactional_id is not None:  # else a tombstone might overtake a later fact
            keys = [key for key in keys if not _is_block_of(key, self.claim_name)]
        return (Delete(tuple(keys)),) if keys else ()

    def _stable_to_write(self, log: PartitionLog, floor: int) -> Stable | None:
        stable = stable_to_write(self.partition, log, self.claim_name, floor)
        if stable is None:
            return None
        return replace(stable, leader_epoch=self.leader_epochs.before(stable.offset))


def _is_block_of(key: Key, claim_name: str) -> bool:
    return key.kind == "block" and key.detail[0] == claim_name
