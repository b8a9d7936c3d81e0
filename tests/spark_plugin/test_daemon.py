"""The daemon of Python workers: what it imports, and that it may be forked after that."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kshare.operating_system import PORTABLE
from kshare.testing import FakeCluster, Record
from spark_plugin.fork_server import preload

PRELOAD = """
import sys
from spark_plugin import daemon
from spark_plugin.fork_server import preload
"""
LEFT_OPEN = (
    PRELOAD
    + """
import gc, json, os, threading
failed = preload(daemon.MODULES)
links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
print(json.dumps({
    "failed": failed,
    "threads": threading.active_count(),
    "sockets": [link for link in links if "socket" in link],
    "frozen": gc.get_freeze_count() > 10_000,
}))
"""
)
READ = (
    PRELOAD
    + """
import json, pickle
from spark_plugin.source import KshareDataSource
preload(daemon.MODULES)
source = KshareDataSource({options})
reader = source.reader(source.schema())
tasks = reader.partitions()
sent = pickle.dumps((reader, tasks))
import subprocess
read = '''
import json, pickle, sys
from spark_plugin import daemon
from spark_plugin.fork_server import preload
sent = sys.stdin.buffer.read()
preload(daemon.MODULES)
before = set(sys.modules)
reader, tasks = pickle.loads(sent)
assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 20
print(json.dumps(sorted(set(sys.modules) - before)))
'''
print(subprocess.run([sys.executable, "-c", read], input=sent, capture_output=True).stdout.decode())
"""
)
MAIN = (
    PRELOAD
    + """
kernels = "kshare.read.decode.compiled"
daemon.manager = lambda: print(kernels in sys.modules, "kshare.options" in sys.modules)
sys.argv = ["daemon", *{arguments}]
daemon.main()
"""
)


def run(script: str, *, portable: bool = False) -> str:
    """Run a script in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {PORTABLE: "1" if portable else ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_nothing_is_open_before_a_fork() -> None:
    """No thread, and no connection: a forked worker would have half of the first, and share the
    second.
    """
    state = json.loads(run(LEFT_OPEN))
    assert state == {"failed": [], "threads": 1, "sockets": [], "frozen": True}


@pytest.fixture
def options() -> Iterator[dict[str, str]]:
    with FakeCluster() as cluster:
        topic = cluster.create_topic("t")
        cluster.produce(topic, [Record(b"%d" % i, b"v") for i in range(20)])
        yield {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}


def test_a_task_that_reads_imports_nothing_more(options: dict[str, str]) -> None:
    script = READ.replace("{options}", repr(options))
    run(script)  # in a source tree that has changed this one compiles the kernels
    imported = json.loads(run(script))
    ours = ("kshare", "spark_plugin", "numba", "llvmlite", "kafka", "pyspark", "pyarrow")
    assert [name for name in imported if name.startswith(ours)] == []


def test_an_import_that_fails_is_left_to_the_worker(capfd: pytest.CaptureFixture[str]) -> None:
    """The daemon's standard output is for Spark's JVM."""
    assert preload(["no_such_module", "json", "this"]) == ["no_such_module"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "no_such_module" in err
    assert "Namespaces are one honking great idea" in err


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        ([], "True True"),
        (["pyspark.worker"], "True True"),
        (["pyspark.sql.worker.plan_data_source_read"], "False True"),
    ],
)
def test_only_daemons_of_workers_import_the_kernels(arguments: list[str], imported: str) -> None:
    """Spark has a daemon for each kind of process that plans, too."""
    assert run(MAIN.replace("{arguments}", repr(arguments))).strip() == imported


@pytest.mark.parametrize("arguments", [[], ["pyspark.sql.worker.plan_data_source_read"]])
def test_nothing_is_imported_ahead_where_a_fork_may_not_use_it(arguments: list[str]) -> None:
    script = MAIN.replace("{arguments}", repr(arguments))
    assert run(script, portable=True).strip() == "False False"
