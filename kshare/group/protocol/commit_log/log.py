"""What the individual commit log says: a fold over its records.

The log of a group is totally ordered, and every member reads all of it: equal logs give equal
states. Compaction changes nothing of what is said here, as long as it has deleted only records that
a later one of the same key replaces.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from kshare.core.hashing import ALL_HASHES, NO_HASHES, HashRange, KeyRanges
from kshare.core.offsets import Bounds, OffsetRange, union
from kshare.core.progress import Progress, Stripe, TopicPartition
from kshare.group.protocol.commit_log.records import (
    Block,
    Claim,
    Epoch,
    Key,
    Lease,
    Member,
    Record,
    Reset,
    Stable,
)

__all__ = [
    "EPOCHS_MAX",
    "BlockKey",
    "Damage",
    "GroupLog",
    "LeaseKey",
    "PartitionLog",
    "PlacedClaim",
    "PlacedLease",
]

EPOCHS_MAX: Final = 8
"""Epochs that are known: a claim may be of an older one."""

BlockKey: TypeAlias = tuple[str, HashRange, int]
"""Author, key hashes and stretch of a block."""

LeaseKey: TypeAlias = tuple[str, int]
"""Author and number of a lease."""

ResetKey: TypeAlias = tuple[str, int]
"""Author and number of a reset."""


@dataclass(frozen=True, slots=True)
class PlacedClaim:
    """A claim and its offset in the log; of two that overlap, the one of higher :attr:`age` wins.

    A claim's epoch is a log offset, too: that of the epoch's record, or its own if it has none. So
    what a member of an older epoch claims late takes nothing from a member of a later one. An epoch
    behind the claim itself is one of a log that was lost, and counts no more.

    Attributes:
        claim: The claim.
        position: Its offset in the log.
        age: What orders claims: a pair of log offsets.
    """

    claim: Claim
    position: int
    age: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        epoch, position = self.claim.epoch, self.position
        is_known = epoch is not None and epoch < position
        age = (epoch if epoch is not None and is_known else position, position)
        object.__setattr__(self, "age", age)  # once: claims are compared all the time

    def excludes(self, other: "PlacedClaim") -> bool:
        """True if the owner of a claim loses the hashes that are in both."""
        return self.age > other.age and not (self.claim.shared and other.claim.shared)


class Damage(NamedTuple):
    """A claim that cannot be read: its offset in the log, and why."""

    position: int
    why: str


class PlacedLease(NamedTuple):
    """The offsets of a lease, and its own offset in the log."""

    position: int
    offsets: OffsetRange


@dataclass(slots=True)
class PartitionLog:
    """What the log says of one partition.

    Attributes:
        incarnation: The newest incarnation; facts and stable offsets of older ones do not count.
        reset_to: Where the incarnation starts: what its first `Reset` says; None if there is none.
        stable: The highest stable offset of the incarnation; None if there is none.
        blocks: The facts of the incarnation.
        claims: The last record of each claim, by its name.
        leases: The leases of the incarnation.
        outdated: Keys of older incarnations that are still in the log.
        stables: The last stable offset that each author has written.
        resets: Author and number of the resets of the incarnation, in the order of the log.
        overtaken: Names of claims that another one has excluded, though it may be given up since.
        damaged: Claims that cannot be read, by name. Whoever has claimed before one claims anew,
            and whoever claims behind it waits: nobody knows whose hashes it has.
    """

    incarnation: int = 0
    reset_to: int | None = None
    stable: Stable | None = None
    blocks: dict[BlockKey, Bounds] = field(default_factory=dict)
    claims: dict[str, PlacedClaim] = field(default_factory=dict)
    leases: dict[LeaseKey, PlacedLease] = field(default_factory=dict)
    outdated: set[Key] = field(default_factory=set)
    stables: dict[str, Stable] = field(default_factory=dict)
    resets: dict[ResetKey, None] = field(default_factory=dict)
    overtaken: set[str] = field(default_factory=set)
    damaged: dict[str, Damage] = field(default_factory=dict)
    _ranked: "_Ranked | None" = field(default=None, init=False, repr=False, compare=False)

    @property
    def has_facts(self) -> bool:
        """True if anything has been committed in this incarnation."""
        return bool(self.blocks) or self.stable is not None

    @property
    def position(self) -> int:
        """A log offset that the log has surely reached: that of the newest claim."""
        return max((placed.position for placed in self.claims.values()), default=0)

    def with_facts(self, facts: Iterable[Block]) -> "PartitionLog":
        """What the log says once it holds some facts of the incarnation, too."""
        blocks = {(each.author, each.hashes, each.stretch): each.bounds for each in facts}
        return replace(self, blocks={**self.blocks, **blocks})

    def progress(self, primary: int = 0) -> Progress:
        """What has been processed, by all facts of the incarnation.

        Args:
            primary: The primary offset, if it belongs to the incarnation: all below is processed.
        """
        stable = max(primary, self.reset_to or 0, self.stable.offset if self.stable else 0)
        by_hashes: dict[HashRange, list[Bounds]] = {}
        for (_, hashes, _), bounds in self.blocks.items():
            by_hashes.setdefault(hashes, []).append(bounds)
        layers = (Stripe(hashes, union(parts)) for hashes, parts in by_hashes.items())
        return Progress.of_stripes(stable, layers)

    def owned_by(self, claim_name: str) -> KeyRanges:
        """The key hashes of a claim that nobody has claimed since."""
        mine = self.claims.get(claim_name)
        if mine is None:
            return NO_HASHES
        later = [
            part
            for other in self.claims.values()
            if other.excludes(mine)
            for part in other.claim.hashes
        ]
        return mine.claim.hashes - later

    def is_fenced(self, claim_name: str) -> bool:
        """True if a claim is not there, or others have claimed some of its hashes since."""
        return claim_name not in self._claims_ranked.whole

    def was_fenced(self, claim_name: str) -> bool:
        """True if a claim has been fenced, by all that was read.

        Who has excluded it may have given its claim up since. Then others have processed what the
        member still holds, and nothing but this says so. A claim that cannot be read is not fenced.
        """
        if claim_name in self.overtaken:
            return True
        return self.is_fenced(claim_name) and claim_name not in self.damaged

    def is_damaged_since(self, position: int) -> bool:
        """True if a claim behind an offset of the log cannot be read."""
        return any(each.position > position for each in self.damaged.values())

    def place(self, claim: Claim, position: int) -> None:
        """A claim is at some offset of the log."""
        self._ranked = None
        placed = self.claims[claim.name] = PlacedClaim(claim, position)
        for name, other in self.claims.items():
            if not other.claim.hashes.isdisjoint(claim.hashes):
                if placed.excludes(other):
                    self.overtaken.add(name)
                elif other.excludes(placed):
                    self.overtaken.add(claim.name)

    def withdraw(self, claim_name: str) -> None:
        """A claim is given up, or deleted."""
        self._ranked = None
        self.claims.pop(claim_name, None)
        self.overtaken.discard(claim_name)

    def unclaimed_by(self, counts: Callable[[str], bool]) -> KeyRanges:
        """The key hashes that are in no claim whose name counts."""
        return ALL_HASHES - [
            part
            for name, placed in self.claims.items()
            if counts(name)
            for part in placed.claim.hashes
        ]

    def excludes(self, placed: PlacedClaim) -> bool:
        """True if a claim in the log takes hashes from one that may be there no more."""
        return any(
            other.excludes(placed) and not other.claim.hashes.isdisjoint(placed.claim.hashes)
            for name, other in self.claims.items()
            if name != placed.claim.name
        )

    def taken_from(self, claim: Claim) -> Iterator[PlacedClaim]:
        """The other claims that have, or may have, taken hashes from a claim.

        One that is not in the log any more may be older than any other; and those that are shared
        take nothing from each other.
        """
        mine = self.claims.get(claim.name)
        for name, other in self.claims.items():
            if name == claim.name or claim.hashes.isdisjoint(other.claim.hashes):
                continue
            excludes_any = not (claim.shared and other.claim.shared)
            if excludes_any if mine is None else other.excludes(mine):
                yield other

    @property
    def lead(self) -> str | None:
        """The claim that owns the lowest hash that is owned, by its name; None if none owns any."""
        return self._claims_ranked.lead

    @property
    def _claims_ranked(self) -> "_Ranked":
        if self._ranked is None:  # asked for with each record, and claims change with few of them
            self._ranked = self._rank_claims()
        return self._ranked

    def _rank_claims(self) -> "_Ranked":
        """As :meth:`owned_by` for all claims at once: from the latest claim to the oldest."""
        lowest: list[tuple[int, str]] = []
        whole = set[str]()
        exclusive, claimed = _Cover(), _Cover()
        for placed in sorted(self.claims.values(), key=lambda each: each.age, reverse=True):
            claim = placed.claim
            later = exclusive if claim.shared else claimed
            own = later.lowest_without(claim.hashes)
            if own is not None:
                lowest.append((own, claim.name))
            if not later.covers_some(claim.hashes):
                whole.add(claim.name)
            claimed.add(claim.hashes)
            if not claim.shared:
                exclusive.add(claim.hashes)
        return _Ranked(min(lowest, default=(0, None))[1], frozenset(whole))


class _Ranked(NamedTuple):
    """What follows from the order of all claims.

    Attributes:
        lead: Name of the claim that owns the lowest hash; None if none owns any.
        whole: Names of the claims that own all of their hashes.
    """

    lead: str | None
    whole: frozenset[str]


class _Cover:
    """Key hashes as ranges that neither overlap nor touch, ascending."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, hashes: Iterable[HashRange]) -> None:
        """Cover some more hashes."""
        for part in hashes:
            first, last = bisect_left(self._ends, part.lo), bisect_right(self._starts, part.hi)
            near = slice(first, last)
            self._starts[near] = [min([part.lo, *self._starts[near]])]
            self._ends[near] = [max([part.hi, *self._ends[near]])]

    def covers_some(self, hashes: Iterable[HashRange]) -> bool:
        """True if any of some hashes is covered."""
        starts, ends = self._starts, self._ends
        return any(bisect_right(ends, part.lo) < bisect_left(starts, part.hi) for part in hashes)

    def lowest_without(self, hashes: Iterable[HashRange]) -> int | None:
        """The lowest of some ascending hashes that is not covered; None if all are."""
        for part in hashes:
            i = bisect_right(self._starts, part.lo) - 1
            lo = part.lo if i < 0 else max(part.lo, self._ends[i])
            if lo < part.hi:
                return lo
        return None


class GroupLog:
    """What the log says of one group.

    Attributes:
        group: Id of the group.
        end: The log offset after the last record that was applied.
        partitions: What it says of each partition.
        members: The last beat of each session, by its id.
        epochs: The last epochs, by their log offsets, ascending.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.end = 0
        self.partitions: dict[TopicPartition, PartitionLog] = {}
        self.members: dict[str, Member] = {}
        self.epochs: dict[int, Epoch] = {}

    @property
    def last_epoch(self) -> tuple[int, Epoch] | None:
        """The last epoch and its log offset; None if nobody has ever joined."""
        return max(self.epochs.items(), default=None)

    def of(self, partition: TopicPartition) -> PartitionLog:
        """What it says of a partition; empty if there is no record."""
        log = self.partitions.get(partition)
        if log is None:  # not setdefault: this is asked once a record
            log = self.partitions[partition] = PartitionLog()
        return log

    def apply(self, position: int, key: Key, record: Record | None) -> None:
        """Apply the next record.

        Args:
            position: Its offset in the log.
            key: Its key.
            record: The record; None for a tombstone.
        """
        self.end = max(self.end, position + 1)
        if key.partition is None:
            self._apply_of_group(position, key, record)
            return
        log = self.of(key.partition)
        if key.kind == "claim":
            log.damaged.pop(key.detail[0], None)
            if isinstance(record, Claim):
                log.place(record, position)
            else:
                log.withdraw(key.detail[0])
            return
        if key.incarnation > log.incarnation:
            if record is None:  # of what cannot be read: else deleting it would void the facts
                return
            _begin_incarnation(log, key)
        if key.incarnation < log.incarnation:
            (log.outdated.discard if record is None else log.outdated.add)(key)
        elif record is None:
            _delete(log, key)
        else:
            _apply(log, record, position)

    def damage(self, position: int, key: Key, why: str) -> None:
        """The next record is a claim that cannot be read: what it replaces is gone.

        Args:
            position: Its offset in the log.
            key: Its key.
            why: What is wrong with it.
        """
        assert key.partition is not None
        log, name = self.of(key.partition), key.detail[0]
        was_overtaken = name in log.overtaken
        self.apply(position, key, None)
        # Its member is fenced as before, and not by this.
        (log.overtaken.add if was_overtaken else log.overtaken.discard)(name)
        log.damaged[name] = Damage(position, why)

    def _apply_of_group(self, position: int, key: Key, record: Record | None) -> None:
        match record:
            case Epoch():
                self.epochs[position] = record
                for oldest in list(self.epochs)[:-EPOCHS_MAX]:
                    del self.epochs[oldest]
            case Member():
                self.members[record.session_id] = record
            case None if key.kind == "member":
                self.members.pop(key.detail[0], None)


def _begin_incarnation(log: PartitionLog, key: Key) -> None:
    partition, old = key.partition, log.incarnation
    log.outdated |= {Key(old, "block", partition, detail) for detail in log.blocks}
    log.outdated |= {Key(old, "lease", partition, detail) for detail in log.leases}
    log.outdated |= {Key(old, "stable", partition, (author,)) for author in log.stables}
    log.outdated |= {Key(old, "reset", partition, detail) for detail in log.resets}
    log.incarnation, log.reset_to, log.stable = key.incarnation, None, None
    log.blocks, log.leases, log.stables, log.resets = {}, {}, {}, {}


def _apply(log: PartitionLog, record: Record, position: int) -> None:
    match record:
        case Reset():
            # Two members may begin an incarnation at once: the first of them says where.
            if log.reset_to is None:
                log.reset_to = record.offset
            log.resets.setdefault((record.author, record.number))
        case Stable():
            log.stables[record.author] = record
            if log.stable is None or record.offset >= log.stable.offset:
                log.stable = record
        case Block():
            log.blocks[record.author, record.hashes, record.stretch] = record.bounds
        case Lease():
            # The same number is the same lease: a record that was sent twice changes nothing.
            placed = PlacedLease(position, record.offsets)
            log.leases.setdefault((record.author, record.number), placed)


def _delete(log: PartitionLog, key: Key) -> None:
    match key.kind:
        case "block":
            log.blocks.pop(key.detail, None)
        case "lease":
            log.leases.pop(key.detail, None)
        case "reset":
            log.resets.pop(key.detail, None)
        case "stable":
            log.stables.pop(key.detail[0], None)
            log.stable = max(log.stables.values(), key=lambda each: each.offset, default=None)


def members_forgotten(log: GroupLog, own: str, now_ms: int, age_ms: int) -> set[str]:
    """The sessions whose last sign of life is so old that it may be deleted.

    By the newest sign of another member, too: a clock that is far ahead forgets nobody who lives.

    Args:
        log: What the log says.
        own: The session that asks.
        now_ms: Its clock, in ms since 1970.
        age_ms: How old a sign of life has to be.
    """
    others = (each.seen_ms for name, each in log.members.items() if name != own)
    since_ms = min(now_ms, max(others, default=now_ms)) - age_ms
    return {name for name, each in log.members.items() if each.seen_ms < since_ms}


def members_seen(log: GroupLog, since_ms: int) -> Mapping[str, Member]:
    """The sessions that have given a sign of life since some time."""
    return {name: beat for name, beat in log.members.items() if beat.seen_ms >= since_ms}


def version_read_by_all(log: GroupLog, own: int, since_ms: int) -> int:
    """The latest version of records that all members read which lived since some time.

    Args:
        log: What the log says.
        own: What the member reads that asks.
        since_ms: The time, in ms since 1970.
    """
    return min([own, *(beat.reads for beat in members_seen(log, since_ms).values())])
