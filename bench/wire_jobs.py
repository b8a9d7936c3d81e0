"""Reading without Spark, each job in a process of its own: ``python -m bench.wire_jobs JOB ...``.

``kshare SERVERS TOPIC PARTS``  one of so many equal key ranges of the topic, into Arrow
``confluent SERVERS TOPIC``     confluent-kafka's ``consume(10000)``, put into Arrow
``drain SERVERS TOPIC``         the same fetches as kshare's, not decoded
``first-batch SERVERS TOPIC``   until the first batch is there

Each prints its seconds, CPU seconds and records or bytes as JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Measured = dict[str, float]


def slice_of(servers: str, topic: str, parts: int) -> Any:
    """The first of so many equal key ranges of a topic's partition 0, and where it ends."""
    import kshare
    from kshare.core.hashing import WHOLE, split
    from kshare.testing.records import watermarks

    first, end = watermarks(servers, topic, 0)
    offsets = kshare.OffsetRange(first, end)
    return kshare.Slice(topic, 0, (kshare.Rectangle(offsets, split(WHOLE, parts)[0]),))


def kshare_read(servers: str, topic: str, parts: str) -> Measured:
    import kshare

    wanted = slice_of(servers, topic, int(parts))
    options = {"kafka.bootstrap.servers": servers}
    kshare.read_slice  # noqa: B018 - imported before the clock starts, as the peer is
    import kshare.read.reader.fetch_loop

    return timed(
        lambda: sum(batch.num_rows for batch in kshare.read_slice(wanted, options)), "records"
    )


def confluent_read(servers: str, topic: str) -> Measured:
    import pyarrow as pa
    from confluent_kafka import Consumer, TopicPartition

    from kshare.testing.records import watermarks

    first, end = watermarks(servers, topic, 0)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 1 << 17,
            "fetch.message.max.bytes": 4 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, 0, first)])

    def read() -> int:
        count = 0
        while count < end - first:
            messages = consumer.consume(10_000, timeout=1.0)
            if not messages:
                continue
            pa.record_batch(
                {
                    "key": pa.array([m.key() for m in messages], pa.binary()),
                    "value": pa.array([m.value() for m in messages], pa.binary()),
                    "topic": pa.array([m.topic() for m in messages], pa.string()),
                    "partition": pa.array([m.partition() for m in messages], pa.int32()),
                    "offset": pa.array([m.offset() for m in messages], pa.int64()),
                    "timestamp": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
                    "type": pa.array([m.timestamp()[0] for m in messages], pa.int32()),
                }
            )
            count += len(messages)
        return count

    measured = timed(read, "records")
    consumer.close()
    return measured


def drain(servers: str, topic: str) -> Measured:
    """What the reader fetches, counted and thrown away: its decoder is replaced by a counter."""
    import kshare
    from kshare.read.reader import slice_records

    wanted = slice_of(servers, topic, 1)
    seen = [0]

    class Counter(slice_records.Decoder):  # type: ignore[misc, name-defined]
        def decode(self, index: Any, *_: Any) -> Any:
            seen[0] += len(index.source)
            return iter(())

    slice_records.Decoder = Counter  # type: ignore[attr-defined]
    options = {"kafka.bootstrap.servers": servers}

    def read() -> int:
        for _ in kshare.read_slice(wanted, options):
            pass
        return seen[0]

    return timed(read, "bytes")


def first_batch(servers: str, topic: str) -> Measured:
    import kshare

    wanted = slice_of(servers, topic, 1)
    options = {"kafka.bootstrap.servers": servers}
    return timed(lambda: next(iter(kshare.read_slice(wanted, options))).num_rows, "records")


def timed(read: Callable[[], int], what: str) -> Measured:
    began, cpu = time.perf_counter(), time.process_time()
    count = read()
    return {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        what: count,
    }


JOBS: dict[str, Callable[..., Measured]] = {
    "kshare": kshare_read,
    "confluent": confluent_read,
    "drain": drain,
    "first-batch": first_batch,
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
