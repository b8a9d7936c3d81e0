"""What members say to each other through the group's coordinator, and its bytes.

The outer form is Kafka's own (:mod:`.consumer_protocol`), so that ``kafka-consumer-groups`` shows
members and partitions. Key ranges are in the user data, as JSON. Those of an assignment are never
empty: brokers would otherwise convert the group to one that assigns whole partitions by itself.

``decode_x(encode_x(value)) == value``, and equal values have equal bytes.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kshare.core.bounded_json import COUNT_MAX, DAMAGE, count_of, flag_of, text_of
from kshare.core.hashing import ALL_HASHES, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError, KshareError
from kshare.group.protocol.commit_log.consumer_protocol import (
    COMPRESSED,
    PLAIN,
    check_fields,
    decode_partitions,
    decode_topics,
    encode_partitions,
    encode_topics,
    encoded,
    fields_of,
)
from kshare.group.protocol.commit_log.record_codec import assignment_of, assignment_value
from kshare.group.protocol.commit_log.shared_settings import Settings, settings_of, settings_value
from kshare.group.protocol.membership.report import NO_REPORT, MemberReport, report_of, report_value

__all__ = [
    "PROTOCOL",
    "RANGE",
    "Assigned",
    "Assignment",
    "MemberAssignment",
    "Subscription",
    "decode_assignment",
    "decode_subscription",
    "denied_to",
    "encode_assignment",
    "encode_subscription",
    "in_order",
    "is_of_kshare",
]

PROTOCOL: Final = "kshare-range-v1"
"""The name of the assignment protocol: members vote for it."""

RANGE: Final = "range"
"""The name of Kafka's range assignor, for groups with members that are not kshare consumers."""

_DAMAGE: Final = (*DAMAGE, KshareError)

Assigned: TypeAlias = Mapping[TopicPartition, KeyRanges]
"""Key hashes of each partition."""

Assignment: TypeAlias = tuple[tuple[TopicPartition, KeyRanges], ...]
"""The same as pairs, in the order of the partitions."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member says when it joins.

    Attributes:
        name: Id of its session.
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
        reads: The latest version of user data that it reads.
        followup_ms: When its last leader wanted to plan again, in ms since 1970; None if it has not
            said so.
        instance: Members with the same value count as one host (``group.instance.host``); empty:
            its own host.
        settings: What all members must share.
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
    reads: int = PLAIN
    followup_ms: int | None = None
    instance: str = ""
    settings: Settings = ()


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What the leader assigns to a member.

    Attributes:
        assigned: The key hashes of each partition, in order.
        target: With those that others have still to give up; None if no other round follows.
        epoch: Log offset of the epoch's record; None if there is none, or the member is refused.
        topic_id: Id of the log's topic; empty if brokers give none.
        refusal: Why the member takes no part; empty if it does.
        is_plain: Whether another client wrote it, which knows no key ranges.
        denied: Topics of its subscription that the leader may not describe; nobody has them.
        compressed: Whether all members of the generation read compressed user data.
        followup_ms: When the leader wants to plan again, in ms since 1970; None: not before
            something changes.
        forbidden: Topics of its subscription that policies keep from all members, as they would
            share their partitions; each with the policy's name.
    """

    assigned: Assignment
    epoch: int | None
    target: Assignment | None = None
    topic_id: str = ""
    refusal: str = ""
    is_plain: bool = False
    denied: tuple[str, ...] = ()
    compressed: bool = False
    followup_ms: int | None = None
    forbidden: tuple[tuple[str, str], ...] = ()


def encode_subscription(subscription: Subscription, *, compressed: bool = False) -> bytes:
    """The bytes of a subscription.

    Args:
        subscription: What is said.
        compressed: Whether all members of the group read compressed user data.
    """
    user_data = {
        "name": subscription.name,
        "individual": subscription.individual,
        "owned": assignment_value(subscription.owned),
        **_target(subscription.target),
        "epoch": subscription.epoch,
        "host": subscription.host,
        "rack": subscription.rack,
        **({} if subscription.ordered else {"ordered": False}),
        **report_value(subscription.report),
        **({} if subscription.reads == PLAIN else {"reads": subscription.reads}),
        **_followup(subscription.followup_ms),
        **({"instance": subscription.instance} if subscription.instance else {}),
        **settings_value(subscription.settings),
    }
    return encode_topics(subscription.topics, encoded(user_data, compressed=compressed))


def decode_subscription(data: bytes, member: str) -> Subscription:
    """The subscription that some bytes hold.

    Args:
        data: The bytes.
        member: Id of the member, for the error.

    Raises:
        ForeignMemberError: They are of another client, another version or another key hash.
    """
    try:
        topics, user_data = decode_topics(data)
        fields = fields_of(user_data)
        if fields is None:
            raise ForeignMemberError(
                f"member {member} of the group shares no key ranges: it is another client than "
                "kshare, or its subscription is damaged"
            )
        check_fields(fields, member)
        epoch, rack = fields["epoch"], fields["rack"]
        subscription = Subscription(
            text_of(fields["name"]),
            topics,
            flag_of(fields["individual"]),
            assignment_of(fields["owned"]),
            _target_of(fields),
            None if epoch is None else count_of(epoch),
            text_of(fields["host"]),
            None if rack is None else text_of(rack),
            flag_of(fields.get("ordered", True)),
            report_of(fields),
            count_of(fields.get("reads", PLAIN)),
            _followup_of(fields),
            text_of(fields.get("instance", "")),
            settings_of(fields),
        )
    except _DAMAGE as error:
        if isinstance(error, ForeignMemberError):
            raise
        raise ForeignMemberError(
            f"the subscription of member {member} of the group cannot be read: {error!r}"
        ) from error
    return subscription


def encode_assignment(assignment: MemberAssignment) -> bytes:
    """The bytes of an assignment."""
    user_data = {
        "assigned": assignment_value(assignment.assigned),
        **_target(assignment.target),
        "epoch": assignment.epoch,
        "topic_id": assignment.topic_id,
        **({"refusal": assignment.refusal} if assignment.refusal else {}),
        **({"denied": assignment.denied} if assignment.denied else {}),
        **({"forbidden": assignment.forbidden} if assignment.forbidden else {}),
        **_followup(assignment.followup_ms),
    }
    data = encoded(user_data, compressed=assignment.compressed)
    return encode_partitions((tp for tp, _ in assignment.assigned), data)


def decode_assignment(data: bytes, *, is_plain_allowed: bool = False) -> MemberAssignment:
    """The assignment that some bytes hold.

    Args:
        data: The bytes.
        is_plain_allowed: Whether the leader may be another client, which assigns whole partitions.

    Raises:
        ForeignMemberError: They are of another client, another version or another key hash.
    """
    try:
        if not data and is_plain_allowed:
            return MemberAssignment((), None, is_plain=True)
        partitions, user_data = decode_partitions(data)
        fields = fields_of(user_data)
        # librdkafka's assignors send each member the user data of its own subscription.
        if is_plain_allowed and (fields is None or "assigned" not in fields):
            return MemberAssignment(
                in_order(dict.fromkeys(partitions, ALL_HASHES)), None, is_plain=True
            )
        if fields is None:
            raise ForeignMemberError(
                "the group's leader assigns no key ranges: it is another client than kshare, or "
                "the group was converted to group.protocol=consumer"
            )
        check_fields(fields, "that leads the group")
        epoch = fields["epoch"]
        return MemberAssignment(
            assignment_of(fields["assigned"]),
            None if epoch is None else count_of(epoch),
            _target_of(fields),
            text_of(fields["topic_id"]),
            text_of(fields.get("refusal", "")),
            denied=tuple(map(text_of, fields.get("denied", ()))),
            compressed=fields["kshare"] == COMPRESSED,
            followup_ms=_followup_of(fields),
            forbidden=tuple(
                (text_of(topic), text_of(policy)) for topic, policy in fields.get("forbidden", ())
            ),
        )
    except _DAMAGE as error:
        if isinstance(error, ForeignMemberError):
            raise
        raise ForeignMemberError(f"the group's assignment cannot be read: {error!r}") from error


def _followup(followup_ms: int | None) -> dict[str, int]:
    return {} if followup_ms is None else {"followup": followup_ms}


def _followup_of(fields: Mapping[str, Any]) -> int | None:
    """When the leader wants to plan again; one that is no time costs nobody its membership."""
    try:
        # No later than Java's clock: what floats cannot hold would end the plan that counts on it.
        return count_of(min(fields["followup"], COUNT_MAX)) if "followup" in fields else None
    except _DAMAGE:
        return None


def _target(target: Assignment | None) -> dict[str, Any]:
    return {} if target is None else {"target": assignment_value(target)}


def _target_of(fields: Mapping[str, Any]) -> Assignment | None:
    return assignment_of(fields["target"]) if "target" in fields else None


# -- checks ----------------------------------------------------------------------------------------


def is_of_kshare(user_data: bytes) -> bool:
    """True if the user data of a subscription or an assignment are those of some kshare member."""
    try:
        return fields_of(user_data) is not None
    except _DAMAGE:
        return True


def denied_to(topics: Iterable[str], denied: Collection[str]) -> tuple[str, ...]:
    """The topics of a member that the leader may not describe, in order."""
    return tuple(sorted(set(topics).intersection(denied)))


def in_order(assigned: Assigned) -> Assignment:
    """An assignment as it is said: its partitions in order."""
    return tuple(sorted(assigned.items()))
