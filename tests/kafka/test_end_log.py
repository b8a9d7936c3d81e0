"""The log of ends: what is proposed is read by all in one order, and what is lost is said."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from kshare.core.hashing import ALL_HASHES
from kshare.core.open_batch import open_ranges
from kshare.core.open_entry import LogPosition, OpenBatch, OpenRange
from kshare.core.progress import Progress, TopicPartition
from kshare.core.range_end import EndKey, RangeEnd, encode_key
from kshare.errors import (
    AuthorizationError,
    DataLossError,
    InternalTopicError,
    RecordRefusedError,
)
from kshare.kafka.cluster import Cluster
from kshare.kafka.compacted_topic import CompactedTopic
from kshare.kafka.end_log import EndLog
from kshare.kafka.topic_config import TopicConfig
from kshare.kafka.topics import RANGE_ENDS_TOPIC, TopicSpec, is_internal
from kshare.testing import FakeCluster, Record
from tests.support.parked_keys import kafka

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={RANGE_ENDS_TOPIC: 3}) as running:
        yield running


def ranges_of(name: str, partitions: int = 1) -> list[OpenRange]:
    tps = [TopicPartition("t", number) for number in range(partitions)]
    batch = OpenBatch(name, 1, "ends", LogPosition(0, 0), dict.fromkeys(tps, (ALL_HASHES,)))
    return open_ranges(batch, {tp: Progress.at(5) for tp in tps})


def end_log(cluster: FakeCluster, **more: Any) -> EndLog:
    return EndLog(kafka(cluster), **{"choose": lambda count: count - 1, **more})


def end(offset: int) -> RangeEnd:
    return RangeEnd.at(ALL_HASHES, offset)


def test_the_first_proposal_counts_for_all_who_read(cluster: FakeCluster) -> None:
    (each,) = ranges_of("b")
    with end_log(cluster) as one, end_log(cluster, choose=lambda _: 0) as two:
        at = one.position()
        assert (at.partition, at.offset) == (2, 0)
        assert at.topic_id
        for log in (one, two):
            assert not log.read(at, [each]).ends
        one.append({EndKey(each.id, "one-0"): end(7)})
        two.append({EndKey(each.id, "two-0"): end(9)})
        for log in (one, two, two):  # the second time of one that has read it before
            assert log.read(at, [each]).ends == {each.id: end(7)}
        later = one.position()
        assert later == replace(at, offset=2)
        assert not two.read(later, ranges_of("c")).ends
        assert two.read(at, [each]).ends == {each.id: end(7)}
        assert not two.read(at, []).ends


def test_what_was_seen_of_a_batch_is_deleted_with_it(cluster: FakeCluster) -> None:
    first, second = ranges_of("b", 2), ranges_of("c", 2)
    with end_log(cluster) as planner, end_log(cluster) as task:
        at = planner.position()
        task.read(at, first)
        task.append({EndKey(each.id, f"t-{n}"): end(9) for n, each in enumerate(first)})
        planner.read(at, first)
        planner.append({EndKey(first[0].id, "seal"): end(5)})
        task.append({EndKey(first[0].id, "late"): end(8)})
        planner.read(LogPosition(at.partition, 2), second)  # the late one is among these
        planner.delete("b")
        planner.delete("b")
        planner.delete("not known")
        with closing(CompactedTopic(kafka(cluster), TopicSpec(RANGE_ENDS_TOPIC, 1))) as topic:
            rows = topic.read().rows
    left = {key for key in {row.key for row in rows} if [r for r in rows if r.key == key][-1].value}
    assert len(rows) == 8
    assert not left


def test_what_an_earlier_run_has_written_is_deleted_where_it_is(cluster: FakeCluster) -> None:
    first, second = ranges_of("b"), ranges_of("c")
    with end_log(cluster, choose=lambda _: 0) as before, end_log(cluster) as log:
        at = before.position()
        before.read(at, first)
        before.append({EndKey(first[0].id, "0"): end(9)})
        log.read(at, first)
        log.read(log.position(), second)
        log.delete("b")
        with closing(CompactedTopic(kafka(cluster), TopicSpec(RANGE_ENDS_TOPIC, 1))) as topic:
            rows = topic.read().rows
    assert [(row.partition, row.value is None) for row in rows] == [(0, False), (0, True)]


def test_no_write_is_repeated_by_the_client(cluster: FakeCluster) -> None:
    made = list[dict[str, Any]]()

    def producer(config: dict[str, Any], **more: Any) -> Producer:
        made.append(config)
        return Producer(config, **more)

    (each,) = ranges_of("b")
    with end_log(cluster, producer=producer) as log:
        at = log.position()
        log.read(at, [each])
        cluster.fail("Produce", ["REQUEST_TIMED_OUT"])
        log.append({EndKey(each.id, "0"): end(7)})  # which may have arrived, for all it knows
        assert not log.read(at, [each]).ends
        log.append({EndKey(each.id, "1"): end(9)})
        assert log.read(at, [each]).ends == {each.id: end(9)}
    assert {config["retries"] for config in made} == {0}


def test_what_lasts_is_an_error(cluster: FakeCluster) -> None:
    (each,) = ranges_of("b")
    with end_log(cluster) as log:
        with pytest.raises(RuntimeError, match="before read"):
            log.append({})
        log.read(log.position(), [each])
        cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"])
        with pytest.raises(AuthorizationError, match=RANGE_ENDS_TOPIC):
            log.append({EndKey(each.id, "0"): end(7)})
        cluster.fail("Produce", ["INVALID_RECORD"])
        with pytest.raises(RecordRefusedError):
            log.append({EndKey(each.id, "1"): end(7)})


def test_what_passes_is_asked_again(cluster: FakeCluster) -> None:
    (each,) = ranges_of("b")
    with end_log(cluster) as log:
        cluster.fail("ListOffsets", ["LEADER_NOT_AVAILABLE"] * 2)
        at = log.position()
        cluster.fail("Fetch", ["NOT_LEADER_FOR_PARTITION"])
        log.read(at, [each])
        log.append({EndKey(each.id, "0"): end(7)})
        assert log.read(at, [each]).ends == {each.id: end(7)}


def test_what_is_no_end_is_passed_over(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (each,) = ranges_of("b")
    key = encode_key(EndKey(each.id, "0"))
    for record in (Record(b"?", b"1"), Record(None, b"2"), Record(key, b"3"), Record(key, None)):
        cluster.produce(RANGE_ENDS_TOPIC, [record], partition=2)
    with end_log(cluster) as log:
        assert not log.read(LogPosition(2, 0), [each]).ends
    said = [record.getMessage() for record in caplog.records if "passed over" in record.message]
    assert [text.split(", is no end")[0] for text in said] == [
        f"{RANGE_ENDS_TOPIC}, partition 2, offset {offset}" for offset in range(3)
    ]


def test_a_log_that_was_cut_is_an_error_or_a_warning(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (each,) = ranges_of("b")
    beyond = LogPosition(2, 9)
    with end_log(cluster) as log:
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"offset 9, and it ends before.*set"):
                log.read(beyond, [each])
    with end_log(cluster, fail_on_data_loss=False) as log:
        assert not log.read(beyond, [each]).ends
        log.append({EndKey(each.id, "0"): end(7)})
        assert log.read(beyond, [each]).ends == {each.id: end(7)}
    assert [r for r in caplog.records if "Going on" in r.message]


def test_a_log_whose_begin_was_deleted_is_an_error_or_a_warning(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By cleanup.policy=delete while a query is stopped, or kafka-delete-records."""
    (each,) = ranges_of("b")
    with end_log(cluster) as log:
        at = log.position()
        log.read(at, [each])
        log.append({EndKey(each.id, "0"): end(7)})
        log.append({EndKey(each.id, "1"): end(8)})
        monkeypatch.setattr(Cluster, "earliest", lambda self, tps: dict.fromkeys(tps, 1))
    with end_log(cluster) as log:
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"offset 0, and it begins after that.*set"):
                log.read(at, [each])
        assert log.read(replace(at, offset=1), [each]).ends == {each.id: end(8)}
    with end_log(cluster, fail_on_data_loss=False) as log:
        assert log.read(at, [each]).ends == {each.id: end(8)}
    assert [r for r in caplog.records if "Going on" in r.message]


def test_a_log_that_was_made_again_is_an_error_or_a_warning(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (each,) = ranges_of("b")
    with end_log(cluster) as log:
        at = log.position()
        log.read(at, [each])
        log.append({EndKey(each.id, "0"): end(7)})
        former = replace(at, topic_id="former")  # the log has grown beyond where the batch began
        for _ in range(2):
            with pytest.raises(DataLossError, match=r"it was made again since.*set"):
                log.read(former, [each])
        gone = LogPosition(0, 0, "former")
        with pytest.raises(DataLossError), end_log(cluster, topic="gone") as other:
            other.read(gone, [each])
    with end_log(cluster, fail_on_data_loss=False) as log:
        assert log.read(former, [each]).ends == {each.id: end(7)}
    assert [r for r in caplog.records if "Going on" in r.message]


def test_a_topic_that_is_not_there_is_made(caplog: pytest.LogCaptureFixture) -> None:
    name = f"{RANGE_ENDS_TOPIC}.mine"
    assert is_internal(name)
    (each,) = ranges_of("b")
    with FakeCluster() as cluster, end_log(cluster, topic=name, fail_on_data_loss=False) as log:
        at = LogPosition(0, 5)  # of a log that is gone
        assert not log.read(at, [each]).ends
        log.append({EndKey(each.id, "0"): end(7)})
        assert log.read(at, [each]).ends == {each.id: end(7)}
    with FakeCluster() as cluster, end_log(cluster, topic=name, choose=lambda _: 0) as log:
        log.open()
        assert replace(log.position(), topic_id=None) == LogPosition(0, 0)
    assert [r for r in caplog.records if "Going on" in r.message]


def test_a_topic_that_deletes_records_is_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with end_log(cluster) as log:
        monkeypatch.setattr(CompactedTopic, "config", lambda _: TopicConfig(False, 1000))
        with pytest.raises(InternalTopicError, match=r"--entity-name __kshare_range_ends --add-"):
            log.open()
        for sound in (None, TopicConfig(True, None)):
            monkeypatch.setattr(CompactedTopic, "config", lambda _, sound=sound: sound)
            log.open()
