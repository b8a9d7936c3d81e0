"""A query as commands see it whose batches read for a while."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kshare.cli import main
from kshare.cli.query import observed_status
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.live import NO_LATENCY, Latency, Live, LiveRange, encode_live, live_key
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd
from kshare.kafka.end_log import EndLog
from kshare.monitor.status import PartitionStatus
from kshare.testing import FakeCluster, Record
from tests.support.checkpoints import write_checkpoint
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
