"""Kafka's range assignor: its laws, Java's own examples, and what members are sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.protocol.commit_log.consumer_protocol import (
    decode_partitions,
    decode_topics,
    encode_partitions,
    encode_topics,
)
from kshare.group.protocol.membership.subscription import (
    MemberAssignment,
    Subscription,
    decode_assignment,
    encode_subscription,
)
from kshare.group.protocol.plan.generation import plan_range, range_assignment, topics_of_all

names = st.text(min_size=1, max_size=4)
topics = st.sampled_from(["a", "b", "c"])
subscriptions = st.dictionaries(names, st.sets(topics), min_size=1, max_size=6)
counts = st.dictionaries(topics, st.integers(0, 9))


def listed(*partitions: tuple[str, int]) -> list[TopicPartition]:
    return [TopicPartition(*each) for each in partitions]


@given(subscriptions, counts, st.data())
def test_the_laws(
    said: dict[str, set[str]], partitions: dict[str, int], data: st.DataObject
) -> None:
    static = data.draw(st.sets(st.sampled_from(sorted(said))))
    ids = data.draw(st.lists(names, min_size=len(static), max_size=len(static), unique=True))
    instances = dict(zip(sorted(static), ids, strict=True))
    assigned = range_assignment(said, partitions, instances)
    assert assigned.keys() == said.keys()
    for topic in "abc":
        subscribers = [member for member in said if topic in said[member]]
        parts = {
            member: [tp.partition for tp in mine if tp.topic == topic]
            for member, mine in assigned.items()
        }
        everything = sorted(number for numbers in parts.values() for number in numbers)
        assert everything == list(range(partitions.get(topic, 0) if subscribers else 0))
        sizes = [len(parts[member]) for member in subscribers]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        for numbers in parts.values():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)) if numbers else [])
    again = range_assignment(dict(reversed(said.items())), partitions, instances)
    assert again == assigned


@pytest.mark.parametrize(
    ("said", "partitions", "instances", "assigned"),
    [  # RangeAssignorTest of Kafka
        ({"c1": {"a"}}, {}, {}, {"c1": []}),
        ({"c1": set()}, {"a": 3}, {}, {"c1": []}),
        ({"c1": {"a"}, "c2": {"a"}}, {"a": 1}, {}, {"c1": listed(("a", 0)), "c2": []}),
        (
            {"c1": {"a"}, "c2": {"a", "b"}, "c3": {"a"}},
            {"a": 3, "b": 2},
            {},
            {
                "c1": listed(("a", 0)),
                "c2": listed(("a", 1), ("b", 0), ("b", 1)),
                "c3": listed(("a", 2)),
            },
        ),
        (
            {"c1": {"a", "b"}, "c2": {"a", "b"}},
            {"a": 3, "b": 3},
            {},
            {
                "c1": listed(("a", 0), ("a", 1), ("b", 0), ("b", 1)),
                "c2": listed(("a", 2), ("b", 2)),
            },
        ),
        (  # static members come first, by group.instance.id
            {"c1": {"a"}, "c2": {"a"}, "c3": {"a"}},
            {"a": 3},
            {"c3": "x", "c2": "y"},
            {"c3": listed(("a", 0)), "c2": listed(("a", 1)), "c1": listed(("a", 2))},
        ),
    ],
)
def test_java_s_examples(
    said: dict[str, set[str]],
    partitions: dict[str, int],
    instances: dict[str, str],
    assigned: dict[str, list[TopicPartition]],
) -> None:
    assert range_assignment(said, partitions, instances) == assigned


OURS = encode_subscription(Subscription("pod", ("a",)))
JAVAS = ConsumerProtocolSubscription(
    version=3,
    topics=["a", "b"],
    user_data=None,
    owned_partitions=[],
    generation_id=-1,
    rack_id="r",
).encode()


def test_each_kind_of_member_reads_its_own_assignment() -> None:
    members = {"c1": JAVAS, "c2": OURS}
    assert topics_of_all({**members, "c3": b"?"}) == {"a", "b"}
    planned = plan_range(members, {"a": 3, "b": 1}, {})
    assert planned.plain == ("c1",)
    assert not planned.refusals
    plain = ConsumerProtocolAssignment.decode(planned.assignments["c1"])
    got = {each.topic: list(each.partitions) for each in plain.assigned_partitions}
    assert got == {"a": [0, 1], "b": [0]}
    assert plain.user_data is None
    ours = ConsumerProtocolAssignment.decode(planned.assignments["c2"])
    assert ours.user_data  # brokers do not convert the group
    whole = MemberAssignment(((TopicPartition("a", 2), ALL_HASHES),), None)
    assert decode_assignment(planned.assignments["c2"]) == whole


def test_members_of_another_version_are_refused_and_the_others_are_assigned() -> None:
    members = {"c1": OURS.replace(b'"kshare":1', b'"kshare":3'), "c2": OURS, "c3": b"?"}
    planned = plan_range(members, {"a": 3}, {})
    assert planned.refusals.keys() == {"c1", "c3"}
    assert "version 3" in decode_assignment(planned.assignments["c1"]).refusal
    assert len(decode_assignment(planned.assignments["c2"]).assigned) == 3


partitions = st.lists(
    st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), unique=True
).map(sorted)


@given(partitions, st.none() | st.binary(), st.lists(st.text()), st.binary())
def test_there_and_back(
    assigned: list[TopicPartition], data: bytes | None, said: list[str], said_data: bytes
) -> None:
    assert decode_partitions(encode_partitions(assigned, data)) == (tuple(assigned), data or b"")
    assert decode_topics(encode_topics(said, said_data)) == (tuple(said), said_data)


@given(st.binary(max_size=60))
def test_damage_is_a_value_error(data: bytes) -> None:
    codecs = ((decode_partitions, encode_partitions), (decode_topics, encode_topics))
    for decode, encode in codecs:
        try:
            read = decode(data)
        except ValueError:
            continue
        assert decode(encode(*read)) == read
