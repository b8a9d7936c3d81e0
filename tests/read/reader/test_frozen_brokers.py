"""Brokers that freeze amid an answer: a part of it is there, and nobody waits for the rest."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.core.tasks import PlannedSlice
from kshare.kafka.protocol.background import Waker
from kshare.kafka.protocol.broker_pool import process_memory
from kshare.kafka.protocol.fetch import PartitionFetch
from kshare.read.reader.fetch_loop import FetchLoop
from kshare.read.reader.fetcher import Fetcher
from kshare.read.reader.read_slice import reader_options
from kshare.read.reader.slice_records import SliceRecords
from kshare.read.reader.tail_reader import NO_END, TailReader
from kshare.testing import FakeCluster
from tests.read.reader.test_rests import BATCHES, Endless
from tests.read.reader.test_tail_reader import PARTITIONS, options_of, values_of
from tests.support.clock import Clock, until
from tests.support.relay import Relay, relayed
from tests.support.scripted import PARTITION, ScriptedLog

WHOLE_LOG = (Rectangle(OffsetRange(0, NO_END), WHOLE),)
LARGE = b"v" * 1_000


def reading(cluster: FakeCluster, waker: Waker, request_timeout_ms: int) -> TailReader:
    options = options_of(cluster, request_timeout_ms=request_timeout_ms)
    reader = TailReader(options, "earliest", waker)
    for partition in PARTITIONS:
        reader.read(Slice(*partition, WHOLE_LOG))
    return reader


def freeze(cluster: FakeCluster) -> None:
    """Have a leader for each partition; an answer of the second one will be long."""
    process_memory().close_idle()
    for number, partition in enumerate(PARTITIONS, start=1):
        cluster.move_leader(*partition, number)
    cluster.produce("orders", [("k", LARGE)] * 100, partition=1)


@contextmanager
def amid_an_answer(
    monkeypatch: pytest.MonkeyPatch, request_timeout_ms: int
) -> Iterator[tuple[FakeCluster, TailReader, Relay]]:
    """The second broker is frozen amid its answer; what the other one has is read."""
    with FakeCluster(brokers=2, topics={"orders": 2}) as cluster:
        freeze(cluster)
        with (
            relayed(monkeypatch, cluster, 2) as relay,
            closing(Waker().open()) as waker,
            closing(reading(cluster, waker, request_timeout_ms)) as reader,
        ):
            read_until_frozen(cluster, reader, relay)
            yield cluster, reader, relay


def read_until_frozen(cluster: FakeCluster, reader: TailReader, relay: Relay) -> None:
    """Read the other partition, until the answer has begun, and after that."""
    until(lambda: reader.next_records(0.01) is None and relay.is_frozen.is_set())
    for number in range(3):
        cluster.produce("orders", [("k", f"{number}")], partition=0)
        assert values_of(reader, 1) == [f"{number}".encode()]


def test_others_are_read_meanwhile_and_the_rest_of_the_answer_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with amid_an_answer(monkeypatch, 30_000) as (_, reader, relay):
        relay.goes_on.set()
        assert values_of(reader, 100) == [LARGE] * 100
        assert relay.connections <= 2  # one may have been for looking up


def test_a_broker_that_stays_frozen_is_left_for_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with amid_an_answer(monkeypatch, 1_000) as (cluster, reader, _):
        cluster.move_leader(*PARTITIONS[1], 1)
        assert values_of(reader, 100) == [LARGE] * 100


def test_who_is_woken_amid_an_answer_gets_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though more and more of the answer comes."""
    with (
        FakeCluster(topics={"orders": 2}) as cluster,
        closing(Waker().open()) as waker,
        closing(reading(cluster, waker, 30_000)) as reader,
    ):
        until(lambda: reader.next_records(0.01) is None and reader._loop.asked)
        parts: list[Fetcher] = []

        def part(fetcher: Fetcher) -> bool:
            parts.append(fetcher)
            if len(parts) == 3:
                waker.wake()
            return False

        monkeypatch.setattr(Fetcher, "receive_ready", part)
        assert reader.next_records(3_600.0) is None
        assert len(parts) <= 4


class InParts(ScriptedLog):
    """A leader whose answer comes in parts.

    Attributes:
        parts: How many are to come before the last one.
    """

    parts = 0

    def receive_ready(self) -> memoryview | None:
        if self.parts:
            self.parts -= 1
            return None
        return super().receive_ready()


def asked(clock: Clock, log: InParts, **kafka: Any) -> FetchLoop:
    """A loop that has asked."""
    options = reader_options({"kafka.bootstrap.servers": "127.0.0.1:1"}, "t")
    options = replace(options, kafka=replace(options.kafka, **kafka))
    loop = FetchLoop(options, log, clock)
    loop.read([SliceRecords(PlannedSlice(Slice(*PARTITION, WHOLE_LOG)), options)], Endless())
    assert not list(loop.step(list))
    return loop


def test_a_long_answer_is_overdue_only_if_nothing_more_of_it_comes() -> None:
    clock, log = Clock(), InParts(BATCHES)
    log.parts = 9
    (fetcher,) = asked(clock, log, request_timeout_ms=30_000).asked
    for _ in range(log.parts):
        clock.now += 29
        assert not fetcher.is_overdue
        assert not fetcher.receive_ready()
        assert fetcher.is_waiting
    clock.now += 30
    assert fetcher.is_overdue
    assert fetcher.receive_ready()
    ((partition, offset, answer),) = fetcher.receive()
    assert (partition.topic_partition, offset, len(answer.records) > 0) == (PARTITION, 0, True)
    assert not fetcher.is_waiting
    assert not fetcher.is_overdue


def test_an_answer_is_overdue_after_a_throttle() -> None:
    """The broker reads the request when it ends."""
    clock, log = Clock(), InParts(BATCHES)
    log.throttled_until = clock.now + 100
    (fetcher,) = asked(clock, log, request_timeout_ms=30_000).asked
    clock.now += 129
    assert not fetcher.is_overdue
    clock.now += 1
    assert fetcher.is_overdue


def test_what_was_received_of_a_request_that_is_given_up_is_not_the_answer_to_the_next() -> None:
    clock, log = Clock(), InParts(BATCHES, response_bytes=1)
    loop = asked(clock, log)
    (fetcher,) = loop.asked
    assert fetcher.receive_ready()
    fetcher.close(failed=False)
    fetcher.send([PartitionFetch(PARTITION, 7, 1)], 1)
    ((_, offset, answer),) = fetcher.receive()
    assert offset == 7
    assert bytes(answer.records) == BATCHES[7]
