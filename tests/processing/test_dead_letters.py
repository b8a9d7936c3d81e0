"""Dead letters, and keys whose records follow them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.dead_letters.writer import DeadLetters, letter_of_record
from kshare.errors import RecordRefusedError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import Remembered, RetryLog, Sequenced
from kshare.options import KafkaConfig
from kshare.processing import DeadLetter, Processor, Record
from kshare.processing.consumer_edge import ConsumerEdge, records_of
from kshare.testing import FakeCluster
from tests.processing.running import ORDERS, RECORDS, SOON, letters, run
from tests.support.clock import WAIT_S
from tests.support.fake_session import FakeSessions

pytestmark = pytest.mark.usefixtures("each_loop")


def test_dead_letters_say_where_from_and_why_and_are_acknowledged(
    consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions, cluster: FakeCluster
) -> None:
    ended = list[int]()

    async def handler(record: Record) -> None:
        if record.offset in {7, 17}:
            raise ValueError("no such customer")

    processor = Processor(
        handler,
        retry=SOON,
        on_failure=DeadLetter("dlq"),
        on_outcome=lambda outcome: ended.append(outcome.record.offset),
    )
    run(processor, consumer(), lambda: len(ended) == RECORDS)
    assert all(sessions.processed(ORDERS, offset) for offset in range(RECORDS))
    (value, headers), (second, _) = letters(cluster, 2)
    assert (value, second) == (b"7", b"17")
    assert headers["__connect.errors.topic"] == b"orders"
    assert headers["__connect.errors.partition"] == b"0"
    assert headers["__connect.errors.offset"] == b"7"
    assert headers["__connect.errors.exception.class.name"] == b"builtins.ValueError"
    assert headers["__connect.errors.exception.message"] == b"no such customer"
    assert headers["kshare.attempts"] == b"2"
    assert headers["kshare.first-failure"] <= headers["kshare.last-failure"]


def test_a_dead_letter_topic_that_refuses_leaves_the_record_pending(
    consumer: Callable[..., KeySharedConsumer],
    sessions: FakeSessions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = list[int]()

    async def refuse(*_: Any) -> None:
        raise OSError("not writable")

    monkeypatch.setattr("kshare.dead_letters.writer.DeadLetters.write", refuse)

    async def handler(record: Record) -> None:
        if record.offset == 7:
            raise ValueError("no")

    processor = Processor(
        handler,
        retry=SOON,
        on_failure=DeadLetter("dlq"),
        drain_timeout=0.2,
        on_outcome=lambda outcome: ended.append(outcome.record.offset),
    )
    run(processor, consumer(), lambda: len(ended) == RECORDS * 9 // 10)
    pending = [at for at in range(RECORDS) if not sessions.processed(ORDERS, at)]
    assert pending == list(range(7, RECORDS, 10))


def test_after_a_fatal_error_of_the_producer_letters_are_written_by_another_one(
    cluster: FakeCluster, consumer: Callable[..., KeySharedConsumer], sessions: FakeSessions
) -> None:
    failed = list[int]()

    async def handler(record: Record) -> None:
        if record.offset % 100 == 7:
            if not failed:
                cluster.fail("Produce", ["OUT_OF_ORDER_SEQUENCE_NUMBER"])
            failed.append(record.offset)
            raise ValueError("no")

    def are_all() -> bool:
        return all(sessions.processed(ORDERS, at) for at in range(RECORDS))

    run(Processor(handler, retry=SOON, on_failure=DeadLetter("dlq")), consumer(), are_all)
    assert are_all()
    assert {value for value, _ in letters(cluster, 3)} >= {b"7", b"107", b"207"}


@pytest.mark.parametrize(
    ("errors", "left_out"),
    [
        (["INVALID_RECORD"], None),  # of another one in its batch: alone it is taken, whole
        (["MSG_SIZE_TOO_LARGE"] * 2, b"value, headers"),
        (["INVALID_TIMESTAMP"] * 2, b"timestamp"),
        (["INVALID_TIMESTAMP"] * 2 + ["MSG_SIZE_TOO_LARGE"], b"timestamp, value, headers"),
        (["MSG_SIZE_TOO_LARGE"] * 3, b"value, headers, key"),
    ],
)
def test_a_letter_that_its_topic_never_takes_is_written_without_what_is_refused(
    cluster: FakeCluster,
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    errors: list[str],
    left_out: bytes | None,
) -> None:
    (record,) = records_of(Processor(print), consumer().consume(1, WAIT_S))
    cluster.fail("Produce", errors)

    async def write() -> None:
        written = DeadLetters(parsed(cluster), "dlq")
        await written.write(record, ValueError("no"), 0.0)
        written.close()

    asyncio.run(write())
    ((value, headers),) = letters(cluster, 1)
    assert headers.get("kshare.left-out") == left_out
    assert headers["__connect.errors.offset"] == b"0"
    assert value == (b"" if b"value" in (left_out or b"") else b"0")
    assert ("orders-0@0" in caplog.text) == (left_out is not None)


def test_a_topic_that_takes_no_letter_at_all_says_that_waiting_does_not_help(
    cluster: FakeCluster, consumer: Callable[..., KeySharedConsumer]
) -> None:
    (record,) = records_of(Processor(print), consumer().consume(1, WAIT_S))
    cluster.fail("Produce", ["MSG_SIZE_TOO_LARGE"] * 4)

    async def write() -> None:
        written = DeadLetters(parsed(cluster), "dlq")
        try:
            await written.write(record, ValueError("no"), 0.0)
        finally:
            written.close()

    with pytest.raises(RecordRefusedError, match="topic dlq takes no dead letter of orders-0@0"):
        asyncio.run(write())


def parsed(cluster: FakeCluster) -> KafkaConfig:
    given = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
    return consumer_config(given).kafka


def test_sequences_of_several_keys_begin_at_once(
    consumer: Callable[..., KeySharedConsumer],
) -> None:
    made, both = consumer(), threading.Barrier(2, timeout=20)
    processor = Processor(print, on_failure=DeadLetter("dlq", sequence=True))
    edge = ConsumerEdge(processor, made, lambda: None)
    edge.retry_log = Mock(begin_sequence=lambda *_: both.wait())
    first, second, *_ = records_of(processor, made.consume(2, WAIT_S))

    async def begin() -> None:
        error = OSError("no")
        await asyncio.gather(*(edge.begin_sequence(each, error) for each in (first, second)))

    asyncio.run(begin())
    edge.close()


def test_marks_of_another_policy_are_said_and_not_obeyed(
    consumer: Callable[..., KeySharedConsumer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[int]()

    async def handler(record: Record) -> None:
        seen.append(record.offset)

    marks = Remembered(sequences={(ORDERS, b"k3"): Sequenced(0)})
    monkeypatch.setattr(RetryLog, "read", lambda _: marks)
    run(Processor(handler), consumer(), lambda: len(seen) == RECORDS)
    assert sorted(seen) == list(range(RECORDS))
    assert "1 keys have dead letters that later records were to follow" in caplog.text


class SilentError(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "says"),
    [(ValueError("bad \ud800 name"), "bad \\ud800 name"), (SilentError(), "cannot be made")],
)
def test_an_error_whose_text_is_no_utf8_is_a_dead_letter_too(
    error: Exception, says: str, consumer: Callable[..., Any]
) -> None:
    (record,) = records_of(Processor(print), consumer().consume(1, WAIT_S))
    headers = dict(letter_of_record(record, error, 0.0).error)
    assert says in (headers["__connect.errors.exception.message"] or b"").decode()
