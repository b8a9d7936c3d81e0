"""Records that a consumer has processed, and what it commits of them."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.hashing import HASH_SPACE, key_hash
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import CommitFailedError, KshareError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import CHUNK_ROWS, Message
from kshare.testing import FakeCluster
from tests.group.consumer.records import KEYS, MIDDLE, ORDERS, fill, offsets, take
from tests.support.clock import WAIT_S, until
from tests.support.fake_session import FakeSessions


def test_implicitly_what_poll_returned_is_processed_when_poll_is_called_again(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    consumer = make(enable__auto__commit=True, auto__commit__interval__ms=600_000)
    consumer.assign({("orders", 0): []})
    for _ in range(5):
        consumer.poll(WAIT_S)
    consumer.close()
    assert group.members[0].commits_before_close == 0
    assert group.done[ORDERS] == Progress.at(4)
    again = make(enable__auto__commit=True, auto__commit__interval__ms=600_000)
    again.assign({("orders", 0): []})
    assert offsets(take(again, 10)) == list(range(4, 14))
    again.close()
    assert group.done[ORDERS] == Progress.at(4)
    third = make()
    third.assign({("orders", 0): []})
    take(third, 10)
    while third.position() != {ORDERS: 100}:
        assert third.consume_batch(WAIT_S) is not None
    assert third.commit() == {ORDERS: 100}


def test_explicitly_what_is_acknowledged_is_processed_in_any_order_and_nothing_else(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    records = 2 * CHUNK_ROWS
    fill(cluster, records + 50)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign({("orders", 0): []})
    messages = take(consumer, records)
    waiting = {3, 4, CHUNK_ROWS, records - 1}
    for message in reversed(messages):
        if message.offset() not in waiting:
            consumer.acknowledge(message)
    assert consumer.commit() == {ORDERS: 3}
    for offset in range(records + 50):
        is_done = offset < records and offset not in waiting
        assert group.processed(ORDERS, offset) is is_done, offset
    again = make(acknowledgement__mode="explicit")
    again.assign({("orders", 0): []})
    assert offsets(take(again, 54)) == sorted([*waiting, *range(records, records + 50)])
    consumer.acknowledge(messages[3])
    assert consumer.commit() == {ORDERS: 4}
    assert consumer.commit(message=messages[4]) == {ORDERS: CHUNK_ROWS}


def test_batches_are_acknowledged_whole_or_in_parts(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    fill(cluster, 100, partition=1)
    other = TopicPartition("orders", 1)
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign([ORDERS, other])
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < 200:
        batch = consumer.consume_batch(WAIT_S)
        assert batch is not None
        batches.append(batch)
    table = pa.Table.from_batches(batches).sort_by("partition")
    consumer.acknowledge_batch(table.slice(150))
    consumer.acknowledge_batch(table.slice(0, 20))
    assert consumer.commit() == {ORDERS: 20, other: 0}
    consumer.acknowledge_batch(table)
    assert consumer.commit() == {ORDERS: 100, other: 100}
    with pytest.raises(ValueError, match="topic and partition"):
        consumer.acknowledge_batch(table.select(["offset"]))


def test_acknowledging_from_many_threads(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    records = 5 * CHUNK_ROWS
    fill(cluster, records)
    consumer = make(acknowledgement__mode="explicit", auto__commit__interval__ms=1)
    consumer.assign({("orders", 0): []})
    threads = []
    for _ in range(10):
        messages = take(consumer, records // 10)

        def acknowledge(messages: list[Message] = messages) -> None:
            for message in messages:
                consumer.acknowledge(message)

        threads.append(threading.Thread(target=acknowledge))
        threads[-1].start()
        consumer.commit()
    for thread in threads:
        thread.join()
    assert consumer.commit() == {ORDERS: records}


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_offsets_of_others_after_the_last_record_are_processed(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer], mode: str
) -> None:
    """Else members with few records would hold the stable offset, until their next record."""
    fill(cluster, 100)
    lower = sum(key_hash(key.encode(), 0) < MIDDLE for key in KEYS) * 5
    consumers = []
    for hashes, count in (((0, MIDDLE), lower), ((MIDDLE, HASH_SPACE), 100 - lower)):
        consumers.append(make(acknowledgement__mode=mode))
        consumers[-1].assign({("orders", 0): [hashes]})
        for message in take(consumers[-1], count):
            consumers[-1].acknowledge(message)

    def is_committed() -> bool:
        found = [(consumer.commit() or {}).get(ORDERS) for consumer in consumers]
        assert [consumer.poll(0.05) for consumer in consumers] == [None, None]
        return found[-1] == 100

    until(is_committed)
    assert group.done[ORDERS] == Progress.at(100)


# -- commits --------------------------------------------------------------------------------------


def test_commits_of_a_message_or_of_offsets(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    fill(cluster, 100, partition=1)
    other = TopicPartition("orders", 1)
    consumer = make()
    consumer.assign([ORDERS, other])
    messages = take(consumer, 200)
    of = {tp: [m for m in messages if m.topic_partition == tp] for tp in (ORDERS, other)}
    assert consumer.commit(message=of[ORDERS][9]) == {ORDERS: 10}
    assert consumer.commit(offsets=[RdTopicPartition("orders", 1, 7)]) == {other: 7}
    assert consumer.commit(offsets={("orders", 1): 8, ORDERS: 11}) == {other: 8, ORDERS: 11}
    with pytest.raises(ValueError, match="beyond the position 100"):
        consumer.commit(offsets={ORDERS: 101})
    with pytest.raises(ValueError, match="not both"):
        consumer.commit(of[ORDERS][0], {ORDERS: 1})
    with pytest.raises(ValueError, match="not assigned"):
        consumer.commit(offsets={("payments", 0): 1})
    assert consumer.committed()[other].offset == 8
    assert consumer.commit(offsets={}) == {}
    assert consumer.commit(offsets=[], asynchronous=True) is None
    assert consumer.committed()[other].offset == 8
    assert consumer.commit() == {ORDERS: 100, other: 100}


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("how", ["message", "offsets"])
def test_a_commit_of_a_partition_that_has_gone_names_what_is_not_committed(
    cluster: FakeCluster,
    make: Callable[..., KeySharedConsumer],
    mode: str,
    comes_back: bool,
    how: str,
) -> None:
    """Also if it has come back, and what was returned before has not."""
    fill(cluster, 20)
    other = TopicPartition("orders", 1)
    consumer = make(acknowledgement__mode=mode)
    consumer.assign([ORDERS, other])
    messages = take(consumer, 20)
    assert consumer.commit(message=messages[4]) == {ORDERS: 5}
    consumer.assign([other])
    if comes_back:
        consumer.assign([ORDERS, other])
        assert offsets(take(consumer, 2)) == [5, 6]
    given: Any = (
        {"message": messages[8]} if how == "message" else {"offsets": {ORDERS: 9, other: 0}}
    )
    with pytest.raises(CommitFailedError) as caught:
        consumer.commit(**given)
    assert caught.value.offsets == {("orders", 0): ((7 if comes_back else 5, 9),)}
    assert (consumer.commit(offsets={ORDERS: 3}) or {}).get(ORDERS) == (7 if comes_back else None)
    with pytest.raises(ValueError, match="cannot commit offset 21"):
        consumer.commit(offsets={ORDERS: 21})


def test_a_commit_of_a_record_whose_key_hashes_have_gone_names_it(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 20)
    consumer = make()
    consumer.assign([ORDERS])
    messages = take(consumer, 20)
    consumer.assign({ORDERS: [(0, MIDDLE)]})
    ours = [m for m in messages if key_hash(m.key(), 0) < MIDDLE]
    assert offsets(take(consumer, len(ours))) == offsets(ours)
    (gone, *_) = (m for m in messages if m not in ours and m.offset() < ours[-1].offset())
    with pytest.raises(CommitFailedError) as caught:
        consumer.commit(message=gone)
    assert caught.value.offsets == {("orders", 0): ((gone.offset(), gone.offset() + 1),)}
    assert consumer.commit(message=ours[-1]) is not None


def test_a_commit_with_metadata_is_refused(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    consumer = make()
    consumer.assign({("orders", 0): []})
    with pytest.raises(ValueError, match=r"orders-0: commits hold no metadata of your own"):
        consumer.commit(offsets=[RdTopicPartition("orders", 0, 3, metadata="mine")])


def test_automatic_and_asynchronous_commits_call_back_from_poll(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 100)
    answers: list[Any] = []
    consumer = make(
        enable__auto__commit=True,
        auto__commit__interval__ms=20,
        on_commit=lambda error, stable: answers.append((threading.get_ident(), error, stable)),
    )
    consumer.assign({("orders", 0): []})
    take(consumer, 60)
    consumer.pause([ORDERS])
    while (threading.get_ident(), None, {ORDERS: 60}) not in answers:
        assert consumer.poll(0.02) is None
    assert consumer.commit(asynchronous=True) is None
    group.members[0].error = KshareError("no right to write")
    answers.clear()
    consumer.commit(asynchronous=True)
    while not any(str(error) == "no right to write" for _, error, _ in answers):
        with pytest.raises(KshareError, match="no right"):
            consumer.poll(0.02)


def that_commits_early(make: Callable[..., KeySharedConsumer]) -> KeySharedConsumer:
    """A consumer that commits when 300 ranges have gathered, long before it is time to."""
    consumer = make(
        acknowledgement__mode="explicit",
        enable__auto__commit=True,
        auto__commit__interval__ms=600_000,
        max__num__ranges__to__commit=300,
    )
    consumer.assign({("orders", 0): []})
    return consumer


def test_it_commits_early_when_ranges_have_gathered(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 1_000)
    consumer = that_commits_early(make)
    messages = take(consumer, 900)
    for message in messages[1:400:2]:  # 200 gaps
        consumer.acknowledge(message)
    take(consumer, 100)
    assert consumer.consume(1, 0.1) == []
    assert not group.members[0].commits
    for message in messages[401::2]:
        consumer.acknowledge(message)
    consumer.pause([ORDERS])
    while not group.members[0].commits:
        consumer.poll(0.02)
    assert not group.processed(ORDERS, 0)
    assert group.processed(ORDERS, 1)


def test_it_commits_early_when_gaps_are_closed_and_others_arise(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    """What counts is what is not committed, not how many ranges there are more than before."""
    fill(cluster, 1_300)
    consumer = that_commits_early(make)
    messages = take(consumer, 1_300)
    consumer.pause([ORDERS])
    for message in messages[1:640:2]:
        consumer.acknowledge(message)
    commits = group.members[0].commits
    while not commits:
        consumer.poll(0.02)
    for message in messages[:500:2]:  # 250 gaps are closed, and 310 others arise
        consumer.acknowledge(message)
    for message in messages[661:1_280:2]:
        consumer.acknowledge(message)
    while len(commits) < 2:
        consumer.poll(0.02)
    assert group.processed(ORDERS, 661)


def test_the_offset_of_a_batch_as_numpy_has_it(
    cluster: FakeCluster, make: Callable[..., KeySharedConsumer]
) -> None:
    fill(cluster, 10)
    consumer = make()
    consumer.assign([ORDERS])
    batch = consumer.consume_batch(WAIT_S)
    assert batch is not None
    last = batch.column("offset").to_numpy()[-1]
    assert consumer.commit(offsets={ORDERS: last + 1}) == {ORDERS: 10}
    consumer.seek(ORDERS, last)
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.offset() == 9
    with pytest.raises(TypeError, match=r"cannot start at offset 2\.0"):
        consumer.seek(ORDERS, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot commit offset True"):
        consumer.commit(offsets={ORDERS: True})
