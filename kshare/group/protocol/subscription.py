"""What members say to each other through the group's coordinator, and its bytes.

The outer form is Kafka's own ("consumer" protocol, version 0), so that ``kafka-consumer-groups``
shows members and partitions::

    subscription: version (int16), topics (array of string), user data (bytes)
    assignment:   version (int16), topics with partitions (array), user data (bytes)

Key ranges are in the user data, as JSON. Those of an assignment are never empty: brokers would
otherwise convert the group to one that assigns whole partitions by itself.

``decode_x(encode_x(value)) == value``, and equal values have equal bytes.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kshare.core.hashing import HashRange
from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group.protocol.records import assignment_of, assignment_value
from kshare.group.protocol.report import NO_REPORT, MemberReport, report_of, report_value

__all__ = [
    "HASH",
    "PROTOCOL",
    "PROTOCOL_TYPE",
    "VERSION",
    "Assigned",
    "Assignment",
    "ForeignMemberError",
    "MemberAssignment",
    "Subscription",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
    "in_order",
]

PROTOCOL_TYPE: Final = "consumer"
"""What Kafka's own consumers say, and their tools expect."""

PROTOCOL: Final = "kshare-range-v1"
"""The name of the assignment protocol: members vote for it."""

VERSION: Final = 1
"""The version of the user data that this code writes, and the only one that it reads."""

HASH: Final = "murmur3-x64-128/2"
"""The key hash: the first 64 bits of MurmurHash3 x64-128, seed 0, shifted right by one."""

Assigned: TypeAlias = Mapping[TopicPartition, tuple[HashRange, ...]]
"""Key hashes of each partition, ascending, not adjacent; empty for all."""


Assignment: TypeAlias = tuple[tuple[TopicPartition, tuple[HashRange, ...]], ...]
"""The same as pairs, in the order of the partitions."""


class ForeignMemberError(KshareError):
    """A member of the group shares key ranges in another way, or not at all."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member says when it joins.

    Attributes:
        name: Name of its session.
        topics: The topics, in order.
        individual: Whether it shares partitions (``allow.individual.commit``).
        owned: The key hashes that it owns and does not give up by joining.
        target: What it was assigned last, with what others had still to give up; None if that is
            what it owns.
        epoch: The epoch of the target; None if there is none.
        host: Where others reach it (``application.server``), or the host's name.
        rack: Its rack (``client.rack``); None if it has none.
        ordered: Whether it keeps the order of each key (``consumption.order``).
        report: What it tells the leader beside that.
    """

    name: str
    topics: tuple[str, ...]
    individual: bool = True
    owned: Assignment = ()
    target: Assignment | None = None
    epoch: int | None = None
    host: str = ""
    rack: str | None = None
    ordered: bool = True
    report: MemberReport = NO_REPORT


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What the leader assigns to a member.

    Attributes:
        assigned: The key hashes of each partition, in order; empty for all.
        target: With those that others have still to give up; None if no other round follows.
        epoch: Log offset of the epoch's record; None if there is none, or the member is refused.
        topic_id: Id of the log's topic; empty if brokers give none.
        refusal: Why the member takes no part; empty if it does.
    """

    assigned: Assignment
    epoch: int | None
    target: Assignment | None = None
    topic_id: str = ""
    refusal: str = ""


def encode_subscription(subscription: Subscription) -> bytes:
    """The bytes of a subscription."""
    user_data = {
        "kshare": VERSION,
        "hash": HASH,
        "name": subscription.name,
        "individual": subscription.individual,
        "owned": assignment_value(subscription.owned),
        **_target(subscription.target),
        "epoch": subscription.epoch,
        "host": subscription.host,
        "rack": subscription.rack,
        **({} if subscription.ordered else {"ordered": False}),
        **report_value(subscription.report),
    }
    return b"".join(
        [
            struct.pack(">hi", 0, len(subscription.topics)),
            *map(_string, subscription.topics),
            _bytes(_dumps(user_data)),
        ]
    )


def decode_subscription(data: bytes, member: str) -> Subscription:
    """The subscription that some bytes hold.

    Args:
        data: The bytes.
        member: Id of the member, for the error.

    Raises:
        ForeignMemberError: They are of another client, another version or another key hash.
    """
    reader = _Reader(data)
    try:
        version = reader.int16()
        topics = tuple(reader.string() for _ in range(reader.length()))
        fields = _user_data(reader.blob())
        if version < 0 or fields is None:
            raise ForeignMemberError(
                f"member {member} of the group shares no key ranges: it is another client than "
                "kshare, or its subscription is damaged"
            )
        _check_version(fields, member)
        epoch, rack = fields["epoch"], fields["rack"]
        subscription = Subscription(
            _text(fields["name"]),
            topics,
            _flag(fields["individual"]),
            assignment_of(fields["owned"]),
            _target_of(fields),
            None if epoch is None else _offset(epoch),
            _text(fields["host"]),
            None if rack is None else _text(rack),
            _flag(fields.get("ordered", True)),
            report_of(fields),
        )
    except (KeyError, TypeError, ValueError, KshareError, struct.error) as error:
        if isinstance(error, ForeignMemberError):
            raise
        raise ForeignMemberError(
            f"the subscription of member {member} of the group cannot be read: {error!r}"
        ) from error
    return subscription


def encode_assignment(assignment: MemberAssignment) -> bytes:
    """The bytes of an assignment."""
    user_data = {
        "kshare": VERSION,
        "hash": HASH,
        "assigned": assignment_value(assignment.assigned),
        **_target(assignment.target),
        "epoch": assignment.epoch,
        "topic_id": assignment.topic_id,
        **({"refusal": assignment.refusal} if assignment.refusal else {}),
    }
    by_topic: dict[str, list[int]] = {}
    for (topic, partition), _ in assignment.assigned:
        by_topic.setdefault(topic, []).append(partition)
    return b"".join(
        [
            struct.pack(">hi", 0, len(by_topic)),
            *(_string(topic) + _int32s(numbers) for topic, numbers in by_topic.items()),
            _bytes(_dumps(user_data)),
        ]
    )


def decode_assignment(data: bytes) -> MemberAssignment:
    """The assignment that some bytes hold.

    Raises:
        ForeignMemberError: They are of another client, another version or another key hash.
    """
    reader = _Reader(data)
    try:
        version = reader.int16()
        for _ in range(reader.length()):
            reader.string()
            for _ in range(reader.length()):
                reader.int32()
        fields = _user_data(reader.blob())
        if version < 0 or fields is None:
            raise ForeignMemberError(
                "the group's leader assigns no key ranges: it is another client than kshare, or "
                "the group was converted to group.protocol=consumer"
            )
        _check_version(fields, "that leads the group")
        epoch = fields["epoch"]
        return MemberAssignment(
            assignment_of(fields["assigned"]),
            None if epoch is None else _offset(epoch),
            _target_of(fields),
            _text(fields["topic_id"]),
            _text(fields.get("refusal", "")),
        )
    except (KeyError, TypeError, ValueError, KshareError, struct.error) as error:
        if isinstance(error, ForeignMemberError):
            raise
        raise ForeignMemberError(f"the group's assignment cannot be read: {error!r}") from error


# -- bytes -----------------------------------------------------------------------------------------


class _Reader:
    """Reads Kafka's primitive types."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def length(self) -> int:
        """The length of an array, of which each element takes two bytes at least."""
        length = self.int32()
        if not 0 <= length <= len(self._data) // 2:
            raise ValueError(f"an array of {length}")
        return length

    def string(self) -> str:
        return self._take(self.int16()).decode()

    def blob(self) -> bytes:
        length = self.int32()
        return b"" if length == -1 else self._take(length)

    def _number(self, form: str, size: int) -> int:
        number: int
        (number,) = struct.unpack(form, self._take(size))
        return number

    def _take(self, size: int) -> bytes:
        if size < 0 or self._position + size > len(self._data):
            raise ValueError("it is cut short")
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _int32s(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


def _dumps(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _target(target: Assignment | None) -> dict[str, Any]:
    return {} if target is None else {"target": assignment_value(target)}


def _target_of(fields: Mapping[str, Any]) -> Assignment | None:
    return assignment_of(fields["target"]) if "target" in fields else None


# -- checks ----------------------------------------------------------------------------------------


def _user_data(data: bytes) -> dict[str, Any] | None:
    """The user data; None if they are not kshare's."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and "kshare" in fields else None


def _check_version(fields: Mapping[str, Any], member: str) -> None:
    version, hash_ = fields["kshare"], fields.get("hash")
    if version != VERSION or type(version) is not int:
        raise ForeignMemberError(
            f"the member {member} speaks version {version!r} of kshare's group protocol, this one "
            f"version {VERSION}: install the same version on all members"
        )
    if hash_ != HASH:
        raise ForeignMemberError(
            f"the member {member} hashes keys by {hash_!r}, this one by {HASH!r}: the members of "
            "a group need the same hash"
        )


def _text(value: Any) -> str:
    return str(_of_type(value, str))


def _flag(value: Any) -> bool:
    return bool(_of_type(value, bool))


def _offset(value: Any) -> int:
    offset = int(_of_type(value, int))
    if offset < 0:
        raise ValueError(f"found {offset}; wanted 0 or more")
    return offset


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"found {value!r:.100}; wanted {kind.__name__}")
    return value


def in_order(assigned: Assigned) -> Assignment:
    """An assignment as it is said: its partitions in order."""
    return tuple(sorted(assigned.items()))
