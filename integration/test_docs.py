"""The README's first query, as a user runs it: a script of its own, with a real broker."""

import os
import subprocess
import sys
from pathlib import Path

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
