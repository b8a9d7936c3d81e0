"""The state of the demo's query while it runs, and the verdict at its end.

It comes from the rows that Spark handed over and from Spark's progress events; the broker is not
asked before the verdict, which compares every row with what it holds. Cost: all rows, without their
values, are kept in memory: about 50 bytes each.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as RdTopicPartition

from kshare.core.checkpoint import decode
from kshare.core.progress import TopicPartition
from kshare.errors import KafkaError
from kshare.monitor.report import PartitionReport, decode_report, partition_report
from kshare.testing import OrderReport, check_order
from spark_plugin.demo.topic import DemoTopic

__all__ = ["SCHEMA", "QueryState", "front", "judge_order"]

SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "task": pa.int32(),
        "batch": pa.int64(),
    }.items()
)
"""The columns that are kept of each row."""

_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2


@dataclass(slots=True)
class QueryState:
    """The state of the query.

    Attributes:
        target: The number of records to read.
        clock: Seconds of a monotonic clock.
        batches: The rows of each batch. A batch that runs again replaces its rows.
        partitions: The newest report of each partition.
        widest: The report whose ranges were furthest apart, with its partition; None without any.
    """

    target: int
    clock: Callable[[], float] = time.monotonic
    batches: dict[int, pa.Table] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionReport] = field(default_factory=dict)
    widest: tuple[TopicPartition, PartitionReport] | None = None
    _first_batch: tuple[float, int] | None = None

    def add_batch(self, batch: int, rows: pa.Table) -> None:
        """Add the rows of a batch."""
        self.batches[batch] = rows
        if self._first_batch is None:
            self._first_batch = (self.clock(), rows.num_rows)

    def add_progress(self, progress: Mapping[str, Any]) -> None:
        """Add a progress event of Spark's: where each range stood when its batch was planned."""
        for source in progress.get("sources", ()):
            reports: dict[TopicPartition, PartitionReport] = {}
            latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
            if latest:
                reports = decode_report(latest)
            if end:
                offsets = decode(end)
                for partition, reached in offsets.progress.items():
                    limits = offsets.limits.get(partition, ())
                    report = partition_report(reached.front, reached, limits)
                    reports.setdefault(partition, report)
            self.partitions.update(reports)
        for partition, report in self.partitions.items():
            widest = 0 if self.widest is None else _width(self.widest[1])
            if _width(report) > widest:
                self.widest = (partition, report)

    @property
    def records(self) -> int:
        """The number of records read so far."""
        return sum(rows.num_rows for rows in list(self.batches.values()))

    @property
    def records_per_second(self) -> float | None:
        """The rate since the first batch, which waits for interpreters; None until the second."""
        if self._first_batch is None or len(self.batches) < 2:
            return None
        since, records = self._first_batch
        return (self.records - records) / max(self.clock() - since, 1e-9)

    def rows(self) -> pa.Table:
        """All rows in the order of their batches, in :data:`SCHEMA`."""
        tables = [
            rows.append_column("batch", pa.array([batch] * rows.num_rows, pa.int64()))
            for batch, rows in sorted(self.batches.items())
        ]
        return pa.concat_tables([SCHEMA.empty_table(), *(t.cast(SCHEMA) for t in tables)])

    def stable_offset(self, partition: TopicPartition) -> int:
        """The offset below which the whole partition is known to be read."""
        report = self.partitions.get(partition)
        return 0 if report is None else report.stable


def front(report: PartitionReport) -> int:
    """The offset of the range that is furthest ahead."""
    return max((range_.position for range_ in report.ranges), default=report.stable)


def _width(report: PartitionReport) -> int:
    return front(report) - report.stable


def _offsets(value: Any) -> dict[str, Any]:
    """Return a source's offsets in a progress event, which are JSON text, a dict or null."""
    offsets = json.loads(value) if isinstance(value, str) else value
    return offsets if isinstance(offsets, dict) else {}


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
