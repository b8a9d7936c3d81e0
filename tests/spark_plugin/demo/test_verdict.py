"""The demo's verdict: what is found to be lost, duplicated or out of order."""

from dataclasses import replace

import pyarrow as pa

from kshare.core.progress import TopicPartition
from kshare.testing import FakeCluster, Record
from spark_plugin.demo.state import judge_order
from spark_plugin.demo.topic import DemoTopic, read_log_bounds
from tests.spark_plugin.demo.rows import T0, state_of

DENSE = DemoTopic("none:1", "t", {T0: (0, 100)}, is_dense=True)


def test_when_everything_was_read() -> None:
    assert judge_order(DENSE, state_of(range(50), range(50, 100)), all_read=True).ok
    report = judge_order(DENSE, state_of(range(50), range(51, 100)), all_read=True)
    assert report.lost["offset"].to_pylist() == [50]
    assert not judge_order(DENSE, state_of(range(50), range(49, 100)), all_read=True).ok


def test_when_the_query_was_stopped() -> None:
    read = state_of(range(50), range(50, 90, 2), stable=40)
    assert judge_order(DENSE, read, all_read=False).ok
    missing = judge_order(DENSE, state_of(range(50), stable=60), all_read=False)
    assert missing.lost.num_rows == 10
    late = state_of(range(50, 60), range(50), stable=0)
    assert judge_order(DENSE, late, all_read=False).out_of_order.num_rows == 50


def test_a_topic_of_the_users_is_compared_with_another_reader() -> None:
    with FakeCluster(topics={"t": 2}) as cluster:
        cluster.produce("t", [Record(b"k%d" % (i % 5), b"v") for i in range(30)], partition=0)
        cluster.trim("t", 0, 4)
        servers = cluster.bootstrap_servers
        topic = DemoTopic(servers, "t", read_log_bounds(servers, "t"), is_dense=False)
        assert topic.log_bounds == {T0: (4, 30), TopicPartition("t", 1): (0, 0)}
        assert topic.offset_count == 26
        # Records produced while the query runs may be read or not.
        cluster.produce("t", [Record(b"k", b"v")] * 5, partition=0)
        assert judge_order(topic, state_of(range(4, 30)), all_read=True).ok
        assert judge_order(topic, state_of(range(4, 32)), all_read=True).ok
        assert judge_order(topic, state_of(range(5, 30)), all_read=True).lost.num_rows == 1
        # b"k4" is the key of the first record that was not trimmed.
        with_parked = replace(topic, parked_keys=frozenset({b"k4"}))
        lost = judge_order(with_parked, state_of(range(0)), all_read=True).lost
        assert lost.num_rows == 20
        assert b"k4" not in lost["key"].to_pylist()
        state = state_of(range(4, 30))
        spoiled = state.batches[0].set_column(3, "key", pa.array([b"x"] * 26, pa.binary()))
        state.add_batch(0, spoiled)
        assert judge_order(topic, state, all_read=True).unexpected.num_rows == 26
