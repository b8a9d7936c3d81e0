"""What the documents show, as a user runs it: a script of its own, with a real broker."""

import os
import subprocess
import sys
from pathlib import Path

from integration.driver_pandas import frames_folder, pandas_folder
from integration.jars import ROOT
from integration.kafka import KafkaBroker
from spark_plugin.interpreter import worker_python
from tests.docs.test_examples import examples

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def test_the_first_query_of_the_readme(broker: KafkaBroker, tmp_path: Path) -> None:
    topic = broker.create_topic("orders")
    broker.produce(topic, [(b"customer-%d" % (i % 7), b"v") for i in range(20)])
    (text,) = (e.text for e in examples("README.md") if "SparkSession" in e.text)
    text = text.replace("localhost:9092", broker.bootstrap_servers)
    script = tmp_path / "job.py"
    script.write_text(text.replace("/tmp/orders-checkpoint", str(tmp_path / "checkpoint")))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,  # kernels may have to be compiled, beside other tests
        env={
            **os.environ,
            "PYSPARK_PYTHON": worker_python(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": QUICK,
        },
    )
    broker.delete_topic(topic)
    assert done.returncode == 0, done.stderr[-3000:]
    for key in range(7):
        assert f"|customer-{key}|" in done.stdout
    assert done.stdout.count("|customer-") == 20


def test_kafka_into_data_frames(broker: KafkaBroker) -> None:
    """All blocks of the page in one process, with the libraries that it names."""
    topic = broker.create_topic("orders")
    broker.produce(topic, [(b"customer-%d" % (i % 7), b"v") for i in range(1_000)])
    text = "".join(example.text for example in examples("docs/arrow.md"))
    text += "print('read', orders.num_rows, frame.height, len(hours), loaded)\n"
    path = os.pathsep.join(map(str, (ROOT, pandas_folder(), frames_folder())))
    done = subprocess.run(
        [sys.executable, "-c", text.replace("localhost:9092", broker.bootstrap_servers)],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
        env={**os.environ, "PYTHONPATH": path},
    )
    broker.delete_topic(topic)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "read 1000 1000 1000 1000" in done.stdout
    assert "('customer-0', 143)" in done.stdout


def test_an_example_of_each_format(broker: KafkaBroker, tmp_path: Path) -> None:
    """All blocks of the page in one process."""
    formats = ("json", "avro", "protobuf", "text")
    for name in formats:
        broker.create_topic(f"orders-{name}")
    text = "".join(example.text for example in examples("docs/typed-rows-formats.md"))
    script = tmp_path / "job.py"
    script.write_text(text.replace("localhost:9092", broker.bootstrap_servers))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
        env={
            **os.environ,
            "PYSPARK_PYTHON": worker_python(),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": QUICK,
        },
    )
    for name in formats:
        broker.delete_topic(f"orders-{name}")
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("json", "avro", "protobuf"):
        assert f"{name} [Row(user='ada', qty=3)]" in done.stdout
    assert "messages [Row(qty=3, user=None), Row(qty=None, user='bob')]" in done.stdout
    assert "string [Row(value='ada')]" in done.stdout
