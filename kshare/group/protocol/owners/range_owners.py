"""Who owns which key hashes of a group, by its log and by the members that are alive.

::

    claims of living members          [ A        ][ B      ]
    the last epoch, where they leave a gap                  [ C    ]   about to claim
    owners                            [ A        ][ B      ][ C    ]

While the group assigns whole partitions, as a member is not a kshare consumer, no epoch counts:
what no claim holds belongs to the member that the coordinator names.

Partitions without key order have no owners: their members lease offsets.

Guarantees: a hash has one owner at most. What a living member has claimed, and nobody since, is its
own, also while another one waits to take it over. A dead member owns nothing.

Cost: for each partition, quadratic in the claims.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.group.protocol.commit_log.log import GroupLog, members_seen
from kshare.group.protocol.commit_log.records import EpochMember
from kshare.group.protocol.owners.leases import LeaseShare, lease_shares
from kshare.group.protocol.owners.takeover import session_of

__all__ = [
    "LivingMember",
    "RangeOwner",
    "living_lease_shares",
    "living_members",
    "owner_of",
    "range_owners",
    "whole_owners",
]


@dataclass(frozen=True, slots=True)
class LivingMember:
    """A member that is alive.

    Attributes:
        name: Id of its session, which begins the names of its claims.
        host: Where it runs: ``application.server``, or the host's name.
        member_id: Its id at the group's coordinator; empty for a standalone consumer.
    """

    name: str
    host: str
    member_id: str = ""

    @property
    def is_joined(self) -> bool:
        """True if it has joined the group (``subscribe``)."""
        return bool(self.member_id)


@dataclass(frozen=True, slots=True, order=True)
class RangeOwner:
    """Key hashes of a partition, and the member that owns them.

    Attributes:
        partition: The partition.
        hashes: The key hashes.
        member: Id of the member's session.
    """

    partition: TopicPartition
    hashes: HashRange
    member: str


def whole_owners(
    log: GroupLog, since_ms: int, joined: Mapping[str, Collection[TopicPartition]]
) -> tuple[tuple[RangeOwner, ...], dict[str, LivingMember]]:
    """The owners and the living members of a group that assigns whole partitions.

    A plain consumer, or a member that has not claimed its partitions yet, goes by its id.

    Args:
        log: What the group's log says.
        since_ms: A member that has given no sign of life in the log since then is dead.
        joined: The partitions of each member that the coordinator knows, by its id.
    """
    seen = members_seen(log, since_ms)
    holder = {partition: member for member, mine in joined.items() for partition in mine}
    owners = [
        owner for partition in log.partitions for owner in _claimed(log, partition, seen.keys())
    ]
    alive = {name: LivingMember(name, said.host) for name, said in seen.items()}
    for owner in owners:
        if owner.partition in holder:
            name = owner.member
            alive[name] = replace(alive[name], member_id=holder[owner.partition])
    claimed = {owner.partition for owner in owners}
    for partition, member in holder.items():
        if partition not in claimed:
            owners.append(RangeOwner(partition, WHOLE, member))
            alive[member] = LivingMember(member, "", member)
    return tuple(sorted(owners)), alive


def living_members(
    log: GroupLog, since_ms: int, joined: Collection[str] | None
) -> dict[str, LivingMember]:
    """The members that are alive, by the ids of their sessions.

    Args:
        log: What the group's log says.
        since_ms: A member that has given no sign of life in the log since then is dead.
        joined: Ids of the members that the coordinator knows, whatever the log says of them; None
            if it does not say.
    """
    seen = members_seen(log, since_ms)
    ever_joined = {member.name for epoch in log.epochs.values() for member in epoch.members}
    alive = {
        name: LivingMember(name, said.host)
        for name, said in seen.items()
        if name not in ever_joined
    }
    for member in _last_epoch(log):
        is_alive = member.name in seen if joined is None else member.member_id in joined
        if is_alive:
            alive[member.name] = LivingMember(member.name, member.host, member.member_id)
    return alive


def range_owners(log: GroupLog, alive: Mapping[str, LivingMember]) -> tuple[RangeOwner, ...]:
    """The owner of each key hash that has one: by partition, then ascending.

    Args:
        log: What the group's log says.
        alive: The members that are alive, by the ids of their sessions.
    """
    assigned: dict[TopicPartition, list[tuple[str, KeyRanges]]] = {}
    for member in _last_epoch(log):
        for partition, hashes in member.assigned if member.name in alive else ():
            assigned.setdefault(partition, []).append((member.name, hashes))
    owners: list[RangeOwner] = []
    for partition in log.partitions.keys() | assigned.keys():
        claimed = list(_claimed(log, partition, alive))
        owners += claimed
        free = ALL_HASHES - [owner.hashes for owner in claimed]
        if _is_shared(log, partition):
            continue
        for name, hashes in assigned.get(partition, ()):
            owners += (RangeOwner(partition, part, name) for part in free & hashes)
    return tuple(_joined(sorted(owners)))


def living_lease_shares(
    log: GroupLog, alive: Collection[str]
) -> dict[TopicPartition, dict[str, LeaseShare]]:
    """What living members have of the partitions that are shared by leases of offsets.

    Args:
        log: What the group's log says.
        alive: The ids of their sessions.
    """
    return {
        partition: {name: share for name, share in shares.items() if name in alive}
        for partition in sorted(log.partitions)
        if (shares := lease_shares(log.of(partition)))
    }


def owner_of(
    owners: Collection[RangeOwner], partition: TopicPartition, hash_: int
) -> RangeOwner | None:
    """The owner of a key hash; None if there is none."""
    return next(
        (each for each in owners if each.partition == partition and hash_ in each.hashes), None
    )


def _last_epoch(log: GroupLog) -> tuple[EpochMember, ...]:
    return () if log.last_epoch is None else log.last_epoch[1].members


def _is_shared(log: GroupLog, partition: TopicPartition) -> bool:
    """True if a partition is shared by leases of offsets."""
    return any(placed.claim.shared for placed in log.of(partition).claims.values())


def _claimed(
    log: GroupLog, partition: TopicPartition, alive: Collection[str]
) -> Iterator[RangeOwner]:
    """What living members have claimed and nobody has claimed since."""
    for claim_name, placed in log.of(partition).claims.items():
        session = session_of(claim_name)
        if session in alive and not placed.claim.shared:
            for part in log.of(partition).owned_by(claim_name):
                yield RangeOwner(partition, part, session)


def _joined(owners: Collection[RangeOwner]) -> Iterator[RangeOwner]:
    """Neighbours of one owner as one."""
    last: RangeOwner | None = None
    for owner in owners:
        if (
            last is not None
            and (owner.partition, owner.member) == (last.partition, last.member)
            and owner.hashes.lo == last.hashes.hi
        ):
            hashes = HashRange(last.hashes.lo, owner.hashes.hi)
            last = RangeOwner(owner.partition, hashes, owner.member)
            continue
        if last is not None:
            yield last
        last = owner
    if last is not None:
        yield last
