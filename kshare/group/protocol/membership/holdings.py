"""What a member of a group owns, and how it changes hands: values, and pure functions on them.

::

    received --taken by the thread that polls--> change --applied--> owned

What is received from the leader waits until the thread that polls takes it as a change, and counts
as owned once the change is applied. What is lost goes the same way: all of it is in one change.
"""

from dataclasses import dataclass, field, replace

from kshare.core.hashing import NO_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.protocol.membership.subscription import Assigned, MemberAssignment

__all__ = ["Change", "Holdings", "assigned_minus"]


@dataclass(frozen=True, slots=True)
class Change:
    """What the thread that polls has to do: revoke, commit, claim, assign.

    Attributes:
        revoked: What the member owns no longer.
        gained: Ranges newly assigned to the member.
        assigned: All that it owns from now on.
        epoch: The epoch of that.
        topic_id: Id of the log's topic, where the epoch is an offset.
        is_lost: Whether ``revoked`` is lost: others may have it already.
    """

    revoked: Assigned
    gained: Assigned
    assigned: Assigned
    epoch: int | None = None
    topic_id: str = ""
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a member owns, and what it is about to own or to give up.

    Attributes:
        owned: What it owns, as far as the thread that polls has applied it.
        received: What the leader has assigned, and was not taken yet; None if nothing.
        change: What was taken, and is not applied yet; None if nothing.
        is_lost: Whether all of it is lost, and that was not applied yet.
    """

    owned: Assigned = field(default_factory=dict)
    received: MemberAssignment | None = None
    change: Change | None = None
    is_lost: bool = False

    # -- what happens to them ----------------------------------------------------------------

    def receive(self, received: MemberAssignment) -> "Holdings":
        """The leader has assigned something.

        What is the same as before is nothing to take: nobody who waits is to be disturbed.
        """
        future = self.owned if self.change is None else self.change.assigned
        assigned = dict(received.assigned)
        is_same = not assigned_minus(future, assigned) and not assigned_minus(assigned, future)
        return replace(self, received=None if is_same else received)

    def forget_received(self) -> "Holdings":
        """What was assigned counts no more, unless it was taken."""
        return replace(self, received=None)

    def lose(self) -> "Holdings":
        """The member counts no longer: others may have what it owns, or is about to own."""
        is_lost = bool(self.owned) or self.change is not None
        return replace(self, received=None, is_lost=is_lost)

    def take(self, *, gives_up: bool) -> "Holdings":
        """Make a change of what is to be done, if something is and no other change is under way.

        Args:
            gives_up: Whether the member has to give all up, so that it can join.
        """
        received = self.received
        if self.change is not None:
            return self
        if self.is_lost or gives_up:
            change = Change(self.owned, {}, {}, is_lost=self.is_lost)
            return replace(self, received=None, change=change)
        if received is None:
            return self
        assigned = dict(received.assigned)
        revoked, gained = assigned_minus(self.owned, assigned), assigned_minus(assigned, self.owned)
        if not revoked and not gained:
            return replace(self, received=None)
        change = Change(revoked, gained, assigned, received.epoch, received.topic_id)
        return replace(self, received=None, change=change)

    def applied(self) -> "Holdings":
        """The change is done: what it revoked is given up."""
        assert self.change is not None
        is_lost = self.is_lost and not self.change.is_lost
        return replace(self, owned=self.change.assigned, change=None, is_lost=is_lost)

    # -- what they say -----------------------------------------------------------------------

    @property
    def named(self) -> Assigned:
        """What the member names when it joins: all that it owns, or is about to own."""
        if self.change is None or self.change.is_lost:
            return self.owned
        named = dict(self.owned)
        for partition, hashes in self.change.gained.items():
            named[partition] = named.get(partition, NO_HASHES) | hashes
        return named

    def may_commit(self, partition: TopicPartition) -> bool:
        """True if the member owns some of a partition, or is about to."""
        is_assigned = self.change is not None and partition in self.change.assigned
        return partition in self.owned or is_assigned


def assigned_minus(owned: Assigned, other: Assigned) -> Assigned:
    """What is in one assignment and not in another."""
    left = ((tp, hashes - other.get(tp, NO_HASHES)) for tp, hashes in owned.items())
    return {tp: rest for tp, rest in left if rest}
