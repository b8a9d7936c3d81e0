"""What is asked for next when brokers refuse a topic: laws over all refusals and topics."""

import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.kafka.protocol.error_codes import ErrorCode
from kshare.kafka.topic_request import (
    DEFAULT_REPLICATION,
    Placing,
    Settings,
    TopicRequest,
    by_hand,
    left_out,
    next_request,
    without_text,
)
from kshare.kafka.topics import TopicSpec

REFUSALS = (
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.POLICY_VIOLATION,
)
NAMES = ("max.message.bytes", "min.insync.replicas", "segment.bytes", "new.setting")
specs = st.builds(
    TopicSpec,
    st.just("table"),
    st.just(2),
    st.dictionaries(st.sampled_from(NAMES), st.just("1")),
    st.sampled_from([(), ((1, 2), (2, 3)), ((7,), (7,))]),
    st.dictionaries(st.sampled_from(["max.compaction.lag.ms", "other.wish"]), st.just("1")),
)


def requests(spec: TopicSpec, codes: list[ErrorCode]) -> list[TopicRequest]:
    """What is asked for while each request is refused in turn."""
    asked = [TopicRequest.first(spec)]
    for code in codes:
        following = next_request(asked[-1], code)
        if following is None:
            break
        asked.append(following)
    return asked


@given(specs, st.lists(st.sampled_from(REFUSALS), min_size=6, max_size=6))
def test_each_request_asks_for_less_and_the_last_one_for_nothing_but_compaction(
    spec: TopicSpec, codes: list[ErrorCode]
) -> None:
    asked = requests(spec, codes)
    assert len(asked) <= 5
    for before, after in pairwise(asked):
        assert after.config.items() <= before.config.items()
        assert after.placing <= before.placing
        assert (after.config, after.placing) != (before.config, before.placing)
        assert after.config["cleanup.policy"] == "compact"
    assert asked[-1].config == {"cleanup.policy": "compact"}
    assert asked[-1].placing is Placing.DEFAULT
    assert asked[-1].replication == DEFAULT_REPLICATION


@given(specs, st.lists(st.sampled_from(REFUSALS), max_size=6))
def test_what_is_left_out_is_named_with_its_value_and_a_cost(
    spec: TopicSpec, codes: list[ErrorCode]
) -> None:
    request = requests(spec, codes)[-1]
    lacking, first = left_out(request), TopicRequest.first(spec)
    settings = {name for name in lacking if name != "replicas"}
    assert {*request.config} | settings == {*first.config}
    assert not {*request.config} & settings
    assert ("replicas" in lacking) == (request.placing is not first.placing)
    said, costs = without_text(request, {"NO: the words": None}).split("What it costs: ")
    assert "topic table" in said
    assert "NO: the words" in said
    assert all(f"{name}={lacking[name]}" in said for name in settings)
    assert bool(costs) == bool(lacking)


@given(specs, st.sampled_from([*(set(ErrorCode) - set(REFUSALS)), None]))
def test_another_refusal_is_no_reason_to_ask_for_less(
    spec: TopicSpec, code: ErrorCode | None
) -> None:
    assert next_request(TopicRequest.first(spec), code) is None


def test_as_many_replicas_are_asked_for_before_the_brokers_choose_the_number() -> None:
    spec = TopicSpec("table", 2, {"segment.bytes": "1"}, ((1, 9), (9, 2)))
    first, second, third, fourth = requests(
        spec, [ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REPLICATION_FACTOR] * 2
    )
    assert first.placing is Placing.NAMED
    assert (second.placing, second.replication) == (Placing.AS_MANY, 2)
    assert (third.replication, third.config) == (DEFAULT_REPLICATION, first.config)
    assert fourth.settings is Settings.COMPACT


@pytest.mark.parametrize("needs_login", [False, True])
def test_the_command_has_all_that_makes_the_topic(needs_login: bool) -> None:
    words = shlex.split(by_hand(TopicSpec("t", 7), "a:1,b:2", needs_login=needs_login))
    login = ["--command-config", "client.properties"] if needs_login else []
    assert words[:3] == ["kafka-topics.sh", "--bootstrap-server", "a:1,b:2"]
    assert words[3:] == [
        *login,
        *("--create", "--topic", "t", "--partitions", "7", "--config", "cleanup.policy=compact"),
    ]


def test_fewer_replicas_are_not_asked_to_be_in_sync_as_the_named_ones() -> None:
    """Else brokers would make a topic that nobody can write to."""
    spec = TopicSpec("t", 1, {"min.insync.replicas": "2", "segment.ms": "1"}, ((1, 2, 3),))
    named, as_many, default, *_ = requests(spec, [ErrorCode.INVALID_REPLICATION_FACTOR] * 2)
    assert [each.placing for each in (named, as_many, default)] == [
        Placing.NAMED,
        Placing.AS_MANY,
        Placing.DEFAULT,
    ]
    assert "min.insync.replicas" in as_many.config
    assert default.config == {"cleanup.policy": "compact", "segment.ms": "1"}
