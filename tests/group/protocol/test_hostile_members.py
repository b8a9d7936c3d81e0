"""What any member of a group can send to its leader, and anybody can commit beside an offset."""

import json
import tracemalloc
import zlib
from base64 import b85encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.errors import ForeignMemberError
from kshare.group.protocol.commit_log.consumer_protocol import (
    _WORDS,
    dumps,
    encode_partitions,
    encode_topics,
)
from kshare.group.protocol.commit_log.start import Anchor
from kshare.group.protocol.membership.subscription import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    is_of_kshare,
)
from kshare.group.protocol.plan.generation import plan_generation, plan_range
from tests.group.protocol.test_group_reader import damaged
from tests.group.protocol.test_shared_settings import SAID, said
from tests.group.protocol.test_subscription import ASSIGNMENT, SUBSCRIPTION


def packed(text: bytes) -> bytes:
    deflater = zlib.compressobj(9, zdict=_WORDS)
    data = deflater.compress(text) + deflater.flush()
    return dumps({"kshare": 2, "z": b85encode(data).decode()})


BOMBS = {
    "inflates": packed(b'{"owned":[' + b"[]," * (20 << 20) + b"0]}"),
    "many lists": packed(b'{"owned":[' + b"[]," * (2 << 20) + b"0]}"),
    "deep": packed(b"[" * (7 << 20)),
    "plain and deep": b'{"kshare":1,"owned":' + b"[" * 900_000,
    "plain and many": b'{"kshare":1,"owned":[' + b"[]," * 300_000 * 2 + b"0]}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_the_leader_little_and_its_member_the_place(name: str) -> None:
    members = {"m1": said("m1", owns=True), "bomb": encode_topics(["a"], BOMBS[name])}
    tracemalloc.start()
    try:
        planned = plan_generation(1, "m1", members, {"a": 2})
        plan_range(members, {"a": 2}, {})
        with pytest.raises(ForeignMemberError):
            decode_assignment(encode_partitions([], BOMBS[name]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert planned.refusals.keys() == {"bomb"}
    assert [member.name for member in planned.epoch.members] == ["m1"]
    assert peak < 64 << 20


@given(st.data(), st.booleans())
def test_mutated_user_data_are_read_or_refused(data: st.DataObject, compressed: bool) -> None:
    subscription = data.draw(damaged(encode_subscription(SUBSCRIPTION, compressed=compressed)))
    assignment = data.draw(damaged(encode_assignment(ASSIGNMENT)))
    with suppress(ForeignMemberError):
        decode_subscription(subscription, "m")
    with suppress(ForeignMemberError):
        decode_assignment(assignment, is_plain_allowed=compressed)
    is_of_kshare(subscription)
    members = {"m1": said("m1", owns=True), "m2": subscription}
    assert "m1" not in plan_generation(1, "m1", members, {"a": 2}).refusals
    plan_range(members, {"a": 2}, {})


@given(st.data())
def test_mutated_fields_are_read_or_refused(data: st.DataObject) -> None:
    """The text inside a compressed subscription, too."""
    plain = encode_subscription(Subscription("m", ("a",), settings=SAID))
    text = plain[plain.index(b"{") :].replace(b'"kshare":1,', b"")
    mutated = data.draw(damaged(text))
    with suppress(ForeignMemberError):
        decode_subscription(encode_topics(["a"], packed(mutated)), "m")


@given(st.data())
def test_a_mutated_anchor_is_one_or_none(data: st.DataObject) -> None:
    metadata = Anchor(3, 17, "topic").encode()
    assert Anchor.decode(metadata) == Anchor(3, 17, "topic")
    found = Anchor.decode(data.draw(damaged(metadata.encode())).decode(errors="replace"))
    if found is not None:
        assert 0 <= found.incarnation < 2**63
        assert json.loads(found.encode())["kshare"] == 1


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "[]",
        "[" * 100_000,
        '{"kshare":1,"incarnation":1%s,"position":1,"topic_id":""}' % ("0" * 400),
        '{"kshare":1,"incarnation":-1,"position":1,"topic_id":""}',
        '{"kshare":1,"incarnation":1,"position":true,"topic_id":""}',
        '{"kshare":2,"incarnation":1,"position":1,"topic_id":""}',
    ],
)
def test_what_is_no_anchor(metadata: str | None) -> None:
    assert Anchor.decode(metadata) is None
