"""Tails that are read by several tasks: of a backlog, each offset is fetched once on a host."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kshare
from kshare.core.hashing import WHOLE
from kshare.core.progress import TopicPartition
from kshare.core.tasks import FetchGroup, PlannedSlice, fetch_groups
from kshare.kafka.protocol.background import Waker
from kshare.read.reader.fetch_loop import FetchLoop
from kshare.read.reader.fetcher import Fetcher
from kshare.read.reader.read_slice import reader_options
from kshare.read.reader.slice_records import SliceRecords
from kshare.read.reader.tail_reader import NO_END, TailReader
from kshare.read.sharing import chunks
from kshare.read.sharing.chunks import SharedChunks
from kshare.testing import FakeCluster
from tests.read.reader.test_rests import Endless
from tests.support.batches import Rec, batch_of, numbered
from tests.support.clock import WAIT_S, Clock
from tests.support.groups import group_config
from tests.support.scripted import PARTITION, ScriptedLog
from tests.support.scripted_cluster import Log, ScriptedCluster
from tests.support.sharing import own_folder

COUNT = 40
BATCHES = [
    batch_of(numbered([Rec(b"k", b"%d" % offset)]), base=offset).encode() for offset in range(COUNT)
]
OPTIONS = reader_options({"kafka.bootstrap.servers": "127.0.0.1:1"}, "t")
SIZE = len(BATCHES[0])


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        yield from own_folder(tmp_path_factory.mktemp("own"), patch)


def follow(
    loop: FetchLoop, partition: TopicPartition, start: int, group: FetchGroup | None = None
) -> None:
    """Read a partition from an offset on."""
    stripes = (kshare.Rectangle(kshare.OffsetRange(start, NO_END), WHOLE),)
    planned = PlannedSlice(kshare.Slice(*partition, stripes), fetch_group=group)
    loop.read([SliceRecords(planned, OPTIONS)], Endless())


class Tail:
    """A task's part of the log, read step by step.

    Args:
        start: Where it begins.
        group: With whom it shares.
        response_bytes: Size of a response.
    """

    def __init__(self, start: int, group: FetchGroup | None, response_bytes: int) -> None:
        self.clock = Clock()
        self.log = ScriptedLog(BATCHES, response_bytes=response_bytes)
        self.loop = FetchLoop(OPTIONS, self.log, self.clock)
        self.loop.waits_for_siblings = False
        follow(self.loop, PARTITION, start, group)
        self.offsets: list[int] = []

    def _ready(self) -> list[Fetcher]:
        left = self.loop.seconds_until_due
        if not self.loop.asked and left < float("inf"):
            self.clock.sleep(left)
        # At the log's end, a broker answers nothing.
        return [each for each in self.loop.asked if self.log.fetches[-1][0] < COUNT]

    def step(self) -> None:
        for _, batch in self.loop.step(self._ready):
            self.offsets += batch["offset"].to_pylist()

    @property
    def fetched(self) -> list[int]:
        return [offset for offset, _ in self.log.fetches]


@given(
    starts=st.lists(st.integers(0, 5), min_size=2, max_size=3),
    end=st.integers(10, COUNT),
    order=st.lists(st.integers(0, 2), max_size=60),
    response=st.integers(1, 5),
)
def test_of_a_backlog_no_offset_is_asked_for_twice(
    starts: list[int], end: int, order: list[int], response: int
) -> None:
    """Whoever comes first; and each task gets all that it reads, in order."""
    groups = fetch_groups("q", f"{starts} {end} {order} {response}", [(s, end) for s in starts])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_STALLED_SECONDS", 600.0)  # a slow machine is no sibling that hangs
        patch.setattr(chunks, "_WAIT_SECONDS_MAX", 600.0)
        tails = [Tail(*each, response * SIZE) for each in zip(starts, groups, strict=True)]
        turns = chain((tails[number % len(tails)] for number in order), cycle(tails))
        for tail in turns:
            if all(each.offsets[-1:] == [COUNT - 1] for each in tails):
                break
            tail.step()
        for tail in tails:
            tail.loop.close()
    assert [tail.offsets for tail in tails] == [list(range(start, COUNT)) for start in starts]
    below = [offset for tail in tails for offset in tail.fetched if offset < end]
    assert len(below) == len(set(below))


def test_a_siblings_chunk_is_an_answer() -> None:
    """So the time of a batch counts, whoever has fetched its records."""
    ahead, behind = fetch_groups("q", "answer", [(0, COUNT)] * 2)
    assert ahead is not None
    chunk = SharedChunks(ahead, *PARTITION, 1 << 20)
    assert chunk.look(0, COUNT) is None
    chunk.put(0, COUNT, [], memoryview(b"".join(BATCHES)))
    waker = Waker().open()
    with FakeCluster(topics={"t": 1}) as cluster, closing(waker):  # its log is empty
        options = replace(OPTIONS, kafka=group_config(cluster.bootstrap_servers).kafka)
        with closing(TailReader(options, "error", waker.open())) as tail:
            stripes = (kshare.Rectangle(kshare.OffsetRange(0, NO_END), WHOLE),)
            tail.read(kshare.Slice(*PARTITION, stripes), fetch_group=behind)
            assert tail.unanswered == [PARTITION]
            records = tail.next_records(WAIT_S)
            assert records is not None
            assert records.batch["offset"].to_pylist() == [*range(COUNT)]
            assert tail.unanswered == []
    chunk.close(done=True)


def test_a_partition_that_is_dropped_while_a_siblings_chunk_is_taken_is_read_no_more() -> None:
    """It may be read anew from elsewhere meanwhile, as when keys are parked."""
    first, second = (TopicPartition("t", number) for number in range(2))
    cluster = ScriptedCluster({each: Log(BATCHES) for each in (first, second)})
    ahead, behind = fetch_groups("q", "dropped", [(0, COUNT)] * 2)
    loops = [FetchLoop(OPTIONS, cluster, cluster.clock) for _ in range(2)]
    found: dict[TopicPartition, list[int]] = {}
    for loop, group in zip(loops, (ahead, behind), strict=True):
        loop.waits_for_siblings = False
        found = {first: [], second: []}
        for partition in found:
            follow(loop, partition, 0, group)
        while any(len(offsets) == 0 or offsets[-1] < COUNT - 1 for offsets in found.values()):
            for reader, batch in loop.step(partial(getattr, loop, "asked")):
                found[reader.topic_partition] += batch["offset"].to_pylist()
                if group is behind and not found[second]:
                    loop.drop(second)
                    follow(loop, second, 20)
    for loop in loops:
        loop.close()
    assert found == {first: [*range(COUNT)], second: [*range(20, COUNT)]}
