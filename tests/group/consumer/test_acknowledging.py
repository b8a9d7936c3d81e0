"""An acknowledgement counts for the records that were acknowledged, and for no others."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from kshare.core.hashing import WHOLE, KeyRanges, key_hash, split
from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions, fake_consumers

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
RECORDS = 10


@pytest.fixture
def make() -> Iterator[Callable[..., KeySharedConsumer]]:
    rows = [(f"k{i % 3}", str(i)) for i in range(RECORDS)]
    with FakeCluster(topics={"orders": 2}) as cluster:
        for partition in range(2):
            cluster.produce("orders", rows, partition=partition)
        with fake_consumers(cluster, FakeSessions()) as consumers:
            yield lambda **config: consumers(acknowledgement__mode="explicit", **config)


def batch_of(consumer: KeySharedConsumer) -> pa.RecordBatch:
    """All of the partition, as one batch."""
    batch = consumer.consume_batch(WAIT_S)
    assert batch is not None
    assert batch.num_rows == RECORDS
    return batch


def batches_of_both(consumer: KeySharedConsumer) -> dict[TopicPartition, pa.RecordBatch]:
    batches = {}
    for tp in (ORDERS, OTHER):
        consumer.assign([ORDERS, OTHER])
        consumer.pause([OTHER if tp is ORDERS else ORDERS])
        batches[tp] = batch_of(consumer)
        consumer.resume([ORDERS, OTHER])
    return batches


@pytest.mark.parametrize("columns", [None, "key,value,offset"])
def test_a_batch_of_a_partition_that_has_gone_counts_for_no_other(
    make: Callable[..., KeySharedConsumer], columns: str | None
) -> None:
    consumer = make(**({} if columns is None else {"columns": columns}))
    batches = batches_of_both(consumer)
    consumer.assign([ORDERS])
    consumer.acknowledge_batch(batches[OTHER])
    assert consumer.commit() == {ORDERS: 0}
    consumer.acknowledge_batch(batches[ORDERS].slice(0, 3))
    assert consumer.commit() == {ORDERS: 3}


def test_a_batch_of_before_a_partition_went_and_came_back_is_not_what_is_handed_out_now(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make()
    consumer.assign([ORDERS])
    before = batch_of(consumer)
    consumer.unassign()
    consumer.assign([ORDERS])
    again = batch_of(consumer)
    consumer.acknowledge_batch(before)
    assert consumer.commit() == {ORDERS: 0}
    consumer.acknowledge_batch(again.filter(pa.array([True, False] * 5)))
    assert consumer.commit() == {ORDERS: 1}
    consumer.acknowledge_batch(again)
    assert consumer.commit() == {ORDERS: RECORDS}


def test_without_columns_only_one_batch_or_rows_of_it_are_known(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make(columns="key,value,offset")
    batches = list(batches_of_both(consumer).values())
    wrong = [
        pa.Table.from_batches(batches),
        pa.concat_batches(batches),
        batches[0].replace_schema_metadata(None),
        batches[0].select(["key"]),
    ]
    for each in wrong:
        with pytest.raises(ValueError, match="acknowledge_batch needs"):
            consumer.acknowledge_batch(each)
    assert set((consumer.commit() or {}).values()) == {0}
    reversed_ = batches[1].take(pa.array(range(RECORDS - 1, -1, -1)))
    consumer.acknowledge_batch(reversed_)
    assert consumer.commit() == {ORDERS: 0, OTHER: RECORDS}


@pytest.mark.parametrize(
    ("given", "what"), [(None, r"None \(no records came in time\)"), ([], "a list")]
)
def test_what_is_no_batch_is_said(
    make: Callable[..., KeySharedConsumer], given: Any, what: str
) -> None:
    with pytest.raises(TypeError, match=f"wanted a record batch or a table, not {what}"):
        make().acknowledge_batch(given)


def test_several_batches_as_one_table_are_told_apart_by_their_columns(
    make: Callable[..., KeySharedConsumer],
) -> None:
    consumer = make()
    table = pa.Table.from_batches(batches_of_both(consumer).values())
    some = [*[True] * 4, *[False] * 6, *[True] * 7, *[False] * 3]
    consumer.acknowledge_batch(table.filter(pa.array(some)))
    assert consumer.commit() == {ORDERS: 4, OTHER: 7}


def test_a_batch_counts_while_nothing_is_read_after_a_seek_amid_a_rebalance() -> None:
    """What it is of goes on once the next claim is in place; until then there is no delivery."""
    lower, _ = split(WHOLE, 2)
    group = FakeSessions()
    with FakeCluster(topics={"orders": 1}) as cluster, fake_consumers(cluster, group) as make:
        keys = [f"k{i}" for i in range(RECORDS)]
        cluster.produce("orders", [(key, "v") for key in keys], partition=0)
        consumer = make(acknowledgement__mode="explicit")
        consumer.assign([ORDERS])
        batch = batch_of(consumer)
        (session,) = group.members
        consumer._reading.keep({ORDERS: KeyRanges([lower])})
        session.waiting = {ORDERS}
        consumer.seek(ORDERS, RECORDS)
        consumer.acknowledge_batch(batch)
        consumer._reading.take_over({ORDERS: KeyRanges([lower])}, None)
        session.waiting = set()
        session.change()
        consumer.poll(0.1)
        consumer.commit()
        of_lower = {i for i, key in enumerate(keys) if key_hash(key.encode(), i) in lower}
        (commit,) = session.commits[-1].values()
        done = {i for i in of_lower for piece in commit.individual_commits if i in piece.offsets}
        assert {*range(commit.stable), *done} >= of_lower
