"""What members say to each other: there and back, golden bytes, Kafka's own schemas, refusals."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.progress import TopicPartition
from kshare.group.protocol.subscription import (
    ForeignMemberError,
    MemberAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    in_order,
)
from tests.group.protocol.test_records import hash_ranges, offsets, topics

GOLDEN = Path(__file__).parent / "golden" / "members.json"
T0 = TopicPartition("orders", 0)
HALF = HashRange(0, HASH_SPACE // 2)
SUBSCRIPTION = Subscription(
    "pod-3-17-5f0c", ("orders", "refunds"), True, ((T0, (HALF,)),), ((T0, ()),), 41, "pod-3:80", "b"
)
ASSIGNMENT = MemberAssignment(
    ((T0, (HALF,)), (TopicPartition("orders", 2), ())), 41, ((T0, ()),), "5fZ0"
)

assigned = st.dictionaries(
    st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), hash_ranges(), max_size=3
).map(in_order)
subscriptions = st.builds(
    Subscription,
    topics,
    st.lists(topics, max_size=3).map(tuple),
    st.booleans(),
    assigned,
    st.none() | assigned,
    st.none() | offsets,
    topics,
    st.none() | topics,
    st.booleans(),
)
assignments = st.builds(
    MemberAssignment, assigned, st.none() | offsets, st.none() | assigned, topics, topics
)


@given(subscriptions)
def test_a_subscription_there_and_back(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription), "m") == subscription


@given(assignments)
def test_an_assignment_there_and_back(assignment: MemberAssignment) -> None:
    assert decode_assignment(encode_assignment(assignment)) == assignment


def test_the_bytes_stay() -> None:
    written = {
        "subscription": encode_subscription(SUBSCRIPTION).hex(),
        "assignment": encode_assignment(ASSIGNMENT).hex(),
    }
    assert written == json.loads(GOLDEN.read_text())


def test_kafkas_own_schemas_read_them() -> None:
    said = ConsumerProtocolSubscription.decode(encode_subscription(SUBSCRIPTION))
    assert list(said.topics) == ["orders", "refunds"]
    got = ConsumerProtocolAssignment.decode(encode_assignment(ASSIGNMENT))
    (topic,) = got.assigned_partitions
    assert (topic.topic, list(topic.partitions)) == ("orders", [0, 2])
    empty = ConsumerProtocolAssignment.decode(encode_assignment(MemberAssignment((), 7)))
    assert empty.user_data  # else brokers would convert the group


def changed(data: bytes, old: bytes, new: bytes) -> bytes:
    """Bytes with another value of the same length in their user data."""
    assert old in data
    assert len(old) == len(new)
    return data.replace(old, new)


def test_another_version_and_another_hash_are_named() -> None:
    data = encode_subscription(SUBSCRIPTION)
    with pytest.raises(ForeignMemberError, match=r"member m-7 speaks version 2 .* version 1"):
        decode_subscription(changed(data, b'"kshare":1', b'"kshare":2'), "m-7")
    with pytest.raises(ForeignMemberError, match="hashes keys by 'murmur9"):
        decode_subscription(changed(data, b"murmur3", b"murmur9"), "m-7")


def test_assignments_of_other_clients_are_refused() -> None:
    plain = ConsumerProtocolAssignment(version=0, assigned_partitions=[], user_data=b"")
    for data in (plain.encode(), b"", b"\0\0", b"\0\0\0\0\0\0\xff\xff\xff\xff"):
        with pytest.raises(ForeignMemberError):
            decode_assignment(data)
    with pytest.raises(ForeignMemberError, match="another client"):
        decode_assignment(plain.encode())


@given(st.binary(max_size=60))
def test_damage_is_an_error_of_ours(data: bytes) -> None:
    for decode in (decode_assignment, lambda each: decode_subscription(each, "m")):
        with pytest.raises(ForeignMemberError):
            decode(data)


@given(st.integers(0, 200), st.integers(0, 255))
def test_damaged_bytes_are_read_or_refused(at: int, byte: int) -> None:
    data = bytearray(encode_subscription(SUBSCRIPTION))
    data[at % len(data)] = byte
    try:
        decode_subscription(bytes(data), "m")
    except ForeignMemberError:
        return
