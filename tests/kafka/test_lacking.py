"""Services that lack requests: what needs them is refused by name, and the rest works."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kshare.core.progress import TopicPartition
from kshare.dead_letters.letter import Letter
from kshare.dead_letters.writer import _config, _Writer
from kshare.errors import KafkaError, OptionsError
from kshare.group.consumer.consumer import KeySharedConsumer
from kshare.group.session.fencing import HiddenEnd
from kshare.kafka.lacking import missing_apis
from kshare.kafka.protocol.apis import Feature
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, prepare_rows, write_rows
from kshare.query.produce.coordinator import Coordinators
from kshare.testing import FakeCluster
from tests.support.clock import WAIT_S
from tests.support.groups import LOG, eventually, group_config, receive_and_commit

RECORDS = 50
TRANSACTIONS = ["InitProducerId", "AddPartitionsToTxn", "EndTxn"]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={LOG: 1, "orders": 1, "out": 1}) as cluster:
        cluster.produce("orders", [(f"k{at}", str(at)) for at in range(RECORDS)], partition=0)
        yield cluster


def without(cluster: FakeCluster, api: str) -> None:
    cluster.limit_api_version(api, -1, -1)


def sink(cluster: FakeCluster, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "out", **more}
    return parse_sink_options(given, streaming=True).options


def config_of(cluster: FakeCluster) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "group",
        "auto.offset.reset": "earliest",
    }


def rows() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": ["a", "b"]})


class Unread:
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        raise AssertionError("rows were read")


@pytest.mark.parametrize("api", TRANSACTIONS)
def test_exactly_once_is_refused_before_a_row_is_read(cluster: FakeCluster, api: str) -> None:
    without(cluster, api)
    attempt = Attempt("query", "run", 0, task=0, number=0, began=0.0)
    with pytest.raises(OptionsError, match=f"exactlyOnce: leave it out.* does not know {api}$"):
        prepare_rows(Unread(), sink(cluster, exactlyOnce="true"), attempt)


def test_exactly_once_of_a_later_batch_is_refused_with_the_reason(cluster: FakeCluster) -> None:
    without(cluster, "InitProducerId")
    attempt = Attempt("query", "run", 7, task=0, number=0, began=0.0)
    with pytest.raises(KafkaError, match=r"cannot begin a transaction: .*such as InitProducerId"):
        prepare_rows(rows(), sink(cluster, exactlyOnce="true"), attempt)


@pytest.mark.parametrize("api", TRANSACTIONS)
def test_a_transactional_id_is_refused_by_the_first_poll(cluster: FakeCluster, api: str) -> None:
    without(cluster, api)
    with KeySharedConsumer({**config_of(cluster), "transactional.id": "mine"}) as consumer:
        consumer.subscribe(["orders"])
        refused = pytest.raises(
            OptionsError, match=rf"transactional\.id: leave it out.*know {api}$"
        )
        with refused, consumer.transaction():
            consumer.consume(1, WAIT_S)


def test_rows_are_written_without_idempotence_where_that_is_asked_for(
    cluster: FakeCluster,
) -> None:
    without(cluster, "InitProducerId")
    with pytest.raises(KafkaError, match=r"enable\.idempotence=false does without it"):
        write_rows(rows(), sink(cluster))
    assert write_rows(rows(), sink(cluster, **{"kafka.enable.idempotence": "false"})) == 2


@pytest.mark.parametrize("way", ["subscribe", "assign"])
def test_groups_work_without_idempotence(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    without(cluster, "InitProducerId")
    receive_and_commit(config_of(cluster), "orders", RECORDS, way)
    said = [text for text in caplog.messages if "without idempotence" in text]
    assert len(said) == 1
    assert said[0].startswith("claims and commits are written without idempotence")


def test_dead_letters_are_written_without_idempotence(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    without(cluster, "InitProducerId")
    kafka = group_config(cluster.bootstrap_servers).kafka
    letter = Letter("orders-0@1", b"k", b"v", -1, [], [])

    async def write() -> list[Any]:
        writer = _Writer(kafka, "out", _config)
        try:
            return [await writer.write(letter), await writer.write(letter)]
        finally:
            await asyncio.to_thread(writer.close)

    first, second = asyncio.run(write())
    assert first is not None  # the fatal error; a processor writes the letter again
    assert second is None
    assert "dead letters are written without idempotence" in caplog.text


def test_a_transaction_that_nobody_can_name_is_said_once(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The mock knows neither request, as brokers before Kafka 3.0."""
    now = [0.0]
    hidden = HiddenEnd(group_config(cluster.bootstrap_servers).kafka, "group", lambda: now[0])
    tail: Any = SimpleNamespace(last=SimpleNamespace(bounds=(5, 9)))
    partition = TopicPartition(LOG, 0)
    with caplog.at_level(logging.WARNING, "kshare.group"):
        for _ in range(30):  # brokers answer later than the next looks: one thread asks at a time
            hidden.look(partition, tail)
            now[0] += 10.0
        eventually(lambda: "hanging transactions are not fenced" in caplog.text)
        for _ in range(20):
            now[0] += 100.0
            hidden.look(partition, tail)
    eventually(lambda: not any("ends a transaction" in each.name for each in threading.enumerate()))
    (said,) = [text for text in caplog.messages if "a transaction hides" in text]
    assert "does not know DescribeProducers, ListTransactions" in said


def test_who_cannot_list_transactions_says_so(cluster: FakeCluster) -> None:
    kafka = group_config(cluster.bootstrap_servers).kafka
    unknown = pytest.raises(KafkaError, match="does not know ListTransactionsRequest")
    with closing(Coordinators(kafka)) as coordinators, unknown:
        coordinators.open_ids("prefix")


def test_nothing_is_missing_where_nobody_answers() -> None:
    assert missing_apis(group_config("127.0.0.1:1").kafka, Feature.TRANSACTIONS) == ("", ())
