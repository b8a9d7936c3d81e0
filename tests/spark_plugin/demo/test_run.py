"""The demo from start to end, with a stand-in for Spark (integration/test_demo.py has Spark)."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kshare.core.checkpoint import BatchOffsets, encode
from kshare.core.progress import Progress, TopicPartition
from kshare.errors import KshareError
from kshare.testing import FakeCluster
from spark_plugin.demo import run as demo_run
from spark_plugin.demo import topic as demo_topic
from spark_plugin.demo.run import AddBatch, DemoOptions, LocalSpark, follow, python_path, run
from spark_plugin.demo.state import QueryState
from spark_plugin.demo.topic import DemoTopic
from spark_plugin.demo.view import Screen
from tests.spark_plugin.demo.rows import T0, rows


class FakeQuery:
    """Reads a batch each time it is waited for. Ends after the last one if it may."""

    def __init__(self, batches: list[range], add_batch: AddBatch, *, ends: bool = True) -> None:
        self._batches, self._add_batch, self._ends = batches, add_batch, ends
        self._read: list[range] = []
        self.stopped = False

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        if not self._read:
            return None
        reached = Progress.at(max(offsets.stop for offsets in self._read))
        end = json.dumps(encode(BatchOffsets({TopicPartition("kshare-demo", 0): reached})))
        event = {"sources": [{"endOffset": end, "latestOffset": None}]}
        return SimpleNamespace(json=json.dumps(event))

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        number = len(self._read)
        if number == len(self._batches):
            return self._ends
        self._read.append(self._batches[number])
        self._add_batch(number, rows(self._batches[number], topic="kshare-demo"))
        return False

    def stop(self) -> None:
        self.stopped = True


class FakeSpark:
    """Reads the batches that the test names, of a topic with 100 records."""

    def __init__(self, batches: list[range], *, ends: bool = True) -> None:
        self._batches, self._ends = batches, ends
        self.stopped = False
        self.query: FakeQuery

    def start_query(
        self, topic: DemoTopic, target: int, key_ranges: int, folder: str, add_batch: AddBatch
    ) -> FakeQuery:
        assert topic.offset_count == target == 100
        assert Path(folder).is_dir()
        # The keys do not matter: the demo's own topic is compared by offsets.
        self.query = FakeQuery(self._batches, add_batch, ends=self._ends)
        return self.query

    def stop(self) -> None:
        self.stopped = True


def run_demo(
    spark: FakeSpark, *, terminal: bool = False, seconds_max: float = 120.0, start: float = 300.0
) -> tuple[int, str]:
    """The exit code and the output."""
    out = io.StringIO()
    screen = Screen(out, (80, 24), is_terminal=terminal)
    options = DemoOptions(records=100, seconds_max=seconds_max)
    return run(options, screen, spark, start), out.getvalue()


def nowhere() -> Screen:
    return Screen(io.StringIO(), (80, 24), is_terminal=False)


def test_the_demo_on_an_embedded_broker() -> None:
    spark = FakeSpark([range(60), range(60, 100)])
    code, out = run_demo(spark)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Producing 100 records of 1,000 keys, a few of them hot ..."
    assert "batch 0: 60 of 100 records" in lines
    assert f"   kshare-demo-0  0.00 % to 100.00 %  |{'#' * 20}|      60" in lines
    (verdict,) = (line for line in lines if line.startswith("ORDER"))
    assert verdict.startswith("ORDER OK: 100 records of 5 keys from 1 partition in 2 batches")
    assert lines[-2].startswith("Next: `kshare broker`")
    assert spark.query.stopped
    assert spark.stopped


def test_the_demo_in_a_terminal() -> None:
    code, out = run_demo(FakeSpark([range(60), range(60, 100)]), terminal=True)
    assert code == 0
    assert "\033[3F\033[Jbatch 1: 100 of 100 records" in out


def test_the_demo_that_finds_a_fault() -> None:
    spark = FakeSpark([range(60), range(61, 100)])
    code, out = run_demo(spark)
    assert code == 1
    assert "ORDER BROKEN" in out
    assert "1 lost: kshare-demo-0 at offset 60" in out
    assert spark.stopped


def test_the_demo_that_takes_too_long() -> None:
    spark = FakeSpark([range(60)], ends=False)
    code, out = run_demo(spark, seconds_max=0.01)
    assert code == 0
    assert "Stopped after 60 of 100 records: what was read is judged." in out
    assert spark.query.stopped


def test_the_demo_that_reads_nothing() -> None:
    with pytest.raises(KshareError, match=r"Spark read nothing within 0\.01 s of its start"):
        run_demo(FakeSpark([], ends=False), start=0.01)


def test_the_demo_that_has_read_enough() -> None:
    state = QueryState(target=50)
    topic = DemoTopic("none:1", "t", {T0: (0, 100)}, is_dense=True)
    query = FakeQuery([range(30), range(30, 60), range(60, 90)], state.add_batch)
    assert not follow(query, topic, state, nowhere(), start_seconds=300, seconds_max=60)
    assert state.records == 60


def test_the_demo_needs_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(KshareError, match="Spark needs Java >= 17: put java on the PATH"):
        run(DemoOptions())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    LocalSpark()


def test_spark_that_does_not_start_ends_the_demo_with_what_it_printed(tmp_path: Path) -> None:
    """Its own words are in a file, not on the screen: they are shown now."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho this Java is broken >&2\nexit 3\n")
    java.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "kshare", "demo", "--records", "100"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    first, *others = done.stderr.splitlines()
    assert first.startswith("kshare demo: Spark did not start: ")
    assert "  this Java is broken" in others
    assert "Traceback" not in done.stderr


def test_warnings_of_kshare_are_not_lost_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    assert demo_run._warnings(log) == []
    own = "26/11/28 05:54:32 WARNING kshare.query.planner: t-0: records are pending"
    log.write_text(f"WARNING: Using incubator modules\n{own}\n26/11/28 WARN Native\n{own}\n")
    assert demo_run._warnings(log) == [own]


def test_workers_find_the_kshare_of_this_process() -> None:
    root = str(Path(__file__).resolve().parents[3])
    assert python_path("") == root
    assert python_path(f"/a::{root}:/b") == f"{root}:/a:/b"


def test_an_empty_topic_is_an_error() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        options = DemoOptions(bootstrap_servers=cluster.bootstrap_servers, topic="t")
        with pytest.raises(KshareError, match=r"topic t on 127.* is empty: nothing to read"):
            run(options, nowhere(), FakeSpark([]))


def test_a_topic_that_cannot_be_created_is_an_error() -> None:
    """The mock cluster creates no topics by request."""
    with FakeCluster() as cluster:
        options = DemoOptions(bootstrap_servers=cluster.bootstrap_servers)
        with pytest.raises(KshareError, match=r"cannot create topic kshare-demo-.* on 127"):
            run(options, nowhere(), FakeSpark([]))


def test_the_embedded_broker_keeps_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(demo_topic, "produce", lambda *_, **__: 10)
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.produce("t", [(b"k", b"v")] * 10)
        cluster.trim("t", 0, 4)
        servers = cluster.bootstrap_servers
        topic = demo_topic.produce_records(servers, "t", 10, said.append)
    assert topic.offset_count == 6
    assert "The embedded broker keeps the last 6 of them." in said
