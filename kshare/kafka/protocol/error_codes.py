"""Kafka's error codes: what each means, and whether a retry can help.

A code that is not listed is permanent. The table answers for all requests. A caller that knows
better about its own request asks for the kind or the code first: for a client that creates topics,
``UNKNOWN_TOPIC_OR_PARTITION`` is an answer and not a fault.

Cost: importing this module does not import kafka-python, which takes 0.3 s; only :func:`name` does.
"""

from enum import Enum, IntEnum
from typing import Final, Self

__all__ = ["PASSING", "ErrorCode", "Kind", "is_permanent", "is_retriable", "kind", "name"]


class Kind(Enum):
    """The meaning of an error code to a client."""

    SUCCESS = "no error"
    TRANSIENT = "brokers start, time out, lack replicas or fail over: the same request again"
    STALE_LEADER = "the request went by an old leader or its epoch: ask who leads, then again"
    UNKNOWN_TOPIC = "the topic does not exist, or its metadata has not reached this broker yet"
    CORRUPT = "the broker reports damage in its own log, or in what it was sent"
    AUTHENTICATION = "the login was not accepted"
    AUTHORIZATION = "the principal lacks a right"
    RECORD = "a record is refused: it is too large, or not as the topic wants it"
    FENCED = "a later producer has taken over the transactional id"
    TRANSACTION_ENDED = "the transaction is over: it was ended the other way, or has expired"
    PERMANENT = "any other error: asking again changes nothing"


PASSING: Final = frozenset({Kind.TRANSIENT, Kind.STALE_LEADER})
"""Kinds of errors that pass by themselves, or once it is asked who leads."""


class ErrorCode(IntEnum):
    """The codes that kshare knows, by the names of Kafka's protocol."""

    kind: Kind

    def __new__(cls, code: int, kind: Kind) -> Self:
        """A member that is its number."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.kind = kind
        return member

    UNKNOWN_SERVER_ERROR = -1, Kind.TRANSIENT
    NONE = 0, Kind.SUCCESS
    OFFSET_OUT_OF_RANGE = 1, Kind.PERMANENT
    CORRUPT_MESSAGE = 2, Kind.CORRUPT
    UNKNOWN_TOPIC_OR_PARTITION = 3, Kind.UNKNOWN_TOPIC
    LEADER_NOT_AVAILABLE = 5, Kind.TRANSIENT
    NOT_LEADER_OR_FOLLOWER = 6, Kind.STALE_LEADER
    REQUEST_TIMED_OUT = 7, Kind.TRANSIENT
    BROKER_NOT_AVAILABLE = 8, Kind.TRANSIENT
    REPLICA_NOT_AVAILABLE = 9, Kind.TRANSIENT
    MESSAGE_TOO_LARGE = 10, Kind.RECORD
    NETWORK_EXCEPTION = 13, Kind.TRANSIENT
    COORDINATOR_LOAD_IN_PROGRESS = 14, Kind.TRANSIENT
    COORDINATOR_NOT_AVAILABLE = 15, Kind.TRANSIENT
    NOT_COORDINATOR = 16, Kind.TRANSIENT
    RECORD_LIST_TOO_LARGE = 18, Kind.RECORD
    NOT_ENOUGH_REPLICAS = 19, Kind.TRANSIENT
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, Kind.TRANSIENT
    ILLEGAL_GENERATION = 22, Kind.PERMANENT
    INCONSISTENT_GROUP_PROTOCOL = 23, Kind.PERMANENT
    UNKNOWN_MEMBER_ID = 25, Kind.PERMANENT
    INVALID_SESSION_TIMEOUT = 26, Kind.PERMANENT
    REBALANCE_IN_PROGRESS = 27, Kind.PERMANENT
    TOPIC_AUTHORIZATION_FAILED = 29, Kind.AUTHORIZATION
    GROUP_AUTHORIZATION_FAILED = 30, Kind.AUTHORIZATION
    CLUSTER_AUTHORIZATION_FAILED = 31, Kind.AUTHORIZATION
    INVALID_TIMESTAMP = 32, Kind.RECORD
    UNSUPPORTED_SASL_MECHANISM = 33, Kind.AUTHENTICATION
    ILLEGAL_SASL_STATE = 34, Kind.AUTHENTICATION
    UNSUPPORTED_VERSION = 35, Kind.PERMANENT
    TOPIC_ALREADY_EXISTS = 36, Kind.PERMANENT
    INVALID_REPLICATION_FACTOR = 38, Kind.PERMANENT
    INVALID_REPLICA_ASSIGNMENT = 39, Kind.PERMANENT
    INVALID_CONFIG = 40, Kind.PERMANENT
    NOT_CONTROLLER = 41, Kind.TRANSIENT
    POLICY_VIOLATION = 44, Kind.PERMANENT
    INVALID_PRODUCER_EPOCH = 47, Kind.FENCED
    INVALID_TXN_STATE = 48, Kind.TRANSACTION_ENDED
    INVALID_PRODUCER_ID_MAPPING = 49, Kind.TRANSACTION_ENDED
    INVALID_TRANSACTION_TIMEOUT = 50, Kind.PERMANENT
    CONCURRENT_TRANSACTIONS = 51, Kind.TRANSIENT
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, Kind.AUTHORIZATION
    KAFKA_STORAGE_ERROR = 56, Kind.TRANSIENT
    SASL_AUTHENTICATION_FAILED = 58, Kind.AUTHENTICATION
    UNKNOWN_PRODUCER_ID = 59, Kind.TRANSACTION_ENDED
    FENCED_LEADER_EPOCH = 74, Kind.STALE_LEADER
    UNKNOWN_LEADER_EPOCH = 75, Kind.STALE_LEADER
    OFFSET_NOT_AVAILABLE = 78, Kind.TRANSIENT
    MEMBER_ID_REQUIRED = 79, Kind.PERMANENT
    GROUP_MAX_SIZE_REACHED = 81, Kind.PERMANENT
    FENCED_INSTANCE_ID = 82, Kind.PERMANENT
    UNSTABLE_OFFSET_COMMIT = 88, Kind.TRANSIENT
    INVALID_RECORD = 87, Kind.RECORD
    THROTTLING_QUOTA_EXCEEDED = 89, Kind.TRANSIENT
    PRODUCER_FENCED = 90, Kind.FENCED
    UNKNOWN_TOPIC_ID = 100, Kind.UNKNOWN_TOPIC


_KINDS = {int(code): code.kind for code in ErrorCode}
_NAMES = {int(code): code.name for code in ErrorCode}
_RETRIABLE = {Kind.TRANSIENT, Kind.STALE_LEADER, Kind.UNKNOWN_TOPIC, Kind.CORRUPT}


def kind(code: int) -> Kind:
    """The kind of a code."""
    return _KINDS.get(code, Kind.PERMANENT)


def is_retriable(code: int) -> bool:
    """True if the same request may succeed later."""
    return kind(code) in _RETRIABLE


def is_permanent(code: int) -> bool:
    """True if a code is an error that no retry changes."""
    return kind(code) is not Kind.SUCCESS and not is_retriable(code)


def name(code: int) -> str:
    """Kafka's name of a code, such as ``UNKNOWN_MEMBER_ID``."""
    if code in _NAMES:
        return _NAMES[code]
    from kshare.kafka_python import for_code  # noqa: PLC0415 - 0.3 s, and only rare faults need it

    said = str(for_code(code).message)
    return f"error {code}" if said == "UNKNOWN" else said
