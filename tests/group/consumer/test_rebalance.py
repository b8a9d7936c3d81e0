"""Hashes that stay with a consumer while its group gives it others, or takes some."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from kshare.core.hashing import ALL_HASHES, WHOLE, HashRange, KeyRanges, key_hash, split
from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.topic import log_partition
from kshare.group.message import Message
from kshare.group.protocol.commit_log.record_codec import encode
from kshare.group.protocol.commit_log.records import Claim
from kshare.group.tools.offsets import list_offsets
from kshare.testing import FakeCluster
from tests.group.consumer.records import offsets
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions
from tests.support.groups import GROUP, LOG, quick_settings

ORDERS = TopicPartition("orders", 0)
LOWER, UPPER = split(WHOLE, 2)
RECORDS = 200


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, LOG: 1}) as running:
        running.produce("orders", [(key(i), str(i)) for i in range(RECORDS)], partition=0)
        yield running


def key(number: int) -> str:
    return f"k{number % 20}"


def of(hashes: HashRange) -> list[int]:
    """Offsets of some key hashes."""
    return [i for i in range(RECORDS) if key_hash(key(i).encode(), i) in hashes]


def hash_of(number: int) -> int:
    return key_hash(key(number).encode(), number)


def received(consumer: KeySharedConsumer, count: int) -> list[Message]:
    """So many records, in several calls, and no more."""
    messages: list[Message] = []
    while len(messages) < count:
        some = consumer.consume(min(7, count - len(messages)), 10)
        assert some
        messages += some
    assert consumer.consume(1, 0.2) == []
    return messages


def take_over(consumer: KeySharedConsumer, group: FakeSessions, hashes: KeyRanges) -> None:
    """The group assigns other hashes; their claim is not in place before ``holds_back`` ends."""
    session = group.members[0]
    claim = session.claim

    def claim_later(*args: Any, **kwargs: Any) -> None:
        claim(*args, **kwargs)
        group.holds_back = True

    session.claim = claim_later  # type: ignore[method-assign]
    consumer._reading.take_over({ORDERS: hashes}, None)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize(
    ("before", "after"),
    [((), (LOWER,)), ((LOWER,), ()), ((LOWER,), (LOWER, UPPER)), ((UPPER,), (LOWER,))],
    ids=["some go", "some come", "all the rest comes", "all change"],
)
def test_hashes_that_stay_are_read_while_others_are_claimed(
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    mode: str,
    before: tuple[HashRange, ...],
    after: tuple[HashRange, ...],
) -> None:
    consumer = make(acknowledgement__mode=mode)
    consumer.assign({ORDERS: before})
    first = consumer.consume(40, WAIT_S)
    assert len(first) == 40
    owned = {i for part in before or ALL_HASHES for i in of(part)}
    kept = {i for part in after or ALL_HASHES for i in of(part)} & owned
    take_over(consumer, group, KeyRanges(after) or ALL_HASHES)
    meanwhile = received(consumer, len(kept - set(offsets(first))))
    assert set(offsets(meanwhile)) == kept - set(offsets(first))
    assert offsets(meanwhile) == sorted(offsets(meanwhile))
    consumer.commit()
    assert group.done.get(ORDERS) is None  # no claim is in place
    group.holds_back = False
    group.members[0].change()
    gained = {i for part in after or ALL_HASHES for i in of(part)} - owned
    last = received(consumer, len(gained))
    assert set(offsets(last)) == gained
    for message in [*first, *meanwhile, *last]:
        consumer.acknowledge(message)
    consumer.commit()
    done = group.done[ORDERS]
    for part in after or ALL_HASHES:
        assert done.position_of((part,)) > max(of(part))


@pytest.mark.parametrize("how", ["commit()", "enable.auto.commit"])
def test_what_is_read_on_is_committed_before_it_closes(cluster: FakeCluster, how: str) -> None:
    """The next claim waits for that of a killed member: nobody is given the records again."""
    servers = cluster.bootstrap_servers
    given = {"claim.timeout.ms": 600_000, "acknowledgement.mode": "explicit"}
    settings = quick_settings(servers, enable_auto_commit=how != "commit()") | given
    with closing(KeySharedConsumer(settings)) as consumer:
        consumer.assign({ORDERS: [LOWER]})
        first = consumer.consume(5, WAIT_S)
        assert consumer.commit() == {ORDERS: 0}
        producer = Producer({"bootstrap.servers": servers})
        key_of_claim, claim = encode(GROUP, Claim(ORDERS, "killed", KeyRanges([UPPER])))
        producer.produce(LOG, claim, key_of_claim, log_partition(GROUP, 1))
        assert producer.flush(WAIT_S) == 0
        consumer._reading.take_over({ORDERS: ALL_HASHES}, None)
        meanwhile = consumer.consume(len(of(LOWER)) - len(first), WAIT_S)
        assert offsets([*first, *meanwhile]) == of(LOWER)
        producer.produce(LOG, None, key_of_claim, log_partition(GROUP, 1))  # as if it was silent
        assert producer.flush(WAIT_S) == 0
        for message in [*first, *meanwhile]:
            consumer.acknowledge(message)
        if how == "commit()":
            consumer.commit()
    committed = list_offsets(GROUP, {"bootstrap.servers": servers})[ORDERS]
    done = {
        i for i in of(LOWER) for piece in committed.individual_commits
        if i in piece.offsets and hash_of(i) in piece.hashes
    }  # fmt: skip
    assert {*range(committed.offset), *done} >= set(of(LOWER))


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("sought", [5, 90], ids=["back", "forth"])
@pytest.mark.parametrize(
    ("before", "after"),
    [((), (LOWER,)), ((LOWER,), ()), ((LOWER,), (LOWER, UPPER)), ((UPPER,), (LOWER,))],
    ids=["some go", "some come", "all the rest comes", "all change"],
)
def test_a_seek_holds_for_the_hashes_that_stay(
    group: FakeSessions,
    make: Callable[..., KeySharedConsumer],
    mode: str,
    sought: int,
    before: tuple[HashRange, ...],
    after: tuple[HashRange, ...],
) -> None:
    """The others begin from what is committed, and what was passed over is not processed."""
    consumer = make(acknowledgement__mode=mode)
    consumer.assign({ORDERS: before})
    first = consumer.consume(20, WAIT_S)
    for message in first:
        consumer.acknowledge(message)
    consumer.commit()
    consumer.seek(ORDERS, sought)
    again = consumer.consume(10, WAIT_S)
    owned = {i for part in before or ALL_HASHES for i in of(part)}
    assert offsets(again) == sorted(i for i in owned if i >= sought)[:10]
    for message in again:
        consumer.acknowledge(message)
    take_over(consumer, group, KeyRanges(after) or ALL_HASHES)
    group.holds_back = False
    group.members[0].change()
    wanted = {i for part in after or ALL_HASHES for i in of(part)}
    stay, gained = wanted & owned, wanted - owned
    rest = {i for i in stay if i >= sought} - set(offsets(again))
    last = received(consumer, len(rest | gained))
    assert set(offsets(last)) == rest | gained
    for message in last:
        consumer.acknowledge(message)
    consumer.commit()
    pending = group.done[ORDERS].pending_of(RECORDS, after or ALL_HASHES)
    left = {
        i
        for i in wanted
        if any(i in piece.offsets and hash_of(i) in piece.hashes for piece in pending)
    }
    assert left == {i for i in stay if i < sought} - set(offsets(first))


def test_a_seek_before_the_start_holds_when_hashes_go(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    group.holds_back = True
    consumer = make()
    consumer.assign({ORDERS: []})
    consumer.seek(ORDERS, 90)
    take_over(consumer, group, KeyRanges([LOWER]))
    group.holds_back = False
    group.members[0].change()
    wanted = [i for i in of(LOWER) if i >= 90]
    assert offsets(received(consumer, len(wanted))) == wanted


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_seek_in_a_callback_is_one_of_all_that_is_assigned(
    group: FakeSessions, make: Callable[..., KeySharedConsumer], mode: str
) -> None:
    """Also of what is gained, whose claim is not in place yet."""
    consumer = make(acknowledgement__mode=mode)
    consumer.assign({ORDERS: (LOWER,)})
    consumer.consume(10, WAIT_S)
    take_over(consumer, group, ALL_HASHES)
    consumer.seek(ORDERS, 90)
    group.holds_back = False
    group.members[0].change()
    assert offsets(received(consumer, RECORDS - 90)) == list(range(90, RECORDS))


def test_a_seek_before_the_start_is_none_of_quite_other_hashes(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    group.holds_back = True
    consumer = make()
    consumer.assign({ORDERS: (LOWER,)})
    consumer.seek(ORDERS, 90)
    take_over(consumer, group, KeyRanges([UPPER]))
    group.holds_back = False
    group.members[0].change()
    assert offsets(received(consumer, len(of(UPPER)))) == of(UPPER)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_hashes_change_before_there_is_a_record(
    cluster: FakeCluster, group: FakeSessions, make: Callable[..., KeySharedConsumer], mode: str
) -> None:
    cluster.create_topic("empty")
    empty = TopicPartition("empty", 0)
    consumer = make(acknowledgement__mode=mode)
    consumer.assign({empty: []})
    assert consumer.consume(1, 0.2) == []
    for hashes in (KeyRanges([LOWER]), ALL_HASHES, KeyRanges([UPPER])):
        consumer._reading.take_over({empty: hashes}, None)
        assert consumer.consume(1, 0.2) == []
    cluster.produce("empty", [(key(i), str(i)) for i in range(RECORDS)], partition=0)
    assert offsets(received(consumer, len(of(UPPER)))) == of(UPPER)


def test_what_a_call_has_not_returned_yet_is_not_processed(
    group: FakeSessions, make: Callable[..., KeySharedConsumer]
) -> None:
    """The claim is in place amid a call, which commits by itself."""
    consumer = make(enable__auto__commit=True, auto__commit__interval__ms=10)
    consumer.assign({ORDERS: []})
    assert consumer.poll(WAIT_S) is not None
    take_over(consumer, group, KeyRanges([LOWER]))

    def claimed() -> None:
        group.holds_back = False
        group.members[0].change()

    threading.Timer(0.3, claimed).start()
    returned = consumer.consume(RECORDS, 1.5)
    assert returned
    pending = group.done[ORDERS].pending_of(RECORDS, (LOWER,)) if ORDERS in group.done else None
    for message in returned:
        assert pending is None or any(message.offset() in piece.offsets for piece in pending)
