"""Readers in processes of each start method of multiprocessing: forkserver is 3.14's on Linux."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

import kshare
from kshare.core.hashing import WHOLE, split
from kshare.core.offsets import OffsetRange
from kshare.core.tasks import PlannedSlice, fetch_groups
from kshare.options import SourceOptions, parse_options
from kshare.testing import FakeCluster, Record
from tests.support import spawned

COUNT, RANGES = 600, 2


@pytest.fixture(scope="module")
def options() -> Iterator[SourceOptions]:
    with FakeCluster() as cluster:
        topic = cluster.create_topic("t")
        cluster.produce(topic, [Record(b"%d" % (i % 31), b"v" * 100) for i in range(COUNT)])
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
        yield parse_options(given, streaming=False).options


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_siblings_in_processes_of_their_own(options: SourceOptions, method: str) -> None:
    """Each imports kshare anew; they read a partition together, all of it once."""
    offsets = OffsetRange(0, COUNT)
    groups = fetch_groups(f"q-{os.getpid()}-{method}", "b", [(0, COUNT)] * RANGES)
    planned = [
        PlannedSlice(kshare.Slice("t", 0, (kshare.Rectangle(offsets, span),)), fetch_group=group)
        for span, group in zip(split(WHOLE, RANGES), groups, strict=True)
    ]
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(RANGES, mp_context=context) as pool:
        found = [*pool.map(spawned.read, [options] * RANGES, planned)]
    assert os.getpid() not in {process for process, _ in found}
    rows = [row for _, read in found for row in read]
    assert sorted(rows, key=lambda row: row[1]) == [(b"%d" % (i % 31), i) for i in range(COUNT)]
    assert all(read == sorted(read, key=lambda row: row[1]) for _, read in found)
