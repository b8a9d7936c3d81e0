"""Where a group shall start, and the offsets that it means."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.progress import TopicPartition
from kshare.errors import KshareError
from kshare.group.tools.reset_target import ResetTo, ShiftBy, reset_offsets

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
START = datetime(2026, 3, 1, 6, tzinfo=UTC)


class Logs:
    """A cluster whose partitions have one record for each second since START."""

    def __init__(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.bounds = bounds

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.bounds[tp][0] for tp in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.bounds[tp][1] for tp in partitions}

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        found = {}
        for tp, time_ms in timestamps_ms.items():
            first, end = self.bounds[tp]
            offset = max(-(-(time_ms - int(START.timestamp() * 1000)) // 1000), first)
            found[tp] = offset if offset < end else None
        return found


@st.composite
def logs_and_stables(
    draw: st.DrawFn,
) -> tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, int]]:
    bounds = {}
    for tp in (T0, T1):
        first = draw(st.integers(0, 50))
        bounds[tp] = first, first + draw(st.integers(0, 50))
    stable = draw(st.dictionaries(st.sampled_from([T0, T1]), st.integers(0, 200)))
    return bounds, stable


targets = st.one_of(
    st.sampled_from(["earliest", "latest", "stable"]),
    st.integers(-200, 200).map(ShiftBy),
    st.integers(-100, 100).map(lambda seconds: START + timedelta(seconds=seconds)),
    st.dictionaries(st.sampled_from([T0, T1]), st.integers(0, 200)),
)


@given(logs_and_stables(), targets)
def test_no_offset_outside_of_a_log_is_answered(
    known: tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, int]], to: ResetTo
) -> None:
    bounds, stable = known
    asked = to if isinstance(to, Mapping) else stable if to == "stable" else {}
    outside = [tp for tp, each in asked.items() if not bounds[tp][0] <= each <= bounds[tp][1]]
    logs: Any = Logs(bounds)
    if outside:
        with pytest.raises(KshareError) as caught:
            reset_offsets(to, stable, [T0, T1], logs)
        for tp in outside:
            first, end = bounds[tp]
            text = f"{tp}: offset {asked[tp]} is outside of the log, which is {first} to {end}"
            assert text in str(caught.value)
        return
    found = reset_offsets(to, stable, [T0, T1], logs)
    assert all(bounds[tp][0] <= offset <= bounds[tp][1] for tp, offset in found.items())
    if isinstance(to, Mapping):
        assert found == to
    else:
        is_relative = to == "stable" or isinstance(to, ShiftBy)
        assert found.keys() == ({*stable} if is_relative else {T0, T1})


@pytest.mark.parametrize(
    ("moment", "offset"),
    [
        (START + timedelta(seconds=7), 7),
        ((START + timedelta(seconds=7)).astimezone(timezone(timedelta(hours=2))), 7),
        ((START + timedelta(seconds=7)).replace(tzinfo=None), 7),
        (START - timedelta(days=1), 3),
        (START + timedelta(days=1), 20),
        (datetime(1960, 1, 1, tzinfo=UTC), 3),
    ],
)
def test_a_time(moment: datetime, offset: int) -> None:
    found = reset_offsets(moment, {}, [T0], Logs({T0: (3, 20)}))  # type: ignore[arg-type]
    assert found == {T0: offset}
