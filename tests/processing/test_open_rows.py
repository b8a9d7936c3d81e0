"""Handlers in the tasks of a batch that reads for a while: what is handed over, and where it ends.

A real reader and a real log of ends, with a broker in this process: what comes of a batch is judged
by what the next one reads.
"""

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kshare.core.hashing import ALL_HASHES, NO_HASHES, WHOLE, KeyRanges, split
from kshare.core.live import Latency
from kshare.core.open_batch import open_ranges, reached
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.tasks import OpenTask
from kshare.errors import ProcessingError
from kshare.kafka.end_log import EndLog
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.kafka.topics import RANGE_ENDS_TOPIC
from kshare.options import EARLIEST, SourceOptions
from kshare.options.frozen import FrozenMapping
from kshare.options.model import Assign
from kshare.processing import DeadLetter, Processor, Record, Retry, RetryAfter, open_rows
from kshare.processing.open_rows import _Offers, process_open_rows
from kshare.processing.task_loop import task_loop
from kshare.read.reader import open_reader
from kshare.read.reader.open_reader import Handled, OpenReader
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S, Ahead
from tests.support.effort import examples
from tests.support.groups import SECONDS, eventually, group_config

PARTITIONS = 2
HALVES = tuple(KeyRanges([half]) for half in split(WHOLE, 2))
QUICK = Retry(attempts=2, first="1ms", most="2ms")
LATER = 3_600.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={RANGE_ENDS_TOPIC: 1}) as running:
        yield running


class Letters:
    """Keeps dead letters."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self.is_closed = False

    async def write(self, record: Record, *_: Any) -> None:
        self.places.append((record.partition, record.offset))

    def close(self) -> None:
        self.is_closed = True


Place = tuple[int, int]  # partition and offset


@dataclass
class Query:
    """A topic, and how far it is handled."""

    cluster: FakeCluster
    ranges: tuple[KeyRanges, ...] = (ALL_HASHES,)
    topic: str = ""
    batches: int = 0
    keys: dict[Place, bytes | None] = field(default_factory=dict)
    letters: Letters = field(default_factory=Letters)

    def __post_init__(self) -> None:
        self.topic = self.cluster.create_topic(f"orders-{token_hex(4)}", PARTITIONS)
        kafka = group_config(self.cluster.bootstrap_servers).kafka
        topics = Assign(FrozenMapping({}))
        self.options = SourceOptions(topics=topics, kafka=kafka, starting=EARLIEST)
        self.ends = EndLog(kafka)
        self.ends.open()
        self.progress = {self.tp(number): Progress.at(0) for number in range(PARTITIONS)}

    def tp(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def close(self) -> None:
        self.ends.close()

    def produce(self, keys: Sequence[str | None], partition: int = 0) -> None:
        first = sum(of == partition for of, _ in self.keys)
        self.cluster.produce(self.topic, [(key, "v") for key in keys], partition=partition)
        for offset, key in enumerate(keys, first):
            self.keys[partition, offset] = None if key is None else key.encode()

    def task(self) -> OpenTask:
        """The only task of the next batch."""
        at = LogPosition(0, 0)
        ranges = dict.fromkeys(self.progress, self.ranges)
        name = f"{self.topic}-{self.batches}"
        batch = OpenBatch(name, 60_000, RANGE_ENDS_TOPIC, at, ranges)
        made = open_ranges(batch, self.progress)
        return OpenTask(tuple(made), batch.milliseconds, RANGE_ENDS_TOPIC, at)

    def rows(
        self, processor: Processor, clock: Ahead | None = None, **more: Any
    ) -> Generator[pa.RecordBatch, None, None]:
        """An attempt at the task."""

        def read(handled: Handled) -> Generator[pa.RecordBatch, None, None]:
            task, seconds = self.task(), (clock or Ahead()).monotonic
            reader = OpenReader(task, self.options, self.ends, handled=handled, seconds=seconds)
            return reader.batches()

        return process_open_rows(read, processor, letters=self.letters, **more)

    def run(
        self,
        processor: Processor,
        least: int,
        when: Callable[[], bool] = lambda: True,
        **more: Any,
    ) -> list[dict[str, Any]]:
        """An attempt whose time is over when so many rows are handed over, and something is so."""
        clock, found = Ahead(), list[dict[str, Any]]()
        with closing(self.rows(processor, clock, **more)) as batches:
            for batch in batches:
                found += batch.to_pylist()
                if len(found) >= least and when():
                    clock.seconds = 1e6
        return found

    def commit(self) -> None:
        """The batch is done, and the next one begins where it ended."""
        task = self.task()
        ends = self.ends.read(task.log, task.ranges)
        self.progress = reached(task.ranges, self.progress, ends, lambda _: NO_HASHES)
        self.batches += 1

    def has_ends(self) -> bool:
        task = self.task()
        return bool(self.ends.read(task.log, task.ranges).ends)


def places_of(rows: Sequence[dict[str, Any]]) -> list[Place]:
    return [(row["partition"], row["offset"]) for row in rows]


async def work(_: Record) -> None:
    await asyncio.sleep(0)


# -- the law -------------------------------------------------------------------------------------


History = tuple[list[list[list[int | None]]], dict[Place, str]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Keys that are written before each batch, by partition; and what handlers do with records."""
    keys = st.lists(st.sampled_from([None, 0, 1, 2, 3]), max_size=6)
    written = draw(st.lists(st.tuples(keys, keys).map(list), min_size=1, max_size=3))
    place = st.tuples(st.integers(0, PARTITIONS - 1), st.integers(0, 12))
    how = st.sampled_from(["once", "dead", "later 1", "later 2"])
    return written, draw(st.dictionaries(place, how, max_size=6))


class Handler:
    """Does with each record what is said of it; those that wait do so in the first batches."""

    def __init__(self, query: Query, hows: dict[Place, str]) -> None:
        self.query, self.hows = query, hows
        self.put_off = set[Place]()

    async def __call__(self, record: Record) -> str:
        place = record.partition, record.offset
        await asyncio.sleep(0)
        if self.waits(place):
            self.put_off.add(place)
            raise RetryAfter(LATER)
        how = self.hows.get(place)
        if how == "dead" or (how == "once" and record.attempt == 1):
            raise LookupError("no")
        return f"{record.partition}-{record.offset}"

    def waits(self, place: Place) -> bool:
        how, _, until = self.hows.get(place, "").partition(" ")
        return how == "later" and int(until) > self.query.batches


def twin(query: Query, handler: Handler, done: set[Place]) -> tuple[set[Place], set[Place]]:
    """What the next batch hands over, and what waits in it: each key up to what waits."""
    wanted, blocking, blocked = set[Place](), set[Place](), set[Any]()
    for place, key in sorted(query.keys.items()):
        lane = place if key is None else key
        if place in done or lane in blocked:
            continue
        if handler.waits(place):
            blocking.add(place)
            blocked.add(lane)
        else:
            wanted.add(place)
    return wanted, blocking


@examples(30)
@given(histories(), st.sampled_from([(ALL_HASHES,), HALVES]))
@example(([[[0, 1, 0], []], [[0], [0]]], {(0, 0): "later 2"}), HALVES)
@example(([[[0, 0, 0], []]], {(0, 0): "dead", (0, 1): "later 1"}), (ALL_HASHES,))
@example(([[[0, 0, 1], [0, None]]], {(0, 0): "dead", (0, 1): "once"}), (ALL_HASHES,))
def test_batches_tile_what_is_handled(
    cluster: FakeCluster, history: History, ranges: tuple[KeyRanges, ...]
) -> None:
    """Of each key, what is before the first record that waits is handed over, and nothing else.

    What waits comes again in the next batch, with what is behind it. A batch that runs again after
    its end has the same records.
    """
    written, hows = history
    with closing(Query(cluster, ranges)) as query:
        handler, out = Handler(query, hows), list[dict[str, Any]]()
        waits = any("later" in how for how in hows.values())  # what is held may be all that may be
        processor = Processor(
            handler,
            retry=QUICK,
            on_failure=DeadLetter("dlq"),
            max_records=100 if waits else 1,
            concurrency=3,
        )
        for number in range(len(written) + 2):
            for partition, keys in enumerate(written[number] if number < len(written) else []):
                named = [None if key is None else f"{partition}-{key}" for key in keys]
                query.produce(named, partition)
            wanted, blocking = twin(query, handler, set(places_of(out)))
            handler.put_off.clear()
            has_all = partial(handler.put_off.issuperset, blocking)
            found = query.run(processor, len(wanted), has_all, result="string")
            assert sorted(places_of(found)) == sorted(wanted)
            assert sorted(places_of(query.run(Processor(work), 0))) == sorted(wanted)
            out += found
            query.commit()
        _check_outcomes(query, hows, out)


def _check_outcomes(query: Query, hows: dict[Place, str], out: list[dict[str, Any]]) -> None:
    assert Counter(places_of(out)) == Counter(query.keys.keys())
    by_key = defaultdict[Any, list[Place]](list)
    for row, place in zip(out, places_of(out), strict=True):
        how = hows.get(place)
        assert row["status"] == ("dead_lettered" if how == "dead" else "done")
        assert row["error"] == ("LookupError: no" if how == "dead" else None)
        assert row["result"] == (None if how == "dead" else f"{place[0]}-{place[1]}")
        assert row["attempts"] == (2 if how in {"dead", "once"} else 1)
        by_key[row["key"]].append(place)
    by_key.pop(None, None)
    assert all(places == sorted(places) for places in by_key.values())
    assert sorted(query.letters.places) == sorted(p for p in query.keys if hows.get(p) == "dead")


# -- when a batch ends ---------------------------------------------------------------------------


@pytest.fixture
def query(cluster: FakeCluster) -> Iterator[Query]:
    with closing(Query(cluster)) as made:
        yield made


def hanging(hangs: set[int], seen: list[int], cancelled: list[int]) -> Any:
    """A handler that does not come back with some offsets."""

    async def handler(record: Record) -> None:
        seen.append(record.offset)
        if record.offset not in hangs:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise

    return handler


def test_calls_that_run_have_the_drain_and_then_come_again(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query.produce(["a", "b", "a", "c"])
    seen, cancelled = list[int](), list[int]()
    processor = Processor(hanging({0}, seen, cancelled), drain_timeout="20ms")
    with caplog.at_level(logging.WARNING, "kshare"):
        found = query.run(processor, 2)
    assert sorted(places_of(found)) == [(0, 1), (0, 3)]
    assert cancelled == [0]
    assert "2 records have no outcome when their micro-batch ends: they come again" in caplog.text
    query.commit()
    assert places_of(query.run(Processor(work), 2)) == [(0, 0), (0, 2)]


def test_a_call_that_ends_in_the_drain_is_handed_over(query: Query) -> None:
    """Rows that come meanwhile are not read."""
    query.produce(["a", "b"])
    release = threading.Event()

    def handler(record: Record) -> None:
        if record.offset == 0:
            release.wait(WAIT_S)

    clock, found = Ahead(), list[dict[str, Any]]()
    with closing(query.rows(Processor(handler, drain_timeout="1h"), clock)) as batches:
        while len(found) < 1:
            found += next(batches).to_pylist()
        clock.seconds = 60.0
        assert next(batches).num_rows == 0  # it waits
        query.produce(["c"])
        release.set()
        found += [row for batch in batches for row in batch.to_pylist()]
    assert places_of(found) == [(0, 1), (0, 0)]
    query.commit()
    assert places_of(query.run(Processor(work), 1)) == [(0, 2)]


def test_an_end_has_room_for_what_waits(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the batch goes on until fewer keys wait."""
    monkeypatch.setattr(open_reader, "_HELD_HASHES_MAX", 2)
    query.produce([f"k{number}" for number in range(5)])
    tries = Counter[int]()

    async def handler(record: Record) -> None:
        tries[record.offset] += 1
        if record.offset < 2:
            raise RetryAfter(LATER)
        if record.offset < 4 and tries[record.offset] == 1:
            raise RetryAfter(0.3)

    found = query.run(Processor(handler), 1, lambda: len(tries) == 5)
    assert sorted(places_of(found)) in (
        [(0, 2), (0, 4)],
        [(0, 3), (0, 4)],
        [(0, n) for n in (2, 3, 4)],
    )
    query.commit()
    left = {(0, n) for n in range(5)} - set(places_of(found))
    assert set(places_of(query.run(Processor(work), len(left)))) == left


@pytest.mark.parametrize("order", ["none", "partition"])
def test_other_orders_hand_each_key_over_in_order_too(query: Query, order: Any) -> None:
    """With ``none``, later records of a key are done first; they wait for the first one."""
    query.produce(["a", "a", "b", "a", "b"])
    done, others = list[int](), threading.Event()

    def handler(record: Record) -> None:
        if order == "none" and record.offset == 0:
            others.wait(WAIT_S)
        done.append(record.offset)
        if len(done) == 4:
            others.set()

    found = query.run(Processor(handler, order=order), 5)
    offsets = [offset for _, offset in places_of(found)]
    assert sorted(offsets) == list(range(5))
    assert [each for each in offsets if each in {0, 1, 3}] == [0, 1, 3]
    assert [each for each in offsets if each in {2, 4}] == [2, 4]
    assert (done[-1] == 0) == (order == "none")


# -- what ends a task ----------------------------------------------------------------------------


def test_a_record_that_fails_for_good_fails_the_task_without_an_end(query: Query) -> None:
    query.produce(["a", "b"])

    async def handler(record: Record) -> None:
        if record.offset:
            raise ValueError("no")

    processor = Processor(handler, retry=QUICK)
    with pytest.raises(
        ProcessingError, match=r"-0 offset 1 \(2 attempts\).*no.* pending"
    ) as raised:
        query.run(processor, 2)
    assert raised.value.offset == 1
    assert not query.has_ends()
    assert sorted(places_of(query.run(Processor(work), 2))) == [(0, 0), (0, 1)]


def test_a_failure_amid_the_drain_fails_the_task(query: Query) -> None:
    query.produce(["a", "b"])
    release = threading.Event()

    def handler(record: Record) -> None:
        if record.offset:
            release.wait(WAIT_S)
            raise ValueError("no")

    clock = Ahead()
    processor = Processor(handler, retry=Retry(attempts=1), drain_timeout="1h")
    with closing(query.rows(processor, clock)) as batches:
        while not next(batches).num_rows:
            pass
        clock.seconds = 60.0
        assert next(batches).num_rows == 0
        release.set()
        with pytest.raises(ProcessingError, match="offset 1"):
            list(batches)
    assert not query.has_ends()


def test_a_result_that_its_column_does_not_take_fails_the_task(query: Query) -> None:
    query.produce(["a"])

    async def handler(_: Record) -> str:
        return "none"

    with pytest.raises(ProcessingError, match=r"offset 0 on.*result='bigint' does not take"):
        query.run(Processor(handler), 1, result="bigint")


def test_a_task_that_is_given_up_cancels_its_handlers_and_proposes_nothing(query: Query) -> None:
    query.produce(["a", "b", "c"])
    seen, cancelled = list[int](), list[int]()
    processor = Processor(hanging({0, 2}, seen, cancelled))
    with closing(query.rows(processor)) as batches:
        while not next(batches).num_rows or len(seen) < 3:
            pass
    assert sorted(cancelled) == [0, 2]
    assert query.letters.is_closed
    assert not query.has_ends()
    assert not asyncio.all_tasks(task_loop().ready())


# -- while it reads ------------------------------------------------------------------------------


def test_no_more_is_read_than_may_be_held(query: Query) -> None:
    """What is read while there is no room is one batch of rows, at most."""
    query.produce(["a", "b", "c"])
    seen, cancelled = list[int](), list[int]()
    processor = Processor(hanging({0, 1, 2}, seen, cancelled), max_records=3, drain_timeout="10ms")
    clock = Ahead()
    with closing(query.rows(processor, clock)) as batches:
        while len(seen) < 3:
            assert next(batches).num_rows == 0
        query.produce(["d"])
        for _ in range(4):
            assert next(batches).num_rows == 0
        clock.seconds = 1e6
        list(batches)
    assert sorted(seen) == [0, 1, 2]
    query.commit()
    assert sorted(places_of(query.run(Processor(work), 4))) == [(0, n) for n in range(4)]


def test_rows_have_the_same_columns_also_where_there_are_none(query: Query) -> None:
    query.produce(["a"])
    clock, names = Ahead(), list[list[str]]()
    with closing(query.rows(Processor(work), clock, result="string")) as batches:
        names += [next(batches).schema.names for _ in range(3)]
        clock.seconds = 1e6
        names += [batch.schema.names for batch in batches]
    more = ["status", "attempts", "error", "result"]
    assert names == [[*query.options.column_names, *more]] * len(names)


def test_it_says_what_is_handed_over_and_not_what_is_read(query: Query) -> None:
    query.produce(["a", "b", "c"])
    said = list[tuple[list[int], list[int], int]]()

    def says(positions: Sequence[int], ends: Sequence[int], latency: Latency, /) -> None:
        said.append(([*positions], [*ends], latency.records))

    seen, cancelled = list[int](), list[int]()
    processor = Processor(hanging({1}, seen, cancelled))
    with closing(query.rows(processor, says=says)) as batches:
        while not said or said[-1][2] < 2:
            next(batches)
    assert said[-1] == ([1, 0], [3, 0], 2)


def test_what_is_waited_for_is_said(
    query: Query, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_rows, "SAY_SECONDS", 0.01)
    hours = partial(next, count(step=LATER))
    monkeypatch.setattr(open_rows, "WaitLog", partial(WaitLog, clock=hours))
    query.produce(["a"])
    processor = Processor(hanging({0}, [], []), drain_timeout="10ms")
    with caplog.at_level(logging.INFO, "kshare"), closing(query.rows(processor)) as batches:
        while "records that were read have no outcome, and no others come" not in caplog.text:
            next(batches)
    assert "handlers return" in caplog.text


# -- records on their way to the event loop ------------------------------------------------------


class Loop:
    """An event loop in a thread of its own, that takes nothing before it is let go."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None

    async def take(self, _: Sequence[Record]) -> None:
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error

    def let_go(self) -> None:
        self.loop.call_soon_threadsafe(self.goes_on.set)

    def close(self) -> None:
        self.let_go()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS)
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


def test_records_on_their_way_take_room_and_who_waits_for_it_is_woken(loop: Loop) -> None:
    woken = threading.Event()
    offers = _Offers(loop.take, woken.set)
    records: Any = [object()] * 3
    offers.offer(loop.loop, records)
    assert offers.are_enough(3)
    assert not offers.are_enough(4)
    offers.offer(loop.loop, records)
    assert offers.are_enough(6)
    assert not woken.is_set()
    loop.let_go()
    assert woken.wait(SECONDS)
    eventually(lambda: not offers.are_enough(1))


def test_what_went_wrong_on_the_way_is_raised(loop: Loop) -> None:
    offers = _Offers(loop.take, lambda: None)
    a_record: Any = [object()]
    loop.error = RuntimeError("it cannot take them")
    offers.offer(loop.loop, a_record)
    offers.look()  # nothing has ended yet
    loop.let_go()
    with pytest.raises(RuntimeError, match="it cannot take them"):
        eventually(offers.look)
