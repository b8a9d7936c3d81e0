"""What a commit writes, by itself or in a transaction, and what may be deleted.

All are functions of the log and of what is processed.

The deletion law: a fact is deleted only if a stable offset, or blocks of this member, that have
been **read back** from the log cover it. A crash in between leaves redundancy, never a hole.

Others write between the decision to delete a key and its tombstone. So a member deletes its own
blocks, and those of authors that are fenced by the log as it has read it. What such an author
writes meanwhile is never promised: it reads the fence before its commit is answered. A zombie
cannot delete what its successor has written: whoever has read a block of the successor has read
the successor's claim before it.

A transaction holds outputs and the facts that say what they were made of, so both are there or
neither. A member's own blocks, and their tombstones, come from its transactions alone: of two
producers, one might overtake the other.

The proposal's purgatory: a chunk that begins at offset f commits when the stable offset has reached
f. ::

    stable offset 40       A: chunk [40, 45) may commit
    |40 41 42 43 44|45 46 47 48 49|
                           B: chunk [45, 50) waits until A has committed

Liveness: of the members of one partition, the one at the stable offset never waits. With several
partitions members could wait for each other in a circle. So one that holds the stable offset of
another of its partitions, where others are ahead of it, does not wait either.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.offsets import Bounds, since, subtract, within
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.core.region import overlay
from kshare.group.protocol.commit_log.log import BlockKey, PartitionLog
from kshare.group.protocol.commit_log.records import (
    STRETCH,
    Block,
    Claim,
    Key,
    Record,
    Reset,
    Stable,
    key_of,
)
from kshare.group.protocol.commit_log.start import Start

__all__ = [
    "Commit",
    "Purgatory",
    "PurgatoryState",
    "TransactionPart",
    "blocks_to_write",
    "first_new_offset",
    "is_read_back",
    "is_written",
    "keys_to_delete",
    "known_progress",
    "leads",
    "passed_to_delete",
    "past_to_delete",
    "purgatory_state",
    "stable_offset",
    "stable_to_write",
    "transaction_records",
]


@dataclass(slots=True)
class Commit:
    """A commit under way: facts, then the stable offset, then the primary, then deletions.

    Attributes:
        done: What is committed.
        facts: The blocks that have to be read back.
        stable: The stable offset that has to be read back; None if it is not known yet.
        repeats: Whether the primary is written again if the stable offset has not moved.
        is_lead: Whether the member was the lead when the facts had been read back.
        is_primary_written: Whether the primary offset has been written, or is not to be.
    """

    done: Progress
    facts: tuple[Block, ...]
    stable: Stable | None = None
    repeats: bool = False
    is_lead: bool | None = None
    is_primary_written: bool = False

    def failed(self, lost: Iterable[Record]) -> None:
        """Records could not be written, as far as it is known: begin again with their facts."""
        self.facts = tuple(record for record in lost if isinstance(record, Block))
        self.stable = self.is_lead = None


def blocks_to_write(
    partition: TopicPartition,
    log: PartitionLog,
    claim_name: str,
    owned: KeyRanges,
    done: Progress,
) -> list[Block]:
    """The blocks that say what the log does not say yet.

    Args:
        partition: The partition.
        log: What the log says.
        claim_name: Name of the claim of the member that commits.
        owned: Its key hashes.
        done: What it has processed, or knows to be processed.
    """
    incarnation, stable = log.incarnation, _stable_of(log)
    return [
        Block(partition, incarnation, author, hashes, stretch, bounds)
        for (author, hashes, stretch), bounds in _wanted(claim_name, owned, done, stable)
        if subtract(bounds, since(log.blocks.get((author, hashes, stretch), ()), stable))
    ]


def leads(log: PartitionLog, claim: Claim) -> bool:
    """True if the member of a claim is the lead, which writes the stable and the primary offset.

    A group assigns all hashes, so its lead owns the lowest one of all. Who owns the lowest of those
    that are claimed is not enough: the owner of the lowest one may be about to claim it, and both
    would write the primary offset in one generation.
    """
    return log.lead == claim.name and (claim.epoch is None or claim.hashes[0].lo == 0)


def stable_to_write(
    partition: TopicPartition,
    log: PartitionLog,
    claim_name: str,
    floor: int,
) -> Stable | None:
    """The stable offset that follows from the facts in the log, if the log does not say it yet.

    Args:
        partition: The partition.
        log: What the log says.
        claim_name: Name of the claim of the member that commits.
        floor: The stable offset with which the member has started: all below it is processed.
    """
    reached = log.progress(floor).stable
    if log.stable is not None and reached <= log.stable.offset:
        return None
    return Stable(partition, log.incarnation, reached, author=claim_name)


def is_written(log: PartitionLog, records: Iterable[Record]) -> bool:
    """True if the log holds the records that were to be written.

    Records of an older incarnation say nothing any more: there is nothing to wait for.
    """
    for record in records:
        match record:
            case Block():
                key = (record.author, record.hashes, record.stretch)
                is_there = log.blocks.get(key) == record.bounds
            case Stable():
                is_there = log.stable is not None and log.stable.offset >= record.offset
            case Reset():
                is_there = log.incarnation >= record.incarnation
            case _:
                is_there = False
        counts = isinstance(record, Reset) or getattr(record, "incarnation", 0) == log.incarnation
        if not is_there and counts:
            return False
    return True


def keys_to_delete(
    partition: TopicPartition,
    log: PartitionLog,
    claim_name: str,
    owned: KeyRanges,
    done: Progress,
) -> list[Key]:
    """The keys of blocks whose facts are covered by what the log says besides.

    Args:
        partition: The partition.
        log: What the log says, read at least through the last records of this member.
        claim_name: Name of the claim of the member that deletes.
        owned: The hashes that are its own by this log.
        done: What it has processed, or knows to be processed.
    """
    stable = _stable_of(log)
    kept = {key for key, _ in _wanted(claim_name, owned, done, stable)}
    cover = overlay(
        Stripe(hashes, bounds)
        for (author, hashes, stretch), bounds in log.blocks.items()
        if (author, hashes, stretch) in kept
    )
    is_lead = log.lead == claim_name
    authors = {author for author, _, _ in log.blocks} - {claim_name}
    gone = {author for author in authors if log.is_fenced(author)}
    deleted = []
    for key, bounds in log.blocks.items():
        author, hashes, _ = key
        left = since(bounds, stable)
        if key in kept and left:
            continue
        is_inherited = author in gone and not KeyRanges([hashes]) - owned
        if (
            (author == claim_name and _covers(cover, hashes, left))
            or (is_inherited and _covers(cover, hashes, left))
            or (is_lead and author in gone and not left)
        ):
            deleted.append(Key(log.incarnation, "block", partition, key))
    return deleted


def passed_to_delete(partition: TopicPartition, log: PartitionLog, claim_name: str) -> list[Key]:
    """The keys of former leads' stable offsets that the lead's own has reached.

    Args:
        partition: The partition.
        log: What the log says, read at least through the last records of this member.
        claim_name: Name of the claim of the member that deletes.
    """
    mine = log.stables.get(claim_name)
    if mine is None or log.lead != claim_name:
        return []
    return [
        Key(log.incarnation, "stable", partition, (author,))
        for author, each in log.stables.items()
        if author != claim_name and each.offset <= mine.offset and log.is_fenced(author)
    ]


def past_to_delete(partition: TopicPartition, log: PartitionLog, claim_name: str) -> list[Key]:
    """The keys of what does not count: older incarnations, late resets, claims taken over.

    Only for a member that runs: it has waited until the members of earlier claims deliver no more.
    Else a third one that waits for the same members would begin too early. A claim goes if it lies
    within the member's own hashes.

    Args:
        partition: The partition.
        log: What the log says.
        claim_name: Name of the claim of the member that deletes.
    """
    mine, owned = log.claims.get(claim_name), log.owned_by(claim_name)
    claims = [
        Key(0, "claim", partition, (other,))
        for other, placed in log.claims.items()
        if mine is not None and mine.excludes(placed) and not placed.claim.hashes - owned
    ]
    if log.lead != claim_name:
        return claims
    resets = [Key(log.incarnation, "reset", partition, late) for late in list(log.resets)[1:]]
    return [*claims, *log.outdated, *resets]


def stable_offset(log: PartitionLog, start: Start | None) -> int:
    """The stable offset that the log names."""
    floor = 0 if start is None else start.progress.stable
    return max(floor, log.stable.offset if log.stable else 0)


def _stable_of(log: PartitionLog) -> int:
    """Below this offset the log itself says that all is processed."""
    return max(log.reset_to or 0, log.stable.offset if log.stable else 0)


def _wanted(
    claim_name: str, owned: KeyRanges, done: Progress, stable: int
) -> Iterator[tuple[BlockKey, Bounds]]:
    """The blocks that hold what is processed of some hashes, from the stable offset on."""
    tiling = done.stripes or (Stripe(WHOLE, ()),)
    for part in owned:
        for stripe in tiling:
            shared = stripe.hashes.intersect(part)
            if shared is None:
                continue
            bounds = stripe.bounds
            if done.stable > stable:  # all below is processed, which the log does not say yet
                bounds = _joined(stable, done.stable, bounds)
            for stretch, piece in _by_stretch(since(bounds, stable)):
                yield (claim_name, shared, stretch), piece


def _joined(start: int, end: int, bounds: Bounds) -> Bounds:
    if bounds and bounds[0] == end:
        return (start, *bounds[1:])
    return (start, end, *bounds)


def _by_stretch(bounds: Bounds) -> Iterator[tuple[int, Bounds]]:
    """A set of offsets cut into stretches."""
    if not bounds:
        return
    for stretch in range(bounds[0] // STRETCH, (bounds[-1] - 1) // STRETCH + 1):
        first = stretch * STRETCH
        piece = within(bounds, first, first + STRETCH)
        if piece:
            yield stretch, piece


def _covers(cover: Sequence[Stripe], hashes: HashRange, bounds: Bounds) -> bool:
    """True if some stripes hold all of a rectangle's offsets, for each of its hashes."""
    return not bounds or all(
        not subtract(bounds, stripe.bounds)
        for stripe in cover
        if stripe.hashes.intersect(hashes) is not None
    )


# -- transactions ------------------------------------------------------------------------------

Purgatory: TypeAlias = Literal["stable", "key"]
"""For what a part waits: for all key hashes of its partition, or only for its own."""


class PurgatoryState(Enum):
    """Whether a transaction may commit, and why not."""

    OPEN = "what comes before it is processed"
    CLOSED = "others have not processed what comes before it"
    LOST = "what comes before it has become the member's own"


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """What a transaction processes of one partition.

    Attributes:
        first: The first offset that it processes; None if it processes nothing of the partition.
        hashes: The key hashes that the member owned when the records were handed out.
        owned: Those that it owns now.
        known: What is known to be processed: by the log, and by the member's own transactions.
    """

    first: int | None
    hashes: KeyRanges
    owned: KeyRanges
    known: Progress


def first_new_offset(processed: Progress, known: Progress) -> int | None:
    """The first offset that is processed and was not known to be; None if there is none."""
    added = processed.minus(known)
    return min((piece.offsets.start for piece in added), default=None)


def purgatory_state(parts: Iterable[TransactionPart], purgatory: Purgatory) -> PurgatoryState:
    """Decide whether a transaction may commit now.

    Args:
        parts: One for each partition of the member.
        purgatory: For what a part waits.
    """
    if purgatory == "key":  # its own hashes are handed out in offset order
        return PurgatoryState.OPEN
    listed = list(parts)
    states = [_state_of(part) for part in listed]
    if PurgatoryState.LOST in states:
        return PurgatoryState.LOST
    pairs = zip(listed, states, strict=True)
    others = (part for part, state in pairs if state is PurgatoryState.OPEN)
    if PurgatoryState.CLOSED not in states or any(map(_holds_up, others)):
        return PurgatoryState.OPEN
    return PurgatoryState.CLOSED


def _state_of(part: TransactionPart) -> PurgatoryState:
    if part.first is None:
        return PurgatoryState.OPEN
    gap = part.known.pending_of(part.first, ALL_HASHES - part.hashes)
    if not gap:
        return PurgatoryState.OPEN
    is_own = any(part.owned.overlapping(piece.hashes) for piece in gap)
    return PurgatoryState.LOST if is_own else PurgatoryState.CLOSED


def _holds_up(part: TransactionPart) -> bool:
    """True if the member holds the stable offset, and others are ahead of it."""
    known = part.known
    return not known.is_level and known.position_of(part.hashes) == known.stable


def known_progress(log: PartitionLog, done: Progress) -> Progress:
    """What is known to be processed: by the log, or by the member's own transactions.

    Args:
        log: What the log says.
        done: What the member knows to be processed, from its start on.
    """
    return log.progress().union(done)


def is_read_back(log: PartitionLog, blocks: Iterable[Block]) -> bool:
    """True if the log says what some blocks say."""
    stable = log.stable.offset if log.stable else 0
    return all(
        log.blocks.get((block.author, block.hashes, block.stretch)) == block.bounds
        or block.bounds[-1] <= stable
        for block in blocks
    )


def transaction_records(
    partition: TopicPartition,
    log: PartitionLog,
    claim_name: str,
    hashes: KeyRanges,
    done: Progress,
) -> tuple[list[Block], list[Key]]:
    """What a transaction writes to the log: blocks, and tombstones of the member's own blocks.

    Args:
        partition: The partition.
        log: What the log says.
        claim_name: Name of the member's claim.
        hashes: The key hashes that it owns.
        done: What it has processed, or knows to be processed, with this transaction.
    """
    blocks = blocks_to_write(partition, log, claim_name, hashes, done)
    written = {key_of(block) for block in blocks}
    covered = keys_to_delete(partition, log, claim_name, log.owned_by(claim_name), done)
    return blocks, [key for key in covered if key.detail[0] == claim_name and key not in written]
