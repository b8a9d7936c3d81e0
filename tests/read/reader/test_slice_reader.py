"""The reader on librdkafka's mock cluster: leaders move, brokers fail, logs are trimmed."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import kshare
from kshare.core.hashing import WHOLE, split
from kshare.core.progress import TopicPartition
from kshare.errors import (
    AuthorizationError,
    DataLossError,
    FetchTimeoutError,
    KafkaError,
    OptionsError,
    UnknownTopicError,
)
from kshare.kafka.protocol import broker_pool
from kshare.kafka.protocol.broker_pool import BrokerPool
from kshare.kafka.protocol.connection import BrokerConnection, Connection
from kshare.kafka.protocol.fetch import parse_fetch_response
from kshare.kafka.protocol.frames import ProtocolError
from kshare.kafka.protocol.messages import Address
from kshare.read.decode.columns import Rows
from kshare.read.decode.records import BatchIndex, Decoder
from kshare.read.reader.read_slice import reader_options
from kshare.testing import FakeCluster, Record
from tests.support import scripted
from tests.support.clock import Ahead
from tests.support.requests import times_asked

COUNT = 300


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(2, topics={"t": 1}) as running:
        running.produce("t", [Record(b"k%d" % (i % 7), b"v%d" % i) for i in range(COUNT)])
        yield running
    broker_pool.close_idle()


def whole(start: int = 0, end: int = COUNT, hashes: kshare.HashRange = WHOLE) -> kshare.Slice:
    return kshare.Slice("t", 0, (kshare.Rectangle(kshare.OffsetRange(start, end), hashes),))


def read(cluster: FakeCluster, slice_: kshare.Slice, **options: str) -> pa.Table:
    quick = {"kafka.retry.backoff.ms": "10", "kafka.fetch.max.wait.ms": "20"}
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **quick, **options}
    batches = list(kshare.read_slice(slice_, given))
    return pa.Table.from_batches(batches) if batches else pa.table({"offset": []})


def test_all_records_in_order(cluster: FakeCluster) -> None:
    table = read(cluster, whole())
    assert table["offset"].to_pylist() == list(range(COUNT))
    assert table["value"].to_pylist() == [b"v%d" % i for i in range(COUNT)]


@pytest.mark.parametrize(("start", "end"), [(0, 1), (17, 230), (299, 300)])
def test_slices_begin_and_end_anywhere(cluster: FakeCluster, start: int, end: int) -> None:
    assert read(cluster, whole(start, end))["offset"].to_pylist() == list(range(start, end))


def test_ranges_of_a_partition_tile_it(cluster: FakeCluster) -> None:
    parts = [read(cluster, whole(hashes=part)) for part in split(WHOLE, 4)]
    keys = [set(part["key"].to_pylist()) for part in parts if part.num_rows]
    assert sum(map(len, keys)) == 7
    assert sorted(o for part in parts for o in part["offset"].to_pylist()) == list(range(COUNT))


def test_gaps_between_rectangles_are_left_out(cluster: FakeCluster) -> None:
    ranges = [(3, 9), (120, 121), (250, 260)]
    rectangles = tuple(kshare.Rectangle(kshare.OffsetRange(*r), WHOLE) for r in ranges)
    wanted = [offset for start, end in ranges for offset in range(start, end)]
    table = read(cluster, kshare.Slice("t", 0, rectangles))
    assert table["offset"].to_pylist() == wanted


@pytest.mark.parametrize(
    "error",
    ["NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART",
     "REQUEST_TIMED_OUT", "KAFKA_STORAGE_ERROR", "UNKNOWN", "_TRANSPORT"],
)  # fmt: skip
def test_what_may_pass_is_retried(cluster: FakeCluster, error: str) -> None:
    cluster.fail("Fetch", [error, error])
    assert read(cluster, whole()).num_rows == COUNT


def test_a_leader_moves(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, 1)
    assert read(cluster, whole()).num_rows == COUNT  # and now the process remembers broker 1
    cluster.move_leader("t", 0, 2)
    assert read(cluster, whole()).num_rows == COUNT


def test_a_broker_is_away_for_a_while(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, 2)
    assert read(cluster, whole()).num_rows == COUNT
    cluster.stop_broker(2)
    cluster.move_leader("t", 0, 1)
    assert read(cluster, whole()).num_rows == COUNT


def fail_once_after(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[str]:
    """An error of the network while rows are taken out of a response: after so many of them.

    Returns:
        Grows when it has happened.
    """
    decode = Decoder.decode
    happened: list[str] = []

    def decode_in_part(
        decoder: Decoder,
        index: BatchIndex,
        aborted: Sequence[tuple[int, int]],
        limit: int | None,
    ) -> Iterator[Rows]:
        for delivered in decode(decoder, index, aborted, limit):
            if happened:
                yield delivered
                continue
            if rows:
                part = delivered.batch.slice(0, rows)
                yield replace(delivered, batch=part, end=part["offset"][-1].as_py() + 1)
            happened.append("now")
            raise ConnectionResetError("the connection is lost")

    monkeypatch.setattr(Decoder, "decode", decode_in_part)
    return happened


@pytest.mark.parametrize("rows", [0, 100, COUNT])
def test_an_error_amid_a_response_loses_and_doubles_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    happened = fail_once_after(monkeypatch, rows)
    assert read(cluster, whole())["offset"].to_pylist() == list(range(COUNT))
    assert happened


@pytest.mark.parametrize("limit", [100, COUNT, None])
def test_an_error_when_all_is_read_is_none(cluster: FakeCluster, limit: int | None) -> None:
    happened = []

    class FailsAtItsEnd(BrokerPool):
        def release(self, address: Address, connection: BrokerConnection) -> None:
            connection.close()
            happened.append("now")
            raise ConnectionResetError("the connection is lost")

    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers,
               "kafka.retry.backoff.ms": "10"}  # fmt: skip
    kafka = reader_options(options, "t").kafka
    BrokerPool(kafka).leaders([TopicPartition("t", 0)])  # which the process remembers
    pool = FailsAtItsEnd(kafka)
    table = pa.Table.from_batches(scripted.read_slice(pool, whole(), options, max_records=limit))
    assert table["offset"].to_pylist() == list(range(limit or COUNT))
    assert happened == ["now"]


def test_no_leader_in_the_stated_time(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, None)
    options = {"kafka.default.api.timeout.ms": "2000"}
    with pytest.raises(FetchTimeoutError, match=r"t-0 at offset 7 .*2 s.*no leader") as raised:
        read(cluster, whole(7), **options)
    error = raised.value
    assert (error.topic, error.partition, error.offset) == ("t", 0, 7)
    assert error.broker is not None


class LongerLog(Connection):
    """A connection to a broker that says that its log ends at 310."""

    def call(self, request: Any) -> Any:
        response = super().call(request)
        if type(request).__name__ == "ListOffsetsRequest":
            part = request.topics[0].partitions[0]
            response.topics[0].partitions[0].offset = 310 if part.timestamp == -1 else 0
        return response


def test_offsets_that_do_not_come(cluster: FakeCluster) -> None:
    """The log goes on behind them: a transaction is open, or followers lag."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers,
               "kafka.fetch.max.wait.ms": "20", "kafka.default.api.timeout.ms": "2000"}  # fmt: skip
    pool = BrokerPool(reader_options(options, "t").kafka, connect=LongerLog)
    with pytest.raises(FetchTimeoutError, match=r"high watermark is 300.*up to 310 are wanted"):
        list(scripted.read_slice(pool, whole(0, 310), options))


def test_the_consumers_time_is_not_the_readers(cluster: FakeCluster) -> None:
    """A sink that takes longer than all time-outs over a batch does no harm."""
    options = {"kafka.default.api.timeout.ms": "20000", "kafka.request.timeout.ms": "20000",
               "kafka.max.partition.fetch.bytes": "1000",
               "kafka.bootstrap.servers": cluster.bootstrap_servers}  # fmt: skip
    clock, pool = Ahead(), BrokerPool(reader_options(options, "t").kafka)
    records = [Record(b"k", os.urandom(900)) for _ in range(400)]
    cluster.produce("t", records, config={"batch.num.messages": 10})
    seen: list[int] = []
    for batch in scripted.read_slice(pool, whole(0, 700), options, clock=clock):
        if len(seen) < 3:
            clock.seconds += 30.0
        seen.append(batch.num_rows)
    assert sum(seen) == 700
    assert len(seen) > 3


def test_a_partition_that_does_not_exist(cluster: FakeCluster) -> None:
    slice_ = kshare.Slice("t", 5, whole().rectangles)
    with pytest.raises(UnknownTopicError, match="no partition 5"):
        read(cluster, slice_, **{"kafka.default.api.timeout.ms": "2000"})


def test_not_authorized_is_not_retried(cluster: FakeCluster) -> None:
    cluster.track_requests()
    cluster.fail("Fetch", ["TOPIC_AUTHORIZATION_FAILED"])
    with pytest.raises(AuthorizationError, match="not authorized to read topic t"):
        read(cluster, whole())
    assert times_asked(cluster, "Fetch") == 1


def test_an_error_that_no_retry_mends(cluster: FakeCluster) -> None:
    cluster.fail("Fetch", ["INVALID_REQUEST"])
    with pytest.raises(KafkaError, match=r"refused to read t-0 at offset 0: INVALID_REQUEST"):
        read(cluster, whole())


def test_trimmed_records_are_data_loss(cluster: FakeCluster) -> None:
    cluster.trim("t", 0, 50)
    with pytest.raises(
        DataLossError, match=r"offsets 10 to 300 are wanted.*holds 50 to 300"
    ) as raised:
        read(cluster, whole(10))
    error = raised.value
    assert (error.wanted, error.available) == ((10, 300), (50, 300))


def test_trimmed_records_are_skipped_only_by_wish(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.trim("t", 0, 50)
    table = read(cluster, whole(10), failOnDataLoss="false")
    assert table["offset"].to_pylist() == list(range(50, COUNT))
    assert "Skipped, since failOnDataLoss is false: offsets 10 to 50" in caplog.text


@pytest.mark.parametrize("start", [0, COUNT, COUNT + 1])
def test_a_truncated_log_is_data_loss(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    slice_ = whole(start, COUNT + 50)
    hasty = {"kafka.default.api.timeout.ms": "1500"}
    with pytest.raises(DataLossError, match="beyond the end of the log") as raised:
        read(cluster, slice_, **hasty)
    assert (raised.value.wanted, raised.value.available) == ((max(start, COUNT), 350), (0, COUNT))
    table = read(cluster, slice_, failOnDataLoss="false", **hasty)
    assert table["offset"].to_pylist() == list(range(start, COUNT))
    assert f"offsets {max(start, COUNT)} to 350" in caplog.text


def test_what_is_lost_is_told_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.trim("t", 0, 50)
    happened = fail_once_after(monkeypatch, 0)
    table = read(cluster, whole(10), failOnDataLoss="false")
    assert happened
    assert table["offset"].to_pylist() == list(range(50, COUNT))
    assert caplog.text.count("Skipped") == 1


def test_a_slice_that_is_trimmed_whole(cluster: FakeCluster) -> None:
    cluster.trim("t", 0, 50)
    assert read(cluster, whole(10, 20), failOnDataLoss="false").num_rows == 0


def test_an_old_broker_is_named(cluster: FakeCluster) -> None:
    cluster.limit_api_version("Fetch", 0, 3)
    with pytest.raises(KafkaError, match=r"FetchRequest versions .* needs one of 4 to 11.*2.1 on"):
        read(cluster, whole())


@pytest.mark.parametrize("highest", range(4, 11))
def test_a_broker_of_an_earlier_version_of_fetch(cluster: FakeCluster, highest: int) -> None:
    cluster.limit_api_version("Fetch", 0, highest)
    assert read(cluster, whole()).num_rows == COUNT


def test_nobody_answers() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "200"}
    with pytest.raises(FetchTimeoutError, match=r"no bootstrap server answered: 127\.0\.0\.1:1"):
        list(kshare.read_slice(whole(), options))


def test_options_are_checked_at_the_call() -> None:
    with pytest.raises(OptionsError, match="isolation"):
        kshare.read_slice(
            whole(),
            {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.isolation.level": "read_everything"},
        )


def test_a_second_reader_needs_no_set_up(cluster: FakeCluster) -> None:
    read(cluster, whole())
    cluster.track_requests()
    read(cluster, whole())
    assert {api for _, api in cluster.requests()} == {"Fetch"}


def test_two_readers_of_one_partition_at_once(cluster: FakeCluster) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    both = [kshare.read_slice(whole(hashes=part), options) for part in split(WHOLE, 2)]
    rows = [batch for pair in zip(*both, strict=False) for batch in pair]
    rows += [batch for reader in both for batch in reader]
    assert sum(batch.num_rows for batch in rows) == COUNT


def test_a_reader_that_is_dropped_leaves_no_connection_behind(cluster: FakeCluster) -> None:
    """Its next response is still under way: the next reader must not get that."""
    cluster.produce("t", [Record(b"k", os.urandom(900)) for _ in range(400)])
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers,
               "kafka.max.partition.fetch.bytes": "1000"}  # fmt: skip
    reader = kshare.read_slice(whole(0, 700), options)
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert read(cluster, whole(), **options)["offset"].to_pylist() == list(range(COUNT))


def test_a_forked_child_uses_no_connection_of_its_parent(cluster: FakeCluster) -> None:
    read(cluster, whole())
    idle = [held for kept in broker_pool.process_memory().idle.values() for held in kept]
    assert idle
    child = os.fork()
    if child == 0:
        os._exit(0 if not broker_pool.process_memory().idle else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("length", range(0, 90, 3))
def test_a_fetch_response_that_is_cut_short(length: int) -> None:
    body = bytes.fromhex(
        "00000000 0000 00000000 00000001 0001 74 00000001 00000000 0000"
        "0000000000000064 0000000000000064 0000000000000000 00000001"
        "0000000000000007 0000000000000005 ffffffff 00000003 010203"
    )
    response = parse_fetch_response(memoryview(body), 11)
    answer = response.answers[TopicPartition("t", 0)]
    assert (answer.aborted, bytes(answer.records)) == (((7, 5),), b"\1\2\3")
    if length < len(body):
        with pytest.raises(ProtocolError):
            parse_fetch_response(memoryview(body)[:length], 11)
