"""The planner on a cluster that is a dictionary: what a dict says, and what a batch reads."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, WHOLE, split
from kshare.core.progress import Progress, Rectangle, Slice, TopicPartition
from kshare.errors import CheckpointError, DataLossError, KshareError, OptionsError
from kshare.kafka.committer import Committer
from kshare.kafka.topic_config import TopicConfig
from kshare.options import parse_options
from kshare.query.planner import StreamPlanner, Task, plan_batch
from kshare.query.planner.batch_query import Condition, Interval, RowBounds
from tests.support.clock import Clock
from tests.support.fake_logs import FakeCluster, NothingParked, batch, planner, stream


def read_by(tasks: Iterable[Task]) -> Iterable[Slice]:
    return (planned.slice for task in tasks for planned in task.slices)


def slices_of(planned: StreamPlanner, start: Any, end: Any) -> tuple[Slice, ...]:
    return tuple(read_by(planned.tasks(start, end)))


def covered(slices: Iterable[Slice]) -> dict[tuple[str, int], tuple[int, int]]:
    """The offsets that slices cover, if the slices of each partition are ranges of one hull."""
    hulls: dict[tuple[str, int], tuple[int, int]] = {}
    for piece in slices:
        hull = (piece.offsets.start, piece.offsets.end)
        assert hulls.setdefault((piece.topic, piece.partition), hull) == hull
    return hulls


def test_the_dict_of_batch_0_carries_its_start() -> None:
    cluster = FakeCluster({("t", 0): (0, 105)})
    first = planner(cluster, startingOffsets='{"t":{"0":100}}')
    end = first.latest_offsets(first.initial_offsets(), None)
    assert end == {"t": {"0": 105}, "@kshare": {"v": 1, "start": {"t": {"0": 100}}}}

    # The driver is killed; "latest" has moved; Spark plans batch 0 again with a new initial offset.
    cluster.logs[TopicPartition("t", 0)] = (0, 999)
    again = planner(cluster, startingOffsets="latest")
    slices = slices_of(again, again.initial_offsets(), end)
    assert covered(slices) == {("t", 0): (100, 105)}


def test_the_start_leaves_the_dict_with_the_next_records() -> None:
    cluster = FakeCluster({("t", 0): (0, 5), ("t", 1): (0, 7), ("t", 10): (0, 1)})
    planned = planner(cluster, startingOffsets="earliest")
    zero = planned.latest_offsets(planned.initial_offsets(), None)
    # Another dict would be another batch: foreachBatch is called for it.
    for each in (planned, planner(cluster, startingOffsets="latest", minPartitions="9")):
        assert each.latest_offsets(zero, None) == zero
        assert each.latest_offsets(zero, 1, may_wait=True) == zero
    cluster.logs[T0] = (0, 6)
    one = planned.latest_offsets(zero, None)
    assert one == {"t": {"0": 6, "1": 7, "10": 1}}  # exactly that of Spark's source
    assert covered(slices_of(planned, zero, one)) == {("t", 0): (5, 6)}
    assert planned.latest_offsets(one, None) == one


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("parked", ["[]", '["key-3"]'])
def test_a_batch_that_begins_where_it_ends_reads_nothing(restarts: bool, parked: str) -> None:
    """So is that of another source, or of a watermark; the dict may say where the query started."""
    cluster = FakeCluster({("t", 0): (0, 5)})
    given = {"startingOffsets": "earliest", "parkedKeys": parked}
    planned = planner(cluster, **given)
    zero = planned.latest_offsets(planned.initial_offsets(), None)
    if restarts:
        planned = planner(cluster, **given)
    assert planned.tasks(zero, zero) == ()
    cluster.logs[T0] = (0, 6)
    one = planned.latest_offsets(zero, None)
    assert slices_of(planned, zero, one)
    assert planned.tasks(one, one) == ()


@pytest.mark.parametrize(
    ("starting", "now", "error"),
    [
        ('{"t":{"0":4}}', {("t", 0): (0, 9), ("t", 1): (0, 3)}, "startingOffsets: .*lacks t-1"),
        ('{"t":{"0":4}}', {("t", 0): (5, 9)}, "startingOffsets: t-0: offset 4 is not in the log"),
    ],
)
def test_batch_0_runs_again_although_its_start_is_none_any_more(
    starting: str, now: dict[tuple[str, int], tuple[int, int]], error: str
) -> None:
    """Spark asks for the start again, and then plans by the dict; its own source goes on, too."""
    first = planner(FakeCluster({("t", 0): (0, 9)}), startingOffsets=starting)
    zero = first.latest_offsets(first.initial_offsets(), None)

    again = planner(FakeCluster(now), startingOffsets=starting)
    start = json.loads(json.dumps(again.initial_offsets()))
    assert covered(slices_of(again, start, zero)) == {("t", 0): (4, 9)}
    assert again.latest_offsets(zero, None)["t"]["0"] == 9

    # A query that starts with these options fails, as often as it is started.
    for _ in range(2):
        with pytest.raises(KshareError, match=error):
            again.latest_offsets(json.loads(json.dumps(again.initial_offsets())), None)


def test_a_start_that_is_there_again_is_taken() -> None:
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (0, 3)})
    planned = planner(cluster, startingOffsets='{"t":{"0":4}}')
    planned.initial_offsets()
    del cluster.logs[TopicPartition("t", 1)]
    end = planned.latest_offsets(planned.initial_offsets(), None)
    assert covered(slices_of(planned, planned.initial_offsets(), end)) == {("t", 0): (4, 9)}


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# -- where batches begin --------------------------------------------------------------------------


def test_a_checkpoint_of_sparks_source_is_taken_over() -> None:
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (3, 7)})
    planned = planner(cluster, startingOffsets="earliest", keyRanges="2")
    spark = {"t": {"0": 5, "1": 7}}
    end = planned.latest_offsets(spark, None)
    assert end == {"t": {"0": 9, "1": 7}}
    slices = slices_of(planned, spark, end)
    assert covered(slices) == {("t", 0): (5, 9)}
    assert sorted(piece.hashes for piece in slices) == list(split(WHOLE, 2))


@pytest.mark.parametrize(
    ("options", "log"),
    [
        ({"startingOffsets": '{"t":{"0":4}}'}, (0, 9)),
        ({"startingOffsets": "earliest"}, (0, 9)),
    ],
)
def test_a_batch_0_that_sparks_source_did_not_finish(
    options: dict[str, str], log: tuple[int, int]
) -> None:
    """It says where it ends only; the start is certain if options or the log give it."""
    planned = planner(FakeCluster({("t", 0): log}), **options)
    begins = int("4" in options["startingOffsets"]) * 4
    slices = slices_of(planned, planned.initial_offsets(), {"t": {"0": 9}})
    assert covered(slices) == {("t", 0): (begins, 9)}


@pytest.mark.parametrize("starting", ["latest", '{"t":{"0":-1}}', "earliest"])
def test_a_batch_0_whose_start_is_not_certain_is_refused(starting: str) -> None:
    planned = planner(FakeCluster({("t", 0): (2, 9)}), startingOffsets=starting)
    with pytest.raises(CheckpointError, match="planned by another source"):
        planned.tasks(planned.initial_offsets(), {"t": {"0": 9}})


def test_a_batch_0_of_sparks_source_is_refused_if_there_is_no_start_to_compare() -> None:
    planned = planner(FakeCluster({("t", 0): (0, 9)}), startingOffsets='{"t":{"0":1,"1":2}}')
    with pytest.raises(CheckpointError, match="planned by another source"):
        planned.tasks(planned.initial_offsets(), {"t": {"0": 9}})


def test_a_partition_that_is_new_in_a_batch_that_sparks_source_did_not_finish(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As that does when the batch runs again, it takes the earliest offset of now."""
    before, end = {"t": {"0": 5}}, {"t": {"0": 9, "1": 8}}
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (0, 9)})
    assert covered(slices_of(planner(cluster), before, end)) == {("t", 0): (5, 9), ("t", 1): (0, 8)}
    cluster.logs[T1] = (2, 9)
    with pytest.raises(DataLossError, match="t-1 is new to this query and starts at offset 2"):
        planner(cluster).tasks(before, end)
    lenient = planner(cluster, failOnDataLoss="false")
    assert covered(slices_of(lenient, before, end)) == {("t", 0): (5, 9), ("t", 1): (2, 8)}
    assert "t-1 is new to this query" in caplog.text
    cluster.logs[T1] = (9, 9)
    lenient = planner(cluster, failOnDataLoss="false")
    assert covered(slices_of(lenient, before, end)) == {("t", 0): (5, 9)}
    assert lenient.latest_offsets(end, None) == {"t": {"0": 9, "1": 9}}


@pytest.mark.parametrize("end", [0, 3])
def test_a_new_partition_is_read_from_its_earliest_offset(end: int) -> None:
    """Its dict is that of Spark's source, and so is the number of batches: one, also if empty."""
    cluster = FakeCluster({("t", 0): (0, 5)})
    planned = planner(cluster, startingOffsets="latest")
    before = {"t": {"0": 5}}
    cluster.logs[T1] = (0, end)
    after = planned.latest_offsets(before, None)
    assert after == {"t": {"0": 5, "1": end}}
    cluster.logs[T1] = (0, 7)
    for each in (planned, planner(cluster, startingOffsets="latest")):
        assert covered(slices_of(each, before, after)) == ({("t", 1): (0, end)} if end else {})
    assert planned.latest_offsets(after, None) == {"t": {"0": 5, "1": 7}}


@pytest.mark.parametrize("lenient", [False, True])
def test_a_new_partition_that_is_trimmed_or_gone_before_its_batch_runs_again(lenient: bool) -> None:
    cluster = FakeCluster({("t", 0): (0, 5), ("t", 1): (0, 3)})
    before, given = {"t": {"0": 5}}, {"failOnDataLoss": str(not lenient).lower()}
    after = planner(cluster, **given).latest_offsets(before, None)
    cluster.logs[T1] = (2, 3)
    if lenient:
        assert covered(slices_of(planner(cluster, **given), before, after)) == {("t", 1): (2, 3)}
    else:
        with pytest.raises(DataLossError, match="t-1 is new to this query and starts at offset 2"):
            planner(cluster, **given).tasks(before, after)
    # What is gone altogether, its task says.
    del cluster.logs[T1]
    assert covered(slices_of(planner(cluster, **given), before, after)) == {("t", 1): (0, 3)}


def test_a_new_partition_without_its_first_records_has_its_start_in_the_dict() -> None:
    """Retention may go on before the batch runs again: then all that was planned is lost, too."""
    cluster = FakeCluster({("t", 0): (0, 5), ("t", 1): (2, 9)})
    planned = planner(cluster, failOnDataLoss="false")
    after = planned.latest_offsets({"t": {"0": 5}}, None)
    assert after == {"t": {"0": 5, "1": 9}, "@kshare": {"v": 1, "start": {"t": {"1": 2}}}}
    cluster.logs[T1] = (4, 9)
    again = planner(cluster, failOnDataLoss="false")
    assert covered(slices_of(again, {"t": {"0": 5}}, after)) == {("t", 1): (2, 9)}
    assert again.latest_offsets(after, None) == after


def test_a_new_partition_that_has_lost_records_is_data_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 5), ("t", 1): (2, 3)})
    with pytest.raises(DataLossError, match="t-1 is new to this query and starts at offset 2"):
        planner(cluster).latest_offsets({"t": {"0": 5}}, None)
    lenient = planner(cluster, failOnDataLoss="false")
    end = lenient.latest_offsets({"t": {"0": 5}}, None)
    assert covered(slices_of(lenient, {"t": {"0": 5}}, end)) == {("t", 1): (2, 3)}
    assert "t-1 is new to this query" in caplog.text


# -- what is gone ---------------------------------------------------------------------------------


def test_a_partition_that_is_gone_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({("t", 0): (0, 5)})
    before = {"t": {"0": 5, "1": 4}}
    with pytest.raises(DataLossError, match="it was read up to offset 4") as caught:
        planner(cluster).latest_offsets(before, None)
    assert (caught.value.topic, caught.value.partition) == ("t", 1)
    lenient = planner(cluster, failOnDataLoss="false")
    assert lenient.latest_offsets(before, None) == {"t": {"0": 5}}
    assert lenient.tasks(before, {"t": {"0": 5}}) == ()
    assert "t-1 is gone" in caplog.text


def test_a_log_that_ends_before_what_was_read_is_data_loss() -> None:
    cluster = FakeCluster({("t", 0): (0, 5)})
    with pytest.raises(DataLossError, match="ends at offset 5, but was read up to 8") as caught:
        planner(cluster).latest_offsets({"t": {"0": 8}}, None)
    assert (caught.value.wanted, caught.value.available) == ((8, 8), (0, 5))
    lenient = planner(cluster, failOnDataLoss="false")
    assert lenient.latest_offsets({"t": {"0": 8}}, None) == {"t": {"0": 5}}


# -- how far batches go ---------------------------------------------------------------------------


def test_a_limit_is_shared_by_backlog() -> None:
    cluster = FakeCluster({("t", 0): (0, 30), ("t", 1): (0, 70)})
    planned = planner(cluster)
    assert planned.latest_offsets({"t": {"0": 0, "1": 0}}, 10) == {"t": {"0": 3, "1": 7}}


def test_a_minimum_is_waited_for_but_not_for_ever() -> None:
    cluster, clock = FakeCluster({("t", 0): (0, 5)}), Clock(0.0)
    planned = StreamPlanner(
        stream(minOffsetsPerTrigger="10", maxTriggerDelay="60s", startingOffsets="earliest"),
        cluster,
        parking=NothingParked(),
        clock=clock.monotonic,
    )
    at = planned.latest_offsets({"t": {"0": 0}}, None, may_wait=True)
    assert at == {"t": {"0": 5}}  # the first trigger does not wait
    cluster.logs[T0] = (0, 14)
    assert planned.latest_offsets(at, None, may_wait=True) == at
    assert planned.seen_offsets() == {"t": {"0": 14}}
    assert planned.latest_offsets(at, None) == {"t": {"0": 14}}  # AvailableNow
    clock.now = 61
    assert planned.latest_offsets(at, None, may_wait=True) == {"t": {"0": 14}}
    clock.now = 62
    cluster.logs[T0] = (0, 15)
    assert planned.latest_offsets(at, None, may_wait=True) == {"t": {"0": 15}}  # 10 are there


def test_available_now_reads_what_was_there_then() -> None:
    cluster = FakeCluster({("t", 0): (0, 5)})
    planned = planner(cluster, startingOffsets="earliest")
    planned.pin_latest()
    cluster.logs[T0] = (0, 9)
    cluster.logs[T1] = (0, 3)
    zero = planned.latest_offsets(planned.initial_offsets(), None)
    assert zero["t"] == {"0": 5}
    assert planned.latest_offsets(zero, None) == zero
    planned.unpin_latest()
    assert planned.latest_offsets(zero, None) == {"t": {"0": 9, "1": 3}}


def test_stable_offsets_are_committed_when_their_batch_is_done() -> None:
    told: list[Any] = []

    class Stable(Committer):
        def __init__(self) -> None:
            pass

        def commit(self, offsets: Any) -> None:
            told.append(dict(offsets))

        def close(self) -> None:
            told.append("closed")

    cluster = FakeCluster({("t", 0): (0, 5)})
    options = stream(startingOffsets="earliest")
    planned = StreamPlanner(options, cluster, parking=NothingParked(), commits=lambda _: Stable())
    zero = planned.latest_offsets(planned.initial_offsets(), None)
    planned.latest_offsets(zero, None)
    planned.close()
    assert told == [{}, {T0: 5}, "closed"]


def test_closing_lets_go_of_all() -> None:
    cluster, parking = FakeCluster({("t", 0): (0, 5)}), NothingParked()
    planned = StreamPlanner(stream(), cluster, parking=parking)
    planned.close()
    assert cluster.closed
    assert parking.closed


def test_what_cannot_be_closed_keeps_nothing_else_open() -> None:
    class Broken(Committer):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            raise OSError("committer")

    class BrokenParking(NothingParked):
        def close(self) -> None:
            raise OSError("parking")

    cluster = FakeCluster({("t", 0): (0, 5)})
    planned = StreamPlanner(
        stream(),
        cluster,
        parking=BrokenParking(),
        commits=lambda _: Broken(),
    )
    with pytest.raises(OSError, match="parking"):
        planned.close()
    assert cluster.closed


# -- the law --------------------------------------------------------------------------------------

cuts = st.fixed_dictionaries(
    {},
    optional={
        "keyRanges": st.integers(1, 5).map(str),
        "minPartitions": st.integers(1, 9).map(str),
        "splitBy": st.sampled_from(["key", "offset"]),
        "maxRecordsPerPartition": st.integers(1, 40).map(str),
        "rangeAssignor": st.sampled_from(
            ["round-robin", "lag-weighted"]
        ),  # no feedback: no network
    },
).filter(lambda given: not ("keyRanges" in given and given.get("splitBy") == "offset"))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 50), min_size=3, max_size=3),
            st.none() | st.integers(1, 60),
            st.booleans(),
            cuts,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_batches_tile_the_log(
    history: list[tuple[list[int], int | None, bool, dict[str, str]]],
) -> None:
    """Whatever is restarted, with other options: every offset of every hash is in one batch."""
    cluster = FakeCluster({("t", 0): (0, 1), ("t", 1): (0, 0)})
    done = {T0: Progress.at(0), T1: Progress.at(0), TopicPartition("t", 2): Progress.at(0)}
    planned = planner(cluster, startingOffsets="earliest")
    at = planned.initial_offsets()
    for growth, limit, restarts, options in history:
        for number, grown in enumerate(growth):
            place = TopicPartition("t", number)
            cluster.logs[place] = (0, cluster.logs.get(place, (0, 0))[1] + grown)
        if restarts:
            planned = planner(cluster, startingOffsets="latest", **options)
        end = planned.latest_offsets(at, limit)
        is_read = "t" in at and _places(at) == {tp: last for tp, (_, last) in cluster.logs.items()}
        assert (end == at) == is_read
        if end == at:
            continue
        again = planner(cluster, startingOffsets="latest", **options)
        slices = slices_of(planned, at, end)
        if restarts:
            assert slices_of(again, at, end) == slices
        for piece in slices:
            place = TopicPartition(piece.topic, piece.partition)
            for part in piece.rectangles:
                before = _pending(done[place])
                done[place] = done[place].commit([part])
                assert before - _pending(done[place]) == _area(part)  # none of it was read before
        at = end
        assert {place: done[place] for place in _places(at)} == {
            place: Progress.at(offset) for place, offset in _places(at).items()
        }


def _area(piece: Rectangle) -> int:
    return len(piece.offsets) * piece.hashes.width


def _pending(reached: Progress) -> int:
    return sum(_area(piece) for piece in reached.pending(1_000))


def _places(dict_: dict[str, Any]) -> dict[TopicPartition, int]:
    return {TopicPartition("t", int(number)): at for number, at in dict_["t"].items()}


# -- batch queries --------------------------------------------------------------------------------


def test_a_batch_query_reads_all_that_is_there() -> None:
    cluster = FakeCluster({("t", 0): (3, 9), ("t", 1): (0, 7), ("t", 2): (4, 4)})
    tasks = plan_batch(batch(keyRanges="2"), cluster)
    slices = list(read_by(tasks))
    assert covered(slices) == {("t", 0): (3, 9), ("t", 1): (0, 7)}
    assert len(slices) == 4
    assert all(
        planned.max_records is None and planned.ticket is None
        for task in tasks
        for planned in task.slices
    )


def test_a_batch_query_between_offsets() -> None:
    cluster = FakeCluster({("t", 0): (3, 9), ("t", 1): (0, 7)})
    options = batch(startingOffsets='{"t":{"0":4,"1":-2}}', endingOffsets='{"t":{"0":6,"1":-1}}')
    tasks = plan_batch(options, cluster)
    assert covered(read_by(tasks)) == {
        ("t", 0): (4, 6),
        ("t", 1): (0, 7),
    }


def test_a_batch_query_that_would_start_after_its_end() -> None:
    """Whatever failOnDataLoss says: Spark's RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET."""
    cluster = FakeCluster({("t", 0): (0, 9)})
    options = batch(startingOffsets='{"t":{"0":12}}', failOnDataLoss="false")
    with pytest.raises(OptionsError, match="t-0 would start at offset 12, after its end 9"):
        plan_batch(options, cluster)


def test_a_batch_query_of_key_ranges() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    half = HASH_SPACE // 2
    options = {"assign": f'{{"t": {{"0": [[0, {half}]]}}}}', "kafka.bootstrap.servers": "n:1"}
    parsed = parse_options(options, streaming=False).options
    (task,) = plan_batch(parsed, cluster)
    (planned,) = task.slices
    assert (planned.slice.hashes.lo, planned.slice.hashes.hi) == (0, half)


def test_filters_leave_out_partitions_and_offsets() -> None:
    cluster = FakeCluster({("t", 0): (0, 9), ("t", 1): (0, 9)})
    bounds = RowBounds(Interval(2, 30), (Condition("partition", "=", (1,)),))
    tasks = plan_batch(batch(), cluster, bounds)
    assert covered(read_by(tasks)) == {("t", 1): (2, 9)}
    assert plan_batch(batch(), cluster, RowBounds(Interval(9, None))) == ()


@pytest.mark.parametrize(("stamped", "begin"), [(True, 5), (False, 0)])
def test_filters_on_timestamps_count_where_brokers_stamp_records(stamped: bool, begin: int) -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    cluster.config = TopicConfig(False, None, log_append_time=stamped)
    tasks = plan_batch(batch(), cluster, RowBounds(since_ms=5))
    assert covered(read_by(tasks)) == {("t", 0): (begin, 9)}


def test_what_is_wrong_with_options_is_told_whatever_the_filters() -> None:
    cluster = FakeCluster({("t", 0): (0, 9)})
    with pytest.raises(DataLossError):
        plan_batch(batch(endingOffsets='{"t":{"0":12}}'), cluster, RowBounds(Interval(0, 1)))
