"""Queries beside a key-shared group: where they start, and what they publish."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import WHOLE, HashRange, split
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.errors import DataLossError, FencedError, OptionsError
from kshare.options import parse_options
from kshare.query.planner import StreamPlanner, Task, plan_batch
from tests.support.cells import END, cells_of, progresses, tally
from tests.support.fake_logs import FakeCluster, NothingParked, batch
from tests.support.planner import Feedback

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOWER, UPPER = split(WHOLE, 2)
GROUP = {"startingOffsets": "group", "kafka.group.id": "billing"}
MEMBER = {**GROUP, "commitOffsets": "individual"}
HALF = f'{{"t": {{"0": [[{LOWER.lo}, {LOWER.hi}]]}}}}'


class Group:
    """A group that remembers what it is asked and told."""

    def __init__(self, done: Mapping[TopicPartition, Progress] | None = None) -> None:
        self.done = dict(done or {})
        self.calls: list[Any] = []
        self.fence: FencedError | None = None

    def committed(
        self, partitions: Collection[TopicPartition], /
    ) -> Mapping[TopicPartition, Progress]:
        self.calls.append("committed")
        return {tp: self.done[tp] for tp in partitions if tp in self.done}

    def join(self, partitions: Collection[TopicPartition], /) -> Mapping[TopicPartition, Progress]:
        self.calls.append("join")
        return {tp: self.done.get(tp, Progress.at(0)) for tp in partitions}

    def commit(self, processed: Mapping[TopicPartition, Progress], /) -> None:
        if self.fence is not None:
            raise self.fence
        self.calls.append(dict(processed))

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def rectangle(start: int, end: int, hashes: HashRange = WHOLE) -> Rectangle:
    return Rectangle(OffsetRange(start, end), hashes)


def member(cluster: FakeCluster, group: Group, given: Mapping[str, str]) -> StreamPlanner:
    """A planner without records: a limited slice ends where its offsets end."""
    topics = {} if "assign" in given else {"subscribe": "t"}
    options = {"kafka.bootstrap.servers": "nowhere:9092", **topics, **given}
    return StreamPlanner(
        parse_options(options, streaming=True).options,
        cluster,
        parking=NothingParked(),
        feedback=Feedback(),
        group=group,
        scan=lambda limited, _: [SliceEnd(each.slice.offsets.end, 0) for each in limited],
    )


def slices(tasks: Iterable[Task]) -> list[Slice]:
    return [planned.slice for task in tasks for planned in task.slices]


def rectangles(tasks: Iterable[Task]) -> list[Rectangle]:
    """What tasks read of one partition."""
    return [piece for slice_ in slices(tasks) for piece in slice_.rectangles]


def read(tasks: Iterable[Task]) -> dict[TopicPartition, Progress]:
    """What tasks read, as a set."""
    done: dict[TopicPartition, Progress] = {}
    for piece in slices(tasks):
        before = done.get(piece.topic_partition, Progress.at(0))
        done[piece.topic_partition] = before.commit(piece.rectangles)
    return done


# -- where a query starts --------------------------------------------------------------------------


def test_without_gaps_a_query_starts_at_the_stable_offsets() -> None:
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (3, 7)})
    group = Group({T0: Progress.at(4)})
    planned = member(cluster, group, GROUP)
    start = planned.initial_offsets()
    assert start == {"@kshare": {"v": 1, "start": {"t": {"0": 4, "1": 3}}}}
    assert planned.latest_offsets(start, None)["t"] == {"0": 9, "1": 7}
    assert group.calls == ["committed"]  # it is no member


def test_a_member_joins_once_and_publishes_from_the_start_on() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    group = Group({T0: Progress.at(4)})
    planned = member(cluster, group, MEMBER)
    start = planned.initial_offsets()
    assert planned.initial_offsets() == start
    zero = planned.latest_offsets(start, None)
    assert planned.latest_offsets(zero, None) == zero
    planned.close()
    at = [{T0: Progress.at(offset)} for offset in (4, 9)]
    assert group.calls == ["join", *at, "flush", "close"]


def test_with_gaps_batch_0_only_writes_down_where_the_ranges_stand() -> None:
    done = Progress.of(4, [rectangle(4, 6, LOWER), rectangle(7, 8)])
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (0, 3)})
    group = Group({T0: done, T1: Progress.at(1)})
    first = member(cluster, group, GROUP)
    zero = first.latest_offsets(first.initial_offsets(), None)
    assert zero["t"] == {"0": 4, "1": 1}
    assert slices(first.tasks(first.initial_offsets(), zero)) == []

    # Killed; the group has moved; Spark plans batch 0 again, with another initial offset.
    group.done[T0] = Progress.at(9)
    again = member(cluster, group, GROUP)
    assert slices(again.tasks(again.initial_offsets(), zero)) == []
    one = again.latest_offsets(zero, None)
    assert one == {"t": {"0": 9, "1": 3}}
    assert read(again.tasks(zero, one)) == {
        T0: Progress.of(0, done.pending(9)),
        T1: Progress.of(0, [rectangle(1, 3)]),
    }


def test_a_partition_of_which_the_group_has_no_offset_starts_at_its_earliest() -> None:
    cluster = FakeCluster({("t", 0): (2, 9), ("t", 1): (3, 7)})
    planned = member(cluster, Group(), GROUP)
    assert planned.initial_offsets()["@kshare"]["start"] == {"t": {"0": 2, "1": 3}}


@pytest.mark.parametrize("stable", [1, 12])
def test_a_stable_offset_that_the_log_does_not_hold_is_data_loss(stable: int) -> None:
    cluster = FakeCluster({("t", 0): (2, 9)})
    group = Group({T0: Progress.at(stable)})
    strict = member(cluster, group, GROUP)
    with pytest.raises(DataLossError, match=f"t-0: offset {stable} is not in the log"):
        strict.latest_offsets(strict.initial_offsets(), None)
    lenient = member(cluster, group, {**GROUP, "failOnDataLoss": "false"})
    wanted = min(max(stable, 2), 9)
    assert lenient.initial_offsets()["@kshare"]["start"] == {"t": {"0": wanted}}


def test_what_others_have_read_beyond_a_pinned_end_is_no_loss() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    group = Group({T0: Progress.of(8, [rectangle(10, 12)])})
    planned = member(cluster, group, GROUP)
    planned.pin_latest()
    cluster.logs[T0] = (0, 15)
    zero = planned.latest_offsets(planned.initial_offsets(), None)
    one = planned.latest_offsets(zero, None)
    assert one == {"t": {"0": 12}}
    assert read(planned.tasks(zero, one)) == {T0: Progress.of(0, [rectangle(8, 10)])}


@given(
    progresses(),
    progresses(),
    st.integers(1, 9),
    st.sampled_from([{}, {"keyRanges": "2"}, {"maxRecordsPerTask": "2"}]),
    st.booleans(),
)
def test_a_query_reads_what_its_group_has_not_processed(
    done: Progress, other: Progress, step: int, more: dict[str, str], is_assigned: bool
) -> None:
    """Whatever the group says when batch 0 is planned again."""
    options = {**GROUP, "maxOffsetsPerTrigger": str(step), **more}
    options |= {"assign": HALF} if is_assigned else {}
    cluster = FakeCluster({("t", 0): (0, END)})
    group = Group({T0: done})
    first = member(cluster, group, options)
    zero = first.latest_offsets(first.initial_offsets(), step)
    group.done[T0] = other
    planned = member(cluster, group, options)
    at, read_pieces = planned.initial_offsets(), list[Rectangle]()
    for number in range(10 * END):
        end = zero if number == 0 else planned.latest_offsets(at, step)
        if end == at:
            break
        read_pieces += rectangles(planned.tasks(at, end))
        at = end
    wanted = done.pending(END, LOWER if is_assigned else WHOLE)
    assert tally(read_pieces) == sorted(cells_of(wanted))


# -- what a query publishes ------------------------------------------------------------------------


def test_a_query_of_its_own_start_publishes_it_unless_the_group_is_behind() -> None:
    cluster = FakeCluster({("t", 0): (2, 9)})
    given = {**MEMBER, "startingOffsets": "latest"}
    group = Group()
    planned = member(cluster, group, given)
    planned.latest_offsets(planned.initial_offsets(), None)
    assert group.calls == ["committed", {T0: Progress.at(9)}]

    for done in (Progress.at(9), Progress.of(3, [rectangle(3, 9)])):
        fine = member(cluster, Group({T0: done}), given)
        fine.latest_offsets(fine.initial_offsets(), None)

    behind = Group({T0: Progress.of(1, [rectangle(3, 4)])})
    planned = member(cluster, behind, given)
    with pytest.raises(OptionsError) as caught:
        planned.latest_offsets(planned.initial_offsets(), None)
    assert caught.value.problems == (
        (
            "startingOffsets: t-0 would start at offset 9, but group billing has not processed "
            "offset 2, and commitOffsets=individual would say that it has; set "
            "startingOffsets=group, or move the group with kshare offsets reset"
        ),
    )
    assert behind.calls == ["committed"]


def test_other_hashes_do_not_matter_to_the_start_of_a_query_that_is_assigned_some() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    group = Group({T0: Progress.of(2, [rectangle(2, 9, LOWER)])})
    given = {**MEMBER, "startingOffsets": "latest", "assign": HALF}
    planned = member(cluster, group, given)
    planned.latest_offsets(planned.initial_offsets(), None)
    assert group.calls == ["committed", {T0: Progress.at(9)}]


def test_a_restart_publishes_what_its_checkpoint_says_and_asks_nothing() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    group = Group({T0: Progress.at(1)})
    planned = member(cluster, group, {**MEMBER, "startingOffsets": "latest"})
    planned.latest_offsets({"t": {"0": 5}}, None)
    assert group.calls == [{T0: Progress.at(5)}]


def test_a_partition_that_is_gone_is_not_published() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    group = Group()
    planned = member(cluster, group, {**MEMBER, "failOnDataLoss": "false"})
    planned.latest_offsets({"t": {"0": 5, "1": 3}}, None)
    assert group.calls == [{T0: Progress.at(5)}]


def test_a_fence_ends_the_query_before_its_next_batch() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    group = Group()
    planned = member(cluster, group, MEMBER)
    group.fence = FencedError("taken", topic="t", partition=0, hashes=(), other="m")
    with pytest.raises(FencedError, match="taken"):
        planned.latest_offsets({"t": {"0": 5}}, None)


# -- batch queries ---------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"splitBy": "offset", "minPartitions": "4"}])
def test_a_batch_query_reads_what_the_group_has_not_processed(more: dict[str, str]) -> None:
    done = Progress.of(4, [rectangle(4, 6, LOWER), rectangle(7, 8)])
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (0, 3)})
    group = Group({T0: done, T1: Progress.at(3)})
    assert read(plan_batch(batch(**GROUP, **more), cluster, group=group)) == {
        T0: Progress.of(0, done.pending(9))
    }
    assert group.calls == ["committed"]


def test_a_batch_query_of_a_group_that_has_processed_all_reads_nothing() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    assert not slices(plan_batch(batch(**GROUP), cluster, group=Group({T0: Progress.at(9)})))
