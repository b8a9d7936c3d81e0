"""All public errors of kshare, split by whose fault it is.

::

    KshareError
    ├── OptionsError            the user's options: every fault at once
    ├── CheckpointError         the offsets in the checkpoint cannot be used
    │   └── CheckpointVersionError   written by a later kshare
    ├── KernelLibraryError      the installation has no compiled kernels for this machine
    ├── PlanError               an assignor's answer breaks a law
    ├── TaskAssignmentException an assignor cannot answer now: try again
    ├── KafkaError              the cluster, after retries
    │   ├── AuthenticationError      credentials, certificates, host names
    │   ├── AuthorizationError       the principal may not read
    │   ├── UnknownTopicError        topic or partition does not exist
    │   ├── InternalTopicError       a topic that kshare keeps for itself cannot be found or made
    │   ├── RecordRefusedError       a record is too large, or not as its topic wants it
    │   ├── LedgerRecordError        a query's record in the ledger of exactlyOnce is damaged
    │   └── FetchTimeoutError        no progress within the stated time
    ├── FencedError             another member of the group has taken key hashes
    ├── CommitFailedError       what was processed is not this member's to commit any more
    ├── PolicyError             a policy of operators forbids it
    ├── CommitLogError          a record of the individual commit log cannot be read
    │   ├── LaterVersionError        written by a later kshare
    │   └── OtherHashError           key hashes of another hash function
    ├── ForeignMemberError      a member is of another client, version, key hash or settings
    ├── GroupAliveError         offsets cannot be changed while a member is alive
    ├── UnknownGroupError       the group does not exist
    ├── NoOffsetError           no committed offset, and auto.offset.reset is error
    ├── TransactionAbortedError a consumer's transaction was aborted, its records come again
    ├── DataLossError           wanted offsets are gone (see failOnDataLoss)
    ├── RecordError             the log's bytes
    │   ├── CorruptRecordError       a length, a checksum or a codec does not fit
    │   ├── RecordTooLargeError      larger than maxRecordBytes, or than the process's memory
    │   ├── UnsupportedFormatError   message formats v0 and v1, unknown codecs
    │   └── BadRecordError           a key or value is not what its format says (badRecords)
    ├── SchemaRegistryError     the schema registry, after retries
    │   └── UnknownSchemaError       it has no such schema
    ├── PlotError               a picture cannot be drawn
    ├── ProcessingError         a handler has failed for good, and its processor stops
    └── UndecodableError        a key or value cannot be deserialized
    RuntimeError
    └── ConsumerClosedError     a closed consumer was used, as in confluent-kafka

Errors carry their facts as attributes, survive pickling (they cross process borders in Spark) and
never hold a secret.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BadRecordError",
    "CheckpointError",
    "CheckpointVersionError",
    "CommitFailedError",
    "CommitLogError",
    "ConsumerClosedError",
    "CorruptRecordError",
    "DataLossError",
    "FencedError",
    "FetchTimeoutError",
    "ForeignMemberError",
    "GroupAliveError",
    "InternalTopicError",
    "KafkaError",
    "KernelLibraryError",
    "KshareError",
    "LaterVersionError",
    "LedgerRecordError",
    "Location",
    "NoOffsetError",
    "OptionsError",
    "OtherHashError",
    "PlanError",
    "PlotError",
    "PolicyError",
    "ProcessingError",
    "RecordError",
    "RecordRefusedError",
    "RecordTooLargeError",
    "SchemaRegistryError",
    "TaskAssignmentException",
    "TransactionAbortedError",
    "UndecodableError",
    "UnknownGroupError",
    "UnknownSchemaError",
    "UnknownTopicError",
    "UnsupportedFormatError",
]


class Location(TypedDict, total=False):
    """The broker, topic, partition and offset of an error."""

    broker: str | None
    topic: str | None
    partition: int | None
    offset: int | None


class KshareError(Exception):
    """Base of all errors that kshare raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled by a call with its `args`: the facts would be missing.
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[KshareError], args: tuple[Any, ...], facts: dict[str, Any]) -> KshareError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


SPARK_OPTIONS: Final = "the options of format('kshare')"
"""The place of an :class:`OptionsError`'s faults, unless it names another."""


class OptionsError(KshareError):
    """The options cannot be used; ``problems`` lists every fault, each naming its option."""

    problems: tuple[str, ...]

    def __init__(self, problems: Sequence[str], *, of: str = SPARK_OPTIONS) -> None:
        text = "\n".join(f"  - {problem}" for problem in problems)
        faults = "1 fault" if len(problems) == 1 else f"{len(problems)} faults"
        super().__init__(f"{faults} in {of}:\n{text}")
        self.problems = tuple(problems)


class CheckpointError(KshareError):
    """The offsets found in the checkpoint cannot be used."""


class CheckpointVersionError(CheckpointError):
    """The checkpoint was written by a later version of kshare.

    Attributes:
        version: The version that the checkpoint says.
    """

    def __init__(self, message: str, *, version: int | str) -> None:
        super().__init__(message)
        self.version = version


class KernelLibraryError(KshareError):
    """The compiled kernels of this installation are missing or damaged, and cannot be made."""


class PlanError(KshareError):
    """A plan does not tile the pending work: an assignor broke a law."""


class TaskAssignmentException(KshareError):  # noqa: N818 - KIP-924's name
    """A task assignor cannot answer now: the assignment stays as it is, and is tried again."""


class _PlacedError(KshareError):
    """An error at a place in Kafka. What is not known is None.

    Attributes:
        broker: The broker, as host:port.
        topic: The topic.
        partition: The partition's number.
        offset: The offset.
    """

    def __init__(
        self,
        message: str,
        *,
        broker: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.broker = broker
        self.topic = topic
        self.partition = partition
        self.offset = offset


class KafkaError(_PlacedError):
    """The cluster did not do what was asked, after the retries that make sense.

    Attributes:
        code: Kafka's error code, if a commit of a member was refused with one; else None.
    """

    code: int | None = None


class AuthenticationError(KafkaError):
    """Credentials, a certificate or a host name were not accepted. Not retried."""


class AuthorizationError(KafkaError):
    """The principal is known, but may not do this. Not retried."""


class UnknownTopicError(KafkaError):
    """The topic or the partition does not exist."""


class InternalTopicError(KafkaError):
    """A topic that kshare keeps for itself cannot be found or made. Not retried."""


class RecordRefusedError(KafkaError):
    """A record cannot be written: it is too large, or not as its topic wants it. Not retried."""


class LedgerRecordError(KafkaError):
    """The bytes of a query's record in the ledger of ``exactlyOnce`` are no state. Not retried."""


class FetchTimeoutError(KafkaError):
    """No progress within the stated time; the last cause is in the text."""


class DataLossError(_PlacedError):
    """Offsets that are wanted are not in the log any more.

    Attributes:
        wanted: The wanted offsets, as (start, end), half-open.
        available: The offsets that the log holds, as (start, end), half-open.
    """

    def __init__(
        self,
        message: str,
        *,
        wanted: tuple[int, int] | None = None,
        available: tuple[int, int] | None = None,
        broker: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message, broker=broker, topic=topic, partition=partition, offset=offset)
        self.wanted = wanted
        self.available = available


class FencedError(KshareError):
    """Another member of the group has claimed key hashes of this one, which must deliver no more.

    In a group without a log: its coordinator has dropped this one, so another may have them.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        hashes: The key hashes that were taken, as (lowest, end), half-open.
        other: Id of the member that has claimed them, as its ``memberid()``; None if that is not
            known.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        hashes: tuple[tuple[int, int], ...],
        other: str | None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.hashes = hashes
        self.other = other


class CommitFailedError(KshareError):
    """Some of what was to be committed was not, and will not be; all else is committed.

    It is delivered again, to this member or another one: its partition or its key hashes have gone,
    or the group's offsets were reset since it was handed out. As Kafka's ``CommitFailedException``.

    Attributes:
        offsets: The offsets that were processed and are not committed, of each (topic, partition):
            pairs of start and end, half-open.
    """

    def __init__(
        self,
        message: str,
        *,
        offsets: Mapping[tuple[str, int], tuple[tuple[int, int], ...]],
    ) -> None:
        super().__init__(message)
        self.offsets = dict(offsets)


class PolicyError(KshareError):
    """A policy that operators have set does not accept what was asked for.

    Attributes:
        policy: Name of the policy.
        topic: The topic that it is of; None for the whole cluster.
    """

    def __init__(self, message: str, *, policy: str, topic: str | None = None) -> None:
        super().__init__(message)
        self.policy = policy
        self.topic = topic


class CommitLogError(KshareError):
    """A record of the individual commit log cannot be read."""


class LaterVersionError(CommitLogError):
    """A later version of kshare has written the record."""


class OtherHashError(CommitLogError):
    """The record's key hashes are those of another hash function."""


class ForeignMemberError(KshareError):
    """A member of the group shares key ranges in another way, other settings, or shares none."""


class GroupAliveError(KshareError):
    """A member of the group is alive: nobody can change its offsets, or take its place, now."""


class UnknownGroupError(KshareError):
    """Nobody knows the group.

    Args:
        group: Its id.
        log_topic: The log that was looked at.
    """

    def __init__(self, group: str, log_topic: str) -> None:
        super().__init__(
            f"group {group} does not exist: brokers know no members and no offsets of it, and "
            f"topic {log_topic} has none of its records"
        )


class NoOffsetError(KshareError):
    """A group has no committed offset, and ``auto.offset.reset`` is ``error``."""


class TransactionAbortedError(KshareError):
    """A transaction of a consumer was aborted: none of it is visible, and its records come again.

    Where an answer of the broker was lost, it may have been committed: then its outputs are
    visible, and its records do not come again.
    """


class ConsumerClosedError(RuntimeError):
    """The consumer is closed: ``RuntimeError``, as confluent-kafka raises it."""

    def __init__(self) -> None:
        super().__init__("Consumer closed")


class PlotError(KshareError):
    """There is no picture: the text says why."""


class RecordError(_PlacedError):
    """The bytes of the log cannot be read."""


class CorruptRecordError(RecordError):
    """A checksum, a length or a compressed block does not fit: the batch is damaged."""


class RecordTooLargeError(RecordError):
    """A record is larger than ``maxRecordBytes``, or there is no memory to read it. It is sound.

    Attributes:
        size: Size of the record in bytes, decompressed; None if it is not known.
    """

    size: int | None = None


class UnsupportedFormatError(RecordError):
    """A batch that kshare does not read: message formats v0 and v1; unknown codecs.

    Or a timestamp that Spark's microseconds cannot hold.
    """


class BadRecordError(RecordError):
    """A key or a value is not what its format and its schema say. The log's bytes are sound.

    Attributes:
        column: ``key`` or ``value``.
        field: Dotted path of the field; empty if it is the whole.
        reason: The rest of a sentence about the field.
    """

    def __init__(
        self,
        message: str,
        *,
        column: str,
        field: str,
        reason: str,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message, topic=topic, partition=partition, offset=offset)
        self.column = column
        self.field = field
        self.reason = reason


class SchemaRegistryError(KshareError):
    """The schema registry did not answer, after the retries that make sense, or refuses.

    Attributes:
        url: Its address.
        subject: The subject that was asked for; None if it was an id.
        schema_id: The id that was asked for; None if it was a subject.
    """

    def __init__(
        self, message: str, *, url: str, subject: str | None = None, schema_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.url = url
        self.subject = subject
        self.schema_id = schema_id


class UnknownSchemaError(SchemaRegistryError):
    """The schema registry has no such schema. Not retried."""


class ProcessingError(KshareError):
    """A handler has failed for good, and its processor stops; the record is pending.

    Attributes:
        topic: The record's topic.
        partition: Its partition.
        offset: Its offset.
        attempts: Number of attempts.
    """

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int, attempts: int
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.attempts = attempts


class UndecodableError(KshareError):
    """A key or value cannot be deserialized; no other attempt is made."""
