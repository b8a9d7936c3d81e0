"""Faults, time and sockets of a reader of many slices."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kshare.core.hashing import WHOLE, key_hash, split
from kshare.core.tasks import PlannedSlice
from kshare.errors import (
    AuthorizationError,
    CorruptRecordError,
    DataLossError,
    FetchTimeoutError,
)
from kshare.kafka.protocol import broker_pool
from kshare.read.reader.read_slice import read_slice, read_slices
from kshare.testing import FakeCluster, Record
from tests.read.reader.test_read_slices import (
    Ends,
    Rows,
    belongs,
    log,
    offsets_by_partition,
    part,
    records,
    rows_of,
    slice_of,
    wholes,
)
from tests.support.batches import ABORT, batch_of, control_batch
from tests.support.scripted_cluster import Log, ScriptedCluster, read

# -- faults ---------------------------------------------------------------------------------------


def test_a_leader_that_moved_for_some_partitions() -> None:
    """The others are read on from the old one, and nothing is asked of it for those again."""
    logs = {part(n): log(100) for n in range(6)}
    cluster = ScriptedCluster(logs, response_bytes=500)
    reader = read(cluster, wholes(logs))
    rows = rows_of([next(reader)])
    for number in (1, 4):
        logs[part(number)].leader = 2
    moved_at = len(cluster.fetches)
    rows += rows_of(reader)
    assert offsets_by_partition(rows) == {each: list(range(100)) for each in logs}
    for fetch in cluster.fetches[moved_at + 2 :]:  # one was under way, and one tells of the move
        stays = {part(n) for n in (0, 2, 3, 5)}
        assert fetch.offsets.keys() <= (stays if fetch.node == 1 else logs.keys() - stays)


def test_a_fault_of_one_partition_holds_back_no_other() -> None:
    logs = {part(n): log(50) for n in range(5)}
    logs[part(3)].errors = [56] * 20
    cluster = ScriptedCluster(logs, response_bytes=1000, answer_seconds=0.001)
    rows = rows_of(read(cluster, wholes(logs), kafka__retry__backoff__ms="1000"))
    found = offsets_by_partition(rows)
    assert found == {each: list(range(50)) for each in logs}
    first_of_3 = next(n for n, row in enumerate(rows) if row["partition"] == 3)
    assert first_of_3 == 200  # all the others came before
    assert sum(cluster.clock.slept) >= 15


def test_a_fault_that_lasts_names_its_partition() -> None:
    logs = {part(n): log(50) for n in range(5)}
    logs[part(3)].errors = [56] * 1000
    with pytest.raises(FetchTimeoutError, match="no progress on t-3 at offset 0") as raised:
        list(read(ScriptedCluster(logs), wholes(logs), kafka__default__api__timeout__ms="2000"))
    assert (raised.value.topic, raised.value.partition) == ("t", 3)


def test_a_refusal_names_its_partition() -> None:
    logs = {part(0): log(50), part(1, "u"): log(50, errors=[29])}
    with pytest.raises(AuthorizationError, match="not authorized to read topic u"):
        list(read(ScriptedCluster(logs), wholes(logs)))


def test_lost_offsets_of_some_partitions() -> None:
    logs = {part(n): log(100) for n in range(6)}
    wanted = wholes(logs)
    for number in (1, 4):
        logs[part(number)].start = 30 + number
    cluster = ScriptedCluster(logs)
    rows = rows_of(read(cluster, wanted, failOnDataLoss="false"))
    expected = {each: list(range(held.start, 100)) for each, held in logs.items()}
    assert offsets_by_partition(rows) == expected
    assert cluster.calls == 2  # for all of them: earliest and latest
    with pytest.raises(DataLossError, match=r"t-1: offsets 0 to 100 are wanted.*31 to 100") as lost:
        list(read(ScriptedCluster(logs), wanted))
    assert (lost.value.partition, lost.value.wanted) == (1, (0, 100))


def test_lost_offsets_are_lost_to_the_slices_that_want_them() -> None:
    logs = {part(0): log(100, start=40)}
    halves = split(WHOLE, 2)
    wanted = [
        PlannedSlice(slice_of(part(0), 10, 90, halves[0])),
        PlannedSlice(slice_of(part(0), 50, 100, halves[1])),
    ]
    rows = rows_of(read(ScriptedCluster(logs), wanted, failOnDataLoss="false"))
    assert [row["offset"] for row in rows if belongs(row, wanted[1].slice)] == [
        offset for offset in range(50, 100) if key_hash(b"k%d" % (offset % 7), 0) in halves[1]
    ]
    assert [row["offset"] for row in rows if belongs(row, wanted[0].slice)] == [
        offset for offset in range(40, 90) if key_hash(b"k%d" % (offset % 7), 0) in halves[0]
    ]
    with pytest.raises(DataLossError, match=r"offsets 10 to 90 of the key hashes \[0,"):
        list(read(ScriptedCluster(logs), wanted))


def test_a_log_that_ends_too_early_is_told_from_one_that_is_late() -> None:
    logs = {part(0): log(100), part(1): log(100)}
    wanted = [PlannedSlice(slice_of(part(0), 0, 100)), PlannedSlice(slice_of(part(1), 0, 120))]
    options = {"kafka__default__api__timeout__ms": "1000"}
    cluster = ScriptedCluster(logs, answer_seconds=0.1)
    with pytest.raises(DataLossError, match="t-1: offsets 100 to 120 are wanted"):
        list(read(cluster, wanted, **options))
    cluster = ScriptedCluster(logs, answer_seconds=0.1)
    rows = rows_of(read(cluster, wanted, failOnDataLoss="false", **options))
    assert offsets_by_partition(rows) == {each: list(range(100)) for each in logs}


def test_a_slice_without_a_record() -> None:
    """Its offsets were compacted away, or hold only what marks transactions."""
    empty = Log([control_batch(0, 1, ABORT).encode(), batch_of([], base=1, last_delta=9).encode()])
    logs = {part(0): log(20), part(1): empty, part(2): log(20)}
    ends = Ends()
    wanted = [PlannedSlice(each.slice, 5) for each in wholes(logs)]
    on_end = {each.slice: ends.of(number) for number, each in enumerate(wanted)}
    rows = rows_of(read(ScriptedCluster(logs), wanted, on_end))
    assert offsets_by_partition(rows) == {part(0): [*range(5)], part(2): [*range(5)]}
    assert (ends.found[1].end, ends.found[1].records) == (11, 0)


def test_a_damaged_batch_names_its_partition() -> None:
    good = [records(0, 10), records(10, 10)]
    bad = bytearray(good[1])
    bad[-3] ^= 0x40
    logs = {part(0): log(20), part(1): Log([good[0], bytes(bad)]), part(2): log(20)}
    with pytest.raises(CorruptRecordError, match=r"t-1, batch at offset 10 .*checksum"):
        list(read(ScriptedCluster(logs), wholes(logs)))
    behind = [*wholes({part(0): logs[part(0)]}), PlannedSlice(slice_of(part(1), 0, 20), 10)]
    assert len(rows_of(read(ScriptedCluster(logs), behind))) == 30


def test_an_answer_about_other_partitions_is_a_fault_of_the_broker() -> None:
    logs = {part(n): log(20) for n in range(3)}

    class Confused(ScriptedCluster):
        confused_for = 3

        def answer(self, node: int, request: Any, parts: Sequence[Any]) -> memoryview:
            if len(self.fetches) <= self.confused_for:
                parts = parts[1:]
            return super().answer(node, request, parts)

    cluster = Confused(logs)
    rows = rows_of(read(cluster, wholes(logs)))
    assert offsets_by_partition(rows) == {each: list(range(20)) for each in logs}
    assert len(cluster.fetches) == 4  # those that failed together are asked for together
    cluster = Confused(logs)
    cluster.confused_for = 1_000_000
    with pytest.raises(FetchTimeoutError, match=r"request for 3 partitions without t-\d, and"):
        list(read(cluster, wholes(logs), kafka__default__api__timeout__ms="2000"))


# -- time -----------------------------------------------------------------------------------------


def test_a_throttle_of_one_broker_holds_back_no_other() -> None:
    logs = {part(n): log(60, leader=1 + n % 2) for n in range(4)}
    cluster = ScriptedCluster(logs, response_bytes=1, answer_seconds=0.001)
    cluster.throttles_ms = {1: [9000]}
    rows = rows_of(read(cluster, wholes(logs)))
    assert offsets_by_partition(rows) == {each: list(range(60)) for each in logs}
    assert [fetch.node for fetch in cluster.fetches[:13]] == [1, *[2] * 12]
    times = [fetch.at for fetch in cluster.fetches if fetch.node == 1]
    assert times[1] - times[0] == pytest.approx(9.0, abs=0.1)
    assert sum(cluster.clock.slept) < 9


def test_the_consumers_time_is_none_of_a_partition_that_waits() -> None:
    """One partition's records come late, and the consumer is slow about the others'."""
    logs = {part(0): log(100), part(1): log(10)}

    class Late(ScriptedCluster):
        def answer(self, node: int, request: Any, parts: Sequence[Any]) -> memoryview:
            if len(self.fetches) == 9:
                self.logs[part(1)] = log(20)
            return super().answer(node, request, parts)

    cluster = Late(logs, response_bytes=1, answer_seconds=0.01)
    wanted = [PlannedSlice(slice_of(part(0), 0, 100)), PlannedSlice(slice_of(part(1), 0, 20))]
    rows: Rows = []
    for batch in read(cluster, wanted, kafka__default__api__timeout__ms="1000"):
        rows += batch.to_pylist()
        cluster.clock.now += 60
    found = offsets_by_partition(rows)
    assert found == {part(0): list(range(100)), part(1): list(range(20))}


# -- over sockets ---------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(3, topics={"t": 12, "u": 1}) as running:
        for number in range(12):
            running.move_leader("t", number, 1 + number % 3)
            rows = [Record(b"k%d" % i, b"v%d" % i, partition=number) for i in range(30)]
            running.produce("t", rows)
        running.produce("u", [Record(b"k", b"v")])
        yield running
    broker_pool.close_idle()


def test_over_sockets(cluster: FakeCluster) -> None:
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "kafka.fetch.max.wait.ms": "20",
        "kafka.retry.backoff.ms": "10",
    }
    slices = [slice_of(part(n), 0, 30) for n in range(12)] + [slice_of(part(0, "u"), 0, 1)]
    expected = {each: rows_of(read_slice(each, options)) for each in slices}
    wanted = [PlannedSlice(each) for each in slices]
    for moves in (False, True):
        rows = rows_of(read_slices(wanted, options))
        for each in slices:
            assert [row for row in rows if belongs(row, each)] == expected[each]
        if not moves:
            cluster.move_leader("t", 0, 2)
            cluster.stop_broker(3)
            for number in range(2, 12, 3):
                cluster.move_leader("t", number, 1)
