"""The demo's verdict: every row that Spark handed over, against what the broker holds."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.testing import OrderReport, check_order
from spark_plugin.demo.state import SCHEMA, QueryState
from spark_plugin.demo.topic import DemoTopic

__all__ = ["judge_order"]

_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2


def judge_order(topic: DemoTopic, state: QueryState, *, all_read: bool) -> OrderReport:
    """Check that nothing was lost or duplicated, and that each key was in order.

    Args:
        topic: The topic as it was when reading began.
        state: What was read.
        all_read: Whether the query read everything. If not, records may be missing from the stable
            offsets on; the order of all records is checked in either case.

    Raises:
        KafkaError: The topic cannot be read again for comparison.
    """
    rows = state.rows()
    bounds = {
        partition: (
            start,
            end if all_read else max(min(end, state.stable_offset(partition)), start),
        )
        for partition, (start, end) in topic.log_bounds.items()
    }
    expected = _all_offsets(bounds) if topic.is_dense else _consume(topic.servers, bounds)
    if topic.parked_keys:
        is_parked = pc.is_in(expected["key"], pa.array(sorted(topic.parked_keys), pa.binary()))
        expected = expected.filter(pc.invert(is_parked))
    # What should be there beyond the bounds is not known, so the rows read there are expected.
    beyond = [
        rows.filter(
            (pc.field("partition") == partition.partition) & (pc.field("offset") >= end)
        ).select(expected.column_names)
        for partition, (_, end) in bounds.items()
    ]
    return check_order(rows, pa.concat_tables([expected, *beyond]))


def _all_offsets(bounds: Mapping[TopicPartition, tuple[int, int]]) -> pa.Table:
    """Return a row for every offset within the bounds."""
    tables = [
        pa.table(
            {
                "topic": pa.repeat(pa.scalar(partition.topic, pa.string()), end - start),
                "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), end - start),
                "offset": pa.array(range(start, end), pa.int64()),
            }
        )
        for partition, (start, end) in bounds.items()
    ]
    return pa.concat_tables(tables)


def _consume(servers: str, bounds: Mapping[TopicPartition, tuple[int, int]]) -> pa.Table:
    """Read the records within the bounds with another reader, librdkafka's consumer."""
    config: dict[str, str | int | bool] = {
        "bootstrap.servers": servers,
        "group.id": "kshare-demo",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
        "log_level": 2,
    }
    pending_ends = {partition: end for partition, (start, end) in bounds.items() if start < end}
    columns: dict[str, list[Any]] = {"topic": [], "partition": [], "offset": [], "key": []}
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    with closing(Consumer(config)) as consumer:
        consumer.assign([RdTopicPartition(*tp, bounds[tp][0]) for tp in pending_ends])
        while pending_ends:
            messages = consumer.consume(10_000, _POLL_SECONDS)
            if messages:
                deadline = time.monotonic() + _TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise KafkaError(
                    f"no answer from {servers} while comparing: {sorted(pending_ends)}"
                )
            _add_messages(messages, pending_ends, columns)
    return pa.table(columns, schema=pa.schema(list(SCHEMA)[:4]))


def _add_messages(
    messages: list[Any], pending_ends: dict[TopicPartition, int], columns: dict[str, list[Any]]
) -> None:
    """Add records below the ends to the columns, and drop partitions whose end is reached."""
    for message in messages:
        tp = TopicPartition(message.topic(), message.partition())
        error = message.error()
        if error is not None and error.code() != RdKafkaError._PARTITION_EOF:  # noqa: SLF001
            raise KafkaError(f"cannot read {tp} while comparing: {error.str()}")
        if tp not in pending_ends:
            continue
        end = pending_ends[tp]
        if error is not None or message.offset() >= end - 1:
            del pending_ends[tp]
        if error is not None or message.offset() >= end:
            continue
        columns["topic"].append(tp.topic)
        columns["partition"].append(tp.partition)
        columns["offset"].append(message.offset())
        columns["key"].append(message.key())
