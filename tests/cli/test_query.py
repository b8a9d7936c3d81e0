"""A query as commands see it whose batches read for a while."""

from pathlib import Path

import pytest

from kshare.cli import main
from kshare.cli.query import observed_status
from kshare.cluster.end_log import EndLog
from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import WHOLE, KeyRanges, split
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd
from kshare.testing import FakeCluster, Record
from tests.support.checkpoints import write_checkpoint
from tests.support.parked_keys import kafka

T0 = TopicPartition("t", 0)
LOW, HIGH = (KeyRanges([half]) for half in split(WHOLE, 2))
ENDS = "__kshare_range_ends.mine"


def offsets(at: LogPosition) -> BatchOffsets:
    return BatchOffsets(
        {T0: Progress.at(5)}, open=OpenBatch("b", 5_000, ENDS, at, {T0: (LOW, HIGH)})
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


def test_without_the_log_of_ends_it_is_shown_where_it_began(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, [offsets(LogPosition(0, 9))], 0)
    (partition,) = observed_status(written, None).partitions
    assert partition.done == Progress.at(5)
    for topics in ({"t": 1}, {"t": 1, ENDS: 1}):  # which ends before the batch begins in it
        with FakeCluster(topics=topics) as cluster:
            cluster.produce("t", [Record(b"k", b"v")] * 20)
            (partition,) = observed_status(written, kafka(cluster)).partitions
            assert (partition.done, partition.lag) == (Progress.at(5), 15)
