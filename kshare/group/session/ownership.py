"""What a session owns of one partition: an owner, the commits asked of it, and what has failed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kshare.core.progress import Progress, Rectangle
from kshare.group.protocol.log import PartitionLog
from kshare.group.protocol.owner import Owner, Phase
from kshare.group.protocol.records import Block
from kshare.group.protocol.transaction import is_read_back
from kshare.wire.protocol.retry import Backoff

__all__ = ["AskedCommits", "FollowUps", "Ownership", "Processed", "Retries"]

Processed = Progress | Sequence[Rectangle]
"""What has been processed of a partition: the rectangles may overlap, and repeat what is known."""

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 2_000
_COMMIT_SECONDS: Final = 0.2
"""The shortest time between two commits that follow from transactions."""
_REPEAT_SECONDS: Final = 10.0
"""The shortest time between two repetitions of a primary offset."""


@dataclass(slots=True)
class Retries:
    """When to try again what has failed.

    Attributes:
        at: Before this time nothing is done; 0 if nothing has failed.
        why: What failed last; empty if nothing did.
        backoff: Pauses, longer each time.
    """

    at: float = 0.0
    why: str = ""
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS))

    def failed(self, why: str, now: float) -> None:
        """It has failed: try again after a pause."""
        self.why, self.at = why, now + self.backoff.pause()


@dataclass(slots=True)
class FollowUps:
    """Commits that follow from what is read back: facts of transactions, chunks of others.

    Attributes:
        facts: Those of the last transaction, until they are read back.
        due_at: When to commit what they make stable; infinity if there is nothing.
        done_at: When that was done last.
    """

    facts: tuple[Block, ...] = ()
    due_at: float = float("inf")
    done_at: float = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether there is a commit to come."""
        return self.due_at < float("inf")

    def plan(self, now: float) -> None:
        """Commit, though not more often than once in a while."""
        self.due_at = min(self.due_at, max(now, self.done_at + _COMMIT_SECONDS))

    def hasten(self, now: float) -> None:
        """What is due is due at once."""
        self.done_at = float("-inf")
        self.due_at = min(self.due_at, now) if self.is_due else self.due_at

    def take(self, log: PartitionLog, now: float) -> bool:
        """Whether to commit now; facts that are read back may move the stable offset."""
        if self.facts and is_read_back(log, self.facts):
            self.facts = ()
            self.due_at = max(now, self.done_at + _COMMIT_SECONDS)
        if now < self.due_at:
            return False
        self.due_at, self.done_at = float("inf"), now
        return True


@dataclass(slots=True)
class AskedCommits:
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
        """Whether one is not done."""
        return self.wanted > self.finished

    def begin(self) -> None:
        """All that were asked for are under way."""
        self.begun = self.wanted

    def end(self, *, is_done: bool) -> bool:
        """Nothing is under way any more; whether something is done now.

        Args:
            is_done: Whether what was under way is done; else it has to begin again.
        """
        if not is_done:
            self.begun = self.finished
        was_open, self.finished = self.begun > self.finished, self.begun
        return was_open


@dataclass(slots=True)
class Ownership:
    """An owner, and what the session wants of it.

    Attributes:
        owner: The protocol's core.
        commits: Commits that were asked for.
        start: From where delivery has begun; None while it may not deliver.
        action: Number of the last actions: what becomes of earlier ones does not matter.
        waits_since: When its claim was read back; None if it does not wait.
        repeated_at: When a commit has repeated the primary offset last.
        is_replaced: Whether the partition was claimed anew or given up: its commits end.
        retries: What has failed.
        follow_ups: Commits that follow from what is read back.
        followed_to: The end of the log when it was looked at for what others have committed.
    """

    owner: Owner
    commits: AskedCommits = field(default_factory=AskedCommits)
    start: Progress | None = None
    action: int = 0
    waits_since: float | None = None
    repeated_at: float = float("-inf")
    is_replaced: bool = False
    retries: Retries = field(default_factory=Retries)
    follow_ups: FollowUps = field(default_factory=FollowUps)
    followed_to: int = -1

    def failed(self, action: int, why: str, now: float) -> None:
        """Some actions have failed: try again after a pause."""
        if action == self.action:
            self.owner.failed()
            self.action += 1
            self.retries.failed(why, now)

    def processed(self, what: Processed) -> None:
        """Some records have been processed."""
        self.owner.processed(what)

    def rewind(self) -> None:
        """Nothing more is delivered, until the log has said what is processed."""
        if self.owner.rewind():
            self.action += 1
        self.start, self.follow_ups.facts = None, ()

    def log_lost(self, topic_id: str) -> None:
        """The log is another one now: what is known goes into it.

        Args:
            topic_id: Id of the log's topic.
        """
        self.owner.log_lost(topic_id)
        self.action += 1
        self.start, self.waits_since = None, None
        self.commits.end(is_done=False)
        self.commits.ask()

    def has_waited(self, now: float, claim_timeout: float) -> bool:
        """Whether its claim was read back so long ago that former owners deliver no more."""
        return self.waits_since is not None and now - self.waits_since >= claim_timeout

    def begin_commit(self, log: PartitionLog, now: float) -> None:
        """Begin a commit if one was asked for, or follows, and none is under way."""
        owner = self.owner
        if self.follow_ups.take(log, now):
            self.commits.ask()
        if owner.phase is Phase.RUNNING and owner.commit is None and self.commits.are_due:
            self.commits.begin()
            # Of owners of hashes, the coordinator takes offsets of the current generation only, in
            # which one is the lead; of those that share a partition, it may change.
            may_differ = owner.claim.epoch is None or owner.claim.shared
            repeats = may_differ and now - self.repeated_at >= _REPEAT_SECONDS
            owner.begin_commit(log, repeats=repeats)
            self.repeated_at = now if repeats else self.repeated_at

    def look(self, now: float) -> bool:
        """See how far the owner is; whether it has begun to run."""
        owner, was_running = self.owner, self.start is not None
        if owner.phase is not Phase.WAITING:
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = now
        if owner.phase is not Phase.RUNNING:
            self.start = None
            self.commits.end(is_done=False)
            return False
        if not was_running:
            self.start = owner.done
            self.retries.backoff.reset()
        if owner.commit is None and self.commits.end(is_done=True):
            self.retries.why = ""
        return not was_running

    def next_time(self, claim_timeout: float) -> float:
        """When something is to be done although nothing happens; infinity if never."""
        times = [max(self.follow_ups.due_at, self.retries.at)]
        if self.waits_since is not None:
            times.append(self.waits_since + claim_timeout)
        if self.retries.at:
            times.append(self.retries.at)
        return min(times)
