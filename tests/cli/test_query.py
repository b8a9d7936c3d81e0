"""A query as commands see it: one whose batches read for a while, and where brokers say little."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kshare.cli import main
from kshare.cli.live.watch import QueryLooker
from kshare.cli.query import observed_status
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.live import NO_LATENCY, Latency, Live, LiveRange, encode_live, live_key
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd
from kshare.errors import AuthorizationError
from kshare.group.config.consumer_config import consumer_config
from kshare.group.log.primary import PrimaryOffsets
from kshare.group.protocol.commit_log.start import Primary
from kshare.kafka.end_log import EndLog
from kshare.kafka.parked_keys import PARKED_TOPIC, ParkedKeys
from kshare.monitor.status import PartitionStatus
from kshare.testing import FakeCluster, Record
from tests.support.checkpoints import write_checkpoint
from tests.support.groups import fetch_as_brokers_do
from tests.support.parked_keys import kafka

T0 = TopicPartition("t", 0)
LOW, HIGH = (KeyRanges([half]) for half in split(WHOLE, 2))
ENDS = "__kshare_range_ends.mine"


def offsets(at: LogPosition) -> BatchOffsets:
    return BatchOffsets(
        {T0: Progress.at(5)}, open=OpenBatch("b-1", 5_000, ENDS, at, {T0: (LOW, HIGH)})
    )


def test_a_batch_that_is_done_is_shown_with_its_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeCluster(topics={"t": 1, ENDS: 1}) as cluster:
        cluster.produce("t", [Record(b"k", b"v")] * 20)
        with EndLog(kafka(cluster), ENDS) as log:
            planned = offsets(log.position())
            assert planned.open is not None
            low, high = open_ranges(planned.open, planned.progress)
            log.read(planned.open.log, [low, high])
            log.append({EndKey(low.id, "0"): RangeEnd.at(LOW, 15)})
            written = write_checkpoint(tmp_path, [planned], 0)
            (partition,) = observed_status(written, kafka(cluster)).partitions
            assert (partition.done.stable, partition.done.front) == (5, 15)  # one was not read
            log.append({EndKey(high.id, "0"): RangeEnd.at(HIGH, 20)})
        (partition,) = observed_status(written, kafka(cluster)).partitions
        assert (partition.done.stable, partition.done.front, partition.lag) == (15, 20, 5)
        servers = ["--bootstrap-servers", cluster.bootstrap_servers]
        assert main(["status", "--checkpoint", written, *servers]) == 0
        assert "t-0: stable 15, front 20, log 0 to 20, lag 5" in capsys.readouterr().out
        (tmp_path / "commits" / "0").unlink()  # it may still run: its rows are not committed
        (partition,) = observed_status(written, kafka(cluster)).partitions
        assert (partition.done, partition.planned_to) == (Progress.at(5), 20)


def test_a_batch_that_reads_is_shown_with_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeCluster(topics={"t": 1, ENDS: 1}) as cluster, EndLog(kafka(cluster), ENDS) as log:
        cluster.produce("t", [Record(b"k", b"v")] * 20)
        planned = offsets(log.position())
        assert planned.open is not None
        written = write_checkpoint(tmp_path, [planned], None)
        latency = Latency((9, *NO_LATENCY.counts[1:]))
        live = Live(
            "b-1",
            round(time.time() * 1000),
            (LiveRange(T0, 0, LOW.span, 15, 20), LiveRange(T0, 1, HIGH.span, 10, 20)),
            latency,
            latency,
        )

        def said(live: Live, run: str = "b") -> PartitionStatus:
            record = Record(live_key(run), encode_live(live))
            cluster.produce(ENDS, [record], partition=0)
            (partition,) = observed_status(written, kafka(cluster)).partitions
            return partition

        for other in (replace(live, batch="b-2"), replace(live, at_ms=1)):
            assert said(other).committed is None
        assert said(live, "c").committed is None
        partition = said(live)
        assert (partition.done.stable, partition.done.front) == (10, 15)
        assert (partition.committed, partition.lag, partition.planned_to) == (5, 10, 20)
        (low, _) = open_ranges(planned.open, planned.progress)
        log.read(planned.open.log, [low])
        log.append({EndKey(low.id, "0"): RangeEnd.at(LOW, 17)})  # it has ended meanwhile
        assert said(live).done.front == 17
        servers = ["--bootstrap-servers", cluster.bootstrap_servers]
        assert main(["status", "--checkpoint", written, *servers]) == 0
        shown = capsys.readouterr().out
        assert "batch 0 planned, none committed, live, latency in the last 10 s p50 1 ms" in shown
        assert "t-0: live 10, committed 5, front 17" in shown
        assert main(["status", "--json", "--checkpoint", written, *servers]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["sources"][0]["is_live"]
        assert found["sources"][0]["latency_seconds"]["batch"]["p99"] == 0.001
        assert (found["partitions"][0]["stable"], found["partitions"][0]["committed"]) == (10, 5)
        assert (
            main(
                ["top", "--once", "--json", "--interval", "0.1", "--checkpoint", written, *servers]
            )
            == 0
        )
        top = json.loads(capsys.readouterr().out)
        assert {each["position"] for each in top["ranges"]} == {10, 17}
        assert top["facts"].startswith("batch 0 planned, none committed, live, latency in")
        said(replace(live, batch="?"))
        cluster.produce(ENDS, [Record(live_key("b"), b"?")], partition=0)
        (partition,) = observed_status(written, kafka(cluster)).partitions
        assert partition.done == Progress.at(5)


def test_without_the_log_of_ends_it_is_shown_where_it_began(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, [offsets(LogPosition(0, 9))], 0)
    (partition,) = observed_status(written, None).partitions
    assert partition.done == Progress.at(5)
    for topics in ({"t": 1}, {"t": 1, ENDS: 1}):  # which ends before the batch begins in it
        with FakeCluster(topics=topics) as cluster:
            cluster.produce("t", [Record(b"k", b"v")] * 20)
            (partition,) = observed_status(written, kafka(cluster)).partitions
            assert (partition.done, partition.lag) == (Progress.at(5), 15)


def test_brokers_that_look_no_timestamp_up_say_nothing_of_unread_records(tmp_path: Path) -> None:
    """As librdkafka's mock, which is behind ``kshare broker``: it finds no record at any time."""
    offsets = BatchOffsets({T0: Progress.at(5)})
    folder = write_checkpoint(tmp_path, [offsets], 0)
    log = tmp_path / "offsets" / "0"
    log.write_text(log.read_text().replace('"batchWatermarkMs":0', '"batchTimestampMs":1000'))
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.produce("t", [Record(b"k", b"v")] * 20)
        status = observed_status(folder, kafka(cluster))
    assert status.checkpoint.planned_ms == 1000
    assert [(each.lag, each.left) for each in status.partitions] == [(15, None)]


# -- what is not known hides nothing else ----------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """One partition has no leader."""
    with FakeCluster(topics={"t": 2, PARKED_TOPIC: 1}) as running:
        running.produce("t", [Record(b"k", b"v")] * 20, partition=0)
        running.move_leader("t", 1, None)
        yield running


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may read the list of parked keys."""

    def refused(_: object) -> None:
        raise AuthorizationError(f"not authorized to read topic {PARKED_TOPIC}")

    monkeypatch.setattr(ParkedKeys, "read", refused)


def written(folder: Path) -> str:
    done = {T0: Progress.at(5), TopicPartition("t", 1): Progress.at(7)}
    return write_checkpoint(folder, [BatchOffsets(done)], 0)


def said_of(err: str) -> list[str]:
    return [line.removeprefix("warning: ")[:40] for line in err.splitlines()]


NO_LEADER, NO_KEYS = (
    "cannot list offsets of t-1 on 127.0.0.1:",
    "parked keys are not known: not authorize",
)


def test_status_shows_what_is_known(
    tmp_path: Path,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuse(monkeypatch)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["status", "--checkpoint", written(tmp_path), *servers]) == 0
    out, err = capsys.readouterr()
    assert "t-0: stable 5, log 0 to 20, lag 15\n" in out
    assert "t-1: stable 7\n" in out
    assert said_of(err) == [NO_LEADER, NO_KEYS]


def test_so_does_a_live_view(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch)
    looker = QueryLooker(written(tmp_path), kafka(cluster))
    with closing(looker):
        looks = [looker.look() for _ in range(2)]
    for look in looks:
        assert [each.lag for each in look.ranges] == [15, None]
        assert [text[:40] for text in look.warnings] == [NO_LEADER, NO_KEYS]


@pytest.mark.parametrize("command", ["groups", "offsets"])
def test_so_do_the_commands_of_groups(
    cluster: FakeCluster,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}
    with closing(PrimaryOffsets(consumer_config(config).kafka, "g")) as primary:
        places = {TopicPartition("t", number): Primary(5) for number in (0, 1)}
        assert primary.stored(primary.store(places)) == dict.fromkeys(places)
    fetch_as_brokers_do(monkeypatch, *places)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main([command, "--group", "g", *servers]) == 0
    out, err = capsys.readouterr()
    assert said_of(err) == [NO_LEADER]
    assert "15" in out


def test_parked_keys_that_cannot_be_read_are_waited_for_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live view looks again every few seconds."""
    shortened, warnings = list[float](), list[str]()
    monkeypatch.setattr(ParkedKeys, "shorten_timeout", lambda _, most: shortened.append(most))
    with closing(ParkedKeys(kafka(cluster))) as keys:
        assert keys.known(warnings.append) == {}
        assert (shortened, warnings) == ([], [])
        refuse(monkeypatch)
        assert keys.known(warnings.append) == {}
    assert (shortened, len(warnings)) == ([3.0], 1)
