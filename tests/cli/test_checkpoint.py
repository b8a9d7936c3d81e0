"""Setting a checkpoint back to its stable offsets: nothing is lost, and nothing else changes."""

import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.cli import main
from kshare.cli.checkpoint import Dropped, DropResult, drop_ranges
from kshare.core.batch import limited_slices
from kshare.core.checkpoint import EXTRA_KEY, BatchOffsets, RangeLimit, decode, encode
from kshare.core.hashing import HASH_SPACE, HashRange, KeyRanges
from kshare.core.offsets import OffsetRange, length, union
from kshare.core.open_entry import LogPosition, OpenBatch
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import CheckpointError, CheckpointVersionError
from kshare.monitor.status import read_checkpoint
from tests.support.checkpoints import SourceOffsets, write_checkpoint

HALF = HASH_SPACE // 2
LOW, HIGH = HashRange(0, HALF), HashRange(HALF, HASH_SPACE)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
AHEAD = Progress.of(10, [Rectangle(OffsetRange(10, 20), LOW), Rectangle(OffsetRange(12, 15), HIGH)])
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def drop(folder: Path | str) -> DropResult:
    return drop_ranges(str(folder), now=lambda: NOON)


def at(offset: int) -> BatchOffsets:
    return BatchOffsets({T0: Progress.at(offset)})


def offsets_in(folder: Path, batch: int, source: int = 0) -> BatchOffsets:
    return decode((folder / "offsets" / str(batch)).read_text().split("\n")[2 + source])


# -- a law ----------------------------------------------------------------------------------------

rectangles = st.builds(
    lambda start, size, part: Rectangle(OffsetRange(start, start + size), part),
    st.integers(0, 30),
    st.integers(1, 10),
    st.sampled_from([LOW, HIGH]),
)
progresses = st.builds(Progress.of, st.integers(0, 20), st.lists(rectangles, max_size=3))
limits = st.lists(
    st.builds(RangeLimit, st.just(KeyRanges([LOW])), st.integers(50, 60), st.integers(1, 9)),
    max_size=1,
).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[SourceOffsets], int | None]:
    """Two batches of a query as a planner may have written them, and the last committed one."""
    before, newest = {}, {}
    before_limits, newest_limits = {}, {}
    started = {}
    for tp in (T0, T1):
        is_new = tp == T1 and draw(st.booleans())
        reached = draw(progresses)
        if is_new:
            started[tp] = reached.stable
            reached = Progress.at(reached.stable)
        else:
            before[tp] = reached
            if of_one := draw(limits):
                before_limits[tp] = of_one
        # A dict with limits says where its batch begins; all others where it ends.
        newest[tp] = reached.commit(draw(st.lists(rectangles, max_size=3)))
        if of_one := draw(limits):
            newest_limits[tp] = of_one
            if is_new:
                newest[tp] = reached
    batches: list[SourceOffsets] = [
        BatchOffsets(
            before,
            started={tp: 0 for tp in before if tp not in before_limits and draw(st.booleans())},
            limits=before_limits,
        ),
        BatchOffsets(
            newest, started=started, limits=newest_limits, read_committed=bool(newest_limits)
        ),
    ]
    return batches, draw(st.sampled_from([0, 1]))


@given(histories())
def test_nothing_is_lost_and_what_has_no_ranges_stays(
    history: tuple[list[SourceOffsets], int | None],
) -> None:
    batches, committed = history
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_checkpoint(folder, batches, committed)
        (was,) = read_checkpoint(directory).sources
        planned = offsets_in(folder, 1)
        result = drop(folder)
        (source,) = read_checkpoint(directory).sources
        start, end = offsets_in(folder, 0), offsets_in(folder, 1)
        assert not end.limits
        assert all(reached.is_level for reached in end.progress.values())
        set_back = {dropped.topic_partition: dropped for dropped in result.dropped}
        for tp, done in was.done.items():
            assert source.done[tp].stable <= done.stable  # at least once
            if tp in set_back:
                stable = set_back[tp].stable
                assert stable is not None
                assert source.done[tp] == Progress.at(stable)
                assert end.progress[tp].stable == stable
                again = set_back[tp].again
                assert again is not None
                # At most what is processed above it, also once a batch is done that may be written.
                end_of = planned.progress[tp] if committed == 0 else done
                above = end_of.minus(Progress.at(stable))
                processed = length(union((p.offsets.start, p.offsets.end) for p in above))
                limited = [
                    each for each in limited_slices(planned) if each.slice.partition == tp[1]
                ]
                assert (again > processed) if limited else (again == processed)
                if committed == 0:  # the batch may have been written: it gets no other records
                    begin = start.progress.get(tp) or Progress.at(end.started[tp])
                    assert begin == end.progress[tp]
            else:
                assert source.done[tp] == done
                assert end.progress[tp] == planned.progress[tp]
        assert result.is_plain == (not end.started)
        # Spark's source reads the dicts of the last batch, and of the one before if it runs again.
        assert not (end if committed == 1 else start).started
        repeated = drop(folder)
        assert (repeated.dropped, repeated.backup) == ((), None)
        assert repeated.is_plain == result.is_plain


# -- examples -------------------------------------------------------------------------------------


def test_a_committed_batch_ends_at_the_stable_offset(tmp_path: Path) -> None:
    limited = (RangeLimit(KeyRanges([HIGH]), 90, 7),)
    write_checkpoint(
        tmp_path,
        [
            BatchOffsets({T0: Progress.at(3)}),
            BatchOffsets({T0: AHEAD, T1: Progress.at(8)}, {}, {T0: limited}),
        ],
        1,
    )
    text = (tmp_path / "offsets" / "1").read_text()
    result = drop(tmp_path)
    assert result.dropped == (Dropped(0, T0, 10, 10 + 7),)
    assert result.replaced == (1,)
    # As Spark's own source writes it, below the metadata that was there.
    assert (tmp_path / "offsets" / "1").read_text().split("\n") == [
        *text.split("\n")[:2],
        '{"t":{"0":10,"1":8}}',
    ]
    assert not (tmp_path / "offsets" / ".1.crc").exists()
    assert (tmp_path / "offsets" / ".0.crc").exists()
    assert result.backup == tmp_path / "offsets-before-drop-ranges-20261122T120000.000000Z"
    assert (result.backup / "1").read_text() == text
    assert sorted(file.name for file in result.backup.iterdir()) == [".1.crc", "1"]
    assert not list((tmp_path / "offsets").glob("*kshare*"))


def reads_for_a_while(progress: Progress) -> BatchOffsets:
    batch = OpenBatch("b", 5_000, "ends", LogPosition(0, 7), {T0: (KeyRanges([HIGH]),)})
    return BatchOffsets({T0: progress, T1: Progress.at(8)}, open=batch)


def test_a_batch_that_reads_for_a_while_comes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(tmp_path, [reads_for_a_while(Progress.at(3)), reads_for_a_while(AHEAD)], 1)
    assert read_checkpoint(str(tmp_path)).sources[0].done == {T0: AHEAD, T1: Progress.at(8)}
    assert main(["checkpoint", "drop-ranges", str(tmp_path)]) == 0
    assert offsets_in(tmp_path, 1) == BatchOffsets({T0: Progress.at(10), T1: Progress.at(8)})
    said = capsys.readouterr().out
    assert "t-1: back at 8, how many records come again is not known" in said
    assert "\nhow many records come again is not known\n" in said
    assert "may be written already" not in said


def test_a_batch_that_reads_for_a_while_and_is_not_committed_becomes_empty(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [reads_for_a_while(Progress.at(3)), reads_for_a_while(AHEAD)], 0)
    assert read_checkpoint(str(tmp_path)).sources[0].done == {T0: AHEAD, T1: Progress.at(8)}
    result = drop(tmp_path)
    assert result.dropped == (Dropped(0, T0, 10, None), Dropped(0, T1, 8, None))
    level = BatchOffsets({T0: Progress.at(10), T1: Progress.at(8)})
    assert offsets_in(tmp_path, 0) == offsets_in(tmp_path, 1) == level


def test_a_batch_with_an_end_behind_one_without_becomes_empty(tmp_path: Path) -> None:
    later = BatchOffsets({T0: Progress.at(50), T1: Progress.at(60)})
    write_checkpoint(tmp_path, [reads_for_a_while(AHEAD), later], 0)
    assert read_checkpoint(str(tmp_path)).sources[0].done == {T0: AHEAD, T1: Progress.at(8)}
    assert drop(tmp_path).dropped == (Dropped(0, T0, 10, 40), Dropped(0, T1, 8, 52))
    level = BatchOffsets({T0: Progress.at(10), T1: Progress.at(8)})
    assert offsets_in(tmp_path, 0) == offsets_in(tmp_path, 1) == level


def test_a_planned_batch_becomes_empty(tmp_path: Path) -> None:
    further = AHEAD.commit([Rectangle(OffsetRange(10, 40), LOW)])
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD}), BatchOffsets({T0: further})], 0)
    result = drop(tmp_path)
    assert result.dropped == (Dropped(0, T0, 10, 30),)
    assert result.replaced == (1, 0)
    assert offsets_in(tmp_path, 0) == offsets_in(tmp_path, 1) == at(10)
    assert result.backup is not None
    assert decode((Path(result.backup) / "1").read_text().split("\n")[2]).progress[T0] == further


def test_a_first_batch_that_is_planned_keeps_its_start(tmp_path: Path) -> None:
    first = BatchOffsets(
        {T0: Progress.at(3)}, started={T0: 3}, limits={T0: (RangeLimit(KeyRanges([LOW]), 9, 2),)}
    )
    write_checkpoint(tmp_path, [first], None)
    assert drop(tmp_path).dropped == (Dropped(0, T0, 3, 2),)
    assert offsets_in(tmp_path, 0) == BatchOffsets({T0: Progress.at(3)}, started={T0: 3})


def test_other_sources_stay_as_they_are(tmp_path: Path) -> None:
    batch: list[SourceOffsets] = [
        '{"logOffset":3}',
        BatchOffsets({T0: AHEAD}),
        "-",
        '{"t":{"1":5}}',
    ]
    write_checkpoint(tmp_path, [batch], 0)
    lines = (tmp_path / "offsets" / "0").read_text().split("\n")
    assert drop(tmp_path).dropped == (Dropped(1, T0, 10, 10),)
    lines[3] = '{"t":{"0":10}}'
    new = (tmp_path / "offsets" / "0").read_text().split("\n")
    assert [json.loads(line) if line[0] == "{" else line for line in new] == [
        json.loads(line) if line[0] == "{" else line for line in lines
    ]


@pytest.mark.parametrize("started", [{}, {T0: 1}])
def test_where_there_are_no_ranges_nothing_is_changed(
    tmp_path: Path, started: dict[TopicPartition, int]
) -> None:
    """A first batch that is not finished needs its start, if it has one."""
    write_checkpoint(tmp_path, [BatchOffsets({T0: Progress.at(3)}, started=started)], None)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert drop(tmp_path).dropped == ()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


STARTED = BatchOffsets({T0: AHEAD, T1: Progress.at(9)}, started={T0: 1, T1: 4})


def test_a_batch_that_reads_nothing_of_a_source_leaves_it_where_it_was(tmp_path: Path) -> None:
    """Another source has the batch's records: this one's dict stays, with where the query began."""
    batches: list[list[SourceOffsets]] = [[STARTED, at(3)], [STARTED, at(7)]]
    write_checkpoint(tmp_path, batches, 0)
    result = drop(tmp_path)
    assert (result.dropped, result.is_plain) == ((Dropped(0, T0, 10, 10),), True)
    for batch in (0, 1):
        assert offsets_in(tmp_path, batch) == BatchOffsets(
            {T0: Progress.at(10), T1: Progress.at(9)}
        )
    assert (offsets_in(tmp_path, 0, 1), offsets_in(tmp_path, 1, 1)) == (at(3), at(7))


def test_a_second_batch_that_is_not_finished_needs_no_start_of_the_first(tmp_path: Path) -> None:
    batches = [BatchOffsets({T0: Progress.at(3)}, started={T0: 1}), at(7)]
    write_checkpoint(tmp_path, batches, 0)
    result = drop(tmp_path)
    assert (result.replaced, result.is_plain) == ((0,), True)
    assert (offsets_in(tmp_path, 0), offsets_in(tmp_path, 1)) == (at(3), at(7))


# -- what is damaged -------------------------------------------------------------------------------


def damaged(stable: int) -> str:
    text = encode(BatchOffsets({T0: AHEAD}))
    text["t"]["0"] = stable
    text[EXTRA_KEY]["ic"]["t"]["0"][0]["o"] = "no base64"
    return json.dumps(text)


def test_what_cannot_be_read_is_set_back_and_the_error_says_how(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD}), damaged(10)], 1)
    with pytest.raises(CheckpointError, match="'kshare checkpoint drop-ranges DIR' sets a stopped"):
        read_checkpoint(str(tmp_path))
    assert drop(tmp_path).dropped == (Dropped(0, T0, 10, None),)
    assert read_checkpoint(str(tmp_path)).sources[0].done == {T0: Progress.at(10)}


@pytest.mark.parametrize("extra", ['{"v":1},"@kshare":{"v":1}', '{"v":1,"v":1}', '{"v":NaN}'])
def test_what_is_there_twice_is_set_back_alone(tmp_path: Path, extra: str) -> None:
    write_checkpoint(
        tmp_path, [BatchOffsets({T0: AHEAD}), f'{{"t":{{"0":10}},"@kshare":{extra}}}'], 1
    )
    with pytest.raises(CheckpointError, match="'kshare checkpoint drop-ranges DIR' sets a stopped"):
        read_checkpoint(str(tmp_path))
    assert drop(tmp_path).dropped == (Dropped(0, T0, 10, None),)
    assert read_checkpoint(str(tmp_path)).sources[0].done == {T0: Progress.at(10)}


def test_of_a_damaged_plan_the_batch_before_counts(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD}), damaged(17)], 0)
    assert drop(tmp_path).dropped == (Dropped(0, T0, 10, None),)
    assert read_checkpoint(str(tmp_path)).sources[0].done == {T0: Progress.at(10)}


def test_a_partition_that_a_damaged_plan_adds_is_left_for_the_next_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = '{"t":{"0":17,"1":5},"@kshare":{"v":1,"nonsense":[]}}'
    write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD}), plan], 0)
    assert main(["checkpoint", "drop-ranges", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  t-0: back at 10, how many records come again is not known",
        "  t-1: back at its earliest offset, how many records come again is not known",
    ]
    assert offsets_in(tmp_path, 0) == offsets_in(tmp_path, 1) == at(10)


def test_where_a_batch_begins_must_be_known(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, [damaged(10)], None)
    text = (tmp_path / "offsets" / "0").read_text()
    with pytest.raises(CheckpointError, match=r"begins in t-0 is not known: .*a new checkpoint"):
        drop(tmp_path)
    assert (tmp_path / "offsets" / "0").read_text() == text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["commits", "offsets"]


@pytest.mark.parametrize(
    "line", ['{"t":{"0":5},"@kshare":', '["@kshare"]', '{"t":{"0":-5},"@kshare":1}']
)
def test_where_spark_part_is_damaged_too_nothing_can_be_done(tmp_path: Path, line: str) -> None:
    write_checkpoint(tmp_path, [line], 0)
    with pytest.raises(CheckpointError, match="cannot be read"):
        drop(tmp_path)


def test_what_is_no_checkpoint_of_a_kafka_source(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such directory"):
        drop(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no batch is planned yet"):
        drop(tmp_path)
    with pytest.raises(CheckpointError, match="the query has no Kafka source"):
        drop(write_checkpoint(tmp_path, ['{"logOffset":3}'], 0))
    with pytest.raises(CheckpointVersionError):
        drop(write_checkpoint(tmp_path, ['{"t":{"0":5},"@kshare":{"v":999}}'], 0))
    with pytest.raises(CheckpointError, match="copy the folders offsets and commits"):
        drop("s3a://bucket/x")


# -- the command ----------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD, T1: AHEAD})], 0)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{folder}: set back to the stable offsets",
        "  t-0: back at 10, at most 10 records come again",
        "  t-1: back at 10, at most 10 records come again",
        "at most 20 records come again",
    ]
    assert last.startswith(f"offsets/0 as before: {folder}/offsets-before-drop-ranges-")
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    assert capsys.readouterr().out == f"{folder}: nothing to drop, no partition has ranges\n"


@pytest.mark.parametrize("committed", [None, 0])
def test_the_command_where_only_the_start_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], committed: int | None
) -> None:
    first = BatchOffsets({T0: Progress.at(3)}, started={T0: 1})
    folder = write_checkpoint(tmp_path, [first], committed)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    if committed is None:
        assert head == f"{folder}: nothing to drop, no partition has ranges"
        (line,) = lines
        assert line.startswith("batch 0 is not finished, and says where partitions start")
        return
    assert head == f"{folder}: left out where the query started"
    assert lines[0].startswith(f"offsets/0 as before: {folder}/offsets-before-drop-ranges-")
    assert offsets_in(tmp_path, 0) == at(3)


@pytest.mark.parametrize(
    ("started", "said"),
    [({}, "the reader schemas"), ({T0: 1}, "where the query started and the reader schemas")],
)
def test_the_command_leaves_out_reader_schemas(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    started: dict[TopicPartition, int],
    said: str,
) -> None:
    """Spark's own source cannot read them."""
    batch = BatchOffsets({T0: Progress.at(3)}, started=started, schemas={"value": "avro id:7"})
    folder = write_checkpoint(tmp_path, [batch], 0)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{folder}: left out {said}"
    assert offsets_in(tmp_path, 0) == at(3)


def test_an_unfinished_batch_loses_its_reader_schemas_alone(tmp_path: Path) -> None:
    schemas = {"value": "avro id:7"}
    batches = [BatchOffsets({T0: Progress.at(end)}, schemas=schemas) for end in (3, 5)]
    folder = write_checkpoint(tmp_path, batches, 0)
    assert drop_ranges(folder).is_plain
    assert offsets_in(tmp_path, 1) == at(5)


def test_the_command_says_what_it_cannot_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path, [damaged(10)], 0)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "  t-0: back at 10, how many records come again is not known",
        "how many records come again is not known",
    ]


def test_the_command_says_what_it_can_count_and_that_there_is_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path, [[damaged(10), BatchOffsets({T1: AHEAD})]], 0)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    said = capsys.readouterr().out
    assert "\nat most 10 records come again, and others whose number is not known\n" in said


def test_the_command_counts_a_batch_that_may_be_written_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its records come again in a batch of another number, so a sink may have them twice."""
    limits = tuple(RangeLimit(KeyRanges([part]), 5_000, 2_000) for part in (LOW, HIGH))
    few = (RangeLimit(KeyRanges([LOW]), 8, 2_000), RangeLimit(KeyRanges([HIGH]), 3, 1))
    begun = {T0: Progress.at(1_000), T1: Progress.at(3)}
    planned = BatchOffsets(begun, limits={T0: limits, T1: few})
    folder = write_checkpoint(tmp_path, [BatchOffsets(begun), planned], 0)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    said = capsys.readouterr().out
    assert "t-0: back at 1,000, at most 4,000 records come again" in said
    assert "t-1: back at 3, at most 5 records come again" in said
    assert "batch 1 is not finished, and may be written already: what it has of these" in said


def test_the_command_tells_of_no_batch_that_reads_nothing_of_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_checkpoint(tmp_path, [[STARTED, at(3)], [STARTED, at(7)]], 0)
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    said = capsys.readouterr().out
    assert "at most 10 records come again" in said
    assert "written already" not in said


@pytest.mark.parametrize("arguments", [[], ["drop"], ["drop-ranges"]])
def test_wrong_arguments(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", *arguments])
    assert ended.value.code == 2
    assert main(["checkpoint", "drop-ranges", "/nowhere"]) == 1
    assert "kshare checkpoint: /nowhere: there is no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(("age", "warned"), [(5.0, True), (3600.0, False)])
def test_a_query_that_may_still_run_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], age: float, warned: bool
) -> None:
    folder = write_checkpoint(tmp_path, [BatchOffsets({T0: AHEAD})], 0)
    written = time.time() - age
    for file in ("offsets/0", "commits/0"):
        os.utime(tmp_path / file, (written, written))
    assert main(["checkpoint", "drop-ranges", folder]) == 0
    assert ("stop it, and repeat" in capsys.readouterr().err) is warned
