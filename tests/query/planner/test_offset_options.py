"""Offset options as numbers, on a cluster that is a dictionary."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.errors import DataLossError, OptionsError
from kshare.options import (
    EARLIEST,
    LATEST,
    AtTimestamp,
    OffsetSpec,
    PerPartition,
    SourceOptions,
    TimestampPerPartition,
    parse_options,
)
from kshare.options.frozen import FrozenMapping
from kshare.query.planner.cluster_view import PinnedView
from kshare.query.planner.offset_options import resolve

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


class Cluster:
    """Logs as (first, end), with a record per offset, whose timestamp is ten times the offset."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.logs = dict(logs)
        self.asked: list[str] = []

    def partitions(self, topics: Any, /) -> tuple[TopicPartition, ...]:
        return tuple(sorted(self.logs))

    def earliest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        self.asked.append("earliest")
        return {place: self.logs[place][0] for place in partitions}

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        self.asked.append("latest")
        return {place: self.logs[place][1] for place in partitions}

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        self.asked.append("timestamps")
        assert all(ms >= 0 for ms in timestamps_ms.values())
        return {
            place: next((o for o in range(*self.logs[place]) if 10 * o >= ms), None)
            for place, ms in timestamps_ms.items()
        }


def options(**given_: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "t"}
    return parse_options({**base, **given_}, streaming=True).options


LENIENT = options(failOnDataLoss="false")
LOGS = {T0: (2, 9), T1: (0, 0)}


def resolved(
    spec: OffsetSpec,
    logs: Mapping[TopicPartition, tuple[int, int]] = LOGS,
    *,
    of: SourceOptions | None = None,
    name: str = "startingOffsets",
) -> dict[TopicPartition, int]:
    return resolve(of or options(), name, spec, sorted(logs), Cluster(logs))


def per_partition(**offsets: Any) -> PerPartition:
    given_ = {TopicPartition(name[0], int(name[1:])): at for name, at in offsets.items()}
    return PerPartition(FrozenMapping(given_))


def times(otherwise: Any = "error", **ms: int) -> TimestampPerPartition:
    given_ = {TopicPartition(name[0], int(name[1:])): at for name, at in ms.items()}
    return TimestampPerPartition(FrozenMapping(given_), otherwise)


def test_earliest_and_latest() -> None:
    assert resolved(EARLIEST) == {T0: 2, T1: 0}
    assert resolved(LATEST) == {T0: 9, T1: 0}


def test_an_offset_for_each_partition() -> None:
    assert resolved(per_partition(t0=5, t1=0)) == {T0: 5, T1: 0}
    assert resolved(per_partition(t0=EARLIEST, t1=LATEST)) == {T0: 2, T1: 0}
    assert resolved(per_partition(t0=LATEST, t1=EARLIEST)) == {T0: 9, T1: 0}


@pytest.mark.parametrize("offset", [2, 9])
def test_both_ends_of_the_log_are_in_it(offset: int) -> None:
    assert resolved(per_partition(t0=offset, t1=0))[T0] == offset


@pytest.mark.parametrize(("offset", "nearest"), [(1, 2), (10, 9), (2**62, 9)])
def test_an_offset_that_is_not_in_the_log(
    offset: int, nearest: int, caplog: pytest.LogCaptureFixture
) -> None:
    spec = per_partition(t0=offset, t1=0)
    text = f"t-0: offset {offset} is not in the log, which holds 2 to 9"
    with pytest.raises(DataLossError, match=text) as caught:
        resolved(spec)
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("t", 0, offset)
    assert error.available == (2, 9)
    assert resolved(spec, of=LENIENT) == {T0: nearest, T1: 0}
    assert text in caplog.text
    assert f"Taking {nearest}" in caplog.text


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (per_partition(t0=5), "startingOffsets: .*lacks t-1"),
        (per_partition(t0=5, t1=0, t7=1), "startingOffsets: .*lists t-7"),
        (times(t0=5), "startingOffsetsByTimestamp: .*lacks t-1"),
        (times(t0=5, t1=5, u3=1), "startingOffsetsByTimestamp: .*lists u-3"),
    ],
)
def test_exactly_the_partitions_that_are_read_must_be_named(spec: OffsetSpec, text: str) -> None:
    """Whatever failOnDataLoss says."""
    for given_ in (options(), LENIENT):
        with pytest.raises(OptionsError, match=text) as caught:
            resolved(spec, of=given_)
        assert len(caught.value.problems) == 1


def test_by_timestamps() -> None:
    logs = {T0: (2, 9), T1: (0, 5)}
    assert resolved(AtTimestamp(31), logs) == {T0: 4, T1: 4}
    assert resolved(AtTimestamp(0), logs) == {T0: 2, T1: 0}
    assert resolved(times(t0=80, t1=5), logs) == {T0: 8, T1: 1}


@pytest.mark.parametrize(
    ("spec", "option"),
    [
        (AtTimestamp(45), "startingTimestamp"),
        (times(t0=45, t1=45), "startingOffsetsByTimestamp"),
    ],
)
def test_no_record_is_as_late_as_a_timestamp(spec: OffsetSpec, option: str) -> None:
    logs = {T0: (2, 9), T1: (0, 5)}
    with pytest.raises(OptionsError) as caught:
        resolved(spec, logs)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{option}: no record of t-1 has timestamp 45 or a later one")


def test_all_such_partitions_are_told_of() -> None:
    with pytest.raises(OptionsError) as caught:
        resolved(AtTimestamp(1_000), {T0: (2, 9), T1: (0, 5)})
    assert len(caught.value.problems) == 2


def test_no_record_is_as_late_and_latest_is_meant_then() -> None:
    logs = {T0: (2, 9), T1: (0, 5)}
    assert resolved(AtTimestamp(45, "latest"), logs) == {T0: 5, T1: 5}
    assert resolved(times("latest", t0=45, t1=45), logs) == {T0: 5, T1: 5}


def test_timestamps_that_mean_latest_and_earliest_to_kafka() -> None:
    logs = {T0: (2, 9), T1: (0, 5), T2: (1, 7)}
    assert resolved(AtTimestamp(-1), logs) == {T0: 9, T1: 5, T2: 7}
    assert resolved(AtTimestamp(-2), logs) == {T0: 2, T1: 0, T2: 1}
    assert resolved(times(t0=-1, t1=-2, t2=30), logs) == {T0: 9, T1: 0, T2: 3}


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        (EARLIEST, ["earliest"]),
        (LATEST, ["latest"]),
        (AtTimestamp(1), ["timestamps"]),
        (per_partition(t0=5, t1=0), ["earliest", "latest"]),
    ],
)
def test_what_it_costs(spec: OffsetSpec, asked: list[str]) -> None:
    cluster = Cluster({T0: (2, 9), T1: (0, 5)})
    resolve(options(), "startingOffsets", spec, [T0, T1], cluster)
    assert cluster.asked == asked


logs_of_three = st.fixed_dictionaries(
    {
        place: st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
            lambda pair: (pair[0], sum(pair))
        )
        for place in (T0, T1, T2)
    }
)
a_value = st.just(EARLIEST) | st.just(LATEST) | st.integers(0, 60)
specs = st.one_of(
    st.sampled_from([EARLIEST, LATEST]),
    st.builds(AtTimestamp, st.integers(-2, 500), st.just("latest")),
    st.fixed_dictionaries(dict.fromkeys((T0, T1, T2), a_value)).map(
        lambda offsets: PerPartition(FrozenMapping(offsets))
    ),
    st.fixed_dictionaries(dict.fromkeys((T0, T1, T2), st.integers(-2, 500))).map(
        lambda ms: TimestampPerPartition(FrozenMapping(ms), "latest")
    ),
)


@given(logs_of_three, specs)
def test_every_partition_gets_an_offset_that_its_log_holds(
    logs: dict[TopicPartition, tuple[int, int]], spec: OffsetSpec
) -> None:
    for given_ in (options(), LENIENT):
        try:
            found = resolved(spec, logs, of=given_)
        except DataLossError:
            assert isinstance(spec, PerPartition)
            assert given_ is not LENIENT
            continue
        assert list(found) == [T0, T1, T2]
        assert all(logs[place][0] <= at <= logs[place][1] for place, at in found.items())


# -- a pinned cluster -----------------------------------------------------------------------------


def test_a_pinned_view_keeps_partitions_and_ends() -> None:
    cluster = Cluster({T0: (2, 9), T1: (0, 5)})
    view = PinnedView(cluster, cluster.latest([T0, T1]))
    cluster.logs = {T0: (4, 12), T1: (0, 6), T2: (0, 3)}
    assert view.partitions(options().topics) == (T0, T1)
    assert view.latest([T0, T1]) == {T0: 9, T1: 5}
    assert view.earliest([T0]) == {T0: 4}
    assert resolve(options(), "startingOffsets", LATEST, [T0, T1], view) == {T0: 9, T1: 5}


def test_a_timestamp_beyond_the_pinned_end_moves_it() -> None:
    """What is older than the timestamp is not read, in this run or a later one."""
    cluster = Cluster({T0: (0, 9), T1: (0, 5)})
    view = PinnedView(cluster, cluster.latest([T0, T1]))
    cluster.logs = {T0: (0, 20), T1: (0, 20)}
    starts = resolve(options(), "startingOffsets", times(t0=150, t1=30), [T0, T1], view)
    assert starts == {T0: 15, T1: 3}
    assert view.latest([T0, T1]) == {T0: 15, T1: 5}
