"""What members say to each other: there and back, golden bytes, Kafka's own schemas, refusals."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges
from kshare.core.progress import TopicPartition
from kshare.core.slicing import RangeObservation
from kshare.errors import ForeignMemberError
from kshare.group.protocol.membership.report import MemberReport, bounded
from kshare.group.protocol.membership.subscription import (
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
    "pod-3-17-5f0c",
    ("orders", "refunds"),
    True,
    ((T0, KeyRanges([HALF])),),
    ((T0, ALL_HASHES),),
    41,
    "pod-3:80",
    "b",
)
ASSIGNMENT = MemberAssignment(
    ((T0, KeyRanges([HALF])), (TopicPartition("orders", 2), ALL_HASHES)),
    41,
    ((T0, ALL_HASHES),),
    "5fZ0",
)

assigned = st.dictionaries(
    st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), hash_ranges(), max_size=3
).map(in_order)
counts = st.integers(0, 2**40)


@st.composite
def observations(draw: st.DrawFn) -> RangeObservation:
    hashes = draw(st.sampled_from([HALF, WHOLE, HashRange(7, 8)]))
    sample = draw(st.lists(st.integers(0, HASH_SPACE - 1), max_size=5))
    seconds = draw(st.none() | st.floats(0, 1e9))
    return RangeObservation(hashes, draw(counts), draw(counts), seconds, tuple(sorted(sample)))


partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))
reports = st.builds(
    MemberReport,
    st.just("round-robin") | topics,
    st.none() | topics,
    st.dictionaries(topics, topics, max_size=3).map(lambda tags: tuple(sorted(tags.items()))),
    st.lists(
        st.tuples(partitions, st.lists(observations(), max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    st.lists(st.tuples(partitions, counts), max_size=3).map(tuple),
)
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
    reports,
    instance=st.just("") | topics,
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
    with pytest.raises(ForeignMemberError, match=r"member m-7 speaks version 3 .* version 2"):
        decode_subscription(changed(data, b'"kshare":1', b'"kshare":3'), "m-7")
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


def test_a_report_that_says_nothing_is_not_there() -> None:
    """So members of the version before say the same bytes, and are understood."""
    fields = json.loads(encode_subscription(SUBSCRIPTION)[2 + 4 + 8 + 9 + 4 :])
    assert fields.keys() == {
        *("kshare", "hash", "name", "individual", "owned", "target", "epoch", "host", "rack"),
    }
    assert decode_subscription(encode_subscription(SUBSCRIPTION), "m").report == MemberReport()


def test_a_member_says_three_kilobytes_of_loads_at_most() -> None:
    sample = tuple(range(HASH_SPACE - 256, HASH_SPACE))
    seen = [
        RangeObservation(HashRange(lo, HASH_SPACE), 2**40, 2**40, 12345.678, sample)
        for lo in range(HASH_SPACE - 300, HASH_SPACE - 256)
    ]
    loads = bounded(((T0, tuple(seen[:20])), (TopicPartition("orders", 1), tuple(seen[20:]))))
    report = MemberReport("adaptive", loads=loads, spans=(59.9,) * len(loads))
    said = encode_subscription(replace(SUBSCRIPTION, report=report))
    assert decode_subscription(said, "m").report == report
    assert sum(len(observed) for _, observed in loads) == 16
    assert len(said) - len(encode_subscription(SUBSCRIPTION)) < 3_500
    assert bounded(loads) == loads


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loads", [["orders", 0, [[0, 5, 1, 1, 0.5, "AAAA"]]]]),  # no eight bytes
        ("loads", [["orders", 0, [[0, 5, 1, 1, -0.5, ""]]]]),
        ("loads", [["orders", 0, [[0, 5, -1, 1, 0.5, ""]]]]),
        ("loads", [["orders", 0, [[5, 5, 1, 1, 0.5, ""]]]]),
        ("loads", [["orders", -1, []]]),
        ("lags", [["orders", 0, "many"]]),
        ("spans", [-1.0]),
        ("spans", ["long"]),
        ("tags", {"zone": 7}),
        ("range_assignor", None),
    ],
)
def test_a_wrong_report_is_refused(field: str, value: object) -> None:
    fields = {"kshare": 1, "hash": "murmur3-x64-128/2", "name": "n", "individual": True}
    fields |= {"owned": [], "epoch": None, "host": "", "rack": None, field: value}
    data = json.dumps(fields).encode()
    with pytest.raises(ForeignMemberError, match="member m of the group cannot be read"):
        decode_subscription(struct.pack(">hii", 0, 0, len(data)) + data, "m")


@given(st.integers(0, 200), st.integers(0, 255))
def test_damaged_bytes_are_read_or_refused(at: int, byte: int) -> None:
    data = bytearray(encode_subscription(SUBSCRIPTION))
    data[at % len(data)] = byte
    try:
        read = decode_subscription(bytes(data), "m")
    except ForeignMemberError:
        return
    assert decode_subscription(encode_subscription(read), "m") == read


def test_a_time_that_no_clock_reaches_is_the_last_one() -> None:
    """It would end each plan that counts on it: a float cannot hold it."""
    sent = encode_assignment(replace(ASSIGNMENT, followup_ms=10**400))
    assert decode_assignment(sent).followup_ms == 2**63 - 1


@pytest.mark.parametrize("followup", [-1, -62_135_596_800_000])
def test_a_time_that_is_none_costs_nobody_its_membership(followup: int) -> None:
    """A leader of an earlier version has sent what an assignor wanted at once."""
    sent = replace(ASSIGNMENT, followup_ms=followup)
    assert decode_assignment(encode_assignment(sent)).followup_ms is None
