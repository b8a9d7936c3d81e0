"""Transactions of 500 records, consumed and produced, against a plain transactional producer's.

``python -m bench.transaction_jobs kshare|confluent SERVERS SOURCE TARGET`` is one side: it prints its
seconds, the median time of a commit and its records as JSON. The first transaction, which waits for
the start and for the producer's epoch, does not count.
"""

import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

from bench.data import new_topic
from bench.rows import Row
from kshare.testing.records import produce

RECORDS = 30_000
BATCH = 500
VALUE_BYTES = 88
_SECONDS = 30.0

Measured = dict[str, float]
Transact = Callable[[], float]
"""Consumes and produces :data:`BATCH` records in a transaction; the seconds of its commit."""


def kshare(servers: str, source: str, target: str) -> Measured:
    """One member, which waits for nobody: the purgatory is on, and has nothing to do."""
    from kshare.group import KeySharedConsumer

    name = f"bench-{uuid.uuid4().hex[:8]}"
    config = {
        "bootstrap.servers": servers,
        "group.id": name,
        "transactional.id": name,
        "auto.offset.reset": "earliest",
    }
    with KeySharedConsumer(config) as consumer:
        consumer.assign({(source, 0): []})

        def transact() -> float:
            with consumer.transaction() as transaction:
                messages = consumer.consume(BATCH, _SECONDS)
                assert len(messages) == BATCH
                for message in messages:
                    transaction.produce(target, message.value(), message.key())
                began = time.perf_counter()
            return time.perf_counter() - began

        return _timed(transact)


def confluent(servers: str, source: str, target: str) -> Measured:
    """The plain loop: consume, produce, ``send_offsets_to_transaction``, ``commit_transaction``."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    name = f"bench-{uuid.uuid4().hex[:8]}"
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(source, 0, 0)])
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(_SECONDS)

    def transact() -> float:
        producer.begin_transaction()
        messages = consumer.consume(BATCH, _SECONDS)
        assert len(messages) == BATCH
        for message in messages:
            producer.produce(target, message.value(), message.key())
        began = time.perf_counter()
        offsets = consumer.position([TopicPartition(source, 0)])
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), _SECONDS)
        producer.commit_transaction(_SECONDS)
        return time.perf_counter() - began

    try:
        return _timed(transact)
    finally:
        consumer.close()


def _timed(transact: Transact) -> Measured:
    transact()
    count = RECORDS // BATCH - 1
    began = time.perf_counter()
    commits = [transact() for _ in range(count)]
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "commit": statistics.median(commits), "records": count * BATCH}


def rows(servers: str, runs: int) -> list[Row]:
    """Throughput and the time of a commit, of both sides in turn."""
    source, target = new_topic(servers, "source"), new_topic(servers, "target")
    filler = "x" * VALUE_BYTES
    produce(servers, source, [(f"key-{i * i % 9_973:08}", filler) for i in range(RECORDS)])

    def run(job: str) -> Measured:
        command = [sys.executable, "-m", "bench.transaction_jobs", job, servers, source, target]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured: Measured = json.loads(done.stdout)
        return measured

    pairs = [(run("confluent"), run("kshare")) for _ in range(runs + 1)][1:]
    peer, ours = zip(*pairs, strict=True)
    return [_rate_row(peer, ours), _commit_row(peer, ours)]


def _rate_row(peer: tuple[Measured, ...], ours: tuple[Measured, ...]) -> Row:
    best, median = zip(*map(_best_and_median, map(_rates, (peer, ours))), strict=True)
    ratios = best[1] / best[0], median[1] / median[0]
    return Row(
        f"transactions of {BATCH} records, consumed and produced: records/s",
        f"{best[0]:,.0f} ({median[0]:,.0f})",
        f"{best[1]:,.0f} ({median[1]:,.0f})",
        f"{ratios[0]:.2f}x ({ratios[1]:.2f}x)",
        ">= 0.7x",
        ratios[1] >= 0.7,
    )


def _rates(side: tuple[Measured, ...]) -> list[float]:
    return [each["records"] / each["seconds"] for each in side]


def _best_and_median(rates: list[float]) -> tuple[float, float]:
    return max(rates), statistics.median(rates)


def _commit_row(peer: tuple[Measured, ...], ours: tuple[Measured, ...]) -> Row:
    """Without waiting, the purgatory costs nothing."""
    plain, own = (statistics.median(each["commit"] for each in side) * 1e3 for side in (peer, ours))
    return Row(
        "a transaction's commit, nothing to wait for in the purgatory: median",
        f"{plain:.1f} ms",
        f"{own:.1f} ms",
        f"{own - plain:+.1f} ms",
        "<= +5 ms",
        own - plain <= 5,
    )


JOBS: dict[str, Callable[[str, str, str], Measured]] = {"kshare": kshare, "confluent": confluent}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
