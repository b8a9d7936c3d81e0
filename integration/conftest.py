"""One broker and one Spark for all the tests; a secured broker, or a cluster, for those of a file.

Each is started when the first test asks for it; the broker before, if several workers share it.
What cannot start fails the test. A broker that nobody uses still takes 3 % of a core.
"""

import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from integration.cluster import KafkaCluster
from integration.differential import World, make_world
from integration.kafka import SECURE_LISTENERS, KafkaBroker
from integration.proof import PROOF
from integration.proxy import CountingProxy
from integration.spark import INTERPRETED, start_a_planner, start_spark
from integration.spark_versions import WANTED
from integration.transactions import RECORDS, Processes

# The longest first, so that no worker begins one when the others are done.
LONG = (
    "test_first_hour",
    "test_registry_outage",
    "test_range_kills",
    "test_sink",
    "test_group_faults",
    "test_group_transaction_faults",
    "test_group_transactions",
    "test_group_log_members",
    "test_standalone",
    "test_checkpoint",
    "test_demo",
    "test_group_membership",
    "test_group_log",
    "test_late_requests",
    "test_cooperative",
    "test_processing",
    "test_connect",
    "test_group_load",
    "test_group_migration",
    "test_faults",
    "test_consumer",
    "test_ways",
    "test_docs",
    "test_taken_away",
)
# The files of the shared Spark have two workers. One Spark for each worker would cost more: it is
# slow in its first minute, until its code is compiled.
OF_SPARK = (
    (
        "test_differential_stream",
        "test_available_now",
        "test_reused_frames",
        "test_columns",
        "test_examples",
        "test_token_provider",
        "test_edge",
    ),
    (
        "test_ranges",
        "test_differential_batch",
        "test_differential_sink",
        "test_differential_calls",
        "test_group_spark",
        "test_security",
        "test_named_sources",
        "test_cluster_stream",
        "test_dashboard",
        "test_processing_spark",
        "test_chunks",
        "test_event_time",
        "test_keys",
        "test_policies",
        "test_interpreter",
        "test_typed_rows",
        "test_apicurio",
        "test_typed_versions",
        "test_spark_versions",
    ),
)


class ByWorker(LoadFileScheduling):  # type: ignore[misc]
    """Gives a worker a file at a time, or all files of a shared Spark."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        for number, names in enumerate(OF_SPARK):
            if Path(file).stem in names:
                return "spark" if self.config.getoption("--one-spark") else f"spark {number}"
        return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByWorker:
    """Say which tests share a worker. (xdist's groups are lost on pytest 9.)"""
    return ByWorker(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let one worker have all files of the shared Spark."""
    parser.addoption("--one-spark", action="store_true", help="one shared Spark, not two")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The shared Spark's files first, then long ones: no worker begins one when others are done."""
    proof = {test for tests in PROOF.values() for test in tests}
    for item in items:
        if item.nodeid in proof:
            item.add_marker("proof")
    names = [*chain.from_iterable(OF_SPARK), *LONG]
    order = {name: number for number, name in enumerate(names)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


# Nobody stops these brokers: one that a busy machine keeps from its heartbeats is not fenced.
_PATIENT = {"broker.session.timeout.ms": "9000"}
_OF_WORKERS = pytest.StashKey[KafkaBroker]()


def _calm_broker(*listeners: str) -> KafkaBroker:
    broker = KafkaBroker(listeners, config=_PATIENT)
    broker.is_calm = True
    return broker


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Launch the broker that all workers share, and tell each of it."""
    stash = node.config.stash
    if _OF_WORKERS not in stash:
        stash[_OF_WORKERS] = _calm_broker()
        stash[_OF_WORKERS].launch()
    node.workerinput["broker"] = pickle.dumps(stash[_OF_WORKERS])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End it."""
    if _OF_WORKERS in config.stash:
        config.stash[_OF_WORKERS].close()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker with a PLAINTEXT listener, of all workers.

    Tests that stop or kill one, or set what holds for a whole cluster, make their own.
    """
    if shared := getattr(request.config, "workerinput", {}).get("broker"):
        yield pickle.loads(shared).wait_until_started()
        return
    with _calm_broker() as running:
        yield running


@pytest.fixture(scope="module")
def secure_broker() -> Iterator[KafkaBroker]:
    """A broker with every listener, mechanism and user of ``integration.kafka``."""
    with _calm_broker(*SECURE_LISTENERS) as running:
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
