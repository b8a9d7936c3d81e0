"""Ownership of a whole partition by a member without claims: the log is denied, or there is none.

::

    STARTING --start resolved--> RUNNING
       ^                            |
       +---- offsets were reset ----+---- somebody has claimed the partition,
                                          a claim cannot be read,
                                          or the member is out of the group --> FENCED

It claims nothing and writes no facts: the group's coordinator alone says who has the partition. It
commits the primary offset as plain consumers do: what it has processed above that comes again after
a restart. It never sets its primary offset back.

- Who may not write to the log (:class:`PlainOwner`) reads it, so what others have committed
  individually is not delivered again. It keeps the anchor of the offset that it began with, so that
  stays valid.
- In a group that keeps no log (:class:`OffsetOwner`), the primary offset is all there is.
"""

from dataclasses import dataclass

from kshare.group.protocol.commit_log.commit import Commit, stable_offset
from kshare.group.protocol.commit_log.log import PartitionLog
from kshare.group.protocol.commit_log.records import Block, Key
from kshare.group.protocol.commit_log.start import Anchor, Primary, Reason, Start, start_without_log
from kshare.group.protocol.owners.actions import Action, FetchPrimary, ResolveInitial, WritePrimary
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.takeover import session_of

__all__ = ["OffsetOwner", "PlainOwner"]


@dataclass(slots=True)
class PlainOwner(Owner):
    """A member's ownership of a whole partition, without a claim."""

    phase: Phase = Phase.STARTING
    _claims_seen: int = 0  # log offset of the newest claim when it began, read or not
    _written: int = -1  # the primary offset; -1 if it is to be written in any case

    @property
    def has_facts(self) -> bool:
        """False: what it has processed above the primary offset is written nowhere."""
        return False

    def must_claim_anew(self, log: PartitionLog) -> bool:  # noqa: ARG002 - as the base has it
        """False: it claims nothing; a claim that cannot be read fences it."""
        return False

    def primary_read(self, primary: Primary | None, log_end: int, log_start: int = 0) -> None:
        """The primary offset and the bounds of the log have been fetched."""
        # Not super(): a dataclass with slots is made anew, and the method knows the first one.
        Owner.primary_read(self, primary, log_end, log_start)
        self._written = -1 if primary is None else primary.offset

    def log_lost(self, topic_id: str = "") -> None:
        """The log was deleted or truncated: go on; the next commit names no anchor."""
        self.topic_id = topic_id
        if self.resolved is not None:
            incarnation, progress = self.resolved.incarnation, self.resolved.progress
            self.resolved = Start(Reason.LOST_LOG, incarnation, progress, begins=True)
            self._claims_seen = -1
        else:
            self.failed()

    def dropped(self) -> None:
        """Its member is out of the group: what was to be committed is not, and nothing says it."""
        self._fenced()

    def unstored(self) -> None:
        """The topic does not exist: the commit is over, and the next one begins it again."""
        self.commit, self._pending = None, ()

    def _fenced(self) -> None:
        self.phase, self.commit, self._pending = Phase.FENCED, None, ()

    def stable(self, log: PartitionLog) -> int:
        """The stable offset that is committed."""
        return max(stable_offset(log, self.resolved), self._written)

    def look(self, log: PartitionLog) -> None:
        """Move on by what the log says."""
        if self.resolved is None or self.phase is Phase.FENCED:
            return
        if log.is_damaged_since(self._claims_seen) or any(
            placed.position > self._claims_seen and session_of(name) != session_of(self.claim_name)
            for name, placed in log.claims.items()
        ):
            self._fenced()
        elif self.was_reset(log):
            self.rewind()

    def _begin(self, log: PartitionLog, start: Start) -> tuple[Action, ...]:
        self._check(start)
        damages = (each.position for each in log.damaged.values())
        self.resolved, self._claims_seen = start, max([log.position, *damages])
        if start.unanchored:
            self._written = -1
        self._run()
        return ()

    def _facts(self, log: PartitionLog) -> tuple[Block, ...]:  # noqa: ARG002 - as the base has it
        return ()

    def _commit(self, log: PartitionLog, commit: Commit) -> tuple[Action, ...]:
        assert self.resolved is not None
        stable = commit.done.stable
        if stable > self._written and not commit.is_primary_written:
            anchor = self._anchor(log, self.resolved)
            return (WritePrimary(stable, anchor, self.leader_epochs.before(stable)),)
        self._written, self.commit = max(stable, self._written), None
        return ()

    def _anchor(self, log: PartitionLog, start: Start) -> Anchor | None:
        """What ties the primary offset to the log; None if the log does not go on with it."""
        if start.begins:
            return None
        return Anchor(start.incarnation, log.position, self.topic_id)


@dataclass(slots=True)
class OffsetOwner(PlainOwner):
    """A member's ownership of a whole partition in a group that keeps no log."""

    def keys(self, log: PartitionLog) -> list[Key]:  # noqa: ARG002 - as the base has it
        """None: nothing of it is in a log."""
        return []

    def look(self, log: PartitionLog) -> None:
        """Nobody says anything in a log: the coordinator says that it has lost the partition."""

    def _start(self, log: PartitionLog) -> tuple[Action, ...]:
        evidence = self._evidence
        if evidence.primary is None:
            return (FetchPrimary(),)
        primary = evidence.primary[0]
        if primary is None and evidence.initial is None:
            return (ResolveInitial(),)
        self._evidence = evidence.forgotten()
        return self._begin(log, start_without_log(primary, evidence.initial))
