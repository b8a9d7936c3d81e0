"""The records of the individual commit log, and what each of them says.

As bytes (:mod:`kshare.group.protocol.commit_log.record_codec`), a key is a JSON array that begins
with version, group and incarnation; compaction keeps the last record of each key, and a record
without a value (a tombstone) deletes its key. A value is a JSON object.

========= ============================================= ================================ ===========
record    key, after version, group, incarnation        value                            written by
========= ============================================= ================================ ===========
`Claim`   "claim", topic, partition, name               key hash, hashes, epoch,         a new owner
                                                        transactional id
`Lease`   "lease", topic, partition, author, number     offsets                          who shares
`Block`   "block", topic, partition, author, [lo, hi],  processed offsets, packed        an owner
          stretch
`Stable`  "stable", topic, partition, author            offset, leader epoch, metadata   the lead
`Reset`   "reset", topic, partition, author, number     key hash, offset                 who starts
                                                                                         a partition
`Member`  "member", session id                          host, time, version that it      each member
                                                        reads, settings
`Epoch`   "epoch"                                       generation, leader, members with the group's
                                                        what each is assigned            leader
========= ============================================= ================================ ===========

A block is a fact: these offsets of these key hashes have been processed. Facts stay true, so their
order and their repetition change nothing. A block's key names its author, so that a tombstone for
one author's block cannot delete what another one has written meanwhile. So does that of a stable
offset, as a former lead may write its own late: the highest one counts, and compaction keeps it.

The incarnation is a number for each group and partition. A `Reset` begins a new one, and facts and
stable offsets of an older one do not count. Kafka's own tools reset offsets for single partitions,
so a number for each group would void the individual commits of all of its partitions. Claims,
members and epochs have incarnation 0: they outlive a reset.

A claim, and the reset that begins an incarnation, name the key hash. Records of another one are
refused: their facts are true of other keys.

How a later version changes records, while members of both versions run:

- It adds a field to a value. A member passes over fields that it does not know, and reads a record
  without the field as before. So a field may only say what an older member need not know.
- It adds a kind of record whose name ends with :data:`OPTIONAL`. A member that reads version 2
  passes over such kinds if it does not know them.
- It changes what older members must not misread: the version in the key rises, and they stop at it.

The last two are written only while
:func:`~kshare.group.protocol.commit_log.log.version_read_by_all` says that all living members read
them.

Of several leases with the same offsets, and of several resets, the first one counts. Such a record
is never written again under another key or with other offsets, and its author takes another number
after a failure. So compaction, which keeps the last record of a key, keeps the first, too.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from kshare.core.hashing import HashRange, KeyRanges
from kshare.core.offsets import Bounds, OffsetRange
from kshare.core.progress import TopicPartition
from kshare.group.protocol.commit_log.shared_settings import Settings

__all__ = [
    "OPTIONAL",
    "READS",
    "STRETCH",
    "VERSION",
    "Block",
    "Claim",
    "Epoch",
    "EpochMember",
    "Key",
    "Lease",
    "Member",
    "Record",
    "Reset",
    "Stable",
    "key_of",
]

VERSION: Final = 1
"""The version in the keys of records: what this code writes, and the highest one that it reads."""

READS: Final = 2
"""What this code reads, as its beats say: version 1 is the table above; version 2 may have unknown
kinds of records that are :data:`OPTIONAL`."""

OPTIONAL: Final = "?"
"""The last character of the name of a kind of record that may be passed over."""

STRETCH: Final = 1 << 16
"""Offsets of one block: a commit writes the blocks that have changed, so a block is short."""


class Key(NamedTuple):
    """The key of a record: what compaction keeps one record of.

    Attributes:
        incarnation: The incarnation that the record belongs to.
        kind: What the record is, such as ``"block"``.
        partition: The partition that it is about; None for a member.
        detail: What tells apart records of one kind of one partition.
    """

    incarnation: int
    kind: str
    partition: TopicPartition | None
    detail: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A member owns key hashes from here on.

    Of two that overlap, that of the later epoch wins, then the later one in the log.

    Attributes:
        partition: The partition.
        name: Name of the claim, ``session#n``.
        hashes: The key hashes.
        epoch: The group's epoch in which they were assigned; None for a standalone consumer.
        transactional_id: Transactional id of the member; None if it has none.
        self_fencing: Whether the member stops delivering before the group's coordinator drops it.
            Then members of a later epoch that does not list it need not wait for it.
        shared: Whether the member reads only what it leases, so that shared claims exclude only
            those that are not shared.
    """

    partition: TopicPartition
    name: str
    hashes: KeyRanges
    epoch: int | None = None
    transactional_id: str | None = None
    self_fencing: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """A member processes some offsets, as far as no earlier lease that counts has them.

    Attributes:
        partition: The partition.
        incarnation: The partition's incarnation.
        author: Name of the author's claim.
        number: Number of the lease, another one for each lease of the author.
        offsets: The offsets.
    """

    partition: TopicPartition
    incarnation: int
    author: str
    number: int
    offsets: OffsetRange


@dataclass(frozen=True, slots=True)
class Block:
    """Facts: offsets of one stretch that have been processed for a range of key hashes.

    Attributes:
        partition: The partition.
        incarnation: The partition's incarnation.
        author: Name of the author's claim.
        hashes: The key hashes.
        stretch: Number of the stretch: it begins at offset ``stretch * STRETCH``.
        bounds: The processed offsets, all of this stretch; at least one.
    """

    partition: TopicPartition
    incarnation: int
    author: str
    hashes: HashRange
    stretch: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Stable:
    """Everything below an offset has been processed.

    Attributes:
        partition: The partition.
        incarnation: The partition's incarnation.
        offset: The stable offset: the first one that has not been processed.
        leader_epoch: Leader epoch of the last processed record; None if it is not known.
        metadata: What the committer gave as metadata.
        author: Name of the author's claim.
    """

    partition: TopicPartition
    incarnation: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""
    author: str = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """A new incarnation begins at an offset; nothing of an older one counts.

    Attributes:
        partition: The partition.
        incarnation: The new incarnation.
        offset: Where consumption starts.
        author: Name of the author's claim; empty for an operator's tool.
        number: Another one for each reset of the author.
    """

    partition: TopicPartition
    incarnation: int
    offset: int
    author: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A session is alive; it writes this again and again.

    Attributes:
        session_id: Id of the session, ``host-pid-uuid``: the names of its claims begin with it.
        host: Where it runs: ``application.server``, or the host's name.
        seen_ms: When it wrote this, by its clock; milliseconds since the epoch.
        reads: The latest version of records that it reads; :data:`VERSION` if it does not say.
        settings: What all members must share.
    """

    session_id: str
    host: str
    seen_ms: int
    reads: int = VERSION
    settings: Settings = ()


@dataclass(frozen=True, slots=True)
class EpochMember:
    """A member of an epoch.

    Attributes:
        name: Id of its session, which begins the names of its claims.
        member_id: Its id at the group's coordinator.
        host: Where it runs: ``application.server``, or the host's name.
        assigned: The key hashes of each partition that it was assigned, in order.
    """

    name: str
    member_id: str
    host: str
    assigned: tuple[tuple[TopicPartition, KeyRanges], ...] = ()


@dataclass(frozen=True, slots=True)
class Epoch:
    """A generation of the group, and what its leader has assigned; its log offset is the epoch.

    Attributes:
        generation: The generation.
        leader: Id of the leader's session.
        members: The members, in the order of their names.
    """

    generation: int
    leader: str
    members: tuple[EpochMember, ...]

    @property
    def names(self) -> frozenset[str]:
        """The ids of the members' sessions."""
        return frozenset(member.name for member in self.members)


Record: TypeAlias = Claim | Lease | Block | Stable | Reset | Member | Epoch


def key_of(record: Record) -> Key:  # noqa: PLR0911
    """The key of a record."""
    match record:
        case Claim():
            return Key(0, "claim", record.partition, (record.name,))
        case Lease():
            return Key(
                record.incarnation, "lease", record.partition, (record.author, record.number)
            )
        case Block():
            detail = (record.author, record.hashes, record.stretch)
            return Key(record.incarnation, "block", record.partition, detail)
        case Stable():
            return Key(record.incarnation, "stable", record.partition, (record.author,))
        case Reset():
            return Key(
                record.incarnation, "reset", record.partition, (record.author, record.number)
            )
        case Member():
            return Key(0, "member", None, (record.session_id,))
        case Epoch():
            return Key(0, "epoch", None)
