"""What a query does with a cluster: executors that come bring speed, and share what they fetch."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

from integration.kafka import KafkaBroker
from integration.proxy import CountingProxy
from integration.runs import Batches, Driver, StreamingRun, running
from integration.standalone import CONFIG, StandaloneCluster
from kshare.testing import Record

KEYS, COUNT = 97, 40_000  # more than are read before a query is stopped
RECORD_SECONDS = 0.005
BATCH = 400  # records: more than what a batch costs anyhow

DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.sustainedSchedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.executor.cores": "1",
}


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """A master; each test starts the workers, of one slot each."""
    with StandaloneCluster(tmp_path / "cluster") as started:
        yield started


def fill(broker: KafkaBroker, topic: str, count: int, size: int = 1) -> None:
    broker.produce(topic, [Record(b"key-%d" % (n * 7 % KEYS), bytes(size)) for n in range(count)])


def test_an_executor_that_is_added_speeds_a_query_up(
    spark_cluster: StandaloneCluster, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """``minPartitions=auto``: one partition, two ranges as soon as there are two slots."""
    fill(broker, topic, COUNT)
    spark_cluster.add_workers()
    with Driver(tmp_path, spark_cluster.url, config=CONFIG) as driver:
        options = {"minPartitions": "auto", "maxOffsetsPerTrigger": str(BATCH)}
        run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, **options)
        run.more["record_seconds"] = RECORD_SECONDS
        batches = Batches(run)
        with running(run):
            batches.wait_for(6)
            spark_cluster.add_workers()
            batches.wait(lambda tasks: list(tasks.values()).count(2) >= 6)
            run.stop_file.touch()
    seconds, tasks = batches.seconds(), batches.tasks()
    one, two = (
        median(islice((seconds[n] for n in seconds if tasks[n] == count), 1, None))
        for count in (1, 2)
    )
    print(f"seconds of a batch: {one:.2f} with one executor, {two:.2f} with two: {one / two:.2f}x")
    assert one / two >= 1.5
    assert run.judge({0: (0, BATCH * len(tasks))}).ok


def test_executors_come_and_go_by_dynamic_allocation(
    spark_cluster: StandaloneCluster, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """A backlog brings executors, which end when they are idle; the ranges follow."""
    fill(broker, topic, 4 * BATCH)
    workers = spark_cluster.add_workers(3)

    def executors() -> int:
        return sum(len(worker.executors()) for worker in workers)

    with Driver(tmp_path, spark_cluster.url, config={**CONFIG, **DYNAMIC}) as driver:
        options = {"keyRanges": "3", "minPartitions": "auto", "maxOffsetsPerTrigger": str(BATCH)}
        run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, **options)
        run.more["record_seconds"] = RECORD_SECONDS
        with running(run):
            Batches(run).wait(lambda _: executors() == 3)
        Batches(run).wait(lambda _: executors() == 1)
        fill(broker, topic, 2 * BATCH)
        run.start()
    report = run.judge({0: (0, 6 * BATCH)})
    assert report.ok, str(report)


def test_executors_on_one_host_share_what_they_fetch(
    spark_cluster: StandaloneCluster, proxied: tuple[KafkaBroker, CountingProxy], tmp_path: Path
) -> None:
    """The ranges of a partition, in executors of their own, make the broker send it about once."""
    broker, proxy = proxied
    count, size = 24_000, 1000
    topic = broker.create_topic()
    fill(broker, topic, count, size)
    spark_cluster.add_workers(2)
    sent = {}
    with Driver(tmp_path, spark_cluster.url, config=CONFIG) as driver:
        for ranges in (1, 2):
            folder = tmp_path / f"{ranges}"
            folder.mkdir()
            run = StreamingRun(broker.bootstrap_servers, topic, folder, driver)
            before = proxy.received
            run.start(keyRanges=str(ranges))
            sent[ranges] = proxy.received - before
            assert max(Batches(run).tasks().values()) == ranges
            report = run.judge({0: (0, count)})
            assert report.ok, str(report)
    print(f"bytes: {sent[2]} / {sent[1]} = {sent[2] / sent[1]:.3f}")
    assert sent[1] > count * size
    assert sent[2] <= 1.3 * sent[1]
