"""What people see of a query: the same ranges everywhere, when it may have stopped, late rows."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli.live.snapshot import behind_of, of_query
from kshare.cli.query import observed_status
from kshare.cli.show import ago_text, as_json, as_text, late_rows, records_left
from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, WHOLE, HashRange, KeyRanges, key_hash, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.kafka.cluster import Cluster
from kshare.kafka.parked_keys import ParkedInfo
from kshare.monitor.plot import panel
from kshare.monitor.status import Checkpoint, Source, Status, describe, read_checkpoint
from kshare.options import KafkaConfig
from kshare.testing import FakeCluster, Record
from tests.support.checkpoints import write_checkpoint
from tests.support.looks import AT, made_up

T0 = TopicPartition("t", 0)
HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
INFO = ParkedInfo("2026-11-21T03:00:00+00:00", "ann", "bad JSON")
AHEAD = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])


def at_positions(*positions: int) -> Progress:
    """Equal parts of the hash space, each at a position of its own."""
    stable = min(positions)
    return Progress.of(
        stable,
        [
            Rectangle(OffsetRange(stable, position), part)
            for part, position in zip(split(WHOLE, len(positions)), positions, strict=True)
            if position > stable
        ],
    )


def status_of(
    progress: Progress,
    limits: tuple[RangeLimit, ...] = (),
    *,
    parked: dict[tuple[str, bytes], ParkedInfo] | None = None,
    log: tuple[int, int] | None = (0, 1_000),
    watermark_ms: int = 0,
    watermark_at: int | None = None,
    written_at: float = 0.0,
    batch_seconds: float = 0.0,
    committed: int = 3,
    planned_at: int | None = None,
) -> Status:
    planned = BatchOffsets({T0: progress}, limits={T0: limits} if limits else {})
    checkpoint = Checkpoint(
        "dir",
        4,
        committed,
        (Source(0, planned, {T0: progress}),),
        watermark_ms=watermark_ms,
        written_at=written_at,
        batch_seconds=batch_seconds,
    )
    late = None if watermark_at is None else {T0: watermark_at}
    left = None if planned_at is None else {T0: planned_at}
    return describe(checkpoint, None if log is None else {T0: log}, parked, late, left)


# -- the same ranges everywhere --------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.sets(st.integers(1, 15)))
def test_all_hashes_of_a_row_stand_where_the_picture_has_them(
    positions: list[int], cuts: set[int]
) -> None:
    bounds = [0, *(cut * (HASH_SPACE // 16) for cut in sorted(cuts)), HASH_SPACE]
    limits = tuple(
        RangeLimit(KeyRanges([HashRange(lo, hi)]), 20, 5)
        for lo, hi in zip(bounds[::2], bounds[1::2], strict=False)
    )
    status = status_of(at_positions(*positions), limits, log=(0, 20))
    (partition,) = status.partitions
    assert [part for each in partition.ranges for part in each.hashes] == sorted(
        part for each in partition.ranges for part in each.hashes
    )
    drawn = dict(panel(partition, ()).stripes)
    for each in partition.ranges:
        for part in each.hashes:
            ends = {
                sum(bars[-1]) if bars else 0
                for hashes, bars in drawn.items()
                if hashes.intersect(part) is not None
            }
            assert len(ends) == 1, "one row, one height of the picture"
            assert ends.pop() in {0, each.position}


def test_a_task_whose_hashes_stand_apart_has_a_row_for_each(tmp_path: Path) -> None:
    limit = RangeLimit(KeyRanges([WHOLE]), 40, 7)
    status = status_of(AHEAD, (limit,))
    (partition,) = status.partitions
    assert [(each.hashes, each.position, each.limit) for each in partition.ranges] == [
        ((LOW,), 20, limit),
        ((HIGH,), 10, limit),
    ]
    lines = as_text(status).splitlines()
    assert lines[-2].endswith("  7 records")
    assert lines[-1].endswith("  with the above")


def test_a_key_that_was_parked_while_the_query_stands_still_waits_where_its_range_stands() -> None:
    point = key_hash(b"k", 0)
    (hashes,) = (part for part in (LOW, HIGH) if part.lo <= point < part.hi)
    other = LOW if hashes is HIGH else HIGH
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), other)])
    reads = (RangeLimit(KeyRanges([hashes]), 40, 7),)
    status = status_of(progress, reads, parked={("t", b"k"): INFO})
    (partition,) = status.partitions
    assert panel(partition, status.parked).parked == {point: 10}
    assert "k    not seen by the query yet  2026" in as_text(status)
    # The next batch leaves it out.
    without = (RangeLimit(KeyRanges([hashes]) - [HashRange.of(point)], 40, 7),)
    (seen,) = status_of(progress, without, parked={("t", b"k"): INFO}).parked
    assert seen.positions == {0: 10}


# -- a query that may have stopped -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "batch_seconds", "is_still"),
    [(100, 0, False), (130, 0, True), (700, 200, False), (1_100, 200, True)],
)
def test_no_change_for_long(seconds: float, batch_seconds: float, is_still: bool) -> None:
    status = status_of(AHEAD, written_at=AT, batch_seconds=batch_seconds)
    found = status.unchanged_seconds(AT + seconds)
    assert found == (seconds if is_still else None)
    look = of_query(status, AT + seconds)
    assert look.is_still == is_still
    assert any("stopped?" in text for text in look.warnings) == is_still
    assert as_json(status, AT + seconds)["unchanged_seconds"] == found


def test_a_query_that_has_stopped_does_not_read() -> None:
    limits = (RangeLimit(KeyRanges([LOW]), 30, 5),)
    status = status_of(AHEAD, limits, written_at=AT)
    text = as_text(status, AT + 750)
    assert text.startswith("dir: batch 4 planned, 3 committed, no change for 12 min: stopped?\n\n")
    assert "planned up to 30" in text
    assert "in progress" not in text
    assert "in progress up to 30" in as_text(status, AT + 7)


def test_a_query_with_nothing_to_read_has_not_stopped() -> None:
    assert (
        status_of(Progress.at(1_000), written_at=AT, committed=4).unchanged_seconds(AT**2) is None
    )
    assert status_of(Progress.at(1_000), written_at=AT).unchanged_seconds(AT**2)
    assert status_of(Progress.at(900), written_at=AT, committed=4).unchanged_seconds(AT**2)
    assert status_of(AHEAD).unchanged_seconds(AT**2) is None, "nobody knows"


def test_the_times_are_those_of_the_files(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})] * 3, 1)
    for name, seconds in (("offsets/1", 100), ("offsets/2", 130), ("commits/1", 120)):
        os.utime(tmp_path / name, (seconds, seconds))
    checkpoint = read_checkpoint(directory)
    assert (checkpoint.written_at, checkpoint.batch_seconds) == (130.0, 30.0)
    os.utime(tmp_path / "commits/1", (140, 140))
    assert read_checkpoint(directory).written_at == 140.0
    alone = write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})], None)
    for name in ("offsets/1", "offsets/2"):
        (tmp_path / name).unlink()
    for name in ("commits/0", "commits/1"):
        (tmp_path / name).unlink()
    assert read_checkpoint(alone).batch_seconds == 0


# -- rows behind a watermark -----------------------------------------------------------------------

LIMITS = (RangeLimit(KeyRanges([LOW]), 30, 5),)


@pytest.mark.parametrize(
    ("limits", "watermark_ms", "watermark_at", "expected"),
    [
        ((), 5, None, None),
        (LIMITS, 0, None, None),
        (LIMITS, 5, None, False),
        (LIMITS, 5, 10, False),
        (LIMITS, 5, 13, True),
    ],
    ids=["no limits", "no watermark", "not asked", "nothing is late", "late"],
)
def test_late_rows(
    limits: tuple[RangeLimit, ...],
    watermark_ms: int,
    watermark_at: int | None,
    expected: bool | None,
) -> None:
    status = status_of(AHEAD, limits, watermark_ms=watermark_ms, watermark_at=watermark_at)
    note = late_rows(status)
    assert (note.is_sure if note else None) == expected
    text, look = as_text(status), of_query(status, AT)
    assert ('.option("maxTimeAhead", "10m")' in text) == (expected is not None)
    if expected:
        assert "up to 3 pending offsets of t-0 are older than the watermark" in text
        assert any("maxTimeAhead" in fault for fault in look.alarms)
        assert look.warnings == ()
    else:
        assert look.alarms == []
        assert any("maxTimeAhead" in text for text in look.warnings) == (expected is not None)
    assert as_json(status)["partitions"][0]["late"] == (
        None if not limits or watermark_at is None else watermark_at - 10
    )


def test_parked_keys_are_not_late() -> None:
    point = key_hash(b"k", 0)
    others = ALL_HASHES - KeyRanges.of_hashes([point])
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), part) for part in others])
    limits = (RangeLimit(others, 30, 5),)
    parked = {("t", b"k"): INFO}
    status = status_of(progress, limits, parked=parked, watermark_ms=5, watermark_at=15)
    assert status.partitions[0].late == 0
    assert status_of(progress, limits, parked=parked, watermark_at=25).partitions[0].late == 5


def test_the_watermark_is_read_from_the_offset_log(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD}, limits={T0: LIMITS})], None)
    file = tmp_path / "offsets" / "0"
    assert not read_checkpoint(directory).can_drop_late_rows
    text = file.read_text()
    file.write_text(text.replace('"batchWatermarkMs":0', '"batchWatermarkMs":1700000000000'))
    checkpoint = read_checkpoint(directory)
    assert checkpoint.watermark_ms == 1_700_000_000_000
    assert checkpoint.can_drop_late_rows
    for other in ("", "[]", '{"batchWatermarkMs":"x"}'):
        file.write_text("\n".join([text.split("\n")[0], other, *text.split("\n")[2:]]))
        assert read_checkpoint(directory).watermark_ms == 0


# -- how far ranges are behind ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "end", "outliers"),
    [
        ((7_000, 7_200, 7_400, 7_500), 14_500, []),
        ((0, 0, 0, 0), 300_000, []),
        ((995, 1_000, 1_000, 1_000), 1_000, []),
        ((100, 9_000, 9_000, 9_000), 10_000, [0]),
        ((9_000, 100), 10_000, [1]),
        ((9_000, 9_100, 100, 120, 9_050, 9_010), 10_000, [2, 3]),
    ],
    ids=["alike", "a start", "at the end", "one", "one of two", "two"],
)
def test_only_outliers_are_red(positions: tuple[int, ...], end: int, outliers: list[int]) -> None:
    progress = at_positions(*positions)
    look = made_up(progress, end, ranges=split(WHOLE, len(positions)))
    found = behind_of(look)
    assert [number for number, each in enumerate(found) if each.is_outlier] == outliers
    assert [each.offsets for each in found] == [max(positions) - each for each in positions]
    for each in found:
        assert 0 <= each.share <= 1
        assert (each.share == 0) == (each.offsets == 0)


def test_times_are_ages() -> None:
    noon = "2026-11-28T12:00:00+00:00"
    at = 1_795_867_200.0
    assert ago_text(noon, at) == "0.0 s ago"
    assert ago_text(noon, at + 720) == "12 min ago"
    assert ago_text("2026-11-28T14:00:00+02:00", at + 7_200) == "2 h ago"
    assert (ago_text(noon, None), ago_text("yesterday", at)) == (noon, "yesterday")


# -- records that were left ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "planned_at", "log", "left"),
    [
        ((), None, (0, 1_000), None),
        ((), 10, (0, 1_000), 0),
        ((), 13, (0, 1_000), 3),
        ((), 500, (0, 1_000), 490),
        ((), 500, (100, 1_000), 400),
        ((), 500, (900, 1_000), 0),
        (LIMITS, 30, (0, 1_000), 0),
        (LIMITS, 31, (0, 1_000), 1),
    ],
    ids=["not asked", "none", "a half", "all", "some lost", "all lost", "limits", "beyond limits"],
)
def test_what_the_last_batch_has_left(
    limits: tuple[RangeLimit, ...],
    planned_at: int | None,
    log: tuple[int, int],
    left: int | None,
) -> None:
    status = status_of(AHEAD, limits, log=log, committed=4, written_at=AT, planned_at=planned_at)
    assert as_json(status)["partitions"][0]["left"] == left
    note = records_left(status, AT + 60)
    assert (note is not None) == bool(left)
    assert ("available_now" in as_text(status, AT)) == bool(left)
    assert "available_now" not in as_text(status)
    if left:
        assert note is not None
        assert not note.is_sure, "its next trigger may be near"
        assert f"{left:,} record" in note.text
        assert note.text.endswith(f": t {left:,}")
        assert ("at least" in note.text) == bool(limits)
        later = records_left(status, AT + 61)
        assert later is not None
        assert later.is_sure


def test_parked_keys_are_not_left() -> None:
    others = ALL_HASHES - KeyRanges.of_hashes([key_hash(b"k", 0)])
    progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), part) for part in others])
    status = status_of(progress, parked={("t", b"k"): INFO}, committed=4, planned_at=20)
    assert status.partitions[0].lag
    assert status.partitions[0].left == 0


def test_what_a_query_left_is_compared_with_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only records that are older than its last batch, and only once that one has ended."""
    planned_ms, t1 = 1_700_000_000_000, TopicPartition("t", 1)

    def at_timestamps(
        _: Cluster, asked: dict[TopicPartition, int], _on_fault: object
    ) -> dict[Any, int | None]:
        """FakeCluster's brokers do not look at timestamps."""
        if asked == {t1: 0}:  # whether it has records with timestamps
            return {t1: 0}
        assert asked == {T0: planned_ms, t1: planned_ms}
        return {T0: 50, t1: None}

    monkeypatch.setattr(Cluster, "at_timestamps", at_timestamps)
    begun = BatchOffsets({T0: Progress.at(0), t1: Progress.at(0)})
    read = BatchOffsets({T0: Progress.at(10), t1: Progress.at(52)})
    write_checkpoint(tmp_path, [begun, read], 0)
    file = tmp_path / "offsets" / "1"
    text = file.read_text()
    file.write_text(text.replace("}\n", f',"batchTimestampMs":{planned_ms}}}\n', 1))
    with FakeCluster(topics={"t": 2}) as cluster:
        for number in (0, 1):
            cluster.produce("t", [Record(b"k", b"v")] * 57, partition=number)
        kafka = KafkaConfig(bootstrap_servers=(broker_of(cluster),))
        running = observed_status(str(tmp_path), kafka)
        (tmp_path / "commits" / "1").write_text('v1\n{"nextBatchWatermarkMs":0}')
        ended = observed_status(str(tmp_path), kafka)
    assert [each.left for each in running.partitions] == [None, None]
    assert [each.left for each in ended.partitions] == [40, 5]
    assert "batch 1 ended with 45 records unread" in as_text(ended, AT)


def broker_of(cluster: FakeCluster) -> tuple[str, int]:
    host, port = cluster.bootstrap_servers.split(",")[0].split(":")
    return host, int(port)
