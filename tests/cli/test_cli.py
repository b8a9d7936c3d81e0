"""The command line: help, version, faults, and the demo's pieces that need no Spark."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import kshare
from kshare import cli
from kshare.core.checkpoint import Offsets, RangeLimit, encode
from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import KshareError
from kshare.monitor.report import PartitionReport, RangeReport, encode_report
from kshare.testing import FakeCluster, Record
from spark_plugin.demo import run as demo

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0 = TopicPartition("t", 0)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kshare.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"kshare {kshare.__version__}\n")


def test_help_names_the_command_and_its_options() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("demo", "park", "unpark", "parked", "status"):
        assert f"    {command} " in done.stdout
    done = run("demo", "--help")
    assert done.returncode == 0
    for option in ("bootstrap-servers", "topic", "records", "key-ranges", "seconds"):
        assert f"--{option}" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from kshare.cli import main\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'numba', 'confluent_kafka', 'kafka', 'rich',\n"
        "         'matplotlib', 'pydantic'}\n"
        "for command in ('demo', 'park', 'unpark', 'parked', 'status'):\n"
        "    try:\n"
        "        main([command, '--help'])\n"
        "    except SystemExit:\n"
        "        print('loaded:', command, sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert loaded == [
        f"loaded: {command} []" for command in ("demo", "park", "unpark", "parked", "status")
    ]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ([], "required: COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--records", "0"], "'0' is not a whole number above 0"),
        (["demo", "--records", "many"], "'many' is not a whole number above 0"),
        (["demo", "--key-ranges", "-1"], "'-1' is not a whole number above 0"),
        (["demo", "--seconds", "0"], "'0' is not a number of seconds above 0"),
        (["demo", "--seconds", "inf"], "'inf' is not a number of seconds above 0"),
        (["demo", "--topic", "t"], "--topic needs --bootstrap-servers"),
        (["status"], "required: --checkpoint"),
    ],
)
def test_faults_end_with_code_2(arguments: list[str], fault: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err


def test_the_demo_gets_its_options(monkeypatch: Any) -> None:
    seen: list[demo.DemoOptions] = []
    monkeypatch.setattr(demo, "run", lambda options: seen.append(options) or 0)
    assert cli.main(["demo"]) == 0
    arguments = ["--bootstrap-servers", "x:1", "--topic", "t", "--records", "1_0,0"]
    assert cli.main(["demo", *arguments, "--key-ranges", "3", "--seconds", "1.5"]) == 0
    assert seen == [
        demo.DemoOptions(),
        demo.DemoOptions(
            bootstrap_servers="x:1", topic="t", records=100, key_ranges=3, seconds_max=1.5
        ),
    ]


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KshareError("no such thing"), 1, "kshare demo: no such thing\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_ends_a_command(
    raised: BaseException, code: int, said: str, monkeypatch: Any, capsys: Any
) -> None:
    def fail(_: object) -> int:
        raise raised

    monkeypatch.setattr(demo, "run", fail)
    assert cli.main(["demo"]) == code
    assert capsys.readouterr().err == said


# -- the package -----------------------------------------------------------------------------------


def test_all_names_of_the_package_are_there() -> None:
    for name in kshare.__all__:
        assert getattr(kshare, name) is not None
    assert set(kshare.__all__) <= set(dir(kshare))
    with pytest.raises(AttributeError, match="'kshare' has no attribute 'nonsense'"):
        _ = kshare.nonsense  # type: ignore[attr-defined]


# -- the demo --------------------------------------------------------------------------------------


def rows(offsets: range, task: int = 0, topic: str = "t") -> pa.Table:
    return pa.table(
        {
            "topic": pa.array([topic] * len(offsets), pa.string()),
            "partition": pa.array([0] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array([b"k%d" % (offset % 5) for offset in offsets], pa.binary()),
            "task": pa.array([task] * len(offsets), pa.int32()),
        }
    )


def watch_of(*batches: range, stable: int = 0) -> demo.Watch:
    watch = demo.Watch(wanted=100)
    for number, offsets in enumerate(batches):
        watch.keep(number, rows(offsets))
    watch.partitions[T0] = PartitionReport(
        100, stable, ranges=(RangeReport((LOW,), 60, 40, 7), RangeReport((HIGH,), stable, 90))
    )
    return watch


def text(shown: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=False).print(shown)
    return out.getvalue()


def test_the_view_shows_where_each_range_stands() -> None:
    shown = text(demo.view(watch_of(range(30), range(30, 60), stable=10)))
    assert shown.startswith("batch 1: 60 of 100 records, ")
    lines = [line.split() for line in shown.splitlines()]
    assert lines[2][:7] == ["t-0", "0.0", "%", "to", "50.0", "%", "60"]
    assert lines[2][-2:] == ["40", "7"]
    assert lines[3][-1] == "90"
    assert lines[4] == ["t-0", "stable", "offset", "10"]


def test_the_line_says_the_same() -> None:
    assert demo.line(watch_of(range(30), stable=10)) == (
        "batch 0: 30 of 100 records; t-0 stable 10, ranges at 60 10"
    )


def test_records_a_second_are_counted_from_the_first_batch(monkeypatch: Any) -> None:
    clock = iter([50.0, 52.0])
    monkeypatch.setattr(demo.time, "monotonic", lambda: next(clock))
    watch = demo.Watch(wanted=100)
    assert watch.per_second is None
    watch.keep(0, rows(range(30)))
    assert watch.per_second is None
    watch.keep(1, rows(range(30, 50)))
    assert watch.per_second == 10.0


def test_a_batch_that_runs_again_replaces_what_it_left() -> None:
    watch = demo.Watch(wanted=10)
    watch.keep(0, rows(range(5)))
    watch.keep(0, rows(range(8)))
    assert watch.records == 8
    assert watch.received()["batch"].to_pylist() == [0] * 8


def test_a_watch_takes_in_what_the_planner_tells() -> None:
    watch = demo.Watch(wanted=10)
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
    limits = {T0: (RangeLimit((HIGH,), 40, 7),)}
    end = json.dumps(encode(Offsets({T0: progress}, limits=limits)))
    watch.told({"sources": [{"endOffset": end, "latestOffset": None}]})
    assert watch.stable(T0) == 10
    assert [range_.limit for range_ in watch.partitions[T0].ranges] == [7]
    told = PartitionReport(50, 30, ranges=(RangeReport((LOW,), 30, 20),))
    watch.told(
        {"sources": [{"endOffset": end, "latestOffset": json.dumps(encode_report({T0: told}))}]}
    )
    assert watch.partitions == {T0: told}
    watch.told({"sources": [{"endOffset": "null", "latestOffset": None}, {}]})
    assert watch.partitions == {T0: told}
    assert watch.stable(TopicPartition("t", 9)) == 0


DENSE = demo.Feed("none:1", "t", {T0: (0, 100)}, dense=True)


def test_the_verdict_when_all_was_read() -> None:
    assert demo.verdict(DENSE, watch_of(range(50), range(50, 100)), all_read=True).ok
    report = demo.verdict(DENSE, watch_of(range(50), range(51, 100)), all_read=True)
    assert report.lost["offset"].to_pylist() == [50]
    assert not demo.verdict(DENSE, watch_of(range(50), range(49, 100)), all_read=True).ok


def test_the_verdict_when_it_was_stopped() -> None:
    read = watch_of(range(50), range(50, 90, 2), stable=40)
    assert demo.verdict(DENSE, read, all_read=False).ok
    assert demo.verdict(DENSE, watch_of(range(50), stable=60), all_read=False).lost.num_rows == 10
    late = watch_of(range(50, 60), range(50), stable=0)
    assert demo.verdict(DENSE, late, all_read=False).out_of_order.num_rows == 50


def test_a_topic_of_the_users_is_compared_with_another_reader() -> None:
    with FakeCluster(topics={"t": 2}) as cluster:
        cluster.produce("t", [Record(b"k%d" % (i % 5), b"v") for i in range(30)], partition=0)
        cluster.trim("t", 0, 4)
        feed = demo.Feed(
            cluster.bootstrap_servers, "t", demo._logs(cluster.bootstrap_servers, "t"), dense=False
        )
        assert feed.logs == {T0: (4, 30), TopicPartition("t", 1): (0, 0)}
        assert feed.offsets == 26
        # What comes while the query runs is no fault, and not looked for.
        cluster.produce("t", [Record(b"k", b"v")] * 5, partition=0)
        assert demo.verdict(feed, watch_of(range(4, 30)), all_read=True).ok
        assert demo.verdict(feed, watch_of(range(4, 32)), all_read=True).ok
        assert demo.verdict(feed, watch_of(range(5, 30)), all_read=True).lost.num_rows == 1
        waits = replace(feed, parked=frozenset({b"k4"}))  # the first record that was not trimmed
        lost = demo.verdict(waits, watch_of([]), all_read=True).lost
        assert lost.num_rows == 20
        assert b"k4" not in lost["key"].to_pylist()
        watch = watch_of(range(4, 30))
        spoiled = watch.rows[0].set_column(3, "key", pa.array([b"x"] * 26, pa.binary()))
        watch.keep(0, spoiled)
        assert demo.verdict(feed, watch, all_read=True).unexpected.num_rows == 26


class FakeQuery:
    """Reads a batch at each look; ends when there is no more, if it may."""

    def __init__(self, watch: demo.Watch, batches: list[range], *, ends: bool = True) -> None:
        self._watch, self._batches, self._ends = watch, batches, ends
        self.stopped = False

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        if not self._watch.rows:
            return None
        done = max(offsets.stop for offsets in self._read)
        end = json.dumps(encode(Offsets({TopicPartition("kshare-demo", 0): Progress.at(done)})))
        told = json.dumps({"sources": [{"endOffset": end, "latestOffset": None}]})

        class Told:
            json = told

        return Told

    @property
    def _read(self) -> list[range]:
        return self._all[: len(self._watch.rows)]

    def awaitTermination(self, _: float) -> bool:  # noqa: N802
        number = len(self._watch.rows)
        self._all = self._batches
        if number < len(self._batches):
            self._watch.keep(number, rows(self._batches[number], topic="kshare-demo"))
            return False
        return self._ends

    def stop(self) -> None:
        self.stopped = True


class FakeSpark:
    stopped = False

    def stop(self) -> None:
        self.stopped = True


def run_demo(
    monkeypatch: Any,
    batches: list[range],
    *,
    ends: bool = True,
    terminal: bool = False,
    **more: Any,
) -> tuple[int, str, FakeQuery, FakeSpark]:
    """The demo with 100 records, and a Spark of which we say what it reads."""
    spark, queries = FakeSpark(), []

    def start(_: Any, feed: demo.Feed, watch: demo.Watch, *__: Any) -> FakeQuery:
        assert feed.offsets == 100
        # Keys as the query has them do not matter: the demo's own topic is compared by offsets.
        queries.append(FakeQuery(watch, batches, ends=ends))
        return queries[0]

    monkeypatch.setattr(demo, "_need_java", lambda: None)
    monkeypatch.setattr(demo, "_start_spark", lambda *_: spark)
    monkeypatch.setattr(demo, "_start_query", start)
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=terminal)
    code = demo.run(demo.DemoOptions(records=100, **more), console)
    return code, out.getvalue(), queries[0], spark


def test_the_demo_on_an_embedded_broker(monkeypatch: Any) -> None:
    code, out, query, spark = run_demo(monkeypatch, [range(60), range(60, 100)])
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "Producing 100 records of 1,000 keys, a few of them hot ..."
    assert "batch 0: 60 of 100 records; kshare-demo-0 stable 60, ranges at 60" in lines
    assert lines[-1].startswith("ORDER OK: 100 records of 5 keys from 1 partition in 2 batches")
    assert query.stopped
    assert spark.stopped


def test_the_demo_in_a_terminal(monkeypatch: Any) -> None:
    code, out, _, _ = run_demo(monkeypatch, [range(60), range(60, 100)], terminal=True)
    assert code == 0
    assert "stable offset" in out
    assert "\x1b[" in out


def test_the_demo_that_finds_a_fault(monkeypatch: Any) -> None:
    code, out, _, spark = run_demo(monkeypatch, [range(60), range(61, 100)])
    assert code == 1
    assert "ORDER BROKEN" in out
    assert "1 lost: kshare-demo-0 at offset 60" in out
    assert spark.stopped


def test_the_demo_that_takes_too_long(monkeypatch: Any) -> None:
    code, out, query, _ = run_demo(monkeypatch, [range(60)], ends=False, seconds_max=0.01)
    assert code == 0
    assert "Stopped after 60 of 100 records: what was read is judged." in out
    assert query.stopped


def test_the_demo_that_reads_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(demo, "_START_SECONDS", 0.01)
    with pytest.raises(KshareError, match=r"Spark read nothing within 0\.01 s of its start"):
        run_demo(monkeypatch, [], ends=False)


def test_the_demo_that_has_read_enough(monkeypatch: Any) -> None:
    watch = demo.Watch(wanted=50)
    query = FakeQuery(watch, [range(30), range(30, 60), range(60, 90)])
    console = Console(file=io.StringIO())
    assert not demo._follow(query, DENSE, watch, console, seconds_max=60)  # type: ignore[arg-type]
    assert watch.records == 60


def test_the_demo_needs_java(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(KshareError, match="Spark needs Java >= 17: put java on the PATH"):
        demo.run(demo.DemoOptions())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    demo._need_java()


def test_an_empty_topic_is_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(demo, "_need_java", lambda: None)
    with FakeCluster(topics={"t": 1}) as cluster:
        options = demo.DemoOptions(bootstrap_servers=cluster.bootstrap_servers, topic="t")
        with pytest.raises(KshareError, match=r"topic t on 127.* is empty: nothing to read"):
            demo.run(options, Console(file=io.StringIO()))


def test_a_topic_that_cannot_be_made_is_told(monkeypatch: Any) -> None:
    """The mock cluster makes no topics by request."""
    monkeypatch.setattr(demo, "_need_java", lambda: None)
    with FakeCluster() as cluster:
        options = demo.DemoOptions(bootstrap_servers=cluster.bootstrap_servers)
        with pytest.raises(KshareError, match=r"cannot create topic kshare-demo-.* on 127"):
            demo.run(options, Console(file=io.StringIO()))


def test_the_embedded_broker_keeps_what_it_can(monkeypatch: Any) -> None:
    out = io.StringIO()
    monkeypatch.setattr(demo, "produce", lambda *_, **__: 10)
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.produce("t", [(b"k", b"v")] * 10)
        cluster.trim("t", 0, 4)
        feed = demo._filled(cluster.bootstrap_servers, "t", 10, Console(file=out))
    assert feed.offsets == 6
    assert "The embedded broker keeps the last 6 of them." in out.getvalue()
