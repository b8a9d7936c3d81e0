"""The topics that the benchmarks read, made once per broker."""

import itertools
import random
import time
import uuid
from collections.abc import Iterator

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

MAIN = "bench-main"  # 3 M records of 100 bytes, 100,000 keys, lz4, one partition
MAIN_RECORDS = 3_000_000
MAIN_KEYS = 100_000
PLAIN = "bench-plain"  # 300,000 records of 1 KB, not compressed, one partition
PLAIN_RECORDS = 300_000
SMALL = "bench-small"  # what the streaming triggers read, 100 records each
SMALL_RECORDS = 20_000
EACH = "bench-each"  # 200 partitions, which get a record each
EACH_PARTITIONS = 200
MANY = "bench-many"  # 1,000 partitions of 20 records
MANY_PARTITIONS = 1_000
MANY_RECORDS = 20_000


def make_topics(servers: str, scale: float = 1.0) -> None:
    """Create and fill the topics that are not there yet."""
    _make(servers, MAIN, int(MAIN_RECORDS * scale), value_bytes=88, codec="lz4")
    _make(servers, PLAIN, int(PLAIN_RECORDS * scale), value_bytes=1012, codec="none")
    _make(servers, SMALL, SMALL_RECORDS, value_bytes=88, codec="lz4")


def make_wide_topics(servers: str) -> None:
    """Create the topics of many partitions that are not there yet."""
    _make(servers, EACH, 0, value_bytes=88, codec="lz4", partitions=EACH_PARTITIONS)
    _make(servers, MANY, MANY_RECORDS, value_bytes=88, codec="lz4", partitions=MANY_PARTITIONS)


def new_topic(servers: str, name: str, partitions: int = 1) -> str:
    """Create a topic whose name begins so and is new; its name."""
    topic = f"bench-{name}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    return topic


def _make(
    servers: str, topic: str, records: int, *, value_bytes: int, codec: str, partitions: int = 1
) -> None:
    rng = random.Random(7)
    # Half of each value is random, so that a codec halves it at best, as with real payloads.
    noise = rng.randbytes(1 << 20)
    text = (b'{"user":"someone","action":"click","page":"/home"}' * 30)[: value_bytes // 2]
    half = value_bytes - len(text)

    def made() -> Iterator[tuple[bytes, bytes]]:
        while True:
            at = rng.randrange(len(noise) - half)
            key = b"key-%08d" % rng.randrange(MAIN_KEYS)
            yield key, text + noise[at : at + half]

    fill(servers, topic, itertools.islice(made(), records), codec=codec, partitions=partitions)


def fill(
    servers: str,
    topic: str,
    records: Iterator[tuple[bytes, bytes]],
    *,
    codec: str = "lz4",
    partitions: int = 1,
) -> None:
    """Create a topic that is not there yet, and fill its partitions in turn.

    Args:
        servers: The broker.
        topic: Its name.
        records: Keys and values.
        codec: Kafka's name of how they are compressed.
        partitions: How many it has.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    if topic in admin.list_topics(timeout=30).topics:
        return
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
    try:
        admin.create_topics([new])[topic].result(30)
    except KafkaException as error:
        raise SystemExit(f"cannot create topic {topic}: {error}") from error
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": codec,
            "linger.ms": 20,
            "batch.size": 1 << 18 if codec == "none" else 64 << 10,
            "queue.buffering.max.messages": 500_000,
            "enable.idempotence": True,
        }
    )
    started, count = time.monotonic(), 0
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, count % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
        if count % 1000 == 0:
            producer.poll(0)
    producer.flush()
    seconds = time.monotonic() - started
    print(f"made {topic}: {count:,} records in {seconds:.0f} s", flush=True)
