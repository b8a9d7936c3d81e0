"""Compressed user data: there and back, golden bytes, damage, and how large a group may be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.errors import ForeignMemberError
from kshare.group.protocol.commit_log.consumer_protocol import COMPRESSED, PLAIN
from kshare.group.protocol.membership.membership_state import Membership
from kshare.group.protocol.membership.requests import Join
from kshare.group.protocol.membership.subscription import (
    PROTOCOL,
    MemberAssignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    in_order,
)
from kshare.group.protocol.plan.generation import Generation, plan_generation
from tests.group.protocol.test_subscription import (
    ASSIGNMENT,
    SUBSCRIPTION,
    T0,
    assignments,
    subscriptions,
)

GOLDEN = Path(__file__).parent / "golden" / "compressed_members.json"
RECORD_BYTES = 1 << 20
OF_THE_COORDINATOR = 150  # bytes of a member: ids, host, time-outs
TOPIC = "orders-of-all-customers1"


@given(subscriptions)
def test_a_subscription_there_and_back(subscription: Subscription) -> None:
    data = encode_subscription(subscription, compressed=True)
    assert decode_subscription(data, "m") == subscription


@given(assignments)
def test_an_assignment_there_and_back(assignment: MemberAssignment) -> None:
    compressed = replace(assignment, compressed=True)
    assert decode_assignment(encode_assignment(compressed)) == compressed


def test_the_bytes_can_be_read_for_ever() -> None:
    """What another zlib writes may differ, but what was written stays readable."""
    golden = {name: bytes.fromhex(data) for name, data in json.loads(GOLDEN.read_text()).items()}
    assert decode_subscription(golden["subscription"], "m") == SUBSCRIPTION
    assert decode_assignment(golden["assignment"]) == replace(ASSIGNMENT, compressed=True)


@given(st.data())
def test_damage_is_an_error_that_says_so(data: st.DataObject) -> None:
    good = encode_subscription(SUBSCRIPTION, compressed=True)
    first = good.index(b'"z":"') + 5
    at = data.draw(st.integers(first, len(good) - 3))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[at]))
    with pytest.raises(ForeignMemberError, match="m-7"):
        decode_subscription(good[:at] + bytes([byte]) + good[at + 1 :], "m-7")


def test_damage_of_spare_bits_is_an_error_too() -> None:
    """The last group of base85 has fewer bytes, so its last character has bits of no byte."""
    good = encode_subscription(SUBSCRIPTION, compressed=True)
    for byte in set(range(256)) - {good[-3]}:
        with pytest.raises(ForeignMemberError, match="m-7"):
            decode_subscription(good[:-3] + bytes([byte]) + good[-2:], "m-7")


def test_a_thousand_members_of_ten_thousand_partitions_fit_into_the_coordinators_record() -> None:
    """A broker takes it, too: ``python -m bench.group_size``."""
    size = 0
    for number in range(1_000):
        own = in_order({TopicPartition(TOPIC, number + 1_000 * i): ALL_HASHES for i in range(10)})
        said = Subscription(
            f"worker-7f9c-{number:04}-17-5f0c", (TOPIC,), True, own, None, 123_456,
            f"10.2.{number}.7:8080", reads=COMPRESSED,
        )  # fmt: skip
        sent = MemberAssignment(own, 123_456, None, "5fZ0" * 6, compressed=True)
        size += len(encode_subscription(said, compressed=True)) + len(encode_assignment(sent))
        size += OF_THE_COORDINATOR
    assert size < 0.7 * RECORD_BYTES


# -- who reads what --------------------------------------------------------------------------------


def planned(*reads: int) -> Generation:
    said = {
        f"m{i}": encode_subscription(Subscription(f"m{i}", ("orders",), reads=version))
        for i, version in enumerate(reads)
    }
    return plan_generation(3, "m0", said, {"orders": 2})


@pytest.mark.parametrize(
    ("reads", "compressed"), [((2, 2), True), ((2, 3), True), ((2, 1), False), ((1,), False)]
)
def test_a_leader_compresses_what_all_members_read(
    reads: tuple[int, ...], compressed: bool
) -> None:
    for sent in planned(*reads).assignments(7, "log").values():
        assert decode_assignment(sent).compressed == compressed


@pytest.mark.parametrize("compressed", [False, True])
def test_a_member_compresses_once_its_leader_has(compressed: bool) -> None:
    member = Membership("g", Subscription("m0", ("orders",), reads=COMPRESSED))
    first = member.action()
    assert isinstance(first, Join)
    assert b'"kshare":1' in first.subscription
    member.joined("id", 1, "other", {}, protocol=PROTOCOL)
    member.action()
    sent = MemberAssignment(((T0, ALL_HASHES),), 41, None, "log", compressed=compressed)
    member.synced(encode_assignment(sent))
    assert member.take() is not None
    member.applied()
    member.rebalance()
    again = member.action()
    assert isinstance(again, Join)
    version = COMPRESSED if compressed else PLAIN
    assert b'"kshare":%d' % version in again.subscription
    said = decode_subscription(again.subscription, "m")
    assert said.owned == ((T0, ALL_HASHES),)
    assert said.target is None  # that is what it owns
