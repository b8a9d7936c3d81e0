"""What the tests of the sink share: numbered rows, reading them back, and a query's batches."""

import time
import uuid
from collections import Counter

import pyarrow as pa
from confluent_kafka import Consumer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import TopicPartition as Place

from integration.topics import Topics
from kshare.options.sink import SinkOptions, parse_sink_options
from kshare.query.produce import Attempt, Prepared, prepare_rows
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.driver import commit_batch

PARTITIONS = 3


def options_for(broker: Topics, topic: str, **options: str) -> SinkOptions:
    settings = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, **options}
    return parse_sink_options(settings, streaming=True).options


def numbered(start: int, count: int, value_bytes: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {
            "key": [f"k{number % 50}" for number in numbers],
            "value": [str(number).ljust(value_bytes) for number in numbers],
        }
    )


def received(broker: Topics, topic: str, level: str = "read_committed") -> list[tuple[int, int]]:
    """(partition, number) of all records of a topic, each partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "test-sink",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
            "log_level": 2,
        }
    )
    consumer.assign([Place(topic, number, 0) for number in range(PARTITIONS)])
    rows: list[tuple[int, int]] = []
    ended: set[int | None] = set()  # of one partition there may be more than one end
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline
        for message in consumer.consume(1000, 0.5):
            error, partition, value = message.error(), message.partition(), message.value()
            if error is None:
                assert partition is not None
                assert value is not None
                rows.append((partition, int(value)))
            elif error.code() == RdKafkaError._PARTITION_EOF:
                ended.add(partition)
    consumer.close()
    return rows


def assert_each_once_and_in_order(rows: list[tuple[int, int]], count: int) -> None:
    """Assert that no number is missing or there twice, and that those of a key are in order."""
    assert Counter(number for _, number in rows) == Counter(range(count))
    for partition in range(PARTITIONS):
        numbers = [number for where, number in rows if where == partition]
        assert numbers == sorted(numbers)


class Query:
    """A query's batches, written without Spark."""

    def __init__(self, broker: Topics, replication: int = 1, **options: str) -> None:
        self.broker = broker
        self.topic = broker.create_topic(partitions=PARTITIONS, replication=replication)
        self.options = options_for(broker, self.topic, exactlyOnce="true", **options)
        self.id = str(uuid.uuid4())
        self.coordinators = Coordinators(self.options.kafka)

    def prepare(self, run: str, batch: int, number: int = 0, tasks: int = 3) -> list[Prepared]:
        return [
            prepare_rows(
                [numbered(batch * 100 + task * 10, 10)],
                self.options,
                Attempt(
                    self.id, run, batch, task, number, time.time(), prefix=self.options.id_prefix
                ),
            )
            for task in range(tasks)
        ]

    def commit(self, messages: list[Prepared], batch: int) -> None:
        commit_batch(messages, batch, self.options)

    def rows(self) -> Counter[int]:
        return Counter(number for _, number in received(self.broker, self.topic))

    def open(self) -> list[str]:
        return self.coordinators.open_ids(f"{self.options.id_prefix}-{self.id}-")


def expected(*batches: int) -> Counter[int]:
    return Counter(100 * batch + number for batch in batches for number in range(30))
