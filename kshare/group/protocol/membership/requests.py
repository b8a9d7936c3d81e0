"""What a member of a group asks its coordinator for, and the errors that it is answered with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from kshare.errors import AuthorizationError, KafkaError, KshareError
from kshare.group.protocol.membership.subscription import PROTOCOL, RANGE

__all__ = [
    "PASSING",
    "Code",
    "FindCoordinator",
    "Heartbeat",
    "Join",
    "Leave",
    "MemberAction",
    "PlanRequest",
    "Request",
    "Sync",
    "fault_of",
]


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup, then call :meth:`.Membership.joined` or :meth:`.Membership.refused`."""

    member_id: str
    subscription: bytes
    protocols: tuple[str, ...] = (PROTOCOL,)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Plan the generation, write its epoch, then call :meth:`.Membership.planned`.

    Attributes:
        generation: The generation. It does not name the plan: a coordinator that takes over knows
            the last generation that was assigned, so the next one may have the number of one that
            is being planned, and other members.
        members: What each member has said, by its id.
        protocol: The protocol that the members have voted for; `range` has no epoch.
        instances: The ``group.instance.id`` of each static member, by its id.
        number: Counts the JoinGroup answers of this member, and so names the plan.
    """

    generation: int
    members: Mapping[str, bytes]
    protocol: str = PROTOCOL
    instances: Mapping[str, str] = field(default_factory=dict)
    number: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup, then call :meth:`.Membership.synced` or :meth:`.Membership.refused`."""

    member_id: str
    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Leave:
    """Send LeaveGroup; nobody waits for the answer."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send Heartbeat, then call :meth:`.GroupMember.heartbeat_answered`.

    Attributes:
        member_id: Id of the member; empty if it has none yet.
        generation: Its generation.
        sent_at: When it is sent.
        is_member: Whether the answer says that it is a member. To one that waits to become one,
            any answer will do: the coordinator is alive.
    """

    member_id: str
    generation: int
    sent_at: float
    is_member: bool


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Close all connections, and look for the coordinator before the next request."""


MemberAction: TypeAlias = Join | PlanRequest | Sync | Leave
Request: TypeAlias = FindCoordinator | Heartbeat | MemberAction


class Code(Enum):
    """Errors of the group protocol that a member acts upon, with Kafka's numbers.

    A test compares them with the table, :mod:`kshare.kafka.protocol.error_codes`: that knows
    kafka-python, and nothing here may.
    """

    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_AUTHORIZATION_FAILED = 30
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82


PASSING: Final = {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
}
"""Errors of a coordinator that is on its way: the member's standing is what it was."""
_FAULTS: Final[dict[Code, tuple[type[KshareError], str]]] = {
    Code.INCONSISTENT_GROUP_PROTOCOL: (
        KafkaError,
        (
            f"the other members do not speak the protocol {PROTOCOL}: they are plain consumers, or "
            "of another version of kshare (INCONSISTENT_GROUP_PROTOCOL): stop them, or use another "
            f"group.id; or set partition.assignment.strategy={PROTOCOL},{RANGE} to replace plain "
            "consumers one by one"
        ),
    ),
    Code.INVALID_SESSION_TIMEOUT: (
        KafkaError,
        (
            "the brokers do not allow this session.timeout.ms (INVALID_SESSION_TIMEOUT): see "
            "group.min.session.timeout.ms and group.max.session.timeout.ms there"
        ),
    ),
    Code.GROUP_AUTHORIZATION_FAILED: (
        AuthorizationError,
        "not authorized to join it: grant the principal Read on the group",
    ),
    Code.GROUP_MAX_SIZE_REACHED: (
        KafkaError,
        "it has as many members as group.max.size of the brokers allows (GROUP_MAX_SIZE_REACHED)",
    ),
    Code.FENCED_INSTANCE_ID: (
        KafkaError,
        "another consumer has joined with the same group.instance.id (FENCED_INSTANCE_ID)",
    ),
}

_NO_COMMON_PROTOCOL: Final = (
    f"the other members speak neither {PROTOCOL} nor {RANGE} (INCONSISTENT_GROUP_PROTOCOL): add "
    f"{RANGE} to partition.assignment.strategy of all members, or use another group.id"
)


def fault_of(group: str, code: Code | None, *, is_eager: bool) -> KshareError | None:
    """Why a member that was refused cannot be one; None if it may try again.

    Args:
        group: Id of the group.
        code: The error; None for one that has no meaning to a member.
        is_eager: Whether the member lists the protocol `range`, too.
    """
    if code is Code.INCONSISTENT_GROUP_PROTOCOL and is_eager:
        return KafkaError(f"group {group}: {_NO_COMMON_PROTOCOL}")
    if code not in _FAULTS:
        return None
    kind, text = _FAULTS[code]
    return kind(f"group {group}: {text}")
