"""A processor inside a task of Spark: rows in, outcomes out."""

import asyncio
import datetime as dt
import threading
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from kshare.dead_letters.letter import Letter
from kshare.dead_letters.writer import letter_of_record
from kshare.errors import OptionsError, ProcessingError
from kshare.processing import DeadLetter, Outcome, Park, Processor, Record, Retry, Status
from kshare.processing.frame_rows import records_of_rows, rows_of_outcomes
from kshare.processing.frame_task import FrameTask, process_rows
from kshare.processing.frames import process_by_key
from tests.support.effort import examples

QUICK = Retry(attempts=3, first="1ms", most="2ms")


def rows(keys: list[int], first: int = 0, topic: str = "orders") -> pa.RecordBatch:
    count = len(keys)
    return pa.record_batch(
        {
            "topic": [topic] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "key": [b"%d" % key for key in keys],
            "value": [b"v%d" % at for at in range(first, first + count)],
        }
    )


class Letters:
    """Refuses each letter at first."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.written: dict[int, Letter] = {}
        self._refused = set[int]()
        self.is_closed = False

    async def write(
        self,
        record: Record,
        error: BaseException | None,
        now: float,
        rewritten: Sequence[str] = (),
    ) -> None:
        await asyncio.sleep(0)
        if record.offset not in self._refused:
            self._refused.add(record.offset)
            raise OSError("not now")
        self.offsets.append(record.offset)
        self.written[record.offset] = letter_of_record(record, error, now, rewritten)

    def close(self) -> None:
        self.is_closed = True


class AllLetters(Letters):
    """Takes each at once; what goes wrong with one is not tried again."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Exception] = []

    async def write(self, record: Record, *given: Any) -> None:
        try:
            self.written[record.offset] = letter_of_record(record, *given)
        except Exception as error:
            self.faults.append(error)


class Failing:
    """Fails each record as often as is said."""

    def __init__(self, failures: dict[int, int]) -> None:
        self.left = Counter(failures)
        self.calls: dict[bytes, list[int]] = defaultdict(list)

    async def __call__(self, record: Record) -> None:
        await asyncio.sleep(0)
        self.calls[record.key].append(record.offset)
        if self.left[record.offset]:
            self.left[record.offset] -= 1
            raise LookupError("not there")


@examples(30)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=4),
    st.dictionaries(st.integers(0, 30), st.integers(1, 3), max_size=4),
    st.integers(1, 5),
)
@example([[0, 1, 0]], {0: 3}, 5)
def test_each_row_has_one_outcome_and_keys_keep_their_order(
    batches: list[list[int]], failures: dict[int, int], held: int
) -> None:
    handler, letters = Failing(failures), Letters()
    processor = Processor(
        handler, retry=QUICK, on_failure=DeadLetter("dlq"), max_records=held, concurrency=3
    )
    given_rows, at = [], 0
    for keys in batches:
        given_rows.append(rows(keys, at))
        at += len(keys)
    out = list(process_rows(given_rows, processor, letters=letters))
    table = pa.Table.from_batches(out) if out else None
    outcomes = [] if table is None else table.to_pylist()
    assert sorted(row["offset"] for row in outcomes) == list(range(at))
    for row in outcomes:
        failed = failures.get(row["offset"], 0)
        assert row["value"] == b"v%d" % row["offset"]
        assert row["attempts"] == min(failed + 1, 3)
        assert row["status"] == ("dead_lettered" if failed == 3 else "done")
        assert row["error"] == ("LookupError: not there" if failed == 3 else None)
    assert sorted(letters.offsets) == [offset for offset in range(at) if failures.get(offset) == 3]
    for offsets in handler.calls.values():
        assert offsets == sorted(offsets)
    assert letters.is_closed


def test_rows_of_a_key_go_one_after_another_whatever_partitions_they_come_from() -> None:
    """As after ``repartition("customer").sortWithinPartitions("customer", "time")``."""
    batch = rows([1, 1, 1, 2, 1, 1, 2, 1])
    numbers = pa.array([0, 2, 1, 0, 2, 0, 1, 1], pa.int32())
    batch = batch.set_column(1, "partition", numbers)
    handler = Failing({1: 2, 4: 1})
    list(process_rows([batch], Processor(handler, retry=QUICK)))
    assert list(dict.fromkeys(handler.calls[b"1"])) == [0, 1, 2, 4, 5, 7]
    assert handler.calls[b"2"] == [3, 6]


def test_plain_functions_run_beside_each_other() -> None:
    """Four of them meet: none goes on before."""
    barrier = threading.Barrier(4, timeout=30)

    def meet(record: Record) -> str:
        barrier.wait()
        return str(record.value, "ascii")

    processor = Processor(meet, concurrency=4)
    (out,) = process_rows([rows([0, 1, 2, 3])], processor, result="string")
    assert sorted(out.column("result").to_pylist()) == ["v0", "v1", "v2", "v3"]


def test_a_record_that_fails_for_good_stops_the_task() -> None:
    processor = Processor(Failing({1: 9}), retry=QUICK)
    with pytest.raises(ProcessingError, match=r"orders-0 offset 1.*not there") as raised:
        list(process_rows([rows([0, 1])], processor))
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("orders", 0, 1)
    assert raised.value.attempts == 3


def test_a_handler_that_ends_the_process_fails_its_task() -> None:
    """The event loop goes on: a task that waits for it would wait for ever."""

    async def leave(record: Record) -> None:
        raise SystemExit(3)

    with pytest.raises(ProcessingError, match=r"orders-0 offset 0.*SystemExit\(3\)"):
        list(process_rows([rows([0, 1])], Processor(leave)))


def test_no_more_is_read_than_may_be_held() -> None:
    done: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, 60, 2):
            assert first - len(done) <= 4
            yield rows([first, first + 1], first)

    async def work(record: Record) -> None:
        await asyncio.sleep(0)
        done.append(record.offset)

    processor = Processor(work, max_records=4)
    assert sum(out.num_rows for out in process_rows(batches(), processor)) == 60


def test_a_task_that_is_given_up_cancels_its_handlers() -> None:
    cancelled: list[int] = []

    async def hang(record: Record) -> None:
        if record.offset < 5_000:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(record.offset)
            raise

    batches = [rows([*range(5_000)]), rows([1, 2], 5_000), rows([3], 5_002)]
    before = threading.active_count()
    outcomes = process_rows(batches, Processor(hang, max_records=5_002))
    assert next(outcomes).num_rows >= 4_096
    assert isinstance(outcomes, Generator)
    outcomes.close()
    assert set(cancelled) <= {5_000, 5_001, 5_002}
    assert threading.active_count() <= before + 1  # the loop's


def test_a_frame_without_the_columns_of_kafka() -> None:
    seen: list[tuple[Any, Any, int]] = []

    async def see(record: Record) -> None:
        seen.append((record.key, record.value, record.offset))

    frame = pa.record_batch({"user": ["a", None, "a"], "amount": [1, 2, 3]})
    (out,) = process_rows([frame], Processor(see), key="user")
    assert sorted(seen, key=lambda each: each[2]) == [
        ("a", {"amount": 1}, 0),
        (None, {"amount": 2}, 1),
        ("a", {"amount": 3}, 2),
    ]
    assert out.schema.names == ["user", "amount", "status", "attempts", "error"]


def test_what_a_dead_letter_needs_of_a_record() -> None:
    """A frame of format("kshare") has it all; others have neither headers nor times."""
    told: list[tuple[int, list[tuple[str, bytes | None]]]] = []

    async def look(record: Record) -> None:
        told.append((record.timestamp, record.headers))

    times = pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC"))
    headers = [[{"key": "h", "value": b"1"}], None]
    frame = pa.record_batch({"key": ["a", "a"], "timestamp": times, "headers": headers})
    list(process_rows([frame, pa.record_batch({"key": ["b"]})], Processor(look)))
    assert told == [(1_700_000_000_123, [("h", b"1")]), (-1, []), (-1, [])]


WHEN = "2026-01-01"
MAP = pa.map_(pa.string(), pa.binary())
HEADER = {"key": "h", "value": b"1"}


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ({"timestamp": [WHEN]}, (-1, [])),
        ({"timestamp": [1.5]}, (-1, [])),
        ({"timestamp": pa.array([None], pa.int64())}, (-1, [])),
        ({"timestamp": [5]}, (5, [])),
        ({"timestamp": pa.array([2**64 - 2], pa.uint64())}, (-2, [])),
        ({"headers": ["h"]}, (-1, [])),
        ({"headers": [["h"]]}, (-1, [])),
        ({"headers": [[{"name": "h", "value": b"1"}]]}, (-1, [])),
        ({"headers": [[{"key": 1, "value": b"1"}]]}, (-1, [])),
        ({"headers": [[{"key": "h", "value": 1}]]}, (-1, [])),
        ({"headers": pa.array([[("h", b"1")]], MAP)}, (-1, [])),
        ({"headers": [[None, {"key": None, "value": b"1"}, HEADER]]}, (-1, [("h", b"1")])),
    ],
)
def test_columns_of_any_type_leave_a_dead_letter_possible(
    column: dict[str, Any], wanted: tuple[int, list[tuple[str, bytes | None]]]
) -> None:
    """A frame that is not format("kshare") may have its own."""
    told: list[tuple[int, list[tuple[str, bytes | None]]]] = []

    async def look(record: Record) -> None:
        told.append((record.timestamp, record.headers))

    list(process_rows([pa.record_batch({"key": ["a"], **column})], Processor(look)))
    assert told == [wanted]


@pytest.mark.parametrize(
    ("dropped", "row", "place"),
    [
        ("", 0, [b"orders", b"0", b"7"]),
        ("offset", 0, [b"", b"0", b"0"]),
        ("topic", 0, [b"", b"0", b"7"]),
        ("", 1, [b"", b"0", b"8"]),
    ],
)
def test_a_letter_says_a_whole_place_or_no_topic(
    dropped: str, row: int, place: list[bytes]
) -> None:
    """Without an offset, rows of all batches and tasks would have the same places."""
    seen: list[str] = []

    async def refuse(record: Record) -> None:
        seen.append(record.topic)
        raise ValueError("no")

    batch = rows([0, 1], 7).set_column(0, "topic", pa.array(["orders", None]))
    letters, policy = AllLetters(), DeadLetter("dlq")
    given_rows = batch.drop_columns(list(filter(None, [dropped])))
    processor = Processor(refuse, retry=Retry(attempts=1), on_failure=policy, concurrency=1)
    list(process_rows([given_rows], processor, letters=letters))
    assert letters.faults == []
    found = sorted(letters.written.items())[row][1]
    assert [value for _, value in found.error[:3]] == place
    assert seen == (["", ""] if dropped == "topic" else ["orders", ""])


def test_rows_that_are_taken_while_others_are_settled_come_once() -> None:
    """The one is done by the task's thread, the other one by the event loop's."""
    task = FrameTask(Processor(print), None)
    records = list(records_of_rows(Processor(print), rows([0, 1, 2]), "key", 0))
    done = [Outcome(record, Status.DONE) for record in records]
    out = list[pa.RecordBatch]()

    class Amid(list[Outcome]):
        def __iter__(self) -> Iterator[Outcome]:
            out.extend(rows_of_outcomes(task.settled(1), None))
            return super().__iter__()

    task.settle(done[:1])
    task.settle(Amid(done[1:]))
    out += rows_of_outcomes(task.settled(1), None)
    offsets = [offset for batch in out for offset in batch.column("offset").to_pylist()]
    assert offsets == [0, 1, 2]


@pytest.mark.parametrize(
    ("result", "returned"),
    [("string", 5), ("bigint", 2**70), ("int", 2**40), ("string", "\ud800"), ("double", "high")],
)
def test_a_result_that_its_column_does_not_take_is_told(result: str, returned: Any) -> None:
    async def handler(record: Record) -> Any:
        return returned

    with pytest.raises(ProcessingError, match=f"offset 0 on.*result='{result}' does not take"):
        list(process_rows([rows([0])], Processor(handler), result=result))


def test_a_task_that_reads_its_own_dead_letters_ends() -> None:
    """Of a pattern or of a batch's frame the driver does not know; one that fails would come again.

    Other topics of its frame are read.
    """
    letters, processor = Letters(), Processor(Failing({}), on_failure=DeadLetter("dlq"))
    found = process_rows([rows([0]), rows([0], 1, "dlq")], processor, letters=letters)
    with pytest.raises(OptionsError, match="the processor would read dlq, where on_failure"):
        list(found)
    assert letters.is_closed
    assert len(list(process_rows([rows([0], 1, "dlq")], Processor(Failing({}))))) == 1


class Schema:
    fields: list[Any] = []  # noqa: RUF012


class Frame:
    columns = ["id", "status"]  # noqa: RUF012
    schema = Schema()

    def mapInArrow(self, func: Any, schema: Any) -> Any:  # noqa: N802
        raise AssertionError


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (Park(), "on_failure=Park() needs a consumer's group"),
        (DeadLetter("dlq", sequence=True), "sequence=True) needs a consumer's group"),
        (DeadLetter("dlq"), "needs options={'kafka.bootstrap.servers': ...}"),
    ],
)
def test_wrong_arguments_are_listed(policy: Any, wanted: str) -> None:
    processor = Processor(Failing({}), on_failure=policy, on_outcome=print)
    with pytest.raises(OptionsError) as raised:
        process_by_key(Frame(), processor, result="json")
    text = str(raised.value)
    no_column = "key='key' is no column; there are id, status"
    for part in (no_column, "status", "result='json'", wanted, "on_outcome is not called in Spark"):
        assert part in text


@pytest.mark.parametrize(
    ("given_delay", "is_refused"),
    [({}, False), ({"max_delay": None}, False), ({"max_delay": "1h"}, True)],
)
def test_a_delay_that_no_micro_batch_would_wait_for_is_refused(
    given_delay: dict[str, Any], *, is_refused: bool
) -> None:
    with pytest.raises(OptionsError) as raised:
        process_by_key(Frame(), Processor(Failing({}), **given_delay))
    said = "max_delay has no effect in Spark; leave it out: a header not-before means nothing"
    assert (said in str(raised.value)) == is_refused


class WithoutPandas:
    columns = ("key",)
    schema = StructType().add("key", "binary")

    def mapInArrow(self, func: Any, schema: Any) -> Any:  # noqa: N802
        raise ImportError("Pandas >= 2.2.0 must be installed")


def test_a_driver_without_pandas_is_told_what_to_install() -> None:
    frame: Any = WithoutPandas()
    with pytest.raises(ImportError, match=r"pip install 'kshare\[pandas\]' \(Pandas >= 2\.2\.0"):
        process_by_key(frame, Processor(Failing({})))


# -- typed rows -----------------------------------------------------------------------------------

ORDER = pa.struct(
    [
        ("user", pa.string()),
        ("qty", pa.int32()),
        ("items", pa.list_(pa.struct([("sku", pa.int64())]))),
    ]
)
ORDERS: list[Any] = [
    {"user": "a", "qty": 1, "items": [{"sku": 7}]},
    {"user": "b", "qty": None, "items": []},
    None,
    {"user": 'c"', "qty": 4, "items": None},
]


def typed(keys: pa.Array, values: pa.Array, name: str = "value") -> pa.RecordBatch:
    count = len(keys)
    return pa.record_batch(
        {
            "topic": ["orders"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": keys,
            name: values,
        }
    )


def letters_of(batch: pa.RecordBatch) -> tuple[list[tuple[Any, Any]], dict[int, Letter]]:
    """What the handler has seen of a batch's rows, all of which fail; and their letters."""
    seen: list[tuple[Any, Any]] = []

    async def refuse(record: Record) -> None:
        seen.append((record.key, record.value))
        raise ValueError("no")

    letters, once = Letters(), Retry(attempts=1)
    processor = Processor(refuse, retry=once, on_failure=DeadLetter("dlq"), concurrency=1)
    list(process_rows([batch], processor, letters=letters))
    return seen, letters.written


def rewritten(letter: Letter) -> bytes | None:
    return dict(letter.error).get("kshare.rewritten")


@pytest.mark.parametrize("first", [0, 1])
def test_a_struct_is_a_dict_for_a_handler_and_json_in_a_letter(first: int) -> None:
    keys = pa.array(["k0", "k1", "k2", None])
    batch = typed(keys, pa.array(ORDERS, ORDER)).slice(first)
    seen, found = letters_of(batch)
    assert sorted(map(str, seen)) == sorted(
        map(str, list(zip(keys.to_pylist(), ORDERS, strict=True))[first:])
    )
    values = [
        b'{"user":"a","qty":1,"items":[{"sku":7}]}',
        b'{"user":"b","items":[]}',
        None,
        b'{"user":"c\\"","qty":4}',
    ]
    for row in range(first, 4):
        assert found[row].value == values[row]
        assert rewritten(found[row]) == (None if row == 2 else b"value")
    assert [found[row].key for row in range(first, 4)] == [b"k0", b"k1", b"k2", None][first:]


def test_bytes_and_strings_are_as_the_record_had_them() -> None:
    for values in (pa.array([b"v", None]), pa.array(["v", None])):
        seen, found = letters_of(typed(pa.array([b"a", b"b"]), values))
        assert [value for _, value in sorted(seen)] == values.to_pylist()
        assert [found[row].value for row in (0, 1)] == [b"v", None]
        assert [rewritten(found[row]) for row in (0, 1)] == [None, None]


def test_keys_that_are_structs_keep_their_order_and_other_columns_are_a_value() -> None:
    keys = pa.array([{"id": 1}, {"id": 2}, {"id": 1}], pa.struct([("id", pa.int64())]))
    _, found = letters_of(typed(keys, pa.array([5, 6, None]), "qty"))
    assert [found[row].key for row in range(3)] == [b'{"id":1}', b'{"id":2}', b'{"id":1}']
    wanted = b'{"topic":"orders","partition":0,"offset":1,"qty":6}'
    assert (found[1].value, rewritten(found[1])) == (wanted, b"key, value")
    records = list(records_of_rows(Processor(print), typed(keys, pa.array([5, 6, 7])), "key", 0))
    assert [record.lane for record in records] == [b'{"id":1}', b'{"id":2}', b'{"id":1}']
    assert [record.value for record in records] == [5, 6, 7]
    assert records[0].raw_value == b"5"


def test_times_in_zones_that_only_java_knows() -> None:
    time = dt.datetime(2020, 7, 1, 12, tzinfo=dt.UTC)
    kind = pa.timestamp("us", "GMT+2")
    values = pa.array([{"at": time}], pa.struct([("at", kind)]))
    seen, found = letters_of(typed(pa.array([time], kind), values))
    assert seen == [(time, {"at": time})]
    assert found[0].value == b'{"at":"2020-07-01T14:00:00.000+02:00"}'
    assert (found[0].key or b"").startswith(b"datetime.datetime(2020, 7, 1, 14, 0, tzinfo=")


def test_a_value_of_a_type_that_json_does_not_have_is_a_text() -> None:
    values = pa.array([{"time": 1}], pa.struct([("time", pa.duration("us"))]))
    _, found = letters_of(typed(pa.array([b"k"]), values))
    assert found[0].value == b"{'time': datetime.timedelta(microseconds=1)}"
    assert rewritten(found[0]) == b"value"


def test_deserializers_of_columns_that_are_typed_are_refused() -> None:
    class Typed(WithoutPandas):
        columns = ("key", "value")  # type: ignore[assignment]
        schema = StructType().add("key", "binary").add("value", StructType().add("qty", "integer"))

    frame: Any = Typed()
    processor = Processor(
        Failing({}), key_deserializer=lambda *_: 1, value_deserializer=lambda *_: 1
    )
    with pytest.raises(OptionsError) as raised:
        process_by_key(frame, processor)
    assert raised.value.problems == (
        "value_deserializer: column value is of type struct, and handlers get it so; leave it out",
    )
