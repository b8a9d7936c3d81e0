"""The sink and several brokers: leaders and coordinators that move, and that are killed."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from integration.cluster import KafkaCluster
from integration.sinking import (
    PARTITIONS,
    Query,
    assert_each_once_and_in_order,
    expected,
    numbered,
    options_for,
    received,
)
from kshare.query.produce import write_rows
from tests.support.clock import until

REPLICAS = 2


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    """Two brokers that both coordinate transactions, and keep a copy of each other's."""
    config = {
        "transaction.state.log.num.partitions": "8",
        "transaction.state.log.replication.factor": str(REPLICAS),
    }
    with KafkaCluster(REPLICAS, config=config) as running:
        yield running


def swap_leaders(brokers: KafkaCluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        leads = brokers.leader(topic, partition).node_id
        brokers.move_leader(topic, partition, REPLICAS + 1 - leads)


def kill_and_start(brokers: KafkaCluster) -> threading.Thread:
    """Kill broker 2 (the other is the controller), and start it meanwhile."""
    brokers.brokers[2].kill9()
    starter = threading.Thread(target=brokers.brokers[2].start)
    starter.start()
    return starter


def test_leaders_move_and_die_while_rows_are_written(brokers: KafkaCluster) -> None:
    topic = brokers.create_topic(partitions=PARTITIONS, replication=REPLICAS)
    count, at_once = 40_000, 500
    starters = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, at_once):
            if start in (count // 5, 2 * count // 5):
                swap_leaders(brokers, topic)
            if start == 3 * count // 5:
                starters.append(kill_and_start(brokers))
            yield numbered(start, at_once)

    assert write_rows(batches(), options_for(brokers, topic)) == count
    starters[0].join()
    assert_each_once_and_in_order(received(brokers, topic), count)


@pytest.mark.long
def test_coordinators_die_before_a_batch_is_committed(brokers: KafkaCluster) -> None:
    query = Query(brokers, replication=REPLICAS)
    for batch in range(4):
        messages = query.prepare("r", batch)
        if batch == 1:
            swap_leaders(brokers, query.topic)
        starter = kill_and_start(brokers) if batch == 2 else None
        query.commit(messages, batch)
        if starter:
            starter.join()
    until(lambda: query.rows() == expected(*range(4)), 60)
    until(lambda: query.open() == [], 60)
    query.coordinators.close()
