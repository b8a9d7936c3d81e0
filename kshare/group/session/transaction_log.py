"""What a transaction needs of a session: what it may write, when, and what became of it.

All methods may be called from any thread.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kshare.core.progress import TopicPartition
from kshare.core.waits import Wait
from kshare.errors import TransactionAbortedError
from kshare.group.core.ownership import Ownership
from kshare.group.core.transaction_state import GiveUp, Outlook, TransactionAction, TransactionState
from kshare.group.core.work import CommitRequest
from kshare.group.protocol.commit_log.commit import (
    Purgatory,
    PurgatoryState,
    TransactionPart,
    first_new_offset,
    known_progress,
    purgatory_state,
    transaction_records,
)
from kshare.group.protocol.commit_log.record_codec import encode, encode_key
from kshare.group.protocol.commit_log.records import Block, Key
from kshare.group.protocol.owners.owner import Phase
from kshare.group.session.shared import Shared
from kshare.group.session.thread import SessionThread
from kshare.kafka.protocol.wait_log import WaitLog

__all__ = ["Gap", "LogRecords", "TransactionLog"]

_log = logging.getLogger("kshare.group")

_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.1


class Gap(NamedTuple):
    """What is processed behind what is not.

    Attributes:
        partition: The partition.
        stable: The first offset that is not processed.
        first: The first one behind it that is, and that nobody knew of.
    """

    partition: TopicPartition
    stable: int
    first: int


LogRecords = list[tuple[bytes, bytes | None]]
"""Keys and values; None for a tombstone."""


class TransactionLog:
    """The group's log, as transactions see it.

    Args:
        group: Id of the group.
        shared: What the session knows.
        thread: The session's thread.
        is_alive: Says whether nobody can have taken over the key hashes of the session, as they are
            sure that it lives.
        now: The session's source of time.
    """

    def __init__(
        self,
        group: str,
        shared: Shared,
        thread: SessionThread,
        is_alive: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        self.now = now
        self._is_alive = is_alive
        self._group = group
        self._shared = shared
        self._thread = thread
        self._prepared: LogRecords = []
        self._written: dict[TopicPartition, tuple[Block, ...]] = {}
        self._waits = WaitLog(_log, f"group {group}")

    @property
    def own_fences(self) -> int:
        """How often the session has fenced its own transactional id."""
        return self._shared.own_fences

    @property
    def partition(self) -> TopicPartition:
        """The partition of the group's log; a partition that has started knows it."""
        found = self._thread.ground.partition
        assert found is not None
        return found

    def is_settled(self) -> bool:
        """True if all partitions have started: nothing more of this id's past is to be fenced."""
        with self._shared.changed:
            owners = [each.owner for each in self._shared.ownerships.by_partition.values()]
            return all(owner.phase in {Phase.RUNNING, Phase.FENCED} for owner in owners)

    @property
    def is_disturbed(self) -> bool:
        """True if key hashes are about to be taken away or given: to wait is of no use."""
        member = self._shared.member
        return member is not None and member.has_change

    def has_news(self, work: CommitRequest) -> bool:
        """True if something is processed that the log does not say."""
        with self._shared.changed:
            return any(
                self._records(partition, work)[0]
                for partition in work.processed
                if partition in self._shared.ownerships.by_partition
            )

    def first_gap(self, work: CommitRequest) -> Gap | None:
        """What one offset of a whole partition cannot say of some work; None if it can say all."""
        with self._shared.changed:
            for partition, processed in sorted(work.processed.items()):
                each = self._shared.ownerships.by_partition.get(partition)
                if each is None or not each.owner.hashes.is_all:
                    continue  # ranges that a policy forbids: the leader takes them away
                log = self._shared.ownerships.log.of(partition)
                known = known_progress(log, each.owner.done)
                stable = known.union(processed).stable
                for piece in processed.minus(known):
                    if piece.offsets.end > stable:
                        return Gap(partition, stable, max(piece.offsets.start, stable))
        return None

    def next_action(
        self,
        state: TransactionState,
        work: CommitRequest,
        purgatory: Purgatory,
        *,
        is_closed: bool,
    ) -> TransactionAction:
        """What is next for a transaction that is to commit; waits for a moment if that is nothing.

        Once it may write its facts, :meth:`records` has them.

        Args:
            state: How far it is.
            work: What it processes.
            purgatory: For what it waits.
            is_closed: Whether the consumer is closed.

        Raises:
            TransactionAbortedError: It cannot commit, or did not come to it in time.
            KshareError: The session cannot go on.
        """
        # Before the starts: who takes hashes over later than that fences the epoch, before it
        # delivers.
        member = self._shared.member
        is_lost = member is not None and member.is_lost
        read_at, is_alive = self._thread.read_at, self._is_alive()
        is_disturbed = self.is_disturbed
        refusal: Exception | None = None
        with self._shared.changed:
            if self._shared.fault is not None:
                raise self._shared.fault.with_traceback(None)  # it may be raised again
            starts = self._shared.ownerships.started()
            is_own = state.is_own(starts)
            parts = {tp: self._part(tp, work) for tp in work.processed} if is_own else {}
            found = purgatory_state(parts.values(), purgatory)
            outlook = Outlook(starts, found, read_at, is_alive, is_lost, is_disturbed, is_closed)
            action, wait = state.next_action(outlook, time.monotonic()), None
            if isinstance(action, GiveUp):
                refusal = self._refusal(action, work, outlook, parts)
                refusal.__cause__ = self._shared.ownerships.fenced()
            elif action is TransactionAction.WRITE:
                self._prepare(work)  # with the lock held: of what was looked at
                state.written()
            elif action is TransactionAction.WAIT:
                is_open = found is PurgatoryState.OPEN
                wait = self._wait(outlook, parts)
                self._shared.changed.wait(_LOOK_SECONDS if is_open else _LONGEST_LOOK_SECONDS)
        self._waits.look({} if wait is None else {"": wait})
        if isinstance(action, GiveUp):
            assert refusal is not None
            raise refusal
        return action

    def records(self) -> LogRecords:
        """What the transaction is to write into the log."""
        records, self._prepared = self._prepared, []
        return records

    def committed(self, work: CommitRequest) -> None:
        """The transaction is committed."""
        with self._shared.changed:
            for partition, processed in work.processed.items():
                each = self._shared.ownerships.by_partition.get(partition)
                if each is None:
                    continue
                if each.start == work.starts[partition]:
                    each.processed(processed)
                    facts = self._written.get(partition)
                    each.follow_ups.facts = facts or each.follow_ups.facts
                else:  # claimed anew meanwhile: it may have started before these facts were read
                    each.rewind()
        self._thread.wake()

    def rewind(self) -> None:
        """The transaction was aborted: deliver again from what the log says.

        Its facts are in the log already, or never will be: reading waits until they are decided.
        """
        with self._shared.changed:
            for each in self._shared.ownerships.by_partition.values():
                each.rewind()
        self._thread.wake()

    def flush(self, seconds: float) -> None:
        """Wait until the stable offsets follow from all own transactions, as far as time goes."""
        until = time.monotonic() + seconds
        with self._shared.changed:
            listed = list(self._shared.ownerships.by_partition.values())
            for each in listed:
                each.follow_ups.run_now(self.now())
            self._thread.wake()
            while self._shared.fault is None and any(map(_is_open, listed)):
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._shared.changed.wait(left)

    def keep_claims(self) -> None:
        """A transaction is not decided: claims stay, so that others know what to fence."""
        self._shared.keeps_claims = True

    # -- with the lock held ------------------------------------------------------------------

    def _wait(self, outlook: Outlook, parts: Mapping[TopicPartition, TransactionPart]) -> Wait:
        """The wait of a transaction that is to commit."""
        if outlook.purgatory is PurgatoryState.OPEN:
            what = "a transaction waits for what is processed before it (purgatory=stable)"
            return Wait(what, "others have committed that", detail=_firsts(parts))
        what = "a transaction waits, as others may have taken over its key hashes"
        until = "the group's log and its coordinator answer"
        return Wait(what, until, detail=self._shared.trouble)

    def _refusal(
        self,
        reason: GiveUp,
        work: CommitRequest,
        outlook: Outlook,
        parts: Mapping[TopicPartition, TransactionPart],
    ) -> TransactionAbortedError:
        """The error of a transaction that cannot commit."""
        why = reason.value
        match reason:
            case GiveUp.CLOSED | GiveUp.TORN:
                return TransactionAbortedError(f"the transaction is aborted: {why}")
            case GiveUp.NOT_OWN:
                starts = work.starts.items()
                lost = next(tp for tp, start in starts if outlook.starts.get(tp) != start)
                why = f"{lost} {why}"
            case GiveUp.OVERTAKEN | GiveUp.LATE:
                why += f", and it waits for that (purgatory=stable): {_firsts(parts)}"
            case GiveUp.UNPROVEN:
                why += f"; the last trouble: {self._shared.trouble or 'none'}"
        return TransactionAbortedError(f"group {self._group}: the transaction is aborted: {why}")

    def _prepare(self, work: CommitRequest) -> None:
        self._prepared, self._written = [], {}
        for partition in work.processed:
            blocks, keys = self._records(partition, work)
            self._written[partition] = tuple(blocks)
            self._prepared += [encode(self._group, block) for block in blocks]
            self._prepared += [(encode_key(self._group, key), None) for key in keys]

    def _part(self, partition: TopicPartition, work: CommitRequest) -> TransactionPart:
        each = self._shared.ownerships.by_partition[partition]
        known = known_progress(self._shared.ownerships.log.of(partition), each.owner.done)
        first = first_new_offset(work.processed[partition], known)
        return TransactionPart(first, each.owner.hashes, each.owner.hashes, known)

    def _records(
        self, partition: TopicPartition, work: CommitRequest
    ) -> tuple[list[Block], list[Key]]:
        owner = self._shared.ownerships.by_partition[partition].owner
        log = self._shared.ownerships.log.of(partition)
        done = owner.done.union(work.processed[partition])
        return transaction_records(partition, log, owner.claim_name, owner.hashes, done)


def _firsts(parts: Mapping[TopicPartition, TransactionPart]) -> str:
    """From where on a transaction has processed what nobody else has."""
    return ", ".join(
        f"{tp} from offset {part.first} on (stable offset {part.known.stable})"
        for tp, part in sorted(parts.items())
        if part.first is not None
    )


def _is_open(each: Ownership) -> bool:
    """True if a commit that follows from a transaction is to be done, or under way."""
    follow_ups = each.follow_ups
    is_asked = bool(follow_ups.facts) or follow_ups.is_due or each.commits.are_due
    return is_asked and each.owner.phase is Phase.RUNNING
