"""Settings that all members must share: who differs is refused by name, and others go on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.group.config.shared_settings import shared_settings
from kshare.group.protocol.commit_log.shared_settings import (
    Settings,
    difference,
    largest,
    settings_of,
    settings_value,
)
from kshare.group.protocol.membership.subscription import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from kshare.group.protocol.plan.generation import plan_generation, plan_range
from tests.support.groups import group_config

A0 = TopicPartition("a", 0)
SAID: Settings = (("claim.timeout.ms", "3000"), ("individual.commit.topic", "l"), ("keys", "all"))
settings = st.dictionaries(
    st.sampled_from(["claim.timeout.ms", "keys", "x"]), st.sampled_from(["1", "2"])
).map(lambda said: tuple(sorted(said.items())))


def said(name: str, own: Settings = SAID, *, owns: bool = False) -> bytes:
    owned = ((A0, ALL_HASHES),) if owns else ()
    return encode_subscription(Subscription(name, ("a",), owned=owned, settings=own))


def changed(name: str, value: str) -> Settings:
    return tuple(sorted({**dict(SAID), name: value}.items()))


def test_the_largest_of_what_members_say() -> None:
    name = "claim.timeout.ms"
    assert largest(name, [], 5) == 5
    assert largest(name, [((name, "7"),), ((name, "6"),)], 5) == 7
    for none in ((), ((name, "-9"),), ((name, "1e9"),), ((name, ""),), ((name, "\u0663"),)):
        assert largest(name, [((name, "4"),), none], 5) == 5
    assert largest(name, [((name, "4"),)], 5) == 4


# -- what is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "name", "value"),
    [
        ({}, "keys", "all"),
        ({}, "consumption.order", "key"),
        ({}, "individual.commit.topic", "__individual_commit_offsets"),
        ({"claim_timeout_ms": 100}, "claim.timeout.ms", "100"),
        ({"consumption_order": "none"}, "consumption.order", "none"),
        ({"individual_commit_topic": "mine"}, "individual.commit.topic", "mine"),
        ({}, "allow.individual.commit", "true"),
        ({"allow_individual_commit": False}, "allow.individual.commit", "false"),
        (
            {"allow_individual_commit": False, "transactional_id": "t"},
            "allow.individual.commit",
            "false with transactional.id",
        ),
    ],
)
def test_what_a_member_says(given_: dict[str, Any], name: str, value: str) -> None:
    assert dict(shared_settings(group_config("h:1", **given_)))[name] == value


def test_who_keeps_no_log_says_nothing_of_one() -> None:
    said = dict(shared_settings(group_config("h:1", allow_individual_commit=False)))
    assert said.keys() == {"allow.individual.commit", "consumption.order", "keys"}


def test_a_group_keeps_a_log_or_none() -> None:
    """Who differs would not see what others say in the log."""
    kinds: list[dict[str, Any]] = [
        {},
        {"allow_individual_commit": False},
        {"allow_individual_commit": False, "transactional_id": "t"},
    ]
    said = [shared_settings(group_config("h:1", **given_)) for given_ in kinds]
    for first in range(3):
        for second in range(3):
            differs = difference(said[first], said[second])
            assert ("allow.individual.commit" in differs) == (first != second)


def test_keys_are_said_as_a_digest_whatever_their_order() -> None:
    def keys(given_: str) -> str:
        return dict(shared_settings(group_config("h:1", keys=given_)))["keys"]

    assert keys('["k1","secret"]') == keys('["secret","k1","k1"]')
    assert keys('["k1","secret"]').startswith("2 (")
    assert "secret" not in keys('["k1","secret"]')
    assert len({keys(each) for each in ('["a","b"]', '["ab"]', '["a","c"]', '["a"]')}) == 4


@given(settings, settings)
def test_differences(one: Settings, other: Settings) -> None:
    assert settings_of(json.loads(json.dumps(settings_value(one)))) == one
    assert difference(one, one) == difference(one, ()) == difference((), one) == ""
    assert bool(difference(one, other)) == bool(difference(other, one))
    differ = any(dict(other).get(name, value) != value for name, value in one)
    assert bool(difference(one, other)) == differ


# -- members that subscribe ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("keys", "1 (abc)"), ("claim.timeout.ms", "100"), ("individual.commit.topic", "other")],
)
@pytest.mark.parametrize("owner", ["m1", "m2", None])
def test_who_differs_is_refused_by_name(name: str, value: str, owner: str | None) -> None:
    """Those that own something are right; without any, the leader."""
    members = {
        "m1": said("m1", owns=owner == "m1"),
        "m2": said("m2", changed(name, value), owns=owner == "m2"),
        "m3": said("m3"),
    }
    planned = plan_generation(1, "m1", members, {"a": 2})
    assert planned.refusals.keys() == ({"m1", "m3"} if owner == "m2" else {"m2"})
    sent = planned.assignments(7, "t")
    for member in planned.refusals:
        refusal = decode_assignment(sent[member]).refusal
        assert refusal.startswith(f"member {member} has other settings")
        assert f"{name}=" in refusal
        assert value in refusal
    whole = plan_range(members, {"a": 2}, {})
    assert whole.refusals.keys() == ({"m1", "m3"} if owner == "m2" else {"m2"})
    assert whole.assignments.keys() == members.keys()


def test_members_of_earlier_versions_are_accepted_one_by_one() -> None:
    """Each is upgraded in its turn, and says more than before; a later version says more still."""
    later = (*SAID, ("new.setting", "7"))
    stages: list[list[Settings]] = [
        [(), (), ()],
        [SAID, (), ()],
        [SAID, SAID, ()],
        [SAID, SAID, SAID],
        [later, SAID, SAID],
        [later, later, SAID],
    ]
    for stage in stages:
        members = {f"m{n}": said(f"m{n}", own, owns=n == 2) for n, own in enumerate(stage)}
        for leader in members:
            assert plan_generation(1, leader, members, {"a": 2}).refusals == {}
        assert plan_range(members, {"a": 2}, {}).refusals == {}


def test_what_earlier_versions_say_is_read() -> None:
    data = said("m", ())
    assert b"settings" not in data
    assert decode_subscription(data, "m").settings == ()
    assert decode_subscription(said("m"), "m").settings == SAID
