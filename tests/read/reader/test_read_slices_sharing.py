"""Tasks that read several slices share what they fetch with their siblings on the host."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kshare
from kshare.core.hashing import WHOLE, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import TopicPartition
from kshare.core.tasks import PlannedSlice, fetch_groups
from kshare.read.sharing import chunks
from kshare.read.sharing.files import opened_index
from tests.support.batches import Rec, batch_of, numbered
from tests.support.clock import WAIT_S
from tests.support.scripted_cluster import Log, ScriptedCluster, read
from tests.support.sharing import own_folder, signs

COUNT, PARTITIONS, RANGES = 100, 5, 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from own_folder(tmp_path, monkeypatch)


def logs() -> dict[TopicPartition, Log]:
    batches = [
        batch_of(numbered([Rec(b"k%d" % i, b"v" * 50) for i in range(10)]), base=base).encode()
        for base in range(0, COUNT, 10)
    ]
    return {TopicPartition("t", n): Log(batches, leader=1 + n % 2) for n in range(PARTITIONS)}


def slices_of(
    numbers: Sequence[int], *, member: int | None = None, tasks: int = RANGES
) -> list[PlannedSlice]:
    """Some of the ranges of every partition: a task's.

    Args:
        numbers: The ranges; the tasks read all of them.
        member: The number of the task; None: it shares nothing.
        tasks: How many there are.
    """
    group = None if member is None else fetch_groups("q", "b", [(0, COUNT)] * tasks)[member]
    return [
        PlannedSlice(
            kshare.Slice(
                "t",
                partition,
                (kshare.Rectangle(OffsetRange(0, COUNT), split(WHOLE, RANGES)[number]),),
            ),
            fetch_group=group,
        )
        for partition in range(PARTITIONS)
        for number in numbers
    ]


def rows(cluster: ScriptedCluster, wanted: Sequence[PlannedSlice]) -> list[tuple[Any, ...]]:
    columns = ("partition", "offset", "key", "value")
    found = [row for batch in read(cluster, wanted) for row in batch.to_pylist()]
    return sorted(tuple(row[name] for name in columns) for row in found)


@pytest.mark.parametrize("tasks", [[[0], [1], [2]], [[0, 1], [2]], [[2], [0, 1]]])
def test_tasks_one_after_the_other_fetch_once(tasks: list[list[int]]) -> None:
    for number, numbers in enumerate(tasks):
        alone = ScriptedCluster(logs(), response_bytes=2000)
        expected = rows(alone, slices_of(numbers))
        cluster = ScriptedCluster(logs(), response_bytes=2000)
        assert rows(cluster, slices_of(numbers, member=number, tasks=len(tasks))) == expected
        if number == 0:
            assert len(cluster.served) == len(set(cluster.served)) > PARTITIONS
        else:
            assert cluster.fetches == []
    assert not signs()


def test_tasks_side_by_side_fetch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none waits for another that waits for it."""
    monkeypatch.setattr(chunks, "_STALLED_SECONDS", 60.0)  # a slow machine is no stalled sibling
    monkeypatch.setattr(chunks, "_WAIT_SECONDS_MAX", 60.0)
    clusters = [ScriptedCluster(logs(), response_bytes=2000) for _ in range(RANGES)]
    found: dict[int, list[tuple[Any, ...]]] = {}

    def run(number: int) -> None:
        # Each begins with other partitions.
        wanted = slices_of([number], member=number)
        found[number] = rows(clusters[number], wanted[number:] + wanted[:number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(RANGES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    offsets = [(row[0], row[1]) for number in range(RANGES) for row in found[number]]
    assert sorted(offsets) == [(n, offset) for n in range(PARTITIONS) for offset in range(COUNT)]
    served = [each for cluster in clusters for each in cluster.served]
    assert len(served) == len(set(served))


def test_a_task_that_is_throttled_waits_for_what_siblings_are_fetching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not look for it without a pause, on the lock that they all need."""
    looks = 0
    opened = opened_index

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        assert looks < 2_000
        return opened(*args, **options)

    groups = fetch_groups("q", "b", [(0, COUNT)] * RANGES)
    assert groups[1] is not None
    sibling = chunks.SharedChunks(groups[1], "t", 1, 1 << 20)
    assert sibling.find(0, COUNT) is None  # it is for this one to fetch
    monkeypatch.setattr(chunks, "opened_index", counted)
    monkeypatch.setattr(chunks, "_STALLED_SECONDS", 0.0)
    two = {partition: log for partition, log in logs().items() if partition.partition < 2}
    for log in two.values():
        log.leader = 1
    cluster = ScriptedCluster(two, response_bytes=700)
    cluster.throttles_ms = {1: [3_000]}
    alone, *_ = slices_of([0])
    _, shared, *_ = slices_of([0], member=0)
    expected = rows(ScriptedCluster(logs()), [alone, replace(shared, fetch_group=None)])
    assert rows(cluster, [alone, shared]) == expected
    assert sum(cluster.clock.slept) == pytest.approx(3.0)
    sibling.close(done=False)


def test_a_task_that_ends_early_is_not_waited_for() -> None:
    cluster = ScriptedCluster(logs(), response_bytes=2000)
    reader = read(cluster, slices_of([0], member=0, tasks=2))
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    expected = rows(ScriptedCluster(logs()), slices_of([1, 2]))
    wanted = slices_of([1, 2], member=1, tasks=2)
    assert rows(ScriptedCluster(logs(), response_bytes=2000), wanted) == expected
