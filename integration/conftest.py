"""One broker and one Spark for all the tests; a secured broker, or a cluster, for those of a file.

Each is started when the first test asks for it. What cannot start fails the test. A broker that
nobody uses still takes 3 % of a core.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from integration.cluster import KafkaCluster
from integration.differential import World, make_world
from integration.kafka import SECURE_LISTENERS, KafkaBroker
from integration.proxy import CountingProxy
from integration.spark import INTERPRETED, start_a_planner, start_spark
from integration.spark_versions import WANTED
from integration.transactions import RECORDS, Processes

# The longest first, and those that wait in turn with those that compute: each has two of four
# workers, so that no core is idle at first and none has four Sparks later.
LONG = (
    "test_group_transaction_faults",
    "test_sink",
    "test_group_faults",
    "test_differential_stream",
    "test_group_transactions",
    "test_ranges",
    "test_group_log_members",
    "test_standalone",
    "test_group_membership",
    "test_checkpoint",
    "test_group_log",
    "test_demo",
    "test_cooperative",
    "test_differential_batch",
    "test_late_requests",
    "test_spark_versions",
    "test_event_time",
    "test_processing",
    "test_reused_frames",
    "test_group_migration",
    "test_differential_sink",
    "test_group_load",
    "test_faults",
    "test_ways",
    "test_columns",
    "test_consumer",
    "test_group_spark",
    "test_connect",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker begins one when the others are done."""
    order = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


# Nobody stops these brokers: one that a busy machine keeps from its heartbeats is not fenced.
_PATIENT = {"broker.session.timeout.ms": "9000"}


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker with a PLAINTEXT listener; tests that stop or kill one make their own."""
    with KafkaBroker(config=_PATIENT) as running:
        running.is_calm = True
        yield running


@pytest.fixture(scope="module")
def secure_broker() -> Iterator[KafkaBroker]:
    """A broker with every listener, mechanism and user of ``integration.kafka``."""
    with KafkaBroker(SECURE_LISTENERS, config=_PATIENT) as running:
        running.is_calm = True
        yield running


@pytest.fixture
def proxied() -> Iterator[tuple[KafkaBroker, CountingProxy]]:
    """A broker whose clients connect through a proxy."""
    broker = KafkaBroker()
    with CountingProxy(broker.ports["PLAINTEXT"]) as proxy:
        broker.config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker:
            yield broker, proxy


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Two brokers, for leaders that move."""
    with KafkaCluster(2) as running:
        yield running


@pytest.fixture(scope="session")
def world(broker: KafkaBroker) -> World:
    """Topics that no test changes."""
    return make_world(broker)


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    """A new topic of one partition on ``broker``."""
    return broker.create_topic()


@pytest.fixture
def processes(broker: KafkaBroker, topic: str, tmp_path: Path) -> Iterator[Processes]:
    """Transactional processes of a group, with records to read."""
    with closing(Processes(broker, topic, tmp_path)) as group:
        group.fill(RECORDS)
        yield group


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark of two slots, with ``format("kafka")`` beside ``format("kshare")``.

    It compiles queries only where another version of Spark is tested.
    """
    session = start_spark(config={} if WANTED in os.environ else INTERPRETED)
    start_a_planner(session)
    yield session
    session.stop()


@pytest.fixture(params=[False, True], ids=["rows", "pushed"])
def pushed(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Spark hands filters to Python sources."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, str(request.param).lower())
    yield request.param
    spark.conf.unset(name)
