"""What a transaction writes, and when it may commit: functions of the log and of what is processed.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from kshare.core.hashing import HashRange, complement
from kshare.core.progress import Progress, TopicPartition
from kshare.group.protocol.commit import blocks_to_write, keys_to_delete
from kshare.group.protocol.log import PartitionLog
from kshare.group.protocol.records import Block, Key, key_of

__all__ = [
    "Admission",
    "Purgatory",
    "TransactionChunk",
    "admission",
    "chunk_start",
    "is_read_back",
    "known_progress",
    "patience",
    "transaction_records",
]

Purgatory: TypeAlias = Literal["stable", "key"]
"""For what a chunk waits: for all key hashes of its partition, or only for its own."""

_TIMEOUT_SHARE: Final = 0.9


class Admission(Enum):
    """Whether a transaction may commit, and why not."""

    OPEN = "what comes before it is processed"
    CLOSED = "others have not processed what comes before it"
    LOST = "what comes before it has become the member's own"


@dataclass(frozen=True, slots=True)
class TransactionChunk:
    """What a transaction processes of one partition.

    Attributes:
        start: The first offset that it processes; None if it processes nothing of the partition.
        hashes: The key hashes that the member owned when the records were handed out.
        owned: Those that it owns now.
        known: What is known to be processed: by the log, and by the member's own transactions.
    """

    start: int | None
    hashes: tuple[HashRange, ...]
    owned: tuple[HashRange, ...]
    known: Progress


def chunk_start(processed: Progress, known: Progress) -> int | None:
    """The first offset that is processed and was not known to be; None if there is none."""
    added = processed.minus(known)
    return min((piece.offsets.start for piece in added), default=None)


def admission(chunks: Iterable[TransactionChunk], purgatory: Purgatory) -> Admission:
    """Decide whether a transaction may commit now.

    Args:
        chunks: One for each partition of the member.
        purgatory: For what a chunk waits.
    """
    if purgatory == "key":  # its own hashes are handed out in offset order
        return Admission.OPEN
    listed = list(chunks)
    each = [_admission_of(chunk) for chunk in listed]
    if Admission.LOST in each:
        return Admission.LOST
    others = (chunk for chunk, found in zip(listed, each, strict=True) if found is Admission.OPEN)
    if Admission.CLOSED not in each or any(map(_holds_up, others)):
        return Admission.OPEN
    return Admission.CLOSED


def _admission_of(chunk: TransactionChunk) -> Admission:
    if chunk.start is None:
        return Admission.OPEN
    gap = chunk.known.pending_of(chunk.start, tuple(complement(chunk.hashes)))
    if not gap:
        return Admission.OPEN
    is_own = any(piece.hashes.intersect(part) for piece in gap for part in chunk.owned)
    return Admission.LOST if is_own else Admission.CLOSED


def _holds_up(chunk: TransactionChunk) -> bool:
    """True if the member holds the stable offset, and others are ahead of it."""
    known = chunk.known
    return not known.is_level and known.position_of(chunk.hashes) == known.stable


def patience(timeout: float) -> float:
    """For how long a transaction may go on before it gives up waiting.

    Args:
        timeout: ``transaction.timeout.ms``, after which the broker aborts it; any unit.
    """
    return timeout * _TIMEOUT_SHARE


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
        log.blocks.get((block.member, block.hashes, block.stretch)) == block.bounds
        or block.bounds[-1] <= stable
        for block in blocks
    )


def transaction_records(
    partition: TopicPartition,
    log: PartitionLog,
    member: str,
    hashes: Sequence[HashRange],
    done: Progress,
) -> tuple[list[Block], list[Key]]:
    """What a transaction writes to the log: blocks, and tombstones of the member's own blocks.

    Args:
        partition: The partition.
        log: What the log says.
        member: The member.
        hashes: The key hashes that it owns, ascending.
        done: What it has processed, or knows to be processed, with this transaction.
    """
    blocks = blocks_to_write(partition, log, member, hashes, done)
    written = {key_of(block) for block in blocks}
    covered = keys_to_delete(partition, log, member, log.owned_by(member), done)
    return blocks, [key for key in covered if key.detail[0] == member and key not in written]
