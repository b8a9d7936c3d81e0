"""Batches in which every range goes its own way: limits, parked keys, bounds, lost feedback.

The oracle is a log as a list of key hashes, tasks that walk it record by record, and a set of what
was delivered.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kshare.broker import TopicPolicy
from kshare.core.codec import Offsets, RangeLimit, decode
from kshare.core.hashing import HASH_SPACE, WHOLE, key_hash, split, without
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.errors import DataLossError, UnknownTopicError
from kshare.feedback import Executor, TaskResult, Ticket
from kshare.options import SourceOptions, parse_options
from kshare.planner import StreamPlanner, Task
from kshare.planner.settle import limited_tasks

KEYS = [f"key-{number}".encode() for number in range(12)]
T0 = TopicPartition("t", 0)


class Log:
    """A topic ``t``: the keys of each partition's records; offsets before ``first`` are gone."""

    def __init__(self, partitions: int = 1) -> None:
        self.keys: dict[TopicPartition, list[bytes]] = {
            TopicPartition("t", n): [] for n in range(partitions)
        }
        self.first = dict.fromkeys(self.keys, 0)
        self.compacted = False

    def grow(self, keys: Iterable[bytes]) -> None:
        for number, key in enumerate(keys):
            self.keys[TopicPartition("t", number % len(self.keys))].append(key)

    def partitions(self, _: Any) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self.keys))

    def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: self.first[place] for place in places}

    def latest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: len(self.keys[place]) for place in places}

    def policies(self, topics: Iterable[str]) -> dict[str, TopicPolicy]:
        return {topic: TopicPolicy(compacted=self.compacted, retention_ms=None) for topic in topics}

    def close(self) -> None:
        pass

    def read(
        self, slice_: Slice, most: int | None, *, lenient: bool = False
    ) -> tuple[list[int], int]:
        """The offsets of a slice's records, and where reading them ended."""
        start, end = slice_.offsets.start, slice_.offsets.end
        place = TopicPartition(slice_.topic, slice_.partition)
        first, keys = self.first[place], self.keys[place]
        if start < first and not lenient:
            raise DataLossError(
                f"{place}: offsets {start} to {end} are wanted, the log holds {first}",
                wanted=(start, end),
                available=(first, len(keys)),
            )
        found: list[int] = []
        for offset in range(max(start, first), end):
            if _holds(slice_, offset, key_hash(keys[offset], offset)):
                found.append(offset)
                if len(found) == most:
                    return found, offset + 1
        return found, end


def _holds(slice_: Slice, offset: int, hash_: int) -> bool:
    return any(
        piece.offsets.start <= offset < piece.offsets.end and hash_ in piece.hashes
        for piece in slice_.rectangles
    )


class Parking:
    """The parked keys, as a plain set."""

    def __init__(self) -> None:
        self.keys: set[tuple[str, bytes]] = set()

    def current(self, topics: Any) -> Iterable[tuple[str, bytes]]:
        return [place for place in self.keys if place[0] in topics]

    def close(self) -> None:
        pass


class Feedback:
    """What tasks told, without a network."""

    def __init__(self) -> None:
        self.told: dict[str, dict[int, TaskResult]] = {}
        self.held: list[bool] = []

    def start(self) -> bool:
        return True

    def ticket(self, batch: str, task: int, *, hold: bool) -> Ticket:
        self.held.append(hold)
        return Ticket("nowhere", 1, b"", batch, task, hold)

    def executors(self, batch: str) -> dict[int, Executor]:
        return {}

    def reports(self, batch: str, *, wait_seconds: float = 0.0) -> Mapping[int, TaskResult]:
        return dict(self.told.get(batch, {}))

    def close(self) -> None:
        pass


class Query:
    """A query with a sink that keeps what it gets; restarted at will."""

    def __init__(self, log: Log, **given: str) -> None:
        self.log, self.given = log, given
        self.parking, self.scans = Parking(), 0
        self.delivered: list[tuple[TopicPartition, int]] = []
        self.lost_messages = random.Random(0)
        self.loss = 0.0
        self.now = 0.0
        self.pace: Callable[[bytes], float] = lambda key: 0.0
        self.restart()
        self.at = self.planner.initial_offsets()

    def restart(self, **more: str) -> None:
        self.given = {**self.given, **more}
        options = {
            "kafka.bootstrap.servers": "nowhere:9092",
            "subscribe": "t",
            "startingOffsets": "earliest",
            **self.given,
        }
        parsed = parse_options(options, streaming=True).options
        self.feedback = Feedback()
        self.planner = StreamPlanner(
            parsed,
            self.log,  # type: ignore[arg-type]
            parking=self.parking,  # type: ignore[arg-type]
            feedback=self.feedback,  # type: ignore[arg-type]
            scan=self.scan,
            clock=lambda: self.now,
        )

    def scan(self, slice_: Slice, options: SourceOptions, most: int) -> int:
        self.scans += 1
        return self.log.read(slice_, most, lenient=not options.fail_on_data_loss)[1]

    def trigger(self, max_offsets: int | None = None) -> Sequence[Task]:
        """One batch. Returns its tasks; none if there was nothing new."""
        end = self.planner.latest_offsets(self.at, max_offsets)
        if end == self.at:
            return ()
        tasks = self.planner.tasks(self.at, end)
        seconds = [self.run(task) for task in tasks]
        self.now += max(seconds, default=0.0)
        self.at = end
        return tasks

    def run(self, task: Task) -> float:
        """Run a task: deliver its records, and tell the planner. Returns how long it took."""
        slice_ = task.slice
        place = TopicPartition(slice_.topic, slice_.partition)
        lenient = self.given.get("failOnDataLoss") == "false"
        offsets, end = self.log.read(slice_, task.max_records, lenient=lenient)
        self.delivered += [(place, offset) for offset in offsets]
        keys = [self.log.keys[place][offset] for offset in offsets]
        seconds = sum(map(self.pace, keys))
        ticket = task.ticket
        if ticket is not None and self.lost_messages.random() >= self.loss:
            hashes = [key_hash(key, at) for key, at in zip(keys, offsets, strict=True)]
            sample = tuple(sorted(hashes[:: max(len(hashes) // 200, 1)]))
            # Of a task that is not measured, the end of its reader is seen: long before its own.
            seen = seconds if ticket.hold else 0.0
            told = TaskResult(end, len(offsets), sample, seen, ticket.hold, self.now)
            self.feedback.told.setdefault(ticket.batch, {})[ticket.task] = told
        return seconds

    def drain(self) -> None:
        """Batches until there is nothing new."""
        before = None
        while before != self.at:
            before = self.at
            self.trigger()

    def check_order(self) -> None:
        """Every record at most once, those of a key in order."""
        assert len(set(self.delivered)) == len(self.delivered)
        last: dict[tuple[TopicPartition, bytes], int] = {}
        for place, offset in self.delivered:
            key = (place, self.log.keys[place][offset])
            assert last.get(key, -1) < offset
            last[key] = offset

    def check_all(self) -> None:
        """Every record exactly once, those of a key in order, and a plain dict in the end."""
        self.check_order()
        assert set(self.delivered) == {
            (place, offset) for place, keys in self.log.keys.items() for offset in range(len(keys))
        }
        assert self.at == {
            "t": {str(place.partition): len(k) for place, k in self.log.keys.items()}
        }


def grown(count: int, partitions: int = 1, seed: int = 1) -> Log:
    log = Log(partitions)
    log.grow(random.Random(seed).choices(KEYS, k=count))
    return log


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
)


class Wild(Query):
    """A query to which anything happens."""

    messages = "all"

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
        else:
            self.log.compacted = how

    def crash(self, ran: int) -> None:
        """The driver dies when some tasks of a batch have run; another plans the batch again."""
        end = self.planner.latest_offsets(self.at, None)
        if end == self.at:
            return
        planned, kept = self.planner.tasks(self.at, end), len(self.delivered)
        for task in planned[:ran]:
            self.run(task)
        first_try = self.delivered[kept:]
        del self.delivered[kept:]  # the sink replaces what a batch wrote
        self.restart()
        again = self.planner.tasks(self.at, end)
        if "rangeAssignor" not in self.given:
            assert [(t.slice, t.max_records) for t in again] == [
                (t.slice, t.max_records) for t in planned
            ]
        for task in again:
            self.run(task)
        assert set(first_try) <= set(self.delivered[kept:])
        self.at = end

    def run(self, task: Task) -> float:
        seconds = super().run(task)
        ticket = task.ticket
        told = self.feedback.told.get(ticket.batch, {}) if ticket else {}
        if ticket is None or ticket.task not in told:
            return seconds
        true, offsets = told[ticket.task], task.slice.offsets
        if self.messages == "late":  # it comes as one of another task, of another batch
            told.pop(ticket.task)
            self.feedback.told.setdefault("a batch before", {})[ticket.task] = true
        elif self.messages == "false":
            lies = [offsets.start, offsets.start - 5, offsets.end + 1, offsets.end + 100]
            end = self.lost_messages.choice(lies)
            told[ticket.task] = replace(true, end=end)
            told[ticket.task + 1000] = true
        return seconds


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 3), option_sets, st.lists(steps, max_size=25))
def test_every_record_comes_once_and_in_order_whatever_the_history(
    partitions: int, options: dict[str, str], history: list[tuple[str, Any]]
):
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


@settings(deadline=None, max_examples=60)
@given(
    st.lists(key_lists, min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from(KEYS),
    st.booleans(),
)
def test_without_a_single_message_the_dicts_are_the_same(
    growth: list[list[bytes]], ranges: int, most: int, parked: bytes, compacted: bool
):
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


def test_a_task_reads_no_more_records_than_its_limit():
    query = Query(grown(300), keyRanges="3", maxRecordsPerTask="7")
    tasks = query.trigger()
    assert [task.max_records for task in tasks] == [7, 7, 7]
    assert len(query.delivered) == 21
    query.drain()
    query.check_all()
    assert query.scans == 0  # the tasks told


def test_a_batch_with_limits_is_planned_again_as_it_was():
    query = Query(grown(300), keyRanges="3", maxRecordsPerTask="7")
    query.trigger()
    end = query.planner.latest_offsets(query.at, None)
    planned = query.planner.tasks(query.at, end)
    query.restart(keyRanges="5", maxRecordsPerTask="100")  # neither counts for what is planned
    again = query.planner.tasks(query.at, end)
    assert [(t.slice, t.max_records) for t in again] == [(t.slice, t.max_records) for t in planned]
    assert query.scans == 3  # the ends of the batch before


def test_an_end_is_looked_for_once():
    query = Query(grown(100), keyRanges="2", maxRecordsPerTask="5")
    query.loss = 1.0
    query.trigger()
    assert query.scans == 0
    end = query.planner.latest_offsets(query.at, None)
    assert query.scans == 2
    query.planner.tasks(query.at, end)
    query.planner.latest_offsets(query.at, None)
    assert query.scans == 2


def test_only_what_was_not_told_is_looked_for(caplog: pytest.LogCaptureFixture):
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
def test_an_end_that_cannot_be_is_not_believed(end: int, records: int):
    """Beyond the slice, before it, or within it although the limit was not reached."""
    query = Query(grown(100), keyRanges="1", maxRecordsPerTask="5")
    query.trigger()
    (told,) = query.feedback.told.values()
    told[0] = replace(told[0], end=end, records=records)
    query.trigger()
    assert query.scans == 1
    query.drain()
    query.check_all()


def test_ranges_of_a_compacted_topic_are_settled_before_the_batch():
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


def test_a_topic_whose_policy_is_not_told_counts_as_compacted():
    log = grown(100)
    log.policies = lambda topics: {}  # type: ignore[method-assign]
    query = Query(log, keyRanges="2", maxRecordsPerTask="5")
    query.trigger()
    assert query.scans == 2
    query.drain()
    query.check_all()


def test_limits_come_and_go_at_restarts():
    query = Query(grown(200, partitions=2), keyRanges="3")
    query.trigger(50)
    query.restart(maxRecordsPerTask="9")
    query.trigger()
    assert "limits" in query.at["@kshare"]
    del query.given["maxRecordsPerTask"]
    query.restart(keyRanges="2")
    query.drain()
    query.check_all()


# -- parked keys ----------------------------------------------------------------------------------


def test_a_parked_key_waits_and_the_others_do_not():
    log = grown(300)
    query = Query(log, keyRanges="2")
    query.parking.keys = {("t", KEYS[3]), ("another", KEYS[4])}
    query.drain()
    done = {log.keys[T0][offset] for _, offset in query.delivered}
    assert done == set(KEYS) - {KEYS[3]}
    assert query.at["t"] == {"0": 0}  # held by the hash that waits
    query.parking.keys = set()
    query.drain()
    query.check_all()


def test_a_key_is_parked_by_an_option_and_unparked_by_a_restart():
    log = grown(300)
    query = Query(log, parkedKeys='["key-3", {"hex": "6b65792d35"}]')
    query.drain()
    done = {log.keys[T0][offset] for _, offset in query.delivered}
    assert done == set(KEYS) - {KEYS[3], KEYS[5]}
    log.grow(KEYS)
    query.restart(parkedKeys='["key-5"]')
    query.drain()
    done = {log.keys[T0][offset] for _, offset in query.delivered}
    assert done == set(KEYS) - {KEYS[5]}
    query.restart(parkedKeys="[]")
    query.drain()
    query.check_all()


def test_the_bounds_do_not_count_a_parked_key():
    """Or it would stop all others in the end."""
    log = grown(600)
    query = Query(log, keyRanges="3", maxOffsetsAhead="40", maxRangesInCheckpoint="3")
    query.parking.keys = {("t", KEYS[3])}
    query.drain()
    assert len(query.delivered) == sum(key != KEYS[3] for key in log.keys[T0])
    query.parking.keys = set()
    query.drain()
    query.check_all()


# -- bounds ---------------------------------------------------------------------------------------


def test_no_range_is_further_ahead_than_it_may_be():
    log = Log()
    log.grow([KEYS[0]] * 200 + KEYS[1:] * 20)  # one key has the first 200 records
    query = Query(log, keyRanges="4", maxRecordsPerTask="10", maxOffsetsAhead="50")
    while query.trigger():
        reached = decode(query.at)
        slowest = min(reached.progress[T0].position(part) for part in split(WHOLE, 4))
        ends = [limit.end for limit in reached.limits.get(T0, ())]
        assert max(ends, default=0) <= max(slowest + 50, reached.progress[T0].front)
    query.check_all()


def test_with_too_many_gaps_those_that_lag_go_first():
    query = Query(Log(), keyRanges="6", maxRecordsPerTask="3", maxRangesInCheckpoint="4")
    chance, held = random.Random(1), 0
    for _ in range(30):
        query.log.grow(chance.choices(KEYS, weights=[5] + [1] * 11, k=40))
        parked = {key for key in KEYS if chance.random() < 0.2}
        query.parking.keys = {("t", key) for key in parked}
        query.trigger()
        begin = decode(query.at)
        reached = begin.progress[T0]
        readable = without((WHOLE,), [key_hash(key, 0) for key in parked])
        if reached.gaps >= 4 and reached.pending_of(reached.front, readable):
            held += 1
            assert max(limit.end for limit in begin.limits[T0]) <= reached.front
    assert held > 5
    query.parking.keys = set()
    query.drain()
    query.check_all()


def test_offsets_per_trigger_count_from_the_front():
    log = grown(400)
    query = Query(log, keyRanges="2", maxRecordsPerTask="10")
    query.trigger(30)
    limits = decode(query.at).limits[T0]
    assert {limit.end for limit in limits} == {30}
    query.drain()
    query.check_all()


# -- records that are gone ------------------------------------------------------------------------


def test_what_was_pending_and_is_gone_is_an_error():
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="10")
    query.trigger()
    query.log.first[T0] = 150
    with pytest.raises(DataLossError, match="were pending and are gone") as caught:
        query.trigger()
    assert "of the key hashes [" in str(caught.value)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_gone_is_passed_over_if_the_user_said_so(
    restarted: bool, caplog: pytest.LogCaptureFixture
):
    lenient = {"failOnDataLoss": "false"}
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="10", **lenient)
    query.trigger()
    before = set(query.delivered)
    query.log.first[T0] = 150
    if restarted:
        query.restart()
    tasks = query.trigger()
    assert [task.max_records for task in tasks] == [10, 10]
    assert min(task.slice.offsets.start for task in tasks) == 150
    query.drain()
    query.check_order()
    assert set(query.delivered) == before | {(T0, offset) for offset in range(150, 200)}
    assert "since failOnDataLoss is false" in caplog.text
    assert query.at == {"t": {"0": 200}}


def test_a_parked_key_whose_records_are_gone_is_told_of():
    query = Query(grown(200), parkedKeys='["key-3"]')
    query.drain()
    query.log.first[T0] = 150
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        query.trigger()
    kept = len(query.delivered)
    query.restart(failOnDataLoss="false", parkedKeys="[]")
    query.drain()
    assert {o for _, o in query.delivered[kept:]} == {
        o for o in range(150, 200) if query.log.keys[T0][o] == KEYS[3]
    }


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 99), st.integers(1, 4), st.integers(1, 20), st.integers(0, 2))
def test_rather_twice_than_never(first: int, ranges: int, most: int, batches: int):
    """The log is trimmed, and nobody knows how far the tasks came."""
    query = Query(grown(100), keyRanges=str(ranges), maxRecordsPerTask=str(most))
    for _ in range(batches + 1):
        query.trigger()
    query.feedback.told.clear()
    query.log.first[T0] = first
    query.restart(failOnDataLoss="false")
    query.drain()
    assert {offset for _, offset in query.delivered} >= set(range(first, 100))
    assert query.at == {"t": {"0": 100}}


def test_a_log_that_was_truncated_below_the_front():
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="20")
    query.parking.keys = {("t", KEYS[3])}
    query.drain()
    del query.log.keys[T0][100:]
    with pytest.raises(DataLossError, match="ends at offset 100, but was read up to 200"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    query.drain()
    query.parking.keys = set()
    query.log.grow(KEYS)
    kept = len(query.delivered)
    query.drain()
    late = [offset for _, offset in query.delivered[kept:]]
    keys = query.log.keys[T0]
    assert set(late) == {o for o in range(100) if keys[o] == KEYS[3]} | set(range(100, 112))


def test_a_topic_that_is_deleted_before_its_ends_were_found(caplog: pytest.LogCaptureFixture):
    query = Query(grown(100, partitions=2), keyRanges="2", maxRecordsPerTask="10")
    query.loss = 1.0
    query.trigger()
    gone = TopicPartition("t", 1)
    kept = query.log.keys.pop(gone)
    read = query.log.read

    def deleted(slice_: Slice, most: int | None, *, lenient: bool = False) -> Any:
        if slice_.partition == 1:
            raise UnknownTopicError("topic t has no partition 1")
        return read(slice_, most, lenient=lenient)

    query.log.read = deleted  # type: ignore[method-assign]
    with pytest.raises(DataLossError, match="it was read up to offset 0"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    query.drain()
    assert "t-1 is gone" in caplog.text
    assert query.at == {"t": {"0": 50}}
    query.log.keys[gone] = kept
    query.check_order()


def test_a_partition_that_is_not_assigned_any_more():
    log = grown(60, partitions=2)
    query = Query(log, keyRanges="2", maxRecordsPerTask="10")
    query.loss = 1.0
    query.trigger()
    options = {
        "kafka.bootstrap.servers": "nowhere:9092",
        "assign": '{"t": [0]}',
        "maxRecordsPerTask": "10",
        "failOnDataLoss": "false",
    }
    log.partitions = lambda topics: (T0,)  # type: ignore[method-assign]
    query.planner = StreamPlanner(
        parse_options(options, streaming=True).options,
        log,  # type: ignore[arg-type]
        parking=Parking(),  # type: ignore[arg-type]
        feedback=Feedback(),  # type: ignore[arg-type]
        scan=query.scan,
    )
    query.drain()
    assert query.at == {"t": {"0": 30}}
    assert {offset for place, offset in query.delivered if place == T0} == set(range(30))
    query.check_order()


def test_tasks_are_in_the_order_of_partitions_then_of_ranges():
    low, high = split(WHOLE, 2)
    places = [TopicPartition("u", 0), TopicPartition("t", 10), TopicPartition("t", 2)]
    limits = (RangeLimit((low,), 9, 3), RangeLimit((high,), 9, 4))
    offsets = Offsets(dict.fromkeys(places, Progress.at(5)), limits=dict.fromkeys(places, limits))
    tasks = limited_tasks(offsets)
    assert [(t.slice.topic, t.slice.partition, t.max_records) for t in tasks] == [
        (*place, most) for place in sorted(places) for most in (3, 4)
    ]
    done = Progress.of(5, [Rectangle(OffsetRange(5, 9), low)])
    (task,) = limited_tasks(Offsets({T0: done}, limits={T0: limits}))  # nothing is left of one
    assert task.slice.hashes == high


def test_an_end_that_is_not_in_the_log_any_more_is_an_error():
    query = Query(grown(100), keyRanges="2", maxRecordsPerTask="10")
    query.loss = 1.0
    query.trigger()
    query.log.first[T0] = 50
    with pytest.raises(DataLossError, match="the log holds 50"):
        query.trigger()


# -- times ----------------------------------------------------------------------------------------


def test_a_batch_takes_the_time_that_was_asked_for():
    log = grown(200_000)
    query = Query(log, targetTaskDuration="10s", keyRanges="3")
    query.pace = lambda key: 0.1

    def batch() -> float:
        before = query.now
        query.trigger()
        return query.now - before

    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    query.pace = lambda key: 0.01
    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    query.pace = lambda key: 0.001
    times = [batch() for _ in range(4)]
    assert 7 < times[3] < 13
    assert not all(query.feedback.held)  # to measure costs something


def test_a_slow_key_is_cut_out_and_the_others_run_at_their_own_speed():
    log = Log()
    chance = random.Random(3)
    log.grow(chance.choices(KEYS, k=20_000))
    slow = KEYS[4]
    query = Query(log, targetTaskDuration="5s", keyRanges="4", rangeAssignor="adaptive")
    query.pace = lambda key: 0.5 if key == slow else 0.001
    for _ in range(14):
        query.trigger()
    done = [log.keys[T0][offset] for _, offset in query.delivered]
    assert done.count(slow) < 400
    assert len(done) - done.count(slow) == sum(key != slow for key in log.keys[T0])
    query.check_order()


def test_the_report_tells_what_each_range_does():
    log = Log()
    log.grow(KEYS * 50)
    query = Query(log, targetTaskDuration="5s", keyRanges="2")
    query.pace = lambda key: 0.002
    query.trigger()
    query.trigger()
    report = query.planner.seen_offsets()
    assert report is not None
    assert report["t"] == {"0": 600}
    told = report["@kshare"]["report"]["t"]["0"]
    assert told["stable"] >= 0
    assert told["gaps"] >= 0
    assert [len(entry["h"]) for entry in told["ranges"]] == [1, 1]
    for entry in told["ranges"]:
        assert entry["records"] > 0
        assert entry["seconds"] > 0
        assert entry["position"] + entry["lag"] == 600
    assert any(entry.get("limit") for entry in told["ranges"])  # one has caught up


def test_only_what_offsets_do_not_say_is_reported():
    """Level partitions without limits read as those of Spark's own source."""
    log = Log(partitions=2)
    log.keys[T0] += KEYS * 5  # and nothing in the other one
    plain = Query(log, keyRanges="2")
    plain.trigger()
    assert plain.planner.seen_offsets() == {"t": {"0": 60, "1": 0}}

    uneven = Query(log, parkedKeys='["key-3"]')
    uneven.trigger()
    report = uneven.planner.seen_offsets()
    assert report is not None
    assert report["t"] == {"0": 60, "1": 0}
    told = report["@kshare"]["report"]["t"]
    assert list(told) == ["0"]
    hash_ = key_hash(b"key-3", 0)
    assert [hash_, hash_ + 1] in [part for entry in told["0"]["ranges"] for part in entry["h"]]


def test_assigned_ranges_alone_hold_the_stable_offset():
    log = Log()
    log.grow(KEYS * 20)
    options = {
        "kafka.bootstrap.servers": "nowhere:9092",
        "assign": f'{{"t": {{"0": [[0, {HASH_SPACE // 2}]]}}}}',
        "startingOffsets": "earliest",
        "maxRecordsPerTask": "5",
    }
    parsed = parse_options(options, streaming=True).options
    query = Query(log)
    query.planner = StreamPlanner(
        parsed,
        log,  # type: ignore[arg-type]
        parking=Parking(),  # type: ignore[arg-type]
        feedback=Feedback(),  # type: ignore[arg-type]
        scan=query.scan,
    )
    query.drain()
    assert query.at == {"t": {"0": 240}}
    read = {log.keys[T0][offset] for _, offset in query.delivered}
    assert read == {key for key in KEYS if key_hash(key, 0) < HASH_SPACE // 2}
