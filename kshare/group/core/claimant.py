"""Makes the claims of a session: their names, the owner of each, and whether they may be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kshare.core.backoff import Uniform
from kshare.core.hashing import WHOLE, HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import AuthorizationError
from kshare.group.core.ownership import Ownership, new_ownership
from kshare.group.protocol.cooperator import Cooperator
from kshare.group.protocol.owner import Owner
from kshare.group.protocol.plain_owner import PlainOwner
from kshare.group.protocol.records import Claim

__all__ = ["Claimant"]


class Claimant:
    """Makes the ownerships of a session.

    Args:
        member: Id of the session's member.
        transactional_id: Id of the transactions that hold what is processed; None without them.
        lease_records: Number of offsets to lease at a time; None for key order.
        individual: Whether key ranges may be owned; else nobody counts on claims.
        uniform: Source of jitter for pauses after faults.

    Attributes:
        member: As given.
        denied: Why nothing may be written to the log; None if it may, as far as it is known.
        self_fencing: Whether the member delivers no more before the coordinator drops it.
    """

    def __init__(
        self,
        member: str,
        transactional_id: str | None,
        lease_records: int | None,
        *,
        individual: bool,
        uniform: Uniform | None,
    ) -> None:
        self.member = member
        self.denied: AuthorizationError | None = None
        self.self_fencing = False
        self._transactional_id = transactional_id
        self._lease_records = lease_records
        self._individual = individual
        self._uniform = uniform
        self._claims = 0

    def rename(self) -> None:
        """Claim under another name from now on: nothing late is taken for a new claim's."""
        self._claims += 1

    def claim(self, partition: TopicPartition, hashes: tuple[HashRange, ...]) -> Claim:
        """A claim under the present name."""
        return Claim(partition, f"{self.member}#{self._claims}", hashes)

    def ownership(self, claim: Claim, topic_id: str) -> Ownership:
        """The ownership of what is claimed.

        Args:
            claim: The claim.
            topic_id: Id of the log's topic; empty if it is not known.
        """
        return new_ownership(self._owner(claim, topic_id), self._uniform)

    def _owner(self, claim: Claim, topic_id: str) -> Owner:
        if self.denied is not None:
            return PlainOwner(claim, topic_id)
        if self._lease_records is not None:
            shared = replace(claim, shared=True)
            return Cooperator(shared, topic_id, chunk_records=self._lease_records)
        return Owner(replace(claim, transactional_id=self._transactional_id), topic_id)

    def check(self, assignment: Mapping[TopicPartition, Sequence[HashRange]]) -> None:
        """Check that these key hashes of partitions may be owned.

        Raises:
            AuthorizationError: The log has to be written to for them, and may not be.
        """
        is_plain = self._transactional_id is None and self._lease_records is None
        needs_claims = self._individual and not self.self_fencing  # nothing else keeps others away
        is_whole = all(tuple(hashes) == (WHOLE,) for hashes in assignment.values())
        if self.denied and assignment and (needs_claims or not (is_plain and is_whole)):
            raise self.denied
