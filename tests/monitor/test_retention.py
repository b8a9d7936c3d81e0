"""The warning before retention deletes what is pending: of whom, when, how often, to whom."""

import logging
from collections.abc import Collection, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.region import Rectangle
from kshare.errors import KafkaError
from kshare.kafka.topic_config import TopicConfig
from kshare.monitor.report import decode_report
from kshare.monitor.retention import EVERY_SECONDS, RetentionWatch
from kshare.options import Topics
from tests.support.clock import Clock
from tests.support.planner import KEYS, Log, Query

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOW = HashRange(0, HASH_SPACE // 2)
DELETED = TopicConfig(compacted=False, retention_ms=10 * HOUR_MS)  # at risk: older than 8 hours
# At risk: within 10 % for the oldest segment and 10 % more of the log.
BOUNDED = TopicConfig(
    compacted=False, retention_ms=None, retention_bytes=900, segment_bytes=100, batch_bytes=50
)


class Logs:
    """A cluster whose records, one an offset, are so many hours old."""

    def __init__(
        self, ages: Mapping[TopicPartition, list[float]], configs: Mapping[str, TopicConfig]
    ) -> None:
        self._ages, self._configs = ages, configs
        self.first: dict[TopicPartition, int] = {}
        self.asked: list[dict[TopicPartition, int]] = []
        self.fault: KafkaError | None = None

    def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
        return {name: found for name, found in self._configs.items() if name in topics}

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

    def earliest(self, places: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {place: self.first[place] for place in places}

    def latest(self, places: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {place: len(self._ages[place]) for place in places}


def watch(logs: Logs) -> tuple[RetentionWatch, Clock]:
    """A watch, and its clock."""
    clock = Clock(5.0)
    return RetentionWatch(logs, clock=clock.monotonic, wall_clock=lambda: NOW_MS / 1000), clock


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
    assert seen.at_risk.keys() == ({T0} if any(age > 8 for age in ages[stable:]) else set())


def test_the_oldest_pending_record_of_any_range_counts() -> None:
    """The log is read to its end but for one half of the hashes of its first offsets."""
    behind = Progress.of(0, [Rectangle(OffsetRange(0, 4), LOW)])
    seen, _ = watch(Logs({T0: [9, 9, 1, 1]}, {"t": DELETED}))
    seen.look({T0: behind}, {T0: 4})
    assert seen.at_risk.keys() == {T0}


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
        assert seen.at_risk.keys() == frozenset()
        clock.now += EVERY_SECONDS
        seen.look(progress, {T0: 4})
    assert len(caplog.records) == 2  # it was over in between


def test_it_looks_at_once_and_then_once_a_minute() -> None:
    logs = Logs({T0: [9]}, {"t": DELETED})
    seen, clock = watch(logs)
    for looks in (1, 1, 1, 2, 2, 2, 3):
        seen.look({T0: Progress.at(0)}, {T0: 1})
        assert logs.asked == looks * [{T0: NOW_MS - 8 * HOUR_MS}]
        clock.now += 0.4 * EVERY_SECONDS


def test_a_trigger_with_nothing_to_look_at_does_not_put_the_next_look_off() -> None:
    """A partition that begins with this trigger was asked for as it is, old or not."""
    seen, _ = watch(Logs({T0: [9, 9]}, {"t": DELETED}))
    seen.look({T0: Progress.at(2)}, {T0: 2})
    seen.look({T0: Progress.at(0)}, {T0: 2}, {T0})
    assert seen.at_risk.keys() == frozenset()
    seen.look({T0: Progress.at(0)}, {T0: 2})
    assert seen.at_risk.keys() == {T0}


def test_what_does_not_lag_is_not_asked_about() -> None:
    logs = Logs({T0: [9], T1: [9]}, {"t": DELETED})
    seen, _ = watch(logs)
    seen.look({T0: Progress.at(1), T1: Progress.at(0)}, {T0: 1, T1: 1})
    assert [set(asked) for asked in logs.asked] == [{T1}]


@pytest.mark.parametrize("retention_ms", [None, 2**63 - 1])
def test_without_a_retention_time_nothing_is_at_risk(retention_ms: int | None) -> None:
    """Nor is it with one that began before 1970: Kafka takes negative timestamps for others."""
    logs = Logs({T0: [999]}, {"t": TopicConfig(compacted=False, retention_ms=retention_ms)})
    seen, _ = watch(logs)
    seen.look({T0: Progress.at(0)}, {T0: 1})
    assert (dict(seen.at_risk), logs.asked) == ({}, [])


def test_a_topic_whose_settings_are_secret_is_left_out() -> None:
    seen, _ = watch(Logs({T0: [9]}, {}))
    seen.look({T0: Progress.at(0)}, {T0: 1})
    assert seen.at_risk.keys() == frozenset()


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
    assert seen.at_risk.keys() == {T0}


def test_what_was_at_risk_stays_so_while_the_cluster_does_not_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = Logs({T0: [9], T1: [9]}, {"t": DELETED})
    seen, clock = watch(logs)
    ends = {T0: 1, T1: 1}
    seen.look({T0: Progress.at(0), T1: Progress.at(0)}, ends)
    logs.fault = KafkaError("nobody there")
    clock.now += EVERY_SECONDS
    seen.look({T0: Progress.at(0), T1: Progress.at(1)}, ends)
    assert seen.at_risk.keys() == {T0}
    assert len(caplog.records) == 2  # one for each partition, before


# -- a limit of size ------------------------------------------------------------------------------


@given(st.integers(0, 1_000), st.integers(1, 1_000), st.data())
def test_at_risk_is_what_lies_near_the_start_of_a_log_with_a_size_limit(
    first: int, length: int, data: st.DataObject
) -> None:
    stable = data.draw(st.integers(first, first + length - 1))
    logs = Logs({T0: [0.0] * (first + length)}, {"t": BOUNDED})
    logs.first[T0] = first
    seen, _ = watch(logs)
    seen.look({T0: Progress.at(stable)}, {T0: first + length})
    may_be_full = 50 * length >= 900
    assert (seen.at_risk.keys() == {T0}) == (may_be_full and 5 * (stable - first) <= length)


@given(st.integers(1, 9_000), st.integers(1, 3_000), st.integers(1, 50), st.integers(0, 100))
def test_no_segment_is_deleted_without_a_warning(
    limit: int, segment: int, size: int, behind: int
) -> None:
    """Records of one size; the log is looked at when it is full, just before it is trimmed."""
    segment = max(segment, size)
    config = TopicConfig(False, None, False, limit, segment, batch_bytes=max(size, 50))
    each = segment // size  # records of the oldest segment, all of which go at once
    length = each + -(-limit // size)
    logs = Logs({T0: [0.0] * (7 + length)}, {"t": config})
    logs.first[T0] = 7
    seen, _ = watch(logs)
    pending = min(7 + behind, 7 + each - 1)
    seen.look({T0: Progress.at(pending)}, {T0: 7 + length})
    assert seen.at_risk.keys() == {T0}


def test_the_warning_of_a_size_limit_names_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The end that counts is that of now, not that of when an AvailableNow run began."""
    logs = Logs({T0: [0.0] * 110}, {"t": BOUNDED})
    logs.first[T0] = 10
    seen, _ = watch(logs)
    seen.look({T0: Progress.at(30)}, {T0: 40})
    (line,) = caplog.messages
    assert line.startswith(
        "t-0: records from offset 30 on are pending and near the start of the log, which begins at "
        "10 and ends at 110: "
    )
    assert line.endswith("raise retention.bytes.")


def test_limits_of_age_and_size_are_looked_at_together() -> None:
    config = TopicConfig(False, 10 * HOUR_MS, False, 900, 100, 50)
    logs = Logs({T0: [9.0] * 100, T1: [1.0] * 100}, {"t": config})
    logs.first = {T0: 0, T1: 0}
    seen, clock = watch(logs)
    ends = {T0: 100, T1: 100}
    seen.look({T0: Progress.at(50), T1: Progress.at(5)}, ends)
    assert seen.at_risk.keys() == {T0, T1}
    clock.now += EVERY_SECONDS
    seen.look({T0: Progress.at(50), T1: Progress.at(50)}, ends)
    assert seen.at_risk.keys() == {T0}


# -- in the planner -------------------------------------------------------------------------------


class AgingLog(Log):
    """A topic with a retention time, whose records were all written at once."""

    old = True

    def topic_configs(self, topics: Iterable[str]) -> dict[str, TopicConfig]:
        return dict.fromkeys(topics, DELETED)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        return {place: None if self.old else self.first[place] for place in timestamps_ms}


def told_of(query: Query) -> bool:
    """Whether the query's report says that retention takes what is pending."""
    reports = decode_report(query.planner.seen_offsets() or {})
    return T0 in reports and reports[T0].retention_at_risk


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"keyRanges": "2", "maxRecordsPerTask": "10", "maxTimeAhead": "off"}]
)
def test_a_run_that_goes_on_tells_log_and_report_in_its_first_trigger(
    options: dict[str, str], old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = AgingLog()
    log.old = old
    log.grow(KEYS * 5)
    query = Query(log, **options)
    query.trigger(20)
    assert (caplog.messages, told_of(query)) == ([], False)  # all was new: a log is as old as it is
    log.grow(KEYS)
    query.restart()
    query.planner.pin_latest()
    query.trigger()
    lines = [line for line in caplog.messages if "pending and older than 80 %" in line]
    assert (len(lines), told_of(query)) == (int(old), old)
    if old:  # the batch began at 20; without limits its dict says where it ends
        assert "from offset 20 on" in lines[0] or "maxRecordsPerTask" in options
        report = decode_report(query.planner.seen_offsets() or {})[T0]
        assert report.at_risk_from == int(lines[0].split("offset ")[1].split()[0])
        assert report.stable == (report.at_risk_from if "maxRecordsPerTask" in options else 72)


def test_a_parked_key_is_told_of_in_the_trigger_that_finds_nothing_else() -> None:
    log = AgingLog()
    log.grow(KEYS)
    query = Query(log, parkedKeys='["key-3"]')
    query.planner.pin_latest()
    query.trigger()
    query.trigger()
    assert told_of(query)
