"""One broker, one secured broker, one cluster and one Spark for all the integration tests.

Each is started when the first test asks for it. What cannot start fails the test.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from integration.cluster import KafkaCluster
from integration.differential import World, make_world
from integration.kafka import SECURE_LISTENERS, KafkaBroker
from integration.proxy import CountingProxy
from integration.spark import start_spark


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker with a PLAINTEXT listener; tests that stop or kill one make their own."""
    with KafkaBroker() as running:
        yield running


@pytest.fixture(scope="session")
def secure_broker() -> Iterator[KafkaBroker]:
    """A broker with every listener, mechanism and user of ``integration.kafka``."""
    with KafkaBroker(SECURE_LISTENERS) as running:
        yield running


@pytest.fixture
def proxied() -> Iterator[tuple[KafkaBroker, CountingProxy]]:
    """A broker whose clients connect through a proxy."""
    broker = KafkaBroker()
    with CountingProxy(broker.ports["PLAINTEXT"]) as proxy:
        broker.config["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with broker:
            yield broker, proxy


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark of two slots, with ``format("kafka")`` beside ``format("kshare")``."""
    session = start_spark()
    yield session
    session.stop()


@pytest.fixture(params=[False, True], ids=["rows", "pushed"])
def pushed(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Spark hands filters to Python sources."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, str(request.param).lower())
    yield request.param
    spark.conf.unset(name)
