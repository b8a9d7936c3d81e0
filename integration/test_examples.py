"""The examples of queries, as files that users copy: in one session, against a real broker."""

import json
import runpy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.driver_pandas import pandas_folder
from integration.kafka import KafkaBroker
from tests.support.clock import until

EXAMPLES = Path(__file__).parents[1] / "examples"
COUNT = 300
VALUES = [json.dumps({"country": "ABC"[n % 3], "amount": n}).encode() for n in range(COUNT)]


RECORDS = [(b"customer-%d" % (n % 9), value) for n, value in enumerate(VALUES)]


@pytest.fixture
def orders(broker: KafkaBroker, topic: str) -> str:
    broker.produce(topic, RECORDS)
    return topic


def run(name: str, *arguments: Any) -> Any:
    return runpy.run_path(str(EXAMPLES / name))["main"](*map(str, arguments))


def test_batches_become_files(
    spark: SparkSession, broker: KafkaBroker, orders: str, tmp_path: Path
) -> None:
    for _ in range(2):  # the second run finds nothing new
        run("etl_foreachbatch.py", broker.bootstrap_servers, orders, tmp_path)
        rows = spark.read.parquet(f"{tmp_path}/orders").select("order").collect()
        assert sorted(row.order for row in rows) == sorted(value.decode() for value in VALUES)


def test_windows_are_counted(
    spark: SparkSession, broker: KafkaBroker, orders: str, tmp_path: Path
) -> None:
    run("windows.py", broker.bootstrap_servers, orders, tmp_path)
    # All records are of now: no watermark has passed the end of their windows.
    assert spark.read.parquet(f"{tmp_path}/counts").count() == 0


def test_the_slow_key_is_named(
    spark: SparkSession,
    broker: KafkaBroker,
    orders: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said: list[str] = []

    def is_named() -> bool:
        said.append(capsys.readouterr().out)
        return f", {orders}-0: " in "".join(said)

    # Tasks whose reports are late count as unmeasured: on a busy machine, all may.
    for _ in range(4):
        listener = run("slow_key.py", broker.bootstrap_servers, orders, tmp_path)
        with suppress(AssertionError):
            until(is_named, 15)
        spark.streams.removeListener(listener)
        if is_named():
            break
        broker.produce(orders, RECORDS)
    assert "; keys: b'customer-" in "".join(said)


def test_each_record_is_written_once(
    spark: SparkSession, broker: KafkaBroker, orders: str, tmp_path: Path
) -> None:
    output = broker.create_topic(f"{orders}-upper")
    run("exactly_once.py", broker.bootstrap_servers, orders, output, tmp_path)
    reader = (
        spark.read.format("kshare")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", output)
        .option("kafka.isolation.level", "read_committed")
    )

    def written() -> list[bytes]:
        return sorted(row.value for row in reader.load().collect())

    # The markers are in the log a moment after the transactions are ended.
    until(lambda: len(written()) >= COUNT)
    assert written() == sorted(value.upper() for value in VALUES)
    broker.delete_topic(output)


def test_each_record_has_an_outcome(
    spark: SparkSession,
    broker: KafkaBroker,
    orders: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(pandas_folder()))
    letters = broker.create_topic(f"{orders}.dlq")
    broker.produce(orders, [(b"customer-1", b"no JSON")])
    run("handlers_spark.py", broker.bootstrap_servers, orders, tmp_path)
    rows = spark.read.parquet(f"{tmp_path}/scores").select("offset", "status", "result").collect()
    assert {row.offset: row.result for row in rows if row.status == "done"} == {
        n: n / 100 for n in range(COUNT)
    }
    assert [row.status for row in rows if row.offset >= COUNT] == ["dead_lettered"]
    assert broker.latest(letters) == 1
    broker.delete_topic(letters)
