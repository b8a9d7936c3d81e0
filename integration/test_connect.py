"""kshare with Spark Connect: a server that has it, and a client without a JVM."""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from integration.connect import ConnectServer, run_client
from integration.jars import ROOT
from integration.kafka import KafkaBroker
from kshare.cli.broker import orders
from kshare.testing import Record

COUNT, SPEC = 100, "spark-pipeline.yml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """It starts while the broker does."""
    with ConnectServer(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.mark.long
def test_a_client_without_a_jvm(
    server: ConnectServer, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """It reads a batch, handles it by key, and runs a stream with listener and sink."""
    sink = broker.create_topic()
    broker.produce(topic, [Record(b"key-%d" % (n % 7), b"%03d" % n) for n in range(COUNT)])
    server.wait()
    script = str(ROOT / "integration" / "connect_client.py")
    said = run_client(
        server.url, [script, broker.bootstrap_servers, topic, sink, str(tmp_path)], tmp_path
    )
    seen = json.loads(said.splitlines()[-1])
    assert seen["client"].startswith("pyspark.sql.connect")
    assert seen["columns"][:5] == ["key", "value", "topic", "partition", "offset"]
    assert seen["rows"] == [[0, n, f"key-{n % 7}"] for n in range(COUNT)]
    assert seen["typed"] == ["struct<value:string>", [f"{n:03}" for n in range(COUNT)]]
    done = [(offset, status, attempts) for _, offset, status, attempts in seen["handled"]]
    assert sorted(done) == [(n, "done", 1 + (n % 7 == 0)) for n in range(COUNT)]
    for key in {key for key, *_ in seen["handled"]}:
        offsets = [offset for each, offset, *_ in seen["handled"] if each == key]
        assert offsets == sorted(offsets)
    assert seen["written"] == [f"{n:03}" for n in range(COUNT)]
    assert seen["batches"] >= 3
    assert seen["stable"][0] >= 40


@pytest.mark.long
def test_typed_rows(server: ConnectServer, broker: KafkaBroker, topic: str, tmp_path: Path) -> None:
    """Read and written, in a batch and a stream, on each version of Spark."""
    sink = broker.create_topic()
    texts = [
        f'{{"n":{n},"at":"2026-01-02T03:04:0{n}.000Z","local":"2026-01-02T03:04:0{n}.000",'
        f'"items":[{{"sku":"s{n}"}}]}}'
        for n in range(9)
    ]
    broker.produce(topic, [Record(f"k{n}", text) for n, text in enumerate(texts)])
    server.wait()
    script = str(ROOT / "integration" / "connect_typed.py")
    said = run_client(
        server.url, [script, broker.bootstrap_servers, topic, sink, str(tmp_path)], tmp_path
    )
    seen = json.loads(said.splitlines()[-1])
    assert seen["type"] == (
        "struct<n:int,at:timestamp,local:timestamp_ntz,items:array<struct<sku:string>>>"
    )
    assert seen["rows"] == [f"k{n} {text}" for n, text in enumerate(texts)]
    assert seen["written"] == seen["rows"]
    assert (seen["variant"], seen["taken"]) == ("variant", list(range(9)))


@pytest.mark.long
def test_a_declarative_pipeline(
    server: ConnectServer, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """``examples/pipeline``, on orders as ``kshare broker`` has them: a table, and a view of it."""
    project = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", project)
    for file in project.rglob("*"):
        if file.is_file():
            text = file.read_text().replace("localhost:9092", broker.bootstrap_servers)
            text = text.replace('"subscribe", "orders"', f'"subscribe", "{topic}"')
            file.write_text(
                text.replace("file:///tmp/orders-pipeline", f"file://{tmp_path}/storage")
            )
    server.wait()
    made = list(islice(orders(), 20))
    broker.produce(topic, made)
    run_client(server.url, ["-m", "pyspark.pipelines.cli", "run", "--spec", SPEC], project)
    table = ds.dataset(server.warehouse / "by_country", format="parquet").to_table()
    amounts = defaultdict(list)
    for order in (json.loads(record.value or b"") for record in made):
        amounts[order["country"]].append(order["amount"])
    assert {row["country"]: (row["orders"], row["amount"]) for row in table.to_pylist()} == {
        country: (len(each), pytest.approx(sum(each))) for country, each in amounts.items()
    }
