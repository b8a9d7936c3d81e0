"""What a transaction needs of a session: what it may write, when, and what became of it.

All methods may be called from any thread.
"""

import time
from collections.abc import Callable
from typing import Protocol

from kshare.core.progress import TopicPartition
from kshare.errors import TransactionAbortedError
from kshare.group.core.ownership import Ownership
from kshare.group.core.work import Work
from kshare.group.protocol.owner import Phase
from kshare.group.protocol.record_codec import encode, encode_key
from kshare.group.protocol.records import Block, Key
from kshare.group.protocol.transaction import (
    Admission,
    Purgatory,
    TransactionChunk,
    admission,
    chunk_start,
    known_progress,
    may_commit,
    transaction_records,
)
from kshare.group.session.shared import Shared

__all__ = ["LogRecords", "LogThread", "TransactionLog"]

_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.1

LogRecords = list[tuple[bytes, bytes | None]]
"""Keys and values; None for a tombstone."""


class LogThread(Protocol):
    """What is needed of a :class:`~kshare.group.session.thread.SessionThread`."""

    @property
    def read_at(self) -> float:
        """When the log was last known to be read to its end."""

    def log_partition(self) -> TopicPartition | None:
        """The partition of the group's log; None if it was not found yet."""

    def wake(self) -> None:
        """Let the thread look at what was asked of it."""


class TransactionLog:
    """The group's log, as transactions see it.

    Args:
        group: Id of the group.
        shared: What the session knows.
        thread: The session's thread.
        now: The session's source of time.

    Attributes:
        is_alive: Whether nobody can have taken over the key hashes of the session, as they are sure
            that it lives.
        is_lost: Whether the session's member was dropped from its group.
    """

    def __init__(
        self, group: str, shared: Shared, thread: LogThread, now: Callable[[], float]
    ) -> None:
        self.now = now
        self.is_alive: Callable[[], bool] = lambda: True
        self.is_lost: Callable[[], bool] = lambda: False
        self._group = group
        self._shared = shared
        self._thread = thread
        self._written: dict[TopicPartition, tuple[Block, ...]] = {}

    @property
    def own_fences(self) -> int:
        """How often the session has fenced its own transactional id."""
        return self._shared.own_fences

    @property
    def partition(self) -> TopicPartition:
        """The partition of the group's log; a partition that has started knows it."""
        found = self._thread.log_partition()
        assert found is not None
        return found

    def is_settled(self) -> bool:
        """True if all partitions have started: nothing more of this id's past is to be fenced."""
        with self._shared.changed:
            owners = [each.owner for each in self._shared.ownerships.by_partition.values()]
            return all(owner.phase in {Phase.RUNNING, Phase.FENCED} for owner in owners)

    def has_news(self, work: Work) -> bool:
        """True if something is processed that the log does not say."""
        with self._shared.changed:
            return any(
                self._records(partition, work)[0]
                for partition in work.processed
                if partition in self._shared.ownerships.by_partition
            )

    def await_read(
        self, since: float, until: float, check: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until the log was read by a request that was sent after some time.

        Nor may the session be taken for dead since then. Else others may have had its key hashes
        and given them up again, and compaction leaves nothing of that in the log.

        Args:
            since: The time, by :attr:`now`.
            until: When to give up, by the monotonic clock.
            check: Raises if there is nothing to wait for any more.

        Raises:
            TransactionAbortedError: It was not read in time.
            KshareError: The session cannot go on.
        """
        while self._thread.read_at <= since or not self.is_alive():
            if self.is_lost():
                raise TransactionAbortedError(
                    f"group {self._group}: the transaction is aborted: the member was dropped from "
                    "its group, and others may have its key hashes"
                )
            if time.monotonic() >= until:
                raise TransactionAbortedError(
                    f"group {self._group}: the transaction is aborted: the group's log or its "
                    "coordinator does not answer; the last trouble: "
                    f"{self._shared.trouble or 'none'}"
                )
            self._raise_fault()
            check()
            time.sleep(_LOOK_SECONDS)

    def await_admission(
        self,
        work: Work,
        purgatory: Purgatory,
        until: float,
        is_disturbed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until a transaction may commit: until what comes before its records is processed.

        Args:
            work: What it processes.
            purgatory: For what it waits.
            until: When to give up, by the monotonic clock.
            is_disturbed: Whether key hashes are about to be taken away or given.

        Raises:
            TransactionAbortedError: It cannot commit, or did not come to it in time.
            KshareError: The session cannot go on.
        """
        with self._shared.changed:
            while True:
                self._check(work)
                chunks = {tp: self._chunk(tp, work) for tp in work.processed}
                found = admission(chunks.values(), purgatory)
                if found is Admission.OPEN:
                    return
                left = until - time.monotonic()
                if found is Admission.LOST or left <= 0:
                    waiting = ", ".join(
                        f"{tp} from offset {chunk.start} on (stable offset {chunk.known.stable})"
                        for tp, chunk in sorted(chunks.items())
                        if chunk.start is not None
                    )
                    raise TransactionAbortedError(
                        f"group {self._group}: the transaction is aborted: {found.value}, and it "
                        f"waits for that (purgatory=stable): {waiting}"
                    )
                if is_disturbed():
                    raise TransactionAbortedError(
                        f"group {self._group}: the transaction is aborted: key hashes were "
                        "assigned anew while it waited for what comes before its records"
                    )
                self._shared.changed.wait(min(left, _LONGEST_LOOK_SECONDS))

    def records(self, work: Work) -> LogRecords:
        """What the transaction is to write into the log.

        Raises:
            TransactionAbortedError: Some of what was processed belongs to the member no more.
        """
        records: LogRecords = []
        with self._shared.changed:
            self._check(work)
            self._written = {}
            for partition in work.processed:
                blocks, keys = self._records(partition, work)
                self._written[partition] = tuple(blocks)
                records += [encode(self._group, block) for block in blocks]
                records += [(encode_key(self._group, key), None) for key in keys]
        return records

    def committed(self, work: Work) -> None:
        """The transaction is committed."""
        with self._shared.changed:
            for partition, processed in work.processed.items():
                each = self._shared.ownerships.by_partition.get(partition)
                if each is not None and each.start is work.since[partition]:
                    each.processed(processed)
                    facts = self._written.get(partition)
                    each.follow_ups.facts = facts or each.follow_ups.facts
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
                each.follow_ups.hasten(self.now())
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

    def _raise_fault(self) -> None:
        if self._shared.fault is not None:
            raise self._shared.fault

    def _check(self, work: Work) -> None:
        """Refuse what does not belong to the member any more."""
        self._raise_fault()
        for partition, since in work.since.items():
            each = self._shared.ownerships.by_partition.get(partition)
            start = None if each is None else each.start
            if not may_commit(since, start, is_read=True):
                fenced = self._shared.ownerships.fenced()
                raise TransactionAbortedError(
                    f"group {self._group}: the transaction is aborted: {partition} is not this "
                    "consumer's any more, or its offsets were reset, or the group's log was lost"
                ) from fenced

    def _chunk(self, partition: TopicPartition, work: Work) -> TransactionChunk:
        each = self._shared.ownerships.by_partition[partition]
        known = known_progress(self._shared.ownerships.log.of(partition), each.owner.done)
        start = chunk_start(work.processed[partition], known)
        return TransactionChunk(start, each.owner.hashes, each.owner.hashes, known)

    def _records(self, partition: TopicPartition, work: Work) -> tuple[list[Block], list[Key]]:
        owner = self._shared.ownerships.by_partition[partition].owner
        log = self._shared.ownerships.log.of(partition)
        done = owner.done.union(work.processed[partition])
        return transaction_records(partition, log, owner.member, owner.hashes, done)


def _is_open(each: Ownership) -> bool:
    """True if a commit that follows from a transaction is to be done, or under way."""
    follow_ups = each.follow_ups
    is_asked = bool(follow_ups.facts) or follow_ups.is_due or each.commits.are_due
    return is_asked and each.owner.phase is Phase.RUNNING
