"""Reading many slices together: the rows of each are those of a reader of its own."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.progress import TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.core.tasks import PlannedSlice
from kshare.errors import (
    OptionsError,
)
from kshare.read.reader.read_slice import read_slices
from tests.support.batches import ABORT, TRANSACTIONAL, Rec, batch_of, control_batch, numbered
from tests.support.scripted_cluster import Log, ScriptedCluster, read

Rows = list[dict[str, Any]]


def records(base: int, count: int, size: int = 5) -> bytes:
    """A batch of records with keys that take turns."""
    recs = [Rec(b"k%d" % ((base + i) % 7), b"%d" % (base + i) * size) for i in range(count)]
    return batch_of(numbered(recs), base=base).encode()


def log(count: int, per_batch: int = 10, size: int = 5, **more: Any) -> Log:
    """A log of so many records."""
    bases = range(0, count, per_batch)
    return Log([records(base, min(per_batch, count - base), size) for base in bases], **more)


def part(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def slice_of(
    partition: TopicPartition, start: int, end: int, hashes: HashRange = WHOLE
) -> kshare.Slice:
    rectangle = kshare.Rectangle(kshare.OffsetRange(start, end), hashes)
    return kshare.Slice(*partition, (rectangle,))


def wholes(logs: dict[TopicPartition, Log]) -> list[PlannedSlice]:
    return [
        PlannedSlice(slice_of(partition, held.start, held.end)) for partition, held in logs.items()
    ]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Rows:
    return [row for batch in batches for row in batch.to_pylist()]


def belongs(row: dict[str, Any], slice_: kshare.Slice) -> bool:
    hashed = key_hash(row["key"], row["offset"])
    return (row["topic"], row["partition"]) == (slice_.topic, slice_.partition) and any(
        row["offset"] in each.offsets and hashed in each.hashes for each in slice_.rectangles
    )


def offsets_by_partition(rows: Rows) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for row in rows:
        found.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(row["offset"])
    return found


class Ends:
    """The ends that are reported, for some slices."""

    def __init__(self) -> None:
        self.found: dict[int, SliceEnd] = {}

    def of(self, number: int) -> Any:
        def report(end: SliceEnd) -> None:
            assert number not in self.found
            self.found[number] = end

        return report


# -- the law --------------------------------------------------------------------------------------

# Made once: Hypothesis validates each strategy that is made, and a log draws a hundred times.
STEPS = st.sampled_from([1, 1, 1, 3])
KEYS = st.none() | st.sampled_from([b"a", b"b", b"c", b"d"])
FATES = st.sampled_from(["plain", "plain", "aborted"])
LOG_CODECS = st.sampled_from(["none", "lz4"])


@st.composite
def some_log(draw: st.DrawFn) -> Log:
    """Batches with holes, some of them empty, some of transactions that were aborted."""
    encoded, aborted, base = [], [], draw(st.integers(0, 5))
    start = base
    for _ in range(draw(st.integers(1, 6))):
        recs, delta = [], -1
        for _ in range(draw(st.integers(0, 12))):
            delta += draw(STEPS)
            key = draw(KEYS)
            recs.append(Rec(key, b"v" * draw(st.integers(0, 30)), delta))
        fate = draw(FATES)
        fields: dict[str, Any] = {"codec": draw(LOG_CODECS)}
        if fate == "aborted" and recs:
            fields |= {"attributes": TRANSACTIONAL, "producer": 9, "codec": "none"}
        batch = batch_of(recs, base=base, last_delta=max(delta, 0) + 1, **fields)
        encoded.append(batch.encode())
        first, base = base, base + batch.last_delta + 1
        if fate == "aborted" and recs:
            encoded.append(control_batch(base, 9, ABORT).encode())
            aborted.append((9, first, base))
            base += 1
    return Log(encoded, leader=draw(st.integers(1, 3)), start=start, aborted=aborted)


@st.composite
def some_slices(draw: st.DrawFn, logs: dict[TopicPartition, Log]) -> list[kshare.Slice]:
    """One or more of each of some partitions; no two with a record in common."""
    found = []
    for partition, held in logs.items():
        for hashes in split(WHOLE, draw(st.sampled_from([1, 1, 2, 3]))):
            cuts = sorted(draw(st.sets(st.integers(held.start, held.end), min_size=2, max_size=4)))
            pieces = zip(cuts[::2], cuts[1::2], strict=False)
            rectangles = tuple(
                kshare.Rectangle(kshare.OffsetRange(start, end), hashes) for start, end in pieces
            )
            found.append(kshare.Slice(*partition, rectangles))
    return draw(st.permutations(found))


PARTITIONS = [part(0), part(1), part(0, "other"), part(4, "other")]
FAULTS = st.none() | st.sampled_from([OSError("gone"), TimeoutError("slow")])


@given(st.data())
def test_the_rows_and_the_end_of_each_slice_are_those_of_a_reader_of_its_own(
    data: st.DataObject,
) -> None:
    draw = data.draw
    names = draw(st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True))
    logs = {partition: draw(some_log()) for partition in names}
    slices = draw(some_slices(logs))
    limits = [draw(st.none() | st.integers(1, 20)) for _ in slices]
    level = draw(st.sampled_from(["read_committed", "read_uncommitted"]))
    options = {"kafka__isolation__level": level, "kafka__fetch__max__bytes": "1000000"}

    expected: list[Rows] = []
    expected_ends, ends = Ends(), Ends()
    for number, (slice_, limit) in enumerate(zip(slices, limits, strict=True)):
        on_end = {slice_: expected_ends.of(number)}
        alone = read(ScriptedCluster(logs), [PlannedSlice(slice_, limit)], on_end, **options)
        expected.append(rows_of(alone))

    cluster = ScriptedCluster(logs, response_bytes=draw(st.sampled_from([1, 300, 1500, 1 << 20])))
    for node in (1, 2, 3):
        for what in ("lease", "send", "receive"):
            cluster.faults[what, node] = draw(st.lists(FAULTS, max_size=3))
        cluster.throttles_ms[node] = draw(st.lists(st.sampled_from([0, 500]), max_size=3))
    for held in logs.values():
        held.errors = draw(st.lists(st.none() | st.sampled_from([3, 5, 6, 56, 74]), max_size=3))
    wanted = [PlannedSlice(slice_, limit) for slice_, limit in zip(slices, limits, strict=True)]
    on_end = {slice_: ends.of(number) for number, slice_ in enumerate(slices)}
    rows = rows_of(read(cluster, wanted, on_end, **options))
    for slice_, its_rows in zip(slices, expected, strict=True):
        assert [row for row in rows if belongs(row, slice_)] == its_rows
    assert len(rows) == sum(map(len, expected))
    assert ends.found == expected_ends.found
    assert not cluster.open


# -- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaders", [1, 3])
def test_one_request_to_each_leader_brings_a_record_of_each_of_many_partitions(
    leaders: int,
) -> None:
    logs = {part(n): log(1, leader=1 + n % leaders) for n in range(200)}
    cluster = ScriptedCluster(logs)
    batches = list(read(cluster, wholes(logs)))
    assert offsets_by_partition(rows_of(batches)) == {partition: [0] for partition in logs}
    assert sorted(fetch.node for fetch in cluster.fetches) == list(range(1, leaders + 1))
    assert [len(lookup) for lookup in cluster.lookups] == [200]
    assert len(batches) == leaders  # small ones are joined


def test_the_leaders_are_asked_before_the_first_has_answered() -> None:
    logs = {part(n): log(1, leader=1 + n) for n in range(3)}
    cluster = ScriptedCluster(logs, answer_seconds=1.0)
    reader = read(cluster, wholes(logs))
    next(reader)
    assert len(cluster.fetches) == 3
    assert len({fetch.at for fetch in cluster.fetches}) == 1


def test_the_next_request_is_under_way_while_a_response_is_delivered() -> None:
    logs = {part(n): log(400, size=20) for n in range(3)}
    cluster = ScriptedCluster(logs, response_bytes=4000)
    seen = [
        [len(connection.requests) for connection in cluster.open]
        for _ in read(cluster, wholes(logs))
    ]
    assert len(seen) > 10
    assert seen[:-1] == [[1]] * (len(seen) - 1)
    assert seen[-1] == []


def test_no_request_is_under_way_for_slices_that_are_likely_to_end_by_their_limits() -> None:
    logs = {part(n): log(1000) for n in range(3)}
    cluster = ScriptedCluster(logs)
    wanted = [PlannedSlice(each.slice, 5) for each in wholes(logs)]
    assert len(rows_of(read(cluster, wanted))) == 15
    assert len(cluster.fetches) == 1


@pytest.mark.parametrize("leaders", [1, 2, 5])
def test_all_responses_together_are_no_larger_than_one_of_full_size(leaders: int) -> None:
    logs = {part(n): log(40, leader=1 + n % leaders) for n in range(10)}
    cluster = ScriptedCluster(logs)
    list(read(cluster, wholes(logs), kafka__max__partition__fetch__bytes="1000000"))
    first = {fetch.node: fetch.max_bytes for fetch in cluster.fetches[:leaders]}
    assert len(first) == leaders
    assert sum(first.values()) <= 1_000_000


def test_a_partition_with_much_does_not_starve_the_others() -> None:
    """There is room for one batch a response: each partition has its turn, and none times out."""
    logs = {part(0): log(500)} | {part(n): log(20) for n in range(1, 5)}
    cluster = ScriptedCluster(logs, response_bytes=1, answer_seconds=1.0)
    rows = rows_of(read(cluster, wholes(logs), kafka__default__api__timeout__ms="3000"))
    found = offsets_by_partition(rows)
    assert found == {each: list(range(held.end)) for each, held in logs.items()}
    small = [number for number, row in enumerate(rows) if row["partition"]]
    assert max(small) < 150  # of 580


def test_slices_of_one_partition_are_read_in_one_pass() -> None:
    logs = {part(0): log(300)}
    wanted = [PlannedSlice(slice_of(part(0), 0, 300, hashes)) for hashes in split(WHOLE, 4)]
    cluster = ScriptedCluster(logs, response_bytes=2000)
    rows = rows_of(read(cluster, wanted))
    assert sorted(row["offset"] for row in rows) == list(range(300))
    alone = ScriptedCluster(logs, response_bytes=2000)
    list(read(alone, wanted[:1]))
    assert len(cluster.fetches) == len(alone.fetches) >= 5


def test_slices_of_one_partition_that_want_other_offsets_are_read_in_turn() -> None:
    logs = {part(0): log(1000)}
    pieces = [(600, 650), (100, 150), (620, 900)]
    halves = split(WHOLE, 3)
    wanted = [
        PlannedSlice(slice_of(part(0), *piece, hashes))
        for piece, hashes in zip(pieces, halves, strict=True)
    ]
    cluster = ScriptedCluster(logs, response_bytes=1)
    rows = rows_of(read(cluster, wanted))
    for each in wanted:
        (rectangle,) = each.slice.rectangles
        assert [row["offset"] for row in rows if belongs(row, each.slice)] == [
            offset
            for offset in range(rectangle.offsets.start, rectangle.offsets.end)
            if key_hash(b"k%d" % (offset % 7), offset) in rectangle.hashes
        ]
    asked = [offset for fetch in cluster.fetches for offset in fetch.offsets.values()]
    assert asked == sorted(asked)
    assert not [offset for offset in asked if 150 <= offset < 600]


# -- output ---------------------------------------------------------------------------------------


def test_small_batches_are_joined_and_large_ones_are_not_copied_together() -> None:
    logs = {part(n): log(20) for n in range(50)} | {part(50): log(5000, 100, size=400)}
    sizes = [
        batch.nbytes for batch in read(ScriptedCluster(logs, response_bytes=8 << 20), wholes(logs))
    ]
    assert len(sizes) < 15
    assert max(sizes) <= 9 << 20


def test_an_end_is_reported_when_the_last_row_was_taken() -> None:
    logs = {part(n): log(10 + 30 * n, leader=1 + n) for n in range(4)}
    cluster, ends, taken = ScriptedCluster(logs, response_bytes=300), Ends(), Rows()
    wanted = wholes(logs)
    on_end = {each.slice: ends.of(number) for number, each in enumerate(wanted)}
    for batch in read(cluster, wanted, on_end):
        for number, end in ends.found.items():
            rows = [row for row in taken if row["partition"] == number]
            assert len(rows) == end.records == end.end == 10 + 30 * number
        taken += batch.to_pylist()
    assert sorted(ends.found) == [0, 1, 2, 3]


def test_a_reader_that_is_closed_reports_only_what_was_read() -> None:
    logs = {part(0): log(10), part(1): log(500)}
    cluster, ends = ScriptedCluster(logs, response_bytes=1), Ends()
    wanted = wholes(logs)
    on_end = {each.slice: ends.of(number) for number, each in enumerate(wanted)}
    reader = read(cluster, wanted, on_end)
    for _ in range(4):
        next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert list(ends.found) == [0]
    assert not cluster.open


def test_nothing_wanted_is_nothing_read() -> None:
    assert list(read_slices([], {"kafka.bootstrap.servers": "127.0.0.1:1"})) == []


def test_options_and_limits_are_checked_at_the_call() -> None:
    wanted = [PlannedSlice(slice_of(part(0), 0, 5)), PlannedSlice(slice_of(part(0, "u"), 0, 5))]
    with pytest.raises(OptionsError, match="isolation"):
        read_slices(wanted, {"kafka.bootstrap.servers": "x:1", "kafka.isolation.level": "all"})
    with pytest.raises(ValueError, match="max_records is 0; wanted at least 1"):
        read_slices([PlannedSlice(slice_of(part(0), 0, 5), 0)], {"kafka.bootstrap.servers": "x:1"})


def test_slices_have_bytes_and_no_typed_rows() -> None:
    options = {"kafka.bootstrap.servers": "localhost:1", "valueFormat": "string"}
    planned = PlannedSlice(slice_of(part(0), 0, 5))
    with pytest.raises(OptionsError, match="valueFormat: here, slices have bytes"):
        read_slices([planned], options)
