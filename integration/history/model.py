"""The parts of a history, and its anomalies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition

__all__ = [
    "KINDS",
    "Anomaly",
    "Committed",
    "Delivery",
    "Events",
    "History",
    "Key",
    "Kind",
    "Outcome",
    "OwnerChange",
    "Sent",
    "key_of",
]

Kind: TypeAlias = Literal[
    "duplicate",
    "lost write",
    "aborted read",
    "poll skip",
    "non-monotonic poll",
    "torn transaction",
    "not the owner",
    "inconsistent record",
]
KINDS: Final[Mapping[Kind, str]] = {
    "duplicate": "a record was received again that must not come again, or is at two offsets",
    "lost write": "a record was written, and nobody has received it",
    "aborted read": "a record was received whose transaction was aborted, or whose write failed",
    "poll skip": "a record was received before an earlier one of its key",
    "non-monotonic poll": "a key went back, or its former owner went on",
    "torn transaction": "some records of a transaction were received, and some were not",
    "not the owner": "a process received a record of a key that it was not assigned",
    "inconsistent record": "two records at one offset, or one that nobody has written",
}
"""The meaning of each anomaly. The last two are not Jepsen's."""

Outcome: TypeAlias = Literal["written", "aborted", "unknown"]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not be.

    Attributes:
        kind: One of :data:`KINDS`.
        text: Who, what, and after whom.
    """

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a write.

    Attributes:
        partition: Where to.
        offset: The offset that the broker gave it; None: not known, then it has a ``name``.
        key: Its key; empty: none; None: not known.
        outcome: ``written`` (and its transaction committed), ``aborted`` (also of a write that
            failed for certain), or ``unknown``.
        transaction: The transaction that it is of; None without one.
        name: What tells it from all others, if a producer might write it twice.
    """

    partition: TopicPartition
    offset: int | None
    key: bytes | None = b""
    outcome: Outcome = "written"
    transaction: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that a process received; times are in ns, of a clock that all processes share."""

    time: int
    partition: TopicPartition
    offset: int
    key: bytes
    name: str | None = None

    def __str__(self) -> str:
        return f"offset {self.offset} of {self.partition}, key {self.key!r}"


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A callback.

    Attributes:
        time: When it was called.
        is_gain: Whether the hashes were assigned; else they were revoked or lost.
        hashes: By partition; empty: all of them.
        is_lost: Whether they were lost: others may have them already.
    """

    time: int
    is_gain: bool
    hashes: Mapping[TopicPartition, tuple[HashRange, ...]]
    is_lost: bool = False

    def has(self, partition: TopicPartition, key_hash: int) -> bool:
        """True if it is about this hash."""
        if partition not in self.hashes:
            return False
        parts = self.hashes[partition]
        return not parts or any(key_hash in part for part in parts)


@dataclass(frozen=True, slots=True)
class Committed:
    """A process knows that something is committed.

    Attributes:
        time: Since when.
        partition: The partition.
        offset: The record's offset; or all below it are committed.
        is_below: Which of the two.
    """

    time: int
    partition: TopicPartition
    offset: int
    is_below: bool = False


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one process.

    Attributes:
        lines: What it has written, in its own order.
        resumed: When it went on after it was stopped: from then on it may begin each key once
            again, in order, as others may have come and gone meanwhile.
        closing: When a signal handler began to close it, amid its loop.
        has_callbacks: Whether it writes what it is assigned; else it was given all at its start.
        is_plain: Whether it is a plain consumer in a group of kshare's: it starts at the stable
            offset, so what was committed above that may come again there.
        anew: When it claimed anew what it had: what it has processed and not committed until then
            may come again.
    """

    lines: Sequence[Delivery | OwnerChange | Committed]
    resumed: Sequence[int] = ()
    closing: Sequence[int] = ()
    has_callbacks: bool = True
    is_plain: bool = False
    anew: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A history of operations.

    Attributes:
        processes: What happened to each consumer process, by its name.
        sent: What was written; None: not known, so nothing counts as lost or never written.
        resets: When the group's offsets were reset, or its log was lost: a process that lives may
            begin each key once again, in order, also with what was committed.
        starts: The first offset to receive, by partition; where there is none, 0.
        has_order: Whether the order of keys is to be kept.
        is_complete: Whether consumers had the time to receive all that was written.
        lease_ns: For how long a record is somebody's (``consumption.order=none``). What he commits
            later counts, but whoever has it by then may still be handing it out.
    """

    processes: Mapping[str, Events]
    sent: Sequence[Sent] | None = None
    resets: Sequence[int] = ()
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    has_order: bool = True
    is_complete: bool = True
    lease_ns: int | None = None

    def deliveries(self) -> Iterator[tuple[str, Delivery]]:
        """Process and record, process by process."""
        for name, events in self.processes.items():
            for line in events.lines:
                if isinstance(line, Delivery):
                    yield name, line


Key: TypeAlias = tuple[TopicPartition, bytes, int]


def key_of(partition: TopicPartition, key: bytes, offset: int) -> Key:
    """A record without a key has no order: it is a key of its own."""
    return partition, key, -1 if key else offset
