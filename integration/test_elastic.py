"""Tasks follow the slots of real executors: ``minPartitions=auto`` while an executor is added."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from integration.kafka import KafkaBroker
from kshare.testing import Record, check_order

RECORDS = 60_000


def test_a_running_query_uses_an_executor_that_is_added(
    broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    broker.produce(topic, [Record(b"key-%d" % (number % 97), b"v") for number in range(RECORDS)])
    job = [sys.executable, "-m", "integration.elastic_job"]
    arguments = [broker.bootstrap_servers, topic, str(tmp_path)]
    done = subprocess.run(
        [*job, *arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    batches = [feather.read_table(file) for file in sorted(tmp_path.glob("*.arrow"))]
    tasks = [len(set(batch["task"].to_pylist())) for batch in batches]
    assert set(tasks) == {1, 2}
    assert tasks == sorted(tasks)
    rows = pa.concat_tables(batches)
    report = check_order(rows, {0: (0, rows.num_rows)})
    assert report.ok, str(report)
