"""A job that moves between Spark and plain processes of one group, on a real broker."""

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.kafka import KafkaBroker
from kshare.core.hashing import WHOLE, HashRange, key_hash, split
from kshare.core.progress import Progress, TopicPartition
from kshare.group import KeySharedConsumer, OffsetAndMetadata
from kshare.group.tools.offsets import list_offsets

LOWER, UPPER = split(WHOLE, 2)
KEYS = 40
RECORDS = 1_000
PARKED = "key-7"


class Job:
    """A topic, a group, and what Spark and plain processes of the group have processed."""

    def __init__(self, spark: SparkSession, broker: KafkaBroker, folder: Path) -> None:
        self.topic = broker.create_topic()
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.processed: list[int] = []
        self._spark = spark
        self._broker = broker
        self._folder = folder
        self._produced = 0

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def produce(self, count: int = RECORDS) -> None:
        numbers = range(self._produced, self._produced + count)
        records = [(f"key-{i * i % KEYS}", str(i)) for i in numbers]
        self._broker.produce(self.topic, records, partition=0)
        self._produced += count

    # -- Spark -----------------------------------------------------------------------------

    def options(self, **more: str) -> dict[str, str]:
        topics = {} if "assign" in more else {"subscribe": self.topic}
        return {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "kafka.group.id": self.group,
            "startingOffsets": "group",
            "commitOffsets": "individual",
            **topics,
            **more,
        }

    def query(self, checkpoint: str, *, batches: int | None = None, **more: str) -> list[int]:
        """Run a query until it has read all that there is, or fails; the offsets that it read."""
        read: list[int] = []
        number = 0

        def sink(rows: DataFrame, _: int) -> None:
            nonlocal number
            number += 1
            if batches is not None and number > batches:
                raise RuntimeError("the job is moved")
            found = [row.offset for row in rows.select("offset").collect()]
            read.extend(found)

        frame = self._spark.readStream.format("kshare").options(**self.options(**more)).load()
        writer = frame.writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(self._folder / checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(120)
        except Exception as error:
            if batches is None or "the job is moved" not in str(error):
                raise
        finally:
            query.stop()
        self.processed += read
        return read

    def batch(self, **more: str) -> list[int]:
        """What a batch query reads."""
        options = self.options(**more)
        del options["commitOffsets"]
        frame = self._spark.read.format("kshare").options(**options).load()
        return sorted(row.offset for row in frame.select("offset").collect())

    # -- plain processes -------------------------------------------------------------------

    @contextmanager
    def consumer(self, hashes: HashRange = WHOLE) -> Iterator[KeySharedConsumer]:
        config = {
            "bootstrap.servers": self._broker.bootstrap_servers,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "acknowledgement.mode": "explicit",
            "enable.auto.commit": False,
            "claim.timeout.ms": 1_000,
        }
        with closing(KeySharedConsumer(config)) as consumer:
            consumer.assign({self.partition: [(hashes.lo, hashes.hi)]})
            yield consumer

    def consume(self, hashes: HashRange = WHOLE, *, all_but: int | None = None) -> list[int]:
        """Process what is there but some records, and commit; the offsets that were processed."""
        done: list[int] = []
        left = self._unprocessed(hashes)
        deadline = time.monotonic() + 120
        with self.consumer(hashes) as consumer:
            while (messages := consumer.consume(500, 1.0)) or left:
                assert time.monotonic() < deadline, f"{sorted(left)[:20]} do not come"
                for message in messages:
                    left.discard(message.offset())
                    if all_but is None or message.offset() % all_but:
                        consumer.acknowledge(message)
                        done.append(message.offset())
            consumer.commit()
        self.processed += done
        return done

    def _unprocessed(self, hashes: HashRange) -> set[int]:
        """The offsets of a hash range that the group has not processed, by its log."""
        config: dict[str, Any] = {"bootstrap.servers": self._broker.bootstrap_servers}
        said = list_offsets(self.group, config).get(self.partition)
        return {
            offset
            for offset in range(self._produced)
            if hash_of(offset) in hashes and not (said and is_processed(said.progress, offset))
        }

    # -- verdicts --------------------------------------------------------------------------

    def committed(self) -> OffsetAndMetadata:
        config: dict[str, Any] = {"bootstrap.servers": self._broker.bootstrap_servers}
        return list_offsets(self.group, config)[self.partition]

    def pending(self) -> int:
        """How many records nobody has processed."""
        return self._produced - len(set(self.processed))

    def check(self) -> None:
        """Everything is processed, each record once, and the group says so."""
        counted = Counter(self.processed)
        assert sorted(counted) == list(range(self._produced))
        assert set(counted.values()) == {1}
        said = replace(self.committed(), leader_epoch=None)  # a query does not know it
        assert said == OffsetAndMetadata(self._produced)


@pytest.fixture
def job(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> Job:
    made = Job(spark, broker, tmp_path)
    made.produce()
    return made


def test_a_job_moves_to_plain_processes_and_back(job: Job) -> None:
    parked = {offset for offset in range(RECORDS) if offset * offset % KEYS == 9}
    assert (
        set(job.query("one", keyRanges="3", parkedKeys='["key-9"]')) == set(range(RECORDS)) - parked
    )
    known = job.committed()
    assert known.offset == 0  # no offset is processed for the hash of the parked key
    assert known.progress.front == RECORDS
    assert job.batch() == sorted(parked)

    job.produce()
    lower = job.consume(LOWER, all_but=5)
    upper = job.consume(UPPER, all_but=7)
    assert lower
    assert upper
    assert job.pending() > 100
    assert not job.committed().progress.is_level

    job.produce()
    rest = set(range(3 * RECORDS)) - set(job.processed)
    assert set(job.batch()) == rest
    assert set(job.query("two", keyRanges="2")) == rest
    job.check()

    job.produce(10)
    assert job.query("two") == list(range(3 * RECORDS, 3 * RECORDS + 10))
    job.check()


def test_a_query_that_fails_loses_nothing_to_those_that_replace_it(job: Job) -> None:
    """What it had not published comes again, and nothing else."""
    first = job.query("one", batches=3, maxRecordsPerTask="60", keyRanges="3")
    assert 0 < len(first) < RECORDS
    more = job.query("one", batches=2, maxRecordsPerTask="60", keyRanges="3")  # its own successor
    assert not set(first) & set(more)
    known = job.committed().progress
    assert not known.is_level  # its ranges stand at different offsets
    job.consume()
    counted = Counter(job.processed)
    assert sorted(counted) == list(range(RECORDS))
    again = {offset for offset, count in counted.items() if count > 1}
    assert again <= {offset for offset in first + more if not is_processed(known, offset)}
    assert set(counted.values()) <= {1, 2}
    assert job.committed() == OffsetAndMetadata(RECORDS, leader_epoch=0)


def hash_of(offset: int) -> int:
    return key_hash(f"key-{offset * offset % KEYS}".encode(), offset)


def is_processed(progress: Progress, offset: int) -> bool:
    """Whether a group has processed a record."""
    hashed = hash_of(offset)
    pending = progress.pending(offset + 1, HashRange(hashed, hashed + 1))
    return all(offset not in piece.offsets for piece in pending)


def test_two_queries_with_other_key_ranges_have_one_stable_offset(job: Job) -> None:
    def assign(hashes: HashRange) -> str:
        return f'{{"{job.topic}": {{"0": [[{hashes.lo}, {hashes.hi}]]}}}}'

    lower = job.query("lower", assign=assign(LOWER))
    known = job.committed()
    assert known.offset < RECORDS
    assert known.progress.position(LOWER) == RECORDS
    upper = job.query("upper", assign=assign(UPPER))
    assert sorted(lower + upper) == list(range(RECORDS))
    job.check()


def test_a_query_that_starts_takes_over_from_a_living_process(job: Job) -> None:
    with job.consumer() as consumer:
        for message in consumer.consume(300, 20.0):
            consumer.acknowledge(message)
            job.processed.append(message.offset())
        consumer.commit()
        job.query("one")
    job.check()


def test_a_start_behind_the_group_is_refused(job: Job) -> None:
    job.consume(LOWER)
    with pytest.raises(Exception, match="has not processed offset"):
        job.query("one", startingOffsets=f'{{"{job.topic}": {{"0": 900}}}}')
    assert job.committed().offset < 900
