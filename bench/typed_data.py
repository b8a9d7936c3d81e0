"""Orders of eight fields, as JSON, Avro and Protobuf: the topics that typed rows are measured with.

Each has 1 M records in two partitions, so that one task reads half of them, and two read all.
"""

import base64
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench import data
from kshare.testing import FakeRegistry

RECORDS: Final = 1_000_000
PARTITIONS: Final = 2
_DISTINCT: Final = 20_000
_BAD_EACH: Final = 100
_SUBJECT: Final = "orders-value"

FIELDS: Final = (
    ("id", "BIGINT", "long", "int64"),
    ("user", "STRING", "string", "string"),
    ("product", "STRING", "string", "string"),
    ("quantity", "INT", "int", "int32"),
    ("price", "DOUBLE", "double", "double"),
    ("paid", "BOOLEAN", "boolean", "bool"),
    ("ordered_at", "TIMESTAMP", {"type": "long", "logicalType": "timestamp-micros"}, "int64"),
    ("state", "STRING", "string", "string"),
)
"""Each field's name, and its type in Spark, Avro and Protobuf."""

FEW: Final = ("user", "quantity")
DDL: Final = ", ".join(f"{name} {kind}" for name, kind, *_ in FIELDS)


def _avro(fields: Sequence[tuple[Any, ...]], *more: dict[str, Any]) -> str:
    listed = [{"name": name, "type": kind} for name, _, kind, _ in fields]
    return json.dumps({"type": "record", "name": "Order", "fields": [*listed, *more]})


AVRO: Final = _avro(FIELDS)
NEWER: Final = _avro(FIELDS, {"name": "gift", "type": "boolean", "default": False})


def _descriptors() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, *_, kind) in enumerate(FIELDS, 1):
        type_ = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        message.field.add(name=name, number=number, type=type_, label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file])


DESCRIPTORS: Final = base64.b64encode(_descriptors().SerializeToString()).decode()
"""The descriptor set of the message shop.Order, in base 64."""


def _orders() -> list[dict[str, Any]]:
    rng, first = random.Random(7), datetime(2026, 1, 1, tzinfo=UTC)
    return [
        {
            "id": rng.randrange(10**9, 10**10),
            "user": f"user-{rng.randrange(10**6):06d}",
            "product": f"p{rng.randrange(10**6):06d}",
            "quantity": rng.randrange(1, 60),
            "price": rng.randrange(100, 100_000) / 100,
            "paid": rng.random() < 0.5,
            "ordered_at": first + timedelta(milliseconds=rng.randrange(10**10)),
            "state": rng.choice(["shipped", "waiting", "returned"]),
        }
        for _ in range(_DISTINCT)
    ]


def _as_json(order: dict[str, Any]) -> bytes:
    at = order["ordered_at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**order, "ordered_at": at}, separators=(",", ":")).encode()


def _writer(schema: str) -> Callable[[dict[str, Any]], bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))

    def written(order: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, order)
        return file.getvalue()

    return written


def _protobuf() -> Callable[[dict[str, Any]], bytes]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_descriptors().file[0].SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))

    def written(order: dict[str, Any]) -> bytes:
        at = int(order["ordered_at"].timestamp() * 1000)
        made: bytes = kind(**{**order, "ordered_at": at}).SerializeToString()
        return made

    return written


def _with_bad(values: list[bytes]) -> list[bytes]:
    """The same, but that one in a hundred is cut in the middle."""
    return [
        value if number % _BAD_EACH else value[: len(value) // 2]
        for number, value in enumerate(values)
    ]


def _records(values: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The values again and again, in their order in each partition."""
    rounds = itertools.cycle(values)
    for number in range(RECORDS // PARTITIONS):
        value = next(rounds)
        for _ in range(PARTITIONS):
            yield b"key-%08d" % (number % 100_000), value


def _fill(servers: str, name: str, values: list[bytes]) -> str:
    topic = f"bench-typed-{name}"
    data.fill(servers, topic, _records(values), partitions=PARTITIONS)
    size = sum(map(len, values)) / len(values)
    print(f"{topic}: {size:.0f} bytes a value", flush=True)
    return topic


def plain_topics(servers: str, kind: str) -> tuple[str, str]:
    """Topics of a format without framing: of good records, and with 1 % of bad ones.

    Args:
        servers: The broker.
        kind: json, avro or protobuf.
    """
    written = {"json": lambda: _as_json, "avro": lambda: _writer(AVRO), "protobuf": _protobuf}
    values = list(map(written[kind](), _orders()))
    return _fill(servers, kind, values), _fill(servers, f"{kind}-bad", _with_bad(values))


def topics_of_ids(servers: str, registry: FakeRegistry) -> tuple[str, str, str]:
    """Topics of Avro with ids: of one schema, and of two in turn; and the subject of both."""
    made = []
    for schema in (AVRO, NEWER):
        head = b"\0" + registry.register(_SUBJECT, schema).to_bytes(4, "big")
        written = _writer(schema)
        made.append([head + written(order) for order in _orders()])
    older, newer = made
    mixed = [newer[number] if number % 2 else value for number, value in enumerate(older)]
    return _fill(servers, "ids-1", newer), _fill(servers, "ids-2", mixed), _SUBJECT
