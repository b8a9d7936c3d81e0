"""What Spark's Python processes import: each starts fresh, and imports are most of its start.

Every script runs in a process of its own and does what Spark's worker of that kind does.
"""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kshare.testing import FakeCluster, Record

COMMAND_LINE = {"matplotlib", "prometheus_client", "kshare.cli", "kshare.testing"}
COMPILER = {
    *("numba", "llvmlite", "scipy"),
    *("kshare.read.decode.kernel_compiler", "kshare.read.decode.kernels"),
}
READER = {"kshare.read.decode.compiled", "kshare.read.reader.fetch_loop"}
KERNELS = COMPILER | READER
PLANNING = {"confluent_kafka", "kshare.kafka.client", "kshare.query.planner"}
SINK = {"kshare.query.produce", "kshare.options.sink", "spark_plugin.sink"}
FOR_FAULTS_AND_CHOICES = {"cryptography", "kshare.assignment.racks", "pandas", "pydantic"}
FOR_MESSAGES = {"msgspec"}
NOT_IN_ANY = COMMAND_LINE | FOR_FAULTS_AND_CHOICES | FOR_MESSAGES | {"spark_plugin.listener"}

SOURCE = """
import json, pickle, sys
from spark_plugin.source import KshareDataSource
source = KshareDataSource({options})
schema = source.schema()
"""
PLAN_BATCH = """
import pyspark.sql.worker.plan_data_source_read
reader = source.reader(schema)
tasks = reader.partitions()
"""
PLAN_STREAM = """
import pyspark.sql.streaming.python_streaming_source_runner
from pyspark.sql.streaming.datasource import ReadAllAvailable
reader = source.streamReader(schema)
reader.getDefaultReadLimit()
start = reader.initialOffset()
end = reader.latestOffset(start, ReadAllAvailable())
tasks = reader.partitions(start, end)
reader.reportLatestOffset()
reader.stop()
"""
SEND_TO_TASKS = """
print(pickle.dumps((reader, tasks)).hex())
"""
READ = """
import json, pickle, sys
import pyspark.worker, pyspark.sql.worker.plan_data_source_read
reader, tasks = pickle.loads(bytes.fromhex(sys.stdin.read()))
rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))
assert rows == 20, rows
"""
LIST_MODULES = """
print(json.dumps(list(sys.modules)))
"""


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """The options of a query over 20 records, with what planners do for more than one range."""
    with FakeCluster() as cluster:
        topic = cluster.create_topic("t")
        cluster.produce(topic, [Record(b"%d" % i, b"v") for i in range(20)])
        yield {
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "keyRanges": "2",
        }


def run(script: str, sent: str = "") -> list[str]:
    """Run a script in a process of its own, and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], input=sent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def modules(script: str, sent: str = "") -> set[str]:
    """Run a script, and return what it has imported."""
    return set(json.loads(run(script + LIST_MODULES, sent)[-1]))


def test_the_process_that_asks_for_the_schema(options: dict[str, str]) -> None:
    imported = modules(SOURCE.format(options=options))
    unwanted = NOT_IN_ANY | KERNELS | PLANNING | SINK | {"kafka", "numpy", "pyarrow", "scipy"}
    assert sorted(imported & unwanted) == []


def test_the_process_that_makes_a_streams_reader(options: dict[str, str]) -> None:
    """It sends the reader to the tasks, and plans nothing."""
    script = SOURCE.format(options=options) + "pickle.dumps(source.streamReader(schema))"
    unwanted = NOT_IN_ANY | KERNELS | PLANNING | SINK | {"kafka", "numpy"}
    assert sorted(modules(script) & unwanted) == []


@pytest.mark.parametrize("plan", [PLAN_BATCH, PLAN_STREAM], ids=["batch", "stream"])
def test_a_planner(options: dict[str, str], plan: str) -> None:
    imported = modules(SOURCE.format(options=options) + plan)
    assert imported >= PLANNING  # it has planned
    unwanted = NOT_IN_ANY | KERNELS | SINK | {"kafka", "scipy", "spark_plugin.task_side"}
    unwanted |= {"kshare.group"}  # only where the options name a key-shared group
    assert sorted(imported & unwanted) == []


@pytest.mark.parametrize("plan", [PLAN_BATCH, PLAN_STREAM], ids=["batch", "stream"])
def test_a_task(options: dict[str, str], plan: str) -> None:
    sent = run(SOURCE.format(options=options) + plan + SEND_TO_TASKS)[-1]
    run(READ, sent)  # in a source tree that has changed this one compiles the kernels
    imported = modules(READ, sent)
    assert imported >= READER  # it has read
    unwanted = (
        NOT_IN_ANY | COMPILER | PLANNING | SINK | {"kshare.monitor", "spark_plugin.planner_side"}
    )
    assert sorted(imported & unwanted) == []


def test_the_driver_that_makes_a_writer(options: dict[str, str]) -> None:
    """It writes nothing."""
    options_of_sink = {"kafka.bootstrap.servers": options["kafka.bootstrap.servers"], "topic": "t"}
    script = SOURCE.replace("schema = source.schema()", "").format(options=options_of_sink)
    script += """
from pyspark.sql.types import StructType
source.writer(StructType().add("value", "binary"), False)
"""
    unwanted = NOT_IN_ANY | KERNELS | PLANNING | {"kshare.query.produce", "kafka", "pyarrow"}
    assert sorted(modules(script) & unwanted) == []
