"""Key ranges of topics whose policy does not accept them."""

import pytest

from kshare.cluster.policies import INDIVIDUAL_COMMIT, RANGE_FETCH, Policy
from kshare.errors import OptionsError, PolicyError
from kshare.options import parse_options
from kshare.planner import StreamPlanner, plan_batch
from tests.support.fake_logs import FakeCluster, NothingParked
from tests.support.policies import FakePolicies

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
WHOLE = [
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


@pytest.mark.parametrize("given", WHOLE)
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
