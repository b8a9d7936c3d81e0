"""The sink against a real broker: brokers, workers and drivers that are killed, and slow brokers.

``python -m integration.test_sink JOB`` runs one streaming query with ``exactlyOnce`` in a process
of its own, and kills it at a step of a batch's commit or in a task, as the job (JSON) says.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.kafka import KafkaBroker
from integration.sinking import (
    PARTITIONS,
    Query,
    assert_each_once_and_in_order,
    expected,
    numbered,
    options_for,
    received,
)
from integration.spark import INTERPRETED, start_spark
from kshare.errors import KafkaError, UnknownTopicError
from kshare.kafka.topics import LEDGER_TOPIC
from kshare.query.produce import Attempt, prepare_rows, write_rows
from kshare.query.produce.coordinator import Coordinators
from kshare.query.produce.driver import abort_batch, kept_clients
from kshare.query.produce.ledger import Ledger, LedgerRecord
from kshare.query.produce.ledger_state import State
from spark_plugin.sink import StreamSink
from spark_plugin.source import KshareDataSource
from tests.support import shown
from tests.support.clock import until

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaBroker]:
    """A broker to be killed and frozen."""
    with KafkaBroker() as running:
        yield running


# -- at least once ---------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_is_killed_while_rows_are_written(fragile: KafkaBroker) -> None:
    topic = fragile.create_topic(partitions=PARTITIONS)
    count, at_once = 60_000, 500
    killed = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, at_once):
            if start == count // 3:
                fragile.kill9()
                killed.set()
            yield numbered(start, at_once)

    def restart() -> None:
        killed.wait(60)
        fragile.start()

    starter = threading.Thread(target=restart)
    starter.start()
    assert write_rows(batches(), options_for(fragile, topic)) == count
    starter.join()
    assert_each_once_and_in_order(received(fragile, topic), count)


@pytest.mark.long
def test_a_broker_that_stays_away_fails_the_task(fragile: KafkaBroker) -> None:
    topic = fragile.create_topic(partitions=PARTITIONS)
    options = options_for(
        fragile,
        topic,
        **{"kafka.delivery.timeout.ms": "10000", "kafka.request.timeout.ms": "1000"},
    )
    # It may have started just now: the first rows are given more time.
    write_rows([numbered(0, 10)], options_for(fragile, topic))
    write_rows([numbered(10, 10)], options)
    fragile.kill9()
    try:
        with pytest.raises(KafkaError, match=rf"write to topic {topic}, partition \d: .*timed out"):
            write_rows([numbered(20, 10)], options)
    finally:
        fragile.start()


def test_memory_is_bounded_when_the_broker_is_slow(fragile: KafkaBroker) -> None:
    topic = fragile.create_topic(partitions=PARTITIONS)
    count, at_once, value_bytes = 100, 1_000, 2_000  # 200 MB
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for start in range(count):
            yield numbered(start * at_once, at_once, value_bytes)
            taken += 1

    fragile.freeze()
    try:
        options = options_for(fragile, topic, **{"kafka.buffer.memory": str(16 << 20)})
        writer = threading.Thread(target=write_rows, args=(batches(), options))
        writer.start()
        time.sleep(4)
        assert taken * at_once * value_bytes <= 20 << 20
    finally:
        fragile.thaw()
    writer.join(120)
    assert taken == count
    assert Counter(n for _, n in received(fragile, topic)) == Counter(range(count * at_once))


# -- transactions ----------------------------------------------------------------------------


@pytest.fixture
def query(broker: KafkaBroker) -> Iterator[Query]:
    prepared = Query(broker)
    yield prepared
    prepared.coordinators.close()


def test_rows_are_seen_when_their_batch_is_committed(query: Query) -> None:
    for batch in range(3):
        messages = query.prepare("r", batch)
        assert len(query.open()) == 3
        assert query.rows() == expected(*range(batch))
        query.commit(messages, batch)
        until(lambda: query.rows() == expected(*range(batch + 1)))  # noqa: B023
    assert query.open() == []


def test_a_batch_that_is_run_again_counts_once(query: Query) -> None:
    query.commit(query.prepare("r1", 0), 0)
    query.prepare("r1", 1)  # its driver is killed
    query.commit(query.prepare("r2", 0), 0)
    query.commit(query.prepare("r2", 1), 1)
    until(lambda: query.rows() == expected(0, 1))
    until(lambda: query.open() == [])  # those of the first run too


def test_attempts_that_do_not_count_are_aborted(query: Query) -> None:
    query.commit(query.prepare("r", 0), 0)
    query.prepare("r", 1, number=0)
    query.commit(query.prepare("r", 1, number=1), 1)
    until(lambda: query.rows() == expected(0, 1))
    until(lambda: query.open() == [])


def test_the_older_of_two_drivers_has_to_stop(query: Query) -> None:
    query.commit(query.prepare("old", 0), 0)
    olds = query.prepare("old", 1)
    query.commit(query.prepare("new", 1), 1)
    with pytest.raises(KafkaError, match=r"batch 1 is not written: .* this is an older run"):
        query.commit(olds, 1)
    abort_batch(olds, 1, query.options)
    query.commit(query.prepare("new", 2), 2)
    until(lambda: query.rows() == expected(0, 1, 2))


@pytest.mark.long
def test_a_transaction_that_timed_out_keeps_its_batch_back(
    broker: KafkaBroker, query: Query
) -> None:
    patient = query.options
    query.options = options_for(
        broker, query.topic, exactlyOnce="true", **{"kafka.transaction.timeout.ms": "10000"}
    )
    messages = query.prepare("r1", 0)
    until(lambda: query.open() == [], 120)  # brokers look every 10 s
    with pytest.raises(KafkaError, match="batch 0 is not written"):
        query.commit(messages, 0)
    abort_batch(messages, 0, query.options)
    query.options = patient
    query.commit(query.prepare("r2", 0), 0)
    until(lambda: query.rows() == expected(0))


def test_an_abort_after_the_decision_commits(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark calls abort when commit fails, wherever it was.
    messages, ends = query.prepare("r", 0), []
    end = Coordinators.end

    def fails_second(self: Coordinators, transaction: Any, *, commit: bool) -> bool | None:
        ends.append(transaction)
        if len(ends) == 2:
            raise KafkaError("no answer")
        return end(self, transaction, commit=commit)

    monkeypatch.setattr(Coordinators, "end", fails_second)
    with pytest.raises(KafkaError, match="no answer"):
        query.commit(messages, 0)
    abort_batch(messages, 0, query.options)
    until(lambda: query.rows() == expected(0))
    query.commit(query.prepare("r2", 0), 0)
    until(lambda: query.open() == [])
    until(lambda: query.rows() == expected(0))


# Before which step of a commit a driver dies.
STEPS = {
    1: "the ledger is opened",
    4: "the decision",
    5: "the leader is committed",
    6: "the other transaction is",
    7: "the ledger says that all are ended",
    8: "Spark notes that the batch is done",
}


@contextmanager
def stepping(before: Callable[[int], object]) -> Iterator[None]:
    """Call ``before`` with the number of each step of a commit; the last one is the end.

    A ledger that was kept from the batch before is not opened: then the first step is left out.
    """
    steps = itertools.count(1)
    with ExitStack() as patches:
        for kind, names in ((Ledger, ("take_over", "write")), (Coordinators, ("is_open", "end"))):
            for name in names:
                after = _after(before, steps, name, getattr(kind, name))
                patches.enter_context(patch.object(kind, name, after))
        yield
        last = next(steps)
        assert last == max(STEPS)
        before(last)


def _after(before: Callable[[int], object], steps: Iterator[int], name: str, method: Any) -> Any:
    def step(*arguments: Any, **named: Any) -> Any:
        number = next(steps)
        before(next(steps) if number == 1 and name != "take_over" else number)
        return method(*arguments, **named)

    return step


@pytest.mark.parametrize("step", STEPS, ids=STEPS.get)
def test_a_batch_counts_once_wherever_its_driver_dies(query: Query, step: int) -> None:
    def dies(number: int) -> None:
        if number == step:
            raise KeyboardInterrupt

    query.commit(query.prepare("r1", 0), 0)
    if step == 1:
        kept_clients().drop()
    messages = query.prepare("r1", 1, tasks=2)
    with pytest.raises(KeyboardInterrupt), stepping(dies):
        query.commit(messages, 1)
    query.commit(query.prepare("r2", 1, tasks=2), 1)
    rows = expected(0) + Counter(range(100, 120))
    until(lambda: query.rows() == rows)
    until(lambda: query.open() == [])


@pytest.mark.parametrize("step", [5, 6])
def test_a_run_ends_what_was_decided_before_its_first_task_reads_a_row(
    query: Query, step: int
) -> None:
    """So the transactions need not last for as long as the repetition takes."""

    def dies(number: int) -> None:
        if number == step:
            raise KeyboardInterrupt

    query.commit(query.prepare("r1", 0), 0)
    messages = query.prepare("r1", 1, tasks=2)
    with pytest.raises(KeyboardInterrupt), stepping(dies):
        query.commit(messages, 1)
    assert len(query.open()) == 7 - step
    both = expected(0) + Counter(range(100, 120))

    def rows(task: int) -> Iterator[pa.RecordBatch]:
        until(lambda: query.rows() == both, 10)  # the markers are written a moment later
        yield numbered(100 + task * 10, 10)

    again = [
        prepare_rows(rows(task), query.options, Attempt(query.id, "r2", 1, task, 0, time.time()))
        for task in range(2)
    ]
    query.commit(again, 1)
    assert query.rows() == both
    until(lambda: query.open() == [])


def test_a_kept_ledger_that_another_driver_has_opened_is_opened_again(query: Query) -> None:
    query.commit(query.prepare("r1", 0), 0)
    with Ledger(query.options, query.id) as other:
        other.take_over()  # it dies before it has written anything
        assert not kept_clients().empty
        query.commit(query.prepare("r1", 1), 1)
        other.read()
        assert not other.write(State(2, "r2", ("r1", "r2"), ended=True))
    query.commit(query.prepare("r1", 2), 2)
    until(lambda: query.rows() == expected(0, 1, 2))


def test_a_team_has_a_ledger_and_ids_of_its_own(broker: KafkaBroker) -> None:
    """What others write into the ledger that all share does not count."""
    ledger = f"{LEDGER_TOPIC}.{uuid.uuid4().hex[:8]}"
    query = Query(broker, ledgerTopic=ledger, transactionalIdPrefix="billing")
    prepared = query.prepare("r1", 0, tasks=3)
    assert sorted(query.open()) == sorted(f"billing-{query.id}-r1-{n}-0-0" for n in range(3))
    query.commit(prepared, 0)
    query.commit(query.prepare("r2", 0, tasks=3), 0)  # it was written before
    query.commit(query.prepare("r2", 1, tasks=3), 1)
    until(lambda: query.rows() == expected(0, 1))
    until(lambda: query.open() == [])
    query.coordinators.close()
    for topic, batch in ((ledger, 1), (LEDGER_TOPIC, None)):
        with suppress(UnknownTopicError), LedgerRecord(query.options.kafka, query.id, topic) as own:
            state = own.read()
            assert (state and state.batch) == batch


# -- through Spark ---------------------------------------------------------------------------

ROWS = 40


@pytest.mark.timeout(1800)  # a Spark for each kill
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((5,), id="one"),
        pytest.param((1, 4, 6, 7, 8), id="rest", marks=pytest.mark.long),
    ],
)
def test_drivers_and_workers_are_killed(
    broker: KafkaBroker, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    """Start number N kills in batch N."""
    topic = broker.create_topic(partitions=PARTITIONS)
    rows, files = tmp_path / "rows", len(steps) + 3
    rows.mkdir()
    for number in range(files):
        batch = numbered(number * ROWS, ROWS)
        pq.write_table(pa.Table.from_batches([batch]), rows / f"{number}.parquet")
        os.utime(rows / f"{number}.parquet", (1e9 + number, 1e9 + number))
    kills: list[dict[str, Any]] = [
        *({"what": "driver", "batch": batch, "step": step} for batch, step in enumerate(steps)),
        {"what": "worker"},
    ]
    for number, kill in enumerate(kills):
        job: dict[str, Any] = {
            "servers": broker.bootstrap_servers,
            "topic": topic,
            "rows": str(rows),
            "checkpoint": str(tmp_path / "checkpoint"),
            "kill": {**kill, "marker": str(tmp_path / f"killed-{number}")},
        }
        log = tmp_path / f"{number}.log"
        try:
            with log.open("wb") as out:
                done = subprocess.run(
                    [sys.executable, "-m", "integration.test_sink", json.dumps(job)],
                    check=False,
                    cwd=ROOT,
                    stdout=out,
                    stderr=out,
                )
        finally:  # also if the test's time is over
            print(f"-- start {number}:\n{log.read_text(errors='replace')[-6000:]}")
        assert Path(job["kill"]["marker"]).exists()
        assert done.returncode == (-signal.SIGKILL if kill["what"] == "driver" else 0)
        shown.killed(f"Spark {kill['what']}")
        counts = Counter(value for _, value in received(broker, topic))
        assert max(counts.values(), default=1) == 1, (kill, counts)
    until(lambda: len(received(broker, topic)) >= files * ROWS)
    counts = Counter(value for _, value in received(broker, topic))
    expected_once = Counter(range(files * ROWS))
    shown.outputs(counts.total(), expected_once - counts, counts - expected_once)
    assert counts == expected_once
    query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    coordinators = Coordinators(options_for(broker, topic).kafka)
    assert coordinators.open_ids(f"kshare-{query}-") == []  # no reader waits
    coordinators.close()


def die(kill: dict[str, Any], driver: int) -> None:
    """Kill -9 this worker, or the driver: Python and JVM."""
    Path(kill["marker"]).touch()
    if kill["what"] == "driver":
        python = psutil.Process(driver)
        for process in [*python.children(), python]:
            process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def source_of(kill: dict[str, Any], driver: int) -> type[KshareDataSource]:
    """``format("kshare")`` that is killed at a step of a commit."""

    class Sink(StreamSink):
        def write(self, iterator: Any) -> Any:
            message = super().write(iterator)
            if kill["what"] == "worker" and not Path(kill["marker"]).exists():
                die(kill, driver)  # prepared, but not reported
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            if batchId != kill.get("batch"):
                super().commit(messages, batchId)
                return

            def before(step: int) -> None:
                if step == kill["step"]:
                    die(kill, driver)

            if kill["step"] == 1:
                kept_clients().drop()

            with stepping(before):
                super().commit(messages, batchId)

    class Source(KshareDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = Sink
            return writer

    return Source


def run(job: dict[str, Any]) -> None:
    """Run the query of a job until it has read all files, a batch each."""
    kill, driver = job["kill"], os.getpid()

    spark = start_spark(master="local[2,4]", config=INTERPRETED)
    spark.dataSource.register(source_of(kill, driver))
    (
        spark.readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", 1)
        .parquet(job["rows"])
        .repartition(2, "key")
        .writeStream.format("kshare")
        .option("kafka.bootstrap.servers", job["servers"])
        .option("topic", job["topic"])
        .option("exactlyOnce", "true")
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
