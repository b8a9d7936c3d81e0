"""The warning before retention deletes what is pending: of whom, when, how often."""

import logging
from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.broker import TopicPolicy
from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import KafkaError
from kshare.options import Topics
from kshare.planner.retention import EVERY_SECONDS, RetentionWatch

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOW = HashRange(0, HASH_SPACE // 2)
DELETED = TopicPolicy(compacted=False, retention_ms=10 * HOUR_MS)  # at risk: older than 8 hours


class Logs:
    """A cluster whose records, one an offset, are so many hours old."""

    def __init__(
        self, ages: Mapping[TopicPartition, list[float]], policies: Mapping[str, TopicPolicy]
    ) -> None:
        self._ages, self._policies = ages, policies
        self.asked: list[dict[TopicPartition, int]] = []
        self.fault: KafkaError | None = None

    def policies(self, topics: Collection[str], /) -> dict[str, TopicPolicy]:
        return {name: found for name, found in self._policies.items() if name in topics}

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int], /
    ) -> dict[TopicPartition, int | None]:
        self.asked.append(dict(timestamps_ms))
        if self.fault:
            raise self.fault
        return {
            place: next(
                (
                    offset
                    for offset, age in enumerate(self._ages[place])
                    if NOW_MS - age * HOUR_MS >= since
                ),
                None,
            )
            for place, since in timestamps_ms.items()
        }

    def partitions(self, _: Topics, /) -> tuple[TopicPartition, ...]:
        raise AssertionError("not wanted")

    def earliest(self, _: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        raise AssertionError("not wanted")

    def latest(self, _: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        raise AssertionError("not wanted")


class Clock:
    """Seconds that pass when told to."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


def watch(logs: Logs) -> tuple[RetentionWatch, Clock]:
    """A watch whose next look is due."""
    clock = Clock()
    made = RetentionWatch(logs, clock=clock, wall_clock=lambda: NOW_MS / 1000)
    clock.now += EVERY_SECONDS
    return made, clock


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8).map(lambda ages: sorted(ages)[::-1]),
    st.integers(0, 8),
)
def test_at_risk_is_a_pending_record_that_is_older_than_the_limit(
    ages: list[float], stable: int
) -> None:
    stable = min(stable, len(ages))
    seen, _ = watch(Logs({T0: ages}, {"t": DELETED}))
    seen.look({T0: Progress.at(stable)}, {T0: len(ages)})
    assert seen.at_risk == ({T0} if any(age > 8 for age in ages[stable:]) else set())


def test_the_oldest_pending_record_of_any_range_counts() -> None:
    """The log is read to its end but for one half of the hashes of its first offsets."""
    behind = Progress.of(0, [Rectangle(OffsetRange(0, 4), LOW)])
    seen, _ = watch(Logs({T0: [9, 9, 1, 1]}, {"t": DELETED}))
    seen.look({T0: behind}, {T0: 4})
    assert seen.at_risk == {T0}


def test_the_warning_names_partition_and_offset_once(caplog: pytest.LogCaptureFixture) -> None:
    seen, clock = watch(Logs({T0: [9, 9, 9, 1], T1: [1, 1, 1, 1]}, {"t": DELETED}))
    progress = {T0: Progress.at(2), T1: Progress.at(0)}
    with caplog.at_level(logging.WARNING, "kshare.planner"):
        seen.look(progress, {T0: 4, T1: 4})
        clock.now += EVERY_SECONDS
        seen.look(progress, {T0: 4, T1: 4})
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "t-0: records from offset 2 on are pending and older than 80 %" in caplog.text
        clock.now += EVERY_SECONDS
        seen.look({T0: Progress.at(4)}, {T0: 4})
        assert seen.at_risk == frozenset()
        clock.now += EVERY_SECONDS
        seen.look(progress, {T0: 4})
    assert len(caplog.records) == 2  # it was over in between


def test_it_looks_once_a_minute_and_not_at_first() -> None:
    logs, clock = Logs({T0: [9]}, {"t": DELETED}), Clock()
    seen = RetentionWatch(logs, clock=clock, wall_clock=lambda: NOW_MS / 1000)
    for _ in range(4):
        seen.look({T0: Progress.at(0)}, {T0: 1})
        clock.now += 0.4 * EVERY_SECONDS
    assert len(logs.asked) == 1
    assert logs.asked == [{T0: NOW_MS - 8 * HOUR_MS}]


def test_what_does_not_lag_is_not_asked_about() -> None:
    logs = Logs({T0: [9], T1: [9]}, {"t": DELETED})
    seen, _ = watch(logs)
    seen.look({T0: Progress.at(1), T1: Progress.at(0)}, {T0: 1, T1: 1})
    assert [set(asked) for asked in logs.asked] == [{T1}]


@pytest.mark.parametrize("retention_ms", [None, 2**63 - 1])
def test_without_a_retention_time_nothing_is_at_risk(retention_ms: int | None) -> None:
    """Nor is it with one that began before 1970: Kafka takes negative timestamps for others."""
    logs = Logs({T0: [999]}, {"t": TopicPolicy(compacted=False, retention_ms=retention_ms)})
    seen, _ = watch(logs)
    seen.look({T0: Progress.at(0)}, {T0: 1})
    assert (seen.at_risk, logs.asked) == (frozenset(), [])


def test_a_topic_whose_settings_are_secret_is_left_out() -> None:
    seen, _ = watch(Logs({T0: [9]}, {}))
    seen.look({T0: Progress.at(0)}, {T0: 1})
    assert seen.at_risk == frozenset()


def test_a_cluster_that_does_not_answer_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    logs = Logs({T0: [9]}, {"t": DELETED})
    logs.fault = KafkaError("nobody there")
    seen, clock = watch(logs)
    with caplog.at_level(logging.INFO, "kshare.planner"):
        seen.look({T0: Progress.at(0)}, {T0: 1})
    assert "cannot tell whether retention is near: nobody there" in caplog.text
    logs.fault = None
    clock.now += EVERY_SECONDS
    seen.look({T0: Progress.at(0)}, {T0: 1})
    assert seen.at_risk == {T0}
