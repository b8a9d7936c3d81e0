"""Errors of the group protocol, and what a member makes of them."""

from enum import Enum
from typing import Final

from kshare.errors import AuthorizationError, KafkaError, KshareError
from kshare.group.protocol.range_protocol import RANGE
from kshare.group.protocol.subscription import PROTOCOL

__all__ = ["Code", "fault_of", "is_passing"]


class Code(Enum):
    """Errors of the group protocol that a member acts upon, with Kafka's numbers.

    A test compares them with the table, :mod:`kshare.wire.protocol.error_codes`: that knows
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


_PASSING: Final = {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
}
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


def is_passing(code: Code) -> bool:
    """True if the coordinator is on its way: the member's standing is what it was."""
    return code in _PASSING


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
