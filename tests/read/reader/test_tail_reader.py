"""Reading without an end: partitions that are given up while others are handed out."""

import logging
import select
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kshare.core.hashing import WHOLE
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice, TopicPartition
from kshare.kafka.protocol.background import Waker
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.connection import BrokerConnection, Connection
from kshare.options import EARLIEST, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign
from kshare.read.reader import fetch_loop, partition_reader, slice_records, tail_reader
from kshare.read.reader.tail_reader import NO_END, TailReader, TailRecords
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, until
from tests.support.groups import group_config
from tests.support.interrupts import Interrupt, interrupt

PARTITIONS = [TopicPartition("orders", number) for number in range(2)]
TURNS = [TopicPartition("orders", number) for number in range(3)]


def options_of(cluster: FakeCluster, **kafka: Any) -> SourceOptions:
    config = replace(group_config(cluster.bootstrap_servers).kafka, **kafka)
    return SourceOptions(topics=Assign(FrozenMapping({})), kafka=config, starting=EARLIEST)


def test_a_partition_of_the_same_response_that_is_given_up_is_not_handed_out() -> None:
    """Nor in place of what is read of it then."""
    with FakeCluster(topics={"orders": 2}) as cluster:
        for _, number in PARTITIONS:
            cluster.produce("orders", [("k", f"{i}") for i in range(50)], partition=number)
        waker = Waker().open()
        with closing(waker), closing(TailReader(options_of(cluster), "earliest", waker)) as reader:

            def read(partition: TopicPartition, first: int) -> None:
                wanted = Rectangle(OffsetRange(first, NO_END), WHOLE)
                reader.read(Slice(*partition, (wanted,)))

            def next_records() -> TailRecords:
                while (records := reader.next_records(1.0)) is None:
                    pass
                return records

            for partition in PARTITIONS:
                read(partition, 0)
            handed_out = next_records().topic_partition
            (other,) = set(PARTITIONS) - {handed_out}
            for partition in PARTITIONS:
                reader.drop(partition)
            assert [reader.next_records(0.1) for _ in range(3)] == [None] * 3
            read(other, 40)
            again = next_records()
            assert again.topic_partition == other
            assert again.batch.column("offset").to_pylist() == list(range(40, 50))


def test_what_a_partition_has_lost_that_is_given_up_meanwhile_is_no_error() -> None:
    with FakeCluster(topics={"orders": 2}) as cluster:
        for _, number in PARTITIONS:
            cluster.produce("orders", [("k", f"{i}") for i in range(50)], partition=number)
        cluster.trim("orders", 1, 20)
        waker = Waker().open()
        with closing(waker), closing(TailReader(options_of(cluster), "error", waker)) as reader:
            for partition in PARTITIONS:
                wanted = Rectangle(OffsetRange(0, NO_END), WHOLE)
                reader.read(Slice(*partition, (wanted,)))
            while (records := reader.next_records(1.0)) is None:
                pass
            assert records.topic_partition == PARTITIONS[0]
            reader.drop(PARTITIONS[1])
            assert [reader.next_records(0.1) for _ in range(3)] == [None] * 3


def is_hung_up(fileno: int) -> bool:
    """True if the other side has closed a connection, maybe behind something that is not read."""
    poll = select.poll()
    poll.register(fileno, select.POLLRDHUP)
    return bool(poll.poll(0))


def test_a_connection_that_is_cut_while_nobody_reads_is_replaced_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Services cut what is idle: an answer lies there, and who reads is busy for minutes."""
    caplog.set_level(logging.INFO, logger="kshare.read")
    batches, cuts = 6, 0
    with FakeCluster(topics={"orders": 1}) as cluster:
        for _ in range(batches):
            cluster.produce("orders", [("k", "v" * 4_000)], partition=0)
        one_each = options_of(cluster, max_partition_fetch_bytes=1_000)
        waker = Waker().open()
        with closing(waker), closing(TailReader(one_each, "earliest", waker)) as reader:
            wanted = Rectangle(OffsetRange(0, NO_END), WHOLE)
            reader.read(Slice("orders", 0, (wanted,)))
            found: list[int] = []
            while len(found) < batches:
                records = reader.next_records(1.0)
                if records is None:
                    continue
                found += records.batch.column("offset").to_pylist()
                for fetcher in reader._loop.asked:  # nobody, while it connects again
                    fileno = fetcher.open().fileno()
                    assert select.select([fileno], [], [], WAIT_S)[0]  # it is answered
                    cluster.stop_broker(1)
                    cluster.start_broker(1)
                    until(partial(is_hung_up, fileno))
                    cuts += 1
    assert found == list(range(batches))
    assert cuts >= batches // 2
    assert not caplog.messages


def test_a_connection_whose_login_is_about_to_expire_is_replaced_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between two requests, with a backlog and without one; what was asked for is taken first."""
    caplog.set_level(logging.INFO, logger="kshare.read")
    batches = 6
    with FakeCluster(topics={"orders": 1}) as cluster:
        for _ in range(batches):
            cluster.produce("orders", [("k", "v" * 4_000)], partition=0)
        one_each = options_of(cluster, max_partition_fetch_bytes=1_000)
        waker = Waker().open()
        with closing(waker), closing(TailReader(one_each, "earliest", waker)) as reader:
            reader.read(Slice("orders", 0, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
            used: list[BrokerConnection | None] = []
            found: list[int] = []
            while len(found) < 2 * batches:
                records = reader.next_records(1.0)
                found += [] if records is None else records.batch.column("offset").to_pylist()
                if records is not None and len(found) >= batches:
                    cluster.produce("orders", [("k", "more")], partition=0)
                for fetcher in reader._loop.asked:
                    assert isinstance(fetcher.connection, Connection)
                    assert fetcher.connection not in used[:-1]
                    if fetcher.connection not in used:
                        used.append(fetcher.connection)
                    fetcher.connection._good_until = 0.0
    assert found == list(range(2 * batches))
    assert len(used) >= batches
    assert not caplog.messages


def test_a_leader_that_freezes_is_left_for_the_next_one() -> None:
    """Its connection stays open, and the answer to a long poll never comes."""
    orders = PARTITIONS[0]
    with FakeCluster(brokers=2, topics={"orders": 1}) as cluster:
        cluster.move_leader(*orders, 2)
        cluster.produce("orders", [("k", "before")], partition=0)
        kafka = group_config(cluster.bootstrap_servers, request_timeout_ms=1_000).kafka
        options = SourceOptions(topics=Assign(FrozenMapping({})), kafka=kafka, starting=EARLIEST)
        waker = Waker().open()
        with closing(waker), closing(TailReader(options, "earliest", waker)) as reader:
            reader.read(Slice(*orders, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
            values = values_of(reader, 1)
            reader.next_records(0.1)  # a long poll is under way
            cluster.delay(2, 600_000)
            cluster.move_leader(*orders, 1)
            cluster.produce("orders", [("k", "after")], partition=0)
            values += values_of(reader, 1)
        assert values == [b"before", b"after"]


def test_a_leader_that_has_nothing_is_looked_up_again_when_it_is_old() -> None:
    """It answers on, as one that is cut off from the controller does."""
    orders = PARTITIONS[0]
    with FakeCluster(brokers=2, topics={"orders": 1}) as cluster:
        cluster.produce("orders", [("k", "before")], partition=0)
        options = options_of(cluster, fetch_max_wait_ms=10)
        waker = Waker().open()
        with closing(waker), closing(TailReader(options, "earliest", waker)) as reader:
            reader.read(Slice(*orders, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
            assert values_of(reader, 1) == [b"before"]
            pool = BrokerPool(options.kafka)
            (former,) = pool.known_leaders([orders]).values()
            pool.forget(orders)  # as when it is old
            until(lambda: reader.next_records(0.1) or not pool.is_outdated(orders, former))
            cluster.produce("orders", [("k", "after")], partition=0)
            assert values_of(reader, 1) == [b"after"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_frozen_broker_keeps_no_other_one_waiting(is_late: bool) -> None:
    """Nor does it when nothing is connected yet: it takes connections, and answers nothing.

    Nor when nobody has read for a while, and leaders are looked up again.
    """
    with FakeCluster(brokers=2, topics={"orders": 2}) as cluster:
        for partition in PARTITIONS:
            cluster.move_leader(*partition, 1 + partition.partition)
            cluster.produce("orders", [("k", "v")] * 3, partition=partition.partition)
        well = cluster.bootstrap_servers.split(",")[0]
        kafka = group_config(well, request_timeout_ms=3_600_000).kafka
        options = SourceOptions(topics=Assign(FrozenMapping({})), kafka=kafka, starting=EARLIEST)
        cluster.delay(2, 3_600_000)
        waker = Waker().open()
        with closing(waker), closing(TailReader(options, "earliest", waker)) as reader:
            for partition in PARTITIONS[::-1]:
                reader.read(Slice(*partition, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
            assert values_of(reader, 3) == [b"v"] * 3
            if is_late:
                time.sleep(3 * kafka.fetch_max_wait_ms / 1000)
                assert reader.next_records(0.1) is None
            cluster.produce("orders", [("k", "more")], partition=0)
            assert values_of(reader, 1) == [b"more"]
            assert reader.delivered(PARTITIONS[1]) == 0


def values_of(reader: TailReader, count: int) -> list[bytes]:
    """The values of the next records."""
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count:
        assert time.monotonic() < deadline
        records = reader.next_records(1.0)
        values += [] if records is None else records.batch.column("value").to_pylist()
    return values


def reader_in_turns(cluster: FakeCluster, waker: Waker, **kafka: Any) -> TailReader:
    """A reader of all partitions of ``orders`` in turns."""
    reader = TailReader(options_of(cluster, **kafka), "earliest", waker)
    reader.take_turns()
    for partition in TURNS:
        reader.read(Slice(*partition, (Rectangle(OffsetRange(0, NO_END), WHOLE),)))
    return reader


def read_all(reader: TailReader, count: int) -> list[tuple[TopicPartition, list[bytes]]]:
    """So many records: of each batch, the partition and the values."""
    found: list[tuple[TopicPartition, list[bytes]]] = []
    deadline = time.monotonic() + 60
    while sum(len(values) for _, values in found) < count:
        assert time.monotonic() < deadline
        records = reader.next_records(1.0)
        if records is not None:
            found.append((records.topic_partition, records.batch.column("value").to_pylist()))
    return found


def test_in_turns_no_partition_waits_until_another_one_is_read() -> None:
    """Compressed batches: what one has decompressed stays while others decode."""
    count = 3_000
    with FakeCluster(topics={"orders": len(TURNS)}) as cluster:
        for tp in TURNS:
            rows = [(f"k{at % 7}", f"{tp.partition}-{at}") for at in range(count)]
            config = {"compression.type": "gzip"}
            cluster.produce("orders", rows, partition=tp.partition, config=config)
        waker = Waker().open()
        with closing(waker), closing(reader_in_turns(cluster, waker)) as reader:
            found = read_all(reader, count * len(TURNS))
    for tp in TURNS:
        values = [f"{tp.partition}-{at}".encode() for at in range(count)]
        assert [value for each, some in found if each == tp for value in some] == values
    assert {tp for tp, _ in found[: len(TURNS)]} == {*TURNS}
    assert max(len(some) for _, some in found) <= 512


def test_a_partition_alone_is_not_read_in_short_turns() -> None:
    (tp, *_), count = TURNS, 3_000
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [("k", f"{at}") for at in range(count)], partition=tp.partition)
        waker = Waker().open()
        with closing(waker), closing(reader_in_turns(cluster, waker)) as reader:
            for each in TURNS:
                reader.drop(each)
            whole = (Rectangle(OffsetRange(0, NO_END), WHOLE),)
            reader.read(Slice(*tp, whole), is_alone=True)
            found = read_all(reader, count)
    assert [int(value) for _, some in found for value in some] == list(range(count))
    assert max(len(some) for _, some in found) > 512


def test_in_turns_a_batch_that_is_larger_than_its_share_comes() -> None:
    with FakeCluster(topics={"orders": len(TURNS)}) as cluster:
        for tp in TURNS:
            for at in range(3):
                cluster.produce("orders", [("k", f"{at}" * 300_000)], partition=tp.partition)
        waker = Waker().open()
        reader = reader_in_turns(cluster, waker, max_partition_fetch_bytes=200_000)
        with closing(waker), closing(reader):
            found = read_all(reader, 3 * len(TURNS))
    for tp in TURNS:
        assert [some[0][:1] for each, some in found if each == tp] == [b"0", b"1", b"2"]


def test_a_slice_is_known_to_be_read_to_its_end() -> None:
    """Also where its last offsets have no record: without that, a lease would never end."""
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [("k", f"{i}") for i in range(50)], partition=0)
        waker = Waker().open()
        with closing(waker), closing(TailReader(options_of(cluster), "earliest", waker)) as reader:
            reader.read(Slice(*PARTITIONS[0], (Rectangle(OffsetRange(0, 30), WHOLE),)))
            rows = 0
            while rows < 30:
                records = reader.next_records(1.0)
                rows += 0 if records is None else records.batch.num_rows
            assert reader.next_records(0.0) is None  # the end of it is behind
            assert reader.delivered(PARTITIONS[0]) == 30
            assert reader.bounds(PARTITIONS[0]) == (0, 50)
            reader.drop(PARTITIONS[0])
            assert reader.delivered(PARTITIONS[0]) == 0


def test_an_interrupt_amid_a_drop_lets_nothing_of_it_be_delivered_later() -> None:
    wanted = list(range(5, 2_000))
    number, modules = 0, (fetch_loop, tail_reader, partition_reader, slice_records)
    with FakeCluster(topics={"orders": 1}) as cluster:
        cluster.produce("orders", [("k", f"{i}") for i in range(2_000)], partition=0)
        waker = Waker().open()
        while True:
            with closing(TailReader(options_of(cluster), "earliest", waker)) as reader:

                def read(first: int, reader: TailReader = reader) -> None:
                    rectangle = Rectangle(OffsetRange(first, NO_END), WHOLE)
                    reader.read(Slice(*PARTITIONS[0], (rectangle,)))

                reader.take_turns()
                read(0)
                while reader.next_records(1.0) is None:
                    pass
                with interrupt(number, *modules) as raised, suppress(Interrupt):
                    read(5)
                read(5)  # as the next call does
                got = list[int]()
                while len(got) < len(wanted):
                    records = reader.next_records(1.0)
                    got += [] if records is None else records.batch.column("offset").to_pylist()
                assert got == wanted, raised
            if not raised:
                break
            number += 1
        waker.close()
    assert number > 20
