"""Keys whose letters are put back, and that are handled from there on, while a processor runs."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock

import pytest

from kshare.core.progress import TopicPartition
from kshare.dead_letters.record import Mark
from kshare.dead_letters.writer import HEADERS, RELEASE
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.log.retry_log import Reason, Remembered, RetryLog, Sequenced
from kshare.group.log.topic import log_table
from kshare.kafka.protocol.wait_log import WaitLog
from kshare.processing import DeadLetter, Processor, Record, Retry
from kshare.processing.core.sequences import Sequences
from kshare.processing.kept_state import KeptState
from kshare.processing.release import Found, Release, Released, first_without_letter
from kshare.processing.replay import Replay
from kshare.testing import FakeCluster, watermarks
from kshare.testing import Record as Produced
from tests.processing.running import ORDERS, run
from tests.support.groups import FETCH_WAIT_MS, GROUP, LOG, eventually

FAILS = 5
BEFORE = 20


def test_a_key_is_released_once_all_of_its_records_are_letters_or_were_put_back() -> None:
    found = [Found(("orders", 0, at), "") for at in (3, 4)] + [Found(("orders", 0, 9), "t")]
    letters = {("orders", 0, at) for at in range(5)}
    assert first_without_letter(found, letters, "t") is None
    assert first_without_letter(found, letters, "u") == ("orders", 0, 9)  # of an earlier run
    assert first_without_letter(found, letters, "") == ("orders", 0, 9)
    assert first_without_letter(found, letters - {("orders", 0, 4)}, "t") == ("orders", 0, 4)
    behind = [*found, Found(("orders", 0, 10), "")]
    assert first_without_letter(behind, letters, "t") is None
    amid = [*behind, Found(("orders", 0, 11), "t")]
    assert first_without_letter(amid, letters, "t") == ("orders", 0, 10)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "dlq": 1, LOG: 1}) as running:
        yield running


def given(cluster: FakeCluster) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "claim.timeout.ms": 400,
        "fetch.max.wait.ms": FETCH_WAIT_MS,
        "check.crcs": False,
    }


def test_a_processor_handles_a_key_again_in_order_also_while_new_records_come(
    cluster: FakeCluster,
) -> None:
    """With the default interval of commits: so most of it is not committed yet."""
    seen, released = list[bytes](), list[Released]()
    healed, ended = threading.Event(), threading.Event()

    async def handler(record: Record) -> None:
        if record.key == b"k" and record.value == b"%d" % FAILS and not healed.is_set():
            raise ValueError("no such customer")
        if record.key == b"k":
            seen.append(record.value)

    def produce(first: int, end: int) -> None:
        rows = [(key, str(at)) for at in range(first, end) for key in ("k", "other")]
        cluster.produce("orders", rows, partition=0)

    def operate() -> None:
        try:
            eventually(lambda: watermarks(cluster.bootstrap_servers, "dlq")[1] >= BEFORE - FAILS)
            healed.set()
            produce(BEFORE, BEFORE + 3)
            kafka = consumer_config({**given(cluster), "group.id": GROUP}).kafka
            replay = Replay(kafka, given(cluster), "dlq", topics=["orders"])
            with closing(Release(replay, GROUP, LOG, None)) as release:
                released.extend(release.run())
            produce(BEFORE + 3, BEFORE + 6)
            eventually(lambda: len(seen) >= BEFORE + 6)
        finally:
            ended.set()

    produce(0, BEFORE)
    config = {**given(cluster), "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = KeySharedConsumer({**config, "acknowledgement.mode": "explicit"})
    consumer.assign([ORDERS])
    retry = Retry(attempts=1)
    processor = Processor(handler, retry=retry, on_failure=DeadLetter("dlq", sequence=True))
    operator = threading.Thread(target=operate)
    operator.start()
    run(processor, consumer, ended.is_set)
    operator.join()
    assert released == [Released(ORDERS, b"k", BEFORE + 3 - FAILS)]
    assert seen == [b"%d" % at for at in range(BEFORE + 6)]
    assert watermarks(cluster.bootstrap_servers, "dlq")[1] == BEFORE + 3 - FAILS
    kafka = consumer_config({**given(cluster), "group.id": GROUP}).kafka
    with closing(RetryLog(log_table(kafka, LOG, GROUP), GROUP)) as log:
        (mark,) = log.read().sequences.values()
    assert mark.until is not None
    assert mark.until > BEFORE


class Rows:
    """Rows of one partition, each with the headers of its offset."""

    topic_partition = ORDERS

    def __init__(self, headers: Mapping[int, str]) -> None:
        self.acknowledged = bytearray(30)
        self._headers = headers

    def column(self, name: str) -> list[Any]:
        assert name == "headers"
        return [
            [{"key": RELEASE, "value": self._headers[at].encode()}] if at in self._headers else None
            for at in range(30)
        ]

    def records(self, *offsets: int) -> list[Record]:
        return [Record(self, at, at, b"k", b"v", (ORDERS, b"k")) for at in offsets]


class KeptLog:
    """A log of one mark in memory, and the scheduler's marks."""

    def __init__(self, mark: Sequenced) -> None:
        self.marks = {(ORDERS, b"k"): mark}
        self.sequences, engine, self.edge = Sequences(), Mock(), Mock(reads_committed=True)
        engine.scheduler.sequences = self.sequences
        engine.loop.soon_from_thread = lambda call: call()
        self.edge.retry_log.read = lambda: Remembered(sequences=dict(self.marks))
        self.edge.retry_log.end_sequence_at = self.end
        self.state = KeptState(engine, self.edge, has_sequences=True)
        self.state.read()

    def end(self, partition: TopicPartition, key: bytes, mark: Sequenced, offset: int) -> None:
        self.marks[partition, key] = mark._replace(until=offset)

    def follows(self, record: Record) -> bool:
        return self.sequences.follows(record)


def test_a_record_that_bears_what_the_log_says_ends_the_sequence_of_its_key() -> None:
    log, rows = KeptLog(Sequenced(3)), Rows({9: "old", 12: "new", 13: "new"})
    early = rows.records(9)
    assert log.state.without_put_back(early) == early
    assert log.follows(early[0])
    log.marks[ORDERS, b"k"] = Sequenced(3, release="new")  # written before 12 could be read
    records = rows.records(5, 9, 12, 13, 14)
    assert log.state.without_put_back(records) == records[2:]  # what is put back comes no more
    assert not log.follows(records[2])
    assert log.marks[ORDERS, b"k"].until == 12
    assert bytes(rows.acknowledged).find(b"\1") == 5
    assert sum(rows.acknowledged) == 2
    again = rows.records(2, 3, 11, 12)  # after a crash; 2 was handled, and not committed
    assert log.state.without_put_back(again) == [again[0], again[3]]


def test_a_sequence_that_began_behind_what_was_put_back_goes_on() -> None:
    log, rows = KeptLog(Sequenced(12, release="new")), Rows({12: "new", 13: "newer"})
    records = rows.records(12, 13, 14)
    assert log.state.without_put_back(records) == records
    assert all(log.follows(record) for record in records)


def test_what_was_put_back_and_aborted_ends_nothing_and_is_passed_over() -> None:
    """Where a consumer reads what is not committed, the edge says what is."""
    log, rows = KeptLog(Sequenced(3, release="new")), Rows({5: "old", 9: "new", 12: "new"})
    log.edge.reads_committed = False
    log.edge.committed = lambda found: {each for each in found if each.offset == 12}
    records = rows.records(5, 9, 10)
    assert log.state.without_put_back(records) == records[2:]
    assert log.follows(records[2])  # it was aborted: the key is not released
    later = rows.records(11, 12, 13)
    assert log.state.without_put_back(later) == later[1:]
    assert not log.follows(later[1])
    assert [at for at, is_done in enumerate(rows.acknowledged) if is_done] == [5, 9, 11]


def test_a_scheduler_ends_a_sequence_unless_it_began_later() -> None:
    sequences, lane = Sequences({"lane": Mark(5)}), "lane"
    sequences.end("other", 9)
    sequences.end(lane, 5)
    assert lane in sequences.marks
    sequences.end(lane, 6)
    assert not sequences.marks


def test_it_waits_for_a_letter_that_is_not_there_and_says_for_which(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No processor runs: the last record of the key is no letter until one has run."""
    clock = partial(next, count(0.0, 40.0))  # a look each 40 s
    monkeypatch.setattr("kshare.processing.release.WaitLog", partial(WaitLog, clock=clock))
    cluster.produce("orders", [("k", str(at)) for at in range(3)], partition=0)
    kafka = consumer_config({**given(cluster), "group.id": GROUP}).kafka
    with closing(RetryLog(log_table(kafka, LOG, GROUP), GROUP)) as log:
        log.begin_sequence(Rows({}).records(0)[0], Reason("builtins.OSError", "no"))
        cluster.produce("dlq", [letter(0), letter(1)], partition=0)

        def write_last() -> None:
            eventually(lambda: "orders-0 offset 2 is no dead letter so far" in caplog.text)
            cluster.produce("dlq", [letter(2)], partition=0)

        writer = threading.Thread(target=write_last)
        writer.start()
        with closing(Release(Replay(kafka, given(cluster), "dlq"), GROUP, LOG, None)) as release:
            released = list(release.run())
        writer.join()
        (mark,) = log.read().sequences.values()
    assert released == [Released(ORDERS, b"k", 3, is_seen=False)]
    assert "a processor of group billing has written" in caplog.text
    assert (len(mark.release), mark.until) == (32, None)  # whoever reads it first ends the sequence


def test_a_key_without_letters_is_not_released(cluster: FakeCluster) -> None:
    kafka = consumer_config({**given(cluster), "group.id": GROUP}).kafka
    with closing(RetryLog(log_table(kafka, LOG, GROUP), GROUP)) as log:
        log.begin_sequence(Rows({}).records(0)[0], Reason())
        with closing(Release(Replay(kafka, given(cluster), "dlq"), GROUP, LOG, None)) as release:
            released = list(release.run())
        (mark,) = log.read().sequences.values()
    assert [(each.key, each.letters) for each in released] == [(b"k", 0)]
    assert mark.until is None


def letter(at: int) -> Produced:
    values = (b"orders", b"0", b"%d" % at)
    return Produced(b"k", b"%d" % at, headers=list(zip(HEADERS, values, strict=False)))
