"""Batches that read for a while: planned, finished, sealed, deleted, and planned again."""

import json
import random
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.checkpoint import decode, encode
from kshare.core.hashing import ALL_HASHES, WHOLE, KeyRanges, key_hash, split
from kshare.core.offsets import OffsetRange
from kshare.core.open_batch import open_ranges
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import RangeEnd, encode_end
from kshare.core.region import Rectangle
from kshare.errors import DataLossError, KafkaError
from kshare.kafka.topics import RANGE_ENDS_TOPIC
from tests.support.effort import examples
from tests.support.open_query import Ends, OpenQuery
from tests.support.planner import KEYS, Log, grown

T0, T1 = (TopicPartition("t", number) for number in range(2))


def ends_of(query: OpenQuery) -> Ends:
    (log,) = query.ends.values()
    return log


def test_a_batch_says_where_it_begins_and_for_how_long() -> None:
    query = OpenQuery(grown(10, 2), keyRanges="2", realTime="1500ms")
    end = query.plan()
    offsets = decode(json.dumps(end))
    assert end["@kshare"]["v"] == 3
    assert {tp: at.stable for tp, at in offsets.progress.items()} == {T0: 0, ("t", 1): 0}
    assert not offsets.started
    batch = offsets.open
    assert batch is not None
    assert (batch.milliseconds, batch.topic) == (1500, RANGE_ENDS_TOPIC)
    assert [len(batch.ranges[tp]) for tp in sorted(batch.ranges)] == [2, 2]
    tasks = query.tasks(end)
    assert [each for task in tasks for each in task.ranges] == open_ranges(batch, offsets.progress)
    assert {(task.milliseconds, task.topic, task.log) for task in tasks} == {
        (1500, RANGE_ENDS_TOPIC, batch.log)
    }


def test_what_comes_while_a_batch_reads_is_read() -> None:
    query = OpenQuery(grown(20, 2), minPartitions="4")
    for _ in range(4):
        query.trigger(lambda: query.log.grow(KEYS))
    query.trigger()
    query.check_all()


def test_a_batch_runs_again_by_its_dict() -> None:
    query = OpenQuery(grown(20, 2), keyRanges="2")
    query.trigger()
    query.log.grow(KEYS)
    end = query.plan()
    (first, *_) = query.tasks(end)
    rows = query.run(first)
    query.restart(realTime="9s", keyRanges="5", **{"realTime.topic": "other"})
    query.log.grow(KEYS)
    (again, *others) = query.tasks(end)
    assert again == first
    assert query.run(again) == rows  # what came later is not read: its ends say so
    query.delivered += rows
    for task in others:
        query.delivered += query.run(task)
    query.at = end
    query.trigger()
    query.check_all()
    assert {*query.ends} == {RANGE_ENDS_TOPIC, "other"}


def test_a_batch_ends_before_it_is_too_far_ahead_of_what_it_may_leave() -> None:
    query = OpenQuery(Log(2), realTime="5s", maxTimeAhead="10s")
    opened = decode(query.plan()).open
    assert opened is not None
    assert (opened.milliseconds, opened.until_ms) == (5_000, 1_005_000)
    query.log.append(T0, b"a", 993_000)
    query.log.append(T1, b"b", 999_000)
    end = query.plan()
    opened = decode(json.dumps(end)).open
    assert opened is not None
    assert (opened.milliseconds, opened.until_ms) == (3_000, 1_003_000)
    (task, *_) = query.tasks(end)
    assert (task.milliseconds, task.until_ms) == (3_000, 1_003_000)
    query.finish(end)
    query.check_all()


def test_what_is_nearly_too_old_is_read_by_a_batch_with_an_end() -> None:
    query = OpenQuery(Log(2), realTime="5s", maxTimeAhead="10s")
    query.log.append(T0, b"a", 500_000)
    query.log.append(T1, b"b", 999_000)
    end = query.plan()
    assert decode(end).open is None
    assert {tp: at.stable for tp, at in decode(end).progress.items()} == {T0: 1, T1: 1}
    query.at = end
    query.log.append(T0, b"a", 999_500)
    opened = decode(query.plan()).open
    assert opened is not None
    assert opened.until_ms == 1_005_000


@examples(60)
@given(st.integers(0, 1 << 32))
def test_no_record_comes_behind_a_watermark_of_that_delay(seed: int) -> None:
    """Spark moves it when a batch has ended. Some ranges do not get on, and are left."""
    chance, watermark = random.Random(seed), 0
    query = OpenQuery(Log(2), keyRanges="2", realTime="5s", maxTimeAhead="10s")

    def write() -> None:
        for tp in (T0, T1):
            query.log.append(tp, chance.choice(KEYS), int(query.wall * 1000))

    for _ in range(12):
        query.wall += chance.choice([0.1, 1, 4, 40])
        write()
        end = query.plan()
        opened, done = decode(end).open, len(query.delivered)
        if opened is None:  # it reads all there is
            every = [(tp, at) for tp in (T0, T1) for at in range(len(query.log.keys[tp]))]
            query.delivered += sorted({*every} - {*query.delivered})
        else:
            assert opened.until_ms is not None
            until = opened.until_ms / 1000

            def read_on(until: float = until) -> None:
                query.wall = min(query.wall + chance.uniform(0, 4), until)
                write()

            for task in query.tasks(end):
                if chance.random() < 0.7:
                    query.delivered += query.run(task, read_on)
        query.at = end
        times = [query.log.timestamp(*row) for row in query.delivered[done:]]
        assert min(times, default=watermark) >= watermark
        watermark = max([watermark, *(ms - 10_000 for ms in times)])


def test_each_plan_has_a_name_of_its_own() -> None:
    query = OpenQuery(grown(10))
    plans = [query.plan() for _ in range(2)]
    query.restart()
    plans.append(query.plan())
    assert len({decode(plan).open.name for plan in plans}) == 3  # type: ignore[union-attr]
    query.finish(plans[1])  # Spark has written this one
    query.log.grow(KEYS)
    query.trigger()
    query.check_all()


def test_ends_are_deleted_with_the_next_batch() -> None:
    query = OpenQuery(grown(10, 2), keyRanges="2")
    for _ in range(3):
        query.log.grow(KEYS)
        query.trigger()
    assert len(query.names) == 2  # the last one, and the one before until the next is planned
    end = query.plan()
    assert query.names == {query.open_name}
    query.restart()  # which does not know what the planner before has deleted
    query.finish(end)
    query.trigger()
    query.check_all()


def test_a_range_that_a_sink_left_is_sealed_where_it_begins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = OpenQuery(grown(20), keyRanges="2")
    end = query.plan()
    first, second = query.tasks(end)
    query.delivered += query.run(first)
    query.at = end  # Spark commits it, and the sink has asked for no row of the second task
    ends_of(query).lose = 1
    query.plan()
    assert "1 of 2 ranges of the last batch were not read to their end" in caplog.text
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    late = query.run(second)  # a task that was forgotten finds that it ends where it begins
    assert not late
    query.trigger()
    query.check_all()


def test_a_sink_that_never_reads_to_the_end_is_warned_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "kshare.planner")
    query = OpenQuery(grown(20))
    query.at = query.plan()
    for seconds in (0.0, 1.0, 58.0, 1.0, 1.0):
        query.now += seconds
        query.at = query.plan()
    said = [each.levelname for each in caplog.records if "not read to their end" in each.message]
    assert said == ["WARNING", "INFO", "INFO", "WARNING", "INFO"]


def test_a_log_that_takes_nothing_is_an_error() -> None:
    query = OpenQuery(grown(20), **{"kafka.default.api.timeout.ms": "300"})
    query.at = query.plan()
    ends_of(query).lose = 1 << 30
    with pytest.raises(KafkaError, match=f"cannot write to {RANGE_ENDS_TOPIC}"):
        query.plan()


def test_parked_keys_stay_behind_and_come_when_they_are_unparked() -> None:
    query = OpenQuery(grown(60, 2), keyRanges="2")
    query.trigger()
    query.parking.keys.add(("t", KEYS[0]))
    query.log.grow(KEYS * 2)
    query.trigger()
    assert any(not at.is_level for at in decode(query.plan()).progress.values())
    query.log.grow(KEYS * 2)
    query.trigger()
    query.parking.keys.clear()
    query.trigger()
    query.check_all()


def test_a_key_that_is_parked_amid_a_batch_ends_by_itself() -> None:
    query = OpenQuery(grown(40), keyRanges="2")
    for task in query.tasks(end := query.plan()):
        query.delivered += query.run(task, lambda: query.log.grow(KEYS), parked=KEYS[:3])
    query.at = end
    query.check_order()
    query.trigger()
    query.check_all()


def test_without_a_key_to_read_there_is_no_batch() -> None:
    log = Log()
    log.grow([KEYS[0]] * 3)
    parked = json.dumps([{"hex": KEYS[0].hex()}])
    hashes = key_hash(KEYS[0], 0)
    assign = json.dumps({"t": {"0": [[hashes, hashes + 1]]}})
    query = OpenQuery(log, parkedKeys=parked, assign=assign)
    end = query.plan()
    assert decode(end).open is None


def test_partitions_that_come_later_begin_with_their_earliest_offsets() -> None:
    query = OpenQuery(grown(10))
    query.trigger()
    query.log.add_partition()
    query.log.grow(KEYS)
    query.trigger()
    query.check_all()


def test_a_query_takes_the_option_on_and_off() -> None:
    query = OpenQuery(grown(30, 2), keyRanges="2")
    query.restart(realTime=None)
    bounded(query)
    query.restart(realTime="5s")
    query.log.grow(KEYS)
    query.trigger()
    query.restart(realTime=None)
    query.log.grow(KEYS)
    bounded(query)
    assert decode(query.at).open is None
    query.check_all()


def bounded(query: OpenQuery) -> None:
    """A batch that has an end."""
    end = query.plan()
    assert query.planner.open_tasks(query.at, end) is None
    for task in query.planner.tasks(query.at, end):
        for planned in task.slices:
            offsets, _ = query.log.read(planned.slice, None)
            query.delivered += [(planned.slice.topic_partition, offset) for offset in offsets]
    query.at = end


def test_max_tasks_packs_ranges_by_the_dict_alone() -> None:
    query = OpenQuery(grown(40, 3), keyRanges="4", maxTasks="4")
    end = query.plan()
    tasks = query.tasks(end)
    assert [len(task.ranges) for task in tasks] == [3, 3, 3, 3]
    query.restart()
    assert query.tasks(end) == tasks


def test_tasks_share_what_was_unread_when_their_batch_was_planned() -> None:
    """Of partitions with a backlog; and as a batch that runs again says it."""
    query = OpenQuery(grown(2_000, 2), keyRanges="2")
    end = query.plan()
    tasks = query.tasks(end)
    assert [sorted(task.fetch_groups) for task in tasks] == [[T0], [T0], [T1], [T1]]
    groups = [group for task in tasks for group in task.fetch_groups.values()]
    assert [group.member for group in groups] == [0, 1, 0, 1]
    assert {group.ranges for group in groups} == {((0, 1_000, 2),)}
    assert len({(group.query, group.batch) for group in groups}) == 1
    assert query.tasks(end) == tasks
    query.finish(end)
    query.log.grow(KEYS[:10])
    assert [task.fetch_groups for task in query.tasks(query.plan())] == [{}] * 4


def test_tasks_share_nothing_where_they_cannot() -> None:
    query = OpenQuery(grown(2_000, 2), keyRanges="2")
    end = query.plan()
    query.restart()  # the dict does not say how much was unread
    assert [task.fetch_groups for task in query.tasks(end)] == [{}] * 4
    query.restart(maxTasks="2")  # one for each partition
    assert [task.fetch_groups for task in query.tasks(query.plan())] == [{}] * 2
    query.restart(maxTasks=None, **{"max.bytes.key.range.results": "0"})
    assert [task.fetch_groups for task in query.tasks(query.plan())] == [{}] * 4


@pytest.mark.parametrize("assignor", ["round-robin", "lag-weighted", "adaptive"])
def test_each_assignor_cuts_idle_partitions_too(assignor: str) -> None:
    query = OpenQuery(Log(3), rangeAssignor=assignor, minPartitions="6")
    for _ in range(3):
        ranges = decode(query.plan()).open.ranges  # type: ignore[union-attr]
        assert sum(map(len, ranges.values())) >= 6
        assert all(
            sum(part.width for part in parts) == ALL_HASHES.width for parts in ranges.values()
        )
        query.trigger(lambda: query.log.grow(KEYS))


def test_tasks_that_wait_for_slots_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    query = OpenQuery(grown(40), keyRanges="4")
    for seconds, said in ((30, 0), (11, 0), (12, 0), (12, 1), (30, 1)):
        end = query.plan()
        query.tasks(end)
        query.now += seconds
        query.finish(end)
        query.plan()
        assert caplog.text.count("give maxTasks the number of slots") == said, seconds


def test_hashes_that_are_no_longer_assigned_are_a_loss() -> None:
    half = [[0, 1 << 62], [1 << 62, 1 << 63]]
    query = OpenQuery(grown(40), assign=json.dumps({"t": {"0": half}}))
    end = query.plan()
    first, second = query.tasks(end)
    query.run(first)
    query.at = end  # the second range is sealed where it begins
    query.restart(assign=json.dumps({"t": {"0": half[:1]}}))
    with pytest.raises(DataLossError, match="assign no longer has these hashes"):
        query.plan()
    query.restart(failOnDataLoss="false")
    assert decode(query.plan()).progress[T0].is_level
    assert second.ranges


def test_hashes_that_are_no_longer_assigned_and_ended_level_are_no_loss() -> None:
    """They were behind when the last batch began, and it has read them."""
    half = [[0, 1 << 62], [1 << 62, 1 << 63]]
    query = OpenQuery(grown(40), assign=json.dumps({"t": {"0": half}}))
    end = query.plan()
    query.run(query.tasks(end)[0])
    query.at = end  # the second range is sealed where it begins
    query.trigger()
    began = decode(query.at).progress[T0]
    assert began.pending_of(began.front, (split(WHOLE, 2)[1],))
    query.restart(assign=json.dumps({"t": {"0": half[:1]}}))
    assert decode(query.plan()).progress[T0] == Progress.at(40)


class Group:
    """A group whose lower half of key hashes is ahead."""

    def __init__(self) -> None:
        ahead = [Rectangle(OffsetRange(5, 12), split(WHOLE, 2)[0])]
        self.progress = {T0: Progress.of(5, ahead)}
        self.published: list[Mapping[TopicPartition, Progress]] = []

    def committed(self, _: Collection[TopicPartition], /) -> Mapping[TopicPartition, Progress]:
        return self.progress

    join = committed

    def commit(self, processed: Mapping[TopicPartition, Progress], /) -> None:
        self.published.append(processed)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_query_that_starts_where_its_group_is_reads_what_that_has_not() -> None:
    group = Group()
    of_group = {"kafka.group.id": "g", "commitOffsets": "individual", "startingOffsets": "group"}
    query = OpenQuery(grown(20), group, keyRanges="2", **of_group)
    query.trigger(lambda: query.log.grow(KEYS))
    query.trigger()
    low = split(WHOLE, 2)[0]
    keys = query.log.keys[T0]
    wanted = [n for n, key in enumerate(keys) if n >= (12 if key_hash(key, n) in low else 5)]
    assert sorted(offset for _, offset in query.delivered) == wanted
    query.check_order()
    query.plan()
    assert group.published[0][T0] == group.progress[T0]
    assert group.published[-1][T0] == Progress.at(len(keys))


def test_closing_closes_the_logs() -> None:
    query = OpenQuery(grown(10))
    query.trigger()
    query.planner.close()
    assert (ends_of(query).opened, ends_of(query).closed) == (1, 1)


class Chance:
    """What a driver does by chance: a batch, with deaths before any of its steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.query = OpenQuery(grown(30, 2, seed), keyRanges="2", maxTasks="3")

    def step(self) -> None:
        query = self.query
        end = query.plan()
        if self.random.random() < 0.2:  # dies before Spark has written it
            query.restart()
            return
        before = self.random.random() < 0.3
        while before:  # dies amid the batch; some tasks have ended, or have proposed
            for task in query.tasks(end):
                if self.random.random() < 0.5:
                    query.run(task, self.grow)
            self.grow()
            self.restart()
            before = self.random.random() < 0.3
        query.finish(end, self.grow)
        if self.random.random() < 0.3:
            self.restart()

    def restart(self) -> None:
        self.query.restart(keyRanges=str(self.random.randint(1, 4)))

    def grow(self) -> None:
        self.query.log.grow(self.random.choices(KEYS, k=self.random.randint(0, 9)))
        if self.random.random() < 0.3:
            self.query.parking.keys ^= {("t", self.random.choice(KEYS))}


@examples(100)
@given(st.integers(0, 1 << 32))
def test_each_record_comes_once_through_deaths(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(8):
        chance.step()
        chance.query.check_order()
    chance.query.parking.keys.clear()
    chance.query.trigger()
    chance.query.trigger()
    chance.query.check_all()
    again: dict[str, Any] = encode(decode(chance.query.at))
    assert again == chance.query.at


def test_a_range_among_very_many_parked_keys_is_cut_so_that_its_ends_can_be_written() -> None:
    query = OpenQuery(grown(10), keyRanges="1")
    parked = [b"%d" % number for number in range(25_000)]
    query.parking.keys |= {("t", key) for key in parked}
    batch = decode(query.plan()).open
    assert batch is not None
    ranges = batch.ranges[T0]
    read = ALL_HASHES - KeyRanges.of_hashes(key_hash(key, 0) for key in parked)
    assert KeyRanges(part for hashes in ranges for part in hashes) == read
    assert max(len(encode_end(RangeEnd.at(hashes, 0))) for hashes in ranges) < 500_000


def test_a_log_that_cannot_be_opened_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Ends) -> None:
        raise KafkaError("not to be had")

    query = OpenQuery(grown(10))
    monkeypatch.setattr(Ends, "open", fail)
    for closed in (1, 2):
        with pytest.raises(KafkaError, match="not to be had"):
            query.plan()
        assert ends_of(query).closed == closed
