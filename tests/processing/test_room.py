"""Partitions that are processed in order share the room of a processor."""

import gc
import weakref
from collections.abc import Mapping
from functools import partial
from unittest.mock import Mock

import pytest

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import Processor, Record, Retry
from kshare.processing.core.lane import Lane
from kshare.processing.room import Room, Shares
from kshare.testing import FakeCluster
from tests.processing.engines import Rows
from tests.processing.running import run
from tests.support.fake_session import FakeSessions, fake_consumers

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
COUNT = 200


def lanes_of(held: Mapping[TopicPartition, int]) -> list[Lane]:
    return [lane_of(partition, count) for partition, count in held.items() if count]


def lane_of(partition: TopicPartition, count: int) -> Lane:
    records = [Record(Rows(), at, at, b"", b"v", partition) for at in range(count)]
    lane = Lane(partition, records[0])
    for record in records[1:]:
        lane.records.append(record)
        lane.size += record.size
    return lane


@pytest.mark.parametrize("bound", ["max_records", "max_bytes"])
def test_a_partition_that_waits_stops_no_other(sessions: FakeSessions, bound: str) -> None:
    """What is behind its record may not fill the room of the others."""
    done = set[int]()

    async def handler(record: Record) -> None:
        if record.partition == 0:
            raise ValueError("not yet")
        done.add(record.offset)

    rows = [("k", "v")] * COUNT  # of two bytes each
    with FakeCluster(topics={"orders": 2}) as cluster:
        cluster.produce("orders", rows, partition=0)
        with fake_consumers(cluster, sessions) as make:
            made = make(
                acknowledgement__mode="explicit",
                enable__auto__commit=True,
                allow__individual__commit=False,
            )
            made.assign([FIRST, SECOND])
            processor = Processor(
                handler,
                order="partition",
                retry=Retry(first="1h", most="1h"),
                drain_timeout="1ms",
                **{bound: 40},  # type: ignore[arg-type]
            )

            def all_done() -> bool:
                if processor.running is not None and not rows_of_second:
                    held = processor.running.scheduler.figures()
                    if held.waiting and held.records >= 10:
                        rows_of_second.extend(rows)
                        cluster.produce("orders", rows_of_second, partition=1)
                return len(done) == COUNT

            rows_of_second = list[tuple[str, str]]()
            run(processor, made, all_done, seconds=15.0)
    assert len(done) == COUNT


class Held:
    """What is held of two partitions, and their shares of 80 records."""

    def __init__(self, first: int) -> None:
        self.counts = {FIRST: first, SECOND: 0}
        self.consumer = Mock(spec=KeySharedConsumer)
        self.consumer.assignment.return_value = {FIRST: (), SECOND: ()}
        processor = Processor(print, order="partition", max_records=80, max_bytes=1 << 20)
        self.room = Room(lambda: (80 - sum(self.counts.values()), 1 << 20), 1)
        self.shares = Shares(processor, self.consumer, self.room)

    def allotted(self, partition: TopicPartition, count: int) -> tuple[int, set[TopicPartition]]:
        """The records that may be read, and the paused partitions, once so many are held."""
        self.counts[partition] = count
        records = self.shares.allot(partial(lanes_of, self.counts)).records
        return records, self.shares.paused


def test_a_partition_may_fill_half_of_the_room_and_the_others_have_the_rest() -> None:
    held = Held(first=0)
    assert held.allotted(FIRST, 30) == (10, set())
    assert held.allotted(FIRST, 40) == (10, {FIRST})
    assert held.allotted(SECOND, 10) == (10, {FIRST, SECOND})
    assert held.allotted(SECOND, 9) == (10, {FIRST})
    assert held.allotted(FIRST, 12) == (10, {FIRST})  # it does not go to and fro
    assert held.allotted(FIRST, 10) == (21, set())
    assert held.consumer.pause.call_args_list[0].args == ({FIRST},)


def test_what_others_have_resumed_is_paused_again() -> None:
    held = Held(first=0)
    held.allotted(FIRST, 40)
    held.allotted(FIRST, 41)
    assert held.consumer.pause.call_count == 1
    held.shares.forget()
    assert held.allotted(FIRST, 41) == (10, {FIRST})
    assert held.consumer.pause.call_count == 2


def test_what_is_on_its_way_counts_until_it_arrives_and_is_kept_no_longer() -> None:
    held = Held(first=0)
    source = Mock(topic_partition=FIRST)
    records = [Record(source, at, at, b"", b"", FIRST) for at in range(40)]
    held.room.send(records)
    held.shares.send(records)
    assert held.allotted(FIRST, 0) == (10, {FIRST})
    held.room.take(records)
    assert held.allotted(FIRST, 0) == (40, set())
    last = weakref.ref(records[-1].source)
    held.shares.send([])
    del records, source
    gc.collect()
    assert last() is None
