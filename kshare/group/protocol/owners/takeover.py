"""Taking over key hashes from former owners: who they are, and who of them may still deliver.

Pure functions of the log and of the own claim.
"""

from collections.abc import Collection
from dataclasses import dataclass

from kshare.core.hashing import KeyRanges
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog
from kshare.group.protocol.commit_log.records import Claim

__all__ = [
    "Takeover",
    "dropped_ids",
    "former_ids",
    "is_alone",
    "is_of_the_past",
    "session_of",
    "taken_by_others",
]


@dataclass(frozen=True, slots=True)
class Takeover:
    """How far a member is with taking over from former owners.

    Attributes:
        peers: Session ids of the members of its epoch, who are no former owners; None if they are
            not known.
        waits: Whether claims are lost: it has to wait, also if it seems to be alone.
        has_waited: Whether it has waited for the claim timeout.
        has_fenced: Whether former owners' transactional ids are fenced since its claim was read
            back.
        unblocked: Transactional ids whose transactions may have hidden its claim.
    """

    peers: frozenset[str] | None = None
    waits: bool = False
    has_waited: bool = False
    has_fenced: bool = False
    unblocked: frozenset[str] = frozenset()


def session_of(claim_name: str) -> str:
    """The id of the session that has made a claim, from the name of the claim: ``session#n``."""
    return claim_name.rpartition("#")[0] or claim_name


def is_alone(log: PartitionLog, claim: Claim, peers: frozenset[str] | None) -> bool:
    """True if there is no earlier claim on the hashes of one that may still be acted upon.

    Args:
        log: What the log says of the partition.
        claim: The claim; False if it is not in the log.
        peers: Session ids of the members of its epoch; None if they are not known.
    """
    mine = log.claims.get(claim.name)
    return mine is not None and not any(
        not claim.hashes.isdisjoint(other.claim.hashes)
        for other in log.claims.values()
        if mine.excludes(other) and not is_of_the_past(other.claim, claim, peers)
    )


def taken_by_others(log: PartitionLog, claim: Claim) -> KeyRanges:
    """The key hashes of a claim that other sessions claim as well, before it or after it."""
    session = session_of(claim.name)
    others = (
        placed.claim
        for name, placed in log.claims.items()
        if session_of(name) != session and not (placed.claim.shared and claim.shared)
    )
    return claim.hashes & [part for other in others for part in other.hashes]


def is_of_the_past(claim: Claim, later: Claim, peers: frozenset[str] | None) -> bool:
    """True if a claim's member was dropped from the group, and so has fenced itself before.

    Args:
        claim: The claim.
        later: A claim of an epoch of the group, if it is of one.
        peers: Session ids of the members of that epoch; None if they are not known.
    """
    return (
        peers is not None
        and later.epoch is not None
        and claim.self_fencing
        and claim.epoch is not None
        and claim.epoch < later.epoch
        and session_of(claim.name) not in peers
    )


def former_ids(log: PartitionLog, claim: Claim) -> frozenset[str]:
    """The transactional ids of other processes that may have owned some hashes of a claim.

    Before the claim is in the log, of all that have claimed some of them.
    """
    mine, session = log.claims.get(claim.name), session_of(claim.name)
    return frozenset(
        other.claim.transactional_id
        for name, other in log.claims.items()
        if other.claim.transactional_id is not None
        and session_of(name) != session
        and (mine is None or other.age < mine.age)
        and not claim.hashes.isdisjoint(other.claim.hashes)
    )


def dropped_ids(log: GroupLog, names: Collection[str]) -> frozenset[str]:
    """The transactional ids of former members: what they have left open may hide an epoch.

    Not those that a member of the epoch has by now: to fence it would abort what it does.

    Args:
        log: What the log says, as far as it can be read.
        names: Session ids of the members of the epoch.
    """
    former, living = set[str](), set[str]()
    for part in log.partitions.values():
        for name, placed in part.claims.items():
            claim = placed.claim
            # One without an epoch is no member, and may well live.
            if claim.transactional_id is not None and claim.epoch is not None:
                (living if session_of(name) in names else former).add(claim.transactional_id)
    return frozenset(former - living)
