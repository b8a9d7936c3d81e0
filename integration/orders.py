"""Orders of Avro, as Confluent's serializer writes them and typed rows read them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from integration.kafka import KafkaBroker
from kshare.testing import Record

__all__ = ["NEWER", "NOTE", "ORDER", "Orders", "log_of", "order_records", "row"]

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "long"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "qty", "type": "int"},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
    ],
}
NOTE = {"name": "note", "type": "string", "default": "-"}
NEWER = {**ORDER, "fields": [*ORDER["fields"], NOTE]}


def order_records(
    topic: str, registry: str, schema: object, users: range, **more: object
) -> list[Record]:
    """An order of each user, with its number, as Confluent's serializer writes it.

    Args:
        topic: The topic, of which the subject is.
        registry: The address of the registry, which gets the schema.
        schema: The schema.
        users: The numbers of the users.
        more: More fields of each order.
    """
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": registry}) as client:
        serialize = AvroSerializer(client, json.dumps(schema))
        return [
            Record(
                f"k{n}",
                serialize({"user": f"u{n}", "qty": n, "items": [{"sku": n}], **more}, context),
            )
            for n in users
        ]


class Orders:
    """Writes orders as Confluent's serializer does, and reads them as rows.

    Args:
        spark: Spark.
        broker: The broker.
        topic: The topic of the orders.
        registry: The address of the registry.
    """

    def __init__(self, spark: SparkSession, broker: KafkaBroker, topic: str, registry: str) -> None:
        self.topic = topic
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "valueFormat": "avro",
            "keyFormat": "string",
            "keyFraming": "none",
            "schemaRegistry.url": registry,
        }
        self._spark, self._broker, self._registry = spark, broker, registry

    def write(self, schema: object, users: range, **more: object) -> None:
        """Write an order of each user, with its number."""
        records = order_records(self.topic, self._registry, schema, users, **more)
        self._broker.produce(self.topic, records, partition=0)

    def write_bad(self, value: bytes) -> None:
        """Write a value that is no order."""
        self._broker.produce(self.topic, [Record("bad", value)], partition=0)

    def batch(self, **more: str) -> DataFrame:
        """A batch query."""
        return self._spark.read.format("kshare").options(**{**self.options, **more}).load()

    def run(
        self, checkpoint: Path, meanwhile: Callable[[], object] | None = None, **more: str
    ) -> Any:
        """Run a stream until it has read all; return its rows as tuples, in offset order.

        Args:
            checkpoint: The checkpoint.
            meanwhile: Called once it has read all, and before it reads all there is then.
            more: More options.
        """
        frame = self._spark.readStream.format("kshare").options(**{**self.options, **more}).load()
        rows: list[Any] = []

        def keep(batch: DataFrame, _: int) -> None:
            ordered = batch.orderBy("offset") if "offset" in batch.columns else batch
            rows.extend(ordered.select("value.*").collect())

        writer = frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(checkpoint))
        query = writer.start()
        try:
            query.processAllAvailable()
            if meanwhile is not None:
                meanwhile()
                query.processAllAvailable()
        finally:
            query.stop()
        return [tuple(row) for row in rows]


def row(number: int, *more: object) -> tuple[object, ...]:
    return (f"u{number}", number, [(number,)], *more)


def log_of(checkpoint: Path) -> list[Path]:
    """The files of the offset log, in order."""
    return sorted(
        (each for each in (checkpoint / "offsets").iterdir() if each.name.isdecimal()),
        key=lambda each: int(each.name),
    )
