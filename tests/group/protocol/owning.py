"""What a session owns, as the small worlds drive it: copies, and what makes two go on alike.

Time stands still, but for the steps that are about it: so pauses after faults have no length.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

from kshare.group.core.ownership import Ownership
from kshare.group.core.ownerships import Ownerships
from kshare.group.protocol.commit_log.log import GroupLog, PartitionLog


@dataclass(frozen=True, slots=True)
class Mark:
    """A value whose hash is computed once; what has the same mark goes on alike."""

    value: tuple[object, ...]
    hashed: int

    @classmethod
    def of(cls, value: tuple[object, ...]) -> "Mark":
        return cls(value, hash(value))

    def __hash__(self) -> int:
        return self.hashed


TIMEOUT = 1.0
"""Seconds to wait for former owners."""

Each = TypeVar("Each")


def new_ownerships(name: str, topic_id: str, **given: Any) -> Ownerships:
    """What a session owns in the beginning."""
    owned = Ownerships(name, "g", TIMEOUT, uniform=lambda *_: 0.0, **given)
    owned.found(topic_id)
    return owned


def shallow(each: Each) -> Each:
    """A copy of an object: in less than a sixth of the time of ``replace``."""
    copier = _COPIERS.get(type(each)) or _new_copier(each)
    copy: Each = copier(each)
    return copy


def _new_copier(each: Any) -> Callable[[Any], Any]:
    """A function that copies attribute by attribute; those that are no dataclass have them all."""
    kind = type(each)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else [*vars(each)]
    lines = [f"    copy.{name} = each.{name}" for name in names]
    text = ["def copier(each):", "    copy = new(kind)", *lines, "    return copy"]
    space: dict[str, Any] = {"new": object.__new__, "kind": kind}
    exec("\n".join(text), space)
    _COPIERS[kind] = space["copier"]
    return _COPIERS[kind]


_COPIERS: dict[type, Callable[[Any], Any]] = {}


def clone_of_ownerships(owned: Ownerships) -> Ownerships:
    """A copy that shares nothing that changes, but the log: who reads it makes a copy before."""
    copy = shallow(owned)
    copy.by_partition = {at: _clone(each) for at, each in owned.by_partition.items()}
    copy.warnings, copy._given_up = [], [*owned._given_up]
    copy._claimant, copy._leases = shallow(owned._claimant), shallow(owned._leases)
    copy._leases._since = dict(owned._leases._since)
    copy._former = dict(owned._former)
    return copy


def _clone(each: Ownership) -> Ownership:
    copy = shallow(each)
    owner = copy.owner = shallow(each.owner)
    owner.commit = None if owner.commit is None else shallow(owner.commit)
    copy.commits, copy.retries = shallow(each.commits), shallow(each.retries)
    copy.follow_ups, copy.replaced_claims = shallow(each.follow_ups), shallow(each.replaced_claims)
    return copy


def clone_log(log: GroupLog) -> GroupLog:
    copy = GroupLog(log.group)
    copy.end, copy.members, copy.epochs = log.end, dict(log.members), dict(log.epochs)
    copy.partitions = {
        at: PartitionLog(
            part.incarnation,
            part.reset_to,
            part.stable,
            dict(part.blocks),
            dict(part.claims),
            dict(part.leases),
            set(part.outdated),
            dict(part.stables),
            dict(part.resets),
            set(part.overtaken),
            dict(part.damaged),
        )
        for at, part in log.partitions.items()
    }
    return copy


def print_of_ownership(each: Ownership | None, end: int, delivery: object) -> tuple[object, ...]:
    """Equal for ownerships that go on alike.

    Args:
        each: The ownership; None if nothing is owned.
        end: How far the log was read.
        delivery: The start that is delivered from.
    """
    if each is None:
        return ()
    owner, commit, commits, follow = each.owner, each.owner.commit, each.commits, each.follow_ups
    return (
        owner.claim,
        owner.phase,
        owner.resolved,
        owner.done,
        commit
        and (
            *(commit.done, commit.facts, commit.stable, commit.is_lead),
            *(commit.is_primary_written, commit.repeats),
        ),
        owner._pending,
        owner._placement,
        owner._evidence.primary,
        owner._evidence.initial,
        owner._evidence.known,
        owner._evidence.voids,
        owner._evidence.resets,
        owner._takeover,
        commits.wanted - commits.finished,
        commits.begun - commits.finished,
        each.start is None,
        each.start == delivery,
        each.waits_since is None,
        each.repeated_at < 0.0,
        follow.facts,
        follow.is_due,
        follow.done_at < 0.0,
        each.followed_to == end,
        tuple((start == delivery, hashes) for start, hashes in each.replaced_claims.starts),
        each.replaced_claims.processed,
        each.replaced_claims.incarnation,
    )
