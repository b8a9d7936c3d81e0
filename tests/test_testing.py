"""The test kit: the order checker against a plain twin, the embedded cluster, the records."""

import collections
import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from hypothesis import given
from hypothesis import strategies as st

import kshare.testing
from kshare.testing import (
    FakeCluster,
    OrderReport,
    Record,
    check_order,
    produce,
    produce_all,
    skewed_records,
    watermarks,
)
from kshare.testing import cluster as cluster_module
from kshare.testing import records as records_module
from kshare.testing.records import producer_config

# -- the order checker -----------------------------------------------------------------------------

COLUMNS = ("topic", "partition", "offset", "key", "batch", "task")
TYPES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("batch", pa.int64()),
        ("task", pa.int32()),
    ]
)

rows_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),
        st.integers(0, 6),
        st.sampled_from([None, b"", b"x", b"y"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=25,
)
expected_of = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1)),
    st.lists(st.integers(0, 8), min_size=2, max_size=4, unique=True).map(
        lambda cuts: [
            (lo, hi) for lo, hi in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)
        ]
    ),
    max_size=4,
)


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    return pa.table([pa.array(c, t.type) for c, t in zip(columns, TYPES, strict=True)], TYPES)


def numbered(rows: list[tuple[Any, ...]]) -> pa.Table:
    """With the row's number in a column of the user's own, which comes back in the report."""
    return table(rows).append_column("row", pa.array(range(len(rows)), pa.int64()))


class Twin:
    """The definitions, word by word, a record at a time."""

    def __init__(self, rows: list[tuple[Any, ...]], expected: Mapping[Any, Any] | None) -> None:
        self.duplicated: list[int] = []
        self.out_of_order: list[tuple[int, int]] = []
        self.split: list[tuple[int, int]] = []
        seen: set[Any] = set()
        highest: dict[Any, int] = {}
        first_task: dict[Any, int] = {}
        for i in sorted(range(len(rows)), key=lambda i: rows[i][4]):  # by batch, stable
            topic, partition, offset, key, batch, task = rows[i]
            if (topic, partition, offset) in seen:
                self.duplicated.append(i)
            seen.add((topic, partition, offset))
            if key is None:
                continue
            who = (topic, partition, key)
            if offset < highest.get(who, -1):
                self.out_of_order.append((i, highest[who]))
            highest[who] = max(highest.get(who, -1), offset)
            if first_task.setdefault((who, batch), task) != task:
                self.split.append((i, first_task[who, batch]))
        wanted = {
            (*place, offset)
            for place, ranges in (expected or {}).items()
            for start, end in ranges
            for offset in range(start, end)
        }
        self.lost = [] if expected is None else sorted(wanted - seen)
        self.unexpected = (
            [] if expected is None else [i for i, row in enumerate(rows) if row[:3] not in wanted]
        )
        self.keys = len({(row[:2], row[3]) for row in rows if row[3] is not None})


@given(rows_of, st.none() | expected_of)
def test_the_report_is_that_of_the_plain_twin(rows: Any, expected: Any) -> None:
    report = check_order(numbered(rows), expected)
    twin = Twin(rows, expected)
    late = report.out_of_order
    assert list(zip(late["row"].to_pylist(), late["after"].to_pylist(), strict=True)) == sorted(
        twin.out_of_order
    )
    split = report.split
    assert list(
        zip(split["row"].to_pylist(), split["first_task"].to_pylist(), strict=True)
    ) == sorted(twin.split)
    assert report.duplicated["row"].to_pylist() == sorted(twin.duplicated)
    assert report.unexpected["row"].to_pylist() == twin.unexpected
    lost = [report.lost[name].to_pylist() for name in COLUMNS[:3]]
    assert sorted(zip(*lost, strict=True)) == twin.lost
    assert report.keys == twin.keys
    assert report.records == len(rows)
    assert report.partitions == len({row[:2] for row in rows})
    assert report.batches == len({row[4] for row in rows})
    faults = twin.duplicated or twin.out_of_order or twin.split or twin.lost or twin.unexpected
    assert report.ok == bool(report) == (not faults)
    assert str(report).startswith("ORDER OK" if report.ok else "ORDER BROKEN")


@given(rows_of, st.integers(1, 4))
def test_how_the_rows_are_given_changes_nothing(rows: Any, size: int) -> None:
    whole = check_order(table(rows), None)
    in_batches = check_order(table(rows).to_batches(max_chunksize=size), None)
    in_dicts = check_order(table(rows).to_pylist(), None) if rows else whole
    for other in (in_batches, in_dicts):
        assert str(other) == str(whole)


@given(rows_of)
def test_what_was_received_is_expected_by_its_own_table(rows: Any) -> None:
    once = {row[:3]: row for row in rows}
    report = check_order(table(list(once.values())), table(list(once.values())))
    assert (report.lost.num_rows, report.unexpected.num_rows) == (0, 0)


def ordered(count: int = 20, tasks: int = 2) -> list[dict[str, Any]]:
    return [
        {"partition": 0, "offset": i, "key": b"k%d" % (i % 4), "batch": i // 8, "task": i % tasks}
        for i in range(count)
    ]


def test_all_in_order() -> None:
    report = check_order(ordered(), {0: (0, 20)})
    assert report.ok
    assert str(report) == (
        "ORDER OK: 20 records of 4 keys from 1 partition in 3 batches; "
        "none lost, duplicated or out of order"
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows: rows[:7] + rows[8:], "1 lost: partition 0 at offset 7"),
        (
            lambda rows: [*rows, {**rows[-1], "offset": 99}],
            "1 unexpected: partition 0 at offset 99 (key b'k3') in batch 2, task 1",
        ),
        (lambda rows: [*rows, rows[-1]], "1 duplicated: partition 0 at offset 19 (key b'k3')"),
        (
            lambda rows: [rows[4], *rows[1:4], rows[0], *rows[5:]],
            (
                "1 out of order: partition 0 at offset 0 (key b'k0') in batch 0, task 0 came after "
                "offset 4"
            ),
        ),
        (
            lambda rows: [*rows[:4], {**rows[4], "task": 7}, *rows[5:]],
            (
                "1 split over tasks: partition 0 at offset 4 (key b'k0') in batch 0, task 7, the "
                "key's first of the batch in task 0"
            ),
        ),
    ],
    ids=["lost", "unexpected", "duplicated", "out-of-order", "split"],
)
def test_each_fault_is_named_and_no_other(spoil: Callable[[Any], Any], said: str) -> None:
    text = str(check_order(spoil(ordered()), {0: (0, 20)}))
    assert said in text
    assert len(text.splitlines()) == 2


def test_a_later_batch_with_lower_offsets_is_out_of_order() -> None:
    rows = ordered(8)
    rows[0]["batch"] = 5
    assert check_order(rows, {0: (0, 8)}).out_of_order["offset"].to_pylist() == [0]


def test_records_without_a_key_have_no_order() -> None:
    rows = [{**row, "key": None} for row in ordered()]
    assert check_order(rows[::-1], {0: (0, 20)}).ok


def test_keys_are_compared_if_they_are_expected() -> None:
    wanted = [{name: row[name] for name in ("partition", "offset", "key")} for row in ordered()]
    assert check_order(ordered(), wanted).ok
    wanted[3]["key"] = b"another"
    assert check_order(ordered(), wanted).unexpected["offset"].to_pylist() == [3]
    wanted[3]["key"] = None
    assert check_order(ordered(), wanted).unexpected["offset"].to_pylist() == [3]


def test_text_and_bytes_are_the_same_key() -> None:
    wanted = [{"offset": row["offset"], "key": row["key"].decode()} for row in ordered()]
    assert check_order(ordered(), wanted).ok


def test_only_the_first_offenders_are_shown() -> None:
    text = str(check_order([], {0: (0, 9)}))
    assert "9 lost: " in text
    assert text.endswith("; and 4 more")


def test_ranges_with_gaps() -> None:
    assert check_order(ordered(4), {0: [(0, 3), (3, 4)]}).ok
    report = check_order(ordered(4), {0: [(0, 2), (3, 4)], 1: (0, 1)})
    assert report.unexpected["offset"].to_pylist() == [2]
    assert report.lost.select(["partition", "offset"]).to_pylist() == [
        {"partition": 1, "offset": 0}
    ]


def test_a_side_without_topics_means_the_topic_of_the_other() -> None:
    named = [{**row, "topic": "t"} for row in ordered()]
    assert check_order(named, {0: (0, 20)}).ok
    assert check_order(ordered(), {("t", 0): (0, 20)}).ok
    assert not check_order(named, {("u", 0): (0, 20)}).ok


def test_which_topic_is_meant_must_be_clear() -> None:
    rows = [{**row, "topic": f"t{row['offset'] % 2}"} for row in ordered()]
    with pytest.raises(ValueError, match=r"records of which topic\? There are t0, t1"):
        check_order(rows, {0: (0, 20)})


def test_columns_that_are_needed() -> None:
    with pytest.raises(ValueError, match="has no column offset, key; it has: partition"):
        check_order(pa.table({"partition": [1]}))
    with pytest.raises(ValueError, match="is null"):
        check_order([{"offset": None, "key": b"k"}])


def test_nothing_received_nothing_expected() -> None:
    assert check_order([], None).ok
    assert check_order([], {}).ok
    assert check_order(pa.table({"offset": pa.array([], pa.int64()), "key": []})).ok


def test_the_report_shows_no_tables() -> None:
    report: OrderReport = check_order([], {0: (0, 1)})
    assert "Table" not in repr(report)


# -- records ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 2}) as running:
        yield running


def consumed(servers: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    try:
        consumer.assign([Place(topic, partition, 0) for partition in (0, 1)])
        found: list[Any] = []
        while len(found) < count:
            found += consumer.consume(count - len(found), 10)
    finally:
        consumer.close()
    return found


def test_records_arrive_as_they_are(cluster: FakeCluster) -> None:
    headers = [("h", b"1"), ("h", None)]
    given_ = [
        Record(b"k", b"v", headers, 1234, partition=1),
        Record(None, None, partition=0),
        Record("schlüssel", "wert", partition=1),
        (b"pair", None),
    ]
    assert cluster.produce("t", given_, partition=0) == 4
    found = {
        (m.partition(), m.key(), m.value()): m for m in consumed(cluster.bootstrap_servers, "t", 4)
    }
    assert set(found) == {
        (1, b"k", b"v"),
        (0, None, None),
        (1, "schlüssel".encode(), b"wert"),
        (0, b"pair", None),
    }
    first = found[1, b"k", b"v"]
    assert (first.headers(), first.timestamp()[1]) == (headers, 1234)


def test_a_refused_record_is_an_error(cluster: FakeCluster) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"])
    with pytest.raises(KafkaException, match="authorization"):
        cluster.produce("t", [Record(b"k", b"v")])


def test_records_that_nobody_takes(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, None)
    with pytest.raises(TimeoutError, match=r"1 of 1 records for t not taken in 0\.2 s"):
        produce(cluster.bootstrap_servers, "t", [(b"k", b"v")], partition=0, seconds_max=0.2)


def test_more_records_than_the_queue_holds(cluster: FakeCluster) -> None:
    config = {"queue.buffering.max.messages": 10}
    assert cluster.produce("t", [(b"k", b"v")] * 100, partition=0, config=config) == 100
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (0, 100)


def test_a_producer_of_ones_own(cluster: FakeCluster) -> None:
    producer = Producer(producer_config(cluster.bootstrap_servers) | {"transactional.id": "x"})
    producer.init_transactions(30)
    producer.begin_transaction()
    assert produce_all(producer, "t", [(b"k", b"v")] * 3, partition=1) == 3
    producer.commit_transaction(30)
    assert watermarks(cluster.bootstrap_servers, "t", 1)[1] >= 3


def test_skewed_records_are_the_same_each_time() -> None:
    one, two = list(skewed_records(1_000, 50)), list(skewed_records(1_000, 50))
    assert one == two
    assert list(skewed_records(1_000, 50, seed=1)) != one
    counts = collections.Counter(record.key for record in one)
    assert len(counts) > 40
    assert counts[b"key-000000"] > 5 * counts[b"key-000020"] > 0
    assert {len(record.value or b"") for record in one} == {32}
    assert [int((record.value or b"").rstrip(b".")) for record in one] == list(range(1_000))


def test_without_skew_keys_are_even() -> None:
    counts = collections.Counter(r.key for r in skewed_records(10_000, 10, skew=0.0))
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_watermarks_wait_for_a_leader(cluster: FakeCluster, monkeypatch: Any) -> None:
    cluster.move_leader("t", 0, None)
    pauses: list[float] = []

    def elect(seconds: float) -> None:
        pauses.append(seconds)
        cluster.move_leader("t", 0, 1)

    monkeypatch.setattr(records_module.time, "sleep", elect)
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (0, 0)
    assert pauses


def test_watermarks_do_not_wait_for_ever(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, None)
    with pytest.raises(KafkaException):
        watermarks(cluster.bootstrap_servers, "t", 0, seconds_max=0)


# -- the embedded cluster --------------------------------------------------------------------------


def test_brokers_and_topics() -> None:
    with FakeCluster(3, topics={"a": 2, "b": 1}) as running:
        assert len(running.bootstrap_servers.split(",")) == 3
        assert running.create_topic("c", 4) == "c"
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        topics = producer.list_topics(timeout=10).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {
            "a": 2,
            "b": 1,
            "c": 4,
        }
        with pytest.raises(KafkaException, match="already exists"):
            running.create_topic("a")


def test_a_closed_cluster() -> None:
    running = FakeCluster()
    servers = running.bootstrap_servers
    running.close()
    running.close()
    assert servers
    with pytest.raises(RuntimeError, match="the cluster is closed"):
        _ = running.bootstrap_servers


def test_a_cluster_needs_a_broker() -> None:
    with pytest.raises(ValueError, match="needs a broker; got 0"):
        FakeCluster(0)


def test_trimmed_records_are_gone(cluster: FakeCluster) -> None:
    cluster.produce("t", [(b"k", b"v")] * 10, partition=0)
    cluster.trim("t", 0, 4)
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (4, 10)


def test_requests_are_counted_and_fail_as_told(cluster: FakeCluster) -> None:
    watermarks(cluster.bootstrap_servers, "t", 0)
    cluster.track_requests()
    cluster.fail("ListOffsets", ["NOT_LEADER_FOR_PARTITION", KafkaError.LEADER_NOT_AVAILABLE])
    assert watermarks(cluster.bootstrap_servers, "t", 0) == (0, 0)
    asked = {api: count for (_, api), count in cluster.requests().items()}
    assert asked["ListOffsets"] > 2
    cluster.track_requests()
    assert cluster.requests() == {}


def test_errors_that_are_taken_back(cluster: FakeCluster) -> None:
    cluster.fail("Produce", ["TOPIC_AUTHORIZATION_FAILED"])
    cluster.stop_failing("Produce")
    assert cluster.produce("t", [(b"k", b"v")]) == 1


def test_a_topic_with_an_error(cluster: FakeCluster) -> None:
    cluster.fail_topic("t", "TOPIC_AUTHORIZATION_FAILED")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    assert producer.list_topics("t", timeout=10).topics["t"].error.code() == 29
    cluster.fail_topic("t", "NO_ERROR")
    assert producer.list_topics("t", timeout=10).topics["t"].error is None


def test_leaders_move_and_brokers_stop() -> None:
    with FakeCluster(2, topics={"t": 1}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for broker in (1, 2):
            running.move_leader("t", 0, broker)
            assert producer.list_topics("t", timeout=10).topics["t"].partitions[0].leader == broker
        running.stop_broker(2)
        running.move_leader("t", 0, 1)
        assert running.produce("t", [(b"k", b"v")]) == 1
        running.start_broker(2)
        running.move_leader("t", 0, 2)
        assert running.produce("t", [(b"k", b"v")]) == 1


def test_a_follower_serves_what_it_holds() -> None:
    with FakeCluster(2, topics={"t": 1}) as running:
        running.move_leader("t", 0, 1)
        running.produce("t", [(b"k", b"v%d" % i) for i in range(20)])
        running.set_rack(2, "here")
        running.set_follower("t", 0, 2)
        running.track_requests()
        consumer = Consumer(
            {
                "bootstrap.servers": running.bootstrap_servers,
                "group.id": "g",
                "client.rack": "here",
            }
        )
        try:
            consumer.assign([Place("t", 0, 0)])
            found = [consumer.poll(10).value() for _ in range(20)]
        finally:
            consumer.close()
        assert found == [b"v%d" % i for i in range(20)]
        assert (2, "Fetch") in running.requests()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: c.fail("Fetsch", ["UNKNOWN"]), "no such request: 'Fetsch'; known: Produce,"),
        (lambda c: c.fail("Fetch", ["UNKNOWEN"]), "no such error of Kafka: 'UNKNOWEN'"),
    ],
)
def test_names_that_do_not_exist(
    cluster: FakeCluster, call: Callable[[FakeCluster], None], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        call(cluster)


def test_a_partition_that_does_not_exist(cluster: FakeCluster) -> None:
    with pytest.raises(KafkaException):
        cluster.trim("t", 7, 1)


def test_an_old_librdkafka_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(cluster_module._FUNCTIONS, "mock_of_tomorrow", (ctypes.c_int, ()))
    cluster_module._library.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="no rd_kafka_mock_of_tomorrow"):
            FakeCluster()
    finally:
        cluster_module._library.cache_clear()


def test_all_names_are_there() -> None:
    assert all(hasattr(kshare.testing, name) for name in kshare.testing.__all__)
