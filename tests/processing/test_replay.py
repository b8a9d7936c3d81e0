"""Dead letters that are put back, on the mock cluster."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kshare.core.hashing import ALL_HASHES
from kshare.core.progress import TopicPartition
from kshare.dead_letters.writer import HEADERS
from kshare.errors import KshareError, RecordRefusedError, TransactionAbortedError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.consumer.transaction import Transaction
from kshare.group.core.transaction_state import TransactionAction, TransactionState
from kshare.group.core.work import CommitRequest
from kshare.group.message import Message
from kshare.group.session.transaction_log import TransactionLog
from kshare.kafka.parked_keys import ParkWatch
from kshare.kafka.topics import PARKED_TOPIC, POLICIES_TOPIC
from kshare.processing.replay import Replay, group_of
from kshare.testing import FakeCluster, Record, watermarks
from tests.support.groups import LOG

LETTERS = 50
DLQ = TopicPartition("dlq", 0)


def letter(at: int) -> Record:
    names = ("topic", "partition", "offset")
    values = (b"orders", b"0", b"%d" % at)
    headers = [
        (f"__connect.errors.{name}", value) for name, value in zip(names, values, strict=True)
    ]
    return Record(b"k%d" % (at % 5), b"v%d" % at, headers=headers)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 1, "dlq": 1, LOG: 1}) as running:
        running.produce("dlq", [letter(at) for at in range(LETTERS)], partition=0)
        yield running


def replay_of(cluster: FakeCluster, *keys: bytes) -> Replay:
    given = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "claim.timeout.ms": 300,
        "check.crcs": False,
    }
    kafka = consumer_config({**given, "group.id": group_of("dlq")}).kafka
    return Replay(kafka, given, "dlq", keys=keys)


@pytest.mark.parametrize("topic", [POLICIES_TOPIC, PARKED_TOPIC, LOG, "__consumer_offsets"])
def test_nothing_is_put_back_to_a_topic_of_kafka_or_kshare(
    cluster: FakeCluster, topic: str
) -> None:
    """Who may write dead letters could write there by the rights of whoever puts them back."""
    forged = Record(
        b"k", b"v", headers=[*letter(0).headers[1:], ("__connect.errors.topic", topic.encode())]
    )
    cluster.produce("dlq", [forged], partition=0)
    says = rf"would be put back to topic '{topic}'"
    replay = replay_of(cluster)
    with pytest.raises(KshareError, match=rf"dlq-0 offset {LETTERS}: it {says}"):
        replay.check()
    replay.run()
    assert (replay.counts, list(replay.bad)) == ({"orders": LETTERS}, [(DLQ, LETTERS)])
    with pytest.raises(KshareError, match=says):
        replace(replay_of(cluster), to=topic).check()


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "says"),
    [
        ("orders", "99999", "1", "partition 99999 of topic orders, which has 1"),
        ("orders", str(2**40), "1", "do not say where it came from"),
        ("orders", "9" * 5_000, "1", "do not say where it came from"),
        ("orders", "0", "9" * 5_000, "do not say where it came from"),
        ("orders", "0", str(2**63), "do not say where it came from"),
        ("orders", "\u0663", "1", "do not say where it came from"),
        ("no such topic!", "0", "1", "topic 'no such topic!', which is no name"),
        ("x" * 300, "0", "1", "which is no name"),
        ("gone", "0", "1", "topic gone does not exist"),
    ],
)
def test_a_bad_letter_is_named_and_does_not_stop_the_others(
    cluster: FakeCluster, topic: str, partition: str, offset: str, says: str
) -> None:
    values = (topic, partition, offset)
    headers = [(name, value.encode()) for name, value in zip(HEADERS, values, strict=False)]
    cluster.produce("dlq", [Record(b"k1", b"v", headers=headers), letter(99)], partition=0)
    before = watermarks(cluster.bootstrap_servers, "orders")
    with pytest.raises(KshareError, match="1 letter cannot be put back, so none is") as caught:
        replay_of(cluster).check()
    assert says in str(caught.value)
    assert watermarks(cluster.bootstrap_servers, "orders") == before
    for count in (LETTERS + 1, 0):  # what stays is there for the next run, too
        replay = replace(replay_of(cluster), skips_bad=True)
        replay.check()
        replay.run()
        assert replay.counts["orders"] == count
        (line,) = replay.bad_lines()
        assert line.startswith(f"dlq-0 offset {LETTERS}: ")
        assert says in line


def test_a_letter_that_its_topic_never_takes_stays_and_is_named(cluster: FakeCluster) -> None:
    cluster.create_topic("small")
    produce = Transaction.produce

    def refuses(self: Transaction, topic: str, value: Any, *rest: Any) -> None:
        if value == b"v7":
            raise RecordRefusedError("a record of topic small is too large", topic=topic)
        produce(self, topic, value, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "produce", refuses)
        with pytest.raises(KshareError, match="dlq-0 offset 7 cannot be put back: a record of"):
            replay_of(cluster).run()
        replay = replace(replay_of(cluster), skips_bad=True)
        replay.run()
    assert list(replay.bad) == [(DLQ, 7)]
    assert replay.counts == {"orders": LETTERS - 8}  # the first run has put 7 back


def test_a_letter_that_is_not_whole_is_put_back_as_its_record_was_or_stays(
    cluster: FakeCluster,
) -> None:
    place = letter(99).headers
    marked = [*place, ("kshare.left-out", b"timestamp, no key"), ("kshare.timestamp", b"12345")]
    pointer = [*place, ("kshare.left-out", b"value, headers")]
    rows = [Record(b"orders-0@99", b"v", headers=marked), Record(b"k", b"", headers=pointer)]
    cluster.produce("dlq", rows, partition=0)
    back = [each for each in replay_of(cluster).look() if each.place == ("orders", 0, 99)]
    assert [(each.key, each.timestamp) for each in back] == [(None, 12345)]
    replay = replace(replay_of(cluster), skips_bad=True)
    replay.run()
    assert replay.counts == {"orders": LETTERS + 1}
    assert "it has not the record's value" in replay.bad[DLQ, LETTERS + 1]


def test_letters_of_one_place_are_put_back_unless_they_are_equal(cluster: FakeCluster) -> None:
    """A frame may have several rows of a record, and a topic may be made again."""

    def letter_at_99(key: bytes, value: bytes | None, failed: bytes, *own: Any) -> Record:
        more = ("kshare.last-failure", failed)
        return Record(key, value, headers=[*own, *letter(99).headers, more])

    header = ("h", b"1")
    distinct = [
        letter_at_99(b"k", b"v", b"8:00"),
        letter_at_99(b"k", b"w", b"8:00"),
        letter_at_99(b"l", b"v", b"8:00"),
        letter_at_99(b"k", b"v", b"8:00", header),
        letter_at_99(b"k", b"", b"8:00"),
        letter_at_99(b"k", None, b"8:00"),
    ]
    again = [letter_at_99(b"k", b"v", b"9:00"), letter_at_99(b"k", b"v", b"9:00", header)]
    cluster.produce("dlq", [*distinct, *again], partition=0)
    replay = replay_of(cluster)
    assert sum(letter.place == ("orders", 0, 99) for letter in replay.look()) == len(distinct)
    replay.run()
    assert replay.counts == {"orders": LETTERS + len(distinct)}
    assert replay.repeated == len(again)
    assert list(replay_of(cluster).look()) == []


def test_a_letter_that_is_a_text_of_a_querys_columns_goes_to_another_topic_alone(
    cluster: FakeCluster,
) -> None:
    """Readers of the topic that it came from would not expect it there."""
    cluster.create_topic("texts")
    place = [*letter(99).headers, ("kshare.rewritten", b"value")]
    cluster.produce("dlq", [Record(b"k", b'{"qty":1}', headers=place)], partition=0)
    replay = replace(replay_of(cluster), skips_bad=True)
    replay.run()
    assert replay.counts == {"orders": LETTERS}
    assert "its value is a text made of a query's columns" in replay.bad[DLQ, LETTERS]
    other = replace(replay_of(cluster), to="texts")
    other.run()
    assert other.counts == {"texts": 1}


def test_letters_go_only_to_topics_that_were_named(cluster: FakeCluster) -> None:
    cluster.create_topic("payments")
    values = (b"payments", b"0", b"3")
    headers = list(zip(HEADERS, values, strict=False))
    cluster.produce("dlq", [Record(b"k1", b"v", headers=headers)], partition=0)
    replay = replace(replay_of(cluster), topics=["orders"])
    replay.run()
    assert (replay.counts, replay.others) == ({"orders": LETTERS}, {(DLQ, LETTERS): "payments"})
    again = replay_of(cluster)
    again.run()
    assert again.counts == {"payments": 1}


def test_a_look_at_the_letters_writes_nothing_and_sees_what_is_left(cluster: FakeCluster) -> None:
    def places(*keys: bytes) -> list[int]:
        letters = list(replay_of(cluster, *keys).look())
        return [letter.place[2] for letter in letters if letter.place is not None]

    assert places() == list(range(LETTERS))
    assert places(b"k1", b"k3") == [at for at in range(LETTERS) if at % 5 in {1, 3}]
    assert watermarks(cluster.bootstrap_servers, LOG)[1] == 0  # not even a claim
    replay_of(cluster, b"k1").run()
    assert places() == [at for at in range(LETTERS) if at % 5 != 1]


def test_letters_come_again_after_the_last_transaction_was_aborted(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    aborted, look = list[int](), TransactionLog.next_action

    def aborts_once(
        self: TransactionLog, state: TransactionState, work: CommitRequest, *rest: Any, **named: Any
    ) -> TransactionAction:
        has_all = any(each.position_of(ALL_HASHES) >= LETTERS for each in work.processed.values())
        if has_all and not aborted:
            aborted.append(1)
            raise TransactionAbortedError("the coordinator did not answer")
        return look(self, state, work, *rest, **named)

    monkeypatch.setattr(TransactionLog, "next_action", aborts_once)
    replay = replay_of(cluster)
    replay.run()
    assert aborted
    assert replay.counts == {"orders": LETTERS}
    (warning,) = [text for text in caplog.messages if "tried again" in text]
    assert "the coordinator did not answer" in warning


def test_letters_of_keys_that_are_parked_in_their_topic_are_put_back(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for them, for ever if there are no others."""
    monkeypatch.setattr(ParkWatch, "everywhere", lambda _: {("dlq", b"k1")})
    consume, calls = KeySharedConsumer.consume, list[int]()

    def bounded(self: KeySharedConsumer, most: int, seconds: float) -> list[Message]:
        calls.append(most)
        assert len(calls) < 50, "it waits for ever"
        return consume(self, most, seconds)

    monkeypatch.setattr(KeySharedConsumer, "consume", bounded)
    replay = replay_of(cluster, b"k1")
    replay.run()
    assert replay.counts == {"orders": LETTERS // 5}
