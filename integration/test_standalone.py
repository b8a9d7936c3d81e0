"""A query on a standalone cluster, whose executors are killed, added and removed under way."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from integration.kafka import KafkaBroker
from integration.runs import Batches, Driver, StreamingRun, running
from integration.standalone import CONFIG, HOST, StandaloneCluster
from kshare.testing import Record

pytestmark = pytest.mark.long  # a cluster of Spark

KEYS, COUNT = 53, 20_000  # more than are read before it is stopped
RECORD_SECONDS = 0.001
BATCH = 60  # records


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """Two workers of one slot each, at first."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        running.add_workers(2)
        yield running


@pytest.fixture(scope="module")
def driver(
    cluster: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    """One application for all tests."""
    folder = tmp_path_factory.mktemp("driver")
    with Driver(folder, cluster.url, config=CONFIG) as started:
        yield started


def fill(broker: KafkaBroker, topic: str, count: int) -> None:
    broker.produce(topic, [Record(b"key-%d" % (n * 7 % KEYS), b"v") for n in range(count)])


@pytest.mark.timeout(1800)  # a cluster, executors that come and go, and 50 batches
def test_executors_are_killed_added_and_removed(
    cluster: StandaloneCluster, driver: Driver, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """``minPartitions=auto`` follows them, and each record comes once, in order."""
    options = {
        "minPartitions": "auto",
        "maxOffsetsPerTrigger": str(BATCH),
        "targetTaskDuration": "1s",
    }
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, **options)
    run.more["record_seconds"] = RECORD_SECONDS
    fill(broker, topic, COUNT)

    batches = Batches(run)
    with running(run) as query:
        batches.wait(lambda tasks: max(tasks.values(), default=0) == 2)
        first, second = cluster.workers
        first.kill_executor()
        batches.wait_for(2)
        cluster.add_workers()
        batches.wait(lambda tasks: max(tasks.values()) >= 3)  # one that has died may count
        cluster.remove_worker(second)
        batches.wait_for(2)
        assert query.is_alive(), "all happened while the query ran"
        run.stop_file.touch()
    # The rest at once, on the executors that are left.
    run.more.clear()
    run.start(maxOffsetsPerTrigger="100000")
    report = run.judge({0: (0, COUNT)})
    assert report.ok, str(report)


@contextmanager
def black_hole() -> Iterator[int]:
    """A port to which connections are never made, as behind a firewall that drops packets."""
    with ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):  # one or two are taken, though nobody accepts; then no more
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((HOST, port))
        with pytest.raises(TimeoutError):
            socket.create_connection((HOST, port), timeout=0.3)
        yield port


@pytest.mark.usefixtures("cluster")
def test_executors_cannot_reach_the_planners_port(
    driver: Driver, broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """No report comes: the planner looks for the ends of tasks in Kafka, and nobody waits long."""
    options = {"keyRanges": "2", "maxRecordsPerTask": "100"}
    run = StreamingRun(broker.bootstrap_servers, topic, tmp_path, driver, **options)
    fill(broker, topic, 500)
    with black_hole() as port:
        run.more["feedback_port"] = port
        begun = time.monotonic()
        run.start()
        seconds = time.monotonic() - begun
    report = run.judge({0: (0, 500)})
    assert report.ok, str(report)
    count = len(Batches(run).tasks())
    assert count >= 3
    # Linux gives up a connection after 127 s, and each batch would wait for one.
    assert seconds < 100 * count, f"{count} batches took {seconds:.1f} s"
