"""Batches in which every range goes its own way, of a log that loses records or partitions.

The one memory of the last batches.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kshare.core.checkpoint import BatchOffsets
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.losses import Loss
from kshare.core.progress import Slice, TopicPartition
from kshare.core.slice_end import SliceEnd
from kshare.errors import DataLossError, KafkaError, UnknownTopicError
from kshare.kafka.topic_config import TopicConfig
from kshare.query.planner.batch_history import (
    REMEMBERED,
    RecentBatch,
    RecentBatches,
    batch_name,
    raise_or_warn,
)
from tests.support.effort import examples
from tests.support.planner import KEYS, T0, Log, Query, grown


def test_what_was_pending_and_is_gone_is_an_error() -> None:
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="10")
    query.trigger()
    query.log.first[T0] = 150
    with pytest.raises(DataLossError, match="were pending and are gone") as caught:
        query.trigger()
    assert "of the key hashes [" in str(caught.value)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_gone_is_passed_over_if_the_user_said_so(
    restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    lenient = {"failOnDataLoss": "false"}
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="10", **lenient)
    query.trigger()
    before = set(query.delivered)
    query.log.first[T0] = 150
    if restarted:
        query.restart()
    tasks = query.trigger()
    assert [task.max_records for task in tasks] == [10, 10]
    assert min(task.slice.offsets.start for task in tasks) == 150
    query.drain()
    query.check_order()
    assert set(query.delivered) == before | {(T0, offset) for offset in range(150, 200)}
    assert "since failOnDataLoss is false" in caplog.text
    assert query.at == {"t": {"0": 200}}


def test_a_parked_key_whose_records_are_gone_is_told_of() -> None:
    query = Query(grown(200), parkedKeys='["key-3"]')
    query.drain()
    query.log.first[T0] = 150
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        query.trigger()
    kept = len(query.delivered)
    query.restart(failOnDataLoss="false", parkedKeys="[]")
    query.drain()
    assert {o for _, o in query.delivered[kept:]} == {
        o for o in range(150, 200) if query.log.keys[T0][o] == KEYS[3]
    }


def test_a_parked_key_without_a_record_may_have_had_one_where_the_log_was_trimmed() -> None:
    """The way out is one start that is lenient; nothing that was delivered comes again."""
    query = Query(grown(200))
    query.parking.keys = {("t", b"nobody")}
    query.drain()
    query.log.first[T0] = 150
    query.log.grow([KEYS[0]])
    with pytest.raises(DataLossError, match="if these hashes had records there"):
        query.trigger()
    query.parking.keys = set()
    query.restart(failOnDataLoss="false")
    query.drain()
    query.restart(failOnDataLoss="true")
    query.drain()
    query.check_all()


class Aging(Log):
    """All of its records are about to be deleted."""

    def topic_configs(self, topics: Collection[str], /) -> dict[str, TopicConfig]:
        return {topic: TopicConfig(compacted=False, retention_ms=1_000) for topic in topics}


LIMITS = [{}, {"keyRanges": "3", "maxRecordsPerTask": "20"}]


@pytest.mark.parametrize("given", LIMITS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_parked_key_without_a_record_holds_nothing_that_retention_takes(
    given: dict[str, str], restarted: bool
) -> None:
    log = Aging(2)
    log.grow(KEYS * 20)
    query = Query(log, **given)
    query.parking.keys = {("t", b"nobody")}
    for _ in range(3):  # one sees the risk, one looks, one reads what it has kept back
        if restarted:
            query.restart()
            query.drain()
        log.grow(KEYS)
        query.drain()
    end = min(len(keys) for keys in log.keys.values())
    log.first = dict.fromkeys(log.keys, end - len(KEYS))
    log.grow(KEYS)
    query.drain()  # or it would be data loss
    query.parking.keys = set()
    query.drain()
    query.check_all()


@pytest.mark.parametrize("given", LIMITS)
def test_a_parked_key_that_is_looked_for_keeps_its_records(given: dict[str, str]) -> None:
    log = Aging()
    log.grow([KEYS[0]] * 50 + KEYS * 10)
    query = Query(log, **given)
    query.parking.keys = {("t", KEYS[3]), ("t", b"nobody")}
    first = 50 + KEYS.index(KEYS[3])
    for _ in range(4):
        log.grow(KEYS)
        query.drain()
    scans = query.scans
    for _ in range(4):
        log.grow([KEYS[0]])
        query.trigger()
    assert query.scans == scans  # its first record is known
    log.first[T0] = first
    log.grow(KEYS)
    query.drain()
    query.parking.keys = set()
    query.drain()
    query.check_all()


def test_a_partition_reads_while_its_parked_keys_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kshare.query.planner.end_offsets._PARKED_OFFSETS_MAX", 7)
    log = Aging()
    log.grow(KEYS * 20)
    query = Query(log)
    query.parking.keys = {("t", b"nobody")}
    query.drain()
    query.trigger()
    for _ in range(10):
        log.grow(KEYS)
        query.trigger()
        query.trigger()
        assert len(query.delivered) == len(log.keys[T0])
    query.parking.keys = set()
    query.drain()
    query.check_all()


def test_a_log_that_is_trimmed_while_parked_keys_are_looked_for_is_no_fault_of_the_look() -> None:
    log = Aging()
    log.grow(KEYS * 20)
    query = Query(log)
    query.parking.keys = {("t", b"nobody")}
    query.trigger()
    query.trigger()  # sees the risk
    log.first[T0] = 100
    with pytest.raises(DataLossError, match="if these hashes had records there"):
        query.trigger()


@examples(60)
@given(st.integers(1, 99), st.integers(1, 4), st.integers(1, 20), st.integers(0, 2))
def test_what_may_not_have_been_read_comes_at_least_once(
    first: int, ranges: int, most: int, batches: int
) -> None:
    """The log is trimmed, and nobody knows how far the tasks came."""
    query = Query(grown(100), keyRanges=str(ranges), maxRecordsPerTask=str(most))
    for _ in range(batches + 1):
        query.trigger()
    query.feedback.told.clear()
    query.log.first[T0] = first
    query.restart(failOnDataLoss="false")
    query.drain()
    assert {offset for _, offset in query.delivered} >= set(range(first, 100))
    assert query.at == {"t": {"0": 100}}


def test_a_log_that_was_truncated_below_the_front() -> None:
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="20")
    query.parking.keys = {("t", KEYS[3])}
    query.drain()
    del query.log.keys[T0][100:]
    with pytest.raises(DataLossError, match="ends at offset 100, but was read up to 200"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    query.drain()
    query.parking.keys = set()
    query.log.grow(KEYS)
    kept = len(query.delivered)
    query.drain()
    late = [offset for _, offset in query.delivered[kept:]]
    keys = query.log.keys[T0]
    assert set(late) == {o for o in range(100) if keys[o] == KEYS[3]} | set(range(100, 112))


def test_an_open_transaction_is_named_where_a_query_reads_committed_records_now() -> None:
    class InTransaction(Log):
        stable_end = 190

        def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
            ends = super().latest(partitions)
            return dict.fromkeys(ends, self.stable_end) if query.committed else ends

    log = InTransaction()
    log.grow(KEYS * 20)
    query = Query(log)
    query.drain()
    query.restart(**{"kafka.isolation.level": "read_committed"})
    with pytest.raises(DataLossError, match=r"ends at offset 190, .* a transaction is open there"):
        query.trigger()
    log.stable_end = 240  # it has ended
    query.drain()
    query.check_all()


@pytest.mark.parametrize("given", [{}, {"keyRanges": "2", "maxRecordsPerTask": "20"}])
def test_a_topic_that_was_made_again_while_the_query_ran(
    given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    for lenient in ("true", "false"):
        query = Query(grown(100), failOnDataLoss=lenient, **given)
        query.drain()
        query.log.keys[T0], query.log.ids = KEYS * 12, {"t": "second"}
        if lenient == "true":
            with pytest.raises(DataLossError, match=r"topic t was deleted .* to offset 100 before"):
                query.trigger()
            continue
        query.drain()
        assert caplog.text.count("topic t was deleted and made again") == 1
        assert sorted(query.delivered[100:]) == [(T0, offset) for offset in range(100, 144)]


def test_a_topic_that_was_made_again_with_fewer_records_is_one_loss() -> None:
    query = Query(grown(100))
    query.trigger()
    query.log.keys[T0], query.log.ids = KEYS[:], {"t": "second"}
    with pytest.raises(DataLossError, match="ends at offset 12, but was read up to 100"):
        query.trigger()


def test_a_topic_of_which_nothing_was_read_may_be_made_again() -> None:
    query = Query(Log())
    query.trigger()
    query.log.grow(KEYS)
    query.log.ids = {"t": "second"}
    query.drain()
    query.check_all()


class CutOff(Log):
    """A log one of whose brokers has fewer records, and is asked until there is a new client."""

    missing = 0

    def latest(self, partitions: Iterable[TopicPartition], /) -> dict[TopicPartition, int]:
        return {tp: end - self.missing for tp, end in super().latest(partitions).items()}

    def close(self) -> None:
        self.missing = 0


@pytest.mark.parametrize("lenient", ["true", "false"])
@pytest.mark.parametrize("pinned", [False, True])
def test_the_end_by_a_former_leader_is_no_loss(
    lenient: str, pinned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = CutOff()
    log.grow(KEYS * 10)
    query = Query(log, failOnDataLoss=lenient)
    query.drain()
    log.missing = 10
    query.restart()
    if pinned:
        query.planner.pin_latest()
    query.drain()
    log.grow(KEYS)
    if pinned:
        query.drain()
        assert len(query.delivered) == 120
        query.restart()
    query.drain()
    query.check_all()
    assert "failOnDataLoss" not in caplog.text


def test_a_topic_that_is_deleted_before_its_ends_were_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(grown(100, partitions=2), keyRanges="2", maxRecordsPerTask="10")
    query.loss = 1.0
    query.trigger()
    gone = TopicPartition("t", 1)
    kept = query.log.keys.pop(gone)
    read = query.log.read

    def deleted(slice_: Slice, most: int | None, **how: bool) -> Any:
        if slice_.partition == 1:
            raise UnknownTopicError("topic t has no partition 1")
        return read(slice_, most, **how)

    query.log.read = deleted  # type: ignore[method-assign]
    with pytest.raises(DataLossError, match="it was read up to offset 0"):
        query.trigger()
    query.restart(failOnDataLoss="false")
    query.drain()
    assert "t-1 is gone" in caplog.text
    assert query.at == {"t": {"0": 50}}
    query.log.keys[gone] = kept
    query.check_order()


def test_a_partition_that_is_not_assigned_any_more() -> None:
    log = grown(60, partitions=2)
    query = Query(log, keyRanges="2", maxRecordsPerTask="10")
    query.loss = 1.0
    query.trigger()
    options = {
        "kafka.bootstrap.servers": "nowhere:9092",
        "assign": '{"t": [0]}',
        "maxRecordsPerTask": "10",
        "failOnDataLoss": "false",
    }
    log.subscribed = {T0}
    query.plan_with(options)
    query.drain()
    assert query.at == {"t": {"0": 30}}
    assert {offset for place, offset in query.delivered if place == T0} == set(range(30))
    query.check_order()


HALVES = split(WHOLE, 2)


def assigned(half: HashRange) -> dict[str, str]:
    topics = json.dumps({"t": {"0": [[half.lo, half.hi]]}})
    return {"kafka.bootstrap.servers": "nowhere:9092", "assign": topics, "maxRecordsPerTask": "10"}


def test_key_hashes_that_are_not_assigned_any_more(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(grown(200), keyRanges="2", maxRecordsPerTask="10")
    for _ in range(3):
        query.trigger()
    hashes = {offset: key_hash(key, offset) for offset, key in enumerate(query.log.keys[T0])}
    ahead = max(HALVES, key=lambda half: max(o for _, o in query.delivered if hashes[o] in half))
    query.plan_with(assigned(ahead))
    with pytest.raises(
        DataLossError, match=r"of the key hashes \[.*assign no longer has"
    ) as raised:
        query.trigger()
    assert raised.value.wanted is not None
    query.plan_with({**assigned(ahead), "failOnDataLoss": "false"})
    query.drain()
    query.check_order()
    assert "assign no longer has these hashes" in caplog.text
    (behind,) = set(HALVES) - {ahead}
    query.plan_with(assigned(behind))  # too late
    query.drain()
    assert len(query.delivered) < 200


def test_what_was_never_assigned_is_not_missed() -> None:
    query = Query(grown(200), maxRecordsPerTask="10")
    given = assigned(HALVES[0])
    for _ in range(5):
        query.plan_with({**given, "keyRanges": "2", "parkedKeys": '["key-3"]'})
        query.trigger()
        query.trigger()
    query.plan_with(given)
    query.drain()
    assert {offset for _, offset in query.delivered} == {
        offset
        for offset, key in enumerate(query.log.keys[T0])
        if key_hash(key, offset) in HALVES[0]
    }


def test_an_end_that_is_not_in_the_log_any_more_is_an_error() -> None:
    query = Query(grown(100), keyRanges="2", maxRecordsPerTask="10")
    query.loss = 1.0
    query.trigger()
    query.log.first[T0] = 50
    with pytest.raises(DataLossError, match="the log holds 50"):
        query.trigger()


# -- what is said ---------------------------------------------------------------------------------


LOSSES = (Loss("one is gone", T0, (3, 9), (9, 12)), Loss("another is", TopicPartition("u", 1)))


def test_the_first_loss_is_an_error() -> None:
    with pytest.raises(DataLossError) as raised:
        raise_or_warn(LOSSES, fail=True)
    error = raised.value
    assert str(error) == (
        "one is gone. If losing records is acceptable, set failOnDataLoss to false."
    )
    assert (error.topic, error.partition) == ("t", 0)
    assert (error.wanted, error.available) == ((3, 9), (9, 12))
    raise_or_warn((), fail=True)


def test_all_losses_are_warnings_if_the_user_said_so(caplog: pytest.LogCaptureFixture) -> None:
    raise_or_warn(LOSSES, fail=False)
    assert [record.getMessage() for record in caplog.records] == [
        "one is gone. Going on, since failOnDataLoss is false.",
        "another is. Going on, since failOnDataLoss is false.",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_reports_count_once_though_the_log_does_not_answer_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query, learned = Query(grown(200), keyRanges="2", maxRecordsPerTask="10"), list[str]()
    query.trigger()
    history = query.planner._history
    reports = history._reports

    def counted(batch: RecentBatch) -> Mapping[Slice, SliceEnd]:
        learned.append(batch.name)
        return reports(batch)

    history._reports = counted
    with monkeypatch.context() as patched:
        patched.setattr(history.ends, "resolve", unanswered)
        for _ in range(2):
            with pytest.raises(KafkaError):
                query.trigger()
    query.trigger()
    assert len(learned) == len(set(learned)) == 1


def unanswered(*_: Any) -> Any:
    raise KafkaError("no answer")


def batch(name: str) -> RecentBatch:
    return RecentBatch(name, BatchOffsets({}), [])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=20))
def test_those_that_were_used_last_are_known(steps: list[tuple[str, bool]]) -> None:
    recent, used, made = RecentBatches(), list[str](), dict[str, RecentBatch]()
    for name, is_new in steps:
        is_known = name in used[-REMEMBERED:]
        found = recent.add(batch(name)) if is_new else recent.get(name)
        if is_known:
            assert found is made[name]
        elif not is_new:
            assert found is None
            continue
        assert found is not None
        made[name] = found
        others = [other for other in used if other != name]
        used = [*others[-REMEMBERED + 1 :], name]
        assert set(recent.names) == set(used)


def test_what_is_known_of_a_batch_is_not_lost_when_it_is_written_again() -> None:
    """A trigger without anything new writes the dict that is there."""
    recent = RecentBatches()
    known = recent.add(batch("a"))
    known.reached = {}
    assert recent.add(batch("a")) is known


def test_equal_dicts_have_one_name() -> None:
    one, same = {"t": {"0": 1, "1": 2}}, {"t": {"1": 2, "0": 1}}
    assert batch_name(one) == batch_name(same)
    assert batch_name(one) != batch_name({"t": {"0": 1}})
    assert batch_name({}) == "44136fa355b3678a"  # for ever: it is in tickets and fetch groups
