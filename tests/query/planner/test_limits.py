"""Batches in which every range goes its own way: limits, restarts, lost feedback."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kshare.core.batch import limited_slices
from kshare.core.checkpoint import BatchOffsets, RangeLimit, decode
from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.errors import UnknownTopicError
from kshare.options import SourceOptions
from kshare.read.reader.read_slice import find_ends
from tests.support.batches import Rec, batch_of, numbered
from tests.support.effort import examples
from tests.support.planner import KEYS, T0, Log, Query, grown
from tests.support.scripted import ScriptedLog

# -- the laws -------------------------------------------------------------------------------------

key_lists = st.lists(st.sampled_from(KEYS), min_size=1, max_size=60)
option_sets = st.fixed_dictionaries(
    {},
    optional={
        "keyRanges": st.integers(1, 5).map(str),
        "maxRecordsPerTask": st.integers(1, 30).map(str),
        "targetTaskDuration": st.sampled_from(["1s", "10s"]),
        "rangeAssignor": st.sampled_from(["round-robin", "lag-weighted", "adaptive"]),
        "maxOffsetsAhead": st.integers(1, 60).map(str),
        "maxTimeAhead": st.sampled_from(["1ms", "7ms", "40ms", "off"]),
        "maxRangesInCheckpoint": st.integers(1, 5).map(str),
        "parkedKeys": st.sampled_from(['["key-3"]', '["key-0", "key-7"]']),
        "minPartitions": st.integers(1, 6).map(str),
    },
)
steps = st.one_of(
    st.tuples(st.just("grow"), key_lists),
    st.tuples(st.just("trigger"), st.none() | st.integers(1, 50)),
    st.tuples(st.just("trigger"), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 3)),
    st.tuples(st.just("restart"), option_sets),
    st.tuples(st.just("park"), st.sampled_from(KEYS)),
    st.tuples(st.just("unpark"), st.sampled_from(KEYS)),
    st.tuples(st.just("messages"), st.sampled_from(["all", "none", "some", "late", "false"])),
    st.tuples(st.just("compacted"), st.booleans()),
    st.tuples(st.just("partition"), st.none()),
)


class Wild(Query):
    """A query to which anything happens."""

    messages = "all"

    def trigger(self, max_offsets: int | None = None) -> Sequence[PlannedSlice]:
        """One batch; one without anything to read is there only for a reason."""
        start, before = self.at, decode(self.at)
        read = super().trigger(max_offsets)
        assert (
            read
            or self.at == start
            or not before.progress  # batch 0
            or limited_slices(before)  # to write down where these ended
            or decode(self.at).progress.keys() - before.progress.keys()
        )
        return read

    def step(self, what: str, how: Any) -> None:
        if what == "grow":
            self.log.grow(how)
        elif what == "trigger":
            self.trigger(how)
        elif what == "crash":
            self.crash(how)
        elif what == "restart":
            self.given = {}
            self.restart(**how)
        elif what == "park":
            self.parking.keys.add(("t", how))
        elif what == "unpark":
            self.parking.keys.discard(("t", how))
        elif what == "messages":
            self.messages, self.loss = how, {"none": 1.0, "some": 0.5}.get(how, 0.0)
        elif what == "partition":
            self.log.add_partition()
        else:
            self.log.compacted = how

    def crash(self, ran: int) -> None:
        """The driver dies when some tasks of a batch have run; another plans the batch again."""
        end = self.planner.latest_offsets(self.at, None)
        if end == self.at:
            return
        planned, kept = self.planned(end), len(self.delivered)
        for task in planned[:ran]:
            self.run(task)
        first_try = self.delivered[kept:]
        del self.delivered[kept:]  # the sink replaces what a batch wrote
        self.restart()
        if not decode(self.at).progress:  # batch 0: Spark asks, whatever the options are by now
            self.restart(startingOffsets='{"t":{"9":0}}')
            self.at = self.planner.initial_offsets()
        again = self.planned(end)
        if "rangeAssignor" not in self.given:
            assert [(t.slice, t.max_records) for t in again] == [
                (t.slice, t.max_records) for t in planned
            ]
        for task in again:
            self.run(task)
        assert set(first_try) <= set(self.delivered[kept:])
        self.at = end

    def run(self, planned: PlannedSlice) -> float:
        seconds = super().run(planned)
        ticket = planned.ticket
        told = self.feedback.told.get(ticket.batch, {}) if ticket else {}
        if ticket is None or ticket.number not in told:
            return seconds
        true, offsets = told[ticket.number], planned.slice.offsets
        if self.messages == "late":  # it comes as one of another task, of another batch
            told.pop(ticket.number)
            self.feedback.told.setdefault("a batch before", {})[ticket.number] = true
        elif self.messages == "false":
            lies = [offsets.start, offsets.start - 5, offsets.end + 1, offsets.end + 100]
            end = self.lost_messages.choice(lies)
            told[ticket.number] = replace(true, end=end)
            told[ticket.number + 1000] = true
        return seconds


@examples(150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 3), option_sets, st.lists(steps, max_size=25))
def test_every_record_comes_once_and_in_order_whatever_the_history(
    partitions: int, options: dict[str, str], history: list[tuple[str, Any]]
) -> None:
    log = Log(partitions)
    log.grow(KEYS)
    query = Wild(log, **options)
    for what, how in history:
        query.step(what, how)
        query.check_order()
    query.parking.keys.clear()
    query.given = {}
    query.restart(keyRanges="2", maxRecordsPerTask="7")
    query.drain()
    query.restart(maxRecordsPerTask="1000000")
    query.drain()
    query.check_all()
    query.given = {}
    query.restart(**options)
    assert query.planner.latest_offsets(query.at, None) == query.at


@examples(60)
@given(
    st.lists(key_lists, min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from(KEYS),
    st.booleans(),
)
def test_without_a_single_message_the_dicts_are_the_same(
    growth: list[list[bytes]], ranges: int, most: int, parked: bytes, compacted: bool
) -> None:
    logs = [Log(), Log()]
    given_ = {"keyRanges": str(ranges), "maxRecordsPerTask": str(most)}
    told, deaf = (Query(log, **given_) for log in logs)
    deaf.loss = 1.0
    for number, keys in enumerate(growth):
        for query in (told, deaf):
            query.log.compacted = compacted
            query.log.grow(keys)
            query.parking.keys = {("t", parked)} if number % 2 else set()
            query.trigger()
        assert told.at == deaf.at
        assert told.delivered == deaf.delivered
    if not compacted:
        assert told.scans == 0
    told.parking.keys = deaf.parking.keys = set()
    told.drain()
    deaf.drain()
    assert told.at == deaf.at
    told.check_all()
    deaf.check_all()


# -- limits ---------------------------------------------------------------------------------------


def test_a_task_reads_no_more_records_than_its_limit() -> None:
    query = Query(grown(300), keyRanges="3", maxRecordsPerTask="7")
    tasks = query.trigger()
    assert [task.max_records for task in tasks] == [7, 7, 7]
    assert len(query.delivered) == 21
    query.drain()
    query.check_all()
    assert query.scans == 0  # the tasks told


def test_a_batch_with_limits_is_planned_again_as_it_was() -> None:
    query = Query(grown(300), keyRanges="3", maxRecordsPerTask="7")
    query.trigger()
    end = query.planner.latest_offsets(query.at, None)
    planned = query.planned(end)
    query.restart(keyRanges="5", maxRecordsPerTask="100")  # neither counts for what is planned
    again = query.planned(end)
    assert [(t.slice, t.max_records) for t in again] == [(t.slice, t.max_records) for t in planned]
    assert query.scans == 3  # the ends of the batch before


def test_an_end_is_looked_for_once() -> None:
    query = Query(grown(100), keyRanges="2", maxRecordsPerTask="5")
    query.loss = 1.0
    query.trigger()
    assert query.scans == 0
    end = query.planner.latest_offsets(query.at, None)
    assert query.scans == 2
    query.planner.tasks(query.at, end)
    query.planner.latest_offsets(query.at, None)
    assert query.scans == 2


def test_all_ends_of_a_partition_are_found_in_one_pass() -> None:
    query = Query(grown(400, partitions=2), keyRanges="8", maxRecordsPerTask="5")
    query.loss = 1.0
    assert len(query.trigger()) == 16
    query.trigger()
    assert (query.passes, query.scans) == (2, 16)
    query.drain()
    query.check_all()


def test_only_what_was_not_told_is_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(grown(100), keyRanges="4", maxRecordsPerTask="5")
    query.trigger()
    (told,) = query.feedback.told.values()
    del told[2]
    with caplog.at_level("INFO", "kshare.planner"):
        query.trigger()
    assert query.scans == 1
    assert "looking for the ends of 1 of 4 tasks" in caplog.text
    query.drain()
    query.check_all()


@pytest.mark.parametrize(("end", "records"), [(0, 5), (-3, 5), (101, 5), (5000, 5), (50, 4)])
def test_an_end_that_cannot_be_is_not_believed(end: int, records: int) -> None:
    """Beyond the slice, before it, or within it although the limit was not reached."""
    query = Query(grown(100), keyRanges="1", maxRecordsPerTask="5")
    query.trigger()
    (told,) = query.feedback.told.values()
    told[0] = replace(told[0], end=end, records=records)
    query.trigger()
    assert query.scans == 1
    query.drain()
    query.check_all()


def test_ranges_of_a_compacted_topic_are_settled_before_the_batch() -> None:
    log = grown(100)
    log.compacted = True
    query = Query(log, keyRanges="2", maxRecordsPerTask="5")
    tasks = query.trigger()
    assert query.scans == 2
    assert "limits" not in query.at["@kshare"]
    assert all(task.max_records is None for task in tasks)
    assert len(query.delivered) == 10
    query.drain()
    query.check_all()


def test_a_topic_whose_policy_is_not_told_counts_as_compacted() -> None:
    log = grown(100)
    log.topic_configs = lambda topics: {}  # type: ignore[method-assign]
    query = Query(log, keyRanges="2", maxRecordsPerTask="5")
    query.trigger()
    assert query.scans == 2
    query.drain()
    query.check_all()


def test_limits_come_and_go_at_restarts() -> None:
    query = Query(grown(200, partitions=2), keyRanges="3")
    query.trigger(50)
    query.restart(maxRecordsPerTask="9")
    query.trigger()
    assert "limits" in query.at["@kshare"]
    del query.given["maxRecordsPerTask"]
    query.restart(keyRanges="2")
    query.drain()
    query.check_all()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_another_isolation_level_after_a_restart(level: str, again: bool) -> None:
    """A batch ends where the level of its plan has it end, also if it runs again at another."""
    log = grown(300)
    log.aborted = {offset for offset in range(300) if offset % 10 < 4}
    query = Query(log, keyRanges="2", maxRecordsPerTask="20", **{"kafka.isolation.level": level})
    query.loss = 1.0
    query.trigger()
    start = query.at
    query.trigger()
    other = {"read_uncommitted": "read_committed", "read_committed": "read_uncommitted"}[level]
    query.restart(**{"kafka.isolation.level": other})
    if again:
        del query.delivered[40:]  # the sink has only what the batch gives now
        for task in query.planner.tasks(start, query.at):
            for planned in task.slices:
                query.run(planned)
    query.drain()
    query.check_order()
    assert {offset for _, offset in query.delivered} >= set(range(300)) - log.aborted


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_another_isolation_level_and_then_another_restart(level: str) -> None:
    log = grown(300)
    log.aborted = {offset for offset in range(300) if offset % 10 < 4}
    query = Query(log, keyRanges="2", maxRecordsPerTask="20", **{"kafka.isolation.level": level})
    query.trigger()
    end = query.planner.latest_offsets(query.at, None)  # in Spark's log; no task has run
    other = {"read_uncommitted": "read_committed", "read_committed": "read_uncommitted"}[level]
    query.restart(**{"kafka.isolation.level": other})
    for task in query.planner.tasks(query.at, end):
        for planned in task.slices:
            query.run(planned)
    query.at = end
    query.restart()  # before the next batch is in Spark's log
    query.drain()
    delivered = [offset for _, offset in query.delivered]
    assert sorted(delivered) == sorted(set(delivered))
    assert {*delivered} >= set(range(300)) - log.aborted
    query.check_order()


class Starting(Query):
    """A query whose brokers may have just started, and do not know the topic yet."""

    is_known = True

    def scan(self, limited: Sequence[PlannedSlice], options: SourceOptions) -> list[SliceEnd]:
        if self.is_known:
            return super().scan(limited, options)
        raise UnknownTopicError("topic t does not exist")


def planned_at_another_level() -> tuple[Starting, dict[str, Any]]:
    """A query that is restarted at another isolation level, and its batch that runs again."""
    query = Starting(grown(300), keyRanges="2", maxRecordsPerTask="20")
    query.trigger()
    end = query.planner.latest_offsets(query.at, None)  # in Spark's log; no task has run
    query.restart(**{"kafka.isolation.level": "read_committed"})
    return query, end


def test_a_batch_that_runs_again_is_not_empty_where_brokers_do_not_know_its_topic_yet() -> None:
    """Spark would commit it, and the next one would begin where its tasks should have ended."""
    query, end = planned_at_another_level()
    query.is_known = False
    with pytest.raises(UnknownTopicError):
        query.planned(end)
    query.is_known = True
    for planned in query.planned(end):
        query.run(planned)
    query.at = end
    query.drain()
    query.check_all()


def test_a_batch_that_runs_again_ends_where_its_tasks_do_whatever_the_log_says_later() -> None:
    query, end = planned_at_another_level()
    query.log.compacted, query.log.vanished = True, set(range(50, 60))
    for planned in query.planned(end):
        query.run(planned)
    query.at = end
    query.log.vanished = set(range(50, 90))
    query.log.topic_configs = lambda _: {}  # type: ignore[method-assign]
    query.drain()
    assert {offset for _, offset in query.delivered} >= {*range(50), *range(90, 300)}


class KeyedQuery(Query):
    """A query that looks for ends as on a broker, where ``keys`` chooses records."""

    wire: ScriptedLog

    def scan(self, limited: Sequence[PlannedSlice], options: SourceOptions) -> list[SliceEnd]:
        return find_ends(limited, options, brokers=self.wire)


@pytest.mark.parametrize("runs_again", [False, True])
def test_keys_after_a_batch_whose_tasks_have_counted_all_keys(runs_again: bool) -> None:
    keys = [b"a" if number % 10 == 0 else b"b" for number in range(1_000)]
    log = Log(1)
    log.grow(keys)
    query = KeyedQuery(log, maxRecordsPerTask="50")
    records = [
        numbered([Rec(key, b"v") for key in keys[at : at + 10]]) for at in range(0, 1_000, 10)
    ]
    encoded = [batch_of(each, base=10 * at).encode() for at, each in enumerate(records)]
    query.wire = ScriptedLog(encoded, response_bytes=2_000)
    query.trigger()
    start = query.at
    end = query.planner.latest_offsets(start, None)
    del query.given["maxRecordsPerTask"]
    query.restart(keys='["a"]')

    def planned(start: dict[str, Any], end: dict[str, Any]) -> list[tuple[OffsetRange, int | None]]:
        tasks = query.planner.tasks(start, end)
        return [(each.slice.offsets, each.max_records) for task in tasks for each in task.slices]

    if runs_again:
        assert planned(start, end) == [(OffsetRange(50, 100), None)]
    after = query.planner.latest_offsets(end, None)
    assert planned(end, after) == [(OffsetRange(100, 1_000), None)]


def test_tasks_are_in_the_order_of_partitions_then_of_ranges() -> None:
    low, high = split(WHOLE, 2)
    places = [TopicPartition("u", 0), TopicPartition("t", 10), TopicPartition("t", 2)]
    limits = (RangeLimit(KeyRanges([low]), 9, 3), RangeLimit(KeyRanges([high]), 9, 4))
    offsets = BatchOffsets(
        dict.fromkeys(places, Progress.at(5)), limits=dict.fromkeys(places, limits)
    )
    limited = limited_slices(offsets)
    assert [(*each.slice.topic_partition, each.max_records) for each in limited] == [
        (*place, most) for place in sorted(places) for most in (3, 4)
    ]
    done = Progress.of(5, [Rectangle(OffsetRange(5, 9), low)])
    (planned,) = limited_slices(BatchOffsets({T0: done}, limits={T0: limits}))  # one is read
    assert planned.slice.hashes == high


# -- memory ----------------------------------------------------------------------------------------


def kept_by(planner: object) -> set[TopicPartition]:
    """The partitions that a planner's own objects know of."""
    found, seen, left = set(), set(), [planner]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, TopicPartition):
            found.add(each)
        is_own = type(each).__module__.startswith("kshare.") and not isinstance(each, SourceOptions)
        if is_own or isinstance(each, dict | list | tuple | set | frozenset):
            left += gc.get_referents(each)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"maxRecordsPerTask": "5", "maxTimeAhead": "1ms"},
        {"targetTaskDuration": "1s", "maxTimeAhead": "off"},
        {"rangeAssignor": "adaptive"},
    ],
)
def test_a_planner_forgets_partitions_that_are_gone(options: dict[str, str]) -> None:
    log = grown(400, partitions=8)
    query = Query(log, keyRanges="2", failOnDataLoss="false", **options)
    for _ in range(3):
        query.trigger()
    assert kept_by(query.planner) == set(log.keys)
    log.subscribed = {T0}
    for _ in range(4):
        log.grow(KEYS * 8)
        query.trigger()
    assert kept_by(query.planner) == {T0}
