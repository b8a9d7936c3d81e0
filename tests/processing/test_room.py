"""Partitions that are processed in order share the room of a processor."""

import threading
from unittest.mock import Mock

import pytest

from kshare.core.progress import TopicPartition
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import Processor, Record, Retry
from kshare.processing.core.lane import Lane, State
from kshare.processing.intake import Intake
from kshare.processing.measures import Measures
from kshare.processing.room import Room, Shares
from kshare.testing import FakeCluster
from tests.processing.engines import Rows
from tests.processing.running import run
from tests.support.fake_session import FakeSessions, fake_consumers

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
COUNT = 200


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
        cluster.produce("orders", rows[:1], partition=0)
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
                if processor.running is not None and produced:
                    held = processor.running.scheduler.figures()
                    if held.waiting and held.records >= produced[-1][0]:
                        cluster.produce("orders", rows, partition=produced.pop()[1])
                return len(done) == COUNT

            # What waits, once one record does, and then the others.
            produced = [(4, 1), (1, 0)]
            run(processor, made, all_done, seconds=15.0)
    assert len(done) == COUNT


class Held:
    """What is held of two partitions, and their shares of 80 records."""

    def __init__(self) -> None:
        self.lanes = [lane_of(FIRST, 1), lane_of(SECOND, 1)]
        self.consumer = Mock(spec=KeySharedConsumer)
        self.consumer.assignment.return_value = {FIRST: (), SECOND: ()}
        processor = Processor(print, order="partition", max_records=80, max_bytes=1 << 20)
        self.room = room = Room(
            lambda: (80 - sum(len(each.records) for each in self.lanes), 1 << 20), 1
        )
        self.shares = Shares(processor, self.consumer, room)

    def allotted(
        self, partition: TopicPartition, count: int, state: State = State.READY
    ) -> tuple[int, set[TopicPartition]]:
        """The records that may be read, and the paused partitions, once so many are held."""
        at = [FIRST, SECOND].index(partition)
        self.lanes[at] = lane_of(partition, count)
        self.lanes[at].state = state
        records = self.shares.allot(lambda: self.lanes).records
        return records, self.shares.paused


@pytest.mark.parametrize("state", [State.WAITING, State.ENDING])
def test_a_partition_that_waits_is_paused_once_it_holds_its_share(state: State) -> None:
    held = Held()
    assert held.allotted(FIRST, 18, state) == (30, set())  # less than a quarter in all
    assert held.allotted(FIRST, 20, state) == (29, {FIRST})
    assert held.allotted(SECOND, 50, State.RUNNING) == (5, {FIRST})
    assert held.allotted(FIRST, 12) == (9, {FIRST})  # it goes on, and does not go to and fro
    assert held.allotted(FIRST, 10) == (10, set())
    assert held.consumer.pause.call_args_list[0].args == ({FIRST},)
    assert held.consumer.resume.call_args_list[-1].args == ({FIRST},)


def test_partitions_that_do_not_wait_are_not_paused() -> None:
    held = Held()
    held.allotted(FIRST, 40, State.RUNNING)
    assert held.allotted(SECOND, 40) == (0, set())
    assert not held.consumer.pause.called


def test_a_partition_that_was_paused_goes_on_once_little_is_held() -> None:
    held = Held()
    held.allotted(SECOND, 20)
    assert held.allotted(FIRST, 18, State.WAITING)[1] == {FIRST}
    assert held.allotted(SECOND, 1)[1] == set()


def test_what_others_have_resumed_is_paused_again() -> None:
    held = Held()
    held.allotted(FIRST, 40, State.WAITING)
    held.allotted(FIRST, 41, State.WAITING)
    assert held.consumer.pause.call_count == 1
    held.shares.forget()
    assert held.allotted(FIRST, 41, State.WAITING) == (19, {FIRST})
    assert [call.args for call in held.consumer.pause.call_args_list] == [({FIRST},)] * 2


def test_what_the_user_has_paused_stays_so() -> None:
    held = Held()
    held.shares.forget()  # as after each claim
    held.allotted(FIRST, 40, State.WAITING)
    held.allotted(FIRST, 1)
    resumed = [call.args for call in held.consumer.resume.call_args_list]
    assert resumed == [(set(),), ({FIRST},)]


def test_what_is_on_its_way_is_waited_for_before_partitions_are_paused() -> None:
    held = Held()
    held.lanes.clear()
    sent = [Record(Rows(), at, at, b"", b"v", FIRST) for at in range(30)]
    held.room.send(sent)

    def arrives() -> None:
        lane = lane_of(FIRST, len(sent))
        lane.state = State.WAITING
        held.lanes.append(lane)
        held.room.take(sent)
        held.room.changed()

    thread = threading.Timer(0.01, arrives)
    thread.start()
    held.shares.allot(lambda: held.lanes)
    thread.join()
    assert held.shares.paused == {FIRST}


def test_what_arrives_counts_until_the_engine_has_it() -> None:
    """While outcomes are told, a reader could else fill the room with what is on its way."""
    left = list[int]()
    records = [Record(Rows(), at, at, b"", b"v", FIRST) for at in range(10)]
    engine = Mock(measures=Measures())
    room = Room(lambda: (100, 1 << 20), 1)
    engine.settle.side_effect = lambda: left.append(room.left)
    loop, edge = Mock(), Mock(has_given_back=False)
    Intake(loop, engine, edge, room, 1.0).send(records)
    take, arrived = loop.call_soon_threadsafe.call_args.args
    take(arrived)
    assert left == [90]
    assert room.left == 100  # the engine's own count has them now


def test_what_arrives_amid_a_look_counts() -> None:
    records = [Record(Rows(), at, at, b"", b"value", FIRST) for at in range(10)]
    size = sum(record.size for record in records)
    looks = list[tuple[int, int]]()

    def of_engine() -> tuple[int, int]:
        """As if the engine's thread took them right after each look at it."""
        room.take(records)
        return looks.pop()

    for look in ("left", "bytes_left"):
        looks += [(100, 1_000)] * 2
        room = Room(of_engine, 1)
        room.send(records * 2)
        left = getattr(room, look)
        assert left <= {"left": 90, "bytes_left": 1_000 - size}[look]


def test_a_stop_just_before_the_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    room, is_stopping = Room(lambda: (0, 1), 1), threading.Event()

    def until() -> bool:
        """As if another thread stopped it right after each look."""
        was_stopping = is_stopping.is_set()
        is_stopping.set()
        room.changed()
        return was_stopping

    wait = Mock()
    monkeypatch.setattr(room._has_changed, "wait", wait)
    room.wait(until)
    assert not wait.called
