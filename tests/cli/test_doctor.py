"""``kshare doctor``: what it finds, and that it changes nothing."""

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import kshare
from kshare.cli import main, probe
from kshare.cli.doctor import (
    examine_checkpoint,
    examine_compiled_code,
    examine_feedback,
    examine_java,
)
from kshare.cli.doctor_cluster import examine_cluster
from kshare.cli.doctor_workers import examine_workers
from kshare.cli.findings import Finding
from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import AuthorizationError
from kshare.kafka.cluster import Cluster
from kshare.kafka.examination import ExaminedCluster
from kshare.kafka.parked_keys import ParkedKeys
from kshare.kafka.topics import (
    INDIVIDUAL_COMMITS_TOPIC,
    LEDGER_TOPIC,
    PARKED_TOPIC,
    POLICIES_TOPIC,
    RANGE_ENDS_TOPIC,
)
from kshare.options import KafkaConfig, parse_options
from kshare.query.feedback.messages import TaskReport
from kshare.testing import FakeCluster, Record
from tests.support.checkpoints import write_checkpoint
from tests.support.services import EVENT_HUBS

ORDERS = TopicPartition("orders", 0)


def workers(tmp_path: Path, **variables: str) -> dict[str, Finding]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), **variables}
    return {found.check: found for found in examine_workers(environment)}


def script(folder: Path, text: str, name: str = "python3") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def answer(folder: Path, **changes: Any) -> str:
    """A Python that answers the probe."""
    seen: dict[str, Any] = {
        "python": list(sys.version_info[:3]),
        "prefix": "/x",
        "pyspark": "4.2.1",
    }
    seen |= {"kshare": kshare.__version__, "broken": {}, **changes}
    return script(folder, f"echo noise; echo '{json.dumps(seen)}'")


# -- the machine -----------------------------------------------------------------------------------


def test_the_python_of_this_environment_is_in_order(tmp_path: Path) -> None:
    found = workers(tmp_path, PYSPARK_PYTHON=sys.executable)
    assert {check: each.level for check, each in found.items()} == {
        "workers' Python": "green",
        "PySpark": "green",
        "kshare": "green",
        "workers' imports": "green",
        "data sources": "green",
    }


def test_a_broken_neighbour_hides_all_sources_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import nowhere\n")
    (tmp_path / "pyspark_rude.py").write_text("raise SystemExit('no')\n")
    (tmp_path / "pyspark_talks.py").write_text("print('{')\n")
    found = workers(tmp_path, PYSPARK_PYTHON=sys.executable)["data sources"]
    assert found.level == "red"
    assert "pyspark_broken: ModuleNotFoundError: No module named 'nowhere'" in found.text
    assert "pyspark_rude: SystemExit: no" in found.text
    assert found.remedy == "repair or uninstall pyspark_broken, pyspark_rude"


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    (found,) = workers(tmp_path, PYSPARK_PYTHON="/bin/kshare-python").values()
    assert (found.level, found.text) == ("red", "PYSPARK_PYTHON=/bin/kshare-python is no program")
    assert "$(command -v kshare-python)" in found.remedy
    (found,) = workers(tmp_path, PATH=str(tmp_path)).values()
    assert found.text == "there is no python3 on the PATH"
    fails = script(tmp_path, "echo no room >&2; exit 3")
    (found,) = workers(tmp_path, PYSPARK_PYTHON=fails).values()
    assert found.text == f"{fails} does not run: no room"


@pytest.mark.parametrize(
    ("changes", "check", "text", "remedy"),
    [
        ({"python": [3, 10, 2]}, "workers' Python", "is Python 3.10.2", "needs Python 3.11"),
        ({"python": [3, 99, 0]}, "workers' Python", "the same minor version", "let both be one"),
        ({"pyspark": "3.5.6"}, "PySpark", "3.5.6", "-m pip install 'pyspark>=4.0'"),
        (
            {"pyspark": "99.0.0"},
            "PySpark",
            "99.0.0 where workers run, ",
            f"-m pip install 'pyspark=={version('pyspark')}'",
        ),
        ({"pyspark": None}, "PySpark", "Spark lends them its own", "install it there"),
        (
            {"kshare": None},
            "kshare",
            "format('kshare') will not be found",
            f"install kshare {kshare.__version__} for it",
        ),
        ({"kshare": "0.0.1"}, "kshare", "0.0.1 where workers run", "the same version in both"),
    ],
)
def test_what_is_wrong_with_it_and_what_helps(
    tmp_path: Path, changes: dict[str, Any], check: str, text: str, remedy: str
) -> None:
    found = workers(tmp_path, PYSPARK_PYTHON=answer(tmp_path, **changes))[check]
    assert found.level == ("yellow" if changes == {"pyspark": None} else "red")
    assert text in found.text
    assert remedy in found.remedy


@pytest.mark.parametrize("says", ["", "echo", "echo no", "echo 7", "echo '{}'"])
def test_a_program_that_is_no_python(tmp_path: Path, says: str) -> None:
    """Such as /bin/true; it ends well. The other checks go on."""
    python = script(tmp_path, says)
    (found,) = workers(tmp_path, PYSPARK_PYTHON=python).values()
    assert (found.check, found.level) == ("workers' Python", "red")
    assert found.text == f"{python} does not run: it ends without an answer, as no Python does"
    assert found.remedy.startswith(f"see what {python} -c pass says in a shell; or ")


def test_a_python_that_cannot_read_the_probe_is_too_old(tmp_path: Path) -> None:
    python = script(tmp_path, "echo 'SyntaxError: future feature is not defined' >&2; exit 1")
    (found,) = workers(tmp_path, PYSPARK_PYTHON=python).values()
    assert found.remedy.startswith("kshare needs Python 3.11 or later: ")


def test_bytes_that_are_no_text_are_no_fault_of_the_check(tmp_path: Path) -> None:
    fails = script(tmp_path, "printf 'no \\377\\n' >&2; exit 3")
    (found,) = workers(tmp_path, PYSPARK_PYTHON=fails).values()
    assert found.text == f"{fails} does not run: no \ufffd"


PROBE = Path(probe.__file__)


def test_the_probe_runs_where_there_is_no_kshare(tmp_path: Path) -> None:
    """As Spark's workers may run: without site packages, and without the folder of kshare."""
    done = subprocess.run(
        [sys.executable, "-S", "-I", str(PROBE), "pyspark.worker", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["python"] == list(sys.version_info[:3])
    assert (seen["kshare"], seen["pyspark"], seen["fault"]) == (None, None, "")
    assert seen["origins"] == {"kshare": None, "json": json.__file__}


def test_the_probe_is_read_by_a_python_that_is_too_old_for_kshare() -> None:
    """Types are not looked at as it runs: ``str | None`` is none before Python 3.10."""
    read = ast.parse(PROBE.read_text(encoding="utf-8"), feature_version=(3, 8))
    futures = [each for each in read.body if isinstance(each, ast.ImportFrom)]
    assert (futures[0].module, futures[0].names[0].name) == ("__future__", "annotations")


def test_errors_that_have_no_text_hide_no_others(tmp_path: Path) -> None:
    (tmp_path / "pyspark_mute.py").write_text(
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\nraise Mute\n"
    )
    found = workers(tmp_path, PYSPARK_PYTHON=sys.executable)["data sources"]
    assert "pyspark_mute: Mute: its text cannot be made: ValueError" in found.text


def test_kshare_that_lacks_something_is_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of this folder is to blame: another one would not help."""
    monkeypatch.chdir(tmp_path)
    remedy = "install kshare again for {}: something that it needs is missing"
    for fault, origin, text in (
        ("ImportError: no mmh3", kshare.__file__, "ImportError: no mmh3"),
        ("", None, "kshare is installed, and cannot be found"),
    ):
        python = answer(tmp_path, fault=fault, origins={"kshare": origin})
        found = workers(tmp_path, PYSPARK_PYTHON=python)
        assert found["workers' imports"].text.endswith(text)
        assert found["workers' imports"].remedy == remedy.format(python)
        assert found["data sources"].level == "green"


def test_no_check_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even with a fault of its own, amid what it has found."""

    def one_then_none(_: Mapping[str, str]) -> Iterator[Finding]:
        yield Finding("PySpark", "green", "is there")
        raise IndexError("list index out of range")

    def none(_: Mapping[str, str]) -> Finding:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "no")

    monkeypatch.setattr("kshare.cli.doctor.examine_workers", one_then_none)
    monkeypatch.setattr("kshare.cli.doctor.examine_java", none)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "PySpark: is there" in said
    assert "red    workers' Python: this check has failed itself: IndexError: list index" in said
    assert "red    Java: this check has failed itself: UnicodeDecodeError" in said
    assert "compiled code: the reader's machine code loads" in said


def test_without_pyspark_python_the_first_python_counts(tmp_path: Path) -> None:
    first = answer(tmp_path)
    found = workers(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")["workers' Python"]
    assert found.level == "yellow"
    assert first in found.text


def test_the_drivers_python_should_be_the_same(tmp_path: Path) -> None:
    python = answer(tmp_path)
    variables = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    assert "driver's Python" not in workers(tmp_path, **variables)
    other = workers(tmp_path, **variables | {"PYSPARK_DRIVER_PYTHON": sys.executable})
    assert other["driver's Python"].level == "yellow"
    missing = workers(tmp_path, **variables | {"PYSPARK_DRIVER_PYTHON": "/nowhere"})
    assert missing["driver's Python"].level == "red"


@pytest.mark.parametrize(
    ("says", "level", "text"),
    [
        ('openjdk version "17.0.9" 2023-10-17', "green", "Java 17"),
        ('openjdk version "21-ea" 2023-09-19', "green", "Java 21"),
        ('java version "1.8.0_392"', "red", "is Java 8"),
        ("nothing of use", "yellow", "says no version"),
    ],
)
def test_the_version_of_java(tmp_path: Path, says: str, level: str, text: str) -> None:
    (tmp_path / "bin").mkdir()
    java = script(tmp_path / "bin", f"echo '{says}' >&2", "java")
    found = examine_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert found.level == level
    assert java in found.text
    assert text in found.text


def test_no_java(tmp_path: Path) -> None:
    assert examine_java({"PATH": str(tmp_path)}).text == "there is none"


def test_the_compiled_code_loads() -> None:
    assert examine_compiled_code().level == "green"


# -- Kafka -----------------------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"orders": 2, PARKED_TOPIC: 1}) as running:
        yield running


def config(servers: str, timeout_ms: int = 20_000) -> KafkaConfig:
    options = {"kafka.bootstrap.servers": servers, "subscribe": "none"}
    options["kafka.default.api.timeout.ms"] = str(timeout_ms)
    return parse_options(options, streaming=False).options.kafka


def found_of(fake: FakeCluster, topic: str | None = "orders") -> dict[str, Finding]:
    return {found.check: found for found in examine_cluster(config(fake.bootstrap_servers), topic)}


def test_a_cluster_in_order(fake: FakeCluster) -> None:
    fake.produce("orders", [Record(b"k", b"v")], partition=0)
    found = found_of(fake)
    lacking = {check for check, each in found.items() if each.level != "green"}
    assert lacking == {
        LEDGER_TOPIC,
        RANGE_ENDS_TOPIC,
        INDIVIDUAL_COMMITS_TOPIC,
        POLICIES_TOPIC,
        "API versions",
        "source",
        "groups",
        "exactly once",
        "real time",
        "dead letters",
    }, "librdkafka's mock offers no CreateTopics, and makes what is asked for"
    assert found["brokers"].text == f"1 answer: {fake.bootstrap_servers}"
    assert found["topic orders"].text == "2 partitions, 1 offset"
    assert "may be used" in found[PARKED_TOPIC].text
    assert found[LEDGER_TOPIC].text == (
        "is not there, and cannot be made (exactlyOnce sinks): no CreateTopics"
    )
    ends = found[RANGE_ENDS_TOPIC]
    assert ends.text == "is not there, and cannot be made (realTime queries): no CreateTopics"
    assert f"--topic {RANGE_ENDS_TOPIC} --partitions 16 --config cleanup.policy" in ends.remedy
    assert (
        found["real time"].text == f"does not work: topic {RANGE_ENDS_TOPIC} is not there, and "
        "cannot be made"
    )


def test_a_cluster_with_the_topic_of_ends(fake: FakeCluster) -> None:
    fake.create_topic(RANGE_ENDS_TOPIC)
    found = found_of(fake)
    assert found[RANGE_ENDS_TOPIC].text == "may be used (realTime queries)"
    assert found["real time"] == Finding("real time", "green", "works")


def test_a_broker_of_few_and_old_requests(fake: FakeCluster) -> None:
    """Fetch as Azure Event Hubs had it, and no transactions, as on Oracle Cloud Streaming."""
    fake.limit_api_version("Fetch", 2, 3)
    fake.limit_api_version("InitProducerId", -1, -1)
    fake.limit_api_version("EndTxn", -1, -1)
    found = found_of(fake, None)
    apis = found["API versions"]
    assert apis.level == "yellow"
    assert "Fetch 2 to 3 (needed: 4 to " in apis.text
    assert "no InitProducerId" in apis.text
    assert "Sasl" not in apis.text, "nobody logs in"
    assert found["source"].level == "red"
    assert found["source"].text.startswith("does not work: Fetch 2 to 3 (needed: 4 to ")
    assert found["groups"].text.startswith("does not work: Fetch 2 to 3 (needed: 4 to ")
    assert found["exactly once"].level == "yellow", "nobody has asked for it"
    assert "no InitProducerId; no EndTxn" in found["exactly once"].text
    assert "source does not work" in found["real time"].text
    assert found["parked keys"].level == "green"


def test_azure_event_hubs_with_topics_made_by_hand(fake: FakeCluster) -> None:
    """As docs/services.md says, and without what librdkafka's mock lacks, too."""
    for api, (lowest, highest) in EVENT_HUBS.items():
        if highest >= 0:  # the mock has none of the others
            fake.limit_api_version(api, lowest, highest)
    for topic in (INDIVIDUAL_COMMITS_TOPIC, POLICIES_TOPIC):
        fake.create_topic(topic)
    found = found_of(fake, None)
    assert found["source"].text == (
        "works without a warning before retention deletes what is pending (no DescribeConfigs)"
    )
    assert found["groups"].text == (
        "works without showing who is in a group (no DescribeGroups); ending transactions that "
        "nobody ends (no DescribeProducers, no ListTransactions)"
    )
    assert found["parked keys"].text == found["dead letters"].text == "works"


def test_no_broker_and_no_topic(fake: FakeCluster) -> None:
    (found,) = examine_cluster(config("localhost:1", 5_000), "orders")
    text = "localhost:1: Connection refused (kafka.bootstrap.servers; at each look within 2 s)"
    remedy = "start a broker there, or give the address of one"
    assert found == Finding("brokers", "red", text, remedy)
    text = f"does not exist on {fake.bootstrap_servers}"
    missing = found_of(fake, "ordres")["topic ordres"]
    assert missing == Finding("topic ordres", "red", text, "did you mean orders?")
    missing = found_of(fake, "xyzzy")["topic xyzzy"]
    assert missing == Finding("topic xyzzy", "red", text, "name one that is there")


def test_rights_that_lack(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    may: dict[str, Any] = {
        "orders": frozenset({"DESCRIBE", "READ"}),
        PARKED_TOPIC: frozenset({"DESCRIBE"}),
        LEDGER_TOPIC: AuthorizationError("not authorized"),
        RANGE_ENDS_TOPIC: frozenset({"DESCRIBE", "READ"}),
    }
    rights = {
        POLICIES_TOPIC: None,
        INDIVIDUAL_COMMITS_TOPIC: frozenset({"READ"}),
        "__transaction_state": None,
        **may,
    }
    monkeypatch.setattr(ExaminedCluster, "rights", lambda _, topics: rights)
    found = found_of(fake)
    levels = {check: each.level for check, each in found.items()}
    assert levels == {
        "brokers": "green",
        "topic orders": "yellow",
        PARKED_TOPIC: "red",
        "__kshare_policies": "green",
        "__individual_commit_offsets": "yellow",
        LEDGER_TOPIC: "yellow",
        RANGE_ENDS_TOPIC: "yellow",
        "API versions": "yellow",
        "__consumer_offsets": "green",
        "broker settings": "green",
        "source": "yellow",
        "groups": "yellow",
        "exactly once": "yellow",
        "real time": "yellow",
        "parked keys": "yellow",
        "dead letters": "yellow",
    }
    assert "DescribeConfigs" in found["topic orders"].remedy
    assert found[PARKED_TOPIC].remedy == f"grant Read on {PARKED_TOPIC}"
    told = {check: each.text for check, each in found.items()}
    assert told["__individual_commit_offsets"] == "no Write; key-shared groups need it"
    assert told[PARKED_TOPIC] == "no Read; every query needs it"
    assert told[RANGE_ENDS_TOPIC] == "no Write; realTime queries need it"
    assert found[RANGE_ENDS_TOPIC].remedy == f"grant Read and Write on {RANGE_ENDS_TOPIC}"
    assert told["real time"] == f"does not work: no right to Write on topic {RANGE_ENDS_TOPIC}"
    may["orders"] = rights["orders"] = frozenset({"DESCRIBE"})
    assert found_of(fake)["topic orders"].remedy == "grant Read on it"


@pytest.mark.parametrize(("ahead", "level"), [(-3.0, "green"), (4.0, "green"), (60.0, "yellow")])
def test_a_clock_that_differs(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, ahead: float, level: str
) -> None:
    newest = int(1000 * (time.time() + ahead))
    monkeypatch.setattr(ExaminedCluster, "newest_ms", lambda *_: newest)
    found = found_of(fake)["clocks"]
    assert found.level == level
    assert ("in the future" in found.text) is (level == "yellow")


def test_an_old_record_in_days(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = int(1000 * (time.time() - 5_824_237.1))
    monkeypatch.setattr(ExaminedCluster, "newest_ms", lambda *_: newest)
    assert found_of(fake)["clocks"].text == "the newest record is 67 days old"


def test_the_way_back_to_a_planner(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = config(fake.bootstrap_servers)
    assert examine_feedback(kafka).level == "green"
    monkeypatch.setattr(TaskReport, "begin", lambda *_: None)
    assert examine_feedback(kafka).level == "yellow"


# -- the command -----------------------------------------------------------------------------------


# -- a checkpoint ----------------------------------------------------------------------------------


def offsets_log(folder: Path, watermark_ms: int, position: int = 3) -> str:
    """A query with a limit, whose first half of key hashes is ahead."""
    part = HashRange(0, HASH_SPACE // 2)
    progress = Progress.of(position, [Rectangle(OffsetRange(position, position + 5), part)])
    limits = {ORDERS: (RangeLimit(ALL_HASHES, 10, 2),)}
    directory = write_checkpoint(folder, [BatchOffsets({ORDERS: progress}, limits=limits)], 0)
    file = folder / "offsets" / "0"
    metadata = f'"batchWatermarkMs":{watermark_ms}'
    file.write_text(file.read_text().replace('"batchWatermarkMs":0', metadata))
    return directory


def test_a_checkpoint(fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.produce("orders", [Record(b"k", b"v")] * 12, partition=0)

    def at_timestamps(
        _: Cluster, asked: Mapping[TopicPartition, int], _on_fault: object
    ) -> dict[Any, int | None]:
        """One record a second. librdkafka's mock does not look at times."""
        return {tp: ms // 1_000 if ms <= 11_000 else None for tp, ms in asked.items()}

    monkeypatch.setattr(Cluster, "at_timestamps", at_timestamps)
    kafka = config(fake.bootstrap_servers)
    (found,) = examine_checkpoint(offsets_log(tmp_path, 0), kafka)
    assert found == Finding("checkpoint", "green", "batch 0 planned, 0 committed")
    _, found = examine_checkpoint(offsets_log(tmp_path, 3_000), kafka)
    assert (found.check, found.level) == ("event time", "yellow")
    assert "without maxTimeAhead" in found.text
    _, found = examine_checkpoint(offsets_log(tmp_path, 8_000), kafka)
    assert (found.check, found.level) == ("event time", "red")
    assert "up to 5 pending offsets of orders-0 are older than the watermark" in found.text
    assert '.option("maxTimeAhead", "10m")' in found.remedy
    _, found = examine_checkpoint(offsets_log(tmp_path, 60_000), kafka)
    assert "up to 9 pending offsets" in found.text, "all that there is"
    _, found = examine_checkpoint(offsets_log(tmp_path, 60_000), None)
    assert found.level == "yellow", "without a broker, nobody knows"


def test_a_checkpoint_whose_last_batch_left_records(fake: FakeCluster, tmp_path: Path) -> None:
    fake.produce("orders", [Record(b"k", b"v")] * 12, partition=0)
    directory = write_checkpoint(tmp_path, [BatchOffsets({ORDERS: Progress.at(3)})], 0)
    file = tmp_path / "offsets" / "0"
    file.write_text(file.read_text().replace("}\n", ',"batchTimestampMs":5000}\n', 1))
    kafka = config(fake.bootstrap_servers)
    with fake_times(9):
        *_, found = examine_checkpoint(directory, kafka)
        assert (found.check, found.level) == ("unread records", "yellow")
        assert "batch 0 ended with 6 records unread" in found.text
        assert "spark_plugin.available_now(writer)" in found.remedy
        for name in ("offsets/0", "commits/0"):
            os.utime(tmp_path / name, (1_000, 1_000))
        *_, found = examine_checkpoint(directory, kafka)
        assert (found.check, found.level) == ("unread records", "red")
    with fake_times(3):
        assert all(each.check == "checkpoint" for each in examine_checkpoint(directory, kafka))


@contextmanager
def fake_times(offset: int) -> Iterator[None]:
    """Brokers that find this offset for each time; librdkafka's mock does not look at times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "at_timestamps", lambda _, asked, *_on: dict.fromkeys(asked, offset))
        yield


def test_a_checkpoint_that_has_stopped_or_lost_records(fake: FakeCluster, tmp_path: Path) -> None:
    directory = offsets_log(tmp_path, 0)
    for file in ("offsets/0", "commits/0"):
        os.utime(tmp_path / file, (1_000, 1_000))
    (found,) = examine_checkpoint(directory, None)
    assert found.level == "yellow"
    assert found.text.endswith(" days: stopped?")
    (found,) = examine_checkpoint(directory, config(fake.bootstrap_servers))
    assert found.level == "red"
    assert "orders-0: BEYOND THE END" in found.text
    (found,) = examine_checkpoint(str(tmp_path / "none"), None)
    assert (found.level, found.remedy) == ("red", "name the checkpointLocation of a query")


def test_what_brokers_do_not_say_hides_no_other_partition(
    fake: FakeCluster, tmp_path: Path
) -> None:
    """Reading would wait for a partition without a leader; parked keys are another matter."""
    fake.produce("orders", [Record(b"k", b"v")] * 12, partition=0)
    ends = BatchOffsets({ORDERS: Progress.at(3), TopicPartition("orders", 1): Progress.at(0)})
    directory = write_checkpoint(tmp_path, [ends], 0)
    kafka = config(fake.bootstrap_servers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParkedKeys, "parked", refused)
        brokers, checkpoint = examine_checkpoint(directory, kafka)
    assert (brokers.check, brokers.level) == ("checkpoint on its brokers", "yellow")
    assert brokers.text == "parked keys are not known: not authorized"
    assert checkpoint.level == "green"
    fake.move_leader("orders", 1, None)
    brokers, checkpoint = examine_checkpoint(directory, kafka)
    assert brokers.level == "red"
    assert brokers.text.startswith("cannot list offsets of orders-1 on ")
    assert checkpoint.level == "green"


def refused(_: ParkedKeys) -> None:
    raise AuthorizationError("not authorized")


def test_brokers_that_are_down_end_no_look_at_a_checkpoint(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = offsets_log(tmp_path, 0)
    monkeypatch.setattr("kshare.cli.doctor.examine_workers", lambda _: iter(()))
    given = ["--json", "--checkpoint", directory, "--bootstrap-servers", "127.0.0.1:1"]
    assert main(["doctor", *given, "--option", "kafka.default.api.timeout.ms=100"]) == 1
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["checkpoint"]["level"] == "green"
    assert found["checkpoint on its brokers"]["level"] == "red"
    assert "127.0.0.1:1" in found["checkpoint on its brokers"]["text"]
    assert "checkpointLocation" not in found["checkpoint on its brokers"]["remedy"]
    assert {"brokers", "feedback"} <= found.keys()


def test_the_command_says_all_and_ends_with_1_if_something_is_red(
    fake: FakeCluster, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    at = ["doctor", "--bootstrap-servers", fake.bootstrap_servers, "--topic"]
    assert main([*at, "orders"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"green  workers' Python: {sys.executable}, Python ")
    assert main([*at, "ordres", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (red,) = [each for each in found if each["level"] == "red"]
    assert red["check"] == "topic ordres"
    assert red["remedy"]


def test_no_line_but_findings_when_no_broker_listens(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert main(["doctor", "--bootstrap-servers", "localhost:1"]) == 1
    out, err = capfd.readouterr()
    (red,) = [line for line in out.splitlines() if line.startswith("red")]
    assert red.startswith("red    brokers: localhost:1: Connection refused (")
    assert "login" not in out
    assert err == ""


@pytest.mark.parametrize("option", ["--topic", "--feature"])
def test_a_topic_or_a_feature_needs_a_broker(option: str, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", option, "groups"])
    assert f"{option} is of a cluster: give --bootstrap-servers" in capsys.readouterr().err


def test_an_unknown_feature_is_refused_with_those_that_there_are(capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--feature", "speed", "--bootstrap-servers", "localhost:1"])
    assert "'exactly-once'" in capsys.readouterr().err


def test_what_is_asked_for_and_cannot_work_ends_with_1(
    fake: FakeCluster, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka's mock makes no topics when it is asked by CreateTopics."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    at = ["doctor", "--bootstrap-servers", fake.bootstrap_servers]
    assert main(at) == 0
    assert "\nyellow exactly once: does not work: topic __kshare" in capsys.readouterr().out
    for feature in ("exactly-once", "real-time"):
        assert main([*at, "--feature", feature]) == 1
        said = f"\nred    {feature.replace('-', ' ')}: does not work: topic __kshare"
        assert said in capsys.readouterr().out


def test_a_broker_that_cannot_be_reached_where_it_says_it_is(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bootstrap server answers; what it advertises leads nowhere."""
    nowhere = ["localhost:1", "localhost:2", "localhost:3", "localhost:4"]
    monkeypatch.setattr(ExaminedCluster, "brokers", lambda _: nowhere)
    found = list(examine_cluster(config(fake.bootstrap_servers), None))
    silent = [each for each in found if each.check == "API versions"]
    assert [each.level for each in silent] == ["red"] * 3, "no further one is asked"
    assert silent[0].text.startswith("broker localhost:1 does not tell what it can do: ")
    assert "advertised.listeners" in silent[0].remedy
