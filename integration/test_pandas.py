"""Tasks, planners and consumers where pandas is installed: they do not import it (0.4 s, 40 MB)."""

import json
import os
import subprocess
import sys

import pytest

from integration.driver_pandas import pandas_folder
from integration.jars import ROOT
from integration.kafka import KafkaBroker
from kshare.testing import Record

READ = """
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_plugin.source import KshareDataSource
options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "keyRanges": "2"}
options |= {"startingOffsets": "earliest", "includeHeaders": "true"}
source = KshareDataSource(options)
stream = source.streamReader(source.schema())
start = stream.initialOffset()
end = stream.latestOffset(start, ReadAllAvailable())
tasks = stream.partitions(start, end)
stream.reportLatestOffset()
rows = sum(batch.num_rows for task in tasks for batch in stream.read(task))
stream.stop()
"""
CONSUME = """
from kshare.group import KeySharedConsumer
config = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
with KeySharedConsumer(config) as consumer:
    consumer.subscribe([topic])
    rows = 0
    while rows < 10:
        for message in consumer.consume(10 - rows, 5):
            rows += len(message.headers())
            consumer.acknowledge(message)
    while rows < 20:
        batch = consumer.consume_batch(timeout=5)
        if batch is not None:
            rows += batch.num_rows
            consumer.acknowledge_batch(batch)
    consumer.commit()
"""


@pytest.mark.parametrize("script", [READ, CONSUME], ids=["query", "consumer"])
def test_nothing_that_reads_imports_pandas(broker: KafkaBroker, topic: str, script: str) -> None:
    headers = [("h", b"x")]
    broker.produce(topic, [Record(b"%d" % i, b"v", headers=headers) for i in range(20)])
    before = "import importlib.util, json, sys\nservers, topic = sys.argv[1:]\n"
    after = """
installed = importlib.util.find_spec("pandas") is not None
print(json.dumps([rows, "pandas" in sys.modules, installed]))
"""
    path = os.pathsep.join([str(ROOT), str(pandas_folder())])
    done = subprocess.run(
        [sys.executable, "-c", before + script + after, broker.bootstrap_servers, topic],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [20, False, True]
