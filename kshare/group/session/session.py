"""A consumer's session with its group, standalone or as a member: claims, starts and commits.

A background thread (:class:`.SessionThread`) reads the group's individual commit log by long polls;
in a group that keeps none, it goes by the group's coordinator alone. In each step it asks
:class:`~kshare.group.core.ownerships.Ownerships`, which have an ``Ownership`` with an
:class:`~kshare.group.protocol.owners.owner.Owner` for each partition, what to do, and does it.
Nothing is opened before :meth:`GroupSession.claim`. All methods may be called from any thread.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

from kshare.core.offsets import Bounds
from kshare.core.progress import TopicPartition
from kshare.errors import CommitFailedError, ConsumerClosedError, FetchTimeoutError
from kshare.group.config.table import ConsumerConfig
from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import LeaderEpochsOf, no_epochs
from kshare.group.core.work import LateWork, ProcessedWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.log.primary import (
    OffsetAndMetadata,
    PrimaryOffsets,
    committed_offset,
    committed_within,
)
from kshare.group.membership.group_planner import WholeTopics
from kshare.group.membership.handle import MemberHandle
from kshare.group.metrics import LogMetrics
from kshare.group.protocol.membership.subscription import Assigned
from kshare.group.protocol.owners.leases import Share
from kshare.group.protocol.owners.owner import Phase
from kshare.group.session.offset_actions import NO_LOG
from kshare.group.session.thread import SessionThread
from kshare.group.session.transaction_log import TransactionLog
from kshare.kafka.protocol.retry import boot_time

__all__ = ["GroupSession"]

_PRIMARY_SECONDS: Final = 2.0
"""For so long, a member that closes tries to store primary offsets amid a rebalance."""
_LOOK_SECONDS: Final = 0.05
"""How often to look again, if nobody tells of a change."""


class GroupSession:
    """A consumer's session with its group: standalone until :meth:`join`, then as a member.

    Args:
        config: The consumer's configuration.
        on_change: Called from the session's thread when :meth:`started`, :meth:`check` or
            :meth:`may_deliver` may answer differently. It must not block.
        leader_epochs: Which leaders wrote what was read of a partition: they are committed beside
            offsets. Called from the session's thread with its lock held.
        now: Source of time, in seconds; the time during which the machine is suspended counts.

    Attributes:
        session_id: Its id, such as ``host-1234-5f0c2a9e``.
        transaction_log: The group's log, as transactions see it.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        on_change: Callable[[], None] | None = None,
        leader_epochs: LeaderEpochsOf = no_epochs,
        now: Callable[[], float] = boot_time,
    ) -> None:
        self.session_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._group = config.group
        self._kafka = config.kafka
        self._now = now
        self._thread = SessionThread(
            config, self.session_id, on_change or (lambda: None), leader_epochs, now
        )
        self._shared = self._thread.shared
        self._right = self._thread.ground.right
        self._is_started = False
        self.transaction_log = TransactionLog(
            config.group, self._shared, self._thread, self.may_deliver, now
        )

    def log_metrics(self) -> LogMetrics | None:
        """The size of the group's log; None if it was not found yet, or the group keeps none."""
        return self._thread.ground.metrics()

    def join(
        self, config: ConsumerConfig, on_change: Callable[[], None], whole_topics: WholeTopics
    ) -> MemberHandle:
        """Become a member of the group; nothing is sent before the member subscribes.

        From now on records may be handed out only while the member is sure to be one, and offsets
        are committed by it.

        Args:
            config: The consumer's configuration.
            on_change: Called when there is something to take from the member.
            whole_topics: Says which topics' partitions are not to be shared.

        Raises:
            ConsumerClosedError: The session is closed.
        """
        thread, shared = self._thread, self._shared
        member = MemberHandle(
            config,
            self.session_id,
            shared.changed,
            thread.beside,
            thread.ground.write_epoch,
            on_change,
            thread.wake,
            whole_topics,
            now=self._now,
        )
        with shared.changed:
            self._raise_if_closing()
            shared.member = member
            shared.served.append(member)
            self._right.joined(member.liveness, is_static=member.is_static)
        self.claim({})
        return member

    def leave(self, timeout: float) -> None:
        """Leave the group; the session is a standalone one again.

        Args:
            timeout: Maximum time to wait, in seconds. It goes on in the background.
        """
        self._end_membership(timeout)
        with self._shared.changed:
            if self._shared.member is not None:
                self._shared.member.commit_nothing()
            self._shared.member = None
            self._right.left()

    def _end_membership(self, timeout: float) -> None:
        with self._shared.changed:
            member, shared = self._shared.member, self._shared
            if member is not None:
                member.is_closing = True
                self._thread.wake()
                # Amid a signal handler, the frame below may hold the lock: this lets go of it.
                shared.changed.wait_for(lambda: member.is_closed or shared.has_ended, timeout)

    def claim(
        self,
        assignment: Assigned,
        *,
        epoch: tuple[int, str] | None = None,
    ) -> None:
        """Own these key hashes from now on, and no others.

        Returns at once; :meth:`started` says when delivery may begin. Partitions whose hashes do
        not change go on undisturbed. Hashes that are given up are free at once, so commit before.

        Args:
            assignment: The key hashes of each partition.
            epoch: The group's epoch in which they were assigned, and the id of the log's topic.

        Raises:
            ConsumerClosedError: The session is closed.
        """
        with self._shared.changed:
            self._raise_if_closing()
            member = self._shared.member
            fences = member is not None and not member.is_static
            self._shared.ownerships.claim(assignment, epoch=epoch, self_fencing=fences)
            is_first, self._is_started = not self._is_started, True
        if is_first:
            self._thread.start()
        self._thread.wake()

    def started(self) -> Mapping[TopicPartition, DeliveryStart]:
        """From where to deliver: the start of each partition whose claims are in place.

        The start of a partition stays the same while it goes on. Another one, or none, means that
        what is buffered or in flight counts no more: offsets were reset, or the log was lost. Then
        deliver again from the new one.
        """
        with self._shared.changed:
            return self._shared.ownerships.started()

    @property
    def times_anew(self) -> int:
        """How often what was handed out before counts no more: others may have come and gone."""
        return self._shared.ownerships.times_anew

    def incarnation(self, partition: TopicPartition) -> int:
        """The number of resets of a partition before its start; 0 if it has no start."""
        with self._shared.changed:
            each = self._shared.ownerships.by_partition.get(partition)
            resolved = None if each is None else each.owner.resolved
            return 0 if resolved is None else resolved.incarnation

    def check(self) -> None:
        """Raise the fault of the session, if there is one.

        Raises:
            FencedError: Another member has claimed some of the hashes; the error names partition,
                hashes and member. It is raised until the partition is claimed again or given up.
            KshareError: The session cannot go on: no right to use the log, a record of a later
                version in it, no offset to start from.
        """
        with self._shared.changed:
            fault = self._shared.fault or self._shared.ownerships.fenced()
        if fault is not None:
            raise fault.with_traceback(None)  # it is raised again and again

    def may_deliver(self) -> bool:
        """True if records may be handed out at this moment; then nobody has taken over its hashes.

        Receivers ask :meth:`seconds_to_deliver`, transactions this before they write.
        """
        return self.seconds_to_deliver() >= 0

    def seconds_to_deliver(self) -> float:
        """For how long records may be handed out without asking again; below 0: not now."""
        return self._right.seconds_to_deliver(self._now())

    def share(self, partition: TopicPartition) -> Share | None:
        """What may be delivered of a partition without key order; None if nothing now."""
        with self._shared.changed:
            return self._shared.ownerships.share(partition)

    def want(self, partition: TopicPartition, first: int, end: int) -> None:
        """Lease more offsets of a partition without key order, unless a lease is under way.

        Returns at once; :meth:`share` has them later.

        Args:
            partition: The partition.
            first: The first offset of its log.
            end: The end of its log: what comes later cannot be leased.
        """
        with self._shared.changed:
            each = self._shared.ownerships.by_partition.get(partition)
            if each is not None:
                each.owner.want(first, end)
        self._thread.wake()

    def commit(
        self,
        processed: Mapping[TopicPartition, ProcessedWork],
        timeout: float,
        *,
        starts: Mapping[TopicPartition, DeliveryStart] | None = None,
        late: Sequence[LateWork] = (),
    ) -> dict[TopicPartition, int]:
        """Commit what has been processed, and wait until the log says so.

        Where this session has the lead, it also waits until the primary offset is written.

        Args:
            processed: What has been processed of each partition, in total or since the last commit.
            timeout: Maximum time to wait, in seconds; 0 asks for the commit and does not wait.
            starts: Those from which it was delivered, as :meth:`started` has answered. What
                belongs to another start (offsets were reset meanwhile) is passed over, which is an
                error. If a claim is replaced, also meanwhile, what is read on waits for the next
                one.
            late: What was processed since its start has ended, without key order. It counts unless
                the offsets were reset.

        Returns:
            The stable offset of each partition: true at the log position that was read. With
            timeout 0, those that are known.

        Raises:
            CommitFailedError: Some of it was passed over; all else is committed.
            ConsumerClosedError: The session was closed meanwhile.
            FencedError: As for :meth:`check`; other partitions are committed. What was not
                committed of the hashes before they were claimed is delivered again.
            FetchTimeoutError: It was not done in time. It goes on in the background.
            KshareError: As for :meth:`check`.
            UnknownTopicError: The topic of a partition does not exist any more, and no log holds
                what was processed of it; other partitions are committed.
        """
        deadline = time.monotonic() + timeout
        with self._shared.changed:
            self._raise_fault()
            refused, asked = self._ask(processed, starts, late)
        self._thread.wake()
        with self._shared.changed:
            while True:
                if any(map(_is_renewed, asked)):  # what counts is committed by the next claim
                    refused, asked = self._ask(processed, starts, late)
                    self._thread.wake()
                if timeout <= 0 or not any(map(_is_open, asked)):
                    break
                self._wait(partial(_commit_of, asked), deadline, timeout)
            self._raise_fault()
            fenced = any(each.owner.phase is Phase.FENCED for each, _ in asked)
            error = self._shared.ownerships.fenced() if fenced else None
            if error is not None:
                raise error
            if refused:
                raise self._refusal(refused)
            for each, _ in asked:
                if each.retries.unstored is not None and timeout > 0:
                    raise each.retries.unstored
            return self._stable({*processed, *(each.partition for each in late)})

    def _ask(
        self,
        processed: Mapping[TopicPartition, ProcessedWork],
        starts: Mapping[TopicPartition, DeliveryStart] | None,
        late: Sequence[LateWork],
    ) -> tuple[dict[TopicPartition, Bounds], list[tuple[Ownership, int]]]:
        """Ask for commits: the offsets that are not taken, and what was asked for."""
        ownerships = self._shared.ownerships
        refused = ownerships.refused(processed, starts or {}, late)
        return refused, ownerships.ask_commits(processed, starts, late)

    def _refusal(self, refused: Mapping[TopicPartition, Bounds]) -> CommitFailedError:
        owned = self._shared.ownerships.by_partition
        pairs = {tp: tuple(pairwise(bounds))[::2] for tp, bounds in refused.items()}
        what = "; ".join(
            f"{tp}, offsets {', '.join(f'{first} to {end - 1}' for first, end in pairs[tp])}: "
            + (
                "its offsets were reset, or these key hashes have gone to others"
                if tp in owned
                else "this member does not have the partition now"
            )
            for tp in sorted(pairs)
        )
        return CommitFailedError(
            f"group {self._group}: what was processed is not committed, and may come again: {what}",
            offsets={(tp.topic, tp.partition): some for tp, some in pairs.items()},
        )

    def may_count(self, partition: TopicPartition, start: DeliveryStart) -> bool:
        """False if what was handed out from a start will never be committed."""
        with self._shared.changed:
            return self._shared.ownerships.may_count(partition, start)

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed of some partitions; nothing of one without commits.

        Raises:
            ConsumerClosedError: The session was closed meanwhile.
            FetchTimeoutError: It was not known in time.
            KshareError: As for :meth:`check`.
        """
        deadline = time.monotonic() + timeout
        with committed_within(self._kafka, self._group, timeout) as kafka:
            with closing(PrimaryOffsets(kafka(), self._group)) as primary:
                stored = primary.fetch(partitions)
            log = self._thread.ground.found(
                lambda: self._wait(lambda: "find the log", deadline, timeout)
            )
            with closing(PrimaryOffsets(kafka(), self._group)) as primary:
                bounds = NO_LOG if log is None else primary.log_bounds(log)
        with self._shared.changed:
            ownerships = self._shared.ownerships
            while ownerships.log.end < bounds[1]:
                self._wait(lambda: "read the log", deadline, timeout)
            found = {}
            for partition, each in stored.items():
                said = ownerships.log.of(partition)
                offset = committed_offset(
                    each.primary, said, bounds, ownerships.topic_id, each.metadata
                )
                if offset is not None:
                    found[partition] = offset
            return found

    def expect_close(self) -> None:
        """Only the last commit is to come: one that is in the log waits for no rebalance to end.

        The member does not join again, so the coordinator may take no primary offset from it.
        """
        with self._shared.changed:
            self._shared.primary_by = self._now() + _PRIMARY_SECONDS

    def close(self, timeout: float) -> None:
        """Give up all claims, and stop. May be called again.

        Returns within 0.1 s if nothing is under way: what was to be committed is not waited for.
        """
        with self._shared.changed:
            was_closing, self._shared.is_closing = self._shared.is_closing, True
            if not was_closing:
                self._shared.close_by = time.monotonic() + timeout
            if self._is_started:
                self._thread.wake()
                # Amid a signal handler, the frame below may hold the lock: this lets go of it.
                self._shared.changed.wait_for(lambda: self._shared.is_closed, timeout)
        if self._is_started:
            self._end_membership(timeout)

    def _raise_fault(self) -> None:
        if self._shared.fault is not None:
            raise self._shared.fault.with_traceback(None)  # it may be raised again

    def _raise_if_closing(self) -> None:
        if self._shared.is_closing:
            raise ConsumerClosedError

    def _wait(self, what: Callable[[], str], deadline: float, timeout: float) -> None:
        """Wait until something may have changed. A signal handler may close the session meanwhile.

        Raises:
            FetchTimeoutError: The time is over.
            KshareError: The session is closed, or cannot go on.
        """
        self._raise_fault()
        if self._shared.is_closed:
            raise ConsumerClosedError
        left = deadline - time.monotonic()
        if left <= 0:
            trouble = self._shared.trouble
            why = f"; the last trouble: {trouble}" if trouble else ""
            raise FetchTimeoutError(
                f"group {self._group}: cannot {what()} within {timeout:g} s{why}"
            )
        self._shared.changed.wait(min(left, _LOOK_SECONDS))

    def _stable(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        ownerships = self._shared.ownerships
        started = ownerships.started()
        return {tp: ownerships.stable(tp) for tp in partitions if tp in started}


def _commit_of(asked: Sequence[tuple[Ownership, int]]) -> str:
    """What is waited for: commits, and claims that are not in place."""
    names = sorted(str(each.owner.partition) for each, _ in asked if each.start is None)
    return f"commit, as the claim of {', '.join(names)} is not in place," if names else "commit"


def _is_open(asked: tuple[Ownership, int]) -> bool:
    """True if a commit is neither done nor refused."""
    each, number = asked
    is_over = each.owner.phase is Phase.FENCED and not each.is_replaced
    return each.commits.finished < number and not is_over


def _is_renewed(asked: tuple[Ownership, int]) -> bool:
    """True if a commit is not done, and its partition was claimed anew or given up."""
    each, number = asked
    return each.is_replaced and each.commits.finished < number
