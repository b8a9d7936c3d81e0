"""What a session owns of one partition: an owner, the commits asked of it, and what has failed."""

from dataclasses import dataclass, field, replace
from typing import Final

from kshare.core.backoff import Backoff, Uniform
from kshare.core.hashing import NO_HASHES, KeyRanges
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import AuthorizationError, ForeignMemberError, UnknownTopicError
from kshare.group.core.work import ProcessedWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.commit import is_read_back
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.records import Block, Claim
from kshare.group.protocol.commit_log.start import Reason
from kshare.group.protocol.membership.subscription import Assigned
from kshare.group.protocol.owners.actions import Action, Append, Delete, Unblock
from kshare.group.protocol.owners.cooperator import Cooperator
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.plain_owner import OffsetOwner, PlainOwner

__all__ = [
    "Claimant",
    "CommitCounter",
    "FollowUps",
    "Ownership",
    "Retries",
]

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 2_000
_COMMIT_SECONDS: Final = 0.2
"""The shortest time between two commits that follow from transactions."""
_REPEAT_SECONDS: Final = 10.0
"""The shortest time between two repetitions of a primary offset."""
_UNKNOWN_SECONDS: Final = 5.0
"""For so long, a coordinator may not have heard yet of a topic that exists."""
_MISSED: Final = "its records were deleted from the log before they were read back"
_FORMER_STARTS: Final = 2
"""Of how many claims before the deliveries count: one may be one behind."""
_FORMER_STARTS_SHARED: Final = 64
"""The same without key order: a record may be worked on while several leases end."""


@dataclass(slots=True)
class Retries:
    """When to try again what has failed.

    Attributes:
        at: Before this time nothing is done; 0 if nothing has failed.
        why: What failed last; empty if nothing did.
        backoff: Pauses, longer each time.
        unknown_since: Since when the coordinator has known no such topic; None if it does.
        unstored: With what the last commit has ended without its offset; None if it is stored, or
            the log says all.
    """

    at: float = 0.0
    why: str = ""
    unknown_since: float | None = None
    unstored: UnknownTopicError | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS))

    def failed(self, why: str, now: float) -> None:
        """It has failed: try again after a pause."""
        self.why, self.at = why, now + self.backoff.pause()


@dataclass(slots=True)
class FollowUps:
    """Commits that follow from what is read back: facts of transactions, leases of others.

    Attributes:
        facts: The facts of the last transaction, until they are read back.
        due_at: When to commit what they make stable; infinity if there is nothing.
        done_at: When that was done last.
    """

    facts: tuple[Block, ...] = ()
    due_at: float = float("inf")
    done_at: float = float("-inf")

    @property
    def is_due(self) -> bool:
        """True if there is a commit to come."""
        return self.due_at < float("inf")

    def plan(self, now: float) -> None:
        """Commit, though not more often than once in a while."""
        self.due_at = min(self.due_at, max(now, self.done_at + _COMMIT_SECONDS))

    def run_now(self, now: float) -> None:
        """Ignore the pacing interval for the next follow-up commit."""
        self.done_at = float("-inf")
        self.due_at = min(self.due_at, now) if self.is_due else self.due_at

    def take_due(self, log: PartitionLog, now: float) -> bool:
        """True if to commit now; facts that are read back may move the stable offset."""
        if self.facts and is_read_back(log, self.facts):
            self.facts = ()
            self.due_at = max(now, self.done_at + _COMMIT_SECONDS)
        if now < self.due_at:
            return False
        self.due_at, self.done_at = float("inf"), now
        return True


@dataclass(slots=True)
class CommitCounter:
    """Commits that were asked for, by their numbers. One that is done includes all before it.

    Attributes:
        wanted: The last one that was asked for.
        begun: The last one that is included in what is under way, or was.
        finished: The last one that is done.
    """

    wanted: int = 0
    begun: int = 0
    finished: int = 0

    def ask(self) -> int:
        """Ask for a commit; returns its number."""
        self.wanted += 1
        return self.wanted

    @property
    def are_due(self) -> bool:
        """True if one is not done."""
        return self.wanted > self.finished

    def begin(self) -> None:
        """All that were asked for are under way."""
        self.begun = self.wanted

    def end(self, *, is_done: bool) -> bool:
        """The commit under way has ended; True if that finishes one that was asked for.

        Args:
            is_done: Whether what was under way is done; else it has to begin again.
        """
        if not is_done:
            self.begun = self.finished
        was_open, self.finished = self.begun > self.finished, self.begun
        return was_open


@dataclass(slots=True)
class ReplacedClaims:
    """Earlier starts of this session whose records may still be committed.

    A claim has replaced theirs, and keeps these hashes.

    Attributes:
        starts: Starts of those claims, each with the hashes that were kept since; the last ones.
        processed: What was processed before delivery has begun; None if nothing was.
        incarnation: That of the offsets as delivery began last: the starts are of that one, too.
    """

    starts: tuple[tuple[DeliveryStart, KeyRanges], ...] = ()
    processed: Progress | None = None
    incarnation: int | None = None

    def kept(self, start: DeliveryStart | None) -> KeyRanges:
        """The hashes that were kept since a start."""
        return next((hashes for each, hashes in self.starts if each == start), NO_HASHES)


@dataclass(slots=True)
class Ownership:
    """A session's bookkeeping around one :class:`.Owner`: commits asked for, retries, waits.

    Attributes:
        owner: The protocol's core.
        commits: Commits that were asked for.
        start: From where delivery has begun; None while it may not deliver.
        action_number: Number of the last actions: what becomes of earlier ones does not matter.
        waits_since: When its claim was read back; None if it does not wait.
        repeated_at: When a commit has repeated the primary offset last; minus infinity if none has
            since delivery began.
        is_replaced: Whether the partition was claimed anew or given up: its commits end.
        retries: What has failed.
        follow_ups: Commits that follow from what is read back.
        followed_to: The end of the log when it was looked at for what others have committed.
        replaced_claims: Earlier claims of this session whose records may still be committed.
    """

    owner: Owner
    commits: CommitCounter = field(default_factory=CommitCounter)
    start: DeliveryStart | None = None
    action_number: int = 0
    waits_since: float | None = None
    repeated_at: float = float("-inf")
    is_replaced: bool = False
    retries: Retries = field(default_factory=Retries)
    follow_ups: FollowUps = field(default_factory=FollowUps)
    followed_to: int = -1
    replaced_claims: ReplacedClaims = field(default_factory=ReplacedClaims)

    def advance(self, log: PartitionLog, end: int, now: float) -> tuple[tuple[Action, ...], bool]:
        """Go on as far as the log says.

        Args:
            log: What the log says of the partition.
            end: The end of the log, as it was read.
            now: The time.

        Returns:
            What is to be done now. Each action must be confirmed, or said to have failed, with
            :attr:`action_number`; and whether delivery begins.
        """
        if now < self.retries.at:  # no reason to overlook a later claim
            self.owner.look(log)
            return (), self.look(now)
        self.retries.at = 0.0
        self.begin_commit(log, now)
        self._look_for_missed_records(log, end, now)
        if now < self.retries.at:
            return (), self.look(now)
        actions = self.owner.actions(log, end)
        # Nobody waits for what these become, so answers to actions of before still count.
        if not all(isinstance(action, Delete | Unblock | Append) for action in actions):
            self.action_number += 1
        if self.owner.commit is None and self.followed_to != end:
            self.followed_to = end
            if self.owner.is_stable_behind(log):
                self.follow_ups.plan(now)
        return actions, self.look(now)

    def _look_for_missed_records(self, log: PartitionLog, end: int, now: float) -> None:
        """Write again, after a pause, what was deleted before it was read.

        A claim is not: it would take back what others have claimed since (the ownerships do that).
        """
        if not self.owner.has_missed_records(end):
            return
        self.owner.look(log)
        if self.owner.phase is not Phase.CLAIMING and self.owner.has_missed_records(end):
            self.failed(self.action_number, _MISSED, now)

    def waits_for(self, action: int) -> bool:
        """Return True if it waits for actions of a number: what becomes of others is dropped."""
        return action == self.action_number

    def written(self, action: int, position: int) -> None:
        """Brokers have taken the records of some actions.

        Args:
            action: The number of the actions.
            position: The log offset of the last record.
        """
        if self.waits_for(action):
            self.owner.written(position)

    def failed(self, action: int, why: str, now: float) -> None:
        """Some actions have failed: try again after a pause."""
        if self.waits_for(action):
            self.owner.failed()
            self.action_number += 1
            self.retries.failed(why, now)

    def primary_written(self, action: int) -> None:
        """The coordinator has stored the offset."""
        if self.waits_for(action):
            self.owner.primary_written()
            self.retries.unknown_since = self.retries.unstored = None

    def topic_unknown(self, action: int, error: UnknownTopicError, now: float) -> bool:
        """The coordinator stores no offset, as it does not know the topic.

        Once that lasts, commits end without it: partitions that exist do not wait for one that does
        not.

        Args:
            action: The number of the actions.
            error: What it has answered.
            now: The time.

        Returns:
            Whether the commit goes on without; else its offset is to be tried again.
        """
        owner, retries = self.owner, self.retries
        if retries.unknown_since is None:
            retries.unknown_since = now
        # Before the first commit, a log needs the offset's anchor, and nobody waits.
        is_over = now - retries.unknown_since >= _UNKNOWN_SECONDS and owner.commit is not None
        if not is_over or not self.waits_for(action):
            return False
        owner.unstored()
        if owner.commit is None:  # no log says it
            retries.unstored = error
            self.commits.end(is_done=True)
        return True

    def processed(self, what: ProcessedWork) -> None:
        """Some records have been processed."""
        self.owner.processed(what)

    def succeed(self, former: "Ownership") -> None:
        """Replace another claim of the same session."""
        if not self.owner.claim.shared:  # there, who has processed something says it
            self.owner.inherit(former.owner)
        self.inherit(former.former())

    def former(self) -> ReplacedClaims:
        """What counts of it once its claim is replaced."""
        is_shared = self.owner.claim.shared
        if self.owner.phase is Phase.FENCED and not is_shared:
            return ReplacedClaims()
        starts = self.replaced_claims.starts
        if self.start is not None:
            starts = (*starts, (self.start, self.owner.hashes))
        most = _FORMER_STARTS_SHARED if is_shared else _FORMER_STARTS
        return ReplacedClaims(starts[-most:], incarnation=self.replaced_claims.incarnation)

    def inherit(self, former: ReplacedClaims) -> None:
        """What was handed out under former claims counts, of the hashes that are kept."""
        kept = ((start, hashes & self.owner.hashes) for start, hashes in former.starts)
        starts = tuple((start, hashes) for start, hashes in kept if hashes)
        self.replaced_claims = ReplacedClaims(starts, incarnation=former.incarnation)

    def takes(self, start: DeliveryStart | None) -> KeyRanges:
        """The hashes of which it counts what was processed since a start."""
        return self.owner.hashes if start == self.start else self.replaced_claims.kept(start)

    def processed_since(self, start: DeliveryStart | None, what: ProcessedWork) -> bool:
        """Some records have been processed that were delivered from a start; whether they count.

        Records of hashes that are read on while the claim is replaced count once it is in place.
        """
        if start is not None and start == self.start:
            self.processed(what)
            return True
        hashes = self.replaced_claims.kept(start)
        if not hashes:
            return False
        what = what if isinstance(what, Progress) else Progress.of(0, what)
        what = what.within(hashes)
        if self.start is not None:
            self.processed(what)
        else:
            before = self.replaced_claims.processed
            self.replaced_claims.processed = what if before is None else before.union(what)
        return True

    def _begin(self) -> None:
        """Delivery begins."""
        resolved, replaced = self.owner.resolved, self.replaced_claims
        assert resolved is not None
        self.start = DeliveryStart.new(self.owner.done)
        self.retries.backoff.reset()
        self.repeated_at = float("-inf")
        if resolved.lags:  # on a quiet topic, nobody else asks for a commit
            self.commits.ask()
        # Another member may have met the reset: to this one, the group then goes on.
        is_reset = replaced.incarnation not in {None, resolved.incarnation}
        if is_reset or resolved.reason in {Reason.RESET, Reason.EXPIRED}:
            self.replaced_claims = ReplacedClaims()
        self.replaced_claims.incarnation = resolved.incarnation
        if self.replaced_claims.processed is not None:
            self.processed(self.replaced_claims.processed)
            self.replaced_claims.processed = None

    def _end(self) -> None:
        """Nothing is delivered any more; with key order, what was delivered counts no more."""
        if self.start is not None:
            # Without, facts are true in any order: they count unless the offsets were reset.
            self.replaced_claims = self.former() if self.owner.claim.shared else ReplacedClaims()
            self.start = None

    def rewind(self) -> None:
        """Nothing more is delivered, until the log has said what is processed."""
        if self.owner.rewind():
            self.action_number += 1
        self._end()
        self.follow_ups.facts = ()

    def log_lost(self, topic_id: str) -> None:
        """The log is another one now: what is known goes into it.

        Args:
            topic_id: Id of the log's topic.
        """
        self.owner.log_lost(topic_id)
        self.action_number += 1
        self._end()
        self.waits_since = None
        self.commits.end(is_done=False)
        self.commits.ask()

    def has_waited(self, now: float, claim_timeout: float) -> bool:
        """True if its claim was read back so long ago that former owners deliver no more."""
        return self.waits_since is not None and now - self.waits_since >= claim_timeout

    @property
    def can_commit(self) -> bool:
        """True if a commit was asked for, and none is under way."""
        is_free = self.owner.phase is Phase.RUNNING and self.owner.commit is None
        return is_free and self.commits.are_due

    def begin_commit(self, log: PartitionLog, now: float) -> None:
        """Begin a commit if one was asked for, or follows, and none is under way."""
        owner = self.owner
        if self.follow_ups.take_due(log, now):
            self.commits.ask()
        if self.can_commit:
            self.commits.begin()
            if repeats := self._repeats(now):
                self.repeated_at = now
            owner.begin_commit(log, repeats=repeats)

    def _repeats(self, now: float) -> bool:
        """True if a commit is to write the primary offset again, though the log has no higher one.

        The first one does: who has led before may not have come to it.
        """
        # Later, of owners of hashes, the coordinator takes offsets of the current generation only,
        # in which one is the lead; of those that share a partition, it may change.
        claim, since = self.owner.claim, now - self.repeated_at
        may_differ = claim.epoch is None or claim.shared
        return since == float("inf") or (may_differ and since >= _REPEAT_SECONDS)

    def look(self, now: float) -> bool:
        """See how far the owner is; whether it has begun to run."""
        owner, was_running = self.owner, self.start is not None
        if owner.phase is not Phase.WAITING:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        if owner.phase is not Phase.RUNNING:
            self._end()
            self.commits.end(is_done=False)
            return False
        if not was_running:
            self._begin()
        # The owner has set its commit to None once all of it was written and read back.
        if owner.commit is None and self.commits.end(is_done=True):
            self.retries.why = ""
        return not was_running

    def next_time(self, claim_timeout: float) -> float:
        """When something is to be done although nothing happens; infinity if never."""
        retry_at = self.retries.at  # 0 if nothing has failed: at once
        times = [max(self.follow_ups.due_at, retry_at)]
        if self.waits_since is not None:
            times.append(self.waits_since + claim_timeout)
        if retry_at or self.can_commit:
            times.append(retry_at)
        return min(times)


class Claimant:
    """Makes the claims of a session: their names, the owner of each, and whether they may be.

    Args:
        session_id: Id of the session.
        transactional_id: Id of the transactions that hold what is processed; None without them.
        lease_records: Number of offsets to lease at a time; None for key order.
        keeps_log: Whether the group has a log; without one, nobody claims anything.
        uniform: Source of jitter for pauses after faults.

    Attributes:
        session_id: As given.
        denied: Why nothing may be written to the log; None if it may, as far as it is known.
        self_fencing: Whether the member delivers no more before the coordinator drops it.
        times_anew: How often all was claimed anew, as others may have come and gone.
    """

    def __init__(
        self,
        session_id: str,
        transactional_id: str | None,
        lease_records: int | None,
        *,
        keeps_log: bool,
        uniform: Uniform | None,
    ) -> None:
        self.session_id = session_id
        self.denied: AuthorizationError | None = None
        self.self_fencing = False
        self.times_anew = 0
        self._transactional_id = transactional_id
        self._lease_records = lease_records
        self._keeps_log = keeps_log
        self._uniform = uniform
        self._claims = 0

    def rename(self) -> None:
        """Claim under another name from now on: nothing late is taken for a new claim's."""
        self._claims += 1

    def claim(self, partition: TopicPartition, hashes: KeyRanges) -> Claim:
        """A claim under the present name."""
        return Claim(partition, f"{self.session_id}#{self._claims}", hashes)

    def ownership(self, claim: Claim, topic_id: str) -> Ownership:
        """The ownership of what is claimed.

        Args:
            claim: The claim.
            topic_id: Id of the log's topic; empty if it is not known.
        """
        each = Ownership(self._owner(claim, topic_id))
        if self._uniform is not None:
            each.retries.backoff = Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS, self._uniform)
        return each

    def _owner(self, claim: Claim, topic_id: str) -> Owner:
        if not self._keeps_log:
            return OffsetOwner(claim, topic_id)
        if self.denied is not None:
            return PlainOwner(claim, topic_id)
        if self._lease_records is not None:
            shared = replace(claim, shared=True)
            return Cooperator(shared, topic_id, lease_records=self._lease_records)
        return Owner(replace(claim, transactional_id=self._transactional_id), topic_id)

    def check(self, assignment: Assigned) -> None:
        """Check that these key hashes of partitions may be owned.

        Raises:
            AuthorizationError: The log has to be written to for them, and may not be.
            ForeignMemberError: There are key ranges, and no log that says who has the others.
        """
        if not self._keeps_log:
            self._check_whole(assignment)
        is_plain = self._transactional_id is None and self._lease_records is None
        needs_claims = not self.self_fencing  # nothing else keeps others away
        is_whole = all(hashes.is_all for hashes in assignment.values())
        if self.denied and assignment and (needs_claims or not (is_plain and is_whole)):
            raise self.denied.with_traceback(None)  # it may be raised again

    def _check_whole(self, assignment: Assigned) -> None:
        for partition, hashes in assignment.items():
            if not hashes.is_all:
                raise ForeignMemberError(
                    f"{partition}: the group's leader has assigned key hashes "
                    f"{', '.join(map(str, hashes))} to {self.session_id}, which takes whole "
                    "partitions: allow.individual.commit is false. Give all members of a group "
                    "the same"
                )
