"""A record larger than ``maxRecordBytes``, from the options to the rows: an error, or left out."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from kshare.core.hashing import HASH_SPACE, HashRange
from kshare.core.offsets import OffsetRange
from kshare.core.progress import Rectangle, Slice
from kshare.core.tasks import PlannedSlice
from kshare.errors import RecordTooLargeError
from kshare.group import KeySharedConsumer
from kshare.read.reader.read_slice import find_ends, reader_options
from kshare.testing import FakeCluster, Record
from tests.support.batches import Rec, batch_of, numbered
from tests.support.clock import WAIT_S
from tests.support.scripted import ScriptedLog, read_slice

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1", "maxRecordBytes": "2000"}
LOSSY = {**SERVERS, "failOnDataLoss": "false"}
SIZES = [10, 20, 3_000, 40, 5_000, 60]
RECORDS = numbered([Rec(b"k%d" % n, bytes(size)) for n, size in enumerate(SIZES)])
WHOLE = Slice("t", 0, (Rectangle(OffsetRange(0, 6), HashRange(0, HASH_SPACE)),))


def log(codec: str = "zstd") -> Any:
    return ScriptedLog([batch_of(RECORDS, codec=codec).encode()])


def offsets_of(options: dict[str, str], limit: int | None = None) -> list[int]:
    batches = read_slice(log(), WHOLE, options, max_records=limit)
    return [at for batch in batches for at in batch["offset"].to_pylist()]


def test_it_is_an_error_with_its_place() -> None:
    batches = read_slice(log(), WHOLE, SERVERS)
    with pytest.raises(RecordTooLargeError, match=r"t-0: the record at offset 2 has 30\d\d bytes"):
        list(batches)
    assert offsets_of({**SERVERS, "maxRecordBytes": "6000"}) == list(range(6))


def test_it_is_left_out_where_loss_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert offsets_of(LOSSY) == [0, 1, 3, 5]
    assert [record.args[-1] for record in caplog.records if record.args] == ["offset 2", "offset 4"]  # type: ignore[index]


def test_a_planner_and_a_task_count_the_same_records() -> None:
    """The planner also where it must not pass over what is lost."""
    for limit in range(1, 5):
        options = replace(reader_options(LOSSY, "t"), fail_on_data_loss=True)
        (end,) = find_ends([PlannedSlice(WHOLE, limit)], options, brokers=log())
        read = offsets_of(LOSSY, limit)
        assert (end.end, end.records) == (read[-1] + 1, limit)
    strict = reader_options(SERVERS, "t")
    (end,) = find_ends([PlannedSlice(WHOLE, 2)], strict, brokers=log())
    assert (end.end, end.records) == (2, 2)
    with pytest.raises(RecordTooLargeError, match="offset 2"):
        find_ends([PlannedSlice(WHOLE, 3)], strict, brokers=log())


def test_a_consumer_says_it_and_goes_on_behind_it() -> None:
    with FakeCluster(topics={"orders": 1, "__individual_commit_offsets": 1}) as cluster:
        values = [b"small", bytes(5_000), b"small too"]
        cluster.produce("orders", [Record(b"k", value) for value in values])
        config = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "max.record.bytes": 2_000,
        }
        with KeySharedConsumer(config) as consumer:
            consumer.assign({("orders", 0): []})
            assert [message.offset() for message in consumer.consume(1, WAIT_S)] == [0]
            for _ in range(2):  # it is not passed over by itself
                with pytest.raises(RecordTooLargeError, match="record at offset 1 has") as raised:
                    consumer.consume(1, WAIT_S)
                assert raised.value.offset == 1
            consumer.seek(TopicPartition("orders", 0, 2))
            assert [message.offset() for message in consumer.consume(1, WAIT_S)] == [2]
        with KeySharedConsumer({**config, "group.id": "h", "max.record.bytes": 6_000}) as consumer:
            consumer.assign({("orders", 0): []})
            assert len(consumer.consume(3, WAIT_S)) == 3
