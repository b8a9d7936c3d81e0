"""Deserializers: what they are given, and coroutine functions among them, for either handler."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.serialization import SerializationContext

from kshare.errors import OptionsError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.processing import DeadLetter, Processor, Record, Status
from kshare.processing.frame_task import process_rows
from kshare.processing.runner import Runner
from kshare.testing import FakeCluster
from kshare.testing import Record as Row
from tests.processing.engines import PARTITION, MemoryEdge, handle
from tests.processing.running import run
from tests.support.fake_session import FakeSessions, fake_consumers

pytestmark = pytest.mark.usefixtures("each_loop", "own_loop")

SCHEMA_ID = "__value_schema_id"


class Rows:
    """Three rows; the last one has no headers."""

    topic_partition = PARTITION

    def column(self, name: str) -> list[Any]:
        assert name == "headers"
        return [[{"key": SCHEMA_ID, "value": b"%d" % at}] for at in range(2)] + [None]


class AsyncDeserializer:
    """As confluent's ``AsyncAvroDeserializer``: no coroutine function, and yet to be awaited."""

    def __init__(self) -> None:
        self.loops = set[int]()

    def __call__(
        self, data: bytes | None, context: SerializationContext
    ) -> Coroutine[Any, Any, str]:
        return self._decode(data, context)

    async def _decode(self, data: bytes | None, context: SerializationContext) -> str:
        await asyncio.sleep(0)  # as one that asks a registry
        self.loops.add(id(asyncio.get_running_loop()))
        return by_header(data, context)


def by_header(data: bytes | None, context: SerializationContext) -> str:
    """Decode by the schema that a header names, as ``DeserializingConsumer`` gives it."""
    headers: Any = context.headers
    number = dict(headers)[SCHEMA_ID].decode()
    return f"{context.topic} {context.field.value} {number} {(data or b'').decode()}"


async def by_header_later(data: bytes | None, context: SerializationContext) -> str:
    await asyncio.sleep(0)
    return by_header(data, context)


def handlers(seen: list[Any]) -> list[Callable[..., Any]]:
    """The same handler as a coroutine function, and as one that runs in threads."""

    async def coroutine(record: Record) -> None:
        seen.append((record.key, record.value))

    def plain(record: Record) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append((record.key, record.value))

    return [coroutine, plain]


@pytest.mark.parametrize("at", [0, 1], ids=["coroutine", "plain"])
@pytest.mark.parametrize("decode", [by_header, by_header_later, AsyncDeserializer()])
def test_headers_are_in_the_context_and_coroutines_are_awaited(decode: Any, at: int) -> None:
    seen = list[Any]()
    processor = Processor(
        handlers(seen)[at],
        key_deserializer=decode,
        value_deserializer=decode,
        on_failure=DeadLetter("dlq"),
    )
    edge, _ = handle(processor, [b"a"] * 3, source=Rows())
    assert seen == [(f"orders key {n} a", f"orders value {n} {n}") for n in range(2)]
    assert [each.status for each in edge.outcomes] == [
        Status.DONE,
        Status.DONE,
        Status.DEAD_LETTERED,  # has no header: not the schema of another one
    ]
    assert "offset 2: the key cannot be decoded: TypeError" in str(edge.outcomes[2].error)


def test_what_cannot_be_decoded_has_failed_for_good_and_its_key_goes_on() -> None:
    async def handler(record: Record) -> int:
        value: int = record.value
        return value

    def decode(data: bytes | None, context: SerializationContext) -> int:
        return 6 // int(data or b"")

    processor = Processor(handler, value_deserializer=decode, on_failure=DeadLetter("dlq"))
    edge, _ = handle(processor, [b"a"] * 3, source=Rows())
    assert [(each.status, each.result) for each in edge.outcomes] == [
        (Status.DEAD_LETTERED, None),
        (Status.DONE, 6),
        (Status.DONE, 3),
    ]
    assert "offset 0: the value cannot be decoded" in str(edge.outcomes[0].error)


@pytest.mark.parametrize("at", [0, 1], ids=["coroutine", "plain"])
def test_a_coroutine_that_fails_is_named_and_final(at: int) -> None:
    async def fails(data: bytes | None, context: SerializationContext) -> None:
        raise ValueError("no schema 7")

    seen = list[Any]()
    processor = Processor(
        handlers(seen)[at], value_deserializer=fails, on_failure=DeadLetter("dlq")
    )
    edge, _ = handle(processor, [b"a"], source=Rows())
    (outcome,) = edge.outcomes
    assert (outcome.status, outcome.attempts, seen) == (Status.DEAD_LETTERED, 1, [])
    assert str(outcome.error) == (
        "orders-0 offset 0: the value cannot be decoded: ValueError: no schema 7"
    )


def test_a_coroutine_of_a_plain_handler_runs_in_the_loop_of_the_processor() -> None:
    """Its client belongs to one loop, for all threads."""
    decode, seen = AsyncDeserializer(), list[Any]()
    processor = Processor(handlers(seen)[1], value_deserializer=decode, concurrency=2)
    handle(processor, [b"a", b"b"], source=Rows())
    assert len(seen) == 2
    assert len(decode.loops) == 1


def test_a_coroutine_that_hangs_ends_with_the_processor() -> None:
    ended = threading.Event()

    async def hangs(data: bytes | None, context: SerializationContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def handler(record: Record) -> None:
        raise AssertionError

    began, edge = list[int](), MemoryEdge()

    async def marks(data: bytes | None, context: SerializationContext) -> None:
        began.append(1)
        await hangs(data, context)

    processor = Processor(handler, value_deserializer=marks)
    handle(processor, [b"a"], edge, source=Rows(), until=lambda _: bool(began), drain=0.01)
    assert ended.is_set()
    assert edge.offsets(Status.LEFT_OVER) == [0]


@pytest.mark.parametrize("at", [0, 1], ids=["coroutine", "plain"])
def test_a_batch_is_decoded_before_it_is_handled(at: int) -> None:
    seen = list[Any]()

    async def coroutine(records: list[Record]) -> None:
        seen.append([record.value for record in records])

    def plain(records: list[Record]) -> None:
        seen.append([record.value for record in records])

    processor = Processor((coroutine, plain)[at], batch_size=5, value_deserializer=by_header_later)
    handle(processor, [b"a", b"a"], source=Rows())
    assert seen == [["orders value 0 0", "orders value 1 1"]]


def test_a_deserializer_that_is_none_is_named() -> None:
    async def made() -> None:
        pass

    wrong: Any = Processor
    with pytest.raises(OptionsError) as fault:
        wrong(print, key_deserializer=made(), value_deserializer="avro")
    first, second = fault.value.problems
    assert first.startswith("key_deserializer is a coroutine that nobody awaits")
    assert second.startswith("value_deserializer is 'avro'; wanted a function")


def test_a_consumer_that_does_not_read_headers_is_refused(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    """A deserializer would take a record for one without headers."""
    made = consumer(columns="key,value,offset")
    with pytest.raises(OptionsError, match="columns: has no headers; deserializers are given them"):
        Runner(Processor(print, value_deserializer=by_header), made, None)
    Runner(Processor(print), made, None)


def test_headers_of_a_consumer_s_records() -> None:
    with FakeCluster(topics={"orders": 1}) as cluster:
        rows = [Row("k", f"{at}", [(SCHEMA_ID, b"%d" % at)]) for at in range(20)]
        cluster.produce("orders", rows, partition=0)
        with fake_consumers(cluster, FakeSessions()) as make:
            made = make(acknowledgement__mode="explicit", enable__auto__commit=True)
            made.assign([PARTITION])
            seen = list[Any]()
            processor = Processor(handlers(seen)[0], value_deserializer=by_header_later)
            run(processor, made, lambda: len(seen) == 20)
    assert seen == [(b"k", f"orders value {at} {at}") for at in range(20)]


@pytest.mark.parametrize("at", [0, 1], ids=["coroutine", "plain"])
def test_headers_of_a_frame_s_rows(at: int) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_pydict(
        {
            "key": [b"a", b"b"],
            "value": [b"0", b"1"],
            "headers": pa.array([[(SCHEMA_ID, b"0")], [(SCHEMA_ID, b"1")]], headers),
        }
    )
    seen = list[Any]()
    processor = Processor(handlers(seen)[at], value_deserializer=AsyncDeserializer())
    out = pa.Table.from_batches(process_rows([batch], processor))
    assert out.column("status").to_pylist() == ["done", "done"]
    assert sorted(seen) == [(b"a", " value 0 0"), (b"b", " value 1 1")]
