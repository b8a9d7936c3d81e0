"""A generation as its leader plans it, where members differ in the order that they keep."""

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.protocol.membership.subscription import (
    Assigned,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_subscription,
    in_order,
)
from kshare.group.protocol.plan.generation import fits_topics, plan_generation

ALL: Assigned = {TopicPartition("a", 0): ALL_HASHES, TopicPartition("a", 1): ALL_HASHES}


def said(name: str, *, ordered: bool, owned: Assigned | None = None) -> bytes:
    return encode_subscription(
        Subscription(name, ("a",), owned=in_order(owned or {}), ordered=ordered)
    )


def test_members_without_key_order_have_all_partitions() -> None:
    members = {
        "m1": said("m1", ordered=False, owned=ALL),
        "m2": said("m2", ordered=False, owned=ALL),
        "m3": said("m3", ordered=False),
    }
    planned = plan_generation(1, "m1", members, {"a": 2})
    assert planned.refusals == {}
    assert planned.plan.target == planned.plan.now == dict.fromkeys(members, ALL)


@pytest.mark.parametrize(
    ("owner", "refused"), [("m1", {"m2"}), ("m2", {"m1", "m3"}), (None, {"m2"})]
)
def test_members_that_keep_another_order_are_refused(owner: str | None, refused: set[str]) -> None:
    """Those that own something are right."""
    members = {
        name: said(name, ordered=name != "m2", owned=ALL if name == owner else None)
        for name in ("m1", "m2", "m3")
    }
    planned = plan_generation(1, "m1", members, {"a": 2})
    assert planned.refusals.keys() == refused
    assert {member.name for member in planned.epoch.members} == members.keys() - refused
    sent = planned.assignments(7, "t")
    for member in refused:
        assert "consumption.order" in decode_assignment(sent[member]).refusal


@pytest.mark.parametrize(
    ("partitions", "whole", "fits"),
    [
        ({"a": 2}, (), True),
        ({"a": 2, "b": 0}, ("b",), True),
        ({"a": 3}, (), False),
        ({"a": 1}, (), False),
        ({"a": 2, "b": 1}, (), False),
        ({"a": 2}, ("a",), False),  # members share it
    ],
)
def test_what_was_assigned_fits_the_topics(
    partitions: dict[str, int], whole: tuple[str, ...], fits: bool
) -> None:
    """Also as long as hashes are on their way from one member to another."""
    members = {
        "m1": said("m1", ordered=True, owned=ALL),
        "m2": said("m2", ordered=True),
        "m3": said("m3", ordered=True),
    }
    planned = plan_generation(1, "m1", members, {"a": 2})
    assert planned.plan.now != planned.plan.target
    assert fits_topics(planned.assignments(7, "t").values(), partitions, whole) == fits


def test_topics_that_may_not_be_shared_have_no_member_without_key_order() -> None:
    def said_of(topics: tuple[str, ...], *, ordered: bool) -> bytes:
        return encode_subscription(Subscription(topics[0], topics, ordered=ordered))

    whole = {"b": "accept.range.fetch"}
    topics = {"a": 2, "b": 1}
    members = {"m1": said_of(("a", "b"), ordered=False), "m2": said_of(("a",), ordered=False)}
    planned = plan_generation(1, "m1", members, topics, whole_topics=whole)
    assert planned.plan.target == dict.fromkeys(members, ALL)
    sent = {m: decode_assignment(data) for m, data in planned.assignments(7, "t").items()}
    assert sent["m1"].forbidden == (("b", "accept.range.fetch"),)
    assert sent["m2"].forbidden == ()  # it has not subscribed to it
    said = planned.assignments(7, "t").values()
    assert fits_topics(said, topics, whole, is_ordered=False)
    assert not fits_topics(said, topics, {}, is_ordered=False)  # all accept: it is to be assigned
    # Of one member, too: it would lease parts of a partition.
    alone = plan_generation(1, "m2", {"m2": members["m2"]}, topics).assignments(7, "t").values()
    assert not fits_topics(alone, {"a": 2}, {"a": "accept.range.fetch"}, is_ordered=False)
    members = {"m1": said_of(("a", "b"), ordered=True)}
    ordered = plan_generation(1, "m1", members, topics, whole_topics=whole)
    assert ordered.forbidden == {}
    assert TopicPartition("b", 0) in ordered.plan.target["m1"]


def test_the_order_of_a_subscription_is_said() -> None:
    assert decode_subscription(said("m", ordered=True), "m").ordered
    assert not decode_subscription(said("m", ordered=False), "m").ordered
    assert b"ordered" not in said("m", ordered=True)  # as before
