"""Makes the claims of a session: their names, and the owner of each."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kshare.core.hashing import WHOLE, HashRange
from kshare.core.progress import TopicPartition
from kshare.group.protocol.cooperator import Cooperator
from kshare.group.protocol.owner import Owner
from kshare.group.protocol.plain_owner import PlainOwner
from kshare.group.protocol.records import Claim

__all__ = ["Claimant"]


class Claimant:
    """Makes the owners of a session.

    Args:
        member: Id of the session's member.
        transactional_id: Id of the transactions that hold what is processed; None without them.
        lease_records: Number of offsets to lease at a time; None for key order.
        individual: Whether key ranges may be owned; else nobody counts on claims.
    """

    def __init__(
        self,
        member: str,
        transactional_id: str | None,
        lease_records: int | None,
        *,
        individual: bool,
    ) -> None:
        self._member = member
        self._transactional_id = transactional_id
        self._lease_records = lease_records
        self._individual = individual
        self._claims = 0

    def rename(self) -> None:
        """Claim under another name from now on: nothing late is taken for a new claim's."""
        self._claims += 1

    def claim(self, partition: TopicPartition, hashes: tuple[HashRange, ...]) -> Claim:
        """A claim under the present name."""
        return Claim(partition, f"{self._member}#{self._claims}", hashes)

    def owner(self, claim: Claim, topic_id: str, *, may_write: bool) -> Owner:
        """The owner of what is claimed.

        Args:
            claim: The claim.
            topic_id: Id of the log's topic; empty if it is not known.
            may_write: Whether the log may be written to, as far as it is known.
        """
        if not may_write:
            return PlainOwner(claim, topic_id)
        if self._lease_records is not None:
            shared = replace(claim, shared=True)
            return Cooperator(shared, topic_id, chunk_records=self._lease_records)
        return Owner(replace(claim, transactional_id=self._transactional_id), topic_id)

    def needs_log(
        self,
        assignment: Mapping[TopicPartition, Sequence[HashRange]],
        *,
        self_fencing: bool,
    ) -> bool:
        """True if the log has to be written to for these key hashes.

        Args:
            assignment: The key hashes of each partition.
            self_fencing: Whether this member delivers no more before the coordinator drops it.
        """
        is_plain = self._transactional_id is None and self._lease_records is None
        needs_claims = self._individual and not self_fencing  # nothing else keeps others away
        is_whole = all(tuple(hashes) == (WHOLE,) for hashes in assignment.values())
        return bool(assignment) and (needs_claims or not (is_plain and is_whole))
