"""What a session owns: an owner for each partition, and what is new."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from kshare.core.backoff import Uniform
from kshare.core.hashing import ALL_HASHES, NO_HASHES
from kshare.core.leader_epochs import NO_EPOCHS, LeaderEpochs
from kshare.core.offsets import Bounds, union
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import clip
from kshare.errors import AuthorizationError, FencedError
from kshare.group.core.lease_clock import LeaseClock
from kshare.group.core.ownership import Claimant, Ownership, ReplacedClaims
from kshare.group.core.work import LateWork, ProcessedWork
from kshare.group.delivery_start import DeliveryStart
from kshare.group.protocol.commit_log.log import GroupLog
from kshare.group.protocol.commit_log.records import Claim, Key
from kshare.group.protocol.commit_log.start import Reason
from kshare.group.protocol.membership.subscription import Assigned
from kshare.group.protocol.owners.actions import Action
from kshare.group.protocol.owners.leases import Share
from kshare.group.protocol.owners.owner import Owner, Phase
from kshare.group.protocol.owners.takeover import session_of

__all__ = ["LeaderEpochsOf", "Ownerships", "no_epochs"]

LeaderEpochsOf: TypeAlias = Callable[[TopicPartition], LeaderEpochs]
"""Which leaders wrote what was read of a partition."""


def no_epochs(_: TopicPartition) -> LeaderEpochs:
    """No leader epoch is known."""
    return NO_EPOCHS


class Ownerships:
    """The ownerships of a session.

    Args:
        session_id: Id of the session.
        group: Id of the group.
        claim_timeout: Seconds to wait for former owners.
        transactional_id: Id of the transactions that hold what is processed; None without them.
        lease_records: Number of offsets to lease at a time; None for key order.
        lease_timeout: Seconds without a commit after which a lease is given up.
        keeps_log: Whether the group has a log. Without one, nothing is claimed or written.
        leader_epochs: Which leaders wrote what was read of a partition.
        uniform: Source of jitter for pauses after faults.

    Attributes:
        log: What the group's log says, as far as it has been read.
        by_partition: The ownership of each partition.
        topic_id: Id of the log's topic; empty if it is not known.
        warnings: Texts that are to be logged.
    """

    def __init__(
        self,
        session_id: str,
        group: str,
        claim_timeout: float,
        transactional_id: str | None = None,
        lease_records: int | None = None,
        lease_timeout: float = float("inf"),
        *,
        keeps_log: bool = True,
        leader_epochs: LeaderEpochsOf = no_epochs,
        uniform: Uniform | None = None,
    ) -> None:
        self.log = GroupLog(group)
        self.by_partition: dict[TopicPartition, Ownership] = {}
        self.topic_id = ""
        self._leader_epochs = leader_epochs
        self.warnings: list[str] = []
        self._claim_timeout = claim_timeout
        self._claimant = Claimant(
            session_id,
            transactional_id,
            lease_records,
            keeps_log=keeps_log,
            uniform=uniform,
        )
        self._leases = LeaseClock(lease_timeout)
        self._given_up: list[Key] = []
        self._former: dict[TopicPartition, ReplacedClaims] = {}  # of what is shared and given up

    @property
    def times_anew(self) -> int:
        """The number of times that claims were made anew, as others may have come and gone."""
        return self._claimant.times_anew

    # -- what the consumer wants -------------------------------------------------------------

    def claim(
        self,
        assignment: Assigned,
        *,
        epoch: tuple[int, str] | None = None,
        self_fencing: bool = False,
    ) -> None:
        """Own these key hashes, and no others.

        Args:
            assignment: The key hashes of each partition.
            epoch: The group's epoch in which they were assigned, and the id of the log's topic.
            self_fencing: Whether this member delivers no more before the coordinator drops it.

        Raises:
            AuthorizationError: Nothing may be written to the log, and this needs it.
        """
        self._claimant.self_fencing = self_fencing
        self._claimant.check(assignment)
        self._claimant.rename()
        former = {}
        for partition in list(self.by_partition):
            owner = self.by_partition[partition].owner
            is_same = assignment.get(partition) == owner.hashes and owner.phase is not Phase.FENCED
            if not is_same:
                former[partition] = self._replace(partition)
        for partition, hashes in assignment.items():
            if partition not in self.by_partition:
                claim = self._claimant.claim(partition, hashes)
                if epoch is not None and epoch[1] == self.topic_id:
                    claim = replace(claim, epoch=epoch[0], self_fencing=self_fencing)
                each = self._claimant.ownership(claim, self.topic_id)
                if partition in former:
                    each.succeed(former[partition])
                elif partition in self._former:
                    each.inherit(self._former.pop(partition))
                self.by_partition[partition] = each
        for partition, each in former.items():
            # What is in work there stays true: it counts if the partition comes back.
            if partition not in assignment and each.owner.claim.shared:
                self._former[partition] = each.former()

    def deny(self, error: AuthorizationError) -> None:
        """Nothing may be written to the log: go on with the offsets of whole partitions alone.

        Raises:
            AuthorizationError: Key ranges are owned, or nobody but the log keeps others away.
        """
        if self._claimant.denied is not None:
            return
        self._claimant.denied = error
        owned = {tp: each.owner.hashes for tp, each in self.by_partition.items()}
        self._claimant.check(owned)
        self.warnings.append(
            f"group {self.log.group}: {error}. Member {self._claimant.session_id} goes on with "
            "whole partitions, and commits their offsets alone: what it has processed beyond them "
            "is delivered again after a restart"
        )
        for partition, hashes in owned.items():
            self._claim_again(self._claimant.claim(partition, hashes), counts=True)

    def _claim_again(self, claim: Claim, *, counts: bool) -> None:
        """Give up what is owned of a partition, and own it anew.

        Args:
            claim: The new claim.
            counts: Whether what was handed out before still counts.
        """
        former = self._replace(claim.partition)
        self.by_partition[claim.partition] = self._claimant.ownership(claim, self.topic_id)
        if counts:
            self.by_partition[claim.partition].succeed(former)

    def _replace(self, partition: TopicPartition) -> Ownership:
        """Give up what is owned of a partition; what that was."""
        each = self.by_partition.pop(partition)
        each.is_replaced = True
        self._leases.forget(partition)
        self._given_up += each.owner.keys(self.log.of(partition))
        return each

    def give_up(self) -> list[Key]:
        """The claims that are to be deleted now."""
        keys, self._given_up = self._given_up, []
        return keys

    def claims(self) -> list[Key]:
        """The keys of all claims and leases."""
        return [
            key
            for partition, each in self.by_partition.items()
            for key in each.owner.keys(self.log.of(partition))
        ]

    def ask_commits(
        self,
        processed: Mapping[TopicPartition, ProcessedWork],
        starts: Mapping[TopicPartition, DeliveryStart] | None = None,
        late: Iterable[LateWork] = (),
    ) -> list[tuple[Ownership, int]]:
        """Ask for commits; the ownerships, and which of their commits it is.

        What is asked of an ownership that is fenced is refused. Its facts would be true, but who
        owns the hashes now is delivering these records again. If it does not get through, the next
        owner would skip the rest, and the last outputs of a key would be those of earlier records.

        Args:
            processed: What has been processed of each partition.
            starts: Those from which it was delivered; None: it does not matter. What belongs to
                another one is passed over, unless the member is fenced, or the claim has been
                replaced and keeps the hashes: then it is committed once the claim is in place.
            late: What was processed since its start has ended.
        """
        asked = []
        for work in late:
            each = self.by_partition.get(work.partition)
            if each is not None and each.processed_since(work.start, work.processed):
                asked.append((each, each.commits.ask()))
        for partition, what in processed.items():
            each = self.by_partition.get(partition)
            if each is None:
                continue
            if starts is None:
                if each.start is not None:
                    each.processed(what)
            elif each.owner.phase is not Phase.FENCED:
                start = starts.get(partition)
                if not each.processed_since(start, what) and start != each.start:
                    continue
            asked.append((each, each.commits.ask()))
        return asked

    def refused(
        self,
        processed: Mapping[TopicPartition, ProcessedWork],
        starts: Mapping[TopicPartition, DeliveryStart],
        late: Iterable[LateWork] = (),
    ) -> dict[TopicPartition, Bounds]:
        """The offsets that a commit passes over, though the log does not say that they are done.

        What a fenced member has processed is not among them: it has an error of its own.

        Args:
            processed: As for :meth:`ask_commits`.
            starts: As for :meth:`ask_commits`.
            late: As for :meth:`ask_commits`.
        """
        given = [(tp, starts[tp], what) for tp, what in processed.items() if tp in starts]
        found: dict[TopicPartition, Bounds] = {}
        for tp, start, what in [*given, *((w.partition, w.start, w.processed) for w in late)]:
            each = self.by_partition.get(tp)
            if each is not None and each.owner.phase is Phase.FENCED:
                continue
            progress = what if isinstance(what, Progress) else Progress.of(0, what)
            hashes = NO_HASHES if each is None else each.takes(start)
            known = self.log.of(tp).progress().union(start.done)
            pieces = clip(progress.minus(known), ALL_HASHES - hashes)
            if pieces:
                bounds = [(piece.offsets.start, piece.offsets.end) for piece in pieces]
                found[tp] = union([found.get(tp, ()), *bounds])
        return found

    def may_count(self, partition: TopicPartition, start: DeliveryStart) -> bool:
        """False if what was handed out from a start will never be committed by this session."""
        each = self.by_partition.get(partition)
        return each is None or bool(each.takes(start))

    # -- partitions without key order ----------------------------------------------------------

    def _sharing(self) -> list[Owner]:
        """The owners that share their partition by leases."""
        return [each.owner for each in self.by_partition.values() if each.owner.claim.shared]

    def share(self, partition: TopicPartition) -> Share | None:
        """What may be delivered of a partition without key order; None if nothing now."""
        each = self.by_partition.get(partition)
        return None if each is None else each.owner.share

    def enter_epoch(self, epoch: tuple[int, str] | None) -> None:
        """The group has another epoch, in which the session is a member.

        Args:
            epoch: The epoch, and the id of the log's topic.
        """
        for owner in self._sharing():
            if epoch is not None and epoch[1] == self.topic_id and epoch[0] != owner.epoch:
                owner.enter_epoch(epoch[0])

    def sharers(self) -> set[str]:
        """The sessions of others that share a partition and are no members of the group."""
        return {
            session_of(name)
            for owner in self._sharing()
            for name, placed in self.log.of(owner.partition).claims.items()
            if placed.claim.shared and not placed.claim.self_fencing
        } - {self._claimant.session_id}

    def expire(self, sessions: Collection[str]) -> None:
        """Sessions of others deliver no more: what they have leased is free."""
        for partition, each in self.by_partition.items():
            each.owner.expire(sessions, self.log.of(partition))

    def renew(self, why: str) -> None:
        """Others may take this session for dead: go on under other names."""
        for owner in self._sharing():
            # Others know of it from when its claim is written, which is before it reads it.
            is_known = owner.phase is not Phase.CLAIMING or bool(owner.pending)
            if not owner.claim.self_fencing and is_known:
                self._renew(owner, why)

    def _renew(self, owner: Owner, why: str) -> None:
        self.warnings.append(
            f"group {self.log.group}, {owner.partition}: {why}: what {owner.claim_name} has leased "
            "and not committed may come again; what is processed of it later counts"
        )
        self._claim_under_another_name(owner)

    def look_anew(self) -> None:
        """Claims may have come and gone unseen: own all under other names, from what the log says.

        What was handed out before counts no more, unless records are in no order. What others
        have taken and still have is not taken back.
        """
        self._claimant.times_anew += 1
        for partition, each in list(self.by_partition.items()):
            owner = each.owner
            owner.look(self.log.of(partition))
            if owner.phase is not Phase.FENCED:
                self._claim_under_another_name(owner)
                self.warnings.append(
                    f"group {self.log.group}, {partition}: the log was not read for "
                    "claim.timeout.ms, and records are missing that others have written since: "
                    f"they may have had key hashes of {owner.claim_name}. It claims them anew; "
                    "what it has handed out and nobody has committed is delivered again"
                )

    def _look_anew_at_damage(self) -> None:
        """Claim partitions anew of which a claim cannot be read.

        It may have replaced that of any member, so nobody knows who has what: all claim anew, and
        wait as if claims had been lost. Not with leases or transactions: they end (the session).
        """
        for partition, each in list(self.by_partition.items()):
            owner, log = each.owner, self.log.of(partition)
            if not log.damaged:
                continue
            owner.look(log)
            if owner.must_claim_anew(log):
                self._claimant.times_anew += 1
                self._claim_under_another_name(owner)

    def _look_anew_at_missed_claims(self) -> None:
        """Claim anew what was claimed, and was deleted before this member has read it.

        Nobody excludes it, by all that was read: so it begins as any member that starts. Nothing
        was ever handed out by such a claim.
        """
        for partition, each in list(self.by_partition.items()):
            owner, log = each.owner, self.log.of(partition)
            if owner.phase is not Phase.CLAIMING or not owner.has_missed_records(self.log.end):
                continue
            owner.look(log)
            if owner.phase is Phase.CLAIMING and owner.claim_name not in log.damaged:
                self._claimant.times_anew += 1
                self.warnings.append(
                    f"group {self.log.group}, {partition}: claim {owner.claim_name} was deleted "
                    "from the group's log before this member has read it: it claims the same key "
                    "hashes under another name"
                )
                self._claim_under_another_name(owner)

    def _claim_under_another_name(self, owner: Owner) -> None:
        """Give up a claim, and claim the same again.

        With key order nothing of before counts: others may have handled later records since.
        """
        self._claimant.rename()
        claim = self._claimant.claim(owner.partition, owner.hashes)
        claim = replace(claim, epoch=owner.epoch, self_fencing=owner.claim.self_fencing)
        self._claim_again(claim, counts=owner.claim.shared)

    def _was_buried(self, owner: Owner) -> bool:
        """True if a claim that excludes nobody was deleted, by no right that its member knows of.

        Others took a standalone member for dead; or it was damaged, and deleted as such. Not if the
        group's coordinator has dropped the member: then it joins again.
        """
        return (
            owner.claim.shared
            and owner.phase is Phase.FENCED
            and not (owner.claim.self_fencing and not self._is_listed())
            and not any(self.log.of(owner.partition).taken_from(owner.claim))
        )

    def _is_listed(self) -> bool:
        """True if the session is a member in the group's last epoch, by all that was read."""
        last = self.log.last_epoch
        return last is not None and self._claimant.session_id in last[1].names

    # -- what happens ------------------------------------------------------------------------

    def advance(self, now: float) -> Iterator[tuple[Ownership, tuple[Action, ...]]]:
        """What is to be done now; each action must be confirmed, or said to have failed."""
        self._look_anew_at_damage()
        self._look_anew_at_missed_claims()
        for owner in self._sharing():
            # Nothing more may come that wakes who is fenced.
            owner.look(self.log.of(owner.partition))
            if self._was_buried(owner):
                self._renew(owner, "other members took this one for dead, or its claim was damaged")
            elif self._leases.is_over(owner.partition, owner.claim_name, owner.leased, now):
                self._renew(owner, "cooperative.lease.timeout.ms is over")
        for ownership in list(self.by_partition.values()):
            actions = self._advance(ownership, now)
            if actions:
                yield ownership, actions

    def _advance(self, each: Ownership, now: float) -> tuple[Action, ...]:
        owner = each.owner
        # The epoch's record may be read later than its number comes with SyncGroup.
        if owner.peers is None and owner.epoch is not None and owner.epoch in self.log.epochs:
            owner.know_peers(self.log.epochs[owner.epoch].names)
        owner.leader_epochs = self._leader_epochs(owner.partition)
        if each.has_waited(now, self._claim_timeout):
            owner.waited()
        actions, has_begun = each.advance(self.log.of(owner.partition), self.log.end, now)
        if has_begun:
            self._report_start(owner)
        return actions

    def found(self, topic_id: str) -> None:
        """The log's topic was found for the first time."""
        self.topic_id = topic_id
        for each in self.by_partition.values():
            each.owner.topic_id = topic_id

    def oldest_claim(self) -> float:
        """Log offset of the oldest claim of this session; infinity if there is none."""
        placed = (
            self.log.of(partition).claims.get(each.owner.claim_name)
            for partition, each in self.by_partition.items()
        )
        return min((each.position for each in placed if each is not None), default=float("inf"))

    def lost(self, topic_id: str, what: str) -> None:
        """The log is another one now: claim again, and warn of it.

        Args:
            topic_id: Id of the log's topic.
            what: Which log, and how it was lost.
        """
        offsets = ", ".join(
            f"{tp} at stable offset {self.stable(tp)}" for tp in sorted(self.by_partition)
        )
        self.warnings.append(
            f"group {self.log.group}: the individual commit log was lost: {what}. Member "
            f"{self._claimant.session_id} writes what it knows again; what members knew that do "
            f"not live any more is delivered again ({offsets or 'nothing is assigned'})"
        )
        self.topic_id = topic_id
        self.log = GroupLog(self.log.group)
        for each in self.by_partition.values():
            each.log_lost(topic_id)

    def next_time(self) -> float:
        """When something is to be done although nothing happens; infinity if never."""
        times = (each.next_time(self._claim_timeout) for each in self.by_partition.values())
        return min([*times, self._leases.next_time()])

    # -- what is said ------------------------------------------------------------------------

    def started(self) -> dict[TopicPartition, DeliveryStart]:
        """From where each partition is delivered, of those that may be by all that was read.

        A reset counts from when it is read, though its owner looks later: callers may come between,
        and would take what belongs to the former offsets for what belongs to the new ones.
        """
        return {
            tp: each.start
            for tp, each in self.by_partition.items()
            if each.start is not None and not each.owner.was_reset(self.log.of(tp))
        }

    def stable(self, partition: TopicPartition) -> int:
        """The stable offset that the log names, or that follows from its facts."""
        return self.by_partition[partition].owner.stable(self.log.of(partition))

    def fenced(self) -> FencedError | None:
        """The error of the first partition that another member has taken."""
        for partition, each in self.by_partition.items():
            if each.owner.phase is Phase.FENCED and not self._was_buried(each.owner):
                return self._fenced(partition, each.owner)
        return None

    def _fenced(self, partition: TopicPartition, owner: Owner) -> FencedError:
        later = list(self.log.of(partition).taken_from(owner.claim))
        damaged = None if later else next(iter(self.log.of(partition).damaged.values()), None)
        taken = owner.hashes & [part for placed in later for part in placed.claim.hashes]
        shown = ", ".join(map(str, taken or owner.hashes))
        other = session_of(later[-1].claim.name) if later else None
        own = session_of(owner.claim_name)
        group = f"group {self.log.group}"
        if damaged:
            what = f"{damaged.why}; so {own}"
        elif owner.has_facts or other:
            what = f"{other or 'another member'} of {group} has claimed key hashes {shown} of {own}"
            what += ", which"
        else:  # by the coordinator, and not by a claim
            what = f"{group} goes on without {own}, so others may have its partition: it"
        return FencedError(
            f"{partition}: {what} delivers and commits them no more",
            topic=partition.topic,
            partition=partition.partition,
            hashes=tuple((part.lo, part.hi) for part in taken or owner.hashes),
            other=other,
        )

    def _report_start(self, owner: Owner) -> None:
        start = owner.resolved
        assert start is not None
        if start.reason.voids:
            what = (
                "what had been committed above it and is not known any more is delivered again"
                if start.reason in {Reason.LOST_LOG, Reason.UNREAD_LOG}
                else "individual commits of before count no longer"
            )
            self.warnings.append(
                f"group {self.log.group}, {owner.partition}: {start.reason.value}; it goes on from "
                f"offset {owner.done.stable}: {what}"
            )
