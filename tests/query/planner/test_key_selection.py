"""Which key hashes a query reads.

Key ranges of topics whose policy does not accept them.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import (
    ALL_HASHES,
    HASH_SPACE,
    NO_HASHES,
    WHOLE,
    HashRange,
    KeyRanges,
    key_hash,
)
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, TopicPartition
from kshare.errors import OptionsError, PolicyError
from kshare.kafka.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy
from kshare.options import SourceOptions, Subscribe, parse_options
from kshare.query.planner import StreamPlanner, plan_batch
from kshare.query.planner.cluster_view import ClusterView
from kshare.query.planner.key_selection import KeySelection
from tests.support.fake_logs import FakeCluster, NothingParked
from tests.support.planner import KEYS, Parking
from tests.support.policies import FakePolicies

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)


def options(**given: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "nowhere:9092"}
    chosen = given if "assign" in given else {"subscribe": "t,u", **given}
    return parse_options({**base, **chosen}, streaming=True).options


def assigned(**more: str) -> KeySelection:
    return KeySelection.of(options(assign=json.dumps({"t": {"0": [[0, HALF]], "1": []}}), **more))


def test_without_options_everything_is_read() -> None:
    keys = KeySelection.of(options())
    assert keys.allowed(T0) == keys.readable(T0) == ALL_HASHES
    assert keys.chosen(T0) is None
    assert keys.unassigned(T0) == ()
    assert keys.parked(T0) == NO_HASHES
    pending = (Rectangle(OffsetRange(0, 9), WHOLE),)
    assert keys.within(T0, pending) == pending


def test_assigned_ranges() -> None:
    keys = assigned()
    assert keys.allowed(T0) == keys.chosen(T0) == (LOW,)
    assert keys.unassigned(T0) == (HIGH,)
    assert keys.allowed(T1) == ALL_HASHES
    assert keys.chosen(T1) is None
    assert keys.unassigned(T1) == ()
    assert keys.unassigned(U0) == ()  # read before a restart only
    pending = (Rectangle(OffsetRange(0, 9), WHOLE), Rectangle(OffsetRange(9, 10), HIGH))
    assert keys.within(T0, pending) == (Rectangle(OffsetRange(0, 9), LOW),)


@given(st.sets(st.tuples(st.sampled_from("tu"), st.sampled_from(KEYS))), st.booleans())
def test_a_parked_key_is_not_read(parked: set[tuple[str, bytes]], is_always: bool) -> None:
    parking = Parking()
    parking.keys = parked
    view = ClusterView(FakeCluster({}), Subscribe(("t",)), parking)
    keys = KeySelection.of(options(parkedKeys='["key-3"]') if is_always else options())
    now = keys.with_parked(view.parked({"t"}))
    wanted = {key for topic, key in parked if topic == "t"} | ({b"key-3"} if is_always else set())
    for key in KEYS:
        hash_ = key_hash(key, 0)
        assert now.readable(T0).holds(hash_) == (key not in wanted)
    assert now.parked(T0) == KeyRanges.of_hashes(key_hash(key, 0) for key in wanted)
    assert now.unassigned(T0) == ()
    assert now.allowed(T0) == ALL_HASHES
    assert now.parked(U0) == NO_HASHES  # was not asked about


DENIED = Policy(RANGE_FETCH, "t")
CLUSTER = {("t", 0): (0, 9), ("t", 1): (0, 9)}
SERVERS = {"kafka.bootstrap.servers": "nowhere:9092"}
ASKING = [
    ({"subscribe": "t", "keyRanges": "2"}, "keyRanges"),
    ({"subscribe": "t", "minPartitions": "3"}, "minPartitions"),
    ({"subscribe": "t", "maxRecordsPerPartition": "3"}, "maxRecordsPerPartition"),
    ({"subscribe": "t", "rangeAssignor": "adaptive"}, "rangeAssignor"),
    ({"assign": '{"t": {"0": [[0, 7]], "1": []}}'}, "assign"),
    ({"subscribe": "t", "minPartitions": "6", "splitBy": "offset"}, "minPartitions"),
    (
        {"subscribe": "t", "maxRecordsPerPartition": "3", "splitBy": "offset"},
        "maxRecordsPerPartition",
    ),
]
WHOLE_PARTITIONS = [
    {"subscribe": "t"},
    {"subscribe": "t", "minPartitions": "2"},
    {"subscribe": "t", "keyRanges": "1"},
    {"subscribe": "t", "minPartitions": "2", "splitBy": "offset"},
    {"assign": '{"t": [0, 1]}'},
]


@pytest.mark.parametrize(("given", "option"), ASKING)
def test_a_query_that_asks_for_ranges_is_refused(given: dict[str, str], option: str) -> None:
    parts = "parts of partitions (splitBy=offset)" if "splitBy" in given else "key ranges"
    says = (
        f"{option}: asks for {parts} of topic t, whose policy accept.range.fetch is false; read "
        "whole partitions, or have kshare policy set it to true"
    )
    options = parse_options({**SERVERS, **given}, streaming=False).options
    with pytest.raises(OptionsError) as caught:
        plan_batch(options, FakeCluster(CLUSTER), policies=FakePolicies(DENIED))
    assert caught.value.problems == (says,)
    plan_batch(options, FakeCluster(CLUSTER), policies=FakePolicies(Policy(RANGE_FETCH, "other")))

    options = parse_options({**SERVERS, **given}, streaming=True).options
    policies = FakePolicies()
    planner = StreamPlanner(
        options, FakeCluster(CLUSTER), parking=NothingParked(), policies=policies
    )
    zero = planner.latest_offsets(planner.initial_offsets(), None)
    policies.denied.add(DENIED)  # while the query runs
    with pytest.raises(OptionsError) as caught:
        planner.latest_offsets(zero, None)
    assert caught.value.problems == (says,)
    planner.close()
    assert policies.is_closed


@pytest.mark.parametrize("given", WHOLE_PARTITIONS)
def test_whole_partitions_are_not_asked_about(given: dict[str, str]) -> None:
    options = parse_options({**SERVERS, **given}, streaming=False).options
    policies = FakePolicies(DENIED)
    plan_batch(options, FakeCluster(CLUSTER), policies=policies)
    assert policies.asked == []


def test_a_query_that_publishes_individual_commits_is_refused_also_under_way() -> None:
    given = {
        **SERVERS,
        "subscribe": "t",
        "commitOffsets": "individual",
        "kafka.group.id": "g",
    }
    policies = FakePolicies()
    options = parse_options(given, streaming=True).options
    planner = StreamPlanner(
        options, FakeCluster(CLUSTER), parking=NothingParked(), policies=policies
    )
    zero = planner.latest_offsets(planner.initial_offsets(), None)
    policies.denied.add(Policy(INDIVIDUAL_COMMIT))
    with pytest.raises(PolicyError, match="commitOffsets=individual is not accepted") as caught:
        planner.latest_offsets(zero, None)
    assert caught.value.policy == INDIVIDUAL_COMMIT
    policies.denied.clear()
    planner.latest_offsets(zero, None)
    planner.close()
