"""Consumers and parked keys: their records wait, in order, and nobody else's do."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kshare.core.hashing import HASH_SPACE, HashRange, key_hash
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.message import Message
from kshare.kafka import parking
from kshare.testing import FakeCluster
from tests.support.clock import until
from tests.support.fake_session import FakeSessions, fake_consumers
from tests.support.groups import SECONDS, T0, eventually
from tests.support.parked_keys import FakeParked

KEYS = [b"a", b"b", b"c", b"d"]
RECORDS = 80
Make = Callable[..., KeySharedConsumer]
Way = Callable[[KeySharedConsumer], list[int]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "EVERY_SECONDS", 0.01)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1}) as running:
        running.produce("orders", [(KEYS[i % 4], f"{i}") for i in range(RECORDS)], partition=0)
        yield running


@pytest.fixture
def parked() -> FakeParked:
    return FakeParked()


@pytest.fixture
def make(cluster: FakeCluster, group: FakeSessions, parked: FakeParked) -> Iterator[Make]:
    with fake_consumers(cluster, group, parked=parked) as consumers:
        yield consumers


def test_a_call_returns_what_it_has_when_a_key_is_parked_or_unparked(
    cluster: FakeCluster, make: Make, parked: FakeParked
) -> None:
    """Else it would hand out what is parked, and miss what is not, for as long as it waits."""
    consumer = make()
    consumer.assign([T0])
    of_a = range(RECORDS, RECORDS + 8, 4)
    for keys in (KEYS[:1], []):
        parks = threading.Timer(0.2, set_parked, (parked, *keys))
        parks.start()
        begun = time.monotonic()
        found = consumer.consume(RECORDS + 1, 2 * SECONDS)
        assert time.monotonic() - begun < SECONDS
        parks.join()
        if keys:
            assert [message.offset() for message in found] == list(range(RECORDS))
            rows = [(KEYS[i % 4], "v") for i in range(8)]
            cluster.produce("orders", rows, partition=0)
        else:
            assert [m.offset() for m in found] == [
                at for at in range(RECORDS, RECORDS + 8) if at not in of_a
            ]
    assert [m.offset() for m in consumer.consume(2, SECONDS)] == list(of_a)


def set_parked(parked: FakeParked, *keys: bytes) -> None:
    """Park these keys and no others, and wait until it is known."""
    parked.keys = {("orders", key) for key in keys}
    seen = parked.looks
    eventually(lambda: parked.looks > seen + 1)


def by_poll(consumer: KeySharedConsumer) -> list[Message]:
    message = consumer.poll(0.05)
    return [] if message is None else [message]


def by_consume(consumer: KeySharedConsumer) -> list[Message]:
    return consumer.consume(7, 0.05)


def offsets_by_batch(consumer: KeySharedConsumer) -> list[int]:
    batch = consumer.consume_batch(0.05)
    return [] if batch is None else list(batch.column("offset").to_pylist())


def offsets_of(key: bytes) -> list[int]:
    return list(range(KEYS.index(key), RECORDS, 4))


WAYS: list[Way] = [
    lambda consumer: [each.offset() for each in by_poll(consumer)],
    lambda consumer: [each.offset() for each in by_consume(consumer)],
    offsets_by_batch,
]


def drained(consumer: KeySharedConsumer, way: Way, count: int) -> list[int]:
    """The offsets of all that comes; more than so many, if there are more."""
    found: list[int] = []

    def has_all() -> bool:
        found.extend(way(consumer))
        return len(found) >= count

    until(has_all)
    return found + way(consumer)


def acknowledged(consumer: KeySharedConsumer) -> list[int]:
    """The next record, acknowledged."""
    messages = by_poll(consumer)
    for message in messages:
        consumer.acknowledge(message)
    return [message.offset() for message in messages]


@pytest.mark.parametrize("way", WAYS)
def test_the_records_of_a_parked_key_wait_and_hold_the_stable_offset(
    make: Make, parked: FakeParked, way: Way
) -> None:
    parked.keys = {("orders", b"b"), ("others", b"a")}
    consumer = make()
    consumer.assign([("orders", 0)])
    others = sorted({*range(RECORDS)} - {*offsets_of(b"b")})
    assert drained(consumer, way, len(others)) == others
    assert consumer.commit() == {T0: 0}
    set_parked(parked)
    assert drained(consumer, way, len(offsets_of(b"b"))) == offsets_of(b"b")
    # What follows the last record is passed over at a look after it was read.
    eventually(lambda: (way(consumer), consumer.commit()) == ([], {T0: RECORDS}))


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("way", WAYS[:2])
def test_a_key_that_is_parked_under_way_goes_on_where_it_was(
    make: Make, parked: FakeParked, group: FakeSessions, mode: str, way: Way
) -> None:
    consumer = make(acknowledgement__mode=mode)
    consumer.assign({("orders", 0): [(0, HASH_SPACE)]})
    before = [offset for _ in range(3) for offset in way(consumer)]
    assert before == list(range(len(before)))
    set_parked(parked, b"c")
    others = [o for o in range(len(before), RECORDS) if KEYS[o % 4] != b"c"]
    assert drained(consumer, way, len(others)) == others
    consumer.commit()
    if mode == "implicit":
        assert group.done[T0].stable == len(before)
    set_parked(parked)
    rest = [o for o in offsets_of(b"c") if o >= len(before)]
    assert drained(consumer, way, len(rest)) == rest


def test_what_a_parked_key_has_in_flight_can_be_acknowledged(
    make: Make, parked: FakeParked
) -> None:
    consumer = make(acknowledgement__mode="explicit")
    consumer.assign([("orders", 0)])
    first = consumer.consume(4, SECONDS)
    assert [each.offset() for each in first] == [0, 1, 2, 3]
    set_parked(parked, b"a")
    for message in first:
        consumer.acknowledge(message)
    others = [o for o in range(4, RECORDS) if KEYS[o % 4] != b"a"]
    assert sorted(drained(consumer, acknowledged, len(others))) == others
    assert consumer.commit() == {T0: 4}
    set_parked(parked)
    rest = offsets_of(b"a")[1:]
    assert drained(consumer, acknowledged, len(rest)) == rest
    assert consumer.commit() == {T0: RECORDS}


@pytest.mark.parametrize("seed", range(6))
def test_each_record_comes_once_and_in_order_however_keys_are_parked(
    make: Make, parked: FakeParked, group: FakeSessions, seed: int
) -> None:
    rng = random.Random(seed)
    explicit = seed % 3 > 0
    config: dict[str, Any] = {"acknowledgement__mode": "explicit" if explicit else "implicit"}
    consumer = make(**config)
    consumer.assign([("orders", 0)])
    returned: list[Message] = []
    unacknowledged: list[Message] = []
    now: set[bytes] = set()

    def acknowledge(count: int) -> None:
        for _ in range(count if explicit else 0):
            consumer.acknowledge(unacknowledged.pop())

    def receive(way: str) -> bool:
        messages = by_poll(consumer) if way == "poll" else by_consume(consumer)
        assert not {each.key() for each in messages} & now
        returned.extend(messages)
        unacknowledged.extend(messages)
        return bool(messages)

    for _ in range(25):
        match rng.choice(["park", "poll", "consume", "consume", "acknowledge", "commit"]):
            case "park":
                now = {key for key in KEYS if rng.random() < 0.3}
                set_parked(parked, *now)
            case "acknowledge":
                rng.shuffle(unacknowledged)
                acknowledge(rng.randrange(len(unacknowledged) + 1))
            case "commit":
                consumer.commit()
                check_committed(group, returned, unacknowledged if explicit else [])
            case way:
                receive(way)
    now = set()
    set_parked(parked)
    acknowledge(len(unacknowledged))

    def has_all() -> bool:
        receive("consume")
        acknowledge(len(unacknowledged))
        return len(returned) >= RECORDS

    until(has_all)
    assert not receive("consume")
    by_key = defaultdict(list)
    for message in returned:
        by_key[message.key()].append(message.offset())
    assert dict(by_key) == {key: offsets_of(key) for key in KEYS}
    assert consumer.commit() == {T0: RECORDS}


def check_committed(
    group: FakeSessions, returned: list[Message], unacknowledged: list[Message]
) -> None:
    """Nothing counts as processed that was not returned, or is not acknowledged."""
    done = group.done.get(T0)
    if done is None:
        return
    processed = {each.offset() for each in returned} - {each.offset() for each in unacknowledged}
    for offset in set(range(RECORDS)) - processed:
        point = key_hash(KEYS[offset % 4], 0)
        pending = done.pending_of(RECORDS, (HashRange.of(point),))
        assert any(offset in piece.offsets for piece in pending)


def test_nothing_is_delivered_before_it_is_known_what_is_parked(
    make: Make, parked: FakeParked, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_known = False

    def everywhere() -> list[tuple[str, bytes]]:
        while not is_known:
            time.sleep(0.01)
        return [("orders", b"a")]

    monkeypatch.setattr(parked, "everywhere", everywhere)
    consumer = make()
    consumer.assign([("orders", 0)])
    assert consumer.poll(0.3) is None
    is_known = True
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.offset() == 1
    consumer.close()
    eventually(lambda: parked.is_closed)


def test_a_range_of_which_all_is_parked_and_seeks(make: Make, parked: FakeParked) -> None:
    point = key_hash(b"b", 0)
    parked.keys = {("orders", b"b")}
    consumer = make()
    consumer.assign({("orders", 0): [(point, point + 1)]})
    assert consumer.poll(0.3) is None
    consumer.seek(("orders", 0), 40)
    assert consumer.poll(0.1) is None
    set_parked(parked)
    assert drained(consumer, WAYS[1], len(offsets_of(b"b"))) == offsets_of(b"b")
    consumer.seek(("orders", 0), 60)
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.offset() == 61
    set_parked(parked, b"b")
    assert consumer.poll(0.2) is None
    set_parked(parked)
    assert drained(consumer, WAYS[1], 4) == [65, 69, 73, 77]


def test_no_fault_ends_the_look_for_parked_keys(
    make: Make, parked: FakeParked, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Nothing would ever be delivered, and nobody would know why. It is logged once."""
    monkeypatch.setattr(parking, "_SOON_SECONDS", 0.01)
    everywhere, faults = parked.everywhere, [1, 2]

    def fails_twice() -> Any:
        if faults:
            faults.pop()
            raise LookupError("of whatever reads them")
        return everywhere()

    monkeypatch.setattr(parked, "everywhere", fails_twice)
    consumer = make()
    consumer.assign([T0])
    assert len(consumer.consume(RECORDS, SECONDS)) == RECORDS
    assert caplog.text.count("cannot look which keys are parked; nothing is delivered") == 1
