"""Status: what a checkpoint tells, against what was written; the picture; the text."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli.show import as_json, as_text, parked_json, parked_text
from kshare.core.checkpoint import BatchOffsets, RangeLimit
from kshare.core.hashing import ALL_HASHES, HASH_SPACE, HashRange, KeyRanges, key_hash
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import CheckpointError, CheckpointVersionError, PlotError
from kshare.kafka.parked_keys import ParkedInfo
from kshare.monitor.plot import PANELS_MAX, draw, processed_bars
from kshare.monitor.status import Checkpoint, Source, Status, describe, read_checkpoint
from tests.support.checkpoints import SourceOffsets, write_checkpoint
from tests.support.steps import lines_run

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AHEAD = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW)])
INFO = ParkedInfo("2026-11-21T03:00:00+00:00", "ann", "bad JSON")

rectangles = st.builds(
    lambda start, size, lo, width: Rectangle(
        OffsetRange(start, start + size),
        HashRange(lo * (HASH_SPACE // 16), min(lo + width, 16) * (HASH_SPACE // 16)),
    ),
    st.integers(0, 40),
    st.integers(1, 10),
    st.integers(0, 15),
    st.integers(1, 16),
)
progresses = st.builds(Progress.of, st.integers(0, 30), st.lists(rectangles, max_size=5))


def done(
    folder: Path, batches: list[SourceOffsets], committed: int | None
) -> Mapping[TopicPartition, Progress]:
    (source,) = read_checkpoint(write_checkpoint(folder, batches, committed)).sources
    return source.done


def at(**offsets: int) -> BatchOffsets:
    return BatchOffsets(
        {TopicPartition("t", int(n[1:])): Progress.at(o) for n, o in offsets.items()}
    )


# -- the checkpoint --------------------------------------------------------------------------------


def test_a_committed_batch_is_done(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, [at(p0=5), at(p0=9, p1=3)], 1))
    assert (checkpoint.planned, checkpoint.committed) == (1, 1)
    (source,) = checkpoint.sources
    assert (source.number, source.done) == (0, {T0: Progress.at(9), T1: Progress.at(3)})


def test_of_a_batch_that_is_not_committed_nothing_is_done(tmp_path: Path) -> None:
    new = BatchOffsets({T0: Progress.at(9), T1: Progress.at(7)}, started={T1: 4})
    assert done(tmp_path, [at(p0=5), new], 0) == {T0: Progress.at(5), T1: Progress.at(4)}


def test_the_first_batch_tells_its_start(tmp_path: Path) -> None:
    first = BatchOffsets({T0: Progress.at(9)}, started={T0: 2})
    assert done(tmp_path, [first], None) == {T0: Progress.at(2)}


def test_a_source_with_nothing_to_read_stays_where_it_was(tmp_path: Path) -> None:
    """Its dict is the same, with where the query started; another source has something to read."""
    first = BatchOffsets({T0: Progress.at(9)}, started={T0: 2})
    assert done(tmp_path, [first, first], 0) == {T0: Progress.at(9)}


def test_a_partition_that_came_up_is_not_read_yet(tmp_path: Path) -> None:
    assert done(tmp_path, [at(p0=5), at(p0=9, p1=3)], 0) == {T0: Progress.at(5), T1: Progress.at(0)}


def test_a_first_batch_of_sparks_own_source_does_not(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, ['{"t":{"0":9}}'], None))
    assert checkpoint.committed is None
    assert checkpoint.sources[0].done == {}
    assert "no partition yet" in as_text(describe(checkpoint))


@pytest.mark.parametrize("committed", [0, 1])
def test_of_a_limited_batch_only_its_begin_is_done(tmp_path: Path, committed: int) -> None:
    limits = {T0: (RangeLimit(KeyRanges([LOW]), 30, 5), RangeLimit(KeyRanges([HIGH]), 30, 7))}
    limited = BatchOffsets({T0: AHEAD}, limits=limits)
    assert done(tmp_path, [at(p0=5), limited], committed) == {T0: AHEAD}


def test_the_dict_before_may_be_gone(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, [at(p0=5), at(p0=9)], None)
    (tmp_path / "offsets" / "0").unlink()
    assert read_checkpoint(folder).sources[0].done == {}


def test_numbers_are_not_sorted_as_text(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, [at(p0=n) for n in range(11)], 10)
    assert read_checkpoint(folder).planned == 10


def test_other_sources_are_passed_over(tmp_path: Path) -> None:
    batch: list[SourceOffsets] = ['{"logOffset":3}', at(p0=5), "7", "-", at(p0=8)]
    sources = read_checkpoint(write_checkpoint(tmp_path, [batch], 0)).sources
    assert [(s.number, s.done) for s in sources] == [
        (1, {T0: Progress.at(5)}),
        (4, {T0: Progress.at(8)}),
    ]


def test_a_uri_of_a_local_directory(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    write_checkpoint(folder, [at(p0=5)], 0)
    for form in (folder.as_uri(), folder.as_uri().replace("file://", "file:")):
        assert read_checkpoint(form).planned == 0


@pytest.mark.parametrize("remote", ["s3a://bucket/x", "hdfs://name:8020/x", "dbfs:/x"])
def test_a_store_whose_package_is_not_there(remote: str) -> None:
    with pytest.raises(
        CheckpointError, match=r"needs kshare\[remote\].* copy the folders"
    ) as raised:
        read_checkpoint(remote)
    assert str(raised.value).startswith(f"{remote}: ")
    assert len(str(raised.value)) < 600


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such directory"):
        read_checkpoint(str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match="no batch is planned yet"):
        read_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointError, match="the query has no Kafka source"):
        read_checkpoint(write_checkpoint(tmp_path, ['{"logOffset":3}'], 0))


def test_a_later_spark_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, [at(p0=5)], 0, version="v3")
    with pytest.raises(CheckpointVersionError, match="v1 or v2 of Spark's offset log, found 'v3'"):
        read_checkpoint(folder)


def test_a_later_kshare_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, ['{"t":{"0":5},"@kshare":{"v":999}}'], 0)
    with pytest.raises(CheckpointVersionError):
        read_checkpoint(folder)


def test_a_damaged_dict_of_ours_is_no_other_source(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path, ['{"t":{"0":5},"@kshare":{"v":1,"nonsense":1}}', at(p0=1)], None
    )
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":5},"@kshare":1}')
    with pytest.raises(CheckpointError):
        read_checkpoint(folder)
    (tmp_path / "offsets" / "1").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="not a file of Spark's offset log"):
        read_checkpoint(folder)


# -- what it means ---------------------------------------------------------------------------------


def status_of(
    progress: Progress,
    limits: tuple[RangeLimit, ...] = (),
    *,
    log: tuple[int, int] | None = (0, 50),
    parked: dict[tuple[str, bytes], ParkedInfo] | None = None,
) -> Status:
    planned = BatchOffsets({T0: progress}, limits={T0: limits} if limits else {})
    checkpoint = Checkpoint("dir", 3, 3, (Source(0, planned, {T0: progress}),))
    return describe(checkpoint, None if log is None else {T0: log}, parked)


@given(progresses, st.integers(0, 60), st.lists(st.binary(max_size=2), max_size=3))
def test_ranges_tile_what_is_not_parked(progress: Progress, end: int, keys: list[bytes]) -> None:
    status = status_of(progress, log=(0, end), parked={("t", key): INFO for key in keys})
    (partition,) = status.partitions
    points = {one.hash for one in status.parked}
    assert points >= {key_hash(key, 0) for key in keys}
    tiles = [part for range_ in partition.ranges for part in range_.hashes]
    assert tiles == sorted(tiles)
    gaps = ALL_HASHES - tiles
    assert sorted(gaps) == sorted(HashRange.of(point) for point in points)
    positions = [range_.position for range_ in partition.ranges]
    positions += [progress.position(HashRange.of(point)) for point in points]
    assert min(positions) == progress.stable
    for range_ in partition.ranges:
        assert range_.position == min(progress.position(part) for part in range_.hashes)
        assert (range_.lag is None) == (partition.lag is None) == (end < progress.stable)
        pending = progress.pending_of(end, range_.hashes)
        assert (range_.lag or 0) == len(
            {
                offset
                for piece in pending
                for offset in range(piece.offsets.start, piece.offsets.end)
            }
        )
    assert (partition.lag or 0) >= max(range_.lag or 0 for range_ in partition.ranges)
    assert json.loads(json.dumps(as_json(status)))["partitions"][0]["stable"] == progress.stable
    assert as_text(status).startswith("dir: batch 3 planned, 3 committed\n")


def test_a_limited_batch_is_in_progress_up_to_its_end() -> None:
    limits = (RangeLimit(KeyRanges([LOW]), 30, 5), RangeLimit(KeyRanges([HIGH]), 40, 7))
    (partition,) = status_of(AHEAD, limits).partitions
    assert partition.planned_to == 40
    assert [(r.hashes, r.position, r.lag, r.limit) for r in partition.ranges] == [
        ((LOW,), 20, 30, limits[0]),
        ((HIGH,), 10, 40, limits[1]),
    ]
    assert partition.entry_bytes > 0
    text = as_text(status_of(AHEAD, limits))
    assert "t-0: stable 10, front 20, in progress up to 40, log 0 to 50, lag 40, 1 gap in " in text
    assert "50.00 % to 100.00 %        10   40                 40              7 records" in text


def test_ranges_beside_a_limited_one_are_shown() -> None:
    (partition,) = status_of(AHEAD, (RangeLimit(KeyRanges([HIGH]), 40, 7),)).partitions
    assert [(r.hashes, r.limit and r.limit.end) for r in partition.ranges] == [
        ((LOW,), None),
        ((HIGH,), 40),
    ]


def test_without_a_broker_there_is_no_lag() -> None:
    (partition,) = status_of(AHEAD, log=None).partitions
    assert (partition.log, partition.lag, partition.lost) == (None, None, 0)
    assert [range_.lag for range_ in partition.ranges] == [None, None]
    assert "lag" not in as_text(status_of(Progress.at(5), log=None))


def test_a_level_partition_has_no_entry() -> None:
    (partition,) = status_of(Progress.at(7)).partitions
    assert (partition.entry_bytes, partition.lag, partition.done.gaps) == (0, 43, 0)
    assert as_text(status_of(Progress.at(7))).endswith("\n\nt-0: stable 7, log 0 to 50, lag 43\n")


def test_pending_offsets_that_are_gone() -> None:
    status = status_of(AHEAD, log=(15, 50))
    assert status.partitions[0].lost == 5
    assert "LOST: 5 pending offsets are below the first one of the log" in as_text(status)
    assert status_of(AHEAD, log=(10, 50)).partitions[0].lost == 0


def parked_at(key: bytes, stable: int = 10, front: int = 20) -> Progress:
    point = key_hash(key, 0)
    others = ALL_HASHES - KeyRanges.of_hashes([point])
    return Progress.of(stable, [Rectangle(OffsetRange(stable, front), part) for part in others])


def test_a_parked_key_stays_behind_its_range() -> None:
    status = status_of(parked_at(b"k"), parked={("t", b"k"): INFO, ("other", b"x"): INFO})
    (one,) = status.parked
    assert (one.topic, one.key, one.info, one.positions) == ("t", b"k", INFO, {0: 10})
    (partition,) = status.partitions
    (range_,) = partition.ranges
    assert (range_.position, len(range_.hashes)) == (20, 2)
    text = as_text(status)
    assert "0.00 % to 100.00 % but 1 parked key" in text
    assert text.endswith(
        "parked  key  waits at  since                      by   why\n"
        "t       k    0: 10     2026-11-21T03:00:00+00:00  ann  bad JSON\n"
    )


def test_the_checkpoint_alone_tells_of_a_parked_hash() -> None:
    (one,) = status_of(parked_at(b"k"), log=None).parked
    assert (one.key, one.info, one.hash, one.positions) == (None, None, key_hash(b"k", 0), {0: 10})
    assert f"? (hash {one.hash})" in as_text(status_of(parked_at(b"k"), log=None))


def test_a_key_that_was_parked_and_waits_for_nothing_yet() -> None:
    (one,) = status_of(Progress.at(10), parked={("t", b"k"): INFO}).parked
    assert (one.key, one.positions) == (b"k", {})


def test_a_single_hash_that_is_ahead_or_read_now_is_not_parked() -> None:
    point = key_hash(b"k", 0)
    alone = HashRange.of(point)
    ahead = Progress.of(10, [Rectangle(OffsetRange(10, 20), alone)])
    assert status_of(ahead).parked == ()
    assert status_of(parked_at(b"k"), (RangeLimit(KeyRanges([alone]), 30, 5),)).parked == ()


@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
def test_four_times_the_parked_keys_take_four_times_the_steps(limited: bool) -> None:
    def steps(count: int) -> int:
        keys = [b"%d" % number for number in range(count)]
        others = ALL_HASHES - KeyRanges.of_hashes(key_hash(key, 0) for key in keys)
        progress = Progress.of(10, [Rectangle(OffsetRange(10, 20), part) for part in others])
        limits = (RangeLimit(others, 30, 5),) if limited else ()
        parked = {("t", key): INFO for key in keys}
        return lines_run(lambda: as_text(status_of(progress, limits, parked=parked)))

    few, many = steps(100), steps(400)
    assert few > 1000
    assert many < 5 * few


def test_several_sources() -> None:
    sources = tuple(
        Source(n, BatchOffsets({T0: Progress.at(n)}), {T0: Progress.at(n)}) for n in (0, 2)
    )
    text = as_text(describe(Checkpoint("dir", 1, None, sources)))
    assert "batch 1 planned, none committed" in text
    assert "t-0 (source 0): stable 0" in text
    assert "t-0 (source 2): stable 2" in text


def test_the_json() -> None:
    limits = (RangeLimit(KeyRanges([HIGH]), 40, 7),)
    told = as_json(status_of(AHEAD, limits, parked={("t", b"\xff"): INFO}))
    (partition,) = told["partitions"]
    assert partition["ranges"][1] == {
        "h": [[HALF, HASH_SPACE]],
        "position": 10,
        "lag": 40,
        "reading_to": 40,
        "limit": 7,
    }
    assert (partition["stable"], partition["front"], partition["gaps"]) == (10, 20, 1)
    (parked,) = told["parked"]
    assert (parked["key"], parked["why"]) == ({"hex": "ff"}, "bad JSON")


# -- keys ------------------------------------------------------------------------------------------


def test_parked_keys_as_text_and_json() -> None:
    parked = {("t", b"b"): ParkedInfo("2026"), ("s", b"\xff"): INFO}
    assert parked_text(parked).splitlines() == [
        "topic  key   since                      by   why",
        "s      0xff  2026-11-21T03:00:00+00:00  ann  bad JSON",
        "t      b     2026",
    ]
    assert parked_text({("t", b"b"): ParkedInfo("2026")}).splitlines() == [
        "topic  key  since",
        "t      b    2026",
    ]
    assert parked_text({}) == "no key is parked\n"
    assert parked_json({("t", b"b"): INFO}) == [
        {"topic": "t", "key": "b", "since": INFO.since, "by": "ann", "why": "bad JSON"}
    ]


# -- the picture -----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 400), unique=True, max_size=20).filter(lambda cuts: len(cuts) % 2 == 0),
    st.integers(0, 100),
    st.integers(1, 300),
    st.integers(1, 50),
)
def test_no_bar_hides_what_is_pending(cuts: list[int], start: int, size: int, dots: int) -> None:
    bounds = tuple(sorted(cuts))
    end = start + size
    pairs = list(zip(bounds[::2], bounds[1::2], strict=True))
    processed = {o for lo, hi in pairs for o in range(lo, hi)}
    bars = processed_bars(bounds, start, end, dots)
    dot = -(-size // dots)
    drawn: set[int] = set()
    for lo, width in bars:
        assert width > 0
        assert min(drawn, default=lo) <= lo
        assert not drawn & set(range(lo, lo + width))
        drawn |= set(range(lo, lo + width))
    assert drawn <= processed & set(range(start, end))
    assert len(bars) <= dots // 2 + 1
    # A dot that is processed as a whole is drawn as a whole, and any other not at all.
    for first in range(start, end, dot):
        whole = set(range(first, min(first + dot, end)))
        assert whole <= drawn or not whole & drawn
        assert (whole <= drawn) == any(lo <= min(whole) and max(whole) < hi for lo, hi in pairs)


@pytest.mark.parametrize(("name", "magic"), [("x.png", b"\x89PNG"), ("X.SVG", b"<?xml")])
def test_a_picture(tmp_path: Path, name: str, magic: bytes) -> None:
    status = status_of(
        parked_at(b"k"),
        (RangeLimit(KeyRanges([HashRange(0, 5)]), 30, 5),),
        parked={("t", b"k"): INFO},
    )
    draw(status, tmp_path / name)
    written = (tmp_path / name).read_bytes()
    assert written.startswith(magic)
    if magic == b"<?xml":
        assert b"t-0: stable 10, front 20, lag 40" in _comments(written)


def _comments(svg: bytes) -> bytes:
    """matplotlib draws letters as shapes, and names the text in a comment before them."""
    return b"\n".join(line for line in svg.splitlines() if line.lstrip().startswith(b"<!--"))


def test_the_partitions_with_most_to_see_are_drawn(tmp_path: Path) -> None:
    progress = {TopicPartition("t", n): Progress.at(5) for n in range(PANELS_MAX + 2)}
    progress[TopicPartition("t", 17)] = AHEAD
    checkpoint = Checkpoint("costs $5", 1, 1, (Source(0, BatchOffsets(progress), progress),))
    draw(describe(checkpoint), tmp_path / "x.svg")
    comments = _comments((tmp_path / "x.svg").read_bytes())
    assert b"t-17: stable 10, front 20" in comments
    assert b"t-14: stable 5" in comments
    assert b"t-15: " not in comments
    assert b"(left out: 2 partitions with less to see)" in comments


def test_a_picture_that_cannot_be_drawn(tmp_path: Path, monkeypatch: Any) -> None:
    status = status_of(AHEAD)
    with pytest.raises(PlotError, match=r"wanted a name that ends in \.png or \.svg"):
        draw(status, tmp_path / "x.pdf")
    with pytest.raises(PlotError, match="No such file or directory"):
        draw(status, tmp_path / "none" / "x.png")
    with pytest.raises(PlotError, match="no partition to draw yet"):
        draw(describe(Checkpoint("dir", 0, None, ())), tmp_path / "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotError, match=r"pip install 'kshare\[plot\]'"):
        draw(status, tmp_path / "x.png")


@pytest.fixture(autouse=True)
def no_window() -> Iterator[None]:
    yield
    assert "matplotlib.pyplot" not in sys.modules
